//! Nodes that execute parts of queries.
//!
//! A query over large tables is planned as usual, cut into stages by `datafusion-distributed`, and executed by several nodes: the
//! coordinator, which has the statement, sends each node its part of a stage as bytes, and the nodes send rows to each other
//! and to the coordinator. This crate is the only one that names that library. It knows scans and the store, but neither SQL
//! nor sessions: what a node does with a statement (functions, memory, operators of the engine) comes through [`TaskHost`].
//!
//! At present all nodes live in one process, over one store ([`Nodes::start`]), each with a port of its own on the loopback
//! address; plans and rows go through these ports as they would between machines. docs/design/cluster.md has the reasons.
//!
//! - `channel`: connections to nodes, one stream for each partition
//! - `codec`: plan nodes of Terrace as bytes
//! - `counts`: what a node was asked to do
//! - `encodable`: whether all stages of a plan survive their way through bytes
//! - `failure`: errors on their way from a node
//! - `head`: the part of a plan that the coordinator executes
//! - `node`: the sessions in which a node executes tasks
//! - `nodes`: starts nodes and knows their addresses
//! - `options`: options of a statement on their way to a node
//! - `part`: what the tasks of a statement hold
//! - `planning`: cuts a plan into stages, and says why one stays whole
//! - `reach`: run-time filters that cannot come, because their producer is in another stage
//! - `seal`: operators that are sent as bytes within the bytes of their plan
//! - `statement`: what nodes know of running statements
//! - `wire`: messages of the codec

mod channel;
mod codec;
mod counts;
mod encodable;
mod failure;
mod head;
mod node;
mod nodes;
mod options;
mod part;
mod planning;
mod reach;
mod seal;
mod statement;
#[cfg(test)]
mod tests;
mod wire;

pub use codec::ScanCodec;
pub use counts::NodeCounts;
pub use failure::{from_node, to_coordinator};
pub use head::{below_exchange, with_head};
pub use nodes::{NodeRecord, Nodes};
pub use planning::{Distribution, distribute, planning_state, remote_scans, session_config, shown};
pub use seal::without_seals;
pub use statement::{Statement, TaskHost};
