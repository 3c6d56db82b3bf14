//! The global allocator that counts.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::Arc;

use crate::account::{Begun, HeapAccount};

/// A thread adds to its account once it has allocated or freed this much, so that threads seldom share a cache line.
const UNREPORTED_BYTES: i64 = 64 << 10;

struct Thread {
    /// The account it works for; null for none. A [`WorkingFor`] on this thread's stack borrows the account meanwhile.
    account: Cell<*const HeapAccount>,
    /// Bytes allocated less bytes freed that the account does not know yet.
    unreported_bytes: Cell<i64>,
}

thread_local! {
    // Constant and without a destructor, so that the allocator may use it at any time of a thread's life.
    static THREAD: Thread = const { Thread { account: Cell::new(std::ptr::null()), unreported_bytes: Cell::new(0) } };
}

/// Allocates with `A`, and charges the account that the thread works for.
#[derive(Debug)]
pub struct CountingAllocator<A>(A);

impl<A> CountingAllocator<A> {
    /// Counts what `inner` allocates.
    pub const fn new(inner: A) -> Self {
        Self(inner)
    }
}

// SAFETY: every call goes to the inner allocator with its arguments unchanged, and its result is returned unchanged.
// Counting allocates nothing and does not unwind.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, layout.size());
        // SAFETY: as the caller promises.
        unsafe { self.0.realloc(memory, layout, new_size) }
    }
}

#[inline]
fn count(allocated: usize, freed: usize) {
    THREAD.with(|thread| {
        if thread.account.get().is_null() {
            return;
        }
        // Sizes are below `isize::MAX`, so neither conversion nor difference overflows.
        let unreported = thread.unreported_bytes.get().wrapping_add((allocated as i64).wrapping_sub(freed as i64));
        thread.unreported_bytes.set(unreported);
        if unreported.unsigned_abs() >= UNREPORTED_BYTES.unsigned_abs() {
            report(thread);
        }
    });
}

#[cold]
fn report(thread: &Thread) {
    let bytes = thread.unreported_bytes.replace(0);
    let account = thread.account.get();
    if !account.is_null() && bytes != 0 {
        // SAFETY: a `WorkingFor` further up this thread's stack borrows the account.
        unsafe { &*account }.add(bytes);
    }
}

/// The account that this thread works for.
pub(crate) fn current() -> Option<Arc<HeapAccount>> {
    THREAD.with(|thread| {
        let account = thread.account.get();
        if account.is_null() {
            return None;
        }
        // SAFETY: the pointer is that of an `Arc` that a `WorkingFor` further up this thread's stack borrows.
        unsafe {
            Arc::increment_strong_count(account);
            Some(Arc::from_raw(account))
        }
    })
}

/// While it lives, this thread works for an account; then for the earlier one again.
pub(crate) struct WorkingFor<'a> {
    earlier: *const HeapAccount,
    account: &'a Arc<HeapAccount>,
    /// False where the thread worked for the account already.
    is_first: bool,
    begun: Option<Begun>,
}

impl<'a> WorkingFor<'a> {
    pub(crate) fn begin(account: &'a Arc<HeapAccount>) -> Self {
        THREAD.with(|thread| {
            report(thread);
            let earlier = thread.account.replace(Arc::as_ptr(account));
            let is_first = !std::ptr::eq(earlier, Arc::as_ptr(account));
            let begun = if is_first { account.begin_work() } else { None };
            Self { earlier, account, is_first, begun }
        })
    }
}

impl Drop for WorkingFor<'_> {
    fn drop(&mut self) {
        THREAD.with(|thread| {
            report(thread);
            thread.account.set(self.earlier);
        });
        if self.is_first {
            self.account.end_work(self.begun.take());
        }
    }
}

/// While it lives, this thread works for no account; then for the earlier one again.
pub(crate) struct Uncharged {
    earlier: *const HeapAccount,
}

impl Uncharged {
    pub(crate) fn begin() -> Self {
        THREAD.with(|thread| {
            report(thread);
            Self { earlier: thread.account.replace(std::ptr::null()) }
        })
    }
}

impl Drop for Uncharged {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.account.set(self.earlier));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests wait for real threads")]
    use std::alloc::System;
    use std::time::{Duration, Instant};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator<System> = CountingAllocator::new(System);

    const MIB: u64 = 1 << 20;

    fn poll<F: Future + ?Sized>(future: &mut std::pin::Pin<Box<F>>) -> std::task::Poll<F::Output> {
        future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }

    fn mebibytes(count: usize) -> Vec<u8> {
        Vec::with_capacity(count << 20)
    }

    #[test]
    fn an_account_has_what_its_work_holds() {
        let account = HeapAccount::new();
        let outside = mebibytes(3);
        let mut held = account.charge_call(|| {
            drop(mebibytes(5));
            mebibytes(2)
        });
        assert_eq!((account.bytes(), account.peak_bytes()), (2 * MIB, 5 * MIB));
        account.charge_call(|| held.reserve_exact(4 << 20));
        assert_eq!(account.bytes(), 4 * MIB);
        account.charge_call(move || drop((held, outside)));
        assert_eq!(account.bytes(), 0, "it freed more than it had allocated");
        assert_eq!(account.peak_bytes(), 5 * MIB);
        account.release(MIB);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn what_is_taken_over_is_credited_when_it_is_freed_or_released() {
        let account = HeapAccount::new();
        let [freed, released] = [2, 3].map(mebibytes);
        account.take_over(5 * MIB);
        account.charge_call(|| drop(freed));
        assert_eq!((account.bytes(), account.peak_bytes()), (3 * MIB, 5 * MIB));
        account.release(3 * MIB);
        drop(released);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn what_is_uncharged_belongs_to_nobody() {
        let account = HeapAccount::new();
        let held = account.charge_call(|| (mebibytes(1), HeapAccount::uncharged(|| mebibytes(8)), mebibytes(2)));
        assert_eq!((account.bytes(), account.peak_bytes()), (3 * MIB, 3 * MIB));
        drop(held);
    }

    #[test]
    fn work_for_another_account_is_charged_to_that_one() {
        let [outer, inner] = [HeapAccount::new(), HeapAccount::new()];
        let held = outer.charge_call(|| {
            let own = mebibytes(1);
            let other = inner.charge_call(|| {
                assert!(HeapAccount::current().is_some_and(|current| Arc::ptr_eq(&current, &inner)));
                mebibytes(8)
            });
            (own, other, mebibytes(1))
        });
        assert_eq!((outer.bytes(), inner.bytes()), (2 * MIB, 8 * MIB));
        assert!(HeapAccount::current().is_none());
        inner.release(3 * MIB);
        assert_eq!(inner.bytes(), 5 * MIB);
        inner.release(u64::MAX);
        assert_eq!(inner.bytes(), 0);
        drop(held);
    }

    #[test]
    fn a_future_is_charged_on_every_thread_that_polls_it() {
        let account = HeapAccount::new();
        let mut held = Vec::new();
        let mut future = Box::pin(account.charge(std::future::poll_fn(move |_| {
            held.push(mebibytes(6));
            if held.len() < 2 { std::task::Poll::Pending } else { std::task::Poll::Ready(std::mem::take(&mut held)) }
        })));
        assert!(poll(&mut future).is_pending());
        let polled = std::thread::scope(|threads| threads.spawn(|| poll(&mut future)).join());
        assert!(polled.is_ok_and(|polled| polled.is_ready()));
        assert!(account.bytes() >= 12 * MIB && HeapAccount::current().is_none(), "{account:?}");
        let abandoned = HeapAccount::new();
        let mut held = None;
        let mut future = Box::pin(abandoned.charge(std::future::poll_fn(move |_| {
            held.get_or_insert_with(|| mebibytes(7));
            std::task::Poll::<()>::Pending
        })));
        assert!(poll(&mut future).is_pending() && abandoned.bytes() >= 7 * MIB);
        drop(future);
        assert_eq!(abandoned.bytes(), 0);
        let carried = abandoned.charge_call(|| HeapAccount::carry(|| mebibytes(3)));
        let held = std::thread::scope(|threads| threads.spawn(carried).join());
        assert!(held.is_ok() && abandoned.bytes().abs_diff(3 * MIB) < 1_000, "{abandoned:?}");
    }

    #[test]
    fn an_account_has_the_time_of_its_work_once() {
        let pause = || std::thread::sleep(Duration::from_millis(20));
        let account = HeapAccount::new();
        account.charge_call(|| {
            account.charge_call(pause);
            assert!(account.busy_time() >= Duration::from_millis(20), "that of work under way too");
        });
        let busy = account.busy_time();
        assert!(busy >= Duration::from_millis(20), "{busy:?}");
        let outside = Instant::now();
        let mut future = Box::pin(account.charge(std::future::ready(())));
        pause();
        assert!(poll(&mut future).is_ready());
        assert!(account.busy_time() - busy < outside.elapsed() / 2, "{account:?}");
    }

    #[test]
    fn time_without_a_processor_is_left_out_once_it_is_measured() {
        // The clock of a thread that has no processor.
        fn stopped() -> u64 {
            7
        }
        let pause = || std::thread::sleep(Duration::from_millis(20));
        let account = HeapAccount::new();
        account.charge_call(pause);
        assert_eq!(account.processor_time(), account.busy_time());
        let before = account.processor_time();
        account.measure_processor_time(stopped);
        account.charge_call(pause);
        assert!(account.busy_time() >= before + Duration::from_millis(20), "{account:?}");
        assert_eq!(account.processor_time(), before);
    }
}
