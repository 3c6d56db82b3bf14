//! Collects frames of HTTP/2 before they go to a socket.
//!
//! The library cuts a message into frames of the size that its client takes, 16 KiB for most clients, and writes and flushes each of them
//! by itself. On a socket without delay each is a system call, a segment and a wake-up of the client. Here frames of data are copied
//! to a buffer, which goes to the socket when it is full, or with the flush that follows the last frame. The copy stays in the
//! processor's cache, from where the system copies it on.
//!
//! The library gives a frame of data in two pieces, its head and its rows. It flushes after each, and once more when no frame is left,
//! before the task of the connection waits (h2 0.4.20 proto/streams/streams.rs `poll_complete`). So the first flush after a frame of
//! data writes nothing, and wakes nobody: a task that wakes itself goes behind all others, and another thread is woken to take it.
//! Everything else, such as the head of an answer or its end, goes to the socket with the next flush, as it would without the buffer.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that are collected: sixteen full frames with their heads.
const MOST_BYTES: usize = 16 * ((16 << 10) + 9);
/// A write of as many bytes goes to the socket as it is: one of a client that takes large frames.
const LARGE_BYTES: usize = 64 << 10;
/// More room than this is given back once it is empty, and is part of the budget.
const KEPT_BYTES: usize = 4 << 10;

/// How many connections may collect as much as a buffer takes at one time.
pub(crate) struct SendBudget {
    free: AtomicUsize,
}

impl SendBudget {
    /// A budget of so many bytes for all connections.
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let buffers = usize::try_from(bytes / MOST_BYTES as u64).unwrap_or(usize::MAX);
        Arc::new(Self { free: AtomicUsize::new(buffers) })
    }

    /// Room for one full buffer; `None` while others have all of it.
    fn take(self: &Arc<Self>) -> Option<Share> {
        let taken = self.free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1));
        taken.is_ok().then(|| Share(Arc::clone(self)))
    }
}

/// Room for one full buffer; others may have it once this is dropped.
struct Share(Arc<SendBudget>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Relaxed);
    }
}

/// A stream that collects what is written to it.
pub(crate) struct WriteBuffer<S> {
    stream: S,
    budget: Arc<SendBudget>,
    /// What it has of the budget; without it, it collects no more than it keeps.
    share: Option<Share>,
    bytes: Vec<u8>,
    /// How many of the bytes the stream has taken.
    taken: usize,
    /// Whether the last write was a frame of data, which has not been flushed.
    follows_data: bool,
}

impl<S> WriteBuffer<S> {
    pub(crate) fn new(stream: S, budget: Arc<SendBudget>) -> Self {
        Self { stream, budget, share: None, bytes: Vec::new(), taken: 0, follows_data: false }
    }

    /// Whether so many bytes more may be collected.
    fn has_room(&mut self, length: usize) -> bool {
        if self.bytes.len() + length <= KEPT_BYTES {
            return true;
        }
        if self.share.is_none() {
            self.share = self.budget.take();
        }
        self.share.is_some()
    }
}

impl<S: AsyncWrite + Unpin> WriteBuffer<S> {
    /// Writes all that is collected, and keeps the room for what follows at once: the same memory, which is in the processor's
    /// cache, takes the next frames.
    fn poll_empty(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.taken..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                taken => self.taken += taken,
            }
        }
        self.taken = 0;
        self.bytes.clear();
        Poll::Ready(Ok(()))
    }

    /// Writes all that is collected, and gives the room back.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_empty(cx))?;
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        self.share = None;
        Poll::Ready(Ok(()))
    }

    fn poll_pieces(&mut self, cx: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let is_data = pieces.len() > 1;
        if self.bytes.len() + length > MOST_BYTES {
            ready!(self.poll_empty(cx))?;
        }
        if length >= LARGE_BYTES || !is_data && self.bytes.is_empty() || !self.has_room(length) {
            ready!(self.poll_drain(cx))?;
            self.follows_data = false;
            return Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        }
        if length > KEPT_BYTES || self.bytes.len() + length > MOST_BYTES / 2 {
            // Others of a large message follow; and the buffer never grows beyond its share.
            self.bytes.reserve_exact(MOST_BYTES.saturating_sub(self.bytes.len()));
        }
        pieces.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.follows_data = is_data;
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBuffer<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBuffer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_pieces(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_pieces(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.follows_data) {
            // More may follow; if not, there is another flush.
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::task::{Wake, Waker};

    use super::*;

    /// Takes so many bytes until it is emptied, and notes each write.
    #[derive(Default)]
    struct Narrow {
        room: usize,
        writes: Vec<usize>,
        bytes: Vec<u8>,
        is_shut_down: bool,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let length = buf.len().min(self.room);
            if length == 0 {
                return Poll::Pending;
            }
            self.room -= length;
            self.writes.push(length);
            self.bytes.extend_from_slice(&buf[..length]);
            Poll::Ready(Ok(length))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
            self.poll_write(cx, &all)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.is_shut_down = true;
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// A writer that does what h2 does.
    struct Writer {
        buffer: WriteBuffer<Narrow>,
        woken: Arc<Woken>,
        expected: Vec<u8>,
    }

    impl Writer {
        fn new(room: usize) -> Self {
            Self::within(&SendBudget::new(1 << 20), room)
        }

        fn within(budget: &Arc<SendBudget>, room: usize) -> Self {
            let buffer = WriteBuffer::new(Narrow { room, ..Narrow::default() }, Arc::clone(budget));
            Self { buffer, woken: Arc::default(), expected: Vec::new() }
        }

        /// Writes pieces of so many bytes at once; true when all were taken.
        fn write(&mut self, lengths: &[usize]) -> bool {
            let first = self.expected.len();
            let pieces: Vec<Vec<u8>> = lengths.iter().map(|length| vec![(first % 251) as u8; *length]).collect();
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let waker = Waker::from(self.woken.clone());
            let written = Pin::new(&mut self.buffer).poll_write_vectored(&mut Context::from_waker(&waker), &slices);
            let Poll::Ready(written) = written.map(Result::unwrap) else { return false };
            let all = pieces.concat();
            self.expected.extend_from_slice(&all[..written]);
            written == all.len()
        }

        /// True when it is done.
        fn flush(&mut self) -> bool {
            let waker = Waker::from(self.woken.clone());
            Pin::new(&mut self.buffer).poll_flush(&mut Context::from_waker(&waker)).map(Result::unwrap).is_ready()
        }

        fn writes(&mut self) -> Vec<usize> {
            std::mem::take(&mut self.buffer.stream.writes)
        }

        fn woken(&self) -> usize {
            self.woken.0.load(Relaxed)
        }
    }

    impl Drop for Writer {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                assert_eq!(self.buffer.stream.bytes, self.expected);
            }
        }
    }

    const FRAME: [usize; 2] = [9, 16 << 10];
    const FRAME_BYTES: usize = 9 + (16 << 10);
    const MOST_FRAMES: usize = MOST_BYTES / FRAME_BYTES;

    #[test]
    fn frames_of_data_go_together_with_the_flush_after_the_last() {
        let mut writer = Writer::new(usize::MAX);
        for _ in 0..3 {
            assert!(writer.write(&FRAME) && writer.flush());
        }
        assert!(writer.writes().is_empty());
        assert!(writer.flush());
        assert_eq!(writer.writes(), [3 * (9 + (16 << 10))]);
        assert_eq!(writer.woken(), 0);
        assert_eq!(writer.buffer.bytes.capacity(), 0, "no memory is kept between results");
    }

    #[test]
    fn the_end_of_an_answer_goes_with_its_rows() {
        let mut writer = Writer::new(usize::MAX);
        assert!(writer.write(&[109, 700]) && writer.flush());
        assert!(writer.write(&[30]) && writer.flush());
        assert_eq!(writer.writes(), [109 + 700 + 30]);
    }

    #[test]
    fn what_is_no_data_goes_at_once() {
        let mut writer = Writer::new(usize::MAX);
        assert!(writer.write(&[60]));
        assert_eq!(writer.writes(), [60]);
        assert!(writer.flush());
        assert_eq!(writer.woken(), 0);
    }

    #[test]
    fn a_full_buffer_goes_at_once_and_its_memory_takes_what_follows() {
        let budget = SendBudget::new(MOST_BYTES as u64);
        let mut writer = Writer::within(&budget, usize::MAX);
        for _ in 0..MOST_FRAMES {
            assert!(writer.write(&FRAME) && writer.flush());
        }
        let place = writer.buffer.bytes.as_ptr();
        assert!(writer.write(&FRAME) && writer.flush());
        assert_eq!(writer.writes(), [MOST_FRAMES * FRAME_BYTES]);
        assert!(writer.buffer.bytes.capacity() <= MOST_BYTES);
        assert_eq!(writer.buffer.bytes.as_ptr(), place);
        assert_eq!(budget.free.load(Relaxed), 0);
        assert!(writer.flush());
        assert_eq!(writer.writes(), [9 + (16 << 10)]);
        assert_eq!((writer.buffer.bytes.capacity(), budget.free.load(Relaxed)), (0, 1));
    }

    #[test]
    fn large_frames_are_not_copied_and_keep_their_order() {
        let mut writer = Writer::new(usize::MAX);
        assert!(writer.write(&FRAME) && writer.flush());
        assert!(writer.write(&[9, 1 << 20]) && writer.flush());
        assert_eq!(writer.writes(), [9 + (16 << 10), 9 + (1 << 20)]);
    }

    #[test]
    fn a_socket_that_takes_little_gets_all_in_the_end() {
        let mut writer = Writer::new(20_000);
        for _ in 0..MOST_FRAMES {
            assert!(writer.write(&FRAME) && writer.flush());
        }
        assert!(!writer.write(&FRAME), "there is no room");
        assert!(!writer.flush());
        // A frame that was not taken is written again.
        for room in [1, MOST_BYTES / 2, MOST_BYTES] {
            writer.buffer.stream.room = room;
            let _ = writer.write(&FRAME);
            let _ = writer.flush();
        }
        writer.buffer.stream.room = usize::MAX;
        assert!(writer.write(&[5]) && writer.flush());
    }

    #[test]
    fn buffers_of_clients_that_do_not_read_have_a_budget() {
        let budget = SendBudget::new(2 * MOST_BYTES as u64);
        let mut stalled: Vec<Writer> = (0..100).map(|_| Writer::within(&budget, 0)).collect();
        for _ in 0..9 {
            for writer in &mut stalled {
                let _ = writer.write(&FRAME);
                let _ = writer.flush();
            }
        }
        let held: usize = stalled.iter().map(|writer| writer.buffer.bytes.capacity()).sum();
        assert!((MOST_BYTES..=2 * MOST_BYTES + 98 * 2 * KEPT_BYTES).contains(&held), "{held} bytes");
        // Who reads is served without a buffer, in the order of the frames, and small answers still go at once.
        let mut reader = Writer::within(&budget, usize::MAX);
        for frame in [&[9, 300][..], &FRAME, &FRAME, &[30]] {
            assert!(reader.write(frame) && reader.flush());
        }
        assert!(reader.flush());
        assert_eq!(reader.writes(), [309, 9 + (16 << 10), 9 + (16 << 10), 30]);
        // The room of those who leave, and of those who read on, is free again.
        stalled.drain(1..).for_each(|mut writer| writer.expected.clear());
        stalled[0].buffer.stream.room = usize::MAX;
        assert!(stalled[0].flush() || stalled[0].flush());
        assert_eq!(budget.free.load(Relaxed), 2);
        assert!(reader.write(&FRAME) && reader.flush() && reader.writes().is_empty());
        assert!(reader.flush());
    }

    #[test]
    fn a_shutdown_writes_what_is_left() {
        let mut writer = Writer::new(usize::MAX);
        assert!(writer.write(&FRAME) && writer.flush());
        let waker = Waker::noop();
        let shutdown = Pin::new(&mut writer.buffer).poll_shutdown(&mut Context::from_waker(waker));
        assert!(shutdown.map(Result::unwrap).is_ready());
        assert!(writer.buffer.stream.is_shut_down);
    }
}
