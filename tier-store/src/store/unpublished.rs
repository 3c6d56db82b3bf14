//! Chunks that are written and are no part of a table yet.
//!
//! Nobody reads them, so the copies of their columns in memory are the first to go when memory is short. Relief of the
//! tiering loop does not know them: an ingest that waits for its client would keep its copies as long as it waits.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_model::TierId;
use terrace_storage::table::Chunk;

/// The chunks of all writers.
#[derive(Debug, Default)]
pub(super) struct UnpublishedChunks(Mutex<Vec<Weak<Chunk>>>);

impl UnpublishedChunks {
    /// Adds a chunk that is marked for deletion until it is published.
    pub(super) fn add(&self, chunk: &Arc<Chunk>) {
        let mut chunks = self.0.lock();
        // So rarely that adding stays cheap.
        if chunks.len() == chunks.capacity() {
            chunks.retain(|chunk| chunk.upgrade().is_some_and(|chunk| chunk.is_marked_for_deletion()));
        }
        chunks.push(Arc::downgrade(chunk));
    }

    /// Drops copies on a memory tier until so many bytes are free; returns the bytes.
    pub(super) fn drop_copies(&self, tier: TierId, wanted_bytes: u64) -> u64 {
        let known: Vec<Arc<Chunk>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let unpublished = known.iter().filter(|chunk| chunk.is_marked_for_deletion());
        let mut freed_bytes = 0;
        for segment in unpublished.flat_map(|chunk| chunk.columns()) {
            if freed_bytes >= wanted_bytes {
                break;
            }
            if let Some(resident) = segment.resident.load_full().filter(|resident| resident.tier.id() == tier) {
                freed_bytes += resident.bytes.buffer.len() as u64;
                segment.resident.store(None);
            }
        }
        freed_bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::super::tests::{definition, rows};
    use super::super::{Store, StoreOptions};

    #[test]
    fn copies_of_an_ingest_that_waits_go_when_memory_is_short() {
        let dir = tempfile::tempdir().unwrap();
        // With the thread that relieves, and no epoch while the test runs.
        let interval = Some(Duration::from_secs(3600));
        let options = StoreOptions { epoch_interval: interval, ..StoreOptions::new(dir.path().join("data")) };
        let store = Store::open(options).unwrap();
        let table = store.create_table(definition("t")).unwrap();
        let used_bytes = || store.memory_tiers()[0].account().used_bytes();
        let mut ingest = store.ingest(&table);
        ingest.write(rows(0..50_000)).unwrap();
        let wait_until = |is_so: &dyn Fn(u64) -> bool| {
            let tries = (0..2_000).find(|_| {
                is_so(used_bytes()) || {
                    store.core().clock.sleep(Duration::from_millis(5));
                    false
                }
            });
            assert!(tries.is_some(), "{}", used_bytes());
        };
        wait_until(&|used| used > 0);
        store.tiering().yield_memory(u64::MAX);
        // Its threads may have been writing a chunk.
        wait_until(&|used| {
            store.tiering().yield_memory(u64::MAX);
            used == 0
        });
        store.tiering().end_yielding();
        assert_eq!(ingest.finish().unwrap(), 50_000);
        let version = table.version();
        assert_eq!(version.chunks.iter().map(|entry| entry.live_rows()).sum::<u64>(), 50_000);
        // What is published stays.
        let mut published = store.ingest(&table);
        published.write(rows(50_000..100_000)).unwrap();
        published.finish().unwrap();
        assert_eq!(store.core().unpublished.drop_copies(store.memory_tiers()[0].id(), u64::MAX), 0);
    }
}
