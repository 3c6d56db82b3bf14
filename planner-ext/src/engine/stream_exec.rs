//! An operator that passes the batches of its input through a function.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, Statistics};
use futures::stream::BoxStream;

type Batches = BoxStream<'static, Result<RecordBatch>>;
type Function = dyn Fn(SendableRecordBatchStream, &TaskContext) -> Batches + Send + Sync;
type Failure = fn(DataFusionError) -> DataFusionError;

/// Passes the batches of its input through a function that keeps rows, their values and their order.
pub(super) struct StreamExec {
    name: &'static str,
    input: Arc<dyn ExecutionPlan>,
    /// `None` for those of the input.
    properties: Option<Arc<PlanProperties>>,
    function: Arc<Function>,
    /// What becomes of an error of the input before it has a stream; `None` for nothing.
    failure: Option<Failure>,
}

impl StreamExec {
    pub(super) fn new(
        name: &'static str,
        input: Arc<dyn ExecutionPlan>,
        function: impl Fn(SendableRecordBatchStream, &TaskContext) -> Batches + Send + Sync + 'static,
    ) -> Self {
        Self { name, input, properties: None, function: Arc::new(function), failure: None }
    }

    /// For a function that returns the values in columns of other types: those that `properties` announce.
    pub(super) fn with_properties(self, properties: Arc<PlanProperties>) -> Self {
        Self { properties: Some(properties), ..self }
    }

    /// Changes an error that the input has before it has a stream.
    pub(super) fn with_failure(self, failure: Failure) -> Self {
        Self { failure: Some(failure), ..self }
    }
}

impl fmt::Debug for StreamExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name).field("input", &self.input).finish_non_exhaustive()
    }
}

impl DisplayAs for StreamExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => f.write_str(self.name),
        }
    }
}

impl ExecutionPlan for StreamExec {
    fn name(&self) -> &str {
        self.name
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.properties.as_ref().unwrap_or_else(|| self.input.properties())
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
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
        let [input] = <[_; 1]>::try_from(children)
            .or_else(|children| internal_err!("{} with {} children", self.name, children.len()))?;
        let (properties, function) = (self.properties.clone(), Arc::clone(&self.function));
        Ok(Arc::new(Self { name: self.name, input, properties, function, failure: self.failure }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context));
        let input = input.map_err(|error| match self.failure {
            Some(failure) => failure(error),
            None => error,
        })?;
        let batches = (self.function)(input, &context);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("{} with {} inputs", self.name, inputs.len()),
        }
    }
}
