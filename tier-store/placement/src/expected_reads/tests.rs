//! Expected reads of running statements keep segments in memory, and bring none there.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_storage::table::ChunkEntry;

use super::*;
use crate::epoch::plan;
use crate::solver::Effort;
use crate::testing::builders::{self, MIB, plan_inputs, scans, three_tiers};
use crate::testing::{COLUMN_BYTES, FakeHost};
use crate::{AdviceRequest, EpochRequest, Workload};

/// A segment that was read `reads` times per epoch, and of which `expected_reads` reads are expected.
fn segment(id: u64, current: u8, reads: f32, expected_reads: f32) -> SegmentInput {
    SegmentInput { expected_reads: scans(expected_reads), ..builders::segment(id).on(current).heat(scans(reads)) }
}

/// Moves as position, from, to.
fn moves(inputs: &Inputs) -> Vec<(usize, u8, u8)> {
    let plan = plan(inputs, Effort::default()).unwrap();
    plan.moves.iter().map(|planned| (planned.segment, planned.from.0, planned.to.0)).collect()
}

#[test]
fn a_cold_segment_that_is_about_to_be_read_makes_room_for_the_hot_only() {
    let full = |expected, lukewarm| {
        plan_inputs(three_tiers(MIB, 0), vec![segment(0, 0, 0.0, expected), segment(1, 2, lukewarm, 0.0)])
    };
    let swapped = vec![(0, 0, 2), (1, 2, 0)];
    assert_eq!(moves(&full(0.0, 1.0)), swapped);
    assert!(moves(&full(1.0, 1.0)).is_empty());
    assert_eq!(moves(&full(1.0, 2.0)), swapped, "one read of many statements to come");
    assert!(moves(&full(3.0, 2.0)).is_empty(), "three statements will read it");
}

#[test]
fn no_read_to_come_brings_anything_into_memory() {
    let expected = vec![segment(0, 2, 0.0, 1e6), segment(1, 1, 0.0, 1e6)];
    let empty = plan_inputs(three_tiers(8 * MIB, 8 * MIB), expected);
    assert!(moves(&empty).is_empty());
    let mut rng = StdRng::seed_from_u64(1);
    for case in 0..200 {
        let some = |rng: &mut StdRng, most: f32| if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..most) };
        let count = rng.random_range(2..40);
        let segments: Vec<SegmentInput> = (0..count)
            .map(|id| segment(id, rng.random_range(0..3), some(&mut rng, 20.0), some(&mut rng, 5.0).ceil()))
            .collect();
        let dram = rng.random_range(0..count) * MIB;
        let nvm = rng.random_range(0..count) * MIB;
        let with = plan_inputs(three_tiers(dram, nvm), segments);
        for (at, from, to) in moves(&with) {
            let segment = &with.segments[at];
            assert!(to > from || from < 2 || segment.heat.total() > 0.0, "case {case}: {at} from {from} to {to}");
        }
    }
}

/// Reports the first columns of some chunks, each twice, as a self join would.
struct Scan(Vec<ChunkEntry>);

impl ExpectedReadSource for Scan {
    fn report(&self, visit: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        for entry in self.0.iter().chain(&self.0) {
            visit(&entry.chunk, 0, ExpectedRead { pattern: Pattern::Sequential, values: 1000 });
            visit(&entry.chunk, 99, ExpectedRead { pattern: Pattern::Sequential, values: 1000 });
        }
    }
}

#[test]
fn running_statements_are_asked_by_epochs_dry_runs_and_questions_but_not_by_the_advisor() {
    let host = FakeHost::new(2 * COLUMN_BYTES, Arc::default()).with_usual_costs();
    let tiering = host.tiering();
    host.read(0, 4);
    host.read(1, 4);
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(host.resident(), [0, 1]);
    // Others are read a little more often from now on.
    let next = |tiering: &crate::Tiering| {
        (2..4).for_each(|chunk| host.read(chunk, 9));
        tiering.run_epoch(EpochRequest::dry_run("test")).unwrap().epoch.moves
    };
    let all_of = |chunks: std::ops::Range<usize>| Arc::new(Scan(host.chunks[chunks].to_vec()));
    assert_eq!(next(&tiering), 4, "they would take their places");

    let scans: Vec<Arc<Scan>> = (0..20).map(|_| all_of(0..10)).collect();
    for scan in &scans {
        let scan: std::sync::Weak<Scan> = Arc::downgrade(scan);
        tiering.add_expected_read_source(scan);
    }
    let expected = tiering.expected_reads();
    let mut chunks: Vec<(u64, f32, f32)> =
        expected.iter().map(|(key, heat)| (key.chunk.0, heat.accesses[0], heat.values[0])).collect();
    chunks.sort_by_key(|(chunk, ..)| *chunk);
    assert_eq!(
        chunks,
        [(0, 20.0, 20_000.0), (1, 20.0, 20_000.0)],
        "one of each statement, and none of what is at home"
    );
    let advice = |tiering: &crate::Tiering| {
        tiering.advise(&AdviceRequest { points: 3, ..AdviceRequest::default() }, &Workload::default()).unwrap()
    };
    let with = advice(&tiering);
    assert_eq!(next(&tiering), 0);
    let explained = tiering.explain("public.t", &crate::Scope::all()).unwrap();
    let first = explained.iter().find(|found| (found.chunk, found.column.as_str()) == (0, "id")).unwrap();
    assert!(first.why.contains("running statements are about to read it"), "{}", first.why);
    assert!(first.options[0].ahead_us == 0.0 && first.options[1].ahead_us > 0.0, "{:?}", first.options);
    assert_eq!(tiering.run_epoch(EpochRequest::now("test")).unwrap().epoch.moves, 0);
    assert_eq!(host.resident(), [0, 1]);

    // The statements have ended: no epoch asks them.
    drop(scans);
    assert!(tiering.expected_reads().is_empty());
    assert_eq!(next(&tiering), 4);
    let kept = with.curve.iter().map(|point| point.used_bytes).collect::<Vec<_>>();
    assert_eq!(kept, advice(&tiering).curve.iter().map(|point| point.used_bytes).collect::<Vec<_>>());
}

#[test]
fn statements_that_are_gone_are_forgotten() {
    let sources = ExpectedReadSources::default();
    for _ in 0..10_000 {
        let gone: Arc<dyn ExpectedReadSource> = Arc::new(Scan(Vec::new()));
        sources.add(Arc::downgrade(&gone));
    }
    assert!(sources.0.lock().sources.len() <= FEW);
}
