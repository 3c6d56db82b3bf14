//! `terrace moves`: the log of moves as a file. The HTTP export writes the same lines.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use terrace_tier_store::placement::MoveRecord;
use terrace_tier_store::tier::codec::Form;

use crate::error::{Error, Result};
use crate::profiles::HttpOptions;
use crate::terminal;

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write every move that is logged, newest first, a line each
    Export {
        /// Where to write [default: standard output]
        file: Option<PathBuf>,
        /// The form of the lines
        #[arg(long, value_enum, default_value_t = Format::Jsonl)]
        format: Format,
        #[command(flatten)]
        server: HttpOptions,
    },
}

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a first line of names.
    Csv,
}

/// Names of the columns of [`csv_line`].
pub(crate) const CSV_HEAD: &str = "epoch,number,table,chunk,column,from,to,segments,bytes,benefit_us,benefit_ns_per_byte,\
price_ns_per_byte,runner_up,runner_up_us,status,why,unix_us,took_us,measured_us,measured_epochs,condition,reason,\
from_form,to_form\n";

/// A move as a line of JSON.
pub(crate) fn json_line(record: &MoveRecord) -> String {
    let mut line = serde_json::to_string(record).unwrap_or_default();
    line.push('\n');
    line
}

/// A move as a line of comma-separated values.
pub(crate) fn csv_line(record: &MoveRecord) -> String {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let form = |form: Option<Form>| form.map_or_else(String::new, |form| form.to_string());
    let values = [
        record.epoch.to_string(),
        record.number.to_string(),
        quoted(&record.table),
        record.chunk.to_string(),
        quoted(&record.column),
        quoted(&record.from),
        quoted(&record.to),
        record.segments.to_string(),
        record.bytes.to_string(),
        record.benefit_us.to_string(),
        record.benefit_ns_per_byte.to_string(),
        optional(record.price_ns_per_byte),
        quoted(record.runner_up.as_deref().unwrap_or_default()),
        optional(record.runner_up_us),
        record.status.name().to_owned(),
        quoted(record.why.as_deref().unwrap_or_default()),
        record.unix_us.to_string(),
        record.took_us.to_string(),
        optional(record.measured_us),
        record.measured_epochs.to_string(),
        quoted(&record.condition),
        quoted(&record.reason),
        form(record.from_form),
        form(record.to_form),
    ];
    values.join(",") + "\n"
}

/// Quotes a text by RFC 4180 where necessary.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Runs the command.
///
/// # Errors
/// Refusals of the server, with its message; [`Error::Unreachable`]; when the file cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let Action::Export { file, format, server } = &options.action;
    let mut out: Box<dyn Write> = match file {
        Some(path) => {
            let created = std::fs::File::create(path);
            Box::new(created.map_err(|e| Error::file(path, format!("cannot create it: {e}")))?)
        }
        None => Box::new(terminal::Output),
    };
    let mut write = |text: &str| {
        out.write_all(text.as_bytes()).map_err(|e| match terminal::is_closed() {
            true => Error::OutputClosed,
            false => Error::System(format!("cannot write the moves: {e}")),
        })
    };
    if *format == Format::Csv {
        write(CSV_HEAD)?;
    }
    server.pages("/api/v1/moves", |item| {
        let record: MoveRecord = serde_json::from_value(item).map_err(|e| {
            Error::System(format!("cannot read the server's answer ({e}); use a `terrace` of the server's version"))
        })?;
        write(&if *format == Format::Csv { csv_line(&record) } else { json_line(&record) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(CSV_HEAD.matches(',').count(), 23);
    }
}
