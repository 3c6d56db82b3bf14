//! A bare arrow-flight server with canned answers: measures the cost of the protocol, its library and a driver.
//!
//! It answers any statement with one row: with two columns where the text has a WHERE, else with a number. Schemas,
//! tickets and batches are encoded once, before it serves.

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    CommandPreparedStatementQuery, CommandStatementQuery, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo,
    TicketStatementQuery,
};
use arrow_flight::{Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::{Side, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// The side: it reports its port, and serves until its process ends.
pub struct Canned {
    _runtime: Runtime,
    port: u16,
}

impl Canned {
    /// Serves on any port of this machine.
    pub fn start() -> Result<Self> {
        let runtime = tokio::runtime::Runtime::new().map_err(Error::io("cannot start a runtime"))?;
        let answers = runtime.block_on(Answers::new())?;
        let inside = runtime.enter();
        let listening = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).map_err(Error::io("cannot listen"))?;
        let port = listening.local_addr().map_err(Error::io("cannot tell where it listens"))?.port();
        let service = FlightServiceServer::new(answers);
        let serving = Server::builder().add_service(service).serve_with_incoming(listening.with_nodelay(Some(true)));
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                eprintln!("the bare server ended: {error}");
            }
        });
        drop(inside);
        Ok(Self { _runtime: runtime, port })
    }
}

impl Side for Canned {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match op {
            "port" => Ok(Sample::default().with("port", f64::from(self.port))),
            _ => Err(unknown(op)),
        }
    }
}

/// One answer, encoded.
#[derive(Debug)]
struct Answer {
    /// Its name in tickets and prepared statements.
    handle: &'static str,
    info: FlightInfo,
    prepared_info: FlightInfo,
    prepared: ActionCreatePreparedStatementResult,
    messages: Vec<FlightData>,
}

impl Answer {
    async fn new(handle: &'static str, batch: RecordBatch, parameters: &Schema) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| Error::failed(format!("the canned answer: {error}"));
        let schema = batch.schema();
        let ticket = TicketStatementQuery { statement_handle: handle.into() }.as_any().encode_to_vec();
        let again = CommandPreparedStatementQuery { prepared_statement_handle: handle.into() }.as_any().encode_to_vec();
        let info = |ticket: Vec<u8>| {
            let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket));
            Ok::<_, Error>(FlightInfo::new().try_with_schema(&schema)?.with_endpoint(endpoint).with_total_records(1))
        };
        let encoded = |schema: &Schema| {
            let message = IpcMessage::try_from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
            message.map(|IpcMessage(bytes)| bytes)
        };
        let prepared = ActionCreatePreparedStatementResult {
            prepared_statement_handle: handle.into(),
            dataset_schema: encoded(&schema)?,
            parameter_schema: encoded(parameters)?,
        };
        let messages = FlightDataEncoderBuilder::new().build(stream::iter([Ok(batch)])).try_collect().await;
        let messages = messages.map_err(|error| failed(&error))?;
        Ok(Self { handle, info: info(ticket)?, prepared_info: info(again)?, prepared, messages })
    }
}

/// The service.
#[derive(Debug, Clone)]
struct Answers(Arc<[Answer; 2]>);

type Rows = Pin<Box<dyn Stream<Item = std::result::Result<FlightData, Status>> + Send>>;

impl Answers {
    async fn new() -> Result<Self> {
        let number = RecordBatch::try_from_iter([("Int64(1)", Arc::new(Int64Array::from(vec![1])) as _)])?;
        let record = RecordBatch::try_from_iter([
            ("k", Arc::new(Int64Array::from(vec![1])) as _),
            ("v", Arc::new(StringArray::from(vec!["value of 1"])) as _),
        ])?;
        let key = Schema::new(vec![Field::new("$1", DataType::Int64, true)]);
        let number = Answer::new("number", number, &Schema::empty()).await?;
        Ok(Self(Arc::new([number, Answer::new("record", record, &key).await?])))
    }

    fn to_text(&self, sql: &str) -> &Answer {
        let [number, record] = &*self.0;
        if sql.contains("WHERE") { record } else { number }
    }

    fn to_handle(&self, handle: &[u8]) -> &Answer {
        let [number, record] = &*self.0;
        if handle == record.handle.as_bytes() { record } else { number }
    }

    fn rows(&self, handle: &[u8]) -> Response<Rows> {
        let messages = self.to_handle(handle).messages.clone();
        Response::new(Box::pin(stream::iter(messages.into_iter().map(Ok))))
    }
}

#[tonic::async_trait]
impl FlightSqlService for Answers {
    type FlightService = Self;

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        _request: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<FlightInfo>, Status> {
        Ok(Response::new(self.to_text(&query.query).info.clone()))
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _request: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<FlightInfo>, Status> {
        Ok(Response::new(self.to_handle(&query.prepared_statement_handle).prepared_info.clone()))
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        _request: Request<Ticket>,
    ) -> std::result::Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        Ok(self.rows(&ticket.statement_handle))
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _request: Request<Ticket>,
    ) -> std::result::Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        Ok(self.rows(&query.prepared_statement_handle))
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> std::result::Result<DoPutPreparedStatementResult, Status> {
        let mut parameters = request.into_inner();
        while let Some(message) = parameters.next().await {
            message?;
        }
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(query.prepared_statement_handle) })
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        _request: Request<Action>,
    ) -> std::result::Result<ActionCreatePreparedStatementResult, Status> {
        Ok(self.to_text(&query.query).prepared.clone())
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
    use terrace_server::client::{Client, Connection};

    use super::*;

    #[test]
    fn a_client_gets_one_row_whatever_it_asks() {
        let server = Canned::start().unwrap();
        let client = Runtime::new().unwrap();
        let url = format!("grpc://127.0.0.1:{}", server.port);
        let rows = client.block_on(async {
            let mut client = Client::connect(&Connection::to(url)).await.unwrap();
            let number = client.query("SELECT 1").await.unwrap();
            let record = client.query("SELECT k, v FROM t WHERE k = 1").await.unwrap();
            [number, record].map(|batches| (batches[0].num_rows(), batches[0].num_columns()))
        });
        assert_eq!(rows, [(1, 1), (1, 2)]);
    }
}
