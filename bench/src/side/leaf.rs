//! A table behind a leaf that gives DataFusion the same properties for every storage, so that plans are equal and only
//! the reading differs. It has as many partitions as the session, knows the number of rows, and takes no filter.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions, displayable,
};

/// A table behind a leaf.
#[derive(Debug)]
pub struct LeafTable {
    name: &'static str,
    rows: usize,
    table: Arc<dyn TableProvider>,
}

impl LeafTable {
    /// A leaf for `table`, which has `rows` rows.
    pub fn new(name: &'static str, rows: usize, table: Arc<dyn TableProvider>) -> Self {
        Self { name, rows, table }
    }
}

#[tonic::async_trait]
impl TableProvider for LeafTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let storage = self.table.scan(state, projection, &[], None).await?;
        let partitions = state.config().target_partitions();
        let given = storage.properties().partitioning.partition_count();
        if given > partitions {
            return internal_err!("table {} has {given} partitions, the session {partitions}", self.name);
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(storage.schema()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(Arc::new(Leaf { name: self.name, rows: self.rows, storage, properties: Arc::new(properties) }))
    }
}

/// The scan of a leaf table. It has no children, so that no rule changes it.
#[derive(Debug)]
struct Leaf {
    name: &'static str,
    rows: usize,
    storage: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for Leaf {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> = self.schema().fields().iter().map(|field| field.name().clone()).collect();
        write!(f, "Leaf: {}, columns=[{}]", self.name, columns.join(", "))
    }
}

impl ExecutionPlan for Leaf {
    fn name(&self) -> &str {
        "Leaf"
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

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition < self.storage.properties().partitioning.partition_count() {
            return self.storage.execute(partition, context);
        }
        EmptyExec::new(self.schema()).execute(0, context)
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        statistics.num_rows = Precision::Exact(self.rows);
        Ok(Arc::new(statistics))
    }
}

/// A digest of a plan's text, small enough to be exact as a float.
pub fn digest(plan: &Arc<dyn ExecutionPlan>) -> f64 {
    let mut hasher = DefaultHasher::new();
    displayable(plan.as_ref()).indent(false).to_string().hash(&mut hasher);
    (hasher.finish() >> 12) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::datasource::MemTable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    #[tokio::test]
    async fn plans_are_equal_however_the_table_is_stored() {
        let batch = |from: i64| {
            let column: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + 1000));
            RecordBatch::try_from_iter([("a", column)]).unwrap()
        };
        let mut digests = Vec::new();
        for partitions in [vec![vec![batch(0)], vec![batch(1000)]], vec![vec![batch(0), batch(1000)]]] {
            let stored = MemTable::try_new(batch(0).schema(), partitions).unwrap();
            let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
            context.register_table("t", Arc::new(LeafTable::new("t", 2000, Arc::new(stored)))).unwrap();
            let rows = context.sql("SELECT a % 7, count(*) FROM t WHERE a < 700 GROUP BY 1").await.unwrap();
            digests.push(digest(&rows.clone().create_physical_plan().await.unwrap()));
            let counted: usize = rows.collect().await.unwrap().iter().map(RecordBatch::num_rows).sum();
            assert_eq!(counted, 7);
        }
        assert_eq!(digests[0], digests[1]);
    }
}
