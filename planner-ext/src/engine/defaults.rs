//! Defaults of columns: SQL text in the catalog, an expression in a plan.
//!
//! A default mentions no column, so that it can be evaluated anywhere. Functions like `now()` are evaluated once per
//! statement, volatile ones like `random()` for each row. A default that cannot become a value of its column is refused
//! when it is declared, not when rows arrive.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, col};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    DataType, ExactNumberInfo, Expr as AstExpr, ExprWithAlias, Insert, ObjectName, Query, SetExpr, Statement as Ast,
    TableObject, Value,
};
use terrace_scan::coercion;
use terrace_sql::ast_nodes::parse_query;
use terrace_sql::defaults::{
    cast_numbers, decimal_number, default_expr, is_default, parse_expression, parse_with_float_numbers,
};
use terrace_sql::{NameParts, normalized};
use terrace_tier_store::table::TableDefinition;

use super::catalog::Snapshot;
use super::types::matching;
use crate::error::{Error, Result};

/// Parses a default to an expression of the column's type.
pub(super) fn expression(state: &SessionState, text: &str, field: &Field) -> Result<Expr> {
    let refuse =
        |error: Error| Error::invalid(format!("DEFAULT {text} of column '{}': {}", field.name(), error.message()));
    let no_columns = DFSchema::empty();
    let tree = ExprWithAlias { expr: parse_with_float_numbers(text)?, alias: None };
    let parsed = state.create_logical_expr_from_sql_expr(tree, &no_columns).map_err(|e| refuse(e.into()))?;
    let is_not_scalar = parsed.exists(|e| {
        Ok(matches!(
            e,
            Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::Placeholder(_)
                | Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
        ))
    })?;
    if is_not_scalar {
        return Err(refuse(Error::invalid("only constants and functions of them can be a default")));
    }
    parsed.cast_to(field.data_type(), &no_columns).map_err(|e| refuse(e.into()))
}

/// Evaluates a default to an array of one row; refuses one that does not fit its column.
pub(super) fn value_now(state: &SessionState, text: &str, field: &Field) -> Result<ArrayRef> {
    let expr = expression(state, text, field)?;
    let evaluate = || -> datafusion::error::Result<ArrayRef> {
        let no_columns = DFSchema::empty();
        // Only the optimizer replaces `now()` by a value.
        let context = SimplifyContext::builder()
            .with_schema(Arc::new(no_columns.clone()))
            .with_config_options(Arc::clone(state.config_options()))
            .with_query_execution_start_time(state.execution_props().query_execution_start_time)
            .build();
        let simplifier = ExprSimplifier::new(context);
        let expr = simplifier.simplify(coercion::coerced(&simplifier, expr, &no_columns)?)?;
        let physical = state.create_physical_expr(expr, &no_columns)?;
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Schema::empty().into(), Vec::new(), &options)?;
        physical.evaluate(&row)?.into_array(1)
    };
    evaluate().map_err(|e| {
        Error::invalid(format!("DEFAULT {text} of column '{}': {}", field.name(), Error::from(e).message()))
    })
}

/// The defaults of a table's columns, by name.
pub(super) fn table_defaults(state: &SessionState, definition: &TableDefinition) -> Result<HashMap<String, Expr>> {
    let mut defaults = HashMap::new();
    for (column, field) in definition.columns.iter().zip(definition.schema.fields()) {
        if let Some(text) = &column.default {
            defaults.insert(field.name().clone(), expression(state, text, field)?);
        }
    }
    Ok(defaults)
}

/// Adds the columns that incoming rows lack, with their defaults.
pub(super) fn add_missing_columns(
    state: &SessionState,
    plan: LogicalPlan,
    definition: &TableDefinition,
) -> Result<LogicalPlan> {
    let incoming = plan.schema().as_arrow().clone();
    let mut missing = table_defaults(state, definition)?;
    missing.retain(|name, _| matching(&incoming, name).is_none());
    if missing.is_empty() {
        return Ok(plan);
    }
    let given: Vec<Expr> = plan.schema().columns().into_iter().map(col).collect();
    let added = missing.into_iter().map(|(name, value)| value.alias(name));
    Ok(LogicalPlanBuilder::from(plan).project(given.into_iter().chain(added))?.build()?)
}

/// Replaces DEFAULT in an INSERT by the defaults of the columns; leaves other statements unchanged.
pub(super) fn expand_defaults(snapshot: &Snapshot, statement: SqlStatement) -> Result<SqlStatement> {
    let mut ast = match statement {
        SqlStatement::Statement(ast) => *ast,
        SqlStatement::Explain(mut explain) => {
            explain.statement = Box::new(expand_defaults(snapshot, *explain.statement)?);
            return Ok(SqlStatement::Explain(explain));
        }
        other => return Ok(other),
    };
    if let Ast::Insert(insert) = &mut ast
        && let TableObject::TableName(name) = &insert.table
        && let Some(table) = snapshot.definition(&NameParts::new(name)?)?
    {
        expand_default_values(insert, &table)?;
    }
    Ok(SqlStatement::Statement(Box::new(ast)))
}

fn expand_default_values(insert: &mut Insert, table: &TableDefinition) -> Result<()> {
    let all = || table.schema.fields().iter().map(|f| f.name().clone());
    let columns: Vec<String> =
        if insert.columns.is_empty() { all().collect() } else { insert.columns.iter().filter_map(last_part).collect() };
    if insert.source.is_none() && insert.assignments.is_empty() {
        // INSERT .. DEFAULT VALUES
        let row = all().map(|name| column_default(table, &name)).collect::<Result<Vec<_>>>()?;
        insert.source = Some(values_query(row)?);
        return Ok(());
    }
    let Some(SetExpr::Values(values)) = insert.source.as_mut().map(|query| query.body.as_mut()) else { return Ok(()) };
    for row in &mut values.rows {
        for (value, column) in row.content.iter_mut().zip(&columns) {
            if is_default(value) {
                *value = column_default(table, column)?;
            }
        }
    }
    Ok(())
}

fn last_part(name: &ObjectName) -> Option<String> {
    name.0.last().and_then(|part| part.as_ident()).map(normalized)
}

/// The default of the column of that name.
fn column_default(table: &TableDefinition, column: &str) -> Result<AstExpr> {
    let position = table.schema.column_with_name(column).map(|(position, _)| position);
    default_expr(position.and_then(|position| table.columns.get(position)?.default.as_deref()))
}

/// The text that the catalog stores for a default that a session declares. Stored numbers with a point are floats. Where
/// they are decimals in the session, and the value would differ, the text gets casts to decimals.
pub(super) fn stored_text(state: &SessionState, text: String) -> Result<String> {
    let mut tree = parse_expression(&text)?;
    // A float of 15 digits becomes the same decimal again.
    let is_exact = |number: &str| number.bytes().filter(u8::is_ascii_digit).count() <= 15;
    let single_number = match &tree {
        AstExpr::UnaryOp { expr, .. } => decimal_number(expr),
        other => decimal_number(other),
    };
    let is_exact_number = single_number.is_some_and(is_exact);
    if is_exact_number || !state.config_options().sql_parser.parse_float_as_decimal {
        return Ok(text);
    }
    let changed = cast_numbers(&mut tree, |number| {
        let literal = ExprWithAlias { expr: AstExpr::value(Value::Number(number.to_owned(), false)), alias: None };
        let literal = state.create_logical_expr_from_sql_expr(literal, &DFSchema::empty())?;
        match literal.get_type(&DFSchema::empty())? {
            arrow::datatypes::DataType::Decimal128(precision, scale)
            | arrow::datatypes::DataType::Decimal256(precision, scale) => {
                let precision = u64::from(precision);
                let scale = i64::from(scale);
                Ok(DataType::Decimal(ExactNumberInfo::PrecisionAndScale(precision, scale)))
            }
            _ => Ok(DataType::Double(ExactNumberInfo::None)),
        }
    })?;
    Ok(if changed { tree.to_string() } else { text })
}

fn values_query(row: Vec<AstExpr>) -> Result<Box<Query>> {
    let mut query = parse_query("VALUES (1)")?;
    if let SetExpr::Values(values) = query.body.as_mut() {
        values.rows.iter_mut().for_each(|only| only.content.clone_from(&row));
    }
    Ok(query)
}
