//! Statements on roles, rights and owners: resolves what they name; [`terrace_access`] makes the change.

use std::sync::Arc;

use terrace_access::{AccessError, DefaultGranting, Granting, Principal, Right, Securable, Users, WhichRights};
use terrace_sql::grant::{GrantCommand, OwnedObject};
use terrace_sql::grantable::GrantObjects;
use terrace_sql::{INFORMATION_SCHEMA, SYSTEM_SCHEMA};
use terrace_tier_store::table::TableName;

use super::catalog::Snapshot;
use super::ddl::refuse_system;
use super::execute::{Execute, Execution};
use super::rights;
use super::users::access_error;
use crate::error::{Error, Result};

impl Execute for GrantCommand {
    /// Names stay as they are meanwhile, so that no right goes to another object of the name.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let _name_lock = engine.name_lock.lock().await;
        let objects = named_objects(&*execution.session().snapshot()?, self)?;
        let worker = Arc::clone(engine);
        let by = execution.session().principal().clone();
        let command = self.clone();
        let change = move || {
            let applied = apply(worker.users(), &by, command, objects);
            // A part of what failed may count.
            worker.stop_revoked();
            applied.map_err(access_error)?.map(|()| 0)
        };
        engine.blocking(change).await
    }
}

/// Makes the change. The inner error is that of a text.
fn apply(
    users: &Users,
    by: &Principal,
    command: GrantCommand,
    objects: Vec<Securable>,
) -> terrace_access::Result<Result<()>> {
    match command {
        GrantCommand::CreateRole { name } => users.create_role(by, &name)?,
        GrantCommand::DropRole { name, if_exists } => match users.drop_role(by, &name) {
            Err(AccessError::Missing { .. }) if if_exists => {}
            dropped => dropped?,
        },
        GrantCommand::Roles { grants: true, roles, grantees } => users.grant_roles(by, &roles, &grantees)?,
        GrantCommand::Roles { grants: false, roles, grantees } => users.revoke_roles(by, &roles, &grantees)?,
        GrantCommand::Rights { grants, rights, grantees, .. } => {
            let rights = match which_rights(&rights) {
                Ok(rights) => rights,
                Err(error) => return Ok(Err(error)),
            };
            let order = Granting { rights, objects, grantees };
            if grants { users.grant(by, &order)? } else { users.revoke(by, &order)? }
        }
        GrantCommand::Defaults { grants, makers, schemas, rights, grantees } => {
            let rights = match which_rights(&rights) {
                Ok(rights) => rights,
                Err(error) => return Ok(Err(error)),
            };
            users.alter_defaults(by, &DefaultGranting { grants, makers, schemas, rights, grantees })?;
        }
        GrantCommand::Owner { owner, .. } => {
            objects.iter().try_for_each(|object| users.give(by, object, &owner))?;
        }
    }
    Ok(Ok(()))
}

/// The rights of these names; ALL where there are none.
pub(super) fn which_rights(names: &[String]) -> Result<WhichRights> {
    if names.is_empty() {
        return Ok(WhichRights::All);
    }
    let right = |name: &String| {
        Right::ALL.into_iter().find(|right| right.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Right::ALL.into_iter().map(Right::name).collect();
            Error::invalid(format!("'{name}' is no right; there are {}, and ALL", known.join(", ")))
        })
    };
    Ok(WhichRights::These(names.iter().map(right).collect::<Result<_>>()?))
}

/// The objects that a statement names; they exist, and the caller owns them. None for those that IF EXISTS passes over.
fn named_objects(snapshot: &Snapshot, command: &GrantCommand) -> Result<Vec<Securable>> {
    match command {
        GrantCommand::CreateRole { .. } | GrantCommand::DropRole { .. } | GrantCommand::Roles { .. } => Ok(Vec::new()),
        GrantCommand::Rights { objects, .. } => match objects {
            GrantObjects::Tables(names) => {
                let names = names.iter().map(|name| name.resolve(snapshot.default_schema()));
                names.map(|name| owned_table(snapshot, name)).collect()
            }
            GrantObjects::TablesIn(schemas) => {
                let mut tables = Vec::new();
                for schema in schemas {
                    owned_schema(snapshot, schema)?;
                    let names = snapshot.all_names_in(schema).into_iter();
                    tables.extend(names.map(|name| Securable::Table(TableName::new(schema.clone(), name))));
                }
                Ok(tables)
            }
            GrantObjects::Schemas(schemas) => schemas.iter().map(|schema| owned_schema(snapshot, schema)).collect(),
            GrantObjects::Database => Ok(vec![Securable::Database]),
            GrantObjects::Server => Ok(vec![Securable::Server]),
        },
        GrantCommand::Defaults { schemas, .. } => {
            schemas.iter().try_for_each(|schema| check_seen(snapshot, schema))?;
            Ok(Vec::new())
        }
        GrantCommand::Owner { object: OwnedObject::Schema(schema), .. } => Ok(vec![owned_schema(snapshot, schema)?]),
        GrantCommand::Owner { object: OwnedObject::Relation { name, if_exists }, .. } => {
            let name = name.resolve(snapshot.default_schema());
            refuse_system(&name)?;
            rights::check_owner(snapshot, &name)?;
            match snapshot.has(&name) {
                false if *if_exists => Ok(Vec::new()),
                _ => Ok(vec![owned_table(snapshot, name)?]),
            }
        }
    }
}

/// Refuses a schema that does not exist, or that may not be known.
pub(super) fn check_seen(snapshot: &Snapshot, schema: &str) -> Result<()> {
    let is_seen = snapshot.schema_names().iter().any(|known| known == schema);
    if is_seen { Ok(()) } else { Err(rights::missing_schema(schema)) }
}

/// A relation that exists, and that the caller owns.
fn owned_table(snapshot: &Snapshot, name: TableName) -> Result<Securable> {
    rights::check_owner(snapshot, &name)?;
    if !snapshot.has(&name) {
        return Err(crate::error::missing_table(&name.to_string()));
    }
    Ok(Securable::Table(name))
}

/// A schema that exists, and that the caller owns.
fn owned_schema(snapshot: &Snapshot, schema: &str) -> Result<Securable> {
    let is_system = schema == SYSTEM_SCHEMA || schema == INFORMATION_SCHEMA;
    if !is_system && !snapshot.objects().schemas.contains(schema) {
        return Err(rights::missing_schema(schema));
    }
    rights::check_schema_owner(snapshot, schema)?;
    Ok(Securable::Schema(schema.to_owned()))
}
