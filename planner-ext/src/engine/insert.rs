//! Binds many rows of parameters of an INSERT .. VALUES as a table.
//!
//! `INSERT INTO t VALUES ($1, $2 + 1)` bound to many rows becomes `INSERT INTO t SELECT p1, p2 + 1 FROM parameters`:
//! one plan, one commit, and no literal per value.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Cast, Placeholder};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, WriteOp, col};

use super::analysis::analysed;
use super::parameters::does_not_fit;
use super::types::exact_cast;
use crate::error::{Error, Result};

/// Name of the table of parameters within a plan.
const PARAMETERS: &str = "__parameters";

/// Makes one plan for all rows of an INSERT with one row of VALUES; `None` for other statements.
pub(super) fn bind_many(state: &SessionState, plan: &LogicalPlan, bound: &RecordBatch) -> Result<Option<LogicalPlan>> {
    if !matches!(plan, LogicalPlan::Dml(dml) if matches!(dml.op, WriteOp::Insert(_))) || !has_one_row_of_values(plan)? {
        return Ok(None);
    }
    let source = provider_as_source(Arc::new(parameter_table(plan, bound)?));
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
    rewritten.transformed.then(|| analysed(state, rewritten.data)).transpose()
}

/// Whether all placeholders of a plan are in one VALUES list of one row.
fn has_one_row_of_values(plan: &LogicalPlan) -> Result<bool> {
    let mut lists = 0;
    let mut elsewhere = false;
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

/// Builds a table of the bound rows with a column for each parameter. A parameter that is stored unchanged has the type of
/// its target column.
fn parameter_table(plan: &LogicalPlan, bound: &RecordBatch) -> Result<MemTable> {
    let targets = stored_parameters(plan)?;
    let mut fields = Vec::new();
    let mut columns = Vec::<ArrayRef>::new();
    for (index, column) in bound.columns().iter().enumerate() {
        let id = format!("${}", index + 1);
        let typed = match targets.get(&id) {
            Some(Some(field)) => exact_cast(column, field.data_type()).map_err(|why| does_not_fit(&id, field, &why))?,
            _ => Arc::clone(column),
        };
        fields.push(Field::new(&id, typed.data_type().clone(), true));
        columns.push(typed);
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    Ok(MemTable::try_new(schema, vec![vec![batch]])?)
}

/// Target columns of parameters that are stored unchanged; `None` for a parameter that is also used otherwise.
fn stored_parameters(plan: &LogicalPlan) -> Result<HashMap<String, Option<FieldRef>>> {
    let mut stored: HashMap<String, Option<FieldRef>> = HashMap::new();
    plan.apply(|node| {
        let LogicalPlan::Values(values) = node else { return Ok(TreeNodeRecursion::Continue) };
        for expr in values.values.iter().flatten() {
            if let Expr::Placeholder(Placeholder { id, field }) = expr {
                let known = stored.entry(id.clone()).or_insert_with(|| field.clone());
                if known.as_ref().map(|known| known.data_type()) != field.as_ref().map(|field| field.data_type()) {
                    *known = None;
                }
                continue;
            }
            expr.apply(|part| {
                if let Expr::Placeholder(Placeholder { id, .. }) = part {
                    stored.insert(id.clone(), None);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(stored)
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

/// Rewords an error about a null in a NOT NULL column. The planner names the columns of VALUES `column1`, `column2`, ...;
/// this names the column of the table.
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
