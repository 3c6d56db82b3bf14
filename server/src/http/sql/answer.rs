//! The body of an answer: rows of a running statement, written part by part when the connection takes them.
//!
//! An answer holds one batch, and the bytes of a part of it. Whoever drops it, as the server does when its client goes away,
//! ends the statement and the session of the request.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, Schema};
use axum::body::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use terrace_access::{Origin, Principal};
use terrace_planner_ext::engine::Engine;
use terrace_planner_ext::{Error, RunningQuery, Session};
use terrace_tier_store::clock::Clock;
use terrace_tier_store::table::row_bytes;

use super::super::problem::{Problem, Result};
use super::format::Format;
use super::writer::{Summary, Writer};

/// Most rows of a part.
const PART_ROWS: usize = 4_096;
/// About the most bytes of the rows of a part, so that a network thread is soon free for others.
const PART_BYTES: usize = 256 << 10;

/// A part of a body, or why there is no further one.
pub(super) type Part = std::io::Result<Bytes>;

/// A session for one request, which ends with it.
pub(super) struct RequestSession {
    engine: Arc<Engine>,
    session: Arc<Session>,
}

impl RequestSession {
    /// Opens a session.
    pub(super) fn open(engine: &Arc<Engine>, origin: Origin, caller: Principal) -> Self {
        Self { engine: Arc::clone(engine), session: engine.open_session_from(origin, caller) }
    }

    /// The session.
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for RequestSession {
    fn drop(&mut self) {
        self.engine.close_session(self.session.id());
    }
}

/// What the rows of an answer are limited to, and measured by.
pub(super) struct Terms {
    /// Most rows; `None`: all.
    pub(super) max_rows: Option<u64>,
    /// When the request came, by the clock.
    pub(super) started_us: u64,
    /// The clock.
    pub(super) clock: Arc<dyn Clock>,
}

/// An answer that is being written.
pub(super) struct Answer {
    writer: Writer,
    /// Bytes that stand before the next rows.
    head: Vec<u8>,
    /// `None`: no further rows are read.
    batches: Option<BoxStream<'static, std::result::Result<RecordBatch, Error>>>,
    /// Rows of a batch that are not written yet.
    waiting: Option<RecordBatch>,
    /// How many of them are written at once.
    step: usize,
    rows: u64,
    is_truncated: bool,
    affected_rows: Option<u64>,
    has_ended: bool,
    terms: Terms,
    id: String,
    /// Declared behind the rows, as it is dropped after them.
    _session: RequestSession,
}

impl Answer {
    /// An answer with the rows of a statement.
    ///
    /// # Errors
    /// When the format cannot hold its columns.
    pub(super) fn with_rows(
        format: Format,
        running: RunningQuery,
        terms: Terms,
        session: RequestSession,
    ) -> Result<Self> {
        let mut writer = Writer::new(format, &running.schema)?;
        let mut head = Vec::new();
        writer.push_head(&mut head);
        let batches = running.stream.map(|batch| batch.map_err(Error::from)).boxed();
        Ok(Self {
            writer,
            head,
            batches: Some(batches),
            waiting: None,
            step: PART_ROWS,
            rows: 0,
            is_truncated: false,
            affected_rows: None,
            has_ended: false,
            terms,
            id: running.id,
            _session: session,
        })
    }

    /// An answer in JSON to a statement that ran to its end and returned a count.
    ///
    /// # Errors
    /// Those of the statement.
    pub(super) async fn with_count(mut running: RunningQuery, terms: Terms, session: RequestSession) -> Result<Self> {
        let counted = running.stream.next().await.transpose().map_err(Error::from)?;
        let count = counted
            .and_then(|batch| batch.columns().first()?.as_primitive_opt::<Int64Type>()?.values().first().copied());
        let nothing = RunningQuery { schema: Schema::empty().into(), ..running };
        let affected_rows = count.map(|count| u64::try_from(count).unwrap_or(0));
        Ok(Self { affected_rows, batches: None, ..Self::with_rows(Format::Json, nothing, terms, session)? })
    }

    /// Id of the statement, as in `system.queries`.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The body.
    pub(super) fn into_parts(self) -> impl Stream<Item = Part> + Send + 'static {
        stream::unfold(self, |mut answer| async move { Some((answer.next().await?, answer)) })
    }

    async fn next(&mut self) -> Option<Part> {
        while !self.has_ended {
            if let Some(batch) = self.waiting.take() {
                return Some(self.part(&batch));
            }
            let batch = match &mut self.batches {
                Some(batches) => batches.next().await,
                None => None,
            };
            match batch {
                Some(Ok(batch)) => self.take(batch),
                Some(Err(error)) => return Some(self.fail(error)),
                None => return self.end(),
            }
        }
        None
    }

    /// Takes a batch, or as much of it as the answer may have.
    fn take(&mut self, batch: RecordBatch) {
        let room = self.terms.max_rows.map_or(u64::MAX, |most| most.saturating_sub(self.rows));
        let rows = usize::try_from(room).unwrap_or(usize::MAX).min(batch.num_rows());
        if rows < batch.num_rows() {
            self.is_truncated = true;
            // Ends the statement.
            self.batches = None;
        }
        self.step = part_rows(&batch);
        self.waiting = (rows > 0).then(|| batch.slice(0, rows));
    }

    /// Writes the first rows of a batch; the rest waits.
    fn part(&mut self, batch: &RecordBatch) -> Part {
        let rows = self.step.min(batch.num_rows());
        if rows < batch.num_rows() {
            self.waiting = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        let mut out = std::mem::take(&mut self.head);
        let head_bytes = out.len();
        match self.writer.push_rows(&batch.slice(0, rows), &mut out) {
            Ok(()) => {
                self.rows += rows as u64;
                Ok(out.into())
            }
            Err(error) => {
                // The error stands behind the head, too.
                out.truncate(head_bytes);
                self.head = out;
                self.fail(error.into())
            }
        }
    }

    /// Writes what stands behind the last row.
    fn end(&mut self) -> Option<Part> {
        self.has_ended = true;
        self.batches = None;
        let mut out = std::mem::take(&mut self.head);
        let summary = summary(&self.terms, &self.id, self.rows);
        let summary = Summary { truncated: self.is_truncated, affected_rows: self.affected_rows, ..summary };
        match self.writer.push_tail(&summary, &mut out) {
            Ok(()) => (!out.is_empty()).then(|| Ok(out.into())),
            Err(error) => Some(Err(std::io::Error::other(error.to_string()))),
        }
    }

    /// Ends the answer with an error: in its format, or by closing the connection.
    fn fail(&mut self, error: Error) -> Part {
        self.has_ended = true;
        self.batches = None;
        self.waiting = None;
        let problem = Problem::from(error);
        let mut out = std::mem::take(&mut self.head);
        let summary = summary(&self.terms, &self.id, self.rows);
        match self.writer.push_error(summary, problem.body(), &mut out) {
            true => Ok(out.into()),
            false => Err(std::io::Error::other(problem.detail)),
        }
    }
}

/// What an answer with `rows` rows says behind them now.
fn summary<'a>(terms: &Terms, statement: &'a str, rows: u64) -> Summary<'a> {
    let elapsed_us = terms.clock.now_us().saturating_sub(terms.started_us);
    Summary { row_count: rows, truncated: false, affected_rows: None, elapsed_us, statement, error: None }
}

/// The number of rows of a batch that are written at once.
fn part_rows(batch: &RecordBatch) -> usize {
    let bytes = usize::try_from(row_bytes(batch)).unwrap_or(usize::MAX);
    let bytes_per_row = (bytes / batch.num_rows().max(1)).max(1);
    (PART_BYTES / bytes_per_row).clamp(1, PART_ROWS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn parts_are_small_however_wide_the_rows() {
        let rows = |column: ArrayRef| part_rows(&RecordBatch::try_from_iter([("a", column)]).unwrap());
        assert_eq!(rows(Arc::new(Int64Array::from_iter_values(0..8_192))), PART_ROWS);
        assert_eq!(rows(Arc::new(StringArray::from(vec!["x".repeat(1 << 20); 3]))), 1);
        let some = rows(Arc::new(StringArray::from(vec!["x".repeat(1_000); 8_192])));
        assert!((200..300).contains(&some), "{some}");
        assert_eq!(rows(Arc::new(Int64Array::from(Vec::<i64>::new()))), PART_ROWS);
    }
}
