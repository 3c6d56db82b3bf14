//! `system.calibration`: the measurements of all tiers, one row per measurement. `system.tier_costs`: the costs that
//! placement uses, one row per tier and pattern.

use terrace_tier_store::heat::Pattern;
use terrace_tier_store::placement::{Calibration, PatternCost, Point, TierProfile};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

/// Name of the tier, the measurement, and its time in microseconds since the Unix epoch.
type MeasuredPoint = (String, Point, u64);

pub(super) fn columns() -> ColumnList<MeasuredPoint> {
    ColumnList::<MeasuredPoint>::new()
        .text("tier", |(tier, ..)| tier.clone())
        .text("pattern", |(_, point, _)| point.pattern.name().to_owned())
        .optional_real("selectivity", |(_, point, _)| point.selectivity)
        .count("bytes", |(_, point, _)| point.bytes)
        .count("places", |(_, point, _)| point.places)
        .count("at_once", |(_, point, _)| point.at_once.into())
        .real("us", |(_, point, _)| point.us)
        .real("mb_per_s", |(_, point, _)| point.bytes_per_us())
        .time("measured", |(.., unix_us)| *unix_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let known = live.store.tiering().calibration();
    let unix_us = known.as_ref().map_or(0, |known| known.unix_us);
    let tiers = known.map(|known| known.tiers).unwrap_or_default().into_iter();
    let points_of_tier =
        move |tier: TierProfile| tier.points.into_iter().map(move |point| (tier.name.clone(), point, unix_us));
    let points: Vec<MeasuredPoint> = tiers.flat_map(points_of_tier).collect();
    Ok(columns().batches(points.into_iter()))
}

pub(super) fn cost_columns() -> ColumnList<Line> {
    ColumnList::<Line>::new()
        .text("tier", |line| line.tier.clone())
        .text("pattern", |line| line.pattern.name().to_owned())
        .real("latency_us", |line| line.used.latency_us)
        .real("mb_per_s", |line| line.used.bytes_per_us)
        .optional_count("place_bytes", |line| line.place_bytes)
        .real("calibrated_latency_us", |line| line.calibrated.latency_us)
        .real("calibrated_mb_per_s", |line| line.calibrated.bytes_per_us)
        .real("device_times", |line| line.device_times)
        .real("waited_share", |line| line.waited_share)
        .flag("measured", |line| line.measured)
        .text("note", |line| line.note.clone())
        .text("device", |line| line.device.clone())
}

/// Costs of a pattern on a tier: those used by placement, and those measured.
#[derive(Debug, Clone)]
pub(super) struct Line {
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
    Ok(cost_columns().batches(lines.into_iter()))
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
