//! Ends running statements: one's own, and with the right CANCEL those of others. SQL, Flight and HTTP ask here, and each order is
//! an event of the audit trail.

use terrace_access::{Ending, Event, EventKind, Origin, Principal, Right};
use terrace_sql::command::CancelCommand;

use super::execute::{Execute, Execution};
use super::users::refuse_read_only;
use super::{Engine, rights};
use crate::error::{Error, ErrorKind, Result};

impl Engine {
    /// Cancels a running statement, whoever asks; false when none has this id. See [`Self::cancel_for`].
    pub fn cancel(&self, id: &str) -> bool {
        self.registry.cancel(id)
    }

    /// Tells a running statement to stop, for `by`, who is at `origin`; does not wait for its end. False when none has this id, or
    /// `by` may not know that one has.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] for whoever may see the statements of others, and may not end them.
    pub fn cancel_for(&self, by: &Principal, origin: Origin, id: &str) -> Result<bool> {
        let Some(runs_for) = self.registry.principal(id) else { return Ok(false) };
        let authority = self.users.authority(by);
        // A token with a scope is for its own statements only.
        let is_own = runs_for.user == by.user && (by.scope().is_none() || runs_for == *by);
        let checked = if is_own { Ok(()) } else { rights::check_server(&authority, Right::Cancel) };
        let is_told = checked.is_ok() && self.registry.cancel(id);
        let mut event =
            Event::new(EventKind::Cancel, "cancel", &by.user, origin).with_text(&format!("of {}", runs_for.user));
        event.statement = Some(id.to_owned());
        self.options.audit.record(match (&checked, is_told) {
            (Ok(()), true) => event,
            (Ok(()), false) => event.ended(Ending::Failed, Some("not_found".to_owned())),
            (Err(_), _) => event.ended(Ending::Refused, Some("permission_denied".to_owned())),
        });
        match checked {
            Err(error) if authority.may_on_server(Right::Monitor) => Err(error),
            _ => Ok(is_told),
        }
    }
}

impl Execute for CancelCommand {
    /// Tells the statement to stop, and does not wait for its end.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let session = execution.session();
        refuse_read_only(session)?;
        let Self { statement } = self;
        let is_itself = statement == execution.ticket.id();
        if is_itself || !execution.engine().cancel_for(session.principal(), session.origin(), statement)? {
            return Err(not_running(statement));
        }
        Ok(1)
    }
}

fn not_running(statement: &str) -> Error {
    let message = format!(
        "no statement '{statement}' is running; SELECT id, sql FROM system.queries WHERE state IN ('planning', \
         'queued', 'running', 'stalled') lists those that are"
    );
    Error::new(ErrorKind::NotFound, message)
}
