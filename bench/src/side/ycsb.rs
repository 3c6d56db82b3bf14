//! YCSB in this process: concurrent clients that read and update records by key through the engine.
//!
//! Keys are drawn by Zipf. Frequent keys are neighbours, and a moving workload has other frequent keys in each phase,
//! so that chunks differ in heat. The operations of clients depend only on the round, and no two clients change the
//! same record, so that all stores are equal at the end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use terrace_planner_ext::engine::{Engine, EngineOptions, Prepared, Session};
use terrace_tier_store::io::blocking::BlockingEngine;
use terrace_tier_store::placement::{EpochRequest, MergeKind};
use terrace_tier_store::store::{NvmOptions, ReadGapChoice};
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::tier::nvm::NvmBacking;
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;

use super::terrace::NVM;
use super::{Side, ms_since, parameters, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;
/// Bytes of a record in memory: fields, their offsets, and the key.
const RECORD_BYTES: u64 = (FIELDS * (FIELD_BYTES + 4) + 8) as u64;
/// Rows that are generated and loaded at once, independent of the rows of a chunk, so that all stores are equal.
const BATCH_ROWS: u64 = 2048;
/// Rows of a chunk, unless chunk sizes are compared.
pub const CHUNK_ROWS: u32 = 2048;
/// Size of the data relative to the DRAM tier.
const TIMES_DRAM: u64 = 8;
const THETA: f64 = 0.99;
const READS: f64 = 0.9;
/// Position of the first frequent keys, and their step per phase. They are not at the start, because the records loaded
/// first are in memory.
const FIRST: f64 = 0.55;
const STEP: f64 = 0.3;
/// The default of a server.
const EPOCH: Duration = Duration::from_secs(60);
const COMPACTION_BYTES_PER_S: u64 = 64 << 20;
const QUERY_MEMORY_BYTES: u64 = 1 << 30;

/// The side.
pub struct Ycsb {
    runtime: Runtime,
    engine: Arc<Engine>,
    clients: Vec<Client>,
    zipf: Zipf<f64>,
    records: u64,
    phase: u64,
    rounds: u64,
}

/// A store, and its clients.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Records.
    pub records: u64,
    /// Rows of a chunk.
    pub chunk_rows: u32,
    /// Clients, threads and partitions.
    pub clients: usize,
    /// Which cold reads bring segments into memory.
    pub merge: MergeKind,
    /// Reads by threads that block instead of io_uring.
    pub blocking: bool,
    /// Adds a slowed, emulated NVM tier that holds all data.
    pub nvm: bool,
}

struct Client {
    session: Arc<Session>,
    read: Arc<Prepared>,
    updates: Vec<Arc<Prepared>>,
}

impl Ycsb {
    /// Creates a store with its records, and the clients.
    pub fn new(data_dir: &Path, setup: Setup) -> Result<Self> {
        let Setup { records, chunk_rows, clients, merge, blocking, nvm } = setup;
        // The same number of records for each client.
        let records = records - records % clients.max(1) as u64;
        let mut options = StoreOptions::new(data_dir);
        options.dram_budget_bytes = records * RECORD_BYTES / TIMES_DRAM;
        options.compaction_bytes_per_s = COMPACTION_BYTES_PER_S;
        options.epoch_interval = Some(EPOCH);
        options.tiering.merge.kind = merge;
        options.read_gap = ReadGapChoice::Auto;
        if blocking {
            options.io = Some(Arc::new(BlockingEngine::start()));
        }
        if nvm {
            let capacity_bytes = (2 * records * RECORD_BYTES).next_multiple_of(1 << 21) + (64 << 20);
            options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes, limiter: Some(NVM) });
        }
        let store = Store::open(options)?;
        load(&store, records, chunk_rows)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(clients)
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a runtime"))?;
        let options = EngineOptions {
            query_memory_bytes: QUERY_MEMORY_BYTES,
            target_partitions: clients,
            ..EngineOptions::new(data_dir.join("spill"), runtime.handle().clone())
        };
        let engine = Engine::new(store, options)?;
        let client = |number: usize| -> Result<Client> {
            let session = engine.open_session(&format!("client {number}"));
            let prepare = |sql: &str| runtime.block_on(session.prepare(sql));
            let read = prepare("SELECT * FROM usertable WHERE k = ?")?;
            let update = |field| prepare(&format!("UPDATE usertable SET field{field} = ? WHERE k = ?"));
            let updates = (0..FIELDS).map(update).collect::<Result<_, _>>()?;
            Ok(Client { session, read, updates })
        };
        let clients = (0..clients).map(client).collect::<Result<_>>()?;
        if nvm {
            // What nobody reads yet has no use for NVM; with the rule all data begins there.
            let session = engine.open_session("rules");
            runtime.block_on(async {
                let rule = session.prepare("ALTER TABLE usertable PREFER ON nvm").await?;
                Ok::<_, Error>(rule.update(None).await?)
            })?;
            engine.store().tiering().run_epoch(EpochRequest::now("benchmark"))?;
        }
        let zipf = Zipf::new(records as f64, THETA).map_err(|e| Error::failed(e.to_string()))?;
        Ok(Self { runtime, engine, clients, zipf, records, phase: 0, rounds: 0 })
    }

    /// All clients run `operations` operations each, concurrently.
    fn round(&mut self, operations: u64) -> Result<Sample> {
        self.rounds += 1;
        let cold_bytes = || self.engine.store().home().counters().read_bytes.load(Ordering::Relaxed);
        let this = &*self;
        let before = cold_bytes();
        let start = Instant::now();
        let rows = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..).zip(&this.clients).map(|(n, c)| scope.spawn(move || this.run(c, n, operations))).collect();
            let lost = |_| Error::failed("a client panicked");
            threads.into_iter().map(|thread| thread.join().map_err(lost)?).sum::<Result<u64>>()
        })?;
        let ms = ms_since(start);
        let operations = operations * self.clients.len() as u64;
        let cold = cold_bytes() - before;
        Ok(Sample::new(ms)
            .with("operations", operations as f64)
            .with("rows", rows as f64)
            .with("cold_bytes", cold as f64))
    }

    fn run(&self, client: &Client, number: u64, operations: u64) -> Result<u64> {
        let mut rng = StdRng::seed_from_u64(self.rounds * 1000 + number);
        let all = self.clients.len() as u64;
        let mut rows = 0;
        let first = ((FIRST + self.phase as f64 * STEP) * self.records as f64) as u64;
        for _ in 0..operations {
            let key = (rng.sample(self.zipf) as u64 - 1 + first) % self.records;
            if rng.random_bool(READS) {
                rows += self.read(client, key)?;
            } else {
                // Each client has records of its own to change.
                rows += self.update(client, key - key % all + number, &mut rng)?;
            }
        }
        Ok(rows)
    }

    fn read(&self, client: &Client, key: u64) -> Result<u64> {
        let batches: Vec<RecordBatch> = self.runtime.block_on(async {
            Ok::<_, Error>(client.read.query(Some(parameters([keys([key])])?)).await?.stream.try_collect().await?)
        })?;
        Ok(batches.iter().map(|batch| batch.num_rows() as u64).sum())
    }

    fn update(&self, client: &Client, key: u64, rng: &mut StdRng) -> Result<u64> {
        let text: ArrayRef = Arc::new(StringArray::from(vec![text(rng)]));
        let statement =
            client.updates.get(rng.random_range(0..FIELDS)).ok_or_else(|| Error::failed("no such field"))?;
        Ok(self.runtime.block_on(statement.update(Some(parameters([text, keys([key])])?)))?)
    }

    /// A digest of the table, in numbers small enough to be exact in JSON.
    fn digest(&self) -> Result<Sample> {
        let session = &self.clients.first().ok_or_else(|| Error::failed("no clients"))?.session;
        let batches: Vec<RecordBatch> = self.runtime.block_on(async {
            let statement = session.prepare("SELECT * FROM usertable ORDER BY k").await?;
            Ok::<_, Error>(statement.query(None).await?.stream.try_collect().await?)
        })?;
        let mut digest = DefaultHasher::new();
        let schema = batches.first().ok_or_else(|| Error::failed("no rows"))?.schema();
        let all = concat_batches(&schema, &batches)?;
        let (key, fields) = all.columns().split_first().ok_or_else(|| Error::failed("no columns"))?;
        key.as_primitive::<Int64Type>().values().hash(&mut digest);
        for field in fields {
            field.as_string::<i32>().iter().for_each(|text| text.hash(&mut digest));
        }
        Ok(Sample::default().with("rows", all.num_rows() as f64).with("digest", (digest.finish() >> 16) as f64))
    }
}

impl Side for Ycsb {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match op.split_once(' ') {
            Some(("round", operations)) => self.round(operations.parse().map_err(|_| unknown(op))?),
            None if op == "move" => {
                self.phase += 1;
                Ok(Sample::default())
            }
            None if op == "digest" => self.digest(),
            _ => Err(unknown(op)),
        }
    }
}

fn load(store: &Arc<Store>, records: u64, chunk_rows: u32) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut ingest = None;
    for first in (0..records).step_by(BATCH_ROWS as usize) {
        let range = first..records.min(first + BATCH_ROWS);
        let mut columns: Vec<(String, ArrayRef)> = vec![("k".to_owned(), keys(range.clone()))];
        for field in 0..FIELDS {
            let texts: StringArray = range.clone().map(|_| Some(text(&mut rng))).collect();
            columns.push((format!("field{field}"), Arc::new(texts)));
        }
        let batch = RecordBatch::try_from_iter(columns)?;
        let ingest = match &mut ingest {
            Some(ingest) => ingest,
            empty => {
                let mut definition = TableDefinition::new(TableName::new("public", "usertable"), batch.schema());
                definition.primary_key = vec!["k".to_owned()];
                definition.options.enforce_primary_key = true;
                definition.options.cluster_by = vec!["k".to_owned()];
                definition.options.chunk_rows = chunk_rows;
                empty.insert(store.ingest(&store.create_table(definition)?))
            }
        };
        ingest.write(batch)?;
    }
    if let Some(ingest) = ingest {
        ingest.finish()?;
    }
    Ok(())
}

fn keys(keys: impl IntoIterator<Item = u64>) -> ArrayRef {
    Arc::new(keys.into_iter().map(|key| key as i64).collect::<Int64Array>())
}

fn text(rng: &mut StdRng) -> String {
    Alphanumeric.sample_string(rng, FIELD_BYTES)
}
