//! Tickets: planned queries that clients may fetch, kept on the server under random names.
//!
//! A ticket carries no SQL, only a name of 256 random bits, and is fetched once by the user it was made for, or as often as that one
//! wants until it expires, where the query has the same rows each time; its session may renew it then. On another connection the user may
//! fetch it too, but not by a token that may do less than the session that planned the query ([`Principal::covers`]). A query with several
//! endpoints has a ticket for each of them, the name with a number, but is one entry, which is cancelled, dropped and expires as a whole. The table
//! is bounded in number and in bytes; tickets that are not fetched in time expire, a session that keeps too many bytes loses its
//! oldest ones and, where the table is full, the user with the most tickets does. Those that were fetched already make room
//! first. While the rows of a ticket are sent, it can be used to cancel them.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use parking_lot::Mutex;
use prost::Message;
use terrace_access::random_secret;
use terrace_model::clock::{Clock, SystemClock};
use tokio::time::Instant;
use tonic::Status;

use crate::{
    endpoints::SharedRows,
    engine::{Principal, SessionId},
    execution::Executions,
    kept::{Charge, Full, Kept},
    session::Session,
    statement::PendingQuery,
};

/// Tickets that were dropped to make room and are remembered, so that their client learns why.
const MAX_REMEMBERED: usize = 1024;

/// Longest life of a ticket that is renewed, in times to live: it keeps the old versions of tables that it reads.
const MOST_LIVES: u32 = 24;

/// How often a ticket can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uses {
    /// Once through each endpoint.
    One,
    /// As often as its client wants until it expires.
    Many,
}

/// The tickets of a query for a client.
pub(crate) struct Issued {
    /// The bytes of the Flight tickets, one for each endpoint.
    pub(crate) tickets: Vec<Vec<u8>>,
    /// Until when they can be fetched again, in microseconds of Unix time; `None`: they are fetched once.
    pub(crate) expires_unix_us: Option<u64>,
}

struct Pending {
    session: SessionId,
    /// Who planned the query.
    principal: Principal,
    query: PendingQuery,
    uses: Uses,
    /// Numbers of the endpoints that can be fetched.
    endpoints: Vec<usize>,
    was_fetched: bool,
    /// Past this time it is not renewed.
    last_renewal: Instant,
    expires: Instant,
    /// Grows with each ticket.
    number: u64,
}

/// A query whose rows are being sent.
#[derive(Clone)]
pub(crate) struct Running {
    /// Who fetches its rows.
    principal: Principal,
    /// Differs from that of all other runs.
    number: u64,
    /// Of its own, or those of all endpoints of its result.
    pub(crate) executions: Arc<Executions>,
}

/// A query that is fetched now.
pub(crate) struct Taken {
    pub(crate) query: PendingQuery,
    /// The executions that it can be cancelled by.
    pub(crate) executions: Arc<Executions>,
    /// It can be cancelled until this is dropped.
    pub(crate) running: RunningGuard,
}

/// What a ticket that is to be cancelled stood for; nothing for one that finished, expired, or never existed.
pub(crate) struct CancelTarget {
    /// The query waited to be fetched; its tickets have been removed.
    pub(crate) was_removed: bool,
    /// Its runs that have not ended.
    pub(crate) running: Vec<Running>,
    /// The rows that its endpoints share, where it waited to be fetched through some.
    pub(crate) shared: Option<Arc<SharedRows>>,
}

#[derive(Default)]
struct Table {
    /// Queries by name.
    pending: HashMap<String, Pending>,
    /// Runs by name; several where a ticket is fetched again before its rows have been sent, and of several endpoints.
    running: HashMap<String, Vec<Running>>,
    next_sweep: Option<Instant>,
    issued: u64,
    started: u64,
    /// The latest tickets that were dropped to make room, oldest first.
    dropped: VecDeque<String>,
}

impl Table {
    /// The query of a ticket, for one fetch.
    fn take(&mut self, handle: &str, session: &Session) -> Result<PendingQuery, Status> {
        let Place { query, endpoint } = Place::new(handle);
        let now = Instant::now();
        if !self.pending.contains_key(query) && self.dropped.iter().any(|dropped| dropped == query) {
            return Err(Status::not_found(
                "the ticket was dropped before it was fetched, or fetched again, because too many planned queries were kept: \
                 fetch the rows of a query before planning more, and run this query again",
            ));
        }
        let pending = self.pending.get_mut(query).filter(|pending| pending.expires > now);
        let own = pending.filter(|pending| session.principal.covers(&pending.principal));
        let pending = own.ok_or_else(unknown)?;
        let place = pending.endpoints.iter().position(|number| *number == endpoint).ok_or_else(unknown)?;
        if pending.uses == Uses::Many {
            pending.was_fetched = true;
            return Ok(pending.query.clone());
        }
        pending.endpoints.swap_remove(place);
        if !pending.endpoints.is_empty() {
            return Ok(pending.query.clone());
        }
        let taken = self.pending.remove(query).map(|pending| pending.query);
        taken.ok_or_else(|| Status::internal("a ticket disappeared while it was being fetched"))
    }

    /// Drops a ticket to make room, and remembers that.
    fn drop_ticket(&mut self, handle: String) -> Option<Pending> {
        let dropped = self.pending.remove(&handle);
        if self.dropped.len() >= MAX_REMEMBERED {
            self.dropped.pop_front();
        }
        self.dropped.push_back(handle);
        dropped
    }

    /// Drops the oldest ticket of the session that has the most, of the user who has the most.
    fn drop_of_largest(&mut self) -> Option<Pending> {
        let user = most_common(self.pending.values(), |pending| pending.principal.user.as_str())?;
        let of_user = || self.pending.iter().filter(move |(_, pending)| pending.principal.user == user);
        let session = most_common(of_user().map(|(_, pending)| pending), |pending| &pending.session)?;
        let of_session = of_user().filter(|(_, pending)| pending.session == *session);
        let handle = of_session.min_by_key(|(_, pending)| pending.number).map(|(handle, _)| handle.clone())?;
        self.drop_ticket(handle)
    }
}

/// The key that most of the tickets have; of several, that of the oldest ticket.
fn most_common<'a, K: Eq + Hash>(
    tickets: impl Iterator<Item = &'a Pending>,
    key: impl Fn(&'a Pending) -> K,
) -> Option<K> {
    let mut counts: HashMap<K, (usize, u64)> = HashMap::new();
    for pending in tickets {
        let (count, oldest) = counts.entry(key(pending)).or_insert((0, pending.number));
        *count += 1;
        *oldest = pending.number.min(*oldest);
    }
    let most = counts.into_iter().max_by_key(|(_, (count, oldest))| (*count, Reverse(*oldest)));
    most.map(|(key, _)| key)
}

/// All tickets of the service.
pub(crate) struct Tickets {
    ttl: Duration,
    max: usize,
    kept: Arc<Kept>,
    table: Mutex<Table>,
    clock: SystemClock,
}

impl Tickets {
    pub(crate) fn new(ttl: Duration, max: usize, kept: Arc<Kept>) -> Self {
        Self { ttl, max, kept, table: Mutex::default(), clock: SystemClock::default() }
    }

    /// A time to come in microseconds of Unix time.
    fn unix_us(&self, time: Instant) -> u64 {
        let left = time.saturating_duration_since(Instant::now());
        self.clock.unix_us().saturating_add(u64::try_from(left.as_micros()).unwrap_or(u64::MAX))
    }

    /// Charges a session for `bytes` that it is about to keep. Drops the oldest tickets of the session where it would
    /// keep too much with them, those of its user where all sessions of that one would, and where all sessions would, expired ones and then those that were fetched already.
    pub(crate) fn charge(&self, session: &Session, bytes: u64) -> Result<Arc<Charge>, Status> {
        let mut has_swept = false;
        loop {
            let full = match self.kept.charge(&session.id, session.principal.owner_name(), bytes) {
                Ok(charge) => return Ok(charge),
                Err(full) => full,
            };
            let has_room = match full {
                Full::Session { .. } => self.drop_oldest(|pending| pending.session == session.id),
                Full::User { .. } => self.drop_oldest(|pending| pending.principal.user == session.principal.user),
                Full::All { .. } if has_swept => self.drop_oldest(|pending| pending.was_fetched),
                Full::All { .. } => {
                    has_swept = true;
                    self.drop_expired() || self.drop_oldest(|pending| pending.was_fetched)
                }
            };
            if !has_room {
                return Err(full.into());
            }
        }
    }

    /// Drops the oldest of some tickets that frees memory, one that was fetched if there is any. False when there is none.
    fn drop_oldest(&self, may_go: impl Fn(&Pending) -> bool) -> bool {
        let mut table = self.table.lock();
        let candidates = table.pending.iter().filter(|(_, p)| may_go(p) && p.query.frees_memory());
        let oldest = candidates.min_by_key(|(_, pending)| (!pending.was_fetched, pending.number));
        let oldest = oldest.map(|(handle, _)| handle.clone());
        let Some(handle) = oldest else { return false };
        let dropped = table.drop_ticket(handle);
        drop(table);
        // Without the lock: a plan may be large.
        drop(dropped);
        true
    }

    /// Drops the expired tickets; false when there are none.
    pub(crate) fn drop_expired(&self) -> bool {
        let now = Instant::now();
        let expired: Vec<_> = self.table.lock().pending.extract_if(|_, pending| pending.expires <= now).collect();
        !expired.is_empty()
    }

    /// Keeps a query for later fetches through so many endpoints.
    pub(crate) fn issue(&self, session: &Session, query: PendingQuery, uses: Uses, endpoints: usize) -> Issued {
        let name = random_secret();
        let now = Instant::now();
        let expires = now + self.ttl;
        let mut expired = Vec::new();
        let mut table = self.table.lock();
        if table.pending.len() >= self.max || table.next_sweep.is_none_or(|at| at <= now) {
            expired.extend(table.pending.extract_if(|_, pending| pending.expires <= now));
            table.next_sweep = Some(now + self.ttl / 4);
        }
        // Who plans much and fetches nothing loses queries, not others.
        let dropped = if table.pending.len() >= self.max { table.drop_of_largest() } else { None };
        table.issued += 1;
        let pending = Pending {
            number: table.issued,
            session: session.id.clone(),
            principal: session.principal.clone(),
            query,
            uses,
            endpoints: (0..endpoints).collect(),
            was_fetched: false,
            last_renewal: now + self.ttl * (MOST_LIVES - 1),
            expires,
        };
        table.pending.insert(name.clone(), pending);
        drop(table);
        // Without the lock: a plan may be large.
        drop((dropped, expired));
        let handles = (0..endpoints).map(|number| if number == 0 { name.clone() } else { format!("{name}/{number}") });
        let ticket = |handle: String| TicketStatementQuery { statement_handle: handle.into() }.as_any().encode_to_vec();
        let expires_unix_us = (uses == Uses::Many).then(|| self.unix_us(expires));
        Issued { tickets: handles.map(ticket).collect(), expires_unix_us }
    }

    /// Lets a ticket that can be fetched again live for the time to live from now on. Returns when it expires then, in
    /// microseconds of Unix time. Fails for a ticket of another session as for one that there never was.
    pub(crate) fn renew(&self, handle: &str, session: &Session) -> Result<u64, Status> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let Place { query, endpoint } = Place::new(handle);
        let own = table.pending.get_mut(query).filter(|p| p.session == session.id && p.expires > now);
        let pending = own.filter(|p| p.endpoints.contains(&endpoint)).ok_or_else(unknown)?;
        if pending.uses == Uses::One {
            return Err(Status::invalid_argument(
                "the ticket is for one fetch and has no expiration time: only tickets of calls with the header \
                 'terrace-tickets: keep' are renewed",
            ));
        }
        // The last renewal is for a whole time to live, too.
        pending.expires = pending.expires.max(now.min(pending.last_renewal) + self.ttl);
        let expires = pending.expires;
        drop(table);
        Ok(self.unix_us(expires))
    }

    /// The query of a ticket, which is removed when all of its endpoints were fetched, unless it can be fetched again. From now on it runs,
    /// and can be cancelled. Fails for all who may not do what the session may that the ticket was made for.
    pub(crate) fn take(self: &Arc<Self>, handle: &str, session: &Session) -> Result<Taken, Status> {
        let mut table = self.table.lock();
        let query = table.take(handle, session)?;
        // Under the same lock: who cancels finds the query among those that wait, or among those that run.
        let executions = query.shared().map_or_else(Arc::default, |rows| rows.executions());
        let name = Place::new(handle).query.to_owned();
        table.started += 1;
        let number = table.started;
        let run = Running { principal: session.principal.clone(), number, executions: executions.clone() };
        table.running.entry(name.clone()).or_default().push(run);
        drop(table);
        Ok(Taken { query, executions, running: RunningGuard { tickets: self.clone(), name, number } })
    }

    /// Finds the query to cancel by a handle: one of the same user, unless a token takes more away, or of another for those who may
    /// cancel all. Removes the own tickets, so that they are not fetched any more.
    pub(crate) fn cancel(&self, handle: &str, session: &Session, may_cancel_all: impl Fn() -> bool) -> CancelTarget {
        let caller = &session.principal;
        let mut table = self.table.lock();
        let name = Place::new(handle).query;
        let is_own = table.pending.get(name).is_some_and(|pending| caller.covers(&pending.principal));
        let removed = if is_own { table.pending.remove(name) } else { None };
        let runs = table.running.get(name).map(Vec::as_slice).unwrap_or_default();
        let running = runs.iter().filter(|run| caller.covers(&run.principal) || may_cancel_all()).cloned().collect();
        drop(table);
        let shared = removed.as_ref().and_then(|pending| pending.query.shared());
        CancelTarget { was_removed: removed.is_some(), running, shared }
    }

    /// Drops the tickets that a session has not fetched.
    pub(crate) fn remove_session(&self, session: &SessionId) {
        let of_session: Vec<_> =
            self.table.lock().pending.extract_if(|_, pending| pending.session == *session).collect();
        // Without the lock: plans may be large.
        drop(of_session);
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
    name: String,
    number: u64,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut table = self.tickets.table.lock();
        let Some(runs) = table.running.get_mut(&self.name) else { return };
        runs.retain(|run| run.number != self.number);
        if runs.is_empty() {
            table.running.remove(&self.name);
        }
    }
}

/// The place of rows that a handle names.
struct Place<'a> {
    /// Name of the query.
    query: &'a str,
    /// Number of the endpoint.
    endpoint: usize,
}

impl<'a> Place<'a> {
    fn new(handle: &'a str) -> Self {
        match handle.split_once('/') {
            Some((query, number)) => Self { query, endpoint: number.parse().unwrap_or(usize::MAX) },
            None => Self { query: handle, endpoint: 0 },
        }
    }
}

fn unknown() -> Status {
    Status::not_found("the ticket is unknown, expired or already fetched: run the query again")
}

/// The text of a handle; fails when a client sent other bytes.
pub(crate) fn handle_text(handle: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(handle).map_err(|_| Status::invalid_argument("this server did not issue the handle"))
}
