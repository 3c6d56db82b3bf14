//! The memory that a query is expected to need, as the last row of EXPLAIN and EXPLAIN ANALYZE.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::common::format::ExplainFormat;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use terrace_tier_store::units::human_bytes;

use super::admission::Demand;
use super::interrupt::Interrupt;
use super::run::physical_plan;
use super::statement::Planned;
use super::stream_exec::StreamExec;
use crate::error::Result;

/// Value of the column `plan_type`.
const PLAN_TYPE: &str = "memory_demand";

/// Adds the row to the plan of an EXPLAIN of a query, in the formats that are read by people; returns other plans
/// unchanged.
pub(super) async fn with_demand(
    state: &SessionState,
    interrupt: &Interrupt,
    planned: &Planned,
    plan: Arc<dyn ExecutionPlan>,
    limit_bytes: u64,
) -> Result<Arc<dyn ExecutionPlan>> {
    if planned.target.is_some() {
        return Ok(plan);
    }
    let demand = match &planned.plan {
        LogicalPlan::Analyze(_) => match plan.children().as_slice() {
            [query] => Demand::from_plan(query, limit_bytes)?,
            _ => return Ok(plan),
        },
        LogicalPlan::Explain(explain)
            if matches!(explain.explain_format, ExplainFormat::Indent | ExplainFormat::Tree) =>
        {
            let query = Planned { plan: explain.plan.as_ref().clone(), ..planned.clone() };
            // EXPLAIN itself shows why a query cannot be planned.
            let Ok(query) = physical_plan(state, interrupt, &query).await else { return Ok(plan) };
            Demand::from_plan(&query, limit_bytes)?
        }
        _ => return Ok(plan),
    };
    let text = format!(
        "{} weighted by time, at most {} of {} of query memory{}",
        human_bytes(demand.weighted_bytes()),
        human_bytes(demand.most_bytes()),
        human_bytes(limit_bytes),
        if demand.is_point() { "; a point statement" } else { "" }
    );
    let schema = plan.schema();
    let add_row = move |rows: datafusion::execution::SendableRecordBatchStream, _: &_| {
        let row = row(&schema, &text).map_err(Into::into);
        rows.chain(futures::stream::once(std::future::ready(row))).boxed()
    };
    Ok(Arc::new(StreamExec::new("MemoryDemandExec", plan, add_row)))
}

fn row(schema: &SchemaRef, text: &str) -> Result<RecordBatch> {
    let columns = [PLAN_TYPE, text].map(|text| Arc::new(StringArray::from(vec![text])) as _);
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.into())?)
}
