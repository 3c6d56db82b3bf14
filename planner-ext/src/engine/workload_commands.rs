//! Statements on workload groups, and the records of the groups that they make, in the catalog.
//!
//! A change counts for statements that begin afterwards, and survives a restart. Groups of the configuration are changed there only; where one has the
//! name of a group that a statement made, it is the one that counts.

use std::sync::Arc;

use terrace_access::PUBLIC;
use terrace_sql::workload_group::{GroupSettings, WorkloadGroupCommand};

use super::Engine;
use super::execute::{Execute, Execution};
use super::workload::{GroupRecord, RECORD, bad_record};
use crate::error::{Error, ErrorKind, Result};

/// Most groups that statements make: each has rows of metrics.
const MOST_GROUPS: usize = 100;
/// Most users and roles of a group: who begins a statement is looked up among them.
const MOST_USERS: usize = 1_000;
/// Bytes of the longest name.
const LONGEST_NAME: usize = 63;

impl Execute for WorkloadGroupCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let _name_lock = engine.name_lock.lock().await;
        let worker = Arc::clone(engine);
        let command = self.clone();
        engine.blocking(move || worker.change_group(&command).map(|()| 0)).await
    }
}

impl Engine {
    /// Makes, changes or drops a group. The caller holds the lock of names. Blocks.
    fn change_group(&self, command: &WorkloadGroupCommand) -> Result<()> {
        match command {
            WorkloadGroupCommand::Create { name, settings } => {
                check_name(name)?;
                if self.groups.is_configured(name) || self.groups.record(name).is_some() {
                    let message = format!("workload group '{name}' already exists");
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                if self.groups.count_made() >= MOST_GROUPS {
                    let message =
                        format!("there are {MOST_GROUPS} workload groups, which is the limit; drop some first");
                    return Err(Error::new(ErrorKind::ResourceExhausted, message));
                }
                self.put_group(name, GroupRecord::unlimited(), settings)
            }
            WorkloadGroupCommand::Alter { name, settings } => self.put_group(name, self.made_group(name)?, settings),
            WorkloadGroupCommand::Drop { name, if_exists } => match self.made_group(name) {
                Err(error) if *if_exists && error.kind() == ErrorKind::NotFound => Ok(()),
                found => {
                    found?;
                    self.store.remove_record(RECORD, name)?;
                    self.groups.remove(name);
                    Ok(())
                }
            },
        }
    }

    /// The record of a group that statements may change.
    fn made_group(&self, name: &str) -> Result<GroupRecord> {
        if self.groups.is_configured(name) {
            let message = format!(
                "workload group '{name}' is in the configuration ([workload_groups.{name}]), which statements cannot change"
            );
            return Err(Error::new(ErrorKind::FailedPrecondition, message));
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("workload group '{name}' does not exist"));
        self.groups.record(name).ok_or_else(missing)
    }

    fn put_group(&self, name: &str, before: GroupRecord, settings: &GroupSettings) -> Result<()> {
        self.check_members(settings.users.as_deref().unwrap_or_default())?;
        let record = before.with(settings);
        let json = serde_json::to_string(&record).map_err(|error| bad_record(name, &error))?;
        self.store.put_record(RECORD, name, &json)?;
        self.groups.put(name, record);
        Ok(())
    }

    /// Refuses names that are neither users nor roles, once there are users.
    fn check_members(&self, names: &[String]) -> Result<()> {
        if names.len() > MOST_USERS {
            let message = format!("a workload group names at most {MOST_USERS} users and roles; put users into a role");
            return Err(Error::invalid(message));
        }
        if self.users.is_open() || names.is_empty() {
            return Ok(());
        }
        let (users, roles) = (self.users.users(), self.users.roles());
        let is_known = |name: &&String| {
            *name == PUBLIC
                || users.iter().any(|user| user.name == **name)
                || roles.iter().any(|role| role.name == **name)
        };
        match names.iter().find(|name| !is_known(name)) {
            Some(name) => Err(Error::new(ErrorKind::NotFound, format!("'{name}' is neither a user nor a role"))),
            None => Ok(()),
        }
    }
}

/// Refuses what cannot be a name of the configuration either.
fn check_name(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_good) {
        return Err(Error::invalid(format!(
            "the name of a workload group has 1 to {LONGEST_NAME} letters, digits, '_' and '-' only"
        )));
    }
    Ok(())
}
