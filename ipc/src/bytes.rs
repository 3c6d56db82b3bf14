//! Buffers whose size the sender of a message decides: allocation can fail, and Arrow can read them in place.

use bytes::Bytes;

use crate::account::Charge;
use crate::error::{Error, Result};

/// Alignment at which Arrow reads every type in place.
pub(crate) const ALIGNMENT: usize = 64;

/// Bytes that begin at a multiple of 64.
#[derive(Default)]
pub struct AlignedBytes {
    /// Up to 63 unused bytes, then the bytes.
    memory: Vec<u8>,
    start: usize,
    /// Bytes that were allocated for.
    capacity: usize,
    _charge: Option<Charge>,
}

impl AlignedBytes {
    /// Allocates memory for `capacity` bytes and holds none yet.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when the allocation fails.
    pub fn with_capacity(capacity: usize) -> Result<Self, Error> {
        let none = || Error::TooLarge(format!("cannot allocate {capacity} bytes for a message"));
        let mut memory: Vec<u8> = Vec::new();
        memory.try_reserve_exact(capacity.checked_add(ALIGNMENT).ok_or_else(none)?).map_err(|_| none())?;
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        memory.resize(start, 0);
        Ok(Self { memory, start, capacity, _charge: None })
    }

    /// Makes `len` zeros that hold `charge` as long as they live.
    pub(crate) fn zeroed(len: usize, charge: Option<Charge>) -> Result<Self> {
        let mut zeros = Self::with_capacity(len)?;
        zeros.memory.resize(zeros.start + len, 0);
        Ok(Self { _charge: charge, ..zeros })
    }

    /// Appends as many of `bytes` as the capacity allows.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let room = self.capacity.saturating_sub(self.len()).min(bytes.len());
        self.memory.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    /// True when it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(self.start..).unwrap_or_default()
    }
}

impl From<AlignedBytes> for Bytes {
    /// Converts without a copy; memory and charge end with the last slice.
    fn from(bytes: AlignedBytes) -> Self {
        Self::from_owner(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_are_aligned_and_never_more_than_there_is_memory_for() {
        for len in [0, 1, 63, 64, 65, 100_000] {
            let mut bytes = AlignedBytes::with_capacity(len).unwrap();
            bytes.extend_from_slice(&vec![7; len / 2]);
            bytes.extend_from_slice(&vec![8; len]);
            assert_eq!(bytes.len(), len);
            let shared = Bytes::from(bytes);
            assert_eq!(shared.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(shared.iter().filter(|byte| **byte == 7).count(), len / 2);
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        for len in [usize::MAX, usize::MAX - ALIGNMENT, 1 << 60] {
            assert!(matches!(AlignedBytes::with_capacity(len), Err(Error::TooLarge(_))), "{len}");
        }
    }
}
