//! Expected reads: segments that running statements still have to read. Each epoch asks the statements for them; they are
//! stored nowhere.
//!
//! Heat describes past reads; a running scan knows its next ones. Expected reads keep a segment in memory: a move to a
//! slower tier costs, on top of everything else, the time by which the expected reads become slower ([`delay_us`]). They
//! never bring a segment into memory: promoting it would read it once, as the scan itself does, so a scan of everything,
//! however large, displaces no other segment. A segment that has to leave its tier may go to a faster one that has room.
//! A statement expects each segment once; a segment that it has begun to read is in the counters.

use std::collections::HashMap;
use std::sync::Weak;

use terrace_model::Pattern;
use terrace_storage::table::Chunk;

use super::epoch::{Inputs, SegmentInput, reads_us};
use super::lock_order::{OrderedMutex, Rank};
use super::place::Place;
use crate::heat::decay::{SegmentHeat, SegmentKey};

/// An expected read of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedRead {
    /// Order of the accesses.
    pub pattern: Pattern,
    /// Number of values that will be read.
    pub values: u64,
}

/// A source of expected reads: a running statement.
pub trait ExpectedReadSource: Send + Sync {
    /// Calls `visit` with each segment that the statement still has to read, as far as it knows: the chunk, the position of
    /// the column, and the read. A segment that several of its scans will read may be visited several times.
    fn report(&self, visit: &mut dyn FnMut(&Chunk, usize, ExpectedRead));
}

/// All running statements.
pub(super) struct ExpectedReadSources(OrderedMutex<SourceList>);

#[derive(Default)]
struct SourceList {
    sources: Vec<Weak<dyn ExpectedReadSource>>,
    /// Length of the list at which ended statements are removed from it.
    clean_at: usize,
}

/// Shorter lists than this are not searched for ended statements.
const FEW: usize = 64;

impl Default for ExpectedReadSources {
    fn default() -> Self {
        Self(OrderedMutex::new(Rank::Leaf, SourceList::default()))
    }
}

impl ExpectedReadSources {
    /// Asks `source` for its expected reads as long as it lives.
    pub(super) fn add(&self, source: Weak<dyn ExpectedReadSource>) {
        let SourceList { sources, clean_at } = &mut *self.0.lock();
        if sources.len() >= *clean_at {
            sources.retain(|source| source.strong_count() > 0);
            *clean_at = FEW.max(2 * sources.len());
        }
        sources.push(source);
    }

    /// Expected reads of segments in memory, at most one of each statement.
    pub(super) fn collect(&self) -> HashMap<SegmentKey, SegmentHeat> {
        let running: Vec<_> = self.0.lock().sources.iter().filter_map(Weak::upgrade).collect();
        // The number beside the reads is that of the last statement that expects one: a statement counts once.
        let mut expected: HashMap<SegmentKey, (SegmentHeat, usize)> = HashMap::new();
        for (number, source) in running.iter().enumerate() {
            source.report(&mut |chunk, column, read| {
                let segment = chunk.segments.get(column).filter(|segment| segment.resident.load().is_some());
                let Some(segment) = segment else { return };
                let (heat, last) = expected
                    .entry(SegmentKey::for_segment(chunk, segment))
                    .or_insert((SegmentHeat::default(), usize::MAX));
                let pattern = read.pattern as usize;
                let cells = heat.accesses.get_mut(pattern).zip(heat.values.get_mut(pattern));
                if let Some((accesses, values)) = cells.filter(|_| std::mem::replace(last, number) != number) {
                    *accesses += 1.0;
                    *values += read.values as f32;
                }
            });
        }
        expected.into_iter().map(|(key, (heat, _))| (key, heat)).collect()
    }

    /// Sets the expected reads in the inputs of a plan.
    pub(super) fn mark(&self, inputs: &mut Inputs) {
        let expected = self.collect();
        if expected.is_empty() {
            return;
        }
        for segment in &mut inputs.segments {
            if let Some(heat) = expected.get(&segment.key) {
                segment.expected_reads = *heat;
            }
        }
    }
}

/// Time by which the expected reads would be slower at `place` than where the segment lies, in microseconds; 0 where reads
/// are faster.
pub(super) fn delay_us(inputs: &Inputs, segment: &SegmentInput, place: Place) -> f64 {
    if place <= segment.place() || segment.expected_reads.total() <= 0.0 {
        return 0.0;
    }
    let time_us = |place: Place| reads_us(inputs, segment, &segment.expected_reads, place);
    (time_us(place) - time_us(segment.place())).max(0.0)
}

#[cfg(test)]
mod tests;
