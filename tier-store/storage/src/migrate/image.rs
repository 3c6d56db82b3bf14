//! Copies a segment to the memory of a device, or drops the copy there.
//!
//! The image is made of the copy that processors read, or of the home. Readers of either are not affected, and nothing waits:
//! a full tier or a lost device leaves the segment as it is. Two changes of one segment at a time are not supported; the
//! tiering loop, the only caller, makes one after the other.

use std::sync::Arc;

use terrace_model::{Error, Result};

use crate::table::Chunk;
use crate::tier::HomeTier;
use crate::tier::codec::StoredColumn;
use crate::tier::hbm::{HbmTier, image_bytes};

/// A change of a segment's image on a device.
#[derive(Debug, Clone)]
pub struct ImageChange {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Position of the column.
    pub column: usize,
    /// True: it gets an image. False: it loses it.
    pub is_wanted: bool,
}

/// The outcome of a call of [`change_image`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageOutcome {
    /// The segment has the image, or has none, as wanted.
    Done,
    /// The device has no room; nothing changed.
    Full,
    /// The chunk was removed from its table, so that an image would only take room.
    Gone,
}

/// Makes the change. `tier` is the tier of the device, `home` that of the durable bytes.
///
/// # Errors
/// Those of the home; [`Error::Io`] when the device fails; [`Error::Unsupported`] for a column that has no image.
pub fn change_image(tier: &HbmTier, home: &dyn HomeTier, change: &ImageChange) -> Result<ImageOutcome> {
    let ImageChange { chunk, column, is_wanted } = change;
    let no_column = || Error::Invalid(format!("a chunk has no column {column}"));
    let segment = chunk.segments.get(*column).ok_or_else(no_column)?;
    if !is_wanted {
        segment.image.store(None);
        return Ok(ImageOutcome::Done);
    }
    if segment.image.load().is_some() {
        return Ok(ImageOutcome::Done);
    }
    if chunk.is_marked_for_deletion() {
        return Ok(ImageOutcome::Gone);
    }
    let declared = chunk.data_type(*column).ok_or_else(no_column)?;
    let Some(bytes) = image_bytes(&segment.home, declared, chunk.rows) else {
        return Err(Error::Unsupported(format!("an image of {} on a device", chunk.column_label(*column))));
    };
    // Checked before anything is read, so that a full tier costs no I/O.
    if !tier.account().has_room(bytes) {
        return Ok(ImageOutcome::Full);
    }
    let values = match segment.resident.load_full() {
        Some(copy) => copy.column.clone(),
        None => {
            let read = home.read(chunk, &[*column])?;
            let bytes = read.first().and_then(|read| read.bytes.as_ref()).ok_or(Error::Cancelled)?;
            let rows = chunk.rows as usize;
            match segment.home.is_packed() {
                true => StoredColumn::open_packed(&segment.home, declared, rows, bytes)?,
                false => StoredColumn::decode_plain(&segment.home, declared, rows, bytes)?,
            }
        }
    };
    match tier.store(segment, declared, &values) {
        Ok(image) => {
            segment.image.store(Some(Arc::new(image)));
            Ok(ImageOutcome::Done)
        }
        Err(Error::BudgetExceeded { .. }) => Ok(ImageOutcome::Full),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::sync::atomic::Ordering;

    use terrace_model::{Account, FileFormat, TierId};

    use super::*;
    use crate::migrate::testing::{FIRST_ID, FakeHome};
    use crate::migrate::{Outcome, Relocation, try_move};
    use crate::tier::codec::Form;
    use crate::tier::dram::DramTier;
    use crate::tier::hbm::HbmBacking;
    use crate::tier::{Home, MemoryTier};

    fn tier(capacity_bytes: u64) -> HbmTier {
        HbmTier::open("hbm", HbmBacking::Emulated { capacity_bytes, faults: None }, None).unwrap()
    }

    fn change(chunk: &Arc<Chunk>, column: usize, is_wanted: bool) -> ImageChange {
        ImageChange { chunk: Arc::clone(chunk), column, is_wanted }
    }

    #[test]
    fn an_image_is_made_of_the_home_or_of_the_copy_and_dropped() {
        let tier = tier(1 << 20);
        for format in [FileFormat::Arrow, FileFormat::Packed] {
            let home = FakeHome::default();
            let chunk = home.add_in(1, 3, format);
            let range = FIRST_ID + 3000..=FIRST_ID + 3999;
            for from_copy in [false, true] {
                if from_copy {
                    let dram: Arc<dyn MemoryTier> = Arc::new(DramTier::new(TierId(0), Account::new("dram", 1 << 20)));
                    let chunk = Arc::clone(&chunk);
                    let (from, to) = (TierId(1), TierId(0));
                    let relocation = Relocation { chunk, column: 0, from, to, form: Form::Plain };
                    assert_eq!(try_move(&[dram], &home, &relocation).unwrap(), Outcome::Moved);
                }
                let reads = home.reads.load(Ordering::Relaxed);
                assert_eq!(change_image(&tier, &home, &change(&chunk, 0, true)).unwrap(), ImageOutcome::Done);
                assert_eq!(home.reads.load(Ordering::Relaxed) - reads, u64::from(!from_copy));
                let image = chunk.segments[0].image.load_full().unwrap();
                assert_eq!(image.column.range(), range);
                assert_eq!(tier.account().used_bytes(), image.charged_bytes());
                // The same change once more does nothing.
                assert_eq!(change_image(&tier, &home, &change(&chunk, 0, true)).unwrap(), ImageOutcome::Done);
                assert_eq!(change_image(&tier, &home, &change(&chunk, 0, false)).unwrap(), ImageOutcome::Done);
                assert!(chunk.segments[0].image.load().is_none());
                // A launch under way may still have it.
                assert!(tier.account().used_bytes() > 0);
                drop(image);
                assert_eq!(tier.account().used_bytes(), 0);
            }
        }
    }

    #[test]
    fn a_full_tier_costs_no_read_and_a_column_of_keys_has_an_image() {
        let home = FakeHome::default();
        let chunk = home.add(1, 1);
        let small = tier(4096);
        assert_eq!(change_image(&small, &home, &change(&chunk, 0, true)).unwrap(), ImageOutcome::Full);
        assert_eq!(home.reads.load(Ordering::Relaxed), 0);
        // Seven words: their keys take one byte each.
        let declared = chunk.data_type(1).unwrap().clone();
        let is_encoded = chunk.segments[1].home.encoding.dictionary().is_some();
        let changed = change_image(&small, &home, &change(&chunk, 1, true));
        match is_encoded {
            true => {
                assert_eq!(changed.unwrap(), ImageOutcome::Done);
                assert_eq!(chunk.segments[1].image.load().as_ref().unwrap().column.range(), 0..=6);
            }
            false => assert!(matches!(changed, Err(Error::Unsupported(_))), "{declared}"),
        }
        assert!(matches!(change_image(&small, &home, &change(&chunk, 9, true)), Err(Error::Invalid(_))));
    }

    #[test]
    fn a_chunk_that_was_removed_gets_no_image() {
        let folder = tempfile::tempdir().unwrap();
        let home = FakeHome::default();
        let chunk = home.add(1, 1);
        let nobody: Arc<dyn Home> = Arc::new(FakeHome::on_disk(folder.path()).disk.unwrap());
        chunk.mark_for_deletion(&nobody);
        assert_eq!(change_image(&tier(1 << 20), &home, &change(&chunk, 0, true)).unwrap(), ImageOutcome::Gone);
        chunk.keep_file();
    }
}
