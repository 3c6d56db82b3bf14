//! The list of routes, from which both the router and the OpenAPI document are built.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use axum::routing::get;
use axum::{Router, middleware};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::Problem;
use super::state::AppState;
use super::{
    advisor, calibration, cockpit, control, epochs, explain, guard, health, heatmap, io, maintenance, metrics, moves,
    openapi, orders, placement, queries, tables, tiers,
};

/// Bytes of the largest request body that is read.
const BODY_LIMIT_BYTES: usize = 64 << 10;

/// Every route of the server, with its document.
pub(super) fn documented() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .routes(routes!(cockpit::page))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::all))
        .routes(routes!(metrics::segments))
        .routes(routes!(openapi::document))
        .routes(routes!(health::server))
        .routes(routes!(tiers::list, tiers::add))
        .routes(routes!(tiers::one, tiers::change, tiers::drop_one))
        .routes(routes!(tables::list))
        .routes(routes!(tables::segments))
        .routes(routes!(heatmap::map))
        .routes(routes!(placement::list, placement::make, placement::clear))
        .routes(routes!(placement::drop_one))
        .routes(routes!(placement::all))
        .routes(routes!(explain::table))
        .routes(routes!(control::change_table))
        .routes(routes!(placement::unpin))
        .routes(routes!(orders::bring_back))
        .routes(routes!(orders::warm_up))
        .routes(routes!(explain::query))
        .routes(routes!(calibration::show, calibration::measure))
        .routes(routes!(io::show))
        .routes(routes!(advisor::advise))
        .routes(routes!(control::show, control::change))
        .routes(routes!(orders::roll_back))
        .routes(routes!(epochs::list, epochs::run))
        .routes(routes!(epochs::cancel))
        .routes(routes!(moves::list))
        .routes(routes!(moves::export))
        .routes(routes!(maintenance::check))
        .routes(routes!(maintenance::backup))
        .routes(routes!(maintenance::usage))
        .routes(routes!(queries::list))
        .routes(routes!(queries::one, queries::cancel))
}

/// The whole HTTP service.
pub fn router(state: Arc<AppState>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .fallback(|uri: Uri| async move { Problem::not_found("path", uri.path()) })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            let detail = format!("{} does not support {method}; see /api/v1/openapi.json", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), guard::guard))
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
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
