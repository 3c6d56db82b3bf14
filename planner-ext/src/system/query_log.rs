//! `system.query_log`: statements that have ended, also before the server started, the last one first; the own ones, and with MONITOR
//! all, those of others without values.

use std::collections::HashMap;

use terrace_access::Right;

use super::queries::bytes_by_tier;
use super::{Batches, ColumnList, Live, NameFilter};
use crate::engine::QueryLogEntry;
use crate::error::{Error, ErrorKind, Result};

pub(super) fn columns() -> ColumnList<QueryLogEntry> {
    ColumnList::<QueryLogEntry>::new()
        .text("id", |e| e.id.clone())
        .text("session", |e| e.session.clone())
        .text("user_name", |e| e.user.clone())
        .optional_text("client_address", |e| e.address.map(|address| address.to_string()))
        .text("workload_group", |e| e.workload_group.clone())
        .text("kind", |e| e.kind.clone().into_owned())
        .text("state", |e| e.state.clone().into_owned())
        .text("sql", |e| e.sql.clone())
        .time("started", |e| e.started_unix_us)
        .time("ended", QueryLogEntry::ended_unix_us)
        .count("elapsed_us", |e| e.elapsed_us)
        .count("rows", |e| e.rows)
        .count("bytes", |e| e.bytes)
        .count("queued_us", |e| e.queued_us)
        .count("stalled_us", |e| e.stalled_us)
        .count("busy_us", |e| e.busy_us)
        .count("restarts", |e| e.restarts)
        .count("demand_bytes", |e| e.demand_bytes)
        .count("reserved_peak_bytes", |e| e.reserved_peak_bytes)
        .count("allocated_peak_bytes", |e| e.allocated_peak_bytes)
        .count("spilled_bytes", |e| e.spilled_bytes)
        .count("memory_bytes", QueryLogEntry::memory_bytes)
        .count("cold_bytes", |e| e.cold_bytes)
        .text("tier_bytes", |e| bytes_by_tier(&e.tier_bytes))
        .count("chunks", |e| e.chunks)
        .count("pruned_chunks", |e| e.pruned_chunks)
        .count("read_wait_us", |e| e.read_wait_us)
        .count("point_wait_us", |e| e.point_wait_us)
        .count("needed_wait_us", |e| e.needed_wait_us)
        .count("prefetch_wait_us", |e| e.prefetch_wait_us)
        .count("spill_wait_us", |e| e.spill_wait_us)
        .count("write_wait_us", |e| e.write_wait_us)
        .optional_text("error_kind", |e| e.error_kind.clone())
        .optional_text("error", |e| e.error.clone())
        .optional_text("trace_id", |e| e.trace_id.clone())
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let Some(log) = &live.query_log else { return Ok(columns().batches(std::iter::empty())) };
    let unreadable = |error| Error::new(ErrorKind::Unavailable, format!("cannot read the query log: {error}"));
    let entries = log.entries().map_err(unreadable)?;
    let sees_all = live.viewer.may_on_server(Right::Monitor);
    let sees_values = live.viewer.is_unlimited();
    // A name may have belonged to another user, who was dropped.
    let made: HashMap<String, u64> =
        live.users.users().into_iter().filter_map(|user| Some((user.name, user.made_unix_us?))).collect();
    let viewer = live.viewer.clone();
    let is_own = move |entry: &QueryLogEntry| {
        viewer.is_self(&entry.user) && made.get(&entry.user).is_none_or(|made_us| entry.started_unix_us >= *made_us)
    };
    // A file that cannot be read ends the table, as an error among its rows has no place.
    let entries = entries.map_while(|entry| {
        entry.inspect_err(|error| tracing::warn!(%error, "cannot read a file of the query log")).ok()
    });
    let shown = entries.filter_map(move |mut entry| {
        if !sees_all && entry.hides_figures {
            entry.clear_figures();
        }
        match (sees_values || is_own(&entry), sees_all) {
            (true, _) => Some(entry),
            (false, true) => Some(entry.masked()),
            (false, false) => None,
        }
    });
    Ok(columns().batches(shown))
}
