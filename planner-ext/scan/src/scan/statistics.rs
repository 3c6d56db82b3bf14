//! Statistics of a scan for the planner.
//!
//! The planner takes an exact statistic as the answer of COUNT, MIN or MAX, so exact means: no filter, no limit, no
//! deleted row, bounds that are values of the column. Everything else is an estimate, distinct counts always.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, NullArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::intervals::utils::check_support;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{AnalysisContext, PhysicalExpr, analyze, conjunction};

use super::exec::ScanConfig;
use super::filter::{Conjunct, DynamicFilterUse, Selection, SliceFilter};
use super::source::ScanSource;

/// Selectivity assumed for a predicate of unknown effect, as in DataFusion.
const UNKNOWN_SELECTIVITY: f64 = 0.2;

/// Statistics of the output of a scan.
pub(super) fn scan_statistics(config: &ScanConfig) -> Result<Statistics> {
    let source = &config.source;
    let mut wanted = config.projection.clone();
    wanted.extend(config.filters.iter().flat_map(collect_columns).map(|c| c.index()));
    wanted.retain(|column| !source.is_row_column(*column));
    wanted.sort_unstable();
    wanted.dedup();

    let mut table = Statistics::new_unknown(source.schema());
    for column in wanted {
        if let Some(statistics) = table.column_statistics.get_mut(column) {
            *statistics = column_statistics(source, &config.chunks, column)?;
        }
    }
    let rows: u64 = config.items().map(|item| source.live_rows(item)).sum();
    table.num_rows = Precision::Exact(rows as usize);

    let projection = config.projection.iter();
    let bytes =
        projection.clone().filter_map(|c| table.column_statistics.get(*c)?.byte_size.get_value().copied()).sum();
    table.total_byte_size = Precision::Inexact(bytes);
    let sampled = sampled_selectivity(source, &config.chunks, &config.filters);
    let mut filtered = filter(table, &config.filters, source, sampled)?;
    scale_distinct(&mut filtered, &config.filters, source.version.live_rows());
    let mut output = filtered.project(Some(&config.projection));
    if config.fetch.is_some() {
        output = output.with_fetch(config.fetch, 0, 1)?.to_inexact();
    }
    Ok(if config.dynamic.is_empty() { output } else { output.to_inexact() })
}

/// What is known of the values of a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownValues {
    distinct: f64,
    range: Option<(f64, f64)>,
}

impl ScanSource {
    /// Number of rows that are expected to pass `filters`, which are over the table's schema; `None` when it is
    /// unknown.
    pub fn estimated_rows(self: &Arc<Self>, filters: Vec<Arc<dyn PhysicalExpr>>) -> Option<f64> {
        let config = ScanConfig::new(Arc::clone(self), Vec::new(), filters, None, 1);
        scan_statistics(&config).ok()?.num_rows.get_value().map(|rows| *rows as f64)
    }

    /// Number of distinct values that a column is expected to have without filters: as sketched, or else as many as
    /// there are rows, but no more than its range has.
    pub(crate) fn distinct(&self, column: usize) -> f64 {
        self.known_values(column).distinct
    }

    /// The least and the largest value of a column of integers or dates, if they are known.
    pub(crate) fn range(&self, column: usize) -> Option<(f64, f64)> {
        self.known_values(column).range
    }

    fn known_values(&self, column: usize) -> KnownValues {
        let find = || {
            let rows = self.version.live_rows() as f64;
            let range = self.find_range(column);
            let distinct = match self.version.distinct(column) {
                Ok(Some(count)) => count.min(rows),
                _ => range.map_or(rows, |(min, max)| rows.min(max - min + 1.0)),
            };
            KnownValues { distinct, range }
        };
        self.values.get(column).map_or_else(find, |values| *values.get_or_init(find))
    }

    fn find_range(&self, column: usize) -> Option<(f64, f64)> {
        let data_type = self.schema().fields().get(column)?.data_type();
        if self.is_row_column(column) || !(data_type.is_integer() || data_type.is_temporal()) {
            return None;
        }
        let all: Vec<u32> = (0..self.version.chunks.len() as u32).collect();
        let known = column_statistics(self, &all, column).ok()?;
        let number = |value: &Precision<ScalarValue>| match value.get_value()?.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(number))) => Some(number as f64),
            _ => None,
        };
        Some((number(&known.min_value)?, number(&known.max_value)?))
    }
}

/// Share of the rows in samples of `chunks` that pass `filters`; `None` without samples or when a filter fails on them.
fn sampled_selectivity(source: &ScanSource, chunks: &[u32], filters: &[Arc<dyn PhysicalExpr>]) -> Option<f64> {
    if filters.is_empty() {
        return None;
    }
    let mut columns: Vec<usize> = filters.iter().flat_map(collect_columns).map(|c| c.index()).collect();
    columns.sort_unstable();
    columns.dedup();
    let conjuncts = Conjunct::bind_all(filters, &[], source.schema(), &columns).ok()?;
    let mut filter = SliceFilter::new(conjuncts.into());
    let mut seen = 0;
    let mut passed = 0;
    for position in source.version.sampled_chunks().filter(|p| chunks.binary_search(&(*p as u32)).is_ok()) {
        let chunk = &source.version.chunks.get(position)?.chunk;
        let samples: Option<Vec<ArrayRef>> = columns.iter().map(|c| source.table.sample(chunk, *c)).collect();
        let Some(samples) = samples else { continue };
        let rows = samples.first().map_or(0, |s| s.len());
        let mut column = |slot: usize| {
            samples.get(slot).map_or_else(|| Ok(Arc::new(NullArray::new(rows)) as _), |s| Ok(Arc::clone(s)))
        };
        seen += rows;
        passed += match filter.apply(rows, Selection::All, &mut column, DynamicFilterUse::Always).ok()? {
            Selection::All => rows,
            Selection::Nothing => 0,
            Selection::Some(mask) => mask.true_count(),
        };
    }
    // Half a row stands for matches that a sample cannot show, so that the estimate is never 0.
    (seen > 0).then(|| (passed as f64 + 0.5) / (seen as f64 + 1.0))
}

/// Scales statistics by the selectivity of `filters`: the sampled one, or else the one that DataFusion's analysis
/// gives.
fn filter(
    input: Statistics,
    filters: &[Arc<dyn PhysicalExpr>],
    source: &ScanSource,
    sampled: Option<f64>,
) -> Result<Statistics> {
    if filters.is_empty() {
        return Ok(input);
    }
    let schema = source.schema();
    let mut output = input.to_inexact();
    let (known, unknown): (Vec<_>, Vec<_>) = filters.iter().cloned().partition(|f| check_support(f, schema));
    let mut selectivity = UNKNOWN_SELECTIVITY.powi(unknown.len().min(3) as i32);
    if !known.is_empty() {
        let context = AnalysisContext::try_from_statistics(schema, &output.column_statistics)?;
        // The bounds of some types cannot be analysed; the statement must not fail because of that.
        match analyze(&conjunction(known), context, schema) {
            Ok(analysis) => {
                selectivity *= analysis.selectivity.unwrap_or(1.0);
                for (column, boundary) in output.column_statistics.iter_mut().zip(analysis.boundaries) {
                    let Some(interval) = boundary.interval else { continue };
                    let bound = |v: ScalarValue| if v.is_null() { Precision::Absent } else { Precision::Inexact(v) };
                    let (lower, upper) = interval.into_bounds();
                    (column.min_value, column.max_value) = (bound(lower), bound(upper));
                }
            }
            Err(_) => selectivity *= UNKNOWN_SELECTIVITY,
        }
    }
    let selectivity = sampled.unwrap_or(selectivity);
    let scale = |p: Precision<usize>| p.with_estimated_selectivity(selectivity);
    output.num_rows = scale(output.num_rows);
    output.total_byte_size = scale(output.total_byte_size);
    for column in &mut output.column_statistics {
        column.byte_size = scale(column.byte_size);
        column.null_count = scale(column.null_count);
    }
    Ok(output)
}

/// Number of distinct values of a column, if it is known.
fn distinct_count(source: &ScanSource, column: usize) -> Precision<usize> {
    match source.version.distinct(column) {
        Ok(count) => count.map_or(Precision::Absent, |count| Precision::Inexact(count.round() as usize)),
        Err(error) => {
            tracing::warn!(%error, column, "cannot read the distinct values of a column; planning without them");
            Precision::Absent
        }
    }
}

/// Lowers the distinct counts of a table of `rows` rows to those of the rows that pass `filters`. A column that is
/// filtered loses the same share of its values as of its rows; another column loses the values whose rows are all
/// removed, on the assumption that rows are removed by chance.
fn scale_distinct(statistics: &mut Statistics, filters: &[Arc<dyn PhysicalExpr>], rows: u64) {
    let Some(passed) = statistics.num_rows.get_value().filter(|_| !filters.is_empty()) else { return };
    let share = (*passed as f64 / rows.max(1) as f64).min(1.0);
    let filtered: HashSet<usize> = filters.iter().flat_map(collect_columns).map(|column| column.index()).collect();
    for (index, column) in statistics.column_statistics.iter_mut().enumerate() {
        let Some(count) = column.distinct_count.get_value().map(|count| (*count).max(1) as f64) else { continue };
        let remaining = match filtered.contains(&index) {
            true => share,
            false => 1.0 - (1.0 - share).powf(rows as f64 / count),
        };
        column.distinct_count = Precision::Inexact((count * remaining).round().max(1.0) as usize);
    }
}

/// Statistics of one column over some chunks and the delta.
fn column_statistics(source: &ScanSource, chunks: &[u32], column: usize) -> Result<ColumnStatistics> {
    let version = &source.version;
    // If the catalog fails, bounds are unknown, but the rows can still be read.
    let bounds = match version.statistics.column(column) {
        Ok(bounds) => bounds,
        Err(error) => {
            tracing::warn!(%error, column, "cannot read the bounds of a column; planning without them");
            return Ok(ColumnStatistics::new_unknown());
        }
    };
    let positions = UInt32Array::from_iter_values(chunks.iter().copied());
    let entries = || chunks.iter().filter_map(|c| source.chunk(*c));
    let all_null = |i: usize, rows: u32| bounds.null_counts.value(i) == u64::from(rows);

    let mut exact = !version.has_deletions();
    let mut nulls = 0;
    let mut bytes = 0;
    let mut min_known = true;
    let mut max_known = true;
    for (item, entry) in chunks.iter().map(|c| *c as usize).zip(entries()) {
        nulls += bounds.null_counts.value(item);
        bytes += entry.chunk.columns().get(column).map_or(0, |s| s.scanned_bytes());
        let empty = all_null(item, entry.chunk.rows);
        exact &= empty || bounds.exact.value(item);
        min_known &= empty || bounds.min.is_valid(item);
        max_known &= empty || bounds.max.is_valid(item);
    }
    let mut min = vec![take(&bounds.min, &positions, None)?];
    let mut max = vec![take(&bounds.max, &positions, None)?];
    let data_type = bounds.min.data_type();
    for known in version.delta.iter().filter_map(|rows| rows.column(column)) {
        nulls += known.nulls;
        bytes += known.bytes;
        min.push(Arc::clone(&known.least));
        max.push(Arc::clone(&known.greatest));
    }
    // The bounds of the delta ignore NaN.
    let comparable = version.delta.is_empty() || !data_type.is_floating();
    (min_known, max_known) = (min_known && comparable, max_known && comparable);
    let ordered = !data_type.is_nested() && *data_type != DataType::Null;
    let (min_value, max_value) = if ordered {
        let least = MinAccumulator::try_new(data_type)?;
        let most = MaxAccumulator::try_new(data_type)?;
        (
            min_known.then(|| extreme(least, &min, exact)).transpose()?.unwrap_or_default(),
            max_known.then(|| extreme(most, &max, exact)).transpose()?.unwrap_or_default(),
        )
    } else {
        (Precision::Absent, Precision::Absent)
    };
    Ok(ColumnStatistics {
        null_count: if version.has_deletions() {
            Precision::Inexact(nulls as usize)
        } else {
            Precision::Exact(nulls as usize)
        },
        min_value,
        max_value,
        sum_value: Precision::Absent,
        distinct_count: distinct_count(source, column),
        byte_size: Precision::Inexact(bytes as usize),
    })
}

/// The extreme of all values of `parts`, as `accumulator` has it; null values are ignored.
fn extreme(mut accumulator: impl Accumulator, parts: &[ArrayRef], exact: bool) -> Result<Precision<ScalarValue>> {
    for part in parts {
        accumulator.update_batch(std::slice::from_ref(part))?;
    }
    let value = accumulator.evaluate()?;
    Ok(match (value.is_null(), exact) {
        (true, _) => Precision::Absent,
        (false, true) => Precision::Exact(value),
        (false, false) => Precision::Inexact(value),
    })
}
