//! Seals values with a checksum, the form in which the catalog stores them.
//!
//! ```text
//!   value on disk = payload, crc32c (4 bytes, little-endian)
//!   crc32c of       name of the space, 0, length of the key (4 bytes, little-endian), key, payload
//! ```
//!
//! [`super::Commit::put`] seals, [`super::Snapshot`] unseals; stores treat the stored form as bytes. The checksum covers
//! space and key, so a value at another place than it was written for is detected too.

use std::fmt::{self, Write};
use std::path::Path;

use terrace_model::{Error, TableId};

use super::{Space, key_part};

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;
/// Advice to users whose catalog has a damaged value that is not expendable.
pub(super) const ADVICE: &str = "`terrace check` lists all damage. Restore a backup, or rebuild the catalog from the table files: \
                      `terrace rebuild-catalog`";

/// Makes the stored form of a payload.
pub(super) fn seal(space: Space, key: &[u8], mut payload: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(space, key, &payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

/// The payload of a stored value; fails unless its checksum fits space, key and payload.
pub(super) fn unseal<'a>(space: Space, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], CatalogFault> {
    let payload = stored.split_last_chunk::<CHECKSUM_BYTES>();
    let good = payload.filter(|(payload, found)| checksum(space, key, payload) == u32::from_le_bytes(**found));
    good.map(|(payload, _)| payload).ok_or_else(|| CatalogFault::of_value(space, key))
}

fn checksum(space: Space, key: &[u8], payload: &[u8]) -> u32 {
    let start = crc32c::crc32c(space.name().as_bytes());
    let length = (key.len() as u32).to_le_bytes();
    [&[0], length.as_slice(), key, payload].into_iter().fold(start, crc32c::crc32c_append)
}

/// A damaged part of the catalog: a value whose checksum is wrong, or pages that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogFault {
    /// The space of the damage.
    pub space: Space,
    /// The key of the damaged value; for damaged pages the last key that could be read before them.
    pub key: Option<Vec<u8>>,
    what: &'static str,
    is_page_damage: bool,
}

impl CatalogFault {
    pub(super) fn of_value(space: Space, key: &[u8]) -> Self {
        Self { space, key: Some(key.to_vec()), what: "its checksum is wrong", is_page_damage: false }
    }

    pub(super) fn of_pages(space: Space, key: Option<&[u8]>, what: &'static str) -> Self {
        Self { space, key: key.map(<[u8]>::to_vec), what, is_page_damage: true }
    }

    /// True when pages of the store are damaged: an unknown number of values may be missing.
    pub fn is_page_damage(&self) -> bool {
        self.is_page_damage
    }

    /// The table that the key belongs to; `None` when it does not name one.
    pub fn table(&self) -> Option<TableId> {
        let key = self.key.as_deref().filter(|_| Space::OF_TABLES.contains(&self.space))?;
        Some(TableId(key_part(key, 0)))
    }

    /// True when statements work without the value: it is measured, counted or logged again. Never true for
    /// damaged pages.
    pub fn is_expendable(&self) -> bool {
        match self.space {
            _ if self.is_page_damage => false,
            Space::Sketches | Space::Epochs | Space::Moves | Space::Heat | Space::Placements => true,
            Space::Meta => self.key.as_deref().is_some_and(|key| super::EXPENDABLE_META.contains(&key)),
            _ => false,
        }
    }

    /// The error for a statement that needs the value.
    pub fn error(&self, path: &Path) -> Error {
        Error::Corrupt { path: path.to_owned(), what: format!("{self}. {ADVICE}") }
    }
}

impl fmt::Display for CatalogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.space.name())?;
        if let Some(key) = self.key.as_deref() {
            write!(f, ", key {}", key_text(self.space, key))?;
        }
        match self.table() {
            Some(table) => write!(f, " (of table {}): {}", table.0, self.what),
            None => write!(f, ": {}", self.what),
        }
    }
}

/// Formats a key for users: numbers with slashes between, or text.
fn key_text(space: Space, key: &[u8]) -> String {
    if matches!(space, Space::Meta | Space::Objects) {
        return format!("'{}'", String::from_utf8_lossy(key).replace('\0', " ").escape_debug());
    }
    let (numbers, odd) = key.as_chunks::<8>();
    let mut text = numbers.iter().map(|n| u64::from_be_bytes(*n).to_string()).collect::<Vec<_>>().join("/");
    for byte in odd {
        // Writing into a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::catalog::key;

    #[test]
    fn a_value_opens_where_it_was_sealed_and_nowhere_else() {
        let k = key(&[3, 7]);
        let sealed = seal(Space::Chunks, &k, b"payload".to_vec());
        assert_eq!(unseal(Space::Chunks, &k, &sealed).unwrap(), b"payload");
        assert!(unseal(Space::Deletions, &k, &sealed).is_err());
        assert!(unseal(Space::Chunks, &key(&[3, 6]), &sealed).is_err());
        // Bytes that go from the key to the value are missed.
        let longer = [k.as_slice(), b"p"].concat();
        assert!(unseal(Space::Chunks, &longer, &sealed[1..]).is_err());
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal(Space::Chunks, &k, &damaged).is_err(), "bit {bit}");
        }
        assert!(unseal(Space::Chunks, &k, b"abc").is_err() && unseal(Space::Chunks, &k, b"").is_err());
        assert_eq!(unseal(Space::Meta, b"", &seal(Space::Meta, b"", Vec::new())).unwrap(), b"");
    }

    #[test]
    fn faults_name_space_table_and_key() {
        let text = |space, key: &[u8]| CatalogFault::of_value(space, key).to_string();
        assert_eq!(text(Space::Chunks, &key(&[3, 7])), "chunks, key 3/7 (of table 3): its checksum is wrong");
        assert_eq!(text(Space::Objects, b"view\0public.v"), "objects, key 'view public.v': its checksum is wrong");
        assert_eq!(text(Space::Epochs, &[1, 2]), "epochs, key \\x01\\x02: its checksum is wrong");
        let whole = CatalogFault::of_pages(Space::Delta, None, "one of its pages is damaged");
        assert_eq!(whole.to_string(), "delta: one of its pages is damaged");
        // Damage after an expendable key may concern values that are not expendable.
        for (space, key) in [(Space::Epochs, &[1_u8, 2][..]), (Space::Meta, crate::catalog::CALIBRATION_KEY)] {
            assert!(CatalogFault::of_value(space, key).is_expendable());
            assert!(!CatalogFault::of_pages(space, Some(key), "a page after it is damaged").is_expendable());
        }
        let error = CatalogFault::of_value(Space::Meta, b"next_table").error(Path::new("/d/catalog.redb")).to_string();
        assert!(error.contains("/d/catalog.redb") && error.contains("rebuild-catalog"), "{error}");
    }
}
