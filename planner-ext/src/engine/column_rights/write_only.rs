//! A relation whose scan fails, wherever in a statement it stands; the planner finds its columns and defaults, and rows can be added.
//!
//! It is the target of an INSERT of one who lacks SELECT. With a plan that the planner puts in place of a scan, it is a relation of
//! which a part may be read.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use terrace_tier_store::table::TableName;

use crate::engine::ddl::short_name;
use crate::engine::rights;

/// A relation without its rows.
#[derive(Debug)]
pub(in crate::engine) struct WriteOnly {
    table: Arc<dyn TableProvider>,
    name: TableName,
    /// The planner puts it in place of a scan.
    part: Option<LogicalPlan>,
}

impl WriteOnly {
    /// The relation, of which nothing is read.
    pub(in crate::engine) fn new(table: Arc<dyn TableProvider>, name: TableName) -> Self {
        Self { table, name, part: None }
    }

    /// The relation, of which the plan `part` is read.
    pub(super) fn with_part(table: Arc<dyn TableProvider>, name: TableName, part: LogicalPlan) -> Self {
        Self { table, name, part: Some(part) }
    }
}

#[async_trait]
impl TableProvider for WriteOnly {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        self.part.as_ref().map(Cow::Borrowed)
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    async fn scan(
        &self,
        _: &dyn Session,
        _: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        Err(rights::denied(format!("table {}", short_name(&self.name))).into())
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        operation: InsertOp,
    ) -> PlanResult<Arc<dyn ExecutionPlan>> {
        self.table.insert_into(state, input, operation).await
    }
}
