//! Errors as `application/problem+json` (RFC 9457).
//!
//! The one place where errors of the store and of the engine become HTTP status codes. `detail` is a sentence for a
//! person; defects of the server are logged, and their message is sent too, because the reader is its administrator.

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
        Self { status, detail: detail.into(), challenge: false }
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

    /// 401 with a challenge that makes browsers and curl ask for a password.
    pub fn unauthorized() -> Self {
        let detail = "wrong or missing credentials; send TERRACE_USER and TERRACE_PASSWORD as HTTP Basic";
        Self { challenge: true, ..Self::new(StatusCode::UNAUTHORIZED, detail) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, Json(body)).into_response();
        if self.challenge {
            let challenge = header::HeaderValue::from_static("Basic realm=\"terrace\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
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
            ErrorKind::InvalidArgument => StatusCode::BAD_REQUEST,
            ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            ErrorKind::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(%error, "an HTTP request failed");
        }
        Self::new(status, error.message())
    }
}

impl From<axum::extract::rejection::JsonRejection> for Problem {
    fn from(rejection: axum::extract::rejection::JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<axum::extract::rejection::QueryRejection> for Problem {
    fn from(rejection: axum::extract::rejection::QueryRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}
