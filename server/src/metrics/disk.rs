//! The disk of the data directory.

use terrace_tier_store::Store;

use super::Exposition;

/// Room of the disk; nothing where it does not tell.
pub fn disk(out: &mut Exposition, store: &Store) {
    let Some(space) = store.disk_space() else { return };
    let help = "Bytes that may still be written on the file system of the data directory.";
    out.gauge("terrace_disk_free_bytes", help, space.free_bytes as f64);
    out.gauge("terrace_disk_size_bytes", "Size of the file system of the data directory.", space.size_bytes as f64);
}
