//! Evicts bytes from the processor's caches, so that the next measurement reads the memory behind them.

/// Bytes of a cache line; the smallest line of the supported processors.
const LINE_BYTES: usize = 64;

/// Evicts `bytes` from all caches; false on processors for which this module has no instruction.
pub fn evict(bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::asm;
        use std::arch::x86_64::{__cpuid_count, _mm_clflush, _mm_mfence};
        use std::sync::LazyLock;

        // `clflushopt` does not wait for the flush of the line before.
        static HAS_CLFLUSHOPT: LazyLock<bool> = LazyLock::new(|| __cpuid_count(7, 0).ebx >> 23 & 1 == 1);
        let has_clflushopt = *HAS_CLFLUSHOPT;
        for line in bytes.chunks(LINE_BYTES).map(<[u8]>::as_ptr) {
            // SAFETY: the address is that of a byte that may be read, and the instruction changes no memory. The processor
            // was asked for `clflushopt`; every x86-64 processor has `clflush`.
            unsafe {
                match has_clflushopt {
                    true => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                    false => _mm_clflush(line),
                }
            }
        }
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { _mm_mfence() };
        true
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::asm;
        for line in bytes.chunks(LINE_BYTES).map(<[u8]>::as_ptr) {
            // SAFETY: the address is that of a byte that may be read; Linux lets processes clean and invalidate lines, which
            // changes no memory.
            unsafe { asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
        true
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = bytes;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_what_they_are() {
        let bytes: Vec<u8> = (0..100_003).map(|i| (i % 251) as u8).collect();
        let known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        for part in [&bytes[..], &bytes[..0], &bytes[7..8], &bytes[63..65]] {
            assert_eq!(evict(part), known);
        }
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
    }
}
