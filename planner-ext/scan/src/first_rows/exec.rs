//! [`FirstRowsPerGroupExec`], the plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, apply_expression_roots,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use super::candidates::Candidates;
use super::pattern::FirstRows;
use super::run::{Run, RunMetrics};

/// Rows after which a partition knows whether groups have enough rows, if their number was not known before.
const PATIENCE_ROWS: usize = 1 << 20;
/// With the expected number of groups, it is so many times the rows that may be kept of them, so that at most a quarter is.
const PATIENCE_FACTOR: usize = 4;
/// The fewest and the most rows of it.
const PATIENCE_RANGE: (usize, usize) = (1 << 16, 1 << 24);

/// Passes on the first rows of each group of a partition, in no particular order, and drops the others. It passes on all rows that are
/// left when too few of them are dropped, or when memory is refused.
#[derive(Debug)]
pub struct FirstRowsPerGroupExec {
    input: Arc<dyn ExecutionPlan>,
    first: FirstRows,
    /// Groups that are expected.
    groups: Option<usize>,
    /// Rows that a partition reads before it may find that too few are dropped.
    patience: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl FirstRowsPerGroupExec {
    /// Keeps `first` of the rows of `input`, in which so many groups are expected.
    pub(super) fn new(input: Arc<dyn ExecutionPlan>, first: FirstRows, groups: Option<usize>) -> Self {
        let (fewest, most) = PATIENCE_RANGE;
        let patience = groups.map_or(PATIENCE_ROWS, |groups| {
            groups.saturating_mul(first.most).saturating_mul(PATIENCE_FACTOR).clamp(fewest, most)
        });
        let properties = Arc::new(properties(&input));
        Self { input, first, groups, patience, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// With fewer rows before it may find that too few are dropped.
    #[cfg(test)]
    pub(super) fn with_patience(&self, patience: usize) -> Self {
        Self { patience, ..Self::new(Arc::clone(&self.input), self.first.clone(), self.groups) }
    }

    /// Its input.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The expressions by which rows are grouped, and those by which they are ordered.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.first.groups.iter().chain(self.first.order.iter().map(|sort| &sort.expr))
    }
}

/// Those of the input, without its order.
fn properties(input: &Arc<dyn ExecutionPlan>) -> PlanProperties {
    let mut equivalences = input.equivalence_properties().clone();
    equivalences.clear_orderings();
    PlanProperties::new(equivalences, input.output_partitioning().clone(), EmissionType::Final, input.boundedness())
}

impl DisplayAs for FirstRowsPerGroupExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.first.groups.iter().map(ToString::to_string).collect();
        let order: Vec<String> = self.first.order.iter().map(ToString::to_string).collect();
        let rows = self.first.most;
        let groups = groups.join(", ");
        let order = order.join(", ");
        match t {
            DisplayFormatType::TreeRender => write!(f, "rows={rows}\ngroups=[{groups}]\norder=[{order}]"),
            _ => write!(f, "{}: rows={rows}, groups=[{groups}], order=[{order}]", self.name()),
        }
    }
}

impl ExecutionPlan for FirstRowsPerGroupExec {
    fn name(&self) -> &str {
        "FirstRowsPerGroupExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.keys(), f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .or_else(|children| internal_err!("{} with {} children", self.name(), children.len()))?;
        let other = Self::new(input, self.first.clone(), self.groups);
        Ok(Arc::new(Self { patience: self.patience, ..other }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let count = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        let metrics = RunMetrics {
            baseline: Arc::new(BaselineMetrics::new(&self.metrics, partition)),
            kept: count("kept"),
            dropped: count("dropped"),
            handed_over: count("handed_over"),
        };
        // It needs no memory to go on, as those that spill.
        let consumer = MemoryConsumer::new(format!("{}[{partition}]", self.name())).with_can_spill(true);
        let run = Run {
            candidates: Candidates::new(&self.first, &self.schema())?,
            memory: consumer.register(context.memory_pool()),
            batch_rows: context.session_config().batch_size().max(1),
            patience: self.patience,
            input: self.input.execute(partition, context)?,
            metrics,
        };
        Ok(run.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let [input] = inputs else { return internal_err!("{} with {} inputs", self.name(), inputs.len()) };
        let mut statistics = Statistics::clone(input).to_inexact();
        if let Some((rows, groups)) = statistics.num_rows.get_value().zip(self.groups) {
            let partitions = args.partition().map_or(self.properties.partitioning.partition_count(), |_| 1);
            let kept = groups.saturating_mul(self.first.most).saturating_mul(partitions);
            if kept < *rows {
                statistics.num_rows = Precision::Inexact(kept);
                statistics.total_byte_size = Precision::Absent;
            }
        }
        Ok(Arc::new(statistics))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
