//! Sessions: the user of a call, and the state that this client has on the server.
//!
//! A login opens a session that lives as long as its bearer token; such sessions are bounded in number, and all sessions of one user are, so
//! that nobody keeps others out. A client without a token, because the service is open or because it repeats its user and password with each
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
use terrace_access::{LoginError, Origin, Port, Right, Users};
use tokio::{sync::Notify, time::Instant};
use tonic::{Code, Extensions, Status, metadata::MetadataMap};

use crate::{
    auth::Credentials,
    bearer::{BearerError, check_bearer},
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

/// Time for which statements go on in sessions whose users have changed.
const AFTER_CHANGE: Duration = Duration::from_millis(500);
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
    /// When it was found that its client would not be let in any more.
    outdated_since: Mutex<Option<Instant>>,
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

/// The sessions that have not ended.
#[derive(Default)]
struct OpenSessions {
    by_id: HashMap<SessionId, Weak<Session>>,
    /// How many each user has. Where nobody shows anything, any name may be taken, and none is counted.
    by_user: HashMap<String, usize>,
}

impl OpenSessions {
    fn add(&mut self, session: &Arc<Session>) {
        self.by_id.insert(session.id.clone(), Arc::downgrade(session));
        if let Some(user) = session.principal.owner_name() {
            *self.by_user.entry(user.to_owned()).or_default() += 1;
        }
    }

    fn remove(&mut self, session: &Session) {
        self.by_id.remove(&session.id);
        let Some(user) = session.principal.owner_name() else { return };
        if let Some(count) = self.by_user.get_mut(user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(user);
            }
        }
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.by_id.values().filter_map(Weak::upgrade).collect()
    }
}

/// All sessions of the service.
pub(crate) struct Sessions {
    engine: Arc<dyn Engine>,
    tickets: Arc<Tickets>,
    metrics: Arc<FlightMetrics>,
    /// Who may call; `None`: everybody.
    users: Option<Arc<Users>>,
    /// Delays after wrong passwords.
    pub(crate) logins: Arc<Logins>,
    ttl: Option<Duration>,
    max_sessions: usize,
    max_sessions_per_user: usize,
    by_token: Mutex<HashMap<String, Arc<Session>>>,
    open: Mutex<OpenSessions>,
    /// Told when a session begins that ends at a known time.
    expiring: Notify,
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
            users: options.users.clone(),
            logins: Arc::new(Logins::new(Arc::clone(&options.audit))),
            ttl: options.session_ttl,
            max_sessions: options.max_sessions,
            max_sessions_per_user: options.max_sessions_per_user,
            by_token: Mutex::default(),
            open: Mutex::default(),
            expiring: Notify::new(),
        }
    }

    /// Verifies credentials and opens a session; returns its bearer token.
    pub(crate) async fn log_in(&self, credentials: &Credentials, extensions: &Extensions) -> Result<String, Status> {
        let principal = self.verify(credentials, extensions).await?;
        self.make_room()?;
        let session = self.open(principal, address(extensions))?;
        note_use(extensions);
        let token = terrace_access::random_secret();
        self.by_token.lock().insert(token.clone(), session);
        Ok(token)
    }

    /// Finds or opens the session of a call.
    pub(crate) async fn resolve(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Arc<Session>, Status> {
        let credentials = match Credentials::from_metadata(metadata) {
            Err(_) if self.is_open() => Credentials::None,
            other => other?,
        };
        if let Some(session) = self.find_by_token(&credentials) {
            note_use(extensions);
            return Ok(session);
        }
        let principal = self.verify(&credentials, extensions).await?;
        note_use(extensions);
        match extensions.get::<Arc<Connection>>() {
            Some(connection) => connection.session(self, principal),
            None => Err(Status::internal("the transport does not identify the connection of this call")),
        }
    }

    /// Whether everybody may call.
    fn is_open(&self) -> bool {
        self.users.as_ref().is_none_or(|users| users.is_open())
    }

    /// Whether a principal would be let in still.
    pub(crate) fn is_current(&self, principal: &Principal) -> bool {
        self.users.as_ref().is_none_or(|users| users.is_current(principal))
    }

    /// Whether a principal may cancel the queries of others.
    pub(crate) fn may_cancel_all(&self, principal: &Principal) -> bool {
        let may = |users: &Arc<Users>| users.authority(principal).may_on_server(Right::Cancel);
        !principal.is_read_only && self.users.as_ref().is_none_or(may)
    }

    /// Verifies credentials that are not the token of a session, and records a refusal.
    async fn verify(&self, credentials: &Credentials, extensions: &Extensions) -> Result<Principal, Status> {
        let verified = self.check(credentials, extensions).await;
        if verified.is_err() {
            let connection = extensions.get::<Arc<Connection>>();
            let certified = connection.and_then(|connection| connection.peer.certified_user.as_deref());
            let origin = Origin::new(Port::Flight, address(extensions));
            match (credentials, certified) {
                (Credentials::Basic { user, .. }, _) => self.logins.record_refusal(origin, user, "password"),
                (Credentials::Bearer(_), _) => self.logins.record_refusal(origin, "", "token"),
                (Credentials::None, Some(name)) => self.logins.record_refusal(origin, name, "certificate"),
                // Nobody tried to log in.
                (Credentials::None, None) => {}
            }
        }
        verified
    }

    /// Verifies credentials that are not the token of a session; user and password after the delay that earlier wrong ones cost.
    async fn check(&self, credentials: &Credentials, extensions: &Extensions) -> Result<Principal, Status> {
        let Some(users) = self.users.as_ref().filter(|users| !users.is_open()) else {
            let user = if let Credentials::Basic { user, .. } = credentials { user } else { "" };
            return Ok(Principal::anonymous(user));
        };
        match credentials {
            Credentials::None => {
                let connection = extensions.get::<Arc<Connection>>();
                if let Some(name) = connection.and_then(|connection| connection.peer.certified_user.as_ref()) {
                    let unknown =
                        || Status::unauthenticated("there is no user of the name in the client's certificate");
                    return users.check_certified(name).ok_or_else(unknown);
                }
                Err(Status::unauthenticated(
                    "the call has no credentials: log in with user and password, or send a token",
                ))
            }
            Credentials::Bearer(token) => {
                let checked = check_bearer(users, &self.logins, address(extensions), token).await;
                checked.map_err(|error| match error {
                    BearerError::Wrong => Status::unauthenticated("the token is unknown or expired: log in again"),
                    BearerError::Later { retry_after } => {
                        let message = "too many wrong tokens came from this address, or wait for keys of their issuer";
                        error::retry_later(Code::ResourceExhausted, message, retry_after)
                    }
                })
            }
            Credentials::Basic { user, password } => {
                let address = address(extensions);
                self.logins.wait(address, user).await.map_err(|TooManyLogins { retry_after }| {
                    let message = "too many wrong passwords came from this address";
                    error::retry_later(Code::ResourceExhausted, message, retry_after)
                })?;
                let verified = users.log_in(user, password).await;
                if !matches!(verified, Err(LoginError::Busy { .. })) {
                    self.logins.note(address, user, verified.is_ok());
                }
                verified.map_err(|error| match error {
                    LoginError::Wrong => Status::unauthenticated("wrong user or password"),
                    LoginError::Busy { retry_after } => {
                        let message = "too many passwords are being checked";
                        error::retry_later(Code::ResourceExhausted, message, retry_after)
                    }
                })
            }
        }
    }

    /// Ends the session of a call; does nothing when there is none.
    pub(crate) async fn close_current(&self, metadata: &MetadataMap, extensions: &Extensions) {
        let session = match Credentials::from_metadata(metadata).unwrap_or(Credentials::None) {
            Credentials::Bearer(token) => {
                let session = self.by_token.lock().remove(&token);
                session.ok_or(Credentials::Bearer(token))
            }
            others => Err(others),
        };
        let session = match session {
            Ok(session) => Some(session),
            Err(others) => match (self.verify(&others, extensions).await, extensions.get::<Arc<Connection>>()) {
                (Ok(principal), Some(connection)) => connection.take_session(&principal),
                _ => None,
            },
        };
        if let Some(session) = session {
            self.close(&session);
        }
    }

    /// Opens a session at the engine, for a client at `address`.
    pub(crate) fn open(&self, principal: Principal, address: IpAddr) -> Result<Arc<Session>, Status> {
        self.make_room_for(&principal)?;
        let id = self.engine.open_session(principal.clone(), address)?;
        self.logins.record_login(Origin::new(Port::Flight, address), &principal, Some(&id.0));
        tracing::debug!(session = id.0, user = principal.user, %address, "a session began");
        self.metrics.add_sessions(1);
        let session = Arc::new(Session {
            id,
            principal,
            prepared: Mutex::default(),
            options: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            outdated_since: Mutex::default(),
            was_used: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        self.open.lock().add(&session);
        if self.time_left(&session).is_some() {
            self.expiring.notify_one();
        }
        Ok(session)
    }

    /// Ends a session: its statements, its tickets, its state at the engine.
    pub(crate) fn close(&self, session: &Session) {
        if session.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.open.lock().remove(session);
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
        if self.is_expired(&session) || !self.is_current(&session.principal) {
            self.close(&session);
        }
        if session.has_ended() {
            self.by_token.lock().remove(token);
            return None;
        }
        session.touch();
        Some(session)
    }

    /// Time until a session ends by itself, with what its client showed; `None`: it does not, or a change of users tells.
    fn time_left(&self, session: &Session) -> Option<Duration> {
        self.users.as_ref()?.time_left(&session.principal)
    }

    /// Time until the first session or token expires; `None`: none will.
    fn next_expiry(&self) -> Option<Duration> {
        let open = self.open.lock().all();
        let of_sessions = open.iter().filter_map(|session| self.time_left(session)).min();
        let of_tokens = self.users.as_ref().and_then(|users| users.next_expiry());
        of_sessions.into_iter().chain(of_tokens).min()
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

    /// Ends the sessions that were not used for long, and those whose clients would not be let in any more; these have a
    /// moment for the answers of the statement that made the change. True when some have it now.
    pub(crate) fn close_expired(&self) -> bool {
        let open = self.open.lock().all();
        let mut is_early = false;
        for session in open {
            let why = if !self.is_current(&session.principal) {
                let since = *session.outdated_since.lock().get_or_insert_with(Instant::now);
                if since.elapsed() < AFTER_CHANGE {
                    is_early = true;
                    continue;
                }
                "a session ended, as its user or token changed, or expired"
            } else if self.is_expired(&session) {
                "a session ended that was not used"
            } else {
                continue;
            };
            tracing::info!(session = session.id.0, user = session.principal.user, "{why}");
            self.close(&session);
        }
        self.by_token.lock().retain(|_, session| !session.has_ended());
        is_early
    }

    /// The error of a call on a connection whose session has ended.
    pub(crate) fn ended(&self) -> Status {
        let unused = self.ttl.map(|ttl| format!(" for {ttl:?}")).unwrap_or_default();
        Status::failed_precondition(format!(
            "the session was not used{unused} (query.idle_session_timeout), or its user or token changed, and it ended, with its \
             options, prepared statements and transactions; the next call starts another one"
        ))
    }

    /// Looks for expired sessions again and again, when users change, and when a token expires.
    pub(crate) async fn sweep(&self) {
        const LONGEST: Duration = Duration::from_secs(60);
        let mut changes = self.users.as_ref().map(|users| users.changes());
        loop {
            let mut pause = self.ttl.map_or(LONGEST, |ttl| (ttl / 4).clamp(Duration::from_millis(100), LONGEST));
            if let Some(expiry) = self.next_expiry() {
                pause = pause.min(expiry);
            }
            let change = async {
                let is_told = match &mut changes {
                    Some(changes) => changes.changed().await.is_ok(),
                    None => false,
                };
                if !is_told {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = change => {}
                () = self.expiring.notified() => {}
            }
            while self.close_expired() {
                tokio::time::sleep(AFTER_CHANGE).await;
            }
            self.tickets.drop_expired();
        }
    }

    /// Drops expired sessions when the table is full and, where that does not suffice, the oldest one that was never used
    /// since its login. Fails when there is none.
    fn make_room(&self) -> Result<(), Status> {
        let is_full = || self.by_token.lock().len() >= self.max_sessions;
        if is_full() {
            self.close_expired();
        }
        if is_full() && !self.close_oldest_unused(|_| true) {
            let max = self.max_sessions;
            let message = format!("{max} sessions are open, which is the limit: close some or try again later");
            return Err(error::retry_later(Code::ResourceExhausted, message, RETRY_DELAY));
        }
        Ok(())
    }

    /// The same for the sessions of one user, of either kind.
    fn make_room_for(&self, principal: &Principal) -> Result<(), Status> {
        let Some(user) = principal.owner_name() else { return Ok(()) };
        let max = self.max_sessions_per_user;
        let is_full = || self.open.lock().by_user.get(user).is_some_and(|count| *count >= max);
        if is_full() {
            self.close_expired();
        }
        if is_full() && !self.close_oldest_unused(|session| session.principal.user == user) {
            let message = format!(
                "user '{user}' has {max} sessions, which is the limit of one user: close some or try again later"
            );
            return Err(error::retry_later(Code::ResourceExhausted, message, RETRY_DELAY));
        }
        Ok(())
    }

    /// Ends the oldest of some sessions that was never used since its login; false when there is none.
    fn close_oldest_unused(&self, may_go: impl Fn(&Session) -> bool) -> bool {
        let mut by_token = self.by_token.lock();
        let unused =
            by_token.iter().filter(|(_, session)| !session.was_used.load(Ordering::Relaxed) && may_go(session));
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

/// Notes that a call has been let in on its connection.
fn note_use(extensions: &Extensions) {
    if let Some(connection) = extensions.get::<Arc<Connection>>() {
        connection.note_use();
    }
}

/// Address of the client of a call.
fn address(extensions: &Extensions) -> IpAddr {
    let connection = extensions.get::<Arc<Connection>>();
    connection.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |connection| connection.peer.address)
}
