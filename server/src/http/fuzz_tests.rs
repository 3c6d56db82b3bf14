//! Any bytes as a request, from its method to its body, over an engine with a table.
//!
//! Requests go to the router: those of bytes that are no HTTP at all end in hyper. Handlers that block, and the engine,
//! allocate on threads of their own; the limit of memory holds for what reads the request and writes the answer.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use terrace_flight::FlightMetrics;
use terrace_planner_ext::engine::{Engine, EngineOptions, FileAccess};
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;
use terrace_tier_store::store::NvmOptions;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::tier::nvm::NvmBacking;
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use super::guard::basic;
use super::routes::documented;
use super::{AppState, ServerInfo, router};
use crate::instance::STACK_BYTES;
use crate::memory_watch::WatchFigures;
use crate::network::NetworkFigures;

/// Records of ended statements, and bytes of the catalog's cache: so few that both are full after a tenth of the inputs. With the usual
/// numbers they fill until the end, as one input in some dozens is a statement.
const KEPT_STATEMENTS: usize = 50;
const CATALOG_CACHE_BYTES: usize = 4 << 20;

/// Bytes of the longest answer.
const MOST_ANSWER_BYTES: usize = 16 << 20;

/// Errors of the server that are right answers: a statement that is not supported, that has to wait or whose time is over, a
/// pool or budget larger than the memory.
const SERVER_ERRORS: [StatusCode; 4] = [
    StatusCode::NOT_IMPLEMENTED,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
    StatusCode::INSUFFICIENT_STORAGE,
];

/// Requests that measure devices, which takes seconds.
const MEASURING: [&str; 2] = ["/api/v1/calibration", "/api/v1/tiers"];

/// Names of parameters in queries.
const PARAMETERS: [&str; 11] =
    ["limit", "offset", "width", "points", "at", "more", "goal", "prices", "last", "kind", "format"];

/// A route, and the name of an object for each parameter in its path.
struct Route {
    method: Method,
    path: String,
}

fn routes() -> Vec<Route> {
    let document = serde_json::to_value(documented().router.get_openapi()).unwrap();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let name = if path.contains("/tiers/") { "nvm" } else { "t" };
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{name}", name).replace("{rule}", "1").replace("{id}", "1");
            routes.push(Route { method, path });
        }
    }
    assert!(routes.len() > 40);
    routes
}

/// Reads a request from text: a line with method and path, lines of headers, an empty line, the body.
fn written(input: &[u8]) -> Option<Request<Body>> {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = input.split_at(end.unwrap_or(input.len()));
    let mut lines = head.split(|byte| *byte == b'\n');
    let (method, path) = split_once(lines.next()?, b' ')?;
    let mut request = Request::new(Body::from(body.get(2..).unwrap_or_default().to_vec()));
    *request.method_mut() = Method::from_bytes(method).ok()?;
    *request.uri_mut() = Uri::try_from(path).ok()?;
    for line in lines {
        let Some((name, value)) = split_once(line, b':') else { continue };
        let header = HeaderName::from_bytes(name).ok().zip(HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let Some((name, value)) = header {
            request.headers_mut().append(name, value);
        }
    }
    Some(request)
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = bytes.iter().position(|byte| *byte == at)?;
    Some((bytes.get(..place)?, bytes.get(place + 1..)?))
}

/// Makes a request to a known route, by the first byte of an input; the others are its body, or a value in its query.
fn drawn(input: &[u8], routes: &[Route]) -> Option<Request<Body>> {
    let [which, parameter, rest @ ..] = input else { return None };
    let Route { method, path } = routes.get(usize::from(*which) % routes.len())?;
    let has_body = [Method::POST, Method::PUT].contains(method);
    let body = if has_body { rest.to_vec() } else { Vec::new() };
    let uri = match has_body {
        true => path.clone(),
        false => {
            let name = PARAMETERS.get(usize::from(*parameter) % PARAMETERS.len())?;
            format!("{path}?{name}={}", percent_encode(rest, NON_ALPHANUMERIC))
        }
    };
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = Uri::try_from(uri).ok()?;
    Some(request)
}

fn request(input: &[u8], routes: &[Route]) -> Option<Request<Body>> {
    let is_text = input.first().is_some_and(u8::is_ascii_uppercase);
    let request = if is_text { written(input) } else { drawn(input, routes) };
    let mut request = request?;
    // Without these two, the guard answers all requests.
    for (name, value) in [(header::HOST, "localhost"), (header::CONTENT_TYPE, "application/json")] {
        request.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    let measures = request.method() == Method::POST && MEASURING.contains(&request.uri().path());
    (!measures).then_some(request)
}

/// A server without its listeners, and the runtime of its engine.
struct Fixture {
    runtime: Runtime,
    engine: Arc<Engine>,
    router: Router,
}

impl Fixture {
    /// Opens a server in `folder`, which writes files for requests below `written` only.
    fn open(folder: &Path, written: &Path) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).thread_stack_size(STACK_BYTES).enable_all().build().unwrap();
        let data_dir = folder.join("data");
        let mut options = StoreOptions::new(&data_dir);
        options.nvm = Some(NvmOptions { backing: NvmBacking::Emulated, capacity_bytes: 4 << 20, limiter: None });
        options.catalog_cache_bytes = CATALOG_CACHE_BYTES;
        let store = Store::open(options).unwrap();
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3_000));
        let texts: ArrayRef =
            Arc::new(StringViewArray::from_iter_values((0..3_000).map(|i| format!("text {}", i % 9))));
        let rows = RecordBatch::try_from_iter([("a", numbers), ("s", texts)]).unwrap();
        let mut definition = TableDefinition::new(TableName::new("public", "t"), rows.schema());
        definition.options.chunk_rows = 1_000;
        let mut ingest = store.ingest_new(definition, false).unwrap();
        ingest.write(rows).unwrap();
        ingest.finish().unwrap();
        let mut options = EngineOptions::new(folder.join("spill"), runtime.handle().clone());
        options.files = FileAccess::new(Vec::new(), vec![written.to_owned()], Vec::new());
        options.history = KEPT_STATEMENTS;
        let engine = Engine::new(store, options).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let info = ServerInfo {
            version: "0".into(),
            data_dir,
            flight_addr: address,
            http_addr: address,
            started_unix_us: 0,
            tls: false,
            prices_per_gb: Vec::new(),
            stall_timeout: None,
        };
        let network = NetworkFigures { listeners: Vec::new(), tls: None, logins: Arc::default(), issuer: None };
        let flight = Arc::new(FlightMetrics::default());
        let state = AppState::new(Arc::clone(&engine), flight, info, WatchFigures::new(1 << 30), network);
        Self { runtime, engine, router: router(state) }
    }

    /// Sends a request; returns the status of its answer.
    fn send(&self, request: Request<Body>) -> StatusCode {
        let shown = format!("{} {}", request.method(), request.uri());
        let (status, body) = self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await.unwrap();
            (answer.status(), to_bytes(answer.into_body(), MOST_ANSWER_BYTES).await)
        });
        let body = body.unwrap();
        let is_defect = status.is_server_error() && !SERVER_ERRORS.contains(&status);
        assert!(!is_defect, "{shown}: {status}, {}", String::from_utf8_lossy(&body));
        status
    }

    /// Takes back what a request may have ordered, so that there is no more of it after many requests.
    fn clear(&self) {
        for text in [
            "DELETE /api/v1/tables/t/placement-rules\n\n",
            "PUT /api/v1/placement\n\n{\"mode\": \"auto\", \"frozen\": false}",
        ] {
            self.send(request(text.as_bytes(), &[]).unwrap());
        }
    }

    fn close(self) {
        let Self { runtime, engine, router } = self;
        // What they hold may still start tasks.
        runtime.block_on(async move { drop((router, engine)) });
    }
}

/// Requests that are answered with what they ask for.
fn examples(copy: &Path) -> Vec<Vec<u8>> {
    let api = |line: &str, body: &str| {
        let headers = "host: localhost:8080\norigin: http://localhost:8080\ncontent-type: application/json";
        let authorization = "authorization: Basic YWRhOmxhY2U=";
        format!("{line}\n{headers}\n{authorization}\n\n{body}").into_bytes()
    };
    let backup = format!("{{\"path\": {}}}", serde_json::to_string(copy).unwrap());
    vec![
        api("GET /healthz", ""),
        api("GET /readyz", ""),
        api("GET /", ""),
        api("GET /metrics", ""),
        api("GET /metrics/segments", ""),
        api("GET /api/v1/tables?limit=10&offset=0", ""),
        api("GET /api/v1/tables/public.t/segments?limit=3&offset=1", ""),
        api("GET /api/v1/tables/t/heatmap?width=8", ""),
        api("GET /api/v1/moves/export?format=csv", ""),
        api("GET /api/v1/advisor?points=5&at=25%25,40%25&more=4MiB&goal=1.5", ""),
        api("GET /api/v1/queries?limit=1", ""),
        api("GET /api/v1/tasks", ""),
        api("GET /api/v1/nodes", ""),
        api("GET /api/v1/history?last=2h&points=10", ""),
        api(
            "POST /api/v1/tables/t/placement-rules",
            "{\"kind\": \"prefer\", \"tier\": \"dram\", \"columns\": [\"a\"], \"where\": \"a > 10\"}",
        ),
        api("POST /api/v1/tables/t/warm-up", "{\"columns\": [\"s\"], \"where\": \"a BETWEEN 5 AND 7\"}"),
        api("POST /api/v1/tables/t/bring-back", "{\"tier\": \"dram\", \"columns\": [\"a\", \"s\"]}"),
        api("POST /api/v1/tables/t/explain-placement", "{\"columns\": [\"a\"]}"),
        api("POST /api/v1/explain-placement", "{\"sql\": \"SELECT s, sum(a) FROM t WHERE a > 3 GROUP BY s\"}"),
        api(
            "POST /api/v1/sql",
            "{\"sql\": \"SELECT s, a FROM t WHERE a < $most\", \"parameters\": {\"most\": 5}, \"max_rows\": 3}",
        ),
        api("POST /api/v1/epochs", "{\"dry_run\": true}"),
        api("POST /api/v1/check", "{\"quick\": true, \"repair\": false}"),
        api("POST /api/v1/backup", &backup),
        api("PUT /api/v1/placement", "{\"mode\": \"auto\", \"frozen\": false}"),
        api("PUT /api/v1/tables/t/tiering", "{\"mode\": \"advise\"}"),
        api("PUT /api/v1/tiers/nvm", "{\"budget\": \"1MiB\", \"rate_limit\": \"10MiB\"}"),
        api("DELETE /api/v1/tables/t/placement-rules", ""),
    ]
}

/// Runs a harness on a thread with the stack that a server's threads have: conditions are parsed by recursion.
fn on_large_stack(harness: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fuzz".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, harness).unwrap();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn requests() {
    on_large_stack(|| {
        let [folder, copies] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let fixture = Fixture::open(folder.path(), copies.path());
        let examples = examples(&copies.path().join("copy"));
        let routes = routes();
        fuzz!("HTTP requests", Inputs::stateful(150, 200_000), examples, |input: &[u8]| {
            if let Some((scheme, value)) = String::from_utf8_lossy(input).split_once(' ') {
                let _ = basic(scheme, value);
            }
            let Some(request) = request(input, &routes) else { return false };
            let is_change = [Method::POST, Method::PUT].contains(request.method());
            let status = fixture.send(request);
            if is_change {
                fixture.clear();
                // Backups to damaged names are there, too.
                for made in std::fs::read_dir(copies.path()).unwrap() {
                    let _ = std::fs::remove_dir_all(made.unwrap().path());
                }
            }
            status.is_success()
        });
        fixture.close();
    });
}
