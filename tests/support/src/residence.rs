//! The memory that a process holds, without what the allocator and the kernel only keep for it.
//!
//! `VmRSS` says little about leaks. It counts the pages of the program's file that code was read from so far, and each path taken
//! for the first time adds some. It counts what glibc's allocator keeps of freed memory, too: once a block of some
//! mebibytes was freed, glibc takes blocks of that size from its heap, and keeps up to twice as much free at its end. So
//! the largest input so far, and not what is held, decides. Here the allocator gives back its free pages first, and pages of
//! files do not count.

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Residence {
    /// Bytes of its pages in memory that are not those of files.
    pub(crate) held_bytes: u64,
    /// All of its pages in memory, as others see them.
    pub(crate) resident_bytes: u64,
    /// Bytes that the allocator has given out, to libraries in C as well; 0 where it does not tell. Where they stay the same
    /// and the held ones grow, free memory lies between blocks that are in use.
    pub(crate) allocated_bytes: u64,
}

impl Residence {
    /// That of this process, once its allocator has given back what is free; `None` where the kernel does not tell.
    pub(crate) fn now() -> Option<Self> {
        give_back_free_memory();
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
        };
        Some(Self {
            held_bytes: bytes("RssAnon")? + bytes("RssShmem")?,
            resident_bytes: bytes("VmRSS")?,
            allocated_bytes: allocated_bytes(),
        })
    }

    /// Whether more than a twentieth of what was resident `before` has been added to what is held.
    pub(crate) fn has_grown_since(&self, before: &Self) -> bool {
        self.held_bytes > before.held_bytes + before.resident_bytes / 20
    }
}

impl std::fmt::Display for Residence {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held_bytes, resident_bytes, allocated_bytes } = self;
        let [resident, held, allocated] = [resident_bytes, held_bytes, allocated_bytes].map(|bytes| bytes >> 10);
        write!(to, "{resident} KiB resident, {held} KiB of them held, {allocated} KiB allocated")
    }
}

#[cfg(target_env = "gnu")]
fn give_back_free_memory() {
    // SAFETY: takes the locks of the allocator, and touches free pages only; any thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(target_env = "gnu")]
fn allocated_bytes() -> u64 {
    // SAFETY: takes the locks of the allocator, and reads its counters; any thread may call it at any time.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

#[cfg(not(target_env = "gnu"))]
fn give_back_free_memory() {}

#[cfg(not(target_env = "gnu"))]
fn allocated_bytes() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::hint::black_box;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_held_counts_until_it_is_freed() {
        const BLOCKS: usize = 4_096;
        let before = Residence::now().unwrap();
        assert!(before.held_bytes > 0 && before.resident_bytes > before.held_bytes);
        let blocks: Vec<Vec<u8>> = black_box((0..BLOCKS).map(|_| vec![1; 16 << 10]).collect());
        let full = Residence::now().unwrap();
        assert!(full.held_bytes > before.held_bytes + 48 * MIB && full.has_grown_since(&before), "{before}; {full}");
        drop(blocks);
        let after = Residence::now().unwrap();
        assert!(after.held_bytes + 48 * MIB < full.held_bytes, "{before}; {full}; {after}");
    }

    #[test]
    fn a_twentieth_more_has_not_grown() {
        let before = Residence { held_bytes: 4 * MIB, resident_bytes: 20 * MIB, allocated_bytes: 0 };
        let with = |held_bytes| Residence { held_bytes, ..before };
        assert!(!with(5 * MIB).has_grown_since(&before) && with(5 * MIB + 1).has_grown_since(&before));
        // Pages of files are none of its own.
        assert!(!Residence { resident_bytes: 90 * MIB, ..before }.has_grown_since(&before));
    }
}
