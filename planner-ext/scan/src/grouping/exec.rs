//! [`KeyedAggregateExec`], the plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, InputOrderMode, PlanProperties};

use super::functions::{Functions, States};
use super::fused::{fused, unfused};
use super::layout::{Layout, scan_below};
use super::run::{GroupTable, Run, RunMetrics};

/// A partial aggregation over a scan that groups by the keys of the scan's dictionaries.
pub(crate) struct KeyedAggregateExec {
    /// The aggregation as it was planned; what is left is handed over to it.
    aggregate: Arc<AggregateExec>,
    layout: Arc<Layout>,
    functions: Arc<Functions>,
    metrics: ExecutionPlanMetricsSet,
}

impl KeyedAggregateExec {
    /// The operator in place of `aggregate`; `None` where that is not partial, not over a scan, or has keys or aggregates for which
    /// DataFusion's operator is needed.
    pub(super) fn over(aggregate: &AggregateExec) -> Option<Self> {
        Self::unestimated(aggregate).filter(|keyed| keyed.layout.pays(aggregate))
    }

    /// Like [`KeyedAggregateExec::over`], but however many groups are expected.
    pub(super) fn unestimated(aggregate: &AggregateExec) -> Option<Self> {
        let groups = aggregate.group_expr();
        let is_plain = *aggregate.mode() == AggregateMode::Partial
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.limit_options().is_none()
            && groups.is_single()
            && aggregate.dynamic_expressions_produced().is_empty();
        if !is_plain {
            return None;
        }
        let layout = Layout::new(aggregate)?;
        Some(Self {
            functions: Arc::new(Functions::new(aggregate, &layout)?),
            layout: Arc::new(layout),
            aggregate: Arc::new(fused(aggregate)),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

impl fmt::Debug for KeyedAggregateExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedAggregateExec").field("aggregate", &self.aggregate).finish_non_exhaustive()
    }
}

impl DisplayAs for KeyedAggregateExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if t != DisplayFormatType::TreeRender {
            f.write_str("Keyed")?;
        }
        self.aggregate.fmt_as(t, f)?;
        let hosted: Vec<&str> = self.functions.hosted(&self.aggregate).map(|function| function.name()).collect();
        if t == DisplayFormatType::TreeRender || hosted.is_empty() {
            return Ok(());
        }
        write!(f, ", accumulators=[{}]", hosted.join(", "))
    }
}

impl ExecutionPlan for KeyedAggregateExec {
    fn name(&self) -> &str {
        "KeyedAggregateExec"
    }

    /// Whoever looks for aggregations in a plan finds the one that this operator stands for.
    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.aggregate.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.aggregate.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.aggregate.input()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.aggregate.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let aggregate = Arc::clone(&self.aggregate).replace_children(children, options)?;
        let Some(aggregate) = aggregate.downcast_ref::<AggregateExec>() else {
            return internal_err!("AggregateExec became another operator");
        };
        Ok(match Self::over(aggregate) {
            Some(keyed) => Arc::new(keyed) as Arc<dyn ExecutionPlan>,
            None => Arc::new(unfused(aggregate)),
        })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(scan) = scan_below(&self.aggregate) else {
            return internal_err!("an aggregation by keys is not over a scan");
        };
        let (input, codes) = scan.execute_coded(partition, &context, &self.layout.coded)?;
        let states = States::new(&self.functions, &self.aggregate)?;
        let count = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        let metrics = RunMetrics {
            baseline: Arc::new(BaselineMetrics::new(&self.metrics, partition)),
            groups: count("groups"),
            handed_over: count("handed_over"),
        };
        let run = Run {
            aggregate: Arc::clone(&self.aggregate),
            layout: Arc::clone(&self.layout),
            partition,
            memory: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
            context,
            input,
            codes,
            metrics,
            table: GroupTable::new(self.layout.keys.len(), states),
        };
        Ok(run.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.aggregate.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.aggregate.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.aggregate.cardinality_effect()
    }
}
