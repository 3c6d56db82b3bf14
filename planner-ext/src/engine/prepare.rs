//! PREPARE, EXECUTE and DEALLOCATE: statements kept in a session by name.
//!
//! EXECUTE replaces the parameters of the stored statement by its values, and the result is planned as if the client had
//! sent it.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, ObjectName, Statement as Ast, Value, visit_expressions, visit_expressions_mut,
};

use super::command::{Action, Command, normalized};
use super::parse::classify;
use super::registry::StatementKind;
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};

/// Most prepared statements of one session.
const MOST_STATEMENTS: usize = 1_000;
/// Most bytes of text of the prepared statements of one session.
const MOST_STATEMENT_BYTES: usize = 16 << 20;
/// Most operators of one value, in addition to those of the statement.
const MOST_VALUE_OPERATORS: usize = 1_000;
/// Most bytes of text of the values of an EXECUTE, each counted wherever it is used.
const MOST_VALUE_BYTES: usize = 1 << 20;

/// A statement that PREPARE stored, with the parameter types that it named, if any.
#[derive(Debug, Clone)]
pub(super) struct NamedStatement {
    types: Vec<DataType>,
    statement: Box<Ast>,
    sql: String,
}

/// A statement on prepared statements.
#[derive(Debug, Clone)]
pub(super) enum PrepareCommand {
    Prepare(String, NamedStatement),
    Execute(String, Vec<Expr>),
    /// Without a name, all.
    Deallocate(Option<String>),
}

/// Parses PREPARE, EXECUTE or DEALLOCATE; `None` for other statements.
pub(super) fn parse(ast: &Ast, sql: &str) -> Result<Option<Command>> {
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
    .ok_or_else(|| Error::invalid(format!("'{name}' is not the name of a prepared statement; it has one part")))
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
        Expr::BinaryOp { .. } if operators == MOST_VALUE_OPERATORS => {
            ControlFlow::Break("more operators than there may be")
        }
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
            Err(Error::invalid(format!("EXECUTE takes values, and {shown} has {what}")))
        }
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Replaces an EXECUTE by the statement that it names, with its values; returns every other statement unchanged.
pub(super) fn expand(session: &Session, parsed: Command, sql: &str) -> Result<Command> {
    let Action::Prepare(PrepareCommand::Execute(name, values)) = &parsed.action else { return Ok(parsed) };
    let named = session.named_statements.lock().get(name).cloned().ok_or_else(|| missing(name))?;
    if !named.types.is_empty() && named.types.len() != values.len() {
        let wanted = named.types.len();
        let given = values.len();
        return Err(Error::invalid(format!(
            "prepared statement '{name}' takes {wanted} parameters, {given} were given"
        )));
    }
    let mut statement = named.statement;
    let lengths: Vec<usize> = values.iter().map(|value| value.to_string().len()).collect();
    let mut used = 0;
    let mut bytes = 0;
    let visited = visit_expressions_mut(statement.as_mut(), |expr| {
        let Expr::Value(value) = &*expr else { return ControlFlow::Continue(()) };
        let Value::Placeholder(placeholder) = &value.value else { return ControlFlow::Continue(()) };
        let number = placeholder.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let Some(value) = number.checked_sub(1).and_then(|at| values.get(at)) else {
            return ControlFlow::Break(BindFailure::Missing(placeholder.clone()));
        };
        used = used.max(number);
        bytes += lengths[number - 1];
        if bytes > MOST_VALUE_BYTES {
            return ControlFlow::Break(BindFailure::TooLong);
        }
        let value = Box::new(value.clone());
        *expr = match named.types.get(number - 1).cloned() {
            Some(data_type) => Expr::Cast { kind: CastKind::Cast, expr: value, data_type, array: false, format: None },
            None => Expr::Nested(value),
        };
        ControlFlow::Continue(())
    });
    match visited {
        ControlFlow::Continue(()) => {}
        ControlFlow::Break(BindFailure::Missing(placeholder)) => {
            let given = values.len();
            let message = format!("prepared statement '{name}' has the parameter {placeholder}, {given} were given");
            return Err(Error::invalid(message));
        }
        ControlFlow::Break(BindFailure::TooLong) => {
            let message = format!(
                "the values of EXECUTE {name}, wherever it uses them, are longer than {MOST_VALUE_BYTES} bytes"
            );
            return Err(Error::invalid(message));
        }
    }
    if named.types.is_empty() && used < values.len() {
        let given = values.len();
        return Err(Error::invalid(format!("prepared statement '{name}' takes {used} parameters, {given} were given")));
    }
    classify(SqlStatement::Statement(statement), &format!("{} {sql}", named.sql))
}

/// Reason why a value cannot replace a parameter.
enum BindFailure {
    Missing(String),
    TooLong,
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("prepared statement '{name}' does not exist; make it with PREPARE"))
}

/// Executes PREPARE and DEALLOCATE.
pub(super) fn run(session: &Session, command: &PrepareCommand) -> Result<u64> {
    let mut named = session.named_statements.lock();
    match command {
        PrepareCommand::Prepare(name, _) if named.contains_key(name) => {
            let message = format!("prepared statement '{name}' already exists; send DEALLOCATE {name} first");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        PrepareCommand::Prepare(..) if named.len() >= MOST_STATEMENTS => {
            let message = format!("the session keeps {MOST_STATEMENTS} prepared statements; send DEALLOCATE first");
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        PrepareCommand::Prepare(_, statement)
            if named.values().map(|named| named.sql.len()).sum::<usize>() + statement.sql.len()
                > MOST_STATEMENT_BYTES =>
        {
            let message =
                format!("the session keeps {MOST_STATEMENT_BYTES} bytes of prepared statements; send DEALLOCATE first");
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        PrepareCommand::Prepare(name, statement) => {
            named.insert(name.clone(), statement.clone());
        }
        PrepareCommand::Deallocate(None) => named.clear(),
        PrepareCommand::Deallocate(Some(name)) => {
            named.remove(name).ok_or_else(|| missing(name))?;
        }
        PrepareCommand::Execute(..) => return Err(Error::invalid("EXECUTE is planned as the statement it names")),
    }
    Ok(0)
}
