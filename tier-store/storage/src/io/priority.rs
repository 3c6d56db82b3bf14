//! Priorities of threads.

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
/// The least that the scheduler takes.
const SHORT_TURN_NS: u64 = 100_000;
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

/// Gives the calling thread short turns of the processor, for work that comes often and takes microseconds. From Linux 6.12 on
/// such a thread preempts one with longer turns as soon as it wakes up; else, where all processors are busy, it may wait for
/// the timer's next tick (4 ms at 250 Hz). It gets no larger part of the processor. Older kernels ignore it.
pub(crate) fn shorten_turns() {
    let answer = scheduling().and_then(|mut attributes| {
        attributes.sched_runtime = SHORT_TURN_NS;
        // SAFETY: the call concerns the calling thread, and reads as many bytes of a live structure as that says it has.
        succeeded(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
    });
    if let Err(error) = answer {
        tracing::debug!(%error, "cannot shorten the turns of a thread");
    }
}

/// How the scheduler treats the calling thread.
fn scheduling() -> std::io::Result<libc::sched_attr> {
    // SAFETY: the structure consists of numbers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the call concerns the calling thread, and writes at most `size` bytes of a live structure.
    succeeded(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

fn succeeded(answer: libc::c_long) -> std::io::Result<()> {
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

    #[test]
    fn short_turns_change_nothing_else() {
        let before = scheduling().unwrap();
        shorten_turns();
        let after = scheduling().unwrap();
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        // Older kernels have no lengths of turns.
        let expected = if before.sched_runtime == 0 { 0 } else { SHORT_TURN_NS };
        assert_eq!(after.sched_runtime, expected);
    }
}
