//! Plans obey placement rules: random segments, rules and budgets.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{ChunkId, ColumnId, Pattern, TierId};
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Rules};
use terrace_storage::tier::codec::Form;
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, requested_seeds};

use super::constraints::{PlacementConstraints, ScopeChunk, Scopes};
use super::epoch::{Inputs, SegmentInput, certified_bound_us, plan, plan_by};
use super::place::Place;
use super::policy::PolicyKind;
use super::solver::Effort;
use super::testing::builders::{
    MIB, ROWS, places_after, plan_inputs, reads, scans, segment, table_rules, three_tiers, two_tiers,
};
use crate::heat::decay::SegmentHeat;

const COLUMNS: u32 = 3;
const TIERS: [&str; 3] = ["dram", "nvm", "ssd"];

fn rule(rng: &mut StdRng, chunks: u64) -> NewRule {
    let kind = [RuleKind::Pin, RuleKind::Pin, RuleKind::Exclude, RuleKind::Prefer][rng.random_range(0..4)];
    let columns = (0..COLUMNS).filter(|_| rng.random_bool(0.3)).map(ColumnId).collect();
    let rows = match rng.random_bool(0.6) {
        true => {
            let first = rng.random_range(0..chunks);
            RuleRows::Chunks((first..=rng.random_range(first..chunks)).map(ChunkId).collect())
        }
        false => RuleRows::All,
    };
    NewRule { kind, tier: TIERS[rng.random_range(0..3)].into(), columns, rows, form: None }
}

fn random_segment(rng: &mut StdRng, chunk: u64, column: u32, constraints: PlacementConstraints) -> SegmentInput {
    let mut heat = SegmentHeat::default();
    if rng.random_bool(0.7) {
        heat = reads(Pattern::Sequential, rng.random_range(0.0..20.0), rng.random_range(0.0..1e6));
        heat.idle_epochs = rng.random_bool(0.9).then(|| rng.random_range(0..5));
    }
    let bytes = rng.random_range(1..1_000_000);
    let current = rng.random_range(0..3);
    segment(chunk).column(column).rows(1000).bytes(bytes).on(current).heat(heat).constraints(constraints)
}

/// The scopes of rules in a table of `chunks` chunks.
fn scopes<'a>(rules: &'a Rules, tiers: &[&str], chunks: u64, rows: u32) -> Scopes<'a> {
    let tiers: Vec<String> = tiers.iter().map(|tier| (*tier).to_owned()).collect();
    let ids: Vec<ChunkId> = (0..chunks).map(ChunkId).collect();
    let chunks: Vec<_> = ids.iter().map(|id| ScopeChunk { ids: std::slice::from_ref(id), rows }).collect();
    Scopes::new(rules, &tiers, &chunks, &|_| None)
}

/// Random segments of a table with rules, and random budgets.
fn random_inputs(rng: &mut StdRng, rules: &Rules, chunks: u64) -> Inputs {
    let scopes = scopes(rules, &TIERS, chunks, 1000);
    let mut segments = Vec::new();
    for chunk in 0..chunks {
        for column in 0..COLUMNS {
            let constraints = scopes.constraints(chunk as usize, ColumnId(column), false);
            segments.push(random_segment(rng, chunk, column, constraints));
        }
    }
    let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut budget = || (bytes as f64 * rng.random_range(0.0..1.3)) as u64;
    let tiers = three_tiers(budget(), budget());
    let rules = rules.iter().map(|rule| format!("rule {}", rule.number)).collect();
    Inputs { rules, ..plan_inputs(tiers, segments) }
}

/// Gives most segments a packed form, and some of these only one form on a tier; some copies have it already.
fn with_forms(rng: &mut StdRng, inputs: Inputs) -> Inputs {
    let Inputs { tiers, mut segments, rules, .. } = inputs;
    for segment in &mut segments {
        if rng.random_bool(0.2) {
            continue;
        }
        let mut packed = segment.clone().packed(segment.bytes * rng.random_range(1..10) / 10 + 1);
        for tier in (0..2).map(TierId) {
            if rng.random_bool(0.5) {
                packed.forms.keep(Place { tier, form: Form::ALL[rng.random_range(0..2)] });
            }
        }
        // A copy may have a form that it may not have any more.
        let form = Form::ALL[rng.random_range(0..2)];
        *segment = if packed.current < TierId(2) { packed.in_form(form) } else { packed };
    }
    Inputs { rules, ..plan_inputs(tiers, segments) }
}

/// Numbers of segments on which rules had an effect.
#[derive(Debug, Default)]
struct RuleEffects {
    /// Segments on the tier of their pin.
    pinned: u32,
    /// Segments that gave way for want of room.
    given_way: u32,
    /// Segments that were kept off a tier.
    excluded: u32,
}

/// Checks that a plan obeys the rules, and adds its segments to `effects`.
fn check_rules(case: &str, inputs: &Inputs, plan: &super::epoch::EpochPlan, effects: &mut RuleEffects) {
    let places = places_after(inputs, plan);
    let at: Vec<TierId> = places.iter().map(|place| place.tier).collect();
    let mut used = [0; 3];
    for (n, segment) in inputs.segments.iter().enumerate() {
        used[usize::from(at[n].0)] += segment.charged_at(places[n]);
        assert!(segment.allows_form(places[n]), "{case}: segment {n} at {:?}, {:?}", places[n], segment.forms);
        let gives_way = plan.given_way.contains(&n);
        let open = if gives_way { segment.constraints.fallback } else { segment.constraints.allowed };
        assert!(open & 1 << at[n].0 != 0, "{case}: segment {n} on {:?}, {:?}", at[n], segment.constraints);
        if gives_way {
            assert!(segment.constraints.needs_memory(TierId(2)));
        }
        effects.pinned += u32::from(segment.constraints.pin.is_some() && !gives_way);
        effects.excluded += u32::from(segment.constraints.exclusion.is_some());
        effects.given_way += u32::from(gives_way);
    }
    for (used, tier) in used.iter().zip(&inputs.tiers) {
        assert!(tier.budget_bytes.is_none_or(|budget| *used <= budget), "{case}: {tier:?} holds {used}");
    }
    // A segment that gives way would not fit: the room that pins leave on its tier is too small.
    for n in &plan.given_way {
        let Some(tier) = inputs.segments[*n].constraints.only() else { continue };
        let only = |m: &usize| inputs.segments[*m].constraints.needs_memory(TierId(2)) && at[*m] == tier;
        let held: u64 = (0..at.len()).filter(only).map(|m| inputs.segments[m].charged_on(tier)).sum();
        let budget = inputs.tiers[usize::from(tier.0)].budget_bytes.unwrap();
        assert!(held + inputs.segments[*n].charged_on(tier) > budget, "{case}: segment {n} had room");
    }
}

#[test]
fn every_plan_of_every_policy_keeps_the_rules_or_says_which_segments_give_way() {
    // In the second one nothing is proven of a greedy plan: a gap of 1, no less.
    for seed in requested_seeds().unwrap_or_else(|| vec![45, 1_335_630_370]) {
        let _seed_report = SeedReport(seed);
        let found = plans_keep_the_rules(&mut StdRng::seed_from_u64(seed), |_, inputs| inputs);
        // Enough segments must be subject to rules for the test to mean something.
        let least = by_depth([800, 240, 800], [8000, 2400, 8000]);
        let enough = found.pinned > least[0] && found.given_way > least[1] && found.excluded > least[2];
        assert!(seed != 45 || enough, "{found:?}");
    }
}

#[test]
fn plans_that_choose_forms_keep_the_rules_the_budgets_and_the_forms() {
    for seed in requested_seeds().unwrap_or_else(|| vec![46]) {
        let _seed_report = SeedReport(seed);
        let found = plans_keep_the_rules(&mut StdRng::seed_from_u64(seed), with_forms);
        assert!(seed != 46 || found.pinned > by_depth(300, 3000) && found.given_way > by_depth(60, 600), "{found:?}");
    }
}

/// Checks the plans of all policies for random inputs, which `change` changes.
fn plans_keep_the_rules(rng: &mut StdRng, change: fn(&mut StdRng, Inputs) -> Inputs) -> RuleEffects {
    let mut effects = RuleEffects::default();
    for round in 0..by_depth(120, 600) {
        let chunks = rng.random_range(1..14);
        let rules = (0..rng.random_range(1..6)).fold(Rules::default(), |rules, _| rules.with(rule(rng, chunks), 0).0);
        let inputs = random_inputs(rng, &rules, chunks);
        let inputs = change(rng, inputs);
        // Without effort the solver falls back to its greedy answers.
        let effort = if round % 3 == 0 { Effort { evaluations: 0, nodes: 0 } } else { Effort::default() };
        for kind in PolicyKind::ALL {
            let policy = kind.policy(7);
            let plan = plan_by(policy.as_ref(), &inputs, effort).unwrap();
            check_rules(&format!("round {round}, {}", kind.name()), &inputs, &plan, &mut effects);
            assert!(plan.moves.iter().all(|planned| !planned.reason.is_empty()));
            let bound = plan.bound_us;
            let objective = plan.objective_us;
            let gap = plan.gap;
            assert!(bound <= objective && gap <= 1.0, "round {round}, {kind:?}: {bound} {objective} {gap}");
            let again = plan_by(policy.as_ref(), &inputs, effort).unwrap();
            assert_eq!((again.moves, again.given_way), (plan.moves, plan.given_way), "round {round}, {kind:?}");
        }
    }
    effects
}

/// Four segments of 1 MiB on `current`, 1 MiB of DRAM for each of `room`.
fn four(rules: &Rules, reads: [f32; 4], current: u8, room: u64) -> Inputs {
    let scopes = scopes(rules, &["dram", "ssd"], 4, ROWS);
    let segments = (0..4).map(|n| {
        let constraints = scopes.constraints(n, ColumnId(0), false);
        segment(n as u64).on(current).heat(scans(reads[n])).constraints(constraints)
    });
    let texts = rules.iter().map(|rule| format!("rule {} of public.t, {}", rule.number, rule.sql(&|_| "c".into())));
    Inputs { rules: texts.collect(), ..plan_inputs(two_tiers(room * MIB), segments.collect()) }
}

#[test]
fn a_cold_pin_comes_and_the_newest_chunks_give_way() {
    let inputs = four(&table_rules(&[(RuleKind::Pin, "dram")]), [0.0; 4], 1, 3);
    let found = plan(&inputs, Effort::default()).unwrap();
    assert_eq!(found.given_way, [3]);
    assert_eq!(found.moves.len(), 3);
    assert_eq!(found.moves[0].reason, "pinned: rule 1 of public.t, PIN TO dram");
    let inputs = four(&table_rules(&[(RuleKind::Pin, "dram")]), [0.0, 0.0, 0.0, 9.0], 0, 3);
    let found = plan(&inputs, Effort::default()).unwrap();
    assert_eq!(found.moves.iter().map(|m| m.segment).collect::<Vec<_>>(), [3], "though it is the hottest");
    assert!(
        found.moves[0].reason.starts_with("the budgets cannot hold all that rules keep in memory; "),
        "{}",
        found.moves[0].reason
    );
}

#[test]
fn an_exclusion_sends_even_the_hottest_away() {
    let found = plan(&four(&table_rules(&[(RuleKind::Exclude, "dram")]), [9.0; 4], 0, 4), Effort::default()).unwrap();
    assert_eq!(found.moves.len(), 4);
    assert_eq!(found.moves[0].reason, "excluded from dram: rule 1 of public.t, EXCLUDE FROM dram");
}

#[test]
fn a_preference_weighs_one_scan_per_epoch() {
    let to_dram = table_rules(&[(RuleKind::Prefer, "dram")]);
    let found = plan(&four(&to_dram, [0.0; 4], 1, 4), Effort::default()).unwrap();
    assert_eq!(found.moves.len(), 4, "room is taken though nobody reads");
    assert_eq!(found.moves[0].reason, "preferred: rule 1 of public.t, PREFER ON dram");
    // Kept out of DRAM: what is read clearly more than once per epoch stays all the same.
    let found =
        plan(&four(&table_rules(&[(RuleKind::Prefer, "ssd")]), [0.2, 0.5, 2.0, 3.0], 0, 4), Effort::default()).unwrap();
    assert_eq!(found.moves.iter().map(|m| m.segment).collect::<Vec<_>>(), [0, 1]);
}

/// The least cost of a placement that obeys the rules, by trying all; segments that give way may lie at home.
fn least_us(inputs: &Inputs, given_way: &[usize]) -> f64 {
    fn descend(inputs: &Inputs, given_way: &[usize], at: usize, room: &mut [u64; 2]) -> f64 {
        let Some(segment) = inputs.segments.get(at) else { return 0.0 };
        let open = if given_way.contains(&at) { segment.constraints.fallback } else { segment.constraints.allowed };
        let mut least = f64::INFINITY;
        let tiers = (0..3_usize).filter(|tier| open & 1 << tier != 0);
        for place in tiers.flat_map(|tier| segment.places_on(TierId(tier as u8))) {
            let tier = usize::from(place.tier.0);
            let charged = segment.charged_at(place);
            if tier < 2 && room[tier] < charged {
                continue;
            }
            let parts = super::epoch::cost_parts(inputs, segment, place);
            let cost_us = parts.read_us + parts.preference_us + parts.move_us;
            if tier < 2 {
                room[tier] -= charged;
            }
            least = least.min(cost_us + descend(inputs, given_way, at + 1, room));
            if tier < 2 {
                room[tier] += charged;
            }
        }
        least
    }
    let mut room = [0, 1].map(|tier: usize| inputs.tiers[tier].budget_bytes.unwrap());
    descend(inputs, given_way, 0, &mut room)
}

#[test]
fn the_bound_is_one_of_the_whole_problem_whatever_rules_reserve() {
    let [reserved, near, solved] = bounds_hold(61, by_depth(300, 1500), 4, |_, inputs| inputs);
    assert!(reserved > by_depth(200, 2000) && near * 10 > solved * by_depth(4, 6), "{reserved} {near} {solved}");
}

#[test]
fn the_bound_is_one_of_all_forms() {
    let [_, near, solved] = bounds_hold(62, by_depth(40, 300), 3, with_forms);
    assert!(near * 10 > solved * 4, "{near} {solved}");
}

/// Compares the bounds of plans with the least cost, for random inputs of less than `most` chunks, which `change` changes.
/// Returns the number of segments that rules keep in memory and that have a choice there, that of plans with a bound near the
/// least cost, and that of all plans.
fn bounds_hold(seed: u64, rounds: u32, most: u64, change: fn(&mut StdRng, Inputs) -> Inputs) -> [u32; 3] {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut reserved = 0;
    let mut near = 0;
    let mut solved = 0;
    for round in 0..rounds {
        let chunks = rng.random_range(1..most);
        let mut rules = Rules::default();
        for _ in 0..rng.random_range(1..4) {
            let cold = NewRule { kind: RuleKind::Exclude, tier: "ssd".into(), ..rule(&mut rng, chunks) };
            rules = rules.with(if rng.random_bool(0.6) { cold } else { rule(&mut rng, chunks) }, 0).0;
        }
        let inputs = random_inputs(&mut rng, &rules, chunks);
        let inputs = change(&mut rng, inputs);
        for kind in [PolicyKind::Optimal, PolicyKind::Density] {
            let plan = plan_by(kind.policy(7).as_ref(), &inputs, Effort::default()).unwrap();
            let least_us = least_us(&inputs, &plan.given_way);
            let case = format!("round {round}, {}: {} {least_us} {}", kind.name(), plan.bound_us, plan.objective_us);
            assert!(plan.bound_us <= least_us * (1.0 + 1e-9) + 1e-9, "{case}");
            assert!(least_us <= plan.objective_us * (1.0 + 1e-9) + 1e-9, "{case}");
            let certified_us = certified_bound_us(&inputs, &plan).unwrap();
            assert!(certified_us <= least_us * (1.0 + 1e-9) + 1e-9, "{case}: certified {certified_us}");
            near += u32::from(plan.bound_us >= 0.8 * least_us);
            solved += 1;
        }
        let home = TierId(2);
        let choice = |s: &&SegmentInput| s.constraints.needs_memory(home) && s.constraints.only().is_none();
        reserved += inputs.segments.iter().filter(choice).count() as u32;
    }
    println!("{reserved} reserved with a choice; bound within a fifth in {near} of {solved}");
    [reserved, near, solved]
}
