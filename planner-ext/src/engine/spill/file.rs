//! One spill file: pieces in memory and on disk, and the end that is no piece yet.
//!
//! ```text
//!   write -> tail --full--> on a memory tier --recalled--> being written --done--> on disk
//!                     `---- no room there -------------------^
//! ```
//!
//! Bytes that are being written are read from memory, so neither a reader nor the end of the file waits for them. The last
//! piece is short, and padded to whole blocks on disk. The memory of pieces is charged to the tier or to the
//! budget of reads, or is little; none of it is charged to the statement.

use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Weak};

use arrow::buffer::Buffer;
use bytes::Bytes;
use datafusion::execution::{SpillFile, SpillWriter};
use parking_lot::Mutex;
use terrace_heap::HeapAccount;
use terrace_tier_store::io::{AlignedBuffer, BLOCK_BYTES, FileBytes, ReadHandle};
use terrace_tier_store::tier::{Charge, TierId};
use terrace_tier_store::{Error, Result};

use super::disk::DiskRange;
use super::reader::SpillReader;
use super::tiers::TierBytes;
use super::{ByteStream, StatementSpill};
use crate::error::store_error;

/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// The first bytes that a file has memory for.
const FIRST_TAIL_BYTES: usize = 8 << 10;
/// The largest range that a file takes on disk at once.
const MOST_RANGE_BYTES: u64 = 4 << 20;

/// A spill file, as DataFusion knows it.
#[derive(Debug)]
pub(super) struct SpilledFile(pub(super) Arc<FileState>);

/// What the writer and the readers of a file share. The last of them frees its bytes.
#[derive(Debug)]
pub(super) struct FileState {
    pub(super) spill: Arc<StatementSpill>,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    pieces: Vec<Piece>,
    tail: Option<FileBytes>,
    /// Bytes in pieces and the tail.
    len: u64,
    /// Whether any piece was stored on a tier.
    is_on_tier: bool,
    /// Whether a piece could not leave its tier, so that the others stay.
    stays: bool,
    /// Ranges on disk, and what is free of the last one.
    ranges: Vec<Arc<DiskRange>>,
    free: Range<u64>,
}

#[derive(Debug)]
struct Piece {
    len: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Tier(TierBytes),
    /// On its way to `offset` on disk; `held` are the bytes on the tier that it leaves.
    Leaving {
        bytes: AlignedBuffer,
        offset: u64,
        held: Option<TierBytes>,
    },
    Disk {
        offset: u64,
    },
}

/// Where bytes of a file are.
pub(super) enum Found {
    /// In memory; `ends` when they are the rest of a piece.
    Memory { bytes: Bytes, ends: bool },
    /// The rest of a piece on disk.
    Disk { offset: u64, len: usize },
}

impl Found {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Memory { bytes, .. } => bytes.is_empty(),
            Self::Disk { len, .. } => *len == 0,
        }
    }
}

/// A write under way.
#[derive(Debug)]
pub(super) struct RunningWrite {
    file: Weak<FileState>,
    piece: usize,
    handle: ReadHandle,
    /// Its part of the budget of reads; none: of the statement's own reserve.
    charge: Option<Charge>,
}

impl RunningWrite {
    /// Whether [`Self::end`] would not block.
    pub(super) fn has_ended(&self) -> bool {
        self.handle.is_ready()
    }

    /// Whether it has memory of the statement's own reserve.
    pub(super) fn is_of_reserve(&self) -> bool {
        self.charge.is_none()
    }

    /// Whether its file is there.
    pub(super) fn is_wanted(&self) -> bool {
        self.file.strong_count() > 0
    }

    /// Blocks until the write has ended, and frees the memory of its piece. After an error the piece stays in memory; that
    /// is an error of the statement unless it is on a tier.
    pub(super) fn end(self) -> Result<()> {
        let written = self.handle.wait();
        let Some(file) = self.file.upgrade() else { return Ok(()) };
        let mut contents = file.contents.lock();
        let Some(piece) = contents.pieces.get_mut(self.piece) else { return Ok(()) };
        let Place::Leaving { offset, held, .. } = &mut piece.place else { return Ok(()) };
        match (written, held.take()) {
            (Ok(_), _) => piece.place = Place::Disk { offset: *offset },
            (Err(error), Some(held)) => {
                tracing::warn!(%error, "spilled rows stay on their tier");
                piece.place = Place::Tier(held);
                contents.stays = true;
            }
            (Err(error), None) => return Err(error),
        }
        Ok(())
    }
}

impl FileState {
    pub(super) fn new(spill: Arc<StatementSpill>) -> Arc<Self> {
        Arc::new(Self { spill, contents: Mutex::default() })
    }

    pub(super) fn len(&self) -> u64 {
        self.contents.lock().len
    }

    /// Appends bytes; fails when a full piece finds no place.
    fn append(self: &Arc<Self>, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut contents = self.contents.lock();
            let tail = match &mut contents.tail {
                Some(tail) => tail,
                none => none.insert(FileBytes::with_capacity(self.spill.io().pool(), FIRST_TAIL_BYTES)?),
            };
            let (some, others) = rest.split_at(rest.len().min(PIECE_BYTES - tail.as_ref().len()));
            append(tail, some)?;
            let is_full = tail.as_ref().len() == PIECE_BYTES;
            contents.len += some.len() as u64;
            rest = others;
            let write = if is_full { self.end_piece(&mut contents)? } else { None };
            drop(contents);
            self.spill.track(write)?;
        }
        Ok(())
    }

    /// Makes the rest of the file its last piece.
    fn finish(self: &Arc<Self>) -> Result<()> {
        let write = self.end_piece(&mut self.contents.lock())?;
        self.spill.track(write)
    }

    /// Makes the tail a piece, on a memory tier or on its way to the disk.
    fn end_piece(self: &Arc<Self>, contents: &mut Contents) -> Result<Option<RunningWrite>> {
        let Some(tail) = contents.tail.take() else { return Ok(None) };
        let len = tail.as_ref().len();
        let space = self.spill.space();
        if let Some(bytes) = space.tiers.store(tail.as_ref()) {
            if !contents.is_on_tier {
                contents.is_on_tier = true;
                space.note_on_tier(self);
            }
            contents.pieces.push(Piece { len, place: Place::Tier(bytes) });
            return Ok(None);
        }
        let (bytes, offset, handle) = self.write(contents, tail)?;
        contents.pieces.push(Piece { len, place: Place::Leaving { bytes, offset, held: None } });
        let charge = self.spill.charge_write(len as u64);
        Ok(Some(RunningWrite { file: Arc::downgrade(self), piece: contents.pieces.len() - 1, handle, charge }))
    }

    /// Starts to write a piece to the disk.
    fn write(&self, contents: &mut Contents, mut piece: FileBytes) -> Result<(AlignedBuffer, u64, ReadHandle)> {
        let len = piece.as_ref().len();
        append(&mut piece, &vec![0; len.next_multiple_of(BLOCK_BYTES) - len])?;
        let bytes = piece.into_buffer();
        let blocks_len = bytes.as_slice().len();
        let disk = self.spill.disk()?;
        let (range, offset) = contents.place(blocks_len as u64, |bytes| disk.take(bytes))?;
        let handle = disk.write(&range, offset, bytes.part(0..blocks_len));
        Ok((bytes, offset, handle))
    }

    /// Starts to send pieces on a tier to the disk, until `wanted` bytes are on their way or the statement has no more
    /// writes. Returns the bytes on their way.
    pub(super) fn leave_tier(self: &Arc<Self>, tier: TierId, wanted: u64) -> Result<u64> {
        let mut left = 0;
        let mut number = 0;
        while left < wanted && self.spill.may_leave() {
            let mut contents = self.contents.lock();
            let is_there = |piece: &Piece| matches!(&piece.place, Place::Tier(bytes) if bytes.tier.id() == tier);
            let found = contents.pieces.iter().skip(number).position(is_there).filter(|_| !contents.stays);
            let Some(at) = found.map(|at| at + number) else { break };
            number = at + 1;
            let Some(Piece { len, place: Place::Tier(held) }) = contents.pieces.get(at) else { break };
            let len = *len;
            let mut copy = FileBytes::with_capacity(self.spill.io().pool(), len.next_multiple_of(BLOCK_BYTES))?;
            append(&mut copy, &held.bytes)?;
            let (bytes, offset, handle) = self.write(&mut contents, copy)?;
            if let Some(piece) = contents.pieces.get_mut(at) {
                let before = std::mem::replace(&mut piece.place, Place::Disk { offset });
                let Place::Tier(held) = before else { break };
                piece.place = Place::Leaving { bytes, offset, held: Some(held) };
            }
            drop(contents);
            let charge = self.spill.charge_write(len as u64);
            self.spill.begin(RunningWrite { file: Arc::downgrade(self), piece: at, handle, charge });
            left += len as u64;
        }
        Ok(left)
    }

    /// The bytes from a position of a piece on; the tail is at the number after the last piece. `None` after the last byte.
    pub(super) fn find(&self, number: usize, from: usize) -> Option<Found> {
        let contents = self.contents.lock();
        let Some(piece) = contents.pieces.get(number) else {
            let tail = contents.tail.as_ref().filter(|_| number == contents.pieces.len())?;
            let rest = tail.as_ref().get(from..).filter(|rest| !rest.is_empty())?;
            return Some(Found::Memory { bytes: Bytes::copy_from_slice(rest), ends: false });
        };
        let len = piece.len.saturating_sub(from);
        match &piece.place {
            Place::Tier(held) => {
                let tier = held.tier.clone();
                let bytes = Uncharged::new(TierPart(held.bytes.slice_with_length(from.min(piece.len), len)));
                drop(contents);
                self.spill.space().tiers.touch(&tier, len as u64);
                Some(Found::Memory { bytes: Bytes::from_owner(bytes), ends: true })
            }
            Place::Leaving { bytes, .. } => {
                let bytes = bytes.part(from..piece.len);
                let charge = Arc::new(self.spill.read_account().charge_always(len as u64));
                Some(Found::Memory { bytes: ChargedBytes::new(bytes, charge).into_bytes(), ends: true })
            }
            Place::Disk { offset } => Some(Found::Disk { offset: offset + from as u64, len }),
        }
    }

    /// Offset and length of a piece that is on disk.
    pub(super) fn find_on_disk(&self, number: usize) -> Option<(u64, usize)> {
        match self.contents.lock().pieces.get(number)? {
            Piece { len, place: Place::Disk { offset } } => Some((*offset, *len)),
            _ => None,
        }
    }
}

impl Contents {
    /// A range on disk with room for `bytes`, and where; ranges grow with the file.
    fn place(&mut self, bytes: u64, take: impl FnOnce(u64) -> Result<Arc<DiskRange>>) -> Result<(Arc<DiskRange>, u64)> {
        let last = self.ranges.last().filter(|_| self.free.end - self.free.start >= bytes);
        let range = match last {
            Some(range) => Arc::clone(range),
            None => {
                let range = take(self.len.next_multiple_of(PIECE_BYTES as u64).clamp(bytes, MOST_RANGE_BYTES))?;
                self.free = range.bytes.clone();
                self.ranges.push(Arc::clone(&range));
                range
            }
        };
        let offset = self.free.start;
        self.free.start += bytes;
        Ok((range, offset))
    }
}

impl Drop for FileState {
    fn drop(&mut self) {
        let contents = std::mem::take(self.contents.get_mut());
        self.spill.release(contents.len);
        HeapAccount::uncharged(|| drop(contents));
        self.spill.forget_unwanted();
    }
}

/// Appends bytes to a piece. Fails only when there is no memory.
fn append(piece: &mut FileBytes, bytes: &[u8]) -> Result<()> {
    piece.write_all(bytes).map_err(|error| Error::io("allocate", "a piece of a spill file", &error))
}

/// Memory that no statement is charged for, as the owner of [`Bytes`].
struct Uncharged<T>(Option<T>);

impl<T> Uncharged<T> {
    fn new(memory: T) -> Self {
        Self(Some(memory))
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Uncharged<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], T::as_ref)
    }
}

impl<T> Drop for Uncharged<T> {
    fn drop(&mut self) {
        HeapAccount::uncharged(|| drop(self.0.take()));
    }
}

/// Bytes of a piece, charged until the last reference to them is dropped.
pub(super) struct ChargedBytes {
    bytes: AlignedBuffer,
    _charge: Arc<Charge>,
}

impl ChargedBytes {
    pub(super) fn new(bytes: AlignedBuffer, charge: Arc<Charge>) -> Self {
        Self { bytes, _charge: charge }
    }

    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(Uncharged::new(self))
    }
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// A part of a piece on a tier.
struct TierPart(Buffer);

impl AsRef<[u8]> for TierPart {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SpillFile for SpilledFile {
    fn size(&self) -> Option<u64> {
        Some(self.0.len())
    }

    fn read_stream(&self) -> datafusion::error::Result<ByteStream> {
        Ok(SpillReader::new(Arc::clone(&self.0)).into_stream())
    }

    fn open_writer(&self) -> datafusion::error::Result<Box<dyn SpillWriter>> {
        Ok(Box::new(FileWriter(Arc::clone(&self.0))))
    }
}

struct FileWriter(Arc<FileState>);

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // An operator that a stopping statement refuses memory spills instead.
        if HeapAccount::current_should_stop() {
            return Err(std::io::Error::other("the statement has to stop"));
        }
        let spill = &self.0.spill;
        spill.reserve(bytes.len() as u64)?;
        let before = self.0.len();
        let appended = HeapAccount::uncharged(|| self.0.append(bytes));
        // One writer appends, so what was added is its own.
        let added = self.0.len() - before;
        spill.release(bytes.len() as u64 - added);
        spill.count_spilled(added);
        appended.map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    /// Readers find in memory what is not on disk yet.
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for FileWriter {
    fn finish(&mut self) -> datafusion::error::Result<()> {
        HeapAccount::uncharged(|| self.0.finish()).map_err(store_error)
    }
}
