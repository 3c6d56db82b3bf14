//! The order of the locks of the tiering loop, and a check that threads keep it.
//!
//! A thread that holds a lock takes only locks of later ranks, so no two threads can wait for each other. [`Rank`] is the
//! order. A thread holds a rank at most once at a time: neither two leaves, nor one lock for reading twice.
//!
//! The locks of the host come just before the leaves: the loop calls the host while it holds other locks, and the host
//! takes leaves under its own (it reports a shortage of room, or wakes the loop). Two leaves, the settings and the
//! measurements, are held across a commit of the catalog, which takes none of these locks. The lock of `migrate::Health`
//! comes last and is not checked.
//!
//! Builds with debug assertions, and the tests of this crate, keep the ranks that each thread holds, and panic at the
//! place that breaks the order. In other builds these types are those of `parking_lot` and nothing else.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

use check::{Checked, Held};

/// The ranks of the locks, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// `Controller`: one epoch, order, relief, merge round, change of tiers, calibration on request or checkpoint at a
    /// time.
    Epoch,
    /// `Controller`: tiers come, go or are drained; draining takes it without the epoch mutex.
    CounterRows,
    /// `Controller`. Read: explanations and advice, which run without the epoch mutex. Write: while tiers change.
    TierSet,
    /// `Merger`: the state of merge rounds.
    Merging,
    /// `ActiveCalibration`: one measurement of devices at a time.
    Calibrating,
    /// `ActiveCalibration`: reads from home that were compared with the calibration.
    ComparedHomeReads,
    /// `ActiveCalibration`: the calibration in use.
    Calibration,
    /// `Planner`: the heat of segments.
    Heat,
    /// `Tiering`: the list of the loop's threads. A thread of the loop may drop the store, and so stop the loop, while it
    /// holds the epoch mutex.
    Threads,
    /// Leaves, locks under which no other is taken: prices, move history, measurements, proposals, settings, limits,
    /// queues, signal.
    Leaf,
}

/// A mutex with a place in the order of locks.
#[derive(Debug)]
pub(super) struct OrderedMutex<T> {
    checked: Checked,
    mutex: Mutex<T>,
}

/// Holds an [`OrderedMutex`] until it is dropped.
#[derive(Debug)]
pub(super) struct OrderedMutexGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> OrderedMutex<T> {
    /// Makes a mutex of a rank.
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self { checked: Checked::new(rank), mutex: Mutex::new(value) }
    }

    /// Waits for the lock.
    #[track_caller]
    pub(super) fn lock(&self) -> OrderedMutexGuard<'_, T> {
        self.checked.check();
        self.guard(self.mutex.lock())
    }

    /// Takes the lock if it is free. It never waits, so the order counts only if it succeeds.
    #[track_caller]
    pub(super) fn try_lock(&self) -> Option<OrderedMutexGuard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        self.checked.check();
        Some(self.guard(guard))
    }

    /// Waits for the lock, but not longer than `patience`.
    #[track_caller]
    pub(super) fn try_lock_for(&self, patience: Duration) -> Option<OrderedMutexGuard<'_, T>> {
        self.checked.check();
        self.mutex.try_lock_for(patience).map(|guard| self.guard(guard))
    }

    fn guard<'a>(&self, guard: MutexGuard<'a, T>) -> OrderedMutexGuard<'a, T> {
        OrderedMutexGuard { guard, _held: self.checked.hold() }
    }
}

impl<T> OrderedMutexGuard<'_, T> {
    /// Gives up the lock until the condition is notified.
    pub(super) fn wait(&mut self, condition: &Condvar) {
        condition.wait(&mut self.guard);
    }

    /// Like [`OrderedMutexGuard::wait`], but not longer than `patience`.
    pub(super) fn wait_for(&mut self, condition: &Condvar, patience: Duration) -> WaitTimeoutResult {
        condition.wait_for(&mut self.guard, patience)
    }
}

impl<T> Deref for OrderedMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock with a place in the order of locks.
#[derive(Debug)]
pub(super) struct OrderedRwLock<T> {
    checked: Checked,
    lock: RwLock<T>,
}

/// Holds an [`OrderedRwLock`] for reading until it is dropped.
#[derive(Debug)]
pub(super) struct OrderedReadGuard<'a, T> {
    guard: RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Holds an [`OrderedRwLock`] for writing until it is dropped.
#[derive(Debug)]
pub(super) struct OrderedWriteGuard<'a, T> {
    guard: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> OrderedRwLock<T> {
    /// Makes a lock of a rank.
    pub(super) fn new(rank: Rank, value: T) -> Self {
        Self { checked: Checked::new(rank), lock: RwLock::new(value) }
    }

    /// Waits for the lock and reads. Reading twice in one thread breaks the order: it would wait for itself as soon as a
    /// writer waits in between.
    #[track_caller]
    pub(super) fn read(&self) -> OrderedReadGuard<'_, T> {
        self.checked.check();
        OrderedReadGuard { guard: self.lock.read(), _held: self.checked.hold() }
    }

    /// Waits for the lock and writes.
    #[track_caller]
    pub(super) fn write(&self) -> OrderedWriteGuard<'_, T> {
        self.checked.check();
        OrderedWriteGuard { guard: self.lock.write(), _held: self.checked.hold() }
    }
}

impl<T> Deref for OrderedReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for OrderedWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(any(debug_assertions, test))]
mod check {
    use std::cell::Cell;

    use super::Rank;

    /// The ranks by their bits.
    pub(super) const ALL: [Rank; 10] = [
        Rank::Epoch,
        Rank::CounterRows,
        Rank::TierSet,
        Rank::Merging,
        Rank::Calibrating,
        Rank::ComparedHomeReads,
        Rank::Calibration,
        Rank::Heat,
        Rank::Threads,
        Rank::Leaf,
    ];

    thread_local! {
        /// The ranks that the thread holds, one bit each.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    /// The rank of a lock.
    #[derive(Debug)]
    pub(super) struct Checked(Rank);

    /// A rank that the thread holds until this is dropped.
    #[derive(Debug)]
    pub(super) struct Held(Rank);

    impl Checked {
        pub(super) fn new(rank: Rank) -> Self {
            Self(rank)
        }

        /// Panics when the thread holds this rank or a later one.
        #[track_caller]
        pub(super) fn check(&self) {
            let rank = self.0;
            let held = HELD.get();
            let last = held.checked_ilog2().and_then(|bit| ALL.get(bit as usize));
            assert!(
                held >> rank as u32 == 0,
                "a lock of rank {rank:?} is taken while one of rank {} is held",
                last.map_or_else(String::new, |last| format!("{last:?}"))
            );
        }

        pub(super) fn hold(&self) -> Held {
            HELD.set(HELD.get() | 1 << self.0 as u32);
            Held(self.0)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(1 << self.0 as u32));
        }
    }
}

#[cfg(not(any(debug_assertions, test)))]
mod check {
    use super::Rank;

    /// Nothing: this build does not check the order.
    #[derive(Debug)]
    pub(super) struct Checked;

    /// Nothing: see [`Checked`].
    #[derive(Debug)]
    pub(super) struct Held;

    impl Checked {
        pub(super) fn new(_: Rank) -> Self {
            Self
        }

        pub(super) fn check(&self) {}

        pub(super) fn hold(&self) -> Held {
            Held
        }
    }
}

#[cfg(test)]
mod tests;
