//! Connections of both ports, with and without TLS: listeners of the server, and what its clients connect by.
//!
//! ```text
//!   listener --(handshake by server_tls)--> accepted connections --> Flight, HTTP
//!   client --> address --> client_tls --> a server
//! ```
//!
//! - [`accepted`]: a connection that a listener has accepted
//! - [`address`]: addresses of servers, with or without TLS
//! - [`certificate`]: what is read from certificates
//! - [`client_tls`]: TLS of the command line
//! - [`exposure`]: which addresses may be listened on
//! - [`listener`]: accepts connections, within limits
//! - [`place`]: places of open connections, in all and of one client
//! - [`server_tls`]: certificates of the server, read again when they change

mod accepted;
mod address;
mod certificate;
mod client_tls;
mod exposure;
mod listener;
mod place;
mod server_tls;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use terrace_access::Issuer;
use terrace_flight::Logins;

pub(crate) use accepted::Accepted;
pub use address::Address;
pub use client_tls::TlsOptions;
pub(crate) use client_tls::{ClientStream, connect};
pub(crate) use exposure::check_exposure;
pub(crate) use listener::{Limits, Listener, ListenerFigures};
pub(crate) use server_tls::{Protocol, ServerTls};

/// What the listeners of a server count.
#[derive(Debug)]
pub struct NetworkFigures {
    /// Each listener, by its name.
    pub(crate) listeners: Vec<(&'static str, Arc<ListenerFigures>)>,
    /// The certificates; `None` without TLS.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Wrong passwords of both ports.
    pub(crate) logins: Arc<Logins>,
    /// The issuer whose tokens are taken; `None` without one.
    pub(crate) issuer: Option<Arc<Issuer>>,
}
