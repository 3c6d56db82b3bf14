//! Streams from a client: their commands and their rows.
//!
//! The first message names the command. It may also carry the schema, and it may be the only message.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
};

use arrow::{compute::concat_batches, datatypes::SchemaRef, record_batch::RecordBatch};
use arrow_flight::{
    FlightData, PutResult,
    decode::{DecodedFlightData, DecodedPayload, FlightDataDecoder},
    error::FlightError,
    sql::{Any, Command, DoPutPreparedStatementResult, DoPutUpdateResult},
};
use futures::{Stream, StreamExt, TryStreamExt, stream, stream::BoxStream};
use prost::Message;
use terrace_ipc::{Inflater, Limits, check_expanded};
use tonic::Status;

use crate::{
    bodies::Bodies,
    engine::{BatchStream, EngineError, ErrorKind},
    error, ingest,
    metrics::{Observation, Operation},
    prepared,
    service::{Call, Core, transaction},
    statement, text,
};

/// Limit of the bytes of a message's rows once dictionaries, views and runs are expanded, as a multiple of the largest
/// message.
const EXPANDED_TIMES: u64 = 4;

/// The rows that a client sends.
pub(crate) struct PutStream {
    messages: BoxStream<'static, Result<DecodedFlightData, EngineError>>,
    /// The schema that the client sent, when its string views are read as bytes.
    announced: Arc<OnceLock<SchemaRef>>,
    limits: Limits,
}

impl PutStream {
    pub(crate) fn new(
        first: FlightData,
        rest: impl Stream<Item = Result<FlightData, Status>> + Send + 'static,
        limits: Limits,
    ) -> Self {
        let mut inflater = Inflater::new(limits.clone());
        let announced = Arc::new(OnceLock::new());
        let sent_schema = Arc::clone(&announced);
        let messages = stream::iter([Ok(first)])
            .chain(rest)
            .filter(|message| {
                let skip = matches!(message, Ok(data) if data.data_header.is_empty());
                futures::future::ready(!skip)
            })
            .map(move |message| {
                let message = message.map_err(|status| FlightError::Tonic(Box::new(status)))?;
                let message = inflated(&mut inflater, message)?;
                Ok(match text::as_bytes(&message) {
                    Some((message, schema)) => {
                        sent_schema.get_or_init(|| schema);
                        message
                    }
                    None => message,
                })
            });
        // The decoder panics on offsets outside of a message. That must end the stream, not the connection.
        let messages = AssertUnwindSafe(FlightDataDecoder::new(messages)).catch_unwind().map(|caught| match caught {
            Ok(message) => message.map_err(engine_error),
            Err(_) => Err(EngineError::new(ErrorKind::InvalidArgument, "the stream cannot be read: it is damaged")),
        });
        Self { messages: messages.boxed(), announced, limits }
    }

    /// The schema, which comes first; `None` when the stream is empty.
    pub(crate) async fn schema(&mut self) -> Result<Option<SchemaRef>, Status> {
        match self.messages.next().await.transpose()? {
            None => Ok(None),
            Some(message) => match message.payload {
                DecodedPayload::Schema(schema) => Ok(Some(self.announced.get().cloned().unwrap_or(schema))),
                _ => Err(Status::invalid_argument("the stream must begin with a schema")),
            },
        }
    }

    /// The batches after the schema, pulled as they are needed.
    pub(crate) fn batches(self) -> BatchStream {
        let announced = self.announced;
        let most = self.limits.expanded_bytes;
        let rows = move |batch: RecordBatch| {
            check_expanded(&batch, most).map_err(refused)?;
            match announced.get() {
                Some(schema) => text::as_text(&batch, schema).map_err(|e| engine_error(e.into())),
                None => Ok(batch),
            }
        };
        self.messages
            .filter_map(move |message| {
                futures::future::ready(match message {
                    Err(error) => Some(Err(error)),
                    Ok(message) => match message.payload {
                        DecodedPayload::RecordBatch(batch) => Some(rows(batch)),
                        DecodedPayload::None => None,
                        DecodedPayload::Schema(_) => Some(Err(EngineError::new(
                            ErrorKind::InvalidArgument,
                            "the schema changes within the stream; send one stream per schema",
                        ))),
                    },
                })
            })
            .boxed()
    }

    /// All rows as one batch; `None` when the schema has no columns.
    pub(crate) async fn read_parameters(mut self, max_bytes: usize) -> Result<Option<RecordBatch>, Status> {
        let schema = match self.schema().await? {
            Some(schema) if !schema.fields().is_empty() => schema,
            _ => return Ok(None),
        };
        let mut batches = self.batches();
        let mut parts = Vec::new();
        let mut bytes = 0_usize;
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            bytes = bytes.saturating_add(batch.get_array_memory_size());
            if bytes > max_bytes {
                return Err(Status::resource_exhausted(format!(
                    "the parameters take more than {max_bytes} bytes: bind fewer rows at a time, or use bulk ingest"
                )));
            }
            parts.push(batch);
        }
        concat_batches(&schema, &parts).map(Some).map_err(|e| error::malformed("parameters", e))
    }
}

/// Decompresses a message within the limits; Arrow's reader would trust the lengths in the message.
fn inflated(inflater: &mut Inflater, message: FlightData) -> Result<FlightData, FlightError> {
    let FlightData { data_header: header, data_body: body, .. } = message.clone();
    match inflater.inflate(terrace_ipc::Message { header, body }) {
        Ok(terrace_ipc::Message { header: data_header, body: data_body }) => {
            Ok(FlightData { data_header, data_body, ..message })
        }
        Err(error) => Err(FlightError::ExternalError(Box::new(refused(error)))),
    }
}

fn refused(error: terrace_ipc::Error) -> EngineError {
    let kind = match error {
        terrace_ipc::Error::TooLarge(_) => ErrorKind::ResourceExhausted,
        _ => ErrorKind::InvalidArgument,
    };
    EngineError::new(kind, format!("the stream cannot be read: {error}"))
}

fn engine_error(error: FlightError) -> EngineError {
    match error {
        FlightError::Tonic(status) => error::from_status(&status),
        FlightError::ExternalError(inner) if inner.is::<EngineError>() => match inner.downcast::<EngineError>() {
            Ok(own) => *own,
            Err(other) => EngineError::new(ErrorKind::InvalidArgument, other.to_string()),
        },
        other => EngineError::new(ErrorKind::InvalidArgument, format!("the stream cannot be read: {other}")),
    }
}

/// Limits of a message of a stream.
fn limits(core: &Core, is_parameters: bool) -> Limits {
    let most = core.options.max_message_bytes as u64;
    let message_bytes = if is_parameters { most.min(core.options.max_parameter_bytes as u64) } else { most };
    let expanded_bytes = most.saturating_mul(EXPANDED_TIMES);
    Limits { message_bytes, expanded_bytes, account: core.engine.message_memory() }
}

/// What a client sends.
pub(crate) struct Put<Messages> {
    /// Its first message.
    pub(crate) first: FlightData,
    /// The others, without their bodies.
    pub(crate) rest: Messages,
    pub(crate) bodies: Bodies,
}

/// Runs the command in the first message of a stream.
pub(crate) async fn dispatch(
    core: &Core,
    call: &Call,
    put: Put<impl Stream<Item = Result<FlightData, Status>> + Send + 'static>,
    observation: &mut Observation,
) -> Result<PutResult, Status> {
    let Put { first, rest, bodies } = put;
    let descriptor = first
        .flight_descriptor
        .as_ref()
        .ok_or_else(|| Status::invalid_argument("the stream does not name a command"))?;
    let any = Any::decode(descriptor.cmd.clone()).map_err(|e| error::malformed("command", e))?;
    let command = Command::try_from(any).map_err(|e| error::malformed("command", e))?;
    let is_parameters =
        matches!(command, Command::CommandPreparedStatementUpdate(_) | Command::CommandPreparedStatementQuery(_));
    // Parameters have a limit of their own, and are kept while their statement waits.
    let restore = move |message| if is_parameters { bodies.restore(message) } else { bodies.restore_rows(message) };
    let stream = PutStream::new(first, rest.map_ok(restore), limits(core, is_parameters));
    let rows = match command {
        Command::CommandStatementUpdate(update) => {
            observation.rename(Operation::StatementUpdate);
            let transaction = transaction(update.transaction_id.as_ref())?;
            let statement = statement::prepare(core, call, &update.query, transaction.as_ref()).await?;
            statement::update(statement.as_ref(), None).await?
        }
        Command::CommandPreparedStatementUpdate(update) => {
            observation.rename(Operation::PreparedUpdate);
            prepared::update(core, call, &update.prepared_statement_handle, stream).await?
        }
        Command::CommandPreparedStatementQuery(query) => {
            observation.rename(Operation::Bind);
            prepared::bind(core, call, &query.prepared_statement_handle, stream).await?;
            // The Java client takes the handle from the answer even when there is none in it, so the answer repeats the
            // handle.
            let result =
                DoPutPreparedStatementResult { prepared_statement_handle: Some(query.prepared_statement_handle) };
            return Ok(PutResult { app_metadata: result.encode_to_vec().into() });
        }
        Command::CommandStatementIngest(ingest) => {
            observation.rename(Operation::Ingest);
            ingest::ingest(core, call, ingest, stream, observation).await?
        }
        Command::CommandStatementSubstraitPlan(_) => {
            return Err(Status::unimplemented("Substrait plans are not supported: send SQL"));
        }
        other => {
            return Err(Status::invalid_argument(format!("{} is not a command that stores rows", other.type_url())));
        }
    };
    observation.add(u64::try_from(rows).unwrap_or_default(), 0);
    Ok(PutResult { app_metadata: DoPutUpdateResult { record_count: rows }.encode_to_vec().into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use arrow::array::{ArrayRef, Int64Array, NullArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use arrow_ipc::{CompressionType, writer::IpcWriteOptions};
    use futures::executor::block_on;
    use proptest::prelude::*;

    use super::*;

    fn messages() -> Vec<FlightData> {
        let batch = crate::tests::numbers(0, 50);
        block_on(FlightDataEncoderBuilder::new().build(stream::iter([Ok(batch)])).try_collect()).unwrap()
    }

    fn limits() -> Limits {
        Limits { message_bytes: 1 << 20, expanded_bytes: 1 << 20, account: None }
    }

    fn compressed(codec: CompressionType) -> Vec<FlightData> {
        let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
        let rows = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![7; 4_000])) as ArrayRef)]).unwrap();
        let encoder = FlightDataEncoderBuilder::new().with_options(options);
        block_on(encoder.build(stream::iter([Ok(rows)])).try_collect()).unwrap()
    }

    fn read(mut messages: Vec<FlightData>) -> Result<Option<RecordBatch>, Status> {
        let first = messages.remove(0);
        let stream = PutStream::new(first, stream::iter(messages.into_iter().map(Ok)), limits());
        block_on(stream.read_parameters(1 << 20))
    }

    #[test]
    fn what_compressed_rows_announce_is_not_believed() {
        for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
            let messages = compressed(codec);
            assert_eq!(read(messages.clone()).unwrap().unwrap().num_rows(), 4_000);
            // A column without nulls has just one buffer.
            for announced in [1_i64 << 48, i64::MAX, 2 << 30] {
                let mut messages = messages.clone();
                let mut body = messages[1].data_body.to_vec();
                assert_eq!(body[..8], 32_000_i64.to_le_bytes());
                body[..8].copy_from_slice(&announced.to_le_bytes());
                messages[1].data_body = body.into();
                let status = read(messages).unwrap_err();
                assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("more than the limit"), "{status}");
            }
        }
    }

    #[test]
    fn rows_of_no_bytes_are_bounded() {
        let rows = RecordBatch::try_from_iter([("n", Arc::new(NullArray::new(1 << 40)) as ArrayRef)]).unwrap();
        let encoder = FlightDataEncoderBuilder::new().with_max_flight_data_size(usize::MAX);
        let messages: Vec<_> = block_on(encoder.build(stream::iter([Ok(rows)])).try_collect()).unwrap();
        let status = read(messages).unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    }

    #[test]
    fn parameters_of_types_without_values_are_refused() {
        for width in [-1, i32::MAX] {
            let schema = Schema::new(vec![Field::new("n", DataType::FixedSizeBinary(width), true)]);
            let encoder = FlightDataEncoderBuilder::new().with_schema(Arc::new(schema));
            let messages: Vec<_> = block_on(encoder.build(stream::empty()).try_collect()).unwrap();
            let status = read(messages).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
            assert!(status.message().contains("column 'n'"), "{status}");
        }
    }

    #[test]
    fn whole_streams_are_read() {
        let mut messages = messages();
        let first = messages.remove(0);
        let stream = PutStream::new(first, stream::iter(messages.into_iter().map(Ok)), limits());
        assert_eq!(block_on(stream.read_parameters(1 << 20)).unwrap().unwrap().num_rows(), 50);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Damaged messages end in an error or in other values, never in a panic.
        #[test]
        fn damaged_streams_end_in_errors(at in any::<prop::sample::Index>(), value: u8, which in 0_usize..3, cut: bool) {
            let mut messages = messages();
            let target = &mut messages[which.min(1)];
            let part = if which == 2 { &mut target.data_body } else { &mut target.data_header };
            let mut bytes = part.to_vec();
            let index = at.index(bytes.len());
            if cut { bytes.truncate(index) } else { bytes[index] = value }
            *part = bytes.into();
            let first = messages.remove(0);
            let stream = PutStream::new(first, stream::iter(messages.into_iter().map(Ok)), limits());
            if let Err(status) = block_on(stream.read_parameters(1 << 20)) {
                prop_assert!(status.code() != tonic::Code::Internal, "{}", status.message());
            }
        }
    }
}
