//! The sides as child processes: their descriptions, and the loop that answers requests.
//!
//! - [`access`]: reads of one file by several methods
//! - [`bare`]: a server that sends one batch again and again
//! - [`canned`]: a server with canned answers
//! - [`client`]: a Flight SQL client
//! - [`copy`]: copies of memory
//! - [`datafusion`]: DataFusion without Terrace
//! - [`device`]: raw reads
//! - [`disk`]: raw writes
//! - [`keys`]: a table with a primary key
//! - [`leaf`]: tables behind leaves
//! - [`micro`]: a scan for counting instructions
//! - [`order_line`]: clients of ORDER_LINE
//! - `points`: small reads beside large ones
//! - [`quality`]: a placement problem in several ways
//! - [`reader`]: clients that read large results
//! - [`solver`]: placement problems
//! - [`terrace`]: the engine over a store
//! - [`writer`]: a store that is written to
//! - [`ycsb`]: YCSB clients

pub mod access;
pub mod bare;
pub mod canned;
pub mod client;
pub mod copy;
pub mod datafusion;
pub mod device;
pub mod disk;
pub mod keys;
pub mod leaf;
pub mod micro;
pub mod order_line;
mod points;
pub mod quality;
pub mod reader;
pub mod solver;
pub mod terrace;
pub mod writer;
pub mod ycsb;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::{MergeKind, PolicyKind};
use terrace_tier_store::tier::codec::FormChoice;

use crate::black_friday::BlackFriday;
use crate::data::Dataset;
use crate::db_benchmark::DbBenchmark;
use crate::error::{Error, Result};
use crate::order_line::{OrderLine, Shape};
use crate::row::Sample;
use crate::tenants::Tenants;
use crate::tpcds::TpcDs;
use crate::vector::Vector;
use terrace::Nvm;

/// Data of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// TPC-H.
    TpcH,
    /// The Star Schema Benchmark.
    Star,
    /// TPC-H of ten tenants in the same tables.
    Tenants,
    /// TPC-H with days that have half of the orders of their year.
    BlackFriday,
    /// TPC-DS, from existing files.
    TpcDs,
    /// ORDER_LINE of CH-benCHmark.
    OrderLine,
    /// db-benchmark.
    DbBenchmark,
    /// A vector in a hot, a warm and a cold part.
    Vector,
}

/// The kind of a side, and its data.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SideSpec {
    /// Generates the data of a scale; answers no requests.
    Prepare {
        /// The workload or problem.
        data: Workload,
        /// Folder of all data.
        data_dir: PathBuf,
        /// Scale factor.
        scale: f64,
    },
    /// The engine over a store; `place` requests decide what is resident.
    Terrace {
        /// Its data directory.
        store: PathBuf,
        /// Threads and partitions.
        threads: usize,
        /// Adds a slowed, emulated NVM tier that holds all data.
        nvm: bool,
        /// The placement policy.
        policy: PolicyKind,
        /// The forms of copies in memory.
        form: FormChoice,
    },
    /// Like `Terrace`, but with an emulated NVM tier that holds all data and is as fast as memory.
    Tiers {
        /// Its data directory.
        store: PathBuf,
        /// Threads and partitions.
        threads: usize,
        /// True for moves one after the other, by one thread.
        single_mover: bool,
    },
    /// Like `Terrace`, but with a host device, whose images scans could use.
    Images {
        /// Its data directory.
        store: PathBuf,
        /// Threads and partitions.
        threads: usize,
    },
    /// Copies of memory without Terrace.
    Copy {
        /// Threads at most.
        threads: usize,
    },
    /// DataFusion over memory tables.
    MemTable {
        /// Folder of all data.
        data_dir: PathBuf,
        /// Scale factor.
        scale: f64,
        /// Threads and partitions.
        threads: usize,
    },
    /// DataFusion over memory tables with the Star Schema Benchmark.
    StarTables {
        /// Folder of all data.
        data_dir: PathBuf,
        /// Scale factor.
        scale: f64,
        /// Threads and partitions.
        threads: usize,
    },
    /// DataFusion over Parquet files.
    Parquet {
        /// Folder of all data.
        data_dir: PathBuf,
        /// Scale factor.
        scale: f64,
        /// Threads and partitions.
        threads: usize,
    },
    /// Reads of files without Terrace.
    Device {
        /// The files' folder.
        folder: PathBuf,
    },
    /// Reads of files through the store's I/O engine.
    Engine {
        /// The files' folder.
        folder: PathBuf,
    },
    /// Reads of one file by all methods.
    Access {
        /// The file.
        file: PathBuf,
    },
    /// Durable writes of files without Terrace.
    Disk {
        /// Folder of the files.
        folder: PathBuf,
    },
    /// A store that is written to.
    Writer {
        /// An empty folder.
        store: PathBuf,
        /// True for small seals and background compaction.
        stream: bool,
    },
    /// A store with a table that has a primary key.
    Keys {
        /// An empty folder.
        store: PathBuf,
        /// True when the key is enforced.
        enforced: bool,
        /// True for keys in random order, false for rising keys.
        random: bool,
        /// True for a DRAM budget of 0.
        cold: bool,
    },
    /// Clients of records by key, and a store eight times as large as its DRAM.
    Ycsb {
        /// An empty folder.
        store: PathBuf,
        /// Records.
        records: u64,
        /// Clients, threads and partitions.
        clients: usize,
        /// The kind of merging: which cold reads bring segments into memory.
        merge: MergeKind,
        /// Rows of a chunk, which a cold read of one record fetches.
        chunk_rows: u32,
        /// Reads by threads that block instead of io_uring.
        blocking: bool,
        /// Adds a slowed, emulated NVM tier that holds all data.
        nvm: bool,
    },
    /// Clients of ORDER_LINE of CH-benCHmark.
    OrderLine {
        /// Its data directory.
        store: PathBuf,
        /// Threads and partitions.
        threads: usize,
        /// Scale of the data.
        scale: f64,
        /// The share of its lines that is hot.
        hot: f64,
        /// True when it learns hot views from queries.
        mining: bool,
    },
    /// A Flight SQL client with `lineitem` in memory.
    Client {
        /// Address of the server.
        url: String,
        /// Scale factor.
        scale: f64,
    },
    /// A Flight SQL server that answers without an engine.
    Canned,
    /// A Flight SQL server without an engine that sends one batch again and again.
    Bare {
        /// Address of the server that gives the batch.
        url: String,
        /// The query whose rows are the batch.
        sql: String,
    },
    /// Flight SQL clients that read results to their ends.
    Reader {
        /// Address of the server.
        url: String,
        /// Connections.
        streams: usize,
    },
    /// Placement problems.
    Solver {
        /// Segments of the problem.
        segments: usize,
        /// Options of each: 4, or 8 with forms.
        options: usize,
    },
    /// One placement problem, answered in several ways.
    Quality {
        /// The workload or problem.
        problem: quality::Problem,
    },
    /// A small scan in one thread, for counting instructions.
    Micro {
        /// An empty folder.
        store: PathBuf,
    },
}

impl SideSpec {
    /// The engine over a store, without NVM, placed by the solver.
    pub fn terrace(store: PathBuf, threads: usize) -> Self {
        Self::Terrace { store, threads, nvm: false, policy: PolicyKind::Optimal, form: FormChoice::Plain }
    }
}

/// Something that answers requests.
pub trait Side {
    /// Runs `op`; returns its time and counts.
    fn run(&mut self, op: &str) -> Result<Sample>;
}

#[derive(Debug, Deserialize)]
struct Request {
    op: String,
}

/// Builds the side and answers until the input ends.
pub fn serve(spec: &str) -> Result<()> {
    let spec: SideSpec = serde_json::from_str(spec)?;
    let built = build(spec);
    let mut output = std::io::stdout().lock();
    let mut side = match built {
        Ok(side) => {
            write(&mut output, &Ok(Sample::default()))?;
            side
        }
        Err(error) => return write(&mut output, &Err(error)),
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Error::io("cannot read requests"))?;
        let request: Request = serde_json::from_str(&line)?;
        let before_ms = cpu_ms();
        let answer = side.run(&request.op);
        write(&mut output, &answer.map(|sample| sample.with("cpu_ms", cpu_ms() - before_ms)))?;
    }
    Ok(())
}

fn write(output: &mut impl Write, answer: &Result<Sample>) -> Result<()> {
    let text = match answer {
        Ok(sample) => serde_json::to_string(sample)?,
        Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
    };
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(Error::io("cannot answer"))
}

fn build(spec: SideSpec) -> Result<Box<dyn Side>> {
    Ok(match spec {
        SideSpec::Prepare { data, data_dir, scale } => {
            match data {
                Workload::TpcH => Dataset::new(&data_dir, scale).prepare()?,
                Workload::Star => Dataset::star(&data_dir, scale).prepare()?,
                Workload::BlackFriday => BlackFriday::new(&data_dir, scale).prepare()?,
                Workload::Tenants => Tenants::new(&data_dir, scale).prepare()?,
                Workload::Vector => Vector::new(&data_dir, scale).prepare()?,
                Workload::TpcDs => TpcDs::new(&data_dir, scale).prepare()?,
                Workload::OrderLine => OrderLine::new(&data_dir, scale).prepare()?,
                Workload::DbBenchmark => DbBenchmark::new(&data_dir, scale).prepare()?,
            }
            Box::new(Nothing)
        }
        SideSpec::Terrace { store, threads, nvm, policy, form } => {
            let nvm = if nvm { Nvm::Slowed } else { Nvm::Absent };
            Box::new(terrace::Terrace::open(&store, threads, nvm, policy, form)?)
        }
        SideSpec::Tiers { store, threads, single_mover } => {
            Box::new(terrace::Terrace::open_tiers(&store, threads, single_mover)?)
        }
        SideSpec::Images { store, threads } => Box::new(terrace::Terrace::open_with_device(&store, threads)?),
        SideSpec::Copy { threads } => Box::new(copy::Copy::new(threads)),
        SideSpec::MemTable { data_dir, scale, threads } => {
            Box::new(datafusion::Plain::in_memory(&Dataset::new(&data_dir, scale), threads)?)
        }
        SideSpec::StarTables { data_dir, scale, threads } => {
            Box::new(datafusion::Plain::in_memory(&Dataset::star(&data_dir, scale), threads)?)
        }
        SideSpec::Parquet { data_dir, scale, threads } => {
            Box::new(datafusion::Plain::on_parquet(&Dataset::new(&data_dir, scale), threads)?)
        }
        SideSpec::Device { folder } => Box::new(device::Device::raw(&folder)?),
        SideSpec::Engine { folder } => Box::new(device::Device::engine(&folder)?),
        SideSpec::Access { file } => Box::new(access::Access::new(&file)?),
        SideSpec::Disk { folder } => Box::new(disk::Disk::new(&folder)?),
        SideSpec::Writer { store, stream } => Box::new(writer::Writer::new(&store, stream)?),
        SideSpec::Keys { store, enforced, random, cold } => Box::new(keys::Keys::new(&store, enforced, random, cold)?),
        SideSpec::Ycsb { store, records, clients, merge, chunk_rows, blocking, nvm } => {
            let setup = ycsb::Setup { records, chunk_rows, clients, merge, blocking, nvm };
            Box::new(ycsb::Ycsb::new(&store, setup)?)
        }
        SideSpec::OrderLine { store, threads, scale, hot, mining } => {
            Box::new(order_line::Clients::open(&store, threads, Shape::for_scale(scale), hot, mining)?)
        }
        SideSpec::Client { url, scale } => Box::new(client::Client::new(url, scale)?),
        SideSpec::Canned => Box::new(canned::Canned::start()?),
        SideSpec::Bare { url, sql } => Box::new(bare::Bare::start(&url, &sql)?),
        SideSpec::Reader { url, streams } => Box::new(reader::Reader::new(&url, streams)?),
        SideSpec::Solver { segments, options } => Box::new(solver::Solver::new(segments, options)),
        SideSpec::Quality { problem } => Box::new(quality::Quality::new(problem)?),
        SideSpec::Micro { store } => Box::new(micro::Micro::new(&store)?),
    })
}

struct Nothing;

impl Side for Nothing {
    fn run(&mut self, op: &str) -> Result<Sample> {
        Err(unknown(op))
    }
}

/// The error for a request that a side does not know.
fn unknown(op: &str) -> Error {
    Error::failed(format!("this side does not know '{op}'"))
}

/// CPU time of all threads of this process, to distinguish a slow side from a busy machine.
fn cpu_ms() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the one structure that the call writes.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0;
    if failed { 0.0 } else { time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6 }
}

fn ms_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Values for a statement, in their order.
fn parameters<const N: usize>(values: [ArrayRef; N]) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter(values.into_iter().enumerate().map(|(n, value)| (format!("${}", n + 1), value)))?)
}
