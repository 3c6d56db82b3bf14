//! Deletes the files of the SSD tier, one now and then while look-ups come.
//!
//! A file system that is mounted with `discard` tells the device what is free when it deletes a file, and reads may wait for
//! some milliseconds until the device has taken note of it. So while look-ups come ([`BlockIo::look_ups_come`]), files wait
//! for a thread, which pauses after each for [`PAUSE_FACTOR`] times as long as it took. (`DeleteScheduler` of RocksDB limits
//! the bytes per second, for the same reason.) At other times the last reader of a chunk deletes its file at once; while look-ups
//! come, that reader may be one of them.
//!
//! A file is charged until it is gone. Files that wait take at most a part of the room that is left, and go when a write
//! finds none. What a killed process has not deleted, the next start removes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_model::Result;
use terrace_model::clock::{Clock, SystemClock};

use super::files::disk_space;
use super::folder::TierFolder;
use crate::io::{BlockIo, Priority, set_priority};

/// The pause after a deletion takes so many times as long as that: of the look-ups fewer than one in a hundred meet one.
const PAUSE_FACTOR: u32 = 400;
/// The least pause: a journal may tell the device later than the deletion ends.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often the thread looks whether it has to pause any longer.
const CHECK_TIME: Duration = Duration::from_millis(100);
/// Files that wait have at most this part of the room that is left.
const ROOM_PART: u64 = 4;

/// Deletes files, at once or on a thread of its own. Dropping it deletes all that wait.
#[derive(Debug)]
pub(super) struct Deletions {
    shared: Arc<Shared>,
    /// `None` on a simulated disk: no file waits there.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    folder: Arc<TierFolder>,
    io: Arc<dyn BlockIo>,
    clock: SystemClock,
    state: Mutex<State>,
    /// A file waits, or none does from now on.
    changed: Condvar,
    /// The thread has deleted a file.
    deleted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    waiting: VecDeque<WaitingFile>,
    waiting_bytes: u64,
    /// The thread deletes a file.
    is_busy: bool,
    /// Files are deleted at once from now on.
    has_ended: bool,
}

#[derive(Debug)]
struct WaitingFile {
    path: PathBuf,
    bytes: u64,
}

impl Deletions {
    /// Starts the thread.
    pub(super) fn start(folder: &Arc<TierFolder>, io: &Arc<dyn BlockIo>) -> Self {
        let shared = Arc::new(Shared {
            folder: Arc::clone(folder),
            io: Arc::clone(io),
            clock: SystemClock::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            deleted: Condvar::new(),
        });
        let served = Arc::clone(&shared);
        let start = || {
            let thread = std::thread::Builder::new().name("terrace-delete".into()).spawn(move || served.serve());
            thread.inspect_err(|error| tracing::error!(%error, "cannot start the thread that deletes files")).ok()
        };
        let thread = if folder.files.is_simulated() { None } else { start() };
        Self { shared, thread }
    }

    /// Deletes a file, or lets it wait.
    ///
    /// # Errors
    /// Those of the file system, for a file that does not wait.
    pub(super) fn delete(&self, path: &Path) -> Result<()> {
        let waits = self.thread.is_some() && self.shared.io.look_ups_come() && self.shared.let_wait(path);
        if waits { Ok(()) } else { self.shared.folder.delete(path) }
    }

    /// Deletes the files that wait; false where there are none.
    pub(super) fn delete_waiting(&self) -> bool {
        self.shared.delete_waiting()
    }

    /// Deletes the files that wait, and lets none wait from now on.
    pub(super) fn end(&self) {
        self.shared.state.lock().has_ended = true;
        self.shared.changed.notify_all();
        self.shared.delete_waiting();
    }
}

impl Drop for Deletions {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that deletes files panicked");
        }
    }
}

impl Shared {
    /// False where a file cannot wait.
    fn let_wait(&self, path: &Path) -> bool {
        let bytes = self.folder.charged_bytes(path);
        let mut state = self.state.lock();
        let waits = !state.has_ended && self.has_room(state.waiting_bytes + bytes);
        if waits {
            state.waiting_bytes += bytes;
            state.waiting.push_back(WaitingFile { path: path.to_owned(), bytes });
            self.changed.notify_all();
        }
        waits
    }

    /// Whether files of so many bytes may wait.
    fn has_room(&self, bytes: u64) -> bool {
        let account = &self.folder.stored;
        let left_bytes = account.limit_bytes().saturating_sub(account.used_bytes());
        let free_bytes = disk_space(&self.folder.path).map_or(u64::MAX, |disk| disk.free_bytes);
        bytes <= left_bytes.min(free_bytes) / ROOM_PART
    }

    fn serve(&self) {
        set_priority(Priority::Planning);
        let mut state = self.state.lock();
        loop {
            if let Some(path) = state.take_first() {
                state.is_busy = true;
                let took = MutexGuard::unlocked(&mut state, || self.delete(&path));
                state.is_busy = false;
                self.deleted.notify_all();
                self.pause(&mut state, took);
            } else if state.has_ended {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }

    /// Waits after a deletion that `took` so long, while look-ups come.
    fn pause(&self, state: &mut MutexGuard<'_, State>, took: Duration) {
        let pause = took.saturating_mul(PAUSE_FACTOR).clamp(LEAST_PAUSE, LONGEST_PAUSE);
        let until_us = self.clock.now_us() + pause.as_micros() as u64;
        while self.clock.now_us() < until_us
            && !state.has_ended
            && self.io.look_ups_come()
            && self.has_room(state.waiting_bytes)
        {
            self.changed.wait_for(state, CHECK_TIME);
        }
    }

    fn delete_waiting(&self) -> bool {
        let mut had_some = false;
        loop {
            let first = self.state.lock().take_first();
            let Some(path) = first else { break };
            self.delete(&path);
            had_some = true;
        }
        let mut state = self.state.lock();
        while state.is_busy {
            had_some = true;
            self.deleted.wait(&mut state);
        }
        had_some
    }

    /// Returns how long it took.
    fn delete(&self, path: &Path) -> Duration {
        let start_us = self.clock.now_us();
        if let Err(error) = self.folder.delete(path) {
            tracing::warn!(%error, "cannot remove a chunk file; the next start removes it");
        }
        Duration::from_micros(self.clock.now_us().saturating_sub(start_us))
    }
}

impl State {
    fn take_first(&mut self) -> Option<PathBuf> {
        let first = self.waiting.pop_front()?;
        self.waiting_bytes -= first.bytes;
        Some(first.path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use terrace_model::Account;

    use super::*;
    use crate::io::blocking::BlockingEngine;
    use crate::io::{AlignedBuffer, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle, RealFiles};

    /// An engine that says whether look-ups come.
    #[derive(Debug)]
    struct Told {
        engine: BlockingEngine,
        come: AtomicBool,
    }

    impl BlockIo for Told {
        fn name(&self) -> &'static str {
            self.engine.name()
        }
        fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
            self.engine.open(path)
        }
        fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
            self.engine.read_windows(intent, file, windows)
        }
        fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
            self.engine.write_as(intent, file, offset, bytes)
        }
        fn raise(&self, intent: Intent, handle: &ReadHandle) {
            self.engine.raise(intent, handle);
        }
        fn rules(&self) -> IoRules {
            self.engine.rules()
        }
        fn set_rules(&self, rules: IoRules) {
            self.engine.set_rules(rules);
        }
        fn stats(&self) -> &IoStats {
            self.engine.stats()
        }
        fn pool(&self) -> &Arc<BufferPool> {
            self.engine.pool()
        }
        fn depth(&self) -> &Depth {
            self.engine.depth()
        }
        fn look_ups_come(&self) -> bool {
            self.come.load(Ordering::SeqCst)
        }
    }

    struct Setup {
        _dir: tempfile::TempDir,
        folder: Arc<TierFolder>,
        io: Arc<Told>,
        deletions: Deletions,
        files: Vec<PathBuf>,
    }

    /// A folder with files of 5 bytes, while look-ups come.
    fn setup(files: usize) -> Setup {
        let dir = tempfile::tempdir().unwrap();
        let account = Account::new("ssd", u64::MAX);
        let folder = Arc::new(TierFolder::new(dir.path().to_owned(), Arc::new(RealFiles), Arc::clone(&account)));
        let table = dir.path().join("t7");
        let _kept = folder.keep_table(&table).unwrap();
        let files: Vec<PathBuf> = (0..files).map(|number| table.join(number.to_string())).collect();
        for file in &files {
            std::fs::write(file, "bytes").unwrap();
            folder.keep_charge(file.clone(), account.charge_always(5));
        }
        let io = Arc::new(Told { engine: BlockingEngine::start(), come: AtomicBool::new(true) });
        let deletions = Deletions::start(&folder, &(Arc::<Told>::clone(&io) as Arc<dyn BlockIo>));
        Setup { _dir: dir, folder: Arc::clone(&folder), io, deletions, files }
    }

    fn left(files: &[PathBuf]) -> usize {
        files.iter().filter(|file| file.exists()).count()
    }

    #[test]
    fn files_wait_while_look_ups_come() {
        let Setup { _dir, folder, io, deletions, files } = setup(100);
        files.iter().for_each(|file| deletions.delete(file).unwrap());
        assert!(left(&files) > 50, "each pause takes a quarter of a second at least");
        assert!(folder.stored.used_bytes() >= 5 * left(&files) as u64);
        io.come.store(false, Ordering::SeqCst);
        let clock = SystemClock::default();
        let until_us = clock.now_us() + 20_000_000;
        let table = files.first().unwrap().parent().unwrap();
        while table.exists() && clock.now_us() < until_us {
            clock.sleep(Duration::from_millis(1));
        }
        assert!(!table.exists(), "none waits any more, and the folder goes with its last file");
        assert_eq!(folder.stored.used_bytes(), 0);
    }

    #[test]
    fn files_go_at_once_without_look_ups_without_room_and_at_the_end() {
        let Setup { _dir, folder, io, deletions, files } = setup(100);
        let go = |range: std::ops::Range<usize>| files[range].iter().for_each(|file| deletions.delete(file).unwrap());
        io.come.store(false, Ordering::SeqCst);
        go(0..10);
        assert_eq!(left(&files), 90);
        io.come.store(true, Ordering::SeqCst);
        folder.stored.set_limit_bytes(0);
        go(10..20);
        assert_eq!(left(&files), 80, "no room is left");
        folder.stored.set_limit_bytes(u64::MAX);
        go(20..60);
        assert!(left(&files) > 40 && deletions.delete_waiting());
        assert!(left(&files) == 40 && !deletions.delete_waiting());
        go(60..80);
        deletions.end();
        assert_eq!(left(&files), 20);
        go(80..100);
        assert_eq!(left(&files), 0, "it has ended");
    }
}
