//! The list of routes: the router is built from it, and the OpenAPI document is checked against it.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post};
use axum::{Router, middleware};

use super::problem::Problem;
use super::state::AppState;
use super::{cockpit, epochs, guard, health, heatmap, metrics, moves, openapi, queries, tables, tiers};

/// Bytes of the largest request body that is read.
const BODY_LIMIT_BYTES: usize = 64 << 10;

/// A path with what it answers to.
pub(super) struct Route {
    /// Path with `{parameters}`, as in OpenAPI.
    pub path: &'static str,
    /// Methods in lower case, as in OpenAPI.
    pub methods: &'static [&'static str],
    handler: MethodRouter<Arc<AppState>>,
}

/// Every route of the server.
pub(super) fn routes() -> Vec<Route> {
    let read = |path, handler| Route { path, methods: &["get"], handler };
    vec![
        read("/", get(cockpit::page)),
        read("/healthz", get(health::alive)),
        read("/readyz", get(health::ready)),
        read("/metrics", get(metrics::all)),
        read("/metrics/segments", get(metrics::segments)),
        read("/api/v1/openapi.json", get(openapi::document)),
        read("/api/v1/server", get(health::server)),
        read("/api/v1/tiers", get(tiers::list)),
        Route { path: "/api/v1/tiers/{name}", methods: &["get", "put"], handler: get(tiers::one).put(tiers::change) },
        read("/api/v1/tables", get(tables::list)),
        read("/api/v1/tables/{name}/segments", get(tables::segments)),
        read("/api/v1/tables/{name}/heatmap", get(heatmap::map)),
        Route { path: "/api/v1/epochs", methods: &["get", "post"], handler: post(epochs::run).get(epochs::list) },
        read("/api/v1/moves", get(moves::list)),
        read("/api/v1/queries", get(queries::list)),
        Route {
            path: "/api/v1/queries/{id}",
            methods: &["get", "delete"],
            handler: get(queries::one).delete(queries::cancel),
        },
    ]
}

/// The whole HTTP service.
pub fn router(state: Arc<AppState>) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler));
    router
        .fallback(|uri: Uri| async move { Problem::not_found("path", uri.path()) })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            let detail = format!("{} does not take {method}; see /api/v1/openapi.json", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard::guard))
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .with_state(state)
}
