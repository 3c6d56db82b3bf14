//! ALTER TABLE and COMMENT ON.
//!
//! The operations of one ALTER TABLE become one commit. Before the commit, every view is planned as if the table were
//! altered already. Views that would no longer plan are named in an error, or dropped with CASCADE.

use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::helpers::stmt_create_table::CreateTableBuilder;
use datafusion::sql::sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, ColumnDef, ColumnOption, DropBehavior, Ident, ObjectName,
    ObjectNamePart, RenameTableNameKind, Statement as Ast,
};
use terrace_access::{ColumnChange, Securable};
use terrace_sql::command::{CommentKind, CommentOn, Extras};
use terrace_sql::parse::{option_pairs, take_column_extras};
use terrace_sql::source_text::DefaultTexts;
use terrace_sql::{NameParts, normalized};
use terrace_tier_store::table::{Alteration, TableDefinition, TableName};

use super::catalog::{Object, Snapshot};
use super::ddl::{apply_options, check_schema, refuse_system, refuse_view_or_external, short_name};
use super::execute::{Execute, Execution};
use super::types::{check_column_name, stored_schema};
use super::users::access_error;
use super::{Engine, defaults, policies, rights};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// The changes of a statement, and the definition after the last of them.
struct Changes {
    definition: TableDefinition,
    list: Vec<Alteration>,
    cascade: bool,
    /// The texts of the defaults in the statement.
    defaults: DefaultTexts,
}

impl Changes {
    fn add(&mut self, change: Alteration) -> Result<()> {
        self.definition = self.definition.altered(std::slice::from_ref(&change))?;
        self.list.push(change);
        Ok(())
    }

    fn field(&self, column: &str) -> Result<&Field> {
        let missing = || {
            Error::new(
                ErrorKind::NotFound,
                format!("column '{column}' of '{}' does not exist", short_name(&self.definition.name)),
            )
        };
        self.definition.schema.field_with_name(column).map_err(|_| missing())
    }

    fn has(&self, column: &str) -> bool {
        self.definition.schema.column_with_name(column).is_some()
    }
}

impl Execute for AlterTable {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        alter_table(execution, self).await
    }
}

async fn alter_table(execution: &Execution<'_>, alter: &AlterTable) -> Result<u64> {
    let engine = execution.engine();
    if alter.only || alter.location.is_some() || alter.on_cluster.is_some() || alter.table_type.is_some() {
        return Err(Error::unimplemented("write ALTER TABLE name operation, ..."));
    }
    let _name_lock = engine.name_lock.lock().await;
    let snapshot = execution.session().snapshot()?;
    let parts = NameParts::new(&alter.name)?;
    let name = parts.resolve(snapshot.default_schema());
    refuse_system(&name)?;
    let checked = rights::check_owner(&snapshot, &name);
    if rights::passes_over(alter.if_exists, &checked) {
        return Ok(0);
    }
    checked?;
    let Some(definition) = snapshot.definition(&parts)? else {
        let views = &snapshot.objects().views;
        let external = &snapshot.objects().external;
        return match (views.contains_key(&name), external.contains_key(&name)) {
            (true, _) => Err(wrong_kind(&name, "a view", "CREATE OR REPLACE VIEW")),
            (_, true) => Err(wrong_kind(&name, "an external table", "CREATE OR REPLACE EXTERNAL TABLE")),
            _ if alter.if_exists => Ok(0),
            _ => Err(missing_table(&name.to_string())),
        };
    };
    let before = definition.clone();
    let mut changes = Changes {
        definition,
        list: Vec::new(),
        cascade: false,
        defaults: DefaultTexts::from_sql(execution.prepared.sql())?,
    };
    for operation in &alter.operations {
        add_operation(&snapshot, &mut changes, operation).await?;
    }
    if changes.list.is_empty() {
        return Ok(0);
    }
    let after = &changes.definition;
    let broken = if after.schema == before.schema && after.name == before.name {
        Vec::new()
    } else {
        snapshot.views_broken_by(&name, Some(after)).await?
    };
    let hot_views = engine.hot_views.broken_by(&before, after)?;
    if !changes.cascade {
        refuse_broken(&broken, &hot_views, &name)?;
    }
    let worker = Arc::clone(engine);
    let renamed = after.name.clone();
    let list = changes.list;
    let columns: Vec<ColumnChange> = list.iter().filter_map(column_change).collect();
    let policies = policies::renamed(engine.users.policies_on(&name), &list)?;
    engine
        .blocking(move || {
            let gets_name = worker.store.table(&renamed).is_err();
            if gets_name {
                worker.users.note_renaming(&name, &renamed).map_err(access_error)?;
            }
            let altered = worker.store.alter_table(&name, &list);
            if altered.is_err() && gets_name {
                worker.forget_rights(&Securable::Table(renamed.clone()))?;
            }
            altered?;
            worker.users.note_conditions_changed(&name, &policies).map_err(access_error)?;
            worker.users.note_columns_changed(&name, &columns).map_err(access_error)?;
            worker.users.note_renamed(&name, &renamed).map_err(access_error)?;
            broken.iter().try_for_each(|view| worker.remove_view(view).map(drop))?;
            hot_views.iter().try_for_each(|view| worker.hot_views.remove(view))?;
            Ok(0)
        })
        .await
}

/// What an alteration means for rights on columns.
fn column_change(alteration: &Alteration) -> Option<ColumnChange> {
    let (column, renamed) = match alteration {
        Alteration::RenameColumn { from, to } => (from, Some(to)),
        Alteration::DropColumn(column) => (column, None),
        Alteration::AddColumn { field, .. } => (field.name(), None),
        _ => return None,
    };
    Some(ColumnChange { column: column.clone(), renamed: renamed.cloned() })
}

/// Refuses a change that would break views or hot views.
pub(super) fn refuse_broken(broken: &[TableName], hot_views: &[TableName], name: &TableName) -> Result<()> {
    let (kind, broken) = match (broken, hot_views) {
        ([], []) => return Ok(()),
        ([], hot_views) => ("hot view", hot_views),
        (views, _) => ("view", views),
    };
    let views: Vec<String> = broken.iter().map(|view| format!("'{}'", short_name(view))).collect();
    let views = views.join(", ");
    let name = short_name(name);
    let message =
        format!("'{name}' is used by {kind} {views}; drop or replace it first, or use CASCADE where that is offered");
    Err(Error::new(ErrorKind::FailedPrecondition, message))
}

async fn add_operation(snapshot: &Arc<Snapshot>, changes: &mut Changes, operation: &AlterTableOperation) -> Result<()> {
    match operation {
        AlterTableOperation::AddColumn { if_not_exists, column_def, column_position: None, .. } => {
            add_column(snapshot, changes, column_def, *if_not_exists).await
        }
        AlterTableOperation::DropColumn { column_names, if_exists, drop_behavior, .. } => {
            let cascade = *drop_behavior == Some(DropBehavior::Cascade);
            column_names.iter().try_for_each(|column| drop_column(changes, column, *if_exists, cascade))
        }
        AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
            let from = normalized(old_column_name);
            let to = normalized(new_column_name);
            changes.field(&from)?;
            check_column_name(&to)?;
            changes.add(Alteration::RenameColumn { from, to })
        }
        AlterTableOperation::RenameTable { table_name } => rename_table(snapshot, changes, table_name),
        AlterTableOperation::AlterColumn { column_name, op } => {
            alter_column(snapshot, changes, &normalized(column_name), op)
        }
        AlterTableOperation::SetOptionsParens { options } => {
            let pairs = option_pairs(options.clone())?;
            let mut settings = changes.definition.options.clone();
            let comment = apply_options(&mut settings, &pairs)?;
            changes.add(Alteration::SetOptions(settings))?;
            match comment {
                Some(text) => changes.add(Alteration::Comment { column: None, text: Some(text) }),
                None => Ok(()),
            }
        }
        other => Err(Error::unimplemented(format!(
            "ALTER TABLE .. {other} is not supported; there are ADD, DROP and RENAME COLUMN, ALTER COLUMN .. SET DEFAULT, \
             DROP DEFAULT and DROP NOT NULL, RENAME TO, and SET (option = 'value')"
        ))),
    }
}

async fn add_column(
    snapshot: &Arc<Snapshot>,
    changes: &mut Changes,
    column: &ColumnDef,
    if_not_exists: bool,
) -> Result<()> {
    let mut column = column.clone();
    let name = normalized(&column.name);
    if if_not_exists && changes.has(&name) {
        return Ok(());
    }
    let is_unsupported = |option: &ColumnOption| !matches!(option, ColumnOption::Null | ColumnOption::NotNull);
    let mut extras = Extras::default();
    take_column_extras(&mut column, &mut extras);
    if let Some(option) = column.options.iter().find(|option| is_unsupported(&option.option)) {
        return Err(Error::unimplemented(format!("ADD COLUMN .. {option} is not supported")));
    }
    let schema = planned_columns(snapshot, vec![column]).await?;
    let field = schema.field(0).clone();
    let default = match extras.defaults.pop() {
        Some((_, value)) => Some(defaults::stored_text(snapshot.template(), changes.defaults.text(&value)?)?),
        None => None,
    };
    let value = match &default {
        Some(text) => {
            let expr = defaults::expression(snapshot.template(), text, &field)?;
            if expr.is_volatile() {
                let message = format!(
                    "DEFAULT {text} differs from row to row, and existing rows get one value; add column '{name}' \
                     without it, then use ALTER COLUMN .. SET DEFAULT"
                );
                return Err(Error::invalid(message));
            }
            Some(defaults::value_now(snapshot.template(), text, &field)?)
        }
        None => None,
    };
    changes.add(Alteration::AddColumn { field, default, value })?;
    match extras.comments.pop() {
        Some((_, text)) => changes.add(Alteration::Comment { column: Some(name), text: Some(text) }),
        None => Ok(()),
    }
}

/// Plans column definitions as CREATE TABLE does, for their types.
async fn planned_columns(snapshot: &Arc<Snapshot>, columns: Vec<ColumnDef>) -> Result<SchemaRef> {
    let name = ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', "added column"))]);
    let create = CreateTableBuilder::new(name).columns(columns).build();
    let statement = SqlStatement::Statement(Box::new(Ast::CreateTable(create)));
    match snapshot.plan(statement).await? {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
            stored_schema(create.input.schema().as_arrow(), &[])
        }
        _ => Err(Error::new(ErrorKind::Internal, "the planner did not return the table of the added column")),
    }
}

fn drop_column(changes: &mut Changes, column: &Ident, if_exists: bool, cascade: bool) -> Result<()> {
    let name = normalized(column);
    if if_exists && !changes.has(&name) {
        return Ok(());
    }
    changes.field(&name)?;
    let definition = &changes.definition;
    let used_by = if definition.primary_key.contains(&name) {
        Some("the primary key")
    } else if definition.options.cluster_by.contains(&name) {
        Some("cluster_by")
    } else {
        None
    };
    if let (Some(user), false) = (used_by, cascade) {
        let message = format!("column '{name}' belongs to {user}; use CASCADE to change that too");
        return Err(Error::new(ErrorKind::FailedPrecondition, message));
    }
    changes.cascade |= cascade;
    changes.add(Alteration::DropColumn(name))
}

fn rename_table(snapshot: &Snapshot, changes: &mut Changes, to: &RenameTableNameKind) -> Result<()> {
    let (RenameTableNameKind::As(to) | RenameTableNameKind::To(to)) = to;
    // Without a schema the table stays in its own.
    let to = NameParts::new(to)?.resolve(&changes.definition.name.schema);
    check_schema(snapshot, &to.schema)?;
    refuse_view_or_external(snapshot.objects(), &to)?;
    changes.add(Alteration::Rename(to))
}

fn alter_column(
    snapshot: &Snapshot,
    changes: &mut Changes,
    column: &str,
    operation: &AlterColumnOperation,
) -> Result<()> {
    let field = changes.field(column)?.clone();
    let column = column.to_owned();
    match operation {
        AlterColumnOperation::SetDefault { value } => {
            let text = defaults::stored_text(snapshot.template(), changes.defaults.text(value)?)?;
            defaults::value_now(snapshot.template(), &text, &field)?;
            changes.add(Alteration::SetDefault { column, default: Some(text) })
        }
        AlterColumnOperation::DropDefault => changes.add(Alteration::SetDefault { column, default: None }),
        AlterColumnOperation::DropNotNull => changes.add(Alteration::DropNotNull(column)),
        AlterColumnOperation::SetDataType { .. } => Err(Error::unimplemented(format!(
            "the type of a column cannot be changed; add another column, or use CREATE OR REPLACE TABLE .. AS SELECT with a \
             CAST of '{column}'"
        ))),
        _ => Err(Error::unimplemented(format!(
            "ALTER COLUMN '{column}' {operation} is not supported; use CREATE OR REPLACE TABLE .. AS SELECT"
        ))),
    }
}

impl Execute for CommentOn {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        comment_on(execution, self).await
    }
}

async fn comment_on(execution: &Execution<'_>, command: &CommentOn) -> Result<u64> {
    let engine = execution.engine();
    let _name_lock = engine.name_lock.lock().await;
    let snapshot = execution.session().snapshot()?;
    let name = command.object.resolve(snapshot.default_schema());
    refuse_system(&name)?;
    let checked = rights::check_owner(&snapshot, &name);
    if rights::passes_over(command.if_exists, &checked) {
        return Ok(0);
    }
    checked?;
    let worker = Arc::clone(engine);
    let command = command.clone();
    let is_table = snapshot.definition(&command.object)?.is_some();
    let objects = snapshot.objects();
    let view = objects.views.get(&name).cloned();
    let external = objects.external.get(&name).cloned();
    let known = match &command.kind {
        CommentKind::Table if view.is_some() => return Err(wrong_kind(&name, "a view", "COMMENT ON VIEW")),
        CommentKind::View if is_table || external.is_some() => {
            return Err(wrong_kind(&name, "a table", "COMMENT ON TABLE"));
        }
        _ => is_table || view.is_some() || external.is_some(),
    };
    if !known {
        return if command.if_exists { Ok(0) } else { Err(missing_table(&name.to_string())) };
    }
    let column = match command.kind {
        CommentKind::Column(column) => Some(column),
        CommentKind::Table | CommentKind::View => None,
    };
    let text = command.text;
    if !is_table && let Some(column) = &column {
        let provider = snapshot.provider(&name).await?;
        if provider.is_none_or(|p| p.schema().column_with_name(column).is_none()) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("column '{}.{column}' does not exist", short_name(&name)),
            ));
        }
    }
    engine.blocking(move || store_comment(&worker, &name, view, external, column, text).map(|()| 0)).await
}

fn wrong_kind(name: &TableName, is: &str, instead: &str) -> Error {
    Error::invalid(format!("'{}' is {is}; use {instead}", short_name(name)))
}

fn store_comment(
    engine: &Engine,
    name: &TableName,
    view: Option<Object>,
    external: Option<Object>,
    column: Option<String>,
    text: Option<String>,
) -> Result<()> {
    let with_comment = |mut object: Object| {
        match (&column, &text) {
            (None, text) => object.comment.clone_from(text),
            (Some(column), Some(text)) => drop(object.column_comments.insert(column.clone(), text.clone())),
            (Some(column), None) => drop(object.column_comments.remove(column)),
        }
        object
    };
    match (view, external) {
        (Some(view), _) => engine.put_view(&with_comment(view)),
        (None, Some(external)) => engine.put_external(&with_comment(external)),
        (None, None) => Ok(engine.store.alter_table(name, &[Alteration::Comment { column, text }]).map(drop)?),
    }
}
