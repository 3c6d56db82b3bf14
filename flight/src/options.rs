//! Options of the service. Every limit bounds memory that a client can make the server hold.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use terrace_access::{Trail, Users};

use crate::trace::AdoptParent;

/// Options of the service; [`Default`] is right for a server on loopback.
#[derive(Debug, Clone)]
pub struct FlightOptions {
    /// The users that the service admits; `None`: everybody, for loopback only.
    pub users: Option<Arc<Users>>,
    /// Where log-ins are recorded.
    pub audit: Arc<Trail>,
    /// Largest message accepted from a client, in bytes. One ingested record batch is one message.
    pub max_message_bytes: usize,
    /// Bytes of messages that are being received or hold rows that wait to be stored, over all clients. Once they are used up, clients wait, except with small
    /// messages, and one client at a time may send a message to its end, so that no message is too large for the budget.
    pub max_received_bytes: u64,
    /// Bytes of frames that wait for the sockets of their clients, over all connections; beyond it each has a few KiB.
    pub max_unsent_bytes: u64,
    /// Set by the owner of the service while the memory of the process is short: large messages are received slowly then.
    pub memory_short: Arc<AtomicBool>,
    /// Largest list of headers accepted with a call, in bytes. JDBC sends unknown URL parameters as headers.
    pub max_header_list_bytes: u32,
    /// Size of a message to a client, in bytes, that the server aims at; a single larger row is sent whole.
    pub target_message_bytes: usize,
    /// Time after which a planned query that was not fetched expires.
    pub ticket_ttl: Duration,
    /// Most planned queries that wait to be fetched, over all clients. At the limit the session that has the most loses its
    /// oldest, of the user who has the most.
    pub max_tickets: usize,
    /// Time after which an unused session ends; `None`: it does not.
    pub session_ttl: Option<Duration>,
    /// Most sessions that logged in for a token. At the limit the oldest that was never used ends, else logins are refused.
    pub max_sessions: usize,
    /// Most sessions of one user, of all kinds. At the limit the oldest that was never used ends, else new ones are refused.
    pub max_sessions_per_user: usize,
    /// Time within which a call on a new connection has to be let in; else the connection ends.
    pub first_call_timeout: Duration,
    /// Most prepared statements of a session.
    pub max_prepared_per_session: usize,
    /// Memory of the planned queries, prepared statements and bound parameters of a session, an estimate in bytes. At
    /// the limit a session loses its oldest planned queries that nobody fetched, and then new ones are refused.
    pub max_kept_bytes_per_session: u64,
    /// The same of all sessions of a user together.
    pub max_kept_bytes_per_user: u64,
    /// The same of all sessions together; more are refused with "try again".
    pub max_kept_bytes: u64,
    /// Largest set of parameters bound to a prepared statement, in bytes.
    pub max_parameter_bytes: usize,
    /// Time for which a client may leave the rows of a statement unread, or a message half sent, before the call ends;
    /// `None`: for ever.
    pub stall_timeout: Option<Duration>,
    /// Time that running calls have to end after the stop of the service.
    pub drain_timeout: Duration,
    /// Takes the parents of calls' spans from their headers; `None`: a call begins a trace of its own.
    pub adopt_parent: Option<AdoptParent>,
}

impl Default for FlightOptions {
    fn default() -> Self {
        Self {
            users: None,
            audit: Arc::default(),
            max_message_bytes: 256 << 20,
            max_received_bytes: 256 << 20,
            max_unsent_bytes: 32 << 20,
            memory_short: Arc::default(),
            max_header_list_bytes: 64 << 10,
            target_message_bytes: 2 << 20,
            ticket_ttl: Duration::from_secs(600),
            max_tickets: 10_000,
            session_ttl: Some(Duration::from_secs(12 * 3600)),
            max_sessions: 10_000,
            max_sessions_per_user: 5_000,
            first_call_timeout: Duration::from_secs(60),
            max_prepared_per_session: 1_000,
            max_kept_bytes_per_session: 64 << 20,
            max_kept_bytes_per_user: 256 << 20,
            max_kept_bytes: 512 << 20,
            max_parameter_bytes: 64 << 20,
            stall_timeout: Some(Duration::from_secs(300)),
            drain_timeout: Duration::from_secs(30),
            adopt_parent: None,
        }
    }
}
