//! Formats of an answer with rows, and which one a request asks for: by name, or by its header `Accept`.

use axum::http::StatusCode;

use super::super::problem::{Problem, Result};

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// One object with columns and rows.
    Json,
    /// Comma-separated values below a line with the names of the columns.
    Csv,
    /// An object per line.
    Ndjson,
    /// A stream of Arrow IPC messages.
    Arrow,
}

impl Format {
    /// All formats, the default first.
    const ALL: [Self; 4] = [Self::Json, Self::Csv, Self::Ndjson, Self::Arrow];

    /// Its name in a request.
    fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Ndjson => "ndjson",
            Self::Arrow => "arrow",
        }
    }

    /// The `Content-Type` of an answer.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8",
            Self::Ndjson => "application/x-ndjson",
            Self::Arrow => "application/vnd.apache.arrow.stream",
        }
    }

    /// The first format whose media type is in a range such as `text/*`.
    fn in_range(range: &str) -> Option<Self> {
        match range {
            "*/*" | "application/*" | "application/json" => Some(Self::Json),
            "text/*" | "text/csv" => Some(Self::Csv),
            "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Some(Self::Ndjson),
            "application/vnd.apache.arrow.stream" => Some(Self::Arrow),
            _ => None,
        }
    }

    /// The format with this name; without one, that which the header `Accept` prefers.
    pub(super) fn choose(name: Option<&str>, accept: &str) -> Result<Self> {
        if let Some(name) = name {
            let found = Self::ALL.into_iter().find(|format| format.name() == name);
            return found.ok_or_else(|| {
                Problem::bad_request(format!("format must be {}, not '{name}'", Self::ALL.map(Self::name).join(", ")))
            });
        }
        if accept.trim().is_empty() {
            return Ok(Self::Json);
        }
        let mut best = None;
        let mut most = 0.0;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
            let weight = weight.unwrap_or(0.0);
            if let Some(format) = Self::in_range(&media_type).filter(|_| weight > most) {
                best = Some(format);
                most = weight;
            }
        }
        best.ok_or_else(|| {
            let types = Self::ALL.map(Self::content_type).join(", ");
            let detail = format!("'Accept: {accept}' takes none of the formats that there are: {types}");
            Problem::new(StatusCode::NOT_ACCEPTABLE, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_wins_over_the_header() {
        for format in Format::ALL {
            assert_eq!(Format::choose(Some(format.name()), "text/csv").unwrap(), format);
        }
        let refused = Format::choose(Some("xml"), "").unwrap_err();
        assert_eq!(
            (refused.status, refused.detail.as_str()),
            (StatusCode::BAD_REQUEST, "format must be json, csv, ndjson, arrow, not 'xml'")
        );
    }

    #[test]
    fn the_header_says_what_is_preferred() {
        for (accept, expected) in [
            ("", Format::Json),
            ("*/*", Format::Json),
            ("text/csv", Format::Csv),
            ("Text/CSV; header=present", Format::Csv),
            ("text/html, application/x-ndjson;q=0.5, text/csv; q=0.9", Format::Csv),
            ("text/csv;q=0, */*;q=0.1", Format::Json),
            ("application/vnd.apache.arrow.stream", Format::Arrow),
            ("application/jsonl, application/json", Format::Ndjson),
        ] {
            assert_eq!(Format::choose(None, accept).unwrap(), expected, "{accept}");
        }
        let refused = Format::choose(None, "image/png, text/csv;q=0").unwrap_err();
        assert_eq!(refused.status, StatusCode::NOT_ACCEPTABLE);
        assert!(refused.detail.contains("text/csv"), "{}", refused.detail);
    }
}
