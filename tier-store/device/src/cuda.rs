//! An NVIDIA GPU, through its driver, which is loaded when the first one is opened: a build needs no toolkit, and a
//! machine without a driver gets an error.
//!
//! All operations go to one stream, so they take effect in the order of the calls. Transfers pass through two buffers of
//! pinned memory, so that copying into one and the bus from the other overlap.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{
    self, CUdevice_attribute_enum as Attribute, CUfunction_attribute_enum as FunctionAttribute,
    CUmemPool_attribute_enum as PoolAttribute, CUresult,
};
use parking_lot::Mutex;

use crate::device::sealed::Sealed;
use crate::device::{Device, Kernel, Launch, Properties};
use crate::error::{Error, Result};
use crate::layout::{BLOCK_BYTES, OWN_PLACES, WIDTH};
use crate::memory::{DeviceMemory, Release, of_another_device};

/// The kernels, as `kernels/compile.py` makes them.
static PTX: &[u8] = concat!(include_str!("../kernels/scan.ptx"), "\0").as_bytes();
/// Memory of a block, at most. Every device that the kernels run on has it, but only when asked for.
const MOST_SHARED_BYTES: usize = BLOCK_BYTES + OWN_PLACES as usize * WIDTH as usize * 8;
/// Bytes of each of the two buffers for transfers.
const STAGING_BYTES: usize = 4 << 20;
/// The oldest driver that reads the PTX, as the driver numbers itself: CUDA 13.0.
const LEAST_DRIVER: i32 = 13_000;
/// The oldest architecture that the PTX is for.
const LEAST_CAPABILITY: (i32, i32) = (7, 5);

/// A GPU.
#[derive(Debug)]
pub struct CudaDevice {
    properties: Properties,
    context: Arc<Context>,
}

/// Pinned memory on the way to the device or back.
struct Staging {
    buffers: [*mut u8; 2],
    /// Recorded when the bus has read a buffer.
    events: [sys::CUevent; 2],
}

/// What the driver made for a device.
struct Context {
    name: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    pool: sys::CUmemoryPool,
    module: sys::CUmodule,
    kernels: Vec<(Kernel, sys::CUfunction)>,
    staging: Mutex<Staging>,
    /// The first failure after which the device does not answer.
    lost: OnceLock<String>,
}

// SAFETY: the driver's handles may be used by any thread that makes the context current, which every method does first;
// the pinned buffers are behind a lock.
unsafe impl Send for Context {}
// SAFETY: as for `Send`; the driver locks its own state.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// Failures after which a context answers every call with the same.
fn is_fatal(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

/// The driver's words for a failure.
fn message(error: DriverError) -> String {
    let text =
        |text: Result<&CStr, DriverError>| text.map_or("?".to_owned(), |text| text.to_string_lossy().into_owned());
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

impl Context {
    /// Maps a failure of the driver, and remembers a fatal one.
    fn checked<T>(&self, action: &'static str, result: Result<T, DriverError>) -> Result<T> {
        match result {
            Err(error) if !is_fatal(error.0) => {
                Err(Error::Failed { device: self.name.clone(), action, message: message(error) })
            }
            result => self.waited(result),
        }
    }

    /// Maps a failure of a transfer or of waiting. It may be that of a kernel launched before, and buffers may still be in
    /// use: the device is lost, whatever the driver says.
    fn waited<T>(&self, result: Result<T, DriverError>) -> Result<T> {
        result.map_err(|error| {
            let message = self.lost.get_or_init(|| message(error)).clone();
            Error::Lost { device: self.name.clone(), message }
        })
    }

    /// Makes the context current for the calling thread; fails once the device is lost.
    fn enter(&self) -> Result<()> {
        if let Some(message) = self.lost.get() {
            return Err(Error::Lost { device: self.name.clone(), message: message.clone() });
        }
        // SAFETY: the context lives as long as `self`.
        self.checked("use the context", unsafe { result::ctx::set_current(self.context) })
    }

    fn free_bytes(&self) -> Result<u64> {
        let (free, _) = self.checked("ask for free memory", result::mem_get_info())?;
        let held = |attribute| -> Result<u64> {
            let mut bytes = 0_u64;
            // SAFETY: the pool is the device's own, and both attributes are numbers of 64 bits.
            let asked = unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut bytes).cast()) };
            self.checked("ask for free memory", asked)?;
            Ok(bytes)
        };
        let reserved = held(PoolAttribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        Ok(free as u64 + reserved.saturating_sub(held(PoolAttribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
    }
}

impl Release for Context {
    fn release(&self, address: u64, _bytes: u64) {
        if self.enter().is_ok() {
            // SAFETY: `allocate` got the address from the pool on this stream, and only the drop of the one
            // `DeviceMemory` that owns it calls this. The stream frees it after what was launched before.
            let freed = unsafe { result::free_async(address, self.stream) };
            // A fatal failure is remembered, for the next operation to report; another one leaks the range.
            let _ = self.checked("free memory", freed);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything was made by `open`, once, and nothing uses it any more: memory keeps the context alive. After
        // a fatal failure the driver refuses the calls, which does no harm.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::synchronize(self.stream);
            let staging = self.staging.get_mut();
            for (event, buffer) in staging.events.iter().zip(&staging.buffers) {
                let _ = result::event::destroy(*event);
                let _ = result::free_host(buffer.cast());
            }
            let _ = result::module::unload(self.module);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl CudaDevice {
    /// Opens the GPU with this number, from 0 on.
    pub fn open(number: u32) -> Result<Self> {
        let device = format!("cuda:{number}");
        let unavailable = |reason: String| Error::Unavailable { device: device.clone(), reason };
        let refused = |error: DriverError| unavailable(message(error));
        // SAFETY: opens the driver's library, as the calls after it do; without it they would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable("the NVIDIA driver (libcuda.so.1) is not installed".to_owned()));
        }
        result::init().map_err(refused)?;
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(refused)?;
        let driver = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        if version < LEAST_DRIVER {
            return Err(unavailable(format!("the driver is for {driver}; the kernels need CUDA 13.0")));
        }
        let count = result::device::get_count().map_err(refused)?;
        if i64::from(number) >= i64::from(count) {
            return Err(unavailable(format!("the driver has {count} devices")));
        }
        let handle = result::device::get(number as i32).map_err(refused)?;
        // SAFETY: the handle is one that `device::get` gave.
        let attribute = |which| unsafe { result::device::get_attribute(handle, which) }.map_err(refused);
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < LEAST_CAPABILITY {
            let ((major, minor), (least, least_minor)) = (capability, LEAST_CAPABILITY);
            return Err(unavailable(format!(
                "its compute capability is {major}.{minor}; the kernels need {least}.{least_minor}"
            )));
        }
        let properties = Properties {
            name: result::device::get_name(handle).map_err(refused)?,
            driver,
            // SAFETY: as above.
            memory_bytes: unsafe { result::device::total_mem(handle) }.map_err(refused)? as u64,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
            emulated: false,
        };
        let context = Self::make_context(device.clone(), handle).map_err(refused)?;
        Ok(Self { properties, context: Arc::new(context) })
    }

    /// Makes everything that a device needs. What a failure leaves behind goes with the process: a machine whose driver
    /// fails here is not asked again.
    fn make_context(name: String, device: sys::CUdevice) -> Result<Context, DriverError> {
        // SAFETY: the handle is one that `device::get` gave; the context is current from here on for this thread, and all
        // handles are of it. The PTX ends with a zero. The threshold is a number of 64 bits.
        unsafe {
            let context = result::primary_ctx::retain(device)?;
            result::ctx::set_current(context)?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
            let pool = result::device::get_default_mem_pool(device)?;
            // The pool keeps what is freed: taking it from the driver again costs milliseconds.
            let mut keep = u64::MAX;
            let threshold = PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast())?;
            let module = result::module::load_data(PTX.as_ptr().cast())?;
            let mut kernels = Vec::new();
            for kernel in Kernel::ALL {
                let name = CString::new(kernel.name()).unwrap_or_default();
                let function = result::module::get_function(module, name)?;
                let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, attribute, MOST_SHARED_BYTES as i32)?;
                kernels.push((kernel, function));
            }
            let buffer = || {
                let buffer = result::malloc_host(STAGING_BYTES, 0)?.cast::<u8>();
                buffer.write_bytes(0, STAGING_BYTES);
                Ok(buffer)
            };
            let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            let staging = Staging { buffers: [buffer()?, buffer()?], events: [event()?, event()?] };
            let staging = Mutex::new(staging);
            Ok(Context { name, device, context, stream, pool, module, kernels, staging, lost: OnceLock::new() })
        }
    }

    fn owner(&self) -> Arc<dyn Release> {
        self.context.clone()
    }

    /// Checks that a range is of an allocation of this device. Gives its first address.
    fn address(&self, memory: &DeviceMemory, offset: u64, bytes: usize) -> Result<u64> {
        self.context.enter()?;
        if !memory.is_of(&self.owner()) {
            return Err(of_another_device(memory));
        }
        Ok(memory.range(offset, bytes)?.start)
    }
}

impl Sealed for CudaDevice {}

impl Device for CudaDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn free_bytes(&self) -> Result<u64> {
        self.context.enter()?;
        self.context.free_bytes()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        let context = &self.context;
        context.enter()?;
        let bytes = bytes.max(1);
        // SAFETY: the stream is the context's; nothing reads the content before an upload or a kernel wrote it.
        match unsafe { result::malloc_async(context.stream, bytes as usize) } {
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free_bytes = context.free_bytes()?;
                Err(Error::OutOfMemory { device: context.name.clone(), asked_bytes: bytes, free_bytes })
            }
            allocated => Ok(DeviceMemory::new(context.checked("allocate memory", allocated)?, bytes, self.owner())),
        }
    }

    fn upload(&self, bytes: &[u8], to: &mut DeviceMemory, offset: u64) -> Result<()> {
        let context = &self.context;
        let address = self.address(to, offset, bytes.len())?;
        let staging = context.staging.lock();
        for (at, piece) in bytes.chunks(STAGING_BYTES).enumerate() {
            let (buffer, event) = (staging.buffers[at % 2], staging.events[at % 2]);
            // SAFETY: the buffer has STAGING_BYTES bytes, and once its event has happened nothing reads it; an event that
            // was never recorded has happened. The range on the device was checked above.
            let copied = unsafe {
                result::event::synchronize(event).and_then(|()| {
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), buffer, piece.len());
                    let pinned = std::slice::from_raw_parts(buffer, piece.len());
                    let place = address + (at * STAGING_BYTES) as u64;
                    result::memcpy_htod_async(place, pinned, context.stream)?;
                    result::event::record(event, context.stream)
                })
            };
            context.waited(copied)?;
        }
        Ok(())
    }

    fn download(&self, from: &DeviceMemory, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let context = &self.context;
        let address = self.address(from, offset, bytes.len())?;
        let staging = context.staging.lock();
        let buffer = staging.buffers[0];
        for (at, piece) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            // SAFETY: the buffer has STAGING_BYTES bytes, all written once when it was made; the stream has ended uploads
            // from it before it writes there, and what it writes is read after the stream has ended. The range on the
            // device was checked above.
            let copied = unsafe {
                let pinned = std::slice::from_raw_parts_mut(buffer, piece.len());
                result::memcpy_dtoh_async(pinned, address + (at * STAGING_BYTES) as u64, context.stream)
                    .and_then(|()| result::stream::synchronize(context.stream))
                    .inspect(|()| piece.copy_from_slice(pinned))
            };
            context.waited(copied)?;
        }
        Ok(())
    }

    fn launch(&self, launch: Launch<'_>) -> Result<()> {
        let context = &self.context;
        let mut parameters = self.address(launch.parameters, launch.offset, 1)?;
        self.address(launch.output, 0, 1)?;
        let kernel = context.kernels.iter().find(|(kernel, _)| *kernel == launch.kernel).map(|(_, function)| *function);
        let kernel = kernel.ok_or_else(|| Error::Unsupported(format!("the kernel {}", launch.kernel.name())))?;
        let mut arguments = [(&raw mut parameters).cast::<c_void>()];
        let shared_bytes = launch.shared_bytes as usize;
        // SAFETY: the function is of the context's module.
        let resident =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(kernel, WIDTH as i32, shared_bytes) };
        let resident = context.checked("launch", resident)?.unsigned_abs() * self.properties.multiprocessors;
        let blocks = launch.blocks.min(resident.max(1));
        // SAFETY: the kernel takes one address. Whoever made the launch wrote parameters for it, whose addresses lie in
        // allocations of this device, and has checked all that bounds the kernel's accesses. The stream frees and
        // overwrites those allocations after the kernel only.
        let launched = unsafe {
            let grid = (blocks, 1, 1);
            result::launch_kernel(kernel, grid, (WIDTH, 1, 1), launch.shared_bytes, context.stream, &mut arguments)
        };
        context.checked("launch", launched)
    }

    fn finish(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is the context's.
        self.context.waited(unsafe { result::stream::synchronize(self.context.stream) })
    }
}
