//! The OpenAPI 3.1 document, derived from the handlers, their types and the doc comments of both.

use axum::Json;
use utoipa::ToSchema as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, ResponseBuilder};

use super::problem::ProblemBody;
use super::routes::documented;

/// Name of the answer for errors.
const PROBLEM: &str = "Problem";

/// The parts of the document that belong to no route.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Terrace admin API",
        version = "1",
        description = "Tiers, tables, placement and statements of one Terrace server. `/api/v1/sql` runs single statements; \
                       programs that send many use Arrow Flight SQL. Lists are paged by `limit` and `offset`. Errors are \
                       `application/problem+json`. Requests that change state are never GET; POST and PUT need \
                       `Content-Type: application/json`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/")),
    security(("basic" = []), ()),
    components(schemas(ProblemBody)),
)]
pub(super) struct Document;

/// This document.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
)]
pub async fn document() -> Json<OpenApi> {
    Json(build())
}

fn build() -> OpenApi {
    let routes = documented();
    let mut document = routes.router.get_openapi().clone();
    if let Some(components) = &mut document.components {
        let description = "Needed when the server has TERRACE_USER and TERRACE_PASSWORD";
        let basic = HttpBuilder::new().scheme(HttpAuthScheme::Basic).description(Some(description)).build();
        components.add_security_scheme("basic", SecurityScheme::Http(basic));
        let body = Content::new(Some(Ref::from_schema_name(ProblemBody::name())));
        let problem = ResponseBuilder::new().description("Refused or failed").content("application/problem+json", body);
        components.responses.insert(PROBLEM.into(), problem.build().into());
    }
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.insert("default".into(), Ref::from_response_name(PROBLEM).into());
            if routes.is_open(path) {
                operation.security = Some(Vec::new());
            }
        }
    }
    document
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::build;

    fn document() -> Value {
        serde_json::to_value(build()).unwrap()
    }

    #[test]
    fn every_reference_resolves_and_every_path_parameter_is_described() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut references = Vec::new();
        collect_references(&document, &mut references);
        assert!(references.len() > 20);
        for reference in references {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
        }
        for (path, item) in document["paths"].as_object().unwrap() {
            let named: BTreeSet<&str> =
                path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            for (method, operation) in item.as_object().unwrap() {
                let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
                let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
                let described: BTreeSet<&str> = in_path.map(|parameter| parameter["name"].as_str().unwrap()).collect();
                assert_eq!(described, named, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_a_summary_and_an_answer_for_errors() {
        let document = document();
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
                assert!(operation["summary"].is_string(), "{method} {path}");
                assert_eq!(operation["responses"]["default"], json!({"$ref": "#/components/responses/Problem"}));
            }
        }
        assert_eq!(document["paths"]["/readyz"]["get"]["security"], json!([]));
        assert_eq!(document["paths"]["/metrics/segments"]["get"].get("security"), None);
        assert_eq!(document["security"], json!([{"basic": []}, {}]));
        assert_eq!(document["components"]["securitySchemes"]["basic"]["scheme"], "basic");
    }

    #[test]
    fn every_field_has_a_description() {
        let document = document();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                let place = if property.get("oneOf").is_some() { "/oneOf/0/description" } else { "/description" };
                assert!(property.pointer(place).is_some(), "{name}.{field}");
            }
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
