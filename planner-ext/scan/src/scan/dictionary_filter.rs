//! Filters on texts that are stored as keys of a dictionary: evaluated once per value of the dictionary, not once per
//! row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat;
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, DataType, Schema, SchemaRef, UInt8Type, UInt16Type};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use terrace_tier_store::tier::codec::{Dictionary, NumberSet};

use super::filter::mask_of;

/// The verdict of a filter on each value of a dictionary.
#[derive(Debug)]
pub(super) struct DictionaryFilter {
    dictionary: Dictionary,
    /// By key; the last one is for null. `None` when the filter fails on a value.
    verdicts: Option<Vec<bool>>,
    /// The keys whose values pass.
    keys: NumberSet,
}

impl DictionaryFilter {
    /// Evaluates `expr`, which is over this column alone, on each value and on null.
    pub(super) fn new(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, dictionary: &Dictionary) -> Self {
        let verdicts = Self::evaluate(expr, schema, dictionary).ok();
        let by_key = verdicts.as_ref().and_then(|verdicts| verdicts.split_last()).map(|(_, by_key)| by_key);
        let passing = by_key.into_iter().flatten().enumerate().filter(|(_, passes)| **passes);
        let keys = NumberSet::new(passing.map(|(key, _)| key as i128));
        Self { dictionary: dictionary.clone(), verdicts, keys }
    }

    fn evaluate(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef, dictionary: &Dictionary) -> Result<Vec<bool>> {
        let null = new_null_array(&DataType::Utf8View, 1);
        let values = concat(&[dictionary.values(), &null])?;
        let rows = values.len();
        // A column that cannot be null does not use the verdict on null.
        let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(match mask_of(expr.evaluate(&RecordBatch::try_new(schema, vec![values])?)?)? {
            None => vec![true; rows],
            Some(mask) if mask.len() == rows => mask.values().iter().collect(),
            Some(_) => vec![false; rows],
        })
    }

    /// True when this is the filter for this very dictionary.
    pub(super) fn is_for(&self, dictionary: &Dictionary) -> bool {
        self.dictionary.is_same(dictionary)
    }

    /// True when no value passes, nor null if the column has `nulls`.
    pub(super) fn passes_nothing(&self, nulls: bool) -> bool {
        let Some((null_verdict, verdicts)) = self.verdicts.as_ref().and_then(|verdicts| verdicts.split_last()) else {
            return false;
        };
        !(verdicts.contains(&true) || nulls && *null_verdict)
    }

    /// Like [`DictionaryFilter::pass`], by a function that finds the rows whose key is one of some, null for null, if it does.
    pub(super) fn pass_packed(
        &self,
        among: impl FnOnce(&NumberSet) -> Option<BooleanArray>,
    ) -> Option<Option<BooleanArray>> {
        let (null_verdict, verdicts) = self.verdicts.as_ref()?.split_last()?;
        let found = among(&self.keys)?;
        if !verdicts.contains(&false) && (*null_verdict || found.null_count() == 0) {
            return Some(None);
        }
        let mask = match found.nulls() {
            None => found.values().clone(),
            Some(valid) if *null_verdict => found.values() | &!valid.inner(),
            Some(valid) => found.values() & valid.inner(),
        };
        Some(Some(BooleanArray::new(mask, None)))
    }

    /// False when the filter fails on a value, so that it has to be evaluated on the rows.
    pub(super) fn has_verdicts(&self) -> bool {
        self.verdicts.is_some()
    }

    /// The rows whose keys pass, `Some(None)` when all do; `None` when the filter has to be evaluated on the rows.
    pub(super) fn pass(&self, keys: &ArrayRef) -> Option<Option<BooleanArray>> {
        let (null_verdict, verdicts) = self.verdicts.as_ref()?.split_last()?;
        if !verdicts.contains(&false) && (*null_verdict || keys.null_count() == 0) {
            return Some(None);
        }
        let mask = match keys.data_type() {
            _ if self.passes_nothing(keys.null_count() > 0) => BooleanBuffer::new_unset(keys.len()),
            DataType::UInt8 => mask::<UInt8Type>(keys, verdicts),
            _ => mask::<UInt16Type>(keys, verdicts),
        };
        let mask = match keys.nulls() {
            None => mask,
            Some(valid) if *null_verdict => &mask | &!valid.inner(),
            Some(valid) => &mask & valid.inner(),
        };
        Some(Some(BooleanArray::new(mask, None)))
    }
}

fn mask<K: ArrowPrimitiveType>(keys: &ArrayRef, verdicts: &[bool]) -> BooleanBuffer {
    let keys = keys.as_primitive::<K>().values();
    let verdict = |row: usize| keys.get(row).and_then(|key| verdicts.get(key.as_usize())).copied().unwrap_or(false);
    BooleanBuffer::collect_bool(keys.len(), verdict)
}
