//! Bulk ingest: writes a stream of rows into chunk files; one commit makes all of them visible, or none.
//!
//! ```text
//! write(batch) -> cut to chunk_rows -> workers: encode, compress where it pays or pack, write file, fsync, bounds, DRAM while the budget allows
//! finish()     -> wait for the workers -> one catalog commit -> new version
//! drop         -> files removed, charges given back
//! ```
//!
//! Memory is bounded: a chunk ends at [`CHUNK_BYTES`] too, and all ingests share a limit
//! ([`terrace_storage::table::IngestMemory`]), at which `write` waits. Rows that wait until their chunk is full count too; while
//! ingests keep much of them, chunks are smaller. Rows keep their order. Without workers (`ingest_threads` is 0, or no thread can
//! be started) the thread that calls `write` does their work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::{FieldRef, Schema};
use parking_lot::Mutex;
use terrace_model::{ChunkId, ColumnId, Error, FileFormat, Result, TierId};
use terrace_storage::io::{Class, FileBytes, Intent, WritingStatement};
use terrace_storage::table::ingest_memory::{MemoryShare, WaitingRows};
use terrace_storage::table::mark::{ChunkMarks, MarkedRows};
use terrace_storage::table::statistics::StatisticsBuilder;
use terrace_storage::table::{Chunk, ChunkStatistics, DeltaRows, Segment, Table, WrittenFile, column, row_bytes};
use terrace_storage::tier::codec;

use super::{Core, Store};

/// A chunk that is written but not committed; dropping it deletes its file.
#[derive(Debug)]
pub(crate) struct SealedChunk {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) statistics: ChunkStatistics,
}

/// Rows of a table that are written but not committed; dropping it deletes them.
#[derive(Debug)]
pub struct NewRows {
    pub(crate) table: Arc<Table>,
    pub(crate) chunks: Vec<SealedChunk>,
    pub(crate) delta: Option<DeltaRows>,
    /// The statement that stores them.
    pub(crate) statement: Arc<WritingStatement>,
}

impl NewRows {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        let chunks = self.chunks.iter().map(|c| u64::from(c.chunk.rows)).sum::<u64>();
        chunks + self.delta.as_ref().map_or(0, DeltaRows::live_rows)
    }
}

/// Where the rows of a new chunk come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkOrigin<'a> {
    /// The chunks whose rows it takes over.
    parents: &'a [ChunkId],
    /// What the write of its file is for.
    intent: Intent,
    /// Who waits for it; `None`: no statement does.
    statement: Option<&'a WritingStatement>,
}

impl<'a> ChunkOrigin<'a> {
    /// Rows that a client stored, by an ingest, a statement or a seal: its writes take turns with those of others.
    pub(crate) fn written_by(statement: &'a WritingStatement) -> Self {
        let intent = Intent { statement: statement.id(), ..Class::Write.into() };
        Self { parents: &[], intent, statement: Some(statement) }
    }

    /// Chunks that are replaced: no statement waits for the write.
    pub(crate) fn replaced(parents: &'a [ChunkId]) -> Self {
        Self { parents, intent: Class::Upkeep.into(), statement: None }
    }
}

struct Job {
    id: ChunkId,
    statement: Arc<WritingStatement>,
    batches: Vec<RecordBatch>,
    _memory: MemoryShare,
}

/// Maximum bytes of the rows of one chunk, unless a single row is larger.
pub(crate) const CHUNK_BYTES: u64 = 64 << 20;
/// Memory for writing a chunk, in halves of the size of its rows: first the batches and their concatenation, then the
/// concatenation and the file, which is narrower.
const WORK_HALVES: u64 = 5;
/// Like [`WORK_HALVES`], when buffers may be compressed or columns packed: what comes out and the file made of it add to it.
const COMPRESSED_WORK_HALVES: u64 = 8;

/// The table that receives the rows.
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
    statement: Arc<WritingStatement>,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: u64,
    pending_memory: WaitingRows,
    rows: u64,
    jobs: Option<SyncSender<Job>>,
    results: Receiver<(ChunkId, Result<SealedChunk>)>,
    sealed: BTreeMap<ChunkId, SealedChunk>,
    /// Number of chunks given to workers.
    dispatched: usize,
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
            let store = Arc::clone(&store);
            let table = Arc::clone(&table);
            let queue = Arc::clone(&queue);
            let done = done.clone();
            let work = move || work(&store, &table, &queue, &done);
            std::thread::Builder::new().name(format!("terrace-ingest-{n}")).spawn(work).ok()
        });
        let workers = workers.collect();
        let pending_memory = store.core().ingest_memory.waiting_rows();
        Self {
            store,
            table,
            target,
            statement: Arc::default(),
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
            pending_memory,
            rows: 0,
            jobs: Some(jobs),
            results,
            sealed: BTreeMap::new(),
            dispatched: 0,
            workers,
        }
    }

    /// Makes it a part of a statement: its writes and its checks of keys take turns as those of the statement, which is told how
    /// long they made it wait.
    #[must_use]
    pub fn for_statement(mut self, statement: Arc<WritingStatement>) -> Self {
        self.statement = statement;
        self
    }

    /// The table that receives the rows.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Rows taken so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Takes rows; blocks while the chunks before them wait to be written.
    ///
    /// # Errors
    /// [`Error::SchemaMismatch`] for rows that do not fit, or the first error of a chunk already written.
    pub fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.table.check_rows(&batch)?;
        let chunk_rows = self.table.options().chunk_rows as usize;
        self.rows += batch.num_rows() as u64;
        let row_bytes = (row_bytes(&batch) / batch.num_rows().max(1) as u64).max(1);
        let mut offset = 0;
        let mut last_bytes = 0;
        while offset < batch.num_rows() {
            let room = (CHUNK_BYTES.saturating_sub(self.pending_bytes) / row_bytes) as usize;
            let take = (chunk_rows - self.pending_rows).min(batch.num_rows() - offset).min(room);
            if take == 0 && self.pending_rows > 0 {
                self.dispatch()?;
                continue;
            }
            let take = take.max(1);
            self.pending.push(batch.slice(offset, take));
            self.pending_rows += take;
            last_bytes = take as u64 * row_bytes;
            self.pending_bytes += last_bytes;
            offset += take;
            if self.pending_rows == chunk_rows {
                self.dispatch()?;
            }
        }
        self.keep_pending(last_bytes)
    }

    /// Keeps the pending rows until there are more, or writes them when ingests keep too many. The last part, of about
    /// `last_bytes`, has just come.
    fn keep_pending(&mut self, last_bytes: u64) -> Result<()> {
        if let Some(last) = self.pending.last_mut()
            && codec::has_large_allocations(last)
        {
            *last = codec::without_large_allocations(last)?;
            self.pending_bytes = self.pending_bytes.saturating_sub(last_bytes) + row_bytes(last);
        }
        if self.pending_memory.keep(self.pending_bytes) { Ok(()) } else { self.dispatch() }
    }

    fn dispatch(&mut self) -> Result<()> {
        self.collect_ready()?;
        let bytes = std::mem::take(&mut self.pending_bytes);
        let halves = match (self.store.core().compression_rule(), self.table.options().file_format()) {
            (codec::CompressionRule::Raw, FileFormat::Arrow) => WORK_HALVES,
            _ => COMPRESSED_WORK_HALVES,
        };
        let memory = self.pending_memory.take_share(bytes.saturating_mul(halves) / 2);
        let batches = std::mem::take(&mut self.pending);
        let statement = Arc::clone(&self.statement);
        let job = Job { id: self.table.allocate_chunk(), statement, batches, _memory: memory };
        self.pending_rows = 0;
        self.dispatched += 1;
        match &self.jobs {
            Some(jobs) if !self.workers.is_empty() => jobs.send(job).map_err(|_| Error::Cancelled),
            _ => {
                self.sealed.insert(job.id, write_job(self.store.core(), &self.table, job)?);
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
            self.store.publish_table(&self.table, sealed, replace, &self.statement)?;
        } else {
            let store = Arc::clone(&self.store);
            let written = self.into_new_rows()?;
            store.add_rows(written)?;
        }
        Ok(rows)
    }

    /// Writes the remaining rows and returns all rows, to be committed by a [`super::Transaction`]. If there are
    /// few rows in all, they go to the delta while it has room.
    pub fn into_new_rows(mut self) -> Result<NewRows> {
        let small = self.pending_rows < self.table.options().chunk_rows as usize / 8;
        let mut delta = None;
        let table = Arc::clone(&self.table);
        if self.rows == self.pending_rows as u64 && small {
            delta = match self.store.delta_rows(&table, &self.pending) {
                Err(Error::BudgetExceeded { .. }) => None,
                done => {
                    self.pending_memory.keep(0);
                    self.pending_rows = 0;
                    self.pending_bytes = 0;
                    done?
                }
            };
        }
        let statement = Arc::clone(&self.statement);
        Ok(NewRows { table, chunks: self.seal_all()?, delta, statement })
    }

    fn seal_all(&mut self) -> Result<Vec<SealedChunk>> {
        if self.pending_rows > 0 {
            self.dispatch()?;
        }
        self.jobs.take();
        while let Ok((id, sealed)) = self.results.recv() {
            self.sealed.insert(id, sealed?);
        }
        if self.sealed.len() != self.dispatched {
            let lost = self.dispatched - self.sealed.len();
            return Err(Error::Invalid(format!("the ingest lost {lost} chunks: a thread that writes them failed")));
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

/// Writes chunks until the queue closes.
fn work(store: &Store, table: &Table, queue: &Mutex<Receiver<Job>>, done: &Sender<(ChunkId, Result<SealedChunk>)>) {
    loop {
        let Ok(job) = queue.lock().recv() else { return };
        let id = job.id;
        let sealed = write_job(store.core(), table, job);
        if done.send((id, sealed)).is_err() {
            return;
        }
    }
}

fn write_job(core: &Core, table: &Table, job: Job) -> Result<SealedChunk> {
    let Job { id, statement, batches, _memory } = job;
    write_chunk(core, table, id, ChunkOrigin::written_by(&statement), batches.into(), &|_| core.admission(table))
}

/// Writes one chunk, whose rows come from `origin`: file and fsync, bounds, and a copy of each column on the tier that
/// `tier` returns for it, if rules allow it and while it has room. Bits of marks get no copy: queries do not read them.
pub(crate) fn write_chunk(
    core: &Core,
    table: &Table,
    id: ChunkId,
    origin: ChunkOrigin<'_>,
    rows: MarkedRows,
    tier: &dyn Fn(usize) -> Option<TierId>,
) -> Result<SealedChunk> {
    let MarkedRows { batches, marks } = rows;
    let (batch, statistics) = stored_columns(table, &batches)?;
    drop(batches);
    let rows = batch.num_rows() as u32;
    let marks = ChunkMarks::from_marks(marks);
    let columns = table.definition().columns.iter().map(|column| column.id);
    let ids: Vec<ColumnId> = columns.chain(marks.bits.iter().map(|(mark, _)| mark.column())).collect();
    let batch = column::with_ids(&marks.append_to(batch)?, ids.iter().copied())?;
    let open = |bytes| FileBytes::with_capacity(core.io.pool(), bytes);
    let format = table.options().file_format();
    let encoded = codec::write_chunk_file(&batch, format, core.compression_rule(), open)?;
    drop(batch);
    let file = encoded.bytes.into_buffer();
    let asked_us = core.clock.now_us();
    let written = core.home.write_chunk(table.id(), id, origin.intent, &file);
    if let Some(statement) = origin.statement {
        statement.add_write_wait(core.clock.now_us().saturating_sub(asked_us));
    }
    let path = written?;
    let file = file.as_slice();
    let written = WrittenFile { path, bytes: file.len() as u64, segments: Segment::of_file(ids, encoded.homes) };
    let chunk = Chunk::new(table.id(), id, rows, Arc::clone(table.schema()), written);
    let chunk = chunk.with_added_marks(marks.constants);
    chunk.mark_for_deletion(&core.home);
    core.admit(&chunk, file, &core.starting_places(table, &statistics, &chunk, origin.parents, tier))?;
    let chunk = Arc::new(chunk);
    core.unpublished.add(&chunk);
    Ok(SealedChunk { chunk, statistics })
}

/// Makes the batch that goes to the file, and its statistics. Concatenates, analyses and narrows one column after the
/// other, so that each stays in the processor's cache meanwhile.
fn stored_columns(table: &Table, batches: &[RecordBatch]) -> Result<(RecordBatch, ChunkStatistics)> {
    let schema = table.schema();
    codec::check_types(schema)?;
    let mut fields = Vec::new();
    let mut columns = Vec::new();
    let mut statistics = StatisticsBuilder::default();
    for (index, field) in schema.fields().iter().enumerate() {
        let (field, parts) = column_parts(field, batches, index)?;
        let stored = statistics.add(&parts, |extremes| codec::narrow_column(&field, &parts, extremes))?;
        fields.push(stored.0);
        columns.push(codec::with_filled_nulls(stored.1));
    }
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?;
    Ok((batch, statistics.finish(schema, rows)?))
}

/// The values of a column: in parts if these are narrowed before they are concatenated, else concatenated in an array
/// of its own buffers.
fn column_parts(field: &FieldRef, batches: &[RecordBatch], index: usize) -> Result<(FieldRef, Vec<ArrayRef>)> {
    let parts = batches.iter().map(|batch| batch.column(index));
    let some: Vec<ArrayRef> = parts.clone().filter(|part| !part.is_empty()).cloned().collect();
    if codec::may_be_narrow(field.data_type()) && !some.is_empty() {
        return Ok((Arc::clone(field), some));
    }
    let (field, whole) = codec::normalize_column(field, &concat(&parts.map(AsRef::as_ref).collect::<Vec<_>>())?)?;
    Ok((field, vec![whole]))
}
