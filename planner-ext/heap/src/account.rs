//! Accounts of allocated memory and of time.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::allocator::{Uncharged, WorkingFor, current};

/// Bytes that the work of one statement has allocated and not freed, and the time that it took of threads.
#[derive(Debug, Default)]
pub struct HeapAccount {
    bytes: AtomicI64,
    peak_bytes: AtomicI64,
    /// Two numbers, so that they change together: in the lowest [`WORKER_BITS`] bits the threads that work for the account
    /// now, above them the microseconds of work that has ended, less the times at which work under way began.
    work: AtomicI64,
    /// Microseconds of work that has ended in which its threads had no processor, as far as that is measured.
    without_processor_us: AtomicI64,
    /// Nanoseconds for which the calling thread has had a processor; where it is set, that is measured.
    processor_time: OnceLock<fn() -> u64>,
    should_stop: OnceLock<StopCheck>,
}

/// When work began for which the time on processors is measured.
pub(crate) struct Begun {
    us: i64,
    processor_ns: u64,
}

/// Says whether work for an account has to stop.
struct StopCheck(Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for StopCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopCheck")
    }
}

/// Bits for the number of threads.
const WORKER_BITS: u32 = 16;

/// Microseconds since the first use of an account.
fn now_us() -> i64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    // Not a clock that tests can set: the time is measured, and nothing is decided by it here.
    #[allow(clippy::disallowed_methods)]
    let now = Instant::now();
    now.saturating_duration_since(*ORIGIN.get_or_init(|| now)).as_micros() as i64
}

impl HeapAccount {
    /// An account of 0 bytes.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The account that this thread works for now.
    pub fn current() -> Option<Arc<Self>> {
        current()
    }

    /// Lets work for this account ask `check` whether it has to stop. The first check stays.
    pub fn set_stop_check(&self, check: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.should_stop.set(StopCheck(Box::new(check)));
    }

    /// Whether work for this account has to stop; `None` where nothing says so.
    pub fn should_stop(&self) -> Option<bool> {
        self.should_stop.get().map(|check| (check.0)())
    }

    /// Whether the work of this thread has to stop.
    pub fn current_should_stop() -> bool {
        current().and_then(|account| account.should_stop()).unwrap_or(false)
    }

    /// Bytes allocated and not freed, to within 64 KiB for each thread that works for the account.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The largest [`Self::bytes`] so far.
    pub fn peak_bytes(&self) -> u64 {
        u64::try_from(self.peak_bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Time for which threads worked for the account so far.
    pub fn busy_time(&self) -> Duration {
        let work = self.work.load(Ordering::Relaxed);
        let workers = work & ((1 << WORKER_BITS) - 1);
        let busy_us = (work >> WORKER_BITS).wrapping_add(workers.wrapping_mul(now_us()));
        Duration::from_micros(u64::try_from(busy_us).unwrap_or(0))
    }

    /// Measures from now on for how long threads that work for the account have a processor, by `processor_time`: nanoseconds
    /// of the calling thread. That costs two system calls for each turn of a task.
    pub fn measure_processor_time(&self, processor_time: fn() -> u64) {
        let _ = self.processor_time.set(processor_time);
    }

    /// [`Self::busy_time`] without that in which other threads had the processor, as far as it was measured; work under way
    /// counts as it is.
    pub fn processor_time(&self) -> Duration {
        let without_us = self.without_processor_us.load(Ordering::Relaxed);
        self.busy_time().saturating_sub(Duration::from_micros(u64::try_from(without_us).unwrap_or(0)))
    }

    pub(crate) fn begin_work(&self) -> Option<Begun> {
        let us = now_us();
        self.work.fetch_sub((us << WORKER_BITS).wrapping_sub(1), Ordering::Relaxed);
        self.processor_time.get().map(|processor_time| Begun { us, processor_ns: processor_time() })
    }

    pub(crate) fn end_work(&self, begun: Option<Begun>) {
        let us = now_us();
        if let (Some(begun), Some(processor_time)) = (begun, self.processor_time.get()) {
            let processor_us = (processor_time().saturating_sub(begun.processor_ns) / 1_000) as i64;
            self.without_processor_us.fetch_add((us - begun.us - processor_us).max(0), Ordering::Relaxed);
        }
        self.work.fetch_add((us << WORKER_BITS).wrapping_sub(1), Ordering::Relaxed);
    }

    /// Adds bytes that others have allocated, and that work for this account frees or [releases](Self::release).
    pub fn take_over(&self, bytes: u64) {
        self.add(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Takes off bytes that now belong to someone else; what the account does not have, it cannot lose.
    pub fn release(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let less = |held: i64| (held > 0).then(|| held.saturating_sub(bytes).max(0));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn add(&self, bytes: i64) {
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        if bytes > 0 {
            self.peak_bytes.fetch_max(held, Ordering::Relaxed);
        }
    }

    /// Charges what `future` allocates to this account.
    pub fn charge<F: Future>(self: &Arc<Self>, future: F) -> Charged<F> {
        Charged { account: Arc::clone(self), future: Some(Box::pin(future)) }
    }

    /// Charges what `work` allocates, on another thread, to the account that this thread works for.
    pub fn carry<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let account = Self::current();
        move || match account {
            Some(account) => account.charge_call(work),
            None => work(),
        }
    }

    /// Charges what `work` allocates to no account.
    pub fn uncharged<T>(work: impl FnOnce() -> T) -> T {
        let _working = Uncharged::begin();
        work()
    }

    /// Charges what `work` allocates to this account.
    pub fn charge_call<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _working = WorkingFor::begin(self);
        work()
    }
}

/// A future whose allocations are charged to an account.
#[derive(Debug)]
pub struct Charged<F> {
    account: Arc<HeapAccount>,
    /// `None` once it is dropped.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Charged<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _working = WorkingFor::begin(&this.account);
        match &mut this.future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Charged<F> {
    /// Credits what the future holds.
    fn drop(&mut self) {
        let _working = WorkingFor::begin(&self.account);
        self.future = None;
    }
}
