//! Which right each route needs: the guard says who calls, and the check in front of a route whether that one may.
//!
//! A route is added together with its rights ([`Routes::with`]), so that none can be forgotten. What is not said is for superusers.
//! Behind them its query parameters are looked at.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use terrace_access::{Authority, Right};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::problem::{Problem, Result};
use super::query_parameters::QueryParameters;
use super::state::AppState;

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing, not even a login.
    Open,
    /// A login.
    Login,
    /// A right of the server.
    Right(Right),
    /// Everything: only superusers may.
    Superuser,
}

/// What the requests to a path need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RouteRights {
    reads: Need,
    changes: Need,
    deletes: Need,
}

impl RouteRights {
    /// GET needs this, and everything else is for superusers.
    pub(super) const fn reads(need: Need) -> Self {
        Self { reads: need, changes: Need::Superuser, deletes: Need::Superuser }
    }

    /// POST, PUT and DELETE need this right.
    pub(super) const fn changes(self, right: Right) -> Self {
        Self { changes: Need::Right(right), deletes: Need::Right(right), ..self }
    }

    /// POST and PUT need a login; what they run asks for rights.
    pub(super) const fn logins_change(self) -> Self {
        Self { changes: Need::Login, ..self }
    }

    /// DELETE needs a login; its handler asks for rights.
    pub(super) const fn logins_delete(self) -> Self {
        Self { deletes: Need::Login, ..self }
    }

    /// DELETE is for superusers.
    pub(super) const fn superusers_delete(self) -> Self {
        Self { deletes: Need::Superuser, ..self }
    }

    /// What a method needs.
    pub(super) fn need(self, method: &Method) -> Need {
        match *method {
            Method::GET | Method::HEAD => self.reads,
            Method::POST | Method::PUT => self.changes,
            Method::DELETE => self.deletes,
            _ => Need::Superuser,
        }
    }

    /// Refuses a request whose caller may not do it. The guard has noted who that is.
    fn check(self, request: &Request) -> Result<()> {
        let authority = || request.extensions().get::<Authority>().ok_or_else(Problem::unauthorized);
        let missing = match self.need(request.method()) {
            Need::Open => return Ok(()),
            Need::Login => return authority().map(|_| ()),
            Need::Right(right) if authority()?.may_on_server(right) => return Ok(()),
            Need::Superuser if authority()?.is_unlimited() => return Ok(()),
            Need::Right(right) => format!("needs {} ON SERVER", right.name()),
            Need::Superuser => "is for superusers".to_owned(),
        };
        let (method, path) = (request.method(), request.uri().path());
        Err(Problem::new(StatusCode::FORBIDDEN, format!("permission denied: {method} {path} {missing}")))
    }
}

/// Reading needs MONITOR; everything else is for superusers.
pub(super) const MONITOR: RouteRights = RouteRights::reads(Need::Right(Right::Monitor));

/// Routes, with what they need.
pub(super) struct Routes {
    /// The router.
    pub(super) router: OpenApiRouter<Arc<AppState>>,
    /// The rights of each path.
    pub(super) rights: Vec<(String, RouteRights)>,
}

impl Routes {
    /// None, with the parts of the document that belong to no route.
    pub(super) fn new(document: utoipa::openapi::OpenApi) -> Self {
        Self { router: OpenApiRouter::with_openapi(document), rights: Vec::new() }
    }

    /// Adds the routes of a path.
    pub(super) fn with(mut self, rights: RouteRights, routes: UtoipaMethodRouter<Arc<AppState>>) -> Self {
        let (schemas, paths, handlers) = routes;
        self.rights.extend(paths.paths.keys().map(|path| (path.clone(), rights)));
        let parameters = Arc::new(QueryParameters::documented(&paths));
        let check = from_fn(move |request: Request, next: Next| {
            let parameters = Arc::clone(&parameters);
            async move {
                rights.check(&request)?;
                parameters.check(request.method(), request.uri())?;
                Ok::<Response, Problem>(next.run(request).await)
            }
        });
        self.router = self.router.routes((schemas, paths, handlers.route_layer(check)));
        self
    }

    /// Whether a path is open to everybody.
    pub(super) fn is_open(&self, path: &str) -> bool {
        self.rights.iter().any(|(known, rights)| known == path && rights.reads == Need::Open)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::super::guard;
    use super::super::routes::documented;
    use super::*;

    /// What each request needs. A route without a line here fails the test.
    const MATRIX: [&str; 51] = [
        "DELETE /api/v1/queries/{id} login",
        "DELETE /api/v1/tables/{name}/placement-rules TIERING",
        "DELETE /api/v1/tables/{name}/placement-rules/{rule} TIERING",
        "DELETE /api/v1/tiers/{name} superuser",
        "GET / login",
        "GET /api/v1/advisor MONITOR",
        "GET /api/v1/calibration MONITOR",
        "GET /api/v1/epochs MONITOR",
        "GET /api/v1/history MONITOR",
        "GET /api/v1/io MONITOR",
        "GET /api/v1/moves MONITOR",
        "GET /api/v1/moves/export MONITOR",
        "GET /api/v1/nodes MONITOR",
        "GET /api/v1/openapi.json login",
        "GET /api/v1/placement MONITOR",
        "GET /api/v1/placement-rules MONITOR",
        "GET /api/v1/queries MONITOR",
        "GET /api/v1/queries/{id} MONITOR",
        "GET /api/v1/server MONITOR",
        "GET /api/v1/tables MONITOR",
        "GET /api/v1/tables/{name}/heatmap MONITOR",
        "GET /api/v1/tables/{name}/placement-rules MONITOR",
        "GET /api/v1/tables/{name}/segments MONITOR",
        "GET /api/v1/tasks MONITOR",
        "GET /api/v1/tiers MONITOR",
        "GET /api/v1/tiers/{name} MONITOR",
        "GET /api/v1/usage MONITOR",
        "GET /cockpit.css login",
        "GET /cockpit.js login",
        "GET /cockpit/{module} login",
        "GET /healthz nothing",
        "GET /metrics MONITOR",
        "GET /metrics/segments MONITOR",
        "GET /readyz nothing",
        "POST /api/v1/backup BACKUP",
        "POST /api/v1/calibration superuser",
        "POST /api/v1/check superuser",
        "POST /api/v1/epochs TIERING",
        "POST /api/v1/epochs/cancel TIERING",
        "POST /api/v1/explain-placement MONITOR",
        "POST /api/v1/placement/roll-back TIERING",
        "POST /api/v1/sql login",
        "POST /api/v1/tables/{name}/bring-back TIERING",
        "POST /api/v1/tables/{name}/explain-placement MONITOR",
        "POST /api/v1/tables/{name}/placement-rules TIERING",
        "POST /api/v1/tables/{name}/unpin TIERING",
        "POST /api/v1/tables/{name}/warm-up TIERING",
        "POST /api/v1/tiers superuser",
        "PUT /api/v1/placement TIERING",
        "PUT /api/v1/tables/{name}/tiering TIERING",
        "PUT /api/v1/tiers/{name} TIERING",
    ];

    #[test]
    fn every_route_says_what_it_needs() {
        let routes = documented();
        let rights = |path: &str| routes.rights.iter().find(|(known, _)| known == path).unwrap().1;
        let document = serde_json::to_value(routes.router.get_openapi()).unwrap();
        let mut found = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                let method: Method = method.to_uppercase().parse().unwrap();
                let need = match rights(path).need(&method) {
                    Need::Open => "nothing",
                    Need::Login => "login",
                    Need::Right(right) => right.name(),
                    Need::Superuser => "superuser",
                };
                found.insert(format!("{method} {path} {need}"));
            }
        }
        let wanted: BTreeSet<String> = MATRIX.into_iter().map(str::to_owned).collect();
        assert_eq!(found, wanted);
        let open = wanted.iter().filter_map(|line| line.strip_suffix(" nothing")?.split(' ').nth(1));
        let open: BTreeSet<&str> = open.collect();
        assert_eq!(open, BTreeSet::from(guard::OPEN));
    }
}
