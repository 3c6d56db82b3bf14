//! Aggregates over scans that kernels of a device compute, where the columns have images there.
//!
//! The rule [`KernelRule`] recognises the first half of an aggregate over a scan whose filter, keys and arguments the kernels
//! compute exactly: integers, decimals, dates and times, and texts that are stored as keys of a dictionary. Its scan counts
//! that kernels could have made its reads, from which placement decides what lies on the device; and unless
//! `terrace.gpu` is off, a [`KernelExec`] stands above it, which decides at run time. Without a device nothing happens.
//!
//! - `condition`: filters as kernels test them, and the columns that they read
//! - `exec`: the plan node
//! - `measure`: arguments of aggregates as products of factors
//! - `output`: the groups that kernels found as rows
//! - `plan`: what kernels compute in place of the first half of an aggregate
//! - `texts`: codes for the texts of dictionaries

mod condition;
mod exec;
mod measure;
mod output;
mod plan;
mod texts;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

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

/// The node in place of the first half of an aggregate that kernels compute; `None` for other nodes, and without a device.
fn with_kernels(node: &Arc<dyn ExecutionPlan>, gpu: Gpu) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let Some(scan) = scan_below(aggregate) else { return Ok(None) };
    let source = Arc::clone(&scan.config().source);
    let Some(tier) = source.store.device_tier().cloned() else { return Ok(None) };
    let Some(plan) = KernelPlan::from_aggregate(aggregate) else { return Ok(None) };
    let counting = Arc::clone(node).transform_up(|node| {
        Ok(match node.downcast_ref::<TierScanExec>() {
            Some(scan) => Transformed::yes(Arc::new(scan.counting_for_kernels()) as Arc<dyn ExecutionPlan>),
            None => Transformed::no(node),
        })
    });
    let counting = counting.data()?;
    if gpu == Gpu::Off {
        return Ok(Some(counting));
    }
    Ok(Some(Arc::new(KernelExec::new(counting, Arc::new(plan), source, tier, gpu))))
}
