//! The Flight service: every remote procedure.
//!
//! A call is admitted, gets its session, is counted, and goes to the module that owns its command. This is our own
//! implementation of `FlightService`: the ready-made Flight SQL dispatch knows neither `is_update` nor schemas of
//! commands, and drops results of some actions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_server::FlightService,
    sql::{Any, Command},
};
use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use prost::Message;
use tonic::{Code, Extensions, Request, Response, Status, Streaming, metadata::MetadataMap};

use crate::{
    action,
    auth::Credentials,
    bodies::Bodies,
    encode::{Delivery, encode},
    endpoints::wanted_endpoints,
    engine::{Engine, TransactionId},
    error, info,
    kept::{Kept, KeptLimits},
    metadata,
    metrics::{FlightMetrics, Observation, Operation},
    options::FlightOptions,
    proto::{CloseSessionResult, CloseSessionStatus},
    put::{self, Put},
    receive::ReceiveBudget,
    schema::{WireTypes, schema_bytes},
    session::{Session, Sessions},
    statement,
    ticket::Tickets,
    write_buffer::SendBudget,
};

/// Time after which a client that met a stopping server may connect again.
const RECONNECT_DELAY: Duration = Duration::from_secs(5);

/// The state that all calls share.
pub(crate) struct Core {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) options: FlightOptions,
    pub(crate) sessions: Sessions,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) metrics: Arc<FlightMetrics>,
    pub(crate) receiving: Arc<ReceiveBudget>,
    pub(crate) sending: Arc<SendBudget>,
    /// Set when the server stops: it refuses new calls.
    pub(crate) draining: AtomicBool,
}

/// One admitted call.
pub(crate) struct Call {
    pub(crate) session: Arc<Session>,
    /// The types that its client takes.
    pub(crate) types: WireTypes,
    /// Whether its client wants to fetch results again, by the header `terrace-tickets: keep`.
    pub(crate) keeps_tickets: bool,
    /// The most endpoints that its client wants for a result, by the header `terrace-endpoints`.
    pub(crate) endpoints: usize,
}

impl Core {
    pub(crate) fn new(engine: Arc<dyn Engine>, options: FlightOptions) -> Self {
        let metrics = Arc::new(FlightMetrics::default());
        let limits = KeptLimits {
            per_session: options.max_kept_bytes_per_session,
            per_user: options.max_kept_bytes_per_user,
            all: options.max_kept_bytes,
        };
        let kept = Kept::new(limits, metrics.clone());
        let tickets = Arc::new(Tickets::new(options.ticket_ttl, options.max_tickets, Arc::new(kept)));
        let sessions = Sessions::new(engine.clone(), tickets.clone(), metrics.clone(), &options);
        let receiving = ReceiveBudget::new(options.max_received_bytes, metrics.clone(), options.memory_short.clone());
        let sending = SendBudget::new(options.max_unsent_bytes);
        Self { engine, options, sessions, tickets, metrics, receiving, sending, draining: AtomicBool::new(false) }
    }

    async fn admit(&self, metadata: &MetadataMap, extensions: &Extensions) -> Result<Call, Status> {
        self.check_open()?;
        let session = self.sessions.resolve(metadata, extensions).await?;
        let keeps_tickets = metadata.get("terrace-tickets").is_some_and(|value| value.as_bytes() == b"keep");
        let endpoints = wanted_endpoints(metadata)?;
        Ok(Call { session, types: WireTypes::from_metadata(metadata)?, keeps_tickets, endpoints })
    }

    fn check_open(&self) -> Result<(), Status> {
        match self.draining.load(Relaxed) {
            true => Err(error::retry_later(
                Code::Unavailable,
                "the server is stopping: connect again later",
                RECONNECT_DELAY,
            )),
            false => Ok(()),
        }
    }
}

/// The transaction that a call names; `None` when it names none.
pub(crate) fn transaction(id: Option<&Bytes>) -> Result<Option<TransactionId>, Status> {
    let Some(id) = id.filter(|id| !id.is_empty()) else { return Ok(None) };
    let text = std::str::from_utf8(id).map_err(|e| error::malformed("transaction", e))?;
    Ok(Some(TransactionId(text.to_owned())))
}

/// The service as the transport sees it.
pub(crate) struct Service {
    pub(crate) core: Arc<Core>,
}

type Answer<T> = Result<Response<BoxStream<'static, Result<T, Status>>>, Status>;

fn answer<T: Send + 'static>(items: Vec<T>) -> Answer<T> {
    Ok(Response::new(stream::iter(items.into_iter().map(Ok)).boxed()))
}

impl Service {
    async fn log_in(&self, request: Request<Streaming<HandshakeRequest>>) -> Result<String, Status> {
        self.core.check_open()?;
        let (metadata, extensions, mut messages) = request.into_parts();
        let credentials = match Credentials::from_metadata(&metadata)? {
            Credentials::None => match messages.message().await? {
                Some(message) => Credentials::from_handshake(&message.payload)?,
                None => Credentials::None,
            },
            found => found,
        };
        self.core.sessions.log_in(&credentials, &extensions).await
    }

    async fn plan(
        &self,
        request: Request<FlightDescriptor>,
        observation: &mut Observation,
    ) -> Result<FlightInfo, Status> {
        let (metadata, extensions, descriptor) = request.into_parts();
        let call = self.core.admit(&metadata, &extensions).await?;
        info::flight_info(&self.core, &call, descriptor, observation).await
    }

    async fn fetch(
        &self,
        request: Request<Ticket>,
        mut observation: Observation,
        delivery: &Delivery,
    ) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
        let (metadata, extensions, ticket) = request.into_parts();
        let command = Any::decode(ticket.ticket)
            .map_err(|e| error::malformed("ticket", e))
            .and_then(|any| Command::try_from(any).map_err(|e| error::malformed("ticket", e)));
        // A count is in the ticket itself. Whoever changed its own user is not let in any more, and gets this answer.
        if let Ok(Command::TicketStatementQuery(query)) = &command
            && let Some(rows) = statement::row_count(&query.statement_handle)
        {
            return statement::fetch_count(rows, observation, delivery);
        }
        let admitted = self.core.admit(&metadata, &extensions).await;
        let call = observation.note(admitted)?;
        match observation.note(command)? {
            Command::TicketStatementQuery(query) => {
                statement::fetch(&self.core, &call, &query.statement_handle, observation, delivery).await
            }
            command => {
                observation.rename(Operation::Metadata);
                let batch = metadata::batch(&self.core, &call, command).await;
                let batch = observation.note(batch)?;
                let batches = stream::iter([Ok(batch.clone())]).boxed();
                Ok(encode(batch.schema(), batches, delivery, observation, None))
            }
        }
    }

    async fn put(
        &self,
        request: Request<Streaming<FlightData>>,
        observation: &mut Observation,
    ) -> Result<PutResult, Status> {
        let (metadata, extensions, mut messages) = request.into_parts();
        let call = self.core.admit(&metadata, &extensions).await?;
        let bodies = extensions.get::<Bodies>().cloned().unwrap_or_default();
        let first =
            messages.next().await.transpose()?.ok_or_else(|| {
                Status::invalid_argument("the stream is empty: its first message must name a command")
            })?;
        let put = Put { first: bodies.restore(first), rest: messages, bodies };
        put::dispatch(&self.core, &call, put, observation).await
    }

    async fn run_action(
        &self,
        request: Request<Action>,
        observation: &mut Observation,
    ) -> Result<Option<Bytes>, Status> {
        let (metadata, extensions, action) = request.into_parts();
        if action.r#type == action::CLOSE_SESSION {
            observation.rename(Operation::Session);
            self.core.sessions.close_current(&metadata, &extensions).await;
            let result = CloseSessionResult { status: CloseSessionStatus::Closed as i32 };
            return Ok(Some(result.encode_to_vec().into()));
        }
        match self.core.admit(&metadata, &extensions).await {
            Ok(call) => action::dispatch(&self.core, &call, action, observation).await,
            // It ended with its session.
            Err(error) if error.code() == Code::Unauthenticated && action.r#type == action::CLOSE_PREPARED => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> Answer<HandshakeResponse> {
        let mut observation = self.core.metrics.begin(Operation::Handshake);
        let token = self.log_in(request).await;
        let token = observation.note(token)?;
        let header = format!("Bearer {token}").parse().map_err(|_| Status::internal("the token is not ASCII"))?;
        let mut response = answer(vec![HandshakeResponse { protocol_version: 0, payload: token.into() }])?;
        response.metadata_mut().insert("authorization", header);
        Ok(response)
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Answer<FlightInfo> {
        let mut observation = self.core.metrics.begin(Operation::Metadata);
        let (metadata, extensions, criteria) = request.into_parts();
        let call = self.core.admit(&metadata, &extensions).await;
        let call = observation.note(call)?;
        let infos = info::list_tables(&self.core, &call, &criteria.expression).await;
        answer(observation.note(infos)?)
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let mut observation = self.core.metrics.begin(Operation::Other);
        let info = self.plan(request, &mut observation).await;
        observation.note(info).map(Response::new)
    }

    /// Plans like `get_flight_info` and answers when the plan is complete, so a client polls once.
    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        let mut observation = self.core.metrics.begin(Operation::Other);
        let info = self.plan(request, &mut observation).await;
        let info = observation.note(info)?;
        Ok(Response::new(PollInfo { info: Some(info), progress: Some(1.0), ..PollInfo::default() }))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let mut observation = self.core.metrics.begin(Operation::GetSchema);
        let (metadata, extensions, descriptor) = request.into_parts();
        let call = self.core.admit(&metadata, &extensions).await;
        let call = observation.note(call)?;
        let schema = info::schema(&self.core, &call, &descriptor).await;
        let schema = observation.note(schema)?;
        Ok(Response::new(SchemaResult { schema: schema_bytes(&schema)? }))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Answer<FlightData> {
        let mut observation = self.core.metrics.begin(Operation::Fetch);
        let delivery = Delivery::new(self.core.options.target_message_bytes, request.metadata());
        let delivery = observation.note(delivery)?;
        let messages = self.fetch(request, observation, &delivery).await?;
        let mut response = Response::new(delivery.large.paced(messages));
        response.extensions_mut().insert(delivery.large);
        Ok(response)
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<PutResult> {
        let mut observation = self.core.metrics.begin(Operation::Other);
        let result = self.put(request, &mut observation).await;
        answer(vec![observation.note(result)?])
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<arrow_flight::Result> {
        let mut observation = self.core.metrics.begin(Operation::Other);
        let body = self.run_action(request, &mut observation).await;
        answer(observation.note(body)?.map(|body| arrow_flight::Result { body }).into_iter().collect())
    }

    async fn list_actions(&self, request: Request<Empty>) -> Answer<ActionType> {
        let _observation = self.core.metrics.begin(Operation::Other);
        let (metadata, extensions, _) = request.into_parts();
        self.core.admit(&metadata, &extensions).await?;
        answer(action::list())
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answer<FlightData> {
        Err(Status::unimplemented("DoExchange is not supported: use DoGet and DoPut"))
    }
}
