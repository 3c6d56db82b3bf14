//! Aggregates over scans that kernels of a device compute, where the columns have images there.
//!
//! The rule [`KernelRule`] recognises the first half of an aggregate over a scan whose filter, keys and arguments the kernels
//! compute exactly: integers, decimals, dates and times, and texts that are stored as keys of a dictionary. Its scan counts
//! that kernels could have made its reads, from which placement decides what lies on the device; and unless
//! `terrace.gpu` is off, a [`KernelExec`] stands above it, which decides at run time. An aggregate that is computed at once, over
//! one partition, is made two halves. Without a device nothing happens.
//!
//! - `condition`: filters as kernels test them, and the columns that they read
//! - `exec`: the plan node
//! - `masked`: measures over a part of the rows, for FILTER and CASE
//! - `measure`: arguments of aggregates as products of factors
//! - `output`: the groups that kernels found as rows
//! - `plan`: what kernels compute in place of the first half of an aggregate
//! - `texts`: codes for the texts of dictionaries

mod condition;
mod exec;
mod masked;
mod measure;
mod output;
mod plan;
mod texts;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

pub use exec::KernelExec;
use plan::{KernelPlan, scan_below};

use super::exec::TierScanExec;
use crate::session_options::{Gpu, SessionOptions};

/// Optimizer rule that lets a device compute what it can.
#[derive(Debug)]
pub(super) struct KernelRule;

impl PhysicalOptimizerRule for KernelRule {
    fn name(&self) -> &str {
        "kernels"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let gpu = SessionOptions::from_config(config).gpu;
        plan.transform_up(|node| Ok(with_kernels(&node, gpu)?.map_or_else(|| Transformed::no(node), Transformed::yes)))
            .data()
    }
}

/// The node in place of an aggregate, or of the first half of one, that kernels compute; `None` for other nodes, and without a
/// device.
fn with_kernels(node: &Arc<dyn ExecutionPlan>, gpu: Gpu) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let Some(scan) = scan_below(aggregate) else { return Ok(None) };
    let source = Arc::clone(&scan.config().source);
    let Some(tier) = source.store.device_tier().cloned() else { return Ok(None) };
    let Some(first) = first_half(node, aggregate)? else { return Ok(None) };
    let Some(half) = first.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let Some(plan) = KernelPlan::from_aggregate(half) else { return Ok(None) };
    if gpu == Gpu::Off {
        return counting(node).map(Some);
    }
    let is_one = first.output_partitioning().partition_count() == 1;
    let kernels = Arc::new(KernelExec::new(counting(&first)?, Arc::new(plan), source, tier, gpu));
    // Whoever reads one partition reads no second one.
    let kernels: Arc<dyn ExecutionPlan> = if is_one { Arc::new(CoalescePartitionsExec::new(kernels)) } else { kernels };
    if *aggregate.mode() == AggregateMode::Partial {
        return Ok(Some(kernels));
    }
    let whole: Arc<dyn ExecutionPlan> = Arc::new(AggregateExec::try_new(
        AggregateMode::Final,
        half.group_expr().as_final(),
        half.aggr_expr().to_vec(),
        half.filter_expr().to_vec(),
        kernels,
        half.input_schema(),
    )?);
    Ok((whole.schema() == node.schema()).then_some(whole))
}

/// The first half of an aggregate: the node itself, or a half of one that is computed at once.
fn first_half(node: &Arc<dyn ExecutionPlan>, aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    match aggregate.mode() {
        AggregateMode::Partial => Ok(Some(Arc::clone(node))),
        AggregateMode::Single if aggregate.limit_options().is_none() => Ok(Some(Arc::new(AggregateExec::try_new(
            AggregateMode::Partial,
            aggregate.group_expr().clone(),
            aggregate.aggr_expr().to_vec(),
            aggregate.filter_expr().to_vec(),
            Arc::clone(aggregate.input()),
            aggregate.input_schema(),
        )?))),
        _ => Ok(None),
    }
}

/// A plan whose scan counts that kernels could have made its reads.
fn counting(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let counting = Arc::clone(plan).transform_up(|node| {
        Ok(match node.downcast_ref::<TierScanExec>() {
            Some(scan) => Transformed::yes(Arc::new(scan.counting_for_kernels()) as Arc<dyn ExecutionPlan>),
            None => Transformed::no(node),
        })
    });
    counting.data()
}
