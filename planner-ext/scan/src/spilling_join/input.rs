//! Gives DataFusion's join its inputs: the collected build side and the running probe side.
//!
//! A join executes its children with a context. [`InputExec`] stands for a child and returns the stream that
//! [`Inputs`], an extension of that context, has for it. A stream is taken when it is first polled: the join can be
//! executed before its build side is collected, and dropped without losing its inputs.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::TryStreamExt;
use parking_lot::Mutex;

use super::memory::BuildMemory;

/// A side of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Build,
    Probe,
}

/// A stream that is put in once and taken once.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<SendableRecordBatchStream>>);

impl Slot {
    pub(super) fn new(stream: SendableRecordBatchStream) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(stream))))
    }

    pub(super) fn put(&self, stream: SendableRecordBatchStream) {
        *self.0.lock() = Some(stream);
    }

    pub(super) fn take(&self) -> Result<SendableRecordBatchStream> {
        self.0.lock().take().ok_or_else(|| internal_datafusion_err!("the input of a join was taken before"))
    }
}

/// The inputs of one execution of a join.
pub(super) struct Inputs {
    pub(super) build: Arc<Slot>,
    pub(super) probe: Arc<Slot>,
    /// Settled when the join begins to probe: its hash table is built then. `None` if the batches are used again.
    pub(super) memory: Option<Arc<BuildMemory>>,
}

impl Inputs {
    /// The context that a join with these inputs and `pool` is executed with. The join and its inputs call no functions
    /// of the session.
    pub(super) fn context(self, original: &TaskContext, pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
        let mut runtime = original.runtime_env().as_ref().clone();
        runtime.memory_pool = pool;
        let config = original.session_config().clone().with_extension(Arc::new(self));
        Arc::new(TaskContext::new(
            original.task_id(),
            original.session_id(),
            config,
            HashMap::new(),
            HashMap::new(),
            HashMap::new(),
            HashMap::new(),
            Arc::new(runtime),
        ))
    }
}

/// A stream of batches.
pub(super) fn batches_stream(schema: SchemaRef, batches: Vec<RecordBatch>) -> SendableRecordBatchStream {
    Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::iter(batches.into_iter().map(Ok))))
}

/// Stands for an input of a join.
#[derive(Debug)]
pub(super) struct InputExec {
    side: Side,
    /// The plan of the input, where the join looks into it for readers of its dynamic filter.
    plan: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl InputExec {
    /// Stands for `plan`, with its partitions and order.
    pub(super) fn for_plan(side: Side, plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { side, plan: Some(Arc::clone(plan)), properties: Arc::clone(plan.properties()) })
    }

    /// Stands for `plan` as if it had one partition.
    pub(super) fn for_one_of(side: Side, plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let one = plan.properties().as_ref().clone().with_partitioning(Partitioning::UnknownPartitioning(1));
        Arc::new(Self { side, plan: Some(Arc::clone(plan)), properties: Arc::new(one) })
    }

    /// Stands for one partition of rows in no order.
    pub(super) fn for_rows(side: Side, schema: SchemaRef) -> Arc<dyn ExecutionPlan> {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Arc::new(Self { side, plan: None, properties: Arc::new(properties) })
    }
}

impl DisplayAs for InputExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputExec: {:?}", self.side)
    }
}

impl ExecutionPlan for InputExec {
    fn name(&self) -> &str {
        "InputExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.iter().collect()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true; self.children().len()]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(match children.first() {
            Some(plan) => Self::for_plan(self.side, plan),
            None => self,
        })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let inputs = context
            .session_config()
            .get_extension::<Inputs>()
            .ok_or_else(|| internal_datafusion_err!("a join has no inputs"))?;
        let side = self.side;
        let taken = futures::stream::once(async move {
            match side {
                Side::Build => inputs.build.take(),
                Side::Probe => {
                    inputs.memory.iter().for_each(|memory| memory.settle());
                    inputs.probe.take()
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), taken.try_flatten())))
    }
}
