//! `terrace status`: a server on one screen.
//!
//! - [`overview`]: what the server tells of itself

pub mod overview;

use clap::Args;
use terrace_tier_store::clock::{Clock, SystemClock};

use crate::error::Result;
use crate::layout::{columns, percent, plural, span};
use crate::placement::{Output, print_json};
use crate::terminal::out;
use crate::units::human_bytes;
use overview::{Overview, Tier};

/// Whom to ask.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    output: Output,
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`crate::error::Error::Unreachable`].
pub fn run(options: &Options) -> Result<()> {
    let answers = overview::ask(options.output.server.connection()?)?;
    if options.output.json {
        return print_json(&answers);
    }
    let overview: Overview = crate::placement::parse(answers)?;
    out!("{}", text(&overview, SystemClock::default().unix_us()));
    Ok(())
}

fn text(overview: &Overview, now_unix_us: u64) -> String {
    let Overview { server, ready, tiers, statements, placement, epoch, damaged_segments } = overview;
    let login = if server.authentication { "users must log in" } else { "open to everybody who reaches it" };
    let mut lines = vec![
        format!("Terrace {}, up {}, {}", server.version, span(server.uptime_us), ready.status),
        format!("{}, {login}; data in {}", server.flight_url, server.data_dir),
        format!(
            "{} resident; {}; statements: {} running, {} queued",
            human_bytes(server.resident_bytes),
            plural(server.sessions, "session"),
            statements.running,
            statements.queued
        ),
    ];
    lines.extend(ready.degraded.iter().map(|what| format!("DEGRADED: {what}")));
    lines.push(String::new());
    let rows: Vec<[String; 6]> = tiers.iter().map(tier_row).collect();
    lines.extend(columns(["tier", "state", "used", "budget", "of it", "segments"], &rows).lines().map(str::to_owned));
    lines.extend(tiers.iter().filter(|tier| tier.failing.is_some()).map(|tier| format!("FAILING: tier {}", tier.name)));
    lines.push(String::new());
    let frozen = if placement.frozen { ", frozen" } else { "" };
    lines.push(match (placement.epoch_under_way, epoch) {
        (Some(number), _) => format!("tiering {}{frozen}; epoch {number} is under way", placement.mode),
        (None, Some(epoch)) => format!(
            "tiering {}{frozen}; epoch {}, {} ago: {} of {}, {} moved, within {:.2} % of the optimum",
            placement.mode,
            epoch.id,
            span(now_unix_us.saturating_sub(epoch.unix_us)),
            epoch.moves_done,
            plural(epoch.moves, "move"),
            human_bytes(epoch.moved_bytes),
            epoch.gap * 100.0
        ),
        (None, None) => format!("tiering {}{frozen}; no epoch yet", placement.mode),
    });
    lines.push(match damaged_segments {
        0 => format!("{}, no known damage", plural(ready.tables, "table")),
        count => format!("DAMAGE: {}; run `terrace check` for what to do", plural(*count, "segment")),
    });
    lines.join("\n") + "\n"
}

fn tier_row(tier: &Tier) -> [String; 6] {
    let (budget, share) = match tier.budget_bytes {
        Some(bytes) => (human_bytes(bytes), percent(tier.used_bytes, bytes)),
        None => ("no limit".to_owned(), String::new()),
    };
    let used = human_bytes(tier.used_bytes);
    [tier.name.clone(), tier.state.clone(), used, budget, share, tier.segments.to_string()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn answers() -> serde_json::Value {
        json!({
            "server": {"version": "0.1.0", "uptime_us": 192_000_000, "flight_url": "grpc://127.0.0.1:31337", "data_dir": "/d",
                       "resident_bytes": 1 << 30, "sessions": 1, "authentication": false},
            "ready": {"status": "ready", "tiers": ["dram", "ssd"], "tables": 8},
            "tiers": [
                {"name": "dram", "state": "active", "used_bytes": 1 << 30, "budget_bytes": 4_u64 << 30, "segments": 12, "failing": null},
                {"name": "ssd", "state": "active", "used_bytes": 512, "budget_bytes": null, "segments": 3, "failing": null},
            ],
            "statements": {"running": 2, "queued": 1},
            "placement": {"mode": "auto", "frozen": false, "epoch_under_way": null},
            "epoch": {"id": 41, "unix_us": 1_000_000, "moves": 12, "moves_done": 11, "moved_bytes": 2048, "gap": 0.00012},
            "damaged_segments": 0,
        })
    }

    #[test]
    fn a_server_fits_on_a_screen() {
        let overview = crate::placement::parse(answers()).unwrap();
        let expected = "\
Terrace 0.1.0, up 3 min 12 s, ready
grpc://127.0.0.1:31337, open to everybody who reaches it; data in /d
1.00 GiB resident; 1 session; statements: 2 running, 1 queued

tier   state      used    budget  of it  segments
dram  active  1.00 GiB  4.00 GiB   25 %        12
ssd   active     512 B  no limit                3

tiering auto; epoch 41, 9.0 s ago: 11 of 12 moves, 2.00 KiB moved, within 0.01 % of the optimum
8 tables, no known damage
";
        assert_eq!(text(&overview, 10_000_000), expected);
    }

    #[test]
    fn what_is_wrong_is_in_capitals() {
        let mut answers = answers();
        answers["ready"] = json!({"status": "degraded", "degraded": ["writes are refused"], "tables": 1});
        answers["tiers"][1]["failing"] = json!({"since_unix_us": 1});
        answers["epoch"] = json!(null);
        answers["damaged_segments"] = json!(1);
        let text = text(&crate::placement::parse(answers).unwrap(), 0);
        for part in ["DEGRADED: writes are refused", "FAILING: tier ssd", "no epoch yet", "DAMAGE: 1 segment;"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
