//! The io_uring engine, on a thread of its own.
//!
//! The thread owns the ring and every buffer of a running read or write. It sleeps in `submit_and_wait`; a request or the
//! end of the engine wakes it through an eventfd that the ring polls. A thread that is awake looks at the queue once more before
//! it sleeps, so it needs no signal.
//!
//! ```text
//!   read(), write() -> queue -> eventfd ~~> thread: start operation, push pieces -> kernel -> reap -> complete handle
//! ```
//!
//! - `worker`: the thread

mod worker;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use io_uring::{IoUring, Probe, opcode};
use parking_lot::Mutex;
use terrace_model::clock::Clock;
use terrace_model::{Error, Result};

use super::look_ups::LookUps;
use super::queue::ReadQueue;
use super::request::Request;
use super::{
    AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, Priority, ReadHandle, set_priority,
};
use worker::Worker;

/// Submission entries: the pieces, the poll of the eventfd, and room to spare.
const ENTRIES: u32 = 128;

#[derive(Debug, Default)]
struct Queue {
    waiting: ReadQueue<Request>,
    look_ups: LookUps,
    /// The thread sleeps, or is about to: who adds requests has to wake it.
    asleep: bool,
    /// Requests came while the thread was awake, so it looks again before it sleeps.
    arrived: bool,
    stopped: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    stats: Arc<IoStats>,
    pool: Arc<BufferPool>,
    depth: Depth,
}

impl Shared {
    fn new() -> Result<Self> {
        // SAFETY: plain system call without pointers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(Error::io("set up", "io_uring", &std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let queue = Mutex::default();
        let stats = Arc::default();
        let pool = Arc::default();
        Ok(Self { queue, wake, stats, pool, depth: Depth::default() })
    }

    fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes 8 bytes from a live array to a descriptor this object owns. EAGAIN means it is set already.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn clear_signal(&self) {
        let mut count = [0u8; 8];
        // SAFETY: reads 8 bytes into a live array from a non-blocking descriptor this object owns.
        unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Queues requests of one intent and wakes the thread once, which submits all of them to the device together.
    fn submit(&self, requests: impl IntoIterator<Item = Request>) {
        let mut requests = requests.into_iter().peekable();
        let Some(intent) = requests.peek().map(|request| request.intent) else { return };
        let mut queue = self.queue.lock();
        if queue.stopped {
            drop(queue);
            for request in requests {
                let error = request.failed(&std::io::Error::other("the I/O engine has stopped"));
                request.waiters.complete(Err(error));
            }
            return;
        }
        // Reads may wait because enough of them run; the thread then looks again when one ends, which is too late for a point.
        let is_point = queue.waiting.is_point(intent);
        let is_first_point = is_point && !queue.waiting.has_point();
        let is_news = is_first_point || queue.waiting.len() == 0;
        let waiting = queue.waiting.len();
        requests.for_each(|request| queue.waiting.push(intent, request.len as u64, request));
        let reads = queue.waiting.len() - waiting;
        queue.look_ups.note(intent, is_point, reads, self.stats.clock.now_us());
        // A queue that was not empty has been signalled already, and the thread has not emptied it yet.
        let must_signal = is_news && queue.asleep;
        queue.arrived |= is_news;
        queue.asleep &= !is_news;
        drop(queue);
        if must_signal {
            self.signal();
        }
    }

    /// Whether look-ups come.
    fn look_ups_come(&self) -> bool {
        let now_us = self.stats.clock.now_us();
        self.queue.lock().look_ups.come(now_us)
    }

    /// Called before the thread sleeps: true when requests came since the last call, so that it has to look at the queue once more.
    fn has_news(&self) -> bool {
        let mut queue = self.queue.lock();
        let arrived = std::mem::take(&mut queue.arrived);
        queue.asleep = !arrived;
        arrived
    }
}

/// Sets up a ring that can read. Where the kernel supports it (6.1), the kernel processes completions when this thread asks
/// for them, and does not interrupt the thread.
fn set_up_ring() -> Result<IoUring> {
    let refused = |e: std::io::Error| Error::io("set up", "io_uring", &e);
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
    let ring = modern.or_else(|_| IoUring::new(ENTRIES)).map_err(refused)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(refused)?;
    if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
        return Err(Error::Unsupported("this kernel's io_uring cannot read and write".into()));
    }
    Ok(ring)
}

/// The io_uring engine.
#[derive(Debug)]
pub struct UringEngine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl UringEngine {
    /// Sets the ring up and starts its thread. Fails where the kernel or a sandbox refuses io_uring.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Result<Self> {
        let refused = |e: std::io::Error| Error::io("set up", "io_uring", &e);
        let shared = Arc::new(Shared::new()?);
        let (ready, started) = sync_channel(1);
        let worker = Arc::clone(&shared);
        // A ring with a single issuer belongs to the thread that sets it up.
        let work = move || match set_up_ring() {
            Ok(ring) => {
                let _ = ready.send(Ok(()));
                set_priority(Priority::Device);
                Worker::new(ring, worker).run();
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("terrace-uring".into()).spawn(work).map_err(refused)?;
        started.recv().unwrap_or(Err(Error::Cancelled))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl BlockIo for UringEngine {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        IoFile::open(path)
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.read_all(intent, file, &[windows])
    }

    fn read_all(&self, intent: Intent, file: &Arc<IoFile>, reads: &[&[(u64, usize)]]) -> Vec<ReadHandle> {
        let mut handles = Vec::with_capacity(reads.len());
        let mut requests = Vec::with_capacity(reads.len());
        for windows in reads {
            let (new, request) = Request::new(intent, &self.shared.stats, &self.shared.pool, file, windows);
            handles.extend(new);
            requests.extend(request);
        }
        self.shared.submit(requests);
        handles
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        let (handle, request) = Request::to_write(intent, &self.shared.stats, file, offset, bytes);
        self.shared.submit(request);
        handle
    }

    fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.shared.queue.lock().waiting.raise(intent, |request| request.raise(intent, handle));
    }

    fn rules(&self) -> IoRules {
        self.shared.queue.lock().waiting.rules()
    }

    fn set_rules(&self, rules: IoRules) {
        self.shared.queue.lock().waiting.set_rules(rules);
    }

    fn stats(&self) -> &IoStats {
        &self.shared.stats
    }

    fn pool(&self) -> &Arc<BufferPool> {
        &self.shared.pool
    }

    fn depth(&self) -> &Depth {
        &self.shared.depth
    }

    fn look_ups_come(&self) -> bool {
        self.shared.look_ups_come()
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        self.shared.queue.lock().stopped = true;
        self.shared.signal();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the io_uring thread panicked");
        }
    }
}
