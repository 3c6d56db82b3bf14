//! Values of a delta entry's column that plans need. Larger entries keep them; see `DeltaEntry::column`.

use std::sync::OnceLock;

use arrow::array::{Array, ArrayRef};

use super::sketch::Sketch;
use super::statistics::extremes;

/// Null count, size, extremes and sketch of one column of a delta entry.
#[derive(Debug)]
pub struct DeltaColumn {
    /// Rows that are null.
    pub nulls: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// An array with the least value of the column: one row, or the column itself where its type has no quick way to
    /// find it.
    pub least: ArrayRef,
    /// Like `least`, for the greatest value.
    pub greatest: ArrayRef,
    /// Sketch of its distinct values, made at the first use.
    sketch: OnceLock<Option<Sketch>>,
}

impl DeltaColumn {
    pub(crate) fn from_array(column: &ArrayRef) -> Self {
        let (least, greatest) = extremes(column.as_ref()).unwrap_or_else(|| (column.clone(), column.clone()));
        Self {
            nulls: column.logical_null_count() as u64,
            bytes: column.get_array_memory_size() as u64,
            least,
            greatest,
            sketch: OnceLock::new(),
        }
    }

    /// The sketch of `column`, which it was made of; `None` for types without sketches.
    pub(crate) fn sketch(&self, column: &ArrayRef) -> Option<&Sketch> {
        self.sketch.get_or_init(|| Sketch::from_arrays([column])).as_ref()
    }
}
