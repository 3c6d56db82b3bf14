//! Priorities of threads.

/// How much a thread leaves to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// For work that somebody waits for now and then: where all processors are busy it gets a tenth of one.
    Planning,
    /// For work that nobody waits for (`SCHED_IDLE`): it gets what is left. Who wakes up takes its place at once, and the
    /// processor it runs on counts as free.
    Moving,
}

const PLANNING_NICE: libc::c_int = 10;

/// Lowers the priority of the calling thread, for as long as it lives: raising it again takes a privilege.
pub(crate) fn give_way(to: Priority) {
    // SAFETY: plain system calls that read one number; on Linux they concern the calling thread alone.
    let answer = unsafe {
        match to {
            Priority::Planning => libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, PLANNING_NICE),
            Priority::Moving => libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }),
        }
    };
    if answer != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "background work runs at the priority of queries");
    }
}
