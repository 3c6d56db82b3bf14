//! `terrace check`: verifies everything that is stored.

use clap::Args;
use terrace_tier_store::store::{self, CheckOptions, CheckReport, CheckedTable, Finding, Severity};

use super::{Place, RemoteTask, print_json, with_bar};
use crate::error::{Error, Result};
use crate::layout::columns;
use crate::terminal::out;
use crate::units::human_bytes;

const TASK: RemoteTask = RemoteTask { what: "checking", kind: "check", path: "/api/v1/check" };

/// What to check.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Only sizes and headers of files, not their contents
    #[arg(long)]
    quick: bool,
    /// Heal damage from copies in DRAM or NVM, which only a running server has
    #[arg(long, conflicts_with_all = ["data_dir", "quick"])]
    repair: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Damage`] when something is damaged; the report is on stdout.
pub fn run(options: &Options) -> Result<()> {
    let report: CheckReport = match &options.place.data_dir {
        Some(dir) => with_bar("checking", |watch| {
            Ok(store::check(dir, CheckOptions { quick: options.quick, repair: false }, watch)?)
        })?,
        None => {
            let order = serde_json::json!({ "quick": options.quick, "repair": options.repair });
            options.place.order(&TASK, &order)?
        }
    };
    if options.json {
        print_json(&report)?;
    } else {
        out!("{}", text(&report));
    }
    match report.count(Severity::Damage) {
        0 => Ok(()),
        1 => Err(Error::Damage("1 finding".to_owned())),
        findings => Err(Error::Damage(format!("{findings} findings"))),
    }
}

fn text(report: &CheckReport) -> String {
    let state = |table: &CheckedTable| match table.damaged {
        0 => "sound".to_owned(),
        n => format!("{n} damaged"),
    };
    let row = |t: &CheckedTable| {
        [t.table.clone(), t.rows.to_string(), t.chunks.to_string(), human_bytes(t.file_bytes), state(t)]
    };
    let rows: Vec<_> = report.tables.iter().map(row).collect();
    let mut out = columns(["table", "rows", "chunks", "files", "state"], &rows);
    report.findings.iter().for_each(|finding| out.push_str(&describe(finding)));
    out.push_str(&match report.quick {
        true => "\nOnly sizes and headers were checked; run it without --quick to check contents too.\n".to_owned(),
        false => format!("\n{} verified.\n", human_bytes(report.verified_bytes)),
    });
    out
}

fn describe(finding: &Finding) -> String {
    let kind = match finding.severity {
        Severity::Damage => "DAMAGE",
        Severity::Healed => "healed",
        Severity::Notice => "note",
    };
    let mut place = finding.path.display().to_string();
    if let Some(table) = &finding.table {
        place.push_str(&format!(", table {table}"));
    }
    if let Some(chunk) = finding.chunk {
        place.push_str(&format!(", chunk {chunk}"));
    }
    if let Some(column) = &finding.column {
        place.push_str(&format!(", column '{column}'"));
    }
    format!("\n{kind}: {place}\n  {}\n  -> {}\n", finding.what, finding.advice)
}
