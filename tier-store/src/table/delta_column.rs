//! What plans ask of a column of a delta entry: found once for an entry of some size, not once per plan.

use std::sync::OnceLock;

use arrow::array::{Array, ArrayRef};

use super::sketch::Sketch;
use super::statistics::extremes;

/// One column of an entry.
#[derive(Debug)]
pub struct DeltaColumn {
    /// Rows without a value.
    pub nulls: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// Has the same least value as the column: one row, or the column itself where its type has no quick way to tell.
    pub least: ArrayRef,
    /// The same of the greatest value.
    pub greatest: ArrayRef,
    /// Its distinct values; found when they are asked for.
    sketch: OnceLock<Option<Sketch>>,
}

impl DeltaColumn {
    pub(crate) fn of(column: &ArrayRef) -> Self {
        let (least, greatest) = extremes(column.as_ref()).unwrap_or_else(|| (column.clone(), column.clone()));
        Self {
            nulls: column.logical_null_count() as u64,
            bytes: column.get_array_memory_size() as u64,
            least,
            greatest,
            sketch: OnceLock::new(),
        }
    }

    /// Distinct values of `column`, which it was made of; `None` for types of which these are not counted.
    pub(crate) fn sketch(&self, column: &ArrayRef) -> Option<&Sketch> {
        self.sketch.get_or_init(|| Sketch::of([column])).as_ref()
    }
}
