//! Healing: rebuilds a damaged chunk file from its good columns and from copies on faster tiers.
//!
//! The new file has, byte for byte, the content that the old one was written with: columns keep their places and
//! checksums, so the catalog does not change. A packed copy of a packed column is that column; other copies are encoded
//! again. When the new file is durable, one rename replaces the old file. Every byte is verified before: columns by their
//! checksums in the catalog, the file by its stamp.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use terrace_model::{Error, Result};
use terrace_storage::table::column::with_ids;
use terrace_storage::table::{Chunk, Segment, SegmentHome};
use terrace_storage::tier::codec::{self, Compression, CompressionRule, Form, Stamp};

use super::core::Core;

impl Core {
    /// Repairs the file of a chunk. Columns that are good in the file are taken from there, so only damaged ones have
    /// to be resident.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the first column that has no good copy anywhere. An error changes nothing.
    pub(super) fn heal(&self, chunk: &Chunk) -> Result<()> {
        // A file that cannot be read at all gives no columns.
        let old = self.home.load_file(chunk).ok();
        let mut file = restore_columns(chunk, old.as_ref().map_or(&[], |bytes| bytes.as_slice()))?;
        if !matches!(codec::check_stamp(&file), Ok(Stamp::Valid)) {
            file = encode_again(chunk, &file)?;
        }
        self.home.replace_file(chunk, &file)?;
        self.home.counters().healed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(path = %chunk.path.display(), "rebuilt a damaged file from good copies");
        Ok(())
    }
}

/// Returns the old file, in the length that it was written with, with every damaged column replaced by a good copy.
fn restore_columns(chunk: &Chunk, old: &[u8]) -> Result<Vec<u8>> {
    let mut file = old.to_vec();
    file.resize(chunk.file_bytes as usize, 0);
    for (column, segment) in chunk.segments.iter().enumerate() {
        let home = &segment.home;
        if codec::stored_bytes(home, &file).is_some_and(|stored| codec::verify(home, stored).is_ok()) {
            continue;
        }
        let start = home.offset as usize;
        match (file.get_mut(start..start + home.len as usize), good_copy(chunk, column)) {
            (Some(place), Some(stored)) => place.copy_from_slice(&stored),
            _ => {
                let place = chunk.column_label(column);
                let what = format!("{place} has no good copy on any tier; restore a backup, or load the table again");
                return Err(Error::Corrupt { path: chunk.path.clone(), what });
            }
        }
    }
    Ok(file)
}

/// Encodes the stored bytes of a column again from its resident copy, which may be wider: without compression, and with
/// the compression of the file. Returns the result that matches the checksums of the written bytes.
fn good_copy(chunk: &Chunk, column: usize) -> Option<Vec<u8>> {
    let segment = chunk.segments.get(column)?;
    let resident = segment.resident.load_full()?;
    if segment.home.is_packed() && resident.column.form() == Form::Packed {
        let image = resident.bytes.buffer.as_slice();
        return codec::verify(&segment.home, image).is_ok().then(|| image.to_vec());
    }
    let array = resident.column.widened().ok()?;
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![chunk.field(column)?])), vec![array]).ok()?;
    let home = &segment.home;
    let compression = home.encoding.compression().unwrap_or(Compression::Lz4);
    [CompressionRule::Raw, CompressionRule::Like(compression, &[home])].into_iter().find_map(|rule| {
        let encoded = codec::reencode_chunk(&batch, rule, &[home]).ok()?;
        let stored = codec::stored_bytes(encoded.homes.first()?, &encoded.bytes)?;
        codec::verify(home, stored).is_ok().then(|| stored.to_vec())
    })
}

/// Encodes the whole file again from its columns. The same build makes the same bytes of the same columns; another
/// build may not. It also fails when the table has dropped a column of the file, or forgotten a mark.
fn encode_again(chunk: &Chunk, columns: &[u8]) -> Result<Vec<u8>> {
    // Columns added later are not in the file.
    let there = |(_, segment): &(usize, &Arc<Segment>)| segment.constant.is_none();
    let stored: Vec<(usize, &Arc<Segment>)> = chunk.segments.iter().enumerate().filter(there).collect();
    let mut fields = Vec::with_capacity(stored.len());
    let mut arrays = Vec::with_capacity(stored.len());
    for (position, segment) in &stored {
        let field = chunk
            .field(*position)
            .ok_or_else(|| Error::Invalid(format!("{} has no type", chunk.column_label(*position))))?;
        arrays.push(codec::decode_stored(&segment.home, field.data_type(), chunk.rows as usize, columns)?);
        fields.push(field);
    }
    let batch = batch_with_rows(&Arc::new(Schema::new(fields)), arrays, chunk.rows as usize)?;
    let homes: Vec<&SegmentHome> = stored.iter().map(|(_, segment)| &segment.home).collect();
    let batch = with_ids(&batch, stored.iter().map(|(_, segment)| segment.column))?;
    let encoded = codec::reencode_chunk(&batch, CompressionRule::like(&homes), &homes)?;
    let same = encoded.homes.iter().eq(stored.iter().map(|(_, segment)| &segment.home));
    if same && encoded.bytes.len() as u64 == chunk.file_bytes {
        return Ok(encoded.bytes);
    }
    let what = "its columns are good, but its header is damaged and cannot be reproduced; load the table again";
    Err(Error::Corrupt { path: chunk.path.clone(), what: what.into() })
}

/// Decodes all columns of a chunk from its file's bytes, without bits of marks.
pub(super) fn decode_columns(chunk: &Chunk, file: &[u8]) -> Result<RecordBatch> {
    let rows = chunk.rows as usize;
    let columns = chunk.segments.iter().zip(chunk.schema.fields()).map(|(segment, field)| match &segment.constant {
        Some(constant) => constant.array(rows),
        None => codec::decode_stored(&segment.home, field.data_type(), rows, file),
    });
    batch_with_rows(&chunk.schema, columns.collect::<Result<Vec<_>>>()?, rows)
}

/// Makes a batch of `rows` rows, also when it has no column.
pub(super) fn batch_with_rows(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
