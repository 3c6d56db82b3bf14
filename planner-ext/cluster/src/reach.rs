//! Run-time filters that cannot come.
//!
//! A join publishes its filter where it is executed. A scan in another stage, below a shuffle, has a copy that nobody ever
//! fills: it would look at it for every slice, and never skip anything. So each scan keeps those filters only whose producer
//! is in its own stage, and its plan says `no filter: shuffle` where it lost one. A broadcast join and the scan that it
//! filters are in one stage; each task has a filter of its own, made of the whole build side.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion_distributed::{DistributedLeafExec, NetworkBoundaryExt};
use terrace_scan::scan::TierScanExec;

/// The plan whose scans have the run-time filters of their own stage only.
///
/// # Errors
/// As of changes to scans.
pub(crate) fn with_reached_filters(stage: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut produced = HashSet::new();
    note_produced(stage, &mut produced);
    reached(stage, &produced)
}

/// Notes the run-time filters that the operators of one stage produce.
fn note_produced(node: &Arc<dyn ExecutionPlan>, produced: &mut HashSet<u64>) {
    produced.extend(node.dynamic_expressions_produced().iter().filter_map(|filter| filter.expression_id()));
    if !node.is_network_boundary() {
        node.children().into_iter().for_each(|input| note_produced(input, produced));
    }
}

fn reached(node: &Arc<dyn ExecutionPlan>, produced: &HashSet<u64>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(leaf) = node.downcast_ref::<DistributedLeafExec>() {
        let original = reached_scan(leaf.original(), produced)?;
        let variants = leaf.variants().iter().map(|variant| reached_scan(variant, produced));
        let variants = variants.collect::<Result<Vec<_>>>()?;
        return Ok(Arc::new(DistributedLeafExec::try_new(original, variants)?));
    }
    let is_boundary = node.is_network_boundary();
    let inputs = node.children().into_iter().map(|input| match is_boundary {
        true => with_reached_filters(input),
        false => reached(input, produced),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    match inputs.is_empty() {
        true => reached_scan(node, produced),
        false => replace_children_if_necessary(Arc::clone(node), inputs),
    }
}

fn reached_scan(leaf: &Arc<dyn ExecutionPlan>, produced: &HashSet<u64>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(scan) = leaf.downcast_ref::<TierScanExec>() else { return Ok(Arc::clone(leaf)) };
    Ok(scan.reached_by(produced)?.unwrap_or_else(|| Arc::clone(leaf)))
}
