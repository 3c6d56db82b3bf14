//! Spill files of statements that ran out of memory (sorts, aggregations, exchanges), in DataFusion's format.
//!
//! They are written through the page cache and read back by the store's I/O engine, in a class of their own: reads of
//! scans go first, moves go last. Reads go through the page cache too: it still holds most of the bytes that were spilled a
//! moment ago, and a direct read would first wait until the kernel has written them. A file is deleted with its last
//! reader. Each statement counts what it has spilled, and may have a part of the space for all.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};
use terrace_tier_store::clock::Clock;
use terrace_tier_store::io::{AlignedBuffer, BlockIo, Class, Intent, IoFile, ReadHandle, StatementId};
use terrace_tier_store::tier::{Account, Charge};

use crate::error::store_error;

/// Bytes of one read; the next read is submitted meanwhile, where the budget of reads allows.
const READ_BYTES: u64 = 256 << 10;

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
}

/// The folder of spill files and their bytes.
#[derive(Debug)]
pub(super) struct SpillSpace {
    folder: PathBuf,
    io: Arc<dyn BlockIo>,
    /// Limits the bytes that are being read.
    read_account: Arc<Account>,
    limits: SpillLimits,
    used_bytes: AtomicU64,
    next: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl SpillSpace {
    pub(super) fn new(
        folder: &Path,
        limits: SpillLimits,
        io: Arc<dyn BlockIo>,
        read_account: Arc<Account>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let used_bytes = AtomicU64::new(0);
        let next = AtomicU64::new(1);
        Arc::new(Self { folder: folder.to_owned(), io, read_account, limits, used_bytes, next, clock })
    }

    /// The spill files of one statement.
    pub(super) fn for_statement(self: &Arc<Self>, statement: StatementId) -> Arc<StatementSpill> {
        let space = Arc::clone(self);
        let [used_bytes, spilled_bytes, read_wait_us] = Default::default();
        Arc::new(StatementSpill { space, statement, used_bytes, spilled_bytes, read_wait_us })
    }

    /// Bytes in files now.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }
}

/// The spill files of a statement.
#[derive(Debug)]
pub(super) struct StatementSpill {
    space: Arc<SpillSpace>,
    statement: StatementId,
    used_bytes: AtomicU64,
    spilled_bytes: AtomicU64,
    read_wait_us: AtomicU64,
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

    /// Microseconds from when its readers needed bytes until they went on with them so far, summed over readers.
    pub(super) fn read_wait_us(&self) -> u64 {
        self.read_wait_us.load(Ordering::Relaxed)
    }

    /// Counts bytes about to be written. Fails when it, or all statements together, would have too many in files.
    fn reserve(&self, bytes: u64) -> std::io::Result<()> {
        let SpillLimits { all_bytes, statement_bytes } = self.space.limits;
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
    fn create_temp_file(&self, what: &str) -> datafusion::error::Result<Arc<dyn SpillFile>> {
        let space = &self.0.space;
        let number = space.next.fetch_add(1, Ordering::Relaxed);
        let path = space.folder.join(format!("spill-{number}"));
        let failed = |error: std::io::Error| {
            let text = format!("cannot create spill file {} while {what}: {error}", path.display());
            DataFusionError::IoError(std::io::Error::new(error.kind(), text))
        };
        let file = File::create_new(&path).map_err(failed)?;
        Ok(Arc::new(SpilledFile { path, file, len: Arc::default(), spill: Arc::clone(&self.0) }))
    }
}

/// One spill file; dropping it deletes the file.
#[derive(Debug)]
struct SpilledFile {
    path: PathBuf,
    file: File,
    len: Arc<AtomicU64>,
    spill: Arc<StatementSpill>,
}

impl Drop for SpilledFile {
    fn drop(&mut self) {
        self.spill.release(self.len.load(Ordering::Relaxed));
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, file = %self.path.display(), "cannot delete a spill file");
        }
    }
}

impl SpillFile for SpilledFile {
    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn size(&self) -> Option<u64> {
        Some(self.len.load(Ordering::Relaxed))
    }

    fn read_stream(&self) -> datafusion::error::Result<ByteStream> {
        let reader = SpillReader {
            path: self.path.clone(),
            spill: Arc::clone(&self.spill),
            file: None,
            at: 0,
            read_ahead: None,
        };
        Ok(Box::pin(stream::try_unfold(reader, SpillReader::next_piece)))
    }

    fn open_writer(&self) -> datafusion::error::Result<Box<dyn SpillWriter>> {
        let file = self.file.try_clone()?;
        let len = Arc::clone(&self.len);
        let spill = Arc::clone(&self.spill);
        Ok(Box::new(SpillFileWriter { file, len, spill }))
    }
}

type ByteStream = Pin<Box<dyn Stream<Item = datafusion::error::Result<Bytes>> + Send>>;

struct SpillFileWriter {
    file: File,
    len: Arc<AtomicU64>,
    spill: Arc<StatementSpill>,
}

impl Write for SpillFileWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.spill.reserve(bytes.len() as u64)?;
        let written = self.file.write(bytes);
        let count = *written.as_ref().unwrap_or(&0) as u64;
        self.len.fetch_add(count, Ordering::Relaxed);
        self.spill.spilled_bytes.fetch_add(count, Ordering::Relaxed);
        self.spill.release(bytes.len() as u64 - count);
        written
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl SpillWriter for SpillFileWriter {
    fn finish(&mut self) -> datafusion::error::Result<()> {
        Ok(())
    }
}

/// Reads a file from its start, one read ahead. Dropping it cancels the reads under way.
struct SpillReader {
    path: PathBuf,
    spill: Arc<StatementSpill>,
    /// Opened with the first read, when its length is known.
    file: Option<Arc<IoFile>>,
    at: u64,
    read_ahead: Option<(ReadHandle, Arc<Charge>)>,
}

impl SpillReader {
    async fn next_piece(mut self) -> datafusion::error::Result<Option<(Bytes, Self)>> {
        if self.file.is_none() {
            self.file = Some(IoFile::open_buffered(&self.path).map_err(store_error)?);
        }
        let Some((read, charge)) = self.read_ahead.take().or_else(|| self.start(true)) else { return Ok(None) };
        self.read_ahead = self.start(false);
        let clock = &self.spill.space.clock;
        let since_us = clock.now_us();
        let bytes = read.await.map_err(store_error)?;
        self.spill.read_wait_us.fetch_add(clock.now_us().saturating_sub(since_us), Ordering::Relaxed);
        Ok(Some((Bytes::from_owner(ChargedBytes { bytes, _charge: charge }), self)))
    }

    /// Submits the next read. `None` at the end of the file, and for a read ahead when the read account is full.
    fn start(&mut self, needed: bool) -> Option<(ReadHandle, Arc<Charge>)> {
        let file = self.file.as_ref()?;
        let len = file.len.saturating_sub(self.at).min(READ_BYTES);
        if len == 0 {
            return None;
        }
        let space = &self.spill.space;
        let charge = match space.read_account.try_charge(len) {
            Ok(charge) => charge,
            Err(_) if needed => space.read_account.charge_always(len),
            Err(_) => return None,
        };
        let intent = Intent { class: Class::Spill, statement: self.spill.statement };
        let handle = space.io.read_as(intent, file, self.at, len as usize);
        let charge = Arc::new(charge);
        handle.attach_charge(Arc::clone(&charge));
        self.at += len;
        Some((handle, charge))
    }
}

/// Bytes that were read, charged until the last reference to them is dropped.
struct ChargedBytes {
    bytes: AlignedBuffer,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use futures::TryStreamExt;
    use terrace_tier_store::clock::SystemClock;
    use terrace_tier_store::io::best_engine;

    use super::*;

    fn space(
        folder: &Path,
        limits: SpillLimits,
        reading_bytes: u64,
    ) -> (Arc<SpillSpace>, Arc<dyn BlockIo>, Arc<Account>) {
        let io = best_engine();
        let read_account = Account::new("cold reads", reading_bytes);
        let clock = Arc::new(SystemClock::default());
        (SpillSpace::new(folder, limits, Arc::clone(&io), Arc::clone(&read_account), clock), io, read_account)
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
    }

    #[tokio::test]
    async fn what_is_spilled_is_read_back_by_the_engine_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        for (len, reading_bytes) in
            [(0, 1 << 20), (1, 1 << 20), (256 << 10, 1 << 20), (3_000_001, 1 << 20), (3_000_001, 0)]
        {
            let limits = SpillLimits { all_bytes: 1 << 30, statement_bytes: 1 << 30 };
            let (space, io, read_account) = space(folder.path(), limits, reading_bytes);
            let spill = space.for_statement(StatementId::next());
            let factory = SpillFactory(Arc::clone(&spill));
            let file = factory.create_temp_file("a test").unwrap();
            let mut writer = file.open_writer().unwrap();
            writer.write_all(&pattern(len)).unwrap();
            writer.finish().unwrap();
            drop(writer);
            assert_eq!((file.size(), space.used_bytes()), (Some(len as u64), len as u64));
            let pieces: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
            assert_eq!(pieces.concat(), pattern(len));
            assert!(read_account.used_bytes() >= len as u64, "what is held is charged");
            drop(pieces);
            assert_eq!(io.stats().read_bytes(), len as u64);
            // A reader that gives up half way leaves nothing.
            drop(file.read_stream().unwrap().try_next().await.unwrap());
            drop(file);
            assert_eq!((space.used_bytes(), spill.spilled_bytes()), (0, len as u64));
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            while io.stats().in_flight.load(Ordering::SeqCst) > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(read_account.used_bytes(), 0);
        }
    }

    #[test]
    fn too_much_is_refused_with_the_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let (space, ..) = space(folder.path(), SpillLimits { all_bytes: 1000, statement_bytes: 600 }, 0);
        let refused = |written: std::io::Result<()>, texts: [&str; 3]| {
            let error = crate::error::Error::from(DataFusionError::from(written.unwrap_err()));
            assert_eq!(error.kind(), crate::error::ErrorKind::ResourceExhausted);
            assert!(texts.iter().all(|text| error.message().contains(text)), "{}", error.message());
        };
        let [first, second] = [0, 1].map(|_| space.for_statement(StatementId::next()));
        let create = |spill: &Arc<StatementSpill>| SpillFactory(Arc::clone(spill)).create_temp_file("a test").unwrap();
        let [file, other] = [&first, &second].map(create);
        let [mut writer, mut other_writer] = [&file, &other].map(|file| file.open_writer().unwrap());
        writer.write_all(&[1; 500]).unwrap();
        refused(
            writer.write_all(&[1; 101]),
            ["statement has", "500 bytes", "600 in all (query.statement_spill_limit)"],
        );
        other_writer.write_all(&[1; 400]).unwrap();
        refused(other_writer.write_all(&[1; 101]), ["statements have", "900 bytes", "1000 in all (query.spill_limit)"]);
        writer.write_all(&[1; 100]).unwrap();
        assert_eq!((space.used_bytes(), first.spilled_bytes(), second.spilled_bytes()), (1000, 600, 400));
        // Its own space is free again, and what it has spilled stays counted.
        drop((writer, file));
        assert_eq!((space.used_bytes(), first.spilled_bytes()), (400, 600));
        let more = create(&first);
        let mut again = more.open_writer().unwrap();
        again.write_all(&[1; 600]).unwrap();
    }
}
