//! Roles, their members, owners and grants as they are at one moment.
//!
//! The state is never changed in place: a change makes a copy, so that whoever asks keeps one that hangs together. A role may be
//! a member of others; there are no cycles, and no longer chains than [`MOST_DEPTH`].

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::record::{
    COLUMN_RIGHTS, ColumnsRecord, DEFAULT_RIGHTS, DefaultsRecord, GrantRecord, MEMBER, MemberRecord, OBJECT_RIGHTS,
    ObjectRecord, ROLE, ROW_SECURITY, Records, RoleRecord, RowSecurityRecord, load,
};
use crate::right::{Right, Securable};

/// The pseudo-role that everybody is a member of.
pub const PUBLIC: &str = "public";
/// Longest chain of roles in roles.
pub(crate) const MOST_DEPTH: usize = 32;

/// All roles, members, owners and grants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    /// Roles by name.
    pub(crate) roles: BTreeMap<String, RoleRecord>,
    /// The roles of users and roles, by the name of the member.
    pub(crate) members: BTreeMap<String, MemberRecord>,
    /// Owner and grants of each object that has some.
    pub(crate) objects: BTreeMap<Securable, ObjectRecord>,
    /// Default privileges, by the names of their records.
    pub(crate) defaults: BTreeMap<String, DefaultsRecord>,
}

impl Grants {
    pub(crate) fn load(records: &dyn Records) -> Result<Self> {
        let objects: BTreeMap<String, ObjectRecord> = load(records, OBJECT_RIGHTS)?;
        let mut objects: BTreeMap<Securable, ObjectRecord> =
            objects.into_values().map(|record| (record.object.clone(), record)).collect();
        let columns: BTreeMap<String, ColumnsRecord> = load(records, COLUMN_RIGHTS)?;
        for ColumnsRecord { object, columns } in columns.into_values() {
            objects.entry(object.clone()).or_insert_with(|| ObjectRecord::new(object)).columns = columns;
        }
        let rows: BTreeMap<String, RowSecurityRecord> = load(records, ROW_SECURITY)?;
        for RowSecurityRecord { object, rows } in rows.into_values() {
            objects.entry(object.clone()).or_insert_with(|| ObjectRecord::new(object)).rows = rows;
        }
        let defaults = load(records, DEFAULT_RIGHTS)?;
        Ok(Self { roles: load(records, ROLE)?, members: load(records, MEMBER)?, objects, defaults })
    }

    /// The roles that a user or role is a direct member of.
    pub(crate) fn roles_of<'a>(&'a self, member: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let granted = self.members.get(member).map(|record| record.roles.as_slice()).unwrap_or_default();
        granted.iter().map(|granted| granted.role.as_str())
    }

    /// The direct members of a role.
    fn members_of(&self, role: &str) -> Vec<&str> {
        let has_role = |record: &MemberRecord| record.roles.iter().any(|granted| granted.role == role);
        self.members.iter().filter(|(_, record)| has_role(record)).map(|(member, _)| member.as_str()).collect()
    }

    /// All names whose rights somebody has: the own one, the roles, their roles, and PUBLIC.
    pub(crate) fn holders(&self, name: &str) -> BTreeSet<String> {
        let mut holders = BTreeSet::from([PUBLIC.to_owned()]);
        let mut open = vec![name];
        while let Some(next) = open.pop() {
            if holders.insert(next.to_owned()) {
                open.extend(self.roles_of(next));
            }
        }
        holders
    }

    /// The longest chain of roles once `member` gets `role`; `None` where the chain would be a circle.
    pub(crate) fn depth_with(&self, role: &str, member: &str) -> Option<usize> {
        if role == member || self.holders(role).contains(member) {
            return None;
        }
        let above = longest_chain(role, |name| self.roles_of(name).collect());
        let below = longest_chain(member, |name| self.members_of(name));
        Some(above + below + 1)
    }

    /// The owner of an object, if it has one.
    pub(crate) fn owner(&self, object: &Securable) -> Option<&str> {
        self.objects.get(object)?.owner.as_deref()
    }

    /// The objects that a user or role owns.
    pub(crate) fn owned_by<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Securable> {
        let owned = self.objects.iter().filter(move |(_, record)| record.owner.as_deref() == Some(name));
        owned.map(|(object, _)| object)
    }

    /// Whether one of the holders was granted a right that `is_wanted` on just this object.
    pub(crate) fn grants(
        &self,
        object: &Securable,
        holders: &BTreeSet<String>,
        is_wanted: impl Fn(Right) -> bool,
    ) -> bool {
        let is_held = |grant: &GrantRecord| is_wanted(grant.right) && holders.contains(&grant.grantee);
        self.objects.get(object).is_some_and(|record| record.grants.iter().any(is_held))
    }

    /// Whether one of the holders was granted a right on a column of this table; `None`: on any of them.
    pub(crate) fn grants_on_column(
        &self,
        table: &Securable,
        column: Option<&str>,
        holders: &BTreeSet<String>,
        right: Right,
    ) -> bool {
        let Some(record) = self.objects.get(table) else { return false };
        let is_held = |grant: &GrantRecord| grant.right == right && holders.contains(&grant.grantee);
        let mut columns = record.columns.iter().filter(|(name, _)| column.is_none_or(|column| column == *name));
        columns.any(|(_, grants)| grants.iter().any(is_held))
    }
}

/// Steps of the longest way from a name; a little more than [`MOST_DEPTH`] where it is longer.
fn longest_chain<'a>(start: &'a str, next: impl Fn(&'a str) -> Vec<&'a str>) -> usize {
    let mut names = BTreeSet::from([start]);
    for step in 0..=MOST_DEPTH {
        names = names.into_iter().flat_map(&next).collect();
        if names.is_empty() {
            return step;
        }
    }
    MOST_DEPTH + 1
}
