//! `system.audit`: the last events of the audit trail, newest first; the own ones, and with MONITOR all, statements of others without
//! literals.

use std::sync::Arc;

use terrace_access::{Authority, Ending, Event, EventKind, Right};
use terrace_sql::masking::masked_kept;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Arc<Event>> {
    ColumnList::<Arc<Event>>::new()
        .count("number", |e| e.number)
        .time("recorded_at", |e| e.time_unix_us)
        .text("event", |e| e.kind.name().to_owned())
        .text("action", |e| e.action.clone())
        .text("user_name", |e| e.user.clone())
        .optional_text("client_address", |e| e.address.map(|address| address.to_string()))
        .text("port", |e| e.port.name().to_owned())
        .optional_text("session", |e| e.session.clone())
        .optional_text("statement", |e| e.statement.clone())
        .optional_text("text", |e| e.text.clone())
        .optional_text("objects_read", |e| listed(&e.reads))
        .optional_text("objects_written", |e| listed(&e.writes))
        .text("outcome", |e| e.outcome.name().to_owned())
        .optional_text("error", |e| e.error.clone())
        .optional_count("rows", |e| e.rows)
        .optional_count("elapsed_us", |e| e.elapsed_us)
}

fn listed(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| names.join(", "))
}

/// An event as somebody sees it who may know of it: to others than its user and superusers, a statement without its literals.
fn seen_by(viewer: &Authority, event: Arc<Event>) -> Arc<Event> {
    let is_statement = matches!(event.kind, EventKind::Statement | EventKind::Access);
    let Some(text) = event.text.as_ref().filter(|_| is_statement && !viewer.is_self(&event.user)) else { return event };
    Arc::new(Event { text: Some(masked_kept(text)), ..Event::clone(&event) })
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut events = live.audit.latest();
    let viewer = live.viewer;
    if !viewer.may_on_server(Right::Monitor) {
        // Who may not see the statement of another is not to learn from a refused order to end it that there is one.
        let tells_of_others = |event: &Event| event.kind == EventKind::Cancel && event.outcome == Ending::Refused;
        events.retain(|event| viewer.is_self(&event.user) && !tells_of_others(event));
    }
    Ok(columns().batches(events.into_iter().map(move |event| seen_by(&viewer, event))))
}
