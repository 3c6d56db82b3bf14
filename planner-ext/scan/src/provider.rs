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

use crate::hot_views::{PlannedScan, ScanRequest, ScanView, ViewOracle};
use crate::scan::{ScanConfig, ScanSource, TierScanExec};
use crate::session_options::SessionOptions;

/// The hot views that serve a scan, and the record of its filters.
type ScanViews = (Vec<ScanView>, Option<Arc<dyn ScanRequest>>);

/// A version of a table, to be scanned. Rows are written by the engine, not through plans.
#[derive(Debug)]
pub struct TierTable {
    source: Arc<ScanSource>,
    /// Defaults of columns, by name.
    defaults: HashMap<String, Expr>,
    /// Tells the hot views by which scans may skip chunks.
    oracle: Option<Arc<dyn ViewOracle>>,
}

impl TierTable {
    /// The table as of `version`.
    pub fn new(store: Arc<Store>, table: Arc<Table>, version: Arc<TableVersion>) -> Self {
        let source = Arc::new(ScanSource::new(store, table, version));
        Self { source, defaults: HashMap::new(), oracle: None }
    }

    /// The table with the hot views of its store, if there are any.
    pub fn with_oracle(self, oracle: Option<Arc<dyn ViewOracle>>) -> Self {
        Self { oracle, ..self }
    }

    /// The table with expressions for the columns that an INSERT does not name.
    pub fn with_defaults(self, defaults: HashMap<String, Expr>) -> Self {
        Self { defaults, ..self }
    }

    /// The table for one who must not see its figures: plans do not show its chunks and where they lie.
    pub fn without_figures(self) -> Self {
        let ScanSource { store, table, version, .. } = &*self.source;
        let source = ScanSource::new(Arc::clone(store), Arc::clone(table), Arc::clone(version)).without_figures();
        Self { source: Arc::new(source), ..self }
    }

    /// The table with a column `name` of row positions, for statements that change rows.
    pub fn with_positions(&self, name: &str) -> Self {
        let source = Arc::new(self.source.with_positions(name));
        Self { source, defaults: HashMap::new(), oracle: self.oracle.clone() }
    }

    /// The table of the store.
    pub fn table(&self) -> &Arc<Table> {
        &self.source.table
    }

    /// The source of its scans.
    pub fn source(&self) -> &Arc<ScanSource> {
        &self.source
    }

    /// Hot views that serve a scan with the output `projection`, and the record of its filters for view mining.
    fn hot_views_for_scan(&self, state: &dyn Session, projection: &[usize], filters: &[Expr]) -> Result<ScanViews> {
        let options = state.config_options();
        let Some(oracle) = self.oracle.as_ref().filter(|_| SessionOptions::from_config(options).hot_views) else {
            return Ok(Default::default());
        };
        // The column of row positions belongs to no view.
        let columns = self.source.table.schema().fields();
        let read: Vec<_> = projection.iter().filter_map(|at| Some(columns.get(*at)?.name().as_str())).collect();
        let scan = PlannedScan { table: &self.source.table, columns: &read, filters, options };
        Ok((oracle.views_for_scan(&scan)?, oracle.scan_request(&scan)))
    }

    /// The plan of a query that is a scan without a limit and nothing else, of which [`TableProvider::scan`] makes a part. The rules of the physical
    /// optimizer change nothing of a plan of one scan but its level, so they need not run.
    ///
    /// # Errors
    /// As of [`TableProvider::scan`].
    pub fn plan_alone(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.scan_operator(state, projection, filters, None)?.into_whole_plan()))
    }

    fn scan_operator(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<TierScanExec> {
        let schema = self.source.schema();
        let columns = DFSchema::try_from(Arc::clone(schema))?;
        let projection = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        let (views, request) = self.hot_views_for_scan(state, &projection, filters)?;
        let filters = filters.iter().map(|f| state.create_physical_expr(f.clone(), &columns));
        let filters = filters.collect::<Result<Vec<_>>>()?;
        let target = state.config().target_partitions();
        let config = ScanConfig::new(Arc::clone(&self.source), projection, filters, limit, target);
        TierScanExec::try_new(config.with_views(views, target).with_request(request))
    }

    /// The table version that it scans.
    pub fn version(&self) -> &Arc<TableVersion> {
        &self.source.version
    }
}

/// Whether the scan can evaluate the filter itself.
fn is_evaluable(filter: &Expr) -> bool {
    let is_unsupported = |e: &Expr| {
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
    !filter.is_volatile() && !filter.exists(|e| Ok(is_unsupported(e))).unwrap_or(true)
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
        let support = |filter: &&Expr| match is_evaluable(filter) {
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
        Ok(Arc::new(self.scan_operator(state, projection, filters, limit)?))
    }
}
