//! What running statements still have to read: known to them, asked for at each epoch, kept nowhere.
//!
//! Heat is what was read; a scan that is under way knows better. It keeps in memory what it will read: leaving for a slower
//! tier costs, on top of everything else, what that makes the expected reads slower ([`ahead_us`]). It brings nothing there:
//! a segment that comes up for one read is read for that once itself, so a scan of everything, however large, displaces nobody.
//! One that has to leave its tier may go to a faster one that has room. A statement expects each segment once, and what it
//! has begun to read is in the counters.

use std::collections::HashMap;
use std::sync::Weak;

use parking_lot::Mutex;

use super::epoch::{Inputs, SegmentInput, reads_us};
use crate::heat::Pattern;
use crate::heat::decay::{SegmentHeat, SegmentKey};
use crate::table::Chunk;
use crate::tier::TierId;

/// How a segment will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedRead {
    /// In which order.
    pub pattern: Pattern,
    /// Values of it.
    pub values: u64,
}

/// A running statement.
pub trait Agenda: Send + Sync {
    /// Calls `note` with each segment that it still has to read, as far as it knows: chunk, position of the column, and how.
    /// One that several of its scans will read may come several times.
    fn tell(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead));
}

/// The running statements.
#[derive(Default)]
pub(super) struct Agendas(Mutex<Known>);

#[derive(Default)]
struct Known {
    agendas: Vec<Weak<dyn Agenda>>,
    /// Forgets those that are gone when there are so many.
    clean_at: usize,
}

/// Fewer agendas than this are not worth a look at who is gone.
const FEW: usize = 64;

impl Agendas {
    /// Asks `agenda` as long as it lives.
    pub(super) fn follow(&self, agenda: Weak<dyn Agenda>) {
        let Known { agendas, clean_at } = &mut *self.0.lock();
        if agendas.len() >= *clean_at {
            agendas.retain(|agenda| agenda.strong_count() > 0);
            *clean_at = FEW.max(2 * agendas.len());
        }
        agendas.push(agenda);
    }

    /// Reads that are expected of segments that lie in memory: of each statement one at most.
    pub(super) fn ahead(&self) -> HashMap<SegmentKey, SegmentHeat> {
        let running: Vec<_> = self.0.lock().agendas.iter().filter_map(Weak::upgrade).collect();
        // Beside the reads, the last statement that expects one.
        let mut ahead: HashMap<SegmentKey, (SegmentHeat, usize)> = HashMap::new();
        for (number, agenda) in running.iter().enumerate() {
            agenda.tell(&mut |chunk, column, read| {
                let segment = chunk.segments.get(column).filter(|segment| segment.resident.load().is_some());
                let Some(segment) = segment else { return };
                let (heat, last) =
                    ahead.entry(SegmentKey::of(chunk, segment)).or_insert((SegmentHeat::default(), usize::MAX));
                let pattern = read.pattern as usize;
                let cells = heat.accesses.get_mut(pattern).zip(heat.values.get_mut(pattern));
                if let Some((accesses, values)) = cells.filter(|_| std::mem::replace(last, number) != number) {
                    *accesses += 1.0;
                    *values += read.values as f32;
                }
            });
        }
        ahead.into_iter().map(|(key, (heat, _))| (key, heat)).collect()
    }

    /// Notes them among the inputs of a plan.
    pub(super) fn mark(&self, inputs: &mut Inputs) {
        let ahead = self.ahead();
        if ahead.is_empty() {
            return;
        }
        for segment in &mut inputs.segments {
            if let Some(heat) = ahead.get(&segment.key) {
                segment.ahead = *heat;
            }
        }
    }
}

/// What the expected reads would take longer on `tier` than where the segment lies, in microseconds; 0 on faster tiers.
pub(super) fn ahead_us(inputs: &Inputs, segment: &SegmentInput, tier: TierId) -> f64 {
    if tier <= segment.current || segment.ahead.total() <= 0.0 {
        return 0.0;
    }
    let time_us = |tier: TierId| reads_us(inputs, segment, &segment.ahead, tier);
    (time_us(tier) - time_us(segment.current)).max(0.0)
}

#[cfg(test)]
mod tests;
