//! Whether all stages of a plan survive their way through bytes.
//!
//! A statement whose plan cannot be sent stays whole, and says which operator it is about. This has to be known before
//! anything is sent: afterwards the statement could only fail. The same holds for an operator that would arrive as another
//! one, so each stage is read back by itself, as a node reads it, and its operators are compared by what they show. What they
//! do not show, and the transport loses, is looked for by itself.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, displayable};
use datafusion_distributed::{DistributedCodec, DistributedLeafExec, NetworkBoundaryExt};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_proto_converter, physical_plan_to_bytes_with_proto_converter,
};
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;

/// Why some stage of a plan cannot be sent; `None` if all can. `context` is that of the coordinator.
///
/// # Errors
/// As of walks over plans.
pub(crate) fn obstacle(plan: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Option<String>> {
    if plan.exists(|node| Ok(is_ordered_shuffle(node)))? {
        return Ok(Some("an exchange keeps the order of its rows, which come from several nodes".to_owned()));
    }
    let mut found = None;
    plan.apply(|node| {
        if node.is_network_boundary() {
            for stage in node.children() {
                if found.is_none() {
                    found = stage_obstacle(stage, context)?;
                }
            }
        }
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether a boundary is fed by an exchange that keeps an order: it reads the rows of several tasks as they come.
fn is_ordered_shuffle(node: &Arc<dyn ExecutionPlan>) -> bool {
    let keeps_order = |stage: &Arc<dyn ExecutionPlan>| {
        stage.downcast_ref::<RepartitionExec>().is_some_and(RepartitionExec::preserve_order)
    };
    node.is_network_boundary() && node.children().into_iter().any(keeps_order)
}

/// Whether an operator has a window of which the transport loses a part: IGNORE NULLS, the FILTER of an aggregate, or that rows are
/// taken in reverse.
fn has_unsent_window(node: &Arc<dyn ExecutionPlan>) -> bool {
    let windows = match (node.downcast_ref::<BoundedWindowAggExec>(), node.downcast_ref::<WindowAggExec>()) {
        (Some(node), _) => node.window_expr(),
        (None, Some(node)) => node.window_expr(),
        (None, None) => return false,
    };
    // No method tells these, but they are shown for debugging.
    windows.iter().any(|window| {
        let shown = format!("{window:?}");
        ["ignore_nulls: true", "filter: Some(", "is_reversed: true"].iter().any(|part| shown.contains(part))
    })
}

fn stage_obstacle(stage: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Option<String>> {
    let stage = of_first_task(Arc::clone(stage))?;
    if stage.exists(|node| Ok(has_unsent_window(node)))? {
        return Ok(Some(
            "a window with IGNORE NULLS, FILTER or reversed rows would change on its way to nodes".to_owned(),
        ));
    }
    let bytes = match encoded(&stage, context) {
        Ok(bytes) => bytes,
        Err(error) => {
            let culprit = deepest_unsent(&stage, context);
            let why = error.strip_backtrace();
            let why = why.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
            return Ok(Some(format!("{} cannot be sent to nodes ({why})", culprit.name())));
        }
    };
    let codec = DistributedCodec::new_combined_with_user(context.session_config());
    let converter = DeduplicatingProtoConverter::default();
    let arrived = match physical_plan_from_bytes_with_proto_converter(&bytes, context, &codec, &converter) {
        Ok(arrived) => arrived,
        Err(error) => {
            let why = error.strip_backtrace();
            return Ok(Some(format!("its plan cannot be read by nodes ({})", why.lines().next().unwrap_or_default())));
        }
    };
    let sent = operators(&stage)?;
    let arrived = operators(&arrived)?;
    let changed = sent.iter().zip(&arrived).find(|(sent, arrived)| sent != arrived);
    Ok(match changed {
        Some((sent, arrived)) => Some(format!("an operator would change on its way to nodes: {sent} to {arrived}")),
        None if sent.len() != arrived.len() => Some("its plan would change on its way to nodes".to_owned()),
        None => None,
    })
}

/// The stage as its first task is sent it: with the share of that task, and without the stages below, which are sent by themselves.
fn of_first_task(stage: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    stage
        .transform_down(|node| {
            if node.is_network_boundary() {
                return Ok(Transformed::new(without_stage(node)?, true, TreeNodeRecursion::Jump));
            }
            let variant = node.downcast_ref::<DistributedLeafExec>().and_then(|leaf| leaf.variants().first());
            Ok(match variant.cloned() {
                Some(variant) => Transformed::yes(variant),
                None => Transformed::no(node),
            })
        })
        .data()
}

/// A boundary with next to nothing below it.
fn without_stage(boundary: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let nothing = |stage: &Arc<dyn ExecutionPlan>| Arc::new(EmptyExec::new(stage.schema())) as Arc<dyn ExecutionPlan>;
    let nothing = boundary.children().into_iter().map(nothing).collect();
    replace_children_if_necessary(boundary, nothing)
}

fn encoded(plan: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Vec<u8>> {
    let codec = DistributedCodec::new_combined_with_user(context.session_config());
    let converter = DeduplicatingProtoConverter::default();
    Ok(physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &codec, &converter)?.to_vec())
}

/// The operator farthest from the root that cannot be encoded although its inputs can.
fn deepest_unsent<'a>(plan: &'a Arc<dyn ExecutionPlan>, context: &TaskContext) -> &'a Arc<dyn ExecutionPlan> {
    let failing = plan.children().into_iter().find(|input| encoded(input, context).is_err());
    failing.map_or(plan, |input| deepest_unsent(input, context))
}

/// What the operators of a plan show, the leaves left out: those show where data lies, which may change at any time.
fn operators(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<String>> {
    let mut shown = Vec::new();
    plan.apply(|node| {
        if !node.children().is_empty() {
            shown.push(shown_operator(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(shown)
}

/// What an operator shows. That keys of an aggregation are in order is left out where all of these are constant: a boundary arrives
/// without the knowledge of what is constant in its rows, and rows with one value of a key need no order.
fn shown_operator(node: &Arc<dyn ExecutionPlan>) -> String {
    let shown = displayable(node.as_ref()).one_line().to_string();
    let shown = shown.trim_end();
    let is_left_out = node.downcast_ref::<AggregateExec>().is_some_and(is_ordered_by_constants);
    let cut = shown.rsplit_once(", ordering_mode=").filter(|_| is_left_out);
    cut.map_or(shown, |(operator, _)| operator).to_owned()
}

/// Whether those keys of an aggregation that are in order are constant.
fn is_ordered_by_constants(aggregate: &AggregateExec) -> bool {
    let keys = aggregate.group_expr().input_exprs();
    let known = aggregate.input().properties().equivalence_properties();
    let is_constant = |key: &Arc<dyn PhysicalExpr>| known.is_expr_constant(key).is_some();
    match aggregate.input_order_mode() {
        InputOrderMode::Linear => false,
        InputOrderMode::PartiallySorted(places) => places.iter().all(|place| keys.get(*place).is_some_and(is_constant)),
        InputOrderMode::Sorted => keys.iter().all(is_constant),
    }
}
