//! What a user may choose about the service. Every limit bounds memory that a client can make the server hold.

use std::time::Duration;

use crate::auth::Authentication;

/// Options of the service; [`Default`] is right for a server on loopback.
#[derive(Debug, Clone)]
pub struct FlightOptions {
    /// Who may come in.
    pub authentication: Authentication,
    /// Largest message accepted from a client, in bytes. One ingested record batch is one message.
    pub max_message_bytes: usize,
    /// Largest list of headers accepted with a call, in bytes. JDBC sends unknown URL parameters as headers.
    pub max_header_list_bytes: u32,
    /// Size of a message to a client, in bytes, that the server aims at; a single larger row is sent whole.
    pub target_message_bytes: usize,
    /// How long a planned query waits to be fetched.
    pub ticket_ttl: Duration,
    /// How many planned queries may wait to be fetched, over all clients.
    pub max_tickets: usize,
    /// How long an unused session lives.
    pub session_ttl: Duration,
    /// How many sessions may be open.
    pub max_sessions: usize,
    /// How many prepared statements a session may hold.
    pub max_prepared_per_session: usize,
    /// Largest set of parameters bound to a prepared statement, in bytes.
    pub max_parameter_bytes: usize,
    /// How long running calls may take to end after a stop was asked for.
    pub drain_timeout: Duration,
}

impl Default for FlightOptions {
    fn default() -> Self {
        Self {
            authentication: Authentication::Open,
            max_message_bytes: 256 << 20,
            max_header_list_bytes: 64 << 10,
            target_message_bytes: 2 << 20,
            ticket_ttl: Duration::from_secs(600),
            max_tickets: 10_000,
            session_ttl: Duration::from_secs(12 * 3600),
            max_sessions: 10_000,
            max_prepared_per_session: 1_000,
            max_parameter_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(30),
        }
    }
}
