//! A lane of a scan's queue: its chunks by their state, and how far it reads ahead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use datafusion::common::Result;
use futures::stream::FuturesUnordered;
use terrace_tier_store::io::{ReadAhead, ReadShare};
use terrace_tier_store::tier::reader::Admission;

use super::cold::{Arrived, ChunkRead, ColdPart};
use super::open::OpenChunk;

/// How many bytes of a lane may be in flight or ready.
pub(super) struct LookAhead {
    /// Window of a scan that begins. It doubles with every chunk that arrives, and falls back to this when a chunk was
    /// read that is no longer wanted. With a large first window a device that serves all requests at once would let the
    /// first chunk wait for the last.
    pub(super) first_bytes: u64,
    /// Window that keeps the device busy while a chunk is processed.
    pub(super) most_bytes: u64,
}

impl LookAhead {
    /// Bounds for a device that `depth_bytes` in flight keep busy; a scan with a limit looks only one chunk ahead.
    pub(super) fn new(depth_bytes: u64, limited: bool) -> Self {
        match limited {
            true => Self { first_bytes: 1, most_bytes: 1 },
            false => Self { first_bytes: depth_bytes / 2, most_bytes: depth_bytes * 4 },
        }
    }

    /// The window after a chunk has arrived, given the window before.
    pub(super) fn widened(&self, window_bytes: u64) -> u64 {
        self.most_bytes.min(window_bytes * 2)
    }
}

/// The items of a lane by their state: pending, then resident or cold, then in flight, ready and open.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) started: bool,
    /// Items not yet classified, in order.
    pub(super) pending: VecDeque<u32>,
    /// In an ordered scan: items not yet taken, in order.
    pub(super) order: VecDeque<u32>,
    /// Items that need no read. Always empty in an ordered scan, which finds them by `order`.
    pub(super) resident: VecDeque<u32>,
    /// Items that have to be read.
    pub(super) cold: VecDeque<u32>,
    /// Cold items whose filter columns are resident: the filters run before anything is read.
    pub(super) to_filter: VecDeque<u32>,
    /// Filtered chunks whose other columns are to be read for the rows that passed.
    pub(super) filtered: VecDeque<ColdPart>,
    pub(super) reads: FuturesUnordered<ChunkRead>,
    pub(super) in_flight: BTreeSet<u32>,
    pub(super) ready: BTreeMap<u32, Arrived>,
    /// Bytes in flight or ready, by item.
    ahead: BTreeMap<u32, ReadAhead>,
    /// Sum of `ahead`.
    pub(super) ahead_bytes: u64,
    /// Bound of `ahead_bytes` at present.
    pub(super) window_bytes: u64,
    /// Number of chunks whose filters a partition evaluates now; each of them may join `filtered` afterwards.
    pub(super) filtering: usize,
    /// Chunks that partitions work on.
    pub(super) open: Vec<Arc<OpenChunk>>,
}

impl Lane {
    /// A lane that no partition has taken anything from.
    pub(super) fn new(items: Vec<u32>) -> Self {
        Self { pending: items.into(), ..Self::default() }
    }

    pub(super) fn is_done(&self, ordered: bool) -> bool {
        if ordered {
            self.order.is_empty()
        } else {
            let filters_done = self.to_filter.is_empty() && self.filtered.is_empty();
            filters_done && self.cold.is_empty() && self.ready.is_empty() && self.resident.is_empty()
        }
    }

    /// Items that no partition has taken.
    pub(super) fn untaken(&self) -> BTreeSet<u32> {
        let queued = [&self.pending, &self.order, &self.resident, &self.cold, &self.to_filter];
        let read = self.in_flight.iter().chain(self.ready.keys()).copied();
        let filtered = self.filtered.iter().map(ColdPart::item);
        queued.into_iter().flatten().copied().chain(read).chain(filtered).collect()
    }

    /// Starts the read of `part`, which counts in the share of the statement; returns it when the budget has no room.
    pub(super) fn read(
        &mut self,
        part: ColdPart,
        admission: Admission,
        share: &Arc<ReadShare>,
    ) -> Result<Option<ColdPart>> {
        let item = part.item();
        let bytes = part.missing_bytes();
        let read = match part.read(admission)? {
            Ok(read) => read,
            Err(part) => return Ok(Some(part)),
        };
        self.reads.push(read);
        self.in_flight.insert(item);
        self.ahead.insert(item, share.begin(bytes));
        self.ahead_bytes += bytes;
        Ok(None)
    }

    /// Removes a pruned item from the order, so that the lane does not wait for it.
    pub(super) fn skip(&mut self, item: u32) {
        self.order.retain(|o| *o != item);
    }

    /// An item that was read ahead is taken: its bytes no longer count against the window.
    pub(super) fn end_ahead(&mut self, item: u32) {
        self.ahead_bytes -= self.ahead.remove(&item).map_or(0, |ahead| ahead.bytes());
    }

    pub(super) fn clear(&mut self) {
        let open = std::mem::take(&mut self.open);
        *self = Self { started: true, ..Self::default() };
        open.into_iter().for_each(OpenChunk::release);
    }

    /// Cancels all reads and puts their items back among the cold ones.
    pub(super) fn withdraw(&mut self) {
        self.reads = FuturesUnordered::new();
        let mut back: Vec<u32> = std::mem::take(&mut self.in_flight).into_iter().collect();
        back.extend(std::mem::take(&mut self.ready).into_keys());
        back.extend(std::mem::take(&mut self.to_filter));
        back.extend(std::mem::take(&mut self.filtered).iter().map(ColdPart::item));
        back.sort_unstable();
        back.into_iter().rev().for_each(|item| self.cold.push_front(item));
        self.ahead.clear();
        self.ahead_bytes = 0;
        self.open.drain(..).for_each(OpenChunk::release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_doubles_up_to_a_bound_and_a_limit_looks_at_one_chunk() {
        let course = |look_ahead: &LookAhead| {
            let next = |window_bytes: &u64| Some(look_ahead.widened(*window_bytes));
            std::iter::successors(Some(look_ahead.first_bytes), next).take(6).collect::<Vec<_>>()
        };
        assert_eq!(course(&LookAhead::new(16, false)), [8, 16, 32, 64, 64, 64]);
        assert_eq!(course(&LookAhead::new(16, true)), [1; 6]);
    }
}
