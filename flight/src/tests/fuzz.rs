//! Any bytes as commands, tickets, handles and bodies of actions: decoded, and as whole calls to the service.

use std::sync::Arc;

use arrow_flight::{
    Action, Criteria, FlightDescriptor, Ticket,
    flight_service_server::FlightService,
    sql::{
        ActionBeginTransactionRequest, ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, Any,
        Command, CommandGetSqlInfo, CommandGetTables, CommandPreparedStatementQuery, CommandStatementQuery,
        ProstMessageExt, TicketStatementQuery,
    },
};
use bytes::Bytes;
use futures::StreamExt;
use prost::Message;
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;
use tonic::Request;

use super::{PEER, fake::FakeEngine};
use crate::{
    FlightOptions, FlightServer, action,
    auth::Credentials,
    connection::Connection,
    proto::{DetailedStatus, SetSessionOptionsRequest},
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
    fuzz!("Flight messages", Inputs::stateless(3_000, 2_000_000), examples, |input: &[u8]| {
        let _ = (handle_text(input), statement::row_count(input), Credentials::from_handshake(input));
        let _ = (SetSessionOptionsRequest::decode(input), DetailedStatus::decode(input));
        Any::decode(input).is_ok_and(|any| Command::try_from(any).is_ok())
    });
}

/// A service without a transport, and the connection that its calls come from.
struct Caller {
    service: Service,
    connection: Arc<Connection>,
}

impl Caller {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(Arc::clone(&self.connection));
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

#[test]
fn calls() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = FlightServer::new(Arc::new(FakeEngine::default()), FlightOptions::default());
    let core: Arc<Core> = Arc::clone(&server.core);
    let connection = Arc::new(Connection::new(Arc::clone(&core), PEER.into()));
    let caller = Caller { service: Service { core }, connection };
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
        runtime.block_on(caller.call(*kind, Bytes::copy_from_slice(body)))
    });
}
