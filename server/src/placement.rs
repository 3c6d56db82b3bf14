//! `terrace placement`: placement rules of a running server's tables, and control of its tiering loop.
//!
//! - [`tiering_commands`]: commands that explain placement, move segments and control the loop

mod tiering_commands;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::profiles::HttpOptions;
use crate::terminal::outln;
use crate::units::human_bytes;

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the rules, and how many bytes meet each of them
    List {
        /// schema.table, or a table of schema public [default: all tables]
        table: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Keep segments on a tier
    Pin {
        #[command(flatten)]
        scope: Scope,
        /// The tier
        #[arg(long, value_name = "TIER")]
        to: String,
        #[command(flatten)]
        copies: Copies,
        #[command(flatten)]
        output: Output,
    },
    /// Keep segments off a tier
    Exclude {
        #[command(flatten)]
        scope: Scope,
        /// The tier
        #[arg(long, value_name = "TIER")]
        from: String,
        #[command(flatten)]
        copies: Copies,
        #[command(flatten)]
        output: Output,
    },
    /// Prefer a tier for segments; counts as much as one more scan of them per epoch
    Prefer {
        #[command(flatten)]
        scope: Scope,
        /// The tier
        #[arg(long, value_name = "TIER")]
        on: String,
        #[command(flatten)]
        copies: Copies,
        #[command(flatten)]
        output: Output,
    },
    /// Drop the pin of just these columns and chunks; without any, all pins of the table
    Unpin {
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        output: Output,
    },
    /// Drop one rule of a table, or all
    Drop {
        /// schema.table, or a table of schema public
        table: String,
        /// Number of the rule, as `terrace placement list` shows it
        #[arg(long, value_name = "N", required_unless_present = "all", conflicts_with = "all")]
        rule: Option<u64>,
        /// All rules
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: Output,
    },
    #[command(flatten)]
    Tiering(tiering_commands::Action),
}

/// What a rule is about.
#[derive(Debug, Args)]
struct Scope {
    /// schema.table, or a table of schema public
    table: String,
    /// Columns, separated by commas [default: all, those to come included]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Vec<String>,
    /// Chunks by number, such as 3-9,12, and those that take their rows over [default: all, those to come included]
    #[arg(long, value_name = "3-9,12", value_delimiter = ',', conflicts_with = "condition", value_parser = span)]
    chunks: Vec<Span>,
    /// Chunks that may hold such rows, as a condition in SQL
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
}

/// The copies that a rule is about.
#[derive(Debug, Args)]
struct Copies {
    /// Only copies of this form: plain or packed [default: any]
    #[arg(long, value_name = "FORM")]
    form: Option<String>,
}

/// Chunks that follow each other.
#[derive(Debug, Clone, Copy, Serialize)]
struct Span {
    first: u64,
    last: u64,
}

/// Whom to ask, and how to answer.
#[derive(Debug, Args)]
pub(crate) struct Output {
    #[command(flatten)]
    pub(crate) server: HttpOptions,
    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn span(text: &str) -> std::result::Result<Span, String> {
    let number = |part: &str| part.trim().parse::<u64>().map_err(|_| format!("'{part}' is not the number of a chunk"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(Span { first: number(first)?, last: number(last)? })
}

/// A rule as the server shows it.
#[derive(Debug, Deserialize)]
struct Rule {
    table: String,
    rule: u64,
    definition: String,
    bytes: u64,
    met_bytes: u64,
    unmet_bytes: u64,
    overruled_bytes: u64,
    met: bool,
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`Error::Unreachable`].
pub fn run(options: &Options) -> Result<()> {
    match &options.action {
        Action::List { table, output } => list(table.as_deref(), output),
        Action::Pin { scope, to, copies, output } => make(rule("pin", to, copies), scope, output),
        Action::Exclude { scope, from, copies, output } => make(rule("exclude", from, copies), scope, output),
        Action::Prefer { scope, on, copies, output } => make(rule("prefer", on, copies), scope, output),
        Action::Unpin { scope, output } => {
            let order = with_scope(json!({}), scope);
            show_dropped(output.server.request("POST", &table_path(&scope.table, "unpin"), Some(&order))?, output)
        }
        Action::Drop { table, rule, output, .. } => {
            let one = rule.map_or_else(String::new, |rule| format!("/{rule}"));
            show_dropped(output.server.request("DELETE", &format!("{}{one}", path(table)), None)?, output)
        }
        Action::Tiering(action) => tiering_commands::run(action),
    }
}

fn list(table: Option<&str>, output: &Output) -> Result<()> {
    let path = table.map_or_else(|| "/api/v1/placement-rules".to_owned(), path);
    let mut items: Vec<Value> = Vec::new();
    output.server.pages(&path, |item| {
        items.push(item);
        Ok(())
    })?;
    if output.json {
        return print_json(&Value::Array(items));
    }
    let rules = items.into_iter().map(parse::<Rule>).collect::<Result<Vec<_>>>()?;
    if rules.is_empty() {
        outln!("no placement rules; `terrace placement pin --help` shows how to make one");
    }
    rules.iter().for_each(|rule| outln!("{}", line(rule)));
    Ok(())
}

/// The body of a request for a rule, without its scope.
fn rule(kind: &str, tier: &str, copies: &Copies) -> Value {
    match &copies.form {
        Some(form) => json!({ "kind": kind, "tier": tier, "form": form }),
        None => json!({ "kind": kind, "tier": tier }),
    }
}

fn make(rule: Value, scope: &Scope, output: &Output) -> Result<()> {
    let order = with_scope(rule, scope);
    let answer = output.server.request("POST", &path(&scope.table), Some(&order))?;
    if output.json {
        return print_json(&answer);
    }
    outln!("{}", line(&parse(answer)?));
    Ok(())
}

/// Adds the scope to the body of a request.
fn with_scope(mut order: Value, scope: &Scope) -> Value {
    if let Some(order) = order.as_object_mut() {
        if !scope.columns.is_empty() {
            order.insert("columns".to_owned(), json!(scope.columns));
        }
        if !scope.chunks.is_empty() {
            order.insert("chunks".to_owned(), json!(scope.chunks));
        }
        if let Some(condition) = &scope.condition {
            order.insert("where".to_owned(), json!(condition));
        }
    }
    order
}

fn show_dropped(answer: Value, output: &Output) -> Result<()> {
    if output.json {
        return print_json(&answer);
    }
    let numbers = answer.get("dropped").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match numbers {
        [] => outln!("no rule matched, so none was dropped"),
        _ => outln!("dropped: rule {}", numbers.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")),
    }
    Ok(())
}

fn line(rule: &Rule) -> String {
    let mut state = match (rule.met, rule.unmet_bytes) {
        (true, _) => format!("met, {} in place", human_bytes(rule.met_bytes)),
        (false, unmet) => {
            format!("NOT MET, {} of {} in place", human_bytes(rule.met_bytes), human_bytes(rule.met_bytes + unmet))
        }
    };
    if rule.overruled_bytes > 0 {
        let part = human_bytes(rule.overruled_bytes);
        let all = human_bytes(rule.bytes);
        state.push_str(&format!("; a later rule overrides this one for {part} of {all}"));
    }
    format!("{}  rule {}: {}\n    {state}", rule.table, rule.rule, rule.definition)
}

/// Parses the answer of a server.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::Server {
        code: "Unknown".to_owned(),
        message: format!("cannot read the server's answer ({e}); use a `terrace` of the server's version"),
    })
}

/// Prints an answer as JSON, unchanged.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    let text =
        serde_json::to_string_pretty(value).map_err(|e| Error::System(format!("cannot write the answer: {e}")))?;
    outln!("{text}");
    Ok(())
}

/// The path of a table's rules.
fn path(table: &str) -> String {
    table_path(table, "placement-rules")
}

/// The path of `what` of a table.
fn table_path(table: &str, what: &str) -> String {
    format!("/api/v1/tables/{}/{what}", path_part(table))
}

/// A name as a part of a path.
pub(crate) fn path_part(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let byte = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn chunks_are_numbers_and_spans() {
        assert_eq!((span("7").unwrap().first, span("7").unwrap().last), (7, 7));
        assert_eq!((span("3-9").unwrap().first, span("3-9").unwrap().last), (3, 9));
        assert!(span("3-x").unwrap_err().contains("'x' is not the number"));
        assert_eq!(path("s.täb le"), "/api/v1/tables/s.t%C3%A4b%20le/placement-rules");
    }
}
