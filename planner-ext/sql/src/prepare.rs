//! PREPARE, EXECUTE and DEALLOCATE: statements that a session keeps by name.
//!
//! EXECUTE becomes the command of the stored statement, with values in place of its parameters.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, ObjectName, Statement as Ast, Value, visit_expressions, visit_expressions_mut,
};

use terrace_error::{Error, Result};

use crate::command::{Action, Command};
use crate::parse::classify;
use crate::{StatementKind, normalized};

/// Most operators of one value, in addition to those of the statement.
const MOST_VALUE_OPERATORS: usize = 1_000;
/// Most bytes of text of the values of an EXECUTE, each counted wherever it is used.
const MOST_VALUE_BYTES: usize = 1 << 20;

/// A statement that PREPARE stored, with the parameter types that it named, if any.
#[derive(Debug, Clone)]
pub struct NamedStatement {
    types: Vec<DataType>,
    statement: Box<Ast>,
    sql: String,
}

/// A statement on prepared statements.
#[derive(Debug, Clone)]
pub enum PrepareCommand {
    /// PREPARE name AS statement.
    Prepare(String, NamedStatement),
    /// EXECUTE name(values).
    Execute(String, Vec<Expr>),
    /// DEALLOCATE; without a name, all.
    Deallocate(Option<String>),
}

/// Parses PREPARE, EXECUTE or DEALLOCATE; `None` for other statements.
pub(crate) fn parse(ast: &Ast, sql: &str) -> Result<Option<Command>> {
    let command = match ast {
        Ast::Prepare { name, data_types, statement } => {
            check_kind(statement, sql)?;
            let named = NamedStatement { types: data_types.clone(), statement: statement.clone(), sql: sql.to_owned() };
            PrepareCommand::Prepare(normalized(name), named)
        }
        Ast::Execute {
            name: Some(name),
            parameters,
            immediate: false,
            into,
            using,
            output: false,
            default: false,
            ..
        } if into.is_empty() && using.is_empty() => {
            parameters.iter().try_for_each(check_value)?;
            PrepareCommand::Execute(statement_name(name)?, parameters.clone())
        }
        Ast::Execute { .. } => return Err(Error::unimplemented("write EXECUTE name(value, ..)")),
        Ast::Deallocate { name, .. } => {
            let all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
            PrepareCommand::Deallocate((!all).then(|| normalized(name)))
        }
        _ => return Ok(None),
    };
    Ok(Some(Command::with_count(StatementKind::Setting, Action::Prepare(command))))
}

fn statement_name(name: &ObjectName) -> Result<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(normalized),
        _ => None,
    }
    .ok_or_else(|| {
        Error::invalid(format!("'{name}' is not the name of a prepared statement; such a name has one part"))
    })
}

fn check_kind(statement: &Ast, sql: &str) -> Result<()> {
    let parsed = classify(SqlStatement::Statement(Box::new(statement.clone())), sql)?;
    match parsed.kind {
        StatementKind::Query | StatementKind::Insert | StatementKind::Change => Ok(()),
        _ => Err(Error::unimplemented("PREPARE takes queries, INSERT, UPDATE, DELETE and MERGE")),
    }
}

/// Refuses values with columns or subqueries: within the statement they would refer to its tables.
fn check_value(value: &Expr) -> Result<()> {
    let mut operators = 0;
    let found = visit_expressions(value, |part| match part {
        Expr::BinaryOp { .. } if operators == MOST_VALUE_OPERATORS => ControlFlow::Break("too many operators"),
        Expr::BinaryOp { .. } => {
            operators += 1;
            ControlFlow::Continue(())
        }
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => {
            ControlFlow::Break("a column; write texts in single quotes")
        }
        Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. } => ControlFlow::Break("a subquery"),
        _ => ControlFlow::Continue(()),
    });
    match found {
        ControlFlow::Break(what) => {
            let shown: String = value.to_string().chars().take(100).collect();
            Err(Error::invalid(format!("EXECUTE takes values, and {shown} contains {what}")))
        }
        ControlFlow::Continue(()) => Ok(()),
    }
}

impl NamedStatement {
    /// The text of the PREPARE.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The command of an EXECUTE, sent as `sql`, that calls this statement by `name` with `values`.
    ///
    /// # Errors
    /// For another number of values than the statement has parameters, and for values that are too long.
    pub fn bind(self, name: &str, values: &[Expr], sql: &str) -> Result<Command> {
        let wrong_count = |wanted: usize| {
            let given = values.len();
            Error::invalid(format!("prepared statement '{name}' takes {wanted} parameters, but {given} were given"))
        };
        if !self.types.is_empty() && self.types.len() != values.len() {
            return Err(wrong_count(self.types.len()));
        }
        let mut statement = self.statement;
        let mut values_used = Values { values, types: &self.types, used: 0, bytes: 0 };
        let visited = visit_expressions_mut(statement.as_mut(), |expr| values_used.bind(expr));
        match visited {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(BindFailure::Missing(placeholder)) => {
                let given = values.len();
                let message = format!(
                    "prepared statement '{name}' has the parameter {placeholder}, but {given} values were given"
                );
                return Err(Error::invalid(message));
            }
            ControlFlow::Break(BindFailure::TooLong) => {
                let message = format!(
                    "the values of EXECUTE {name}, counted each time the statement uses them, are longer than \
                     {MOST_VALUE_BYTES} bytes"
                );
                return Err(Error::invalid(message));
            }
        }
        let used = values_used.used;
        if self.types.is_empty() && used < values.len() {
            return Err(wrong_count(used));
        }
        classify(SqlStatement::Statement(statement), &format!("{} {sql}", self.sql))
    }
}

/// The values of an EXECUTE while they replace parameters.
struct Values<'a> {
    values: &'a [Expr],
    types: &'a [DataType],
    /// The highest parameter so far.
    used: usize,
    /// Bytes of text of the values so far, each counted wherever it is used.
    bytes: usize,
}

impl Values<'_> {
    /// Replaces a parameter by its value; leaves other expressions unchanged.
    fn bind(&mut self, expr: &mut Expr) -> ControlFlow<BindFailure> {
        let Expr::Value(value) = &*expr else { return ControlFlow::Continue(()) };
        let Value::Placeholder(placeholder) = &value.value else { return ControlFlow::Continue(()) };
        let number = placeholder.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let Some((at, value)) = number.checked_sub(1).and_then(|at| Some((at, self.values.get(at)?))) else {
            return ControlFlow::Break(BindFailure::Missing(placeholder.clone()));
        };
        self.used = self.used.max(number);
        self.bytes += value.to_string().len();
        if self.bytes > MOST_VALUE_BYTES {
            return ControlFlow::Break(BindFailure::TooLong);
        }
        let value = Box::new(value.clone());
        *expr = match self.types.get(at).cloned() {
            Some(data_type) => Expr::Cast { kind: CastKind::Cast, expr: value, data_type, array: false, format: None },
            None => Expr::Nested(value),
        };
        ControlFlow::Continue(())
    }
}

/// Reason why a value cannot replace a parameter.
enum BindFailure {
    Missing(String),
    TooLong,
}
