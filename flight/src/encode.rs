//! Encodes results: an engine's stream of batches becomes a stream of Flight messages.
//!
//! Messages are made one at a time when the transport asks for them, so a slow client holds at most one batch and what one
//! message refers to. Batches are sliced without a copy to about the target size, and values are sent from where they lie
//! ([`results`](crate::results)), but for columns whose type must change, and for small messages. The schema is sent
//! first, and dictionaries before the rows that need them. A result without rows is sent as one empty batch, because
//! JDBC's driver lists the columns of a stream without batches twice.
//!
//! Upstream: <https://github.com/apache/arrow-java/issues/44> (\[Java\]\[FlightSQL\] Column Duplication When Selecting
//! from no result record in Arrow Flight SQL JDBC Driver), repaired by pull request 1135, which driver 18.3.0 lacks;
//! the empty batch can go when the test `anEmptyResultHasItsColumnsOnce` (tests/java) passes without it.

use std::{collections::VecDeque, sync::Arc};

use arrow::{
    array::{Array, ArrayData},
    buffer::Buffer,
    datatypes::{ArrowNativeType, DataType, SchemaRef},
    error::ArrowError,
    record_batch::RecordBatch,
};
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::{
    CompressionType,
    writer::{IpcWriteOptions, StreamEncoder},
};
use futures::{StreamExt, stream, stream::BoxStream};
use tonic::{Status, metadata::MetadataMap};
use tracing::Instrument;

use crate::{
    compact::compact_views,
    dictionaries::{Dictionaries, keyed_bytes},
    engine::BatchStream,
    error,
    frames::{FRAME_BYTES, IpcMessage},
    metrics::Observation,
    plain::convert,
    results::{LARGE_BYTES, LargeMessages},
    ticket::RunningGuard,
};

/// Names the compression of the rows that a client wants.
const COMPRESSION_HEADER: &str = "terrace-compression";
/// Rows of a batch that are converted at once; bounds the memory that expanding a dictionary can take.
const CONVERT_ROWS: usize = 8192;

/// How the rows of a result go to their client.
#[derive(Clone)]
pub(crate) struct Delivery {
    target_bytes: usize,
    options: IpcWriteOptions,
    /// Where large messages go.
    pub(crate) large: LargeMessages,
}

impl Delivery {
    /// Messages of about `target_bytes`, compressed as the header `terrace-compression` of the call asks.
    pub(crate) fn new(target_bytes: usize, metadata: &MetadataMap) -> Result<Self, Status> {
        let compression = match metadata.get(COMPRESSION_HEADER).map(|value| value.as_bytes()) {
            None | Some(b"none") => None,
            Some(b"lz4") => Some(CompressionType::LZ4_FRAME),
            Some(b"zstd") => Some(CompressionType::ZSTD),
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                return Err(Status::invalid_argument(format!(
                    "header {COMPRESSION_HEADER}: '{other}' is none of lz4, zstd, none"
                )));
            }
        };
        let options = IpcWriteOptions::default().try_with_compression(compression).map_err(error::encoding)?;
        Ok(Self { target_bytes: target_bytes.max(1), options, large: LargeMessages::default() })
    }
}

/// Encodes `batches` and converts their columns to those of `wire`. The stream keeps `observation` and `running` alive.
pub(crate) fn encode(
    wire: SchemaRef,
    batches: BatchStream,
    delivery: &Delivery,
    observation: Observation,
    running: Option<RunningGuard>,
) -> BoxStream<'static, Result<FlightData, Status>> {
    let encoder = Encoder {
        dictionaries: Dictionaries::new(&wire),
        wire,
        batches,
        delivery: delivery.clone(),
        slices: VecDeque::new(),
        messages: VecDeque::new(),
        schema_sent: false,
        batch_sent: false,
        encoder: None,
        observation,
        _running: running,
    };
    stream::try_unfold(encoder, |mut encoder| async move {
        let span = encoder.observation.span();
        let next = encoder.next().instrument(span).await;
        Ok(encoder.observation.note(next)?.map(|data| (data, encoder)))
    })
    .boxed()
}

struct Encoder {
    wire: SchemaRef,
    batches: BatchStream,
    delivery: Delivery,
    slices: VecDeque<RecordBatch>,
    /// Messages of the latest slice that were not asked for yet: its dictionaries, and its rows behind them.
    messages: VecDeque<IpcMessage>,
    dictionaries: Option<Dictionaries>,
    schema_sent: bool,
    batch_sent: bool,
    /// There is one after the first batch.
    encoder: Option<StreamEncoder>,
    observation: Observation,
    _running: Option<RunningGuard>,
}

impl Encoder {
    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        if !self.schema_sent {
            self.schema_sent = true;
            return Ok(Some(SchemaAsIpc::new(&self.wire, &self.delivery.options).into()));
        }
        loop {
            if let Some(message) = self.messages.pop_front() {
                return self.send(message).map(Some).map_err(error::encoding);
            }
            if let Some(slice) = self.slices.pop_front() {
                self.batch_sent = true;
                self.encode(&slice).map_err(error::encoding)?;
                continue;
            }
            match self.batches.next().await {
                Some(batch) => self.slice(batch?).map_err(error::encoding)?,
                None if self.batch_sent => return Ok(None),
                None => self.slices.push_back(RecordBatch::new_empty(Arc::clone(&self.wire))),
            }
        }
    }

    fn slice(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        let step = if same_types(&batch, &self.wire) { batch.num_rows() } else { CONVERT_ROWS };
        let mut offset = 0;
        while offset < batch.num_rows() {
            let rows = step.min(batch.num_rows() - offset);
            self.convert(&batch.slice(offset, rows))?;
            offset += rows;
        }
        Ok(())
    }

    /// Adds rows to the slices, with the columns of the stream.
    fn convert(&mut self, rows: &RecordBatch) -> Result<(), ArrowError> {
        let target_bytes = self.delivery.target_bytes;
        let Some(dictionaries) = &mut self.dictionaries else {
            split(convert(rows, &self.wire)?, target_bytes, &mut self.slices);
            return Ok(());
        };
        // A dictionary is a message, too, so rows are split by their texts before they have keys.
        let mut parts = VecDeque::new();
        split(convert(rows, &dictionaries.unencoded(rows))?, target_bytes, &mut parts);
        for part in &parts {
            self.slices.push_back(dictionaries.encode(part)?);
        }
        Ok(())
    }

    /// Makes the messages of a slice.
    fn encode(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let batch = compact_views(batch)?;
        let is_first = self.encoder.is_none();
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(StreamEncoder::try_new_with_options(&self.wire, self.delivery.options.clone())?),
        };
        let pieces = encoder.encode(&batch)?.into_iter();
        let mut stream: VecDeque<Buffer> = pieces.filter(|piece| !piece.is_empty()).collect();
        if is_first {
            // The schema, which was sent already.
            IpcMessage::take(&mut stream)?;
        }
        while !stream.is_empty() {
            self.messages.push_back(IpcMessage::take(&mut stream)?);
        }
        self.observation.add(batch.num_rows() as u64, 0);
        Ok(())
    }

    fn send(&self, message: IpcMessage) -> Result<FlightData, ArrowError> {
        self.observation.add(0, message.body_bytes() as u64);
        if message.body_bytes() < LARGE_BYTES {
            return Ok(message.into_data());
        }
        Ok(self.delivery.large.push(message.into_frames(None, FRAME_BYTES)?))
    }
}

fn same_types(batch: &RecordBatch, wire: &SchemaRef) -> bool {
    batch.num_columns() == wire.fields().len()
        && batch.columns().iter().zip(wire.fields()).all(|(column, field)| column.data_type() == field.data_type())
}

/// Splits a batch into parts that fit into one message each; most batches fit whole.
pub(crate) fn parts(batch: RecordBatch, target_bytes: usize) -> Result<Vec<RecordBatch>, ArrowError> {
    if batch.columns().iter().map(|column| column.get_buffer_memory_size()).sum::<usize>() <= target_bytes {
        return Ok(vec![batch]);
    }
    let mut parts = VecDeque::new();
    split(batch, target_bytes, &mut parts);
    parts.iter().map(compact_views).collect()
}

/// Slices a batch into parts of about `target_bytes`; rows of uneven size are split further where needed.
fn split(batch: RecordBatch, target_bytes: usize, out: &mut VecDeque<RecordBatch>) {
    let rows = batch.num_rows();
    let bytes: usize = batch.columns().iter().map(|column| slice_bytes(&column.to_data())).sum();
    if rows <= 1 || bytes <= target_bytes {
        out.push_back(batch);
        return;
    }
    let rows_per_part = rows.div_ceil(bytes.div_ceil(target_bytes)).clamp(1, rows.div_ceil(2));
    let mut offset = 0;
    while offset < rows {
        let length = rows_per_part.min(rows - offset);
        split(batch.slice(offset, length), target_bytes, out);
        offset += length;
    }
}

/// Bytes of the rows of a (sliced) array, not of its whole buffers.
fn slice_bytes(data: &ArrayData) -> usize {
    let rows = data.len();
    let nulls = if data.nulls().is_some() { rows.div_ceil(8) } else { 0 };
    nulls
        + match data.data_type() {
            DataType::Utf8 | DataType::Binary => 4 * rows + span::<i32>(data).1,
            DataType::LargeUtf8 | DataType::LargeBinary => 8 * rows + span::<i64>(data).1,
            DataType::List(_) | DataType::Map(..) => {
                let (first, length) = span::<i32>(data);
                4 * rows + child_bytes(data, first, length)
            }
            DataType::LargeList(_) => {
                let (first, length) = span::<i64>(data);
                8 * rows + child_bytes(data, first, length)
            }
            DataType::Utf8View | DataType::BinaryView => view_bytes(data),
            DataType::Struct(_) | DataType::FixedSizeList(..) => data.child_data().iter().map(slice_bytes).sum(),
            DataType::Dictionary(..) => keyed_bytes(data, data.child_data().iter().map(slice_bytes).sum()),
            _ => data.get_slice_memory_size().unwrap_or_else(|_| data.get_buffer_memory_size()),
        }
}

/// First offset of a sliced array, and distance to its last one.
fn span<O: ArrowNativeType>(data: &ArrayData) -> (usize, usize) {
    let Some(buffer) = data.buffers().first() else { return (0, 0) };
    let offsets = buffer.typed_data::<O>();
    let at = |index: usize| offsets.get(index).map_or(0, |offset| offset.as_usize());
    let first = at(data.offset());
    (first, at(data.offset() + data.len()).saturating_sub(first))
}

/// Bytes of the rows `first..first + length` in the children of a list array.
fn child_bytes(data: &ArrayData, first: usize, length: usize) -> usize {
    data.child_data()
        .iter()
        .filter(|child| first + length <= child.len())
        .map(|child| slice_bytes(&child.slice(first, length)))
        .sum()
}

fn view_bytes(data: &ArrayData) -> usize {
    let Some(buffer) = data.buffers().first() else { return 0 };
    let views = buffer.typed_data::<u128>();
    let views = views.get(data.offset()..data.offset() + data.len()).unwrap_or_default();
    // The low 32 bits of a view are the length of its value; values of up to 12 bytes lie in the view itself.
    16 * views.len() + views.iter().map(|view| (*view as u32) as usize).filter(|bytes| *bytes > 12).sum::<usize>()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::{
        array::{ArrayRef, AsArray, Int64Array, ListArray, StringArray, StringViewArray},
        datatypes::Int64Type,
    };

    use super::*;
    use crate::schema::{WireTypes, wire_schema};

    fn parts(columns: Vec<(&str, ArrayRef)>, target: usize) -> Vec<RecordBatch> {
        let mut out = VecDeque::new();
        split(RecordBatch::try_from_iter(columns).unwrap(), target, &mut out);
        out.into()
    }

    #[test]
    fn parts_follow_the_bytes_of_rows_not_of_buffers() {
        let whole: ArrayRef = Arc::new(Int64Array::from_iter_values(0..65_536));
        assert_eq!(parts(vec![("a", whole.slice(1000, 100))], 2 << 20).len(), 1);
        assert_eq!(parts(vec![("a", whole)], 8 * 8192).len(), 8);

        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..1000).map(|i| Some(vec![Some(i); 100])));
        let lists: ArrayRef = Arc::new(lists);
        let split = parts(vec![("l", lists)], 100_000);
        assert!((8..=17).contains(&split.len()), "{}", split.len());
    }

    #[test]
    fn uneven_rows_are_isolated() {
        let wide = "x".repeat(1 << 20);
        let values: Vec<&str> = (0..1000).map(|i| if i == 500 { wide.as_str() } else { "y" }).collect();
        let split = parts(vec![("s", Arc::new(StringArray::from(values)))], 64 << 10);
        assert_eq!(split.iter().map(RecordBatch::num_rows).sum::<usize>(), 1000);
        let too_big = split.iter().filter(|b| slice_bytes(&b.column(0).to_data()) > 64 << 10).collect::<Vec<_>>();
        assert_eq!(too_big.len(), 1);
        assert_eq!(too_big[0].num_rows(), 1);
    }

    #[test]
    fn views_become_strings_and_kept_views_carry_only_their_own_bytes() {
        let long = "a long value that does not fit into the view itself";
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n(long, 1000)));
        let batch = RecordBatch::try_from_iter([("v", views)]).unwrap();
        let wire = wire_schema(&batch.schema(), WireTypes::PLAIN);
        let flat = convert(&batch, &wire).unwrap();
        assert_eq!(flat.column(0).as_string::<i32>().value(999), long);

        let kept = compact_views(&batch.slice(10, 2)).unwrap();
        assert!(kept.column(0).as_string_view().data_buffers().iter().map(|b| b.len()).sum::<usize>() < 200);
    }
}
