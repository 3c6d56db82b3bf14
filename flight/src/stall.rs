//! Ends results that their client does not read.
//!
//! The transport asks for the next message once the client has taken the one before, so a result that nobody reads
//! waits with its statement, whose memory others lack. The transport does not ask while the client does not read: a
//! task that sleeps beside the result notices, drops the statement, and leaves an error that the client gets when it
//! reads on. A message costs no more than noting the time. A client may read the endpoints of a result one after another, so none of
//! them is unread while rows are taken through another.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt, stream::BoxStream};
use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Instant};
use tonic::Status;

use crate::{endpoints::SharedRows, metrics::FlightMetrics};

type Messages<T, E> = BoxStream<'static, Result<T, E>>;

/// Ends `messages` when no further one is asked for within `timeout`, nor rows of `endpoints`, of which they are a part.
pub(crate) fn end_unread<T: Send + 'static>(
    messages: Messages<T, Status>,
    timeout: Duration,
    metrics: Arc<FlightMetrics>,
    endpoints: Option<Arc<SharedRows>>,
) -> Messages<T, Status> {
    Limit::<Status> { timeout, endpoints, error: Status::deadline_exceeded }.watch(messages, metrics)
}

/// Ends the answer to a client of another protocol when no further part of it is asked for within `timeout`. `error`
/// makes the last item of a sentence that says so.
pub fn end_unread_rows<T: Send + 'static, E: Send + 'static>(
    parts: BoxStream<'static, Result<T, E>>,
    timeout: Duration,
    metrics: Arc<FlightMetrics>,
    error: fn(String) -> E,
) -> BoxStream<'static, Result<T, E>> {
    Limit { timeout, endpoints: None, error }.watch(parts, metrics)
}

/// How long a result may be unread.
struct Limit<E> {
    timeout: Duration,
    endpoints: Option<Arc<SharedRows>>,
    /// Makes the error of a client that read nothing for so long.
    error: fn(String) -> E,
}

impl<E: Send + 'static> Limit<E> {
    fn watch<T: Send + 'static>(self, messages: Messages<T, E>, metrics: Arc<FlightMetrics>) -> Messages<T, E> {
        let open = State::Open { messages, idle_since: Some(Instant::now()) };
        let shared = Arc::new(Shared { limit: self, state: Mutex::new(open) });
        let watcher = tokio::spawn(watch(Arc::downgrade(&shared), metrics)).abort_handle();
        Reader { shared, watcher }.boxed()
    }
}

struct Shared<T, E> {
    limit: Limit<E>,
    state: Mutex<State<T, E>>,
}

enum State<T, E> {
    Open {
        messages: Messages<T, E>,
        /// The time since which the client could take a message; `None` while the server owes it one.
        idle_since: Option<Instant>,
    },
    /// Ended by the watcher; the client does not know yet.
    Stalled,
    Ended,
}

/// What the watcher does next.
enum Finding<T, E> {
    /// Look again then.
    Wait(Instant),
    /// The client stalled; its messages are to be dropped.
    Stalled(State<T, E>),
    /// The result has ended.
    Ended,
}

impl<T, E> Shared<T, E> {
    fn inspect(&self) -> Finding<T, E> {
        let now = Instant::now();
        let Limit { timeout, endpoints, .. } = &self.limit;
        // Where the lock is held, the transport asks for a message now.
        let Some(mut state) = self.state.try_lock() else { return Finding::Wait(now + *timeout) };
        let own = match &*state {
            State::Open { idle_since, .. } => idle_since.unwrap_or(now),
            State::Stalled | State::Ended => return Finding::Ended,
        };
        let idle_since = endpoints.as_ref().map_or(own, |endpoints| own.max(endpoints.last_taken()));
        let until = idle_since + *timeout;
        if until > now {
            Finding::Wait(until)
        } else {
            Finding::Stalled(std::mem::replace(&mut *state, State::Stalled))
        }
    }
}

async fn watch<T: Send + 'static, E: Send + 'static>(shared: Weak<Shared<T, E>>, metrics: Arc<FlightMetrics>) {
    loop {
        let finding = match shared.upgrade() {
            Some(shared) => shared.inspect(),
            None => return,
        };
        match finding {
            Finding::Wait(until) => tokio::time::sleep_until(until).await,
            Finding::Stalled(unread) => {
                metrics.count_stalled();
                drop(unread);
                tracing::info!("a client took no rows in time; its statement ended");
                return;
            }
            Finding::Ended => return,
        }
    }
}

/// The messages as the transport takes them.
struct Reader<T, E> {
    shared: Arc<Shared<T, E>>,
    watcher: AbortHandle,
}

impl<T, E> Stream for Reader<T, E> {
    type Item = Result<T, E>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.shared.state.lock();
        match &mut *state {
            State::Open { messages, idle_since } => {
                let next = messages.poll_next_unpin(context);
                match &next {
                    Poll::Ready(Some(Ok(_))) => *idle_since = Some(Instant::now()),
                    Poll::Ready(_) => *state = State::Ended,
                    Poll::Pending => *idle_since = None,
                }
                next
            }
            State::Stalled => {
                *state = State::Ended;
                let Limit { timeout, error, .. } = &self.shared.limit;
                Poll::Ready(Some(Err(error(stalled(*timeout)))))
            }
            State::Ended => Poll::Ready(None),
        }
    }
}

impl<T, E> Drop for Reader<T, E> {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

fn stalled(timeout: Duration) -> String {
    format!(
        "the client took no rows for {} (query.stall_timeout); the statement ended to free its memory and execution \
         slot",
        in_words(timeout)
    )
}

/// A duration as a person writes it: `5 min`, `90 s`, `250 ms`.
pub(crate) fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match duration.subsec_millis() {
        0 if seconds > 0 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        0 if seconds > 0 => format!("{seconds} s"),
        _ => format!("{} ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use futures::stream;
    use tokio::time::sleep;
    use tonic::Code;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// Says that it was dropped.
    struct Guard(Arc<AtomicBool>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    /// Endless messages, and whether they were dropped.
    fn endless() -> (Messages<u64, Status>, Arc<AtomicBool>) {
        let dropped = Arc::new(AtomicBool::new(false));
        let guard = Guard(dropped.clone());
        let next = move |number| {
            let _alive = &guard;
            Ok(number)
        };
        (stream::iter(0_u64..).map(next).boxed(), dropped)
    }

    #[tokio::test]
    async fn messages_that_nobody_takes_are_dropped_and_the_reader_learns_why() {
        let metrics = Arc::new(FlightMetrics::default());
        let (messages, dropped) = endless();
        let mut read = end_unread(messages, TIMEOUT, metrics.clone(), None);
        assert_eq!(read.next().await.unwrap().unwrap(), 0);
        assert_eq!(read.next().await.unwrap().unwrap(), 1);
        assert!(!dropped.load(SeqCst));
        for _ in 0..500 {
            if dropped.load(SeqCst) {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(dropped.load(SeqCst), "the statement ends while the client still does not read");
        let error = read.next().await.unwrap().unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(error.message().contains("took no rows for 100 ms (query.stall_timeout)"), "{}", error.message());
        assert!(read.next().await.is_none());
        assert_eq!(metrics.stalled(), 1);
    }

    #[tokio::test]
    async fn clients_of_other_protocols_learn_it_in_their_words() {
        let (messages, dropped) = endless();
        let parts = messages.map(|part| part.map_err(|status| status.message().to_owned())).boxed();
        let mut read = end_unread_rows(parts, TIMEOUT, Arc::default(), |why| format!("ended: {why}"));
        assert_eq!(read.next().await, Some(Ok(0)));
        for _ in 0..500 {
            if dropped.load(SeqCst) {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        let error = read.next().await.unwrap().unwrap_err();
        assert!(error.starts_with("ended: the client took no rows"), "{error}");
        assert!(read.next().await.is_none());
    }

    #[tokio::test]
    async fn a_slow_server_is_no_stalled_client() {
        let metrics = Arc::new(FlightMetrics::default());
        let slow = |number| async move {
            sleep(TIMEOUT * 4).await;
            Ok(number)
        };
        let messages = stream::iter(0_u64..2).then(slow).boxed();
        let read = end_unread(messages, TIMEOUT, metrics.clone(), None);
        let all: Vec<_> = read.map(Result::unwrap).collect().await;
        assert_eq!((all, metrics.stalled()), (vec![0, 1], 0));
    }

    #[tokio::test]
    async fn a_reader_that_leaves_drops_the_messages_at_once() {
        let (messages, dropped) = endless();
        let mut read = end_unread(messages, Duration::from_secs(3600), Arc::default(), None);
        read.next().await.unwrap().unwrap();
        drop(read);
        assert!(dropped.load(SeqCst));
    }

    #[test]
    fn durations_read_as_people_write_them() {
        let words = [300_000, 90_000, 250, 1_500].map(|millis| in_words(Duration::from_millis(millis)));
        assert_eq!(words, ["5 min", "90 s", "250 ms", "1500 ms"]);
    }
}
