//! Carries out one move: copy, swap, release. A move may change the form of a copy, also on the tier where it lies.
//!
//! Invariants: bytes are charged to the target before they are copied, so no budget is ever exceeded; the old copy
//! stays charged until its last reader is done; a segment that another move took meanwhile is left alone. Moves may run
//! in parallel.

use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::{Error, Result, TierId};

use crate::table::{Chunk, Resident, Segment};
use crate::tier::codec::{Form, StoredColumn};
use crate::tier::reader::ReadColumn;
use crate::tier::{HomeTier, MemoryTier};

/// A move to carry out.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Position of the column.
    pub column: usize,
    /// The tier of the segment when the move was planned.
    pub from: TierId,
    /// The target tier; that of the segment where only the form changes.
    pub to: TierId,
    /// The form of the copy there, if the segment has it ([`Segment::form`]).
    pub form: Form,
}

impl Relocation {
    /// Bytes of the copy; 0 when there is no such column.
    pub fn bytes(&self) -> u64 {
        self.chunk.segments.get(self.column).map_or(0, |segment| segment.bytes_in(self.form))
    }

    /// Bytes of the segment at its home.
    pub(super) fn home_bytes(&self) -> u64 {
        self.chunk.segments.get(self.column).map_or(0, |segment| segment.home.len)
    }

    /// True for a copy of this segment that is in the form which the move makes.
    fn has_form(&self, segment: &Segment, resident: &Resident) -> bool {
        resident.column.form() == segment.form(self.form)
    }
}

/// The outcome of a call of [`try_move`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The segment lies on the target now.
    Moved,
    /// The target has no room at this moment; nothing changed.
    Full,
    /// The segment is on this tier, not where the move expected it; nothing changed.
    Stale(TierId),
    /// The chunk was removed from its table; a copy would only use space until its last reader is done.
    Gone,
}

/// The error of a move, and the tier it comes from.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct MoveError {
    /// The home when reading failed, the target when storing failed.
    pub at: TierId,
    /// The error of that tier.
    pub error: Error,
}

impl From<MoveError> for Error {
    fn from(failed: MoveError) -> Self {
        failed.error
    }
}

/// The result of a move; after an error nothing has changed.
pub type MoveResult = std::result::Result<Outcome, MoveError>;

/// Attributes an error to a tier.
fn error_at(tier: TierId) -> impl Fn(Error) -> MoveError {
    move |error| MoveError { at: tier, error }
}

/// Moves one segment, without waiting for room. `tiers` are the byte-addressable tiers in order of [`TierId`]; the id
/// after the last of them is the home. Errors are those of reading the home or storing the copy; nothing has changed
/// then.
pub fn try_move(tiers: &[Arc<dyn MemoryTier>], home: &dyn HomeTier, relocation: &Relocation) -> MoveResult {
    let Relocation { chunk, column, from, to, .. } = relocation;
    let segment = segment_of(chunk, *column).map_err(error_at(*to))?;
    let home_id = TierId(tiers.len() as u8);
    let current = segment.resident.load_full();
    let current_tier = current.as_ref().map_or(home_id, |resident| resident.tier.id());
    let is_formed = current.as_ref().is_none_or(|resident| relocation.has_form(segment, resident));
    if current_tier == *to && is_formed {
        return Ok(Outcome::Moved);
    }
    if current_tier != *from {
        return Ok(Outcome::Stale(current_tier));
    }
    let Some(target) = tiers.get(usize::from(to.0)) else {
        // The copy is dropped, and may be the only good one: the home must be readable.
        home.check(chunk).map_err(error_at(home_id))?;
        if let Some(error) = chunk.damage(*column) {
            return Err(MoveError { at: home_id, error });
        }
        return Ok(swap_resident(tiers, segment, &current, None));
    };
    if chunk.is_marked_for_deletion() {
        return Ok(Outcome::Gone);
    }
    // Checked before the image is read, so that a full tier costs no I/O.
    if !target.has_room(relocation.bytes()) {
        return Ok(Outcome::Full);
    }
    match &current {
        Some(resident) => {
            store_and_swap(tiers, target.as_ref(), relocation, &resident.bytes.buffer, &current).map_err(error_at(*to))
        }
        None => match home.read(chunk, &[*column]).map_err(error_at(home_id))?.first() {
            Some(read) => try_promote(tiers, relocation, read),
            None => Err(MoveError { at: home_id, error: Error::Cancelled }),
        },
    }
}

/// Like [`try_move`], but brings a segment from its home with the verified and decompressed bytes of an earlier read.
pub fn try_promote(tiers: &[Arc<dyn MemoryTier>], relocation: &Relocation, read: &ReadColumn) -> MoveResult {
    promote(tiers, relocation, read).map_err(error_at(relocation.to))
}

fn promote(tiers: &[Arc<dyn MemoryTier>], relocation: &Relocation, read: &ReadColumn) -> Result<Outcome> {
    let Relocation { chunk, column, to, .. } = relocation;
    if !Arc::ptr_eq(chunk, &read.chunk) || *column != read.column {
        return Err(Error::Invalid(format!("the move of {} got another segment", chunk.column_label(*column))));
    }
    let segment = segment_of(chunk, *column)?;
    if let Some(resident) = segment.resident.load_full() {
        let at = resident.tier.id();
        let is_done = at == *to && relocation.has_form(segment, &resident);
        return Ok(if is_done { Outcome::Moved } else { Outcome::Stale(at) });
    }
    let missing = || Error::Invalid(format!("a move targets tier {}, only {} exist", to.0, tiers.len()));
    let target = tiers.get(usize::from(to.0)).ok_or_else(missing)?;
    if chunk.is_marked_for_deletion() {
        return Ok(Outcome::Gone);
    }
    if !target.has_room(relocation.bytes()) {
        return Ok(Outcome::Full);
    }
    let bytes = read.bytes.as_ref().ok_or(Error::Cancelled)?;
    store_and_swap(tiers, target.as_ref(), relocation, bytes, &None)
}

/// Copies an image to a tier, in the form of the relocation, and swaps the segment's handle. The image is that of `before`, or
/// else one in the form of the home that was decoded before.
fn store_and_swap(
    tiers: &[Arc<dyn MemoryTier>],
    target: &dyn MemoryTier,
    relocation: &Relocation,
    image: &Buffer,
    before: &Option<Arc<Resident>>,
) -> Result<Outcome> {
    let chunk = &relocation.chunk;
    let segment = segment_of(chunk, relocation.column)?;
    let data_type = chunk.data_type(relocation.column).ok_or_else(|| no_column(relocation.column))?;
    let home = &segment.home;
    let rows = chunk.rows as usize;
    // SAFETY: the image is plain and was decoded before: by the read that brought it from its home, or when it was stored on
    // the tier it is copied from. So its copies may be taken for decoded, too.
    let decoded = |image: &Buffer| unsafe { StoredColumn::decode_copied(home, data_type, rows, image) };
    let form = segment.form(relocation.form);
    let converted = match (before.as_ref().map_or(home.form(), |before| before.column.form()), form) {
        (Form::Plain, Form::Packed) => Some(decoded(image)?.packed_image().ok_or_else(|| no_form(relocation))?),
        (Form::Packed, Form::Plain) => Some(match before {
            Some(before) => before.column.plain_image(home)?,
            None => StoredColumn::open_packed(home, data_type, rows, image)?.plain_image(home)?,
        }),
        (Form::Plain, Form::Plain) | (Form::Packed, Form::Packed) => None,
    };
    let bytes = match target.store(converted.as_deref().unwrap_or(image)) {
        Ok(bytes) => bytes,
        Err(Error::BudgetExceeded { .. }) => return Ok(Outcome::Full),
        Err(error) => return Err(error),
    };
    let column = match (form, converted) {
        (Form::Packed, _) => segment.open_packed(data_type, rows, &bytes.buffer)?,
        (Form::Plain, None) => decoded(&bytes.buffer)?,
        (Form::Plain, Some(_)) => StoredColumn::decode_plain(home, data_type, rows, &bytes.buffer)?,
    };
    let resident = Resident { tier: bytes.tier.clone(), column, bytes };
    Ok(swap_resident(tiers, segment, before, Some(Arc::new(resident))))
}

/// Swaps the handle if it still is `before`; else another move was faster, and the outcome names the segment's tier.
fn swap_resident(
    tiers: &[Arc<dyn MemoryTier>],
    segment: &Segment,
    before: &Option<Arc<Resident>>,
    after: Option<Arc<Resident>>,
) -> Outcome {
    let found = segment.resident.compare_and_swap(before, after);
    match (found.as_ref(), before) {
        (None, None) => Outcome::Moved,
        (Some(found), Some(before)) if Arc::ptr_eq(found, before) => Outcome::Moved,
        (found, _) => Outcome::Stale(found.map_or(TierId(tiers.len() as u8), |resident| resident.tier.id())),
    }
}

fn segment_of(chunk: &Chunk, column: usize) -> Result<&Segment> {
    chunk.segments.get(column).map(Arc::as_ref).ok_or_else(|| no_column(column))
}

fn no_form(relocation: &Relocation) -> Error {
    let label = relocation.chunk.column_label(relocation.column);
    Error::Invalid(format!("{label} has no image in the {} form", relocation.form))
}

fn no_column(column: usize) -> Error {
    Error::Invalid(format!("a chunk has no column {column}"))
}

#[cfg(test)]
mod tests;
