//! Makes stores to a mapping durable.
//!
//! With MAP_SYNC a store is durable once its cache line has left the processor's caches: `clwb` (keeps the line cached),
//! else `clflushopt`, else `clflush`, then `sfence`. Without MAP_SYNC it takes `msync`.

use std::ptr::NonNull;

use terrace_model::{Error, Result};

/// The way in which a pool's stores become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// Not at all: the pool is volatile memory.
    Volatile,
    /// By flushing cache lines (MAP_SYNC was granted).
    CacheLines(LineFlush),
    /// By `msync`.
    Msync,
}

/// The instruction that flushes a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFlush {
    #[cfg(target_arch = "x86_64")]
    Clwb,
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

impl LineFlush {
    /// The best instruction of this processor; `None` where this module knows none.
    pub(super) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let leaf = std::arch::x86_64::__cpuid_count(7, 0);
            let best = match (leaf.ebx >> 24 & 1, leaf.ebx >> 23 & 1) {
                (1, _) => Self::Clwb,
                (_, 1) => Self::ClflushOpt,
                _ => Self::Clflush,
            };
            Some(best)
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            Self::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => "clflush",
        }
    }

    /// Flushes the lines of `len` bytes at `start` and waits until they are out.
    ///
    /// # Safety
    /// The range must be mapped.
    #[cfg(target_arch = "x86_64")]
    unsafe fn flush(self, start: NonNull<u8>, len: usize) {
        use std::arch::asm;
        const LINE: usize = 64;
        let skew = start.as_ptr() as usize % LINE;
        for at in (0..len + skew).step_by(LINE) {
            let line = start.as_ptr().wrapping_sub(skew).wrapping_add(at);
            // SAFETY: the line holds at least one byte of a mapped range; flushing changes no memory. `detect` saw that
            // the processor has the instruction.
            unsafe {
                match self {
                    Self::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Self::ClflushOpt => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Self::Clflush => std::arch::x86_64::_mm_clflush(line),
                }
            }
        }
        // SAFETY: every x86-64 processor has SSE.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }

    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn flush(self, _start: NonNull<u8>, _len: usize) {}
}

impl Persistence {
    /// Makes `len` bytes at `start` as durable as this kind of memory allows.
    ///
    /// # Safety
    /// The range must be mapped, and `start` must lie in the first page of a mapping or after it.
    pub(super) unsafe fn persist(self, start: NonNull<u8>, len: usize) -> Result<()> {
        match self {
            Self::Volatile => Ok(()),
            Self::CacheLines(flush) => {
                // SAFETY: the caller promises that the range is mapped.
                unsafe { flush.flush(start, len) };
                Ok(())
            }
            Self::Msync => {
                let skew = start.as_ptr() as usize % 4096;
                // SAFETY: as above; `msync` wants the start of a page, which is mapped too.
                let code = unsafe { libc::msync(start.as_ptr().wrapping_sub(skew).cast(), len + skew, libc::MS_SYNC) };
                match code {
                    0 => Ok(()),
                    _ => Err(Error::io("sync", "the NVM pool", &std::io::Error::last_os_error())),
                }
            }
        }
    }
}
