//! `terrace sql`: statements from an argument, a file, a pipe or a prompt, through Flight SQL.
//!
//! ```text
//!   prompt -> shell -> client -> output -> target -> terminal, pager, file
//!     \-> completion, highlight   \-> commands -> describe, copy, editor
//! ```
//!
//! - [`commands`]: commands that begin with a backslash
//! - [`completion`]: what Tab offers
//! - [`copy`]: the command `\copy`
//! - [`describe`]: `\d`, `\dt`, `\dv`, `\l`
//! - [`editor`]: the command `\e`
//! - [`highlight`]: colours of SQL
//! - [`keywords`]: words of SQL
//! - [`lexer`]: cuts text into tokens
//! - [`name`]: names of tables
//! - [`names`]: names of the connected server
//! - [`output`]: rows in all formats
//! - [`pager`]: the pager
//! - [`progress`]: how far a statement is
//! - [`prompt`]: the interactive prompt
//! - [`shell`]: a connection with its settings
//! - [`split`]: cuts text into statements and commands
//! - [`target`]: where results go
//! - [`type_name`]: names of types

mod commands;
mod completion;
mod copy;
mod describe;
mod editor;
mod highlight;
pub(crate) mod keywords;
mod lexer;
mod name;
mod names;
mod output;
mod pager;
mod progress;
mod prompt;
mod shell;
pub mod split;
mod target;
mod type_name;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::profiles::ConnectionOptions;
use output::Expanded;
pub use output::Format;
use shell::{Settings, Shell, usual_timing};
use target::Target;

/// Options of `terrace sql`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Statements and commands, separated by semicolons
    #[arg(value_name = "SQL", conflicts_with = "file")]
    statements: Vec<String>,
    /// A file of statements and commands; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How rows are written [default: that of the ending of --output, or table]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write rows to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the time of each statement to stderr
    #[arg(long)]
    timing: bool,
    /// Do not write numbers of rows to stderr
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
}

/// Runs the command.
///
/// # Errors
/// The first one of a statement, except at the prompt, which shows errors and goes on.
pub fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Error::System(format!("cannot start a runtime: {e}")))?;
    let connection = options.connection.resolve()?;
    let client = runtime.block_on(Client::connect(&connection))?;
    let settings = Settings {
        format: options.format,
        expanded: Expanded::Auto,
        has_timing: options.timing || (usual_timing(options.format) && !options.quiet),
        is_paged: true,
        is_quiet: options.quiet,
    };
    let mut shell = Shell::new(client, connection, runtime, settings);
    if let Some(path) = &options.output {
        shell.target = Target::file(path)?;
    }
    match (&options.file, options.statements.is_empty()) {
        (Some(file), _) => shell.run_file(file).map(drop),
        (None, false) => shell.run_text(&options.statements.join(";\n")).map(drop),
        (None, true) if std::io::stdin().is_terminal() => prompt::run(&mut shell),
        (None, true) => shell.run_file(Path::new("-")).map(drop),
    }
}

/// The text of a file; `-` is standard input.
fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(|_| text),
        _ => std::fs::read_to_string(path),
    };
    read.map_err(|e| Error::file(path, format!("cannot read it: {e}")))
}
