//! Roles, and who is a member of them: changes are for superusers.

use super::Users;
use crate::error::{AccessError, Result};
use crate::grants::{Grants, MOST_DEPTH, PUBLIC};
use crate::principal::Principal;
use crate::record::{GrantedRole, MEMBER, ROLE, RoleRecord, store};
use crate::users::check_name;

/// Most roles.
const MOST_ROLES: usize = 10_000;
/// Most roles that one user or role is a direct member of.
const MOST_MEMBERSHIPS: usize = 1_000;

/// A role, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// When it was made, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
    /// Users and roles that are direct members.
    pub members: Vec<String>,
}

impl Users {
    /// Makes a role.
    ///
    /// # Errors
    /// For a bad or taken name, and for a caller who is no superuser.
    pub fn create_role(&self, by: &Principal, name: &str) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        check_name("role", name)?;
        self.refuse_taken(name)?;
        let mut grants = self.copied_grants();
        if grants.roles.len() >= MOST_ROLES {
            return Err(AccessError::TooMany { kind: "role", most: MOST_ROLES });
        }
        let role = RoleRecord { made_unix_us: self.clock.unix_us() };
        store(&*self.records, ROLE, name, &role)?;
        grants.roles.insert(name.to_owned(), role);
        self.publish(grants);
        tracing::info!(role = name, by = by.user, "role made");
        Ok(())
    }

    /// Drops a role, with all grants to it.
    ///
    /// # Errors
    /// For a missing role, one that owns something, and for a caller who is no superuser.
    pub fn drop_role(&self, by: &Principal, name: &str) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        if !self.grants_now().roles.contains_key(name) {
            return Err(AccessError::Missing { kind: "role", name: name.to_owned() });
        }
        self.forget_grantee(name)?;
        // Last: whoever has its name later starts with nothing.
        self.records.remove(ROLE, name)?;
        let mut grants = self.copied_grants();
        grants.roles.remove(name);
        self.publish(grants);
        tracing::info!(role = name, by = by.user, "role dropped");
        Ok(())
    }

    /// Makes users and roles members of roles.
    ///
    /// # Errors
    /// For missing names, for a role that would be a member of itself, and for a caller who is no superuser.
    pub fn grant_roles(&self, by: &Principal, roles: &[String], grantees: &[String]) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        self.check_roles(roles, grantees)?;
        let mut grants = self.copied_grants();
        for grantee in grantees {
            for role in roles {
                match grants.depth_with(role, grantee) {
                    None => return Err(AccessError::Circle { role: grantee.clone(), member: role.clone() }),
                    Some(depth) if depth > MOST_DEPTH => return Err(AccessError::TooDeep(MOST_DEPTH)),
                    Some(_) => {}
                }
                let known = &mut grants.members.entry(grantee.clone()).or_default().roles;
                if known.iter().any(|known| known.role == *role) {
                    continue;
                }
                if known.len() >= MOST_MEMBERSHIPS {
                    return Err(AccessError::TooMany { kind: "role of a member", most: MOST_MEMBERSHIPS });
                }
                let made_unix_us = self.clock.unix_us();
                known.push(GrantedRole { role: role.clone(), by: by.user.clone(), made_unix_us });
            }
        }
        // Stored once all of it is right: what is refused must not be there after a restart.
        for (member, record) in grants.members.iter().filter(|(member, _)| grantees.contains(member)) {
            store(&*self.records, MEMBER, member, record)?;
        }
        self.publish(grants);
        tracing::info!(?roles, ?grantees, by = by.user, "roles granted");
        Ok(())
    }

    /// Ends memberships; those that do not exist are passed over.
    ///
    /// # Errors
    /// For missing names, and for a caller who is no superuser.
    pub fn revoke_roles(&self, by: &Principal, roles: &[String], grantees: &[String]) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        self.check_roles(roles, grantees)?;
        let mut grants = self.copied_grants();
        for grantee in grantees {
            self.update_member(&mut grants, grantee, |known| known.retain(|known| !roles.contains(&known.role)))?;
        }
        self.publish(grants);
        tracing::info!(?roles, ?grantees, by = by.user, "roles revoked");
        Ok(())
    }

    /// Refuses names of roles that are none, and grantees that are nobody.
    fn check_roles(&self, roles: &[String], grantees: &[String]) -> Result<()> {
        let grants = self.grants_now();
        if let Some(missing) = roles.iter().find(|role| !grants.roles.contains_key(*role)) {
            return Err(AccessError::Missing { kind: "role", name: missing.clone() });
        }
        if grantees.iter().any(|grantee| grantee == PUBLIC) {
            return Err(AccessError::Reserved);
        }
        grantees.iter().try_for_each(|grantee| self.check_grantee(grantee))
    }

    /// Changes the roles that a user or role is a member of, and stores them.
    pub(super) fn update_member(
        &self,
        grants: &mut Grants,
        member: &str,
        update: impl FnOnce(&mut Vec<GrantedRole>),
    ) -> Result<()> {
        let mut record = grants.members.get(member).cloned().unwrap_or_default();
        update(&mut record.roles);
        if record.roles.is_empty() {
            self.records.remove(MEMBER, member)?;
            grants.members.remove(member);
        } else {
            store(&*self.records, MEMBER, member, &record)?;
            grants.members.insert(member.to_owned(), record);
        }
        Ok(())
    }

    /// All roles, by name.
    pub fn roles(&self) -> Vec<Role> {
        let grants = self.grants_now();
        let role = |(name, record): (&String, &RoleRecord)| {
            let members = grants.members.keys().filter(|member| grants.roles_of(member).any(|role| role == name));
            Role { name: name.clone(), made_unix_us: record.made_unix_us, members: members.cloned().collect() }
        };
        grants.roles.iter().map(role).collect()
    }
}
