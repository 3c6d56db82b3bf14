//! What is stored of users, tokens, roles and rights: JSON under a kind and a name. No record holds a secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use terrace_model::Result as StoreResult;

use crate::error::{AccessError, Result};
use crate::right::{Right, Securable};
use crate::scope::Scope;

/// Where records are kept: the catalog.
pub trait Records: Send + Sync {
    /// Stores a record; it is durable on return.
    ///
    /// # Errors
    /// Those of the catalog.
    fn put(&self, kind: &str, name: &str, json: &str) -> StoreResult<()>;
    /// Removes a record, if there is one.
    ///
    /// # Errors
    /// Those of the catalog.
    fn remove(&self, kind: &str, name: &str) -> StoreResult<()>;
    /// All records of a kind: name and JSON.
    ///
    /// # Errors
    /// Those of the catalog.
    fn all(&self, kind: &str) -> StoreResult<Vec<(String, String)>>;
}

/// Records in memory, for tests and programs that need no users.
#[derive(Debug, Default)]
pub struct MemoryRecords(Mutex<BTreeMap<(String, String), String>>);

impl Records for MemoryRecords {
    fn put(&self, kind: &str, name: &str, json: &str) -> StoreResult<()> {
        self.0.lock().insert((kind.to_owned(), name.to_owned()), json.to_owned());
        Ok(())
    }

    fn remove(&self, kind: &str, name: &str) -> StoreResult<()> {
        self.0.lock().remove(&(kind.to_owned(), name.to_owned()));
        Ok(())
    }

    fn all(&self, kind: &str) -> StoreResult<Vec<(String, String)>> {
        let records = self.0.lock();
        let found = records.iter().filter(|((known, _), _)| known == kind);
        Ok(found.map(|((_, name), json)| (name.clone(), json.clone())).collect())
    }
}

/// Kind of the records of users; their names are those of the users.
pub(crate) const USER: &str = "user";
/// Kind of the records of tokens for all that their users may do; their names are `user/token`.
pub(crate) const TOKEN: &str = "token";
/// Kind of the records of tokens with a scope. Older servers, which know no scopes, do not read them: they let none of these in.
pub(crate) const SCOPED_TOKEN: &str = "scoped_token";

/// Kind of the records of roles; their names are those of the roles.
pub(crate) const ROLE: &str = "role";
/// Kind of the records of members of roles; their names are those of the members.
pub(crate) const MEMBER: &str = "role_member";
/// Kind of the records of owners and grants; see [`Securable`] for their names.
pub(crate) const OBJECT_RIGHTS: &str = "object_rights";

/// Kind of the records of rights on columns; their names are those of [`OBJECT_RIGHTS`]. Older servers, which know no rights on columns,
/// do not read them: nobody may do anything by these there.
pub(crate) const COLUMN_RIGHTS: &str = "column_rights";

/// Kind of the records of policies on rows; their names are those of [`OBJECT_RIGHTS`].
pub(crate) const ROW_SECURITY: &str = "row_security";

/// Kind of the records of default privileges.
pub(crate) const DEFAULT_RIGHTS: &str = "default_rights";

/// A user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UserRecord {
    /// Hash of the password.
    pub(crate) password: String,
    pub(crate) is_superuser: bool,
    pub(crate) made_unix_us: u64,
    /// A random text that changes with the password and the rights, so that what was shown before counts no more.
    pub(crate) version: String,
    /// A random text that stays as long as the user does, so that tokens of an earlier user of the name do not count.
    pub(crate) identity: String,
}

/// A token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) user: String,
    /// The [`UserRecord::identity`] of its user; empty for the user of the configuration.
    pub(crate) identity: String,
    pub(crate) name: String,
    pub(crate) fingerprint: String,
    pub(crate) is_read_only: bool,
    /// What it is for; `None`: all that its user may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scope: Option<Arc<Scope>>,
    pub(crate) made_unix_us: u64,
    /// `None`: never.
    pub(crate) expires_unix_us: Option<u64>,
}

impl TokenRecord {
    /// The kind of its record.
    pub(crate) fn kind(&self) -> &'static str {
        if self.scope.is_some() { SCOPED_TOKEN } else { TOKEN }
    }

    /// The name of its record.
    pub(crate) fn key(&self) -> String {
        token_key(&self.user, &self.name)
    }
}

/// A role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RoleRecord {
    pub(crate) made_unix_us: u64,
}

/// The roles of a user or role.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) roles: Vec<GrantedRole>,
}

/// A role that somebody is a member of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GrantedRole {
    pub(crate) role: String,
    /// Who granted it.
    pub(crate) by: String,
    pub(crate) made_unix_us: u64,
}

/// Owner and grants of an object.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    pub(crate) object: Securable,
    /// `None`: it was made before rights were, or while the server was open.
    pub(crate) owner: Option<String>,
    pub(crate) grants: Vec<GrantRecord>,
    /// Grants on columns, by their names; stored as a [`ColumnsRecord`].
    #[serde(skip)]
    pub(crate) columns: BTreeMap<String, Vec<GrantRecord>>,
    /// Policies on rows; stored as a [`RowSecurityRecord`].
    #[serde(skip)]
    pub(crate) rows: RowSecurity,
}

impl ObjectRecord {
    pub(crate) fn new(object: Securable) -> Self {
        Self { object, owner: None, grants: Vec::new(), columns: BTreeMap::new(), rows: RowSecurity::default() }
    }

    /// Whether an owner or a grant on the object as a whole is noted.
    pub(crate) fn has_rights(&self) -> bool {
        self.owner.is_some() || !self.grants.is_empty()
    }

    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_rights() && self.columns.is_empty() && self.rows.is_empty()
    }

    /// Number of all its grants.
    pub(crate) fn grant_count(&self) -> usize {
        self.grants.len() + self.columns.values().map(Vec::len).sum::<usize>()
    }

    /// Keeps the grants that `is_kept` keeps, on columns, too.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&GrantRecord) -> bool) {
        self.grants.retain(&is_kept);
        self.columns.values_mut().for_each(|grants| grants.retain(&is_kept));
    }
}

/// Grants on the columns of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ColumnsRecord {
    pub(crate) object: Securable,
    /// By the names of the columns; none is empty.
    pub(crate) columns: BTreeMap<String, Vec<GrantRecord>>,
}

/// Rights on the tables and views that somebody will make in a schema.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DefaultsRecord {
    /// Who makes them: a user, or a role whose members do.
    pub(crate) maker: String,
    pub(crate) schema: String,
    pub(crate) grants: Vec<GrantRecord>,
}

impl DefaultsRecord {
    /// The name of its record. The length of the first name tells where it ends.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}/{}", self.maker.len(), self.maker, self.schema)
    }
}

/// The policies on the rows of a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowSecurity {
    /// Whether they count.
    pub(crate) is_enabled: bool,
    /// By name.
    pub(crate) policies: BTreeMap<String, PolicyRecord>,
}

impl RowSecurity {
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_enabled && self.policies.is_empty()
    }
}

/// A policy on the rows of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PolicyRecord {
    /// What it is for; `None`: reading, adding, changing and deleting.
    pub(crate) command: Option<Right>,
    /// Whom it concerns: users, roles and PUBLIC.
    pub(crate) roles: Vec<String>,
    /// The condition on rows that are there, as SQL.
    pub(crate) using: Option<String>,
    /// The condition on new rows; `None`: the same.
    pub(crate) check: Option<String>,
    /// Who made it.
    pub(crate) by: String,
    pub(crate) made_unix_us: u64,
}

/// The policies on the rows of a table, as they are stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RowSecurityRecord {
    pub(crate) object: Securable,
    pub(crate) rows: RowSecurity,
}

/// A granted right.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct GrantRecord {
    pub(crate) grantee: String,
    pub(crate) right: Right,
    /// Who granted it.
    pub(crate) by: String,
    pub(crate) made_unix_us: u64,
}

/// The name of the record of a token.
pub(crate) fn token_key(user: &str, name: &str) -> String {
    format!("{user}/{name}")
}

/// Reads all records of a kind, by name.
pub(crate) fn load<T: DeserializeOwned>(records: &dyn Records, kind: &'static str) -> Result<BTreeMap<String, T>> {
    let parse = |(name, json): (String, String)| match serde_json::from_str(&json) {
        Ok(record) => Ok((name, record)),
        Err(error) => Err(AccessError::BadRecord { kind, name, message: error.to_string() }),
    };
    records.all(kind)?.into_iter().map(parse).collect()
}

/// Stores a record.
pub(crate) fn store<T: Serialize>(records: &dyn Records, kind: &'static str, name: &str, record: &T) -> Result<()> {
    let json = serde_json::to_string(record).map_err(|error| AccessError::BadRecord {
        kind,
        name: name.to_owned(),
        message: error.to_string(),
    })?;
    Ok(records.put(kind, name, &json)?)
}
