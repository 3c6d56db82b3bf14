//! Query parameters: a request of the admin API with one that its route does not have is refused, as one with an unknown field
//! in its body is. Ignored, `?state=failed` would be answered with all statements.
//!
//! Which ones a route has stands in its part of the OpenAPI document. Pages and metrics are left out: browsers and scrapers
//! add parameters of their own.

use axum::http::{Method, Uri};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterIn, Paths};

use super::problem::{Problem, Result};

/// Begin of the paths that are looked at.
const API: &str = "/api/";

/// The query parameters of a path, by method.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryParameters(Vec<MethodParameters>);

/// The query parameters of a method.
#[derive(Debug, Clone)]
struct MethodParameters {
    method: Method,
    names: Vec<String>,
}

impl QueryParameters {
    /// Those that the document of a path has.
    pub(super) fn documented(paths: &Paths) -> Self {
        let operations = paths.paths.values().flat_map(|item| {
            [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ]
        });
        let known = |method, operation: &Option<Operation>| {
            operation.as_ref().map(|operation| MethodParameters { method, names: names(operation) })
        };
        Self(operations.filter_map(|(method, operation)| known(method, operation)).collect())
    }

    /// Refuses a request with a parameter that its method does not have.
    pub(super) fn check(&self, method: &Method, uri: &Uri) -> Result<()> {
        let Some(query) = uri.query().filter(|_| uri.path().starts_with(API)) else { return Ok(()) };
        let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
        // That the path lacks the method is said by the router.
        let Some(known) = self.0.iter().find(|known| known.method == method) else { return Ok(()) };
        let given = query.split('&').map(|part| part.split_once('=').map_or(part, |(name, _)| name));
        let mut unknown = given.filter(|name| !name.is_empty() && !known.names.iter().any(|known| known == name));
        let Some(unknown) = unknown.next() else { return Ok(()) };
        let there = if known.names.is_empty() { "none".to_owned() } else { known.names.join(", ") };
        Err(Problem::bad_request(format!("unknown query parameter '{unknown}'; there are: {there}")))
    }
}

/// The names of an operation's query parameters.
fn names(operation: &Operation) -> Vec<String> {
    let parameters = operation.parameters.iter().flatten();
    let names = parameters.filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter.name.clone()),
        RefOr::T(_) | RefOr::Ref(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::routes::documented;
    use super::*;

    /// The answer to a request, for a path with the parameters of the whole document.
    fn refusal(path: &str, method: &Method, uri: &str) -> Option<String> {
        let mut paths = documented().router.get_openapi().paths.clone();
        paths.paths.retain(|known, _| known == path);
        assert_eq!(paths.paths.len(), 1, "{path}");
        let checked = QueryParameters::documented(&paths).check(method, &uri.parse().unwrap());
        checked.err().map(|problem| problem.detail)
    }

    #[test]
    fn what_a_route_does_not_have_is_refused() {
        let queries = |uri| refusal("/api/v1/queries", &Method::GET, uri);
        assert_eq!(queries("/api/v1/queries"), None);
        assert_eq!(queries("/api/v1/queries?limit=3&offset=1&"), None);
        let refused = "unknown query parameter 'state'; there are: limit, offset";
        assert_eq!(queries("/api/v1/queries?limit=3&state=failed").as_deref(), Some(refused));
        let heatmap = "/api/v1/tables/{name}/heatmap";
        assert_eq!(refusal(heatmap, &Method::HEAD, "/api/v1/tables/t/heatmap?width=8"), None);
        let refused = refusal("/api/v1/tasks", &Method::GET, "/api/v1/tasks?limit=1").unwrap();
        assert_eq!(refused, "unknown query parameter 'limit'; there are: none");
    }

    #[test]
    fn pages_and_other_methods_are_left_alone() {
        assert_eq!(refusal("/", &Method::GET, "/?from=mail"), None);
        assert_eq!(refusal("/api/v1/tasks", &Method::PUT, "/api/v1/tasks?x=1"), None);
    }
}
