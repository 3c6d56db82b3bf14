//! Spill files of statements that ran out of memory (sorts, aggregations, joins, exchanges), in DataFusion's format.
//!
//! Their bytes lie in pieces on memory tiers that have room, else on disk, where the store's I/O engine writes and reads
//! them around the page cache, in a class of their own. A statement waits for its writes only when many of them run. A file
//! goes with its last reader. Each statement counts what it has spilled, and may have a part of the space for all.
//!
//! - [`disk`]: the bytes of a statement's files on disk
//! - [`file`]: one file: its pieces, and the writer
//! - [`reader`]: reads a file
//! - [`tiers`]: room on memory tiers

mod disk;
mod file;
mod reader;
mod tiers;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::{SpillFile, TempFileFactory};
use futures::Stream;
use parking_lot::Mutex;
use terrace_heap::HeapAccount;
use terrace_tier_store::clock::Clock;
use terrace_tier_store::io::{BlockIo, Class, Intent, StatementId};
use terrace_tier_store::store::Store;
use terrace_tier_store::tier::{Account, Charge};
use terrace_tier_store::{Error, Result};

use disk::StatementFile;
use file::{FileState, RunningWrite, SpilledFile};
use tiers::TierShare;

/// Writes of one statement that always run before it waits for one of them; each has a piece in memory.
const RUNNING_WRITES: usize = 16;
/// Writes that run at most, while less than half of the budget of reads is used.
const MOST_WRITES: usize = 256;
/// Writes of one statement that run while its pieces leave a tier.
const LEAVING_WRITES: usize = 64;

/// Sorted runs that a spilled sort reads at once. DataFusion would read as many as memory allows, which leaves none to
/// partitions that still sort.
const MERGED_RUNS: usize = 16;

/// Most bytes in spill files.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpillLimits {
    /// Most bytes of all statements together.
    pub(super) all_bytes: u64,
    /// Most bytes of each statement.
    pub(super) statement_bytes: u64,
    /// Of the budget of each memory tier, from 0 to 1: what all of them may have there while there is room.
    pub(super) tier_share: f64,
}

/// The folder of spill files and their bytes.
#[derive(Debug)]
pub(super) struct SpillSpace {
    folder: PathBuf,
    io: Arc<dyn BlockIo>,
    /// Limits the bytes that are being read.
    read_account: Arc<Account>,
    tiers: TierShare,
    limits: SpillLimits,
    used_bytes: AtomicU64,
    next: AtomicU64,
    on_tiers: Mutex<FilesOnTiers>,
    clock: Arc<dyn Clock>,
}

/// Files that may have pieces on a tier, the oldest first.
#[derive(Debug, Default)]
struct FilesOnTiers {
    files: Vec<Weak<FileState>>,
    /// How many were there when those that are gone were removed last.
    kept: usize,
}

impl SpillSpace {
    pub(super) fn new(folder: &Path, limits: SpillLimits, store: &Arc<Store>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            folder: folder.to_owned(),
            io: Arc::clone(store.local_io()),
            read_account: Arc::clone(store.io_account()),
            tiers: TierShare::new(Arc::clone(store), limits.tier_share, Arc::clone(&clock)),
            limits,
            used_bytes: AtomicU64::new(0),
            next: AtomicU64::new(1),
            on_tiers: Mutex::default(),
            clock,
        })
    }

    /// The spill files of one statement.
    pub(super) fn for_statement(self: &Arc<Self>, statement: StatementId) -> Arc<StatementSpill> {
        let space = Arc::clone(self);
        let [used_bytes, spilled_bytes, wait_us] = Default::default();
        let (disk, writes, failed) = Default::default();
        Arc::new(StatementSpill { space, statement, used_bytes, spilled_bytes, wait_us, disk, writes, failed })
    }

    /// Bytes in files now, on tiers and on disk.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of them on memory tiers.
    pub(super) fn tier_bytes(&self) -> u64 {
        self.tiers.used_bytes()
    }

    /// Begins to send to the disk what memory tiers want back, the oldest files first. Waits for no write: a tier has the room
    /// when a later call sees that they have ended.
    pub(super) fn leave_tiers(&self, is_memory_ample: bool) {
        self.tiers.set_memory_ample(is_memory_ample);
        let wanted = self.tiers.recalled();
        if wanted.is_empty() && self.tiers.used_bytes() == 0 {
            return;
        }
        let files: Vec<_> = self.on_tiers.lock().files.iter().filter_map(Weak::upgrade).collect();
        files.iter().for_each(|file| file.spill.end_some());
        for (tier, wanted) in wanted {
            let mut left = 0;
            for file in &files {
                match HeapAccount::uncharged(|| file.leave_tier(tier, wanted.saturating_sub(left))) {
                    Ok(bytes) => left += bytes,
                    Err(error) => tracing::debug!(%error, "spilled rows stay on their tier"),
                }
            }
        }
    }

    /// Notes a file that has its first piece on a tier.
    fn note_on_tier(&self, file: &Arc<FileState>) {
        let mut on_tiers = self.on_tiers.lock();
        if on_tiers.files.len() >= 2 * on_tiers.kept.max(32) {
            on_tiers.files.retain(|file| file.strong_count() > 0);
            on_tiers.kept = on_tiers.files.len();
        }
        on_tiers.files.push(Arc::downgrade(file));
    }
}

/// The spill files of a statement.
#[derive(Debug)]
pub(super) struct StatementSpill {
    space: Arc<SpillSpace>,
    statement: StatementId,
    used_bytes: AtomicU64,
    spilled_bytes: AtomicU64,
    wait_us: AtomicU64,
    /// Made with the first piece that goes to the disk.
    disk: Mutex<Option<Arc<StatementFile>>>,
    /// Writes under way, the oldest first.
    writes: Mutex<VecDeque<RunningWrite>>,
    /// The error of the first write that failed.
    failed: Mutex<Option<Error>>,
}

impl Drop for StatementSpill {
    fn drop(&mut self) {
        HeapAccount::uncharged(|| self.writes.get_mut().clear());
    }
}

impl StatementSpill {
    /// A manager of temporary files for DataFusion that makes those of the statement.
    pub(super) fn disk_manager(self: &Arc<Self>) -> DiskManagerBuilder {
        DiskManagerBuilder::default()
            .with_temp_file_factory(Arc::new(SpillFactory(Arc::clone(self))))
            .with_max_spill_merge_fan_in(MERGED_RUNS)
    }

    /// Bytes that it has written to files so far.
    pub(super) fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes.load(Ordering::Relaxed)
    }

    /// Microseconds for which readers waited for bytes and writers for earlier writes so far, summed over both.
    pub(super) fn wait_us(&self) -> u64 {
        self.wait_us.load(Ordering::Relaxed)
    }

    /// Counts a wait that began at `since_us`.
    fn count_wait(&self, since_us: u64) {
        self.wait_us.fetch_add(self.space.clock.now_us().saturating_sub(since_us), Ordering::Relaxed);
    }

    fn count_spilled(&self, bytes: u64) {
        self.spilled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn io(&self) -> &Arc<dyn BlockIo> {
        &self.space.io
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.space.clock
    }

    fn read_account(&self) -> &Arc<Account> {
        &self.space.read_account
    }

    fn space(&self) -> &SpillSpace {
        &self.space
    }

    /// Its file on disk.
    fn disk(&self) -> Result<Arc<StatementFile>> {
        let mut disk = self.disk.lock();
        if let Some(file) = disk.as_ref() {
            return Ok(Arc::clone(file));
        }
        let intent = Intent { statement: self.statement, ..Class::Spill.into() };
        let number = self.space.next.fetch_add(1, Ordering::Relaxed);
        let path = self.space.folder.join(format!("spill-{number}"));
        let file = StatementFile::create(&path, &self.space.io, intent)?;
        Ok(Arc::clone(disk.insert(Arc::new(file))))
    }

    /// Notes a write that has begun, and waits while too many run. Fails when an earlier one has.
    fn track(&self, write: Option<RunningWrite>) -> Result<()> {
        if let Some(write) = write {
            self.begin(write);
        }
        self.end_some();
        let oldest = || {
            let mut writes = self.writes.lock();
            let of_reserve = writes.iter().filter(|write| write.is_of_reserve()).count();
            let is_too_much = of_reserve > RUNNING_WRITES || writes.len() > MOST_WRITES;
            if is_too_much { writes.pop_front() } else { None }
        };
        while let Some(first) = oldest() {
            let since_us = self.space.clock.now_us();
            let ended = first.end();
            self.count_wait(since_us);
            self.note_failure(ended);
        }
        self.failed.lock().clone().map_or(Ok(()), Err)
    }

    /// Notes a write that has begun, without waiting.
    fn begin(&self, write: RunningWrite) {
        self.writes.lock().push_back(write);
    }

    /// A charge to the budget of reads for bytes that are being written; `None` when half of it is used.
    fn charge_write(&self, bytes: u64) -> Option<Charge> {
        let account = self.read_account();
        let is_free = account.used_bytes() + bytes <= account.limit_bytes() / 2;
        is_free.then(|| account.try_charge(bytes).ok()).flatten()
    }

    /// Whether another piece may leave its tier.
    fn may_leave(&self) -> bool {
        self.writes.lock().len() < LEAVING_WRITES
    }

    /// Takes the results of the writes that have ended.
    fn end_some(&self) {
        let ended: VecDeque<RunningWrite> = {
            let mut writes = self.writes.lock();
            let (ended, running) = writes.drain(..).partition(RunningWrite::has_ended);
            *writes = running;
            ended
        };
        ended.into_iter().for_each(|write| self.note_failure(write.end()));
    }

    /// Withdraws the writes of files that are gone, and frees their space on disk.
    fn forget_unwanted(&self) {
        let unwanted: VecDeque<RunningWrite> = {
            let mut writes = self.writes.lock();
            let (wanted, unwanted) = writes.drain(..).partition(RunningWrite::is_wanted);
            *writes = wanted;
            unwanted
        };
        HeapAccount::uncharged(|| drop(unwanted));
        let disk = self.disk.lock().clone();
        disk.iter().for_each(|file| file.free_unused());
    }

    fn note_failure(&self, ended: Result<()>) {
        if let Err(error) = ended {
            self.failed.lock().get_or_insert(error);
        }
    }

    /// Counts bytes about to be written. Fails when it, or all statements together, would have too many in files.
    fn reserve(&self, bytes: u64) -> std::io::Result<()> {
        let SpillLimits { all_bytes, statement_bytes, .. } = self.space.limits;
        let refused = |used: u64, whose: &str, limit: u64, option: &str, remedy: &str| {
            let folder = self.space.folder.display();
            let text = format!(
                "{whose} spilled {used} bytes to {folder} and may spill {limit} in all ({option}); try again {remedy}"
            );
            Err(std::io::Error::new(std::io::ErrorKind::QuotaExceeded, text))
        };
        let own = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if own + bytes > statement_bytes {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return refused(own, "the statement has", statement_bytes, "query.statement_spill_limit", "on fewer rows");
        }
        let all = self.space.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        if all + bytes > all_bytes {
            self.release(bytes);
            return refused(all, "statements have", all_bytes, "query.spill_limit", "when fewer statements run");
        }
        Ok(())
    }

    /// Counts reserved bytes as not in files.
    fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.space.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Makes the files of a statement for DataFusion.
#[derive(Debug)]
struct SpillFactory(Arc<StatementSpill>);

impl TempFileFactory for SpillFactory {
    fn create_temp_file(&self, _what: &str) -> datafusion::error::Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(SpilledFile(FileState::new(Arc::clone(&self.0)))))
    }
}

type ByteStream = Pin<Box<dyn Stream<Item = datafusion::error::Result<Bytes>> + Send>>;

#[cfg(test)]
mod tests;
