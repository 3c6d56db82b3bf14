//! Authorisation: HTTP Basic or a token for the API, and no state change on behalf of a foreign page.
//!
//! - `/healthz` and `/readyz` are open: supervisors have no password. All other paths need credentials once the server has
//!   users, and most of them a right: see [`super::rights`].
//! - A server on loopback answers only to loopback names in `Host`, so a page that rebinds its DNS name reads nothing.
//! - A path in which a name is no text (escapes that are not UTF-8) is refused.
//! - Wrong passwords are answered ever later: see [`terrace_flight::Logins`].
//! - A state change needs an `Origin` equal to `Host` when a browser sends one, and `POST` and `PUT` need
//!   `Content-Type: application/json`, which no HTML form can send. A token that is READ ONLY changes nothing; the engine asks
//!   for each statement of [`STATEMENTS`].

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use terrace_access::{LoginError, Principal, Users};
use terrace_flight::{BearerError, Logins, Peer, TooManyLogins, check_bearer};

use super::audit::{self, Call, Callers};
use super::problem::{Problem, Result};
use super::state::{AppState, ServerInfo};

/// The path where statements run. Each asks for its rights, and is recorded, by itself.
pub(super) const STATEMENTS: &str = "/api/v1/sql";

/// Paths that need no credentials.
pub(super) const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Middleware in front of every route.
pub async fn guard(State(state): State<Arc<AppState>>, mut request: Request, next: Next) -> Result<Response> {
    check_host(&state.info, request.headers())?;
    check_path(request.uri().path())?;
    if OPEN.contains(&request.uri().path()) {
        check_change(request.method(), request.headers())?;
        return Ok(next.run(request).await);
    }
    let unknown = || Peer::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_else(unknown);
    let given = text(request.headers(), header::AUTHORIZATION);
    let logins = &state.network.logins;
    let caller = authenticate(state.users(), logins, &peer, given).await;
    let caller = caller.inspect_err(|_| audit::record_refusal(logins, &peer, given))?;
    let is_known = {
        let callers = request.extensions().get::<Arc<Callers>>();
        callers.is_some_and(|callers| !callers.add(&caller))
    };
    if !is_known && !state.users().is_open() {
        logins.record_login(audit::origin(&peer), &caller, None);
    }
    let call = Call::begin(&request, &peer, &caller, &state.engine);
    let is_allowed =
        check_read_only(&request, &caller).and_then(|()| check_change(request.method(), request.headers()));
    let answered = match is_allowed {
        Ok(()) => {
            let authority = state.users().authority(&caller);
            request.extensions_mut().insert(authority);
            request.extensions_mut().insert(audit::origin(&peer));
            request.extensions_mut().insert(caller);
            Ok(next.run(request).await)
        }
        Err(problem) => Err(problem),
    };
    let status = match &answered {
        Ok(response) => response.status(),
        Err(problem) => problem.status,
    };
    call.end(status);
    answered
}

/// Refuses a path in which a name is no text.
fn check_path(path: &str) -> Result<()> {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    let detail = "the path has escapes (%..) that are not UTF-8";
    decoded.map(drop).map_err(|_| Problem::new(StatusCode::BAD_REQUEST, detail))
}

/// Refuses a change by the bearer of a token that is for reading only.
fn check_read_only(request: &Request, caller: &Principal) -> Result<()> {
    if caller.is_read_only && !is_reading(request.method()) && request.uri().path() != STATEMENTS {
        let detail = "the token of this request is READ ONLY: it may read, and change nothing";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    Ok(())
}

/// Finds for whom a request is made, from its `Authorization`, or from the certificate of its client.
async fn authenticate(users: &Users, logins: &Logins, peer: &Peer, given: Option<&str>) -> Result<Principal> {
    if users.is_open() {
        return Ok(Principal::anonymous(""));
    }
    if let (None, Some(name)) = (given, &peer.certified_user) {
        return users.check_certified(name).ok_or_else(Problem::unauthorized);
    }
    let (scheme, value) = given.and_then(|given| given.split_once(' ')).ok_or_else(Problem::unauthorized)?;
    let busy = |detail, retry_after| Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).with_retry_after(retry_after);
    if scheme.eq_ignore_ascii_case("bearer") {
        let checked = check_bearer(users, logins, peer.address, value.trim()).await;
        return checked.map_err(|error| match error {
            BearerError::Wrong => Problem::unauthorized(),
            BearerError::Later { retry_after } => {
                busy("too many wrong tokens came from this address, or wait for keys of their issuer", retry_after)
            }
        });
    }
    let (user, password) = basic(scheme, value).ok_or_else(Problem::unauthorized)?;
    let (user, password) = (user.as_str(), password.as_str());
    logins.wait(peer.address, user).await.map_err(|TooManyLogins { retry_after }| {
        busy("too many wrong passwords came from this address", retry_after)
    })?;
    match users.log_in(user, password).await {
        Err(LoginError::Busy { retry_after }) => Err(busy("too many passwords are being checked", retry_after)),
        verified => {
            logins.note(peer.address, user, verified.is_ok());
            verified.map_err(|_| Problem::unauthorized())
        }
    }
}

/// User and password of HTTP Basic.
pub(super) fn basic(scheme: &str, value: &str) -> Option<(String, String)> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(value.trim()).ok();
    let decoded = decoded.filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let decoded = String::from_utf8(decoded).ok()?;
    decoded.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Whether requests of a method change nothing.
pub(super) fn is_reading(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Refuses names other than loopback's where the server listens on loopback.
fn check_host(info: &ServerInfo, headers: &HeaderMap) -> Result<()> {
    let host = text(headers, header::HOST).unwrap_or_default();
    if info.http_addr.ip().is_loopback() && !is_loopback_name(host) {
        let detail = format!("this server listens on loopback and answers only requests to localhost, not to '{host}'");
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
    }
    Ok(())
}

/// Refuses a change that a foreign page could have sent.
fn check_change(method: &Method, headers: &HeaderMap) -> Result<()> {
    if is_reading(method) {
        return Ok(());
    }
    let host = text(headers, header::HOST).unwrap_or_default();
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
    use terrace_access::{MemoryRecords, NewToken, NewUser, Owner};
    use terrace_tier_store::clock::SystemClock;

    use super::*;

    fn peer(certified_user: Option<&str>) -> Peer {
        Peer { address: IpAddr::V4(Ipv4Addr::LOCALHOST), certified_user: certified_user.map(str::to_owned) }
    }

    fn info(addr: &str) -> ServerInfo {
        ServerInfo {
            version: "0".into(),
            data_dir: "/data".into(),
            flight_addr: addr.parse().unwrap(),
            http_addr: addr.parse().unwrap(),
            started_unix_us: 0,
            prices_per_gb: Vec::new(),
            tls: false,
            stall_timeout: None,
        }
    }

    fn status(info: &ServerInfo, method: Method, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        let checked = check_host(info, &headers).and_then(|()| check_change(&method, &headers));
        checked.map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn foreign_pages_change_nothing() {
        let open = info("127.0.0.1:8080");
        let json = ("content-type", "application/json; charset=utf-8");
        let host = ("host", "localhost:8080");
        assert_eq!(status(&open, Method::POST, &[host, json]), 200);
        assert_eq!(status(&open, Method::POST, &[host, json, ("origin", "http://localhost:8080")]), 200);
        assert_eq!(status(&open, Method::POST, &[host, json, ("origin", "http://evil.example")]), 403);
        assert_eq!(status(&open, Method::POST, &[host, json, ("origin", "null")]), 403);
        assert_eq!(status(&open, Method::POST, &[host, ("content-type", "text/plain")]), 415);
        assert_eq!(status(&open, Method::PUT, &[host]), 415);
        assert_eq!(status(&open, Method::GET, &[("host", "evil.example:8080")]), 421);
        assert_eq!(status(&open, Method::GET, &[]), 421);
        for name in ["127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"] {
            assert_eq!(status(&open, Method::GET, &[("host", name)]), 200, "{name}");
        }
        assert_eq!(status(&info("0.0.0.0:8080"), Method::GET, &[("host", "db.example")]), 200);
    }

    fn users(owner: Option<&str>) -> Arc<Users> {
        let owner = owner.map(|name| Owner { name: name.into(), password: "lace:d".into() });
        Users::open(Arc::new(MemoryRecords::default()), owner, Arc::new(SystemClock::default())).unwrap()
    }

    #[tokio::test]
    async fn requests_show_a_password_or_a_token() {
        let basic = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
        let users = users(Some("ada"));
        let logins = Logins::default();
        let owner = authenticate(&users, &logins, &peer(None), Some(&basic("ada:lace:d"))).await.unwrap();
        let lower = basic("ada:lace:d").replace("Basic", "basic");
        assert_eq!(authenticate(&users, &logins, &peer(None), Some(&lower)).await.unwrap(), owner);
        let new = NewToken { name: "t".into(), user: "ada".into(), is_read_only: true, scope: None, valid_for: None };
        let (token, _) = users.create_token(&owner, &new).unwrap();
        let reader = authenticate(&users, &logins, &peer(None), Some(&format!("Bearer {token}"))).await.unwrap();
        assert!(reader.is_read_only && reader.user == "ada");
        let wrong = ["Bearer abc", "Basic ***", "Basic", "", "Digest x"].map(str::to_owned);
        for wrong in wrong.into_iter().chain([basic("ada"), basic("bob:lace:d"), basic("ada:lace:d ")]) {
            let problem = authenticate(&users, &logins, &peer(None), Some(&wrong)).await.unwrap_err();
            assert_eq!(problem.status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert_eq!(
            authenticate(&users, &logins, &peer(None), None).await.unwrap_err().status,
            StatusCode::UNAUTHORIZED
        );
        let certified = authenticate(&users, &logins, &peer(Some("ada")), None).await.unwrap();
        assert!(certified.user == "ada" && certified.is_superuser);
        let unknown = authenticate(&users, &logins, &peer(Some("eve")), None).await.unwrap_err();
        assert_eq!(unknown.status, StatusCode::UNAUTHORIZED);
        let shown = authenticate(&users, &logins, &peer(Some("ada")), Some("Bearer abc")).await.unwrap_err();
        assert_eq!(shown.status, StatusCode::UNAUTHORIZED, "what a request shows comes first");
        assert_eq!(logins.failed(), 2, "wrong passwords are counted, other headers are not");
    }

    #[tokio::test]
    async fn an_unknown_user_costs_as_much_as_a_known_one() {
        let (users, logins) = (users(Some("ada")), Logins::default());
        let owner = users.log_in("ada", "lace:d").await.unwrap();
        let bob = NewUser { name: "bob".into(), password: "correct horse".into(), is_superuser: false };
        users.create_user(&owner, &bob).unwrap();
        for user in ["bob", "nobody", "ada"] {
            let before = users.compared_passwords();
            let wrong = base64::engine::general_purpose::STANDARD.encode(format!("{user}:wrong horse"));
            let problem =
                authenticate(&users, &logins, &peer(None), Some(&format!("Basic {wrong}"))).await.unwrap_err();
            assert_eq!((problem.status, users.compared_passwords() - before), (StatusCode::UNAUTHORIZED, 1), "{user}");
        }
    }

    #[tokio::test]
    async fn an_open_server_asks_nobody() {
        let (users, logins) = (users(None), Logins::default());
        assert!(authenticate(&users, &logins, &peer(None), None).await.is_ok());
        assert!(authenticate(&users, &logins, &peer(None), Some("Basic YWRhOng=")).await.is_ok());
    }

    #[test]
    fn a_path_is_text() {
        assert!(check_path("/api/v1/tables/caf%C3%A9%zz/heatmap").is_ok());
        let refused = check_path("/api/v1/tables/%FF/heatmap").map_err(|problem| problem.status);
        assert_eq!(refused.unwrap_err(), StatusCode::BAD_REQUEST);
    }
}
