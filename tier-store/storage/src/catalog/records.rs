//! The records of the catalog and their encoding.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use roaring::RoaringBitmap;
use serde::{Deserialize, Deserializer, Serialize};
use terrace_model::{ColumnId, Error, FileFormat, MarkId, Result, TableName, TieringMode};

use crate::table::{Column, Constant, SegmentHome, TableDefinition, TableOptions};

/// A table as stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TableRecord {
    /// Schema and name.
    pub name: TableName,
    /// Columns, as an Arrow IPC stream without batches.
    pub schema: Vec<u8>,
    /// Further properties of the columns, in order.
    pub columns: Vec<ColumnRecord>,
    /// Names of the key columns, in order.
    pub primary_key: Vec<String>,
    /// Settings.
    pub options: TableOptions,
    /// Comment for users.
    pub comment: Option<String>,
    /// Id of the next column to be added.
    pub next_column: u32,
    /// Whether the key is enforced. Older records end before this field.
    #[serde(deserialize_with = "false_if_missing")]
    pub enforce_primary_key: bool,
    /// How the tiering loop treats the table. Older records end before this field.
    #[serde(deserialize_with = "auto_if_missing")]
    pub tiering: TieringMode,
    /// The format of new chunk files. Older records end before this field.
    #[serde(deserialize_with = "arrow_if_missing")]
    pub format: FileFormat,
}

fn arrow_if_missing<'de, D: Deserializer<'de>>(record: D) -> std::result::Result<FileFormat, D::Error> {
    Ok(FileFormat::deserialize(record).unwrap_or_default())
}

fn auto_if_missing<'de, D: Deserializer<'de>>(record: D) -> std::result::Result<TieringMode, D::Error> {
    Ok(TieringMode::deserialize(record).unwrap_or_default())
}

fn false_if_missing<'de, D: Deserializer<'de>>(record: D) -> std::result::Result<bool, D::Error> {
    Ok(bool::deserialize(record).unwrap_or(false))
}

/// A column of a table as stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ColumnRecord {
    /// Its number.
    pub id: ColumnId,
    /// SQL text of its default.
    pub default: Option<String>,
    /// Comment for users.
    pub comment: Option<String>,
    /// The value for chunks without the column: one row, as an Arrow IPC stream.
    pub missing: Option<Vec<u8>>,
}

impl TableRecord {
    /// Makes the record of a definition.
    pub fn new(definition: &TableDefinition) -> Result<Self> {
        let column = |column: &Column| {
            Ok(ColumnRecord {
                id: column.id,
                default: column.default.clone(),
                comment: column.comment.clone(),
                missing: column.missing.as_ref().map(|constant| constant.encode()).transpose()?,
            })
        };
        Ok(Self {
            name: definition.name.clone(),
            schema: encode_batches(&definition.schema, &[])?,
            columns: definition.columns.iter().map(column).collect::<Result<_>>()?,
            primary_key: definition.primary_key.clone(),
            options: definition.options.clone(),
            comment: definition.comment.clone(),
            next_column: definition.next_column,
            enforce_primary_key: definition.options.enforce_primary_key,
            tiering: definition.options.tiering,
            format: definition.options.file_format(),
        })
    }

    /// Restores the definition.
    pub fn definition(self) -> Result<TableDefinition> {
        let column = |record: ColumnRecord| {
            Ok(Column {
                id: record.id,
                default: record.default,
                comment: record.comment,
                missing: record.missing.map(|bytes| Constant::decode(&bytes).map(Arc::new)).transpose()?,
            })
        };
        Ok(TableDefinition {
            name: self.name,
            schema: decode_batches(&self.schema)?.0,
            columns: self.columns.into_iter().map(column).collect::<Result<_>>()?,
            primary_key: self.primary_key,
            options: TableOptions {
                enforce_primary_key: self.enforce_primary_key,
                tiering: self.tiering,
                format: Some(self.format),
                ..self.options
            },
            comment: self.comment,
            next_column: self.next_column,
        })
    }
}

/// A chunk as stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// Path of its file, relative to the SSD tier's folder.
    pub file: String,
    /// Size of the file.
    pub file_bytes: u64,
    /// Rows.
    pub rows: u32,
    /// Its place in the order of the table's chunks, and with it in the stored statistics.
    pub place: u64,
    /// The columns of its file, in order; those of marks follow those of the table.
    pub columns: Vec<ColumnId>,
    /// One per column of the file.
    pub homes: Vec<SegmentHome>,
    /// Marks that all of its rows may satisfy, or none does. Older records end before this field.
    #[serde(deserialize_with = "empty_if_missing")]
    pub marks: Vec<(MarkId, bool)>,
    /// For each of `homes`, its [`SegmentHome::packed_bytes`]. Older records end before this field.
    #[serde(deserialize_with = "empty_if_missing")]
    pub packed_bytes: Vec<Option<u64>>,
}

impl ChunkRecord {
    /// The homes with all that the record says of them.
    pub fn into_homes(self) -> impl Iterator<Item = SegmentHome> {
        let packed_bytes = self.packed_bytes.into_iter().chain(std::iter::repeat(None));
        self.homes.into_iter().zip(packed_bytes).map(|(home, packed_bytes)| SegmentHome { packed_bytes, ..home })
    }
}

fn empty_if_missing<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    record: D,
) -> std::result::Result<Vec<T>, D::Error> {
    Ok(Vec::deserialize(record).unwrap_or_default())
}

/// Encodes a record.
pub fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(record).map_err(|e| Error::Catalog(format!("cannot encode a record: {e}")))
}

/// Decodes a record; `what` names it in the error.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|e| Error::Catalog(format!("cannot read {what}: {e}")))
}

/// Encodes deleted rows.
pub fn encode_rows(rows: &RoaringBitmap) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(rows.serialized_size());
    rows.serialize_into(&mut bytes).map_err(|e| Error::Catalog(format!("cannot encode deleted rows: {e}")))?;
    Ok(bytes)
}

/// Decodes deleted rows.
pub fn decode_rows(bytes: &[u8]) -> Result<RoaringBitmap> {
    RoaringBitmap::deserialize_from(bytes).map_err(|e| Error::Catalog(format!("cannot read deleted rows: {e}")))
}

/// Encodes batches as an Arrow IPC stream.
pub fn encode_batches(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()?;
    Ok(writer.into_inner()?)
}

/// Decodes schema and batches of an Arrow IPC stream.
pub fn decode_batches(bytes: &[u8]) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let reader = StreamReader::try_new(bytes, None)?;
    let schema = reader.schema();
    Ok((schema, reader.collect::<Result<Vec<_>, _>>()?))
}
