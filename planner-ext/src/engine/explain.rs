//! Rows that EXPLAIN and EXPLAIN ANALYZE have at their end: the memory that a query is expected to need, what it has
//! spilled, and which parts of it nodes execute.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::common::format::ExplainFormat;
use datafusion::logical_expr::{Analyze, Explain, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use terrace_tier_store::units::human_bytes;

use super::admission::Demand;
use super::spill::StatementSpill;
use super::stream_exec::StreamExec;
use crate::error::Result;

/// Values of the column `plan_type`.
const DEMAND: &str = "memory_demand";
const SPILLED: &str = "spilled_rows";
const NODES: &str = "nodes";

/// The query that an EXPLAIN explains in one of the formats that are read by people.
pub(super) fn explained_query(plan: &LogicalPlan) -> Option<&Arc<LogicalPlan>> {
    match plan {
        LogicalPlan::Explain(explain)
            if matches!(explain.explain_format, ExplainFormat::Indent | ExplainFormat::Tree) =>
        {
            Some(&explain.plan)
        }
        _ => None,
    }
}

/// An EXPLAIN or EXPLAIN ANALYZE without statistics, which tell the least and greatest values of columns; `None` for other plans.
pub(super) fn without_statistics(plan: &LogicalPlan) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Explain(explain) => {
            let quiet = Explain { verbose: false, show_statistics: Some(false), ..explain.clone() };
            Some(LogicalPlan::Explain(quiet))
        }
        LogicalPlan::Analyze(analyze) => Some(LogicalPlan::Analyze(Analyze { verbose: false, ..analyze.clone() })),
        _ => None,
    }
}

/// Adds the rows to the plan of an EXPLAIN: the demand and, after EXPLAIN ANALYZE has run a query that spilled, its `spill`.
pub(super) fn with_demand(
    plan: Arc<dyn ExecutionPlan>,
    demand: &Demand,
    limit_bytes: u64,
    spill: Option<Arc<StatementSpill>>,
) -> Arc<dyn ExecutionPlan> {
    let text = format!(
        "{} weighted by time, at most {} of {} of query memory{}",
        human_bytes(demand.weighted_bytes()),
        human_bytes(demand.most_bytes()),
        human_bytes(limit_bytes),
        if demand.is_point() { "; a point statement" } else { "" }
    );
    let schema = plan.schema();
    let add_row = move |rows: datafusion::execution::SendableRecordBatchStream, _: &_| {
        let demand = row(&schema, DEMAND, &text).map_err(Into::into);
        let (schema, spill) = (Arc::clone(&schema), spill.clone());
        // The query has ended when this row is asked for.
        let spilled = futures::stream::iter(spill).filter_map(move |spill| {
            let text = (spill.spilled_bytes() > 0).then(|| spilled_text(&spill));
            std::future::ready(text.map(|text| row(&schema, SPILLED, &text).map_err(Into::into)))
        });
        rows.chain(futures::stream::once(std::future::ready(demand))).chain(spilled).boxed()
    };
    Arc::new(StreamExec::new("MemoryDemandExec", plan, add_row))
}

/// Adds a row to the plan of an EXPLAIN: how nodes execute the query, or why none do.
pub(super) fn with_nodes(plan: Arc<dyn ExecutionPlan>, text: String) -> Arc<dyn ExecutionPlan> {
    let schema = plan.schema();
    let add_row = move |rows: datafusion::execution::SendableRecordBatchStream, _: &_| {
        let nodes = row(&schema, NODES, &text).map_err(Into::into);
        rows.chain(futures::stream::once(std::future::ready(nodes))).boxed()
    };
    Arc::new(StreamExec::new("ExplainedNodesExec", plan, add_row))
}

fn spilled_text(spill: &StatementSpill) -> String {
    let waited = Duration::from_micros(spill.wait_us());
    format!(
        "{} written; operators waited {waited:.1?} for writes and reads of class spill",
        human_bytes(spill.spilled_bytes())
    )
}

fn row(schema: &SchemaRef, plan_type: &str, text: &str) -> Result<RecordBatch> {
    let columns = [plan_type, text].map(|text| Arc::new(StringArray::from(vec![text])) as _);
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.into())?)
}
