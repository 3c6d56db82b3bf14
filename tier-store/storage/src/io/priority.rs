//! Priorities of threads.

use std::cell::Cell;

use terrace_model::{Error, Result};

/// The priority of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// For the thread that gives reads to the device and takes them from it, for less than a tenth of a millisecond at a
    /// time: the best nice value, with which it mostly preempts others when it wakes up. With the priority of others it waits
    /// for the timer's next tick now and then where all processors are busy (4 ms at 250 Hz), and so do points. It takes a
    /// privilege (`CAP_SYS_NICE`, or the limit `nice` of -20).
    Device,
    /// For planning of moves and for upkeep, which a user waits for now and then: where all processors are busy it gets a tenth
    /// of one.
    Planning,
    /// For work that no user waits for (`SCHED_IDLE`): it gets the idle time only. A thread that wakes up preempts it at once,
    /// and the scheduler counts the processor it runs on as free.
    Moving,
}

const DEVICE_NICE: libc::c_int = -20;
const PLANNING_NICE: libc::c_int = 10;
/// A thread processes this many bytes between two calls of [`let_others_run`].
pub(crate) const QUANTUM_BYTES: usize = 256 << 10;

thread_local! {
    /// True when the thread yields the processor between two quanta.
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// Sets the priority of the calling thread, for as long as it lives: raising one that was lowered takes a privilege.
pub fn set_priority(to: Priority) {
    let answer = match to {
        Priority::Device => set_nice(DEVICE_NICE),
        Priority::Planning => set_nice(PLANNING_NICE),
        Priority::Moving => set_policy(libc::SCHED_IDLE, 0),
    };
    YIELDS.set(to == Priority::Moving);
    match answer {
        Ok(()) => {}
        Err(error) if to == Priority::Device => tracing::info!(
            %error,
            "reads have the priority of other work, so point reads may wait milliseconds for a busy processor; CAP_SYS_NICE, or the limit nice of -20, gives them a better one"
        ),
        Err(error) => tracing::debug!(%error, "cannot lower the priority of a background thread"),
    }
}

/// Runs `work` on a thread of its own with a priority, and waits for it: the calling thread keeps its priority for what it does
/// later.
///
/// # Errors
/// [`Error::Io`] when the process may have no more threads.
pub fn with_priority<T: Send>(priority: Priority, work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let run = || {
            set_priority(priority);
            work()
        };
        let thread = std::thread::Builder::new().name("terrace-upkeep".into()).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| Error::io("start", "a thread for upkeep", &error))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn set_policy(policy: libc::c_int, priority: libc::c_int) -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: a plain system call that reads one number; on Linux it concerns the calling thread alone.
    succeeded(unsafe { libc::sched_setscheduler(0, policy, &priority) })
}

fn set_nice(nice: libc::c_int) -> std::io::Result<()> {
    // SAFETY: plain system calls; on Linux they concern the calling thread alone.
    succeeded(unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, nice) })
}

fn succeeded(answer: libc::c_int) -> std::io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Yields the processor on a thread of [`Priority::Moving`]; long work calls this between two quanta. The scheduler would let
/// the thread run until the timer's next tick (4 ms at 250 Hz), whatever its priority: a query that the scheduler has
/// queued after such a thread would wait that long.
pub(crate) fn let_others_run() {
    if YIELDS.get() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The policy of the calling thread and its nice value.
    fn scheduling() -> (libc::c_int, libc::c_int) {
        // SAFETY: plain system calls that concern the calling thread.
        unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t)) }
    }

    #[test]
    fn work_has_its_priority_and_the_calling_thread_keeps_its_own() {
        let (policy, nice) = scheduling();
        assert_eq!(with_priority(Priority::Planning, scheduling).unwrap(), (policy, PLANNING_NICE.max(nice)));
        assert_eq!(scheduling(), (policy, nice));
        let panic = std::panic::catch_unwind(|| with_priority(Priority::Planning, || panic!("a reason")));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"a reason"));
    }

    fn on_another_thread<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn a_thread_gets_the_priority_that_its_process_may_have() {
        let with = |priority| {
            on_another_thread(move || {
                set_priority(priority);
                scheduling()
            })
        };
        let (policy, nice) = scheduling();
        assert_eq!(with(Priority::Planning), (policy, PLANNING_NICE.max(nice)));
        assert_eq!(with(Priority::Moving).0, libc::SCHED_IDLE);
        let may_be_better = on_another_thread(|| set_nice(DEVICE_NICE).is_ok());
        assert_eq!(with(Priority::Device), (policy, if may_be_better { DEVICE_NICE } else { nice }));
        assert_eq!(scheduling(), (policy, nice), "the threads alone have changed");
    }
}
