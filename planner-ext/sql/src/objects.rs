//! The tables, views and schemas that a statement names, as far as its text tells: before names are resolved.
//!
//! Views are not opened, and a name that cannot be one of the catalog is left out: the planner refuses it. PREPARE names
//! nothing; the statement behind an EXECUTE does.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{
    AlterTable, AlterTableOperation, Insert, ObjectName, Query, RenameTableNameKind, SchemaName, Select, SetExpr,
    ShowStatementOptions, Statement as Ast, TableFactor, TableObject, Visit, Visitor, With,
};
use terrace_model::TableName;

use crate::command::{Action, CommentOn, DropCommand, DropKind};
use crate::grant::{GrantCommand, OwnedObject};
use crate::grantable::GrantObjects;
use crate::hot_view::HotViewCommand;
use crate::rewrite::Change;
use crate::tiering_commands::PlacementStatement;
use crate::{NameParts, normalized};

/// How a statement uses an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Reads the object's rows or definition, or moves its segments.
    Read,
    /// Adds, changes or deletes rows.
    Write,
    /// Creates, alters or drops it, or its rules.
    Define,
}

/// Kind of a named object, as far as the text tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A table, view, system or external table.
    Relation,
    /// A hot view.
    HotView,
    /// A schema; its name is the last part.
    Schema,
}

/// An object that a statement names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name as written.
    pub name: NameParts,
    /// How the statement uses it.
    pub usage: Use,
}

/// The objects that a statement names, each once per kind of use.
pub(crate) fn named_by(action: &Action) -> Vec<ObjectRef> {
    let mut found = Objects::default();
    match action {
        Action::Plan(planned) => found.add_statement(&planned.statement),
        Action::Alter(alter) => found.add_alter(alter),
        Action::Comment(CommentOn { object, .. }) => found.add(ObjectKind::Relation, object, Use::Define),
        Action::Change(change) => {
            found.add_change(&change.change);
            if change.explain.is_some() {
                found.reads_only();
            }
        }
        Action::Truncate(truncate) => found.add_all(ObjectKind::Relation, &truncate.names, Use::Write),
        Action::Drop(DropCommand { kind: DropKind::Schema, names, .. }) => {
            found.add_all(ObjectKind::Schema, names, Use::Define);
        }
        Action::Drop(command) => found.add_all(ObjectKind::Relation, &command.names, Use::Define),
        Action::CopyFrom(copy) => found.add(ObjectKind::Relation, &copy.table, Use::Write),
        Action::Optimize(optimize) => found.add(ObjectKind::Relation, &optimize.table, Use::Define),
        Action::Rule(command) => found.add(ObjectKind::Relation, &command.table, Use::Define),
        Action::HotView(command) => found.add_hot_view(command),
        Action::Placement(statement) => found.add_placement(statement),
        Action::Grant(command) => found.add_grant(command),
        Action::Policy(command) => found.add(ObjectKind::Relation, command.table(), Use::Define),
        Action::Prepare(_)
        | Action::Transaction(_)
        | Action::Tiering(_)
        | Action::Cancel(_)
        | Action::Access(_)
        | Action::CreateToken(_)
        | Action::WorkloadGroup(_) => {}
    }
    found.0
}

/// The relations that a statement writes or makes, and does not read, in whichever way it writes their names.
pub(crate) fn only_written_by(statement: &SqlStatement, default_schema: &str) -> Vec<TableName> {
    let mut found = Objects::default();
    found.add_statement(statement);
    let relations = found.0.into_iter().filter(|object| object.kind == ObjectKind::Relation);
    let (read, written): (Vec<_>, Vec<_>) = relations.partition(|object| object.usage == Use::Read);
    let full = |object: ObjectRef| object.name.resolve(default_schema);
    let read: Vec<TableName> = read.into_iter().map(full).collect();
    written.into_iter().map(full).filter(|name| !read.contains(name)).collect()
}

#[derive(Default)]
struct Objects(Vec<ObjectRef>);

impl Objects {
    fn add(&mut self, kind: ObjectKind, name: &NameParts, usage: Use) {
        let object = ObjectRef { kind, name: name.clone(), usage };
        if !self.0.contains(&object) {
            self.0.push(object);
        }
    }

    fn add_all(&mut self, kind: ObjectKind, names: &[NameParts], usage: Use) {
        names.iter().for_each(|name| self.add(kind, name, usage));
    }

    fn add_relation(&mut self, name: &ObjectName, usage: Use) {
        if let Ok(name) = NameParts::new(name) {
            self.add(ObjectKind::Relation, &name, usage);
        }
    }

    fn add_schema(&mut self, name: &ObjectName, usage: Use) {
        if let Ok(NameParts { name, .. }) = NameParts::new(name) {
            self.add(ObjectKind::Schema, &NameParts { schema: None, name }, usage);
        }
    }

    /// Turns all uses to reads: the statement is only explained.
    fn reads_only(&mut self) {
        for mut object in std::mem::take(&mut self.0) {
            object.usage = Use::Read;
            if !self.0.contains(&object) {
                self.0.push(object);
            }
        }
    }

    /// Adds the relations that the queries within `tree` read.
    fn add_reads(&mut self, tree: &impl Visit) {
        let mut reads = Reads::default();
        let _ = tree.visit(&mut reads);
        self.add_all(ObjectKind::Relation, &reads.names, Use::Read);
    }

    fn add_statement(&mut self, statement: &SqlStatement) {
        match statement {
            SqlStatement::Statement(ast) => self.add_ast(ast),
            SqlStatement::Explain(explain) => {
                self.add_statement(&explain.statement);
                self.reads_only();
            }
            SqlStatement::CopyTo(copy) => match &copy.source {
                CopyToSource::Relation(name) => self.add_relation(name, Use::Read),
                CopyToSource::Query(query) => self.add_reads(query.as_ref()),
            },
            SqlStatement::CreateExternalTable(create) => self.add_relation(&create.name, Use::Define),
            SqlStatement::Reset(_) => {}
        }
    }

    fn add_ast(&mut self, ast: &Ast) {
        match ast {
            Ast::Insert(Insert { table: TableObject::TableName(name), .. }) => self.add_relation(name, Use::Write),
            Ast::CreateTable(create) => self.add_relation(&create.name, Use::Define),
            Ast::CreateView(create) => self.add_relation(&create.name, Use::Define),
            Ast::CreateSchema { schema_name: SchemaName::Simple(name), .. } => self.add_schema(name, Use::Define),
            Ast::Query(query) => {
                if let SetExpr::Select(select) = query.body.as_ref()
                    && let Select { into: Some(into), .. } = select.as_ref()
                {
                    self.add_relation(&into.name, Use::Define);
                }
            }
            Ast::ShowColumns { show_options, .. } => {
                shown_parent(show_options).into_iter().for_each(|name| self.add_relation(name, Use::Read));
            }
            Ast::ShowTables { show_options, .. } => {
                shown_parent(show_options).into_iter().for_each(|name| self.add_schema(name, Use::Read));
            }
            Ast::ExplainTable { table_name: name, .. } | Ast::ShowCreate { obj_name: name, .. } => {
                self.add_relation(name, Use::Read);
            }
            _ => {}
        }
        self.add_reads(ast);
    }

    /// Adds the table of an ALTER TABLE, and the name that it gets.
    fn add_alter(&mut self, alter: &AlterTable) {
        let Ok(table) = NameParts::new(&alter.name) else { return };
        self.add(ObjectKind::Relation, &table, Use::Define);
        for operation in &alter.operations {
            if let AlterTableOperation::RenameTable { table_name } = operation {
                let (RenameTableNameKind::As(to) | RenameTableNameKind::To(to)) = table_name;
                let Ok(mut to) = NameParts::new(to) else { continue };
                to.schema = to.schema.or_else(|| table.schema.clone());
                self.add(ObjectKind::Relation, &to, Use::Define);
            }
        }
    }

    fn add_change(&mut self, change: &Change) {
        self.add(ObjectKind::Relation, &change.target, Use::Write);
        let mut reads = Reads::default();
        let _ = change.visit_queries(&mut reads);
        self.add_all(ObjectKind::Relation, &reads.names, Use::Read);
    }

    fn add_hot_view(&mut self, command: &HotViewCommand) {
        match command {
            HotViewCommand::Create(create) => {
                self.add(ObjectKind::HotView, &create.name, Use::Define);
                self.add(ObjectKind::Relation, &create.table, Use::Read);
            }
            HotViewCommand::Drop { names, .. } | HotViewCommand::Reject { names } => {
                self.add_all(ObjectKind::HotView, names, Use::Define);
            }
            HotViewCommand::Refresh { name, .. } | HotViewCommand::Set { name, .. } => {
                self.add(ObjectKind::HotView, name, Use::Define);
            }
        }
    }

    fn add_grant(&mut self, command: &GrantCommand) {
        match command {
            GrantCommand::Rights { objects: GrantObjects::Tables(names), .. } => {
                self.add_all(ObjectKind::Relation, names, Use::Define);
            }
            GrantCommand::Rights { objects: GrantObjects::Schemas(names) | GrantObjects::TablesIn(names), .. } => {
                names.iter().for_each(|name| self.add_schema_name(name));
            }
            GrantCommand::Owner { object: OwnedObject::Relation { name, .. }, .. } => {
                self.add(ObjectKind::Relation, name, Use::Define);
            }
            GrantCommand::Defaults { schemas, .. } => schemas.iter().for_each(|name| self.add_schema_name(name)),
            GrantCommand::Owner { object: OwnedObject::Schema(name), .. } => self.add_schema_name(name),
            GrantCommand::Rights { objects: GrantObjects::Database | GrantObjects::Server, .. }
            | GrantCommand::CreateRole { .. }
            | GrantCommand::DropRole { .. }
            | GrantCommand::Roles { .. } => {}
        }
    }

    fn add_schema_name(&mut self, name: &str) {
        self.add(ObjectKind::Schema, &NameParts { schema: None, name: name.to_owned() }, Use::Define);
    }

    fn add_placement(&mut self, statement: &PlacementStatement) {
        match statement {
            PlacementStatement::Explain { table, .. }
            | PlacementStatement::BringBack { table, .. }
            | PlacementStatement::WarmUp { table, .. } => self.add(ObjectKind::Relation, table, Use::Read),
            PlacementStatement::ExplainQuery(statement) | PlacementStatement::ExplainViews(statement) => {
                self.add_statement(statement);
            }
            PlacementStatement::ForecastView(command) => {
                self.add_hot_view(command);
                self.reads_only();
            }
            PlacementStatement::Epoch { .. } | PlacementStatement::RollBack(_) => {}
        }
    }
}

/// The object behind FROM or IN of a SHOW.
fn shown_parent(options: &ShowStatementOptions) -> Option<&ObjectName> {
    options.show_in.as_ref()?.parent_name.as_ref()
}

/// Collects the relations that queries read. Names that a WITH in scope defines are not among them.
#[derive(Default)]
pub(crate) struct Reads {
    names: Vec<NameParts>,
    /// The WITH of each query around the current place, outermost first.
    scopes: Vec<Scope>,
    skips_next: bool,
}

/// The names that one WITH defines. The visitor visits the queries of the WITH before the rest of its query, in order:
/// each of them that begins or ends makes one more name visible to the queries after it.
#[derive(Default)]
struct Scope {
    names: Vec<String>,
    visible: usize,
    recursive: bool,
}

impl Scope {
    fn new(with: Option<&With>) -> Self {
        let Some(with) = with else { return Self::default() };
        let names = with.cte_tables.iter().map(|table| normalized(&table.alias.name)).collect();
        Self { names, visible: 0, recursive: with.recursive }
    }
}

impl Reads {
    /// Brings the names of a WITH into scope, for a statement that is no query.
    pub(crate) fn enter(&mut self, with: Option<&With>) {
        self.scopes.push(Scope::new(with));
    }

    /// Leaves out the next relation, which the statement changes.
    pub(crate) fn skip_next(&mut self) {
        self.skips_next = true;
    }

    /// Makes the next name of the innermost WITH visible, at the begin (`recursive`) or the end of its query.
    fn show_next(&mut self, recursive: bool) {
        if let Some(scope) = self.scopes.last_mut()
            && scope.recursive == recursive
        {
            scope.visible = (scope.visible + 1).min(scope.names.len());
        }
    }

    fn is_defined(&self, name: &NameParts) -> bool {
        let defines = |scope: &Scope| scope.names.iter().take(scope.visible).any(|known| *known == name.name);
        name.schema.is_none() && self.scopes.iter().any(defines)
    }
}

impl Visitor for Reads {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.show_next(true);
        self.enter(query.with.as_ref());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.scopes.pop();
        self.show_next(false);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let skips = std::mem::take(&mut self.skips_next);
        // With arguments it is a function.
        if let TableFactor::Table { name, args: None, .. } = factor
            && let Ok(name) = NameParts::new(name)
            && !skips
            && !self.is_defined(&name)
        {
            self.names.push(name);
        }
        ControlFlow::Continue(())
    }
}
