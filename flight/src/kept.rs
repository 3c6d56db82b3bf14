//! The memory that sessions keep between calls: planned queries, prepared statements and bound parameters.
//!
//! A client chooses how much that is, so each session is bounded, and all of them together. Sizes of plans are
//! estimated from the text of their statements. What is kept alone always fits, so a long statement is refused only
//! beside others.

use std::{
    collections::{HashMap, HashSet},
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

/// The account of what all sessions keep.
pub(crate) struct Kept {
    max_per_session: u64,
    max: u64,
    metrics: Arc<FlightMetrics>,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    all: u64,
    by_session: HashMap<SessionId, u64>,
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
    /// That of all sessions together.
    All {
        /// Bytes that they keep.
        kept: u64,
        /// Bytes that they may keep.
        max: u64,
    },
}

impl Kept {
    pub(crate) fn new(max_per_session: u64, max: u64, metrics: Arc<FlightMetrics>) -> Self {
        Self { max_per_session, max, metrics, totals: Mutex::default() }
    }

    /// Charges a session for `bytes` until the charge is dropped.
    pub(crate) fn charge(self: &Arc<Self>, session: &SessionId, bytes: u64) -> Result<Arc<Charge>, Full> {
        let mut totals = self.totals.lock();
        let kept = totals.by_session.get(session).copied().unwrap_or_default();
        if kept > 0 && kept.saturating_add(bytes) > self.max_per_session {
            return Err(Full::Session { kept, max: self.max_per_session, asked: bytes });
        }
        if totals.all > 0 && totals.all.saturating_add(bytes) > self.max {
            return Err(Full::All { kept: totals.all, max: self.max });
        }
        totals.all = totals.all.saturating_add(bytes);
        totals.by_session.insert(session.clone(), kept.saturating_add(bytes));
        self.metrics.set_kept_bytes(totals.all);
        Ok(Arc::new(Charge { account: self.clone(), session: session.clone(), bytes, pinned: AtomicBool::new(false) }))
    }

    fn release(&self, session: &SessionId, bytes: u64) {
        let mut totals = self.totals.lock();
        totals.all = totals.all.saturating_sub(bytes);
        let left = totals.by_session.get(session).copied().unwrap_or_default().saturating_sub(bytes);
        if left == 0 {
            totals.by_session.remove(session);
        } else {
            totals.by_session.insert(session.clone(), left);
        }
        self.metrics.set_kept_bytes(totals.all);
    }
}

/// Bytes that a session is charged for; shared by everything that uses the same plan or the same parameters.
pub(crate) struct Charge {
    account: Arc<Kept>,
    session: SessionId,
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
        self.account.release(&self.session, self.bytes);
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

    #[test]
    fn each_session_is_bounded_and_all_of_them_together() {
        let metrics = Arc::new(FlightMetrics::default());
        let kept = Arc::new(Kept::new(100, 250, metrics.clone()));
        let first = kept.charge(&session("a"), 60).ok().unwrap();
        let full = kept.charge(&session("a"), 41).err().unwrap();
        assert_eq!(full, Full::Session { kept: 60, max: 100, asked: 41 });
        let second = kept.charge(&session("a"), 40).ok().unwrap();
        let other = kept.charge(&session("b"), 100).ok().unwrap();
        assert_eq!(metrics.kept_bytes(), 200);
        let full = kept.charge(&session("c"), 51).err().unwrap();
        assert_eq!(full, Full::All { kept: 200, max: 250 });

        drop((first, second));
        assert_eq!(metrics.kept_bytes(), 100);
        kept.charge(&session("a"), 100).ok().unwrap();
        drop(other);
        assert_eq!(metrics.kept_bytes(), 0);
        assert!(kept.totals.lock().by_session.is_empty());
    }

    #[test]
    fn what_is_kept_alone_always_fits() {
        let kept = Arc::new(Kept::new(100, 250, Arc::default()));
        let alone = kept.charge(&session("a"), 1_000).ok().unwrap();
        assert!(kept.charge(&session("a"), 1).is_err());
        assert!(kept.charge(&session("b"), 1).is_err());
        drop(alone);
        let other = kept.charge(&session("b"), 100).ok().unwrap();
        assert!(matches!(kept.charge(&session("a"), 1_000), Err(Full::All { .. })));
        assert!(kept.charge(&session("a"), 150).is_ok(), "more than a session may keep, but nothing else of its own");
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
