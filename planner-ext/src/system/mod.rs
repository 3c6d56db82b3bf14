//! Schema `system`: the live state of the server as tables.
//!
//! A table is a schema and a function that yields batches. The function runs on a blocking thread and produces batches
//! only as they are consumed; filters on the table's schema and name are passed to it, so that a query on one table
//! does not visit all.
//!
//! - `calibration`: `system.calibration` and `system.tier_costs`
//! - `chunks`: `system.chunks`
//! - `columns`: `system.columns`
//! - `epochs`: `system.epochs`
//! - `explanations`: answers of EXPLAIN about placement: segments, query costs, outcomes of orders
//! - `hot_view_proposals`: `system.hot_view_proposals`
//! - `hot_views`: `system.hot_views`
//! - `moves`: `system.moves`
//! - `placement_rules`: `system.placement_rules`
//! - `queries`: `system.queries`
//! - `segments`: `system.segments`
//! - `tables`: `system.tables`
//! - `tiers`: `system.tiers`

mod calibration;
mod chunks;
mod columns;
mod epochs;
pub(crate) mod explanations;
pub(crate) mod hot_view_proposals;
pub(crate) mod hot_views;
pub(crate) mod moves;
mod placement_rules;
mod queries;
mod segments;
mod tables;
mod tiers;

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as PlanResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use terrace_tier_store::Store;
use terrace_tier_store::table::{Table, TableName};

use crate::engine::StatementRecord;
use crate::engine::views::{self, EngineViews};
use crate::error::Result;

/// Rows per batch.
const BATCH_ROWS: usize = 8192;

/// The sources of the tables' rows.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) store: Arc<Store>,
    pub(crate) statements: Arc<dyn Fn() -> Vec<StatementRecord> + Send + Sync>,
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

    /// The tables of the store with matching names.
    fn tables(&self, live: &Live) -> Vec<Arc<Table>> {
        let mut tables = live.store.tables();
        tables.retain(|t| self.matches(t.name()));
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

/// A table of schema `system`.
#[derive(Debug)]
pub(crate) struct SystemTable {
    name: &'static str,
    schema: SchemaRef,
    rows: Rows,
    live: Live,
}

impl SystemTable {
    /// Names of all tables.
    pub(crate) const NAMES: [&'static str; 13] = [
        "calibration",
        "chunks",
        "columns",
        "epochs",
        "hot_view_proposals",
        "hot_views",
        "moves",
        "placement_rules",
        "queries",
        "segments",
        "tables",
        "tier_costs",
        "tiers",
    ];

    /// The table `name`, if there is one.
    pub(crate) fn open(name: &str, live: Live) -> Option<Self> {
        let (name, fields, rows): (_, _, Rows) = match name {
            "calibration" => ("calibration", calibration::fields(), calibration::rows),
            "chunks" => ("chunks", chunks::fields(), chunks::rows),
            "columns" => ("columns", columns::fields(), columns::rows),
            "epochs" => ("epochs", epochs::fields(), epochs::rows),
            "hot_view_proposals" => ("hot_view_proposals", hot_view_proposals::fields(), views::proposal_rows),
            "hot_views" => ("hot_views", hot_views::fields(), views::hot_view_rows),
            "moves" => ("moves", moves::fields(), moves::rows),
            "placement_rules" => ("placement_rules", placement_rules::fields(), placement_rules::rows),
            "queries" => ("queries", queries::fields(), queries::rows),
            "segments" => ("segments", segments::fields(), segments::rows),
            "tables" => ("tables", tables::fields(), tables::rows),
            "tier_costs" => ("tier_costs", calibration::cost_fields(), calibration::cost_rows),
            "tiers" => ("tiers", tiers::fields(), tiers::rows),
            _ => return None,
        };
        Some(Self { name, schema: Arc::new(Schema::new(fields)), rows, live })
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
        let rows = SystemRows {
            name: self.name,
            schema: Arc::clone(&self.schema),
            rows: self.rows,
            live: self.live.clone(),
            names: NameFilter::new(filters),
        };
        let schema = Arc::clone(&self.schema);
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(rows)], projection, None, false, limit)?))
    }
}

/// The one partition of a system table.
#[derive(Debug)]
struct SystemRows {
    name: &'static str,
    schema: SchemaRef,
    rows: Rows,
    live: Live,
    names: NameFilter,
}

impl PartitionStream for SystemRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 1);
        let sender = builder.tx();
        let rows = self.rows;
        let live = self.live.clone();
        let names = self.names.clone();
        tracing::trace!(table = self.name, "reading a system table");
        builder.spawn_blocking(move || {
            for batch in rows(live, names)? {
                if sender.blocking_send(batch.map_err(Into::into)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}

/// Batches of up to [`BATCH_ROWS`] rows, each built when it is asked for.
pub(crate) fn in_batches<T: Send + 'static>(
    items: impl Iterator<Item = T> + Send + 'static,
    fields: Vec<Field>,
    columns: fn(&[T]) -> Vec<ArrayRef>,
) -> Batches {
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let mut items = items;
    Box::new(std::iter::from_fn(move || {
        let page: Vec<T> = items.by_ref().take(BATCH_ROWS).collect();
        if page.is_empty() {
            return None;
        }
        Some(RecordBatch::try_new(Arc::clone(&schema), columns(&page)).map_err(Into::into))
    }))
}

pub(crate) fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, false)
}

pub(crate) fn optional_text(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, true)
}

pub(crate) fn count(name: &str) -> Field {
    Field::new(name, DataType::UInt64, false)
}

pub(crate) fn optional_count(name: &str) -> Field {
    Field::new(name, DataType::UInt64, true)
}

pub(crate) fn real(name: &str) -> Field {
    Field::new(name, DataType::Float64, false)
}

pub(crate) fn optional_real(name: &str) -> Field {
    Field::new(name, DataType::Float64, true)
}

pub(crate) fn flag(name: &str) -> Field {
    Field::new(name, DataType::Boolean, false)
}

pub(crate) fn time(name: &str) -> Field {
    Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())), false)
}

fn optional_time(name: &str) -> Field {
    time(name).with_nullable(true)
}

pub(crate) fn texts<T>(items: &[T], value: impl Fn(&T) -> String) -> ArrayRef {
    Arc::new(items.iter().map(|i| Some(value(i))).collect::<StringViewArray>())
}

pub(crate) fn optional_texts<T>(items: &[T], value: impl Fn(&T) -> Option<String>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<StringViewArray>())
}

pub(crate) fn counts<T>(items: &[T], value: impl Fn(&T) -> u64) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<Vec<_>>().into_iter().collect::<arrow::array::UInt64Array>())
}

pub(crate) fn optional_counts<T>(items: &[T], value: impl Fn(&T) -> Option<u64>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<arrow::array::UInt64Array>())
}

pub(crate) fn reals<T>(items: &[T], value: impl Fn(&T) -> f64) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<Vec<_>>().into_iter().collect::<arrow::array::Float64Array>())
}

pub(crate) fn optional_reals<T>(items: &[T], value: impl Fn(&T) -> Option<f64>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<arrow::array::Float64Array>())
}

pub(crate) fn flags<T>(items: &[T], value: impl Fn(&T) -> bool) -> ArrayRef {
    Arc::new(arrow::array::BooleanArray::from(items.iter().map(value).collect::<Vec<_>>()))
}

pub(crate) fn times<T>(items: &[T], unix_us: impl Fn(&T) -> u64) -> ArrayRef {
    let values: Vec<i64> = items.iter().map(|i| i64::try_from(unix_us(i)).unwrap_or(i64::MAX)).collect();
    Arc::new(TimestampMicrosecondArray::from(values).with_timezone("+00:00"))
}

fn optional_times<T>(items: &[T], unix_us: impl Fn(&T) -> Option<u64>) -> ArrayRef {
    let value = |item| unix_us(item).map(|us| i64::try_from(us).unwrap_or(i64::MAX));
    Arc::new(items.iter().map(value).collect::<TimestampMicrosecondArray>().with_timezone("+00:00"))
}
