//! Block-aligned memory for direct I/O, and its way into Arrow.
//!
//! A buffer holds whole blocks; what was asked for is a window inside them. Memory is not cleared when allocated: an
//! engine fills the window before it hands a buffer out, which is why [`AlignedBuffer::as_slice`] is safe.
//! As an Arrow buffer the allocation has an owner of its own, so slices report their own size and the charge that
//! travels with it ends with the last reader.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;

use super::BLOCK_BYTES;
use super::pool::{Allocation, BufferPool};
use crate::error::Result;
use crate::tier::{Charge, copy_past_caches};

/// Bytes of one read: a window inside whole, aligned blocks.
pub struct AlignedBuffer {
    /// `None` for an empty window. Shared by the parts of a buffer that was cut, which can no longer be written.
    memory: Option<Arc<Allocation>>,
    /// Usable bytes of the memory, from its start.
    blocks_len: usize,
    window_start: usize,
    window_len: usize,
}

/// What keeps an Arrow buffer's memory and its charge alive.
struct Owner {
    _memory: Arc<Allocation>,
    _charge: Option<Charge>,
}

impl AlignedBuffer {
    /// Unfilled blocks that enclose `offset .. offset + len` of a file, from `pool`. The caller fills the window.
    pub(crate) fn for_window(pool: &Arc<BufferPool>, offset: u64, len: usize) -> Result<Self> {
        let window_start = (offset % BLOCK_BYTES as u64) as usize;
        Self::over(window_start, len, BLOCK_BYTES, |bytes| pool.take(bytes))
    }

    /// `len` zeros, from `pool`.
    pub(crate) fn zeroed(pool: &Arc<BufferPool>, len: usize) -> Result<Self> {
        let mut zeros = Self::for_window(pool, 0, len)?;
        zeros.blocks_mut().fill(MaybeUninit::new(0));
        Ok(zeros)
    }

    /// A copy of `bytes` at an address that is a multiple of `align` (a power of two).
    pub fn copy_of(bytes: &[u8], align: usize) -> Result<Self> {
        let mut copy = Self::over(0, bytes.len(), align, |bytes| Allocation::new(bytes, align))?;
        copy_past_caches(bytes, copy.blocks_mut());
        Ok(copy)
    }

    /// `memory` gives at least the bytes it is asked for.
    fn over(
        window_start: usize,
        window_len: usize,
        align: usize,
        memory: impl FnOnce(usize) -> Result<Allocation>,
    ) -> Result<Self> {
        let blocks_len = if window_len == 0 { 0 } else { (window_start + window_len).next_multiple_of(align) };
        let memory = if window_len == 0 { None } else { Some(Arc::new(memory(blocks_len)?)) };
        Ok(Self { memory, blocks_len, window_start, window_len })
    }

    /// Bytes of the enclosing blocks.
    pub fn allocated_bytes(&self) -> usize {
        self.blocks_len
    }

    /// The blocks, for the engine to fill.
    pub(crate) fn blocks_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        match self.memory.as_mut().and_then(Arc::get_mut) {
            // SAFETY: the allocation has at least this many bytes, `MaybeUninit` needs no initialisation, nobody shares
            // it, and `&mut self` is the only access.
            Some(m) => unsafe { std::slice::from_raw_parts_mut(m.start().as_ptr().cast(), self.blocks_len) },
            None => &mut [],
        }
    }

    /// The first bytes, which the caller has written.
    pub(super) fn filled(&self, len: usize) -> &[u8] {
        match &self.memory {
            // SAFETY: the allocation has at least `blocks_len` bytes, and the caller wrote these.
            Some(m) => unsafe { std::slice::from_raw_parts(m.start().as_ptr(), len.min(self.blocks_len)) },
            None => &[],
        }
    }

    /// The first bytes, which the caller has written, to change them.
    pub(super) fn filled_mut(&mut self, len: usize) -> &mut [u8] {
        match self.memory.as_mut().and_then(Arc::get_mut) {
            // SAFETY: as above, nobody shares it, and `&mut self` is the only access.
            Some(m) => unsafe { std::slice::from_raw_parts_mut(m.start().as_ptr(), len.min(self.blocks_len)) },
            None => &mut [],
        }
    }

    /// Where the window ends, counted from the first block.
    pub(crate) fn window_end(&self) -> usize {
        self.window_start + self.window_len
    }

    /// The bytes asked for.
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: the window lies inside the allocation by construction, and every buffer that leaves this crate
            // had its window filled (the engines check the count; `copy_of` writes all of it).
            Some(m) => unsafe {
                std::slice::from_raw_parts(m.start().as_ptr().add(self.window_start), self.window_len)
            },
            None => &[],
        }
    }

    /// The bytes asked for, which the caller has written before, to change them.
    pub(crate) fn window_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.window_start, self.window_end());
        self.filled_mut(end).get_mut(start..).unwrap_or_default()
    }

    /// Parts of the window, by ranges counted from its start. They share the memory.
    pub(crate) fn cut(self, parts: impl IntoIterator<Item = Range<usize>>) -> Vec<Self> {
        let part = |range: Range<usize>| {
            let (start, end) = (range.start.min(self.window_len), range.end.min(self.window_len));
            Self {
                memory: self.memory.clone().filter(|_| start < end),
                blocks_len: self.blocks_len,
                window_start: self.window_start + start,
                window_len: end.saturating_sub(start),
            }
        };
        parts.into_iter().map(part).collect()
    }

    /// The window as an Arrow buffer, without copying. The memory is freed and `charge` ends with the last slice of it.
    pub fn into_arrow(self, charge: Option<Charge>) -> Buffer {
        let Some(memory) = self.memory else { return Buffer::from(Vec::<u8>::new()) };
        // SAFETY: the window lies inside the allocation, so the sum stays in bounds and is not null.
        let start = unsafe { memory.start().add(self.window_start) };
        let owner = Arc::new(Owner { _memory: memory, _charge: charge });
        // SAFETY: the window is initialised (see `as_slice`) and lives as long as its owner.
        unsafe { Buffer::from_custom_allocation(start, self.window_len, owner) }
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
    use super::*;
    use crate::tier::Account;

    #[test]
    fn the_window_keeps_the_offset_within_its_block() {
        let mut buffer = AlignedBuffer::for_window(&Arc::default(), 4096 * 3 + 128, 4000).unwrap();
        assert_eq!((buffer.allocated_bytes(), buffer.window_end()), (8192, 4128));
        for (i, byte) in buffer.blocks_mut().iter_mut().enumerate() {
            byte.write((i % 251) as u8);
        }
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
    fn an_empty_window_needs_no_memory() {
        let buffer = AlignedBuffer::for_window(&Arc::default(), 77, 0).unwrap();
        assert_eq!((buffer.allocated_bytes(), buffer.as_slice().len()), (0, 0));
        assert!(buffer.into_arrow(None).is_empty());
    }
}
