//! UPDATE, DELETE and MERGE as queries over row positions.
//!
//! ```text
//!   DELETE FROM t WHERE c           ->  SELECT t.__row FROM t WHERE c
//!   UPDATE t SET a = x FROM s WHERE ->  SELECT t.__row, x AS a, t.b AS b FROM t, s WHERE ..
//!   MERGE INTO t USING s ON c ..    ->  SELECT t.__row, <which WHEN>, <new a>, <new b> FROM t JOIN s ON c
//! ```
//!
//! The query is written as text and planned like any other, so whatever a query may say (subqueries of all kinds, joins,
//! parameters) a change may say too, and means the same. The target is read through a name that only such a query knows;
//! its own name, mentioned in a subquery, is the plain table. Who runs the query collects the positions. The names that
//! the query adds ([`Hidden`]) occur nowhere in the statement, so that no word of it can mean them.

use std::collections::HashMap;

use datafusion::sql::parser::{DFParserBuilder, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, Delete, Expr, FromTable, Ident, Merge, MergeAction, MergeClauseKind, MergeInsertExpr,
    MergeInsertKind, ObjectName, OrderByExpr, SetExpr, Statement as Ast, TableFactor, TableWithJoins, Update,
    UpdateTableFromKind,
};

use super::parse::{NameParts, normalized};
use super::print::{list, printed};
use crate::error::{Error, ErrorKind, Result};
use crate::scan::ROW_COLUMN;

/// Schema in which the target of a change is found with its row positions.
pub(super) const TARGET_SCHEMA: &str = "__target";

/// Marks the rows of a MERGE that come from its source. No column of a table has this name: the columns of the source
/// are not known before it is planned.
pub(super) const SOURCE_MARK: &str = "__terrace_source";

/// The column that says which WHEN of a MERGE applies.
const ACTION_COLUMN: &str = "__action";

/// Names that the query of a change has and its statement has not.
#[derive(Debug, Clone)]
pub(super) struct Hidden {
    /// Schema and name of the target with its row positions.
    pub(super) target: String,
    /// Its column of row positions.
    pub(super) row: String,
    action: String,
    mark: String,
}

impl Hidden {
    /// Names that neither `text`, in lower case, nor the target's columns contain.
    fn new(text: &str, columns: &[TargetColumn]) -> Self {
        let fresh = |base: &str| {
            let mut name = base.to_owned();
            while text.contains(&name) || columns.iter().any(|column| column.name == name) {
                name.push('_');
            }
            name
        };
        let [target, row, action, mark] = [TARGET_SCHEMA, ROW_COLUMN, ACTION_COLUMN, SOURCE_MARK].map(fresh);
        Self { target, row, action, mark }
    }
}

/// A column of the target.
#[derive(Debug)]
pub(super) struct TargetColumn {
    pub(super) name: String,
    /// SQL text of what DEFAULT means for it.
    pub(super) default: String,
}

/// A statement that changes rows, as written.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) target: NameParts,
    kind: Kind,
    /// `WITH ..` before the statement, or nothing.
    with: String,
    /// The whole statement in lower case.
    text: String,
}

#[derive(Debug, Clone)]
enum Kind {
    Update(Box<Update>),
    Delete(Box<Delete>),
    Merge(Box<Merge>),
}

/// What becomes of the rows of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// They are new. Not rewritten: the planner plans INSERT.
    Insert,
    /// The rows at the positions go.
    Delete,
    /// The rows at the positions become the given ones; the first one where a position comes several times.
    Update,
    /// A column says which of these to do.
    Merge(Vec<MergeEffect>),
}

/// What one WHEN of a MERGE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeEffect {
    Insert,
    Update,
    Delete,
}

/// The query of a change.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) query: SqlStatement,
    pub(super) effect: Effect,
    pub(super) hidden: Hidden,
}

impl Change {
    /// The change that a statement is; `None` for other statements. Refuses forms that are not offered.
    pub(super) fn of(whole: &Ast) -> Result<Option<Self>> {
        let (ast, with) = match whole {
            Ast::Query(query) => match (&query.with, query.body.as_ref()) {
                (with, SetExpr::Update(inner) | SetExpr::Delete(inner) | SetExpr::Merge(inner)) => {
                    (inner, with.as_ref().map_or_else(String::new, |with| format!("{} ", printed(with))))
                }
                _ => return Ok(None),
            },
            other => (other, String::new()),
        };
        let (target, kind) = match ast {
            Ast::Update(update) => (target_of(&check_update(update)?.table)?, Kind::Update(Box::new(update.clone()))),
            Ast::Delete(delete) => (target_of(check_delete(delete)?)?, Kind::Delete(Box::new(delete.clone()))),
            Ast::Merge(merge) => (name_of(&check_merge(merge)?.table)?, Kind::Merge(Box::new(merge.clone()))),
            _ => return Ok(None),
        };
        Ok(Some(Self { target, kind, with, text: whole.to_string().to_lowercase() }))
    }

    /// The query, given the table's columns.
    pub(super) fn rewrite(&self, columns: &[TargetColumn]) -> Result<Rewritten> {
        let hidden = Hidden::new(&self.text, columns);
        let (text, effect) = match &self.kind {
            Kind::Update(update) => (update_query(update, columns, &hidden)?, Effect::Update),
            Kind::Delete(delete) => (delete_query(delete, &hidden)?, Effect::Delete),
            Kind::Merge(merge) => merge_query(merge, columns, &hidden)?,
        };
        let text = format!("{}{text}", self.with);
        let parser = DFParserBuilder::new(text.as_str()).with_recursion_limit(super::parse::RECURSION_LIMIT);
        let query = parser.build()?.parse_statements()?.pop_front();
        let query = query.ok_or_else(|| Error::new(ErrorKind::Internal, "a change without a query"))?;
        Ok(Rewritten { query, effect, hidden })
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

fn target_of(table: &TableWithJoins) -> Result<NameParts> {
    match table.joins.is_empty() {
        true => name_of(&table.relation),
        false => Err(Error::invalid("a change names one table; write the others after FROM or USING")),
    }
}

fn name_of(table: &TableFactor) -> Result<NameParts> {
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
fn alias_of(table: &TableFactor) -> Option<Ident> {
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

/// The target of a change, named as the statement names it.
fn target(table: &TableFactor, hidden: &Hidden) -> Result<(Ident, String)> {
    if let TableFactor::Table { alias: Some(alias), .. } = table
        && !alias.columns.is_empty()
    {
        return not_offered("renaming the columns of the table that is changed");
    }
    let alias =
        alias_of(table).ok_or_else(|| Error::invalid(format!("'{table}' needs a name; write {table} AS name")))?;
    let name = &hidden.target;
    let from = format!("\"{name}\".\"{name}\" AS {alias}");
    Ok((alias, from))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `WHERE ..`, limited to the first rows where the statement says so.
fn restriction(
    (row, from): (&str, &str),
    selection: Option<&Expr>,
    order_by: &[OrderByExpr],
    limit: Option<&Expr>,
) -> String {
    let condition = selection.map_or_else(String::new, |condition| format!(" WHERE {}", printed(condition)));
    let Some(limit) = limit else { return condition };
    let order = if order_by.is_empty() { String::new() } else { format!(" ORDER BY {}", list(order_by)) };
    format!(" WHERE {row} IN (SELECT {row} FROM {from}{condition}{order} LIMIT {})", printed(limit))
}

fn delete_query(delete: &Delete, hidden: &Hidden) -> Result<String> {
    let (alias, from) = target(&check_delete(delete)?.relation, hidden)?;
    let row = format!("{alias}.\"{}\"", hidden.row);
    let condition = restriction((&row, &from), delete.selection.as_ref(), &delete.order_by, delete.limit.as_ref());
    let using = delete.using.as_ref().map_or_else(String::new, |using| format!(", {}", list(using)));
    Ok(format!("SELECT {row} FROM {from}{using}{condition}"))
}

fn update_query(update: &Update, columns: &[TargetColumn], hidden: &Hidden) -> Result<String> {
    let (alias, from) = target(&update.table.relation, hidden)?;
    let row = format!("{alias}.\"{}\"", hidden.row);
    let values = assigned(&update.assignments, &alias, columns)?;
    let values: Vec<String> = values
        .into_iter()
        .zip(columns)
        .map(|(value, column)| {
            let column = quoted(&column.name);
            format!("{} AS {column}", value.unwrap_or_else(|| format!("{alias}.{column}")))
        })
        .collect();
    let condition = restriction((&row, &from), update.selection.as_ref(), &update.order_by, update.limit.as_ref());
    let others = match &update.from {
        Some(UpdateTableFromKind::AfterSet(others)) => format!(", {}", list(others)),
        _ => String::new(),
    };
    Ok(format!("SELECT {row}, {} FROM {from}{others}{condition}", values.join(", ")))
}

/// Per column of the table the text of its new value; `None` where it stays.
fn assigned(assignments: &[Assignment], alias: &Ident, columns: &[TargetColumn]) -> Result<Vec<Option<String>>> {
    let mut values = vec![None; columns.len()];
    let mut set = |name: &ObjectName, value: &Expr| {
        let at = column_of(name, Some(alias), columns)?;
        match values.get_mut(at).zip(columns.get(at)) {
            Some((slot @ None, column)) => *slot = Some(value_text(value, column)),
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
    Ok(values)
}

/// The text of a new value. The parser takes the word DEFAULT for a name.
fn value_text(value: &Expr, column: &TargetColumn) -> String {
    match value {
        Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default") => {
            format!("({})", column.default)
        }
        other => format!("({})", printed(other)),
    }
}

/// The position of the column that `name`, perhaps qualified by `alias`, means.
fn column_of(name: &ObjectName, alias: Option<&Ident>, columns: &[TargetColumn]) -> Result<usize> {
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

fn merge_query(merge: &Merge, columns: &[TargetColumn], hidden: &Hidden) -> Result<(String, Effect)> {
    let (alias, from) = target(&merge.table, hidden)?;
    let source = alias_of(&merge.source)
        .ok_or_else(|| Error::invalid("the source of a MERGE needs a name; write USING (..) AS name"))?;
    let (row, mark) = (format!("{alias}.\"{}\"", hidden.row), format!("{source}.\"{}\"", hidden.mark));
    let (mut conditions, mut effects, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (mut keeps_source, mut keeps_target) = (false, false);
    for clause in &merge.clauses {
        let applies = match clause.clause_kind {
            MergeClauseKind::Matched => format!("{row} IS NOT NULL AND {mark} IS NOT NULL"),
            MergeClauseKind::NotMatched | MergeClauseKind::NotMatchedByTarget => {
                keeps_source = true;
                format!("{row} IS NULL")
            }
            MergeClauseKind::NotMatchedBySource => {
                keeps_target = true;
                format!("{mark} IS NULL")
            }
        };
        conditions.push(match &clause.predicate {
            Some(predicate) => format!("{applies} AND ({})", printed(predicate)),
            None => applies,
        });
        let (effect, new) = match &clause.action {
            MergeAction::Update(update) => {
                let new = assigned(&update.assignments, &alias, columns)?.into_iter().zip(columns);
                let old = |column: &TargetColumn| format!("{alias}.{}", quoted(&column.name));
                (MergeEffect::Update, new.map(|(value, column)| value.unwrap_or_else(|| old(column))).collect())
            }
            MergeAction::Insert(insert) => (MergeEffect::Insert, inserted(insert, &source, columns)?),
            MergeAction::Delete { .. } => (MergeEffect::Delete, vec!["NULL".to_owned(); columns.len()]),
        };
        effects.push(effect);
        values.push(new);
    }
    let which: Vec<String> = (0..conditions.len()).map(|n| n.to_string()).collect();
    let mut output = vec![row, format!("{} AS \"{}\"", case(&conditions, which.iter()), hidden.action)];
    for (at, column) in columns.iter().enumerate() {
        let new = values.iter().filter_map(|row| row.get(at));
        output.push(format!("{} AS {}", case(&conditions, new), quoted(&column.name)));
    }
    let join = match (keeps_target, keeps_source) {
        (false, false) => "INNER",
        (true, false) => "LEFT",
        (false, true) => "RIGHT",
        (true, true) => "FULL",
    };
    let marked =
        format!("(SELECT {source}.*, TRUE AS \"{}\" FROM {}) AS {source}", hidden.mark, printed(&merge.source));
    let text =
        format!("SELECT {} FROM {from} {join} JOIN {marked} ON {}", output.join(", "), printed(merge.on.as_ref()));
    Ok((text, Effect::Merge(effects)))
}

/// The first condition that holds decides.
fn case<'a>(conditions: &[String], values: impl Iterator<Item = &'a String>) -> String {
    let branches: Vec<_> =
        conditions.iter().zip(values).map(|(when, then)| format!("WHEN {when} THEN {then}")).collect();
    format!("CASE {} END", branches.join(" "))
}

/// Per column of the table the text of the value that a MERGE inserts.
fn inserted(insert: &MergeInsertExpr, source: &Ident, columns: &[TargetColumn]) -> Result<Vec<String>> {
    let named: Vec<usize> = match insert.columns.is_empty() {
        true => (0..columns.len()).collect(),
        false => insert.columns.iter().map(|name| column_of(name, None, columns)).collect::<Result<_>>()?,
    };
    let named = || named.iter().filter_map(|at| columns.get(*at));
    let given: Vec<String> = match &insert.kind {
        MergeInsertKind::Row => named().map(|c| format!("{source}.{}", quoted(&c.name))).collect(),
        MergeInsertKind::Values(values) => match values.rows.as_slice() {
            [row] if row.content.len() != named().count() => {
                let (values, columns) = (row.content.len(), named().count());
                let message = format!("the INSERT of a MERGE has {values} values for {columns} columns");
                return Err(Error::invalid(message));
            }
            [row] => row.content.iter().zip(named()).map(|(value, column)| value_text(value, column)).collect(),
            _ => return Err(Error::invalid("the INSERT of a MERGE takes one row of VALUES")),
        },
    };
    let mut values: HashMap<&str, String> = HashMap::new();
    for (column, value) in named().zip(given) {
        if values.insert(&column.name, value).is_some() {
            return Err(Error::invalid(format!("column '{}' of the INSERT of a MERGE is named twice", column.name)));
        }
    }
    let value =
        |column: &TargetColumn| values.remove(column.name.as_str()).unwrap_or_else(|| format!("({})", column.default));
    Ok(columns.iter().map(value).collect())
}
