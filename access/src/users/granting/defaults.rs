//! Default privileges: rights that the tables and views get which somebody will make in a schema.
//!
//! They become grants when the table or view is made, and a change of them does not concern those that are there. Everybody says so
//! for what is one's own; the owner of a schema, who may do everything with what is in it, for what others make there, too.

use terrace_model::TableName;

use super::{MOST_GRANTS, Users, WhichRights};
use crate::error::{AccessError, Result};
use crate::grants::{Grants, PUBLIC};
use crate::principal::Principal;
use crate::record::{DEFAULT_RIGHTS, DefaultsRecord, GrantRecord, store};
use crate::right::{Right, Securable};

/// Most pairs of somebody who makes tables and a schema that have default privileges.
const MOST_DEFAULTS: usize = 10_000;

/// An ALTER DEFAULT PRIVILEGES.
#[derive(Debug, Clone)]
pub struct DefaultGranting {
    /// GRANT, or REVOKE.
    pub grants: bool,
    /// Users, and roles whose members are meant, who make the tables and views; none: the caller.
    pub makers: Vec<String>,
    /// The schemas in which they do; they exist.
    pub schemas: Vec<String>,
    /// The rights.
    pub rights: WhichRights,
    /// Users, roles, and [`PUBLIC`].
    pub grantees: Vec<String>,
}

/// A default privilege, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultGranted {
    /// Who makes the tables and views: a user, or a role whose members do.
    pub maker: String,
    /// The schema in which they are made.
    pub schema: String,
    /// Who gets the right.
    pub grantee: String,
    /// The right.
    pub right: Right,
    /// Who said so.
    pub by: String,
    /// When, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
}

impl Users {
    /// Changes default privileges; those that are there, or are not there and are revoked, are passed over.
    ///
    /// # Errors
    /// For missing makers and grantees, rights that tables do not know, and a caller who neither makes the tables nor owns the schema.
    pub fn alter_defaults(&self, by: &Principal, order: &DefaultGranting) -> Result<()> {
        let _change = self.change(by)?;
        let makers = match (order.makers.is_empty(), by.owner_name()) {
            (false, _) => order.makers.clone(),
            (true, Some(name)) => vec![name.to_owned()],
            (true, None) => {
                return Err(AccessError::Denied("who makes nothing of one's own names somebody: FOR ROLE name"));
            }
        };
        if makers.iter().any(|maker| maker == PUBLIC) {
            return Err(AccessError::Reserved);
        }
        for schema in &order.schemas {
            makers.iter().try_for_each(|maker| self.authorize_defaults(by, maker, schema))?;
        }
        makers.iter().chain(&order.grantees).try_for_each(|name| self.check_grantee(name))?;
        let rights = order.rights.on(&Securable::Table(TableName::new("", "")))?;
        let mut grants = self.copied_grants();
        let mut changed = Vec::new();
        for maker in &makers {
            for schema in &order.schemas {
                let new = DefaultsRecord { maker: maker.clone(), schema: schema.clone(), grants: Vec::new() };
                let mut record = grants.defaults.get(&new.key()).cloned().unwrap_or(new);
                for grantee in &order.grantees {
                    rights
                        .iter()
                        .try_for_each(|right| self.change_default(&mut record, by, order.grants, grantee, *right))?;
                }
                changed.push(record);
            }
        }
        if grants.defaults.len() + changed.len() > MOST_DEFAULTS && order.grants {
            return Err(AccessError::TooMany { kind: "default privilege", most: MOST_DEFAULTS });
        }
        // Stored once all of it is right. Where that fails, what is stored counts, as after a restart.
        let stored = changed.into_iter().try_for_each(|record| self.put_defaults(&mut grants, record));
        self.publish(grants);
        stored?;
        tracing::info!(?order, by = by.user, "default privileges changed");
        Ok(())
    }

    /// Refuses whoever may not say which rights the tables and views get that somebody makes in a schema.
    fn authorize_defaults(&self, by: &Principal, maker: &str, schema: &str) -> Result<()> {
        let schema = Securable::Schema(schema.to_owned());
        match by.user == maker && !by.has_token() {
            true => Ok(()),
            false => self.authorize_giving(by, &schema),
        }
    }

    fn change_default(
        &self,
        record: &mut DefaultsRecord,
        by: &Principal,
        grants: bool,
        grantee: &str,
        right: Right,
    ) -> Result<()> {
        let is_meant = |grant: &GrantRecord| grant.right == right && grant.grantee == grantee;
        if !grants {
            record.grants.retain(|grant| !is_meant(grant));
        } else if !record.grants.iter().any(is_meant) {
            if record.grants.len() >= MOST_GRANTS {
                return Err(AccessError::TooMany { kind: "default privilege", most: MOST_GRANTS });
            }
            let made_unix_us = self.clock.unix_us();
            record.grants.push(GrantRecord { grantee: grantee.to_owned(), right, by: by.user.clone(), made_unix_us });
        }
        Ok(())
    }

    fn put_defaults(&self, grants: &mut Grants, record: DefaultsRecord) -> Result<()> {
        let key = record.key();
        if record.grants.is_empty() {
            self.records.remove(DEFAULT_RIGHTS, &key)?;
            grants.defaults.remove(&key);
        } else {
            store(&*self.records, DEFAULT_RIGHTS, &key, &record)?;
            grants.defaults.insert(key, record);
        }
        Ok(())
    }

    /// Takes default privileges away that `is_kept` does not keep; false where it keeps all.
    pub(super) fn retain_defaults(
        &self,
        grants: &mut Grants,
        is_kept: impl Fn(&DefaultsRecord, &GrantRecord) -> bool,
    ) -> Result<bool> {
        let mut changed = Vec::new();
        for record in grants.defaults.values() {
            let kept: Vec<GrantRecord> = record.grants.iter().filter(|grant| is_kept(record, grant)).cloned().collect();
            if kept.len() < record.grants.len() {
                changed.push(DefaultsRecord { grants: kept, ..record.clone() });
            }
        }
        let some_changed = !changed.is_empty();
        changed.into_iter().try_for_each(|record| self.put_defaults(grants, record))?;
        Ok(some_changed)
    }

    /// The grants on an object that `maker` makes now.
    pub(super) fn default_grants(&self, maker: &str, object: &Securable) -> Vec<GrantRecord> {
        let Securable::Table(name) = object else { return Vec::new() };
        let grants = self.grants_now();
        let makers = grants.holders(maker);
        let records = grants.defaults.values();
        let records = records.filter(|record| record.schema == name.schema && makers.contains(&record.maker));
        let made_unix_us = self.clock.unix_us();
        let mut found: Vec<GrantRecord> = Vec::new();
        for grant in records.flat_map(|record| &record.grants) {
            let is_same = |known: &GrantRecord| known.right == grant.right && known.grantee == grant.grantee;
            if found.len() < MOST_GRANTS && !found.iter().any(is_same) {
                found.push(GrantRecord { made_unix_us, ..grant.clone() });
            }
        }
        found
    }

    /// All default privileges, by who makes the tables and views, and schema.
    pub fn defaults(&self) -> Vec<DefaultGranted> {
        let grants = self.grants_now();
        let rows = grants.defaults.values().flat_map(|record| {
            record.grants.iter().map(|grant| DefaultGranted {
                maker: record.maker.clone(),
                schema: record.schema.clone(),
                grantee: grant.grantee.clone(),
                right: grant.right,
                by: grant.by.clone(),
                made_unix_us: grant.made_unix_us,
            })
        });
        let mut rows: Vec<DefaultGranted> = rows.collect();
        rows.sort_by(|a, b| (&a.maker, &a.schema).cmp(&(&b.maker, &b.schema)));
        rows
    }
}

#[cfg(test)]
mod tests;
