//! The nodes of the process that execute parts of queries, as `system.nodes` has them.
//!
//! The cockpit asks for them every two seconds; by statements, it would fill the list of statements.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use terrace_planner_ext::engine::NodeRecord;
use utoipa::ToSchema;

use super::state::AppState;

/// The nodes of the process.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeList {
    /// Statements of which nodes execute parts now.
    statements: usize,
    /// The nodes by number; none where `cluster.nodes` is 1.
    nodes: Vec<Node>,
}

/// A node.
#[derive(Debug, Serialize, ToSchema)]
struct Node {
    /// Its number, from 1.
    node: usize,
    /// Where it listens.
    address: String,
    /// Tasks that it was given since it started.
    tasks: u64,
    /// Chunks and entries of the delta in the scans of these tasks.
    items: u64,
}

impl From<NodeRecord> for Node {
    fn from(record: NodeRecord) -> Self {
        Self { node: record.number, address: record.address, tasks: record.tasks, items: record.items }
    }
}

/// Lists the nodes of the process that execute parts of queries.
#[utoipa::path(
    get,
    path = "/api/v1/nodes",
    operation_id = "listNodes",
    responses((status = 200, description = "The nodes", body = NodeList)),
)]
pub async fn list(State(state): State<Arc<AppState>>) -> Json<NodeList> {
    let nodes = state.engine.nodes().into_iter().map(Node::from).collect();
    Json(NodeList { statements: state.engine.statements_on_nodes(), nodes })
}
