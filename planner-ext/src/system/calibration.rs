//! `system.calibration`: the measurements of all tiers, one row per measurement. `system.tier_costs`: the costs that
//! placement uses, one row per tier and pattern.

use arrow::datatypes::Field;
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::placement::{Calibration, PatternCost, Point, TierProfile};

use super::{
    Batches, Live, NameFilter, count, counts, flag, flags, in_batches, optional_count, optional_counts, optional_real,
    optional_reals, real, reals, text, texts, time, times,
};
use crate::error::Result;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("tier"),
        text("pattern"),
        optional_real("selectivity"),
        count("bytes"),
        count("places"),
        count("at_once"),
        real("us"),
        real("mb_per_s"),
        time("measured"),
    ]
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let known = live.store.tiering().calibration();
    let unix_us = known.as_ref().map_or(0, |known| known.unix_us);
    let tiers = known.map(|known| known.tiers).unwrap_or_default().into_iter();
    let points_of_tier =
        move |tier: TierProfile| tier.points.into_iter().map(move |point| (tier.name.clone(), point, unix_us));
    let points: Vec<(String, Point, u64)> = tiers.flat_map(points_of_tier).collect();
    Ok(in_batches(points.into_iter(), fields(), |points| {
        vec![
            texts(points, |(tier, ..)| tier.clone()),
            texts(points, |(_, point, _)| point.pattern.name().to_owned()),
            optional_reals(points, |(_, point, _)| point.selectivity),
            counts(points, |(_, point, _)| point.bytes),
            counts(points, |(_, point, _)| point.places),
            counts(points, |(_, point, _)| point.at_once.into()),
            reals(points, |(_, point, _)| point.us),
            reals(points, |(_, point, _)| point.bytes_per_us()),
            times(points, |(.., unix_us)| *unix_us),
        ]
    }))
}

pub(super) fn cost_fields() -> Vec<Field> {
    vec![
        text("tier"),
        text("pattern"),
        real("latency_us"),
        real("mb_per_s"),
        optional_count("place_bytes"),
        real("calibrated_latency_us"),
        real("calibrated_mb_per_s"),
        real("device_times"),
        real("waited_share"),
        flag("measured"),
        text("note"),
        text("device"),
    ]
}

/// Costs of a pattern on a tier: those used by placement, and those measured.
#[derive(Debug, Clone)]
struct Line {
    tier: String,
    pattern: Pattern,
    used: PatternCost,
    calibrated: PatternCost,
    place_bytes: Option<u64>,
    device_times: f64,
    waited_share: f64,
    measured: bool,
    note: String,
    device: String,
}

pub(super) fn cost_rows(live: Live, _: NameFilter) -> Result<Batches> {
    let lines = live.store.tiering().calibration().as_ref().map(lines).unwrap_or_default();
    Ok(in_batches(lines.into_iter(), cost_fields(), |lines| {
        vec![
            texts(lines, |line| line.tier.clone()),
            texts(lines, |line| line.pattern.name().to_owned()),
            reals(lines, |line| line.used.latency_us),
            reals(lines, |line| line.used.bytes_per_us),
            optional_counts(lines, |line| line.place_bytes),
            reals(lines, |line| line.calibrated.latency_us),
            reals(lines, |line| line.calibrated.bytes_per_us),
            reals(lines, |line| line.device_times),
            reals(lines, |line| line.waited_share),
            flags(lines, |line| line.measured),
            texts(lines, |line| line.note.clone()),
            texts(lines, |line| line.device.clone()),
        ]
    }))
}

fn lines(known: &Calibration) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, (profile, used)) in known.tiers.iter().zip(known.costs()).enumerate() {
        // Only the costs of the home tier are corrected; memory is read in place, as it was measured.
        let is_home = at + 1 == known.tiers.len();
        let (device_times, waited_share) = match is_home {
            true => (known.correction.device_times, known.correction.waited_share),
            false => (1.0, 1.0),
        };
        for (pattern, (used, calibrated)) in
            Pattern::ALL.into_iter().zip(used.patterns.into_iter().zip(profile.cost.patterns))
        {
            lines.push(Line {
                tier: profile.name.clone(),
                pattern,
                used,
                calibrated,
                place_bytes: profile.cost.granule_bytes,
                device_times,
                waited_share,
                measured: profile.measured,
                note: profile.note.clone().unwrap_or_default(),
                device: profile.device.clone(),
            });
        }
    }
    lines
}
