//! The queue of events, and the thread that writes them.
//!
//! Lines that cannot be written are tried again until they can; meanwhile the queue fills.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_model::clock::Clock;
use tokio::sync::Notify;

use super::event::Event;
use super::file::RotatingFile;

/// Most events that wait to be written.
const CAPACITY: usize = 16_384;
/// Bytes after which lines are written, however many events wait.
const BATCH_BYTES: usize = 256 << 10;
/// Time after which lines that could not be written are tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` once it is dropped.
    sender: Option<SyncSender<Arc<Event>>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<WriterState>,
}

/// What both ends know.
#[derive(Debug, Default)]
struct WriterState {
    /// Events sent and not written.
    queued: AtomicUsize,
    is_failing: AtomicBool,
    is_closed: AtomicBool,
    /// Told when events were written.
    written: Notify,
    /// The same for threads.
    written_lock: Mutex<()>,
    written_condition: Condvar,
}

impl Writer {
    /// Starts the thread of a file.
    pub(super) fn start(file: RotatingFile, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (sender, events) = sync_channel(CAPACITY);
        let state = Arc::<WriterState>::default();
        let work = {
            let state = Arc::clone(&state);
            move || write_all(&events, file, &state, clock.as_ref())
        };
        let thread = std::thread::Builder::new().name("terrace-audit".to_owned()).spawn(work)?;
        Ok(Self { sender: Some(sender), thread: Some(thread), state })
    }

    /// Queues an event; false when the queue is full.
    pub(super) fn send(&self, event: Arc<Event>) -> bool {
        // Counted first, as the thread may be done with it at once.
        self.state.queued.fetch_add(1, Ordering::SeqCst);
        let is_sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(event).is_ok());
        if !is_sent {
            self.state.queued.fetch_sub(1, Ordering::SeqCst);
        }
        is_sent
    }

    /// Waits while the queue is half full.
    pub(super) async fn has_room(&self) {
        loop {
            // Registers before it looks, so that no notification in between is lost.
            let mut written = std::pin::pin!(self.state.written.notified());
            written.as_mut().enable();
            if self.queued() < CAPACITY / 2 {
                return;
            }
            written.await;
        }
    }

    /// Waits until the queue is empty, for `most` at most while nothing is written.
    pub(super) fn flush(&self, most: Duration) {
        let mut lock = self.state.written_lock.lock();
        while self.queued() > 0 {
            if self.state.written_condition.wait_for(&mut lock, most).timed_out() {
                return;
            }
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.state.queued.load(Ordering::SeqCst)
    }

    pub(super) fn is_failing(&self) -> bool {
        self.state.is_failing.load(Ordering::SeqCst)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        // Ends the thread once it has written the rest.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl WriterState {
    fn note_written(&self, events: usize) {
        self.is_failing.store(false, Ordering::SeqCst);
        let lock = self.written_lock.lock();
        self.queued.fetch_sub(events, Ordering::SeqCst);
        self.written_condition.notify_all();
        drop(lock);
        self.written.notify_waiters();
    }
}

/// The thread: writes events until the queue is closed and empty.
fn write_all(events: &Receiver<Arc<Event>>, mut file: RotatingFile, state: &WriterState, clock: &dyn Clock) {
    let batch_bytes = usize::try_from(file.max_bytes()).unwrap_or(usize::MAX).min(BATCH_BYTES);
    while let Ok(first) = events.recv() {
        let mut lines = Vec::new();
        push_line(&mut lines, &first);
        let mut count = 1;
        while lines.len() < batch_bytes
            && let Ok(event) = events.try_recv()
        {
            push_line(&mut lines, &event);
            count += 1;
        }
        while let Err(error) = file.append(&lines) {
            if !state.is_failing.swap(true, Ordering::SeqCst) {
                tracing::error!(%error, file = %file.path().display(), "the audit trail cannot be written; it is tried again");
            }
            if state.is_closed.load(Ordering::SeqCst) {
                tracing::error!(events = state.queued.load(Ordering::SeqCst), "the end of the audit trail is lost");
                return;
            }
            clock.sleep(RETRY_AFTER);
        }
        if state.is_failing.load(Ordering::SeqCst) {
            tracing::warn!(file = %file.path().display(), "the audit trail is written again");
        }
        state.note_written(count);
    }
}

fn push_line(lines: &mut Vec<u8>, event: &Event) {
    if let Err(error) = serde_json::to_writer(&mut *lines, event) {
        tracing::error!(%error, "an event of the audit trail has no JSON");
    }
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::clock::SystemClock;

    use super::super::event::{EventKind, Origin};
    use super::super::file::TrailFile;
    use super::*;

    fn event() -> Arc<Event> {
        Arc::new(Event::new(EventKind::Statement, "insert", "ann", Origin::default()))
    }

    #[tokio::test]
    async fn a_full_queue_takes_no_more_until_the_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let place = TrailFile { path: folder.join("audit.log"), max_bytes: 1 << 30, keep: 1 };
        let file = RotatingFile::open(place.clone()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let writer = Writer::start(file, Arc::new(SystemClock::default())).unwrap();
        let sent = (0..3 * CAPACITY).filter(|_| writer.send(event())).count();
        // Those of one batch are out of the queue.
        assert!((CAPACITY..2 * CAPACITY).contains(&sent), "{sent}");
        assert_eq!(writer.queued(), sent);
        let waits = tokio::time::timeout(Duration::from_millis(50), writer.has_room()).await;
        assert!(waits.is_err() && writer.is_failing());
        writer.flush(Duration::from_millis(10));
        std::fs::create_dir(&folder).unwrap();
        tokio::time::timeout(Duration::from_secs(60), writer.has_room()).await.unwrap();
        writer.flush(Duration::from_secs(60));
        assert!(writer.queued() == 0 && !writer.is_failing() && writer.send(event()));
        drop(writer);
        let text = std::fs::read_to_string(&place.path).unwrap();
        assert_eq!(text.lines().count(), sent + 1, "none is lost, and none written twice");
    }
}
