//! The cockpit: pages that show tiers, heat, moves and statements, run SQL, and let an administrator act.
//!
//! Page, style and script are parts of the binary, and load nothing from elsewhere. The content security policy says so to
//! the browser: it runs no script and uses no style but those of these files, none inside of the page either. The script is
//! made of modules that are served as they are written, one file each; only the list of SQL's words is made from that of the
//! prompt.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::problem::{Problem, Result};
use crate::sql::keywords::{KEYWORDS, WORDS};

const PAGE: &str = include_str!("cockpit.html");
const STYLE: &str = include_str!("cockpit.css");
const SCRIPT: &str = include_str!("cockpit.js");
const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";
/// Modules of the script, by file.
const MODULES: [(&str, &str); 20] = [
    ("advisor.mjs", include_str!("cockpit/advisor.mjs")),
    ("api.mjs", include_str!("cockpit/api.mjs")),
    ("complete.mjs", include_str!("cockpit/complete.mjs")),
    ("csv.mjs", include_str!("cockpit/csv.mjs")),
    ("disk.mjs", include_str!("cockpit/disk.mjs")),
    ("dom.mjs", include_str!("cockpit/dom.mjs")),
    ("editor.mjs", include_str!("cockpit/editor.mjs")),
    ("epochs.mjs", include_str!("cockpit/epochs.mjs")),
    ("heatmap.mjs", include_str!("cockpit/heatmap.mjs")),
    ("lines.mjs", include_str!("cockpit/lines.mjs")),
    ("moves.mjs", include_str!("cockpit/moves.mjs")),
    ("nodes.mjs", include_str!("cockpit/nodes.mjs")),
    ("past.mjs", include_str!("cockpit/past.mjs")),
    ("plan.mjs", include_str!("cockpit/plan.mjs")),
    ("split.mjs", include_str!("cockpit/split.mjs")),
    ("statement_list.mjs", include_str!("cockpit/statement_list.mjs")),
    ("statements.mjs", include_str!("cockpit/statements.mjs")),
    ("tables.mjs", include_str!("cockpit/tables.mjs")),
    ("tiers.mjs", include_str!("cockpit/tiers.mjs")),
    ("units.mjs", include_str!("cockpit/units.mjs")),
];
/// File of the module that is made.
const WORDS_MODULE: &str = "keywords.mjs";
/// The words that the editor completes, which are those of the prompt.
static WORDS_TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut words: Vec<&str> = KEYWORDS.into_iter().chain(WORDS).collect();
    words.sort_unstable();
    format!("export const KEYWORDS = {words:?};\n")
});
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
    file(SCRIPT_TYPE, SCRIPT)
}

/// A module of the cockpit's script.
#[utoipa::path(
    get,
    path = "/cockpit/{module}",
    operation_id = "cockpitModule",
    params(("module" = String, Path, description = "Its file", example = "units.mjs")),
    responses((status = 200, description = "JavaScript", content_type = "text/javascript", body = String)),
)]
pub async fn module(Path(name): Path<String>) -> Result<Response> {
    let found = MODULES.iter().find(|(file, _)| *file == name).map(|(_, text)| *text);
    let made = || (name == WORDS_MODULE).then(|| WORDS_TEXT.as_str());
    match found.or_else(made) {
        Some(text) => Ok(file(SCRIPT_TYPE, text)),
        None => Err(Problem::not_found("module", &name)),
    }
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
    use std::collections::BTreeSet;

    use super::*;

    /// The text of the script and of its modules.
    fn scripts() -> impl Iterator<Item = &'static str> {
        MODULES.iter().map(|(_, text)| *text).chain([SCRIPT])
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for forbidden in ["http://", "https://", "src=\"//", "@import", "url("] {
            for text in [PAGE, STYLE].into_iter().chain(scripts()) {
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
            assert!(scripts().all(|text| !text.contains(forbidden)), "{forbidden}");
        }
        assert!(PAGE.contains("href=\"cockpit.css\"") && PAGE.contains("src=\"cockpit.js\""));
    }

    #[tokio::test]
    async fn modules_import_only_what_is_served() {
        let served: BTreeSet<&str> = MODULES.iter().map(|(file, _)| *file).chain([WORDS_MODULE]).collect();
        let imported = |text: &'static str| {
            text.split("from \"").skip(1).filter_map(|rest| rest.split('"').next()?.rsplit('/').next())
        };
        let imported: BTreeSet<&str> = scripts().flat_map(imported).collect();
        assert_eq!(imported, served);
        for name in served {
            assert_eq!(module(Path(name.to_owned())).await.unwrap().status(), 200, "{name}");
        }
        let missing = module(Path("../cockpit.rs".to_owned())).await.unwrap_err();
        assert_eq!(missing.status, axum::http::StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_words_are_those_of_the_prompt() {
        let list =
            WORDS_TEXT.strip_prefix("export const KEYWORDS = ").and_then(|rest| rest.strip_suffix(";\n")).unwrap();
        let words: Vec<String> = serde_json::from_str(list).unwrap();
        assert_eq!(words.len(), KEYWORDS.len() + WORDS.len());
        assert!(words.contains(&"SELECT".to_owned()) && words.contains(&"PLACEMENT".to_owned()));
    }

    #[tokio::test]
    async fn every_file_comes_with_a_policy_without_exceptions() {
        let module = module(Path("units.mjs".to_owned())).await.unwrap();
        for (answer, kind) in [
            (page().await, "text/html"),
            (style().await, "text/css"),
            (script().await, "text/javascript"),
            (module, "text/javascript"),
        ] {
            let header = |name: header::HeaderName| answer.headers().get(name).unwrap().to_str().unwrap();
            assert_eq!(header(header::CONTENT_TYPE), format!("{kind}; charset=utf-8"));
            assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
            let policy = header(header::CONTENT_SECURITY_POLICY);
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }
}
