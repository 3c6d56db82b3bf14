//! UPDATE, DELETE and MERGE as queries over row positions.
//!
//! ```text
//!   DELETE FROM t WHERE c           ->  SELECT t.__row FROM t WHERE c
//!   UPDATE t SET a = x FROM s WHERE ->  SELECT t.__row, x AS a, t.b AS b FROM t, s WHERE ..
//!   MERGE INTO t USING s ON c ..    ->  SELECT t.__row, <which WHEN>, <new a>, <new b> FROM t JOIN s ON c
//! ```
//!
//! The parts of the statement are moved into the tree of a query, without printing them as text. The query is planned like
//! any other, so a change may use whatever a query may use (subqueries of all kinds, joins, parameters), with the same
//! meaning. The query reads the target under a hidden name; the target's own name in a subquery refers to the plain table.
//! The engine executes the query and collects the positions. The names that the query adds ([`HiddenNames`]) occur
//! nowhere in the statement, so that no part of it can refer to them.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, Delete, Expr, FromTable, Ident, Join, JoinConstraint, JoinOperator, LimitClause,
    Merge, MergeAction, MergeClauseKind, MergeInsertExpr, MergeInsertKind, ObjectName, OrderBy, OrderByExpr,
    OrderByKind, Query, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement as Ast, TableFactor,
    TableWithJoins, Update, UpdateTableFromKind, Value, Visit, WildcardAdditionalOptions, With,
};

use terrace_error::{Error, ROW_COLUMN, Result};

use crate::ast_nodes::{aliased, and, case, column, quoted_ident, select, table_alias, without_joins};
use crate::defaults::is_default;
use crate::objects::Reads;
use crate::{NameParts, last_name, normalized};

/// Schema in which the target of a change is found with its row positions.
pub const TARGET_SCHEMA: &str = "__target";

/// The column that marks the rows of a MERGE that come from its source. No column of a table may have this name: the
/// columns of the source are not known before it is planned.
pub const SOURCE_MARK: &str = "__terrace_source";

/// The column that says which WHEN of a MERGE applies.
const ACTION_COLUMN: &str = "__action";

/// What the names of columns begin with that keep their values.
const KEPT_COLUMN: &str = "__kept_";

/// Names that the query of a change adds to those of its statement.
#[derive(Debug, Clone)]
pub struct HiddenNames {
    /// Schema and name of the target with its row positions.
    pub target: String,
    /// Its column of row positions.
    pub row: String,
    action: String,
    mark: String,
    /// What the names of kept columns begin with.
    kept: String,
}

impl HiddenNames {
    /// Chooses names that occur neither in `text`, in lower case, nor among the target's columns.
    fn new(text: &str, columns: &[TargetColumn]) -> Self {
        let unused_name = |base: &str| {
            let mut name = base.to_owned();
            while text.contains(&name) || columns.iter().any(|column| column.name.starts_with(&name)) {
                name.push('_');
            }
            name
        };
        let names = [TARGET_SCHEMA, ROW_COLUMN, ACTION_COLUMN, SOURCE_MARK, KEPT_COLUMN];
        let [target, row, action, mark, kept] = names.map(unused_name);
        Self { target, row, action, mark, kept }
    }

    /// The name under which the query of an UPDATE finds a column of the target whose own name it may not mention.
    pub fn kept(&self, column: &str) -> String {
        format!("{}{column}", self.kept)
    }

    /// Rewords the error of a MERGE whose source has a column with the name of the mark, which the statement's text does
    /// not show.
    pub fn explain_conflict(&self, error: Error) -> Error {
        let is_conflict = ["duplicate", "unique", "mbiguous"].iter().any(|word| error.message().contains(word));
        if !is_conflict || !error.message().contains(&self.mark) {
            return error;
        }
        Error::invalid(format!(
            "the source of the MERGE has a column '{}', a name that MERGE itself uses; leave it out or rename it with USING \
             (SELECT .. FROM ..) AS name",
            self.mark
        ))
    }
}

/// A column of the target.
#[derive(Debug)]
pub struct TargetColumn {
    /// Its name.
    pub name: String,
    /// Its default value.
    pub default: Expr,
    /// Whether the query may not mention it; an UPDATE that does not set it keeps its values all the same ([`HiddenNames::kept`]).
    pub is_hidden: bool,
}

/// A parsed statement that changes rows.
#[derive(Debug, Clone)]
pub struct Change {
    /// The table that it changes.
    pub target: NameParts,
    kind: ChangeKind,
    /// `WITH ..` before the statement.
    with: Option<With>,
    /// The whole statement as it was sent, in lower case.
    text: String,
}

#[derive(Debug, Clone)]
enum ChangeKind {
    Update(Box<Update>),
    Delete(Box<Delete>),
    Merge(Box<Merge>),
}

/// How the rows of the query change the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Adds the rows. Only for INSERT, which the planner plans without a rewrite.
    Insert,
    /// Deletes the rows at the positions.
    Delete,
    /// Replaces the rows at the positions; the first row counts where a position occurs several times.
    Update,
    /// A column gives the index of the effect for each row.
    Merge(Vec<MergeEffect>),
}

/// Effect of one WHEN clause of a MERGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeEffect {
    /// Adds the row.
    Insert,
    /// Replaces the row at the position.
    Update,
    /// Deletes the row at the position.
    Delete,
}

/// What a change may do to rows of its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// What it does.
    pub effect: MergeEffect,
    /// The columns to which it gives values; none: all of them.
    pub columns: Vec<String>,
}

impl Write {
    fn new<'a>(effect: MergeEffect, columns: impl Iterator<Item = &'a ObjectName>) -> Self {
        Self { effect, columns: columns.filter_map(last_name).collect() }
    }
}

/// The names to which assignments give values.
fn assigned_names(assignments: &[Assignment]) -> impl Iterator<Item = &ObjectName> {
    assignments.iter().flat_map(|assignment| match &assignment.target {
        AssignmentTarget::ColumnName(name) => std::slice::from_ref(name),
        AssignmentTarget::Tuple(names) => names.as_slice(),
    })
}

/// The query of a change.
#[derive(Debug)]
pub struct Rewritten {
    /// The query.
    pub query: SqlStatement,
    /// How its rows change the table.
    pub effect: Effect,
    /// The names that it adds to those of the statement.
    pub hidden: HiddenNames,
}

impl Change {
    /// Recognises a statement, sent as `text`, that changes rows; `None` for other statements.
    ///
    /// # Errors
    /// For unsupported forms.
    pub(crate) fn from_statement(statement: &Ast, text: &str) -> Result<Option<Self>> {
        let (ast, with) = match statement {
            Ast::Query(query) => match query.body.as_ref() {
                SetExpr::Update(inner) | SetExpr::Delete(inner) | SetExpr::Merge(inner) => (inner, query.with.clone()),
                _ => return Ok(None),
            },
            other => (other, None),
        };
        let (target, kind) = match ast {
            Ast::Update(update) => {
                (target_name(&check_update(update)?.table)?, ChangeKind::Update(Box::new(update.clone())))
            }
            Ast::Delete(delete) => (target_name(check_delete(delete)?)?, ChangeKind::Delete(Box::new(delete.clone()))),
            Ast::Merge(merge) => {
                (changed_table_name(&check_merge(merge)?.table)?, ChangeKind::Merge(Box::new(merge.clone())))
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { target, kind, with, text: text.to_lowercase() }))
    }

    /// Visits the queries of the statement with `reads`, but not its target table.
    pub(crate) fn visit_queries(&self, reads: &mut Reads) -> ControlFlow<()> {
        reads.enter(self.with.as_ref());
        self.with.visit(reads)?;
        // The first relation of the statement itself is its target.
        reads.skip_next();
        match &self.kind {
            ChangeKind::Update(update) => update.visit(reads),
            ChangeKind::Delete(delete) => delete.visit(reads),
            ChangeKind::Merge(merge) => merge.visit(reads),
        }
    }

    /// Whether it needs values of its target: it has a condition, or computes new values of them.
    pub fn reads_target(&self) -> bool {
        let is_constant =
            |assignment: &Assignment| matches!(assignment.value, Expr::Value(_)) || is_default(&assignment.value);
        match &self.kind {
            ChangeKind::Update(update) => {
                let Update { from, selection, limit, assignments, .. } = update.as_ref();
                from.is_some() || selection.is_some() || limit.is_some() || !assignments.iter().all(is_constant)
            }
            ChangeKind::Delete(delete) => {
                delete.using.is_some() || delete.selection.is_some() || delete.limit.is_some()
            }
            ChangeKind::Merge(_) => true,
        }
    }

    /// Whether it is a MERGE.
    pub fn is_merge(&self) -> bool {
        matches!(self.kind, ChangeKind::Merge(_))
    }

    /// What it may do to rows of its target.
    pub fn writes(&self) -> Vec<Write> {
        let write = |action: &MergeAction| match action {
            MergeAction::Update(update) => Write::new(MergeEffect::Update, assigned_names(&update.assignments)),
            MergeAction::Insert(insert) => Write::new(MergeEffect::Insert, insert.columns.iter()),
            MergeAction::Delete { .. } => Write::new(MergeEffect::Delete, std::iter::empty()),
        };
        match &self.kind {
            ChangeKind::Update(update) => {
                vec![Write::new(MergeEffect::Update, assigned_names(&update.assignments))]
            }
            ChangeKind::Delete(_) => vec![Write::new(MergeEffect::Delete, std::iter::empty())],
            ChangeKind::Merge(merge) => merge.clauses.iter().map(|clause| write(&clause.action)).collect(),
        }
    }

    /// Rewrites the statement to a query, given the table's columns.
    ///
    /// # Errors
    /// For columns that the table does not have, and for parts that have no name.
    pub fn rewrite(&self, columns: &[TargetColumn]) -> Result<Rewritten> {
        let hidden = HiddenNames::new(&self.text, columns);
        let (mut query, effect) = match &self.kind {
            ChangeKind::Update(update) => (update_query(update, columns, &hidden)?, Effect::Update),
            ChangeKind::Delete(delete) => (delete_query(delete, &hidden)?, Effect::Delete),
            ChangeKind::Merge(merge) => merge_query(merge, columns, &hidden)?,
        };
        query.with.clone_from(&self.with);
        Ok(Rewritten { query: SqlStatement::Statement(Box::new(Ast::Query(query))), effect, hidden })
    }
}

fn not_offered<T>(what: &str) -> Result<T> {
    Err(Error::unimplemented(format!("{what} is not supported")))
}

fn check_update(update: &Update) -> Result<&Update> {
    match update {
        Update { returning: Some(_), .. } => not_offered("UPDATE .. RETURNING"),
        Update { output: Some(_), .. } => not_offered("UPDATE .. OUTPUT"),
        Update { or: Some(_), .. } => not_offered("UPDATE OR .."),
        Update { from: Some(UpdateTableFromKind::BeforeSet(_)), .. } => {
            Err(Error::invalid("write UPDATE t SET .. FROM other WHERE .."))
        }
        Update { from: Some(_), limit: Some(_), .. } => not_offered("UPDATE .. FROM with LIMIT"),
        Update { limit: None, order_by, .. } if !order_by.is_empty() => {
            Err(Error::invalid("ORDER BY of an UPDATE needs a LIMIT"))
        }
        _ => Ok(update),
    }
}

fn check_delete(delete: &Delete) -> Result<&TableWithJoins> {
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
    match (delete, from.as_slice()) {
        (Delete { returning: Some(_), .. }, _) => not_offered("DELETE .. RETURNING"),
        (Delete { output: Some(_), .. }, _) => not_offered("DELETE .. OUTPUT"),
        (Delete { tables, .. }, _) if !tables.is_empty() => not_offered("DELETE from several tables"),
        (Delete { using: Some(_), limit: Some(_), .. }, _) => not_offered("DELETE .. USING with LIMIT"),
        (Delete { limit: None, order_by, .. }, _) if !order_by.is_empty() => {
            Err(Error::invalid("ORDER BY of a DELETE needs a LIMIT"))
        }
        (_, [one]) => Ok(one),
        _ => not_offered("DELETE from several tables"),
    }
}

fn check_merge(merge: &Merge) -> Result<&Merge> {
    if merge.output.is_some() {
        return not_offered("MERGE .. OUTPUT");
    }
    for clause in &merge.clauses {
        let by_target = matches!(clause.clause_kind, MergeClauseKind::NotMatched | MergeClauseKind::NotMatchedByTarget);
        match &clause.action {
            MergeAction::Insert(MergeInsertExpr { insert_predicate: Some(_), .. }) => {
                return Err(Error::invalid("write the condition of an INSERT as WHEN NOT MATCHED AND .. THEN INSERT"));
            }
            MergeAction::Insert(_) if !by_target => {
                return Err(Error::invalid("INSERT belongs to WHEN NOT MATCHED"));
            }
            MergeAction::Insert(_) => {}
            MergeAction::Update(update) if update.update_predicate.is_some() || update.delete_predicate.is_some() => {
                return Err(Error::invalid("write the condition of an UPDATE as WHEN MATCHED AND .. THEN UPDATE"));
            }
            _ if by_target => {
                return Err(Error::invalid("WHEN NOT MATCHED can only INSERT; there is no row to change"));
            }
            _ => {}
        }
    }
    Ok(merge)
}

fn target_name(table: &TableWithJoins) -> Result<NameParts> {
    match table.joins.is_empty() {
        true => changed_table_name(&table.relation),
        false => {
            Err(Error::invalid("a statement can change only one table; write the other tables after FROM or USING"))
        }
    }
}

fn changed_table_name(table: &TableFactor) -> Result<NameParts> {
    match table {
        TableFactor::Table {
            name,
            args: None,
            sample: None,
            version: None,
            json_path: None,
            with_ordinality: false,
            partitions,
            with_hints,
            ..
        } if partitions.is_empty() && with_hints.is_empty() => NameParts::new(name),
        other => Err(Error::invalid(format!("'{other}' is not a table that can be changed"))),
    }
}

/// The name by which a statement refers to a relation.
fn relation_alias(table: &TableFactor) -> Option<Ident> {
    match table {
        TableFactor::Table { name, alias, .. } => {
            alias.as_ref().map(|a| a.name.clone()).or_else(|| name.0.last()?.as_ident().cloned())
        }
        TableFactor::Derived { alias, .. }
        | TableFactor::TableFunction { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. } => alias.as_ref().map(|a| a.name.clone()),
        _ => None,
    }
}

/// The alias by which the statement refers to its target, and the target under its hidden name with this alias.
fn change_target(table: &TableFactor, hidden: &HiddenNames) -> Result<(Ident, TableFactor)> {
    let named = relation_alias(table);
    let mut from = table.clone();
    let (TableFactor::Table { name, alias, .. }, Some(named)) = (&mut from, named) else {
        return Err(Error::invalid(format!("'{table}' needs a name; write {table} AS name")));
    };
    if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return not_offered("renaming the columns of the table that is changed");
    }
    *name = ObjectName::from(vec![quoted_ident(&hidden.target), quoted_ident(&hidden.target)]);
    *alias = Some(table_alias(named.clone()));
    Ok((named, from))
}

/// The condition of a change: its own, or, with a LIMIT, that a row is among the first rows that fulfil its own.
fn change_condition(
    row: &Expr,
    from: &TableFactor,
    selection: Option<&Expr>,
    order_by: &[OrderByExpr],
    limit: Option<&Expr>,
) -> Result<Option<Expr>> {
    let Some(limit) = limit else { return Ok(selection.cloned()) };
    let mut first =
        select(vec![SelectItem::UnnamedExpr(row.clone())], without_joins(from.clone()), &[], selection.cloned())?;
    if !order_by.is_empty() {
        first.order_by = Some(OrderBy { kind: OrderByKind::Expressions(order_by.to_vec()), interpolate: None });
    }
    first.limit_clause =
        Some(LimitClause::LimitOffset { limit: Some(limit.clone()), offset: None, limit_by: Vec::new() });
    Ok(Some(Expr::InSubquery { expr: Box::new(row.clone()), subquery: first, negated: false }))
}

fn delete_query(delete: &Delete, hidden: &HiddenNames) -> Result<Box<Query>> {
    let (alias, from) = change_target(&check_delete(delete)?.relation, hidden)?;
    let row = column(&alias, &hidden.row);
    let condition = change_condition(&row, &from, delete.selection.as_ref(), &delete.order_by, delete.limit.as_ref())?;
    let others = delete.using.as_deref().unwrap_or_default();
    select(vec![SelectItem::UnnamedExpr(row)], without_joins(from), others, condition)
}

fn update_query(update: &Update, columns: &[TargetColumn], hidden: &HiddenNames) -> Result<Box<Query>> {
    let (alias, from) = change_target(&update.table.relation, hidden)?;
    let row = column(&alias, &hidden.row);
    let condition = change_condition(&row, &from, update.selection.as_ref(), &update.order_by, update.limit.as_ref())?;
    let mut list = vec![SelectItem::UnnamedExpr(row)];
    let values = updated_values(&update.assignments, &alias, columns, hidden)?;
    list.extend(values.into_iter().zip(columns).map(|(value, column)| aliased(value, &column.name)));
    let others = match &update.from {
        Some(UpdateTableFromKind::AfterSet(others)) => others.as_slice(),
        _ => &[],
    };
    select(list, without_joins(from), others, condition)
}

/// The new value of each column of the table.
fn updated_values(
    assignments: &[Assignment],
    alias: &Ident,
    columns: &[TargetColumn],
    hidden: &HiddenNames,
) -> Result<Vec<Expr>> {
    let mut values = vec![None; columns.len()];
    let mut set = |name: &ObjectName, value: &Expr| {
        let at = column_position(name, Some(alias), columns)?;
        match values.get_mut(at).zip(columns.get(at)) {
            Some((slot @ None, column)) => *slot = Some(value_or_default(value, column)),
            _ => return Err(Error::invalid(format!("column '{name}' is set twice"))),
        }
        Ok(())
    };
    for assignment in assignments {
        match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => set(name, value)?,
            (AssignmentTarget::Tuple(names), Expr::Tuple(items)) if names.len() == items.len() => {
                for (name, value) in names.iter().zip(items) {
                    set(name, value)?;
                }
            }
            (AssignmentTarget::Tuple(_), _) => {
                return Err(Error::invalid("set several columns as (a, b) = (x, y), or one by one"));
            }
        }
    }
    let stays = |target: &TargetColumn| match target.is_hidden {
        true => column(alias, &hidden.kept(&target.name)),
        false => column(alias, &target.name),
    };
    Ok(values.into_iter().zip(columns).map(|(value, target)| value.unwrap_or_else(|| stays(target))).collect())
}

/// The value for a column, with DEFAULT replaced by the column's default.
fn value_or_default(value: &Expr, column: &TargetColumn) -> Expr {
    if is_default(value) { column.default.clone() } else { value.clone() }
}

/// The position of the column that `name`, perhaps qualified by `alias`, means.
fn column_position(name: &ObjectName, alias: Option<&Ident>, columns: &[TargetColumn]) -> Result<usize> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(normalized).collect();
    let column = match parts.as_slice() {
        [column] => column,
        [qualifier, column] if alias.is_some_and(|alias| normalized(alias) == *qualifier) => column,
        _ => return Err(Error::invalid(format!("'{name}' is not a column of the table that is changed"))),
    };
    let found = columns.iter().position(|c| c.name == *column);
    found.ok_or_else(|| {
        let known: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
        Error::invalid(format!("column '{column}' does not exist; there are {}", known.join(", ")))
    })
}

fn merge_query(merge: &Merge, columns: &[TargetColumn], hidden: &HiddenNames) -> Result<(Box<Query>, Effect)> {
    let (alias, from) = change_target(&merge.table, hidden)?;
    let source = relation_alias(&merge.source)
        .ok_or_else(|| Error::invalid("the source of a MERGE needs a name; write USING (..) AS name"))?;
    let row = column(&alias, &hidden.row);
    let mark = column(&source, &hidden.mark);
    let is_null = |of: &Expr| Expr::IsNull(Box::new(of.clone()));
    let is_not_null = |of: &Expr| Expr::IsNotNull(Box::new(of.clone()));
    let mut conditions = Vec::new();
    let mut effects = Vec::new();
    let mut values = Vec::new();
    let mut keeps_source = false;
    let mut keeps_target = false;
    for clause in &merge.clauses {
        let applies = match clause.clause_kind {
            MergeClauseKind::Matched => and(is_not_null(&row), is_not_null(&mark)),
            MergeClauseKind::NotMatched | MergeClauseKind::NotMatchedByTarget => {
                keeps_source = true;
                is_null(&row)
            }
            MergeClauseKind::NotMatchedBySource => {
                keeps_target = true;
                is_null(&mark)
            }
        };
        conditions.push(match &clause.predicate {
            Some(predicate) => and(applies, predicate.clone()),
            None => applies,
        });
        let (effect, new) = match &clause.action {
            MergeAction::Update(update) => {
                (MergeEffect::Update, updated_values(&update.assignments, &alias, columns, hidden)?)
            }
            MergeAction::Insert(insert) => (MergeEffect::Insert, inserted_values(insert, &source, columns)?),
            MergeAction::Delete { .. } => (MergeEffect::Delete, vec![Expr::value(Value::Null); columns.len()]),
        };
        effects.push(effect);
        values.push(new);
    }
    let which = (0..conditions.len()).map(|n| Expr::value(Value::Number(n.to_string(), false)));
    let mut list = vec![SelectItem::UnnamedExpr(row), aliased(case(&conditions, which), &hidden.action)];
    for (at, column) in columns.iter().enumerate() {
        let new = values.iter().filter_map(|row| row.get(at)).cloned();
        list.push(aliased(case(&conditions, new), &column.name));
    }
    let on = JoinConstraint::On(merge.on.as_ref().clone());
    let join_operator = match (keeps_target, keeps_source) {
        (false, false) => JoinOperator::Inner(on),
        (true, false) => JoinOperator::Left(on),
        (false, true) => JoinOperator::Right(on),
        (true, true) => JoinOperator::FullOuter(on),
    };
    let joins = vec![Join { relation: source_with_mark(&merge.source, source, hidden)?, global: false, join_operator }];
    let query = select(list, TableWithJoins { relation: from, joins }, &[], None)?;
    Ok((query, Effect::Merge(effects)))
}

/// Builds `(SELECT source.*, TRUE AS mark FROM source) AS source`.
fn source_with_mark(source: &TableFactor, name: Ident, hidden: &HiddenNames) -> Result<TableFactor> {
    let all = SelectItemQualifiedWildcardKind::ObjectName(ObjectName::from(vec![name.clone()]));
    let list = vec![
        SelectItem::QualifiedWildcard(all, WildcardAdditionalOptions::default()),
        aliased(Expr::value(Value::Boolean(true)), &hidden.mark),
    ];
    let subquery = select(list, without_joins(source.clone()), &[], None)?;
    Ok(TableFactor::Derived { lateral: false, subquery, alias: Some(table_alias(name)), sample: None })
}

/// The values that a MERGE inserts, one for each column of the table.
fn inserted_values(insert: &MergeInsertExpr, source: &Ident, columns: &[TargetColumn]) -> Result<Vec<Expr>> {
    let named: Vec<usize> = match insert.columns.is_empty() {
        true => (0..columns.len()).collect(),
        false => insert.columns.iter().map(|name| column_position(name, None, columns)).collect::<Result<_>>()?,
    };
    let named = || named.iter().filter_map(|at| columns.get(*at));
    let values: Vec<Expr> = match &insert.kind {
        MergeInsertKind::Row => named().map(|c| column(source, &c.name)).collect(),
        MergeInsertKind::Values(values) => match values.rows.as_slice() {
            [row] if row.content.len() != named().count() => {
                let values = row.content.len();
                let columns = named().count();
                let message = format!("the INSERT of a MERGE has {values} values for {columns} columns");
                return Err(Error::invalid(message));
            }
            [row] => row.content.iter().zip(named()).map(|(value, column)| value_or_default(value, column)).collect(),
            _ => return Err(Error::invalid("the INSERT of a MERGE takes one row of VALUES")),
        },
    };
    let mut by_name: HashMap<&str, Expr> = HashMap::new();
    for (column, value) in named().zip(values) {
        if by_name.insert(&column.name, value).is_some() {
            return Err(Error::invalid(format!("column '{}' of the INSERT of a MERGE is named twice", column.name)));
        }
    }
    let value = |column: &TargetColumn| by_name.remove(column.name.as_str()).unwrap_or_else(|| column.default.clone());
    Ok(columns.iter().map(value).collect())
}
