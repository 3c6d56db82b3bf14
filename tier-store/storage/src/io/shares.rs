//! Divides the budget of reads among the statements that read ahead.
//!
//! The budget is given to whoever asks first, and the scan that reads the most asks the most often. So while more than
//! half of the budget is used, a statement reads no further ahead if it has its share, which is equal for all statements
//! that read ahead at the moment. Reads that a statement waits for are not limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use terrace_model::Account;

/// The number of statements that read ahead.
#[derive(Debug, Default)]
pub struct ReadingStatements(AtomicUsize);

impl ReadingStatements {
    /// Their number now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// What one statement reads ahead.
#[derive(Debug)]
pub struct ReadShare {
    all: Arc<ReadingStatements>,
    bytes: AtomicU64,
}

impl ReadShare {
    /// The share of a statement that has read nothing so far.
    pub fn new(all: Arc<ReadingStatements>) -> Arc<Self> {
        Arc::new(Self { all, bytes: AtomicU64::new(0) })
    }

    /// Whether the statement has less than its share of a budget, or half of the budget is free.
    pub fn has_room(&self, budget: &Account) -> bool {
        let bytes = self.bytes.load(Ordering::SeqCst);
        let statements = self.all.count() + usize::from(bytes == 0);
        bytes < budget.limit_bytes() / statements.max(1) as u64 || budget.used_bytes() <= budget.limit_bytes() / 2
    }

    /// Counts bytes that the statement reads ahead until what this returns is dropped.
    pub fn begin(self: &Arc<Self>, bytes: u64) -> ReadAhead {
        if bytes > 0 && self.bytes.fetch_add(bytes, Ordering::SeqCst) == 0 {
            self.all.0.fetch_add(1, Ordering::SeqCst);
        }
        ReadAhead { share: Arc::clone(self), bytes }
    }
}

/// Bytes that a statement reads ahead, or has read and not used yet.
#[derive(Debug)]
pub struct ReadAhead {
    share: Arc<ReadShare>,
    bytes: u64,
}

impl ReadAhead {
    /// Their number.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let Self { share, bytes } = self;
        if *bytes > 0 && share.bytes.fetch_sub(*bytes, Ordering::SeqCst) == *bytes {
            share.all.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_read_ahead_have_equal_shares() {
        let all = Arc::new(ReadingStatements::default());
        let [first, second, idle] = [0, 1, 2].map(|_| ReadShare::new(Arc::clone(&all)));
        let budget = Account::new("reads", 100);
        let _used = budget.charge_always(51);
        let alone = [first.begin(40), first.begin(59), first.begin(0)];
        assert!(first.has_room(&budget), "it is alone");
        assert_eq!((alone[0].bytes(), all.count()), (40, 1));
        // One that begins has its share at once, and the other one reads no further until it has used what it has.
        assert!(second.has_room(&budget));
        let other = second.begin(49);
        assert!(second.has_room(&budget) && !first.has_room(&budget));
        budget.set_limit_bytes(102);
        assert!(first.has_room(&budget), "half is free");
        budget.set_limit_bytes(100);
        let [_kept, used, nothing] = alone;
        drop((used, nothing));
        assert!(first.has_room(&budget));
        budget.set_limit_bytes(2);
        assert!(!idle.has_room(&budget));
        budget.set_limit_bytes(3);
        assert!(idle.has_room(&budget), "a third");
        drop(other);
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn the_count_follows_many_threads() {
        let all = Arc::new(ReadingStatements::default());
        let shares = [0, 1].map(|_| ReadShare::new(Arc::clone(&all)));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let share = &shares[number % 2];
                scope.spawn(move || (0..10_000).for_each(|round| drop(share.begin(round % 3))));
            }
        });
        assert_eq!(all.count(), 0);
    }
}
