//! Checks budgets against all possible choices, and expected reads of views against counts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{MarkId, TableId};

use super::*;
use crate::epoch::plan;
use crate::explain::Explainer;
use crate::solver::Effort;
use crate::testing::builders::{self, pinned_to_dram, plan_inputs, three_tiers};

const KIB: u64 = 1 << 10;
const DRAM: TierMask = 1;

fn segment(id: u64, bytes: u64, current: u8, reads: f32) -> SegmentInput {
    builders::segment(id).rows(10_000).bytes(bytes).on(current).heat(SegmentHeat::full_scan(10_000).times(reads))
}

fn with_views(segments: Vec<SegmentInput>, dram: u64, budgets: &[u64]) -> Inputs {
    let view = |(at, budget): (usize, &u64)| ViewInput {
        name: format!("public.v{at}"),
        budget_bytes: Some(*budget),
        missed_bytes: 0,
    };
    let views = budgets.iter().enumerate().map(view).collect();
    Inputs { views, ..plan_inputs(three_tiers(dram, 200 * KIB), segments) }
}

fn worth_us(inputs: &Inputs, at: usize) -> f64 {
    let segment = &inputs.segments[at];
    expected_us(inputs, segment, Place::plain(inputs.home())) - expected_us(inputs, segment, Place::plain(TierId(0)))
}

fn is_candidate(inputs: &Inputs, at: usize) -> bool {
    inputs.segments[at].constraints.allows(TierId(0))
}

/// Bytes of a view on DRAM after a plan of everything.
fn planned_bytes(inputs: &Inputs, members: &[usize]) -> u64 {
    let found = plan(inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(inputs, &found);
    members.iter().filter(|at| explainer.placed(**at) == TierId(0)).map(|at| inputs.segments[*at].bytes).sum()
}

#[test]
fn of_equal_segments_a_budget_keeps_the_best_choice_there_is() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let reads: Vec<f32> = (0..9).map(|_| rng.random_range(0.5..40.0)).collect();
        let segments = (0..).zip(&reads).map(|(id, reads)| segment(id, 10 * KIB, 2, *reads)).collect();
        let budget = rng.random_range(0..110) * KIB;
        let mut inputs = with_views(segments, 1 << 30, &[budget]);
        keep_budgets(&mut inputs, &[(0..9).collect()], DRAM);
        let value = |chosen: &dyn Fn(usize) -> bool| -> (u64, f64) {
            let chosen = (0..9).filter(|at| chosen(*at));
            chosen.fold((0, 0.0), |(bytes, us), at| (bytes + 10 * KIB, us + worth_us(&inputs, at)))
        };
        let all = (0_u32..1 << 9).map(|set| value(&|at| set >> at & 1 == 1));
        let best = all.filter(|(bytes, _)| *bytes <= budget).map(|(_, us)| us).fold(0.0, f64::max);
        let (bytes, us) = value(&|at| is_candidate(&inputs, at));
        assert!(bytes <= budget && us >= best * (1.0 - 1e-9), "{bytes} of {budget}: {us} is not {best}");
        // There is room for all of it on DRAM, but for the budget.
        assert_eq!(planned_bytes(&inputs, &(0..9).collect::<Vec<_>>()), bytes);
    }
}

#[test]
fn budgets_bound_views_that_overlap_and_leave_no_room_unused() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let segments: Vec<_> = (0..20)
            .map(|id| segment(id, rng.random_range(1..30) * KIB, rng.random_range(0..3), rng.random_range(0.0..9.0)))
            .collect();
        let budgets: Vec<u64> = (0..3).map(|_| rng.random_range(0..200) * KIB).collect();
        let members: Members = (0..3).map(|_| (0..20).filter(|_| rng.random_bool(0.5)).collect()).collect();
        let mut inputs = with_views(segments, 150 * KIB, &budgets);
        keep_budgets(&mut inputs, &members, DRAM);
        let taken = |view: &Vec<usize>| {
            view.iter().filter(|at| is_candidate(&inputs, **at)).map(|at| inputs.segments[*at].bytes).sum::<u64>()
        };
        for (view, budget) in members.iter().zip(&budgets) {
            assert!(taken(view) <= *budget);
            assert!(planned_bytes(&inputs, view) <= *budget);
        }
        let of_any: BTreeSet<usize> = members.iter().flatten().copied().collect();
        for at in 0..20 {
            let fits = |(view, budget): (&Vec<usize>, &u64)| {
                !view.contains(&at) || taken(view) + inputs.segments[at].bytes <= *budget
            };
            let is_kept_off = !is_candidate(&inputs, at);
            assert!(!is_kept_off || of_any.contains(&at) && !members.iter().zip(&budgets).all(fits), "{at}");
        }
    }
}

#[test]
fn what_lies_in_dram_keeps_its_part_of_a_budget_against_the_hardly_better() {
    let place = |reads: [f32; 2]| {
        let segments = vec![segment(0, 10 * KIB, 0, reads[0]), segment(1, 10 * KIB, 2, reads[1])];
        let mut inputs = with_views(segments, 1 << 30, &[15 * KIB]);
        keep_budgets(&mut inputs, &[vec![0, 1]], DRAM);
        [is_candidate(&inputs, 0), is_candidate(&inputs, 1)]
    };
    assert_eq!(place([10.0, 10.5]), [true, false]);
    assert_eq!(place([10.0, 12.0]), [false, true]);
}

#[test]
fn pins_win_against_budgets_and_it_is_said_by_how_much() {
    let mut segments: Vec<_> = (0..3).map(|id| segment(id, 10 * KIB, 2, 5.0)).collect();
    segments[..2].iter_mut().for_each(|segment| segment.constraints = pinned_to_dram());
    let mut inputs = with_views(segments, 1 << 30, &[15 * KIB]);
    inputs.rules = vec!["rule 1 of t, PIN".into()];
    keep_budgets(&mut inputs, &[vec![0, 1, 2]], DRAM);
    assert_eq!((0..3).map(|at| is_candidate(&inputs, at)).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((inputs.views[0].missed_bytes, inputs.segments[2].view.kept_off_by), (5 * KIB, Some(0)));
    let found = plan(&inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(&inputs, &found);
    let why = |at: usize| explainer.explain(at).unwrap();
    assert!(
        why(1).why.ends_with("rules keep 5.0 KiB more in DRAM than the budget of hot view public.v0"),
        "{}",
        why(1).why
    );
    assert!(
        why(2).why.contains("the budget of hot view public.v0, 15.0 KiB of DRAM, goes to others"),
        "{}",
        why(2).why
    );
    assert!(why(2).condition.ends_with("may go to DRAM when the budget of hot view public.v0 is larger"));
}

fn view(reads: u64) -> ViewUse {
    ViewUse {
        name: "public.v".into(),
        table: TableId(1),
        mark: MarkId(1),
        reads: vec![(ColumnId(0), reads)],
        columns: vec![ColumnId(0)],
        budget_bytes: None,
    }
}

/// Segments of one view after `epochs` epochs with `scans` scans each; their chunks were never observed.
fn expected(reads: [f32; 3], scans: u64, epochs: u64) -> Vec<SegmentInput> {
    let mut heat = Heat::default();
    for epoch in 1..=epochs {
        heat.observe_views(&[view(scans * epoch)], 3.0);
        heat.observe([], 3.0);
    }
    let mut segments: Vec<_> = (0..).zip(reads).map(|(id, reads)| segment(id, 10 * KIB, 2, reads)).collect();
    let weighing = ViewWeighing { views: &[], dram: DRAM, heat: &heat, half_life_epochs: 3.0 };
    add_expected_reads(&mut segments, 0, &view(0), &[0, 1, 2], &weighing);
    segments
}

#[test]
fn scans_of_a_view_are_expected_of_its_chunks_at_least_and_not_twice() {
    let segments = expected([0.0, 4.0, 25.0], 10, 1);
    let totals: Vec<f32> = segments.iter().map(|segment| segment.heat_with_views().total()).collect();
    assert!((totals[0] - 10.0).abs() < 1e-4 && (totals[1] - 10.0).abs() < 1e-4 && totals[2] == 25.0, "{totals:?}");
    // The counted heat did not change.
    assert_eq!(segments.iter().map(|segment| segment.heat.total()).collect::<Vec<_>>(), [0.0, 4.0, 25.0]);
    let none = expected([0.0, 4.0, 25.0], 0, 1);
    assert!(
        none.iter().all(|segment| segment.view == ViewInfluence::default()),
        "a view that nobody asks for weighs nothing"
    );
}

#[test]
fn segments_of_a_view_go_first_and_are_pinned_by_nothing() {
    // Room for one of three.
    let place = |reads: [f32; 3]| {
        let mut segments: Vec<_> = (0..).zip(reads).map(|(id, reads)| segment(id, 10 * KIB, 2, reads)).collect();
        segments[1].view.read_by = Some(0);
        let mut inputs = with_views(segments, 15 * KIB, &[]);
        inputs.tiers[1].budget_bytes = Some(0);
        (0..3).map(|at| planned_bytes(&inputs, &[at]) > 0).collect::<Vec<_>>()
    };
    assert_eq!(place([10.0, 10.0, 10.0]), [false, true, false]);
    assert_eq!(place([10.0, 10.0, 10.5]), [false, false, true]);
}
