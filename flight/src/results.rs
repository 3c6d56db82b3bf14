//! Large messages of results, which go to the socket from Arrow's own buffers.
//!
//! The gRPC layer would copy a message twice: to its body, and to the bytes that are sent. So it gets an empty message in place
//! of a large one, and [`with_frames`] replaces it behind that layer.
//!
//! ```text
//!   encode -- schema, empty, empty --> gRPC --> | schema | 0 | 0 | -- with_frames --> | schema | frames.. | frames.. |
//!        `--- frames of large messages ---------------------------------^
//! ```

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use arrow_flight::FlightData;
use bytes::{Buf, Bytes};
use futures::{StreamExt, stream::BoxStream};
use http_body::Frame;
use parking_lot::Mutex;
use tonic::{Status, body::Body, codegen::http};

/// Messages with at least this many bytes of rows get frames of their own.
pub(crate) const LARGE_BYTES: usize = 64 << 10;
/// Bytes of an empty gRPC message: a flag and the length.
const EMPTY: [u8; 5] = [0; 5];

type Messages = BoxStream<'static, Result<FlightData, Status>>;

/// Frames of large messages that the gRPC layer has an empty message for, in their order.
#[derive(Clone, Default)]
pub(crate) struct LargeMessages(Arc<Mutex<VecDeque<Vec<Bytes>>>>);

impl LargeMessages {
    /// Keeps the frames of a message; returns what the gRPC layer gets in its place.
    pub(crate) fn push(&self, frames: Vec<Bytes>) -> FlightData {
        self.0.lock().push_back(frames);
        FlightData::default()
    }

    /// Messages for the gRPC layer, none of which is made before the large one ahead of it was taken: the layer collects
    /// messages until it has some kilobytes, and empty ones would not stop it. It passes on what it has while it has to wait, so
    /// whoever takes a large message comes back for the next without being woken.
    pub(crate) fn paced(&self, mut messages: Messages) -> Messages {
        let waiting = self.clone();
        futures::stream::poll_fn(move |context| {
            if waiting.0.lock().is_empty() { messages.poll_next_unpin(context) } else { Poll::Pending }
        })
        .boxed()
    }
}

/// A response with its large messages in place of empty ones.
pub(crate) fn with_frames(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<LargeMessages>() {
        Some(large) => response.map(|messages| Body::new(ResultBody { messages, large, ready: VecDeque::new() })),
        None => response,
    }
}

struct ResultBody {
    messages: Body,
    large: LargeMessages,
    ready: VecDeque<Bytes>,
}

impl ResultBody {
    /// Puts frames in place of the empty ones of some whole messages.
    fn replace(&mut self, mut messages: Bytes) -> Result<(), Status> {
        let mut large = self.large.0.lock();
        while !large.is_empty() && !messages.is_empty() {
            let damaged = || Status::internal("the gRPC layer cut a message");
            let [_, length @ ..] = *messages.first_chunk::<5>().ok_or_else(damaged)?;
            let end = EMPTY.len() + u32::from_be_bytes(length) as usize;
            if messages.len() < end {
                return Err(damaged());
            }
            if end > EMPTY.len() {
                self.ready.push_back(messages.split_to(end));
                continue;
            }
            messages.advance(end);
            self.ready.extend(large.pop_front().into_iter().flatten());
        }
        if !messages.is_empty() {
            self.ready.push_back(messages);
        }
        Ok(())
    }
}

impl http_body::Body for ResultBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match ready!(Pin::new(&mut self.messages).poll_frame(context)).transpose()?.map(Frame::into_data) {
                Some(Ok(messages)) => self.replace(messages)?,
                Some(Err(frame)) => return Poll::Ready(Some(Ok(frame))),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::{executor::block_on, stream};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    fn grpc(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    fn body(parts: Vec<Vec<u8>>, large: &[&[&'static str]]) -> Body {
        let parts = parts.into_iter().map(|part| Ok::<_, Status>(Frame::data(Bytes::from(part))));
        let mut response = http::Response::new(Body::new(StreamBody::new(stream::iter(parts.collect::<Vec<_>>()))));
        let messages = LargeMessages::default();
        for frames in large {
            messages.push(frames.iter().map(|frame| Bytes::from_static(frame.as_bytes())).collect());
        }
        response.extensions_mut().insert(messages);
        with_frames(response).into_body()
    }

    #[test]
    fn frames_come_in_place_of_empty_messages() {
        let (schema, small) = (grpc(b"schema"), grpc(b"small"));
        let parts = vec![
            [schema.clone(), EMPTY.to_vec()].concat(),
            EMPTY.to_vec(),
            [small.clone(), EMPTY.to_vec(), small.clone()].concat(),
        ];
        let sent = block_on(body(parts, &[&["one", "two"], &["three"], &["four"]]).collect()).unwrap().to_bytes();
        assert_eq!(sent, [&schema, &b"onetwothree"[..], &small, b"four", &small].concat());
    }

    #[test]
    fn a_message_that_was_cut_is_an_error() {
        let parts = vec![grpc(b"schema")[..7].to_vec()];
        let error = block_on(body(parts, &[&["one"]]).collect()).unwrap_err();
        assert!(error.to_string().contains("cut a message"), "{error}");
    }

    #[test]
    fn no_message_is_made_before_the_large_one_ahead_of_it_was_taken() {
        let large = LargeMessages::default();
        let made = Arc::new(Mutex::new(0));
        let (makes, pushes) = (Arc::clone(&made), large.clone());
        let messages = stream::iter(0..3).map(move |_| {
            *makes.lock() += 1;
            Ok(pushes.push(vec![Bytes::from_static(b"frame")]))
        });
        let mut paced = large.paced(messages.boxed());
        for number in 1..=3 {
            assert!(block_on(paced.next()).is_some());
            assert!(futures::FutureExt::now_or_never(paced.next()).is_none());
            assert_eq!(*made.lock(), number);
            large.0.lock().pop_front();
        }
    }
}
