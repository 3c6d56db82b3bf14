//! `terrace calibrate`: the cost of accesses on each tier of a running server, measured now or as known.

use clap::Args;
use serde::Deserialize;
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::placement::{Calibration, Point, TierCost, TierProfile};

use crate::error::Result;
use crate::placement::{Output, parse, print_json};
use crate::terminal::outln;
use crate::units::human_bytes;

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    /// Measure nothing, show what is known
    #[arg(long)]
    show: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(flatten)]
    calibration: Calibration,
    used: Vec<TierCost>,
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`crate::error::Error::Unreachable`].
pub fn run(options: &Options) -> Result<()> {
    let method = if options.show { "GET" } else { "POST" };
    let answer = options.output.server.request(method, "/api/v1/calibration", None)?;
    if options.output.json {
        return print_json(&answer);
    }
    let Answer { calibration, used } = parse(answer)?;
    outln!("{}; measured in {:.2} s", calibration.machine, calibration.took_us as f64 / 1e6);
    for (profile, used) in calibration.tiers.iter().zip(&used) {
        print_tier(profile, used);
    }
    let correction = calibration.correction;
    if correction.bytes > 0 {
        outln!(
            "\nscans since then ({}): the device takes {:.2} times as long as measured, and {}",
            human_bytes(correction.bytes),
            correction.device_times,
            waited(correction.waited_share)
        );
    }
    Ok(())
}

/// How long statements wait for reads, relative to the time of the device. Threads that wait at the same time each count.
fn waited(share: f64) -> String {
    if share > 1.0 {
        format!("statements wait {share:.1} times that long, several threads at once")
    } else {
        format!("statements wait for {:.0} % of that time", share * 100.0)
    }
}

fn print_tier(profile: &TierProfile, used: &TierCost) {
    let how = if profile.measured { "measured" } else { "not measured, typical of such devices" };
    outln!("\n{} ({}), {how}: {}", profile.name, profile.kind, profile.device);
    if let Some(note) = &profile.note {
        outln!("  {note}");
    }
    if !profile.points.is_empty() {
        outln!(
            "  {:<11}{:>12}{:>11}{:>9}{:>9}{:>12}{:>12}",
            "pattern",
            "selectivity",
            "read",
            "places",
            "at once",
            "each",
            "rate"
        );
        profile.points.iter().for_each(print_point);
    }
    let place = used.granule_bytes.map_or_else(|| "segment".to_owned(), human_bytes);
    let of = |pattern: Pattern| used.patterns.get(pattern as usize);
    if let Some(sequential) = of(Pattern::Sequential) {
        let latencies = [Pattern::Monotonic, Pattern::Random, Pattern::Point];
        let latency = |pattern: Pattern| Some(format!("{} {}", time(of(pattern)?.latency_us), pattern.name()));
        let latencies: Vec<String> = latencies.into_iter().filter_map(latency).collect();
        let rate = sequential.bytes_per_us;
        outln!("  used: {rate:.0} MB/s; before each {place}: {}", latencies.join(", "));
    }
}

fn print_point(point: &Point) {
    let selectivity = point.selectivity.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0));
    outln!(
        "  {:<11}{selectivity:>12}{:>11}{:>9}{:>9}{:>12}{:>12}",
        point.pattern.name(),
        human_bytes(point.bytes),
        point.places,
        point.at_once,
        time(point.us),
        format!("{:.0} MB/s", point.bytes_per_us()),
    );
}

fn time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.1} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1} us"),
        us => format!("{:.2} ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_is_larger_than_the_whole() {
        assert_eq!(waited(0.42), "statements wait for 42 % of that time");
        assert_eq!(waited(1.82), "statements wait 1.8 times that long, several threads at once");
    }
}
