//! Implements [`HomeTier`] for the SSD tier.

use std::sync::Arc;

use terrace_model::{Account, Result};

use super::HomeTier;
use crate::table::Chunk;
use crate::tier::ssd::{ReadColumn, SsdTier};

impl HomeTier for SsdTier {
    fn name(&self) -> &str {
        "ssd"
    }

    fn account(&self) -> &Arc<Account> {
        self.stored()
    }

    fn describe(&self) -> String {
        Self::describe(self)
    }

    fn device(&self) -> Option<&SsdTier> {
        (!self.files().is_simulated()).then_some(self)
    }

    fn check(&self, chunk: &Arc<Chunk>) -> Result<()> {
        self.chunk_file(chunk).map(drop)
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        self.load(chunk, columns)
    }
}
