//! Folding: merges many small entries of a delta into one, so that scans and plans do not process each single insert
//! until the seal.
//!
//! ```text
//!   rows of the entries   256 16 16 16 1 1 1 1 1 1 1 40 1 1 1 1 1 1 1 1 1
//!   after                 256 16 16 16 40 16
//! ```
//!
//! The smallest entries are folded when together they have at least [`FOLD_FACTOR`] times the rows of the largest of
//! them. So each time a row is rewritten its entry becomes that many times larger, and rewriting is rare: three times
//! in 4,096 single-row inserts. The rows move like those of a seal: one commit, old versions keep the old entries,
//! writers follow the row maps.

use std::sync::Arc;

use arrow::compute::concat_batches;
use terrace_model::Result;
use terrace_storage::catalog::Commit;
use terrace_storage::catalog::records::encode_batches;
use terrace_storage::table::delta::{DeltaEntry, Moved};
use terrace_storage::table::{DeltaRows, Table};
use terrace_storage::tier::codec;

use super::core::Core;
use super::draft::Draft;
use super::write::live_batch;

/// Entries of this size or more are not folded.
const LARGE_BYTES: u64 = 64 << 10;
/// The new entry has at least this many times the rows of each entry that it replaces.
const FOLD_FACTOR: u64 = 16;

impl Core {
    /// Folds the delta once if it has many small entries. It does not repeat for entries added meanwhile, so the caller
    /// does not wait for other writers.
    pub(super) fn fold_if_many(&self, table: &Arc<Table>) {
        if entries_to_fold(&table.version().delta).is_some()
            && let Err(error) = self.fold(table)
        {
            tracing::warn!(table = %table.name(), %error, "cannot fold a delta");
        }
    }

    fn fold(&self, table: &Arc<Table>) -> Result<()> {
        // A seal under way takes all entries, so there is nothing to fold.
        let Some(_sealing) = table.try_lock_sealing() else { return Ok(()) };
        let submitted = {
            let mut head = table.lock_head();
            let version = Arc::clone(&head.version);
            let Some(old) = entries_to_fold(&version.delta).filter(|_| !head.dropped) else { return Ok(()) };
            let live = old.iter().map(|rows| live_batch(rows)).collect::<Result<Vec<_>>>()?;
            let batch = codec::normalize(&concat_batches(table.schema(), &live)?)?;
            // If one entry is logged, the new one is too: rows that need not be logged may be.
            let logged = old.iter().any(|rows| rows.entry.is_logged());
            let encoded = logged.then(|| encode_batches(table.schema(), std::slice::from_ref(&batch))).transpose()?;
            let since_us = old.iter().map(|rows| rows.entry.since_us).min().unwrap_or_default();
            let entry = Arc::new(DeltaEntry::folded(&self.delta, table.allocate_delta(), batch, since_us));
            let mut draft = Draft::new(self, table, &head)?;
            old.iter().for_each(|rows| draft.remove_sealed(&rows.entry));
            draft.add_rows(DeltaRows { entry: Arc::clone(&entry), deletions: None }, encoded);
            let mut commit = Commit::default();
            let next = draft.finish(&mut commit)?;
            head.version = Arc::clone(&next.version);
            let mut first = 0;
            for rows in old {
                let into = Arc::clone(&entry);
                let dropped = rows.deletions.clone();
                // Besides this only a seal sets it, and the sealing lock keeps the two apart.
                rows.entry.moved.set(Moved::Folded { into, first, dropped });
                first += rows.live_rows() as u32;
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)
    }
}

/// The entries to fold into one: the fewest of the smallest entries that have enough rows together; `None` when there
/// are none. The order of entries in the delta has no meaning.
fn entries_to_fold(delta: &[DeltaRows]) -> Option<Vec<&DeltaRows>> {
    let mut small: Vec<_> = delta.iter().filter(|rows| rows.entry.bytes() < LARGE_BYTES).collect();
    small.sort_by_key(|rows| rows.live_rows());
    let mut sum = 0;
    let enough = |rows: &&DeltaRows| {
        sum += rows.live_rows();
        sum >= FOLD_FACTOR * rows.live_rows()
    };
    let last = small.iter().position(enough)?;
    small.truncate(last + 1);
    Some(small)
}

#[cfg(test)]
mod tests;
