//! Statements from text to rows.
//!
//! A query is planned when its information is asked for and starts when its ticket is fetched; it ends when the client
//! stops reading. A statement that changes data and arrives the same way runs at once, exactly once, before the answer:
//! clients open the stream of such a statement lazily or abandon it early, and the change must not be lost. Its ticket
//! holds only the number of rows.
//!
//! A client may ask for tickets that it can fetch again (`terrace-tickets: keep`). Such a ticket holds a statement that reads the table versions
//! of its planning each time ([`Statement::pinned`]); queries of which the engine cannot promise the same rows have tickets for one fetch still.
//! It may also ask for several endpoints (`terrace-endpoints`), which share the rows of one execution ([`SharedRows`]). A result that comes in
//! an order, or can be fetched again, has one.

use std::sync::{Arc, LazyLock};

use arrow::{
    array::{ArrayRef, Int64Array},
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use arrow_flight::{
    FlightData,
    sql::{ProstMessageExt, TicketStatementQuery},
};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use prost::Message;
use tonic::Status;

use crate::{
    encode::{Delivery, encode},
    endpoints::SharedRows,
    engine::{BatchStream, Statement, TransactionId},
    error,
    execution::{Execution, Executions},
    kept::{Charge, statement_bytes},
    metrics::Observation,
    schema::{WireTypes, wire_schema},
    service::{Call, Core},
    stall::end_unread,
    ticket::{Issued, Taken, Uses, handle_text},
};

/// A planned query that waits to be fetched, perhaps again.
#[derive(Clone)]
pub(crate) struct PendingQuery {
    pub(crate) rows: PendingRows,
    /// The schema that the client was told.
    pub(crate) wire: SchemaRef,
    /// What the session is charged for the plan and the parameters.
    pub(crate) charges: Vec<Arc<Charge>>,
}

/// The rows that a fetch sends.
#[derive(Clone)]
pub(crate) enum PendingRows {
    /// Those of an execution of its own; with parameters, of one per row of these.
    Own(Execution),
    /// A part of those that all endpoints share.
    Shared(Arc<SharedRows>),
}

impl PendingQuery {
    /// True when memory is free once this query is dropped: a prepared statement shares none of it, or not all.
    pub(crate) fn frees_memory(&self) -> bool {
        self.charges.iter().any(|charge| !charge.is_pinned())
    }

    /// The rows that its endpoints share, where there are several.
    pub(crate) fn shared(&self) -> Option<Arc<SharedRows>> {
        match &self.rows {
            PendingRows::Own(_) => None,
            PendingRows::Shared(rows) => Some(rows.clone()),
        }
    }
}

/// The schema and the tickets of a planned statement.
pub(crate) struct PlannedStatement {
    pub(crate) schema: SchemaRef,
    /// One for each endpoint.
    pub(crate) tickets: Vec<Vec<u8>>,
    /// Until when the ticket can be fetched again, in microseconds of Unix time; `None`: it is fetched once.
    pub(crate) expires_unix_us: Option<u64>,
    /// Whether the rows come in the order of ORDER BY.
    pub(crate) is_ordered: bool,
}

/// Schema of the answer to a statement that changes data, where the client expects rows.
static COUNT_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let schema = Schema::new(vec![Field::new("rows_affected", DataType::Int64, false)]);
    wire_schema(&schema, WireTypes::PLAIN)
});

const COUNT_PREFIX: &str = "rows-affected:";

/// Parses and checks a statement.
pub(crate) async fn prepare(
    core: &Core,
    call: &Call,
    sql: &str,
    transaction: Option<&TransactionId>,
) -> Result<Arc<dyn Statement>, Status> {
    if sql.trim().is_empty() {
        return Err(Status::invalid_argument("the statement is empty"));
    }
    Ok(core.engine.prepare(&call.session.id, transaction, sql).await?)
}

/// Schema of a statement's answer; does not run the statement.
pub(crate) fn result_schema(call: &Call, statement: &dyn Statement) -> SchemaRef {
    match statement.info().is_update {
        true => COUNT_SCHEMA.clone(),
        false => wire_schema(&statement.info().dataset_schema, call.types),
    }
}

/// Plans a query given as text, or runs a statement that changes data.
pub(crate) async fn plan_text(
    core: &Core,
    call: &Call,
    sql: &str,
    transaction: Option<&TransactionId>,
) -> Result<PlannedStatement, Status> {
    let statement = prepare(core, call, sql, transaction).await?;
    let charges = match statement.info().is_update {
        true => Vec::new(),
        false => vec![core.tickets.charge(&call.session, statement_bytes(sql))?],
    };
    plan(core, call, statement, None, charges).await
}

/// Plans a query whose memory is in `charges`, or runs a statement that changes data.
pub(crate) async fn plan(
    core: &Core,
    call: &Call,
    statement: Arc<dyn Statement>,
    parameters: Option<RecordBatch>,
    charges: Vec<Arc<Charge>>,
) -> Result<PlannedStatement, Status> {
    if statement.info().is_update {
        let rows = statement.update(parameters).await?;
        let handle = format!("{COUNT_PREFIX}{rows}");
        let ticket = TicketStatementQuery { statement_handle: handle.into() }.as_any().encode_to_vec();
        let schema = COUNT_SCHEMA.clone();
        return Ok(PlannedStatement { schema, tickets: vec![ticket], expires_unix_us: None, is_ordered: false });
    }
    let pinned = if call.keeps_tickets { statement.pinned().await? } else { None };
    let uses = if pinned.is_some() { Uses::Many } else { Uses::One };
    let statement = pinned.unwrap_or(statement);
    let schema = match &parameters {
        Some(rows) if rows.num_rows() > 0 => statement.bound_schema(&rows.slice(0, 1)).await?,
        _ => statement.info().dataset_schema.clone(),
    };
    let wire = wire_schema(&schema, call.types);
    let is_ordered = statement.info().is_ordered;
    let endpoints = if is_ordered || uses == Uses::Many { 1 } else { call.endpoints };
    let execution = Execution { statement, parameters, texts: call.types.texts() };
    let rows = match endpoints {
        1 => PendingRows::Own(execution),
        _ => {
            let executions = Arc::<Executions>::default();
            PendingRows::Shared(SharedRows::new(all_rows(execution, executions.clone()), executions))
        }
    };
    let query = PendingQuery { rows, wire: wire.clone(), charges };
    let Issued { tickets, expires_unix_us } = core.tickets.issue(&call.session, query, uses, endpoints);
    Ok(PlannedStatement { schema: wire, tickets, expires_unix_us, is_ordered })
}

/// Runs a statement that changes data and returns the number of rows.
pub(crate) async fn update(statement: &dyn Statement, parameters: Option<RecordBatch>) -> Result<i64, Status> {
    if !statement.info().is_update {
        return Err(Status::invalid_argument("the statement returns rows: run it as a query, not as an update"));
    }
    let rows = statement.update(parameters).await?;
    Ok(i64::try_from(rows).unwrap_or(i64::MAX))
}

/// The row count that a ticket holds, of a statement that has run when it was planned.
pub(crate) fn row_count(handle: &[u8]) -> Option<i64> {
    std::str::from_utf8(handle).ok()?.strip_prefix(COUNT_PREFIX)?.parse().ok()
}

/// Answers with a row count.
pub(crate) fn fetch_count(
    rows: i64,
    observation: Observation,
    delivery: &Delivery,
) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
    let batch = one_column(COUNT_SCHEMA.clone(), Arc::new(Int64Array::from(vec![rows])))?;
    Ok(encode(COUNT_SCHEMA.clone(), batch, delivery, observation, None))
}

/// Starts the query of a ticket.
pub(crate) async fn fetch(
    core: &Core,
    call: &Call,
    handle: &[u8],
    mut observation: Observation,
    delivery: &Delivery,
) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
    let handle = handle_text(handle)?;
    if handle.starts_with(COUNT_PREFIX) {
        return Err(Status::invalid_argument("this server did not issue the ticket"));
    }
    let Taken { query, executions, running } = core.tickets.take(handle, &call.session)?;
    let shared = query.shared();
    let started = start(query.rows, executions).await;
    let batches = observation.note(started)?;
    let messages = encode(query.wire, batches, delivery, observation, Some(running));
    Ok(match core.options.stall_timeout {
        Some(timeout) => end_unread(messages, timeout, core.metrics.clone(), shared),
        None => messages,
    })
}

/// Starts a query, unless its rows are shared, and returns the rows.
async fn start(rows: PendingRows, executions: Arc<Executions>) -> Result<BatchStream, Status> {
    let execution = match rows {
        PendingRows::Own(execution) => execution,
        PendingRows::Shared(rows) => return Ok(rows.open().boxed()),
    };
    if execution.parameters.as_ref().is_some_and(|rows| rows.num_rows() != 1) {
        return Ok(all_rows(execution, executions));
    }
    Ok(executions.start(execution).await?)
}

/// The rows of a query that starts when they are asked for; with parameters it runs once per row of these, one after the other.
fn all_rows(execution: Execution, executions: Arc<Executions>) -> BatchStream {
    let runs = execution.parameters.as_ref().map_or(1, RecordBatch::num_rows);
    stream::iter(0..runs)
        .then(move |row| {
            let executions = executions.clone();
            let parameters = execution.parameters.as_ref().map(|rows| rows.slice(row, 1));
            let execution = Execution { parameters, ..execution.clone() };
            async move { executions.start(execution).await }
        })
        .try_flatten()
        .boxed()
}

fn one_column(schema: SchemaRef, column: ArrayRef) -> Result<BatchStream, Status> {
    let batch = RecordBatch::try_new(schema, vec![column]).map_err(error::encoding)?;
    Ok(stream::iter([Ok(batch)]).boxed())
}
