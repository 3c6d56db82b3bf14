//! The list of routes with what each needs, from which both the router and the OpenAPI document are built.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use axum::{Router, middleware};
use terrace_access::Right;
use utoipa::OpenApi;
use utoipa_axum::router::UtoipaMethodRouter;
use utoipa_axum::routes;

use super::problem::Problem;
use super::rights::{MONITOR, Need, RouteRights, Routes};
use super::state::AppState;
use super::{
    advisor, calibration, cockpit, control, epochs, explain, guard, health, heatmap, history, io, maintenance, metrics,
    moves, nodes, openapi, orders, placement, queries, sql, tables, tasks, tiers, trace,
};

/// Bytes of the largest request body that is read.
const BODY_LIMIT_BYTES: usize = 64 << 10;
/// The same for a statement with its parameters.
const STATEMENT_LIMIT_BYTES: usize = 1 << 20;

/// Every route of the server, with its document and what it needs.
pub(super) fn documented() -> Routes {
    let open = RouteRights::reads(Need::Open);
    let login = RouteRights::reads(Need::Login);
    let steering = MONITOR.changes(Right::Tiering);
    let watching = MONITOR.changes(Right::Monitor);
    Routes::new(openapi::Document::openapi())
        .with(login, routes!(cockpit::page))
        .with(login, routes!(cockpit::style))
        .with(login, routes!(cockpit::script))
        .with(login, routes!(cockpit::module))
        .with(open, routes!(health::alive))
        .with(open, routes!(health::ready))
        .with(MONITOR, routes!(metrics::all))
        .with(MONITOR, routes!(metrics::segments))
        .with(login, routes!(openapi::document))
        .with(MONITOR, routes!(health::server))
        .with(MONITOR, routes!(tiers::list, tiers::add))
        .with(steering.superusers_delete(), routes!(tiers::one, tiers::change, tiers::drop_one))
        .with(MONITOR, routes!(tables::list))
        .with(MONITOR, routes!(tables::segments))
        .with(MONITOR, routes!(heatmap::map))
        .with(steering, routes!(placement::list, placement::make, placement::clear))
        .with(steering, routes!(placement::drop_one))
        .with(MONITOR, routes!(placement::all))
        .with(watching, routes!(explain::table))
        .with(steering, routes!(control::change_table))
        .with(steering, routes!(placement::unpin))
        .with(steering, routes!(orders::bring_back))
        .with(steering, routes!(orders::warm_up))
        .with(watching, routes!(explain::query))
        .with(MONITOR, routes!(calibration::show, calibration::measure))
        .with(MONITOR, routes!(io::show))
        .with(MONITOR, routes!(history::show))
        .with(MONITOR, routes!(advisor::advise))
        .with(steering, routes!(control::show, control::change))
        .with(steering, routes!(orders::roll_back))
        .with(steering, routes!(epochs::list, epochs::run))
        .with(steering, routes!(epochs::cancel))
        .with(MONITOR, routes!(moves::list))
        .with(MONITOR, routes!(moves::export))
        .with(MONITOR, routes!(maintenance::check))
        .with(MONITOR.changes(Right::Backup), routes!(maintenance::backup))
        .with(MONITOR, routes!(maintenance::usage))
        .with(MONITOR, routes!(tasks::list))
        .with(MONITOR, routes!(nodes::list))
        .with(MONITOR, routes!(queries::list))
        .with(MONITOR.logins_delete(), routes!(queries::one, queries::cancel))
        .with(login.logins_change(), with_bodies(STATEMENT_LIMIT_BYTES, routes!(sql::run)))
}

/// The same routes, which read bodies of up to `limit_bytes`.
fn with_bodies(limit_bytes: usize, routes: UtoipaMethodRouter<Arc<AppState>>) -> UtoipaMethodRouter<Arc<AppState>> {
    let (schemas, paths, handlers) = routes;
    (schemas, paths, handlers.layer(DefaultBodyLimit::max(limit_bytes)))
}

/// The whole HTTP service.
pub fn router(state: Arc<AppState>) -> Router {
    let (router, _) = documented().router.split_for_parts();
    router
        .fallback(|uri: Uri| async move { Problem::not_found("path", uri.path()) })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            let detail = format!("{} does not support {method}; see /api/v1/openapi.json", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard::guard))
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .layer(middleware::from_fn(trace::traced))
        .with_state(state)
}

/// The routes of the port for probes: yes or no, and not a word about the server.
pub fn probes(state: Arc<AppState>) -> Router {
    let ready = async |state: State<Arc<AppState>>| match health::ready(state).await {
        Ok(_) => (StatusCode::OK, "yes\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "no\n"),
    };
    Router::new()
        .route("/healthz", get(async || "yes\n"))
        .route("/readyz", get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, "this port answers /healthz and /readyz\n"))
        .with_state(state)
}
