//! The memory that sessions keep between calls: planned queries, prepared statements and bound parameters.
//!
//! A client chooses how much that is, so each session is bounded, those of one user, and all of them together. Sizes of plans are
//! estimated from the text of their statements. What is kept alone always fits, so a long statement is refused only
//! beside others.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arrow::{
    array::{Array, ArrayData, RecordBatch},
    buffer::{Buffer, NullBuffer},
};
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::{engine::SessionId, error, metrics::FlightMetrics};

/// Bytes of a plan per byte of its text. Statements with a list of 600 KB after IN keep about 15 MB each, because every
/// value becomes an expression of its own.
const PLAN_BYTES_PER_TEXT_BYTE: u64 = 25;
/// Bytes of the plan of a short statement.
const LEAST_PLAN_BYTES: u64 = 4 << 10;
/// Time after which a client may ask again when all sessions together keep too much.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The bytes that a planned statement is expected to take.
pub(crate) fn statement_bytes(sql: &str) -> u64 {
    (sql.len() as u64).saturating_mul(PLAN_BYTES_PER_TEXT_BYTE).saturating_add(LEAST_PLAN_BYTES)
}

/// The bytes of bound parameters. Columns that came in one message share its memory, which counts once.
pub(crate) fn parameter_bytes(rows: &RecordBatch) -> u64 {
    let mut seen = HashSet::new();
    rows.columns().iter().map(|column| new_bytes(&column.to_data(), &mut seen)).sum()
}

/// The bytes of the memory of an array that is not among `seen`.
fn new_bytes(data: &ArrayData, seen: &mut HashSet<NonNull<u8>>) -> u64 {
    let buffers = data.buffers().iter().chain(data.nulls().map(NullBuffer::buffer));
    let new: Vec<&Buffer> = buffers.filter(|buffer| seen.insert(buffer.data_ptr())).collect();
    let own: u64 = new.iter().map(|buffer| buffer.capacity() as u64).sum();
    data.child_data().iter().fold(own, |bytes, child| bytes.saturating_add(new_bytes(child, seen)))
}

/// Bytes that may be kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptLimits {
    /// By a session.
    pub(crate) per_session: u64,
    /// By all sessions of a user.
    pub(crate) per_user: u64,
    /// By all sessions.
    pub(crate) all: u64,
}

/// The account of what all sessions keep.
pub(crate) struct Kept {
    limits: KeptLimits,
    metrics: Arc<FlightMetrics>,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    all: u64,
    by_session: HashMap<SessionId, u64>,
    by_user: HashMap<String, u64>,
}

/// Adds to the total of a key.
fn add<K: Eq + Hash + Clone>(totals: &mut HashMap<K, u64>, key: &K, bytes: u64) {
    let total = totals.entry(key.clone()).or_default();
    *total = total.saturating_add(bytes);
}

/// Takes from the total of a key, which is forgotten where nothing is left.
fn take<K: Eq + Hash>(totals: &mut HashMap<K, u64>, key: &K, bytes: u64) {
    if let Some(total) = totals.get_mut(key) {
        *total = total.saturating_sub(bytes);
        if *total == 0 {
            totals.remove(key);
        }
    }
}

/// The bound that a request for memory would pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// That of the session.
    Session {
        /// Bytes that it keeps.
        kept: u64,
        /// Bytes that it may keep.
        max: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// That of all sessions of the user.
    User {
        /// Bytes that they keep.
        kept: u64,
        /// Bytes that they may keep.
        max: u64,
    },
    /// That of all sessions together.
    All {
        /// Bytes that they keep.
        kept: u64,
        /// Bytes that they may keep.
        max: u64,
    },
}

impl Kept {
    pub(crate) fn new(limits: KeptLimits, metrics: Arc<FlightMetrics>) -> Self {
        Self { limits, metrics, totals: Mutex::default() }
    }

    /// Charges a session for `bytes` until the charge is dropped, and its user, where that one is known.
    pub(crate) fn charge(
        self: &Arc<Self>,
        session: &SessionId,
        user: Option<&str>,
        bytes: u64,
    ) -> Result<Arc<Charge>, Full> {
        let user = user.map(str::to_owned);
        let KeptLimits { per_session, per_user, all } = self.limits;
        let mut totals = self.totals.lock();
        let passes = |kept: u64, max: u64| kept > 0 && kept.saturating_add(bytes) > max;
        let kept = totals.by_session.get(session).copied().unwrap_or_default();
        if passes(kept, per_session) {
            return Err(Full::Session { kept, max: per_session, asked: bytes });
        }
        let kept = user.as_ref().and_then(|user| totals.by_user.get(user)).copied().unwrap_or_default();
        if passes(kept, per_user) {
            return Err(Full::User { kept, max: per_user });
        }
        if passes(totals.all, all) {
            return Err(Full::All { kept: totals.all, max: all });
        }
        totals.all = totals.all.saturating_add(bytes);
        add(&mut totals.by_session, session, bytes);
        if let Some(user) = &user {
            add(&mut totals.by_user, user, bytes);
        }
        self.metrics.set_kept_bytes(totals.all);
        let pinned = AtomicBool::new(false);
        Ok(Arc::new(Charge { account: self.clone(), session: session.clone(), user, bytes, pinned }))
    }

    fn release(&self, charge: &Charge) {
        let mut totals = self.totals.lock();
        totals.all = totals.all.saturating_sub(charge.bytes);
        take(&mut totals.by_session, &charge.session, charge.bytes);
        if let Some(user) = &charge.user {
            take(&mut totals.by_user, user, charge.bytes);
        }
        self.metrics.set_kept_bytes(totals.all);
    }
}

/// Bytes that a session is charged for; shared by everything that uses the same plan or the same parameters.
pub(crate) struct Charge {
    account: Arc<Kept>,
    session: SessionId,
    user: Option<String>,
    bytes: u64,
    pinned: AtomicBool,
}

impl Charge {
    /// True while a prepared statement needs the bytes: dropping a ticket does not free them.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.release(self);
    }
}

/// The charge of a prepared statement or of the parameters bound to it.
pub(crate) struct Pinned(Arc<Charge>);

impl Pinned {
    pub(crate) fn new(charge: Arc<Charge>) -> Self {
        charge.pinned.store(true, Relaxed);
        Self(charge)
    }

    /// The charge, for a ticket that uses the same memory.
    pub(crate) fn share(&self) -> Arc<Charge> {
        self.0.clone()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.pinned.store(false, Relaxed);
    }
}

impl From<Full> for Status {
    fn from(full: Full) -> Self {
        match full {
            Full::Session { kept, max, asked } => Self::resource_exhausted(format!(
                "the session holds prepared statements and parameters of about {kept} bytes, this request needs \
                 {asked} more, and the limit is {max} bytes: close prepared statements"
            )),
            Full::User { kept, max } => error::retry_later(
                Code::ResourceExhausted,
                format!(
                    "the sessions of this user hold planned queries and prepared statements of about {kept} bytes, and the limit \
                     of one user is {max} bytes: close prepared statements, or try again later"
                ),
                RETRY_DELAY,
            ),
            Full::All { kept, max } => error::retry_later(
                Code::ResourceExhausted,
                format!(
                    "all sessions together hold planned queries and prepared statements of about {kept} bytes, and the \
                     limit is {max} bytes: close prepared statements, or try again later"
                ),
                RETRY_DELAY,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId(name.to_owned())
    }

    fn kept(per_session: u64, per_user: u64, all: u64) -> Arc<Kept> {
        Arc::new(Kept::new(KeptLimits { per_session, per_user, all }, Arc::default()))
    }

    #[test]
    fn each_session_is_bounded_and_all_of_them_together() {
        let kept = kept(100, 200, 250);
        let metrics = Arc::clone(&kept.metrics);
        let first = kept.charge(&session("a"), None, 60).ok().unwrap();
        let full = kept.charge(&session("a"), None, 41).err().unwrap();
        assert_eq!(full, Full::Session { kept: 60, max: 100, asked: 41 });
        let second = kept.charge(&session("a"), None, 40).ok().unwrap();
        let other = kept.charge(&session("b"), None, 100).ok().unwrap();
        assert_eq!(metrics.kept_bytes(), 200);
        let full = kept.charge(&session("c"), None, 51).err().unwrap();
        assert_eq!(full, Full::All { kept: 200, max: 250 });

        drop((first, second));
        assert_eq!(metrics.kept_bytes(), 100);
        kept.charge(&session("a"), None, 100).ok().unwrap();
        drop(other);
        assert_eq!(metrics.kept_bytes(), 0);
        assert!(kept.totals.lock().by_session.is_empty());
    }

    #[test]
    fn a_user_leaves_others_a_part_however_many_sessions_it_has() {
        let kept = kept(100, 150, 250);
        let ann = |name: &str, bytes| kept.charge(&session(name), Some("ann"), bytes);
        let held = [ann("a", 80).ok().unwrap(), ann("b", 70).ok().unwrap()];
        assert_eq!(ann("c", 1).err().unwrap(), Full::User { kept: 150, max: 150 });
        let bob = kept.charge(&session("d"), Some("bob"), 100).ok().unwrap();
        drop(held);
        assert!(ann("c", 100).is_ok());
        drop(bob);
        assert!(kept.totals.lock().by_user.is_empty());
    }

    #[test]
    fn what_is_kept_alone_always_fits() {
        let kept = kept(100, 200, 250);
        let alone = kept.charge(&session("a"), None, 1_000).ok().unwrap();
        assert!(kept.charge(&session("a"), None, 1).is_err());
        assert!(kept.charge(&session("b"), None, 1).is_err());
        drop(alone);
        let other = kept.charge(&session("b"), None, 100).ok().unwrap();
        assert!(matches!(kept.charge(&session("a"), None, 1_000), Err(Full::All { .. })));
        assert!(
            kept.charge(&session("a"), None, 150).is_ok(),
            "more than a session may keep, but nothing else of its own"
        );
        drop(other);
    }

    #[test]
    fn memory_that_columns_share_counts_once() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
        let columns = ["a", "b", "c"].map(|name| (name, column.clone()));
        let bytes = parameter_bytes(&RecordBatch::try_from_iter(columns).unwrap());
        assert!((8_000..16_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_long_list_of_values_counts_many_times_its_text() {
        let plan = statement_bytes(&"x".repeat(600_000));
        assert!((12_000_000..18_000_000).contains(&plan), "{plan}");
        assert!(statement_bytes("SELECT 1") < 8 << 10);
    }
}
