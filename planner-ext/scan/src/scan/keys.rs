//! The keys of a join's build side, passed to the scan that produces the other side.
//!
//! A hash join publishes its bounds and a lookup in its hash table, which costs a scan 15-30 ns a row. Where the join
//! has one integer key, [`JoinKeysExec`] notes the keys on their way into the table, and the scan tests a bitmap or a
//! Bloom filter of them: 1-2 ns. The rule runs last and only connects what DataFusion already connected by a run-time
//! filter, so a row that no key admits is one that filter would not have admitted either.
//!
//! Keys belong to one execution. A plan that runs again is a copy with its state reset; no scan gets the copy's keys.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Date32Type, Int16Type, Int32Type, Int64Type, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{NullEquality, Result, Statistics, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, replace_children_if_necessary};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;

use super::exec::TierScanExec;
use super::membership::Membership;

/// Keys of the largest build side that are noted; they take 32 MiB.
const MOST_KEYS: usize = 4 << 20;

/// Most bytes that a noted key takes, in a vector that grows.
const KEY_BYTES: usize = 2 * size_of::<i64>();

/// The keys of one join, once they are all known.
#[derive(Debug)]
pub struct JoinKeys {
    /// Identity of the run-time filter that the join publishes.
    filter: u64,
    partitions: usize,
    noted: Mutex<Noted>,
    complete: OnceLock<Arc<Membership>>,
    /// True when there are too many keys, or keys of more than one execution.
    given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    /// Partitions that have begun.
    begun: HashSet<usize>,
    /// Number of partitions that have ended.
    ended: usize,
    /// Keys of the partitions that have ended.
    keys: Vec<i64>,
    /// Number of keys of all partitions.
    count: usize,
    /// Memory charged for the keys, then for the filter made of them.
    reservation: Option<MemoryReservation>,
}

impl JoinKeys {
    fn new(filter: u64, partitions: usize) -> Self {
        let noted = Mutex::default();
        let complete = OnceLock::new();
        let given_up = AtomicBool::new(false);
        Self { filter, partitions, noted, complete, given_up }
    }

    /// Identity of the run-time filter that the join publishes.
    pub(super) fn filter(&self) -> u64 {
        self.filter
    }

    /// The set of all keys; `None` before all are known, and when they never will be.
    pub(super) fn complete(&self) -> Option<&Arc<Membership>> {
        self.complete.get().filter(|_| !self.given_up.load(Ordering::SeqCst))
    }

    /// Notes that a partition begins. If one begins twice, keys cannot be assigned to an execution, so they are given
    /// up.
    fn begin(&self, partition: usize) {
        let first = self.noted.lock().begun.insert(partition);
        if !first {
            self.give_up();
        }
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        let noted = &mut *self.noted.lock();
        (noted.keys, noted.reservation) = (Vec::new(), None);
    }

    /// Reserves memory for more keys; false when there are too many.
    fn reserve(&self, keys: usize, context: &TaskContext) -> bool {
        let noted = &mut *self.noted.lock();
        if self.given_up.load(Ordering::SeqCst) {
            return false;
        }
        noted.count += keys;
        let reservation =
            noted.reservation.get_or_insert_with(|| MemoryConsumer::new("JoinKeys").register(context.memory_pool()));
        noted.count <= MOST_KEYS && reservation.try_grow(keys * KEY_BYTES).is_ok()
    }

    /// Takes the keys of a partition that has ended.
    fn end(&self, keys: Vec<i64>) {
        let keys = {
            let noted = &mut *self.noted.lock();
            noted.keys.extend(keys);
            noted.ended += 1;
            if noted.ended < self.partitions || self.given_up.load(Ordering::SeqCst) {
                return;
            }
            std::mem::take(&mut noted.keys)
        };
        let membership = Membership::from_keys(&keys);
        drop(keys);
        // A build side without rows reserved nothing.
        let charged = match &mut self.noted.lock().reservation {
            Some(reservation) => reservation.try_resize(membership.bytes()).is_ok(),
            None => true,
        };
        if charged {
            let _ = self.complete.set(Arc::new(membership));
        }
    }
}

/// Passes the build side of a join through and notes its keys.
#[derive(Debug)]
pub struct JoinKeysExec {
    input: Arc<dyn ExecutionPlan>,
    key: Column,
    keys: Arc<JoinKeys>,
}

impl DisplayAs for JoinKeysExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "key={}", self.key.name()),
            _ => write!(f, "JoinKeysExec: key={}", self.key),
        }
    }
}

impl ExecutionPlan for JoinKeysExec {
    fn name(&self) -> &str {
        "JoinKeysExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
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
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        f(&(Arc::new(self.key.clone()) as Arc<dyn PhysicalExpr>))
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .or_else(|children| internal_err!("JoinKeysExec with {} children", children.len()))?;
        Ok(Arc::new(Self { input, key: self.key.clone(), keys: Arc::clone(&self.keys) }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let keys = Arc::new(JoinKeys::new(self.keys.filter, self.keys.partitions));
        Ok(Arc::new(Self { input: Arc::clone(&self.input), key: self.key.clone(), keys }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.keys.begin(partition);
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let keys = Arc::clone(&self.keys);
        let column = self.key.index();
        Ok(Box::pin(KeyStream { input, column, keys, noted: Some(Vec::new()), context }))
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs.first() {
            Some(input) => Ok(Arc::clone(input)),
            None => internal_err!("JoinKeysExec without input"),
        }
    }
}

struct KeyStream {
    input: SendableRecordBatchStream,
    column: usize,
    keys: Arc<JoinKeys>,
    /// Keys of the partition so far; `None` when there are too many, or after they were passed to `keys`.
    noted: Option<Vec<i64>>,
    context: Arc<TaskContext>,
}

impl Stream for KeyStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.input.poll_next_unpin(cx);
        let this = &mut *self;
        match &polled {
            Poll::Ready(Some(Ok(batch))) => {
                if let Some(noted) = &mut this.noted
                    && !(this.keys.reserve(batch.num_rows(), &this.context)
                        && append_keys(batch.column(this.column), noted).is_some())
                {
                    this.noted = None;
                    this.keys.give_up();
                }
            }
            Poll::Ready(None) => {
                if let Some(noted) = this.noted.take() {
                    this.keys.end(noted);
                }
            }
            _ => {}
        }
        polled
    }
}

impl RecordBatchStream for KeyStream {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// Appends the values of a column that are not null; `None` for a column of another type.
fn append_keys(column: &ArrayRef, to: &mut Vec<i64>) -> Option<()> {
    fn add<T: ArrowPrimitiveType<Native: Into<i64>>>(column: &PrimitiveArray<T>, to: &mut Vec<i64>) {
        match column.null_count() {
            0 => to.extend(column.values().iter().map(|value| -> i64 { (*value).into() })),
            _ => to.extend(column.iter().flatten().map(|value| -> i64 { value.into() })),
        }
    }
    match column.data_type() {
        DataType::Int16 => add::<Int16Type>(column.as_primitive(), to),
        DataType::Int32 => add::<Int32Type>(column.as_primitive(), to),
        DataType::Int64 => add::<Int64Type>(column.as_primitive(), to),
        DataType::Date32 => add::<Date32Type>(column.as_primitive(), to),
        _ => return None,
    }
    Some(())
}

/// Optimizer rule that gives scans the keys of the joins whose run-time filter they take.
#[derive(Debug)]
pub(super) struct JoinKeysRule;

impl PhysicalOptimizerRule for JoinKeysRule {
    fn name(&self) -> &str {
        "join_keys"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| Ok(connect(&plan)?.map_or_else(|| Transformed::no(plan), Transformed::yes))).data()
    }
}

/// Makes a join note its keys and gives them to the scan that takes its filter; `None` when there is nothing to
/// connect.
fn connect(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(join) = plan.downcast_ref::<HashJoinExec>() else { return Ok(None) };
    let [(key, _)] = join.on() else { return Ok(None) };
    let produced = plan.dynamic_expressions_produced();
    let (Some(key), [filter]) = (key.downcast_ref::<Column>(), produced.as_slice()) else { return Ok(None) };
    // Nulls on the other side matter to joins in which nulls are equal, and to NOT IN; noted keys have no nulls.
    let nulls_match = join.null_aware || join.null_equality() == NullEquality::NullEqualsNull;
    let Some(filter) = filter.expression_id().filter(|_| !nulls_match) else { return Ok(None) };
    let data_type = key.data_type(&join.left().schema())?;
    if !matches!(data_type, DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Date32) {
        return Ok(None);
    }
    let partitions = join.left().output_partitioning().partition_count();
    let keys = Arc::new(JoinKeys::new(filter, partitions));
    let given = Arc::clone(join.right()).transform_down(|node| {
        let taken = node.downcast_ref::<TierScanExec>().and_then(|scan| scan.with_keys(&keys, &data_type));
        Ok(taken.transpose()?.map_or_else(|| Transformed::no(node), Transformed::yes))
    })?;
    if !given.transformed {
        return Ok(None);
    }
    let noted = Arc::new(JoinKeysExec { input: Arc::clone(join.left()), key: key.clone(), keys });
    replace_children_if_necessary(Arc::clone(plan), vec![noted, given.data]).map(Some)
}
