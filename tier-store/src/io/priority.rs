//! Priorities of threads.

use std::cell::Cell;

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
/// Work on so many bytes is done before others are let run.
pub(crate) const TURN_BYTES: usize = 256 << 10;

thread_local! {
    /// Whether the thread leaves the processor to others between two turns.
    static LETS_RUN: Cell<bool> = const { Cell::new(false) };
}

/// Lowers the priority of the calling thread, for as long as it lives: raising it again takes a privilege.
pub(crate) fn give_way(to: Priority) {
    // SAFETY: plain system calls that read one number; on Linux they concern the calling thread alone.
    let answer = unsafe {
        match to {
            Priority::Planning => libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, PLANNING_NICE),
            Priority::Moving => libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }),
        }
    };
    LETS_RUN.set(to == Priority::Moving);
    if answer != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "background work runs at the priority of queries");
    }
}

/// Called between two turns of long work: on a thread that moves, runs who waits for its processor. The scheduler would
/// let it finish what is left until the timer's next tick (4 ms at 250 Hz), whatever its priority: a query that another
/// thread was put before waits that long.
pub(crate) fn let_others_run() {
    if LETS_RUN.get() {
        std::thread::yield_now();
    }
}
