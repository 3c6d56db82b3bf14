//! The barrier of policies: a table whose scan gives the rows that its policies let a statement see, and nothing of the others.
//!
//! ```text
//!   filters of the statement, joins, ...        on visible rows only
//!   RowPolicyExec                               evaluates the policies
//!   ---- not shown, and not optimized with the rest of the plan ----
//!   TierScanExec                                comparisons that cannot fail, of the statement and of the policies
//! ```
//!
//! A comparison of a column with a literal tells nothing of a row that does not pass the policies, except by the time that it takes. All
//! other filters stay above: a division, a cast or a regular expression may fail on a hidden row, and say on which. The operator has no
//! children for the optimizer and for EXPLAIN: no run-time filter of a join and no late fetch gets below it, and neither the counts of
//! EXPLAIN ANALYZE nor statistics, nor the number of partitions, depend on hidden rows. Batches are full and have buffers of their own: those of
//! the scan have the values of hidden rows in them, and their sizes tell how many there are. The engine knows that the provider is no table of
//! the store by itself, so no answer comes from metadata or hot views, and no plan is kept.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::{BatchCoalescer, filter_record_batch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt, stream};
use terrace_tier_store::tier::codec::copied;

use super::conditions::{RowCondition, evaluate};

/// A larger literal is compared above the barrier: scans of the store refuse such ones.
const MOST_LITERAL_BYTES: usize = 8 << 10;

/// The rows of a table that fulfil a condition.
#[derive(Debug)]
pub(in crate::engine) struct VisibleRows {
    table: Arc<dyn TableProvider>,
    condition: Arc<RowCondition>,
}

impl VisibleRows {
    /// The rows of `table` that fulfil a condition over its columns.
    pub(in crate::engine) fn new(table: Arc<dyn TableProvider>, condition: RowCondition) -> Self {
        Self { table, condition: Arc::new(condition) }
    }
}

#[async_trait]
impl TableProvider for VisibleRows {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    /// What goes below stays above as well.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let schema = self.table.schema();
        let support = |filter: &&Expr| match is_leak_free(filter, &schema) {
            true => TableProviderFilterPushDown::Inexact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.table.schema();
        let mut read = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        let output = read.len();
        let mut needed: Vec<usize> = collect_columns(self.condition.predicate()).iter().map(Column::index).collect();
        needed.sort_unstable();
        needed.retain(|column| !read.contains(column));
        read.extend(needed);
        let pushed = filters.iter().chain(self.condition.conjuncts()).filter(|filter| is_leak_free(filter, &schema));
        let pushed: Vec<Expr> = pushed.cloned().collect();
        let hidden = self.table.scan(state, Some(&read), &pushed, None).await?;
        let predicate = over_columns(self.condition.predicate(), &read)?;
        let partitions = state.config().target_partitions();
        Ok(Arc::new(RowPolicyExec::try_new(hidden, self.condition.table(), predicate, output, partitions)?))
    }
}

/// An expression over the columns of a table, rewritten to those that are read.
fn over_columns(expr: &Arc<dyn PhysicalExpr>, read: &[usize]) -> Result<Arc<dyn PhysicalExpr>> {
    let rewrite = |expr: Arc<dyn PhysicalExpr>| match expr.downcast_ref::<Column>() {
        Some(column) => match read.iter().position(|index| *index == column.index()) {
            Some(place) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as Arc<dyn PhysicalExpr>)),
            None => internal_err!("column {column} of a policy is not read"),
        },
        None => Ok(Transformed::no(expr)),
    };
    Arc::clone(expr).transform_down(rewrite).data()
}

/// Whether a filter may be evaluated on rows that its statement must not see: it compares columns with literals of their types, which
/// cannot fail.
fn is_leak_free(filter: &Expr, schema: &Schema) -> bool {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            is_leak_free(left, schema) && is_leak_free(right, schema)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
            matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
                && (compares(left, right, schema) || compares(right, left, schema))
        }
        Expr::Not(inner) => is_leak_free(inner, schema),
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => column_type(inner, schema).is_some(),
        Expr::InList(InList { expr, list, .. }) => list.iter().all(|value| compares(expr, value, schema)),
        Expr::Between(Between { expr, low, high, .. }) => compares(expr, low, schema) && compares(expr, high, schema),
        other => column_type(other, schema) == Some(&DataType::Boolean),
    }
}

/// Whether these are a column and a small literal of its type.
fn compares(column: &Expr, value: &Expr, schema: &Schema) -> bool {
    let Expr::Literal(value, _) = value else { return false };
    column_type(column, schema).is_some_and(|found| *found == value.data_type() && value.size() <= MOST_LITERAL_BYTES)
}

/// The type of a column, if values of it can always be compared.
fn column_type<'a>(expr: &Expr, schema: &'a Schema) -> Option<&'a DataType> {
    let Expr::Column(column) = expr else { return None };
    let found = schema.field_with_name(column.name()).ok()?.data_type();
    let is_text = matches!(
        found,
        DataType::Boolean
            | DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    );
    (is_text || found.is_numeric() || found.is_temporal()).then_some(found)
}

/// Gives the rows of a hidden plan that fulfil the policies on a table.
struct RowPolicyExec {
    hidden: Arc<dyn ExecutionPlan>,
    table: String,
    /// The policies, over the columns of the hidden plan.
    predicate: Arc<dyn PhysicalExpr>,
    /// How many of these columns the rows have.
    output: usize,
    properties: Arc<PlanProperties>,
}

impl RowPolicyExec {
    fn try_new(
        hidden: Arc<dyn ExecutionPlan>,
        table: &str,
        predicate: Arc<dyn PhysicalExpr>,
        output: usize,
        partitions: usize,
    ) -> Result<Self> {
        let schema = Arc::new(hidden.schema().project(&(0..output).collect::<Vec<_>>())?);
        // Not those of the hidden plan: their number tells how many chunks it reads.
        let partitions = partitions.max(hidden.properties().partitioning.partition_count());
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let properties = Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative));
        Ok(Self { hidden, table: table.to_owned(), predicate, output, properties })
    }
}

impl fmt::Debug for RowPolicyExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowPolicyExec").field("table", &self.table).finish_non_exhaustive()
    }
}

impl DisplayAs for RowPolicyExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "table={}", self.table),
            _ => write!(f, "RowPolicyExec: table={}", self.table),
        }
    }
}

impl ExecutionPlan for RowPolicyExec {
    fn name(&self) -> &str {
        "RowPolicyExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    /// None: the hidden plan is nobody's.
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
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

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            hidden: Arc::clone(&self.hidden).reset_state()?,
            table: self.table.clone(),
            predicate: Arc::clone(&self.predicate),
            output: self.output,
            properties: Arc::clone(&self.properties),
        }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.schema();
        if partition >= self.hidden.properties().partitioning.partition_count() {
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::empty())));
        }
        let rows = context.session_config().batch_size().max(1);
        let hidden = self.hidden.execute(partition, context)?;
        let (table, predicate, output) = (self.table.clone(), Arc::clone(&self.predicate), self.output);
        let visible = hidden.map(move |batch| visible_rows(&batch?, &predicate, output, &table));
        let batches = batches_of(visible, BatchCoalescer::new(Arc::clone(&schema), rows));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    /// Takes no filter of the operators above.
    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::all_unsupported(result))
    }
}

/// Passes rows on in full batches: the sizes of those that come tell how many hidden rows lie between.
fn batches_of(
    visible: impl Stream<Item = Result<RecordBatch>> + Unpin + Send,
    full: BatchCoalescer,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    stream::try_unfold((visible, full, false), async |(mut visible, mut full, mut is_over)| {
        loop {
            if let Some(batch) = full.next_completed_batch() {
                return Ok::<_, DataFusionError>(Some((batch, (visible, full, is_over))));
            }
            if is_over {
                return Ok(None);
            }
            match visible.next().await {
                Some(batch) => full.push_batch(batch?)?,
                None => {
                    full.finish_buffered_batch()?;
                    is_over = true;
                }
            }
        }
    })
}

/// The rows of a batch that fulfil the policies, with its first columns, in buffers without the values of others.
fn visible_rows(
    batch: &RecordBatch,
    predicate: &Arc<dyn PhysicalExpr>,
    output: usize,
    table: &str,
) -> Result<RecordBatch> {
    let mask = evaluate(predicate, batch, table).map_err(DataFusionError::from)?;
    let visible = filter_record_batch(&batch.project(&(0..output).collect::<Vec<_>>())?, &mask)?;
    let own = |column| copied(column).map_err(|error| DataFusionError::External(Box::new(error)));
    let columns = visible.columns().iter().map(own).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(visible.num_rows()));
    Ok(RecordBatch::try_new_with_options(visible.schema(), columns, &options)?)
}
