//! Folding: many small entries of a delta become one, so that scans and plans do not meet each single insert until the seal.
//!
//! ```text
//!   entries      64 KiB  | 4 KiB 5 KiB 4 KiB | 0.3 0.3 0.4 .. 0.3      sixteen small ones at the end
//!   after        64 KiB  | 4 KiB 5 KiB 4 KiB | 5 KiB                   and so on: sixteen of these become one of 80 KiB
//! ```
//!
//! An entry is folded at most once per class, so each row is written to the catalog three times at most before its seal, and
//! a delta has some thirty entries beside those of 64 KiB and more. The rows move as by a seal: one commit, old versions keep the
//! old entries, writers follow the row maps.

use std::sync::Arc;

use arrow::compute::concat_batches;

use super::core::Core;
use super::draft::Draft;
use super::write::live_batch;
use crate::catalog::Commit;
use crate::catalog::records::encode_batches;
use crate::error::Result;
use crate::table::delta::{DeltaEntry, Moved};
use crate::table::{DeltaRows, Table};
use crate::tier::codec;

/// Entries below these bytes are small, and folded with others below the same.
const CLASSES_BYTES: [u64; 2] = [4 << 10, 64 << 10];
/// So many of them become one.
const FAN: usize = 16;

impl Core {
    /// Folds the end of the delta where it has many small entries. What a commit made durable stays whatever comes of this.
    pub(super) fn fold_if_many(&self, table: &Arc<Table>) {
        while tail(&table.version().delta).is_some() {
            match self.fold(table) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(table = %table.name(), %error, "cannot fold a delta; its entries stay as they are");
                    break;
                }
            }
        }
    }

    /// True when it did.
    fn fold(&self, table: &Arc<Table>) -> Result<bool> {
        // A seal takes all of them.
        let Some(_sealing) = table.try_lock_sealing() else { return Ok(false) };
        let submitted = {
            let mut head = table.lock_head();
            let version = Arc::clone(&head.version);
            let Some(start) = tail(&version.delta).filter(|_| !head.dropped) else { return Ok(false) };
            let old = version.delta.get(start..).unwrap_or_default();
            let live = old.iter().map(live_batch).collect::<Result<Vec<_>>>()?;
            let batch = codec::normalize(&concat_batches(table.schema(), &live)?)?;
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
                let (into, dropped) = (Arc::clone(&entry), rows.deletions.clone());
                // Only a seal sets it beside this, and not at the same time.
                let _ = rows.entry.moved.set(Moved::Folded { into, first, dropped });
                first += rows.live_rows() as u32;
            }
            self.submit(commit, vec![(Arc::clone(table), next)])
        };
        self.complete(submitted)?;
        Ok(true)
    }
}

/// Where the entries begin that become one: the last ones, all of the smallest class that has enough of them there, and all of
/// them in the catalog or none.
fn tail(delta: &[DeltaRows]) -> Option<usize> {
    let logged = delta.last()?.entry.is_logged();
    let count = |most_bytes: u64| {
        let small = |rows: &&DeltaRows| rows.entry.bytes() < most_bytes && rows.entry.is_logged() == logged;
        delta.iter().rev().take_while(small).count()
    };
    CLASSES_BYTES.into_iter().map(count).find(|count| *count >= FAN).map(|count| delta.len() - count)
}

#[cfg(test)]
mod tests;
