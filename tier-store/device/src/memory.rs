//! Memory of a device, freed on drop.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};

/// Alignment of every allocation, in bytes.
pub const ALIGNMENT: usize = 256;

/// Frees what a device allocated.
pub(crate) trait Release: Send + Sync {
    /// Frees an allocation of this device, after what was launched before.
    fn release(&self, address: u64, bytes: u64);
}

/// A range of a device's memory. Its content is undefined until something is uploaded.
pub struct DeviceMemory {
    address: u64,
    bytes: u64,
    owner: Arc<dyn Release>,
}

impl DeviceMemory {
    pub(crate) fn new(address: u64, bytes: u64, owner: Arc<dyn Release>) -> Self {
        Self { address, bytes, owner }
    }

    /// Address of the first byte, in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The addresses of `length` bytes from `offset`; an error if they are not all inside.
    pub(crate) fn range(&self, offset: u64, length: usize) -> Result<Range<u64>> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.bytes);
        let end = end.ok_or_else(|| {
            Error::Invalid(format!("bytes {offset}+{length} are not inside of an allocation of {} bytes", self.bytes))
        })?;
        Ok(self.address + offset..self.address + end)
    }

    /// True when `owner` allocated this.
    pub(crate) fn is_of(&self, owner: &Arc<dyn Release>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.owner), Arc::as_ptr(owner))
    }

    /// Fails unless the device that allocated `self` allocated `other`, too.
    pub(crate) fn check_same_device(&self, other: &Self) -> Result<()> {
        if other.is_of(&self.owner) { Ok(()) } else { Err(of_another_device(other)) }
    }
}

pub(crate) fn of_another_device(memory: &DeviceMemory) -> Error {
    Error::Invalid(format!("{memory:?} is memory of another device"))
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.owner.release(self.address, self.bytes);
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({:#x}, {} bytes)", self.address, self.bytes)
    }
}
