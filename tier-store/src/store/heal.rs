//! Healing: a damaged chunk file is made again from what is left of it and from copies on faster tiers.
//!
//! The new file has, byte for byte, what the old one had when it was written: columns keep their places and checksums,
//! so the catalog has nothing to change. It takes the old one's name when it is durable, in one rename. Every byte is
//! proven before: columns by their checksums in the catalog, the file by its stamp.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};

use super::core::Core;
use crate::error::{Error, Result};
use crate::table::column::with_ids;
use crate::table::{Chunk, Home, Segment};
use crate::tier::codec::{self, Compression, Packing, Stamp};

impl Core {
    /// Makes the file of a chunk whole again. Segments that nobody moves meanwhile need not be resident: a column is
    /// taken from the file where it is good there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the first column that has no good copy anywhere; nothing changed then.
    pub(super) fn heal(&self, chunk: &Chunk) -> Result<()> {
        // A file that cannot be read at all has nothing left.
        let old = self.ssd.load_file(chunk).ok();
        let mut file = with_columns(chunk, old.as_ref().map_or(&[], |bytes| bytes.as_slice()))?;
        if !matches!(codec::check_stamp(&file), Ok(Stamp::Whole)) {
            file = encoded(chunk, &file)?;
        }
        self.ssd.replace_file(chunk, &file)?;
        self.ssd.counters().healed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(path = %chunk.path.display(), "a damaged file was made again from good copies");
        Ok(())
    }
}

/// The old file, as long as it was written, with every column good.
fn with_columns(chunk: &Chunk, old: &[u8]) -> Result<Vec<u8>> {
    let mut file = old.to_vec();
    file.resize(chunk.file_bytes as usize, 0);
    for (column, segment) in chunk.segments.iter().enumerate() {
        let home = &segment.home;
        if codec::stored(home, &file).is_some_and(|stored| codec::verify(home, stored).is_ok()) {
            continue;
        }
        let start = home.offset as usize;
        match (file.get_mut(start..start + home.len as usize), good_copy(chunk, column)) {
            (Some(place), Some(stored)) => place.copy_from_slice(&stored),
            _ => {
                let place = chunk.place(column);
                let what = format!("{place} has no good copy on any tier; restore a backup, or load the table again");
                return Err(Error::Corrupt { path: chunk.path.clone(), what });
            }
        }
    }
    Ok(file)
}

/// The stored bytes of a column from its resident copy, which may be wider: they are encoded again, as in a file without
/// compression and as in one with it, and count only when they are those that were written.
fn good_copy(chunk: &Chunk, column: usize) -> Option<Vec<u8>> {
    let segment = chunk.segments.get(column)?;
    let array = segment.resident.load_full()?.column.widened().ok()?;
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![chunk.field(column)?])), vec![array]).ok()?;
    let home = &segment.home;
    let compression = home.encoding.compression().unwrap_or(Compression::Lz4);
    [Packing::Raw, Packing::Like(compression, &[home])].into_iter().find_map(|packing| {
        let encoded = codec::encode_again(&batch, packing, &[home]).ok()?;
        let stored = codec::stored(encoded.homes.first()?, &encoded.bytes)?;
        codec::verify(home, stored).is_ok().then(|| stored.to_vec())
    })
}

/// The file written anew; the same build makes the same bytes of the same columns, and another may not. Nor can it where
/// the table has dropped a column of the file, or forgotten a mark.
fn encoded(chunk: &Chunk, columns: &[u8]) -> Result<Vec<u8>> {
    // Columns added later are not in the file.
    let there = |(_, segment): &(usize, &Arc<Segment>)| segment.constant.is_none();
    let stored: Vec<(usize, &Arc<Segment>)> = chunk.segments.iter().enumerate().filter(there).collect();
    let mut fields = Vec::with_capacity(stored.len());
    let mut arrays = Vec::with_capacity(stored.len());
    for (position, segment) in &stored {
        let field =
            chunk.field(*position).ok_or_else(|| Error::Invalid(format!("{} has no type", chunk.place(*position))))?;
        arrays.push(codec::decode_stored(&segment.home, field.data_type(), chunk.rows as usize, columns)?);
        fields.push(field);
    }
    let batch = batch(&Arc::new(Schema::new(fields)), arrays, chunk.rows as usize)?;
    let homes: Vec<&Home> = stored.iter().map(|(_, segment)| &segment.home).collect();
    let batch = with_ids(&batch, stored.iter().map(|(_, segment)| segment.column))?;
    let encoded = codec::encode_again(&batch, Packing::like(&homes), &homes)?;
    let same = encoded.homes.iter().eq(stored.iter().map(|(_, segment)| &segment.home));
    if same && encoded.bytes.len() as u64 == chunk.file_bytes {
        return Ok(encoded.bytes);
    }
    let what = "its columns are good, its header is not and cannot be written as it was; load the table again";
    Err(Error::Corrupt { path: chunk.path.clone(), what: what.into() })
}

/// All columns of a chunk from its file's bytes, without bits of marks.
pub(super) fn decoded(chunk: &Chunk, file: &[u8]) -> Result<RecordBatch> {
    let rows = chunk.rows as usize;
    let columns = chunk.segments.iter().zip(chunk.schema.fields()).map(|(segment, field)| match &segment.constant {
        Some(constant) => constant.array(rows),
        None => codec::decode_stored(&segment.home, field.data_type(), rows, file),
    });
    batch(&chunk.schema, columns.collect::<Result<Vec<_>>>()?, rows)
}

/// A batch, of any number of columns.
pub(super) fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
