//! The cockpit: one page that shows tiers, heat, moves and queries, and lets an administrator act.
//!
//! The page is part of the binary and loads nothing from elsewhere; its content security policy says so to the browser.

use axum::http::header;
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("cockpit.html");
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The cockpit, a page for people.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "cockpit",
    responses((status = 200, description = "HTML", content_type = "text/html", body = String)),
)]
pub async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for forbidden in ["http://", "https://", "src=\"//", "@import"] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
    }
}
