//! Images on a device: what plans decide, and what the loop carries out.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{ColumnId, TierId};
use terrace_storage::table::RuleKind;
use terrace_storage::tier::hbm::{HbmBacking, HbmTier};
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::advisor::device_note;
use super::epoch::{EpochPlan, ImageRule, Inputs, SegmentInput, certified_bound_us, plan, plan_by};
use super::order::Scope;
use super::policy::PolicyKind;
use super::record::{EpochReport, MoveRecord, MoveStatus};
use super::solver::Effort;
use super::testing::FakeHost;
use super::testing::builders::{
    MIB, device, kernel_scans, pinned_to_dram, placed, plan_inputs, scans, segment, table_rules, two_tiers,
};
use super::tiering::{EpochRequest, TieringOptions};
use crate::heat::decay::SegmentHeat;

/// Segments at home, each of which may have an image of its bytes.
fn inputs(dram_bytes: u64, hbm_bytes: u64, segments: Vec<SegmentInput>) -> Inputs {
    Inputs { device: Some(device(hbm_bytes)), ..plan_inputs(two_tiers(dram_bytes), segments) }
}

fn at_home(id: u64, heat: SegmentHeat) -> SegmentInput {
    segment(id).on(1).heat(heat).with_image(MIB)
}

/// The plan of the policy `optimal`, whose images fit the budget.
fn planned(inputs: &Inputs) -> EpochPlan {
    let plan = plan(inputs, Effort::default()).unwrap();
    check(inputs, &plan);
    plan
}

/// Checks what holds for every plan.
fn check(inputs: &Inputs, plan: &EpochPlan) {
    let images = inputs.segments.iter().zip(&plan.has_image).filter(|(_, has_image)| **has_image);
    let bytes: u64 = images.map(|(segment, _)| segment.image_charged_bytes()).sum();
    assert!(bytes <= inputs.device.as_ref().unwrap().budget_bytes, "{bytes}");
    assert!(plan.images.is_sorted_by_key(|image| image.is_wanted), "room is made first");
    assert!(plan.images.iter().all(|image| !image.reason.is_empty()));
    let benefit_us: f64 = plan.moves.iter().map(|planned| planned.benefit_us).sum();
    let benefit_us: f64 = benefit_us + plan.images.iter().map(|image| image.benefit_us).sum::<f64>();
    let saved_us = plan.before_us - plan.after_us;
    assert!((benefit_us - saved_us).abs() <= 1e-6 * plan.before_us.max(1.0), "{benefit_us} {saved_us}");
}

fn with_images(plan: &EpochPlan) -> Vec<usize> {
    (0..plan.has_image.len()).filter(|at| plan.has_image[*at]).collect()
}

#[test]
fn what_kernels_scan_most_gets_an_image_and_memory_goes_to_others() {
    // Segments 0 and 1 are scanned by what kernels can compute, 2 is scanned a little less by processors.
    let segments = vec![at_home(0, kernel_scans(9.0)), at_home(1, kernel_scans(8.0)), at_home(2, scans(7.0))];
    let all = inputs(MIB, MIB, segments);
    let plan = planned(&all);
    assert_eq!(with_images(&plan), [0]);
    assert_eq!(placed(&all, &plan), [1, 0, 1].map(TierId), "without its image, 1 is the best in memory");
    let all = inputs(MIB, 2 * MIB, all.segments);
    let plan = planned(&all);
    assert_eq!(with_images(&plan), [0, 1]);
    assert_eq!(placed(&all, &plan), [1, 1, 0].map(TierId));
    let [first, ..] = &plan.images[..] else { panic!("no image") };
    assert!(first.reason.starts_with("9.0 scans per epoch can run on hbm, which saves"), "{}", first.reason);
    assert!(first.reason.contains(" an epoch against ssd, worth "), "{}", first.reason);
    let price = plan.prices.last().unwrap();
    assert_eq!((price.tier.as_str(), price.before_bytes, price.planned_bytes), ("hbm", 0, 2 * MIB));
    let certified = certified_bound_us(&all, &plan);
    assert!(certified.is_none_or(|bound_us| bound_us <= plan.objective_us * (1.0 + 1e-6)), "{certified:?}");
}

#[test]
fn without_a_device_or_reads_of_kernels_plans_are_as_ever() {
    let segments: Vec<SegmentInput> = (0..9).map(|id| at_home(id, scans(id as f32))).collect();
    let without = plan_inputs(two_tiers(4 * MIB), segments.clone());
    let expected = plan(&without, Effort::default()).unwrap();
    let kernels = segments.iter().map(|segment| SegmentInput {
        heat: SegmentHeat { kernel: segment.heat.total(), ..segment.heat },
        ..segment.clone()
    });
    let no_device = Inputs { device: None, ..inputs(4 * MIB, 0, kernels.collect()) };
    for other in [inputs(4 * MIB, 9 * MIB, segments), no_device] {
        let plan = plan(&other, Effort::default()).unwrap();
        assert_eq!((&plan.moves, plan.after_us), (&expected.moves, expected.after_us));
        assert!(plan.images.is_empty() && plan.has_image.is_empty() && plan.prices.len() == 1);
    }
}

#[test]
fn rules_decide_about_images_while_there_is_room() {
    let rule = |segment: SegmentInput, kind, rule| {
        let mut segment = segment;
        segment.image.as_mut().unwrap().rule = Some(ImageRule { kind, rule });
        segment
    };
    let segments = vec![
        rule(at_home(0, scans(0.0)), RuleKind::Pin, 1),
        rule(at_home(1, scans(0.0)), RuleKind::Pin, 0),
        rule(at_home(2, kernel_scans(50.0)).on_device(), RuleKind::Exclude, 2),
        at_home(3, kernel_scans(50.0)),
    ];
    let mut all = inputs(MIB, 2 * MIB, segments);
    all.rules = ["the first rule", "the second rule", "the third rule"].map(str::to_owned).to_vec();
    let plan = planned(&all);
    assert_eq!(with_images(&plan), [0, 1], "rules come before costs");
    let reasons: Vec<&str> = plan.images.iter().map(|image| image.reason.as_str()).collect();
    assert!(reasons.contains(&"pinned: the first rule"), "{reasons:?}");
    assert_eq!(reasons[0], "excluded from hbm: the third rule");
    all.device.as_mut().unwrap().budget_bytes = MIB;
    assert_eq!(with_images(&planned(&all)), [1], "the latest pin gives way");
    // A segment that a rule pins to DRAM may have an image as well.
    let pinned = at_home(0, kernel_scans(50.0)).constraints(pinned_to_dram());
    let all = Inputs { rules: vec!["a rule".into()], ..inputs(MIB, MIB, vec![pinned, at_home(1, scans(1.0))]) };
    let plan = planned(&all);
    assert_eq!((with_images(&plan), placed(&all, &plan)), (vec![0], [0, 1].map(TierId).to_vec()));
}

#[test]
fn an_image_stays_until_another_one_is_worth_more() {
    let kept = inputs(0, MIB, vec![at_home(0, scans(0.0)).on_device(), at_home(1, scans(5.0))]);
    assert!(planned(&kept).images.is_empty());
    let pushed = inputs(0, MIB, vec![at_home(0, kernel_scans(1.0)).on_device(), at_home(1, kernel_scans(50.0))]);
    let plan = planned(&pushed);
    assert_eq!(
        plan.images.iter().map(|image| (image.segment, image.is_wanted)).collect::<Vec<_>>(),
        [(0, false), (1, true)]
    );
    assert!(plan.images[0].reason.ends_with("hbm makes better use of its 1.0 MiB"), "{}", plan.images[0].reason);
    assert!(plan.images[0].benefit_us < 0.0 && plan.images[1].benefit_us > 0.0);
}

/// Segments of random sizes and reads, a part of which kernels can make, and room for a share of their images.
fn drawn(seed: u64, share: f64) -> Inputs {
    let mut rng = StdRng::seed_from_u64(seed);
    let segments = (0..60).map(|id| {
        let reads = rng.random_range(0.0..20.0_f32);
        let kernel = if rng.random_bool(0.7) { reads * rng.random_range(0.0..=1.0_f32) } else { 0.0 };
        let bytes = rng.random_range(1..=8_u64) * (MIB / 4);
        let heat = SegmentHeat { kernel, idle_epochs: Some(rng.random_range(0..5)), ..scans(reads) };
        let mut drawn = segment(id / 4).column(id as u32 % 4).bytes(bytes).on(1).heat(heat).with_image(bytes);
        if rng.random_bool(0.2) {
            drawn = drawn.on_device();
        }
        drawn
    });
    let segments: Vec<SegmentInput> = segments.collect();
    let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut all = inputs(total / 5, (total as f64 * share) as u64, segments);
    // At first the images that are there have room.
    let mut room = all.device.as_ref().unwrap().budget_bytes;
    for image in all.segments.iter_mut().filter_map(|segment| segment.image.as_mut()) {
        image.is_there &= image.charged_bytes <= room;
        room -= if image.is_there { image.charged_bytes } else { 0 };
    }
    all
}

#[test]
fn no_other_policy_costs_less_at_any_budget() {
    for seed in seeds(0..by_depth(6, 60)) {
        let _report = SeedReport(seed);
        for tenths in [0, 1, 3, 5, 8, 10] {
            let all = drawn(seed, f64::from(tenths) / 10.0);
            let optimal = planned(&all);
            if !optimal.has_image.is_empty() {
                let bound_us = certified_bound_us(&all, &optimal).unwrap_or(optimal.bound_us);
                assert!(bound_us <= optimal.objective_us * (1.0 + 1e-6));
            }
            for kind in PolicyKind::ALL {
                let other = plan_by(kind.policy(seed).as_ref(), &all, Effort::default()).unwrap();
                check(&all, &other);
                assert!(
                    optimal.objective_us <= other.objective_us * 1.03 + 1.0,
                    "{kind:?} at {tenths}/10: {} instead of {}",
                    other.objective_us,
                    optimal.objective_us
                );
            }
        }
    }
}

#[test]
fn the_advisor_says_what_a_device_saves() {
    let note = |inputs: &Inputs| device_note(inputs, "hbm", PolicyKind::Optimal.policy(0).as_ref(), Effort::default());
    let all = inputs(0, MIB, vec![at_home(0, kernel_scans(9.0)), at_home(1, kernel_scans(8.0))]);
    let said = note(&all).unwrap().unwrap();
    assert!(said.contains("within the budget of 1.0 MiB there") && said.contains("all 2.0 MiB"), "{said}");
    let cold = note(&inputs(0, MIB, vec![at_home(0, scans(9.0))])).unwrap().unwrap();
    assert!(cold.ends_with("could have run there"), "{cold}");
    assert_eq!(note(&Inputs { device: None, ..all }).unwrap(), None);
}

/// A host without memory for copies, and a device with room for so many `id` columns.
fn host_with_device(columns: u64) -> (Arc<FakeHost>, Arc<HbmTier>) {
    let host = FakeHost::new(0, Arc::default()).with_usual_costs();
    let backing = HbmBacking::Emulated { capacity_bytes: 1 << 20, faults: None };
    let device = Arc::new(HbmTier::open("hbm", backing, Some(columns * super::testing::COLUMN_BYTES)).unwrap());
    *host.device.lock() = Some(Arc::clone(&device));
    (host, device)
}

/// Counts scans of a chunk's `id` that kernels could have made.
fn scan(host: &FakeHost, chunk: usize, times: u32) {
    host.read(chunk, times);
    (0..times).for_each(|_| host.chunks[chunk].chunk.segments[0].counters.record_kernel());
}

fn on_device(host: &FakeHost) -> Vec<u64> {
    let has_image = host.chunks.iter().filter(|entry| entry.chunk.segments[0].image.load().is_some());
    has_image.map(|entry| entry.chunk.id.0).collect()
}

fn done(report: &EpochReport) -> Vec<&MoveRecord> {
    report.moves.iter().filter(|record| record.status == MoveStatus::Done).collect()
}

#[test]
fn the_loop_copies_to_the_device_what_kernels_can_scan() {
    let (host, device) = host_with_device(2);
    let tiering = host.tiering_with(TieringOptions { half_life_epochs: 0.0, ..TieringOptions::default() });
    (4..7).for_each(|chunk| scan(&host, chunk, 100 * chunk as u32));
    host.read(9, 5000);
    let preview = tiering.run_epoch(EpochRequest::dry_run("a look")).unwrap();
    assert_eq!((preview.moves.len(), on_device(&host)), (2, Vec::new()));
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(on_device(&host), [5, 6]);
    assert_eq!((report.epoch.moves_done, report.epoch.moved_bytes), (2, device.account().used_bytes()));
    let moves = done(&report);
    assert!(moves.iter().all(|record| (record.from.as_str(), record.to.as_str()) == ("ssd", "hbm")), "{moves:?}");
    assert!(moves[0].reason.contains("can run on hbm"), "{}", moves[0].reason);
    let metrics = tiering.metrics();
    let counts =
        [&metrics.images_copied, &metrics.images_dropped].map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(counts, [2, 0]);
    // Others are scanned now.
    (1..3).for_each(|chunk| scan(&host, chunk, 1000));
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(on_device(&host), [1, 2]);
    assert_eq!(done(&report).len(), 4);
    assert!(device.account().peak_bytes() <= device.account().limit_bytes());
    // Scans that no kernel can make bring nothing there.
    host.read(8, 9000);
    assert!(tiering.run_epoch(EpochRequest::now("test")).unwrap().moves.is_empty());
    // What a user asks for comes and goes.
    tiering.set_budget("hbm", super::testing::COLUMN_BYTES).unwrap();
    (1..3).for_each(|chunk| scan(&host, chunk, 1000 * chunk as u32));
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!(on_device(&host), [2]);
    *host.rules.lock() = Arc::new(table_rules(&[(RuleKind::Exclude, "hbm")]));
    let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert_eq!((on_device(&host).len(), device.account().used_bytes()), (0, 0));
    assert!(done(&report)[0].reason.starts_with("excluded from hbm: rule 1 of public.t"), "{report:?}");
    let error = tiering.set_budget("gpu", 1).unwrap_err().to_string();
    assert!(error.contains("the tiers are hbm, dram, ssd"), "{error}");
    let error = tiering.drain_tier("hbm").unwrap_err().to_string();
    assert!(error.contains("'hbm' is the memory of a device and cannot be drained"), "{error}");
}

#[test]
fn every_policy_uses_the_device_within_its_budget() {
    for policy in PolicyKind::ALL {
        let (host, device) = host_with_device(3);
        let tiering = host.tiering_with(TieringOptions { policy, ..TieringOptions::default() });
        (0..9).for_each(|chunk| scan(&host, chunk, 100 + 10 * chunk as u32));
        let report = tiering.run_epoch(EpochRequest::now("test")).unwrap();
        assert!(device.account().peak_bytes() <= device.account().limit_bytes(), "{policy:?}");
        let images = on_device(&host);
        assert_eq!(images.len() as u64 * super::testing::COLUMN_BYTES, device.account().used_bytes(), "{policy:?}");
        assert_eq!(done(&report).len(), images.len(), "{policy:?}: {report:?}");
    }
}

#[test]
fn an_explanation_says_what_the_device_is_for() {
    let (host, _device) = host_with_device(1);
    let tiering = host.tiering();
    scan(&host, 3, 500);
    let ids = Scope { columns: vec![ColumnId(0)], ..Scope::all() };
    let explanations = tiering.explain("public.t", &ids).unwrap();
    let why = |chunk: usize| explanations[chunk].why.as_str();
    assert!(
        why(3).contains("; gets a second copy on hbm: 500 scans per epoch can run on hbm, where it saves"),
        "{}",
        why(3)
    );
    assert!(!why(4).contains("hbm"), "{}", why(4));
    assert_eq!(explanations[3].reads, 500.0, "the reads are those that were counted");
}
