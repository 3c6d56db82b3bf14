//! Heat between epochs: what counts for a cache is what is read now, not what was read an epoch ago.
//!
//! A turn is the time between two surveys of all segments. A read loses half of its weight while so many others are made:
//! time is counted in reads, so that a busy server follows its queries within a second and a quiet one forgets no quicker than
//! its epochs. It begins as their heat, and like that it is inherited by chunks that take rows over.

use std::sync::Arc;

use crate::heat::decay::Heat;
use crate::placement::tiering::TableSnapshot;

/// Reads after which one counts half, for each segment that memory has room for.
const READS_PER_SEGMENT: f64 = 128.0;

/// Accesses of all segments, those of a short time ago above all.
#[derive(Debug, Default)]
pub(super) struct Recent {
    heat: Option<Arc<Heat>>,
    /// Accesses of all segments at the last turn.
    accesses: u64,
    /// The latest epoch before it.
    epoch: Option<u64>,
    /// How many turns count, later ones more.
    turns: f64,
}

impl Recent {
    /// Ends a turn. Memory has room for so many `bytes`; an epoch counts as much as `half_life_epochs` later ones; at first it
    /// is what epochs know.
    pub(super) fn turn(
        &mut self,
        tables: &[TableSnapshot],
        bytes: u64,
        (epoch, half_life_epochs): (Option<u64>, f64),
        known: impl FnOnce() -> Heat,
    ) {
        let chunks = || tables.iter().flat_map(|table| table.chunks.iter().map(|entry| &entry.chunk));
        let (mut segments, mut all_bytes, mut accesses) = (0_u64, 0_u64, 0_u64);
        for segment in chunks().flat_map(|chunk| chunk.segments.iter()).filter(|segment| segment.constant.is_none()) {
            segments += 1;
            all_bytes += segment.bytes();
            accesses += segment.counters.snapshot().accesses.iter().sum::<u64>();
        }
        let is_first = self.heat.is_none();
        let heat = self.heat.get_or_insert_with(|| Arc::new(known()));
        // Fewer than before: chunks are gone, or a counter began anew.
        let reads = accesses.saturating_sub(std::mem::replace(&mut self.accesses, accesses));
        let room = segments as f64 * (bytes as f64 / all_bytes.max(1) as f64).min(1.0);
        let is_epoch = std::mem::replace(&mut self.epoch, epoch) != epoch && !is_first;
        let most = if is_epoch { half_life_epochs } else { f64::INFINITY };
        let half_life_turns = (READS_PER_SEGMENT * room.max(1.0) / reads.max(1) as f64).min(most);
        if is_first || is_epoch || reads > 0 {
            Arc::make_mut(heat).observe(chunks(), half_life_turns);
            self.turns = self.turns * 0.5_f64.powf(1.0 / half_life_turns) + 1.0;
        }
    }

    /// Accesses per turn.
    pub(super) fn heat(&self) -> Arc<Heat> {
        self.heat.clone().unwrap_or_default()
    }

    /// Turns that the heat speaks of.
    pub(super) fn turns(&self) -> f64 {
        self.turns.max(1.0)
    }
}
