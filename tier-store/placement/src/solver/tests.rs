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
    let mut instance = Instance::by_tier(vec![0.0; tiers - 1]);
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
        }
        // Tiers pad images differently.
        instance.bytes.extend((1..tiers).map(|tier| size + (tier - 1) as f64 * 3.0));
    }
    instance.capacities.fill_with(|| (total * scale * rng.random_range(0.0..1.0)).floor());
    instance
}

/// A random instance with up to `most` options besides the home: several forms on each of three tiers, some options on
/// two tiers at once. Forms are smaller by another part in each segment, and cost more or less than the plain one.
fn random_options(rng: &mut StdRng, segments: usize, most: usize, scale: f64, traps: bool) -> Instance {
    let count = rng.random_range(1..=most);
    let tiers_of = |rng: &mut StdRng| {
        let first = rng.random_range(0..3_u8);
        let second = Some(rng.random_range(0..3)).filter(|second| *second > first && rng.random_bool(0.4));
        let mut tiers: Vec<u8> = std::iter::once(first).chain(second).collect();
        if rng.random_bool(0.5) {
            tiers.reverse();
        }
        tiers
    };
    let shapes: Vec<Vec<u8>> = (0..count).map(|_| tiers_of(rng)).collect();
    let mut instance = Instance { options: Options::new(&shapes), ..Instance::by_tier(vec![0.0; 3]) };
    let mut total = 0.0;
    for _ in 0..segments {
        let size = if traps && rng.random_bool(0.1) { 0.0 } else { (rng.random_range(1.0..1e4_f64)).floor() };
        let heat = rng.random_range(0.0..1.0_f64).powi(3) * 20.0;
        total += size;
        for shape in &shapes {
            instance.bytes.extend(shape.iter().map(|_| (size * rng.random_range(0.2..1.0)).ceil()));
            let fastest = shape.iter().copied().min().unwrap();
            let tier = i32::from(fastest) - i32::from(shape.len() > 1);
            let cost = heat * (f64::from(tier + 1) + size / 1e3 * 10.0_f64.powi(tier)) * rng.random_range(0.7..1.5);
            instance.costs.push(if traps && rng.random_bool(0.1) { f64::INFINITY } else { cost });
        }
        instance.costs.push(heat * (4.0 + size) * rng.random_range(0.7..1.3));
    }
    instance.capacities.fill_with(|| (total * scale * rng.random_range(0.0..0.7)).floor());
    if traps && rng.random_bool(0.1) {
        instance.capacities[2] = f64::INFINITY;
    }
    instance
}

fn brute_force(instance: &Instance) -> f64 {
    fn go(instance: &Instance, segment: usize, room: &mut [f64]) -> f64 {
        if segment == instance.segments() {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for option in 0..instance.options.count() {
            let cost = instance.cost(segment, option);
            if cost.is_finite() && instance.fits(room, segment, option) {
                let before = room.to_vec();
                instance.take(room, segment, option);
                best = best.min(cost + go(instance, segment + 1, room));
                room.copy_from_slice(&before);
            }
        }
        best
    }
    go(instance, 0, &mut instance.capacities.clone())
}

/// The optimum of the linear relaxation, by a general solver.
fn relaxation(instance: &Instance) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut per_capacity = vec![Vec::new(); instance.capacities.len()];
    for segment in 0..instance.segments() {
        let allowed = (0..instance.options.count()).filter(|option| instance.cost(segment, *option).is_finite());
        let vars: Vec<_> =
            allowed.map(|option| (option, problem.add_var(instance.cost(segment, option), (0.0, 1.0)))).collect();
        problem.add_constraint(vars.iter().map(|(_, v)| (*v, 1.0)).collect::<Vec<_>>(), ComparisonOp::Eq, 1.0);
        for (option, var) in vars {
            instance.taken(segment, option).for_each(|(capacity, bytes)| per_capacity[capacity].push((var, bytes)));
        }
    }
    for (terms, capacity) in per_capacity.into_iter().zip(&instance.capacities).filter(|(_, c)| c.is_finite()) {
        problem.add_constraint(terms, ComparisonOp::Le, *capacity);
    }
    let Ok(SolveOutcome::Solution(relaxed)) = problem.solve() else { panic!("no relaxation") };
    relaxed.objective()
}

#[test]
fn small_instances_are_solved_to_the_optimum_that_brute_force_finds() {
    let mut rng = StdRng::seed_from_u64(7);
    for case in 0..20_000 {
        let instance = if case < 10_000 {
            let tiers = rng.random_range(2..=4);
            let segments = rng.random_range(0..=[11, 8, 7][tiers - 2]);
            random(&mut rng, segments, tiers, 0.8, true)
        } else {
            let segments = rng.random_range(0..=5);
            random_options(&mut rng, segments, 8, 0.8, true)
        };
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
    for case in 0..80 {
        let instance = match case < 40 {
            true => random(&mut rng, 60, 2 + case % 3, 0.7, case % 2 == 0),
            false => random_options(&mut rng, 60, 8, 0.7, case % 2 == 0),
        };
        let (_, bound) = dual::maximise(&instance, None, Effort { evaluations: 200, nodes: 0 }.into()).unwrap();
        let optimum = relaxation(&instance);
        assert!((bound - optimum).abs() <= 1e-4 * optimum.max(1.0), "case {case}: {bound} against {optimum}");
    }
}

#[test]
fn the_certified_bound_is_a_bound_of_the_linear_relaxation_and_close_to_it() {
    let mut rng = StdRng::seed_from_u64(23);
    let mut short = Vec::new();
    // How much of what wrong prices miss the classes make good.
    let (mut missed, mut recovered) = (0.0, 0.0);
    for case in 0..1_000 {
        let segments = rng.random_range(1..by_depth(60, 200));
        let traps = case % 3 == 0;
        let instance = match case % 2 == 0 {
            true => random(&mut rng, segments, 2 + case % 3, 0.7, traps),
            false => random_options(&mut rng, segments, 8, 0.7, traps),
        };
        let solution = solve(&instance, None, Effort::default()).unwrap();
        let optimum = relaxation(&instance);
        assert!(optimum <= solution.objective + 1e-6 * optimum.max(1e-3), "case {case}: {optimum}, {solution:?}");
        // At good prices, at none, and at wrong ones.
        let wrong = solution.prices.iter().map(|price| price * rng.random_range(0.0..3.0)).collect();
        for prices in [solution.bound_prices.clone(), vec![0.0; instance.capacities.len()], wrong] {
            let alone = if case % 4 == 0 { 1_000 } else { 0 };
            let bound =
                certificate::certify_with(&instance, &prices, alone, std::time::Duration::from_secs(60)).unwrap();
            let case = format!("case {case}: {bound} against {optimum} at {prices:?}");
            assert!(bound <= optimum + 1e-7 * optimum.max(1e-3), "{case}");
            let own = dual::value(&instance, &prices);
            assert!(bound >= own - 1e-6 * (own.abs() + optimum), "{case}, {own} of the prices alone");
            if alone > 0 {
                assert!(bound >= optimum * (1.0 - 1e-4) - 1e-6, "{case}");
            } else if prices == solution.bound_prices {
                short.push((optimum - bound) / optimum.max(1e-9));
            } else {
                missed += (optimum - own) / optimum.max(1e-9);
                recovered += (bound - own) / optimum.max(1e-9);
            }
        }
    }
    short.sort_by(f64::total_cmp);
    let at = |of_thousand: usize| short[short.len() * of_thousand / 1_000];
    println!("short of the relaxation: median {:.1e}, 95 of 100 {:.1e}, worst {:.1e}", at(500), at(950), at(999));
    println!("classes make {:.0} % good of what wrong prices miss", recovered / missed * 100.0);
    assert!(recovered > 0.3 * missed, "{recovered} of {missed}");
    assert!(at(500) < 1e-5 && at(950) < 1e-4, "{} {}", at(500), at(950));
}

#[test]
#[allow(clippy::disallowed_methods)]
fn large_instances_are_certified_by_few_classes() {
    for segments in [2_000, 20_000, 100_000] {
        let mut rng = StdRng::seed_from_u64(segments as u64);
        for instance in [random(&mut rng, segments, 4, 0.5, false), random_options(&mut rng, segments, 8, 0.5, false)] {
            let solution = solve(&instance, None, Effort::default()).unwrap();
            let start = std::time::Instant::now();
            let bound = certify(&instance, &solution.bound_prices).unwrap();
            let took = start.elapsed();
            let gap = gap(solution.objective, bound);
            let options = instance.options.count();
            println!("{segments} x {options}: {took:?}, gap {:.1e}, certified {gap:.1e}", solution.gap);
            assert!(bound <= solution.objective && gap <= solution.gap + 1e-5, "{segments} x {options}: {gap}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(by_depth(40, 200)))]
    #[test]
    fn answers_are_feasible_deterministic_and_within_their_gap(
        seed: u64, segments in 0_usize..400, tiers in 1_usize..6, scale in 0.0..1.5_f64, traps: bool, several: bool, nodes in 0_usize..500, evaluations in 0_usize..20,
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        let instance = match several {
            true => random_options(&mut rng, segments, 2 * tiers, scale, traps),
            false => random(&mut rng, segments, tiers, scale, traps),
        };
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
        let roomy = Instance { capacities: vec![f64::MAX; 3], ..instance };
        let all = solve(&roomy, Some(&solution.prices), Effort::default()).unwrap();
        let [cold, warm] = [solve(&roomy, None, Effort::default()).unwrap().objective, all.objective];
        assert!((warm - cold).abs() <= 1e-9 * cold && all.gap <= 2e-5, "{warm} against {cold}, gap {}", all.gap);
    }
}

#[test]
fn several_options_of_each_tier_have_a_small_gap_too() {
    for (seed, segments, most) in [(1, 2_000, 2e-3), (2, 20_000, 1e-3), (3, 100_000, 1e-3)] {
        let instance = random_options(&mut StdRng::seed_from_u64(seed), segments, 8, 0.5, seed == 2);
        let solution = solve(&instance, None, Effort::default()).unwrap();
        let again = solve(&instance, Some(&solution.prices), Effort::default()).unwrap();
        assert_eq!(solution.method, Method::Lagrange);
        assert!(instance.is_feasible(&solution.choice) && instance.is_feasible(&again.choice));
        let options = instance.options.count();
        println!("{segments} x {options}: gap {:.2e}, again {:.2e}", solution.gap, again.gap);
        assert!(solution.gap <= most && again.gap <= most, "{segments} x {options}: {} {}", solution.gap, again.gap);
    }
}

#[test]
fn an_indifferent_instance_and_a_capacity_of_nothing_are_fine() {
    let rows =
        |costs: Vec<f64>, bytes: Vec<f64>, capacities| Instance { costs, bytes, ..Instance::by_tier(capacities) };
    let instance = rows(vec![0.0; 30], vec![10.0; 20], vec![0.0, 50.0]);
    let solution = solve(&instance, None, Effort::default()).unwrap();
    assert!(instance.is_feasible(&solution.choice) && solution.gap == 0.0);
    let no_home = rows(vec![1.0, f64::INFINITY], vec![1.0], vec![9.0]);
    let not_a_number = rows(vec![f64::NAN, 1.0], vec![1.0], vec![9.0]);
    let too_few_bytes = rows(vec![1.0, 1.0], Vec::new(), vec![9.0]);
    let unknown_capacity = Instance { options: Options::new([[1]]), ..rows(vec![1.0, 1.0], vec![1.0], vec![9.0]) };
    let twice = Instance { options: Options::new([[0, 0]]), ..rows(vec![1.0, 1.0], vec![1.0, 1.0], vec![9.0]) };
    for wrong in [no_home, not_a_number, too_few_bytes, unknown_capacity, twice] {
        assert!(solve(&wrong, None, Effort::default()).is_err(), "{wrong:?}");
    }
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
            let work = Work { deadline: Some(Deadline::after(&clock, deadline)), ..Effort::default().into() };
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
        Work { deadline, ..Effort::default().into() }
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
