//! Columns of a table beyond their name and type.
//!
//! A column is identified by its [`ColumnId`], which outlives renames and is never given to another column: chunk files
//! and bounds are found by it. A chunk written before a column was added has no bytes for it; its rows read the
//! column's [`Constant`] instead.

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema};
use terrace_model::{ColumnId, Error, Result};

use crate::catalog::records::{decode_batches, encode_batches};

/// Key of the column ids in the metadata of a chunk file's schema, separated by commas, in the file's order.
const COLUMNS_KEY: &str = "terrace.columns";

/// Adds the ids of its columns to the metadata of a batch, as chunk files have them.
pub fn with_ids(batch: &RecordBatch, ids: impl Iterator<Item = ColumnId>) -> Result<RecordBatch> {
    let ids: Vec<String> = ids.map(|id| id.0.to_string()).collect();
    let schema = batch.schema_ref().as_ref().clone().with_metadata([(COLUMNS_KEY.to_owned(), ids.join(","))].into());
    Ok(batch.clone().with_schema(Arc::new(schema))?)
}

/// Reads the ids of a file's columns; `None` where the file has none.
pub fn ids_of(schema: &Schema) -> Option<Vec<ColumnId>> {
    let ids = schema.metadata().get(COLUMNS_KEY)?.split(',').filter(|id| !id.is_empty());
    ids.map(|id| id.parse().ok().map(ColumnId))
        .collect::<Option<Vec<_>>>()
        .filter(|ids| ids.len() == schema.fields().len())
}

/// The properties of a column beyond the field of the table's schema.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its number.
    pub id: ColumnId,
    /// SQL text of the value that inserted rows take when they name none.
    pub default: Option<String>,
    /// Comment for users.
    pub comment: Option<String>,
    /// The value for rows of chunks without the column; `None` for a column that every chunk has.
    pub missing: Option<Arc<Constant>>,
}

impl Column {
    /// A column that every chunk has, without default and comment.
    pub fn new(id: ColumnId) -> Self {
        Self { id, default: None, comment: None, missing: None }
    }
}

/// A column with the same value in every row. Slices share one small array, so that it costs no memory per chunk.
#[derive(Debug)]
pub struct Constant {
    /// The value [`Constant::SHARED_ROWS`] times.
    shared: ArrayRef,
}

impl Constant {
    /// Rows that [`Constant::array`] returns without a copy.
    pub const SHARED_ROWS: usize = 8192;

    /// Makes a constant of `value`, which has one row.
    pub fn new(value: &ArrayRef) -> Result<Self> {
        if value.len() != 1 {
            return Err(Error::Invalid(format!("the value of a column has one row, not {}", value.len())));
        }
        Ok(Self { shared: repeated(value, Self::SHARED_ROWS)? })
    }

    /// Makes a constant of an array that has the value [`Constant::SHARED_ROWS`] times.
    pub(crate) fn from_shared(shared: ArrayRef) -> Self {
        Self { shared }
    }

    /// True for the Boolean value true.
    pub(crate) fn is_true(&self) -> bool {
        self.shared.as_boolean_opt().is_some_and(|values| values.is_valid(0) && values.value(0))
    }

    /// Makes a constant null.
    pub fn null(data_type: &DataType) -> Self {
        Self { shared: new_null_array(data_type, Self::SHARED_ROWS) }
    }

    /// The value, as one row.
    #[inline]
    pub fn value(&self) -> ArrayRef {
        self.shared.slice(0, 1)
    }

    /// True when the value is null.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.shared.logical_null_count() > 0
    }

    /// A column of `rows` rows.
    pub fn array(&self, rows: usize) -> Result<ArrayRef> {
        if rows <= Self::SHARED_ROWS { Ok(self.shared.slice(0, rows)) } else { repeated(&self.value(), rows) }
    }

    /// Encodes it as an Arrow IPC stream of one row, for the catalog.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let schema = Arc::new(Schema::new(vec![Field::new("value", self.shared.data_type().clone(), true)]));
        encode_batches(&schema, &[RecordBatch::try_new(Arc::clone(&schema), vec![self.value()])?])
    }

    /// Reads a constant that [`Constant::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (_, batches) = decode_batches(bytes)?;
        let value = batches.first().and_then(|batch| batch.columns().first());
        Self::new(value.ok_or_else(|| Error::Catalog("the value of an added column is missing".into()))?)
    }
}

fn repeated(value: &ArrayRef, rows: usize) -> Result<ArrayRef> {
    Ok(take(value, &UInt32Array::from(vec![0; rows]), None)?)
}
