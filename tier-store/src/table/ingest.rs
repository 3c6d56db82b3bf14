//! Bulk ingest: a stream of rows becomes chunk files, then one commit makes all of them visible, or none.
//!
//! ```text
//! write(batch) -> cut to chunk_rows -> workers: encode, write file, fsync, bounds, DRAM while the budget allows
//! finish()     -> wait for the workers -> one catalog commit -> new version
//! drop         -> files removed, charges given back
//! ```
//!
//! Memory is bounded: at most two chunks wait for a worker. Rows keep the order in which they came. Without workers
//! (`ingest_threads` is 0, or no thread can be started) the thread that brings the rows does their work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use parking_lot::Mutex;

use super::{Chunk, ChunkId, ChunkStatistics, DeltaRows, Segment, Table, column};
use crate::error::{Error, Result};
use crate::store::{Core, Store};
use crate::tier::{TierId, codec};

/// A chunk written but not yet committed; its file goes with it unless it is published.
#[derive(Debug)]
pub(crate) struct SealedChunk {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) statistics: ChunkStatistics,
}

/// Rows of a table that are written but not committed; they go with it.
#[derive(Debug)]
pub struct NewRows {
    pub(crate) table: Arc<Table>,
    pub(crate) chunks: Vec<SealedChunk>,
    pub(crate) delta: Option<DeltaRows>,
}

impl NewRows {
    /// How many there are.
    pub fn rows(&self) -> u64 {
        let chunks = self.chunks.iter().map(|c| u64::from(c.chunk.rows)).sum::<u64>();
        chunks + self.delta.as_ref().map_or(0, DeltaRows::live_rows)
    }
}

struct Job {
    id: ChunkId,
    batches: Vec<RecordBatch>,
}

/// Where the rows go.
#[derive(Debug)]
enum Target {
    Existing,
    New { replace: bool },
}

/// A bulk ingest in progress.
#[derive(Debug)]
pub struct Ingest {
    store: Arc<Store>,
    table: Arc<Table>,
    target: Target,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    rows: u64,
    jobs: Option<SyncSender<Job>>,
    results: Receiver<(ChunkId, Result<SealedChunk>)>,
    sealed: BTreeMap<ChunkId, SealedChunk>,
    workers: Vec<JoinHandle<()>>,
}

impl Ingest {
    pub(crate) fn into_existing(store: Arc<Store>, table: Arc<Table>) -> Self {
        Self::start(store, table, Target::Existing)
    }

    pub(crate) fn into_new(store: Arc<Store>, table: Arc<Table>, replace: bool) -> Self {
        Self::start(store, table, Target::New { replace })
    }

    #[allow(clippy::disallowed_methods)]
    fn start(store: Arc<Store>, table: Arc<Table>, target: Target) -> Self {
        let (jobs, queue) = sync_channel::<Job>(1);
        let (done, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let workers = (0..store.core().ingest_threads).filter_map(|n| {
            let (store, table, queue, done) =
                (Arc::clone(&store), Arc::clone(&table), Arc::clone(&queue), done.clone());
            let work = move || work(&store, &table, &queue, &done);
            std::thread::Builder::new().name(format!("terrace-ingest-{n}")).spawn(work).ok()
        });
        let workers = workers.collect();
        Self {
            store,
            table,
            target,
            pending: Vec::new(),
            pending_rows: 0,
            rows: 0,
            jobs: Some(jobs),
            results,
            sealed: BTreeMap::new(),
            workers,
        }
    }

    /// The table that receives the rows.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Rows taken so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Takes rows; blocks while two chunks wait to be written.
    ///
    /// # Errors
    /// [`Error::SchemaMismatch`] for rows that do not fit, or the first error of a chunk already written.
    pub fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.table.check_rows(&batch)?;
        let chunk_rows = self.table.options().chunk_rows as usize;
        self.rows += batch.num_rows() as u64;
        let mut offset = 0;
        while offset < batch.num_rows() {
            let take = (chunk_rows - self.pending_rows).min(batch.num_rows() - offset);
            self.pending.push(batch.slice(offset, take));
            self.pending_rows += take;
            offset += take;
            if self.pending_rows == chunk_rows {
                self.dispatch()?;
            }
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Result<()> {
        self.collect_ready()?;
        let job = Job { id: self.table.allocate_chunk(), batches: std::mem::take(&mut self.pending) };
        self.pending_rows = 0;
        match &self.jobs {
            Some(jobs) if !self.workers.is_empty() => jobs.send(job).map_err(|_| Error::Cancelled),
            _ => {
                self.sealed.insert(job.id, write_job(self.store.core(), &self.table, &job)?);
                Ok(())
            }
        }
    }

    fn collect_ready(&mut self) -> Result<()> {
        while let Ok((id, sealed)) = self.results.try_recv() {
            self.sealed.insert(id, sealed?);
        }
        Ok(())
    }

    /// Makes everything durable and visible at once; returns the rows.
    pub fn finish(mut self) -> Result<u64> {
        let rows = self.rows;
        if let Target::New { replace } = self.target {
            let sealed = self.seal_all()?;
            self.store.publish_table(&self.table, sealed, replace)?;
        } else {
            let (store, written) = (Arc::clone(&self.store), self.written()?);
            store.add_rows(written)?;
        }
        Ok(rows)
    }

    /// Writes what is left and hands the rows over to be committed by a [`crate::store::Transaction`]. Few rows stay in the
    /// delta while it has room.
    pub fn written(mut self) -> Result<NewRows> {
        let small = self.pending_rows < self.table.options().chunk_rows as usize / 8;
        let (mut delta, table) = (None, Arc::clone(&self.table));
        if self.rows == self.pending_rows as u64 && small {
            delta = match self.store.delta_rows(&table, &self.pending) {
                Err(Error::BudgetExceeded { .. }) => None,
                done => {
                    self.pending_rows = 0;
                    done?
                }
            };
        }
        Ok(NewRows { table, chunks: self.seal_all()?, delta })
    }

    fn seal_all(&mut self) -> Result<Vec<SealedChunk>> {
        if self.pending_rows > 0 {
            self.dispatch()?;
        }
        self.jobs.take();
        while let Ok((id, sealed)) = self.results.recv() {
            self.sealed.insert(id, sealed?);
        }
        Ok(std::mem::take(&mut self.sealed).into_values().collect())
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.jobs.take();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn work(store: &Store, table: &Table, queue: &Mutex<Receiver<Job>>, done: &Sender<(ChunkId, Result<SealedChunk>)>) {
    loop {
        let Ok(job) = queue.lock().recv() else { return };
        let sealed = write_job(store.core(), table, &job);
        if done.send((job.id, sealed)).is_err() {
            return;
        }
    }
}

fn write_job(core: &Core, table: &Table, job: &Job) -> Result<SealedChunk> {
    write_chunk(core, table, job.id, &job.batches, &|_| core.admission(table))
}

/// Writes one chunk: file and fsync, bounds, a copy of each column on the tier that `tier` gives while it has room.
pub(crate) fn write_chunk(
    core: &Core,
    table: &Table,
    id: ChunkId,
    batches: &[RecordBatch],
    tier: &dyn Fn(usize) -> Option<TierId>,
) -> Result<SealedChunk> {
    let batch = codec::normalize(&concat_batches(table.schema(), batches)?)?;
    let statistics = ChunkStatistics::compute(&batch)?;
    let ids = || table.definition().columns.iter().map(|column| column.id);
    let encoded = codec::encode_chunk(&column::with_ids(&batch, ids())?)?;
    drop(batch);
    let path = core.ssd.write_chunk(table.id(), id, &encoded)?;
    let chunk = Chunk::new(
        table.id(),
        id,
        batches.iter().map(|b| b.num_rows() as u32).sum(),
        Arc::clone(table.schema()),
        path,
        encoded.bytes.len() as u64,
        Segment::of_file(ids(), encoded.homes),
    );
    chunk.doom(&core.ssd);
    core.admit(&chunk, &encoded.bytes, tier)?;
    Ok(SealedChunk { chunk: Arc::new(chunk), statistics })
}
