//! The trait [`Device`]: memory, transfers, launches.
//!
//! Operations of one device take effect in the order of the calls. `launch` may return before the kernel ends; what it
//! wrote is seen by later calls, and an error of the kernel is reported by one of them.

use std::fmt;

use crate::error::Result;
use crate::memory::DeviceMemory;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Name of the model.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of its memory, or of the budget of an emulated one.
    pub memory_bytes: u64,
    /// Processors that run blocks at the same time.
    pub multiprocessors: u32,
    /// True for a device that only stands for one.
    pub emulated: bool,
}

/// A kernel of `kernels/scan.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// A scan.
    Scan,
    /// Adds up memory.
    Stream,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 2] = [Self::Scan, Self::Stream];

    /// Its name in `kernels/scan.c`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan",
            Self::Stream => "stream",
        }
    }
}

/// A kernel and what it reads and writes. Only the modules that write parameters make one, so every address in the
/// parameters lies in memory that the borrows below keep.
pub struct Launch<'a> {
    pub(crate) kernel: Kernel,
    /// Blocks for which there is work; the device takes fewer if it runs fewer at the same time.
    pub(crate) blocks: u32,
    /// Memory of each block.
    pub(crate) shared_bytes: u32,
    /// Holds the structure that the kernel takes, at this offset.
    pub(crate) parameters: &'a DeviceMemory,
    pub(crate) offset: u64,
    /// What the kernel writes.
    pub(crate) output: &'a mut DeviceMemory,
}

/// The devices of this crate. Others could break what kernels rely on: that memory is as long as asked for, and holds what
/// was copied there.
pub(crate) mod sealed {
    /// A device of this crate.
    pub trait Sealed {}
}

/// Something that has memory of its own and runs kernels.
pub trait Device: sealed::Sealed + Send + Sync + fmt::Debug {
    /// What this device is.
    fn properties(&self) -> &Properties;

    /// Bytes that are free.
    fn free_bytes(&self) -> Result<u64>;

    /// Takes at least one byte of memory. Its content is undefined.
    fn allocate(&self, bytes: u64) -> Result<DeviceMemory>;

    /// Copies bytes to `offset` of an allocation of this device.
    fn upload(&self, bytes: &[u8], to: &mut DeviceMemory, offset: u64) -> Result<()>;

    /// Copies bytes from `offset` of an allocation of this device, after everything launched before.
    fn download(&self, from: &DeviceMemory, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Runs a kernel, now or after what was launched before.
    fn launch(&self, launch: Launch<'_>) -> Result<()>;

    /// Waits for everything launched before.
    fn finish(&self) -> Result<()>;
}
