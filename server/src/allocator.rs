//! Settings of the allocator, mimalloc.

use std::sync::atomic::{AtomicBool, Ordering};

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};

/// How long freed memory is kept for reuse, in milliseconds, instead of one second. The system clears each page that it
/// has to provide again, and on a host that takes free pages back from its guest, a page costs many times that.
const KEPT_MS: i64 = 10_000;
/// `mi_option_purge_delay` of mimalloc.h; the crate has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Chooses between speed and little memory. `freely`: the allocator keeps freed memory for a while, and the kernel provides
/// huge pages. Otherwise the allocator returns freed memory at once, and the kernel provides small pages, of which those
/// that nobody has written to are not resident: a sort that held 0.96 GB had 1.07 GB resident with huge pages, and 0.94 GB
/// without. The environment variables `MIMALLOC_PURGE_DELAY` and `MIMALLOC_ALLOW_THP` override this.
pub fn use_memory_freely(freely: bool) {
    keep_freed_memory(freely);
    // Whoever started the process may have disabled huge pages for it; the process does not enable them then.
    let is_change = freely == HUGE_PAGES_DISABLED.load(Ordering::Relaxed);
    if is_change && std::env::var_os("MIMALLOC_ALLOW_THP").is_none() {
        HUGE_PAGES_DISABLED.store(disable_huge_pages(!freely), Ordering::Relaxed);
    }
}

/// Whether this process has disabled huge pages for itself.
static HUGE_PAGES_DISABLED: AtomicBool = AtomicBool::new(false);

/// Returns whether this call has disabled them.
fn disable_huge_pages(disable: bool) -> bool {
    const UNUSED: libc::c_ulong = 0;
    // SAFETY: reads a setting of the process.
    let before = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, UNUSED, UNUSED, UNUSED, UNUSED) };
    let value = libc::c_ulong::from(disable);
    // SAFETY: changes how the kernel provides pages from now on. A kernel that cannot do so returns an error, and all stays
    // as it is.
    let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, value, UNUSED, UNUSED, UNUSED) };
    disable && before == 0 && result == 0
}

fn keep_freed_memory(keep: bool) {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: sets a number that the allocator reads whenever it frees memory; any number is valid.
        unsafe { mi_option_set(PURGE_DELAY, if keep { KEPT_MS } else { 0 }) };
    }
}

/// Returns freed memory of all threads to the system, as far as whole pages of the allocator are free. Not for several threads
/// at once.
pub fn return_freed_memory() {
    // What was freed while freed memory was kept is noted to be returned later, and mimalloc looks at these notes only where
    // the delay is not 0 (mimalloc 3 arena.c `mi_arenas_try_purge`).
    // SAFETY: reads and sets a number that the allocator reads, and collects freed pages; any thread may do so at any time.
    unsafe {
        let returns_at_once = mi_option_get(PURGE_DELAY) == 0;
        if returns_at_once {
            mi_option_set(PURGE_DELAY, 1);
        }
        mi_collect(true);
        if returns_at_once {
            mi_option_set(PURGE_DELAY, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::{mi_free, mi_malloc};

    use super::*;
    use crate::memory_watch::resident_bytes;

    #[test]
    fn the_kernel_gives_no_huge_pages_while_memory_is_short() {
        const UNUSED: libc::c_ulong = 0;
        // SAFETY: reads a setting of the process.
        let disabled = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, UNUSED, UNUSED, UNUSED, UNUSED) };
        let before = disabled();
        assert!(before >= 0, "the kernel has no such setting");
        assert_eq!((disable_huge_pages(true), disabled()), (before == 0, 1));
        assert_eq!((disable_huge_pages(true), disabled()), (false, 1));
        assert_eq!((disable_huge_pages(before == 1), disabled()), (false, before));
    }

    #[test]
    fn the_option_is_the_delay() {
        // SAFETY: reads a number.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        // The default of this option; another option would have another default.
        assert_eq!(delay(), 1000);
        keep_freed_memory(true);
        assert_eq!(delay(), KEPT_MS);
        // Freed while freed memory is kept.
        const BYTES: usize = 512 << 20;
        // SAFETY: writes to the bytes that were allocated, and frees them once.
        unsafe {
            let bytes = mi_malloc(BYTES);
            assert!(!bytes.is_null());
            bytes.cast::<u8>().write_bytes(1, BYTES);
            mi_free(bytes);
        }
        let kept = resident_bytes().unwrap_or(0);
        keep_freed_memory(false);
        assert_eq!(delay(), 0);
        return_freed_memory();
        assert_eq!(delay(), 0);
        let left = resident_bytes().unwrap_or(0);
        assert!(left + (BYTES as u64) / 2 < kept, "{left} of {kept} bytes are resident");
    }
}
