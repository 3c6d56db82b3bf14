//! Heat between epochs: merge rounds rank segments by current reads, not by those of the last epoch.
//!
//! An interval is the time between two surveys of all segments. The weight of a read halves after a number of other
//! reads: time is counted in reads, so that heat adapts within a second on a busy server, and decays no faster than the
//! heat of epochs on a quiet one. Recent heat starts with the heat of epochs; chunks that take over rows of other chunks
//! inherit it in the same way.
//!
//! It is expressed per epoch, so that it compares with the heat of epochs: the sum over all segments is that of the
//! epochs' heat, divided among the segments in proportion to their recent reads.

use std::sync::Arc;

use terrace_storage::table::{Chunk, Segment};
use terrace_storage::tier::codec::FormChoice;

use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::tiering::TableSnapshot;

/// Reads after which one counts half, for each segment that memory has room for.
const READS_PER_SEGMENT: f64 = 32.0;

/// The memory of all tiers.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryRoom {
    pub(super) bytes: u64,
    /// The forms of copies there.
    pub(super) form: FormChoice,
}

/// Accesses of all segments; recent ones weigh most.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentHeat {
    heat: Option<Arc<Heat>>,
    /// Accesses per epoch that one access in `heat` stands for.
    per_epoch: f32,
    /// The latest epoch at the end of the last interval.
    epoch: Option<u64>,
}

impl RecentHeat {
    /// Ends an interval: folds the counters. `bytes` is the room of memory, `epoch` the latest epoch, `half_life_epochs`
    /// the number of epochs after which an access counts half, `known` the heat of the epochs.
    pub(super) fn end_interval(
        &mut self,
        tables: &[TableSnapshot],
        room: MemoryRoom,
        epoch: Option<u64>,
        half_life_epochs: f64,
        known: &Heat,
    ) {
        let chunks = || tables.iter().flat_map(|table| table.chunks.iter().map(|entry| &entry.chunk));
        let segments = || {
            let with_chunk = |chunk| move |segment| (chunk, segment);
            let stored = |(_, segment): &(_, &Arc<Segment>)| segment.constant.is_none();
            chunks().flat_map(move |chunk| chunk.segments.iter().map(with_chunk(chunk))).filter(stored)
        };
        let all_bytes: u64 = segments().map(|(_, segment)| segment.bytes_in(room.form.smallest())).sum();
        let room = segments().count() as f64 * (room.bytes as f64 / all_bytes.max(1) as f64).min(1.0);
        let half_life_reads = READS_PER_SEGMENT * room.max(1.0);
        let sum = |heat: &Heat, heat_of: fn(&Heat, &SegmentKey) -> SegmentHeat| -> f32 {
            segments().map(|(chunk, segment)| heat_of(heat, &SegmentKey::for_segment(chunk, segment)).total()).sum()
        };
        let sum_known = sum(known, Heat::get);
        let is_first = self.heat.is_none();
        // The sum to which reads at a steady rate add up when they decay with this half-life: the start assumes that all
        // segments have been read as the epochs know it.
        let all_reads = (half_life_reads / std::f64::consts::LN_2) as f32;
        let first =
            || Arc::new(known.clone().scaled_to_epochs(if sum_known > 0.0 { all_reads / sum_known } else { 1.0 }));
        let heat = Arc::make_mut(self.heat.get_or_insert_with(first));
        let is_epoch = std::mem::replace(&mut self.epoch, epoch) != epoch && !is_first;
        let most = if is_epoch { half_life_epochs } else { f64::INFINITY };
        heat.observe(chunks(), (half_life_reads / heat.new_accesses(chunks()) as f64).min(most));
        let sum_recent = sum(heat, Heat::sums);
        self.per_epoch = if sum_known > 0.0 && sum_recent > 0.0 { sum_known / sum_recent } else { 1.0 };
    }

    /// Heat of a segment at the end of the last interval, per epoch.
    pub(super) fn heat(&self, key: &SegmentKey) -> SegmentHeat {
        self.heat.as_ref().map_or_else(SegmentHeat::default, |heat| heat.sums(key)).times(self.per_epoch)
    }

    /// Like [`RecentHeat::heat`], with the reads since: it only grows until the interval ends.
    pub(super) fn heat_now(&self, chunk: &Chunk, segment: &Segment) -> SegmentHeat {
        let heat = self.heat.as_ref().map(|heat| heat.sums_now(chunk, segment));
        heat.unwrap_or_default().times(self.per_epoch)
    }

    /// `heat`, the current heat of a segment, without the read that offers the segment.
    pub(super) fn without_last_read(&self, heat: &SegmentHeat) -> SegmentHeat {
        let reads = heat.total() / self.per_epoch;
        heat.times(if reads > 1.0 { (reads - 1.0) / reads } else { 0.0 })
    }

    /// True when the segment has reads before the last one, and when no heat is known yet.
    pub(super) fn was_read_before(&self, chunk: &Chunk, segment: &Segment) -> bool {
        self.heat.as_ref().is_none_or(|heat| heat.sums_now(chunk, segment).total() > 1.0)
    }
}
