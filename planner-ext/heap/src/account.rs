//! Accounts of allocated memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use crate::allocator::{WorkingFor, current};

/// Bytes that the work of one statement has allocated and not freed.
#[derive(Debug, Default)]
pub struct HeapAccount {
    bytes: AtomicI64,
    peak_bytes: AtomicI64,
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

    /// Bytes allocated and not freed, to within 64 KiB for each thread that works for the account.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The largest [`Self::bytes`] so far.
    pub fn peak_bytes(&self) -> u64 {
        u64::try_from(self.peak_bytes.load(Ordering::Relaxed)).unwrap_or(0)
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
