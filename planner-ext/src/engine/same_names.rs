//! Queries of which two output columns have one name.
//!
//! DataFusion's projections need unique names. Such a query is planned with names of ours for some of its columns; a last
//! projection gives each its own name again, in a relation of its own, which the schema of a result does not show.

use std::collections::HashSet;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr as AstExpr, Query, SelectItem, SetExpr, Statement as Ast};

use super::nodes::output;
use super::parse::normalized;

/// The query of a statement that is just one `SELECT`.
pub(super) fn query_of(statement: &SqlStatement) -> Option<Box<Query>> {
    match statement {
        SqlStatement::Statement(ast) => match ast.as_ref() {
            Ast::Query(query) if matches!(query.body.as_ref(), SetExpr::Select(_)) => Some(query.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// True when names were the reason.
pub(super) fn is_reason(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::Plan(message) => message.contains("require unique expression names"),
        DataFusionError::SchemaError(error, _) => !matches!(error.as_ref(), SchemaError::FieldNotFound { .. }),
        _ => false,
    }
}

/// Plans the query under names of ours; `None` when that does not help.
pub(super) async fn plan(state: &SessionState, query: &Query) -> Option<LogicalPlan> {
    for only_repeated in [true, false] {
        let (renamed, names) = renamed(state, query, only_repeated).await;
        let statement = SqlStatement::Statement(Box::new(Ast::Query(Box::new(renamed))));
        if let Ok(plan) = state.statement_to_plan(statement).await {
            return restored(plan, &names).ok();
        }
    }
    None
}

/// The query with hidden names for its named columns, at least for those whose name was there before, and both names.
async fn renamed(state: &SessionState, query: &Query, only_repeated: bool) -> (Query, Vec<(String, String)>) {
    let mut query = query.clone();
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    let whole = query.clone();
    let SetExpr::Select(select) = query.body.as_mut() else { return (query, names) };
    let stars = select
        .projection
        .iter()
        .any(|item| !matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. }));
    for item in &mut select.projection {
        let (value, name) = match item {
            SelectItem::ExprWithAlias { expr, alias } => (expr.clone(), normalized(alias)),
            SelectItem::UnnamedExpr(expr) => (expr.clone(), name_of(state, &whole, expr).await),
            _ => continue,
        };
        let repeated = !seen.insert(name.clone()) || stars && matches!(item, SelectItem::UnnamedExpr(_));
        if repeated || !only_repeated {
            let hidden = format!("{name} [{}]", names.len() + 1);
            *item = output(value, &hidden);
            names.push((hidden, name));
        }
    }
    (query, names)
}

/// The name that the planner gives an expression without an alias.
async fn name_of(state: &SessionState, query: &Query, expr: &AstExpr) -> String {
    match expr {
        AstExpr::Identifier(name) => return normalized(name),
        AstExpr::CompoundIdentifier(parts) if !parts.is_empty() => {
            return parts.last().map(normalized).unwrap_or_default();
        }
        _ => {}
    }
    let mut alone = query.clone();
    alone.order_by = None;
    if let SetExpr::Select(select) = alone.body.as_mut() {
        select.projection = vec![SelectItem::UnnamedExpr(expr.clone())];
    }
    let statement = SqlStatement::Statement(Box::new(Ast::Query(Box::new(alone))));
    match state.statement_to_plan(statement).await {
        Ok(plan) if plan.schema().fields().len() == 1 => plan.schema().field(0).name().clone(),
        _ => expr.to_string(),
    }
}

/// The plan with the names that were written.
fn restored(plan: LogicalPlan, names: &[(String, String)]) -> Result<LogicalPlan, DataFusionError> {
    let columns = plan.schema().columns().into_iter().enumerate().map(|(at, column)| {
        let name = names.iter().find(|(hidden, _)| *hidden == column.name).map_or(&column.name, |(_, name)| name);
        let relation = format!("column {at}");
        let name = name.clone();
        Expr::Column(column).alias_qualified(Some(relation), name)
    });
    let columns: Vec<Expr> = columns.collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}
