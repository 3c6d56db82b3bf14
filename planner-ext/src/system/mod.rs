//! Schema `system`: the live state of the server as tables.
//!
//! A table is a list of columns and a function that yields batches. The function runs on a blocking thread and produces
//! batches only as they are consumed; filters on the table's schema and name are passed to it, so that a query on one
//! table does not visit all. Each table says who may read it, and those for everybody show each reader what it may see.
//!
//! - `audit`: `system.audit`
//! - `calibration`: `system.calibration` and `system.tier_costs`
//! - `chunks`: `system.chunks`
//! - `column_list`: names, types and values of a table's columns
//! - `columns`: `system.columns`
//! - `default_grants`: `system.default_grants`
//! - `epochs`: `system.epochs`
//! - `explanations`: answers of EXPLAIN about placement: segments, query costs, outcomes of orders
//! - `grants`: `system.grants`
//! - `hot_view_proposals`: `system.hot_view_proposals`
//! - `hot_views`: `system.hot_views`
//! - `io`: `system.io`
//! - `io_rules`: `system.io_rules`
//! - `moves`: `system.moves`
//! - `nodes`: `system.nodes`
//! - `placement_rules`: `system.placement_rules`
//! - `queries`: `system.queries`
//! - `query_log`: `system.query_log`
//! - `roles`: `system.roles`
//! - `row_policies`: `system.row_policies`
//! - `segments`: `system.segments`
//! - `tables`: `system.tables`
//! - `tiers`: `system.tiers`
//! - `tokens`: `system.tokens`, and what CREATE TOKEN returns
//! - `users`: `system.users`
//! - `workload_groups`: `system.workload_groups`

mod audit;
mod calibration;
mod chunks;
mod column_list;
mod columns;
mod default_grants;
mod epochs;
pub(crate) mod explanations;
mod grants;
pub(crate) mod hot_view_proposals;
pub(crate) mod hot_views;
mod io;
mod io_rules;
pub(crate) mod moves;
mod nodes;
mod placement_rules;
mod queries;
mod query_log;
mod roles;
mod row_policies;
mod segments;
mod tables;
mod tiers;
pub(crate) mod tokens;
mod users;
mod workload_groups;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as PlanResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use terrace_access::{Authority, Trail, Users};
use terrace_tier_store::Store;
use terrace_tier_store::table::{Table, TableName};

pub(crate) use self::column_list::ColumnList;
#[cfg(feature = "hot-views")]
pub(crate) use self::column_list::{counts, flags, in_batches, optional_counts, optional_texts, reals, texts, times};
use crate::engine::views::{self, EngineViews};
use crate::engine::{NodeRecord, QueryLog, StatementRecord, WorkloadGroupRecord};
use crate::error::Result;

/// The sources of the tables' rows.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) store: Arc<Store>,
    pub(crate) users: Arc<Users>,
    /// What whoever reads may do: the tables show what that lets see.
    pub(crate) viewer: Authority,
    pub(crate) audit: Arc<Trail>,
    /// `None` where none is kept.
    pub(crate) query_log: Option<Arc<QueryLog>>,
    pub(crate) statements: Arc<dyn Fn() -> Vec<StatementRecord> + Send + Sync>,
    pub(crate) workload_groups: Arc<dyn Fn() -> Vec<WorkloadGroupRecord> + Send + Sync>,
    pub(crate) nodes: Arc<dyn Fn() -> Vec<NodeRecord> + Send + Sync>,
    pub(crate) hot_views: EngineViews,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}

/// Conditions by which a table can yield fewer rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NameFilter {
    schema: Option<String>,
    table: Option<String>,
}

impl NameFilter {
    fn new(filters: &[Expr]) -> Self {
        let mut names = Self::default();
        for (column, value) in filters.iter().filter_map(equality) {
            match column {
                "table_schema" => names.schema = Some(value),
                "table_name" => names.table = Some(value),
                _ => {}
            }
        }
        names
    }

    /// The tables of the store with matching names whose figures one may see.
    fn tables(&self, live: &Live) -> Vec<Arc<Table>> {
        let mut tables = live.store.tables();
        tables.retain(|t| self.matches(t.name()) && live.viewer.sees_figures(t.name()));
        tables
    }

    /// True for a table with a matching name.
    pub(crate) fn matches(&self, name: &TableName) -> bool {
        let matches = |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|w| w == name);
        matches(&self.schema, &name.schema) && matches(&self.table, &name.name)
    }
}

/// Column and text of a filter `column = 'text'`.
fn equality(filter: &Expr) -> Option<(&str, String)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = filter else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(value, _)) | (Expr::Literal(value, _), Expr::Column(column)) => {
            Some((column.name(), value.try_as_str().flatten()?.to_owned()))
        }
        _ => None,
    }
}

/// Rows of a table.
pub(crate) type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;
type Rows = fn(Live, NameFilter) -> Result<Batches>;
/// Who may read a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// Everybody: its rows are those that one may see.
    All,
    /// Whoever may watch the server, or was granted SELECT on it or on the schema `system`.
    Monitors,
}

/// Name, schema, readers and rows of a table.
type TableEntry = (&'static str, fn() -> SchemaRef, Readers, Rows);

const TABLES: [TableEntry; 25] = [
    ("audit", || audit::columns().schema(), Readers::All, audit::rows),
    ("calibration", || calibration::columns().schema(), Readers::Monitors, calibration::rows),
    ("chunks", || chunks::columns().schema(), Readers::All, chunks::rows),
    ("columns", || columns::columns().schema(), Readers::All, columns::rows),
    ("default_grants", || default_grants::columns().schema(), Readers::All, default_grants::rows),
    ("epochs", || epochs::columns().schema(), Readers::Monitors, epochs::rows),
    ("grants", || grants::columns().schema(), Readers::All, grants::rows),
    ("hot_view_proposals", hot_view_proposals::schema, Readers::Monitors, views::proposal_rows),
    ("hot_views", hot_views::schema, Readers::All, views::hot_view_rows),
    ("io", || io::columns().schema(), Readers::Monitors, io::rows),
    ("io_rules", || io_rules::columns().schema(), Readers::Monitors, io_rules::rows),
    ("moves", || moves::columns().schema(), Readers::All, moves::rows),
    ("nodes", || nodes::columns().schema(), Readers::Monitors, nodes::rows),
    ("placement_rules", || placement_rules::columns().schema(), Readers::All, placement_rules::rows),
    ("queries", || queries::columns().schema(), Readers::All, queries::rows),
    ("query_log", || query_log::columns().schema(), Readers::All, query_log::rows),
    ("roles", || roles::columns().schema(), Readers::All, roles::rows),
    ("row_policies", || row_policies::columns().schema(), Readers::All, row_policies::rows),
    ("segments", || segments::columns().schema(), Readers::All, segments::rows),
    ("tables", || tables::columns().schema(), Readers::All, tables::rows),
    ("tier_costs", || calibration::cost_columns().schema(), Readers::Monitors, calibration::cost_rows),
    ("tiers", || tiers::columns().schema(), Readers::Monitors, tiers::rows),
    ("tokens", || tokens::columns().schema(), Readers::All, tokens::rows),
    ("users", || users::columns().schema(), Readers::All, users::rows),
    ("workload_groups", || workload_groups::columns().schema(), Readers::Monitors, workload_groups::rows),
];

/// A table of schema `system`.
#[derive(Clone)]
pub(crate) struct SystemTable {
    name: &'static str,
    schema: SchemaRef,
    /// A trait object, because the compiler proves anew for each `async` method of [`TableProvider`] that all types in
    /// `Self` may be shared between threads, which takes seconds for [`Live`] (docs/design/build-times.md).
    rows: Arc<dyn Fn(NameFilter) -> Result<Batches> + Send + Sync>,
}

impl fmt::Debug for SystemTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemTable").field(&self.name).finish()
    }
}

impl SystemTable {
    /// Names of all tables.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        TABLES.into_iter().map(|(name, ..)| name)
    }

    /// Whether everybody may read the table `name`.
    pub(crate) fn is_for_everybody(name: &str) -> bool {
        TABLES.iter().any(|(known, _, readers, _)| *known == name && *readers == Readers::All)
    }

    /// The table `name`, if there is one.
    pub(crate) fn open(name: &str, live: Live) -> Option<Self> {
        let (name, schema, _, rows) = TABLES.into_iter().find(|(known, ..)| *known == name)?;
        Some(Self { name, schema: schema(), rows: Arc::new(move |names| rows(live.clone(), names)) })
    }
}

#[async_trait]
impl TableProvider for SystemTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> PlanResult<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match equality(filter) {
            Some(("table_schema" | "table_name", _)) => TableProviderFilterPushDown::Inexact,
            _ => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        let rows = SystemRows { table: self.clone(), names: NameFilter::new(filters) };
        let schema = Arc::clone(&self.schema);
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(rows)], projection, None, false, limit)?))
    }
}

/// The one partition of a system table.
#[derive(Debug)]
struct SystemRows {
    table: SystemTable,
    names: NameFilter,
}

impl PartitionStream for SystemRows {
    fn schema(&self) -> &SchemaRef {
        &self.table.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.table.schema), 1);
        let sender = builder.tx();
        let rows = Arc::clone(&self.table.rows);
        let names = self.names.clone();
        tracing::trace!(table = self.table.name, "reading a system table");
        builder.spawn_blocking(move || {
            for batch in rows(names)? {
                if sender.blocking_send(batch.map_err(Into::into)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}
