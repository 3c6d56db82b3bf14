//! The memory of request messages that are being received, over all streams.
//!
//! A message is collected whole before it is decoded, so a client that sends a large one, slowly or not, makes the server
//! hold its bytes. Each stream takes the bytes of a frame from one budget before it keeps them. A message gives its bytes
//! back when it is decoded; a large one of rows to store only when the last of them is copied or in a file, as the rows lie
//! in the message itself ([`crate::bodies`]). While the budget is used up, a stream does not read on, and HTTP/2 flow control holds
//! its client back.
//!
//! - **A lone large message always passes.** The message that has waited longest may go on beyond the budget until its bytes
//!   are given back. So what all streams hold is at most the budget, one message, and [`FREE_BYTES`] per message.
//! - **Streams do not wait for a silent client.** When the message that may go on receives nothing for [`IDLE`], the right
//!   passes to the next one, and what it has received stays beyond the budget. That also ends a deadlock: streams of one
//!   connection share its window, and those that wait may have filled it, so that nothing arrives on the one that goes on.
//! - **They wait while the memory of the process is short**, in all for [`PATIENCE`] for each stream, and from then on for
//!   [`LOOK`] before each [`SLOW_BYTES`]: statements grow beyond what was planned for them, and whoever stops them then must not be
//!   overtaken by a message that fills hundreds of megabytes in a moment.
//! - **They do wait for the engine.** A message that is whole keeps the right until its rows are stored: the engine stores
//!   them without more messages, so this ends.
//! - **Small messages never wait**: statements and tickets pass while uploads have used up the budget.
//! - A stream that is dropped gives back what it holds and leaves the queue. A client that sends half of a message and then
//!   nothing is dropped after a time, so that others do not wait for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tonic::{Status, body::Body};

use crate::{metrics::FlightMetrics, stall::in_words};

/// Bytes that a message holds without waiting.
const FREE_BYTES: u64 = 64 << 10;

/// Time after which the right to go on beyond the budget passes from a message that receives nothing to the next one.
const IDLE: Duration = Duration::from_secs(1);

/// Time between two looks whether memory is short.
const LOOK: Duration = Duration::from_millis(20);

/// How long a stream waits for memory before it goes on slowly.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes after which a message that goes on slowly waits again.
const SLOW_BYTES: u64 = 256 << 10;

/// A request whose bytes count as received until the gRPC layer has read its end. A client that sends half of it and then
/// nothing for `stall_timeout` gets an error.
pub(crate) fn counted(request: Body, received: Received, stall_timeout: Option<Duration>) -> Body {
    let frames = stream::try_unfold((request, received), move |(mut request, mut received)| async move {
        let timeout = stall_timeout.filter(|_| received.bytes > 0);
        let Some(frame) = next_frame(&mut request, timeout).await? else { return Ok::<_, Status>(None) };
        if let Some(data) = frame.data_ref() {
            received.take(data.len()).await;
        }
        Ok(Some((frame, (request, received))))
    });
    Body::new(StreamBody::new(frames))
}

/// The next frame of a request; an error when it does not come within `timeout`.
pub(crate) async fn next_frame(request: &mut Body, timeout: Option<Duration>) -> Result<Option<Frame<Bytes>>, Status> {
    let Some(timeout) = timeout else { return request.frame().await.transpose() };
    match tokio::time::timeout(timeout, request.frame()).await {
        Ok(frame) => frame.transpose(),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "the client sent a part of a message and then nothing for {} (query.stall_timeout)",
            in_words(timeout)
        ))),
    }
}

/// The budget of all streams.
pub(crate) struct ReceiveBudget {
    max_bytes: u64,
    metrics: Arc<FlightMetrics>,
    memory_short: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    beyond: Option<Beyond>,
    /// Messages that wait, the first the longest.
    waiting: VecDeque<Waiting>,
    /// Number of messages so far.
    messages: u64,
}

impl State {
    fn next_message(&mut self) -> MessageId {
        self.messages += 1;
        MessageId(self.messages)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MessageId(u64);

/// The message that may go on beyond the budget.
struct Beyond {
    message: MessageId,
    /// When it took bytes; `None` once it is whole.
    latest: Option<Instant>,
}

impl Beyond {
    fn new(message: MessageId) -> Self {
        Self { message, latest: Some(Instant::now()) }
    }
}

struct Waiting {
    message: MessageId,
    bytes: u64,
    /// Sent when the bytes are taken.
    taken: oneshot::Sender<()>,
}

impl ReceiveBudget {
    pub(crate) fn new(max_bytes: u64, metrics: Arc<FlightMetrics>, memory_short: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self { max_bytes, metrics, memory_short, state: Mutex::default() })
    }

    /// What a new stream holds: nothing yet.
    pub(crate) fn stream(self: &Arc<Self>) -> Received {
        let message = self.state.lock().next_message();
        Received { budget: Arc::clone(self), message, bytes: 0, waited: Duration::ZERO }
    }

    fn add(&self, state: &mut State, bytes: u64) {
        state.bytes += bytes;
        self.metrics.set_received_bytes(state.bytes);
    }

    fn give_back(&self, state: &mut State, bytes: u64) {
        state.bytes = state.bytes.saturating_sub(bytes);
        self.metrics.set_received_bytes(state.bytes);
    }

    /// Passes on the right to go on beyond the budget if its message is not whole and has received nothing for a time.
    fn pass_on(&self) {
        let mut state = self.state.lock();
        let latest = state.beyond.as_ref().and_then(|beyond| beyond.latest);
        if latest.is_some_and(|latest| latest.elapsed() >= IDLE) {
            state.beyond = None;
            self.serve(&mut state);
        }
    }

    /// Keeps the right to go on beyond the budget for a message, if it has it: it is not its client that is silent.
    fn keep_right(&self, message: MessageId) {
        let mut state = self.state.lock();
        if let Some(beyond) = state.beyond.as_mut().filter(|beyond| beyond.message == message) {
            beyond.latest = Some(Instant::now());
        }
    }

    /// Takes bytes for as many waiting messages as the budget allows.
    fn serve(&self, state: &mut State) {
        while let Some(first) = state.waiting.front() {
            if state.bytes.saturating_add(first.bytes) > self.max_bytes {
                if state.beyond.is_some() {
                    return;
                }
                state.beyond = Some(Beyond::new(first.message));
            }
            let Some(first) = state.waiting.pop_front() else { return };
            self.add(state, first.bytes);
            // A stream that no longer listens gives back what was taken for it ([`Wait`]).
            let _ = first.taken.send(());
        }
    }
}

/// Bytes that one message holds of the budget; given back when dropped.
pub(crate) struct Received {
    budget: Arc<ReceiveBudget>,
    message: MessageId,
    bytes: u64,
    /// Time for which it and the messages before it on its stream have waited for memory.
    waited: Duration,
}

impl Received {
    /// Takes more bytes; waits while there are none, and while memory is short.
    pub(crate) async fn take(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        let total = self.bytes.saturating_add(bytes);
        while total > FREE_BYTES && self.budget.memory_short.load(Ordering::Relaxed) {
            let is_slow = self.waited >= PATIENCE;
            if is_slow && self.bytes / SLOW_BYTES == total / SLOW_BYTES {
                break;
            }
            tokio::time::sleep(LOOK).await;
            self.budget.keep_right(self.message);
            self.waited += LOOK;
            if is_slow {
                break;
            }
        }
        if let Some(mut taken) = self.try_take(bytes) {
            let mut wait = Wait { received: self, bytes, ended: false };
            while timeout(IDLE, &mut taken).await.is_err() {
                self.budget.pass_on();
            }
            wait.ended = true;
        }
        self.bytes += bytes;
    }

    /// Takes bytes, or joins the queue and returns what tells that they are taken.
    fn try_take(&self, bytes: u64) -> Option<oneshot::Receiver<()>> {
        let budget = &self.budget;
        let mut state = budget.state.lock();
        let mut goes_on = state.waiting.is_empty() && state.bytes.saturating_add(bytes) <= budget.max_bytes;
        goes_on |= self.bytes.saturating_add(bytes) <= FREE_BYTES;
        if let Some(beyond) = state.beyond.as_mut().filter(|beyond| beyond.message == self.message) {
            beyond.latest = Some(Instant::now());
            goes_on = true;
        }
        if goes_on {
            budget.add(&mut state, bytes);
            return None;
        }
        let (taken, told) = oneshot::channel();
        state.waiting.push_back(Waiting { message: self.message, bytes, taken });
        budget.serve(&mut state);
        Some(told)
    }

    /// Ends the message, which is whole, and begins the next one of its stream; returns the bytes of the whole one. Gives
    /// back the last `rest` of the bytes, which belong to the next one, until somebody asks for that.
    pub(crate) fn end_message_before(&mut self, rest: usize) -> Self {
        let mut state = self.budget.state.lock();
        let rest = self.bytes.min(rest as u64);
        self.bytes -= rest;
        self.budget.give_back(&mut state, rest);
        self.budget.serve(&mut state);
        let next = state.next_message();
        if let Some(beyond) = state.beyond.as_mut().filter(|beyond| beyond.message == self.message) {
            beyond.latest = None;
        }
        drop(state);
        let message = std::mem::replace(&mut self.message, next);
        Self {
            budget: Arc::clone(&self.budget),
            message,
            bytes: std::mem::take(&mut self.bytes),
            waited: Duration::ZERO,
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        self.budget.give_back(&mut state, self.bytes);
        if state.beyond.as_ref().is_some_and(|beyond| beyond.message == self.message) {
            state.beyond = None;
        }
        self.budget.serve(&mut state);
    }
}

/// A message that waits, and may be dropped meanwhile.
struct Wait<'a> {
    received: &'a Received,
    bytes: u64,
    /// Whether the bytes are the message's now.
    ended: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let budget = &self.received.budget;
        let mut state = budget.state.lock();
        let waiting = state.waiting.len();
        state.waiting.retain(|waiting| waiting.message != self.received.message);
        if state.waiting.len() == waiting {
            // Taken already, but not noticed.
            budget.give_back(&mut state, self.bytes);
        }
        budget.serve(&mut state);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::{FutureExt, StreamExt};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    const MAX: u64 = 1 << 20;
    const HALF: usize = 1 << 19;

    fn budget() -> (Arc<ReceiveBudget>, Arc<FlightMetrics>) {
        let metrics = Arc::<FlightMetrics>::default();
        (ReceiveBudget::new(MAX, metrics.clone(), Arc::default()), metrics)
    }

    #[tokio::test]
    async fn the_first_that_waits_goes_on_and_the_others_follow_in_order() {
        let (budget, metrics) = budget();
        let [mut held, mut first, mut second, mut third, mut small] = [(); 5].map(|()| budget.stream());
        held.take(2 * HALF).await;
        // Goes on beyond the budget, up to the end of its message.
        first.take(HALF).await;
        first.take(2 * HALF).await;
        let mut second_takes = Box::pin(second.take(HALF));
        let mut third_takes = Box::pin(third.take(HALF));
        assert!(second_takes.as_mut().now_or_never().is_none() && third_takes.as_mut().now_or_never().is_none());
        small.take(1000).await;
        drop(first.end_message_before(0));
        second_takes.await;
        assert!(third_takes.as_mut().now_or_never().is_none(), "one goes on beyond the budget at a time");
        drop(held);
        third_takes.await;
        drop((second, third, small));
        assert_eq!(metrics.received_bytes(), 0);
        assert_eq!(metrics.received_peak_bytes(), MAX + 3 * HALF as u64 + 1000);
    }

    #[tokio::test]
    async fn a_stream_that_is_dropped_while_it_waits_is_not_waited_for() {
        let (budget, metrics) = budget();
        let [mut held, mut beyond, mut gone, mut last] = [(); 4].map(|()| budget.stream());
        let mut served = budget.stream();
        held.take(2 * HALF).await;
        beyond.take(HALF).await;
        let mut gone_takes = Box::pin(gone.take(HALF));
        let mut served_takes = Box::pin(async move { served.take(HALF).await });
        let mut last_takes = Box::pin(last.take(HALF));
        assert!(gone_takes.as_mut().now_or_never().is_none());
        assert!(served_takes.as_mut().now_or_never().is_none());
        assert!(last_takes.as_mut().now_or_never().is_none());
        drop(gone_takes);
        // Bytes are taken for the next one, which is dropped before it notices.
        drop(beyond);
        assert_eq!(metrics.received_bytes(), MAX + HALF as u64);
        drop(served_takes);
        last_takes.await;
        assert_eq!(metrics.received_bytes(), MAX + HALF as u64);
        drop((held, gone, last));
        assert_eq!(metrics.received_bytes(), 0);
    }

    #[tokio::test]
    async fn a_silent_client_passes_the_right_to_go_on() {
        let (budget, _) = budget();
        let [mut silent, mut next] = [(); 2].map(|()| budget.stream());
        silent.take(2 * HALF).await;
        silent.take(HALF).await;
        next.take(HALF).await;
        assert!(silent.take(HALF).now_or_never().is_none(), "the next one has the right now");
    }

    #[tokio::test]
    async fn what_is_whole_keeps_the_right_until_it_is_stored() {
        let (budget, metrics) = budget();
        let [mut held, mut upload, mut next] = [(); 3].map(|()| budget.stream());
        held.take(2 * HALF).await;
        upload.take(HALF).await;
        let first = upload.end_message_before(0);
        // The next message of the stream waits like any other.
        let mut second_takes = Box::pin(upload.take(HALF));
        let mut next_takes = Box::pin(next.take(HALF));
        assert!(timeout(2 * IDLE, futures::future::select(&mut second_takes, &mut next_takes)).await.is_err());
        assert_eq!(metrics.received_bytes(), MAX + HALF as u64);
        drop(first);
        second_takes.await;
        assert!(next_takes.as_mut().now_or_never().is_none(), "one goes on beyond the budget at a time");
        drop(upload.end_message_before(0));
        next_takes.await;
        assert_eq!(metrics.received_peak_bytes(), MAX + HALF as u64);
    }

    #[tokio::test]
    async fn large_messages_wait_while_memory_is_short() {
        let memory_short = Arc::new(AtomicBool::new(true));
        let metrics = Arc::<FlightMetrics>::default();
        let budget = ReceiveBudget::new(MAX, metrics.clone(), Arc::clone(&memory_short));
        let [mut small, mut large, mut late] = [(); 3].map(|()| budget.stream());
        small.take(FREE_BYTES as usize).await;
        let mut large_takes = Box::pin(large.take(HALF));
        assert!(timeout(3 * LOOK, &mut large_takes).await.is_err());
        assert_eq!(metrics.received_bytes(), FREE_BYTES);
        memory_short.store(false, Ordering::Relaxed);
        large_takes.await;
        // One that has waited for long goes on, slowly.
        memory_short.store(true, Ordering::Relaxed);
        late.waited = PATIENCE;
        let start = Instant::now();
        late.take(SLOW_BYTES as usize).await;
        late.take(SLOW_BYTES as usize).await;
        assert!(start.elapsed() >= 2 * LOOK);
    }

    #[tokio::test]
    async fn the_beginning_of_the_next_message_is_given_back() {
        let (budget, metrics) = budget();
        let mut upload = budget.stream();
        upload.take(1000).await;
        let whole = upload.end_message_before(300);
        assert_eq!(metrics.received_bytes(), 700);
        drop(whole);
        assert_eq!(metrics.received_bytes(), 0);
    }

    #[tokio::test]
    async fn a_client_that_sends_half_of_a_message_gets_an_error() {
        let (budget, metrics) = budget();
        let half = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from_static(b"half")))]).chain(stream::pending());
        let mut seen = counted(Body::new(StreamBody::new(half)), budget.stream(), Some(Duration::from_millis(20)));
        assert_eq!(seen.frame().await.unwrap().unwrap().data_ref().map(Bytes::len), Some(4));
        assert_eq!(metrics.received_bytes(), 4);
        let error = seen.frame().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
        assert!(error.message().contains("nothing for 20 ms (query.stall_timeout)"), "{}", error.message());
        drop(seen);
        assert_eq!(metrics.received_bytes(), 0);
    }

    /// Streams of many messages, some dropped at any moment: all others end, and nothing stays taken.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost() {
        let (budget, metrics) = budget();
        let mut tasks = Vec::new();
        for seed in 0..64 {
            let mut stream = budget.stream();
            let task = tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..200 {
                    for _ in 0..random.random_range(1..8) {
                        stream.take(random.random_range(1..HALF / 2)).await;
                        tokio::task::yield_now().await;
                    }
                    drop(stream.end_message_before(0));
                }
            });
            tasks.push(task);
        }
        let mut random = StdRng::seed_from_u64(64);
        for task in tasks.iter().skip(1).step_by(3) {
            for _ in 0..random.random_range(0..200) {
                tokio::task::yield_now().await;
            }
            task.abort();
        }
        for (number, task) in tasks.into_iter().enumerate() {
            let ended = tokio::time::timeout(Duration::from_secs(60), task).await.unwrap();
            assert!(ended.is_ok() || number % 3 == 1, "{ended:?}");
        }
        assert_eq!(metrics.received_bytes(), 0);
        let most = MAX + 7 * HALF as u64 / 2 + 64 * FREE_BYTES;
        assert!((MAX / 2..=most).contains(&metrics.received_peak_bytes()), "{}", metrics.received_peak_bytes());
    }
}
