//! Flight messages as frames that refer to Arrow's buffers, instead of one copy of all values.
//!
//! A message is a sequence of pieces, of which small ones are copied together and large ones are shared. The bytes are plain
//! gRPC and Flight. HTTP/2 cuts each frame made here by itself, so one that is no multiple of what a client takes at once ends with a
//! short one, which costs both sides as much as a full one. For results the begin of a large piece fills up the bytes before it, and its
//! end goes to those behind it.
//!
//! ```text
//!   IPC stream:  marker, length | header | body: validity, offsets, values, ...
//!   frames:      [flag, length, descriptor, header, small pieces] [values] [small pieces] [values] ...
//! ```

use std::collections::VecDeque;

use arrow::{buffer::Buffer, error::ArrowError};
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_ipc::root_as_message;
use bytes::Bytes;
use prost::{EncodeError, Message, encode_length_delimiter};

use crate::bodies::{BODY_KEY, shared};

/// Pieces of fewer bytes are copied together: each piece is a frame, and a system call.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes of the frames of HTTP/2 that any client takes; most take no larger ones (RFC 9113, section 6.5.2).
pub(crate) const FRAME_BYTES: usize = 16 << 10;
/// A piece of a larger allocation is copied unless it is a quarter of it: a client that does not read would keep all of it.
const MOST_SHARED_BYTES: usize = 8 << 20;
/// Bytes before the metadata of an IPC message: a marker and the length.
const IPC_PREFIX_BYTES: usize = 8;

/// A message of an Arrow IPC stream.
pub(crate) struct IpcMessage {
    header: Vec<u8>,
    body: Vec<Buffer>,
    body_bytes: usize,
}

impl IpcMessage {
    /// Takes the next message of a stream, in the pieces in which an encoder makes it.
    pub(crate) fn take(stream: &mut VecDeque<Buffer>) -> Result<Self, ArrowError> {
        let damaged = || ArrowError::IpcError("the encoder gave no IPC stream".to_owned());
        let prefix = take_bytes(stream, IPC_PREFIX_BYTES);
        let length = concat(&prefix).last_chunk().map(|length| u32::from_le_bytes(*length)).ok_or_else(damaged)?;
        let header = concat(&take_bytes(stream, length as usize));
        let body_bytes = root_as_message(&header).ok().and_then(|m| usize::try_from(m.bodyLength()).ok());
        let body_bytes = body_bytes.ok_or_else(damaged)?;
        let body = take_bytes(stream, body_bytes);
        Ok(Self { header, body, body_bytes })
    }

    /// Bytes of its rows.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// The message in one piece, for the gRPC layer.
    pub(crate) fn into_data(self) -> FlightData {
        FlightData { data_header: self.header.into(), data_body: concat(&self.body).into(), ..FlightData::default() }
    }

    /// The frames of its gRPC message. Each but the last has a multiple of `unit` bytes, at least 1.
    ///
    /// # Errors
    /// When it is longer than a message can be.
    pub(crate) fn into_frames(
        self,
        descriptor: Option<FlightDescriptor>,
        unit: usize,
    ) -> Result<Vec<Bytes>, ArrowError> {
        let Self { header, body, body_bytes } = self;
        let message = FlightData { flight_descriptor: descriptor, data_header: header.into(), ..FlightData::default() };
        // The gRPC prefix (a flag and a length), then the fields.
        let mut small = vec![0; 5];
        message.encode(&mut small).map_err(unencodable)?;
        if body_bytes > 0 {
            encode_length_delimiter(BODY_KEY, &mut small).map_err(unencodable)?;
            encode_length_delimiter(body_bytes, &mut small).map_err(unencodable)?;
        }
        let bytes = u32::try_from(small.len() - 5 + body_bytes)
            .map_err(|_| ArrowError::IpcError(format!("a row of {body_bytes} bytes is too large to be sent")))?;
        if let Some([_, length @ ..]) = small.first_chunk_mut::<5>() {
            *length = bytes.to_be_bytes();
        }
        let mut frames = Frames { made: Vec::new(), small, unit };
        body.iter().for_each(|piece| frames.add(piece));
        Ok(frames.finish())
    }
}

/// Frames of a message that is not complete yet.
struct Frames {
    made: Vec<Bytes>,
    /// What is copied, and is in no frame yet.
    small: Vec<u8>,
    unit: usize,
}

impl Frames {
    /// Adds a piece: the whole units of a large one are shared.
    fn add(&mut self, piece: &Buffer) {
        let head = self.small.len().next_multiple_of(self.unit) - self.small.len();
        let shared_bytes = piece.len().saturating_sub(head) / self.unit * self.unit;
        let is_small = piece.len() < SMALL_BYTES || piece.capacity() > MOST_SHARED_BYTES.max(4 * piece.len());
        if is_small || shared_bytes == 0 {
            self.small.extend_from_slice(piece);
            return;
        }
        self.small.extend_from_slice(piece.get(..head).unwrap_or_default());
        if !self.small.is_empty() {
            self.made.push(std::mem::take(&mut self.small).into());
        }
        self.made.push(shared(piece.slice_with_length(head, shared_bytes)));
        self.small.extend_from_slice(piece.get(head + shared_bytes..).unwrap_or_default());
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.small.is_empty() {
            self.made.push(self.small.into());
        }
        self.made
    }
}

fn unencodable(error: EncodeError) -> ArrowError {
    ArrowError::IpcError(error.to_string())
}

fn concat(pieces: &[Buffer]) -> Vec<u8> {
    let mut all = Vec::with_capacity(pieces.iter().map(Buffer::len).sum());
    pieces.iter().for_each(|piece| all.extend_from_slice(piece));
    all
}

/// Takes the next `bytes` of a stream, in pieces.
fn take_bytes(stream: &mut VecDeque<Buffer>, mut bytes: usize) -> Vec<Buffer> {
    let mut taken = Vec::new();
    while bytes > 0
        && let Some(mut piece) = stream.pop_front()
    {
        if piece.len() > bytes {
            stream.push_front(piece.slice(bytes));
            piece = piece.slice_with_length(0, bytes);
        }
        bytes -= piece.len();
        taken.push(piece);
    }
    taken
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Decimal128Array, Int64Array, RecordBatch, StringArray};
    use arrow_ipc::writer::StreamEncoder;

    use super::*;

    const ROWS: usize = 8_192;

    fn decimals() -> Decimal128Array {
        Decimal128Array::from_iter_values((0..ROWS).map(|row| row as i128))
    }

    /// The message of a batch with a column of decimals, and others.
    fn message(decimals: &Decimal128Array) -> IpcMessage {
        let columns: [(&str, ArrayRef); 4] = [
            ("i", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| row as i64)))),
            ("s", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("text {row}"))))),
            ("c", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| if row % 2 == 0 { "N" } else { "R" })))),
            ("d", Arc::new(decimals.clone())),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut encoder = StreamEncoder::try_new(batch.schema_ref()).unwrap();
        let pieces = encoder.encode(&batch).unwrap().into_iter();
        let mut stream: VecDeque<Buffer> = pieces.filter(|piece| !piece.is_empty()).collect();
        // The schema.
        IpcMessage::take(&mut stream).unwrap();
        IpcMessage::take(&mut stream).unwrap()
    }

    #[test]
    fn frames_are_whole_units_and_refer_to_values() {
        let decimals = decimals();
        let expected = message(&decimals).into_data();
        for unit in [1, FRAME_BYTES] {
            let frames = message(&decimals).into_frames(None, unit).unwrap();
            let sent: Vec<u8> = frames.iter().flat_map(|frame| frame.to_vec()).collect();
            assert_eq!(sent.len(), 5 + expected.encoded_len());
            assert_eq!(FlightData::decode(&sent[5..]).unwrap(), expected);
            let (last, whole) = frames.split_last().unwrap();
            assert!(!last.is_empty() && whole.iter().all(|frame| frame.len() % unit == 0));
            let place = decimals.values().inner().as_slice().as_ptr_range();
            let of_decimals = frames.iter().filter(|frame| place.contains(&frame.as_ptr()));
            let shared_bytes: usize = of_decimals.map(Bytes::len).sum();
            assert!(shared_bytes + 2 * unit > 16 * ROWS, "{shared_bytes} bytes are shared with frames of {unit}");
        }
    }

    #[test]
    fn pieces_without_a_whole_unit_are_copied_together() {
        let mut frames = Frames { made: Vec::new(), small: vec![1; FRAME_BYTES + 1], unit: FRAME_BYTES };
        let pieces = [FRAME_BYTES, 10, FRAME_BYTES + 5, 3 * FRAME_BYTES].map(|bytes| Buffer::from(vec![2_u8; bytes]));
        pieces.iter().for_each(|piece| frames.add(piece));
        let lengths: Vec<usize> = frames.finish().iter().map(Bytes::len).collect();
        assert_eq!(lengths, [4 * FRAME_BYTES, 2 * FRAME_BYTES, 16]);
    }
}
