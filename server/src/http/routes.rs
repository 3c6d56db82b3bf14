//! The list of routes: the router is built from it, and the OpenAPI document is checked against it.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Router, middleware};

use super::problem::Problem;
use super::state::AppState;
use super::{
    advisor, calibration, cockpit, control, epochs, explain, guard, health, heatmap, maintenance, metrics, moves,
    openapi, orders, placement, queries, tables, tiers,
};

/// Bytes of the largest request body that is read.
const BODY_LIMIT_BYTES: usize = 64 << 10;

/// A path with `{parameters}`, the methods it takes (both as in OpenAPI), and what answers.
type Route = (&'static str, &'static [&'static str], MethodRouter<Arc<AppState>>);

/// Every route of the server.
pub(super) fn routes() -> Vec<Route> {
    vec![
        ("/", &["get"], get(cockpit::page)),
        ("/healthz", &["get"], get(health::alive)),
        ("/readyz", &["get"], get(health::ready)),
        ("/metrics", &["get"], get(metrics::all)),
        ("/metrics/segments", &["get"], get(metrics::segments)),
        ("/api/v1/openapi.json", &["get"], get(openapi::document)),
        ("/api/v1/server", &["get"], get(health::server)),
        ("/api/v1/tiers", &["get", "post"], get(tiers::list).post(tiers::add)),
        ("/api/v1/tiers/{name}", &["get", "put", "delete"], get(tiers::one).put(tiers::change).delete(tiers::drop_one)),
        ("/api/v1/tables", &["get"], get(tables::list)),
        ("/api/v1/tables/{name}/segments", &["get"], get(tables::segments)),
        ("/api/v1/tables/{name}/heatmap", &["get"], get(heatmap::map)),
        (
            "/api/v1/tables/{name}/placement-rules",
            &["get", "post", "delete"],
            get(placement::list).post(placement::make).delete(placement::clear),
        ),
        ("/api/v1/tables/{name}/placement-rules/{rule}", &["delete"], delete(placement::drop_one)),
        ("/api/v1/placement-rules", &["get"], get(placement::all)),
        ("/api/v1/tables/{name}/explain-placement", &["post"], post(explain::table)),
        ("/api/v1/tables/{name}/tiering", &["put"], put(control::change_table)),
        ("/api/v1/tables/{name}/unpin", &["post"], post(placement::unpin)),
        ("/api/v1/tables/{name}/bring-back", &["post"], post(orders::bring_back)),
        ("/api/v1/tables/{name}/warm-up", &["post"], post(orders::warm_up)),
        ("/api/v1/explain-placement", &["post"], post(explain::query)),
        ("/api/v1/calibration", &["get", "post"], get(calibration::show).post(calibration::measure)),
        ("/api/v1/advisor", &["get"], get(advisor::advise)),
        ("/api/v1/placement", &["get", "put"], get(control::show).put(control::change)),
        ("/api/v1/placement/roll-back", &["post"], post(orders::roll_back)),
        ("/api/v1/epochs", &["get", "post"], get(epochs::list).post(epochs::run)),
        ("/api/v1/epochs/cancel", &["post"], post(epochs::cancel)),
        ("/api/v1/moves", &["get"], get(moves::list)),
        ("/api/v1/moves/export", &["get"], get(moves::export)),
        ("/api/v1/check", &["post"], post(maintenance::check)),
        ("/api/v1/backup", &["post"], post(maintenance::backup)),
        ("/api/v1/usage", &["get"], get(maintenance::usage)),
        ("/api/v1/queries", &["get"], get(queries::list)),
        ("/api/v1/queries/{id}", &["get", "delete"], get(queries::one).delete(queries::cancel)),
    ]
}

/// The whole HTTP service.
pub fn router(state: Arc<AppState>) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, (path, _, handler)| router.route(path, handler));
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
