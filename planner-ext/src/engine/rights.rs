//! What a statement may do: the one place that asks whether a right is held.
//!
//! A statement needs rights on what it names, and some need one of the server besides ([`server_need`]). Rights on names are
//! checked where a name has been resolved, so that what is checked is what is used: rows are read through
//! [`NameResolver`](super::catalog), written through [`Snapshot::writable`], and everything else calls a function of this module. Which
//! columns are read is known once a plan is made: [`column_rights`](super::column_rights).
//! A snapshot keeps the rights that it was made with, and a plan on it is used no more when rights change. A statement that runs then
//! ends, where it may not read any more what it reads ([`Engine::stop_revoked`]).
//!
//! Who may not know that an object exists gets the answer for one that does not.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::sync::Arc;

use datafusion::sql::parser::Statement as SqlStatement;
use terrace_access::{Authority, PolicyClause, Principal, Right, Securable};
use terrace_sql::command::{Action, PlannerStatement};
use terrace_sql::tier::TierCommand;
use terrace_sql::tiering_commands::{PlacementStatement, TieringCommand};
use terrace_sql::{INFORMATION_SCHEMA, SYSTEM_SCHEMA};
use terrace_tier_store::table::{TableId, TableName};

use super::Engine;
use super::catalog::{Objects, Snapshot};
use super::ddl::short_name;
use super::registry::{Reading, Ticket};
use super::session::Session;
use super::users::access_error;
use crate::error::{Error, ErrorKind, Result, missing_table};
use crate::system::SystemTable;

/// What a statement needs of the server, whatever it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerNeed {
    /// Nothing.
    Nothing,
    /// A right.
    Right(Right),
    /// Everything: only superusers may.
    Superuser,
}

/// A right that a statement needs on a relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) right: Right,
    /// The columns on which it suffices to hold it; `None`: it must be held on all of the relation.
    pub(super) columns: Option<BTreeSet<String>>,
}

impl Need {
    /// A right on all of a relation.
    pub(super) fn whole(right: Right) -> Self {
        Self { right, columns: None }
    }

    fn is_held(&self, authority: &Authority, name: &TableName) -> bool {
        let on_columns = |columns: &BTreeSet<String>| may_on_columns(authority, self.right, name, columns);
        authority.may_on_table(self.right, name) || self.columns.as_ref().is_some_and(on_columns)
    }
}

/// Whether a right is held on all of these columns.
fn may_on_columns(authority: &Authority, right: Right, name: &TableName, columns: &BTreeSet<String>) -> bool {
    !columns.is_empty() && columns.iter().all(|column| authority.may_on_column(right, name, column))
}

/// What a statement needs of the server. The comments say which rights on names it needs besides.
pub(super) fn server_need(action: &Action) -> ServerNeed {
    match action {
        // SELECT of what is read; INSERT of the target; CREATE in the schema of what is made; ownership of what is replaced.
        Action::Plan(PlannerStatement { statement, .. }) => planner_need(statement),
        // UPDATE, INSERT and DELETE, and SELECT where values are read.
        Action::Change(_) => ServerNeed::Nothing,
        // TRUNCATE.
        Action::Truncate(_) => ServerNeed::Nothing,
        // Ownership.
        Action::Alter(_) | Action::Comment(_) | Action::Drop(_) | Action::Policy(_) => ServerNeed::Nothing,
        // INSERT.
        Action::CopyFrom(_) => ServerNeed::Right(Right::ReadFiles),
        // Ownership, or TIERING.
        Action::Optimize(_) | Action::Rule(_) | Action::HotView(_) => ServerNeed::Nothing,
        Action::Placement(statement) => match statement {
            PlacementStatement::Epoch { .. } | PlacementStatement::RollBack(_) => ServerNeed::Right(Right::Tiering),
            // SELECT, MONITOR or TIERING; or as the query.
            PlacementStatement::Explain { .. }
            | PlacementStatement::ExplainQuery(_)
            | PlacementStatement::ExplainViews(_) => ServerNeed::Nothing,
            // Ownership, or TIERING.
            PlacementStatement::ForecastView(_)
            | PlacementStatement::BringBack { .. }
            | PlacementStatement::WarmUp { .. } => ServerNeed::Nothing,
        },
        Action::Tiering(command) => match command {
            TieringCommand::Tier(TierCommand::Set { .. } | TierCommand::Drain(_) | TierCommand::Resume(_)) => {
                ServerNeed::Right(Right::Tiering)
            }
            // They open, close and measure devices.
            TieringCommand::Tier(_) => ServerNeed::Superuser,
            TieringCommand::CancelEpoch
            | TieringCommand::Freeze
            | TieringCommand::Unfreeze
            | TieringCommand::Mode(_) => ServerNeed::Right(Right::Tiering),
        },
        // CANCEL, unless it is an own one.
        Action::Cancel(_) => ServerNeed::Nothing,
        // They change the session only; EXECUTE has become what it executes.
        Action::Transaction(_) | Action::Prepare(_) => ServerNeed::Nothing,
        Action::WorkloadGroup(_) => ServerNeed::Right(Right::WorkloadGroups),
        // As `terrace_access` says.
        Action::Access(_) | Action::CreateToken(_) | Action::Grant(_) => ServerNeed::Nothing,
    }
}

fn planner_need(statement: &SqlStatement) -> ServerNeed {
    match statement {
        SqlStatement::CopyTo(_) => ServerNeed::Right(Right::WriteFiles),
        SqlStatement::CreateExternalTable(_) => ServerNeed::Right(Right::ReadFiles),
        SqlStatement::Explain(explain) => planner_need(&explain.statement),
        SqlStatement::Statement(_) | SqlStatement::Reset(_) => ServerNeed::Nothing,
    }
}

/// Refuses a statement whose caller lacks what it needs of the server. Called before each planning and each run.
pub(super) fn authorize(session: &Session, action: &Action) -> Result<()> {
    let principal = session.principal();
    if principal.is_superuser {
        return Ok(());
    }
    let authority = session.engine().users().authority(principal);
    match server_need(action) {
        ServerNeed::Nothing => Ok(()),
        ServerNeed::Right(right) => check_server(&authority, right),
        ServerNeed::Superuser => Err(Error::new(ErrorKind::PermissionDenied, "only a superuser may do that")),
    }
}

/// The error of a right that is not held.
pub(super) fn denied(object: impl Display) -> Error {
    Error::new(ErrorKind::PermissionDenied, format!("permission denied for {object}"))
}

/// Refuses whoever lacks a right of the server.
pub(super) fn check_server(authority: &Authority, right: Right) -> Result<()> {
    if authority.may_on_server(right) {
        return Ok(());
    }
    let right = right.name();
    let message = format!("permission denied: that needs {right} ON SERVER");
    Err(Error::new(ErrorKind::PermissionDenied, message))
}

/// Whether rows of a relation may be read. Tables of the system whose rows are those that one may see are for everybody.
pub(super) fn may_read(authority: &Authority, name: &TableName) -> bool {
    if authority.may_on_table(Right::Select, name) || name.schema == INFORMATION_SCHEMA {
        return true;
    }
    name.schema == SYSTEM_SCHEMA
        && (SystemTable::is_for_everybody(&name.name) || authority.may_on_server(Right::Monitor))
}

/// The columns of a relation that may be read, of all of them.
pub(super) fn readable_columns<'a>(
    authority: &Authority,
    name: &TableName,
    all: impl Iterator<Item = &'a String>,
) -> BTreeSet<String> {
    all.filter(|column| authority.may_on_column(Right::Select, name, column)).cloned().collect()
}

/// What a change needs that reads its target: SELECT on it, or on some of its columns, of which the plan mentions no others.
pub(super) fn read_need(snapshot: &Snapshot, name: &TableName) -> Result<Need> {
    let authority = snapshot.authority();
    if authority.may_on_table(Right::Select, name) || !authority.may_on_some_column(Right::Select, name) {
        return Ok(Need::whole(Right::Select));
    }
    let all = snapshot.columns(name)?.unwrap_or_default();
    Ok(Need { right: Right::Select, columns: Some(readable_columns(authority, name, all.iter())) })
}

/// What adding rows needs whose columns `given` get values, or all; defaults of the others need nothing, as in PostgreSQL.
pub(super) fn insert_need(snapshot: &Snapshot, name: &TableName, given: &[String]) -> Result<Need> {
    let authority = snapshot.authority();
    if authority.may_on_table(Right::Insert, name) || !authority.may_on_some_column(Right::Insert, name) {
        return Ok(Need::whole(Right::Insert));
    }
    let Some(all) = snapshot.columns(name)? else { return Ok(Need::whole(Right::Insert)) };
    if given.is_empty() {
        return Ok(Need { right: Right::Insert, columns: Some(all.into_iter().collect()) });
    }
    let known = |column: &String| {
        let found = all.iter().find(|known| *known == column);
        found.or_else(|| all.iter().find(|known| known.eq_ignore_ascii_case(column))).unwrap_or(column).clone()
    };
    Ok(Need { right: Right::Insert, columns: Some(given.iter().map(known).collect()) })
}

/// The error for a relation on which a right is not held: [`denied`] where it exists and its name may be known.
pub(super) fn refused(snapshot: &Snapshot, authority: &Authority, name: &TableName) -> Error {
    let is_shown = authority.sees_table(name) || authority.sees_names_in(&name.schema) || is_system(name);
    match is_shown && snapshot.has(name) {
        true => denied(format!("table {}", short_name(name))),
        false => missing_table(&name.to_string()),
    }
}

fn is_system(name: &TableName) -> bool {
    name.schema == SYSTEM_SCHEMA || name.schema == INFORMATION_SCHEMA
}

/// Refuses whoever lacks one of the rights on a relation.
pub(super) fn check_table(snapshot: &Snapshot, name: &TableName, needs: &[Need]) -> Result<()> {
    check(snapshot, name, |authority| needs.iter().all(|need| need.is_held(authority, name)))
}

/// Refuses whoever does not own a relation that exists, or the schema that it lies in.
pub(super) fn check_owner(snapshot: &Snapshot, name: &TableName) -> Result<()> {
    check(snapshot, name, |authority| authority.owns_table(name) || !snapshot.has(name))
}

/// [`check_owner`] of what has this name now: since the statement was planned, another may have made something of the name. The
/// caller holds the lock of names.
pub(super) fn check_replaced(session: &Session, name: &TableName) -> Result<()> {
    match session.principal().is_superuser {
        true => Ok(()),
        false => check_owner(&*session.snapshot()?, name),
    }
}

/// Whether IF EXISTS passes over an object whose check ended with an error: it does not exist, or that may not be known.
pub(super) fn passes_over(if_exists: bool, checked: &Result<()>) -> bool {
    if_exists && checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Refuses whoever may not steer the placement of a table.
pub(super) fn check_steering(snapshot: &Snapshot, name: &TableName) -> Result<()> {
    check(snapshot, name, |authority| may_steer(authority, name))
}

/// Whether the placement of a table may be steered: by its owner, and by whoever steers the tiering loop.
pub(super) fn may_steer(authority: &Authority, name: &TableName) -> bool {
    authority.owns_table(name) || authority.may_on_server(Right::Tiering)
}

/// Refuses whoever may not see the placement of a table.
pub(super) fn check_figures(snapshot: &Snapshot, name: &TableName) -> Result<()> {
    check(snapshot, name, |authority| authority.sees_figures(name) || may_steer(authority, name))
}

fn check(snapshot: &Snapshot, name: &TableName, is_allowed: impl Fn(&Authority) -> bool) -> Result<()> {
    let authority = snapshot.authority();
    if authority.is_unlimited() || is_allowed(authority) { Ok(()) } else { Err(refused(snapshot, authority, name)) }
}

/// Refuses whoever may not make things in a schema, which exists.
pub(super) fn check_create(snapshot: &Snapshot, schema: &str) -> Result<()> {
    check_schema(snapshot, schema, |authority, object| authority.may(Right::Create, object))
}

/// Refuses whoever does not own a schema, which exists.
pub(super) fn check_schema_owner(snapshot: &Snapshot, schema: &str) -> Result<()> {
    check_schema(snapshot, schema, Authority::owns)
}

fn check_schema(snapshot: &Snapshot, schema: &str, is_allowed: impl Fn(&Authority, &Securable) -> bool) -> Result<()> {
    let authority = snapshot.authority();
    if authority.is_unlimited() || is_allowed(authority, &Securable::Schema(schema.to_owned())) {
        return Ok(());
    }
    match authority.sees_schema(schema) {
        true => Err(denied(format!("schema {schema}"))),
        false => Err(missing_schema(schema)),
    }
}

/// The error of a schema that does not exist.
pub(super) fn missing_schema(schema: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("schema '{schema}' does not exist; make it with CREATE SCHEMA {schema}"))
}

/// Refuses whoever may not make schemas.
pub(super) fn check_create_schema(snapshot: &Snapshot) -> Result<()> {
    let authority = snapshot.authority();
    if authority.is_unlimited() || authority.may(Right::Create, &Securable::Database) {
        return Ok(());
    }
    Err(denied(Securable::Database))
}

/// Notes what a statement is about to read, and refuses it where rights have changed since it was planned and it may not read that
/// any more. Whoever changes rights later finds what it reads.
pub(super) fn begin_reading(engine: &Engine, ticket: &Ticket, snapshot: &Snapshot) -> Result<()> {
    let readings = snapshot.readings();
    if snapshot.hides_rows() {
        ticket.hide_figures();
    }
    // First: either the change of rights finds them, or this finds that rights have changed.
    ticket.note_readings(Arc::clone(&readings));
    match snapshot.has_current_rights() || RelationsNow::new(engine).may_read_all(ticket.principal(), &readings) {
        true => Ok(()),
        false => Err(revoked()),
    }
}

/// The error of a statement that may not read any more what it reads.
fn revoked() -> Error {
    Error::new(ErrorKind::Cancelled, "the statement was cancelled: its right was revoked")
}

/// Rights and relations as they are now, for statements that read what they found before.
struct RelationsNow<'a> {
    engine: &'a Engine,
    /// The names of all tables of the store.
    tables: HashMap<TableId, TableName>,
    /// Views and external tables; `None` where they cannot be read.
    objects: Option<Arc<Objects>>,
}

impl<'a> RelationsNow<'a> {
    fn new(engine: &'a Engine) -> Self {
        let tables = engine.store.tables().iter().map(|table| (table.id(), table.name().clone())).collect();
        Self { engine, tables, objects: engine.objects().ok() }
    }

    /// Whether all of this may be read still. What was dropped is no question: its right was not revoked.
    fn may_read_all(&self, principal: &Principal, readings: &BTreeSet<Reading>) -> bool {
        let users = &self.engine.users;
        readings.iter().all(|reading| {
            let Some(name) = self.name(reading) else { return true };
            let authority = match &reading.view {
                None => users.authority(principal),
                Some(view) => users.owner_authority(&Securable::Table(view.clone())),
            };
            let by_columns = |columns: &BTreeSet<String>| may_on_columns(&authority, Right::Select, name, columns);
            let may_read = may_read(&authority, name) || reading.columns.as_ref().is_some_and(by_columns);
            // Tables of the system show what their sender may see, whoever owns a view of them.
            let may_monitor = || users.authority(principal).may_on_server(Right::Monitor);
            may_read
                && (!reading.monitors || may_monitor())
                && authority.row_conditions(name, Right::Select, PolicyClause::Using) == reading.rows
        })
    }

    /// The name that a relation has now.
    fn name<'b>(&'b self, reading: &'b Reading) -> Option<&'b TableName> {
        let Some(table) = reading.table else {
            let is_there = |objects: &Arc<Objects>| {
                objects.views.contains_key(&reading.name) || objects.external.contains_key(&reading.name)
            };
            let is_there = is_system(&reading.name) || self.objects.as_ref().is_none_or(is_there);
            return is_there.then_some(&reading.name);
        };
        self.tables.get(&table)
    }
}

impl Engine {
    /// Stops the running statements that may not read any more what they read. Called after rights have changed. A statement that
    /// commits goes on.
    pub(super) fn stop_revoked(&self) {
        let now = RelationsNow::new(self);
        let stopped =
            self.registry.stop_unless(|principal, readings| now.may_read_all(principal, readings), &revoked());
        if stopped > 0 {
            tracing::info!(stopped, "running statements were stopped, as rights were revoked");
        }
    }

    /// Notes who made an object that was not there before. Blocks.
    pub(super) fn note_made(&self, by: &Principal, object: &Securable) -> Result<()> {
        self.users.note_made(by, object).map_err(access_error)
    }

    /// Notes that a view has another text, of `by`: it is read with rights that `by` has. Blocks.
    pub(super) fn note_replaced(&self, by: &Principal, view: &Securable) -> Result<()> {
        let authority = self.users.authority(by);
        let keeps_owner = self.users.owner_of(view).is_some_and(|owner| authority.holds(&owner));
        match authority.is_unlimited() || keeps_owner {
            true => Ok(()),
            false => self.users.note_replaced(by, view).map_err(access_error),
        }
    }

    /// Forgets owner and grants of an object that was dropped. Blocks.
    pub(super) fn forget_rights(&self, object: &Securable) -> Result<()> {
        self.users.forget(object).map_err(access_error)
    }
}
