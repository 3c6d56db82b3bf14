//! `system.nodes`: one row per node of this process that executes parts of queries; none where `cluster.nodes` is 1.

use super::{Batches, ColumnList, Live, NameFilter};
use crate::engine::NodeRecord;
use crate::error::Result;

pub(super) fn columns() -> ColumnList<NodeRecord> {
    ColumnList::<NodeRecord>::new()
        .count("node", |n| n.number as u64)
        .text("address", |n| n.address.clone())
        .count("tasks", |n| n.tasks)
        .count("items", |n| n.items)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(columns().batches((live.nodes)().into_iter()))
}
