//! Cuts the plan of a query into stages, or says why it stays whole.
//!
//! Each scan gets as many tasks as it has items, at most one for each node, and a share of its items for each. A scan with one
//! partition stays in one task: the planner has left out exchanges and limits above it which several tasks would need. Task
//! number i of each stage goes to node i, so that a node has at most one task of a stage and reads the same chunks again
//! when the query comes again.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DesiredTaskCountHandler, DistributedConfig, DistributedExec,
    DistributedExt, DistributedLeafExec, NetworkBoundaryExt, RouteTasksEvent, RouteTasksEventResponse,
    RouteTasksHandler, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, ScaleUpLeafNodeHandler,
    SessionStateBuilderExt, display_plan_ascii, get_distributed_worker_resolver,
};
use terrace_scan::joins::part_rules;
use terrace_scan::scan::TierScanExec;

use crate::codec::ScanCodec;
use crate::encodable::obstacle;
use crate::nodes::Nodes;
use crate::options;
use crate::reach::with_reached_filters;
use crate::seal::with_seals;
use crate::statement::Statement;

/// Fewest partitions that a plan is made with: one with a single partition cannot be cut.
const FEWEST_PARTITIONS: usize = 2;

/// Bytes that wait to be read of each stream between tasks.
const STREAM_BYTES: usize = 4 << 20;

/// What became of the plan of a query.
#[derive(Debug)]
pub enum Distribution {
    /// The plan, whose stages below the top one are executed by nodes.
    Stages(Arc<dyn ExecutionPlan>),
    /// It stays whole, for this reason.
    Whole(String),
}

/// The state to make plans in that are cut into stages: `base` without those rules that the coordinator and each node apply
/// to their own part ([`part_rules`]).
pub fn planning_state(base: SessionState) -> SessionState {
    let own: Vec<String> = part_rules().iter().map(|rule| rule.name().to_owned()).collect();
    let rules = base.physical_optimizers().iter().filter(|rule| !own.iter().any(|name| name == rule.name()));
    let rules = rules.cloned().collect();
    SessionStateBuilder::new_from_existing(base).with_physical_optimizer_rules(rules).with_distributed_planner().build()
}

/// The configuration of a statement, with what the planner, the coordinator and the transport need.
///
/// # Errors
/// When an option of the statement cannot be sent to nodes.
pub fn session_config(nodes: &Nodes, statement: &Arc<Statement>, config: SessionConfig) -> Result<SessionConfig> {
    let partitions = config.target_partitions().max(FEWEST_PARTITIONS);
    let mut config = config.with_target_partitions(partitions);
    // A result of a subquery would have to be sent after the plan.
    config.options_mut().optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    let headers = options::headers(statement.number(), config.options())?;
    let mut library = DistributedConfig::default();
    // Each task reads its share of each input.
    library.children_isolator_unions = false;
    // Operators of a node are not those that the coordinator has sent, so their metrics have no place in its plan.
    library.collect_metrics = false;
    // All nodes are in one process.
    library.compression = "none".to_owned();
    library.worker_connection_buffer_budget_bytes = STREAM_BYTES;
    config
        .with_distributed_option_extension(library)
        .with_distributed_worker_resolver(nodes.addresses())
        .with_distributed_channel_resolver(nodes.channels())
        .with_distributed_user_codec(ScanCodec::new(statement))
        .with_distributed_desired_task_count_handler(ScanTasks { nodes: nodes.count() })
        .with_distributed_scale_up_leaf_node_handler(ScanShares)
        .with_distributed_route_tasks_handler(TaskPlaces)
        .with_distributed_passthrough_headers(headers)
}

/// Plans a query in stages. `state` is a [`planning_state`] with a [`session_config`].
///
/// # Errors
/// As of walks over plans. A query that cannot be planned so stays whole, and then has its error if it is at fault.
pub async fn distribute(state: &SessionState, query: &LogicalPlan) -> Result<Distribution> {
    let whole = |why: String| Ok(Distribution::Whole(why));
    let plan = match state.query_planner().create_physical_plan(query, state).await {
        Ok(plan) => plan,
        Err(error) => return whole(format!("its plan cannot be cut into stages ({})", error.strip_backtrace())),
    };
    if !plan.is::<DistributedExec>() {
        return whole("its plan has one stage".to_owned());
    }
    let plan = with_seals(&with_reached_filters(&plan)?)?;
    match obstacle(&plan, &state.task_ctx())? {
        Some(why) => whole(why),
        None => Ok(Distribution::Stages(plan)),
    }
}

/// The scans that nodes execute, or of which they execute shares.
///
/// # Errors
/// As of walks over plans.
pub fn remote_scans(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let mut scans = Vec::new();
    plan.apply(|node| {
        if node.is_network_boundary() {
            node.apply(|below| {
                let leaf = below.downcast_ref::<DistributedLeafExec>().map_or(below, DistributedLeafExec::original);
                if leaf.is::<TierScanExec>() {
                    scans.push(Arc::clone(leaf));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
            return Ok(TreeNodeRecursion::Jump);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(scans)
}

/// The stages of a plan and the scans of their tasks, for people.
pub fn shown(plan: &Arc<dyn ExecutionPlan>) -> String {
    match plan.children().as_slice() {
        // Operators above the stages: the library shows what it has made.
        [input] if !plan.is::<DistributedExec>() => shown(input),
        _ => display_plan_ascii(plan.as_ref(), false),
    }
}

/// Says how many tasks a scan is worth.
struct ScanTasks {
    nodes: usize,
}

#[async_trait]
impl DesiredTaskCountHandler for ScanTasks {
    async fn handle(&self, event: DesiredTaskCountEvent<'_>) -> Option<Result<DesiredTaskCountEventResponse>> {
        let scan = event.plan.downcast_ref::<TierScanExec>()?;
        Some(Ok(match scan.config().partitions {
            1 => DesiredTaskCountEventResponse::maximum(1),
            _ => DesiredTaskCountEventResponse::desired(scan.item_count().clamp(1, self.nodes)),
        }))
    }
}

/// Gives each task of a scan its share.
struct ScanShares;

impl ScaleUpLeafNodeHandler for ScanShares {
    fn handle(&self, event: ScaleUpLeafNodeEvent) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
        let scan = event.plan.downcast_ref::<TierScanExec>().filter(|_| event.task_count > 1)?;
        let shares = scan.split(event.task_count);
        let leaf = shares.and_then(|shares| DistributedLeafExec::try_new(Arc::clone(event.plan), shares));
        Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
    }
}

/// Sends task i of each stage to node i.
struct TaskPlaces;

impl RouteTasksHandler for TaskPlaces {
    fn handle(&self, event: RouteTasksEvent) -> Option<Result<RouteTasksEventResponse>> {
        let nodes = get_distributed_worker_resolver(event.task_ctx.session_config());
        let urls = nodes.and_then(|nodes| nodes.get_urls());
        Some(urls.map(|urls| RouteTasksEventResponse::new(urls.into_iter().take(event.task_count).collect())))
    }
}
