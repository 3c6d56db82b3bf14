//! Any bytes as commands, tickets, handles and bodies of actions: decoded, as whole calls to the service, and as streams of
//! messages with rows, as gRPC sends them.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch},
    datatypes::Schema,
};
use arrow_flight::{
    Action, Criteria, FlightData, FlightDescriptor, HandshakeRequest, Ticket,
    encode::FlightDataEncoderBuilder,
    flight_service_server::FlightService,
    sql::{
        ActionBeginTransactionRequest, ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, Any,
        Command, CommandGetSqlInfo, CommandGetTables, CommandPreparedStatementQuery, CommandPreparedStatementUpdate,
        CommandStatementQuery, CommandStatementUpdate, ProstMessageExt, TableExistsOption, TableNotExistOption,
        TicketStatementQuery,
    },
};
use arrow_ipc::{CompressionType, writer::IpcWriteOptions};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, executor::block_on, stream};
use http_body_util::{BodyExt, Full};
use prost::Message;
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;
use tonic::{
    Request,
    body::Body,
    codegen::{Service as Transport, http},
};

use super::{
    PEER,
    fake::{FakeEngine, numbers},
    prepared::{ingest, parameters},
};
use crate::{
    FlightOptions, FlightServer, action,
    auth::Credentials,
    connection::Connection,
    proto::{CreatePreparedStatementResult, DetailedStatus, SetSessionOptionsRequest},
    service::{Core, Service},
    statement,
    ticket::handle_text,
};

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

/// Kinds of calls, by the first byte of an input.
const KINDS: u8 = 7;

fn command(message: &impl ProstMessageExt) -> Bytes {
    message.as_any().encode_to_vec().into()
}

fn commands() -> Vec<Bytes> {
    let handle = Bytes::from_static(b"none");
    vec![
        command(&CommandStatementQuery { query: "rows 3".into(), transaction_id: None }),
        command(&CommandStatementQuery { query: "odd types".into(), transaction_id: Some(handle.clone()) }),
        command(&CommandGetTables { include_schema: true, ..CommandGetTables::default() }),
        command(&CommandGetSqlInfo { info: vec![0, 3, 500] }),
        command(&CommandPreparedStatementQuery { prepared_statement_handle: handle.clone() }),
        command(&TicketStatementQuery { statement_handle: handle.clone() }),
        command(&ActionCreatePreparedStatementRequest { query: "echo".into(), transaction_id: None }),
        command(&ActionClosePreparedStatementRequest { prepared_statement_handle: handle }),
        command(&ActionBeginTransactionRequest {}),
    ]
}

#[test]
fn messages() {
    let examples = commands().into_iter().map(|command| command.to_vec()).collect();
    fuzz!("Flight messages", Inputs::stateless(3_000, 3_000_000), examples, |input: &[u8]| {
        let _ = (handle_text(input), statement::row_count(input), Credentials::from_handshake(input));
        let _ = (SetSessionOptionsRequest::decode(input), DetailedStatus::decode(input));
        Any::decode(input).is_ok_and(|any| Command::try_from(any).is_ok())
    });
}

/// Calls of one connection; its end drops the prepared statements of its session, which are far from their limit then.
const CALLS_PER_CONNECTION: usize = 200;

/// A service without a transport, and the connection that its calls come from.
struct Caller {
    service: Service,
    connection: RefCell<Arc<Connection>>,
    calls: Cell<usize>,
}

impl Caller {
    fn new(core: Arc<Core>) -> Self {
        let connection = RefCell::new(Self::connect(&core));
        Self { service: Service { core }, connection, calls: Cell::new(0) }
    }

    fn connect(core: &Arc<Core>) -> Arc<Connection> {
        Arc::new(Connection::new(Arc::clone(core), PEER.into()))
    }

    /// Notes a call; after some, the next come from another connection.
    fn note_call(&self) {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get().is_multiple_of(CALLS_PER_CONNECTION) {
            drop(self.connection.replace(Self::connect(&self.service.core)));
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(Arc::clone(&self.connection.borrow()));
        request
    }

    /// Makes a call; returns whether it was answered without an error.
    async fn call(&self, kind: u8, body: Bytes) -> bool {
        let service = &self.service;
        match kind % KINDS {
            0 => service.get_flight_info(self.request(FlightDescriptor::new_cmd(body))).await.is_ok(),
            1 => service.get_schema(self.request(FlightDescriptor::new_cmd(body))).await.is_ok(),
            2 => service.poll_flight_info(self.request(FlightDescriptor::new_cmd(body))).await.is_ok(),
            3 => match service.do_get(self.request(Ticket { ticket: body })).await {
                // Some results have no end.
                Ok(rows) => rows.into_inner().take(16).all(async |rows| rows.is_ok()).await,
                Err(_) => false,
            },
            4 => service.list_flights(self.request(Criteria { expression: body })).await.is_ok(),
            5 => {
                let path = String::from_utf8_lossy(&body).split('/').map(str::to_owned).collect();
                service.get_flight_info(self.request(FlightDescriptor::new_path(path))).await.is_ok()
            }
            _ => {
                let names = action::list();
                let name = names.get(usize::from(kind / KINDS) % names.len()).map(|action| action.r#type.clone());
                let action = Action { r#type: name.unwrap_or_default(), body };
                service.do_action(self.request(action)).await.is_ok()
            }
        }
    }
}

/// Options with which sessions and tickets have their limits after the first tenth of the inputs, so that what they take grows no
/// more.
fn soon_full() -> FlightOptions {
    FlightOptions { max_sessions: 50, max_sessions_per_user: 50, max_tickets: 50, ..FlightOptions::default() }
}

/// Forgets what the engine of tests notes of its calls, which has no limit.
fn forget_notes(engine: &FakeEngine) {
    engine.ingested.lock().clear();
    engine.transactions.lock().clear();
    engine.counters.cancelled.lock().clear();
}

#[test]
fn calls() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = Arc::new(FakeEngine::default());
    let server = FlightServer::new(engine.clone(), soon_full());
    let caller = Caller::new(Arc::clone(&server.core));
    let query = CommandStatementQuery { query: "rows 3".into(), transaction_id: None };
    let examples = [
        (0, command(&query)),
        (1, command(&query)),
        (2, command(&query)),
        (0, command(&CommandGetTables { include_schema: true, ..CommandGetTables::default() })),
        (3, command(&CommandGetSqlInfo { info: vec![0, 3, 500] })),
        // The first action, which prepares a statement.
        (6, command(&ActionCreatePreparedStatementRequest { query: "rows 3".into(), transaction_id: None })),
    ];
    let examples = examples.into_iter().map(|(kind, body)| [&[kind][..], &body[..]].concat()).collect();
    fuzz!("Flight calls", Inputs::stateful(1_000, 200_000), examples, |input: &[u8]| {
        let Some((kind, body)) = input.split_first() else { return false };
        let is_valid = runtime.block_on(caller.call(*kind, Bytes::copy_from_slice(body)));
        caller.note_call();
        forget_notes(&engine);
        is_valid
    });
}

/// Calls that take a stream, by the first byte of an input; most inputs are for the one that reads it.
const STREAMS: [&str; 6] = ["DoPut", "DoPut", "DoPut", "DoPut", "Handshake", "DoExchange"];

/// Bytes of the prefix of a message.
const PREFIX_BYTES: usize = 5;

/// A message as gRPC sends it.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = (bytes.len() as u32).to_be_bytes();
    [&[0][..], &length[..], &bytes[..]].concat()
}

/// The service below its transport, and the connection that its calls come from.
struct Wire<S> {
    service: S,
    connection: Arc<Connection>,
}

impl<S> Wire<S>
where
    S: Transport<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone,
{
    /// Makes a call with this body; returns the body of its answer, or nothing for an error.
    async fn call(&self, method: &str, body: Vec<u8>) -> Option<Bytes> {
        let request = http::Request::post(format!("/arrow.flight.protocol.FlightService/{method}"));
        let body = Body::new(Full::new(Bytes::from(body)));
        let mut request = request.header("content-type", "application/grpc").body(body).unwrap();
        request.extensions_mut().insert(Arc::clone(&self.connection));
        let failed = |headers: &http::HeaderMap| headers.get("grpc-status").is_some_and(|code| code.as_bytes() != b"0");
        let answer = self.service.clone().call(request).await.unwrap();
        if failed(answer.headers()) {
            return None;
        }
        let answer = answer.into_body().collect().await.ok()?;
        if answer.trailers().is_some_and(failed) { None } else { Some(answer.to_bytes()) }
    }

    /// Prepares a statement; returns its handle.
    async fn prepare(&self, sql: &str) -> Bytes {
        let request = ActionCreatePreparedStatementRequest { query: sql.into(), transaction_id: None };
        let action = Action::new("CreatePreparedStatement", request.as_any().encode_to_vec());
        let answer = self.call("DoAction", framed(&action)).await.unwrap();
        let result = arrow_flight::Result::decode(answer.slice(PREFIX_BYTES..)).unwrap();
        let result = Any::decode(result.body).unwrap();
        CreatePreparedStatementResult::decode(result.value).unwrap().prepared_statement_handle
    }
}

/// An upload of rows for a command.
fn upload(command: &impl ProstMessageExt, rows: RecordBatch, codec: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let encoder = FlightDataEncoderBuilder::new().with_options(options).with_flight_descriptor(Some(descriptor));
    let messages: Vec<FlightData> = block_on(encoder.build(stream::iter([Ok(rows)])).try_collect()).unwrap();
    std::iter::once(0).chain(messages.iter().flat_map(framed)).collect()
}

/// Uploads that are accepted: ingests, and parameters of the prepared statements with these handles.
fn uploads(update: Bytes, query: Bytes) -> Vec<Vec<u8>> {
    use {TableExistsOption::Append, TableNotExistOption::Create};
    let ingest = ingest("t", Append, Create);
    let update = CommandPreparedStatementUpdate { prepared_statement_handle: update };
    let query = CommandPreparedStatementQuery { prepared_statement_handle: query };
    let statement = CommandStatementUpdate { query: "insert".into(), transaction_id: None };
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let one = RecordBatch::try_from_iter([("0", column)]).unwrap();
    let none = RecordBatch::new_empty(Arc::new(Schema::empty()));
    vec![
        upload(&ingest, numbers(0, 9), None),
        upload(&ingest, numbers(0, 90), Some(CompressionType::LZ4_FRAME)),
        upload(&ingest, numbers(0, 90), Some(CompressionType::ZSTD)),
        upload(&update, one, None),
        upload(&query, parameters(vec![7], vec!["x"]), None),
        upload(&statement, none, None),
    ]
}

#[test]
fn streams() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = Arc::new(FakeEngine::default());
    // Memory for a message is reserved by the length that it announces, up to this limit.
    let options = FlightOptions { max_message_bytes: 8 << 20, max_parameter_bytes: 4 << 20, ..soon_full() };
    let server = FlightServer::new(engine.clone(), options);
    let connection = Arc::new(Connection::new(Arc::clone(&server.core), PEER.into()));
    let wire = Wire { service: server.into_service(), connection };
    let [update, query] = ["insert ?", "echo"].map(|sql| runtime.block_on(wire.prepare(sql)));
    let handshake = [vec![4], framed(&HandshakeRequest::default())].concat();
    let examples = uploads(update, query).into_iter().chain([handshake]).collect();
    fuzz!("Flight streams", Inputs::stateful(500, 200_000), examples, |input: &[u8]| {
        let Some((kind, body)) = input.split_first() else { return false };
        let method = STREAMS.get(usize::from(*kind) % STREAMS.len()).copied().unwrap_or_default();
        let is_valid = runtime.block_on(wire.call(method, body.to_vec())).is_some();
        forget_notes(&engine);
        is_valid
    });
}
