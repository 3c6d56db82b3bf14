#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_test_support::depth::by_depth;

use super::*;

/// A random instance; `scale` is the share of all bytes that fits the faster tiers. With `traps` some pairs are not
/// allowed, some segments are empty, many cost the same.
fn random(rng: &mut StdRng, segments: usize, tiers: usize, scale: f64, traps: bool) -> Instance {
    let mut instance = Instance::default();
    let mut total = 0.0;
    for _ in 0..segments {
        let size = if traps && rng.random_bool(0.1) { 0.0 } else { (rng.random_range(1.0..1e4_f64)).floor() };
        let heat = if traps && rng.random_bool(0.4) {
            f64::from(rng.random_range(0..3))
        } else {
            rng.random_range(0.0..1.0_f64).powi(3) * 20.0
        };
        total += size;
        for tier in 0..tiers {
            let bandwidth = 10.0_f64.powi(-(tier as i32));
            let cost = heat * (tier as f64 + size / 1e3 / bandwidth) * rng.random_range(0.7..1.3);
            let refused = traps && tier + 1 < tiers && rng.random_bool(0.1);
            instance.costs.push(if refused { f64::INFINITY } else { cost });
            // Tiers pad images differently; at home they take nothing more.
            instance.bytes.push(if tier + 1 < tiers { size + (tier as f64) * 3.0 } else { 0.0 });
        }
    }
    instance.capacities = (0..tiers).map(|_| (total * scale * rng.random_range(0.0..1.0)).floor()).collect();
    *instance.capacities.last_mut().unwrap() = f64::INFINITY;
    instance
}

fn brute_force(instance: &Instance) -> f64 {
    fn go(instance: &Instance, segment: usize, room: &mut [f64]) -> f64 {
        if segment == instance.segments() {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for tier in 0..instance.tiers() {
            let bytes = instance.weight(segment, tier);
            if bytes <= room[tier] && instance.cost(segment, tier).is_finite() {
                room[tier] -= bytes;
                best = best.min(instance.cost(segment, tier) + go(instance, segment + 1, room));
                room[tier] += bytes;
            }
        }
        best
    }
    go(instance, 0, &mut instance.capacities.clone())
}

#[test]
fn small_instances_are_solved_to_the_optimum_that_brute_force_finds() {
    let mut rng = StdRng::seed_from_u64(7);
    for case in 0..10_000 {
        let tiers = rng.random_range(2..=4);
        let segments = rng.random_range(0..=[11, 8, 7][tiers - 2]);
        let instance = random(&mut rng, segments, tiers, 0.8, true);
        let solution = solve(&instance, None, Effort::default()).unwrap();
        let optimum = brute_force(&instance);
        assert!(instance.is_feasible(&solution.choice), "case {case}");
        assert!(
            (solution.objective - optimum).abs() <= 1e-9 * optimum.max(1.0),
            "case {case}: {solution:?} against {optimum}"
        );
        assert!(
            solution.bound <= optimum * (1.0 + 1e-9) + 1e-12,
            "case {case}: bound {} above {optimum}",
            solution.bound
        );
        // The bound of the prices alone, without the proof by search, and the fall-back.
        let (_, bound) = dual::maximise(&instance, None, Effort { evaluations: 60, nodes: 0 }.into()).unwrap();
        assert!(bound <= optimum * (1.0 + 1e-9) + 1e-12, "case {case}: dual {bound} above {optimum}");
        assert!(instance.is_feasible(&round::by_density(&instance)), "case {case}");
    }
}

#[test]
fn the_bound_is_the_optimum_of_the_linear_relaxation() {
    let mut rng = StdRng::seed_from_u64(11);
    for case in 0..40 {
        let instance = random(&mut rng, 60, 2 + case % 3, 0.7, case % 2 == 0);
        let (_, bound) = dual::maximise(&instance, None, Effort { evaluations: 200, nodes: 0 }.into()).unwrap();
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut per_tier = vec![Vec::new(); instance.tiers()];
        for segment in 0..instance.segments() {
            let allowed = (0..instance.tiers()).filter(|tier| instance.cost(segment, *tier).is_finite());
            let vars: Vec<_> =
                allowed.map(|tier| (tier, problem.add_var(instance.cost(segment, tier), (0.0, 1.0)))).collect();
            problem.add_constraint(vars.iter().map(|(_, v)| (*v, 1.0)).collect::<Vec<_>>(), ComparisonOp::Eq, 1.0);
            for (tier, var) in vars {
                per_tier[tier].push((var, instance.weight(segment, tier)));
            }
        }
        for (terms, capacity) in per_tier.into_iter().zip(&instance.capacities).filter(|(_, c)| c.is_finite()) {
            problem.add_constraint(terms, ComparisonOp::Le, *capacity);
        }
        let Ok(SolveOutcome::Solution(relaxed)) = problem.solve() else { panic!("case {case} has no relaxation") };
        let optimum = relaxed.objective();
        assert!((bound - optimum).abs() <= 1e-4 * optimum.max(1.0), "case {case}: {bound} against {optimum}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(by_depth(40, 200)))]
    #[test]
    fn answers_are_feasible_deterministic_and_within_their_gap(
        seed: u64, segments in 0_usize..400, tiers in 1_usize..6, scale in 0.0..1.5_f64, traps: bool, nodes in 0_usize..500, evaluations in 0_usize..20,
    ) {
        let instance = random(&mut StdRng::seed_from_u64(seed), segments, tiers, scale, traps);
        let effort = Effort { evaluations, nodes };
        let solution = solve(&instance, None, effort).unwrap();
        prop_assert!(instance.is_feasible(&solution.choice));
        prop_assert!(solution.bound <= solution.objective && solution.gap >= 0.0 && solution.gap.is_finite());
        let again = solve(&instance, Some(&solution.prices), effort).unwrap();
        prop_assert!(instance.is_feasible(&again.choice));
        prop_assert_eq!(solve(&instance, None, effort).unwrap().choice, solution.choice);
    }
}

#[test]
#[allow(clippy::disallowed_methods)]
fn a_hundred_thousand_segments_on_four_tiers_have_a_tiny_gap() {
    for (seed, scale) in [(1, 0.1), (2, 0.5), (3, 1.0)].into_iter().skip(by_depth(2, 0)) {
        let instance = random(&mut StdRng::seed_from_u64(seed), 100_000, 4, scale, seed == 2);
        let start = std::time::Instant::now();
        let solution = solve(&instance, None, Effort::default()).unwrap();
        let took = start.elapsed();
        let start = std::time::Instant::now();
        let again = solve(&instance, Some(&solution.prices), Effort::default()).unwrap();
        println!(
            "100 k x 4, scale {scale}: {took:?}, gap {:.2e}; again {:?}, gap {:.2e}",
            solution.gap,
            start.elapsed(),
            again.gap
        );
        assert_eq!(solution.method, Method::Lagrange);
        assert!(instance.is_feasible(&solution.choice));
        assert!(solution.gap <= 2e-5 && again.gap <= 2e-5, "gap {} and {}", solution.gap, again.gap);
        // Much more room than the last prices come from.
        let roomy = Instance { capacities: vec![f64::MAX; 4], ..instance };
        let all = solve(&roomy, Some(&solution.prices), Effort::default()).unwrap();
        let [cold, warm] = [solve(&roomy, None, Effort::default()).unwrap().objective, all.objective];
        assert!((warm - cold).abs() <= 1e-9 * cold && all.gap <= 2e-5, "{warm} against {cold}, gap {}", all.gap);
    }
}

#[test]
fn an_indifferent_instance_and_a_capacity_of_nothing_are_fine() {
    let instance = Instance { capacities: vec![0.0, 50.0, 7.0], costs: vec![0.0; 30], bytes: vec![10.0; 30] };
    let solution = solve(&instance, None, Effort::default()).unwrap();
    assert!(instance.is_feasible(&solution.choice) && solution.gap == 0.0);
    let refused = Instance { costs: vec![1.0, f64::INFINITY], bytes: vec![1.0, 1.0], capacities: vec![9.0, 9.0] };
    assert!(solve(&refused, None, Effort::default()).is_err());
    let nan = Instance { costs: vec![f64::NAN, 1.0], bytes: vec![1.0, 1.0], capacities: vec![9.0, 9.0] };
    assert!(solve(&nan, None, Effort::default()).is_err());
}

/// A clock that goes on at each look at it.
#[derive(Debug)]
struct Stepping {
    looks: std::sync::atomic::AtomicU64,
    step_us: u64,
}

impl terrace_model::clock::Clock for Stepping {
    fn now_us(&self) -> u64 {
        self.looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) * self.step_us
    }
    fn unix_us(&self) -> u64 {
        0
    }
    fn sleep(&self, _duration: std::time::Duration) {}
}

#[test]
fn at_the_deadline_there_is_an_answer_its_bound_and_who_ended_it() {
    let deadline = std::time::Duration::from_secs(1);
    let mut rng = StdRng::seed_from_u64(77);
    let mut ended = [0; 3];
    let mut worse = 0;
    for case in 0..by_depth(12, 60) {
        let segments = [20, 400, 70_000][case % 3];
        let tiers = 2 + case % 3;
        let instance = random(&mut rng, segments, tiers, 0.6, case % 2 == 0);
        let whole = solve(&instance, None, Effort::default()).unwrap();
        for looks in [0, 1, 2, 3, 5, 8, 20, 1_000_000] {
            let step_us = 1_000_000_u64.checked_div(looks).unwrap_or(2_000_000);
            let clock = Stepping { looks: Default::default(), step_us };
            let work = Work { effort: Effort::default(), deadline: Some(Deadline::after(&clock, deadline)) };
            let found = solve(&instance, None, work).unwrap();
            let case = format!("case {case}, {looks} looks: {:?} {} {}", found.method, found.bound, found.objective);
            assert!(instance.is_feasible(&found.choice), "{case}");
            assert!((found.objective - instance.objective(&found.choice)).abs() <= 1e-9 * found.objective, "{case}");
            assert!(found.bound <= whole.objective * (1.0 + 1e-9) && found.bound <= found.objective, "{case}");
            assert!((found.gap - gap(found.objective, found.bound)).abs() < 1e-12, "{case}");
            let which = match found.method {
                Method::Lagrange => 0,
                Method::LagrangeUntilDeadline => 1,
                Method::GreedyAtDeadline => 2,
                other => panic!("{case}: {other:?}"),
            };
            ended[which] += 1;
            match which {
                0 => assert_eq!((found.choice, looks >= 3), (whole.choice.clone(), true), "{case}"),
                1 => assert!(looks > 1, "{case}"),
                _ => assert!(looks <= 1 && found.choice == greedy(&instance), "{case}"),
            }
            worse += usize::from(which == 1 && found.objective > whole.objective * (1.0 + 1e-9));
        }
    }
    assert!(
        ended.iter().all(|count| *count >= by_depth(6, 60)) && worse > by_depth(0, 20),
        "{ended:?}, {worse} worse for it"
    );
}

#[test]
fn no_time_at_all_is_a_greedy_answer_and_a_clock_that_stands_still_takes_none() {
    let instance = random(&mut StdRng::seed_from_u64(5), 2_000, 4, 0.5, true);
    let clock = terrace_model::clock::ManualClock::default();
    let within = |ms| {
        let deadline = Some(Deadline::after(&clock, std::time::Duration::from_millis(ms)));
        Work { effort: Effort::default(), deadline }
    };
    let greedily = solve(&instance, None, within(0)).unwrap();
    assert!(instance.is_feasible(&greedily.choice) && greedily.gap < 1.0);
    assert_eq!((greedily.method.name(), greedily.choice), ("greedy at deadline", greedy(&instance)));
    let judged = judge(&instance, greedy(&instance), within(0)).unwrap();
    assert!(judged.bound <= greedily.objective && judged.method == Method::Ranked);
    let whole = solve(&instance, None, Effort::default()).unwrap();
    let still = solve(&instance, None, within(1)).unwrap();
    assert_eq!((still.method, still.choice, still.bound), (Method::Lagrange, whole.choice, whole.bound));
}
