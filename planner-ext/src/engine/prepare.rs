//! PREPARE, EXECUTE and DEALLOCATE: statements kept in a session by name.
//!
//! EXECUTE is the kept statement with its parameters written in; it is planned as if it had been sent like this.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, ObjectName, Statement as Ast, Value, visit_expressions, visit_expressions_mut,
};

use super::parse::{Command, Parsed, classify, normalized};
use super::registry::StatementKind;
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};

/// Statements that one session may keep.
const MOST_KEPT: usize = 1_000;
/// Bytes of text that the statements of one session may have.
const MOST_KEPT_BYTES: usize = 16 << 20;
/// Operators of one value: they come on top of those of the statement.
const MOST_VALUE_OPERATORS: usize = 1_000;
/// Bytes of text that the values of an EXECUTE may have, each counted wherever it is used.
const MOST_VALUE_BYTES: usize = 1 << 20;

/// A statement and the types of its parameters, as far as PREPARE named them.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    types: Vec<DataType>,
    statement: Box<Ast>,
    sql: String,
}

/// What is said of kept statements.
#[derive(Debug, Clone)]
pub(super) enum PrepareCommand {
    Prepare(String, Kept),
    Execute(String, Vec<Expr>),
    /// Without a name, all.
    Deallocate(Option<String>),
}

/// The command of PREPARE, EXECUTE or DEALLOCATE.
pub(super) fn parse(ast: &Ast, sql: &str) -> Result<Option<Parsed>> {
    let command = match ast {
        Ast::Prepare { name, data_types, statement } => {
            check(statement, sql)?;
            let kept = Kept { types: data_types.clone(), statement: statement.clone(), sql: sql.to_owned() };
            PrepareCommand::Prepare(normalized(name), kept)
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
            PrepareCommand::Execute(name_of(name)?, parameters.clone())
        }
        Ast::Execute { .. } => return Err(Error::unimplemented("write EXECUTE name(value, ..)")),
        Ast::Deallocate { name, .. } => {
            let all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
            PrepareCommand::Deallocate((!all).then(|| normalized(name)))
        }
        _ => return Ok(None),
    };
    Ok(Some(Parsed { command: Command::Prepare(command), kind: StatementKind::Setting, is_update: true }))
}

fn name_of(name: &ObjectName) -> Result<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(normalized),
        _ => None,
    }
    .ok_or_else(|| Error::invalid(format!("'{name}' is not the name of a prepared statement; it has one part")))
}

fn check(statement: &Ast, sql: &str) -> Result<()> {
    let parsed = classify(SqlStatement::Statement(Box::new(statement.clone())), sql)?;
    match parsed.kind {
        StatementKind::Query | StatementKind::Insert | StatementKind::Change => Ok(()),
        _ => Err(Error::unimplemented("PREPARE takes queries, INSERT, UPDATE, DELETE and MERGE")),
    }
}

/// Refuses values with columns or subqueries: written into the statement, they would be those of its tables.
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

/// The kept statement that an EXECUTE means; every other statement as it is.
pub(super) fn expand(session: &Session, parsed: Parsed, sql: &str) -> Result<Parsed> {
    let Command::Prepare(PrepareCommand::Execute(name, values)) = &parsed.command else { return Ok(parsed) };
    let kept = session.kept.lock().get(name).cloned().ok_or_else(|| missing(name))?;
    if !kept.types.is_empty() && kept.types.len() != values.len() {
        let wanted = kept.types.len();
        let given = values.len();
        return Err(Error::invalid(format!(
            "prepared statement '{name}' takes {wanted} parameters, {given} were given"
        )));
    }
    let mut statement = kept.statement;
    let lengths: Vec<usize> = values.iter().map(|value| value.to_string().len()).collect();
    let mut used = 0;
    let mut bytes = 0;
    let bound = visit_expressions_mut(statement.as_mut(), |expr| {
        let Expr::Value(value) = &*expr else { return ControlFlow::Continue(()) };
        let Value::Placeholder(placeholder) = &value.value else { return ControlFlow::Continue(()) };
        let number = placeholder.strip_prefix('$').and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        let Some(given) = number.checked_sub(1).and_then(|at| values.get(at)) else {
            return ControlFlow::Break(Refused::Missing(placeholder.clone()));
        };
        used = used.max(number);
        bytes += lengths[number - 1];
        if bytes > MOST_VALUE_BYTES {
            return ControlFlow::Break(Refused::TooLong);
        }
        let given = Box::new(given.clone());
        *expr = match kept.types.get(number - 1).cloned() {
            Some(data_type) => Expr::Cast { kind: CastKind::Cast, expr: given, data_type, array: false, format: None },
            None => Expr::Nested(given),
        };
        ControlFlow::Continue(())
    });
    match bound {
        ControlFlow::Continue(()) => {}
        ControlFlow::Break(Refused::Missing(placeholder)) => {
            let given = values.len();
            let message = format!("prepared statement '{name}' has the parameter {placeholder}, {given} were given");
            return Err(Error::invalid(message));
        }
        ControlFlow::Break(Refused::TooLong) => {
            let message = format!(
                "the values of EXECUTE {name}, wherever it uses them, are longer than {MOST_VALUE_BYTES} bytes"
            );
            return Err(Error::invalid(message));
        }
    }
    if kept.types.is_empty() && used < values.len() {
        let given = values.len();
        return Err(Error::invalid(format!("prepared statement '{name}' takes {used} parameters, {given} were given")));
    }
    classify(SqlStatement::Statement(statement), &format!("{} {sql}", kept.sql))
}

/// Why a value is not written in.
enum Refused {
    Missing(String),
    TooLong,
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("prepared statement '{name}' does not exist; make it with PREPARE"))
}

/// Keeps a statement, or forgets it.
pub(super) fn run(session: &Session, command: &PrepareCommand) -> Result<u64> {
    let mut kept = session.kept.lock();
    match command {
        PrepareCommand::Prepare(name, _) if kept.contains_key(name) => {
            let message = format!("prepared statement '{name}' already exists; send DEALLOCATE {name} first");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        PrepareCommand::Prepare(..) if kept.len() >= MOST_KEPT => {
            let message = format!("the session keeps {MOST_KEPT} prepared statements; send DEALLOCATE first");
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        PrepareCommand::Prepare(_, statement)
            if kept.values().map(|kept| kept.sql.len()).sum::<usize>() + statement.sql.len() > MOST_KEPT_BYTES =>
        {
            let message =
                format!("the session keeps {MOST_KEPT_BYTES} bytes of prepared statements; send DEALLOCATE first");
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        PrepareCommand::Prepare(name, statement) => {
            kept.insert(name.clone(), statement.clone());
        }
        PrepareCommand::Deallocate(None) => kept.clear(),
        PrepareCommand::Deallocate(Some(name)) => {
            kept.remove(name).ok_or_else(|| missing(name))?;
        }
        PrepareCommand::Execute(..) => return Err(Error::invalid("EXECUTE is planned as the statement it names")),
    }
    Ok(0)
}
