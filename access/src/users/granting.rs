//! Roles, owners and grants: their changes, and what follows from them for a user.
//!
//! Superusers make and drop roles, and say who is a member. Rights on an object are given away by its owner, by the owner of its
//! schema and by superusers. As with users, who shows a token changes nothing of this.
//!
//! - `columns`: rights on columns of tables
//! - `defaults`: rights on the tables and views that somebody will make
//! - `owners`: who made objects, or got them
//! - `policies`: policies on the rows of tables
//! - `roles`: roles and their members

mod columns;
mod defaults;
mod owners;
mod policies;
mod roles;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::Users;
use crate::authority::Authority;
use crate::error::{AccessError, Result};
use crate::grants::{Grants, PUBLIC};
use crate::principal::Principal;
use crate::record::{
    COLUMN_RIGHTS, ColumnsRecord, GrantRecord, MemberRecord, OBJECT_RIGHTS, ObjectRecord, ROW_SECURITY,
    RowSecurityRecord, store,
};
use crate::right::{Right, Securable};
use policies::check_policies;

pub use columns::{ColumnChange, ColumnRights};
pub use defaults::{DefaultGranted, DefaultGranting};
pub use policies::{NewPolicy, Policy};
pub use roles::Role;

/// Most grants on one object.
const MOST_GRANTS: usize = 10_000;
/// Objects that an error names.
const SHOWN_OBJECTS: usize = 10;

/// Rights of a GRANT or REVOKE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhichRights {
    /// All that can be held on the object.
    All,
    /// These.
    These(Vec<Right>),
}

impl WhichRights {
    /// Those that they are on an object.
    ///
    /// # Errors
    /// For a right that cannot be held on it.
    pub fn on(&self, object: &Securable) -> Result<Vec<Right>> {
        let Self::These(rights) = self else { return Ok(Right::all_on(object).collect()) };
        match rights.iter().find(|right| !right.applies_to(object)) {
            Some(wrong) => {
                let known: Vec<&str> = Right::all_on(object).map(Right::name).collect();
                let (right, kind) = (wrong.name(), object.kind());
                Err(AccessError::NotApplicable { right, kind, known: known.join(", ") })
            }
            None => Ok(rights.clone()),
        }
    }
}

/// A GRANT or REVOKE of rights.
#[derive(Debug, Clone)]
pub struct Granting {
    /// The rights on the objects as a whole.
    pub rights: WhichRights,
    /// The rights on columns of the objects, which are tables then.
    pub columns: Vec<ColumnRights>,
    /// The objects on which they are held; they exist.
    pub objects: Vec<Securable>,
    /// Users, roles, and [`PUBLIC`].
    pub grantees: Vec<String>,
}

/// One right of a GRANT or REVOKE.
struct Holding<'a> {
    grantee: &'a str,
    right: Right,
    /// The column on which it is held; `None`: the object as a whole.
    column: Option<&'a str>,
}

impl Holding<'_> {
    /// Whether a grant on the same object or column is this one.
    fn is_grant(&self, grant: &GrantRecord) -> bool {
        grant.right == self.right && grant.grantee == self.grantee
    }
}

/// A right that somebody holds, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Who holds it.
    pub grantee: String,
    /// On what.
    pub object: Securable,
    /// The column of the object; `None`: the object as a whole.
    pub column: Option<String>,
    /// The right; `None`: the grantee owns the object.
    pub right: Option<Right>,
    /// Who granted it.
    pub by: Option<String>,
    /// When, in microseconds since the Unix epoch.
    pub made_unix_us: Option<u64>,
}

impl Users {
    /// What a caller may do now.
    pub fn authority(&self, principal: &Principal) -> Authority {
        match &principal.scope {
            None if principal.is_superuser => Authority::EVERYTHING,
            None => self.limited(&principal.user),
            Some(scope) => self.authority_by_name(&principal.user).within(Arc::clone(scope), self.grants_now()),
        }
    }

    /// The rights of the owner of an object, with which a view is read. An object without an owner was made when everything was
    /// allowed.
    pub fn owner_authority(&self, object: &Securable) -> Authority {
        let grants = self.grants_now();
        grants.owner(object).map_or(Authority::EVERYTHING, |owner| self.authority_by_name(owner))
    }

    /// What a user or role may do.
    fn authority_by_name(&self, name: &str) -> Authority {
        let is_configured = self.owner.as_ref().is_some_and(|configured| configured.name == name);
        let is_superuser = || self.state.read().users.get(name).is_some_and(|user| user.is_superuser);
        if is_configured || is_superuser() { Authority::EVERYTHING } else { self.limited(name) }
    }

    fn limited(&self, name: &str) -> Authority {
        let mut known = self.authorities.lock();
        if let Some(authority) = known.get(name) {
            return authority.clone();
        }
        let authority = Authority::limited(name, self.grants_now());
        known.insert(name.to_owned(), authority.clone());
        authority
    }

    /// Incremented by each change on which rights depend.
    pub fn rights_version(&self) -> u64 {
        self.rights_version.load(Ordering::Acquire)
    }

    /// Takes away all grants to a user or role, and all memberships.
    ///
    /// # Errors
    /// Where it owns something.
    pub(super) fn forget_grantee(&self, name: &str) -> Result<()> {
        let mut grants = self.copied_grants();
        let owned: Vec<String> = grants.owned_by(name).map(ToString::to_string).collect();
        if let Some(shown) = owned.get(..owned.len().min(SHOWN_OBJECTS)).filter(|shown| !shown.is_empty()) {
            let more = match owned.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let objects = format!("{}{more}", shown.join(", "));
            return Err(AccessError::Owns { name: name.to_owned(), objects });
        }
        check_policies(&grants, name)?;
        let held = |record: &ObjectRecord| {
            let mut all = record.grants.iter().chain(record.columns.values().flatten());
            all.any(|grant| grant.grantee == name)
        };
        let objects = grants.objects.values().filter(|record| held(record)).map(|record| record.object.clone());
        for object in objects.collect::<Vec<_>>() {
            self.update_object(&mut grants, &object, |record| record.retain(|grant| grant.grantee != name))?;
        }
        let has_role = |record: &MemberRecord| record.roles.iter().any(|granted| granted.role == name);
        let members = grants.members.iter().filter(|(member, record)| *member == name || has_role(record));
        for member in members.map(|(member, _)| member.clone()).collect::<Vec<_>>() {
            let is_gone = member == name;
            self.update_member(&mut grants, &member, |roles| {
                roles.retain(|granted| !is_gone && granted.role != name);
            })?;
        }
        self.retain_defaults(&mut grants, |record, grant| record.maker != name && grant.grantee != name)?;
        self.publish(grants);
        Ok(())
    }

    fn check_grantee(&self, name: &str) -> Result<()> {
        if name == PUBLIC || self.is_known(name) {
            return Ok(());
        }
        Err(AccessError::Missing { kind: "user or role", name: name.to_owned() })
    }

    /// Whether a user or role has this name.
    fn is_known(&self, name: &str) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.name == name)
            || self.state.read().users.contains_key(name)
            || self.grants_now().roles.contains_key(name)
    }

    /// Refuses a name that a user or role has, or that stands for everybody.
    pub(super) fn refuse_taken(&self, name: &str) -> Result<()> {
        if name == PUBLIC {
            return Err(AccessError::Reserved);
        }
        if self.grants_now().roles.contains_key(name) {
            return Err(AccessError::Exists { kind: "role", name: name.to_owned() });
        }
        if self.is_known(name) {
            return Err(AccessError::Exists { kind: "user", name: name.to_owned() });
        }
        Ok(())
    }

    /// Grants rights.
    ///
    /// # Errors
    /// For missing grantees, rights that the objects do not know, and a caller who may not give them away.
    pub fn grant(&self, by: &Principal, order: &Granting) -> Result<()> {
        self.change_grants(by, order, |record, held| {
            let has_most = record.grant_count() >= MOST_GRANTS;
            let known = match held.column {
                None => &mut record.grants,
                Some(column) => record.columns.entry(column.to_owned()).or_default(),
            };
            if known.iter().any(|grant| held.is_grant(grant)) {
                return Ok(());
            }
            if has_most {
                return Err(AccessError::TooMany { kind: "grant on an object", most: MOST_GRANTS });
            }
            let made_unix_us = self.clock.unix_us();
            let grantee = held.grantee.to_owned();
            known.push(GrantRecord { grantee, right: held.right, by: by.user.clone(), made_unix_us });
            Ok(())
        })?;
        tracing::info!(?order, by = by.user, "rights granted");
        Ok(())
    }

    /// Revokes rights, whoever granted them; those that are not held are passed over. A right on a table that is revoked is revoked on
    /// its columns, too, as in PostgreSQL.
    ///
    /// # Errors
    /// Those of [`Users::grant`].
    pub fn revoke(&self, by: &Principal, order: &Granting) -> Result<()> {
        self.change_grants(by, order, |record, held| {
            match held.column {
                None => record.retain(|grant| !held.is_grant(grant)),
                Some(column) => {
                    let known = record.columns.get_mut(column);
                    known.into_iter().for_each(|grants| grants.retain(|grant| !held.is_grant(grant)));
                }
            }
            Ok(())
        })?;
        tracing::info!(?order, by = by.user, "rights revoked");
        Ok(())
    }

    fn change_grants(
        &self,
        by: &Principal,
        order: &Granting,
        change: impl Fn(&mut ObjectRecord, &Holding<'_>) -> Result<()>,
    ) -> Result<()> {
        let _change = self.change(by)?;
        order.objects.iter().try_for_each(|object| self.authorize_giving(by, object))?;
        order.grantees.iter().try_for_each(|grantee| self.check_grantee(grantee))?;
        let rights = order.objects.iter().map(|object| order.rights.on(object)).collect::<Result<Vec<_>>>()?;
        let on_columns = order.columns.iter().map(|some| some.rights.on_columns()).collect::<Result<Vec<_>>>()?;
        let mut grants = self.copied_grants();
        let mut changed = Vec::new();
        for (object, rights) in order.objects.iter().zip(rights) {
            let mut record = grants.objects.get(object).cloned().unwrap_or_else(|| ObjectRecord::new(object.clone()));
            for grantee in &order.grantees {
                for right in &rights {
                    change(&mut record, &Holding { grantee, right: *right, column: None })?;
                }
                for (some, rights) in order.columns.iter().zip(&on_columns) {
                    for (column, right) in some.columns.iter().flat_map(|c| rights.iter().map(move |right| (c, *right)))
                    {
                        change(&mut record, &Holding { grantee, right, column: Some(column) })?;
                    }
                }
            }
            changed.push(record);
        }
        // Stored once all of it is right. Where that fails, what is stored counts, as after a restart.
        let stored = changed.into_iter().try_for_each(|record| {
            let object = record.object.clone();
            self.update_object(&mut grants, &object, |known| *known = record).map(drop)
        });
        self.publish(grants);
        stored
    }

    /// Refuses whoever may not give rights on an object away.
    fn authorize_giving(&self, by: &Principal, object: &Securable) -> Result<()> {
        if by.has_token() {
            return by.authorize();
        }
        if self.authority(by).owns(object) { Ok(()) } else { Err(AccessError::NotOwner(object.clone())) }
    }

    /// Changes owner and grants of an object. The caller holds the lock of changes.
    fn replace_object(&self, object: &Securable, update: impl FnOnce(&mut ObjectRecord)) -> Result<()> {
        let mut grants = self.copied_grants();
        if self.update_object(&mut grants, object, update)? {
            self.publish(grants);
        }
        Ok(())
    }

    /// Owner and grants of an object, changed and stored; false where there was nothing and is nothing.
    fn update_object(
        &self,
        grants: &mut Grants,
        object: &Securable,
        update: impl FnOnce(&mut ObjectRecord),
    ) -> Result<bool> {
        let known = grants.objects.get(object).cloned();
        let had_some = known.is_some();
        let known = known.unwrap_or_else(|| ObjectRecord::new(object.clone()));
        let mut record = known.clone();
        update(&mut record);
        record.columns.retain(|_, grants| !grants.is_empty());
        let key = object.key();
        if record.rows != known.rows {
            let rows = RowSecurityRecord { object: object.clone(), rows: record.rows.clone() };
            self.put_part(ROW_SECURITY, &key, (!record.rows.is_empty()).then_some(&rows))?;
        }
        if record.columns != known.columns {
            let columns = ColumnsRecord { object: object.clone(), columns: record.columns.clone() };
            self.put_part(COLUMN_RIGHTS, &key, (!record.columns.is_empty()).then_some(&columns))?;
        }
        if had_some || record.has_rights() {
            self.put_part(OBJECT_RIGHTS, &key, record.has_rights().then_some(&record))?;
        }
        match record.is_empty() {
            true => drop(grants.objects.remove(object)),
            false => drop(grants.objects.insert(object.clone(), record)),
        }
        Ok(had_some || grants.objects.contains_key(object))
    }

    /// Stores a part of a record, or removes it where there is nothing to store.
    fn put_part<T: Serialize>(&self, kind: &'static str, key: &str, part: Option<&T>) -> Result<()> {
        match part {
            Some(part) => store(&*self.records, kind, key, part),
            None => Ok(self.records.remove(kind, key)?),
        }
    }

    fn grants_now(&self) -> Arc<Grants> {
        Arc::clone(&self.grants.read())
    }

    fn copied_grants(&self) -> Grants {
        self.grants_now().as_ref().clone()
    }

    /// Lets changed grants count from now on.
    fn publish(&self, grants: Grants) {
        *self.grants.write() = Arc::new(grants);
        self.note_rights_changed();
    }

    /// Tells that rights may be others.
    pub(super) fn note_rights_changed(&self) {
        self.authorities.lock().clear();
        self.rights_version.fetch_add(1, Ordering::AcqRel);
        self.changes.send_replace(());
    }

    /// All owners and grants, by object.
    pub fn grants(&self) -> Vec<Granted> {
        let grants = self.grants_now();
        let rows = grants.objects.values().flat_map(|record| {
            let owner = record.owner.iter().map(|owner| Granted {
                grantee: owner.clone(),
                object: record.object.clone(),
                column: None,
                right: None,
                by: None,
                made_unix_us: None,
            });
            let granted = move |grant: &GrantRecord, column: Option<&String>| Granted {
                grantee: grant.grantee.clone(),
                object: record.object.clone(),
                column: column.cloned(),
                right: Some(grant.right),
                by: Some(grant.by.clone()),
                made_unix_us: Some(grant.made_unix_us),
            };
            let on_object = record.grants.iter().map(move |grant| granted(grant, None));
            let columns = record.columns.iter();
            let on_columns = columns.flat_map(move |(name, all)| all.iter().map(move |g| granted(g, Some(name))));
            owner.chain(on_object).chain(on_columns)
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests;
