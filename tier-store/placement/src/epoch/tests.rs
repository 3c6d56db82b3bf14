#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use terrace_model::Pattern;

use super::*;
use crate::policy::{Problem, ReasonContext};
use crate::solver::{self, Effort, Solution};
use crate::testing::builders::{MIB, plan_inputs, reads, scans, segment, three_tiers};

fn story(inputs: &Inputs, plan: &EpochPlan) -> String {
    let name = |tier: TierId| inputs.tiers[usize::from(tier.0)].name.as_str();
    let lines = plan.moves.iter().map(|m| {
        format!(
            "chunk {}: {} -> {}\n    {}\n",
            inputs.segments[m.segment].key.chunk.0,
            name(m.from),
            name(m.to),
            m.reason
        )
    });
    let head = format!("{:.0} us per epoch, after it {:.0} us\n", plan.before_us, plan.after_us);
    std::iter::once(head).chain(lines).collect()
}

#[test]
fn an_epoch_reads_as_a_story() {
    let segments = vec![
        segment(0),
        segment(1).heat(reads(Pattern::Sequential, 0.2, 13_000.0)),
        segment(2).heat(scans(5.0)),
        segment(3).on(2).heat(scans(12.0)),
        segment(4).on(2).heat(reads(Pattern::Random, 40.0, 40_000.0)),
        segment(5).on(1).heat(reads(Pattern::Point, 3.0, 3.0)),
        segment(6).on(2),
        segment(7).on(1),
        segment(8).on(2).heat(reads(Pattern::Monotonic, 0.1, 10.0)),
    ];
    let inputs = plan_inputs(three_tiers(2 * MIB, 3 * MIB), segments);
    let plan = plan(&inputs, Effort::default()).unwrap();
    insta::assert_snapshot!(story(&inputs, &plan), @r"
    50376 us per epoch, after it 4388 us
    chunk 0: dram -> ssd
        cold: not read in recent epochs, and dram is 1.0 MiB over its budget of 2.0 MiB
    chunk 7: nvm -> ssd
        cold: not read in recent epochs, and other segments make better use of its 1.0 MiB on nvm
    chunk 1: dram -> nvm
        cooler: 0.2 sequential reads per epoch; dram saves 43.4 us an epoch against nvm, worth 0.041 ns per byte, against a price of 1.2 ns; dram is 1.0 MiB over its budget of 2.0 MiB
    chunk 2: dram -> nvm
        cooler: 5.0 sequential reads per epoch; dram saves 1.1 ms an epoch against nvm, worth 1.0 ns per byte, against a price of 1.2 ns; dram is 1.0 MiB over its budget of 2.0 MiB
    chunk 4: ssd -> dram
        hot: 40.0 random reads per epoch; dram saves 37.1 ms an epoch against ssd, worth 35.4 ns per byte, above the price of 1.2 ns
    chunk 3: ssd -> dram
        hot: 12.0 sequential reads per epoch; dram saves 10.0 ms an epoch against ssd, worth 9.6 ns per byte, above the price of 1.2 ns
    ");
}

#[test]
fn nobody_moves_without_accesses_while_everything_fits() {
    let segments = (0..6).map(|id| segment(id).on((id % 3) as u8)).collect();
    let mut inputs = plan_inputs(three_tiers(2 * MIB, 2 * MIB), segments);
    assert!(plan(&inputs, Effort::default()).unwrap().moves.is_empty());
    inputs.tiers[0].budget_bytes = Some(MIB);
    let moves = plan(&inputs, Effort::default()).unwrap().moves;
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].from, moves[0].to), (TierId(0), TierId(2)));
    assert_eq!(moves[0].reason, "cold: not read in recent epochs, and dram is 1.0 MiB over its budget of 1.0 MiB");
}

#[test]
fn a_segment_returns_only_when_it_pays_back_the_move() {
    // One is hardly hotter than the other: exchanging them would cost more than it brings.
    let hardly = vec![segment(0).heat(scans(1.0)), segment(1).on(2).heat(reads(Pattern::Sequential, 1.05, 68_000.0))];
    let inputs = plan_inputs(three_tiers(MIB, 0), hardly);
    assert!(plan(&inputs, Effort::default()).unwrap().moves.is_empty());
    let much = vec![segment(0).heat(scans(1.0)), segment(1).on(2).heat(scans(2.0))];
    let inputs = plan_inputs(three_tiers(MIB, 0), much);
    let moves = plan(&inputs, Effort::default()).unwrap().moves;
    let directions: Vec<_> = moves.iter().map(|m| (m.segment, m.from.0, m.to.0)).collect();
    assert_eq!(directions, [(0, 0, 2), (1, 2, 0)], "room is made first");
}

/// A policy whose answers are invalid.
#[derive(Debug)]
struct Broken(fn(&mut Solution));

impl Policy for Broken {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Optimal
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut solution = solver::solve(problem.instance, None, problem.work)?;
        (self.0)(&mut solution);
        Ok(Decision { solution, scores: Vec::new() })
    }

    fn reason(&self, _: &ReasonContext<'_>) -> String {
        "by a broken policy".into()
    }
}

#[test]
fn an_answer_that_is_none_is_caught_and_the_greedy_one_followed() {
    let segments: Vec<_> =
        (0..8).map(|id| segment(id).on(2).heat(reads(Pattern::Sequential, id as f32, 1000.0))).collect();
    for ruled in [false, true] {
        let mut segments = segments.clone();
        if ruled {
            segments[0].constraints = PlacementConstraints { allowed: !1, ..PlacementConstraints::default() };
        }
        let inputs = plan_inputs(three_tiers(2 * MIB, 3 * MIB), segments);
        let whole = plan_by(&Broken(|_| ()), &inputs, Effort::default()).unwrap();
        assert_eq!((whole.method, whole.moves.len()), (Method::Lagrange, 5));
        let broken: [fn(&mut Solution); 6] = [
            |solution| solution.choice.fill(0),
            |solution| solution.choice.fill(9),
            |solution| solution.choice.truncate(3),
            |solution| solution.objective = f64::NAN,
            |solution| solution.bound = f64::NAN,
            |solution| solution.gap = f64::NAN,
        ];
        for (at, broken) in broken.into_iter().enumerate() {
            let plan = plan_by(&Broken(broken), &inputs, Effort::default()).unwrap();
            assert_eq!(plan.method, Method::Greedy, "{at}");
            assert!(
                plan.objective_us.is_finite() && plan.bound_us <= plan.objective_us && plan.gap.is_finite(),
                "{at}"
            );
            for (tier, most) in [(0, 2), (1, 3)] {
                assert!(plan.moves.iter().filter(|planned| planned.to == TierId(tier)).count() <= most, "{at}");
            }
        }
    }
}
