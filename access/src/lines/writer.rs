//! The queue of a log, and the thread that writes what is in it.
//!
//! Lines that cannot be written are tried again until they can; meanwhile the queue fills.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_model::clock::Clock;
use tokio::sync::Notify;

use super::file::{LogFile, RotatingFile};

/// Bytes after which lines are written, however many wait.
const BATCH_BYTES: usize = 256 << 10;
/// Time after which lines that could not be written are tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How often old files are removed while nothing is recorded.
const TIDY_EVERY: Duration = Duration::from_secs(3600);

/// What becomes a line of a log.
pub trait Line: Send + 'static {
    /// Appends the text of the line, without its end.
    ///
    /// # Errors
    /// When it has no JSON.
    fn append_to(&self, lines: &mut Vec<u8>) -> serde_json::Result<()>;
}

/// Options of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// What it is, in messages: "the audit trail".
    pub name: &'static str,
    /// Name of its thread.
    pub thread: &'static str,
    /// Most lines that wait to be written.
    pub capacity: usize,
    /// Time that the thread waits for more lines after the first one: whoever sends them need not wake it for each.
    pub linger: Duration,
}

/// A log in files, with the queue before it. Dropping it writes the rest.
#[derive(Debug)]
pub struct LineLog<T> {
    /// `None` once it is dropped.
    sender: Option<SyncSender<T>>,
    thread: Option<JoinHandle<()>>,
    capacity: usize,
    state: Arc<LogState>,
}

/// What both ends know.
#[derive(Debug, Default)]
struct LogState {
    /// Lines sent and not written.
    queued: AtomicUsize,
    /// Lines written so far.
    done: AtomicUsize,
    is_failing: AtomicBool,
    is_closed: AtomicBool,
    /// Told when lines were written.
    written: Notify,
    /// The same for threads.
    written_lock: Mutex<()>,
    written_condition: Condvar,
}

impl<T: Line> LineLog<T> {
    /// Starts a log whose file is opened, and made, with the first line, so that a full disk does not keep anybody from starting.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(file: LogFile, options: LogOptions, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Self::over(RotatingFile::later(file), options, clock)
    }

    /// Starts a log over an open file.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub(crate) fn over(file: RotatingFile, options: LogOptions, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (sender, items) = sync_channel(options.capacity);
        let state = Arc::<LogState>::default();
        let mut writer = Writer { file, options, state: Arc::clone(&state), clock };
        let work = move || writer.run(&items);
        let thread = std::thread::Builder::new().name(options.thread.to_owned()).spawn(work)?;
        Ok(Self { sender: Some(sender), thread: Some(thread), capacity: options.capacity, state })
    }
}

impl<T> LineLog<T> {
    /// Queues a line; false when the queue is full. Never waits.
    pub fn send(&self, item: T) -> bool {
        // Counted first, as the thread may be done with it at once.
        self.state.queued.fetch_add(1, Ordering::SeqCst);
        let is_sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(item).is_ok());
        if !is_sent {
            self.state.queued.fetch_sub(1, Ordering::SeqCst);
        }
        is_sent
    }

    /// Waits while the queue is half full.
    pub(crate) async fn has_room(&self) {
        loop {
            // Registers before it looks, so that no notification in between is lost.
            let mut written = std::pin::pin!(self.state.written.notified());
            written.as_mut().enable();
            if self.queued() < self.capacity / 2 {
                return;
            }
            written.await;
        }
    }

    /// Waits until what is in the queue now is written, for `most` at most while nothing is written.
    pub fn flush(&self, most: Duration) {
        let mut lock = self.state.written_lock.lock();
        let last = self.state.done().wrapping_add(self.queued());
        while self.state.done() < last {
            if self.state.written_condition.wait_for(&mut lock, most).timed_out() {
                return;
            }
        }
    }

    /// Lines that wait to be written.
    pub fn queued(&self) -> usize {
        self.state.queued.load(Ordering::SeqCst)
    }

    /// Whether the file does not take lines now; it is tried again and again.
    pub fn is_failing(&self) -> bool {
        self.state.is_failing.load(Ordering::SeqCst)
    }
}

impl<T> Drop for LineLog<T> {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        // Ends the thread once it has written the rest.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl LogState {
    fn note_written(&self, lines: usize) {
        self.is_failing.store(false, Ordering::SeqCst);
        let lock = self.written_lock.lock();
        self.queued.fetch_sub(lines, Ordering::SeqCst);
        self.done.fetch_add(lines, Ordering::SeqCst);
        self.written_condition.notify_all();
        drop(lock);
        self.written.notify_waiters();
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// The thread's end of the queue.
struct Writer {
    file: RotatingFile,
    options: LogOptions,
    state: Arc<LogState>,
    clock: Arc<dyn Clock>,
}

impl Writer {
    /// Writes lines until the queue is closed and empty, or its rest cannot be written.
    fn run<T: Line>(&mut self, items: &Receiver<T>) {
        // A small part of a file, which so has nearly all of its bytes when the next batch does not fit into it, and never more.
        let batch_bytes = usize::try_from(self.file.max_bytes() / 8).unwrap_or(usize::MAX).min(BATCH_BYTES);
        let mut is_behind = false;
        self.tidy();
        loop {
            let first = match items.recv_timeout(TIDY_EVERY) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    self.tidy();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !self.options.linger.is_zero() && !is_behind && !self.state.is_closed() {
                self.clock.sleep(self.options.linger);
            }
            let mut lines = Vec::new();
            self.push(&mut lines, &first);
            let mut count = 1;
            while lines.len() < batch_bytes
                && let Ok(item) = items.try_recv()
            {
                self.push(&mut lines, &item);
                count += 1;
            }
            is_behind = lines.len() >= batch_bytes;
            if !self.write(&lines) {
                return;
            }
            self.state.note_written(count);
        }
    }

    /// Appends the lines to the file, as often as it takes. False when the log is closed and the file does not take them.
    fn write(&mut self, lines: &[u8]) -> bool {
        let name = self.options.name;
        while let Err(error) = self.file.append(lines, self.clock.unix_us()) {
            if !self.state.is_failing.swap(true, Ordering::SeqCst) {
                tracing::error!(%error, file = %self.file.path().display(), "{name} cannot be written; it is tried again");
            }
            if self.state.is_closed() {
                let lost = self.state.queued.load(Ordering::SeqCst);
                tracing::error!(lines = lost, "the end of {name} is lost");
                return false;
            }
            self.clock.sleep(RETRY_AFTER);
        }
        if self.state.is_failing.load(Ordering::SeqCst) {
            tracing::warn!(file = %self.file.path().display(), "{name} is written again");
        }
        true
    }

    fn push<T: Line>(&self, lines: &mut Vec<u8>, item: &T) {
        let before = lines.len();
        if let Err(error) = item.append_to(lines) {
            tracing::error!(%error, "a line of {} has no JSON", self.options.name);
            lines.truncate(before);
            return;
        }
        lines.push(b'\n');
    }

    fn tidy(&mut self) {
        if let Err(error) = self.file.tidy(self.clock.unix_us()) {
            tracing::debug!(%error, file = %self.file.path().display(), "cannot remove old lines");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::clock::SystemClock;

    use super::*;

    const CAPACITY: usize = 1 << 12;
    const OPTIONS: LogOptions =
        LogOptions { name: "the log", thread: "terrace-test", capacity: CAPACITY, linger: Duration::ZERO };

    struct Number(usize);

    impl Line for Number {
        fn append_to(&self, lines: &mut Vec<u8>) -> serde_json::Result<()> {
            serde_json::to_writer(lines, &self.0)
        }
    }

    fn log_file(path: std::path::PathBuf) -> LogFile {
        LogFile { path, max_bytes: 1 << 30, keep: 1, keep_for: None }
    }

    #[tokio::test]
    async fn a_full_queue_takes_no_more_until_the_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        let file = log_file(folder.join("audit.log"));
        let log = LineLog::start(file.clone(), OPTIONS, Arc::new(SystemClock::default())).unwrap();
        let sent = (0..1 << 18).take_while(|number| log.send(Number(*number))).count();
        // Those of one batch are out of the queue.
        assert!((CAPACITY..1 << 18).contains(&sent), "{sent}");
        assert_eq!(log.queued(), sent);
        let waits = tokio::time::timeout(Duration::from_millis(50), log.has_room()).await;
        assert!(waits.is_err() && log.is_failing());
        log.flush(Duration::from_millis(10));
        std::fs::create_dir(&folder).unwrap();
        tokio::time::timeout(Duration::from_secs(60), log.has_room()).await.unwrap();
        log.flush(Duration::from_secs(60));
        assert!(log.queued() == 0 && !log.is_failing() && log.send(Number(sent)));
        drop(log);
        let text = std::fs::read_to_string(&file.path).unwrap();
        let numbers: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers, (0..=sent).collect::<Vec<_>>(), "none is lost, and none written twice");
    }

    #[test]
    fn a_log_that_lingers_writes_all_when_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = log_file(dir.path().join("log"));
        let options = LogOptions { linger: Duration::from_millis(20), ..OPTIONS };
        let log = LineLog::start(file.clone(), options, Arc::new(SystemClock::default())).unwrap();
        assert!((0..1_000).all(|number| log.send(Number(number))));
        log.flush(Duration::from_secs(60));
        assert!(log.queued() == 0 && log.send(Number(1_000)));
        drop(log);
        assert_eq!(file.newest_first().unwrap().next().unwrap().unwrap(), b"1000");
        assert_eq!(file.newest_first().unwrap().count(), 1_001);
    }
}
