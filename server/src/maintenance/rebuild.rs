//! `terrace rebuild-catalog`: a catalog from the table files alone.

use std::path::PathBuf;

use clap::Args;
use terrace_tier_store::store::{self, Difference, RebuildReport, RebuiltTable};

use super::{print_json, with_bar};
use crate::error::Result;
use crate::layout::columns;
use crate::terminal::out;
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
    out!("{}", text(&report));
    Ok(())
}

fn text(report: &RebuildReport) -> String {
    let row = |t: &RebuiltTable| [t.table.clone(), t.rows.to_string(), t.chunks.to_string(), human_bytes(t.file_bytes)];
    let rows: Vec<_> = report.tables.iter().map(row).collect();
    let mut out = columns(["table", "rows", "chunks", "files"], &rows);
    for skipped in &report.skipped {
        out.push_str(&format!("\nleft out: {}\n  {}\n", skipped.path.display(), skipped.why));
    }
    out.push_str(&format!("\nViews and external tables found in the old catalog: {}.\n", report.objects));
    out.push_str(&differences(report));
    for table in report.tables.iter().filter(|table| table.key_released) {
        out.push_str(&format!(
            "The primary key of {0} is not enforced any more, as deleted rows may be back; remove duplicates, then use ALTER \
             TABLE {0} SET (enforce_primary_key = true).\n",
            table.table
        ));
    }
    out.push_str(&match (report.written, &report.old_catalog) {
        (false, _) => "Nothing was changed; run it with --yes to write the catalog.\n".to_owned(),
        (true, Some(old)) => format!("The catalog was written; the old one is {}.\n", old.display()),
        (true, None) => "The catalog was written.\n".to_owned(),
    });
    out
}

/// Rows and files that the rebuilt tables may have too many or too few of.
fn differences(report: &RebuildReport) -> String {
    let lost = "The history of moves and the heat of segments are lost, because the files do not contain them.\n";
    let compared = report.tables.iter().map(|t| Some((&t.table, t.difference?))).collect::<Option<Vec<_>>>();
    let Some(compared) = compared.filter(|compared| !compared.is_empty()) else {
        return format!(
            "Deletions of rows are not in the files: deleted rows come back, also the old ones of each UPDATE. So do rows of \
             loads that did not end. Rows that were not yet sealed are lost. The old catalog cannot be read, so nobody can \
             say how many; compare the counts above with what you know.\n{lost}"
        );
    };
    let mut out = String::new();
    for (table, difference) in compared {
        let Difference { undeleted_rows, unnamed_rows, lost_rows, missing_rows } = difference;
        for (rows, what) in [
            (undeleted_rows, "deleted rows come back, the old ones of each UPDATE included"),
            (
                unnamed_rows,
                "rows come back from files that the old catalog does not list: unfinished loads, rewritten chunks",
            ),
            (lost_rows, "rows are lost: they were not yet sealed into files"),
            (missing_rows, "rows are lost: their files are missing or damaged"),
        ] {
            if rows > 0 {
                out.push_str(&format!("{table}: {rows} {what}.\n"));
            }
        }
    }
    if let Some(rows @ 1..) = report.rows_of_lost_tables {
        out.push_str(&format!("{rows} rows are lost, of tables whose description is missing.\n"));
    }
    if out.is_empty() && report.skipped.is_empty() {
        out.push_str("According to the old catalog, no deleted row comes back and no row is lost.\n");
    }
    out + lost
}
