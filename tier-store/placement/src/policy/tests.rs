//! One small placement under every policy, and the properties of each.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::epoch::{EpochPlan, plan_by};
use crate::heat::SegmentHeat;
use crate::solver::Effort;
use crate::testing::builders::{self, MIB, placed, plan_inputs, scans, two_tiers};

const HOME: u8 = 1;

/// Column `column` of chunk `chunk`, read `reads` times per epoch, for the last time `idle` epochs ago.
fn segment(chunk: u64, column: u32, current: u8, bytes: u64, reads: f32, idle: Option<u32>) -> SegmentInput {
    let heat = SegmentHeat { idle_epochs: idle, ..scans(reads) };
    builders::segment(chunk).column(column).bytes(bytes).on(current).heat(heat)
}

fn inputs(dram_bytes: u64, segments: Vec<SegmentInput>) -> Inputs {
    plan_inputs(two_tiers(dram_bytes), segments)
}

fn plan(kind: PolicyKind, inputs: &Inputs) -> EpochPlan {
    plan_by(kind.policy(7).as_ref(), inputs, Effort::default()).unwrap()
}

/// "chunk.column" of each segment in DRAM after the plan.
fn in_dram(kind: PolicyKind, inputs: &Inputs) -> Vec<String> {
    let at = placed(inputs, &plan(kind, inputs));
    let name = |segment: &SegmentInput| format!("{}.{}", segment.key.chunk.0, segment.key.column.0);
    at.iter().zip(&inputs.segments).filter(|(tier, _)| tier.0 == 0).map(|(_, segment)| name(segment)).collect()
}

/// Two columns by three chunks, 3 MiB of DRAM: one segment is hottest, a chunk is hot as a whole, a column lasts longest.
fn grid() -> Inputs {
    let reads = [[2.0, 9.0], [2.5, 0.0], [6.0, 5.5]];
    let idle = [[0, 3], [2, 9], [1, 0]];
    let cells = (0..3).flat_map(|chunk| (0..2).map(move |column| (chunk, column)));
    let segments = cells.map(|(chunk, column)| {
        let idle = Some(idle[chunk][column]).filter(|_| reads[chunk][column] > 0.0);
        // The cold one lies in DRAM.
        let current = if idle.is_none() { 0 } else { HOME };
        segment(chunk as u64, column as u32, current, MIB, reads[chunk][column], idle)
    });
    inputs(3 * MIB, segments.collect())
}

#[test]
fn every_policy_has_its_own_choice_and_says_why() {
    let mut story = String::new();
    for kind in PolicyKind::ALL {
        let inputs = grid();
        story += &format!("{}: {}\n", kind.name(), in_dram(kind, &inputs).join(" "));
        let mut seen = Vec::new();
        for planned in plan(kind, &inputs).moves {
            let promotion = planned.to < planned.from;
            if !seen.contains(&promotion) {
                seen.push(promotion);
                story += &format!("    {} {}\n", if promotion { "up  " } else { "down" }, planned.reason);
            }
        }
    }
    insta::assert_snapshot!(story, @r"
    optimal: 0.1 2.0 2.1
        down cold: not read in recent epochs, and other segments make better use of its 1.0 MiB on dram
        up   hot: 9.0 sequential reads per epoch; dram saves 7.5 ms an epoch against ssd, worth 7.2 ns per byte, above the price of 3.1 ns
    density: 0.1 2.0 2.1
        down cold: not read in recent epochs, and dram is full of segments that save more per byte
        up   dense: 9.0 sequential reads per epoch; dram saves 7.5 ms an epoch against ssd, worth 7.2 ns per byte: among the highest that fit there
    lru: 0.0 2.0 2.1
        down least recent: no read is recorded; dram holds segments read later
        up   recent: last read one epoch ago; dram holds the segments read last
    lfu: 0.1 2.0 2.1
        down least frequent: 0.0 reads per epoch; dram holds segments read more often
        up   frequent: 9.0 reads per epoch; dram holds the segments read most often
    column: 0.1 1.1 2.1
        up   whole column: it saves 3.9 ns per byte in memory; dram has room for all of it
    chunk: 2.0 2.1
        down whole chunk: it saves 1.0 ns per byte in memory; dram has no room for all of it
        up   whole chunk: it saves 4.6 ns per byte in memory; dram has room for all of it
    random: 0.0 2.0 2.1
        down random: its draw is 0.021; dram holds segments with higher draws
        up   random: its draw 0.647 is high enough for dram
    static: 0.0 0.1 1.1
        up   first fill: dram has room
    one_form: 0.1 2.0 2.1
        down one form for all: not read in recent epochs, and dram is full of segments that save more per byte
        up   one form for all: 9.0 sequential reads per epoch; dram saves 7.5 ms an epoch against ssd, worth 7.2 ns per byte
    form_first: 0.1 2.0 2.1
        down form chosen first: not read in recent epochs, and dram is full of segments that save more per byte
        up   form chosen first: 9.0 sequential reads per epoch; dram saves 7.5 ms an epoch against ssd, worth 7.2 ns per byte
    mosaic: 0.1 1.1 2.1
        up   with its whole column: 9.0 sequential reads per epoch; dram saves 7.5 ms an epoch against ssd, worth 7.2 ns per byte
    ");
}

#[test]
fn names_are_those_of_settings() {
    for kind in PolicyKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        assert_eq!(kind.policy(0).kind(), kind);
    }
}

#[test]
fn what_is_equal_to_a_policy_does_not_move() {
    use PolicyKind::{Lfu, Lru, Static};
    // Two that were read alike, and one that never was; room for one.
    let both = vec![
        segment(0, 0, HOME, MIB, 3.0, Some(0)),
        segment(1, 0, 0, MIB, 3.0, Some(0)),
        segment(2, 0, HOME, MIB, 0.0, None),
    ];
    for kind in [Lru, Lfu, Static] {
        assert!(plan(kind, &inputs(MIB, both.clone())).moves.is_empty(), "{kind:?}");
    }
    // With room for all, a segment without reads still has no claim; `static` does not look at reads.
    assert_eq!(in_dram(Lru, &inputs(4 * MIB, both.clone())), ["0.0", "1.0"]);
    assert_eq!(in_dram(Static, &inputs(4 * MIB, both)), ["0.0", "1.0", "2.0"]);
}

#[test]
fn static_placement_changes_only_by_the_budget() {
    let colder = vec![segment(0, 0, 0, MIB, 0.0, None), segment(1, 0, HOME, MIB, 99.0, Some(0))];
    assert!(plan(PolicyKind::Static, &inputs(MIB, colder.clone())).moves.is_empty());
    let moves = plan(PolicyKind::Static, &inputs(MIB / 2, colder)).moves;
    assert_eq!(moves.len(), 1);
    assert_eq!(moves[0].reason, "static: dram is 512.0 KiB over its budget of 512.0 KiB");
}

#[test]
fn a_unit_goes_whole_or_not_at_all() {
    // The denser column has a large segment: together they do not fit, though its small one would.
    let segments = vec![
        segment(0, 0, HOME, MIB, 9.0, Some(0)),
        segment(1, 0, HOME, 3 * MIB, 9.0, Some(0)),
        segment(0, 1, HOME, MIB, 2.0, Some(0)),
        segment(1, 1, HOME, MIB, 2.0, Some(0)),
    ];
    assert_eq!(in_dram(PolicyKind::Column, &inputs(3 * MIB, segments.clone())), ["0.1", "1.1"]);
    assert_eq!(in_dram(PolicyKind::Chunk, &inputs(3 * MIB, segments.clone())), ["0.0", "0.1"]);
    assert_eq!(in_dram(PolicyKind::Optimal, &inputs(3 * MIB, segments)), ["1.0"]);
}

#[test]
fn another_seed_draws_another_placement() {
    let segments: Vec<_> = (0..40).map(|chunk| segment(chunk, 0, HOME, MIB, 1.0, Some(0))).collect();
    let inputs = inputs(20 * MIB, segments);
    let moves = |seed| plan_by(PolicyKind::Random.policy(seed).as_ref(), &inputs, Effort::default()).unwrap().moves;
    assert_eq!(moves(1), moves(1));
    assert_ne!(moves(1), moves(2));
    assert_eq!(moves(2).len(), 20);
}
