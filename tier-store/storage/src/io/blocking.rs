//! Threads, `pread` and `pwrite`: the engine for machines without io_uring (many containers).
//!
//! [`Workers`] is the queue with its threads; a [`Device`] carries out single reads and writes, so that the simulated engine shares the
//! rest. Threads sleep on a condition variable when the queue is empty and are joined when the engine is dropped.

use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use terrace_model::Result;

use super::queue::ReadQueue;
use super::request::{PIECE_BYTES, Request, pread, pwrite};
use super::{AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle};

/// Number of concurrent operations; with more than eight a disk gains latency rather than throughput.
const THREADS: usize = 8;

/// The device of [`Workers`].
pub(crate) trait Device: Send + Sync + Debug + 'static {
    /// Chooses the position of the next request among `waiting` (at least 1) queued ones; `None` takes the first in the order
    /// of the queue.
    fn pick(&self, _waiting: usize) -> Option<usize> {
        None
    }

    /// Most bytes that it is asked to read at a time.
    fn piece_bytes(&self) -> usize {
        PIECE_BYTES
    }

    /// Reads some bytes at `offset`; 0 means that the file ends there.
    fn read_at(&self, file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize>;

    /// Writes some bytes at `offset`.
    fn write_at(&self, file: &IoFile, bytes: &[u8], offset: u64) -> std::io::Result<usize> {
        pwrite(file, bytes, offset)
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: ReadQueue<Request>,
    paused: bool,
    stopped: bool,
}

#[derive(Debug)]
struct Shared<D> {
    device: D,
    queue: Mutex<Queue>,
    changed: Condvar,
    stats: Arc<IoStats>,
    pool: Arc<BufferPool>,
    depth: Depth,
}

/// A queue of reads and writes, and the threads that serve it.
#[derive(Debug)]
pub(crate) struct Workers<D: Device> {
    shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

impl<D: Device> Workers<D> {
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(device: D, threads: usize) -> Self {
        let shared = Arc::new(Shared {
            device,
            queue: Mutex::new(Queue::default()),
            changed: Condvar::new(),
            stats: Arc::default(),
            pool: Arc::default(),
            depth: Depth::default(),
        });
        let threads = (0..threads)
            .filter_map(|i| {
                let shared = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name(format!("terrace-io-{i}"));
                builder
                    .spawn(move || shared.serve())
                    .inspect_err(|e| tracing::error!(%e, "cannot start an I/O thread"))
                    .ok()
            })
            .collect();
        Self { shared, threads }
    }

    pub(crate) fn device(&self) -> &D {
        &self.shared.device
    }

    pub(crate) fn stats(&self) -> &IoStats {
        &self.shared.stats
    }

    pub(crate) fn pool(&self) -> &Arc<BufferPool> {
        &self.shared.pool
    }

    pub(crate) fn depth(&self) -> &Depth {
        &self.shared.depth
    }

    pub(crate) fn submit(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        let (handles, request) = Request::new(intent, &self.shared.stats, &self.shared.pool, file, windows);
        self.push(request);
        handles
    }

    /// See [`BlockIo::write_as`].
    pub(crate) fn submit_write(
        &self,
        intent: Intent,
        file: &Arc<IoFile>,
        offset: u64,
        bytes: AlignedBuffer,
    ) -> ReadHandle {
        let (handle, request) = Request::to_write(intent, &self.shared.stats, file, offset, bytes);
        self.push(request);
        handle
    }

    fn push(&self, request: Option<Request>) {
        // Without threads the operation would never end, so the request is dropped here, which cancels the handles.
        if let (Some(request), false) = (request, self.threads.is_empty()) {
            self.shared.queue.lock().waiting.push(request.intent, request.len as u64, request);
            self.shared.changed.notify_one();
        }
    }

    /// See [`BlockIo::raise`].
    pub(crate) fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.shared.queue.lock().waiting.raise(intent, |request| request.raise(intent, handle));
    }

    /// See [`BlockIo::rules`].
    pub(crate) fn rules(&self) -> IoRules {
        self.shared.queue.lock().waiting.rules()
    }

    /// See [`BlockIo::set_rules`].
    pub(crate) fn set_rules(&self, rules: IoRules) {
        self.shared.queue.lock().waiting.set_rules(rules);
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.shared.queue.lock().paused = paused;
        self.shared.changed.notify_all();
    }
}

impl<D: Device> Shared<D> {
    fn serve(&self) {
        while let Some(request) = self.next() {
            request.run(&self.stats, &self.device);
        }
    }

    fn next(&self) -> Option<Request> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if !queue.paused && queue.waiting.len() > 0 {
                let chosen = match self.device.pick(queue.waiting.len()) {
                    Some(place) => queue.waiting.remove(place),
                    None => queue.waiting.pop(),
                };
                if let Some(request) = chosen {
                    return Some(request);
                }
            }
            self.changed.wait(&mut queue);
        }
    }
}

impl<D: Device> Drop for Workers<D> {
    fn drop(&mut self) {
        let withdrawn = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.waiting)
        };
        drop(withdrawn);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an I/O thread panicked");
            }
        }
    }
}

/// A device that calls `pread` and `pwrite`.
#[derive(Debug)]
struct Pread;

impl Device for Pread {
    fn read_at(&self, file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize> {
        pread(file, target, offset)
    }
}

/// The blocking engine.
#[derive(Debug)]
pub struct BlockingEngine {
    workers: Workers<Pread>,
}

impl BlockingEngine {
    /// Starts its threads.
    pub fn start() -> Self {
        Self { workers: Workers::start(Pread, THREADS) }
    }
}

impl BlockIo for BlockingEngine {
    fn name(&self) -> &'static str {
        "blocking"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        IoFile::open(path)
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.workers.submit(intent, file, windows)
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        self.workers.submit_write(intent, file, offset, bytes)
    }

    fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.workers.raise(intent, handle);
    }

    fn rules(&self) -> IoRules {
        self.workers.rules()
    }

    fn set_rules(&self, rules: IoRules) {
        self.workers.set_rules(rules);
    }

    fn stats(&self) -> &IoStats {
        self.workers.stats()
    }

    fn pool(&self) -> &Arc<BufferPool> {
        self.workers.pool()
    }

    fn depth(&self) -> &Depth {
        self.workers.depth()
    }
}
