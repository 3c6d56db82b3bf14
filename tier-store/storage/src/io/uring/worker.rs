//! The thread of the io_uring engine: starts operations, submits their pieces, and takes completions.
//!
//! Operations above 1.5 MiB become several pieces; at most [`DEPTH`] pieces and about
//! [`Depth::bytes`](crate::io::Depth::bytes) run at once, what waits to be read has no memory yet. Completions carry slot and
//! generation, so one can never be taken for another.
//!
//! What the kernel has cannot be overtaken: a read of a page waits for all bytes that were submitted before it. So reads
//! of [`Class::Point`](crate::io::Class::Point) are submitted before the rest of an operation that has begun, and while
//! statements come that read nothing else ([`LookUps`](crate::io::look_ups::LookUps)), fewer bytes of others run at once, in
//! smaller pieces ([`Depth::beside_points`](crate::io::Depth::beside_points)). Points and others have bytes and pieces of
//! their own, so that many points do not stop the others.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use terrace_model::Error;

use super::Shared;
use crate::io::AlignedBuffer;
use crate::io::queue::ReadQueue;
use crate::io::request::{Direction, PIECE_BYTES, Request, is_retryable};

/// The largest piece while look-ups come.
const PIECE_BESIDE_POINTS_BYTES: usize = 256 << 10;
/// Pieces given to the kernel at once.
const DEPTH: usize = 64;
/// Pieces of points among them: the others keep room.
const MOST_POINTS: usize = DEPTH - 8;
/// Most operations that are being issued.
const MOST_ISSUING: usize = 2;
/// `user_data` of the poll of the eventfd.
const WAKE: u64 = u64::MAX;

/// A request with its buffer.
struct Operation {
    request: Request,
    is_point: bool,
    buffer: AlignedBuffer,
    /// Start of the next piece, counted from the first block.
    next: usize,
    running_pieces: usize,
    failed: Option<Error>,
}

/// A range of an operation's blocks that the kernel reads or writes.
#[derive(Clone, Copy)]
struct Piece {
    operation: usize,
    start: usize,
    end: usize,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    piece: Option<Piece>,
}

/// Pieces that the kernel has.
#[derive(Default)]
struct Running {
    pieces: usize,
    bytes: usize,
}

/// The thread's state.
pub(super) struct Worker {
    ring: IoUring,
    shared: Arc<Shared>,
    operations: Vec<Option<Operation>>,
    slots: Vec<Slot>,
    points: Running,
    others: Running,
    /// Operations whose pieces are not all submitted yet: one, and above it a point that overtakes it.
    issuing: Vec<usize>,
    polling: bool,
}

impl Worker {
    pub(super) fn new(ring: IoUring, shared: Arc<Shared>) -> Self {
        let operations = std::iter::repeat_with(|| None).take(DEPTH + MOST_ISSUING - 1).collect();
        let slots = std::iter::repeat_with(Slot::default).take(DEPTH).collect();
        let (points, others) = Default::default();
        Self { ring, shared, operations, slots, points, others, issuing: Vec::new(), polling: false }
    }

    /// Serves until the engine ends.
    pub(super) fn run(mut self) {
        while self.run_once() {}
        let withdrawn = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.waiting)
        };
        drop(withdrawn);
    }

    /// Submits the pieces that fit, sleeps until the kernel or another thread wakes it, and takes completions. False when the
    /// engine has ended.
    fn run_once(&mut self) -> bool {
        if self.shared.queue.lock().stopped {
            self.abandon_all();
            if self.slots.iter().all(|slot| slot.piece.is_none()) {
                return false;
            }
        } else {
            self.issue();
            while self.shared.has_news() {
                self.issue();
            }
        }
        if !self.polling {
            let poll = opcode::PollAdd::new(types::Fd(self.shared.wake.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: the poll names a descriptor that `shared` keeps open.
            self.polling = unsafe { self.push(&poll.build().user_data(WAKE)) };
        }
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e) if is_retryable(&e) || e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => {
                tracing::error!(%error, "io_uring failed; reads and writes stop");
                self.shared.queue.lock().stopped = true;
                self.leak_running();
                return false;
            }
        }
        self.shared.queue.lock().asleep = false;
        self.reap();
        true
    }

    /// Pushes an entry to the submission queue; false when that is full.
    ///
    /// # Safety
    /// Until the completion of the entry was taken, its descriptor stays open and no other code uses its memory.
    unsafe fn push(&mut self, entry: &io_uring::squeue::Entry) -> bool {
        // SAFETY: the caller promises so.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }

    /// Submits pieces until the slots, the bytes or the requests are used up.
    fn issue(&mut self) {
        while let Some(slot) = self.slots.iter().position(|slot| slot.piece.is_none()) {
            let beside_points = self.shared.look_ups_come();
            let Some(operation) = self.next_operation(beside_points) else { return };
            let piece_bytes = if beside_points { PIECE_BESIDE_POINTS_BYTES } else { PIECE_BYTES };
            let found = self.operations.get_mut(operation).and_then(|o| o.as_mut());
            match found.and_then(|operation| operation.next_piece(piece_bytes)) {
                Some((start, end)) => self.submit(slot, Piece { operation, start, end }),
                None => {
                    self.issuing.retain(|issuing| *issuing != operation);
                    self.finish_if_idle(operation);
                }
            }
        }
    }

    /// The operation of the next piece: a point that waits, else one that has begun, else the next in the queue.
    fn next_operation(&mut self, beside_points: bool) -> Option<usize> {
        let top = self.issuing.last().copied();
        let is_point = |place: usize| Some(self.operations.get(place)?.as_ref()?.is_point);
        if top.and_then(is_point) == Some(true) {
            return top;
        }
        let depth = &self.shared.depth;
        let has_room = (self.points.bytes as u64) < depth.bytes() && self.points.pieces < MOST_POINTS;
        if has_room && let Some(point) = self.start_next(ReadQueue::pop_point, true) {
            self.issuing.push(point);
            return Some(point);
        }
        let depth = &self.shared.depth;
        let most_bytes = if beside_points { depth.beside_points() } else { depth.bytes() };
        if self.others.bytes as u64 >= most_bytes {
            return None;
        }
        top.or_else(|| {
            let next = self.start_next(ReadQueue::pop_other, false)?;
            self.issuing.push(next);
            Some(next)
        })
    }

    /// Takes the next request that a handle still waits for, and allocates its buffer.
    fn start_next(
        &mut self,
        pop: impl Fn(&mut ReadQueue<Request>) -> Option<Request>,
        is_point: bool,
    ) -> Option<usize> {
        // Every operation has a piece in a slot or is being issued, so a free slot implies a free position here.
        let place = self.operations.iter().position(Option::is_none)?;
        loop {
            let mut request = pop(&mut self.shared.queue.lock().waiting)?;
            if !request.waiters.begin() {
                continue;
            }
            match request.take_buffer() {
                Ok(buffer) => {
                    let operation = Operation { request, is_point, buffer, next: 0, running_pieces: 0, failed: None };
                    *self.operations.get_mut(place)? = Some(operation);
                    return Some(place);
                }
                Err(error) => request.waiters.complete(Err(error)),
            }
        }
    }

    fn submit(&mut self, index: usize, piece: Piece) {
        let Some(operation) = self.operations.get_mut(piece.operation).and_then(Option::as_mut) else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        let descriptor = types::Fd(operation.request.file.descriptor());
        let offset = operation.request.first_byte() + piece.start as u64;
        slot.generation = slot.generation.wrapping_add(1);
        let stamp = (u64::from(slot.generation) << 32) | index as u64;
        let range = piece.start..piece.end;
        let entry = match operation.request.direction {
            Direction::Read => {
                let blocks: &mut [MaybeUninit<u8>] = operation.buffer.blocks_mut();
                let target = blocks.get_mut(range).unwrap_or_default();
                opcode::Read::new(descriptor, target.as_mut_ptr().cast(), target.len() as u32).offset(offset).build()
            }
            Direction::Write => {
                let source = operation.buffer.as_slice().get(range).unwrap_or_default();
                opcode::Write::new(descriptor, source.as_ptr(), source.len() as u32).offset(offset).build()
            }
        };
        let entry = entry.user_data(stamp);
        slot.piece = Some(piece);
        operation.running_pieces += 1;
        let running = if operation.is_point { &mut self.points } else { &mut self.others };
        running.pieces += 1;
        running.bytes += piece.end - piece.start;
        // SAFETY: buffer and file belong to the operation, which is kept until the completion was taken (or leaked, see
        // `leak_running`).
        if !unsafe { self.push(&entry) } {
            self.end_piece(index, Some(std::io::Error::from_raw_os_error(libc::EBUSY)));
        }
    }

    fn reap(&mut self) {
        let completions: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (stamp, result) in completions {
            if stamp == WAKE {
                self.polling = false;
                self.shared.clear_signal();
            } else {
                self.completed(stamp, result);
            }
        }
    }

    fn completed(&mut self, stamp: u64, result: i32) {
        let index = (stamp & u64::from(u32::MAX)) as usize;
        let generation = (stamp >> 32) as u32;
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.generation == generation) else { return };
        let Some(mut piece) = slot.piece else { return };
        let Some(operation) = self.operations.get_mut(piece.operation).and_then(Option::as_mut) else { return };
        let Ok(count) = usize::try_from(result) else {
            let error = std::io::Error::from_raw_os_error(-result);
            if is_retryable(&error) && !operation.request.waiters.is_abandoned() {
                self.resubmit(index, piece);
            } else {
                self.end_piece(index, Some(error));
            }
            return;
        };
        operation.request.count(&self.shared.stats, count);
        let needed = piece.end.min(operation.needed_end());
        let reached = operation.request.file.resume_at(piece.start + count, needed);
        if reached <= piece.start {
            operation.failed = Some(operation.request.stuck());
            self.end_piece(index, None);
            return;
        }
        piece.start = reached;
        if piece.start >= needed {
            self.end_piece(index, None);
        } else {
            self.resubmit(index, piece);
        }
    }

    fn resubmit(&mut self, index: usize, piece: Piece) {
        self.take_piece(index);
        self.submit(index, piece);
    }

    /// Takes the piece of a slot, which the kernel has no longer.
    fn take_piece(&mut self, index: usize) -> Option<Piece> {
        let piece = self.slots.get_mut(index)?.piece.take()?;
        let operation = self.operations.get_mut(piece.operation)?.as_mut()?;
        operation.running_pieces -= 1;
        let running = if operation.is_point { &mut self.points } else { &mut self.others };
        running.pieces -= 1;
        running.bytes -= piece.end - piece.start;
        Some(piece)
    }

    fn end_piece(&mut self, index: usize, error: Option<std::io::Error>) {
        let Some(piece) = self.take_piece(index) else { return };
        let operation = self.operations.get_mut(piece.operation).and_then(Option::as_mut);
        if let (Some(operation), Some(error)) = (operation, error) {
            operation.failed = Some(operation.request.failed(&error));
        }
        self.finish_if_idle(piece.operation);
    }

    /// Completes the handles when no piece is running and none is left to submit.
    fn finish_if_idle(&mut self, index: usize) {
        let Some(place) = self.operations.get_mut(index) else { return };
        let idle = place.as_mut().is_some_and(|o| o.running_pieces == 0 && o.next_piece_is_none());
        let Some(mut operation) = place.take_if(|_| idle) else { return };
        self.issuing.retain(|issuing| *issuing != index);
        let complete = operation.next >= operation.needed_end();
        let result = match operation.failed {
            Some(error) => Err(error),
            None if complete && operation.request.direction == Direction::Write => Ok(operation.buffer),
            None if complete => {
                let filled = operation.buffer.window_end();
                // SAFETY: every piece was submitted and has ended without an error, so the kernel wrote all up to there.
                unsafe { operation.buffer.set_filled(filled) };
                Ok(operation.buffer)
            }
            None => Err(Error::Cancelled),
        };
        self.shared.submit(operation.request.complete(result));
    }

    /// Ends all operations when the engine stops: no more pieces are submitted, and running ones are waited for.
    fn abandon_all(&mut self) {
        self.issuing.clear();
        for index in 0..self.operations.len() {
            if let Some(operation) = self.operations.get_mut(index).and_then(Option::as_mut) {
                operation.failed.get_or_insert(Error::Cancelled);
            }
            self.finish_if_idle(index);
        }
    }

    /// Leaks the buffers of running operations after a failure: the kernel may still write to them.
    fn leak_running(&mut self) {
        for operation in self.operations.iter_mut().filter_map(Option::take) {
            std::mem::forget(operation.buffer);
            let error = operation.request.failed(&std::io::Error::other("io_uring failed"));
            operation.request.waiters.complete(Err(error));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.leak_running();
    }
}

impl Operation {
    /// The position up to which bytes have to be read or written, counted from the first block.
    fn needed_end(&self) -> usize {
        match self.request.direction {
            Direction::Read => self.buffer.window_end(),
            Direction::Write => self.request.len,
        }
    }

    /// The position up to which pieces go.
    fn end(&self) -> usize {
        match self.request.direction {
            Direction::Read => self.buffer.allocated_bytes(),
            Direction::Write => self.request.len,
        }
    }

    fn next_piece_is_none(&self) -> bool {
        self.failed.is_some() || self.next >= self.needed_end() || self.request.waiters.is_abandoned()
    }

    fn next_piece(&mut self, piece_bytes: usize) -> Option<(usize, usize)> {
        if self.next_piece_is_none() {
            return None;
        }
        let start = self.next;
        let rest = self.end() - start;
        // Up to half a piece more is still one piece: a column of 16-byte values has 1 MiB and a block.
        self.next = start + if rest <= piece_bytes + piece_bytes / 2 { rest } else { piece_bytes };
        Some((start, self.next))
    }
}

#[cfg(test)]
mod tests;
