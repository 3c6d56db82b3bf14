//! PREPARE, EXECUTE and DEALLOCATE: statements kept in a session by name.

use datafusion::sql::sqlparser::ast::Expr;
use terrace_sql::Command;
use terrace_sql::command::Action;
use terrace_sql::prepare::{NamedStatement, PrepareCommand};

use super::execute::{Execute, Execution};
use super::planning;
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};

/// Most prepared statements of one session.
const MOST_STATEMENTS: usize = 1_000;
/// Most bytes of text of the prepared statements of one session.
const MOST_STATEMENT_BYTES: usize = 16 << 20;

/// Replaces an EXECUTE by the statement that it names, with its values; returns every other statement unchanged.
pub(super) fn expand(session: &Session, parsed: Command, sql: &str) -> Result<Command> {
    match &parsed.action {
        Action::Prepare(PrepareCommand::Execute(name, values)) => execute(session, name, values, sql),
        _ => Ok(parsed),
    }
}

/// Whether a statement may take long to plan, from its text; an EXECUTE from the texts that it may name.
pub(super) fn may_take_long(session: &Session, sql: &str) -> bool {
    let executes = sql.get(.."execute".len()).is_some_and(|word| word.eq_ignore_ascii_case("execute"));
    planning::may_take_long(sql, None)
        || executes && session.named_statements.lock().values().any(|named| planning::may_take_long(named.sql(), None))
}

fn execute(session: &Session, name: &str, values: &[Expr], sql: &str) -> Result<Command> {
    let named = session.named_statements.lock().get(name).cloned().ok_or_else(|| missing(name))?;
    named.bind(name, values, sql)
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("prepared statement '{name}' does not exist; make it with PREPARE"))
}

impl Execute for PrepareCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        match self {
            Self::Prepare(name, statement) => keep(execution.session(), name, statement)?,
            Self::Deallocate(None) => execution.session().named_statements.lock().clear(),
            Self::Deallocate(Some(name)) => {
                let removed = execution.session().named_statements.lock().remove(name);
                removed.ok_or_else(|| missing(name))?;
            }
            Self::Execute(..) => return Err(Error::invalid("EXECUTE is planned as the statement it names")),
        }
        Ok(0)
    }
}

/// Executes PREPARE.
fn keep(session: &Session, name: &str, statement: &NamedStatement) -> Result<()> {
    let mut named = session.named_statements.lock();
    if named.contains_key(name) {
        let message = format!("prepared statement '{name}' already exists; send DEALLOCATE {name} first");
        return Err(Error::new(ErrorKind::AlreadyExists, message));
    }
    if named.len() >= MOST_STATEMENTS {
        let message =
            format!("the session has {MOST_STATEMENTS} prepared statements, which is the limit; send DEALLOCATE first");
        return Err(Error::new(ErrorKind::ResourceExhausted, message));
    }
    let bytes: usize = named.values().map(|named| named.sql().len()).sum();
    if bytes + statement.sql().len() > MOST_STATEMENT_BYTES {
        let message =
            format!("a session may have {MOST_STATEMENT_BYTES} bytes of prepared statements; send DEALLOCATE first");
        return Err(Error::new(ErrorKind::ResourceExhausted, message));
    }
    named.insert(name.to_owned(), statement.clone());
    Ok(())
}
