//! Analysis of plans, which decides the types of their columns.
//!
//! The SQL planner types each expression by itself; the branches of a UNION, CASE or COALESCE get their common type only
//! when the plan is analysed. Result schemas, views and CREATE TABLE AS therefore use the analysed plan: for
//! `SELECT 1 UNION ALL SELECT 2.5` the planner says INT, the analysis DOUBLE.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as PlanResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, LogicalPlanBuilder, WriteOp};

use crate::error::Result;

/// Analyses a plan. Leaves it unchanged where parameters are not bound yet, and for EXPLAIN, which shows the analysis as
/// one of its steps.
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

/// Casts the rows of an INSERT to the columns again, as the planner does: the analysis may have widened them.
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

/// Whether the rows of a query come in an order that its text gives: that of its own ORDER BY, not that of a subquery.
pub(super) fn has_order(plan: &LogicalPlan) -> bool {
    let mut plan = plan;
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => projection.input.as_ref(),
            LogicalPlan::Limit(limit) => limit.input.as_ref(),
            LogicalPlan::Distinct(Distinct::On(distinct)) => return distinct.sort_expr.is_some(),
            other => return matches!(other, LogicalPlan::Sort(_)),
        };
    }
}

/// Returns the columns of a query's result; where parameters are not bound yet, with their inferred types.
pub(super) fn result_schema(state: &SessionState, plan: &LogicalPlan) -> Result<SchemaRef> {
    Ok(ResultColumns::new(state, plan)?.schema)
}

/// The columns of a query's result.
pub(super) struct ResultColumns {
    /// Where parameters are not bound yet, with their inferred types.
    pub(super) schema: SchemaRef,
    /// Whether they are the same for all values of the parameters.
    pub(super) are_fixed: bool,
}

impl ResultColumns {
    /// Those of a plan.
    pub(super) fn new(state: &SessionState, plan: &LogicalPlan) -> Result<Self> {
        if plan.get_parameter_names()?.is_empty() {
            return Ok(Self::fixed(Arc::new(plan.schema().as_arrow().clone())));
        }
        // Where no type can be inferred, the analysis fails; the bound values decide later.
        Ok(match state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {}) {
            Ok(analysed) => Self {
                schema: Arc::new(analysed.schema().as_arrow().clone()),
                are_fixed: filters_alone_have_parameters(plan)?,
            },
            Err(_) => Self { schema: Arc::new(plan.schema().as_arrow().clone()), are_fixed: false },
        })
    }

    /// Those of a statement without parameters.
    pub(super) fn fixed(schema: SchemaRef) -> Self {
        Self { schema, are_fixed: true }
    }
}

/// Whether parameters occur in the conditions of filters only, which make no columns.
fn filters_alone_have_parameters(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut is_so = true;
    plan.apply_with_subqueries(|node| {
        if !matches!(node, LogicalPlan::Filter(_)) {
            node.apply_expressions(|expr| {
                is_so &= !expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))?;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(if is_so { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_so)
}
