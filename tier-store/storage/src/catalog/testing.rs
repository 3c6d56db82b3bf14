//! Damage to catalogs, for tests of what a damaged catalog does; no server calls it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;

use terrace_model::{Error, Result};

pub use super::redb_store::FORMAT_VERSION;
use super::{Catalog, Space};

impl Catalog {
    /// Brings the catalog into the state after the disk failed while the catalog was reopened.
    #[doc(hidden)]
    pub fn fail_closed(&self, error: &Error) {
        self.store.fail_closed(error);
    }

    /// Flips a bit of a stored value, in a way that the store does not notice.
    ///
    /// # Errors
    /// [`Error::Catalog`] when the value is not there.
    #[doc(hidden)]
    pub fn damage(&self, space: Space, key: &[u8], bit: usize) -> Result<()> {
        self.store.damage(space, key, bit)
    }
}

/// Makes the leaf pages of a closed catalog that contain `text` unreadable.
pub fn damage_pages(path: &Path, text: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let (pages, _) = bytes.as_chunks_mut::<4096>();
    let holds = |page: &&mut [u8; 4096]| page[0] == 1 && page.windows(text.len()).any(|window| window == text);
    let damaged = pages.iter_mut().filter(holds).map(|page| page[0] = 77).count();
    assert!(damaged > 0);
    std::fs::write(path, &bytes).unwrap();
}
