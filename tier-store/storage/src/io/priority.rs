//! Priorities of background threads.

use std::cell::Cell;

/// The priority of a background thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// For work that a user waits for now and then: where all processors are busy it gets a tenth of one.
    Planning,
    /// For work that no user waits for (`SCHED_IDLE`): it gets the idle time only. A thread that wakes up preempts it at once,
    /// and the scheduler counts the processor it runs on as free.
    Moving,
}

const PLANNING_NICE: libc::c_int = 10;
/// A thread processes this many bytes between two calls of [`let_others_run`].
pub(crate) const QUANTUM_BYTES: usize = 256 << 10;

thread_local! {
    /// True when the thread yields the processor between two quanta.
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// Lowers the priority of the calling thread, for as long as it lives: raising it again takes a privilege.
pub fn lower_priority(to: Priority) {
    // SAFETY: plain system calls that read one number; on Linux they concern the calling thread alone.
    let answer = unsafe {
        match to {
            Priority::Planning => libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, PLANNING_NICE),
            Priority::Moving => libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }),
        }
    };
    YIELDS.set(to == Priority::Moving);
    if answer != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "cannot lower the priority of a background thread");
    }
}

/// Yields the processor on a thread of [`Priority::Moving`]; long work calls this between two quanta. The scheduler would let
/// the thread run until the timer's next tick (4 ms at 250 Hz), whatever its priority: a query that the scheduler has
/// queued after such a thread would wait that long.
pub(crate) fn let_others_run() {
    if YIELDS.get() {
        std::thread::yield_now();
    }
}
