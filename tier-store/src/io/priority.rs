//! Priorities of threads.

/// How much a thread leaves to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nice {
    /// Work that others wait for now and then: where all processors are wanted it gets one part in ten of one.
    Planning = 10,
    /// Work that nobody waits for: one part in seventy.
    Moving = 19,
}

/// Lowers the priority of the calling thread, for as long as it lives: raising it again takes a privilege.
pub(crate) fn give_way(nice: Nice) {
    // SAFETY: plain system calls without pointers; on Linux they concern the calling thread alone.
    let refused =
        unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, nice as libc::c_int) } != 0;
    if refused {
        tracing::debug!(error = %std::io::Error::last_os_error(), "background work runs at the priority of queries");
    }
}
