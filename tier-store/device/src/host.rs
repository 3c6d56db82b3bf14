//! The host device: the kernels on the processor, in memory that a budget limits. It stands for a GPU where there is
//! none: transfers may be slowed down, and operations may fail from a seed.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use terrace_model::clock::{Clock, SystemClock};

use crate::device::sealed::Sealed;
use crate::device::{Device, Kernel, Launch, Properties};
use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::memory::{ALIGNMENT, DeviceMemory, Release, of_another_device};

/// Name of the host device in errors.
const NAME: &str = "host";

/// Blocks of a launch for each thread: enough that threads end at about the same time.
const BLOCKS_PER_THREAD: u32 = 8;

/// What a host device is like.
#[derive(Debug)]
pub struct HostOptions {
    /// Budget of its memory.
    pub memory_bytes: u64,
    /// Threads that run kernels.
    pub threads: u32,
    /// Speed of transfers in both directions; `None`: that of the memory.
    pub transfer_bytes_per_second: Option<u64>,
    /// Faults.
    pub faults: Option<Faults>,
    /// Waits for slow transfers.
    pub clock: Arc<dyn Clock>,
}

impl Default for HostOptions {
    /// 1 GiB, all processors, no limit of speed, no faults.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            transfer_bytes_per_second: None,
            faults: None,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// Allocations of a host device.
#[derive(Debug, Default)]
struct Heap {
    used_bytes: AtomicU64,
}

impl Heap {
    fn layout(bytes: u64) -> Option<Layout> {
        Layout::from_size_align(usize::try_from(bytes).ok()?, ALIGNMENT).ok()
    }
}

impl Release for Heap {
    fn release(&self, address: u64, bytes: u64) {
        if let Some(layout) = Self::layout(bytes) {
            // SAFETY: `HostDevice::allocate` got this address for this layout from `alloc`, and only the drop of the one
            // `DeviceMemory` that owns it calls this. Kernels have ended: `launch` waits for them.
            unsafe { dealloc(address as *mut u8, layout) };
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A device that runs the kernels on the processor.
#[derive(Debug)]
pub struct HostDevice {
    properties: Properties,
    options: HostOptions,
    heap: Arc<Heap>,
    is_lost: AtomicBool,
}

impl HostDevice {
    /// A host device.
    pub fn new(options: HostOptions) -> Self {
        let properties = Properties {
            name: "host processor".to_owned(),
            driver: format!("terrace {}", env!("CARGO_PKG_VERSION")),
            memory_bytes: options.memory_bytes,
            multiprocessors: options.threads.max(1),
            emulated: true,
        };
        Self { properties, options, heap: Arc::default(), is_lost: AtomicBool::new(false) }
    }

    /// Fails once the device is lost.
    fn check(&self) -> Result<()> {
        if self.options.faults.as_ref().is_some_and(Faults::is_lost) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Error::Lost { device: NAME.to_owned(), message: "an injected fault".to_owned() });
        }
        Ok(())
    }

    /// Bytes of all allocations, also of a lost device.
    pub fn used_bytes(&self) -> u64 {
        self.heap.used_bytes.load(Ordering::Relaxed)
    }

    fn owner(&self) -> Arc<dyn Release> {
        self.heap.clone()
    }

    /// Checks that an allocation is of this device, and takes the time of a transfer. Gives the first address.
    fn transfer(&self, memory: &DeviceMemory, offset: u64, bytes: usize) -> Result<u64> {
        self.check()?;
        if !memory.is_of(&self.owner()) {
            return Err(of_another_device(memory));
        }
        let range = memory.range(offset, bytes)?;
        if let Some(rate) = self.options.transfer_bytes_per_second.filter(|rate| *rate > 0) {
            self.options.clock.sleep(Duration::from_secs_f64(bytes as f64 / rate as f64));
        }
        Ok(range.start)
    }
}

impl Sealed for HostDevice {}

impl Device for HostDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn free_bytes(&self) -> Result<u64> {
        self.check()?;
        Ok(self.options.memory_bytes.saturating_sub(self.used_bytes()))
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        self.check()?;
        let bytes = bytes.max(1);
        let limit = self.options.memory_bytes;
        let out_of_memory = |used: u64| {
            let free_bytes = limit.saturating_sub(used);
            Error::OutOfMemory { device: NAME.to_owned(), asked_bytes: bytes, free_bytes }
        };
        if self.options.faults.as_ref().is_some_and(Faults::is_out_of_memory) {
            return Err(out_of_memory(self.used_bytes()));
        }
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        let taken = self.heap.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let used = taken.map_err(out_of_memory)?;
        let address = match Heap::layout(bytes) {
            // SAFETY: the layout has at least one byte.
            Some(layout) => unsafe { alloc(layout) },
            None => std::ptr::null_mut(),
        };
        if address.is_null() {
            self.heap.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(out_of_memory(used));
        }
        // SAFETY: so many bytes begin there. Their content is undefined, and reading that would be undefined behaviour.
        unsafe { address.write_bytes(0xa5, bytes as usize) };
        Ok(DeviceMemory::new(address as u64, bytes, self.owner()))
    }

    fn upload(&self, bytes: &[u8], to: &mut DeviceMemory, offset: u64) -> Result<()> {
        let at = self.transfer(to, offset, bytes.len())?;
        // SAFETY: `transfer` has checked that the range lies in this allocation of the host's heap, which `to` borrows
        // for this call alone. `bytes` is memory of someone else.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, from: &DeviceMemory, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.transfer(from, offset, bytes.len())?;
        // SAFETY: as for `upload`; `allocate` has written every byte once.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn launch(&self, launch: Launch<'_>) -> Result<()> {
        self.check()?;
        let failed = self.options.faults.as_ref().and_then(Faults::failed_launch);
        if let Some(at_once) = failed {
            if at_once {
                let message = "an injected fault".to_owned();
                return Err(Error::Failed { device: NAME.to_owned(), action: "launch", message });
            }
            self.is_lost.store(true, Ordering::Relaxed);
            return Ok(());
        }
        if let Some(foreign) =
            [launch.parameters, launch.output].into_iter().find(|memory| !memory.is_of(&self.owner()))
        {
            return Err(of_another_device(foreign));
        }
        let parameters = launch.parameters.range(launch.offset, 1)?.start;
        let (next, kernel) = (AtomicU32::new(0), entry(launch.kernel));
        let blocks = launch.blocks.min(self.properties.multiprocessors.saturating_mul(BLOCKS_PER_THREAD));
        let work = || {
            loop {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= blocks {
                    return;
                }
                // SAFETY: whoever made the launch wrote parameters for this kernel, whose addresses lie in allocations
                // of this device that outlive the call, and has checked all that bounds the kernel's accesses. Blocks
                // share nothing but the output, which they change by atomic operations.
                unsafe { kernel(block, blocks, parameters as *const c_void) };
            }
        };
        let helpers = self.properties.multiprocessors.min(blocks).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // Without a thread the others do its blocks.
                let _ = std::thread::Builder::new().name("host-device".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.check()
    }
}

/// A kernel as the C compiler makes it: block, number of blocks, parameters.
type Entry = unsafe extern "C" fn(u32, u32, *const c_void);

// SAFETY: `build.rs` links these, from `kernels/scan.c`.
unsafe extern "C" {
    fn terrace_scan(block: u32, blocks: u32, parameters: *const c_void);
    fn terrace_stream(block: u32, blocks: u32, parameters: *const c_void);
    #[cfg(test)]
    static terrace_layout: [u32; 0];
    #[cfg(test)]
    static terrace_layout_length: u32;
}

fn entry(kernel: Kernel) -> Entry {
    match kernel {
        Kernel::Scan => terrace_scan,
        Kernel::Stream => terrace_stream,
    }
}

/// Offsets and sizes of the structures in `kernels/program.h`, as the C compiler has them.
#[cfg(test)]
pub(crate) fn compiled_layout() -> &'static [u32] {
    // SAFETY: `kernels/scan.c` defines both, the second one as the length of the first.
    unsafe { std::slice::from_raw_parts((&raw const terrace_layout).cast(), terrace_layout_length as usize) }
}
