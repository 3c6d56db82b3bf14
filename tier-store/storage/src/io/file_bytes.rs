//! The bytes of a file before it is written, in memory that is aligned for direct writes.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use terrace_model::Result;

use super::AlignedBuffer;
use super::pool::BufferPool;

/// A file in memory, aligned to blocks. It grows with writes; its memory comes from a pool and returns to it.
pub struct FileBytes {
    pool: Arc<BufferPool>,
    buffer: AlignedBuffer,
    len: usize,
}

impl FileBytes {
    /// An empty file with room for `bytes`.
    pub fn with_capacity(pool: &Arc<BufferPool>, bytes: usize) -> Result<Self> {
        let buffer = AlignedBuffer::for_window(pool, 0, bytes.max(1))?;
        Ok(Self { pool: Arc::clone(pool), buffer, len: 0 })
    }

    /// Its bytes, which cannot be changed any more.
    pub fn into_buffer(self) -> AlignedBuffer {
        self.buffer.with_window_len(self.len)
    }

    fn grow(&mut self, bytes: usize) -> Result<()> {
        let mut larger = Self::with_capacity(&self.pool, bytes.max(2 * self.len))?;
        larger.append(self.as_ref());
        *self = larger;
        Ok(())
    }

    /// Appends bytes, for which the caller has made room.
    fn append(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(room) = self.buffer.blocks_mut().get_mut(self.len..end) {
            room.write_copy_of_slice(bytes);
            self.len = end;
        }
        // SAFETY: each of the bytes was appended, here or before.
        unsafe { self.buffer.set_filled(self.len) };
    }
}

impl Write for FileBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.len + bytes.len();
        if end > self.buffer.allocated_bytes() {
            self.grow(end).map_err(io::Error::other)?;
        }
        self.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self.buffer.filled()
    }
}

impl AsMut<[u8]> for FileBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.filled_mut()
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::BLOCK_BYTES;
    use super::*;

    #[test]
    fn it_grows_keeps_what_was_written_and_stays_aligned() {
        let mut file = FileBytes::with_capacity(&Arc::default(), 10).unwrap();
        let mut expected = Vec::new();
        for part in 0..300_usize {
            let bytes = vec![part as u8; part * 7];
            file.write_all(&bytes).unwrap();
            expected.extend(bytes);
            assert_eq!(file.as_ref().as_ptr() as usize % BLOCK_BYTES, 0);
        }
        file.as_mut()[5] = 77;
        expected[5] = 77;
        assert!(file.as_ref() == expected);
        assert!(file.into_buffer().as_slice() == expected);
        // Also where it fills more of its blocks than there was room for.
        for len in [11, 4000, 4096, 5000, 8192, 8193] {
            let mut file = FileBytes::with_capacity(&Arc::default(), 10).unwrap();
            for byte in 0..len {
                file.write_all(&[byte as u8]).unwrap();
            }
            let expected: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            assert!(file.into_buffer().as_slice() == expected, "{len}");
        }
    }
}
