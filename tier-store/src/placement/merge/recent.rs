//! Heat between epochs: what counts for a cache is what is read now, not what was read an epoch ago.
//!
//! A turn is the time between two surveys of all segments. A read loses half of its weight while so many others are made:
//! time is counted in reads, so that a busy server follows its queries within a second and a quiet one forgets no quicker than
//! its epochs. It begins as their heat, and like that it is inherited by chunks that take rows over.
//!
//! It is given out per epoch, so that it can be held against what epochs know: all segments together are as hot as epochs have
//! them, each has the share of it that it has of the recent reads.

use std::sync::Arc;

use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::placement::tiering::TableSnapshot;
use crate::table::{Chunk, Segment};

/// Reads after which one counts half, for each segment that memory has room for.
const READS_PER_SEGMENT: f64 = 32.0;

/// Accesses of all segments, those of a short time ago above all.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent {
    heat: Option<Arc<Heat>>,
    /// Accesses per epoch for each of them.
    per_epoch: f32,
    /// The latest epoch before the last turn.
    epoch: Option<u64>,
}

impl Recent {
    /// Ends a turn. Memory has room for so many `bytes`; an epoch counts as much as `half_life_epochs` later ones.
    pub(super) fn turn(
        &mut self,
        tables: &[TableSnapshot],
        bytes: u64,
        (epoch, half_life_epochs): (Option<u64>, f64),
        known: &Heat,
    ) {
        let chunks = || tables.iter().flat_map(|table| table.chunks.iter().map(|entry| &entry.chunk));
        let segments = || {
            let of = |chunk| move |segment| (chunk, segment);
            let stored = |(_, segment): &(_, &Arc<Segment>)| segment.constant.is_none();
            chunks().flat_map(move |chunk| chunk.segments.iter().map(of(chunk))).filter(stored)
        };
        let all_bytes: u64 = segments().map(|(_, segment)| segment.bytes()).sum();
        let room = segments().count() as f64 * (bytes as f64 / all_bytes.max(1) as f64).min(1.0);
        let half_life_reads = READS_PER_SEGMENT * room.max(1.0);
        let sum = |heat: &Heat, heat_of: fn(&Heat, &SegmentKey) -> SegmentHeat| -> f32 {
            segments().map(|(chunk, segment)| heat_of(heat, &SegmentKey::of(chunk, segment)).total()).sum()
        };
        let sum_known = sum(known, Heat::get);
        let is_first = self.heat.is_none();
        // As if all had been read until now as epochs know it: decayed reads add up to so many.
        let all_reads = (half_life_reads / std::f64::consts::LN_2) as f32;
        let first = || Arc::new(known.clone().of_epochs(if sum_known > 0.0 { all_reads / sum_known } else { 1.0 }));
        let heat = Arc::make_mut(self.heat.get_or_insert_with(first));
        let is_epoch = std::mem::replace(&mut self.epoch, epoch) != epoch && !is_first;
        let most = if is_epoch { half_life_epochs } else { f64::INFINITY };
        heat.observe(chunks(), (half_life_reads / heat.new_accesses(chunks()) as f64).min(most));
        let sum_recent = sum(heat, Heat::sums);
        self.per_epoch = if sum_known > 0.0 && sum_recent > 0.0 { sum_known / sum_recent } else { 1.0 };
    }

    /// Of a segment as of the last turn, per epoch.
    pub(super) fn heat(&self, key: &SegmentKey) -> SegmentHeat {
        self.heat.as_ref().map_or_else(SegmentHeat::default, |heat| heat.sums(key)).times(self.per_epoch)
    }

    /// With what was read since: it only grows until the next turn.
    pub(super) fn heat_now(&self, chunk: &Chunk, segment: &Segment) -> SegmentHeat {
        let heat = self.heat.as_ref().map(|heat| heat.sums_now(chunk, segment));
        heat.unwrap_or_default().times(self.per_epoch)
    }
}
