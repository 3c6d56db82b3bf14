//! Block-aligned memory for direct I/O, and its conversion to Arrow buffers.
//!
//! A buffer holds whole blocks; the requested bytes are a window inside them. Memory is not cleared when allocated, so a
//! buffer counts the bytes that were written, from its start: only these can be read. An engine fills the window before
//! it returns a buffer.
//! As an Arrow buffer the allocation has an owner of its own, so slices report their own size, and the charge that the owner
//! keeps ends with the last reader.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::{Charge, Result};

use super::BLOCK_BYTES;
use super::copy::copy_past_caches;
use super::pool::{Allocation, BufferPool};

/// Bytes of one read: a window inside whole, aligned blocks.
pub struct AlignedBuffer {
    /// `None` for an empty window. The parts of a buffer share it and cannot be written.
    memory: Option<Arc<Allocation>>,
    /// Usable bytes of the memory, from its start.
    blocks_len: usize,
    /// Bytes that were written, from the start of the memory; at most `blocks_len`.
    filled_len: usize,
    window_start: usize,
    window_len: usize,
}

/// Keeps the memory of an Arrow buffer and its charge.
struct Owner {
    _memory: Arc<Allocation>,
    _charge: Option<Charge>,
}

impl AlignedBuffer {
    /// Unfilled blocks that enclose `offset .. offset + len` of a file, from `pool`. The caller fills the window
    /// ([`AlignedBuffer::set_filled`]), which is empty until then.
    pub(crate) fn for_window(pool: &Arc<BufferPool>, offset: u64, len: usize) -> Result<Self> {
        let window_start = (offset % BLOCK_BYTES as u64) as usize;
        Self::over(window_start, len, BLOCK_BYTES, |bytes| pool.take(bytes))
    }

    /// `len` zeros, from `pool`.
    pub(crate) fn zeroed(pool: &Arc<BufferPool>, len: usize) -> Result<Self> {
        let mut zeros = Self::for_window(pool, 0, len)?;
        zeros.blocks_mut().fill(MaybeUninit::new(0));
        let filled = zeros.blocks_len;
        // SAFETY: all of it was filled.
        unsafe { zeros.set_filled(filled) };
        Ok(zeros)
    }

    /// A copy of `bytes` at an address that is a multiple of `align` (a power of two).
    pub fn copy_of(bytes: &[u8], align: usize) -> Result<Self> {
        let mut copy = Self::over(0, bytes.len(), align, |bytes| Allocation::new(bytes, align))?;
        copy_past_caches(bytes, copy.blocks_mut());
        // SAFETY: the copy has written that many bytes from the start.
        unsafe { copy.set_filled(bytes.len()) };
        Ok(copy)
    }

    /// A buffer over memory from `memory`, which allocates at least the given number of bytes.
    fn over(
        window_start: usize,
        window_len: usize,
        align: usize,
        memory: impl FnOnce(usize) -> Result<Allocation>,
    ) -> Result<Self> {
        let blocks_len = if window_len == 0 { 0 } else { (window_start + window_len).next_multiple_of(align) };
        let memory = if window_len == 0 { None } else { Some(Arc::new(memory(blocks_len)?)) };
        Ok(Self { memory, blocks_len, filled_len: 0, window_start, window_len })
    }

    /// Bytes of the enclosing blocks.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.blocks_len
    }

    /// The blocks, for the engine to fill. None of them counts as filled until the engine calls `set_filled` again.
    pub(crate) fn blocks_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        match self.memory.as_mut().and_then(Arc::get_mut) {
            Some(m) => {
                self.filled_len = 0;
                // SAFETY: the allocation has at least this many bytes, `MaybeUninit` needs no initialisation, nobody shares
                // it, `&mut self` is the only access, and what is written to it may be read only after `set_filled`.
                unsafe { std::slice::from_raw_parts_mut(m.start().as_ptr().cast(), self.blocks_len) }
            }
            None => &mut [],
        }
    }

    /// Declares the first `len` bytes of the blocks as written.
    ///
    /// # Safety
    /// Each of them was written since the memory was allocated, and initialised when it was last written to.
    pub(crate) unsafe fn set_filled(&mut self, len: usize) {
        self.filled_len = len.min(self.blocks_len);
    }

    /// The written bytes, from the first block on.
    pub(super) fn filled(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: the allocation has at least `filled_len` bytes, and they were written.
            Some(m) => unsafe { std::slice::from_raw_parts(m.start().as_ptr(), self.filled_len) },
            None => &[],
        }
    }

    /// The written bytes, from the first block on, as a mutable slice.
    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        match self.memory.as_mut().and_then(Arc::get_mut) {
            // SAFETY: as above, nobody shares it, and `&mut self` is the only access.
            Some(m) => unsafe { std::slice::from_raw_parts_mut(m.start().as_ptr(), self.filled_len) },
            None => &mut [],
        }
    }

    /// End of the window, counted from the first block.
    pub(crate) fn window_end(&self) -> usize {
        self.window_start + self.window_len
    }

    /// The bytes of the window; of a window that was not filled to its end, those that were written.
    pub fn as_slice(&self) -> &[u8] {
        let filled = self.filled();
        let end = self.window_end();
        filled.get(self.window_start..end.min(filled.len())).unwrap_or_default()
    }

    /// The bytes of the window, as a mutable slice.
    pub(crate) fn window_mut(&mut self) -> &mut [u8] {
        let start = self.window_start;
        let end = self.window_end();
        let filled = self.filled_mut();
        let end = end.min(filled.len());
        filled.get_mut(start..end).unwrap_or_default()
    }

    /// The same bytes with a window of `len` bytes from the start of the blocks.
    pub(super) fn with_window_len(self, len: usize) -> Self {
        Self { window_start: 0, window_len: len.min(self.blocks_len), ..self }
    }

    /// A part of the window, by a range counted from its start. It shares the memory.
    pub fn part(&self, range: Range<usize>) -> Self {
        let start = range.start.min(self.window_len);
        let end = range.end.min(self.window_len);
        Self {
            memory: self.memory.clone().filter(|_| start < end),
            blocks_len: self.blocks_len,
            filled_len: self.filled_len,
            window_start: self.window_start + start,
            window_len: end.saturating_sub(start),
        }
    }

    /// Parts of the window, by ranges counted from its start. They share the memory.
    pub(crate) fn cut(self, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        parts.into_iter().map(|range| self.part(range)).collect()
    }

    /// The window as an Arrow buffer, without copying. The memory is freed and `charge` ends with the last slice of it.
    pub fn into_arrow(self, charge: Option<Charge>) -> Buffer {
        let start = NonNull::from(self.as_slice()).cast::<u8>();
        let len = self.as_slice().len();
        let Some(memory) = self.memory.filter(|_| len > 0) else { return Buffer::from(Vec::<u8>::new()) };
        let owner = Arc::new(Owner { _memory: memory, _charge: charge });
        // SAFETY: the window's bytes were written, and live as long as their owner.
        unsafe { Buffer::from_custom_allocation(start, len, owner) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("window_len", &self.window_len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::Account;

    use super::*;

    #[test]
    fn the_window_keeps_the_offset_within_its_block() {
        let mut buffer = AlignedBuffer::for_window(&Arc::default(), 4096 * 3 + 128, 4000).unwrap();
        assert_eq!((buffer.allocated_bytes(), buffer.window_end()), (8192, 4128));
        for (i, byte) in buffer.blocks_mut().iter_mut().enumerate() {
            byte.write((i % 251) as u8);
        }
        assert!(buffer.as_slice().is_empty(), "unfilled bytes are not read");
        // SAFETY: all of it was written.
        unsafe { buffer.set_filled(8192) };
        assert_eq!(buffer.as_slice().len(), 4000);
        assert_eq!(buffer.as_slice()[0], 128);
        let arrow = buffer.into_arrow(None);
        assert_eq!(arrow.as_ptr() as usize % 64, 0);
        assert_eq!(arrow[3999], ((128 + 3999) % 251) as u8);
    }

    #[test]
    fn parts_share_the_memory_and_cannot_be_written() {
        let bytes: Vec<u8> = (0..200).collect();
        let mut parts = AlignedBuffer::copy_of(&bytes, 64).unwrap().cut([0..64, 64..64, 128..200, 190..300]);
        let lens: Vec<usize> = parts.iter().map(|part| part.as_slice().len()).collect();
        assert_eq!(lens, [64, 0, 72, 10]);
        assert!(parts.iter_mut().all(|part| part.window_mut().is_empty() && part.blocks_mut().is_empty()));
        let arrow = parts.remove(2).into_arrow(None);
        drop(parts);
        assert_eq!((arrow.as_slice(), arrow.as_ptr() as usize % 64), (&bytes[128..], 0));
    }

    #[test]
    fn the_charge_ends_with_the_last_slice() {
        let account = Account::new("dram", 1000);
        let buffer = AlignedBuffer::copy_of(&[7; 100], 64).unwrap();
        let arrow = buffer.into_arrow(Some(account.try_charge(128).unwrap()));
        let slice = arrow.slice_with_length(10, 20);
        drop(arrow);
        assert_eq!((account.used_bytes(), slice.as_slice()), (128, &[7; 20][..]));
        assert_eq!(slice.capacity(), 100);
        drop(slice);
        assert_eq!(account.used_bytes(), 0);
    }

    #[test]
    fn only_what_was_written_is_read() {
        let unfilled = || AlignedBuffer::for_window(&Arc::default(), 128, 4000).unwrap();
        assert!(unfilled().as_slice().is_empty() && unfilled().window_mut().is_empty());
        assert!(unfilled().into_arrow(None).is_empty());
        assert!(unfilled().cut([0..10, 20..30]).iter().all(|part| part.as_slice().is_empty()));
        let mut part = unfilled();
        part.blocks_mut()[..200].fill(MaybeUninit::new(9));
        // SAFETY: 200 bytes were written.
        unsafe { part.set_filled(200) };
        assert_eq!(part.as_slice(), [9; 72]);
        assert_eq!(part.window_mut().len(), 72);
        // The blocks may be left unwritten once they can be written to again.
        part.blocks_mut()[0] = MaybeUninit::uninit();
        assert!(part.as_slice().is_empty());
    }

    #[test]
    fn an_empty_window_needs_no_memory() {
        let buffer = AlignedBuffer::for_window(&Arc::default(), 77, 0).unwrap();
        assert_eq!((buffer.allocated_bytes(), buffer.as_slice().len()), (0, 0));
        assert!(buffer.into_arrow(None).is_empty());
    }
}
