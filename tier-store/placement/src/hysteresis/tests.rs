#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use terrace_model::TierId;

use super::*;
use crate::epoch::plan;
use crate::solver::Effort;
use crate::testing::builders::{MIB, plan_inputs, scans, segment, three_tiers};

/// Two segments of 1 MiB; room for one in DRAM and for one in NVM if any lies there.
fn inputs(places: [u8; 2], reads: [f32; 2]) -> Inputs {
    let nvm_bytes = if places.contains(&1) { MIB } else { 0 };
    let segment = |n: usize| segment(n as u64).on(places[n]).heat(scans(reads[n]));
    plan_inputs(three_tiers(MIB, nvm_bytes), vec![segment(0), segment(1)])
}

/// Segment 0 rose to `places[0]` and segment 1 sank to `places[1]` in epoch 10, when both were read so often.
fn moved(places: [u8; 2], reads: [f32; 2]) -> MoveHistory {
    moved_with(HysteresisOptions::default(), places, reads)
}

fn moved_with(options: HysteresisOptions, places: [u8; 2], reads: [f32; 2]) -> MoveHistory {
    let mut history = MoveHistory::new(options);
    let mut before = inputs([2, 0], reads);
    before.tiers = inputs(places, reads).tiers;
    history.record(&before, &BudgetsAndRules::from_inputs(&before), 9, std::iter::empty());
    history.record(
        &before,
        &BudgetsAndRules::from_inputs(&before),
        10,
        [(0, Place::plain(TierId(places[0]))), (1, Place::plain(TierId(places[1])))].into_iter(),
    );
    history
}

/// The moves that an epoch would make.
fn moves(history: &MoveHistory, mut inputs: Inputs, epoch: u64) -> Vec<(usize, u8)> {
    history.mark(&mut inputs, epoch);
    plan(&inputs, Effort::default()).unwrap().moves.iter().map(|planned| (planned.segment, planned.to.0)).collect()
}

#[test]
fn neither_turns_back_before_the_move_could_pay() {
    let history = moved([0, 2], [10.0, 8.0]);
    let swing = || inputs([0, 2], [8.0, 14.0]);
    for epoch in 11..=14 {
        assert_eq!(moves(&history, swing(), epoch), [], "epoch {epoch}");
    }
    assert!(moves(&history, swing(), 15).contains(&(1, 0)), "later it may");
}

#[test]
fn heat_that_changed_by_a_factor_turns_it() {
    let history = moved([0, 2], [10.0, 8.0]);
    assert!(moves(&history, inputs([0, 2], [4.9, 16.1]), 11).contains(&(1, 0)));
    assert_eq!(moves(&history, inputs([0, 2], [5.1, 15.9]), 11), []);
    // A segment that is twice as hot as the one that rose takes its place.
    assert_eq!(moves(&history, inputs([0, 2], [9.0, 16.5]), 11), []);
    assert!(moves(&history, inputs([0, 2], [9.0, 20.0]), 11).contains(&(1, 0)));
}

#[test]
fn how_long_and_how_firmly_are_settings() {
    let with = |epochs, factor| moved_with(HysteresisOptions { epochs, factor }, [0, 2], [10.0, 8.0]);
    let swing = || inputs([0, 2], [8.0, 14.0]);
    assert!(moves(&with(0, 2.0), swing(), 11).contains(&(1, 0)), "not at all");
    assert!(moves(&with(4, 1.0), swing(), 11).contains(&(1, 0)), "by nothing");
    assert_eq!(moves(&with(9, 2.0), swing(), 19), []);
    assert!(moves(&with(9, 2.0), swing(), 20).contains(&(1, 0)));
    // Heat that frees it at a factor of 2 does not at a factor of 3.
    assert_eq!(moves(&with(4, 3.0), inputs([0, 2], [4.9, 14.0]), 11), []);
    assert!(moves(&with(4, 3.0), inputs([0, 2], [3.3, 14.0]), 11).contains(&(1, 0)));
}

#[test]
fn what_was_saved_goes_on() {
    let blob = moved([0, 2], [10.0, 8.0]).to_blob().unwrap();
    let mut again = MoveHistory::new(HysteresisOptions::default());
    again.restore(&blob).unwrap();
    let swing = || inputs([0, 2], [8.0, 14.0]);
    assert_eq!(moves(&again, swing(), 14), []);
    assert!(moves(&again, swing(), 15).contains(&(1, 0)), "not longer for the restart");
    // Half of it is none of it.
    let error = again.restore(&blob[..blob.len() / 2]).unwrap_err().to_string();
    assert!(error.contains("the history of recent moves"), "{error}");
    assert_eq!(moves(&again, swing(), 14), []);
}

#[test]
fn other_budgets_or_rules_end_all_holds() {
    let history = moved([0, 2], [10.0, 8.0]);
    let mut smaller = inputs([0, 2], [10.0, 8.0]);
    (smaller.tiers[0].budget_bytes, smaller.tiers[1].budget_bytes) = (Some(0), Some(0));
    assert_eq!(moves(&history, smaller, 11), [(0, 2)]);
    let mut ruled = inputs([0, 2], [8.0, 14.0]);
    ruled.rules.push("rule 1".into());
    assert!(moves(&history, ruled, 11).contains(&(1, 0)));
}

#[test]
fn going_on_in_the_same_direction_is_free() {
    // Rose to NVM; DRAM is empty now.
    let history = moved([1, 2], [10.0, 1.0]);
    assert_eq!(moves(&history, inputs([1, 2], [11.0, 0.0]), 11), [(0, 0)]);
    // Sank to NVM; now it is as cold as can be and another one wants the room.
    let history = moved([2, 1], [8.0, 8.0]);
    let mut full = inputs([2, 1], [50.0, 0.5]);
    full.segments[1].hysteresis = Some(Hysteresis { direction: Direction::Sank, factor: 2.0 });
    assert_eq!(reversal_us(&full.segments[1], Place::plain(TierId(2)), 9.0), 0.0);
    assert!(moves(&history, full, 11).contains(&(0, 0)));
}

#[test]
fn orders_and_segments_set_aside_end_no_holds() {
    let mut before = inputs([2, 0], [10.0, 8.0]);
    before.tiers = inputs([0, 2], [10.0, 8.0]).tiers;
    let mut history = MoveHistory::default();
    let basis = BudgetsAndRules::from_inputs(&before);
    history.record(&before, &basis, 9, std::iter::empty());
    // The bytes of other tables are not in the budgets, and an order is among the rules.
    before.rules.push("bring t to dram".into());
    before.tiers[0].budget_bytes = before.tiers[0].budget_bytes.map(|bytes| bytes / 2);
    history.record(&before, &basis, 10, [(0, Place::plain(TierId(0))), (1, Place::plain(TierId(2)))].into_iter());
    assert_eq!(moves(&history, inputs([0, 2], [8.0, 14.0]), 11), []);
}
