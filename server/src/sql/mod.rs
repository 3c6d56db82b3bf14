//! `terrace sql`: statements from an argument, a file, a pipe or a prompt, through Flight SQL.
//!
//! - [`output`]: rows as table, CSV or JSON
//! - [`prompt`]: the interactive prompt
//! - [`split`]: cuts text into statements

mod output;
mod prompt;
pub mod split;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use futures::StreamExt;
use terrace_tier_store::clock::{Clock, SystemClock};

pub use output::Format;

use crate::client::{Client, Outcome};
use crate::error::{Error, Result};
use crate::profiles::ConnectionOptions;
use crate::terminal::{self, errln};

/// Options of `terrace sql`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Statements, separated by semicolons
    #[arg(value_name = "SQL", conflicts_with = "file")]
    statements: Vec<String>,
    /// A file of statements; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How rows are written
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Write the time of each statement to stderr
    #[arg(long)]
    timing: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Error::System(format!("cannot start a runtime: {e}")))?;
    let client = runtime.block_on(Client::connect(&options.connection.resolve()?))?;
    let clock = SystemClock::default();
    let mut shell = Shell { client, format: options.format, timing: options.timing, clock, runtime };
    match (&options.file, options.statements.is_empty()) {
        (Some(file), _) => shell.run_text(&read_text(file)?),
        (None, false) => shell.run_text(&options.statements.join(";\n")),
        (None, true) if std::io::stdin().is_terminal() => prompt::run(shell),
        (None, true) => shell.run_text(&read_text(&PathBuf::from("-"))?),
    }
}

fn read_text(path: &PathBuf) -> Result<String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(|_| text),
        _ => std::fs::read_to_string(path),
    };
    read.map_err(|e| Error::file(path, format!("cannot read it: {e}")))
}

/// A connection with its output settings.
struct Shell {
    client: Client,
    format: Format,
    timing: bool,
    clock: SystemClock,
    runtime: tokio::runtime::Runtime,
}

impl Shell {
    /// Runs statements in order; the first error ends it.
    fn run_text(&mut self, text: &str) -> Result<()> {
        split::split(text).statements.into_iter().try_for_each(|statement| self.run_statement(statement))
    }

    /// Runs one statement and writes its result; Ctrl-C cancels it.
    fn run_statement(&mut self, statement: &str) -> Result<()> {
        let start_us = self.clock.now_us();
        let client = &mut self.client;
        let format = self.format;
        let work = async {
            match client.run(statement).await? {
                Outcome::Rows(schema, rows) => {
                    let mut out = terminal::Output;
                    // Use the schema of the stream: the prepared one may have view types.
                    let mut rows = rows.peekable();
                    let schema = match std::pin::Pin::new(&mut rows).peek().await {
                        Some(Ok(batch)) => batch.schema(),
                        _ => schema,
                    };
                    let count = output::write(format, schema, rows, &mut out).await;
                    let count =
                        count.map_err(|error| if terminal::is_closed() { Error::OutputClosed } else { error })?;
                    Ok(format!("{count} {}", if count == 1 { "row" } else { "rows" }))
                }
                Outcome::Updated(count) if count > 0 => Ok(format!("{count} rows affected")),
                Outcome::Updated(_) => Ok("done".to_owned()),
            }
        };
        let summary = self.runtime.block_on(async {
            tokio::select! {
                done = work => done,
                _ = tokio::signal::ctrl_c() => Err(Error::Usage("cancelled".to_owned())),
            }
        })?;
        terminal::finish()?;
        if self.timing || (self.format == Format::Table && std::io::stderr().is_terminal()) {
            errln!("{summary} in {:.3} s", (self.clock.now_us() - start_us) as f64 / 1e6);
        }
        Ok(())
    }
}
