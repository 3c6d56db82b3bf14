//! [`FusedProjectionExec`], a projection that the operator above evaluates.
//!
//! The operator takes the rows of the scan below with codes instead of texts, so the projection is not executed. It stays in the plan, where
//! it says what is computed, and has no metrics: whoever waits until all operators have ended must not wait for it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

const NAME: &str = "FusedProjectionExec";

/// Stands for a projection.
#[derive(Debug)]
struct FusedProjectionExec(Arc<ProjectionExec>);

/// The aggregation with the projection below, if there is one, evaluated by the operator that stands for it.
pub(super) fn fused(aggregate: &AggregateExec) -> AggregateExec {
    let mut fused = aggregate.clone();
    if fused.input.name() != NAME
        && let Some(projection) = fused.input.downcast_ref::<ProjectionExec>().cloned()
    {
        fused.input = Arc::new(FusedProjectionExec(Arc::new(projection)));
    }
    fused
}

/// The aggregation with a projection that is executed.
pub(super) fn unfused(aggregate: &AggregateExec) -> AggregateExec {
    let mut unfused = aggregate.clone();
    if let Some(projection) = unfused.input.downcast_ref::<ProjectionExec>().cloned() {
        unfused.input = Arc::new(projection);
    }
    unfused
}

impl DisplayAs for FusedProjectionExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if t != DisplayFormatType::TreeRender {
            f.write_str("Fused")?;
        }
        self.0.fmt_as(t, f)
    }
}

impl ExecutionPlan for FusedProjectionExec {
    fn name(&self) -> &str {
        NAME
    }

    /// Whoever looks for projections in a plan finds the one that this operator stands for.
    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.0.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.0.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.0.input()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = Arc::clone(&self.0).replace_children(children, options)?;
        Ok(match projection.downcast_ref::<ProjectionExec>() {
            Some(projection) => Arc::new(Self(Arc::new(projection.clone()))) as Arc<dyn ExecutionPlan>,
            None => projection,
        })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.0.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.0.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.0.cardinality_effect()
    }
}
