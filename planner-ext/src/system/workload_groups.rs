//! `system.workload_groups`: one row per workload group, the default group last.

use super::{Batches, ColumnList, Live, NameFilter};
use crate::engine::WorkloadGroupRecord;
use crate::error::Result;

pub(super) fn columns() -> ColumnList<WorkloadGroupRecord> {
    ColumnList::<WorkloadGroupRecord>::new()
        .text("name", |g| g.group.name.clone())
        .text("users", |g| g.group.users.join(","))
        .flag("is_configured", |g| g.is_configured)
        .count("priority", |g| u64::from(g.group.priority))
        .count("weight", |g| u64::from(g.group.weight))
        .optional_count("memory_limit_bytes", |g| g.group.memory_bytes)
        .optional_count("max_running", |g| g.group.max_running.map(|most| most as u64))
        .optional_count("timeout_us", |g| g.group.timeout.map(|timeout| timeout.as_micros() as u64))
        .count("running", |g| g.running as u64)
        .count("queued", |g| g.queued as u64)
        .count("demand_bytes", |g| g.demand_bytes)
        .count("reserved_bytes", |g| g.reserved_bytes)
        .count("admitted", |g| g.admitted)
        .count("refused", |g| g.refused)
        .count("waited_us", |g| g.waited_us)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(columns().batches((live.workload_groups)().into_iter()))
}
