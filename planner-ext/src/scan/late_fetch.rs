//! `ORDER BY .. LIMIT`: only what the order needs is read of every row, the other columns of the rows that are left.
//!
//! ```text
//!   SortPreservingMergeExec: fetch=10                 FetchExec: columns=[wide]
//!     SortExec: TopK(fetch=10)                  =>      SortPreservingMergeExec: fetch=10
//!       TierScanExec: columns=[key, wide]                 SortExec: TopK(fetch=10)
//!                                                           TierScanExec: columns=[key, __row]
//! ```
//!
//! A scan that reads its filters' columns first already leaves out what a top-k's run-time filter does not let pass; but
//! the first chunks pass it whole, and each further row that is among the first for a while has its wide columns read.
//! The rule runs before run-time filters are pushed down, so that they are made over the narrow rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

use super::exec::TierScanExec;
use super::fetch::{FetchExec, Origin};
use super::source::ROW_COLUMN;

/// More rows than these are not fetched one by one.
const MOST_ROWS: usize = 10_000;
/// Bytes that fetching has to leave out of those that would be read, as a share.
const LEAST_SAVED: f64 = 0.75;
/// Waiting columns of fewer bytes are read with the others.
const LEAST_BYTES: u64 = 1 << 20;
/// Chunks that are looked at for the sizes of columns.
const SAMPLE: usize = 16;

/// The rule.
#[derive(Debug)]
pub(super) struct LateFetch;

impl PhysicalOptimizerRule for LateFetch {
    fn name(&self) -> &str {
        "late_fetch"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_down(|plan| {
            let fetched = TopK::of(&plan).map(|found| found.fetched(&plan)).transpose()?.flatten();
            Ok(fetched.map_or_else(|| Transformed::no(plan), Transformed::yes))
        })
        .data()
    }
}

/// A top-k over a scan.
struct TopK<'a> {
    merge: Option<&'a SortPreservingMergeExec>,
    /// From the merge to the sort.
    above: Vec<&'a ProjectionExec>,
    sort: &'a SortExec,
    /// From the sort to the scan.
    below: Vec<&'a ProjectionExec>,
    scan: &'a TierScanExec,
    rows: usize,
}

impl<'a> TopK<'a> {
    fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let merge = plan.downcast_ref::<SortPreservingMergeExec>();
        let (above, input) = merge.map_or((Vec::new(), plan), |merge| projections(merge.input()));
        let sort = input.downcast_ref::<SortExec>()?;
        let rows = sort.fetch().filter(|rows| (1..=MOST_ROWS).contains(rows))?;
        // Of a sort of each partition every one leaves so many.
        if merge.map_or(sort.preserve_partitioning(), |merge| merge.fetch() != Some(rows)) {
            return None;
        }
        let (below, input) = projections(sort.input());
        let scan = input.downcast_ref::<TierScanExec>()?;
        let config = scan.config();
        let plain = config.fetch.is_none() && config.ordering.is_none();
        let positions = config.projection.iter().any(|column| config.source.is_row_column(*column));
        (plain && !positions).then_some(Self { merge, above, sort, below, scan, rows })
    }

    /// The output columns of the scan that somebody looks at before the rows are chosen: all but those that are only
    /// handed on.
    fn needed(&self) -> BTreeSet<usize> {
        let columns_of = |expr: &Arc<dyn PhysicalExpr>| collect_columns(expr).into_iter().map(|c| c.index());
        let ordered_by = |order: &LexOrdering| order.iter().flat_map(|sort| columns_of(&sort.expr)).collect();
        let through = |needed: BTreeSet<usize>, projection: &&ProjectionExec| {
            let outputs = projection.expr().iter().enumerate();
            let looked_at = outputs.filter(|(at, output)| needed.contains(at) || plain(&output.expr).is_none());
            looked_at.flat_map(|(_, output)| columns_of(&output.expr)).collect()
        };
        let merged: BTreeSet<usize> = self.merge.map_or_else(BTreeSet::new, |merge| ordered_by(merge.expr()));
        let mut needed = self.above.iter().fold(merged, through);
        needed.append(&mut ordered_by(self.sort.expr()));
        let mut needed = self.below.iter().fold(needed, through);
        let config = self.scan.config();
        // What filters read is read anyway.
        let filtered: BTreeSet<usize> = config.filters.iter().chain(&config.dynamic).flat_map(columns_of).collect();
        let read = config.projection.iter().enumerate().filter(|(_, column)| filtered.contains(column));
        needed.extend(read.map(|(at, _)| at));
        needed
    }

    /// True when reading `late` columns row by row leaves out enough.
    fn pays(&self, late: &[usize]) -> bool {
        let config = self.scan.config();
        let step = (config.chunks.len() / SAMPLE).max(1);
        let mut all = 0_u64;
        let mut of_row = 0_u64;
        let mut chunks = 0_u32;
        for entry in config.chunks.iter().step_by(step).filter_map(|item| config.source.chunk(*item)) {
            let middle = entry.chunk.rows as usize / 2;
            let row = middle..middle + 1;
            let ssd = config.source.store.ssd();
            let bytes = |wanted| late.iter().map(|c| ssd.bytes_to_read(&entry.chunk, *c, wanted)).sum::<u64>();
            (all, of_row, chunks) = (all + bytes(None), of_row + bytes(Some(std::slice::from_ref(&row))), chunks + 1);
        }
        if all * step as u64 <= LEAST_BYTES {
            return false;
        }
        let fetched = of_row as f64 / f64::from(chunks.max(1)) * self.rows as f64;
        fetched <= (1.0 - LEAST_SAVED) * all as f64 * step as f64
    }

    /// The same rows, completed late; `None` when nothing can wait, or when it does not pay.
    fn fetched(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let config = self.scan.config();
        let needed = self.needed();
        let late: Vec<usize> =
            config.projection.iter().enumerate().filter(|(at, _)| !needed.contains(at)).map(|(_, c)| *c).collect();
        if late.is_empty() || !self.pays(&late) {
            return Ok(None);
        }
        let source = Arc::new(config.source.with_positions(ROW_COLUMN));
        let row_column = config.source.schema().fields().len();
        let kept: Vec<usize> = needed.iter().copied().collect();
        let mut projection: Vec<usize> = kept.iter().filter_map(|at| config.projection.get(*at).copied()).collect();
        projection.push(row_column);
        let mut node: Arc<dyn ExecutionPlan> = Arc::new(self.scan.narrowed(Arc::clone(&source), projection)?);
        // Of each column of the node that is rebuilt: where it is in the new one, or which column of the table it was.
        let place = |(at, column): (usize, &usize)| match kept.binary_search(&at) {
            Ok(place) => Place::Kept(place),
            Err(_) => Place::Late(*column),
        };
        let mut places: Vec<Place> = config.projection.iter().enumerate().map(place).collect();
        for projection in self.below.iter().rev() {
            (node, places) = narrowed(projection, node, &places)?;
        }
        let Some(order) = ordering(self.sort.expr(), &places)? else { return Ok(None) };
        let sort = SortExec::new(order, node).with_fetch(Some(self.rows));
        node = Arc::new(sort.with_preserve_partitioning(self.sort.preserve_partitioning()));
        for projection in self.above.iter().rev() {
            (node, places) = narrowed(projection, node, &places)?;
        }
        if let Some(merge) = self.merge {
            let Some(order) = ordering(merge.expr(), &places)? else { return Ok(None) };
            node = Arc::new(SortPreservingMergeExec::new(order, node).with_fetch(merge.fetch()));
        }
        let mut columns: Vec<usize> = Vec::new();
        let mut origin = |place: &Place| match place {
            Place::Kept(at) => Origin::Input(*at),
            Place::Late(column) => Origin::Fetched(columns.iter().position(|c| c == column).unwrap_or_else(|| {
                columns.push(*column);
                columns.len() - 1
            })),
        };
        let outputs: Vec<Origin> = places.iter().map(&mut origin).collect();
        // Nothing of what is late is handed on to the top.
        if columns.is_empty() {
            return Ok(None);
        }
        let position = node.schema().fields().len() - 1;
        let of = (Arc::clone(&config.source), columns);
        Ok(Some(Arc::new(FetchExec::new(node, of, (position, outputs), Arc::clone(plan.properties())))))
    }
}

/// The projections from a node down, and what is below them.
fn projections(mut node: &Arc<dyn ExecutionPlan>) -> (Vec<&ProjectionExec>, &Arc<dyn ExecutionPlan>) {
    let mut found = Vec::new();
    while let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        found.push(projection);
        node = projection.input();
    }
    (found, node)
}

/// A projection without what is late, over a node without it whose last column are positions.
fn narrowed(
    projection: &ProjectionExec,
    node: Arc<dyn ExecutionPlan>,
    places: &[Place],
) -> Result<(Arc<dyn ExecutionPlan>, Vec<Place>)> {
    let mut outputs = Vec::new();
    let mut next = Vec::new();
    for output in projection.expr() {
        match plain(&output.expr).and_then(|column| places.get(column.index())) {
            Some(Place::Late(column)) => next.push(Place::Late(*column)),
            _ => {
                next.push(Place::Kept(outputs.len()));
                outputs.push(ProjectionExpr { expr: moved(&output.expr, places)?, alias: output.alias.clone() });
            }
        }
    }
    let position = Arc::new(Column::new(ROW_COLUMN, node.schema().fields().len() - 1));
    outputs.push(ProjectionExpr { expr: position, alias: ROW_COLUMN.to_owned() });
    Ok((Arc::new(ProjectionExec::try_new(outputs, node)?), next))
}

/// What became of a column of a node.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// It is at this place of the new node.
    Kept(usize),
    /// It is this column of the table, and fetched later.
    Late(usize),
}

/// A column that is handed on as it is.
fn plain(expr: &Arc<dyn PhysicalExpr>) -> Option<&Column> {
    expr.downcast_ref::<Column>()
}

/// An expression over the new node.
fn moved(expr: &Arc<dyn PhysicalExpr>, places: &[Place]) -> Result<Arc<dyn PhysicalExpr>> {
    let rewrite = |expr: Arc<dyn PhysicalExpr>| match plain(&expr).map(|c| (c.name().to_owned(), places.get(c.index())))
    {
        Some((name, Some(Place::Kept(at)))) => Ok(Transformed::yes(Arc::new(Column::new(&name, *at)) as _)),
        Some((name, _)) => datafusion::common::internal_err!("column {name} is needed before it is fetched"),
        None => Ok(Transformed::no(expr)),
    };
    Arc::clone(expr).transform_down(rewrite).data()
}

fn ordering(order: &LexOrdering, places: &[Place]) -> Result<Option<LexOrdering>> {
    let sort = |sort: &PhysicalSortExpr| Ok(PhysicalSortExpr::new(moved(&sort.expr, places)?, sort.options));
    Ok(LexOrdering::new(order.iter().map(sort).collect::<Result<Vec<_>>>()?))
}
