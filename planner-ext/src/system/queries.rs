//! `system.queries`: running statements, then ended ones, newest first; the own ones, and with MONITOR all, those of others without
//! literals.

use std::collections::BTreeMap;

use terrace_access::Right;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::engine::StatementRecord;
use crate::error::Result;

pub(super) fn columns() -> ColumnList<StatementRecord> {
    ColumnList::<StatementRecord>::new()
        .text("id", |s| s.id.clone())
        .text("session", |s| s.session.clone())
        .text("user_name", |s| s.user.clone())
        .optional_text("client_address", |s| s.origin.address.map(|address| address.to_string()))
        .text("workload_group", |s| s.workload_group.clone())
        .text("kind", |s| s.kind.name().to_owned())
        .text("state", |s| s.state.name().to_owned())
        .text("sql", |s| s.sql.clone())
        .time("started", |s| s.started_unix_us)
        .count("elapsed_us", |s| s.elapsed_us)
        .count("rows", |s| s.rows)
        .count("bytes", |s| s.bytes)
        .count("queued_us", |s| s.queued_us)
        .count("stalled_us", |s| s.stalled_us)
        .count("busy_us", |s| s.busy_us)
        .count("restarts", |s| s.restarts)
        .count("demand_bytes", |s| s.demand_bytes)
        .count("reserved_bytes", |s| s.memory.reserved)
        .count("reserved_peak_bytes", |s| s.memory.reserved_peak)
        .count("allocated_bytes", |s| s.memory.allocated)
        .count("allocated_peak_bytes", |s| s.memory.allocated_peak)
        .optional_real("allocated_to_reserved", |s| s.memory.allocated_to_reserved())
        .count("spilled_bytes", |s| s.spilled_bytes)
        .count("cold_bytes", |s| s.cold_bytes)
        .text("tier_bytes", |s| bytes_by_tier(&s.tier_bytes))
        .count("chunks", |s| s.chunks.chunks)
        .count("pruned_chunks", |s| s.chunks.pruned)
        .count("read_wait_us", |s| s.read_wait_us)
        .count("point_wait_us", |s| s.read_waits.point_us)
        .count("needed_wait_us", |s| s.read_waits.needed_us)
        .count("prefetch_wait_us", |s| s.read_waits.prefetch_us)
        .count("spill_wait_us", |s| s.read_waits.spill_us)
        .count("write_wait_us", |s| s.write_wait_us)
        .count("work_done_bytes", |s| s.work.done_bytes)
        .count("work_total_bytes", |s| s.work.total_bytes)
        .optional_text("error", |s| s.error.clone())
}

/// Such as `dram=1048576 ssd=16384`.
pub(super) fn bytes_by_tier(bytes: &BTreeMap<String, u64>) -> String {
    bytes.iter().map(|(tier, bytes)| format!("{tier}={bytes}")).collect::<Vec<_>>().join(" ")
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut statements = (live.statements)();
    let viewer = live.viewer;
    if !viewer.may_on_server(Right::Monitor) {
        statements.retain(|statement| viewer.is_self(&statement.user));
        let hidden = statements.iter_mut().filter(|statement| statement.hides_figures);
        hidden.for_each(StatementRecord::clear_figures);
    }
    Ok(columns().batches(statements.into_iter().map(move |statement| statement.seen_by(&viewer))))
}
