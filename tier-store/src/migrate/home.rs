//! The SSD tier as the home that moves read from.

use std::sync::Arc;

use super::{HomeTier, Probe};
use crate::error::Result;
use crate::table::Chunk;
use crate::tier::Account;
use crate::tier::ssd::{ReadColumn, SsdTier};

impl HomeTier for SsdTier {
    fn name(&self) -> &str {
        "ssd"
    }

    fn account(&self) -> &Arc<Account> {
        self.stored()
    }

    fn describe(&self) -> String {
        format!("{}, read by {} with direct I/O", self.dir().display(), self.io().name())
    }

    fn probe(&self) -> Option<Probe> {
        Some(Probe { folder: self.dir().to_owned(), files: Arc::clone(self.files()), io: Arc::clone(self.io()) })
    }

    fn check(&self, chunk: &Arc<Chunk>) -> Result<()> {
        self.chunk_file(chunk).map(drop)
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        self.load(chunk, columns)
    }
}
