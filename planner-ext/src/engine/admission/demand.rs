//! The query memory that a plan needs, weighted by time.
//!
//! From Hetero-DB (section 4.3): `m = sum(t * m) / sum(t)` over the operators of a plan, where `m` is the memory of an
//! operator and `t` its predicted time. A statement with one large sort among long scans needs that memory for a part of
//! its time only, so statements can share memory that the sum of their largest needs exceeds. Operators that have finished
//! count no longer.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::windows::WindowAggExec;
use parking_lot::Mutex;
use terrace_scan::joins::{Size, visit_sizes};
use terrace_scan::spilling_join::SpillingHashJoinExec;

/// All operators of a point statement together have at most so many rows.
const POINT_ROWS: u64 = 100_000;
/// It also needs at most this much memory.
const POINT_BYTES: u64 = 1 << 20;

/// The memory that a plan needs.
#[derive(Debug, Default)]
pub(in crate::engine) struct Demand {
    operators: Mutex<Vec<OperatorDemand>>,
    is_point: bool,
}

#[derive(Debug)]
struct OperatorDemand {
    progress: Progress,
    partitions: usize,
    /// Predicted time; its unit does not matter.
    time: f64,
    bytes: u64,
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
    pub(in crate::engine) fn from_plan(plan: &Arc<dyn ExecutionPlan>, most_bytes: u64) -> Result<Arc<Self>> {
        let mut operators = Vec::new();
        let mut all_rows = 0_u64;
        let mut is_known = true;
        visit_sizes(plan, &mut |operator, inputs, own| {
            // Only tables of the schema `system` are streams; they are small, but how small is not known.
            let is_leaf = inputs.is_empty() && !operator.is::<StreamingTableExec>();
            is_known &= own.rows.is_some() || !is_leaf && !is_join(operator);
            let own_rows = own.rows.unwrap_or(0);
            all_rows = all_rows.saturating_add(own_rows);
            let rows = inputs.iter().filter_map(|input| input.rows).fold(own_rows, u64::saturating_add);
            // An operator without metrics never ends, and holds no memory.
            if operator.metrics().is_some() {
                operators.push(OperatorDemand {
                    progress: Progress::Planned(Arc::clone(operator)),
                    partitions: operator.properties().partitioning.partition_count(),
                    time: rows as f64,
                    bytes: memory_of(operator, inputs, own).min(most_bytes),
                });
            }
        })?;
        let demand = Self { operators: Mutex::new(operators), is_point: false };
        let is_point = is_known && all_rows <= POINT_ROWS && demand.most_bytes() <= POINT_BYTES;
        Ok(Arc::new(Self { is_point, ..demand }))
    }

    /// That of a statement of which nothing is known.
    pub(in crate::engine) fn fixed(bytes: u64) -> Arc<Self> {
        let progress = Progress::Executing(MetricsSet::new());
        let whole = OperatorDemand { progress, partitions: 1, time: 1.0, bytes };
        Arc::new(Self { operators: Mutex::new(vec![whole]), is_point: false })
    }

    /// That of a statement that reads and needs next to nothing.
    pub(in crate::engine) fn point() -> Arc<Self> {
        Arc::new(Self { operators: Mutex::default(), is_point: true })
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
        let (mut time, mut weighted) = (0.0, 0.0);
        for operator in self.operators.lock().iter().filter(|operator| !operator.has_finished()) {
            time += operator.time;
            weighted += operator.time * operator.bytes as f64;
        }
        if time > 0.0 { (weighted / time) as u64 } else { 0 }
    }

    /// The sum of what all operators need at most.
    pub(in crate::engine) fn most_bytes(&self) -> u64 {
        self.operators.lock().iter().map(|operator| operator.bytes).fold(0, u64::saturating_add)
    }

    /// Whether it is that of a point statement.
    pub(in crate::engine) fn is_point(&self) -> bool {
        self.is_point
    }

    #[cfg(test)]
    pub(super) fn from_operators(operators: impl IntoIterator<Item = (f64, u64)>) -> Arc<Self> {
        let operator = |(time, bytes)| {
            let progress = Progress::Executing(MetricsSet::new());
            OperatorDemand { progress, partitions: 1, time, bytes }
        };
        Arc::new(Self { operators: Mutex::new(operators.into_iter().map(operator).collect()), is_point: false })
    }
}

fn is_join(operator: &Arc<dyn ExecutionPlan>) -> bool {
    operator.is::<SpillingHashJoinExec>() || operator.is::<CrossJoinExec>() || operator.is::<NestedLoopJoinExec>()
}

/// The memory that an operator holds at most, by the sizes of its inputs and of its output.
fn memory_of(operator: &Arc<dyn ExecutionPlan>, inputs: &[Size], own: Size) -> u64 {
    let input = inputs.first().copied().unwrap_or_default();
    if is_join(operator) {
        input.bytes
    } else if let Some(sort) = operator.downcast_ref::<SortExec>() {
        match (sort.fetch(), input.rows) {
            (Some(fetch), Some(rows)) if rows > 0 => {
                (input.bytes as f64 * (fetch as f64 / rows as f64).min(1.0)) as u64
            }
            _ => input.bytes,
        }
    } else if operator.is::<AggregateExec>() {
        own.bytes.min(input.bytes)
    } else if operator.is::<WindowAggExec>() {
        input.bytes
    } else {
        0
    }
}
