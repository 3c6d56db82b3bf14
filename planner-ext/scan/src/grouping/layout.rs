//! Which columns of a scan are the keys of an aggregation, and which of them the scan gives out as codes.
//!
//! The aggregation is over the scan, perhaps with a projection between. The operator evaluates the projection itself, as the scan's
//! columns have other types where they are codes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;

use super::groups::{MOST_BITS, MOST_GROUPS, bits_of_codes};
use super::narrow::below;
use super::numbers::{MOST_RANGE, has_number_codes};
use crate::scan::{MOST_TEXTS, ScanConfig, SharedCodes, TierScanExec, coded_schema};

/// Chunks that are asked whether they store a column as keys.
const ASKED_CHUNKS: usize = 16;
/// What a number of distinct values is multiplied by, because it is a sketch's.
const SKETCH_ERROR: f64 = 1.2;

/// A column by which rows are grouped.
#[derive(Debug)]
pub(super) struct Key {
    /// Its position in the input of the aggregation.
    column: usize,
    /// Its position in the output of the scan.
    scanned: usize,
    pub(super) data_type: DataType,
    /// Its number among the columns that the scan gives out as codes; `None` for numbers.
    pub(super) coded: Option<usize>,
}

impl Key {
    /// The column in rows of the scan.
    pub(super) fn values<'a>(&self, scanned: &'a RecordBatch) -> Result<&'a ArrayRef> {
        let gone = || internal_datafusion_err!("the input of an aggregation has no column {}", self.scanned);
        scanned.columns().get(self.scanned).ok_or_else(gone)
    }
}

/// How the rows of a scan become those of an aggregation.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) keys: Vec<Key>,
    /// Positions in the scan's output of the columns that it gives out as codes.
    pub(super) coded: Vec<usize>,
    /// The projection between; `None` for the columns of the scan.
    projection: Option<Vec<Arc<dyn PhysicalExpr>>>,
    /// Columns of the aggregation's input.
    pub(super) schema: SchemaRef,
    /// The same with codes.
    coded_schema: SchemaRef,
}

/// The scan below an aggregation, if nothing but a projection is between.
pub(super) fn scan_below(aggregate: &AggregateExec) -> Option<&TierScanExec> {
    let input = aggregate.input();
    input.downcast_ref::<ProjectionExec>().map_or(input, ProjectionExec::input).downcast_ref::<TierScanExec>()
}

impl Layout {
    /// The layout of an aggregation over a scan; `None` where the keys have no codes.
    pub(super) fn new(aggregate: &AggregateExec) -> Option<Self> {
        scan_below(aggregate)?;
        let schema = aggregate.input().schema();
        let projection = aggregate.input().downcast_ref::<ProjectionExec>();
        let projection = projection.map(|projection| projection.expr().iter().map(|e| Arc::clone(&e.expr)).collect());
        let mut layout =
            Self { keys: Vec::new(), coded: Vec::new(), projection, coded_schema: Arc::clone(&schema), schema };
        for (key, _) in aggregate.group_expr().expr() {
            layout.add_key(key.downcast_ref::<Column>()?.index())?;
        }
        let texts: Vec<usize> = layout.keys.iter().filter(|key| key.coded.is_some()).map(|key| key.column).collect();
        layout.coded_schema = coded_schema(&layout.schema, &texts);
        let is_usable = !layout.keys.is_empty() && !layout.reads_texts(aggregate);
        is_usable.then_some(layout)
    }

    /// Whether few groups are expected, and few texts, which are stored as keys.
    pub(super) fn pays(&self, aggregate: &AggregateExec) -> bool {
        let Some(config) = scan_below(aggregate).map(TierScanExec::config) else { return false };
        let positions: Vec<usize> = self.keys.iter().map(|key| key.scanned).collect();
        has_few_groups(config, &positions) && self.coded.iter().all(|position| has_text_codes(config, *position))
    }

    /// Adds the key at `column` of the input; `None` where it has no codes.
    fn add_key(&mut self, column: usize) -> Option<()> {
        let position = match &self.projection {
            Some(projection) => projection.get(column)?.downcast_ref::<Column>()?.index(),
            None => column,
        };
        let data_type = self.schema.fields().get(column)?.data_type().clone();
        let coded = match data_type {
            DataType::Utf8View if !self.coded.contains(&position) => {
                self.coded.push(position);
                Some(self.coded.len() - 1)
            }
            _ if has_number_codes(&data_type) => None,
            _ => return None,
        };
        self.keys.push(Key { column, scanned: position, data_type, coded });
        Some(())
    }

    /// Whether anything but the grouping reads a column that would be given out as codes.
    fn reads_texts(&self, aggregate: &AggregateExec) -> bool {
        let texts: Vec<usize> = self.keys.iter().filter(|key| key.coded.is_some()).map(|key| key.column).collect();
        let arguments = aggregate.aggr_expr().iter().flat_map(|function| function.expressions());
        let mut read = arguments.chain(aggregate.filter_expr().iter().flatten().cloned());
        let reads = |expr: &Arc<dyn PhysicalExpr>, columns: &[usize]| {
            collect_columns(expr).iter().any(|column| columns.contains(&column.index()))
        };
        if read.any(|expr| reads(&expr, &texts)) {
            return true;
        }
        let mut projected = self.projection.iter().flatten().enumerate();
        projected.any(|(column, expr)| !texts.contains(&column) && reads(expr, &self.coded))
    }

    /// The rows of the aggregation's input, with codes if the scan has given out codes.
    pub(super) fn projected(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = match &self.projection {
            None => batch.columns().to_vec(),
            Some(projection) => {
                projection.iter().map(|expr| expr.evaluate(batch)?.into_array(rows)).collect::<Result<_>>()?
            }
        };
        let first = self.coded.first().and_then(|position| batch.columns().get(*position));
        let schema = match first.is_some_and(|column| *column.data_type() == DataType::UInt16) {
            true => &self.coded_schema,
            false => &self.schema,
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
    }

    /// The expression of the aggregation's input over rows of the scan.
    pub(super) fn below(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        self.projection.as_ref().map_or_else(|| Ok(Arc::clone(expr)), |projection| below(expr, projection))
    }

    /// Whether rows of the scan have texts where it gives out codes as long as it can.
    pub(super) fn has_texts(&self, scanned: &RecordBatch) -> bool {
        self.has_texts_at(scanned, |key| key.scanned)
    }

    fn has_texts_at(&self, batch: &RecordBatch, position: impl Fn(&Key) -> usize) -> bool {
        let mut columns = self.keys.iter().filter(|key| key.coded.is_some());
        columns.any(|key| batch.columns().get(position(key)).is_some_and(|c| *c.data_type() != DataType::UInt16))
    }

    /// Projected rows with texts instead of codes.
    pub(super) fn with_texts(&self, batch: RecordBatch, codes: &SharedCodes) -> Result<RecordBatch> {
        if self.coded.is_empty() || self.has_texts_at(&batch, |key| key.column) {
            return Ok(batch);
        }
        let mut columns = batch.columns().to_vec();
        for key in &self.keys {
            let (Some(number), Some(column)) = (key.coded, columns.get_mut(key.column)) else { continue };
            *column = texts_of_codes(column, number, codes)?;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// The texts of codes, of the column with that number among those with codes.
pub(super) fn texts_of_codes(column: &ArrayRef, number: usize, codes: &SharedCodes) -> Result<ArrayRef> {
    let texts = codes.lock().texts(number);
    Ok(take(&texts, column, None)?)
}

/// Whether the columns at `positions` of a scan have few enough values, and numbers that lie near each other.
fn has_few_groups(config: &ScanConfig, positions: &[usize]) -> bool {
    let columns: Option<Vec<usize>> = positions.iter().map(|at| config.projection.get(*at).copied()).collect();
    let Some(columns) = columns else { return false };
    // Null is a value, too.
    let counts: Vec<f64> = columns.iter().map(|column| config.source.distinct(*column) * SKETCH_ERROR + 1.0).collect();
    let is_far = |column: &usize| {
        config.source.range(*column).is_some_and(|(least, greatest)| greatest - least >= MOST_RANGE as f64)
    };
    if columns.iter().any(is_far) {
        return false;
    }
    let bits = counts.iter().map(|count| bits_of_codes(count.min(f64::from(u32::MAX)) as usize)).sum::<u32>();
    bits <= MOST_BITS && counts.iter().product::<f64>() <= MOST_GROUPS as f64
}

/// Whether the texts at `position` of a scan are few enough for codes, and most chunks store them as keys, or as one value.
fn has_text_codes(config: &ScanConfig, position: usize) -> bool {
    let Some(column) = config.projection.get(position) else { return false };
    if config.source.distinct(*column) * SKETCH_ERROR > MOST_TEXTS as f64 {
        return false;
    }
    let chunks = config.chunks.iter().filter_map(|item| config.source.chunk(*item)).take(ASKED_CHUNKS);
    let segments = chunks.filter_map(|entry| entry.chunk.columns().get(*column));
    let has_keys = segments.map(|segment| segment.constant.is_some() || segment.home.encoding.dictionary().is_some());
    let has_keys: Vec<bool> = has_keys.collect();
    2 * has_keys.iter().filter(|has_keys| **has_keys).count() >= has_keys.len()
}
