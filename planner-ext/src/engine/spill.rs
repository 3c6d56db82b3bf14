//! Spill files of statements that ran out of memory (sorts, aggregations, exchanges), in DataFusion's format.
//!
//! They are written through the page cache and read back by the store's I/O engine, in a class of their own: reads of
//! scans go first, moves go last. Reads go through the page cache too: it still holds most of the bytes that were spilled a
//! moment ago, and a direct read would first wait until the kernel has written them. A file is deleted with its last
//! reader.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};
use terrace_tier_store::io::{AlignedBuffer, BlockIo, Class, IoFile, ReadHandle};
use terrace_tier_store::tier::{Account, Charge};

use crate::error::store_error;

/// Bytes of one read; the next read is submitted meanwhile, where the budget of reads allows.
const READ_BYTES: u64 = 256 << 10;

/// Creates spill files and counts their bytes.
#[derive(Debug)]
pub(super) struct SpillSpace {
    folder: PathBuf,
    io: Arc<dyn BlockIo>,
    /// Limits the bytes that are being read.
    read_account: Arc<Account>,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    next: AtomicU64,
}

impl SpillSpace {
    pub(super) fn new(folder: &Path, limit_bytes: u64, io: Arc<dyn BlockIo>, read_account: Arc<Account>) -> Arc<Self> {
        let used_bytes = AtomicU64::new(0);
        let next = AtomicU64::new(1);
        Arc::new(Self { folder: folder.to_owned(), io, read_account, limit_bytes, used_bytes, next })
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes about to be written. Fails when all statements together would have spilled too much.
    fn reserve(&self, bytes: u64) -> std::io::Result<()> {
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used <= self.limit_bytes {
            return Ok(());
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Err(std::io::Error::new(
            std::io::ErrorKind::QuotaExceeded,
            format!(
                "statements have spilled {} bytes to {} and may spill {} in all; try again when fewer statements run",
                used - bytes,
                self.folder.display(),
                self.limit_bytes
            ),
        ))
    }
}

/// [`SpillSpace`] as DataFusion's factory of temporary files.
#[derive(Debug)]
pub(super) struct SpillFactory(pub(super) Arc<SpillSpace>);

impl TempFileFactory for SpillFactory {
    fn create_temp_file(&self, what: &str) -> datafusion::error::Result<Arc<dyn SpillFile>> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let path = self.0.folder.join(format!("spill-{number}"));
        let failed = |error: std::io::Error| {
            let text = format!("cannot create spill file {} while {what}: {error}", path.display());
            DataFusionError::IoError(std::io::Error::new(error.kind(), text))
        };
        let file = File::create_new(&path).map_err(failed)?;
        Ok(Arc::new(SpilledFile { path, file, len: Arc::default(), space: Arc::clone(&self.0) }))
    }
}

/// One spill file; dropping it deletes the file.
#[derive(Debug)]
struct SpilledFile {
    path: PathBuf,
    file: File,
    len: Arc<AtomicU64>,
    space: Arc<SpillSpace>,
}

impl Drop for SpilledFile {
    fn drop(&mut self) {
        self.space.used_bytes.fetch_sub(self.len.load(Ordering::Relaxed), Ordering::Relaxed);
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
            space: Arc::clone(&self.space),
            file: None,
            at: 0,
            read_ahead: None,
        };
        Ok(Box::pin(stream::try_unfold(reader, SpillReader::next_piece)))
    }

    fn open_writer(&self) -> datafusion::error::Result<Box<dyn SpillWriter>> {
        let file = self.file.try_clone()?;
        let len = Arc::clone(&self.len);
        let space = Arc::clone(&self.space);
        Ok(Box::new(SpillFileWriter { file, len, space }))
    }
}

type ByteStream = Pin<Box<dyn Stream<Item = datafusion::error::Result<Bytes>> + Send>>;

struct SpillFileWriter {
    file: File,
    len: Arc<AtomicU64>,
    space: Arc<SpillSpace>,
}

impl Write for SpillFileWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.space.reserve(bytes.len() as u64)?;
        let written = self.file.write(bytes);
        let count = *written.as_ref().unwrap_or(&0) as u64;
        self.len.fetch_add(count, Ordering::Relaxed);
        self.space.used_bytes.fetch_sub(bytes.len() as u64 - count, Ordering::Relaxed);
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
    space: Arc<SpillSpace>,
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
        let bytes = read.await.map_err(store_error)?;
        Ok(Some((Bytes::from_owner(ChargedBytes { bytes, _charge: charge }), self)))
    }

    /// Submits the next read. `None` at the end of the file, and for a read ahead when the read account is full.
    fn start(&mut self, needed: bool) -> Option<(ReadHandle, Arc<Charge>)> {
        let file = self.file.as_ref()?;
        let len = file.len.saturating_sub(self.at).min(READ_BYTES);
        if len == 0 {
            return None;
        }
        let charge = match self.space.read_account.try_charge(len) {
            Ok(charge) => charge,
            Err(_) if needed => self.space.read_account.charge_always(len),
            Err(_) => return None,
        };
        let handle = self.space.io.read_as(Class::Spill.into(), file, self.at, len as usize);
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
    use terrace_tier_store::io::best_engine;

    use super::*;

    fn space(folder: &Path, limit_bytes: u64, reading_bytes: u64) -> (SpillFactory, Arc<dyn BlockIo>, Arc<Account>) {
        let io = best_engine();
        let read_account = Account::new("cold reads", reading_bytes);
        (
            SpillFactory(SpillSpace::new(folder, limit_bytes, Arc::clone(&io), Arc::clone(&read_account))),
            io,
            read_account,
        )
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
            let (factory, io, read_account) = space(folder.path(), 1 << 30, reading_bytes);
            let file = factory.create_temp_file("a test").unwrap();
            let mut writer = file.open_writer().unwrap();
            writer.write_all(&pattern(len)).unwrap();
            writer.finish().unwrap();
            drop(writer);
            assert_eq!((file.size(), factory.0.used_bytes()), (Some(len as u64), len as u64));
            let pieces: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
            assert_eq!(pieces.concat(), pattern(len));
            assert!(read_account.used_bytes() >= len as u64, "what is held is charged");
            drop(pieces);
            assert_eq!(io.stats().read_bytes(), len as u64);
            // A reader that gives up half way leaves nothing.
            drop(file.read_stream().unwrap().try_next().await.unwrap());
            drop(file);
            assert_eq!(factory.0.used_bytes(), 0);
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
        let (factory, ..) = space(folder.path(), 1000, 0);
        let file = factory.create_temp_file("a test").unwrap();
        let mut writer = file.open_writer().unwrap();
        writer.write_all(&[1; 900]).unwrap();
        let error = crate::error::Error::from(DataFusionError::from(writer.write_all(&[1; 101]).unwrap_err()));
        assert_eq!(error.kind(), crate::error::ErrorKind::ResourceExhausted);
        assert!(
            error.message().contains("900 bytes") && error.message().contains("1000 in all"),
            "{}",
            error.message()
        );
        writer.write_all(&[1; 100]).unwrap();
        assert_eq!(factory.0.used_bytes(), 1000);
        assert!(SpillFactory(Arc::clone(&factory.0)).create_temp_file("more").is_ok());
    }
}
