//! The rows of one execution of a query for several endpoints, each of which a client fetches over a connection of its own.
//!
//! An endpoint takes the next batch when its connection has room for it: together they have each row once, fast ones have more of
//! them, and none waits for another. The execution starts with the first fetch. Endpoints that are fetched after its end have
//! no rows. Where one is closed before its end, rows are lost, so the execution ends and the others get an error.
//!
//! ```text
//!                                        .-- EndpointRows -- encode --> connection
//!   BatchStream -- one batch each time --+-- EndpointRows -- encode --> connection
//!                                        '-- (not fetched yet)
//! ```

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use arrow::record_batch::RecordBatch;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Status, metadata::MetadataMap};

use crate::{
    engine::{BatchStream, EngineError, EngineResult, ErrorKind},
    execution::Executions,
};

/// Names the most endpoints that a client wants for a result.
const ENDPOINTS_HEADER: &str = "terrace-endpoints";
/// Most endpoints of a result.
const MOST_ENDPOINTS: usize = 64;

/// The most endpoints that the header `terrace-endpoints` of a call asks for; one without the header.
pub(crate) fn wanted_endpoints(metadata: &MetadataMap) -> Result<usize, Status> {
    let Some(value) = metadata.get(ENDPOINTS_HEADER) else { return Ok(1) };
    let number = value.to_str().ok().and_then(|text| text.parse::<usize>().ok()).filter(|number| *number > 0);
    let malformed =
        || Status::invalid_argument(format!("header {ENDPOINTS_HEADER}: the value is not a whole number from 1 on"));
    Ok(number.ok_or_else(malformed)?.min(MOST_ENDPOINTS))
}

/// The rows of one execution, for all endpoints of its result.
pub(crate) struct SharedRows {
    state: Mutex<State>,
    waiting: Arc<Waiting>,
    executions: Arc<Executions>,
}

struct State {
    rows: Rows,
    last_taken: Instant,
    /// Number of endpoints that have been fetched.
    opened: u64,
}

enum Rows {
    /// Rows are left; a stream that was not polled has not started its statement.
    Left(BatchStream),
    Over,
    Failed(EngineError),
}

/// The endpoints that wait for rows. Any of them may be the one that asks the stream, so all of them are woken.
#[derive(Default)]
struct Waiting(Mutex<HashMap<u64, Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_values().for_each(Waker::wake);
    }
}

impl SharedRows {
    /// Shares `batches`, the rows of these executions.
    pub(crate) fn new(batches: BatchStream, executions: Arc<Executions>) -> Arc<Self> {
        let state = State { rows: Rows::Left(batches), last_taken: Instant::now(), opened: 0 };
        Arc::new(Self { state: Mutex::new(state), waiting: Arc::default(), executions })
    }

    /// The rows of an endpoint that is fetched now.
    pub(crate) fn open(self: &Arc<Self>) -> EndpointRows {
        let mut state = self.state.lock();
        state.opened += 1;
        let number = state.opened;
        drop(state);
        EndpointRows { shared: Arc::clone(self), number, has_ended: false }
    }

    /// The executions that compute the rows.
    pub(crate) fn executions(&self) -> Arc<Executions> {
        Arc::clone(&self.executions)
    }

    /// When an endpoint last took rows; now, while one waits for them.
    pub(crate) fn last_taken(&self) -> Instant {
        let nobody_waits = self.waiting.0.lock().is_empty();
        if nobody_waits { self.state.lock().last_taken } else { Instant::now() }
    }

    /// Ends the execution, if it has not ended, with an error for all endpoints.
    pub(crate) fn end(&self, error: EngineError) {
        let mut state = self.state.lock();
        if !matches!(state.rows, Rows::Left(_)) {
            return;
        }
        let ended = std::mem::replace(&mut state.rows, Rows::Failed(error));
        drop(state);
        Arc::clone(&self.waiting).wake();
        // Without the lock.
        drop(ended);
    }

    fn poll_next(&self, endpoint: u64, context: &Context<'_>) -> Poll<Option<EngineResult<RecordBatch>>> {
        self.waiting.0.lock().insert(endpoint, context.waker().clone());
        let all = Waker::from(Arc::clone(&self.waiting));
        let mut state = self.state.lock();
        let next = match &mut state.rows {
            Rows::Left(batches) => batches.poll_next_unpin(&mut Context::from_waker(&all)),
            Rows::Over => Poll::Ready(None),
            Rows::Failed(error) => Poll::Ready(Some(Err(error.clone()))),
        };
        let end = match &next {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(_))) => None,
            Poll::Ready(Some(Err(error))) => Some(Rows::Failed(error.clone())),
            Poll::Ready(None) => Some(Rows::Over),
        };
        state.last_taken = Instant::now();
        let ended = end.map(|end| std::mem::replace(&mut state.rows, end));
        drop(state);
        self.waiting.0.lock().remove(&endpoint);
        // The stream need not wake anybody after it gave a batch, and this endpoint may not come back for long.
        all.wake();
        // Without the lock.
        drop(ended);
        next
    }
}

/// The rows of one endpoint.
pub(crate) struct EndpointRows {
    shared: Arc<SharedRows>,
    number: u64,
    has_ended: bool,
}

impl Stream for EndpointRows {
    type Item = EngineResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = self.shared.poll_next(self.number, context);
        self.has_ended = matches!(next, Poll::Ready(None | Some(Err(_))));
        next
    }
}

impl Drop for EndpointRows {
    fn drop(&mut self) {
        self.shared.waiting.0.lock().remove(&self.number);
        if !self.has_ended {
            let message =
                "another endpoint of the result was closed before its end, and its rows are lost: run the query again";
            self.shared.end(EngineError::new(ErrorKind::Aborted, message));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::{
        array::{ArrayRef, AsArray, Int64Array},
        datatypes::Int64Type,
    };
    use futures::{FutureExt, channel::mpsc, stream};

    use super::*;

    fn batch(number: i64) -> EngineResult<RecordBatch> {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        Ok(RecordBatch::try_from_iter([("n", column)]).unwrap())
    }

    fn number(batch: Option<EngineResult<RecordBatch>>) -> i64 {
        batch.unwrap().unwrap().column(0).as_primitive::<Int64Type>().value(0)
    }

    fn shared(batches: impl Stream<Item = EngineResult<RecordBatch>> + Send + 'static) -> Arc<SharedRows> {
        SharedRows::new(batches.boxed(), Arc::default())
    }

    #[test]
    fn a_header_names_the_most_endpoints() {
        let wanted = |value: Option<&'static str>| {
            let mut metadata = MetadataMap::new();
            if let Some(value) = value {
                metadata.insert(ENDPOINTS_HEADER, value.parse().unwrap());
            }
            wanted_endpoints(&metadata).map_err(|error| error.code())
        };
        assert_eq!([None, Some("1"), Some("8"), Some("1000")].map(wanted), [Ok(1), Ok(1), Ok(8), Ok(MOST_ENDPOINTS)]);
        for wrong in ["", "0", "-1", "many", "1.5", "99999999999999999999999"] {
            assert_eq!(wanted(Some(wrong)), Err(tonic::Code::InvalidArgument), "{wrong}");
        }
    }

    #[test]
    fn endpoints_take_batches_in_turn_and_late_ones_none() {
        let rows = shared(stream::iter((0..3).map(batch)));
        let (mut one, mut two) = (rows.open(), rows.open());
        assert_eq!(number(one.next().now_or_never().unwrap()), 0);
        assert_eq!(number(two.next().now_or_never().unwrap()), 1);
        assert_eq!(number(one.next().now_or_never().unwrap()), 2);
        for mut endpoint in [one, two, rows.open()] {
            assert!(endpoint.next().now_or_never().unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_takes_no_more_does_not_keep_others_waiting() {
        let (sender, receiver) = mpsc::unbounded();
        let rows = shared(receiver);
        let (mut one, mut two) = (rows.open(), rows.open());
        let second = tokio::spawn(async move {
            let first = number(two.next().await);
            let then = number(two.next().await);
            (first, then, two)
        });
        // The first endpoint was the last one that asked the stream; then it waits no more.
        tokio::task::yield_now().await;
        assert!(one.next().now_or_never().is_none());
        for n in 0..2 {
            sender.unbounded_send(batch(n)).unwrap();
        }
        let (first, then, two) = second.await.unwrap();
        assert_eq!((first, then), (0, 1));
        drop(sender);
        for mut endpoint in [one, two] {
            assert!(endpoint.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn whoever_closes_an_endpoint_early_ends_the_others() {
        let (sender, receiver) = mpsc::unbounded();
        let rows = shared(receiver);
        let (one, mut two) = (rows.open(), rows.open());
        let waiting = tokio::spawn(async move { two.next().await.unwrap().unwrap_err().kind });
        tokio::task::yield_now().await;
        drop(one);
        assert_eq!(waiting.await.unwrap(), ErrorKind::Aborted);
        assert!(sender.is_closed(), "the execution has ended");
        let late = rows.open().next().await.unwrap().unwrap_err();
        assert!(late.message.contains("closed before its end"), "{late}");
    }

    #[test]
    fn an_error_is_that_of_all_endpoints() {
        let failed = EngineError::new(ErrorKind::ResourceExhausted, "the disk is full");
        let rows = shared(stream::iter([batch(0), Err(failed)]));
        let (mut one, mut two) = (rows.open(), rows.open());
        assert_eq!(number(one.next().now_or_never().unwrap()), 0);
        for endpoint in [&mut two, &mut one, &mut rows.open()] {
            let error = endpoint.next().now_or_never().unwrap().unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::ResourceExhausted);
            assert!(endpoint.next().now_or_never().unwrap().is_none());
        }
    }
}
