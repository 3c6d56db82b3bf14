//! Policies on the rows of tables, and whether they count (row level security).
//!
//! Their conditions are SQL, which the engine checks and evaluates. They lie in the record of their table, go with it to another name,
//! and end with it. A user or role that a policy names is not dropped: the policy would concern nobody, or everybody.

use terrace_model::TableName;

use super::{SHOWN_OBJECTS, Users};
use crate::error::{AccessError, Result};
use crate::grants::Grants;
use crate::principal::Principal;
use crate::record::{PolicyRecord, RowSecurity};
use crate::right::{Right, Securable};
use crate::users::check_name;

/// Most policies of a table: each of their conditions is evaluated on each row.
const MOST_POLICIES: usize = 100;

/// A policy to be made.
#[derive(Debug, Clone)]
pub struct NewPolicy {
    /// Its name, unlike those of the table's other policies.
    pub name: String,
    /// What it is for; `None`: reading, adding, changing and deleting.
    pub command: Option<Right>,
    /// Users, roles, and [`PUBLIC`](crate::PUBLIC).
    pub roles: Vec<String>,
    /// The condition on rows that are there, as SQL.
    pub using: Option<String>,
    /// The condition on new rows, as SQL; `None`: the same.
    pub check: Option<String>,
}

/// A policy, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its table.
    pub table: TableName,
    /// Whether the policies of the table count.
    pub is_enabled: bool,
    /// Its name.
    pub name: String,
    /// What it is for; `None`: reading, adding, changing and deleting.
    pub command: Option<Right>,
    /// Users, roles, and [`PUBLIC`](crate::PUBLIC).
    pub roles: Vec<String>,
    /// The condition on rows that are there, as SQL.
    pub using: Option<String>,
    /// The condition on new rows, as SQL; `None`: the same.
    pub check: Option<String>,
    /// Who made it.
    pub by: String,
    /// When, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
}

impl Users {
    /// Makes a policy on a table, which exists.
    ///
    /// # Errors
    /// For a bad or taken name, missing users and roles, and a caller who does not own the table.
    pub fn create_policy(&self, by: &Principal, table: &TableName, new: NewPolicy) -> Result<()> {
        check_name("policy", &new.name)?;
        let made_unix_us = self.clock.unix_us();
        let name = new.name.clone();
        self.change_rows(by, table, |rows| {
            new.roles.iter().try_for_each(|role| self.check_grantee(role))?;
            if rows.policies.contains_key(&new.name) {
                return Err(AccessError::Exists { kind: "policy", name: new.name });
            }
            if rows.policies.len() >= MOST_POLICIES {
                return Err(AccessError::TooMany { kind: "policy of a table", most: MOST_POLICIES });
            }
            let NewPolicy { name, command, roles, using, check } = new;
            let by = by.user.clone();
            rows.policies.insert(name, PolicyRecord { command, roles, using, check, by, made_unix_us });
            Ok(())
        })?;
        tracing::info!(%table, policy = name, by = by.user, "policy made");
        Ok(())
    }

    /// Drops a policy.
    ///
    /// # Errors
    /// For a missing policy, and a caller who does not own the table.
    pub fn drop_policy(&self, by: &Principal, table: &TableName, name: &str) -> Result<()> {
        self.change_rows(by, table, |rows| match rows.policies.remove(name) {
            Some(_) => Ok(()),
            None => Err(AccessError::Missing { kind: "policy", name: name.to_owned() }),
        })?;
        tracing::info!(%table, policy = name, by = by.user, "policy dropped");
        Ok(())
    }

    /// Says whether the policies of a table count. Where they do and there is none, others than its owner and superusers find no row.
    ///
    /// # Errors
    /// For a caller who does not own the table.
    pub fn set_row_security(&self, by: &Principal, table: &TableName, is_enabled: bool) -> Result<()> {
        self.change_rows(by, table, |rows| {
            rows.is_enabled = is_enabled;
            Ok(())
        })?;
        tracing::info!(%table, is_enabled, by = by.user, "row level security changed");
        Ok(())
    }

    fn change_rows(
        &self,
        by: &Principal,
        table: &TableName,
        change: impl FnOnce(&mut RowSecurity) -> Result<()>,
    ) -> Result<()> {
        let _change = self.change(by)?;
        let table = Securable::Table(table.clone());
        self.authorize_giving(by, &table)?;
        let mut rows = self.grants_now().objects.get(&table).map(|record| record.rows.clone()).unwrap_or_default();
        change(&mut rows)?;
        self.replace_object(&table, |record| record.rows = rows)
    }

    /// The policies of a table.
    pub fn policies_on(&self, table: &TableName) -> Vec<Policy> {
        self.policies().into_iter().filter(|policy| policy.table == *table).collect()
    }

    /// All policies, by table.
    pub fn policies(&self) -> Vec<Policy> {
        let grants = self.grants_now();
        let mut found = Vec::new();
        for (object, record) in &grants.objects {
            let Securable::Table(table) = object else { continue };
            found.extend(record.rows.policies.iter().map(|(name, policy)| Policy {
                table: table.clone(),
                is_enabled: record.rows.is_enabled,
                name: name.clone(),
                command: policy.command,
                roles: policy.roles.clone(),
                using: policy.using.clone(),
                check: policy.check.clone(),
                by: policy.by.clone(),
                made_unix_us: policy.made_unix_us,
            }));
        }
        found
    }

    /// Takes over the conditions of policies of a table, whose columns have other names.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn note_conditions_changed(&self, table: &TableName, changed: &[Policy]) -> Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let _lock = self.changing.lock();
        self.replace_object(&Securable::Table(table.clone()), |record| {
            for Policy { name, using, check, .. } in changed {
                if let Some(policy) = record.rows.policies.get_mut(name) {
                    policy.using.clone_from(using);
                    policy.check.clone_from(check);
                }
            }
        })
    }

    /// Lets the policies of a table count for another name, which no object has, before the table gets it: whoever holds a right on all
    /// of a schema reads no row of it in between.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn note_renaming(&self, from: &TableName, to: &TableName) -> Result<()> {
        let _lock = self.changing.lock();
        let known = self.grants_now().objects.get(&Securable::Table(from.clone())).map(|record| record.rows.clone());
        match known.filter(|rows| !rows.is_empty() && from != to) {
            Some(rows) => self.replace_object(&Securable::Table(to.clone()), |record| record.rows = rows),
            None => Ok(()),
        }
    }
}

/// Refuses to drop a user or role that a policy names.
pub(super) fn check_policies(grants: &Grants, name: &str) -> Result<()> {
    let named = grants.objects.iter().flat_map(|(object, record)| {
        let names_it = move |policy: &PolicyRecord| policy.roles.iter().any(|role| role == name);
        let policies = record.rows.policies.iter().filter(move |(_, policy)| names_it(policy));
        policies.map(move |(policy, _)| format!("{policy} on {object}"))
    });
    let named: Vec<String> = named.take(SHOWN_OBJECTS).collect();
    match named.is_empty() {
        true => Ok(()),
        false => Err(AccessError::InPolicy { name: name.to_owned(), policies: named.join(", ") }),
    }
}

#[cfg(test)]
mod tests;
