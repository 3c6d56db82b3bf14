//! Commands that maintain stored data: check, backup, restore, rebuild-catalog, du.
//!
//! With `--data-dir` a command works on a folder that no server uses; without it, it asks the running server over HTTP.
//!
//! - [`backup`]: `terrace backup` and `terrace restore`
//! - [`check`]: `terrace check`
//! - [`du`]: `terrace du`
//! - [`rebuild`]: `terrace rebuild-catalog`
//! - [`remote`]: how far a server is with a check or a backup

pub mod backup;
pub mod check;
pub mod du;
pub mod rebuild;
mod remote;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_tier_store::store::Progress;

use crate::bar::{new_bar, show};
use crate::error::{Error, Result};
use crate::profiles::HttpOptions;
use crate::terminal::outln;
use remote::RemoteTask;

/// What a command works on.
#[derive(Debug, Args)]
pub struct Place {
    /// A data directory; no server may have it open. Without: the running server at --http-addr
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    server: HttpOptions,
}

impl Place {
    /// Asks the running server.
    fn ask<T: DeserializeOwned>(&self, method: &str, path: &str, body: Option<&Value>) -> Result<T> {
        crate::placement::parse(self.server.request(method, path, body)?)
    }

    /// Lets the running server work, and shows on a terminal how far it is.
    fn order<T: DeserializeOwned>(&self, task: &RemoteTask, body: &Value) -> Result<T> {
        let answer =
            remote::with_bar(self.server.connection()?, task, || self.server.request("POST", task.path, Some(body)));
        crate::placement::parse(answer?)
    }
}

/// Runs `work` with a progress bar on stderr; without a bar when stderr is not a terminal.
fn with_bar<T>(what: &str, work: impl FnOnce(&mut dyn FnMut(Progress) -> bool) -> Result<T>) -> Result<T> {
    let bar = new_bar(what);
    let done = work(&mut |progress: Progress| {
        show(&bar, progress);
        true
    });
    bar.finish_and_clear();
    done
}

/// Prints a report as JSON.
fn print_json(report: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(report).map_err(|e| Error::System(format!("cannot write the report: {e}")))?;
    outln!("{text}");
    Ok(())
}
