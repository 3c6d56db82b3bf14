//! Gives DataFusion's aggregation the rows that are left.

use std::fmt;
use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use parking_lot::Mutex;

/// Stands for the input of an aggregation; one of its partitions is executed, once.
pub(super) struct HandedOverExec {
    properties: Arc<PlanProperties>,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl HandedOverExec {
    /// Stands for a plan with these properties, of which `rows` are left.
    pub(super) fn new(properties: &Arc<PlanProperties>, rows: SendableRecordBatchStream) -> Self {
        Self { properties: Arc::clone(properties), rows: Mutex::new(Some(rows)) }
    }
}

impl fmt::Debug for HandedOverExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedOverExec").finish_non_exhaustive()
    }
}

impl DisplayAs for HandedOverExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandedOverExec")
    }
}

impl ExecutionPlan for HandedOverExec {
    fn name(&self) -> &str {
        "HandedOverExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        match self.rows.lock().take() {
            Some(rows) => Ok(rows),
            None => internal_err!("rows that are handed over were taken before"),
        }
    }
}
