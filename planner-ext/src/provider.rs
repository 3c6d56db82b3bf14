//! A table of the store as DataFusion sees it.
//!
//! The version is fixed when the provider is made: a statement sees one snapshot, however often it scans the table.
//! Key columns are declared, not enforced, so they are no constraints here: the optimizer drops grouping columns that a
//! key determines, and rows that break the key would give wrong answers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use terrace_tier_store::Store;
use terrace_tier_store::table::{Table, TableVersion};

use crate::scan::{ScanConfig, ScanSource, TierScanExec};

/// A version of a table, to be scanned. Rows are written by the engine, not through plans.
#[derive(Debug)]
pub struct TierTable {
    source: Arc<ScanSource>,
    /// Defaults of columns, by name.
    defaults: HashMap<String, Expr>,
}

impl TierTable {
    /// The table as of `version`.
    pub fn new(store: Arc<Store>, table: Arc<Table>, version: Arc<TableVersion>) -> Self {
        Self { source: Arc::new(ScanSource::new(store, table, version)), defaults: HashMap::new() }
    }

    /// The table with expressions for the columns that an INSERT does not name.
    pub fn with_defaults(self, defaults: HashMap<String, Expr>) -> Self {
        Self { defaults, ..self }
    }

    /// The same with a column `name` of row positions, for statements that change rows.
    pub(crate) fn with_positions(&self, name: &str) -> Self {
        Self { source: Arc::new(self.source.with_positions(name)), defaults: HashMap::new() }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.source.table
    }

    /// What it scans.
    pub(crate) fn source(&self) -> &Arc<ScanSource> {
        &self.source
    }

    /// The snapshot it scans.
    pub fn version(&self) -> &Arc<TableVersion> {
        &self.source.version
    }
}

/// True when the scan can evaluate the filter itself.
fn evaluable(filter: &Expr) -> bool {
    let foreign = |e: &Expr| {
        matches!(
            e,
            Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::ScalarSubquery(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        )
    };
    !filter.is_volatile() && !filter.exists(|e| Ok(foreign(e))).unwrap_or(true)
}

#[async_trait]
impl TableProvider for TierTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.source.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.defaults.get(column)
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match evaluable(filter) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        let mut statistics = Statistics::new_unknown(self.source.schema());
        statistics.num_rows = datafusion::common::stats::Precision::Exact(self.source.version.live_rows() as usize);
        Some(statistics)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.source.schema();
        let columns = DFSchema::try_from(Arc::clone(schema))?;
        let filters = filters.iter().map(|f| state.create_physical_expr(f.clone(), &columns));
        let filters = filters.collect::<Result<Vec<_>>>()?;
        let projection = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        let target = state.config().target_partitions();
        let config = ScanConfig::new(Arc::clone(&self.source), projection, filters, limit, target);
        Ok(Arc::new(TierScanExec::try_new(config)?))
    }
}
