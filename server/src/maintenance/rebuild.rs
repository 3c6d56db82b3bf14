//! `terrace rebuild-catalog`: a catalog from the table files alone.

use std::path::PathBuf;

use clap::Args;
use terrace_tier_store::store::{self, RebuildReport, RebuiltTable};

use super::{columns, print_json, with_bar};
use crate::error::Result;
use crate::units::human_bytes;

/// What to rebuild.
#[derive(Debug, Args)]
pub struct Options {
    /// The data directory; no server may have it open
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Write the catalog; without, only show what would be in it
    #[arg(long)]
    yes: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let report = with_bar("reading", |watch| {
        Ok(store::rebuild_catalog(&options.data_dir, options.yes, crate::unix_us(), watch)?)
    })?;
    if options.json {
        return print_json(&report);
    }
    print!("{}", text(&report));
    Ok(())
}

fn text(report: &RebuildReport) -> String {
    let row = |t: &RebuiltTable| [t.table.clone(), t.rows.to_string(), t.chunks.to_string(), human_bytes(t.file_bytes)];
    let rows: Vec<_> = report.tables.iter().map(row).collect();
    let mut out = columns(["table", "rows", "chunks", "files"], &rows);
    for skipped in &report.skipped {
        out.push_str(&format!("\nleft out: {}\n  {}\n", skipped.path.display(), skipped.why));
    }
    out.push_str(&format!(
        "\nViews and external tables found in the old catalog: {}.\nNot in the files, and so lost: rows that were not yet \
         sealed, deletions of rows, the history of moves.\n",
        report.objects
    ));
    out.push_str(&match (report.written, &report.old_catalog) {
        (false, _) => "Nothing was changed; with --yes the catalog is written.\n".to_owned(),
        (true, Some(old)) => format!("The catalog was written; the old one is {}.\n", old.display()),
        (true, None) => "The catalog was written.\n".to_owned(),
    });
    out
}
