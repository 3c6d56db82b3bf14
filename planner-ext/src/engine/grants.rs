//! Statements on roles, rights and owners: resolves what they name; [`terrace_access`] makes the change.

use std::sync::Arc;

use terrace_access::{
    AccessError, ColumnRights, DefaultGranting, Granting, Principal, Right, Securable, Users, WhichRights,
};
use terrace_sql::grant::{GrantCommand, NamedRight, OwnedObject};
use terrace_sql::grantable::GrantObjects;
use terrace_sql::{INFORMATION_SCHEMA, SYSTEM_SCHEMA};
use terrace_tier_store::table::TableName;

use super::catalog::Snapshot;
use super::ddl::{refuse_system, short_name};
use super::execute::{Execute, Execution};
use super::rights;
use super::users::access_error;
use crate::error::{Error, ErrorKind, Result, missing_table};

impl Execute for GrantCommand {
    /// Names stay as they are meanwhile, so that no right goes to another object of the name.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = execution.engine();
        let _name_lock = engine.name_lock.lock().await;
        let snapshot = execution.session().snapshot()?;
        let objects = named_objects(&snapshot, self)?;
        check_columns(&snapshot, self, &objects).await?;
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
            let (whole, columns) = match rights_and_columns(&rights) {
                Ok(rights) => rights,
                Err(error) => return Ok(Err(error)),
            };
            let order = Granting { rights: whole, columns, objects, grantees };
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
    Ok(WhichRights::These(names.iter().map(|name| right_named(name)).collect::<Result<_>>()?))
}

fn right_named(name: &str) -> Result<Right> {
    Right::ALL.into_iter().find(|right| right.name() == name).ok_or_else(|| {
        let known: Vec<&str> = Right::ALL.into_iter().map(Right::name).collect();
        Error::invalid(format!("'{name}' is no right; there are {}, and ALL", known.join(", ")))
    })
}

/// The rights on the objects as a whole, and those on their columns.
fn rights_and_columns(rights: &[NamedRight]) -> Result<(WhichRights, Vec<ColumnRights>)> {
    let (mut whole, mut columns) = (WhichRights::These(Vec::new()), Vec::new());
    for NamedRight { name, columns: on } in rights {
        let named = match name {
            Some(name) => WhichRights::These(vec![right_named(name)?]),
            None => WhichRights::All,
        };
        if !on.is_empty() {
            columns.push(ColumnRights { rights: named, columns: on.clone() });
            continue;
        }
        whole = match (whole, named) {
            (WhichRights::These(mut known), WhichRights::These(more)) => {
                known.extend(more);
                WhichRights::These(known)
            }
            _ => WhichRights::All,
        };
    }
    Ok((whole, columns))
}

/// Refuses columns that one of the tables does not have.
async fn check_columns(snapshot: &Arc<Snapshot>, command: &GrantCommand, objects: &[Securable]) -> Result<()> {
    let GrantCommand::Rights { rights, .. } = command else { return Ok(()) };
    let columns: Vec<&String> = rights.iter().flat_map(|right| &right.columns).collect();
    for object in objects {
        let Securable::Table(name) = object else { continue };
        if columns.is_empty() {
            continue;
        }
        let table = snapshot.shown(name).await?.ok_or_else(|| missing_table(&name.to_string()))?;
        let schema = table.schema();
        if let Some(missing) = columns.iter().find(|column| schema.column_with_name(column).is_none()) {
            let message = format!("column '{missing}' of '{}' does not exist", short_name(name));
            return Err(Error::new(ErrorKind::NotFound, message));
        }
    }
    Ok(())
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
        return Err(missing_table(&name.to_string()));
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
