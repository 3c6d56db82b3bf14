//! The objects that a statement names and reads, and the event of its end in the audit trail.
//!
//! What it writes, makes, alters or drops is known from its text ([`Command::objects`]); what it reads, besides, from the names
//! that were resolved and checked while it was planned, those within views included.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use terrace_access::{Ending, Event, EventKind, Trail};
use terrace_sql::command::Action;
use terrace_sql::objects::{ObjectKind, Use};
use terrace_sql::{Command, Privilege, StatementKind};
use terrace_tier_store::table::{TableId, TableName};

use super::record::{StatementRecord, StatementState, error_name};
use crate::error::ErrorKind;

/// Whether statements of a kind change more than their session.
pub(in crate::engine) fn is_change(kind: StatementKind) -> bool {
    kind.privilege().changes_server() || kind.privilege() == Privilege::Export
}

/// A relation that a statement reads, and by whose right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct Reading {
    /// Its name, when it was read.
    pub(in crate::engine) name: TableName,
    /// Its number, where it is a table of the store: its name may change.
    pub(in crate::engine) table: Option<TableId>,
    /// The view whose owner reads it; `None`: whoever sends the statement.
    pub(in crate::engine) view: Option<TableName>,
    /// The columns that may be read of it, where it may not be read as a whole.
    pub(in crate::engine) columns: Option<BTreeSet<String>>,
    /// The conditions of which the rows that are read fulfil one, where policies concern the reader.
    pub(in crate::engine) rows: Option<BTreeSet<String>>,
    /// Whether it is a table of the schema `system` that shows its sender what takes MONITOR.
    pub(in crate::engine) monitors: bool,
}

/// The objects that a statement names and reads.
#[derive(Debug, Default)]
pub(in crate::engine) struct Touched(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    /// The kind of the statement; `None` until it is parsed, or where nobody wants to know.
    kind: Option<StatementKind>,
    /// Whether it is about users, tokens, roles, rights, owners or policies.
    is_about_access: bool,
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
}

impl Touched {
    /// Notes what a statement names.
    pub(in crate::engine) fn note_named(&self, command: &Command, default_schema: &str) {
        let mut found = self.0.lock();
        found.kind = Some(command.kind);
        found.is_about_access =
            matches!(command.action, Action::Access(_) | Action::CreateToken(_) | Action::Grant(_) | Action::Policy(_));
        for object in command.objects() {
            let name = match object.kind {
                ObjectKind::Schema => object.name.name.clone(),
                ObjectKind::Relation | ObjectKind::HotView => object.name.resolve(default_schema).to_string(),
            };
            match object.usage {
                Use::Read => found.reads.insert(name),
                Use::Write | Use::Define => found.writes.insert(name),
            };
        }
    }

    /// Notes what it reads, once it is known what it names: the planner looks the target of an INSERT up as well.
    pub(in crate::engine) fn note_read(&self, readings: &BTreeSet<Reading>) {
        let mut found = self.0.lock();
        let Found { reads, writes, .. } = &mut *found;
        let names = readings.iter().map(|reading| reading.name.to_string());
        reads.extend(names.filter(|name| !writes.contains(name)));
    }

    /// Notes what it writes.
    pub(in crate::engine) fn note_written(&self, name: &TableName) {
        self.0.lock().writes.insert(name.to_string());
    }

    /// Records the end of its statement, where the trail wants it.
    pub(super) fn record_end(&self, trail: &Trail, record: &StatementRecord) {
        let found = self.0.lock();
        let kind = found.kind.unwrap_or(record.kind);
        let is_refused = matches!(record.error_kind, Some(ErrorKind::PermissionDenied | ErrorKind::Unauthenticated));
        if !trail.records(is_change(kind) || found.is_about_access || is_refused) {
            return;
        }
        let event_kind = if found.is_about_access { EventKind::Access } else { EventKind::Statement };
        let mut event = Event::new(event_kind, kind.name(), &record.user, record.origin).with_text(&record.sql);
        event = event.with_objects(&found.reads, &found.writes);
        drop(found);
        event.session = Some(record.session.clone());
        event.statement = Some(record.id.clone());
        event.rows = Some(record.rows);
        event.elapsed_us = Some(record.elapsed_us);
        let ending = match record.state {
            _ if is_refused => Ending::Refused,
            StatementState::Cancelled => Ending::Cancelled,
            StatementState::Failed => Ending::Failed,
            _ => Ending::Done,
        };
        trail.record(event.ended(ending, record.error_kind.map(error_name)));
    }
}
