//! Errors as `application/problem+json` (RFC 9457).
//!
//! The one place where errors of the store and of the engine become HTTP status codes. `detail` is a sentence for a
//! person; where trying again helps, `Retry-After` says after how many seconds. Defects of the server are logged, and
//! their message is sent too, because the reader is its administrator.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use terrace_planner_ext::{Error as EngineError, ErrorKind};
use terrace_tier_store::Error as StoreError;
use utoipa::ToSchema;

/// An error answer, with what to do instead.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Status code of the answer.
    pub status: StatusCode,
    /// One sentence for a person.
    pub detail: String,
    challenge: bool,
    retry_after: Option<Duration>,
}

/// An error answer (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody {
    /// Always `about:blank`: the status says what kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// Status code of the answer.
    status: u16,
    /// One sentence for a person: what is wrong and what to do.
    detail: String,
}

/// Result of every handler.
pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    /// A problem with a status and a sentence.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), challenge: false, retry_after: None }
    }

    /// Says when to try again.
    pub(super) fn with_retry_after(self, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..self }
    }

    /// The problem with its detail replaced by `change(detail)`.
    #[must_use]
    pub fn map_detail(mut self, change: impl FnOnce(&str) -> String) -> Self {
        self.detail = change(&self.detail);
        self
    }

    /// 400: the request makes no sense.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: `kind` of that name is unknown.
    pub fn not_found(kind: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{kind} '{name}' does not exist"))
    }

    /// The problem as an object of JSON.
    pub(super) fn body(&self) -> ProblemBody {
        ProblemBody {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
        }
    }

    /// 401 with a challenge that makes browsers and curl ask for a password.
    pub fn unauthorized() -> Self {
        let detail = "wrong or missing credentials; send user and password as HTTP Basic, or a token as Bearer";
        Self { challenge: true, ..Self::new(StatusCode::UNAUTHORIZED, detail) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, Json(self.body())).into_response();
        if self.challenge {
            let challenge = header::HeaderValue::from_static("Basic realm=\"terrace\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(delay) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, whole_seconds(delay).into());
        }
        response
    }
}

/// A delay in whole seconds, rounded up; at least one.
fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs().saturating_add(u64::from(delay.subsec_nanos() > 0)).max(1)
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::from(EngineError::from(error))
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::AlreadyExists | ErrorKind::Aborted | ErrorKind::FailedPrecondition => StatusCode::CONFLICT,
            // Somebody else did it.
            ErrorKind::Cancelled => StatusCode::CONFLICT,
            ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
            ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            // A full queue is no full disk.
            ErrorKind::ResourceExhausted if error.retry_after().is_some() => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let fails_for_now = status == StatusCode::SERVICE_UNAVAILABLE && error.retry_after().is_none();
        if status == StatusCode::INTERNAL_SERVER_ERROR || fails_for_now {
            tracing::error!(%error, "an HTTP request failed");
        }
        Self { retry_after: error.retry_after(), ..Self::new(status, error.message()) }
    }
}

impl From<axum::extract::rejection::JsonRejection> for Problem {
    fn from(rejection: axum::extract::rejection::JsonRejection) -> Self {
        Self::new(rejection.status(), sentence(&rejection.body_text()))
    }
}

/// What is wrong with a value of a body: without the words of the parser in front of it and the position behind it. The
/// position of what is no JSON stays.
fn sentence(text: &str) -> &str {
    let Some(wrong) = text.strip_prefix("Failed to deserialize the JSON body into the target type: ") else {
        return text;
    };
    wrong.rsplit_once(" at line ").map_or(wrong, |(wrong, _)| wrong)
}

impl From<axum::extract::rejection::QueryRejection> for Problem {
    fn from(rejection: axum::extract::rejection::QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Status and `Retry-After` of the answer to an error.
    fn answer(error: EngineError) -> (StatusCode, Option<String>) {
        let response = Problem::from(error).into_response();
        let seconds = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        (response.status(), seconds.map(str::to_owned))
    }

    #[test]
    fn a_busy_server_says_when_to_try_again() {
        let busy = || EngineError::new(ErrorKind::ResourceExhausted, "16 statements run and 256 wait: try again");
        let expected = [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")];
        for (millis, seconds) in expected {
            let error = busy().with_retry_after(Duration::from_millis(millis));
            assert_eq!(answer(error), (StatusCode::SERVICE_UNAVAILABLE, Some(seconds.to_owned())), "{millis} ms");
        }
        let stopping = EngineError::new(ErrorKind::Unavailable, "the server is stopping; connect again later");
        let answered = answer(stopping.with_retry_after(Duration::from_secs(5)));
        assert_eq!(answered, (StatusCode::SERVICE_UNAVAILABLE, Some("5".to_owned())));
    }

    #[test]
    fn errors_that_stay_do_not_ask_for_another_try() {
        let full = EngineError::new(ErrorKind::ResourceExhausted, "the disk is full");
        assert_eq!(answer(full), (StatusCode::INSUFFICIENT_STORAGE, None));
        let wrong = EngineError::new(ErrorKind::InvalidArgument, "SQL syntax");
        assert_eq!(answer(wrong), (StatusCode::BAD_REQUEST, None));
        let unavailable = EngineError::new(ErrorKind::Unavailable, "the disk does not work");
        assert_eq!(answer(unavailable), (StatusCode::SERVICE_UNAVAILABLE, None));
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_body_is_said_in_words() {
        use axum::extract::FromRequest;
        use axum::http::Request;

        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Change {
            budget: u64,
        }
        let detail = async |body: &'static str| {
            let request = Request::post("/").header(header::CONTENT_TYPE, "application/json");
            let read = Json::<Change>::from_request(request.body(axum::body::Body::from(body)).unwrap(), &()).await;
            Problem::from(read.unwrap_err()).detail
        };
        assert_eq!(detail("{\"budget\": \"lots\"}").await, "budget: invalid type: string \"lots\", expected u64");
        assert!(detail("{\"bugdet\": 1}").await.contains("unknown field `bugdet`, expected `budget`"));
        assert!(detail("{budget").await.ends_with("at line 1 column 2"));
    }

    #[test]
    fn statements_that_were_ended_are_no_defects_of_the_server() {
        let ended = |kind| answer(EngineError::new(kind, "it ended")).0;
        assert_eq!(ended(ErrorKind::Cancelled), StatusCode::CONFLICT);
        assert_eq!(ended(ErrorKind::DeadlineExceeded), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(ended(ErrorKind::Unauthenticated), StatusCode::UNAUTHORIZED);
        assert_eq!(ended(ErrorKind::DataLoss), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
