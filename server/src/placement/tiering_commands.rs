//! Commands of `terrace placement` that explain placement, move segments and control the tiering loop.

use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};
use terrace_tier_store::placement::TieringMode;

use super::{Output, Scope, parse, print_json, table_path, with_scope};
use crate::error::Result;
use crate::terminal::outln;
use crate::units::human_bytes;

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// Why segments lie where they lie and what would change it, or what a query would read from where
    Explain {
        #[command(flatten)]
        target: ExplainTarget,
        #[command(flatten)]
        output: Output,
    },
    /// Show or set what the tiering loop does: move, only advise, or nothing
    Mode {
        /// The mode; without: show what holds
        mode: Option<Mode>,
        /// Of this table instead of all
        #[arg(long, value_name = "TABLE", requires = "mode")]
        table: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Run an epoch now, or only say what it would do
    Epoch {
        /// Decide and explain, move nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: Output,
    },
    /// End the epoch or order under way after the move it is at; what was moved stays
    CancelEpoch {
        #[command(flatten)]
        output: Output,
    },
    /// Bring segments to a tier now, once; a later epoch may find a better use for the room
    BringBack {
        #[command(flatten)]
        scope: Scope,
        /// The tier
        #[arg(long, value_name = "TIER")]
        to: String,
        #[command(flatten)]
        output: Output,
    },
    /// Bring segments into memory as far as it pays, as if they were read once more in every epoch
    WarmUp {
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        output: Output,
    },
    /// Bring everything to where it lay after an epoch
    RollBack {
        /// The epoch, as in system.epochs
        #[arg(long, value_name = "N")]
        to_epoch: u64,
        #[command(flatten)]
        output: Output,
    },
    /// Nothing moves until `terrace placement unfreeze`
    Freeze {
        #[command(flatten)]
        output: Output,
    },
    /// Lift the freeze
    Unfreeze {
        #[command(flatten)]
        output: Output,
    },
}

/// A table with a scope, or a query.
#[derive(Debug, Args)]
pub(super) struct ExplainTarget {
    /// A query instead of a table; it is planned, not run
    #[arg(long, value_name = "SQL", conflicts_with_all = ["table", "columns", "chunks", "condition"])]
    query: Option<String>,
    /// schema.table, or a table of schema public
    #[arg(required_unless_present = "query")]
    table: Option<String>,
    /// Columns, separated by commas [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Vec<String>,
    /// Chunks by number, such as 3-9,12 [default: all]
    #[arg(long, value_name = "3-9,12", value_delimiter = ',', conflicts_with = "condition", value_parser = super::span)]
    chunks: Vec<super::Span>,
    /// Chunks that may hold such rows, as a condition in SQL
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
}

/// A mode of the loop.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Mode {
    /// It moves segments
    Auto,
    /// It logs what it would move
    Advise,
    /// It does nothing
    Off,
}

impl From<Mode> for TieringMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Auto => Self::Auto,
            Mode::Advise => Self::Advise,
            Mode::Off => Self::Off,
        }
    }
}

/// A segment as the server explains it.
#[derive(Debug, Deserialize)]
struct Explained {
    table: String,
    chunk: u64,
    column: String,
    bytes: u64,
    why: String,
}

/// A part of what a query reads.
#[derive(Debug, Deserialize)]
struct Part {
    table: String,
    column: String,
    tier: String,
    chunks: u64,
    bytes: u64,
    read_us: f64,
    fast_us: f64,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    what: String,
    segments: u64,
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Move {
    table: String,
    chunk: u64,
    column: String,
    from: String,
    to: String,
    status: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Placement {
    mode: String,
    frozen: bool,
    epoch_under_way: Option<u64>,
    tables: Vec<TableTiering>,
}

#[derive(Debug, Deserialize)]
struct TableTiering {
    table: String,
    mode: String,
}

/// Runs the command.
pub(super) fn run(action: &Action) -> Result<()> {
    match action {
        Action::Explain { target, output } => explain(target, output),
        Action::Mode { mode, table, output } => set_mode(*mode, table.as_deref(), output),
        Action::Epoch { dry_run, output } => {
            let answer = output.server.request("POST", "/api/v1/epochs", Some(&json!({ "dry_run": dry_run })))?;
            show(output, answer, |answer| list(answer, "moves", move_line, "nothing to move"))
        }
        Action::CancelEpoch { output } => {
            let answer = output.server.request("POST", "/api/v1/epochs/cancel", None)?;
            show(output, answer, |answer| {
                let epoch = answer.get("cancelled").and_then(Value::as_u64).unwrap_or_default();
                outln!("epoch {epoch} ends after its current move; system.moves lists the moves that it skipped");
                Ok(())
            })
        }
        Action::BringBack { scope, to, output } => {
            order(&table_path(&scope.table, "bring-back"), &with_scope(json!({ "tier": to }), scope), output)
        }
        Action::WarmUp { scope, output } => {
            order(&table_path(&scope.table, "warm-up"), &with_scope(json!({}), scope), output)
        }
        Action::RollBack { to_epoch, output } => {
            order("/api/v1/placement/roll-back", &json!({ "epoch": to_epoch }), output)
        }
        Action::Freeze { output } => change(&json!({ "frozen": true }), output),
        Action::Unfreeze { output } => change(&json!({ "frozen": false }), output),
    }
}

fn explain(target: &ExplainTarget, output: &Output) -> Result<()> {
    if let Some(sql) = &target.query {
        let answer = output.server.request("POST", "/api/v1/explain-placement", Some(&json!({ "sql": sql })))?;
        return show(output, answer, |answer| {
            let why = answer.get("why").and_then(Value::as_str).unwrap_or_default().to_owned();
            list(answer, "parts", part_line, "")?;
            outln!("{why}");
            Ok(())
        });
    }
    let columns = target.columns.clone();
    let chunks = target.chunks.clone();
    let condition = target.condition.clone();
    let scope = Scope { table: target.table.clone().unwrap_or_default(), columns, chunks, condition };
    let order = with_scope(json!({}), &scope);
    let answer = output.server.request("POST", &table_path(&scope.table, "explain-placement"), Some(&order))?;
    show(output, answer, |answer| {
        list(answer, "items", explained_line, "no segment matches; recent inserts are not yet sealed into chunks")
    })
}

fn set_mode(mode: Option<Mode>, table: Option<&str>, output: &Output) -> Result<()> {
    match (mode.map(TieringMode::from), table) {
        (None, _) => {
            let answer = output.server.request("GET", "/api/v1/placement", None)?;
            show(output, answer, placement_lines)
        }
        (Some(mode), None) => change(&json!({ "mode": mode }), output),
        (Some(mode), Some(table)) => {
            let answer = output.server.request("PUT", &table_path(table, "tiering"), Some(&json!({ "mode": mode })))?;
            show(output, answer, |answer| {
                let set: TableTiering = parse(answer)?;
                outln!("tiering of {} is {}", set.table, set.mode);
                Ok(())
            })
        }
    }
}

fn change(order: &Value, output: &Output) -> Result<()> {
    let answer = output.server.request("PUT", "/api/v1/placement", Some(order))?;
    show(output, answer, placement_lines)
}

fn order(path: &str, order: &Value, output: &Output) -> Result<()> {
    let answer = output.server.request("POST", path, Some(order))?;
    show(output, answer, |answer| list(answer, "outcome", outcome_line, "nothing to move"))
}

fn show(output: &Output, answer: Value, lines: impl FnOnce(Value) -> Result<()>) -> Result<()> {
    if output.json { print_json(&answer) } else { lines(answer) }
}

/// Prints a line per item of a list in an answer.
fn list<T: serde::de::DeserializeOwned>(
    mut answer: Value,
    name: &str,
    line: impl Fn(T) -> String,
    none: &str,
) -> Result<()> {
    let items: Vec<T> = parse(answer.get_mut(name).map(Value::take).unwrap_or_default())?;
    if items.is_empty() && !none.is_empty() {
        outln!("{none}");
    }
    items.into_iter().for_each(|item| outln!("{}", line(item)));
    Ok(())
}

fn placement_lines(answer: Value) -> Result<()> {
    let placement: Placement = parse(answer)?;
    outln!("tiering is {}{}", placement.mode, if placement.frozen { "; placement is frozen" } else { "" });
    if let Some(epoch) = placement.epoch_under_way {
        outln!("epoch {epoch} is running");
    }
    placement.tables.iter().for_each(|table| outln!("tiering of {} is {}", table.table, table.mode));
    Ok(())
}

fn explained_line(item: Explained) -> String {
    format!("{}  chunk {}, {} ({}): {}", item.table, item.chunk, item.column, human_bytes(item.bytes), item.why)
}

fn part_line(part: Part) -> String {
    let ms = |us: f64| format!("{:.2} ms", us / 1e3);
    let Part { table, column, tier, chunks, .. } = &part;
    let bytes = human_bytes(part.bytes);
    let read = ms(part.read_us);
    let fast = ms(part.fast_us);
    format!("{table}.{column}: {chunks} chunks on {tier}, {bytes}, {read}; on the fastest tier {fast}")
}

fn outcome_line(outcome: Outcome) -> String {
    format!("{} segments, {}: {}", outcome.segments, human_bytes(outcome.bytes), outcome.what)
}

fn move_line(moved: Move) -> String {
    let Move { table, chunk, column, from, to, status, reason } = moved;
    format!("{table}  chunk {chunk}, {column}: {from} -> {to}, {status}: {reason}")
}
