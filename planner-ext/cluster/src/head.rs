//! The part of a plan that the coordinator executes.
//!
//! A plan that was cut into stages still has all stages below its boundaries. Changes that replace operators of DataFusion by
//! ours are made to the part above them only: a node makes them to its own part, after it has read it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_distributed::{BroadcastExec, NetworkBoundaryExt};

/// The plan with `change` made to the part above its boundaries.
///
/// # Errors
/// Those of `change`.
pub fn with_head(
    plan: Arc<dyn ExecutionPlan>,
    change: impl FnOnce(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let hidden = plan.transform_down(|node| {
        Ok(match node.is_network_boundary() {
            true => Transformed::new(Arc::new(Hidden(node)) as _, true, TreeNodeRecursion::Jump),
            false => Transformed::no(node),
        })
    })?;
    let changed = change(hidden.data)?;
    let shown = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<Hidden>() {
        Some(Hidden(boundary)) => Ok(Transformed::yes(Arc::clone(boundary))),
        None => Ok(Transformed::no(node)),
    };
    changed.transform_up(shown).data()
}

/// The part of a plan that a task executes, with `change` made below the exchange at its top, if it has one: the library replaces
/// that exchange by one for as many tasks as will read from it.
///
/// # Errors
/// Those of `change`.
pub fn below_exchange(
    plan: Arc<dyn ExecutionPlan>,
    change: impl FnOnce(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !plan.is::<RepartitionExec>() && !plan.is::<BroadcastExec>() {
        return change(plan);
    }
    let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
    match <[_; 1]>::try_from(inputs) {
        Ok([input]) => replace_children_if_necessary(plan, vec![change(input)?]),
        Err(_) => Ok(plan),
    }
}

/// A boundary that hides the stages below it.
#[derive(Debug)]
struct Hidden(Arc<dyn ExecutionPlan>);

impl DisplayAs for Hidden {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(t, f)
    }
}

impl ExecutionPlan for Hidden {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.0.execute(partition, context)
    }
}
