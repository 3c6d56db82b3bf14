//! Sessions: the user of a call, and the state that this client has on the server.
//!
//! A login opens a session that lives as long as its bearer token; such sessions are bounded in number. A client without a token, because the service is open or because it repeats its user and password with each
//! call, gets the session of its user on its connection, which ends with the connection. So two clients with
//! the same user never share a session, unless a proxy puts them on one connection. A session of either kind that is not
//! used for long, and runs no statement, ends. A session that ends rolls back its uncommitted changes. The service sets no cookies, so none can name a session.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Extensions, Status, metadata::MetadataMap};

use crate::{
    auth::{Authentication, Credentials, random_token},
    connection::Connection,
    engine::{Engine, Principal, SessionId},
    error,
    logins::{Logins, TooManyLogins},
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
    /// Whether a call came after the login.
    was_used: AtomicBool,
    has_ended: AtomicBool,
}

impl Session {
    /// Whether it has ended; then only its client does not know yet.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Notes that its client uses it.
    pub(crate) fn touch(&self) {
        *self.last_used.lock() = Instant::now();
        self.was_used.store(true, Ordering::Relaxed);
    }
}

/// All sessions of the service.
pub(crate) struct Sessions {
    engine: Arc<dyn Engine>,
    tickets: Arc<Tickets>,
    metrics: Arc<FlightMetrics>,
    authentication: Authentication,
    /// Delays after wrong passwords.
    pub(crate) logins: Arc<Logins>,
    ttl: Option<Duration>,
    max_sessions: usize,
    by_token: Mutex<HashMap<String, Arc<Session>>>,
    all: Mutex<HashMap<SessionId, Weak<Session>>>,
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
            logins: Arc::default(),
            ttl: options.session_ttl,
            max_sessions: options.max_sessions,
            by_token: Mutex::default(),
            all: Mutex::default(),
        }
    }

    /// Verifies credentials and opens a session; returns its bearer token.
    pub(crate) async fn log_in(&self, credentials: &Credentials, extensions: &Extensions) -> Result<String, Status> {
        let principal = self.verify(credentials, extensions).await?;
        self.make_room()?;
        let session = self.open(principal)?;
        let token = random_token();
        self.by_token.lock().insert(token.clone(), session);
        Ok(token)
    }

    /// Finds or opens the session of a call.
    pub(crate) async fn resolve(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Arc<Session>, Status> {
        let open = matches!(self.authentication, Authentication::Open);
        let credentials = match Credentials::from_metadata(metadata) {
            Err(_) if open => Credentials::None,
            other => other?,
        };
        if let Some(session) = self.find_by_token(&credentials) {
            return Ok(session);
        }
        let principal = self.verify(&credentials, extensions).await?;
        match extensions.get::<Arc<Connection>>() {
            Some(connection) => connection.session(self, principal),
            None => Err(Status::internal("the transport does not identify the connection of this call")),
        }
    }

    /// Verifies credentials that are not a token, after the delay that earlier wrong ones cost.
    async fn verify(&self, credentials: &Credentials, extensions: &Extensions) -> Result<Principal, Status> {
        let Credentials::Basic { user, .. } = credentials else { return self.authentication.verify(credentials) };
        if matches!(self.authentication, Authentication::Open) {
            return self.authentication.verify(credentials);
        }
        let connection = extensions.get::<Arc<Connection>>();
        let address = connection.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |connection| connection.peer);
        self.logins.wait(address, user).await.map_err(|TooManyLogins { retry_after }| {
            error::retry_later(Code::ResourceExhausted, "too many wrong passwords came from this address", retry_after)
        })?;
        let verified = self.authentication.verify(credentials);
        self.logins.note(address, user, verified.is_ok());
        verified
    }

    /// Ends the session of a call; does nothing when there is none.
    pub(crate) async fn close_current(&self, metadata: &MetadataMap, extensions: &Extensions) {
        let session = match Credentials::from_metadata(metadata).unwrap_or(Credentials::None) {
            Credentials::Bearer(token) => self.by_token.lock().remove(&token),
            others => match (self.verify(&others, extensions).await, extensions.get::<Arc<Connection>>()) {
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
        let session = Arc::new(Session {
            id: id.clone(),
            principal,
            prepared: Mutex::default(),
            options: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            was_used: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        self.all.lock().insert(id, Arc::downgrade(&session));
        Ok(session)
    }

    /// Ends a session: its statements, its tickets, its state at the engine.
    pub(crate) fn close(&self, session: &Session) {
        if session.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.all.lock().remove(&session.id);
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
        if self.is_expired(&session) {
            self.close(&session);
        }
        if session.has_ended() {
            self.by_token.lock().remove(token);
            return None;
        }
        session.touch();
        Some(session)
    }

    fn is_expired(&self, session: &Session) -> bool {
        let is_old = |ttl| session.last_used.lock().elapsed() > ttl;
        if !self.ttl.is_some_and(is_old) {
            return false;
        }
        let is_busy = self.engine.runs_statement(&session.id);
        if is_busy {
            session.touch();
        }
        !is_busy
    }

    /// Ends the sessions that were not used for long.
    pub(crate) fn close_expired(&self) {
        let open: Vec<Arc<Session>> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        for session in open.iter().filter(|session| self.is_expired(session)) {
            tracing::info!(session = session.id.0, user = session.principal.user, "a session ended that was not used");
            self.close(session);
        }
        self.by_token.lock().retain(|_, session| !session.has_ended());
    }

    /// The error of a call on a connection whose session has ended.
    pub(crate) fn ended(&self) -> Status {
        let unused = self.ttl.map(|ttl| format!(" for {ttl:?}")).unwrap_or_default();
        Status::failed_precondition(format!(
            "the session was not used{unused} (query.idle_session_timeout) and ended, with its options, prepared statements \
             and transactions; the next call starts another one"
        ))
    }

    /// How often expired sessions are looked for; `None`: sessions do not expire.
    pub(crate) fn sweep_interval(&self) -> Option<Duration> {
        self.ttl.map(|ttl| (ttl / 4).clamp(Duration::from_millis(100), Duration::from_secs(60)))
    }

    /// Drops expired sessions when the table is full and, where that does not suffice, the oldest one that was never used
    /// since its login. Fails when there is none.
    fn make_room(&self) -> Result<(), Status> {
        let is_full = || self.by_token.lock().len() >= self.max_sessions;
        if is_full() {
            self.close_expired();
        }
        if is_full() && !self.close_oldest_unused() {
            return Err(too_many_sessions(self.max_sessions));
        }
        Ok(())
    }

    /// Ends the oldest session that was never used since its login; false when there is none.
    fn close_oldest_unused(&self) -> bool {
        let mut by_token = self.by_token.lock();
        let unused = by_token.iter().filter(|(_, session)| !session.was_used.load(Ordering::Relaxed));
        let oldest = unused.min_by_key(|(_, session)| *session.last_used.lock()).map(|(token, _)| token.clone());
        let session = oldest.and_then(|token| by_token.remove(&token));
        drop(by_token);
        let Some(session) = session else { return false };
        tracing::info!(
            session = session.id.0,
            user = session.principal.user,
            "a session that was never used ended for a new one"
        );
        self.close(&session);
        true
    }
}

fn too_many_sessions(max: usize) -> Status {
    let message = format!("{max} sessions are open, which is the limit: close some or try again later");
    error::retry_later(Code::ResourceExhausted, message, RETRY_DELAY)
}
