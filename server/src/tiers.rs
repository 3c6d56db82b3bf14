//! `terrace tiers`: lists, adds, changes, drains and drops tiers of a running server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use terrace_tier_store::store::NewTierSpec;

use crate::error::{Error, Result};
use crate::placement::{Output, parse, path_part, print_json};
use crate::terminal::outln;
use crate::units::{Size, human_bytes};

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the tiers, fastest first
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Set the budget of a tier, until the server stops
    Budget {
        /// The tier
        tier: String,
        /// Bytes, a size, or a percentage of the bytes of all sealed data
        budget: Size,
        #[command(flatten)]
        output: Output,
    },
    /// Set what the loop's own moves read from the device of a tier, and write to it, per second, until the server stops
    RateLimit {
        /// The tier
        tier: String,
        /// Bytes per second, such as 100MiB; 0: no limit
        rate: Size,
        #[command(flatten)]
        output: Output,
    },
    /// Add a memory tier, until the server stops
    Add {
        #[command(flatten)]
        new: New,
        #[command(flatten)]
        output: Output,
    },
    /// Let a tier take nothing more; what lies there leaves with the next epochs
    Drain {
        /// The tier
        tier: String,
        #[command(flatten)]
        output: Output,
    },
    /// Let a tier that was drained take segments again
    Resume {
        /// The tier
        tier: String,
        #[command(flatten)]
        output: Output,
    },
    /// Take a drained tier away
    Drop {
        /// The tier
        tier: String,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
struct New {
    /// Its name: lower-case letters, digits and _
    tier: String,
    /// A pool file on a DAX mount, a folder there, a file on tmpfs, or a devdax device
    #[arg(long, value_name = "PATH", required_unless_present = "emulated", conflicts_with = "emulated")]
    path: Option<PathBuf>,
    /// Memory of the server process in place of a device
    #[arg(long)]
    emulated: bool,
    /// Size of the pool
    #[arg(long, value_name = "SIZE")]
    capacity: Size,
    /// Bytes that segments may take [default: all of the pool]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,
    /// Slow it down to the speed of a persistent memory module, for experiments
    #[arg(long)]
    slow: bool,
}

/// A tier as the server shows it.
#[derive(Debug, Deserialize)]
struct Tier {
    name: String,
    kind: String,
    emulated: bool,
    description: String,
    state: String,
    failing: Option<Failing>,
    rate_limit_bytes_per_s: Option<u64>,
    budget_bytes: Option<u64>,
    used_bytes: u64,
    placed_bytes: u64,
    segments: u64,
    price_per_gb: Option<f64>,
}

/// The reason for which moves to and from a tier pause.
#[derive(Debug, Deserialize)]
struct Failing {
    retry_unix_us: u64,
    error: String,
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`Error::Unreachable`].
pub fn run(options: &Options) -> Result<()> {
    match &options.action {
        Action::List { output } => {
            let mut items: Vec<Value> = Vec::new();
            output.server.pages("/api/v1/tiers", |item| {
                items.push(item);
                Ok(())
            })?;
            if output.json {
                return print_json(&Value::Array(items));
            }
            items.into_iter().try_for_each(print)
        }
        Action::Budget { tier, budget, output } => change(tier, &json!({ "budget": budget }), output),
        Action::RateLimit { tier, rate, output } => change(tier, &json!({ "rate_limit": rate }), output),
        Action::Add { new, output } => {
            let New { tier: name, path, emulated, capacity, budget, slow } = new;
            // Resolve the path in the caller's working directory, not the server's.
            let path = path.as_ref().map(std::path::absolute).transpose();
            let path = path.map_err(|e| Error::System(format!("cannot resolve the path: {e}")))?;
            let name = name.clone();
            let emulated = *emulated;
            let capacity = *capacity;
            let budget = *budget;
            let slow = *slow;
            let order = serde_json::to_value(NewTierSpec { name, path, emulated, capacity, budget, slow });
            let order = order.map_err(|e| Error::System(format!("cannot write the request: {e}")))?;
            show(output.server.request("POST", "/api/v1/tiers", Some(&order))?, output)
        }
        Action::Drain { tier, output } => change(tier, &json!({ "draining": true }), output),
        Action::Resume { tier, output } => change(tier, &json!({ "draining": false }), output),
        Action::Drop { tier, output } => {
            let answer = output.server.request("DELETE", &path(tier), None)?;
            if output.json {
                return print_json(&answer);
            }
            outln!("dropped: {tier}");
            Ok(())
        }
    }
}

fn path(tier: &str) -> String {
    format!("/api/v1/tiers/{}", path_part(tier))
}

fn change(tier: &str, change: &Value, output: &Output) -> Result<()> {
    show(output.server.request("PUT", &path(tier), Some(change))?, output)
}

fn show(answer: Value, output: &Output) -> Result<()> {
    if output.json { print_json(&answer) } else { print(answer) }
}

fn print(answer: Value) -> Result<()> {
    outln!("{}", text(&parse(answer)?, crate::unix_us()));
    Ok(())
}

fn text(tier: &Tier, now_unix_us: u64) -> String {
    let Tier { name, kind, emulated, description, state, failing, .. } = tier;
    let Tier { budget_bytes, used_bytes, placed_bytes, segments, rate_limit_bytes_per_s, .. } = tier;
    let price = tier.price_per_gb.map_or_else(String::new, |price| format!(", {price} per GB"));
    let rate =
        rate_limit_bytes_per_s.map_or_else(String::new, |rate| format!(", moves at up to {}/s", human_bytes(rate)));
    let budget = budget_bytes.map_or_else(|| "no limit".to_owned(), |bytes| format!("budget {}", human_bytes(bytes)));
    let emulated = if *emulated { ", emulated" } else { "" };
    let failing = failing.as_ref().map_or_else(String::new, |failing| {
        let when = match failing.retry_unix_us.saturating_sub(now_unix_us).div_ceil(1_000_000) {
            0 => "the next one tries again".to_owned(),
            seconds => format!("tried again in {seconds} s"),
        };
        format!("\n    FAILING, moves pause: {}; {when}", failing.error)
    });
    format!(
        "{name}  {kind}{emulated}, {state}, {budget}, {} used, {segments} segments of {}{rate}{price}\n    {description}{failing}",
        human_bytes(*used_bytes),
        human_bytes(*placed_bytes)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failing_tier_says_so_and_when_it_is_tried_again() {
        let failing = json!({"since_unix_us": 1, "retry_unix_us": 41_000_000, "error": "cannot write /dev/pmem0"});
        let tier = |failing| {
            let answer = json!({
                "name": "nvm", "kind": "nvm", "emulated": false, "description": "a pool", "state": "active",
                "failing": failing, "rate_limit_bytes_per_s": null, "price_per_gb": null, "budget_bytes": 1024, "used_bytes": 512, "placed_bytes": 512, "segments": 1,
            });
            parse::<Tier>(answer).unwrap()
        };
        let said = text(&tier(failing), 1_500_000);
        assert!(
            said.ends_with("a pool\n    FAILING, moves pause: cannot write /dev/pmem0; tried again in 40 s"),
            "{said}"
        );
        assert!(text(&tier(Value::Null), 0).ends_with("1 segments of 512 B\n    a pool"));
    }
}
