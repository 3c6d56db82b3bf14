//! Tickets: planned queries that clients may fetch, kept on the server under random names.
//!
//! A ticket carries no SQL, only a name of 256 random bits, and is fetched once by the user it was made for. The table
//! is bounded; tickets that are not fetched in time expire. While the rows of a ticket are sent, it can be used to
//! cancel them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use tonic::Status;

use crate::{
    auth::random_token,
    engine::{SessionId, StatementId},
    session::Session,
    statement::PendingQuery,
};

struct Pending {
    session: SessionId,
    user: String,
    query: PendingQuery,
    expires: Instant,
}

/// A query whose rows are being sent.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) session: SessionId,
    user: String,
    /// The running statement; changes when a query runs once per row of parameters.
    pub(crate) statement: Arc<Mutex<StatementId>>,
}

/// State of a ticket that is to be cancelled.
pub(crate) enum CancelTarget {
    /// The query was waiting; its ticket has been removed.
    Removed,
    /// The query is running.
    Running(Running),
    /// There is no such ticket: it finished, expired, or never existed.
    Unknown,
}

#[derive(Default)]
struct Table {
    pending: HashMap<String, Pending>,
    running: HashMap<String, Running>,
    next_sweep: Option<Instant>,
}

/// All tickets of the service.
pub(crate) struct Tickets {
    ttl: Duration,
    max: usize,
    table: Mutex<Table>,
}

impl Tickets {
    pub(crate) fn new(ttl: Duration, max: usize) -> Self {
        Self { ttl, max, table: Mutex::default() }
    }

    /// Keeps a query for a later fetch; returns the bytes of a Flight ticket.
    pub(crate) fn issue(&self, session: &Session, query: PendingQuery) -> Result<Vec<u8>, Status> {
        let handle = random_token();
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.pending.len() >= self.max || table.next_sweep.is_none_or(|at| at <= now) {
            table.pending.retain(|_, pending| pending.expires > now);
            table.next_sweep = Some(now + self.ttl / 4);
        }
        if table.pending.len() >= self.max {
            return Err(Status::resource_exhausted(format!(
                "{} queries wait to be fetched, which is the limit: fetch or cancel some, or try again later",
                self.max
            )));
        }
        let pending = Pending {
            session: session.id.clone(),
            user: session.principal.user.clone(),
            query,
            expires: now + self.ttl,
        };
        table.pending.insert(handle.clone(), pending);
        Ok(TicketStatementQuery { statement_handle: handle.into() }.as_any().encode_to_vec())
    }

    /// Removes the query of a ticket and returns it with the session that planned it. Fails for any user but the one
    /// that the ticket was made for.
    pub(crate) fn take(&self, handle: &str, session: &Session) -> Result<(SessionId, PendingQuery), Status> {
        let mut table = self.table.lock();
        match table.pending.get(handle) {
            Some(pending) if pending.user == session.principal.user && pending.expires > Instant::now() => {}
            _ => {
                return Err(Status::not_found(
                    "the ticket is unknown, expired or already fetched: run the query again",
                ));
            }
        }
        table
            .pending
            .remove(handle)
            .map(|pending| (pending.session, pending.query))
            .ok_or_else(|| Status::internal("a ticket disappeared while it was being fetched"))
    }

    /// Registers a running query of session `owner`, so that it can be cancelled, until the guard is dropped.
    pub(crate) fn run(
        self: &Arc<Self>,
        handle: String,
        owner: SessionId,
        caller: &Session,
        statement: Arc<Mutex<StatementId>>,
    ) -> RunningGuard {
        let running = Running { session: owner, user: caller.principal.user.clone(), statement };
        self.table.lock().running.insert(handle.clone(), running);
        RunningGuard { tickets: self.clone(), handle }
    }

    /// Finds the query to cancel by its handle. Removes the ticket when it was not fetched yet.
    pub(crate) fn cancel(&self, handle: &str, session: &Session) -> CancelTarget {
        let user = &session.principal.user;
        let mut table = self.table.lock();
        if table.pending.get(handle).is_some_and(|pending| pending.user == *user) {
            table.pending.remove(handle);
            return CancelTarget::Removed;
        }
        match table.running.get(handle) {
            Some(running) if running.user == *user => CancelTarget::Running(running.clone()),
            _ => CancelTarget::Unknown,
        }
    }

    /// Drops the tickets that a session has not fetched.
    pub(crate) fn remove_session(&self, session: &SessionId) {
        self.table.lock().pending.retain(|_, pending| pending.session != *session);
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.pending.len(), table.running.len())
    }
}

/// Forgets a running query when dropped.
pub(crate) struct RunningGuard {
    tickets: Arc<Tickets>,
    handle: String,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.tickets.table.lock().running.remove(&self.handle);
    }
}

/// The text of a handle; fails when a client sent other bytes.
pub(crate) fn handle_text(handle: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(handle).map_err(|_| Status::invalid_argument("this server did not issue the handle"))
}
