//! CREATE and DROP of tables, views, external tables and schemas, all in the store's durable catalog.
//!
//! One lock serialises looking up a name and then creating or dropping its object. Tables, views and external tables of a
//! schema share one namespace.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::Constraint;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{
    CreateCatalogSchema, CreateExternalTable, CreateMemoryTable, CreateView, DdlStatement, LogicalPlan,
};
use terrace_access::Securable;
use terrace_sql::command::{DropCommand, DropKind, Extras};
use terrace_sql::rewrite::TARGET_SCHEMA;
use terrace_sql::source_text::{self, DefaultTexts};
use terrace_sql::{DEFAULT_SCHEMA, INFORMATION_SCHEMA, NameParts, SYSTEM_SCHEMA};
use terrace_tier_store::table::{ChunkAdmission, Durability, TableDefinition, TableName, TableOptions};

use super::alter::refuse_broken;
use super::analysis::result_schema;
use super::catalog::{Object, Objects, Snapshot};
use super::execute::{Execute, Execution};
use super::files::{FileAccess, PATTERN, check_pattern, is_object, objects_at};
use super::ingest::{LoadTarget, load};
use super::parquet_files::ValidatedFiles;
use super::plan::{relations, table_name};
use super::registry::{StatementState, Ticket};
use super::session::Session;
use super::statement::Planned;
use super::types::stored_schema;
use super::{Engine, defaults, rights};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// Applies the options of `WITH (...)` of CREATE TABLE; returns the comment among them.
pub(super) fn apply_options(options: &mut TableOptions, pairs: &[(String, String)]) -> Result<Option<String>> {
    let mut comment = None;
    for (name, value) in pairs {
        let bad = |wanted: &str| Error::invalid(format!("table option {name} takes {wanted}, not '{value}'"));
        match name.as_str() {
            "cluster_by" => {
                options.cluster_by =
                    value.split(',').map(|c| c.trim().trim_matches('"').to_owned()).filter(|c| !c.is_empty()).collect();
            }
            "chunk_rows" => {
                let rows = value.parse().ok().filter(|n| (1..=65_536).contains(n));
                options.chunk_rows = rows.ok_or_else(|| bad("a number from 1 to 65536"))?;
            }
            "durability" => {
                options.durability = match value.to_lowercase().as_str() {
                    "full" => Durability::Full,
                    "none" => Durability::None,
                    _ => return Err(bad("'full' or 'none'")),
                };
            }
            "admission" => {
                options.admission = match value.to_lowercase().as_str() {
                    "auto" => ChunkAdmission::Auto,
                    "ssd" => ChunkAdmission::Ssd,
                    _ => return Err(bad("'auto' or 'ssd'")),
                };
            }
            "enforce_primary_key" => {
                options.enforce_primary_key = match value.to_lowercase().as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(bad("'true' or 'false'")),
                };
            }
            "tiering" => {
                let mode = value.to_lowercase().parse();
                options.tiering = mode.map_err(|_| bad("'auto', 'advise' or 'off'"))?;
            }
            "format" => options.format = Some(value.parse().map_err(|_| bad("'arrow' or 'packed'"))?),
            "comment" => comment = Some(value.clone()),
            _ => {
                return Err(Error::invalid(format!(
                    "table option '{name}' does not exist; the options are cluster_by, chunk_rows, durability, \
                     admission, tiering, enforce_primary_key, format, comment"
                )));
            }
        }
    }
    Ok(comment)
}

/// Refuses names in the schemas of the system.
pub(super) fn refuse_system(name: &TableName) -> Result<()> {
    if name.schema == SYSTEM_SCHEMA || name.schema == INFORMATION_SCHEMA {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("'{name}' belongs to the system")));
    }
    Ok(())
}

/// Refuses schemas that do not exist or belong to the system, and those in which the statement may make nothing.
pub(super) fn check_schema(snapshot: &Snapshot, schema: &str) -> Result<()> {
    if schema == SYSTEM_SCHEMA || schema == INFORMATION_SCHEMA {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("schema '{schema}' belongs to the system")));
    }
    if !snapshot.objects().schemas.contains(schema) {
        return Err(rights::missing_schema(schema));
    }
    rights::check_create(snapshot, schema)
}

/// Refuses a name that a view or an external table has.
pub(super) fn refuse_view_or_external(objects: &Objects, name: &TableName) -> Result<()> {
    let kind = if objects.views.contains_key(name) {
        "view"
    } else if objects.external.contains_key(name) {
        "external table"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::AlreadyExists, format!("'{name}' already exists as a {kind}; drop it first")))
}

fn already_exists(kind: &str, name: &TableName) -> Error {
    let shown = short_name(name);
    Error::new(
        ErrorKind::AlreadyExists,
        format!("{kind} '{shown}' already exists; use IF NOT EXISTS or OR REPLACE, or drop it first"),
    )
}

/// A name without the default schema.
pub(super) fn short_name(name: &TableName) -> String {
    if name.schema == DEFAULT_SCHEMA { name.name.clone() } else { name.to_string() }
}

/// Builds the definition of the table that a CREATE TABLE, sent as `sql`, describes.
pub(super) fn definition(
    planned: &Planned,
    create: &CreateMemoryTable,
    extras: &Extras,
    sql: &str,
) -> Result<TableDefinition> {
    if create.temporary {
        return Err(Error::unimplemented("temporary tables are not supported"));
    }
    let name = table_name(&create.name, planned.snapshot.default_schema())?;
    check_schema(&planned.snapshot, &name.schema)?;
    let schema = result_schema(planned.snapshot.template(), &create.input)?;
    let primary_key = primary_key(create)?;
    let mut definition = TableDefinition::new(name, stored_schema(&schema, &primary_key)?);
    definition.primary_key = primary_key;
    definition.comment = apply_options(&mut definition.options, &extras.options)?;
    describe_columns(&planned.snapshot, &mut definition, extras, sql)?;
    definition.check()?;
    Ok(definition)
}

/// Executes CREATE TABLE, with or without AS. Returns the rows stored.
pub(super) async fn create_table(
    session: &Session,
    ticket: &Ticket,
    planned: &Planned,
    create: &CreateMemoryTable,
    definition: TableDefinition,
) -> Result<u64> {
    let engine = session.engine();
    let name = definition.name.clone();
    let name_lock = engine.name_lock.lock().await;
    refuse_view_or_external(engine.objects()?.as_ref(), &name)?;
    if engine.store.table(&name).is_ok() {
        if create.if_not_exists {
            return Ok(0);
        }
        if !create.or_replace {
            return Err(already_exists("table", &name));
        }
    }
    let replace = create.or_replace;
    rights::check_replaced(session, &name)?;
    let maker = Box::new(session.principal().clone());
    if !matches!(create.input.as_ref(), LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row) {
        drop(name_lock);
        let plan = create.input.as_ref().clone();
        let input = Planned::new(Arc::clone(&planned.snapshot), plan, None);
        return load(engine, ticket, input, LoadTarget::New { definition, replace, maker }).await;
    }
    ticket.set_state(StatementState::Running);
    let is_new = engine.store.table(&name).is_err();
    let worker = Arc::clone(engine);
    engine
        .blocking(move || {
            if replace {
                worker.store.ingest_new(definition, true)?.finish()?;
            } else {
                worker.store.create_table(definition)?;
            }
            if is_new {
                worker.note_made(&maker, &Securable::Table(name))?;
            }
            Ok(0)
        })
        .await
}

/// Adds defaults and comments of columns to a definition.
fn describe_columns(snapshot: &Snapshot, definition: &mut TableDefinition, extras: &Extras, sql: &str) -> Result<()> {
    let schema = Arc::clone(&definition.schema);
    let texts = if extras.defaults.is_empty() { DefaultTexts::default() } else { DefaultTexts::from_sql(sql)? };
    for (column, field) in definition.columns.iter_mut().zip(schema.fields()) {
        if let Some((_, value)) = extras.defaults.iter().find(|(name, _)| name == field.name()) {
            let text = defaults::stored_text(snapshot.template(), texts.text(value)?)?;
            defaults::value_now(snapshot.template(), &text, field)?;
            column.default = Some(text);
        }
        let comment = extras.comments.iter().find(|(name, _)| name == field.name());
        column.comment = comment.map(|(_, text)| text.clone());
    }
    Ok(())
}

fn primary_key(create: &CreateMemoryTable) -> Result<Vec<String>> {
    let mut key = Vec::new();
    for constraint in create.constraints.iter() {
        match constraint {
            Constraint::PrimaryKey(columns) => {
                let fields = create.input.schema().fields();
                key.extend(columns.iter().filter_map(|i| fields.get(*i)).map(|f| f.name().clone()));
            }
            Constraint::Unique(_) => {
                return Err(Error::unimplemented(
                    "UNIQUE is not supported; PRIMARY KEY is, enforced WITH (enforce_primary_key = 'true')",
                ));
            }
        }
    }
    Ok(key)
}

/// Executes CREATE VIEW, CREATE EXTERNAL TABLE and CREATE SCHEMA, sent as `sql`.
pub(super) async fn create_object(
    session: &Session,
    planned: &Planned,
    ddl: &DdlStatement,
    extras: &Extras,
    sql: &str,
) -> Result<u64> {
    match ddl {
        DdlStatement::CreateView(create) => create_view(session, planned, create, extras.if_not_exists, sql).await,
        DdlStatement::CreateExternalTable(create) => create_external(session, planned, create, sql).await,
        DdlStatement::CreateCatalogSchema(create) => create_schema(session, planned, create).await,
        _ => Err(Error::unimplemented("the statement is not supported")),
    }
}

async fn create_view(
    session: &Session,
    planned: &Planned,
    create: &CreateView,
    if_not_exists: bool,
    sql: &str,
) -> Result<u64> {
    if if_not_exists && create.or_replace {
        return Err(Error::invalid("CREATE VIEW takes OR REPLACE or IF NOT EXISTS, not both"));
    }
    if create.temporary {
        return Err(Error::unimplemented("temporary views are not supported"));
    }
    if !create.input.get_parameter_names()?.is_empty() {
        return Err(Error::invalid("a view takes no parameters; write the values into its query"));
    }
    let snapshot = &planned.snapshot;
    let name = table_name(&create.name, snapshot.default_schema())?;
    check_schema(snapshot, &name.schema)?;
    let object = snapshot.object(name.clone(), source_text::statement(sql)?);
    if refers_to(snapshot, &object, &name)? {
        return Err(Error::invalid(format!("view '{}' would refer to itself", short_name(&name))));
    }
    let engine = session.engine();
    let _name_lock = engine.name_lock.lock().await;
    if engine.store.table(&name).is_ok() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("'{}' already exists as a table; drop it first", short_name(&name)),
        ));
    }
    let objects = engine.objects()?;
    if objects.external.contains_key(&name) {
        refuse_view_or_external(&objects, &name)?;
    }
    if objects.views.contains_key(&name) && !create.or_replace {
        return if if_not_exists { Ok(0) } else { Err(already_exists("view", &name)) };
    }
    rights::check_replaced(session, &name)?;
    let is_new = !objects.views.contains_key(&name);
    let maker = session.principal().clone();
    let writer = Arc::clone(engine);
    let put = move || {
        let view = Securable::Table(name);
        // Before the text counts: it is read with the rights of the owner.
        match is_new {
            true => writer.note_made(&maker, &view)?,
            false => writer.note_replaced(&maker, &view)?,
        }
        writer.put_view(&object).map(|()| 0)
    };
    engine.blocking(put).await
}

/// Whether the text of a view names `wanted`, directly or through other views.
fn refers_to(snapshot: &Arc<Snapshot>, view: &Object, wanted: &TableName) -> Result<bool> {
    let state = snapshot.state();
    let mut seen = BTreeSet::new();
    let mut open = vec![view];
    while let Some(object) = open.pop() {
        for name in relations(&state, object)? {
            if &name == wanted {
                return Ok(true);
            }
            if seen.insert(name.clone()) {
                open.extend(snapshot.objects().views.get(&name));
            }
        }
    }
    Ok(false)
}

async fn create_external(session: &Session, planned: &Planned, create: &CreateExternalTable, sql: &str) -> Result<u64> {
    if create.temporary || create.unbounded {
        return Err(Error::unimplemented("temporary and unbounded external tables are not supported"));
    }
    let snapshot = &planned.snapshot;
    let name = table_name(&create.name, snapshot.default_schema())?;
    check_schema(snapshot, &name.schema)?;
    let mut absolute = create.clone();
    for location in &mut absolute.locations {
        *location = absolute_location(location)?;
    }
    let engine = session.engine();
    let _name_lock = engine.name_lock.lock().await;
    if engine.store.table(&name).is_ok() || engine.objects()?.views.contains_key(&name) {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("'{}' already exists; drop it first", short_name(&name)),
        ));
    }
    if engine.objects()?.external.contains_key(&name) {
        if create.if_not_exists {
            return Ok(0);
        }
        if !create.or_replace {
            return Err(already_exists("external table", &name));
        }
    }
    rights::check_replaced(session, &name)?;
    open_external(&snapshot.state(), &absolute).await?;
    // Absolute locations do not depend on the folder in which the server is started.
    let object = snapshot.object(name.clone(), source_text::with_locations_replaced(sql, &absolute.locations)?);
    let is_new = !engine.objects()?.external.contains_key(&name);
    let maker = session.principal().clone();
    let writer = Arc::clone(engine);
    let put = move || {
        writer.put_external(&object)?;
        if is_new {
            writer.note_made(&maker, &Securable::Table(name))?;
        }
        Ok(0)
    };
    engine.blocking(put).await
}

/// Converts a location, which may be a URL of a local file, to an absolute path; keeps one in an object store, and refuses
/// other URLs.
pub(super) fn absolute_location(location: &str) -> Result<String> {
    if is_object(location) {
        return Ok(location.to_owned());
    }
    if let Some((scheme, _)) = location.split_once("://") {
        let unsupported_store = |what: &str| {
            let message =
                format!("location '{location}': files of the server and objects of s3:// can be named, not '{what}'");
            Error::unimplemented(message)
        };
        if scheme != "file" {
            return Err(unsupported_store(scheme));
        }
        // Parsed by the type that opens the location later, so that escapes mean the same.
        let url = ListingTableUrl::parse(location)?;
        if url.object_store() != ObjectStoreUrl::local_filesystem() {
            return Err(unsupported_store(url.object_store().as_str()));
        }
        let slash = if url.is_collection() && !url.prefix().as_ref().is_empty() { "/" } else { "" };
        return Ok(format!("/{}{slash}", url.prefix().as_ref()));
    }
    let absolute = std::path::absolute(Path::new(location))
        .map_err(|e| Error::invalid(format!("location '{location}' is not a path: {e}")))?;
    let text = absolute.to_str().ok_or_else(|| Error::invalid(format!("location '{location}' is not UTF-8")))?;
    // A trailing slash marks a folder.
    Ok(if location.ends_with('/') && !text.ends_with('/') { format!("{text}/") } else { text.to_owned() })
}

/// Opens the files of an external table and finds their columns.
pub(super) async fn open_external(
    state: &SessionState,
    create: &CreateExternalTable,
) -> Result<Arc<dyn TableProvider>> {
    for location in &create.locations {
        let path = &absolute_location(location)?;
        FileAccess::from_state(state)?.check_location(path)?;
        // A folder that INSERT will create.
        let is_new = path.ends_with('/') && !create.schema.fields().is_empty();
        if is_object(path) {
            if !is_new {
                objects_at(state, path).await?;
            }
            continue;
        }
        check_pattern(path)?;
        if !path.contains(PATTERN) && !is_new && !Path::new(path).exists() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no file or folder {path} on the server")));
        }
    }
    let kind = create.file_type.to_uppercase();
    let Some(factory) = state.table_factories().get(&kind) else {
        return Err(Error::unimplemented(format!(
            "files of type {kind} are not supported; use PARQUET, CSV, JSON or ARROW"
        )));
    };
    if kind == "PARQUET" {
        for location in &create.locations {
            ValidatedFiles::check_for(state, location).await?;
        }
    }
    let provider = factory.create(state, create).await?;
    if provider.schema().fields().is_empty() {
        return Err(Error::invalid(format!(
            "there are no {kind} files with columns at {}",
            create.locations.join(", ")
        )));
    }
    Ok(provider)
}

async fn create_schema(session: &Session, planned: &Planned, create: &CreateCatalogSchema) -> Result<u64> {
    let name = create.schema_name.strip_prefix("terrace.").unwrap_or(&create.schema_name).to_owned();
    if name.is_empty() || name.contains('.') || name == TARGET_SCHEMA {
        return Err(Error::invalid(format!("'{}' is not a name for a schema", create.schema_name)));
    }
    rights::check_create_schema(&planned.snapshot)?;
    let engine = session.engine();
    let _name_lock = engine.name_lock.lock().await;
    let is_system = [SYSTEM_SCHEMA, INFORMATION_SCHEMA].contains(&name.as_str());
    if is_system || engine.objects()?.schemas.contains(&name) {
        if create.if_not_exists {
            return Ok(0);
        }
        return Err(Error::new(ErrorKind::AlreadyExists, format!("schema '{name}' already exists")));
    }
    let maker = session.principal().clone();
    let writer = Arc::clone(engine);
    let put = move || {
        writer.put_schema(&name)?;
        writer.note_made(&maker, &Securable::Schema(name)).map(|()| 0)
    };
    engine.blocking(put).await
}

impl Execute for DropCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        drop_objects(execution.session(), self).await
    }
}

async fn drop_objects(session: &Session, command: &DropCommand) -> Result<u64> {
    let engine = session.engine();
    let _name_lock = engine.name_lock.lock().await;
    for parts in &command.names {
        let snapshot = session.snapshot()?;
        let default = snapshot.default_schema().to_owned();
        let name = parts.resolve(&default);
        let checked = match command.kind {
            DropKind::Schema if !snapshot.objects().schemas.contains(&parts.name) => Ok(()),
            DropKind::Schema => rights::check_schema_owner(&snapshot, &parts.name),
            DropKind::Table | DropKind::View => rights::check_owner(&snapshot, &name),
        };
        if rights::passes_over(command.if_exists, &checked) {
            continue;
        }
        checked.map_err(|error| match (error.kind(), command.kind) {
            (ErrorKind::NotFound, DropKind::View) => missing_view(&name),
            _ => error,
        })?;
        let hot_views = engine.hot_views.names_for_table(&name)?;
        if command.kind == DropKind::Table && command.restrict {
            refuse_broken(&[], &hot_views, &name)?;
        }
        let mut users = Vec::new();
        if command.kind != DropKind::Schema && (command.cascade || command.restrict) {
            users = snapshot.views_broken_by(&name, None).await?;
            users.retain(|view| *view != name);
        }
        if command.restrict {
            refuse_broken(&users, &[], &name)?;
        }
        let worker = Arc::clone(engine);
        let parts = parts.clone();
        let command = command.clone();
        let work = move || {
            drop_object(&worker, &parts, &command, &default)?;
            users.iter().try_for_each(|view| worker.remove_view(view).map(drop))
        };
        engine.blocking(work).await?;
    }
    Ok(0)
}

fn missing_view(name: &TableName) -> Error {
    Error::new(ErrorKind::NotFound, format!("view '{}' does not exist", short_name(name)))
}

fn drop_object(engine: &Engine, parts: &NameParts, command: &DropCommand, default: &str) -> Result<()> {
    if command.kind == DropKind::Schema {
        return drop_schema(engine, &parts.name, command);
    }
    let name = parts.resolve(default);
    refuse_system(&name)?;
    let objects = engine.objects()?;
    let is_table = engine.store.table(&name).is_ok();
    let is_view = objects.views.contains_key(&name);
    let wrong = |is: &str, use_: &str| Err(Error::invalid(format!("'{}' is a {is}; use {use_}", short_name(&name))));
    match command.kind {
        DropKind::Table if is_table => drop_table(engine, &name),
        DropKind::Table if objects.external.contains_key(&name) => engine.remove_external(&name).map(|_| ()),
        DropKind::Table if is_view => wrong("view", "DROP VIEW"),
        DropKind::View if is_view => engine.remove_view(&name).map(|_| ()),
        DropKind::View if is_table => wrong("table", "DROP TABLE"),
        _ if command.if_exists => Ok(()),
        DropKind::View => Err(missing_view(&name)),
        _ => Err(missing_table(&name.to_string())),
    }
}

/// Drops a table and its hot views. The views go first, so that a crash leaves none without its table.
fn drop_table(engine: &Engine, name: &TableName) -> Result<()> {
    for view in engine.hot_views.names_for_table(name)? {
        engine.hot_views.remove(&view)?;
    }
    engine.store.drop_table(name)?;
    engine.forget_rights(&Securable::Table(name.clone()))
}

fn drop_schema(engine: &Engine, name: &str, command: &DropCommand) -> Result<()> {
    if [DEFAULT_SCHEMA, SYSTEM_SCHEMA, INFORMATION_SCHEMA].contains(&name) {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("schema '{name}' cannot be dropped")));
    }
    let objects = engine.objects()?;
    if !objects.schemas.contains(name) {
        return if command.if_exists { Ok(()) } else { Err(rights::missing_schema(name)) };
    }
    let tables: Vec<_> = engine.store.tables().iter().map(|t| t.name().clone()).filter(|n| n.schema == name).collect();
    let views: Vec<_> = objects.views.keys().filter(|n| n.schema == name).collect();
    let external: Vec<_> = objects.external.keys().filter(|n| n.schema == name).collect();
    if tables.len() + views.len() + external.len() > 0 && !command.cascade {
        return Err(Error::new(
            ErrorKind::FailedPrecondition,
            format!("schema '{name}' is not empty; drop what is in it, or use CASCADE"),
        ));
    }
    for view in views {
        engine.remove_view(view)?;
    }
    for table in external {
        engine.remove_external(table)?;
    }
    for table in &tables {
        drop_table(engine, table)?;
    }
    engine.remove_schema(name)?;
    Ok(())
}
