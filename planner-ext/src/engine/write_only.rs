//! A table that a statement may write and not read: the target of an INSERT of one who lacks SELECT.
//!
//! The planner finds its columns and defaults; a scan of it fails, wherever in a statement it stands.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::TableType;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;
use terrace_tier_store::table::TableName;

use super::ddl::short_name;
use super::rights;

/// A table without its rows.
#[derive(Debug)]
pub(super) struct WriteOnly {
    table: Arc<dyn TableProvider>,
    name: TableName,
}

impl WriteOnly {
    pub(super) fn new(table: Arc<dyn TableProvider>, name: TableName) -> Self {
        Self { table, name }
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
