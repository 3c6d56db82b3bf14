//! Sessions: the user of a call, and the state that this client has on the server.
//!
//! A login opens a session that lives as long as its bearer token; such sessions are bounded in number and expire when
//! unused. A client without a token, because the service is open or because it repeats its user and password with each
//! call, gets the session of its user on its connection, which ends with the connection. So two clients with
//! the same user never share a session, unless a proxy puts them on one connection. A session that ends rolls back its
//! uncommitted changes. The service sets no cookies, so none can name a session.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Extensions, Status, metadata::MetadataMap};

use crate::{
    auth::{Authentication, Credentials, random_token},
    connection::Connection,
    engine::{Engine, Principal, SessionId},
    error,
    metrics::FlightMetrics,
    options::FlightOptions,
    prepared::Prepared,
    proto::SessionOptionValue,
    ticket::Tickets,
};

/// Time after which a client may log in again when too many sessions are open.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// One client's state.
pub(crate) struct Session {
    /// Key at the engine.
    pub(crate) id: SessionId,
    /// The user.
    pub(crate) principal: Principal,
    /// Prepared statements by handle.
    pub(crate) prepared: Mutex<HashMap<String, Arc<Prepared>>>,
    /// Options as the client set them, by name in lower case: the engine keeps their text only.
    pub(crate) options: Mutex<HashMap<String, SessionOptionValue>>,
    last_used: Mutex<Instant>,
}

/// All sessions of the service.
pub(crate) struct Sessions {
    engine: Arc<dyn Engine>,
    tickets: Arc<Tickets>,
    metrics: Arc<FlightMetrics>,
    authentication: Authentication,
    ttl: Duration,
    max_sessions: usize,
    by_token: Mutex<HashMap<String, Arc<Session>>>,
    next_sweep: Mutex<Instant>,
}

impl Sessions {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        tickets: Arc<Tickets>,
        metrics: Arc<FlightMetrics>,
        options: &FlightOptions,
    ) -> Self {
        Self {
            engine,
            tickets,
            metrics,
            authentication: options.authentication.clone(),
            ttl: options.session_ttl,
            max_sessions: options.max_sessions,
            by_token: Mutex::default(),
            next_sweep: Mutex::new(Instant::now() + options.session_ttl / 4),
        }
    }

    /// Verifies credentials and opens a session; returns its bearer token.
    pub(crate) fn log_in(&self, credentials: &Credentials) -> Result<String, Status> {
        let principal = self.authentication.verify(credentials)?;
        self.make_room()?;
        let session = self.open(principal)?;
        let token = random_token();
        self.by_token.lock().insert(token.clone(), session);
        Ok(token)
    }

    /// Finds or opens the session of a call.
    pub(crate) fn resolve(&self, metadata: &MetadataMap, extensions: &Extensions) -> Result<Arc<Session>, Status> {
        let open = matches!(self.authentication, Authentication::Open);
        let credentials = match Credentials::from_metadata(metadata) {
            Err(_) if open => Credentials::None,
            other => other?,
        };
        if let Some(session) = self.find_by_token(&credentials) {
            return Ok(session);
        }
        let principal = self.authentication.verify(&credentials)?;
        match extensions.get::<Arc<Connection>>() {
            Some(connection) => connection.session(self, principal),
            None => Err(Status::internal("the transport does not identify the connection of this call")),
        }
    }

    /// Ends the session of a call; does nothing when there is none.
    pub(crate) fn close_current(&self, metadata: &MetadataMap, extensions: &Extensions) {
        let session = match Credentials::from_metadata(metadata).unwrap_or(Credentials::None) {
            Credentials::Bearer(token) => self.by_token.lock().remove(&token),
            others => match (self.authentication.verify(&others), extensions.get::<Arc<Connection>>()) {
                (Ok(principal), Some(connection)) => connection.take_session(&principal.user),
                _ => None,
            },
        };
        if let Some(session) = session {
            self.close(&session);
        }
    }

    /// Opens a session at the engine.
    pub(crate) fn open(&self, principal: Principal) -> Result<Arc<Session>, Status> {
        let id = self.engine.open_session(principal.clone())?;
        self.metrics.add_sessions(1);
        Ok(Arc::new(Session {
            id,
            principal,
            prepared: Mutex::default(),
            options: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
        }))
    }

    /// Ends a session: its statements, its tickets, its state at the engine.
    pub(crate) fn close(&self, session: &Session) {
        let statements = std::mem::take(&mut *session.prepared.lock());
        // Without the lock.
        drop(statements);
        self.tickets.remove_session(&session.id);
        self.metrics.add_sessions(-1);
        self.engine.close_session(&session.id);
    }

    /// The session of a token. An expired session is closed at once, with its transaction.
    fn find_by_token(&self, credentials: &Credentials) -> Option<Arc<Session>> {
        let Credentials::Bearer(token) = credentials else { return None };
        let session = self.by_token.lock().get(token).cloned()?;
        if session.last_used.lock().elapsed() <= self.ttl {
            *session.last_used.lock() = Instant::now();
            return Some(session);
        }
        // Only the call that removes the session from the table closes it.
        let expired = self.by_token.lock().remove(token);
        if let Some(expired) = expired {
            self.close(&expired);
        }
        None
    }

    /// Drops expired sessions from time to time, and when the table is full; fails when it is still full then.
    fn make_room(&self) -> Result<(), Status> {
        let (expired, full) = {
            let mut sessions = self.by_token.lock();
            let now = Instant::now();
            let mut expired = Vec::new();
            if sessions.len() >= self.max_sessions || *self.next_sweep.lock() <= now {
                *self.next_sweep.lock() = now + self.ttl / 4;
                expired.extend(sessions.extract_if(|_, session| session.last_used.lock().elapsed() > self.ttl));
            }
            (expired, sessions.len() >= self.max_sessions)
        };
        for (_, session) in expired {
            self.close(&session);
        }
        if full { Err(too_many_sessions(self.max_sessions)) } else { Ok(()) }
    }
}

fn too_many_sessions(max: usize) -> Status {
    let message = format!("{max} sessions are open, which is the limit: close some or try again later");
    error::retry_later(Code::ResourceExhausted, message, RETRY_DELAY)
}
