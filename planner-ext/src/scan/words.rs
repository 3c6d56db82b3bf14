//! Filters on texts that are stored as keys of a dictionary: asked once per value, not once per row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat;
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, DataType, Schema, SchemaRef, UInt8Type, UInt16Type};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use terrace_tier_store::tier::codec::Words;

use super::filter::mask_of;

/// For which values of a dictionary a filter is true.
#[derive(Debug)]
pub(super) struct Verdicts {
    words: Words,
    /// By key; the last one is null's. `None` when one of them cannot be told.
    of_values: Option<Vec<bool>>,
}

impl Verdicts {
    /// Asks `expr`, over the column alone, about each of the values and null.
    pub(super) fn of(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, words: &Words) -> Self {
        Self { words: words.clone(), of_values: Self::ask(expr, schema, words).ok() }
    }

    fn ask(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, words: &Words) -> Result<Vec<bool>> {
        let null = new_null_array(&DataType::Utf8View, 1);
        let values = concat(&[words.values(), &null])?;
        let rows = values.len();
        // What is said of null is not used where a column cannot be null.
        let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(match mask_of(expr.evaluate(&RecordBatch::try_new(schema, vec![values])?)?)? {
            None => vec![true; rows],
            Some(mask) if mask.len() == rows => mask.values().iter().collect(),
            Some(_) => vec![false; rows],
        })
    }

    /// True when they are about these very values.
    pub(super) fn are_of(&self, words: &Words) -> bool {
        self.words.is(words)
    }

    /// True when neither a value nor, if there are any, a null passes.
    pub(super) fn none(&self, nulls: bool) -> bool {
        let Some((of_null, of_values)) = self.of_values.as_ref().and_then(|of| of.split_last()) else { return false };
        !(of_values.contains(&true) || nulls && *of_null)
    }

    /// The rows of the keys that pass, `Some(None)` when all; `None` when that is to be asked of the rows.
    pub(super) fn pass(&self, keys: &ArrayRef) -> Option<Option<BooleanArray>> {
        let (of_null, of_values) = self.of_values.as_ref()?.split_last()?;
        if !of_values.contains(&false) && (*of_null || keys.null_count() == 0) {
            return Some(None);
        }
        let mask = match keys.data_type() {
            _ if self.none(keys.null_count() > 0) => BooleanBuffer::new_unset(keys.len()),
            DataType::UInt8 => mask::<UInt8Type>(keys, of_values),
            _ => mask::<UInt16Type>(keys, of_values),
        };
        let mask = match keys.nulls() {
            None => mask,
            Some(valid) if *of_null => &mask | &!valid.inner(),
            Some(valid) => &mask & valid.inner(),
        };
        Some(Some(BooleanArray::new(mask, None)))
    }
}

fn mask<K: ArrowPrimitiveType>(keys: &ArrayRef, of_values: &[bool]) -> BooleanBuffer {
    let keys = keys.as_primitive::<K>().values();
    let verdict = |row: usize| keys.get(row).and_then(|key| of_values.get(key.as_usize())).copied().unwrap_or(false);
    BooleanBuffer::collect_bool(keys.len(), verdict)
}
