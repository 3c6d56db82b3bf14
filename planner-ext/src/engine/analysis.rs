//! The types of a plan, as its analysis decides them.
//!
//! The planner of SQL types each expression where it stands; the branches of a UNION, CASE or COALESCE get their common
//! type only when the plan is analysed. What is announced, stored as a view or made a table of is therefore the analysed
//! plan: with `SELECT 1 UNION ALL SELECT 2.5` the planner says INT, the analysis DOUBLE.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, WriteOp};

use crate::error::Result;

/// The plan with the types of its analysis; as it is where parameters are not bound yet, and for EXPLAIN, which shows the
/// analysis as one of its steps.
pub(super) fn analysed(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_explain = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
    if is_explain || !plan.get_parameter_names()?.is_empty() {
        return Ok(plan);
    }
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
    match plan {
        LogicalPlan::Dml(_) => rows_as_stored(plan),
        other => Ok(other),
    }
}

/// The analysis may have widened the rows of an INSERT: casts them to the columns again, as the planner does.
fn rows_as_stored(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Dml(mut dml) = plan else { return Ok(plan) };
    let wanted = dml.target.schema();
    let rows = dml.input.schema();
    let same_types = rows.fields().iter().zip(wanted.fields()).all(|(have, want)| have.data_type() == want.data_type());
    if !matches!(dml.op, WriteOp::Insert(_)) || same_types || rows.fields().len() != wanted.fields().len() {
        return Ok(LogicalPlan::Dml(dml));
    }
    let columns = rows.iter().zip(wanted.fields()).map(|((qualifier, have), want)| {
        let column = Expr::from((qualifier, have));
        datafusion::logical_expr::cast(column, want.data_type().clone()).alias(want.name())
    });
    let columns: Vec<_> = columns.collect();
    dml.input = Arc::new(LogicalPlanBuilder::from(Arc::unwrap_or_clone(dml.input)).project(columns)?.build()?);
    Ok(LogicalPlan::Dml(dml))
}

/// The columns of a query's result. With parameters that are not bound yet, those that the inferred types give.
pub(super) fn result_schema(state: &SessionState, plan: &LogicalPlan) -> Result<SchemaRef> {
    let typed = match plan.get_parameter_names()?.is_empty() {
        true => plan.schema().as_arrow().clone(),
        // A type that nothing tells may leave the plan without one: what is bound decides then.
        false => match state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {}) {
            Ok(analysed) => analysed.schema().as_arrow().clone(),
            Err(_) => plan.schema().as_arrow().clone(),
        },
    };
    Ok(Arc::new(typed))
}
