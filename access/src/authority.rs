//! What a caller may do: the answers to 'may this one do that, there?'.
//!
//! An [`Authority`] holds the grants of one moment. [`crate::Users::authority`] makes it; that of a superuser takes no memory. Who shows
//! a token with a scope may do what both the user's rights and the [`Scope`] allow; who owns something, is no question then.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_model::TableName;

use crate::grants::{Grants, PUBLIC};
use crate::right::{Right, Securable};
use crate::scope::Scope;

/// The schema whose names everybody may see, as in PostgreSQL.
const PUBLIC_SCHEMA: &str = PUBLIC;

/// What a caller may do.
#[derive(Debug, Clone)]
pub struct Authority {
    /// The rights of the user; `None`: everything is allowed.
    limits: Option<Arc<Limited>>,
    /// What the caller's token is for; `None`: all that the user may do.
    scope: Option<Arc<Scope>>,
    /// Where the policies on rows are of whoever shows a token with a scope.
    scoped_grants: Option<Arc<Grants>>,
}

/// Which condition of a policy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyClause {
    /// USING: that on rows that are there.
    Using,
    /// WITH CHECK: that on new rows.
    Check,
}

/// The rights of one who is no superuser.
#[derive(Debug)]
struct Limited {
    user: String,
    /// The names whose rights the user has: the own one, the roles, PUBLIC.
    holders: BTreeSet<String>,
    grants: Arc<Grants>,
}

impl Authority {
    /// Everything is allowed.
    pub const EVERYTHING: Self = Self { limits: None, scope: None, scoped_grants: None };

    /// The rights of a user or role that is no superuser.
    pub(crate) fn limited(user: &str, grants: Arc<Grants>) -> Self {
        let holders = grants.holders(user);
        let limits = Some(Arc::new(Limited { user: user.to_owned(), holders, grants }));
        Self { limits, ..Self::EVERYTHING }
    }

    /// What of it a token may do.
    pub(crate) fn within(self, scope: Arc<Scope>, grants: Arc<Grants>) -> Self {
        Self { scope: Some(scope), scoped_grants: Some(grants), ..self }
    }

    /// Whether everything is allowed.
    pub fn is_unlimited(&self) -> bool {
        self.limits.is_none() && self.scope.is_none()
    }

    /// Whether what belongs to this user is shown: it is the own name, or everything is allowed. A scope shows nothing of this.
    pub fn is_self(&self, user: &str) -> bool {
        self.scope.is_none() && self.limits.as_ref().is_none_or(|limited| limited.user == user)
    }

    /// Whether all rights of this name are held: it is the own one, a role or PUBLIC, or everything is allowed; and no scope takes
    /// some away.
    pub fn holds(&self, name: &str) -> bool {
        self.scope.is_none() && self.limits.as_ref().is_none_or(|limited| limited.holders.contains(name))
    }

    /// Whether this is a role of the user, or PUBLIC; what a token is for makes no difference. False for superusers, who need none.
    pub fn is_member(&self, role: &str) -> bool {
        self.limits.as_ref().is_some_and(|limited| limited.holders.contains(role))
    }

    /// Whether the right is held on the object or on what holds it, or one of these is owned.
    pub fn may(&self, right: Right, object: &Securable) -> bool {
        self.may_any(object, |held| held == right)
    }

    /// [`Authority::may`] on a table, view, external or system table.
    pub fn may_on_table(&self, right: Right, name: &TableName) -> bool {
        self.is_unlimited() || self.may(right, &Securable::Table(name.clone()))
    }

    /// Whether the right is held on a column of a table, or on all of the table.
    pub fn may_on_column(&self, right: Right, name: &TableName, column: &str) -> bool {
        self.may_on_table(right, name) || self.may_on_columns(right, name, Some(column))
    }

    /// Whether the right is held on some column of a table, beside rights on all of it.
    pub fn may_on_some_column(&self, right: Right, name: &TableName) -> bool {
        self.may_on_columns(right, name, None)
    }

    fn may_on_columns(&self, right: Right, name: &TableName, column: Option<&str>) -> bool {
        let Some(limited) = &self.limits else { return false };
        let table = Securable::Table(name.clone());
        limited.grants.grants_on_column(&table, column, &limited.holders, right)
            && self.scope.as_ref().is_none_or(|scope| scope.rights_on(&table).contains(&right))
    }

    /// Whether the right is held on the server.
    pub fn may_on_server(&self, right: Right) -> bool {
        self.is_unlimited() || self.may(right, &Securable::Server)
    }

    /// Whether the object or what holds it is owned; a token with a scope does nothing that takes an owner.
    pub fn owns(&self, object: &Securable) -> bool {
        self.may_any(object, |_| false)
    }

    /// [`Authority::owns`] of a table or view.
    pub fn owns_table(&self, name: &TableName) -> bool {
        self.is_unlimited() || self.owns(&Securable::Table(name.clone()))
    }

    /// Whether lists show a table: some right on its rows is held.
    pub fn sees_table(&self, name: &TableName) -> bool {
        let mut on_columns = Right::ALL.into_iter().filter(|right| right.is_on_columns());
        self.is_unlimited()
            || self.may_any(&Securable::Table(name.clone()), Right::is_on_rows)
            || on_columns.any(|right| self.may_on_some_column(right, name))
    }

    /// Whether figures of a table are shown: all its rows may be read, or all tables may be watched.
    pub fn sees_figures(&self, name: &TableName) -> bool {
        let reads_all = || self.row_conditions(name, Right::Select, PolicyClause::Using).is_none();
        self.may_on_table(Right::Select, name) && reads_all() || self.may_on_server(Right::Monitor)
    }

    /// The conditions of policies of which a row of a table has to fulfil one for a right, as SQL; none: no row does. `None`: all rows
    /// do, as policies do not count there, or not for owners and superusers. Who shows a token with a scope is none of these.
    pub fn row_conditions(&self, name: &TableName, right: Right, clause: PolicyClause) -> Option<BTreeSet<String>> {
        let grants = self.limits.as_ref().map(|limited| &limited.grants).or(self.scoped_grants.as_ref())?;
        let table = Securable::Table(name.clone());
        let rows = &grants.objects.get(&table)?.rows;
        if !rows.is_enabled || self.owns(&table) {
            return None;
        }
        let is_held = |role: &String| {
            role == PUBLIC || self.limits.as_ref().is_some_and(|limited| limited.holders.contains(role))
        };
        let policies = rows.policies.values().filter(|policy| policy.roles.iter().any(is_held));
        let policies = policies.filter(|policy| policy.command.is_none_or(|command| command == right));
        let conditions = policies.filter_map(|policy| match clause {
            PolicyClause::Using => policy.using.clone(),
            PolicyClause::Check => policy.check.clone().or_else(|| policy.using.clone()),
        });
        Some(conditions.collect())
    }

    /// Whether lists show a schema: some right is held on it, or on something in it.
    pub fn sees_schema(&self, schema: &str) -> bool {
        if self.sees_names_in(schema) {
            return true;
        }
        let first = Securable::Table(TableName::new(schema, ""));
        let granted = self.limits.iter().flat_map(|limited| limited.grants.objects.range(first.clone()..));
        let granted = granted.map(|(object, _)| object).take_while(|object| object.schema() == Some(schema));
        let scoped = self.scope.iter().flat_map(|scope| scope.objects());
        let scoped = scoped.filter(|object| object.schema() == Some(schema));
        granted.chain(scoped).any(|object| match object {
            Securable::Table(name) => self.sees_table(name),
            other => self.may_any(other, |_| true),
        })
    }

    /// Whether it may be known which names there are in a schema.
    pub fn sees_names_in(&self, schema: &str) -> bool {
        schema == PUBLIC_SCHEMA || self.may_any(&Securable::Schema(schema.to_owned()), |_| true)
    }

    /// Whether a right that `is_wanted` is held on the object or on what holds it, or one of these is owned.
    fn may_any(&self, object: &Securable, is_wanted: impl Fn(Right) -> bool) -> bool {
        match &self.scope {
            None => self.user_may(object, is_wanted),
            Some(scope) => {
                let mut usable = scope.rights_on(object).into_iter().filter(|right| is_wanted(*right));
                usable.any(|right| self.user_may(object, |held| held == right))
            }
        }
    }

    /// [`Authority::may_any`] without a scope.
    fn user_may(&self, object: &Securable, is_wanted: impl Fn(Right) -> bool) -> bool {
        let Some(limited) = &self.limits else { return true };
        let mut next = Some(object.clone());
        while let Some(object) = next {
            let owner = limited.grants.owner(&object);
            if owner.is_some_and(|owner| limited.holders.contains(owner))
                || limited.grants.grants(&object, &limited.holders, &is_wanted)
            {
                return true;
            }
            next = object.parent();
        }
        false
    }
}
