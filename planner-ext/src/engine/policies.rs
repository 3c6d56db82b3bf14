//! Policies on the rows of tables: the statements on them, and which of them concern a change.
//!
//! As in PostgreSQL, policies count once ENABLE ROW LEVEL SECURITY says so, and not for the owner of the table and superusers; rows need
//! to fulfil one of the policies that concern the statement, and where there is none, none is visible. [`terrace_access`] keeps them and
//! says which conditions concern whom ([`Authority::row_conditions`]).
//!
//! - `barrier`: the rows of a table that a statement may see
//! - `conditions`: conditions of policies, planned and evaluated

mod barrier;
mod conditions;

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::DFSchema;
use terrace_access::{AccessError, Authority, NewPolicy, Policy, PolicyClause, Principal, Right, Users};
use terrace_sql::policy::{CreatePolicy, PolicyCommand};
use terrace_sql::source_text::with_column_renamed;
use terrace_tier_store::table::{Alteration, TableName};

use super::catalog::Snapshot;
use super::ddl::{refuse_system, refuse_view_or_external, short_name};
use super::execute::{Execute, Execution};
use super::rights;
use super::users::access_error;
use crate::error::{Error, ErrorKind, Result, missing_table};

pub(super) use barrier::VisibleRows;
pub(super) use conditions::RowCondition;

/// The conditions that concern a change of rows of a table.
#[derive(Debug, Default)]
pub(super) struct TargetConditions {
    /// Of each set, rows that it finds fulfil one.
    pub(super) found: Vec<BTreeSet<String>>,
    /// Of each set, rows that it makes fulfil one.
    pub(super) made: Vec<BTreeSet<String>>,
}

impl TargetConditions {
    /// Those of a change that needs a right on a table, and reads rows of it or does not.
    pub(super) fn new(authority: &Authority, name: &TableName, right: Right, reads: bool) -> Self {
        let conditions = |right, clause| authority.row_conditions(name, right, clause);
        let read = if reads { conditions(Right::Select, PolicyClause::Using) } else { None };
        Self {
            found: conditions(right, PolicyClause::Using).into_iter().chain(read.clone()).collect(),
            made: conditions(right, PolicyClause::Check).into_iter().chain(read).collect(),
        }
    }
}

/// Whether policies decide which rows of a table somebody sees and makes.
pub(super) fn concern(authority: &Authority, name: &TableName) -> bool {
    authority.row_conditions(name, Right::Select, PolicyClause::Using).is_some()
}

/// The policies whose conditions mention columns that get other names, with these.
///
/// # Errors
/// For a column that is dropped and that a policy mentions, and for a condition that cannot be rewritten.
pub(super) fn renamed(policies: Vec<Policy>, alterations: &[Alteration]) -> Result<Vec<Policy>> {
    let mut changed = Vec::new();
    for before in policies {
        let mut policy = before.clone();
        for alteration in alterations {
            let (from, to) = match alteration {
                Alteration::RenameColumn { from, to } => (from, to.as_str()),
                // Another name tells whether the condition mentions it.
                Alteration::DropColumn(column) => (column, "_"),
                _ => continue,
            };
            for condition in [&mut policy.using, &mut policy.check].into_iter().flatten() {
                let with_other_name = with_column_renamed(condition, from, to)?;
                if matches!(alteration, Alteration::DropColumn(_)) && with_other_name != *condition {
                    let message =
                        format!("policy '{}' of the table mentions column '{from}'; drop it first", before.name);
                    return Err(Error::new(ErrorKind::FailedPrecondition, message));
                }
                if !matches!(alteration, Alteration::DropColumn(_)) {
                    *condition = with_other_name;
                }
            }
        }
        if policy != before {
            changed.push(policy);
        }
    }
    Ok(changed)
}

impl Execute for PolicyCommand {
    /// Names stay as they are meanwhile, so that no policy goes to another table of the name.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let _name_lock = engine.name_lock.lock().await;
        let snapshot = execution.session().snapshot()?;
        let name = self.table().resolve(snapshot.default_schema());
        refuse_system(&name)?;
        let if_exists = match self {
            Self::Create(_) => false,
            Self::Drop { if_exists, .. } | Self::Enable { if_exists, .. } => *if_exists,
        };
        let checked = rights::check_owner(&snapshot, &name);
        if rights::passes_over(if_exists, &checked) {
            return Ok(0);
        }
        checked?;
        if !check_table(&snapshot, self, &name, if_exists)? {
            return Ok(0);
        }
        let worker = Arc::clone(engine);
        let by = execution.session().principal().clone();
        let command = self.clone();
        let change = move || {
            let applied = apply(worker.users(), &by, &name, command);
            worker.stop_revoked();
            applied.map_err(access_error).map(|()| 0)
        };
        engine.blocking(change).await
    }
}

/// Refuses what is no table of the store, and conditions that do not fit its columns; false where IF EXISTS passes over a table that is
/// missing.
fn check_table(snapshot: &Snapshot, command: &PolicyCommand, name: &TableName, if_exists: bool) -> Result<bool> {
    let Some(definition) = snapshot.definition(command.table())? else {
        if refuse_view_or_external(snapshot.objects(), name).is_err() {
            let message = format!("'{}' is no table; policies are on the rows of tables", short_name(name));
            return Err(Error::invalid(message));
        }
        return if if_exists { Ok(false) } else { Err(missing_table(&name.to_string())) };
    };
    if let PolicyCommand::Create(create) = command {
        let state = snapshot.condition_state()?;
        let columns = DFSchema::try_from(Arc::clone(&definition.schema))?;
        for condition in create.using.iter().chain(&create.check) {
            conditions::expression(&state, condition, &columns)?;
        }
    }
    Ok(true)
}

fn apply(users: &Users, by: &Principal, table: &TableName, command: PolicyCommand) -> terrace_access::Result<()> {
    match command {
        PolicyCommand::Create(create) => {
            let CreatePolicy { name, command, roles, using, check, .. } = *create;
            let command = command.and_then(|name| Right::ALL.into_iter().find(|right| right.name() == name));
            users.create_policy(by, table, NewPolicy { name, command, roles, using, check })
        }
        PolicyCommand::Drop { name, if_exists, .. } => match users.drop_policy(by, table, &name) {
            Err(AccessError::Missing { .. }) if if_exists => Ok(()),
            dropped => dropped,
        },
        PolicyCommand::Enable { is_enabled, .. } => users.set_row_security(by, table, is_enabled),
    }
}
