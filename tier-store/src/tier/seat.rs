//! Where a tier stands in the list of tiers. Copies lie on a tier, not at a position: when tiers come and go, the positions
//! of the others change, and with them what every copy says of its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{MAX_TIERS, TierId};

/// The place of one tier in the list, shared by the tier and all copies on it.
///
/// It changes under the turn of the tiering loop alone. Whoever reads it without the turn may compare it with a list of a
/// moment ago: good enough for a count, not for a decision.
#[derive(Debug, Clone)]
pub struct Seat(Arc<AtomicU8>);

impl Seat {
    /// A tier that stands there.
    pub fn at(id: TierId) -> Self {
        Self(Arc::new(AtomicU8::new(id.0)))
    }

    /// Where it stands now; past the end of the list when it was dropped.
    pub fn id(&self) -> TierId {
        TierId(self.0.load(Ordering::Relaxed))
    }

    /// It stands there from now on; `None`: nowhere.
    pub(crate) fn set(&self, id: Option<TierId>) {
        self.0.store(id.map_or(u8::MAX, |id| id.0), Ordering::Relaxed);
    }
}

/// Two are equal when they are of the same tier.
impl PartialEq for Seat {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Seat {}

/// Which row of a table of counters is that of which tier: a count stays with its tier when positions change.
#[derive(Debug)]
pub(crate) struct Slots([AtomicU8; MAX_TIERS]);

impl Default for Slots {
    fn default() -> Self {
        Self(std::array::from_fn(|id| AtomicU8::new(id as u8)))
    }
}

impl Slots {
    /// The row of the tier at a position.
    pub(crate) fn of(&self, id: TierId) -> Option<usize> {
        self.0.get(usize::from(id.0)).map(|slot| usize::from(slot.load(Ordering::Relaxed)))
    }

    /// The rows by position from now on.
    pub(crate) fn set(&self, rows: &[u8]) {
        for (slot, row) in self.0.iter().zip(rows) {
            slot.store(*row, Ordering::Relaxed);
        }
    }
}
