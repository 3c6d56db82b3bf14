//! The cockpit: a page that shows tiers, heat, moves and statements, and lets an administrator act.
//!
//! Page, style and script are parts of the binary, and load nothing from elsewhere. The content security policy says so to
//! the browser: it runs no script and uses no style but those of these files, none inside of the page either.

use axum::http::header;
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("cockpit.html");
const STYLE: &str = include_str!("cockpit.css");
const SCRIPT: &str = include_str!("cockpit.js");
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The cockpit, a page for people.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "cockpit",
    responses((status = 200, description = "HTML", content_type = "text/html", body = String)),
)]
pub async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

/// The style of the cockpit.
#[utoipa::path(
    get,
    path = "/cockpit.css",
    operation_id = "cockpitStyle",
    responses((status = 200, description = "CSS", content_type = "text/css", body = String)),
)]
pub async fn style() -> Response {
    file("text/css; charset=utf-8", STYLE)
}

/// The script of the cockpit.
#[utoipa::path(
    get,
    path = "/cockpit.js",
    operation_id = "cockpitScript",
    responses((status = 200, description = "JavaScript", content_type = "text/javascript", body = String)),
)]
pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", SCRIPT)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for forbidden in ["http://", "https://", "src=\"//", "@import", "url("] {
            for text in [PAGE, STYLE, SCRIPT] {
                assert!(!text.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn the_page_keeps_to_its_policy() {
        let inline = ["<style", " style=", "<script>", "javascript:", " onclick=", " onload=", " onsubmit="];
        for forbidden in inline {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setAttribute(\"style\""]
        {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
        }
        assert!(PAGE.contains("href=\"cockpit.css\"") && PAGE.contains("src=\"cockpit.js\""));
    }

    #[tokio::test]
    async fn every_file_comes_with_a_policy_without_exceptions() {
        for (answer, kind) in
            [(page().await, "text/html"), (style().await, "text/css"), (script().await, "text/javascript")]
        {
            let header = |name: header::HeaderName| answer.headers().get(name).unwrap().to_str().unwrap();
            assert_eq!(header(header::CONTENT_TYPE), format!("{kind}; charset=utf-8"));
            assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
            let policy = header(header::CONTENT_SECURITY_POLICY);
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }
}
