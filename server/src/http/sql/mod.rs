//! Runs one SQL statement for a request.
//!
//! The statement passes the same gate as one of Flight: rights, policies, admission, limits, the audit trail. It has a
//! session of its own, which ends with the answer, and commits by itself. Rows are written as they come ([`answer`]): a
//! client that goes away ends the statement, one that takes no rows for too long, too.
//!
//! - [`answer`]: the body of an answer
//! - [`cells`]: values as JSON and CSV
//! - [`format`]: the formats, and which one a request asks for
//! - [`parameters`]: parameters from JSON
//! - [`writer`]: rows as the bytes of an answer

mod answer;
mod cells;
mod format;
mod parameters;
mod writer;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use terrace_access::{Origin, Principal};
use terrace_flight::end_unread_rows;
use terrace_planner_ext::engine::{Prepared, SessionPart};
use utoipa::ToSchema;

use super::problem::{Problem, ProblemBody, Result};
use super::state::AppState;
use crate::sql::split::split;
use crate::units::Span;
use answer::{Answer, RequestSession, Terms};
use format::Format;
use writer::SqlColumn;

/// The header of an answer with the id of its statement.
const STATEMENT: &str = "terrace-statement";

/// A statement to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct SqlRequest {
    /// One statement in SQL.
    #[schema(examples("SELECT day, sum(amount) FROM sales WHERE shop = $shop GROUP BY day"))]
    sql: String,
    /// Values of its parameters: a list for `?` and `$1`, an object for `$name`. A value is a number, a text, a boolean
    /// or null.
    parameters: Option<Value>,
    /// The format of the answer: json, csv, ndjson or arrow. Without it the header `Accept` decides; the default is json.
    format: Option<String>,
    /// Most rows of the answer. A query that has more ends there, as if it were cancelled.
    max_rows: Option<u64>,
    /// Longest time that the statement may take, such as 30s; it cannot lengthen that of the server.
    #[schema(value_type = Option<String>, examples("30s"))]
    timeout: Option<Span>,
}

/// The answer in JSON.
// For the document alone: the answer is written as its rows come.
#[allow(dead_code)]
#[derive(ToSchema)]
struct SqlAnswer {
    /// The columns of the rows; none for a statement that returns a count.
    columns: Vec<SqlColumn>,
    /// The rows, each with a value per column.
    rows: Vec<Vec<Value>>,
    /// Number of these rows.
    row_count: u64,
    /// True where `max_rows` left rows out.
    truncated: bool,
    /// Rows that the statement changed; `null` for one that returns rows.
    #[schema(required)]
    affected_rows: Option<u64>,
    /// Time from the request to the last row, in microseconds.
    elapsed_us: u64,
    /// Id of the statement, as in `system.queries`.
    statement: String,
    /// Why further rows are missing; an answer with all of its rows has no such field.
    #[schema(nullable = false)]
    error: Option<ProblemBody>,
}

/// Runs one statement and answers with its rows, or with the number of rows that it changed.
///
/// An error before the first row is a problem with a status. One that comes later is the field `error` of JSON, and the last
/// line of NDJSON, an object `error`; in CSV and Arrow the connection ends before the answer does. The header
/// `terrace-statement` has the id of the statement, by which it can be cancelled.
#[utoipa::path(
    post,
    path = "/api/v1/sql",
    operation_id = "runSql",
    request_body = SqlRequest,
    responses((
        status = 200,
        description = "The rows",
        content(
            (SqlAnswer = "application/json"),
            (String = "text/csv"),
            (String = "application/x-ndjson"),
            (String = "application/vnd.apache.arrow.stream")
        ),
    )),
)]
pub async fn run(
    State(state): State<Arc<AppState>>,
    Extension(caller): Extension<Principal>,
    Extension(origin): Extension<Origin>,
    headers: HeaderMap,
    request: std::result::Result<Json<SqlRequest>, JsonRejection>,
) -> Result<Response> {
    let Json(request) = request?;
    let clock = Arc::clone(&state.engine.options().clock);
    let terms = Terms { max_rows: request.max_rows, started_us: clock.now_us(), clock };
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::choose(request.format.as_deref(), &accepted.collect::<Vec<_>>().join(","))?;
    let several = split(&request.sql).parts.len();
    if several > 1 {
        let detail =
            format!("a request runs one statement, and this one has {several}: send each in a request of its own");
        return Err(Problem::bad_request(detail));
    }
    let session = RequestSession::open(&state.engine, origin, caller);
    if let Some(timeout) = request.timeout {
        session.session().set_option("statement_timeout", Some(&timeout.to_string()))?;
    }
    let prepared = session.session().prepare(&request.sql).await?;
    check_outlasts_session(&prepared)?;
    let parameters = parameters::row(request.parameters, &prepared.parameter_schema())?;
    let running = prepared.query(parameters).await?;
    let answer = match prepared.is_update() && format == Format::Json {
        true => Answer::with_count(running, terms, session).await?,
        false => Answer::with_rows(format, running, terms, session)?,
    };
    Ok(respond(&state, format, answer))
}

/// Refuses a statement whose effect would end with the request.
fn check_outlasts_session(prepared: &Prepared) -> Result<()> {
    let why = match prepared.session_part() {
        None => return Ok(()),
        Some(SessionPart::Transaction) => {
            "each request has a session of its own and commits by itself: BEGIN, COMMIT, ROLLBACK and savepoints need Flight SQL"
        }
        Some(SessionPart::NamedStatements) => {
            "each request has a session of its own, in which prepared statements end: send parameters with the statement, or use \
             Flight SQL"
        }
        Some(SessionPart::Options) => {
            "each request has a session of its own, in which options end: give the field timeout, or use Flight SQL"
        }
    };
    Err(Problem::bad_request(why))
}

/// The response that streams an answer.
fn respond(state: &AppState, format: Format, answer: Answer) -> Response {
    let statement = HeaderValue::from_str(answer.id()).ok();
    let parts = answer.into_parts().boxed();
    let parts = match state.info.stall_timeout {
        Some(timeout) => end_unread_rows(parts, timeout, Arc::clone(&state.flight), std::io::Error::other::<String>),
        None => parts,
    };
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()))];
    let mut response = (kind, Body::from_stream(parts)).into_response();
    if let Some(statement) = statement {
        response.headers_mut().insert(STATEMENT, statement);
    }
    response
}
