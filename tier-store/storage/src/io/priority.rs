//! Priorities of threads.
//!
//! A thread of nice 10 is not preempted at once: the kernel lets it go on for a millisecond or so after it began, and mostly
//! to the next tick of its timer (4 ms at 250 Hz). A look-up passes half a dozen threads, and each may find its processor
//! taken like this. A thread with `SCHED_IDLE` is preempted at once, but starves where all processors are busy. So upkeep has
//! the one policy or the other, by whether it gets on: see [`with_priority`].

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
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
    /// For long work that a user waits for, on a thread of [`with_priority`]: as [`Priority::Moving`] while there is idle time,
    /// else as [`Priority::Planning`]. That takes a privilege (`CAP_SYS_NICE`, or the limit `nice` of 10); without it, it is
    /// [`Priority::Planning`].
    Upkeep,
    /// For work that no user waits for (`SCHED_IDLE`): it gets the idle time only. A thread that wakes up preempts it at once,
    /// and the scheduler counts the processor it runs on as free.
    Moving,
}

const DEVICE_NICE: libc::c_int = -20;
const PLANNING_NICE: libc::c_int = 10;
/// A thread processes this many bytes between two calls of [`let_others_run`].
pub(crate) const QUANTUM_BYTES: usize = 256 << 10;
/// Time between two looks at a thread of [`Priority::Upkeep`].
const WATCH_TIME: Duration = Duration::from_millis(50);
/// The thread starves when it is ready to run, was so all the time, and has had less than this of [`WATCH_TIME`].
const ENOUGH_TIME: Duration = Duration::from_millis(5);
/// Time for which one that starved has the policy of others.
const COMPETING_TIME: Duration = Duration::from_secs(1);

thread_local! {
    /// True when the thread yields the processor between two quanta.
    static YIELDS: Cell<bool> = const { Cell::new(false) };
    /// The work of [`Priority::Upkeep`] that the thread does.
    static WATCHED: RefCell<Option<Arc<Watched>>> = const { RefCell::new(None) };
}

/// Sets the priority of the calling thread, for as long as it lives: raising one that was lowered takes a privilege.
pub fn set_priority(to: Priority) {
    let answer = match to {
        Priority::Device => set_nice(DEVICE_NICE),
        Priority::Planning | Priority::Upkeep => set_nice(PLANNING_NICE),
        Priority::Moving => set_policy(0, libc::SCHED_IDLE),
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
/// later. With [`Priority::Upkeep`] it watches the other one, and changes its policy.
///
/// # Errors
/// [`Error::Io`] when the process may have no more threads.
pub fn with_priority<T: Send>(priority: Priority, work: impl FnOnce() -> T + Send) -> Result<T> {
    let watched = (priority == Priority::Upkeep && may_leave_idle()).then(Arc::<Watched>::default);
    std::thread::scope(|scope| {
        let run = || {
            set_priority(priority);
            let _end = watched.as_deref().map(End);
            let _member = watched.as_ref().map(Member::enter);
            work()
        };
        let thread = std::thread::Builder::new().name("terrace-upkeep".into()).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| Error::io("start", "a thread for upkeep", &error))?;
        if let Some(watched) = &watched {
            watched.watch();
        }
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The threads of some work of [`Priority::Upkeep`], as another thread sees them.
#[derive(Debug, Default)]
struct Watched {
    /// Watched threads compete before they take it: the watching thread, which helps those that starve, waits for it.
    state: Mutex<WatchedState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct WatchedState {
    /// Each leaves before it ends, when its number may become that of another one.
    threads: Vec<WatchedThread>,
    /// Whether all of them compete for a while, as one has starved.
    do_all_compete: bool,
    is_over: bool,
}

#[derive(Debug)]
struct WatchedThread {
    number: libc::pid_t,
    /// Its processor time when it was looked at last.
    used: Duration,
    /// How often it had gone to sleep until then.
    sleeps: u64,
    /// Calls under way for which it competes, one in the other.
    calls: usize,
}

/// Tells at its drop that the work is over, also by a panic.
struct End<'a>(&'a Watched);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.over.notify_all();
    }
}

impl Watched {
    /// Returns when the work is over. The lock is held whenever a thread is named, so it lives then.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            self.over.wait_for(&mut state, WATCH_TIME);
            let starving = state.threads.iter_mut().map(WatchedThread::starves).filter(|starves| *starves).count();
            if starving > 0 {
                state.compete(true);
                self.over.wait_for(&mut state, COMPETING_TIME);
                state.compete(false);
            }
        }
    }

    /// Notes that a call begins or ends for which a thread competes; returns whether it has to compete from now on.
    fn note_call(&self, number: libc::pid_t, begins: bool) -> bool {
        let mut state = self.state.lock();
        let all = state.do_all_compete;
        let Some(thread) = state.threads.iter_mut().find(|thread| thread.number == number) else { return true };
        thread.calls = if begins { thread.calls + 1 } else { thread.calls.saturating_sub(1) };
        all || thread.calls > 0
    }
}

impl WatchedState {
    /// Lets all threads compete, or gives idle time only to those that are in no call for which they compete.
    fn compete(&mut self, do_all: bool) {
        self.do_all_compete = do_all;
        for thread in &mut self.threads {
            compete(thread.number, do_all || thread.calls > 0);
            *thread = WatchedThread { calls: thread.calls, ..WatchedThread::new(thread.number) };
        }
    }
}

impl WatchedThread {
    fn new(number: libc::pid_t) -> Self {
        Self { number, used: processor_time(number), sleeps: sleeps(number), calls: 0 }
    }

    /// Whether it has been ready to run since the last call, and had too little processor time. One that reads or writes
    /// sleeps most of the time, and is ready to run now and then when somebody looks.
    fn starves(&mut self) -> bool {
        let now = Self { calls: self.calls, ..Self::new(self.number) };
        let before = std::mem::replace(self, now);
        let has_slept = self.sleeps != before.sleeps;
        self.used.saturating_sub(before.used) < ENOUGH_TIME && !has_slept && is_runnable(self.number)
    }
}

/// The calling thread as one of those that are watched, until this is dropped on it.
#[derive(Debug)]
pub(crate) struct Member {
    watched: Arc<Watched>,
    number: libc::pid_t,
}

impl Member {
    /// Gives the calling thread idle time only, until the watching thread changes that.
    fn enter(watched: &Arc<Watched>) -> Self {
        let number = thread_number();
        let thread = WatchedThread::new(number);
        let competes = {
            let mut state = watched.state.lock();
            state.threads.push(thread);
            state.do_all_compete
        };
        WATCHED.set(Some(Arc::clone(watched)));
        if !competes {
            compete(0, false);
        }
        Self { watched: Arc::clone(watched), number }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        WATCHED.set(None);
        compete(0, true);
        self.watched.state.lock().threads.retain(|thread| thread.number != self.number);
        // Again: the watching thread may have undone it until then.
        compete(0, true);
    }
}

/// A call for which the calling thread, which is watched, competes until this is dropped on it.
struct CompetingCall<'a> {
    watched: &'a Watched,
    number: libc::pid_t,
}

impl<'a> CompetingCall<'a> {
    fn begin(watched: &'a Watched) -> Self {
        let number = thread_number();
        compete(0, true);
        watched.note_call(number, true);
        // Again: the watching thread may have undone it until it knew of the call.
        compete(0, true);
        Self { watched, number }
    }
}

impl Drop for CompetingCall<'_> {
    fn drop(&mut self) {
        if !self.watched.note_call(self.number, false) {
            compete(0, false);
        }
    }
}

/// Threads that the calling thread starts for its work. A thread inherits the policy of the one that starts it: if that is
/// watched, these have to be, too.
#[derive(Debug, Clone)]
pub(crate) struct Helpers(Option<Arc<Watched>>);

impl Helpers {
    /// Those of the calling thread.
    pub(crate) fn for_this_thread() -> Self {
        Self(WATCHED.with_borrow(Clone::clone))
    }

    /// Calls `start`, which starts threads, with the policy of others: a thread that has idle time only might never come to
    /// [`Self::join`].
    pub(crate) fn start<T>(&self, start: impl FnOnce() -> T) -> T {
        let _call = self.0.as_deref().map(CompetingCall::begin);
        start()
    }

    /// Makes the calling thread one of them, until what this returns is dropped.
    pub(crate) fn join(&self) -> Option<Member> {
        self.0.as_ref().map(Member::enter)
    }
}

/// Calls `work`, for which others wait: a thread of upkeep that has idle time only competes for the processor meanwhile.
pub fn competing<T>(work: impl FnOnce() -> T) -> T {
    Helpers::for_this_thread().start(work)
}

/// The number by which the system knows the calling thread.
fn thread_number() -> libc::pid_t {
    // SAFETY: a plain system call without arguments.
    unsafe { libc::gettid() }
}

/// Lets a thread (0: the calling one) compete with others, or gives it idle time only. A failure leaves it as it is.
fn compete(thread: libc::pid_t, does: bool) {
    let policy = if does { libc::SCHED_OTHER } else { libc::SCHED_IDLE };
    if let Err(error) = set_policy(thread, policy) {
        tracing::debug!(%error, "cannot change the policy of a background thread");
    }
}

/// Whether this process may take `SCHED_IDLE` from a thread again; tried once.
fn may_leave_idle() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    let probe = || {
        let tried = set_nice(PLANNING_NICE)
            .and_then(|()| set_policy(0, libc::SCHED_IDLE))
            .and_then(|()| set_policy(0, libc::SCHED_OTHER));
        tried.is_ok()
    };
    *MAY.get_or_init(|| {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("terrace-probe".into()).spawn_scoped(scope, probe);
            thread.is_ok_and(|thread| thread.join().unwrap_or(false))
        })
    })
}

/// The processor time of a thread of this process.
fn processor_time(thread: libc::pid_t) -> Duration {
    // The number of such a clock, as `pthread_getcpuclockid` makes it: the thread's, and two bits that say what it counts.
    let clock: libc::clockid_t = (!thread << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain system call that fills a structure of ours; a refusal leaves it as it is.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Whether a thread of this process runs or waits for a processor, and for nothing else; true where the system does not tell.
fn is_runnable(thread: libc::pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name before it may contain anything.
    status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('R'))
}

/// How often a thread of this process has gone to sleep so far.
fn sleeps(thread: libc::pid_t) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Sets the policy of a thread of this process; 0: the calling one.
fn set_policy(thread: libc::pid_t, policy: libc::c_int) -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: a plain system call that reads one number; on Linux it concerns that thread alone.
    succeeded(unsafe { libc::sched_setscheduler(thread, policy, &priority) })
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
    use terrace_model::clock::{Clock, SystemClock};

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

    #[test]
    fn upkeep_has_a_low_priority_and_the_calling_thread_keeps_its_own() {
        let (policy, nice) = scheduling();
        let upkeep = with_priority(Priority::Upkeep, scheduling).unwrap();
        // It competes where others kept it from the processor for long.
        assert!(upkeep.0 == policy || may_leave_idle() && upkeep.0 == libc::SCHED_IDLE);
        assert_eq!(upkeep.1, PLANNING_NICE.max(nice));
        assert_eq!(scheduling(), (policy, nice));
        let panic = std::panic::catch_unwind(|| with_priority(Priority::Upkeep, || panic!("a reason")));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"a reason"));
    }

    #[test]
    fn a_watched_thread_has_idle_time_except_for_calls_that_others_wait_for() {
        const IDLE: libc::c_int = libc::SCHED_IDLE;
        let competes = if may_leave_idle() { libc::SCHED_OTHER } else { IDLE };
        let policy = || scheduling().0;
        // No thread watches, so nothing changes by itself.
        let watched = Arc::<Watched>::default();
        on_another_thread(|| {
            set_priority(Priority::Upkeep);
            let member = Member::enter(&watched);
            assert_eq!(policy(), IDLE);
            let both = competing(|| (competing(policy), policy()));
            assert_eq!((both, policy()), ((competes, competes), IDLE));
            assert!(std::panic::catch_unwind(|| competing::<()>(|| panic!("a reason"))).is_err());
            assert_eq!(policy(), IDLE);
            let helpers = Helpers::for_this_thread();
            let helper = || {
                let before = policy();
                let _member = helpers.join();
                (before, policy())
            };
            let of_helper = std::thread::scope(|scope| helpers.start(|| scope.spawn(helper)).join().unwrap());
            assert_eq!((of_helper, policy()), ((competes, IDLE), IDLE));
            let watch = |do_all| watched.state.lock().compete(do_all);
            watch(true);
            assert_eq!((policy(), competing(policy), policy()), (competes, competes, competes));
            let during = competing(|| {
                watch(false);
                policy()
            });
            assert_eq!((during, policy()), (competes, IDLE));
            drop(member);
            assert_eq!((policy(), competing(policy)), (competes, competes));
        });
        assert!(watched.state.lock().threads.is_empty());
    }

    #[test]
    fn a_thread_that_computes_is_runnable_and_one_that_waits_is_not() {
        let (name, named) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                name.send(thread_number()).unwrap();
                let _ = stopped.recv();
            });
            let thread = named.recv().unwrap();
            while is_runnable(thread) {
                std::thread::yield_now();
            }
            assert!(processor_time(thread) > Duration::ZERO);
            drop(stop);
        });
        let this = thread_number();
        assert!(is_runnable(this));
        let before = processor_time(this);
        while processor_time(this) == before {}
    }

    #[test]
    fn a_thread_that_slept_does_not_starve() {
        // SAFETY: a plain system call without arguments.
        let mut this = WatchedThread::new(unsafe { libc::gettid() });
        let clock = SystemClock::default();
        let mut starves = || {
            // As if it had had no processor time.
            this.used = Duration::MAX;
            this.starves()
        };
        // It may sleep in a call of the system now and then.
        while !starves() {}
        clock.sleep(Duration::from_millis(1));
        assert!(!starves());
        while !starves() {}
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
