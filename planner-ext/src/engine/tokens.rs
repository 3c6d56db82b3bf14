//! CREATE TOKEN: resolves what the scope of a token names; [`terrace_access`] makes the token.

use std::sync::Arc;

use terrace_access::{NewToken, Scope, Securable};
use terrace_sql::access::CreateToken;
use terrace_sql::grantable::{GrantObjects, ScopedRights};
use terrace_tier_store::table::TableName;

use super::catalog::Snapshot;
use super::computed_rows::ComputedRows;
use super::execute::{Execute, Outline, Planning};
use super::grants::{check_seen, which_rights};
use super::users::{MadeToken, access_error};
use crate::error::{Result, missing_table};
use crate::system::tokens;

impl Execute for CreateToken {
    /// Computing the row makes the token.
    async fn plan(&self, planning: &Planning<'_>) -> Result<Outline> {
        let users = Arc::clone(planning.session.engine().users());
        let by = planning.session.principal().clone();
        let Self { name, user, read_only, scope, valid_for } = self.clone();
        let scope = scope.map(|scope| resolved(&*planning.session.snapshot()?, &scope)).transpose()?;
        let user = user.unwrap_or_else(|| by.user.clone());
        let new = NewToken { name, user, is_read_only: read_only, scope, valid_for };
        let make = move || {
            let (secret, token) = users.create_token(&by, &new).map_err(access_error)?;
            Ok(vec![MadeToken { secret, token }])
        };
        Ok(Outline::Rows(ComputedRows::new(tokens::made_columns(), make)))
    }
}

/// A scope on objects that exist, and that whoever makes the token may see. The user need not have the rights: a scope gives none.
fn resolved(snapshot: &Snapshot, clauses: &[ScopedRights]) -> Result<Scope> {
    let mut scope = Scope::default();
    for ScopedRights { rights, objects } in clauses {
        let rights = which_rights(rights)?;
        for object in named_objects(snapshot, objects)? {
            for right in rights.on(&object).map_err(access_error)? {
                scope.allow(right, object.clone());
            }
        }
    }
    Ok(scope)
}

fn named_objects(snapshot: &Snapshot, objects: &GrantObjects) -> Result<Vec<Securable>> {
    match objects {
        GrantObjects::Tables(names) => {
            let names = names.iter().map(|name| name.resolve(snapshot.default_schema()));
            let table = |name: TableName| match snapshot.lists(&name) && snapshot.has(&name) {
                true => Ok(Securable::Table(name)),
                false => Err(missing_table(&name.to_string())),
            };
            names.map(table).collect()
        }
        GrantObjects::TablesIn(schemas) => {
            let mut tables = Vec::new();
            for schema in schemas {
                check_seen(snapshot, schema)?;
                let names = snapshot.names_in(schema).into_iter();
                tables.extend(names.map(|name| Securable::Table(TableName::new(schema.clone(), name))));
            }
            Ok(tables)
        }
        GrantObjects::Schemas(schemas) => {
            schemas.iter().try_for_each(|schema| check_seen(snapshot, schema))?;
            Ok(schemas.iter().cloned().map(Securable::Schema).collect())
        }
        GrantObjects::Database => Ok(vec![Securable::Database]),
        GrantObjects::Server => Ok(vec![Securable::Server]),
    }
}
