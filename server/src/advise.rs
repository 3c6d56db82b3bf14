//! `terrace advise`: the predicted effect of other budgets on the queries that ran last.

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Result;
use crate::placement::{parse, print_json};
use crate::profiles::HttpOptions;
use crate::terminal::out;
use crate::units::{Size, Span, human_bytes};

/// What to ask.
#[derive(Debug, Args)]
pub struct Options {
    /// Points of the curve, from nothing to a budget that holds all
    #[arg(long, value_name = "N", default_value_t = 11)]
    points: usize,
    /// What so many further bytes would bring
    #[arg(long, value_name = "SIZE")]
    more: Option<Size>,
    /// Find the cheapest budgets for it: 1.2 (times the time with all in memory), or a mean time such as 30ms
    #[arg(long, value_name = "GOAL")]
    goal: Option<String>,
    /// Prices per GB (10^9 bytes), such as dram:3.5,ssd:0.1 [default: tiers.NAME.price_per_gb of the server]
    #[arg(long, value_name = "TIER:PRICE,..")]
    prices: Option<String>,
    /// Only queries that began within this time [default: all that the server remembers]
    #[arg(long, value_name = "TIME")]
    last: Option<Span>,
    #[command(flatten)]
    server: HttpOptions,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Answer {
    tier: String,
    total_bytes: u64,
    statements: u64,
    measured_us: Option<f64>,
    now: Point,
    curve: Vec<Point>,
    knee: Option<Point>,
    more: Option<More>,
    cheapest: Option<Configuration>,
    never_read: Vec<Unread>,
    notes: Vec<String>,
    why: String,
}

#[derive(Debug, Deserialize)]
struct Point {
    budget_bytes: u64,
    share: f64,
    cold_bytes: u64,
    read_us: f64,
    mean_us: Option<f64>,
    p95_us: Option<f64>,
    slowdown: Option<f64>,
    unmet_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct More {
    point: Point,
}

#[derive(Debug, Deserialize)]
struct Configuration {
    budgets: Vec<(String, u64)>,
    cost: Option<f64>,
    mean_us: Option<f64>,
    slowdown: f64,
}

#[derive(Debug, Deserialize)]
struct Unread {
    table: String,
    column: String,
    bytes: u64,
    memory_bytes: u64,
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`crate::error::Error::Unreachable`].
pub fn run(options: &Options) -> Result<()> {
    let answer = options.server.request("GET", &path(options), None)?;
    if options.json {
        return print_json(&answer);
    }
    out!("{}", render(answer)?);
    Ok(())
}

fn path(options: &Options) -> String {
    let mut path = format!("/api/v1/advisor?points={}", options.points);
    let texts = [
        ("more", options.more.map(|more| more.to_string())),
        ("goal", options.goal.clone()),
        ("prices", options.prices.clone()),
        ("last", options.last.map(|last| last.to_string())),
    ];
    for (name, text) in texts.into_iter().filter_map(|(name, text)| Some((name, text?))) {
        path.push_str(&format!("&{name}={}", encoded(&text)));
    }
    path
}

/// Encodes text for a query string.
fn encoded(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b".,:-_".contains(&byte);
    text.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn render(answer: Value) -> Result<String> {
    let answer: Answer = parse(answer)?;
    let mut lines = vec![
        format!("{} queries, measured mean time {}", answer.statements, time(answer.measured_us)),
        format!(
            "{:>12}{:>8}{:>12}{:>12}{:>11}{:>12}{:>14}",
            format!("{} budget", answer.tier),
            "share",
            "mean",
            "p95",
            "x fastest",
            "cold bytes",
            "reading/epoch"
        ),
    ];
    let marked = |point: &Point| {
        let is = |other: &Point| other.budget_bytes == point.budget_bytes;
        let mut marks = Vec::new();
        if is(&answer.now) {
            marks.push("now".to_owned());
        }
        if answer.more.as_ref().is_some_and(|more| is(&more.point)) {
            marks.push("more".to_owned());
        }
        if answer.knee.as_ref().is_some_and(is) {
            marks.push("knee".to_owned());
        }
        if point.unmet_bytes > 0 {
            marks.push(format!("rules need {} more", human_bytes(point.unmet_bytes)));
        }
        marks.join(", ")
    };
    let mut points: Vec<&Point> = answer.curve.iter().chain([&answer.now]).collect();
    points.extend(answer.more.iter().map(|more| &more.point));
    points.sort_by_key(|point| point.budget_bytes);
    points.dedup_by_key(|point| point.budget_bytes);
    for point in points {
        let line = format!(
            "{:>12}{:>8}{:>12}{:>12}{:>11}{:>12}{:>14}  {}",
            human_bytes(point.budget_bytes),
            format!("{:.0} %", point.share * 100.0),
            time(point.mean_us),
            time(point.p95_us),
            point.slowdown.map_or_else(|| "-".to_owned(), |slowdown| format!("{slowdown:.2}")),
            human_bytes(point.cold_bytes),
            time(Some(point.read_us)),
            marked(point)
        );
        lines.push(line.trim_end().to_owned());
    }
    if let Some(found) = &answer.cheapest {
        let budgets = found.budgets.iter().map(|(tier, budget)| format!("{} {tier}", human_bytes(*budget)));
        let cost = found.cost.map_or_else(String::new, |cost| format!(", costs {cost:.2}"));
        lines.push(format!(
            "for the goal: {}{cost}, mean time {}, {:.2} times the fastest",
            budgets.collect::<Vec<_>>().join(", "),
            time(found.mean_us),
            found.slowdown
        ));
    }
    if !answer.never_read.is_empty() {
        lines.push("never read:".to_owned());
    }
    for unread in answer.never_read.iter().take(20) {
        let in_memory = match unread.memory_bytes {
            0 => String::new(),
            bytes => format!(", {} of it in memory", human_bytes(bytes)),
        };
        lines.push(format!("  {}.{}, {}{in_memory}", unread.table, unread.column, human_bytes(unread.bytes)));
    }
    if let Some(left) = answer.never_read.len().checked_sub(20).filter(|left| *left > 0) {
        lines.push(format!("  and {left} more columns"));
    }
    lines.extend(answer.notes.iter().map(|note| format!("note: {note}")));
    lines.push(match answer.total_bytes {
        0 => answer.why,
        _ => format!("{}.", answer.why),
    });
    Ok(lines.join("\n") + "\n")
}

fn time(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us >= 1e6 => format!("{:.2} s", us / 1e6),
        Some(us) if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        Some(us) => format!("{us:.0} us"),
    }
}
