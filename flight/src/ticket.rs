//! Tickets: planned queries that clients may fetch, kept on the server under random names.
//!
//! A ticket carries no SQL, only a name of 256 random bits, and is fetched once by the user it was made for. The table
//! is bounded in number and in bytes; tickets that are not fetched in time expire, a session that keeps too many bytes loses its
//! oldest ones and, where the table is full, the session with the most tickets does. While the rows of a ticket are sent, it can be used to cancel them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use parking_lot::Mutex;
use prost::Message;
use terrace_access::random_secret;
use tokio::time::Instant;
use tonic::Status;

use crate::{
    engine::{SessionId, StatementId},
    kept::{Charge, Full, Kept},
    session::Session,
    statement::PendingQuery,
};

/// Tickets that were dropped to make room and are remembered, so that their client learns why.
const MAX_REMEMBERED: usize = 1024;

struct Pending {
    session: SessionId,
    user: String,
    query: PendingQuery,
    expires: Instant,
    /// Grows with each ticket.
    number: u64,
}

/// A query whose rows are being sent.
#[derive(Clone)]
pub(crate) struct Running {
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
    issued: u64,
    /// The latest tickets that were dropped to make room, oldest first.
    dropped: VecDeque<String>,
}

impl Table {
    /// Drops a ticket to make room, and remembers that.
    fn drop_ticket(&mut self, handle: String) -> Option<Pending> {
        let dropped = self.pending.remove(&handle);
        if self.dropped.len() >= MAX_REMEMBERED {
            self.dropped.pop_front();
        }
        self.dropped.push_back(handle);
        dropped
    }

    /// Drops the oldest ticket of the session that has the most.
    fn drop_of_largest(&mut self) -> Option<Pending> {
        let mut counts: HashMap<&SessionId, (usize, u64, &String)> = HashMap::new();
        for (handle, pending) in &self.pending {
            let (count, oldest, its) = counts.entry(&pending.session).or_insert((0, pending.number, handle));
            *count += 1;
            if pending.number < *oldest {
                (*oldest, *its) = (pending.number, handle);
            }
        }
        let largest = counts.into_values().max_by_key(|(count, oldest, _)| (*count, std::cmp::Reverse(*oldest)));
        let handle = largest.map(|(_, _, handle)| handle.clone())?;
        self.drop_ticket(handle)
    }
}

/// All tickets of the service.
pub(crate) struct Tickets {
    ttl: Duration,
    max: usize,
    kept: Arc<Kept>,
    table: Mutex<Table>,
}

impl Tickets {
    pub(crate) fn new(ttl: Duration, max: usize, kept: Arc<Kept>) -> Self {
        Self { ttl, max, kept, table: Mutex::default() }
    }

    /// Charges a session for `bytes` that it is about to keep. Drops the oldest tickets of the session where it would
    /// keep too much with them, and expired ones where all sessions would.
    pub(crate) fn charge(&self, session: &Session, bytes: u64) -> Result<Arc<Charge>, Status> {
        let mut has_swept = false;
        loop {
            let full = match self.kept.charge(&session.id, bytes) {
                Ok(charge) => return Ok(charge),
                Err(full) => full,
            };
            let has_room = match full {
                Full::Session { .. } => self.drop_oldest(&session.id),
                Full::All { .. } if has_swept => false,
                Full::All { .. } => {
                    has_swept = true;
                    self.drop_expired()
                }
            };
            if !has_room {
                return Err(full.into());
            }
        }
    }

    /// Drops the oldest ticket of a session that frees memory; false when there is none.
    fn drop_oldest(&self, session: &SessionId) -> bool {
        let mut table = self.table.lock();
        let candidates = table.pending.iter().filter(|(_, p)| p.session == *session && p.query.frees_memory());
        let oldest = candidates.min_by_key(|(_, pending)| pending.number).map(|(handle, _)| handle.clone());
        let Some(handle) = oldest else { return false };
        let dropped = table.drop_ticket(handle);
        drop(table);
        // Without the lock: a plan may be large.
        drop(dropped);
        true
    }

    /// Drops the expired tickets; false when there are none.
    fn drop_expired(&self) -> bool {
        let now = Instant::now();
        let expired: Vec<_> = self.table.lock().pending.extract_if(|_, pending| pending.expires <= now).collect();
        !expired.is_empty()
    }

    /// Keeps a query for a later fetch; returns the bytes of a Flight ticket.
    pub(crate) fn issue(&self, session: &Session, query: PendingQuery) -> Result<Vec<u8>, Status> {
        let handle = random_secret();
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.pending.len() >= self.max || table.next_sweep.is_none_or(|at| at <= now) {
            table.pending.retain(|_, pending| pending.expires > now);
            table.next_sweep = Some(now + self.ttl / 4);
        }
        // Who plans much and fetches nothing loses queries, not others.
        let dropped = if table.pending.len() >= self.max { table.drop_of_largest() } else { None };
        table.issued += 1;
        let pending = Pending {
            number: table.issued,
            session: session.id.clone(),
            user: session.principal.user.clone(),
            query,
            expires: now + self.ttl,
        };
        table.pending.insert(handle.clone(), pending);
        drop(table);
        // Without the lock: a plan may be large.
        drop(dropped);
        Ok(TicketStatementQuery { statement_handle: handle.into() }.as_any().encode_to_vec())
    }

    /// Removes the query of a ticket and returns it. Fails for any user but the one
    /// that the ticket was made for.
    pub(crate) fn take(&self, handle: &str, session: &Session) -> Result<PendingQuery, Status> {
        let mut table = self.table.lock();
        match table.pending.get(handle) {
            Some(pending) if pending.user == session.principal.user && pending.expires > Instant::now() => {}
            None if table.dropped.iter().any(|dropped| dropped == handle) => {
                return Err(Status::not_found(
                    "the ticket was dropped before it was fetched, because its session kept too many planned queries: fetch \
                     the rows of a query before planning more, and run this query again",
                ));
            }
            _ => {
                return Err(Status::not_found(
                    "the ticket is unknown, expired or already fetched: run the query again",
                ));
            }
        }
        table
            .pending
            .remove(handle)
            .map(|pending| pending.query)
            .ok_or_else(|| Status::internal("a ticket disappeared while it was being fetched"))
    }

    /// Registers a running query, so that it can be cancelled, until the guard is dropped.
    pub(crate) fn run(
        self: &Arc<Self>,
        handle: String,
        caller: &Session,
        statement: Arc<Mutex<StatementId>>,
    ) -> RunningGuard {
        let running = Running { user: caller.principal.user.clone(), statement };
        self.table.lock().running.insert(handle.clone(), running);
        RunningGuard { tickets: self.clone(), handle }
    }

    /// Finds the query to cancel by its handle: one of the same user, or of another for those who may cancel all. Removes the
    /// own ticket when it was not fetched yet.
    pub(crate) fn cancel(&self, handle: &str, session: &Session, may_cancel_all: impl Fn() -> bool) -> CancelTarget {
        let user = &session.principal.user;
        let mut table = self.table.lock();
        if table.pending.get(handle).is_some_and(|pending| pending.user == *user) {
            table.pending.remove(handle);
            return CancelTarget::Removed;
        }
        match table.running.get(handle) {
            Some(running) if running.user == *user || may_cancel_all() => CancelTarget::Running(running.clone()),
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
