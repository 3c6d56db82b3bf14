//! Late fetch for `ORDER BY .. LIMIT`: of every row only the columns that the order needs are read, the other columns
//! only of the rows that are left.
//!
//! ```text
//!   SortPreservingMergeExec: fetch=10                 FetchExec: columns=[wide]
//!     SortExec: TopK(fetch=10)                  =>      SortPreservingMergeExec: fetch=10
//!       TierScanExec: columns=[key, wide]                 SortExec: TopK(fetch=10)
//!                                                           TierScanExec: columns=[key, __row]
//! ```
//!
//! A scan that reads its filters' columns first already skips the rows that a top-k's run-time filter excludes; but all
//! rows of the first chunks pass that filter, and so does every later row that is among the first k for a while. The
//! rule runs before run-time filters are pushed down, so that these are made over the narrow rows.

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
use terrace_error::ROW_COLUMN;

/// Largest k for which rows are fetched one by one.
const MOST_ROWS: usize = 10_000;
/// Share of the bytes that fetching has to save.
const LEAST_SAVED: f64 = 0.75;
/// Late columns of fewer bytes are read with the others.
const LEAST_BYTES: u64 = 1 << 20;
/// Number of chunks that are sampled for the sizes of columns.
const SAMPLE: usize = 16;

/// The optimizer rule.
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
            let fetched = TopK::find(&plan).map(|found| found.with_fetch(&plan)).transpose()?.flatten();
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
    fn find(plan: &'a Arc<dyn ExecutionPlan>) -> Option<Self> {
        let merge = plan.downcast_ref::<SortPreservingMergeExec>();
        let (above, input) = merge.map_or((Vec::new(), plan), |merge| projections(merge.input()));
        let sort = input.downcast_ref::<SortExec>()?;
        let rows = sort.fetch().filter(|rows| (1..=MOST_ROWS).contains(rows))?;
        // If each partition is sorted by itself, each of them emits k rows: only a merge with the same limit leaves k.
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

    /// The output columns of the scan that are evaluated before the rows are chosen: all but those that are only passed
    /// on.
    fn needed(&self) -> BTreeSet<usize> {
        let columns_of = |expr: &Arc<dyn PhysicalExpr>| collect_columns(expr).into_iter().map(|c| c.index());
        let ordered_by = |order: &LexOrdering| order.iter().flat_map(|sort| columns_of(&sort.expr)).collect();
        let through = |needed: BTreeSet<usize>, projection: &&ProjectionExec| {
            let outputs = projection.expr().iter().enumerate();
            let evaluated = outputs.filter(|(at, output)| needed.contains(at) || plain(&output.expr).is_none());
            evaluated.flat_map(|(_, output)| columns_of(&output.expr)).collect()
        };
        let merged: BTreeSet<usize> = self.merge.map_or_else(BTreeSet::new, |merge| ordered_by(merge.expr()));
        let mut needed = self.above.iter().fold(merged, through);
        needed.append(&mut ordered_by(self.sort.expr()));
        let mut needed = self.below.iter().fold(needed, through);
        let config = self.scan.config();
        // Columns of filters are read anyway.
        let filtered: BTreeSet<usize> = config.filters.iter().chain(&config.dynamic).flat_map(columns_of).collect();
        let read = config.projection.iter().enumerate().filter(|(_, column)| filtered.contains(column));
        needed.extend(read.map(|(at, _)| at));
        needed
    }

    /// True when fetching the `late` columns row by row saves enough.
    fn pays(&self, late: &[usize]) -> bool {
        let config = self.scan.config();
        let step = (config.chunks.len() / SAMPLE).max(1);
        let mut all = 0_u64;
        let mut per_row = 0_u64;
        let mut chunks = 0_u32;
        for entry in config.chunks.iter().step_by(step).filter_map(|item| config.source.chunk(*item)) {
            let middle = entry.chunk.rows as usize / 2;
            let row = middle..middle + 1;
            let home = config.source.store.home();
            let bytes = |wanted| late.iter().map(|c| home.bytes_to_read(&entry.chunk, *c, wanted)).sum::<u64>();
            all += bytes(None);
            per_row += bytes(Some(std::slice::from_ref(&row)));
            chunks += 1;
        }
        if all * step as u64 <= LEAST_BYTES {
            return false;
        }
        let fetched = per_row as f64 / f64::from(chunks.max(1)) * self.rows as f64;
        fetched <= (1.0 - LEAST_SAVED) * all as f64 * step as f64
    }

    /// The plan with late columns fetched at the top; `None` when no column can be late, or when it does not pay.
    fn with_fetch(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let config = self.scan.config();
        let needed = self.needed();
        let late: Vec<usize> =
            config.projection.iter().enumerate().filter(|(at, _)| !needed.contains(at)).map(|(_, c)| *c).collect();
        if late.is_empty() || !self.pays(&late) {
            return Ok(None);
        }
        let source = Arc::new(config.source.with_positions(ROW_COLUMN));
        let row_column = config.source.schema().fields().len();
        let narrow: Vec<usize> = needed.iter().copied().collect();
        let mut projection: Vec<usize> = narrow.iter().filter_map(|at| config.projection.get(*at).copied()).collect();
        projection.push(row_column);
        let mut node: Arc<dyn ExecutionPlan> = Arc::new(self.scan.narrowed(Arc::clone(&source), projection)?);
        // For each column of the original node: its place in the rebuilt one, or the column of the table that it was.
        let place = |(at, column): (usize, &usize)| match narrow.binary_search(&at) {
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
        // No late column reaches the top, so there is nothing to fetch.
        if columns.is_empty() {
            return Ok(None);
        }
        let position = node.schema().fields().len() - 1;
        let source = Arc::clone(&config.source);
        let properties = Arc::clone(plan.properties());
        Ok(Some(Arc::new(FetchExec::new(node, source, columns, position, outputs, properties))))
    }
}

/// The projections from a node down, and the node below them.
fn projections(mut node: &Arc<dyn ExecutionPlan>) -> (Vec<&ProjectionExec>, &Arc<dyn ExecutionPlan>) {
    let mut found = Vec::new();
    while let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        found.push(projection);
        node = projection.input();
    }
    (found, node)
}

/// Rebuilds a projection without the late columns over a narrowed node whose last column holds the row positions.
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

/// Place of a column of the original plan in the narrowed one.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The column at this position of the new node.
    Kept(usize),
    /// This column of the table, which is fetched later.
    Late(usize),
}

/// The column, if an expression only passes one on.
fn plain(expr: &Arc<dyn PhysicalExpr>) -> Option<&Column> {
    expr.downcast_ref::<Column>()
}

/// Rewrites an expression to the columns of the new node.
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
