//! Checks explanations against plans: beyond a condition the segment moves, short of it the segment stays.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::condition_search::ConditionSearch;
use super::super::epoch::plan;
use super::super::solver::Effort;
use super::*;
use crate::testing::builders::{self, MIB, pinned_to_dram, plan_inputs, three_tiers};

fn segment(id: u64, bytes: u64, current: u8, pattern: Pattern, reads: f32) -> SegmentInput {
    builders::segment(id).bytes(bytes).on(current).heat(builders::reads(pattern, reads, reads * 30_000.0))
}

fn random(rng: &mut StdRng, count: u64, dram: f64, nvm: f64) -> Inputs {
    let mut segments = Vec::new();
    for id in 0..count {
        let pattern = [Pattern::Sequential, Pattern::Sequential, Pattern::Random][rng.random_range(0..3)];
        let reads = if rng.random_bool(0.3) { 0.0 } else { rng.random_range(0.0..1.0_f32).powi(3) * 30.0 };
        segments.push(segment(id, rng.random_range(10_000..MIB), rng.random_range(0..3), pattern, reads));
    }
    let all: u64 = segments.iter().map(|segment| segment.bytes).sum();
    plan_inputs(three_tiers((all as f64 * dram) as u64, (all as f64 * nvm) as u64), segments)
}

fn planned_tier(inputs: &Inputs, at: usize) -> TierId {
    let found = plan(inputs, Effort::default()).unwrap();
    Explainer::new(inputs, &found).placed(at)
}

/// Where the plan puts a segment after a change of `value` by the lever of a condition.
fn after(inputs: &Inputs, at: usize, condition: &Condition, value: f64) -> TierId {
    let mut changed = inputs.clone();
    let budget = |inputs: &mut Inputs, by: &dyn Fn(u64) -> u64| {
        let tier = inputs.tiers.iter_mut().find(|tier| tier.name == condition.tier).unwrap();
        tier.budget_bytes = tier.budget_bytes.map(by);
    };
    match condition.lever {
        Lever::ReadsAbove | Lever::ReadsBelow => {
            let segment = &mut changed.segments[at];
            let UnitReads { heat, reads: unit } = Explainer::unit_reads(segment);
            segment.heat = heat;
            let scale = (value / unit) as f32;
            segment.heat.accesses.iter_mut().chain(&mut segment.heat.values).for_each(|count| *count *= scale);
        }
        Lever::MoreRoom => budget(&mut changed, &|bytes| bytes + value as u64),
        Lever::LessRoom => budget(&mut changed, &|bytes| bytes.saturating_sub(value as u64)),
    }
    planned_tier(&changed, at)
}

#[test]
fn a_confirmed_condition_flips_the_plan_and_less_than_it_does_not() {
    let mut rng = StdRng::seed_from_u64(4_601);
    let mut seen = std::collections::BTreeMap::new();
    let mut odd = 0;
    for round in 0..40 {
        let dram = rng.random_range(0.05..0.6);
        let nvm = rng.random_range(0.0..0.5);
        let count = rng.random_range(3..60);
        let inputs = random(&mut rng, count, dram, nvm);
        let found = plan(&inputs, Effort::default()).unwrap();
        let explainer = Explainer::new(&inputs, &found);
        let mut flips = ConditionSearch::new(&inputs, Effort::default());
        for at in [0, inputs.segments.len() / 2, inputs.segments.len() - 1] {
            let mut explanation = explainer.explain(at).unwrap();
            flips.confirm(&explainer, at, &mut explanation).unwrap();
            let stays = explainer.placed(at);
            for condition in &explanation.conditions {
                assert_eq!(condition.basis, Basis::Planned, "round {round}");
                let up = matches!(condition.lever, Lever::ReadsAbove | Lever::MoreRoom);
                let grows = condition.lever != Lever::ReadsBelow;
                let (less, enough) = if grows { (0.97, 1.0) } else { (1.03, 1.0) };
                let moved = after(&inputs, at, condition, condition.value * enough);
                assert!(if up { moved < stays } else { moved > stays }, "round {round}, {at}: {condition:?} {moved:?}");
                if matches!(condition.lever, Lever::ReadsAbove | Lever::ReadsBelow) {
                    assert_eq!(inputs.tiers[usize::from(moved.0)].name, condition.tier, "round {round}: {condition:?}");
                }
                // A value between the current one and that of the condition, unless both are the same.
                let value = condition.value * less;
                let is_between = match condition.lever {
                    Lever::ReadsAbove => value > explanation.reads,
                    Lever::ReadsBelow => value < explanation.reads,
                    Lever::MoreRoom | Lever::LessRoom => value > 8192.0,
                };
                if is_between {
                    let tier_after = after(&inputs, at, condition, value);
                    // Up to 28 segments the solver is exact, and then reads work one way; room does not, as segments are
                    // whole: another set of them may fit a little less of it better.
                    let holds = if up { tier_after >= stays } else { tier_after <= stays };
                    let is_sure = count <= 28 && matches!(condition.lever, Lever::ReadsAbove | Lever::ReadsBelow);
                    assert!(holds || !is_sure, "round {round}, {at}: {condition:?} {tier_after:?}");
                    odd += u32::from(!holds);
                    *seen.entry(format!("{:?}", condition.lever)).or_insert(0) += 1;
                }
            }
        }
    }
    assert!(seen.len() == 4 && seen.values().all(|count| *count >= 8), "{seen:?}");
    assert!(odd * 15 <= seen.values().sum::<u32>(), "{odd} of {seen:?}");
}

#[test]
fn a_pinned_copy_with_a_choice_of_forms_has_a_runner_up_and_no_condition() {
    let pinned = builders::segment(0).packed(MIB / 4).on(0).heat(builders::scans(3.0)).constraints(pinned_to_dram());
    let inputs = plan_inputs(three_tiers(4 * MIB, 4 * MIB), vec![pinned]);
    let found = plan(&inputs, Effort::default()).unwrap();
    let explanation = Explainer::new(&inputs, &found).explain(0).unwrap();
    let forms: Vec<(&str, Form, bool)> =
        explanation.options.iter().map(|option| (option.tier.as_str(), option.form, option.allowed)).collect();
    assert_eq!(forms[..2], [("dram", Form::Plain, true), ("dram", Form::Packed, true)]);
    assert!(explanation.runner_up.unwrap().starts_with("dram "));
    assert_eq!((explanation.conditions, explanation.condition), (Vec::new(), String::new()));
}

#[test]
fn conditions_by_price_are_near_where_plans_change() {
    let mut rng = StdRng::seed_from_u64(4_602);
    let inputs = random(&mut rng, 600, 0.25, 0.2);
    let found = plan(&inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(&inputs, &found);
    let mut counts = std::collections::BTreeMap::<_, (u32, u32)>::new();
    for at in 0..60 {
        let stays = explainer.placed(at);
        for condition in explainer.explain(at).unwrap().conditions {
            let up = matches!(condition.lever, Lever::ReadsAbove | Lever::MoreRoom);
            // A price is the least that room may cost, so reads above are the least that may do.
            let factor = match condition.lever {
                Lever::ReadsBelow | Lever::ReadsAbove => 0.9,
                Lever::MoreRoom | Lever::LessRoom => 1.1,
            };
            let moved = after(&inputs, at, &condition, condition.value * factor);
            let (right, asked) = counts.entry(format!("{:?}", condition.lever)).or_default();
            *asked += 1;
            let moves = if up { moved < stays } else { moved > stays };
            *right += u32::from(moves != (condition.lever == Lever::ReadsAbove));
        }
    }
    // Room also moves prices, so that it is only about right.
    let share = |lever: &str| counts.get(lever).map_or(0.0, |(right, asked)| f64::from(*right) / f64::from(*asked));
    assert!(share("ReadsAbove") >= 0.8 && share("ReadsBelow") >= 0.8, "{counts:?}");
    assert!(share("MoreRoom") >= 0.6 && share("LessRoom") >= 0.6, "{counts:?}");
}

#[test]
fn a_segment_is_explained_in_one_sentence() {
    let segments = vec![
        segment(0, MIB, 0, Pattern::Sequential, 12.0),
        segment(1, MIB, 2, Pattern::Sequential, 2.0),
        segment(2, MIB, 2, Pattern::Sequential, 0.0),
    ];
    let inputs = plan_inputs(three_tiers(MIB, 0), segments);
    let found = plan(&inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(&inputs, &found);
    let mut flips = ConditionSearch::new(&inputs, Effort::default());
    let sentences = (0..3).map(|at| {
        let mut explanation = explainer.explain(at).unwrap();
        flips.confirm(&explainer, at, &mut explanation).unwrap();
        explanation.why + "\n"
    });
    insta::assert_snapshot!(sentences.collect::<String>(), @r"
    stays on dram: 12.0 sequential reads per epoch; dram saves 10.0 ms an epoch against ssd, 9.6 ns per byte; its room costs 5.5 ns per byte; goes to ssd when read less than 1.7 times an epoch, or when dram has any less room
    stays on ssd: 2.0 sequential reads per epoch; dram would save 1.7 ms an epoch against ssd, 1.6 ns per byte; its room costs 5.5 ns per byte; goes to dram when read more than 12.4 times an epoch, or when dram has 1.0 MiB more
    stays on ssd: not read in recent epochs, so no tier saves time; goes to dram when read more than 12.4 times an epoch
    ");
}

#[test]
fn a_segment_that_nobody_reads_leaves_for_want_of_room_only() {
    let inputs = plan_inputs(three_tiers(3 * MIB, 0), vec![segment(0, MIB, 0, Pattern::Sequential, 0.0)]);
    let found = plan(&inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(&inputs, &found);
    let mut explanation = explainer.explain(0).unwrap();
    ConditionSearch::new(&inputs, Effort::default()).confirm(&explainer, 0, &mut explanation).unwrap();
    assert_eq!(explanation.condition, "leaves when dram has 2.0 MiB less");
}

#[test]
fn what_a_rule_decides_says_so() {
    let segments = vec![
        segment(0, MIB, 2, Pattern::Sequential, 0.0).constraints(pinned_to_dram()),
        segment(1, MIB, 0, Pattern::Sequential, 9.0),
    ];
    let mut inputs = plan_inputs(three_tiers(MIB, 0), segments);
    inputs.rules = vec!["rule 1 of public.t, PIN TO dram".into()];
    let found = plan(&inputs, Effort::default()).unwrap();
    let explainer = Explainer::new(&inputs, &found);
    let first = explainer.explain(0).unwrap();
    assert_eq!(first.why, "goes from ssd to dram with the next epoch: pinned by rule 1 of public.t, PIN TO dram");
    assert!(first.conditions.is_empty() && first.runner_up.is_none());
    assert_eq!(first.rules, ["rule 1 of public.t, PIN TO dram"]);
    assert_eq!(first.options.iter().map(|option| option.allowed).collect::<Vec<_>>(), [true, false, false]);
}
