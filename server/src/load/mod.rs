//! `terrace load`: rows from files or generated ones, into a running server or a data directory.
//!
//! A thread reads the source and sends batches through a short channel, so that memory stays bounded. A server receives
//! them by Flight SQL's bulk ingest, a data directory by the same call of the engine in this process. Both sort by the
//! clustering columns and store all rows of a table or none. With `--resume` the rows are stored in parts ([`resume`]).
//!
//! What is read:
//!
//! - [`source`]: files, folders, patterns, standard input, generated tables
//! - [`generated`]: tables that are generated
//! - [`pattern`]: patterns of paths
//! - [`partitions`]: columns in the names of folders
//! - [`files`]: files that can be loaded
//! - [`form`]: format and compression, by the ending of a name
//! - [`input`]: the bytes of a file or of standard input
//! - [`compression`]: gzip, zstd and bzip2
//! - [`csv`]: text files
//! - [`json`]: JSON files
//! - [`elements`]: the objects in a JSON list
//! - [`shape`]: types of JSON values
//! - [`union`]: the columns of all files
//! - [`columns`]: rows with the columns of a source
//! - [`plan`]: what a load would read
//!
//! How it is stored:
//!
//! - [`target`]: a server or an engine
//! - [`progress`]: progress on stderr
//! - [`resume`]: loads that resume
//! - [`manifest`]: description of a resumable load
//! - [`parts`]: rows in parts

mod columns;
mod compression;
mod csv;
mod elements;
mod files;
mod form;
pub mod generated;
mod input;
mod json;
mod manifest;
mod partitions;
mod parts;
mod pattern;
mod plan;
mod progress;
mod resume;
mod shape;
pub mod source;
mod target;
mod union;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use futures::StreamExt;
use terrace_planner_ext::ErrorKind;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{Client, Mode};
use crate::config::{self, Config, ConfigOverride};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::profiles::ConnectionOptions;
use crate::terminal::errln;
use columns::{filled, has_untyped, with_text};
use files::ReadOptions;
use progress::{Progress, Sum};
use source::Source;
pub use target::Target;

/// Batches read ahead.
const AHEAD: usize = 2;
/// Bytes of a message to a server.
const MESSAGE_BYTES: usize = 1 << 20;

/// Most columns of which a load says that some files lack them.
const GAPS: usize = 5;

const HOW_TO_ADD: &str = "use --append to add rows, or --replace to replace its rows";

/// Options of `terrace load`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Files, folders, patterns in quotes ('day=*/*.parquet'), - for standard input, tpch:SF or ssb:SF
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,
    /// Name of the table [default: that of the file or folder]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Columns to sort by, so that queries on them skip chunks
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    cluster_by: Option<Vec<String>>,
    /// Replace the rows of an existing table
    #[arg(long, conflicts_with = "append")]
    replace: bool,
    /// Add to an existing table
    #[arg(long)]
    append: bool,
    /// Load in parts, and go on with what an earlier run of the same command stored before it died
    #[arg(long)]
    resume: bool,
    /// Rows of a part; for tests
    #[arg(long, value_name = "ROWS", default_value_t = parts::PART_ROWS, hide = true, requires = "resume")]
    part_rows: u64,
    /// Show the files and the columns that would be loaded, and load nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    read: ReadOptions,
    /// Load into this data directory instead of a server; no server may have it open
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionOptions,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    if options.resume && options.append {
        let message = "--resume does not go with --append: the rows are collected in a table of their own, which takes the \
                       name of the new one; load them under another --table, then INSERT INTO .. SELECT them";
        return Err(Error::Usage(message.to_owned()));
    }
    let sources = find_sources(options)?;
    if options.dry_run {
        sources.iter().for_each(plan::show);
        return Ok(());
    }
    let mode = match (options.replace, options.append) {
        (true, _) => Mode::Replace,
        (_, true) => Mode::Append,
        _ => Mode::Create,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::System(format!("cannot start a runtime: {e}")))?;
    let mut instance = None;
    let mut target = match &options.data_dir {
        Some(folder) => {
            let flags = vec![
                ConfigOverride::flag("--data-dir", "data_dir", folder.display()),
                ConfigOverride::flag("load", "tiering.enabled", "false"),
            ];
            let opened = instance.insert(Instance::open(&Config::load(None, config::environment(), flags)?)?);
            Target::Engine(Arc::clone(&opened.engine))
        }
        None => Target::Server(Box::new(runtime.block_on(Client::connect(&options.connection.resolve()?))?)),
    };
    let mut sum = Sum::default();
    for source in sources {
        tell_gaps(&source);
        let rows = if options.resume {
            let rows = options.part_rows.max(1);
            runtime.block_on(Box::pin(resume::load(&mut target, source, mode, rows)))?
        } else {
            Some(runtime.block_on(load(&mut target, source, mode))?)
        };
        rows.into_iter().for_each(|rows| sum.add(rows));
    }
    instance.map_or(Ok(()), |instance| instance.flush())?;
    sum.tell();
    if std::io::stderr().is_terminal() {
        errln!("{}", next_step(options));
    }
    Ok(())
}

/// What to do with the rows.
fn next_step(options: &Options) -> String {
    match &options.data_dir {
        Some(folder) => format!("next: terrace serve --data-dir {}", folder.display()),
        None if options.connection.names_a_server() => {
            "next: terrace sql '\\dt' with the same --url or --profile lists the tables".to_owned()
        }
        None => "next: terrace sql '\\dt' lists the tables, terrace sql opens a prompt".to_owned(),
    }
}

/// The tables to load: with `--table` one of all sources.
fn find_sources(options: &Options) -> Result<Vec<Source>> {
    if options.sources.iter().filter(|text| *text == "-").count() > 1 {
        return Err(Error::Usage("standard input can be read once only: name - once".to_owned()));
    }
    let mut sources = Vec::new();
    for text in &options.sources {
        sources.extend(source::find(text, options.table.as_deref(), &options.read)?);
    }
    if options.table.is_some() {
        sources = Source::joined(sources)?;
    }
    if options.resume && sources.iter().any(Source::is_read_once) {
        let message = "--resume reads its source again, which standard input cannot be: write it to a file first";
        return Err(Error::Usage(message.to_owned()));
    }
    if let Some(columns) = &options.cluster_by {
        let columns: Vec<String> =
            columns.iter().map(|column| column.trim().to_owned()).filter(|column| !column.is_empty()).collect();
        sources.iter_mut().for_each(|source| source.cluster_by.clone_from(&columns));
    }
    sources.iter().try_for_each(check_clustering)?;
    Ok(sources)
}

/// Says which columns some files lack, so that a name that is written in two ways is noticed.
fn tell_gaps(source: &Source) {
    let Some(files) = source.files() else { return };
    let gaps = files.union.gaps();
    for gap in gaps.iter().take(GAPS) {
        errln!("{:<16} {gap}", source.table);
    }
    if gaps.len() > GAPS {
        errln!("{:<16} and {} columns more; --dry-run shows all", source.table, gaps.len() - GAPS);
    }
}

/// Adds the rows of a file, or of the files of a folder, to a table of a server, which must exist; shows progress on stderr.
pub async fn append(client: Client, files: &str, table: &str) -> Result<u64> {
    let mut target = Target::Server(Box::new(client));
    let mut rows = 0;
    for source in source::find(files, Some(table), &ReadOptions::default())? {
        rows += load(&mut target, source, Mode::Extend).await?;
    }
    Ok(rows)
}

/// Loads one table with progress on stderr; returns the number of rows.
pub async fn load(target: &mut Target, mut source: Source, mode: Mode) -> Result<u64> {
    check_clustering(&source)?;
    if matches!(mode, Mode::Append | Mode::Extend)
        && has_untyped(&source.schema)
        && let Some(table) = target.columns(&source.table).await?
    {
        source.schema = filled(&source.schema, &table);
    }
    source.schema = with_text(&source.schema);
    let progress = Arc::new(Progress::start(&source.table, source.rows));
    let table = source.table.clone();
    let options = cluster_option(&source.cluster_by);
    let schema = Arc::clone(&source.schema);
    let (rows, fault) = read_ahead(source, 0, Arc::clone(&progress), target.is_remote())?;
    let work = target.ingest(&table, mode, options, schema, rows.boxed());
    // When reading fails, the ingest is dropped and stores nothing.
    let outcome = tokio::select! {
        biased;
        Ok(error) = fault => Err(error),
        outcome = work => outcome,
    };
    match &outcome {
        Ok(rows) => progress.finish(*rows),
        Err(_) => progress.abandon(),
    }
    outcome.map_err(|error| match mode == Mode::Create && exists(&error) {
        true => Error::Usage(format!("{error}; {HOW_TO_ADD}")),
        false => error,
    })
}

fn check_clustering(source: &Source) -> Result<()> {
    for column in &source.cluster_by {
        if source.schema.field_with_name(column).is_err() {
            let names: Vec<&str> = source.schema.fields().iter().map(|f| f.name().as_str()).collect();
            return Err(Error::Usage(format!(
                "--cluster-by {column}: table '{}' has no such column; there are: {}",
                source.table,
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// The option of a new table that says how it is clustered.
fn cluster_option(columns: &[String]) -> HashMap<String, String> {
    match columns {
        [] => HashMap::new(),
        columns => [("cluster_by".to_owned(), columns.join(","))].into(),
    }
}

fn exists(error: &Error) -> bool {
    match error {
        Error::Server { code, .. } => code == "AlreadyExists",
        Error::Engine(error) => error.kind() == ErrorKind::AlreadyExists,
        _ => false,
    }
}

/// Reads the rows after the first `done` on a thread of its own. The end of the stream means that all rows were read.
/// So after a fault the stream stays open until the consumer, which gets the fault through the second channel, drops
/// it.
fn read_ahead(
    source: Source,
    done: u64,
    progress: Arc<Progress>,
    for_wire: bool,
) -> Result<(ReceiverStream<RecordBatch>, oneshot::Receiver<Error>)> {
    let (send, receive) = mpsc::channel(AHEAD);
    let (report_fault, fault) = oneshot::channel();
    let read = move || {
        // An empty source must create a table, too.
        let _ = send.blocking_send(RecordBatch::new_empty(Arc::clone(&source.schema)));
        let outcome = source.read_after(done, |batch| {
            progress.add(batch.num_rows() as u64, batch.get_array_memory_size() as u64);
            if for_wire {
                messages(&batch).into_iter().all(|part| send.blocking_send(part).is_ok())
            } else {
                send.blocking_send(batch).is_ok()
            }
        });
        match outcome {
            Ok(()) => progress.storing(),
            Err(error) => {
                let _ = report_fault.send(error);
                futures::executor::block_on(send.closed());
            }
        }
    };
    let thread = std::thread::Builder::new().name("terrace-load".to_owned()).spawn(read);
    thread.map_err(|e| Error::System(format!("cannot start the thread that reads the rows: {e}")))?;
    Ok((ReceiverStream::new(receive), fault))
}

/// Cuts a batch into messages of about [`MESSAGE_BYTES`]. View columns are compacted; otherwise each message would
/// carry all bytes of the batch.
fn messages(batch: &RecordBatch) -> Vec<RecordBatch> {
    let parts = batch.get_array_memory_size().div_ceil(MESSAGE_BYTES).max(1);
    let rows = batch.num_rows().div_ceil(parts).max(1);
    let cut = |start| {
        let part = batch.slice(start, rows.min(batch.num_rows() - start));
        let columns = part.columns().iter().map(|column| match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()) as _,
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()) as _,
            _ => Arc::clone(column),
        });
        RecordBatch::try_new(part.schema(), columns.collect()).unwrap_or(part)
    };
    (0..batch.num_rows()).step_by(rows).map(cut).collect()
}
