//! `terrace load`: rows from files or generated ones, into a running server or a data directory.
//!
//! A thread reads; a short channel hands batches on, so that memory stays bounded. A server gets them by Flight SQL's
//! bulk ingest, a data directory by the same call of the engine in this process. Both sort by the clustering columns and
//! store all of a table or nothing.

mod progress;
pub mod source;

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use arrow_flight::error::FlightError;
use futures::StreamExt;
use terrace_planner_ext::ErrorKind;
use terrace_planner_ext::engine::{Engine, IngestMode, IngestRequest};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use crate::client::{Client, Connection, Mode, split_name};
use crate::config::{self, Config, Given};
use crate::error::{Error, Result};
use crate::instance::Instance;
use progress::Progress;
use source::Source;

/// Batches read ahead.
const AHEAD: usize = 2;
/// Bytes of a message to a server.
const MESSAGE_BYTES: usize = 1 << 20;

const HOW_TO_ADD: &str = "--append adds to it, --replace replaces its rows";

/// Options of `terrace load`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Files, folders, or tpch:SF
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
    /// Load into this data directory instead of a server; no server may have it open
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

/// Where rows go.
pub enum Target {
    /// A running server.
    Server(Box<Client>),
    /// An engine of this process.
    Engine(Arc<Engine>),
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let mut sources = Vec::new();
    for text in &options.sources {
        sources.extend(source::find(text, options.table.as_deref())?);
    }
    let mut mode = match (options.replace, options.append) {
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
                Given::flag("--data-dir", "data_dir", folder.display()),
                Given::flag("load", "tiering.enabled", "false"),
            ];
            let opened = instance.insert(Instance::open(&Config::load(None, config::environment(), flags)?)?);
            Target::Engine(Arc::clone(&opened.engine))
        }
        None => Target::Server(Box::new(runtime.block_on(Client::connect(&options.connection))?)),
    };
    for mut source in sources {
        if let Some(columns) = &options.cluster_by {
            source.cluster_by = columns.iter().map(|c| c.trim().to_owned()).filter(|c| !c.is_empty()).collect();
        }
        runtime.block_on(load(&mut target, source, mode))?;
        // Several sources into one named table: the first decides, the others add.
        if options.table.is_some() {
            mode = Mode::Append;
        }
    }
    instance.map_or(Ok(()), |instance| instance.flush())
}

/// Loads one table with progress on stderr; returns the rows.
pub async fn load(target: &mut Target, source: Source, mode: Mode) -> Result<u64> {
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
    let progress = Arc::new(Progress::start(&source.table, source.rows));
    let (table, cluster_by) = (source.table.clone(), source.cluster_by.clone());
    let schema = Arc::clone(&source.schema);
    let (rows, fault) = read_ahead(source, Arc::clone(&progress), matches!(target, Target::Server(_)));
    let work = async {
        match target {
            Target::Server(client) => client.ingest(&table, mode, &cluster_by, rows.map(Ok::<_, FlightError>)).await,
            Target::Engine(engine) => ingest_here(engine, &table, mode, &cluster_by, schema, rows).await,
        }
    };
    // A fault of reading drops the ingest, which then leaves nothing behind.
    let outcome = tokio::select! {
        biased;
        Ok(error) = fault => Err(error),
        outcome = work => outcome,
    };
    match &outcome {
        Ok(rows) => progress.finish(*rows),
        Err(_) => progress.abandon(),
    }
    outcome.map_err(|error| if exists(&error) { Error::Usage(format!("{error}; {HOW_TO_ADD}")) } else { error })
}

fn exists(error: &Error) -> bool {
    match error {
        Error::Server { code, .. } => code == "AlreadyExists",
        Error::Engine(error) => error.kind() == ErrorKind::AlreadyExists,
        _ => false,
    }
}

async fn ingest_here(
    engine: &Arc<Engine>,
    table: &str,
    mode: Mode,
    cluster_by: &[String],
    schema: arrow::datatypes::SchemaRef,
    rows: ReceiverStream<RecordBatch>,
) -> Result<u64> {
    let session = engine.open_session("load");
    let (name_schema, table) = split_name(table);
    let mode = match mode {
        Mode::Create => IngestMode::Create,
        Mode::Append => IngestMode::CreateAppend,
        Mode::Replace => IngestMode::Replace,
    };
    let options = match cluster_by {
        [] => std::collections::HashMap::new(),
        columns => [("cluster_by".to_owned(), columns.join(","))].into(),
    };
    let request = IngestRequest { schema: name_schema, table, mode, options };
    let rows = rows.map(Ok).boxed();
    let stored = engine.ingest(&session, request, schema, rows, None).await;
    engine.close_session(session.id());
    Ok(stored?)
}

/// Reads on a thread of its own. The end of the stream means that all rows came, so after a fault it stays open until
/// the consumer, who hears of the fault, drops it.
fn read_ahead(
    source: Source,
    progress: Arc<Progress>,
    for_wire: bool,
) -> (ReceiverStream<RecordBatch>, oneshot::Receiver<Error>) {
    let (send, receive) = mpsc::channel(AHEAD);
    let (told, fault) = oneshot::channel();
    std::thread::spawn(move || {
        // An empty source still makes a table.
        let _ = send.blocking_send(RecordBatch::new_empty(Arc::clone(&source.schema)));
        let outcome = source.read(|batch| {
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
                let _ = told.send(error);
                futures::executor::block_on(send.closed());
            }
        }
    });
    (ReceiverStream::new(receive), fault)
}

/// Cuts a batch into messages of about [`MESSAGE_BYTES`]. View columns are compacted, else each message would carry all
/// bytes of the whole batch.
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
