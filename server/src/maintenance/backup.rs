//! `terrace backup` and `terrace restore`: all tables as of one commit, to a folder and back.

use std::path::PathBuf;

use clap::Args;
use terrace_tier_store::store::{self, BackupReport};

use super::{Place, RemoteTask, with_bar};
use crate::error::{Error, Result};
use crate::layout::plural;
use crate::terminal::outln;
use crate::units::human_bytes;

const TASK: RemoteTask = RemoteTask { what: "copying", kind: "backup", path: "/api/v1/backup" };

/// What to back up.
#[derive(Debug, Args)]
pub struct BackupOptions {
    /// The folder to make, on the server's machine; it appears when it is complete
    target: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// What to restore.
#[derive(Debug, Args)]
pub struct RestoreOptions {
    /// The folder that `terrace backup` made
    source: PathBuf,
    /// The data directory to make; it must not exist or be empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Runs `terrace backup`.
pub fn backup(options: &BackupOptions) -> Result<()> {
    let target = std::path::absolute(&options.target).map_err(|e| Error::file(&options.target, e))?;
    let report: BackupReport = match &options.place.data_dir {
        Some(dir) => with_bar("copying", |watch| Ok(store::backup(dir, &target, watch)?))?,
        None => options.place.order(&TASK, &serde_json::json!({ "path": target }))?,
    };
    outln!("{}: {}", target.display(), describe(&report));
    Ok(())
}

/// Runs `terrace restore`.
pub fn restore(options: &RestoreOptions) -> Result<()> {
    let report = with_bar("restoring", |watch| Ok(store::restore(&options.source, &options.data_dir, watch)?))?;
    outln!("{}: {}", options.data_dir.display(), describe(&report));
    outln!("Start a server with: terrace serve --data-dir {}", options.data_dir.display());
    Ok(())
}

fn describe(report: &BackupReport) -> String {
    let BackupReport { tables, chunks, bytes, .. } = report;
    format!("{}, {}, {}, verified", plural(*tables, "table"), plural(*chunks, "chunk"), human_bytes(*bytes))
}
