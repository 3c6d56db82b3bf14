//! Authorisation: HTTP Basic for the API, and no state change on behalf of a foreign page.
//!
//! - `/healthz`, `/readyz` and `/metrics` are open: supervisors and scrapers have no password, and the series name no
//!   values of any row. All other paths need the credentials when the server has some.
//! - A server on loopback answers only to loopback names in `Host`, so a page that rebinds its DNS name reads nothing.
//! - Wrong passwords are answered ever later: see [`terrace_flight::Logins`].
//! - A state change needs an `Origin` equal to `Host` when a browser sends one, and `POST` and `PUT` need
//!   `Content-Type: application/json`, which no HTML form can send.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use terrace_flight::TooManyLogins;

use super::problem::{Problem, Result};
use super::service::Peer;
use super::state::{AppState, Credentials, ServerInfo};

/// Paths that need no credentials.
pub(super) const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Middleware in front of every route.
pub async fn guard(State(state): State<Arc<AppState>>, request: Request, next: Next) -> Result<Response> {
    if let Some(login) = Login::find(&state.info, &request) {
        login.take_turn(&state).await?;
    }
    check(&state.info, request.method(), request.uri().path(), request.headers())?;
    Ok(next.run(request).await)
}

/// Credentials that a request shows where it has to.
struct Login {
    peer: IpAddr,
    user: String,
    is_right: bool,
}

impl Login {
    fn find(info: &ServerInfo, request: &Request) -> Option<Self> {
        let wanted = info.credentials.as_ref().filter(|_| !OPEN.contains(&request.uri().path()))?;
        let given = text(request.headers(), header::AUTHORIZATION)?;
        let user = Credentials::user(given)?;
        let peer = request.extensions().get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0);
        Some(Self { peer, user, is_right: wanted.accept(given) })
    }

    /// Waits as long as earlier wrong passwords demand, whether or not this one is right.
    async fn take_turn(self, state: &AppState) -> Result<()> {
        let logins = &state.network.logins;
        logins.wait(self.peer, &self.user).await.map_err(|TooManyLogins { retry_after }| {
            let detail = "too many wrong passwords came from this address";
            Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).with_retry_after(retry_after)
        })?;
        logins.note(self.peer, &self.user, self.is_right);
        Ok(())
    }
}

fn check(info: &ServerInfo, method: &Method, path: &str, headers: &HeaderMap) -> Result<()> {
    let host = text(headers, header::HOST).unwrap_or_default();
    if info.http_addr.ip().is_loopback() && !is_loopback_name(host) {
        let detail = format!("this server listens on loopback and answers only requests to localhost, not to '{host}'");
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
    }
    if let Some(credentials) = info.credentials.as_ref().filter(|_| !OPEN.contains(&path)) {
        let given = text(headers, header::AUTHORIZATION).unwrap_or_default();
        if !credentials.accept(given) {
            return Err(Problem::unauthorized());
        }
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if let Some(origin) = text(headers, header::ORIGIN)
        && origin.split_once("://").map(|(_, authority)| authority) != Some(host)
    {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            format!("a page of '{origin}' may not change this server; use a page that this server serves"),
        ));
    }
    let json = text(headers, header::CONTENT_TYPE)
        .is_some_and(|t| t.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json"));
    if matches!(*method, Method::POST | Method::PUT) && !json {
        let detail = "send 'Content-Type: application/json'";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    Ok(())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn info(addr: &str, credentials: Option<Credentials>) -> ServerInfo {
        ServerInfo {
            version: "0".into(),
            data_dir: "/data".into(),
            flight_addr: addr.parse().unwrap(),
            http_addr: addr.parse().unwrap(),
            started_unix_us: 0,
            credentials,
            prices_per_gb: Vec::new(),
            tls: false,
        }
    }

    fn status(info: &ServerInfo, method: Method, path: &str, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        check(info, &method, path, &headers).map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn foreign_pages_change_nothing() {
        let open = info("127.0.0.1:8080", None);
        let json = ("content-type", "application/json; charset=utf-8");
        let host = ("host", "localhost:8080");
        assert_eq!(status(&open, Method::POST, "/api/v1/epochs", &[host, json]), 200);
        assert_eq!(
            status(&open, Method::POST, "/api/v1/epochs", &[host, json, ("origin", "http://localhost:8080")]),
            200
        );
        assert_eq!(
            status(&open, Method::POST, "/api/v1/epochs", &[host, json, ("origin", "http://evil.example")]),
            403
        );
        assert_eq!(status(&open, Method::POST, "/api/v1/epochs", &[host, json, ("origin", "null")]), 403);
        assert_eq!(status(&open, Method::POST, "/api/v1/epochs", &[host, ("content-type", "text/plain")]), 415);
        assert_eq!(status(&open, Method::PUT, "/api/v1/tiers/dram", &[host]), 415);
        assert_eq!(status(&open, Method::GET, "/", &[("host", "evil.example:8080")]), 421);
        assert_eq!(status(&open, Method::GET, "/", &[]), 421);
        for name in ["127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
            assert_eq!(status(&open, Method::GET, "/", &[("host", name)]), 200, "{name}");
        }
        assert_eq!(status(&info("0.0.0.0:8080", None), Method::GET, "/", &[("host", "db.example")]), 200);
    }

    #[test]
    fn the_api_wants_the_password_and_probes_do_not() {
        let closed = info("127.0.0.1:8080", Some(Credentials { user: "ada".into(), password: "x".into() }));
        let host = ("host", "localhost");
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(status(&closed, Method::GET, path, &[host]), 200, "{path}");
        }
        for path in ["/", "/metrics/segments", "/api/v1/tiers", "/api/v1/openapi.json"] {
            assert_eq!(status(&closed, Method::GET, path, &[host]), 401, "{path}");
            assert_eq!(status(&closed, Method::GET, path, &[host, ("authorization", "Basic YWRhOng=")]), 200, "{path}");
        }
    }
}
