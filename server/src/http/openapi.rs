//! The OpenAPI 3.1 document, kept as a file beside the code; a test holds it equal to the routes.

use axum::http::header;
use axum::response::{IntoResponse, Response};

const DOCUMENT: &str = include_str!("openapi.json");

/// `GET /api/v1/openapi.json`
pub async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::routes::routes;
    use super::DOCUMENT;

    #[test]
    fn the_document_lists_exactly_the_routes() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let documented: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys().filter(|k| *k != "parameters");
                methods.map(move |method| format!("{method} {path}")).collect::<Vec<_>>()
            })
            .collect();
        let served: BTreeSet<String> =
            routes().iter().flat_map(|(path, methods, _)| methods.iter().map(move |m| format!("{m} {path}"))).collect();
        assert_eq!(documented, served);
        assert_eq!(document["openapi"], "3.1.0");
    }

    #[test]
    fn every_reference_and_path_parameter_resolves() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut references = Vec::new();
        collect_references(&document, &mut references);
        assert!(references.len() > 20);
        for reference in references {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
        }
        for (path, item) in document["paths"].as_object().unwrap() {
            assert_eq!(path.contains('{'), item.get("parameters").is_some(), "{path}");
        }
    }

    fn collect_references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|v| collect_references(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| collect_references(v, found)),
            _ => {}
        }
    }
}
