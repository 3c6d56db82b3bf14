//! Operators of this server in place of DataFusion's: the last changes to a plan.
//!
//! They are made to whole plans, and where several nodes execute a query, to each part of its plan where that part is executed:
//! to the top stage at the coordinator, to the others at the nodes. So they keep the columns that a part passes on.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{self, Column as PhysicalColumn};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use terrace_scan::spilling_join::with_spilling_joins;

use super::even_sorts::with_even_sorts;
use super::interrupt::{Interrupt, interruptible};
use super::small_batches::with_small_batches;
use super::windows::{with_copied_texts, with_partitioned_windows};

/// Replaces operators of a plan, or of a part of one, that was made from `statement`.
pub(super) fn with_own_operators(
    plan: Arc<dyn ExecutionPlan>,
    statement: &LogicalPlan,
    interrupt: &Interrupt,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = with_copied_texts(with_partitioned_windows(with_even_sorts(plan)?)?, statement)?;
    let plan = with_small_batches(plan, interrupt)?;
    with_spilling_joins(interruptible(plan, interrupt)?)
}

/// Casts numeric columns of a plan to the announced types where the optimizer has changed them (`decimal * 0` becomes a 0
/// of another precision). A number that does not fit is an error.
pub(super) fn with_announced_types(plan: Arc<dyn ExecutionPlan>, announced: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    let found = plan.schema();
    let differs = |have: &Field, want: &Field| {
        have.data_type() != want.data_type() && have.data_type().is_numeric() && want.data_type().is_numeric()
    };
    let pairs = || found.fields().iter().zip(announced.fields());
    if found.fields().len() != announced.fields().len() || !pairs().any(|(have, want)| differs(have, want)) {
        return Ok(plan);
    }
    let columns = pairs().enumerate().map(|(index, (have, want))| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(PhysicalColumn::new(have.name(), index));
        let expr = match differs(have, want) {
            true => expressions::cast(column, &found, want.data_type().clone())?,
            false => column,
        };
        Ok(ProjectionExpr { expr, alias: have.name().clone() })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
}
