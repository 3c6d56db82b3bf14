//! Counts of tiering runs of hot views since the server started, and the progress of the current run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_tier_store::store::Compacted;
use terrace_tier_store::table::TableName;

/// Counts of runs. All only grow, except [`RunCounters::chunks_left`].
#[derive(Debug, Default)]
pub struct RunCounters {
    runs: AtomicU64,
    failed: AtomicU64,
    chunks_read: AtomicU64,
    read_bytes: AtomicU64,
    chunks_noted: AtomicU64,
    chunks_in: AtomicU64,
    chunks_out: AtomicU64,
    written_bytes: AtomicU64,
    chunks_left: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<TableName>,
    errors: BTreeMap<TableName, String>,
}

impl RunCounters {
    /// Runs that were completed.
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Runs that ended with an error.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Chunks of which columns of the condition were read.
    pub fn chunks_read(&self) -> u64 {
        self.chunks_read.load(Ordering::Relaxed)
    }

    /// Bytes of these columns that were read from the home tier.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Chunks that were marked without a rewrite.
    pub fn chunks_noted(&self) -> u64 {
        self.chunks_noted.load(Ordering::Relaxed)
    }

    /// Chunks that were replaced.
    pub fn chunks_in(&self) -> u64 {
        self.chunks_in.load(Ordering::Relaxed)
    }

    /// Chunks that were written in place of these.
    pub fn chunks_out(&self) -> u64 {
        self.chunks_out.load(Ordering::Relaxed)
    }

    /// Bytes of the written chunks.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Chunks without the mark of the current run; 0 when there is no run.
    pub fn chunks_left(&self) -> u64 {
        self.chunks_left.load(Ordering::Relaxed)
    }

    /// The view of the current run.
    pub fn running(&self) -> Option<TableName> {
        self.state.lock().running.clone()
    }

    /// Error of the latest run of a view; `None` if it did not fail.
    pub fn error(&self, view: &TableName) -> Option<String> {
        self.state.lock().errors.get(view).cloned()
    }

    /// Notes that a run of the view begins.
    pub fn begin(&self, view: &TableName) {
        self.state.lock().running = Some(view.clone());
    }

    /// Notes that the run is completed, has failed, or was ended early (`None`).
    pub fn end(&self, view: &TableName, result: Option<Result<(), String>>) {
        let mut state = self.state.lock();
        state.running = None;
        self.chunks_left.store(0, Ordering::Relaxed);
        match result {
            Some(Ok(())) => {
                self.runs.fetch_add(1, Ordering::Relaxed);
                state.errors.remove(view);
            }
            Some(Err(error)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                state.errors.insert(view.clone(), error);
            }
            None => {}
        }
    }

    /// Sets the number of chunks without the mark of the current run.
    pub fn leave(&self, chunks: usize) {
        self.chunks_left.store(chunks as u64, Ordering::Relaxed);
    }

    /// Counts a chunk that was read, with the bytes from the home tier.
    pub fn read(&self, bytes: u64) {
        self.chunks_read.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts chunks whose marks were recorded without rewriting the chunk.
    pub fn note(&self, chunks: u64) {
        self.chunks_noted.fetch_add(chunks, Ordering::Relaxed);
        let _ = self
            .chunks_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(chunks)));
    }

    /// Counts chunks that were replaced.
    pub fn write(&self, done: &Compacted) {
        self.chunks_in.fetch_add(done.chunks_in, Ordering::Relaxed);
        self.chunks_out.fetch_add(done.chunks_out, Ordering::Relaxed);
        self.written_bytes.fetch_add(done.written_bytes, Ordering::Relaxed);
        let replaced = done.chunks_in;
        let _ = self
            .chunks_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(replaced)));
    }
}
