//! The query memory that a plan needs, weighted by time.
//!
//! From Hetero-DB (section 4.3): `m = sum(t * m) / sum(t)` over the operators of a plan, where `m` is the memory of an
//! operator and `t` its predicted time. A statement with one large sort among long scans needs that memory for a part of
//! its time only, so statements can share memory that the sum of their largest needs exceeds. Operators that have finished
//! count no longer.
//!
//! DataFusion's operators work in pipelines, which end at operators that keep all rows: sorts, aggregations, build sides of
//! joins. Such an operator holds its memory while its input fills it and while its rows are taken, so its time here is that
//! of all operators of the pipelines at whose end or beginning it is.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::streaming::StreamingTableExec;
use parking_lot::Mutex;
use terrace_scan::joins::{ENTRY_BYTES, Size, visit_sizes};
use terrace_scan::scan::{TierScanExec, blocks_on};
use terrace_scan::spilling_join::SpillingHashJoinExec;

use crate::engine::windows::PartitionedWindowExec;

/// All operators of a point statement together have at most so many rows.
const POINT_ROWS: u64 = 100_000;
/// They keep at most so many bytes of them.
const POINT_BYTES: u64 = 1 << 20;

/// What a sort reserves for its merge: DataFusion's `sort_spill_reservation_bytes`.
const SORT_MERGE_BYTES: u64 = 10 << 20;

/// The memory that a plan needs.
#[derive(Debug, Default)]
pub(in crate::engine) struct Demand {
    operators: Mutex<Vec<OperatorDemand>>,
    is_point: bool,
    /// Whether all that it reads are tables of the schema `system`.
    is_about_system: bool,
    /// Whether the statement does not begin without it, even if no other one executes.
    is_required: bool,
}

#[derive(Debug)]
struct OperatorDemand {
    progress: Progress,
    partitions: usize,
    /// Predicted time that it computes; its unit does not matter.
    time: f64,
    /// Predicted time during which it holds its memory.
    held_time: f64,
    bytes: u64,
}

/// Operators that work at the same time: each passes on its rows as they come.
#[derive(Debug, Default)]
struct Pipeline {
    time: f64,
    /// Numbers of the operators that hold memory meanwhile.
    holders: Vec<usize>,
}

impl Pipeline {
    /// Ends: its holders have held their memory for its time.
    fn end(self, operators: &mut [OperatorDemand]) {
        for holder in self.holders {
            if let Some(operator) = operators.get_mut(holder) {
                operator.held_time += self.time;
            }
        }
    }
}

/// Where it shows whether an operator has ended.
#[derive(Debug)]
enum Progress {
    /// It has not been executed.
    Planned(Arc<dyn ExecutionPlan>),
    /// The metrics of those partitions that were executed then. The plan itself would keep alive what its operators share:
    /// build sides, exchanges with their tasks and rows.
    Executing(MetricsSet),
}

impl OperatorDemand {
    /// Whether all partitions of the operator have ended.
    fn has_finished(&self) -> bool {
        let Progress::Executing(metrics) = &self.progress else { return false };
        let ends = metrics.iter().filter_map(|metric| match metric.value() {
            MetricValue::EndTimestamp(end) => Some(end.value().is_some()),
            _ => None,
        });
        let (mut known, mut ended) = (0, 0);
        for has_ended in ends {
            known += 1;
            ended += usize::from(has_ended);
        }
        known >= self.partitions && ended == known
    }
}

impl Demand {
    /// The demand of a plan that has not started; no operator needs more than `most_bytes`.
    pub(in crate::engine) fn from_plan(plan: &Arc<dyn ExecutionPlan>, most_bytes: u64) -> Result<Self> {
        if is_scan_of_few_rows(plan) {
            return Ok(Self { is_point: true, ..Self::default() });
        }
        let mut operators: Vec<OperatorDemand> = Vec::new();
        // Those of the operators whose parents were not visited.
        let mut pipelines: Vec<Pipeline> = Vec::new();
        let (mut all_rows, mut all_rows_bytes) = (0_u64, 0_u64);
        let mut is_known = true;
        let (mut leaves, mut system_tables) = (0, 0);
        visit_sizes(plan, &mut |operator, inputs, own| {
            // Only tables of the schema `system` are streams; they are small, but how small is not known.
            let is_system_table = operator.is::<StreamingTableExec>();
            leaves += usize::from(inputs.is_empty());
            system_tables += usize::from(is_system_table);
            let is_leaf = inputs.is_empty() && !is_system_table;
            is_known &= own.rows.is_some() || !is_leaf && !is_join(operator);
            let own_rows = own.rows.unwrap_or(0);
            all_rows = all_rows.saturating_add(own_rows);
            let rows = inputs.iter().filter_map(|input| input.rows).fold(own_rows, u64::saturating_add);
            // An operator without metrics never ends, and holds no memory; what it does is done by those beside it.
            let has_metrics = operator.metrics().is_some();
            let time = if has_metrics { rows as f64 } else { 0.0 };
            let rows_bytes = if has_metrics { memory_of(operator, inputs, own) } else { 0 };
            all_rows_bytes = all_rows_bytes.saturating_add(rows_bytes);
            let number = operators.len();
            operators.push(OperatorDemand {
                progress: Progress::Planned(Arc::clone(operator)),
                partitions: operator.properties().partitioning.partition_count(),
                time,
                held_time: 0.0,
                bytes: if has_metrics { rows_bytes.saturating_add(merge_bytes(operator)).min(most_bytes) } else { 0 },
            });
            let mut own_pipeline = Pipeline { time, holders: vec![number] };
            let first_input = pipelines.len().saturating_sub(inputs.len());
            for (place, mut input) in pipelines.drain(first_input..).enumerate() {
                if keeps_input(operator, place) {
                    input.holders.push(number);
                    input.end(&mut operators);
                } else {
                    own_pipeline.time += input.time;
                    own_pipeline.holders.append(&mut input.holders);
                }
            }
            pipelines.push(own_pipeline);
        })?;
        pipelines.into_iter().for_each(|pipeline| pipeline.end(&mut operators));
        operators.retain(|operator| matches!(&operator.progress, Progress::Planned(plan) if plan.metrics().is_some()));
        let is_point = is_known && all_rows <= POINT_ROWS && all_rows_bytes <= POINT_BYTES;
        let is_about_system = leaves == system_tables && leaves > 0;
        Ok(Self { operators: Mutex::new(operators), is_point, is_about_system, is_required: false })
    }

    /// That of a statement which looked like a point statement and is none.
    pub(in crate::engine) fn without_point_slot(self) -> Self {
        Self { is_point: false, ..self }
    }

    /// That of a statement of which nothing is known.
    pub(in crate::engine) fn fixed(bytes: u64) -> Arc<Self> {
        Arc::new(Self::of_one(bytes))
    }

    fn of_one(bytes: u64) -> Self {
        let progress = Progress::Executing(MetricsSet::new());
        let whole = OperatorDemand { progress, partitions: 1, time: 1.0, held_time: 1.0, bytes };
        Self { operators: Mutex::new(vec![whole]), ..Self::default() }
    }

    /// That of a statement which has found out that it needs so much, and waits for it.
    pub(in crate::engine) fn required(bytes: u64) -> Arc<Self> {
        Arc::new(Self { is_required: true, ..Self::of_one(bytes) })
    }

    /// That of a statement that reads and needs next to nothing.
    pub(in crate::engine) fn point() -> Arc<Self> {
        Arc::new(Self { is_point: true, ..Self::default() })
    }

    /// Lets go of the plan, which executes now.
    pub(in crate::engine) fn release_plan(&self) {
        let mut plans = Vec::new();
        for operator in self.operators.lock().iter_mut() {
            if let Progress::Planned(plan) = &operator.progress {
                let metrics = plan.metrics().unwrap_or_default();
                if let Progress::Planned(plan) = std::mem::replace(&mut operator.progress, Progress::Executing(metrics))
                {
                    plans.push(plan);
                }
            }
        }
    }

    /// The weighted demand of the operators that have not finished.
    pub(in crate::engine) fn weighted_bytes(&self) -> u64 {
        let operators = self.operators.lock();
        let unfinished: Vec<&OperatorDemand> = operators.iter().filter(|operator| !operator.has_finished()).collect();
        let time: f64 = unfinished.iter().map(|operator| operator.time).sum();
        // Where the pipelines that are left have less time, those that began them hold their memory until the end.
        let share = |operator: &OperatorDemand| (operator.held_time / time).min(1.0);
        let weighted: f64 = unfinished.iter().map(|operator| share(operator) * operator.bytes as f64).sum();
        if time > 0.0 { weighted as u64 } else { 0 }
    }

    /// The sum of what all operators need at most.
    pub(in crate::engine) fn most_bytes(&self) -> u64 {
        self.operators.lock().iter().map(|operator| operator.bytes).fold(0, u64::saturating_add)
    }

    /// Whether it is that of a point statement.
    pub(in crate::engine) fn is_point(&self) -> bool {
        self.is_point
    }

    /// Whether all that the statement reads are tables of the schema `system`.
    pub(in crate::engine) fn is_about_system(&self) -> bool {
        self.is_about_system
    }

    /// Whether the statement does not begin without it, even if no other one executes.
    pub(in crate::engine) fn is_required(&self) -> bool {
        self.is_required
    }

    #[cfg(test)]
    pub(super) fn from_operators(operators: impl IntoIterator<Item = (f64, u64)>) -> Arc<Self> {
        let operator = |(time, bytes)| {
            let progress = Progress::Executing(MetricsSet::new());
            OperatorDemand { progress, partitions: 1, time, held_time: time, bytes }
        };
        Arc::new(Self { operators: Mutex::new(operators.into_iter().map(operator).collect()), ..Self::default() })
    }
}

/// Whether a plan is a scan that keeps nothing and has few rows even if all pass its filters, which then need not be estimated: that takes
/// longer than a look-up of a key.
fn is_scan_of_few_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<TierScanExec>().is_some_and(|scan| scan.most_rows() <= POINT_ROWS)
}

fn is_join(operator: &Arc<dyn ExecutionPlan>) -> bool {
    // Nodes replace the hash joins of their parts of a plan themselves.
    operator.is::<SpillingHashJoinExec>()
        || operator.is::<HashJoinExec>()
        || operator.is::<CrossJoinExec>()
        || operator.is::<NestedLoopJoinExec>()
}

/// Whether an operator takes all rows of the input at `place` before it passes on its own.
fn keeps_input(operator: &Arc<dyn ExecutionPlan>, place: usize) -> bool {
    operator.is::<PartitionedWindowExec>() || blocks_on(operator, place)
}

/// What an operator reserves besides, however few rows it has.
fn merge_bytes(operator: &Arc<dyn ExecutionPlan>) -> u64 {
    let sorts_all = operator.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none());
    let partitions = operator.properties().partitioning.partition_count() as u64;
    if sorts_all { partitions.saturating_mul(SORT_MERGE_BYTES) } else { 0 }
}

/// The memory that an operator holds for rows at most, by the sizes of its inputs and of its output.
fn memory_of(operator: &Arc<dyn ExecutionPlan>, inputs: &[Size], own: Size) -> u64 {
    let input = inputs.first().copied().unwrap_or_default();
    if is_join(operator) {
        input.bytes
    } else if let Some(sort) = operator.downcast_ref::<SortExec>() {
        match (sort.fetch(), input.rows) {
            (Some(fetch), Some(rows)) if rows > 0 => {
                (input.bytes as f64 * (fetch as f64 / rows as f64).min(1.0)) as u64
            }
            // It reserves its rows twice, and has no hash table.
            (_, rows) => {
                let entries = rows.unwrap_or(0).saturating_mul(ENTRY_BYTES as u64);
                input.bytes.saturating_sub(entries).saturating_mul(2)
            }
        }
    } else if let Some(aggregate) = operator.downcast_ref::<AggregateExec>() {
        // A row of the input has a group in each grouping set.
        if aggregate.group_expr().has_grouping_set() { own.bytes } else { own.bytes.min(input.bytes) }
    } else if operator.is::<PartitionedWindowExec>() {
        input.bytes
    } else {
        0
    }
}
