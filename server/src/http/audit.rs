//! What the audit trail records of requests: log-ins, and calls that change something or were refused.
//!
//! A request shows each time who makes it. What is recorded is the first one of each caller on a connection, and each refusal.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use parking_lot::Mutex;
use terrace_access::{Ending, Event, EventKind, Origin, Port, Principal, Trail};
use terrace_flight::{Logins, Peer};
use terrace_planner_ext::engine::Engine;
use terrace_tier_store::clock::Clock;

use super::guard;

/// Most callers of one connection that are remembered.
const MOST_CALLERS: usize = 64;

/// The callers of one connection so far.
#[derive(Debug, Default)]
pub(super) struct Callers(Mutex<Vec<Principal>>);

impl Callers {
    /// Adds a caller; false where it is known, or too many are.
    pub(super) fn add(&self, caller: &Principal) -> bool {
        let mut known = self.0.lock();
        if known.len() >= MOST_CALLERS || known.contains(caller) {
            return false;
        }
        known.push(caller.clone());
        true
    }
}

/// Where the client of a request is.
pub(super) fn origin(peer: &Peer) -> Origin {
    Origin::new(Port::Http, peer.address)
}

/// Records a log-in that was refused, if one was tried.
pub(super) fn record_refusal(logins: &Logins, peer: &Peer, given: Option<&str>) {
    match (given.and_then(|given| given.split_once(' ')), &peer.certified_user) {
        (Some((scheme, _)), _) if scheme.eq_ignore_ascii_case("bearer") => {
            logins.record_refusal(origin(peer), "", "token");
        }
        (Some((scheme, value)), _) => {
            let user = guard::basic(scheme, value).map(|(user, _)| user).unwrap_or_default();
            logins.record_refusal(origin(peer), &user, "password");
        }
        (None, Some(name)) => logins.record_refusal(origin(peer), name, "certificate"),
        (None, None) => {}
    }
}

/// A request of a caller who is known. Its end is recorded, also where its client goes away before the answer.
pub(super) struct Call {
    user: String,
    origin: Origin,
    method: Method,
    path: String,
    started_us: u64,
    /// `None`: there is no answer yet.
    status: Option<StatusCode>,
    trail: Arc<Trail>,
    clock: Arc<dyn Clock>,
}

impl Call {
    /// A request that begins.
    pub(super) fn begin(request: &Request, peer: &Peer, caller: &Principal, engine: &Engine) -> Self {
        let clock = Arc::clone(&engine.options().clock);
        Self::new(request, origin(peer), caller, Arc::clone(engine.audit()), clock)
    }

    fn new(request: &Request, origin: Origin, caller: &Principal, trail: Arc<Trail>, clock: Arc<dyn Clock>) -> Self {
        Self {
            user: caller.user.clone(),
            origin,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            started_us: clock.now_us(),
            status: None,
            trail,
            clock,
        }
    }

    /// Records how it was answered, where it changes something or was refused.
    pub(super) fn end(mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let is_refused = self.status == Some(StatusCode::FORBIDDEN);
        // An explanation has a body, and changes nothing; a statement is recorded by the engine.
        let is_elsewhere = self.path.ends_with("/explain-placement") || self.path == guard::STATEMENTS;
        let is_change = !guard::is_reading(&self.method) && !is_elsewhere;
        if !self.trail.records(is_change || is_refused) {
            return;
        }
        let event = Event::new(EventKind::Http, self.method.as_str(), &self.user, self.origin).with_text(&self.path);
        let mut event = match self.status {
            // It may have changed something.
            None => event.ended(Ending::Cancelled, None),
            Some(status) if is_refused => event.ended(Ending::Refused, Some(status.to_string())),
            Some(status) if status.is_success() => event,
            Some(status) => event.ended(Ending::Failed, Some(status.to_string())),
        };
        event.elapsed_us = Some(self.clock.now_us().saturating_sub(self.started_us));
        self.trail.record(event);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{IpAddr, Ipv4Addr};

    use terrace_tier_store::clock::SystemClock;

    use super::*;

    fn peer() -> Peer {
        IpAddr::V4(Ipv4Addr::LOCALHOST).into()
    }

    #[test]
    fn calls_that_change_or_were_refused_are_recorded() {
        let trail = Arc::<Trail>::default();
        let caller = Principal::anonymous("ann");
        for (method, path, status) in [
            ("GET", "/api/v1/tiers", Some(200)),
            ("GET", "/api/v1/tables", Some(403)),
            ("GET", "/api/v1/moves", None),
            ("POST", "/api/v1/explain-placement", Some(200)),
            ("POST", "/api/v1/sql", Some(200)),
            ("PUT", "/api/v1/placement", Some(200)),
            ("DELETE", "/api/v1/queries/q1", Some(409)),
            ("POST", "/api/v1/epochs", None),
        ] {
            let request =
                axum::http::Request::builder().method(method).uri(path).body(axum::body::Body::empty()).unwrap();
            let clock = Arc::new(SystemClock::default());
            let call = Call::new(&request, origin(&peer()), &caller, Arc::clone(&trail), clock);
            match status {
                Some(status) => call.end(StatusCode::from_u16(status).unwrap()),
                // Its client went away.
                None => drop(call),
            }
        }
        let events = trail.latest();
        let shown = events.iter().map(|event| format!("{} {} {}", event.action, event.outcome.name(), event.user));
        let shown: Vec<String> = shown.collect();
        assert_eq!(shown, ["POST cancelled ann", "DELETE failed ann", "PUT done ann", "GET refused ann"]);
    }

    #[test]
    fn refused_log_ins_have_the_name_that_was_given() {
        let trail = Arc::<Trail>::default();
        let logins = Logins::new(Arc::clone(&trail));
        for given in [None, Some("Bearer abc"), Some("Basic YWRhOng="), Some("Basic ***")] {
            record_refusal(&logins, &peer(), given);
        }
        let shown: Vec<String> = trail.latest().iter().map(|e| format!("{}:{}", e.action, e.user)).collect();
        assert_eq!(shown, ["password:", "password:ada", "token:"]);
    }

    #[test]
    fn a_caller_of_a_connection_is_new_once() {
        let callers = Callers::default();
        let [ann, bob] = ["ann", "bob"].map(Principal::anonymous);
        assert_eq!([&ann, &bob, &ann].map(|caller| callers.add(caller)), [true, true, false]);
    }
}
