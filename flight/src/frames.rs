//! Flight messages as frames that refer to Arrow's buffers, instead of one copy of all values.
//!
//! A message is a sequence of pieces, of which small ones are copied together and large ones are shared. The bytes are plain
//! gRPC and Flight.
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

    /// The frames of its gRPC message.
    ///
    /// # Errors
    /// When it is longer than a message can be.
    pub(crate) fn into_frames(self, descriptor: Option<FlightDescriptor>) -> Result<Vec<Bytes>, ArrowError> {
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
        let mut frames = Vec::new();
        for piece in body {
            if piece.len() < SMALL_BYTES || piece.capacity() > MOST_SHARED_BYTES.max(4 * piece.len()) {
                small.extend_from_slice(&piece);
                continue;
            }
            if !small.is_empty() {
                frames.push(std::mem::take(&mut small).into());
            }
            frames.push(shared(piece));
        }
        if !small.is_empty() {
            frames.push(small.into());
        }
        Ok(frames)
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
