//! Priorities of threads.

/// Nice value of a thread that works in the background: where all processors are wanted it gets one part in seventy.
const NICE: libc::c_int = 19;

/// Lowers the priority of the calling thread, for as long as it lives: raising it again takes a privilege.
pub(crate) fn give_way() {
    // SAFETY: plain system calls without pointers; on Linux they concern the calling thread alone.
    let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, NICE) } != 0;
    if refused {
        tracing::debug!(error = %std::io::Error::last_os_error(), "background work runs at the priority of queries");
    }
}
