//! Byte accounts: a limit, the bytes in use, and charges that end when they are dropped.
//!
//! Invariant: a successful [`Account::try_charge`] never lifts `used` above `limit`. After a limit was lowered below the
//! bytes in use, the account refuses new charges until enough old ones have ended. A closed account refuses every charge, even
//! of 0 bytes, and keeps its limit for when it is opened again. So does one that yields: its memory is needed elsewhere for
//! a while, and its limit still says what it has otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A named byte limit.
#[derive(Debug)]
pub struct Account {
    name: String,
    limit_bytes: AtomicU64,
    closed: AtomicBool,
    yielding: AtomicBool,
    lent_bytes: AtomicU64,
    recalled_bytes: AtomicU64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

impl Account {
    /// An empty account.
    pub fn new(name: impl Into<String>, limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            limit_bytes: AtomicU64::new(limit_bytes),
            closed: AtomicBool::new(false),
            yielding: AtomicBool::new(false),
            lent_bytes: AtomicU64::new(0),
            recalled_bytes: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        })
    }

    /// The account's name in errors and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limit in bytes; 0 while the account is closed.
    #[inline]
    pub fn limit_bytes(&self) -> u64 {
        if self.is_closed() { 0 } else { self.opened_limit_bytes() }
    }

    /// The limit that applies while the account is open.
    #[inline]
    pub fn opened_limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::SeqCst)
    }

    /// True while the account refuses all charges.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses all charges from now on, even empty ones; charges already made stay.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Accepts charges again, up to the limit.
    pub fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Refuses all charges while `yielding`, because memory is needed elsewhere; charges already made stay.
    pub fn set_yielding(&self, yielding: bool) {
        self.yielding.store(yielding, Ordering::SeqCst);
    }

    /// True while the account refuses all charges because memory is needed elsewhere.
    #[inline]
    pub fn is_yielding(&self) -> bool {
        self.yielding.load(Ordering::SeqCst)
    }

    /// Lends bytes of room that is left over to temporary data, as long as these have at most `most_bytes`. They charge
    /// what they store besides, and go when it is recalled.
    pub fn try_lend(self: &Arc<Self>, bytes: u64, most_bytes: u64) -> Option<Loan> {
        let more = |lent: u64| lent.checked_add(bytes).filter(|sum| *sum <= most_bytes);
        self.lent_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Loan { account: Arc::clone(self), bytes })
    }

    /// Bytes that temporary data have now.
    pub fn lent_bytes(&self) -> u64 {
        self.lent_bytes.load(Ordering::SeqCst)
    }

    /// Asks for `bytes` of those that are lent: something else needs them. True when there are any.
    pub fn recall(&self, bytes: u64) -> bool {
        let has_some = self.lent_bytes() > 0;
        if has_some {
            self.recalled_bytes.fetch_max(bytes, Ordering::SeqCst);
        }
        has_some
    }

    /// Bytes that were recalled since the last call.
    pub fn take_recalled(&self) -> u64 {
        self.recalled_bytes.swap(0, Ordering::SeqCst)
    }

    fn accepts_charges(&self) -> bool {
        !self.is_closed() && !self.is_yielding()
    }

    /// True when `bytes` more would fit now.
    #[inline]
    pub fn has_room(&self, bytes: u64) -> bool {
        self.accepts_charges() && self.used_bytes().saturating_add(bytes) <= self.limit_bytes()
    }

    /// Bytes charged now, those still held by readers included.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The largest `used_bytes` so far.
    #[inline]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit; charges already made stay.
    pub fn set_limit_bytes(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Charges `bytes`, or fails with [`Error::BudgetExceeded`] and charges nothing.
    #[inline]
    pub fn try_charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let open = |sum: &u64| self.accepts_charges() && *sum <= self.limit_bytes();
        let reserve = |used: u64| used.checked_add(bytes).filter(open);
        match self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, reserve) {
            Ok(before) => {
                self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(Charge { account: Arc::clone(self), bytes })
            }
            Err(used_bytes) => Err(Error::BudgetExceeded {
                account: self.name.clone(),
                asked_bytes: bytes,
                used_bytes,
                limit_bytes: self.limit_bytes(),
            }),
        }
    }

    /// Charges `bytes` even above the limit: for work that must proceed (one chunk per scan, the delta's last insert).
    #[inline]
    pub fn charge_always(self: &Arc<Self>, bytes: u64) -> Charge {
        let before = self.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
        Charge { account: Arc::clone(self), bytes }
    }
}

/// Bytes charged to an account; dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// Bytes of the charge.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges `bytes` more to the same account, even above the limit.
    #[inline]
    pub fn charge_more(&self, bytes: u64) -> Self {
        self.account.charge_always(bytes)
    }
}

/// Bytes that are lent to temporary data; dropping it gives them back.
#[derive(Debug)]
pub struct Loan {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.account.lent_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.account.used_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_lent_can_be_recalled() {
        let account = Account::new("dram", 100);
        assert!(!account.recall(10) && account.take_recalled() == 0, "nothing is lent");
        let first = account.try_lend(20, 30).unwrap();
        assert!(account.try_lend(11, 30).is_none());
        let second = account.try_lend(10, 30).unwrap();
        assert!(account.recall(10) && account.recall(7));
        assert_eq!((account.lent_bytes(), account.take_recalled(), account.take_recalled()), (30, 10, 0));
        drop((first, second));
        assert_eq!(account.lent_bytes(), 0);
    }

    #[test]
    fn charges_end_by_drop_and_never_pass_the_limit() {
        let account = Account::new("dram", 100);
        let first = account.try_charge(60).unwrap();
        assert!(matches!(account.try_charge(41), Err(Error::BudgetExceeded { used_bytes: 60, .. })));
        let second = account.try_charge(40).unwrap();
        drop(first);
        assert_eq!((account.used_bytes(), account.peak_bytes(), second.bytes()), (40, 100, 40));
        account.set_limit_bytes(10);
        assert!(account.try_charge(1).is_err());
        drop(second);
        account.close();
        assert!(account.try_charge(0).is_err() && !account.has_room(0));
        account.set_limit_bytes(20);
        assert_eq!(account.limit_bytes(), 0);
        account.open();
        assert_eq!(account.try_charge(20).unwrap().bytes(), 20);
        account.set_yielding(true);
        assert!(account.try_charge(0).is_err() && !account.has_room(0));
        assert_eq!(account.limit_bytes(), 20);
        account.set_yielding(false);
        assert!(account.has_room(20));
    }
}
