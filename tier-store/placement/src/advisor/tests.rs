//! Curves of random stores are compared with plans made by hand.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{ColumnId, MAX_TIERS, Pattern, TableId};

use super::super::cost::{PAGE_BYTES, PatternCost, TierCost};
use super::super::epoch::{SegmentInput, plan};
use super::super::policy::PolicyKind;
use super::super::workload::{ColumnReads, ScanProfile, StatementProfile};
use super::*;
use crate::heat::decay::SegmentHeat;
use crate::testing::builders::{pinned_to_dram, plan_inputs, reads, segment, three_tiers};

const DEVICE: Device = Device {
    latency_us: 80.0,
    bytes_per_us: 1_500.0,
    cost: TierCost {
        patterns: [PatternCost { latency_us: 0.0, bytes_per_us: 1_500.0 }; 4],
        granule_bytes: Some(PAGE_BYTES),
    },
    window_bytes: 8e6,
    work_us_per_byte: 3e-4,
};

fn random_segment(rng: &mut StdRng, chunk: u64, column: u32) -> SegmentInput {
    let mut heat = SegmentHeat::default();
    if rng.random_bool(0.8) {
        let pattern = [Pattern::Sequential, Pattern::Monotonic][rng.random_range(0..2)];
        let accesses = rng.random_range(0.1..9.0_f32);
        heat = reads(pattern, accesses, accesses * rng.random_range(1.0..60_000.0));
        heat.idle_epochs = Some(0);
    }
    segment(chunk).column(column).bytes(rng.random_range(20_000..600_000)).on(rng.random_range(0..3)).heat(heat)
}

fn store(rng: &mut StdRng, chunks: u64, dram: f64, nvm: f64) -> Inputs {
    let mut segments = Vec::new();
    for chunk in 0..chunks {
        for column in 0..4 {
            segments.push(random_segment(rng, chunk, column));
        }
    }
    let all: u64 = segments.iter().map(|segment| segment.bytes).sum();
    plan_inputs(three_tiers((all as f64 * dram) as u64, (all as f64 * nvm) as u64), segments)
}

/// Statements of one or two scans over some of the columns, as they were with everything in DRAM.
fn workload(rng: &mut StdRng, chunks: u64, statements: usize) -> Workload {
    let mut scan = |span_us: f64| ScanProfile {
        span_us,
        wait_us: 0.0,
        partitions: 2,
        reads: (0..4)
            .filter(|_| rng.random_bool(0.6))
            .map(|column| {
                let mut segments = [0; MAX_TIERS];
                segments[0] = chunks as u32;
                ColumnReads { table: TableId(1), column: ColumnId(column), segments, cold_bytes: 0 }
            })
            .collect(),
    };
    let one = |at: usize| {
        let span_us = 300.0 * (1 + at % 7) as f64;
        let scans = (0..1 + at % 2).map(|_| scan(span_us)).collect();
        StatementProfile { elapsed_us: 2.5 * span_us, scans }
    };
    Workload { statements: (0..statements).map(one).collect() }
}

fn advice(inputs: &Inputs, workload: &Workload, request: &AdviceRequest) -> Result<Advice> {
    let stored: Vec<u64> = inputs.segments.iter().map(|segment| segment.home_bytes).collect();
    let policy = PolicyKind::Optimal.policy(0);
    advise(
        AdvisorInput {
            inputs: inputs.clone(),
            stored_bytes: &stored,
            device: DEVICE,
            workload,
            policy: policy.as_ref(),
            effort: Effort::default(),
        },
        request,
    )
}

fn with_points(points: usize) -> AdviceRequest {
    AdviceRequest { points, ..AdviceRequest::default() }
}

#[test]
fn more_room_is_never_slower_and_all_in_dram_is_as_it_was() {
    for seed in 0..12 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let inputs = store(rng, 12, 0.3, 0.2);
        let workload = workload(rng, 12, 9);
        let shares = vec![0.13, 0.5];
        let advice = advice(&inputs, &workload, &AdviceRequest { shares, ..with_points(12) }).unwrap();
        assert_eq!((advice.curve.len(), advice.statements), (12, 9), "seed {seed}");
        for pair in advice.curve.windows(2) {
            assert!(pair[0].budget_bytes < pair[1].budget_bytes, "seed {seed}");
            assert!(pair[0].read_us >= pair[1].read_us && pair[0].mean_us >= pair[1].mean_us, "seed {seed}: {pair:?}");
        }
        let last = advice.curve.last().unwrap();
        let measured = advice.measured_us.unwrap();
        // Segments that no statement reads may lie anywhere.
        assert!((last.mean_us.unwrap() / measured - 1.0).abs() < 1e-9, "seed {seed}: {last:?}, {measured}");
        assert!((last.slowdown.unwrap() - 1.0).abs() < 1e-9 && advice.curve[0].slowdown.unwrap() > 1.0, "seed {seed}");
        for (asked, share) in advice.asked.iter().zip([0.13, 0.5]) {
            let around = |point: &&BudgetPoint| (point.share - share).abs() < 0.1;
            let near: Vec<f64> = advice.curve.iter().filter(around).map(|point| point.read_us).collect();
            assert!(near[0] >= asked.read_us && asked.read_us >= *near.last().unwrap(), "seed {seed}");
        }
    }
}

#[test]
fn the_point_of_now_is_the_plan_that_costs_of_moves_do_not_hinder() {
    for seed in 100..112 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let inputs = store(rng, 10, 0.25, 0.3);
        let found = advice(&inputs, &Workload::default(), &with_points(5)).unwrap();
        let settled = Inputs { payback_epochs: 1e12, ..inputs.clone() };
        let by_hand = plan(&settled, Effort::default()).unwrap();
        assert_eq!(found.now.budget_bytes, inputs.tiers[0].budget_bytes.unwrap());
        // The curve may have found as much for less room; both are within the proven gap of the best.
        assert!(found.now.read_us <= by_hand.after_us * (1.0 + 1e-9), "seed {seed}");
        assert!(found.now.read_us >= by_hand.bound_us * (1.0 - 1e-9), "seed {seed}: {} {by_hand:?}", found.now.read_us);
        assert_eq!((found.now.mean_us, found.statements), (None, 0));
    }
}

fn point(budget_bytes: u64, mean_us: f64) -> BudgetPoint {
    BudgetPoint {
        budget_bytes,
        share: 0.0,
        used_bytes: 0,
        cold_bytes: 0,
        read_us: 0.0,
        price_ns_per_byte: 0.0,
        mean_us: Some(mean_us),
        p95_us: None,
        slowdown: None,
        unmet_bytes: 0,
    }
}

#[test]
fn a_curve_has_its_knee_where_it_bends() {
    let curve = |heights: &[f64]| heights.iter().zip(0..).map(|(h, at)| point(at * 100, *h)).collect::<Vec<_>>();
    let at = |heights: &[f64]| knee(&curve(heights)).map(|point| point.budget_bytes);
    assert_eq!(at(&[100.0, 60.0, 30.0, 27.0, 25.0, 24.0, 23.0]), Some(200));
    // A straight line, a curve that bends the other way, and one that hardly falls have none.
    assert_eq!(at(&[100.0, 90.0, 80.0, 70.0]), None);
    assert_eq!(at(&[100.0, 99.0, 90.0, 20.0]), None);
    assert_eq!(at(&[100.0, 99.2, 99.1, 99.0]), None);
    assert_eq!(at(&[]), None);
    // Budgets that rules forbid do not count.
    let mut curve = curve(&[900.0, 100.0, 60.0, 30.0, 27.0, 25.0]);
    curve[0].unmet_bytes = 1;
    assert_eq!(knee(&curve).unwrap().budget_bytes, 300);
}

#[test]
fn the_cheapest_budgets_are_those_of_trying_all() {
    for seed in 200..206 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let inputs = store(rng, 6, 0.3, 0.3);
        let workload = workload(rng, 6, 6);
        let prices = [rng.random_range(2.0..6.0), rng.random_range(0.5..4.0), 0.1];
        let most = rng.random_range(1.05..1.6);
        let request = AdviceRequest {
            goal: Some(Goal::Slowdown(most)),
            prices_per_gb: vec![("dram".into(), prices[0]), ("nvm".into(), prices[1]), ("ssd".into(), prices[2])],
            ..with_points(11)
        };
        let found = advice(&inputs, &workload, &request).unwrap();
        let stored: Vec<u64> = inputs.segments.iter().map(|segment| segment.home_bytes).collect();
        let all: u64 = stored.iter().sum();
        let forecast = Forecast::new(&inputs, &stored, DEVICE, &workload);
        let fast = mean(&forecast.times_us(&vec![Place::plain(TierId(0)); stored.len()])).unwrap();
        let mut best = f64::INFINITY;
        for dram in 0..11 {
            for nvm in 0..11 {
                let mut inputs = Inputs { payback_epochs: 1e12, ..inputs.clone() };
                let budget = |tenth: u64| (all as f64 * tenth as f64 / 10.0).round() as u64;
                inputs.tiers[0].budget_bytes = Some(budget(dram));
                inputs.tiers[1].budget_bytes = Some(budget(nvm));
                let plan = plan(&inputs, Effort::default()).unwrap();
                let explainer = Explainer::new(&inputs, &plan);
                let placed: Vec<Place> = (0..stored.len()).map(|at| explainer.place(at)).collect();
                if mean(&forecast.times_us(&placed)).unwrap() / fast <= most {
                    let memory = budget(dram) as f64 * prices[0] + budget(nvm) as f64 * prices[1];
                    best = best.min((memory + all as f64 * prices[2]) / 1e9);
                }
            }
        }
        let cheapest = found.cheapest.unwrap();
        assert!((cheapest.cost.unwrap() / best - 1.0).abs() < 1e-9, "seed {seed}: {cheapest:?}, {best}");
        assert!(cheapest.slowdown <= most && cheapest.budgets.len() == 2, "seed {seed}: {cheapest:?}");
        // Without prices: the least DRAM; and nothing where a goal cannot be met.
        let plain = AdviceRequest { prices_per_gb: Vec::new(), ..request.clone() };
        let least = advice(&inputs, &workload, &plain).unwrap().cheapest.unwrap();
        assert!(least.cost.is_none() && least.budgets[0].1 <= cheapest.budgets[0].1, "seed {seed}: {least:?}");
        let never = AdviceRequest { goal: Some(Goal::MeanUs(1.0)), ..request };
        assert_eq!(advice(&inputs, &workload, &never).unwrap().cheapest, None, "seed {seed}");
    }
}

#[test]
fn budgets_below_what_pins_need_say_so() {
    let rng = &mut StdRng::seed_from_u64(7);
    let mut inputs = store(rng, 8, 0.5, 0.0);
    for segment in inputs.segments.iter_mut().filter(|segment| segment.key.column == ColumnId(2)) {
        segment.constraints = pinned_to_dram();
    }
    inputs.rules = vec!["rule 1".into()];
    let advice = advice(&inputs, &workload(rng, 8, 4), &with_points(21)).unwrap();
    let pinned: u64 = inputs.segments.iter().filter(|s| s.key.column == ColumnId(2)).map(|s| s.bytes).sum();
    assert_eq!(advice.pinned_bytes, pinned);
    for point in &advice.curve {
        assert_eq!(point.unmet_bytes > 0, point.budget_bytes < pinned, "{point:?} {pinned}");
    }
    assert!(advice.knee.is_none_or(|knee| knee.budget_bytes >= pinned));
}

#[test]
fn what_more_room_saves_is_the_difference_and_questions_without_answer_are_refused() {
    let rng = &mut StdRng::seed_from_u64(9);
    let inputs = store(rng, 8, 0.1, 0.0);
    let statements = workload(rng, 8, 4);
    let request = AdviceRequest { more_bytes: Some(1 << 20), ..with_points(3) };
    let found = advice(&inputs, &statements, &request).unwrap();
    let more = found.more.unwrap();
    assert_eq!(more.point.budget_bytes, found.now.budget_bytes + (1 << 20));
    assert_eq!(more.saved_us.unwrap(), found.now.mean_us.unwrap() - more.point.mean_us.unwrap());
    assert!(more.saved_read_us > 0.0 && found.why.contains("1.0 MiB more save"), "{}", found.why);
    for (wrong, says) in [
        (with_points(1), "2 to 201 points"),
        (AdviceRequest { shares: vec![1.5], ..with_points(3) }, "between 0 and 1"),
        (AdviceRequest { goal: Some(Goal::Slowdown(0.5)), ..with_points(3) }, "below 1"),
        (AdviceRequest { prices_per_gb: vec![("tape".into(), 1.0)], ..with_points(3) }, "no tier 'tape'"),
        (AdviceRequest { prices_per_gb: vec![("dram".into(), 1.0)], ..with_points(3) }, "nvm has no price"),
        (AdviceRequest { prices_per_gb: vec![("dram".into(), -1.0)], ..with_points(3) }, "at least 0"),
    ] {
        let error = advice(&inputs, &statements, &wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
