//! The DRAM tier: process memory under a budget.

use std::sync::Arc;

use terrace_model::{Account, Result, TierId, TierIndex, TierKind};

use super::{MemoryTier, SegmentBytes};
use crate::io::{AlignedBuffer, BLOCK_BYTES};

/// Alignment of small images, as Arrow recommends.
const SMALL_ALIGN: usize = 64;

/// Process memory as a tier.
#[derive(Debug)]
pub struct DramTier {
    index: TierIndex,
    account: Arc<Account>,
}

impl DramTier {
    /// A tier that charges `account`.
    pub fn new(id: TierId, account: Arc<Account>) -> Self {
        Self { index: TierIndex::new(id), account }
    }
}

/// Alignment of an image: a cache line for a small one, else a page.
fn alignment(len: usize) -> usize {
    if len < BLOCK_BYTES { SMALL_ALIGN } else { BLOCK_BYTES }
}

impl MemoryTier for DramTier {
    fn index(&self) -> &TierIndex {
        &self.index
    }

    fn name(&self) -> &str {
        self.account.name()
    }

    fn kind(&self) -> TierKind {
        TierKind::Dram
    }

    fn emulated(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "process memory".into()
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn charged_bytes(&self, len: usize) -> u64 {
        len.next_multiple_of(alignment(len)) as u64
    }

    fn store(&self, image: &[u8]) -> Result<SegmentBytes> {
        let charge = self.account.try_charge(self.charged_bytes(image.len()))?;
        let copy = AlignedBuffer::copy_of(image, alignment(image.len()))?;
        let charged_bytes = charge.bytes();
        Ok(SegmentBytes { buffer: copy.into_arrow(Some(charge)), tier: self.index.clone(), charged_bytes })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::Error;

    use super::*;

    #[test]
    fn bytes_stay_charged_until_the_last_reader_is_done() {
        let account = Account::new("dram", 10_000);
        let tier = DramTier::new(TierId(0), Arc::clone(&account));
        let stored = tier.store(&[3; 5000]).unwrap();
        assert_eq!((stored.charged_bytes, account.used_bytes()), (8192, 8192));
        assert_eq!(stored.buffer.as_ptr() as usize % 4096, 0);
        assert!(matches!(tier.store(&[0; 3000]), Err(Error::BudgetExceeded { .. })));
        let reader = stored.buffer.slice_with_length(4000, 8);
        drop(stored);
        assert_eq!((account.used_bytes(), reader.as_slice()), (8192, &[3; 8][..]));
        drop(reader);
        assert_eq!(account.used_bytes(), 0);
        assert_eq!(tier.store(&[]).unwrap().charged_bytes, 0);
    }
}
