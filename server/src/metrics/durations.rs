//! Histograms of durations: statements by kind, waits for an execution slot, moves by their target.

use terrace_planner_ext::engine::{Engine, StatementKind};
use terrace_tier_store::durations::{BOUNDS_US, DurationSums};
use terrace_tier_store::tier::TierId;

use super::Exposition;

/// Times of statements, waits and moves.
pub fn durations(out: &mut Exposition, engine: &Engine) {
    let counters = engine.counters();
    let of_kind = |kind: StatementKind| Some((vec![("kind", kind.name())], counters.durations(kind)?));
    let help = "Time from planning to the last row taken, by kind of the statement.";
    histograms(out, "terrace_query_duration_seconds", help, StatementKind::ALL.into_iter().filter_map(of_kind));
    let help = "Time that statements waited for an execution slot.";
    histograms(out, "terrace_query_queue_wait_seconds", help, [(Vec::new(), counters.queue_waits())]);
    let store = engine.store();
    let names: Vec<String> = store.tier_infos().into_iter().map(|tier| tier.name).collect();
    let to_tier = |(position, name)| {
        let sums = store.tiering().metrics().move_times(TierId(position))?;
        Some((vec![("to", String::as_str(name))], sums))
    };
    let help = "Time that moves of segments took, by the tier that they went to.";
    histograms(out, "terrace_migrate_move_duration_seconds", help, (0..).zip(&names).filter_map(to_tier));
}

fn histograms<'a>(
    out: &mut Exposition,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, DurationSums)>,
) {
    let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
    let samples = series.into_iter().map(|(labels, sums)| (labels, sums.counts, sums.sum_us as f64 / 1e6));
    out.histograms(name, help, &bounds, samples);
}
