//! A bare arrow-flight server that sends one batch again and again, and a TCP server without any protocol: the
//! transport of a large result without an engine.
//!
//! The text of a statement says what its result is: `batches 100` is the batch a hundred times, encoded anew each time;
//! `messages 100` is as many times the message of it that was encoded before the server began to serve. Terrace gave the
//! batch, so that both servers send the same types.
//!
//! Everything is as arrow-flight and tonic have it by default, except that a batch is one message whatever its size: the
//! encoder would split it by the memory of its columns, and each column of a batch that was received counts all memory
//! of its message.
//!
//! The TCP server reads a number from each connection, 8 bytes in little endian, and sends so many bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::server::FlightSqlService;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    CommandPreparedStatementQuery, ProstMessageExt, SqlInfo,
};
use arrow_flight::{Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket};
use futures::{Stream, TryStreamExt, stream};
use prost::Message;
use terrace_server::client::{Client, Connection};
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::reader::decoded_bytes;
use super::{Side, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// Bytes that the TCP server sends at once.
const RAW_PIECE_BYTES: usize = 256 << 10;

/// The side: it reports its ports and the batch, and serves until its process ends.
pub struct Bare {
    _runtime: Runtime,
    about: Sample,
}

impl Bare {
    /// Serves the rows of a query that another server answers, on any ports of this machine.
    pub fn start(url: &str, sql: &str) -> Result<Self> {
        let runtime = Runtime::new().map_err(Error::io("cannot start a runtime"))?;
        let batch = runtime.block_on(fetch(url, sql))?;
        Self::serve(runtime, batch)
    }

    fn serve(runtime: Runtime, batch: RecordBatch) -> Result<Self> {
        let about = Sample::default()
            .with("rows", batch.num_rows() as f64)
            .with("bytes", decoded_bytes(&batch)? as f64)
            .with("raw_port", f64::from(serve_raw()?));
        let content = runtime.block_on(Content::new(batch))?;
        let inside = runtime.enter();
        let listening = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).map_err(Error::io("cannot listen"))?;
        let port = listening.local_addr().map_err(Error::io("cannot tell where it listens"))?.port();
        let service = FlightServiceServer::new(Batches(Arc::new(content)));
        let serving = Server::builder().add_service(service).serve_with_incoming(listening.with_nodelay(Some(true)));
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                eprintln!("the bare server ended: {error}");
            }
        });
        drop(inside);
        Ok(Self { _runtime: runtime, about: about.with("port", f64::from(port)) })
    }
}

impl Side for Bare {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match op {
            "about" => Ok(self.about.clone()),
            _ => Err(unknown(op)),
        }
    }
}

/// The rows of a query, as one batch.
async fn fetch(url: &str, sql: &str) -> Result<RecordBatch> {
    let batches = Client::connect(&Connection::to(url)).await?.query(sql).await?;
    let first = batches.first().ok_or_else(|| Error::failed(format!("'{sql}' has no rows to send")))?;
    Ok(concat_batches(&first.schema(), &batches)?)
}

/// Serves TCP; returns the port.
fn serve_raw() -> Result<u16> {
    let listening = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::io("cannot listen"))?;
    let port = listening.local_addr().map_err(Error::io("cannot tell where it listens"))?.port();
    std::thread::spawn(move || {
        for connection in listening.incoming() {
            std::thread::spawn(move || {
                if let Err(error) = connection.and_then(send_raw) {
                    eprintln!("a TCP connection ended: {error}");
                }
            });
        }
    });
    Ok(port)
}

/// Sends as many bytes as the other end asks for.
fn send_raw(mut connection: TcpStream) -> std::io::Result<()> {
    let mut asked = [0; 8];
    connection.read_exact(&mut asked)?;
    let mut left = u64::from_le_bytes(asked) as usize;
    let piece = vec![7_u8; RAW_PIECE_BYTES];
    while left > 0 {
        let bytes = left.min(piece.len());
        connection.write_all(&piece[..bytes])?;
        left -= bytes;
    }
    Ok(())
}

/// A result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The batch so many times, encoded each time.
    Batches(usize),
    /// The same, encoded before.
    Messages(usize),
}

impl Order {
    fn parse(text: &str) -> Option<Self> {
        let (kind, count) = text.split_once(' ')?;
        let count = count.parse().ok()?;
        match kind {
            "batches" => Some(Self::Batches(count)),
            "messages" => Some(Self::Messages(count)),
            _ => None,
        }
    }
}

type Rows = Pin<Box<dyn Stream<Item = std::result::Result<FlightData, Status>> + Send>>;

/// Encodes a batch so many times, after its schema.
fn encoded(batch: RecordBatch, count: usize) -> Rows {
    let batches = std::iter::repeat_n(batch, count).map(Ok::<_, FlightError>);
    let encoder = FlightDataEncoderBuilder::new().with_max_flight_data_size(usize::MAX);
    Box::pin(encoder.build(stream::iter(batches)).map_err(Status::from))
}

/// The batch, and what was encoded of it.
struct Content {
    batch: RecordBatch,
    /// The message of its schema.
    schema: FlightData,
    /// The message of its rows.
    rows: FlightData,
    /// The answer that prepares a statement, still without a handle.
    prepared: ActionCreatePreparedStatementResult,
}

impl Content {
    async fn new(batch: RecordBatch) -> Result<Self> {
        let messages = encoded(batch.clone(), 1).try_collect::<Vec<_>>().await;
        let messages = messages.map_err(|status| Error::failed(format!("the batch cannot be encoded: {status}")))?;
        let messages = <[FlightData; 2]>::try_from(messages);
        let [schema, rows] = messages.map_err(|_| Error::failed("the batch is not one message"))?;
        let IpcMessage(dataset_schema) =
            IpcMessage::try_from(SchemaAsIpc::new(&batch.schema(), &IpcWriteOptions::default()))?;
        let prepared = ActionCreatePreparedStatementResult { dataset_schema, ..Default::default() };
        Ok(Self { batch, schema, rows, prepared })
    }

    fn answer(&self, order: Order) -> Rows {
        match order {
            Order::Batches(count) => encoded(self.batch.clone(), count),
            Order::Messages(count) => {
                let rows = std::iter::repeat_n(self.rows.clone(), count);
                Box::pin(stream::iter(std::iter::once(self.schema.clone()).chain(rows).map(Ok)))
            }
        }
    }
}

/// The service. The handle of a prepared statement is its text.
struct Batches(Arc<Content>);

#[tonic::async_trait]
impl FlightSqlService for Batches {
    type FlightService = Self;

    async fn do_action_create_prepared_statement(
        &self,
        statement: ActionCreatePreparedStatementRequest,
        _request: Request<Action>,
    ) -> std::result::Result<ActionCreatePreparedStatementResult, Status> {
        let prepared = self.0.prepared.clone();
        Ok(ActionCreatePreparedStatementResult { prepared_statement_handle: statement.query.into(), ..prepared })
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _request: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<FlightInfo>, Status> {
        let ticket = Ticket::new(query.as_any().encode_to_vec());
        Ok(Response::new(FlightInfo::new().with_endpoint(FlightEndpoint::new().with_ticket(ticket))))
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _request: Request<Ticket>,
    ) -> std::result::Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        let order = std::str::from_utf8(&query.prepared_statement_handle).ok().and_then(Order::parse);
        let order = order.ok_or_else(|| Status::invalid_argument("ask for 'batches N' or 'messages N'"))?;
        Ok(Response::new(self.0.answer(order)))
    }

    async fn do_action_close_prepared_statement(
        &self,
        _query: ActionClosePreparedStatementRequest,
        _request: Request<Action>,
    ) -> std::result::Result<(), Status> {
        Ok(())
    }

    async fn register_sql_info(&self, _id: i32, _info: &SqlInfo) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;
    use crate::side::reader::Reader;

    fn batch() -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] = [
            ("i", Arc::new(Int64Array::from_iter_values(0..1000))),
            ("s", Arc::new(StringArray::from_iter_values((0..1000).map(|i| format!("text {i}"))))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn orders_say_how_often_and_whether_it_is_encoded_anew() {
        assert_eq!(Order::parse("batches 12"), Some(Order::Batches(12)));
        assert_eq!(Order::parse("messages 0"), Some(Order::Messages(0)));
        for wrong in ["", "batches", "batches x", "rows 1", "SELECT 1"] {
            assert_eq!(Order::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn readers_get_every_byte_of_every_batch_on_all_connections() {
        let mut server = Bare::serve(Runtime::new().unwrap(), batch()).unwrap();
        let about = server.run("about").unwrap();
        let mut reader = Reader::new(&format!("grpc://127.0.0.1:{}", about.value("port")), 2).unwrap();
        let bytes = decoded_bytes(&batch()).unwrap() as f64;
        assert_eq!((about.value("rows"), about.value("bytes")), (1000.0, bytes));
        for kind in ["batches", "messages"] {
            let read = reader.run(&format!("read 2 {kind} 5")).unwrap();
            let counts = ["rows", "batches", "bytes"].map(|name| read.value(name));
            assert_eq!(counts, [10_000.0, 10.0, 10.0 * bytes], "{kind}");
        }
        let raw = reader.run(&format!("raw 2 {} 1000001", about.value("raw_port"))).unwrap();
        assert_eq!(raw.value("bytes"), 2_000_002.0);
        assert!(reader.run("read 2 SELECT 1").is_err());
        assert!(reader.run("read 3 batches 1").is_err(), "there are two connections");
    }
}
