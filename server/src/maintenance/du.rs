//! `terrace du`: where the bytes of a data directory are.

use clap::Args;
use terrace_tier_store::store::{self, TableUsage, Usage};

use super::{Place, print_json};
use crate::error::Result;
use crate::layout::columns;
use crate::terminal::out;
use crate::units::human_bytes;

/// What to report on.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let usage: Usage = match &options.place.data_dir {
        Some(dir) => store::usage(dir)?,
        None => options.place.ask("GET", "/api/v1/usage", None)?,
    };
    if options.json {
        return print_json(&usage);
    }
    out!("{}", text(&usage));
    Ok(())
}

fn text(usage: &Usage) -> String {
    let row = |t: &TableUsage| {
        [
            t.table.clone(),
            t.rows.to_string(),
            t.chunks.to_string(),
            human_bytes(t.file_bytes),
            t.delta_rows.to_string(),
            human_bytes(t.delta_bytes),
            human_bytes(t.catalog_bytes),
        ]
    };
    let rows: Vec<_> = usage.tables.iter().map(row).collect();
    let mut out = columns(["table", "rows", "chunks", "files", "delta rows", "delta", "catalog"], &rows);
    let files: u64 = usage.tables.iter().map(|t| t.file_bytes).sum();
    out.push_str(&format!(
        "\nfiles {}, catalog file {}, files without a table {} ({})\n",
        human_bytes(files),
        human_bytes(usage.catalog_file_bytes),
        human_bytes(usage.unowned_bytes),
        usage.unowned_files
    ));
    if usage.broken_tables > 0 {
        out.push_str(&format!(
            "{} tables cannot be loaded; run `terrace check` for the reasons\n",
            usage.broken_tables
        ));
    }
    out
}
