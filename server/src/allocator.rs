//! Settings of the allocator, mimalloc.

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};

/// How long freed memory is kept for reuse, in milliseconds, instead of one second. The system clears each page that it
/// has to provide again, and on a host that takes free pages back from its guest, a page costs many times that.
const KEPT_MS: i64 = 10_000;
/// `mi_option_purge_delay` of mimalloc.h; the crate has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Keeps freed memory for a while, or returns it at once, unless `MIMALLOC_PURGE_DELAY` says something else.
pub fn keep_freed_memory(keep: bool) {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: sets a number that the allocator reads whenever it frees memory; any number is valid.
        unsafe { mi_option_set(PURGE_DELAY, if keep { KEPT_MS } else { 0 }) };
    }
}

/// Returns freed memory of all threads to the system, as far as whole pages of the allocator are free.
pub fn return_freed_memory() {
    // SAFETY: collects freed pages; any thread may call it at any time.
    unsafe { mi_collect(true) };
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    #[test]
    fn the_option_is_the_delay() {
        // SAFETY: reads a number.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        // The default of this option; another option would have another default.
        assert_eq!(delay(), 1000);
        keep_freed_memory(true);
        assert_eq!(delay(), KEPT_MS);
        keep_freed_memory(false);
        assert_eq!(delay(), 0);
    }
}
