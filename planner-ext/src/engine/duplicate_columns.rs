//! Queries with two output columns of the same name.
//!
//! DataFusion's projections need unique names. Such a query is planned with hidden names for some of its columns. A last
//! projection restores the names and puts each column into a relation of its own; the schema of a result does not show
//! relations.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/6543> (Support columns having the same alias), repaired by
//! pull request 21126, which 55.2 lacks; can go when the test `output_columns_may_have_one_name` passes without it.

use std::collections::HashSet;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr as AstExpr, Query, SelectItem, SetExpr, Statement as Ast};

use terrace_sql::ast_nodes::aliased;
use terrace_sql::normalized;

/// The query of a statement that is just one `SELECT`.
pub(super) fn select_query(statement: &SqlStatement) -> Option<Box<Query>> {
    match statement {
        SqlStatement::Statement(ast) => match ast.as_ref() {
            Ast::Query(query) if matches!(query.body.as_ref(), SetExpr::Select(_)) => Some(query.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether planning failed because of equal names.
pub(super) fn is_duplicate_name_error(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::Plan(message) => message.contains("require unique expression names"),
        DataFusionError::SchemaError(error, _) => !matches!(error.as_ref(), SchemaError::FieldNotFound { .. }),
        _ => false,
    }
}

/// Plans the query with hidden names; `None` when that fails too.
pub(super) async fn plan_with_unique_names(state: &SessionState, query: &Query) -> Option<LogicalPlan> {
    // Most queries need hidden names only for repeated names; clauses that refer to output columns then still find them.
    for only_repeated in [true, false] {
        let (renamed, names) = with_hidden_names(state, query, only_repeated).await;
        let statement = SqlStatement::Statement(Box::new(Ast::Query(Box::new(renamed))));
        if let Ok(plan) = state.statement_to_plan(statement).await {
            return restore_names(plan, &names).ok();
        }
    }
    None
}

/// Gives hidden names to the columns of the query: to all, or only to those whose name occurred before. Returns the query
/// with pairs of hidden and original name.
async fn with_hidden_names(state: &SessionState, query: &Query, only_repeated: bool) -> (Query, Vec<(String, String)>) {
    let mut query = query.clone();
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    let original = query.clone();
    let SetExpr::Select(select) = query.body.as_mut() else { return (query, names) };
    let has_wildcards = select
        .projection
        .iter()
        .any(|item| !matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }));
    for item in &mut select.projection {
        let (value, name) = match item {
            SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), normalized(alias)),
            SelectItem::UnnamedExpr(expr) => (expr.clone(), planned_name(state, &original, expr).await),
            _ => continue,
        };
        let repeated = !seen.insert(name.clone()) || has_wildcards && matches!(item, SelectItem::UnnamedExpr(_));
        if repeated || !only_repeated {
            let hidden = format!("{name} [{}]", names.len() + 1);
            *item = aliased(value, &hidden);
            names.push((hidden, name));
        }
    }
    (query, names)
}

/// The name that the planner gives an expression without an alias.
async fn planned_name(state: &SessionState, query: &Query, expr: &AstExpr) -> String {
    match expr {
        AstExpr::Identifier(name) => return normalized(name),
        AstExpr::CompoundIdentifier(parts) if !parts.is_empty() => {
            return parts.last().map(normalized).unwrap_or_default();
        }
        _ => {}
    }
    let mut single_column = query.clone();
    single_column.order_by = None;
    if let SetExpr::Select(select) = single_column.body.as_mut() {
        select.projection = vec![SelectItem::UnnamedExpr(expr.clone())];
    }
    let statement = SqlStatement::Statement(Box::new(Ast::Query(Box::new(single_column))));
    match state.statement_to_plan(statement).await {
        Ok(plan) if plan.schema().fields().len() == 1 => plan.schema().field(0).name().clone(),
        _ => expr.to_string(),
    }
}

/// Restores the original names of a plan's columns.
fn restore_names(plan: LogicalPlan, names: &[(String, String)]) -> Result<LogicalPlan, DataFusionError> {
    let columns = plan.schema().columns().into_iter().enumerate().map(|(at, column)| {
        let name = names.iter().find(|(hidden, _)| *hidden == column.name).map_or(&column.name, |(_, name)| name);
        let relation = format!("column {at}");
        let name = name.clone();
        Expr::Column(column).alias_qualified(Some(relation), name)
    });
    let columns: Vec<Expr> = columns.collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}
