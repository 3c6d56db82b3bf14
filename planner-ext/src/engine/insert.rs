//! Parameters of a statement: one row as literals, many rows of an INSERT .. VALUES as a table of their own.
//!
//! `INSERT INTO t VALUES ($1, $2 + 1)` bound to many rows becomes `INSERT INTO t SELECT p1, p2 + 1 FROM parameters`:
//! one plan, one commit, and no literal per value.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::expr::{Cast, Placeholder};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, WriteOp, col};

use crate::error::{Error, Result};

/// Name of the table of parameters within a plan.
const PARAMETERS: &str = "__parameters";

/// The plan with row `row` of the bound parameters in place of its placeholders.
pub(super) fn bind_one(plan: LogicalPlan, wanted: &SchemaRef, bound: &RecordBatch, row: usize) -> Result<LogicalPlan> {
    let mut values = Vec::with_capacity(wanted.fields().len());
    for (field, column) in wanted.fields().iter().zip(bound.columns()) {
        let one = cast_parameter(&column.slice(row, 1), field)?;
        values.push(ScalarValue::try_from_array(&one, 0)?.into());
    }
    Ok(plan.with_param_values(ParamValues::List(values))?)
}

/// One plan for all rows, where the statement is an INSERT of one row of VALUES; `None` for other statements.
pub(super) fn bind_many(plan: &LogicalPlan, wanted: &SchemaRef, bound: &RecordBatch) -> Result<Option<LogicalPlan>> {
    if !matches!(plan, LogicalPlan::Dml(dml) if matches!(dml.op, WriteOp::Insert(_))) || !has_one_row_of_values(plan)? {
        return Ok(None);
    }
    let source = provider_as_source(Arc::new(parameter_table(wanted, bound)?));
    let rewritten = plan.clone().transform_up(|node| match node {
        LogicalPlan::Values(values) => {
            let Some(row) = values.values.first() else { return Ok(Transformed::no(LogicalPlan::Values(values))) };
            let mut columns = Vec::with_capacity(row.len());
            for (expr, field) in row.iter().zip(values.schema.fields()) {
                let value = placeholders_to_columns(expr.clone())?;
                let typed = Expr::Cast(Cast::new(Box::new(value), field.data_type().clone()));
                columns.push(typed.alias(field.name()));
            }
            let scan = LogicalPlanBuilder::scan(PARAMETERS, Arc::clone(&source), None)?.project(columns)?.build()?;
            Ok(Transformed::yes(scan))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(rewritten.transformed.then_some(rewritten.data))
}

/// A plan whose placeholders all stand in one VALUES list of one row.
fn has_one_row_of_values(plan: &LogicalPlan) -> Result<bool> {
    let (mut lists, mut elsewhere) = (0, false);
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Values(values) if values.values.len() == 1 => lists += 1,
            LogicalPlan::Values(_) => elsewhere = true,
            other => {
                other.apply_expressions(|expr| {
                    elsewhere |= expr.exists(|e| Ok(matches!(e, Expr::Placeholder(_))))?;
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(lists == 1 && !elsewhere)
}

fn parameter_table(wanted: &SchemaRef, bound: &RecordBatch) -> Result<MemTable> {
    let (mut fields, mut columns) = (Vec::new(), Vec::<ArrayRef>::new());
    for (field, column) in wanted.fields().iter().zip(bound.columns()) {
        let typed = cast_parameter(column, field)?;
        fields.push(Field::new(field.name(), typed.data_type().clone(), true));
        columns.push(typed);
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    Ok(MemTable::try_new(schema, vec![vec![batch]])?)
}

fn placeholders_to_columns(expr: Expr) -> datafusion::error::Result<Expr> {
    let replaced = expr.transform_up(|e| match e {
        Expr::Placeholder(Placeholder { id, .. }) => {
            Ok(Transformed::yes(col(datafusion::common::Column::new(Some(PARAMETERS), id))))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(replaced.data)
}

/// Casts bound values to the type the planner inferred; a value that does not fit is an error.
fn cast_parameter(column: &ArrayRef, field: &Field) -> Result<ArrayRef> {
    let wanted = match field.data_type() {
        DataType::Null => return Ok(Arc::clone(column)),
        other => other,
    };
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, wanted, &options).map_err(|e| {
        let why = Error::from(e);
        Error::invalid(format!(
            "parameter {} is {}, {wanted} was expected: {}",
            field.name(),
            column.data_type(),
            why.message()
        ))
    })
}

/// The planner checks NOT NULL on the columns of VALUES, which it calls `column1`, `column2`, ...: names the column of the
/// table instead.
pub(super) fn name_null_column(error: Error, plan: &LogicalPlan) -> Error {
    let LogicalPlan::Dml(dml) = plan else { return error };
    let Some(unnamed) = error.message().split('\'').nth(1).filter(|_| error.message().contains("non-nullable")) else {
        return error;
    };
    let named = dml.input.expressions().iter().find_map(|expr| {
        let used = expr.column_refs();
        used.iter().any(|c| c.name() == unnamed).then(|| expr.schema_name().to_string())
    });
    let by_position =
        unnamed.parse::<usize>().ok().and_then(|i| Some(dml.target.schema().fields().get(i)?.name().clone()));
    match named.or(by_position) {
        Some(name) => Error::invalid(format!("column '{name}' is NOT NULL and a row has no value there")),
        None => error,
    }
}
