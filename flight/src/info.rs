//! Flight information: the schema of a command's answer, and the tickets to fetch it.
//!
//! An endpoint has no location, which means "this server"; a fixed address would break clients behind proxies. It has
//! an expiration time where its ticket can be fetched again until then, as the protocol has it.

use arrow::datatypes::SchemaRef;
use arrow_flight::{
    FlightDescriptor, FlightEndpoint, FlightInfo, Ticket,
    flight_descriptor::DescriptorType,
    sql::{Any, Command},
};
use prost::Message;
use tonic::Status;

use crate::{
    engine::TransactionId,
    error, metadata,
    metrics::{Observation, Operation},
    prepared,
    proto::set_expiration,
    schema::{schema_bytes, table_schema},
    service::{Call, Core, transaction},
    statement::{self, PlannedStatement},
};

/// The request in a descriptor.
pub(crate) enum DescriptorTarget {
    /// A Flight SQL command.
    Command(Command),
    /// A query for all rows of a table.
    Table(String),
}

/// Reads a descriptor.
pub(crate) fn descriptor_target(descriptor: &FlightDescriptor) -> Result<DescriptorTarget, Status> {
    if descriptor.r#type == DescriptorType::Path as i32 {
        return match descriptor.path.as_slice() {
            [] => Err(Status::invalid_argument("the path is empty: give table, schema.table or catalog.schema.table")),
            parts if parts.len() > 3 => Err(Status::invalid_argument("the path has more than three parts")),
            parts => Ok(DescriptorTarget::Table(select_all(parts))),
        };
    }
    let any = Any::decode(descriptor.cmd.clone()).map_err(|e| error::malformed("command", e))?;
    Ok(DescriptorTarget::Command(Command::try_from(any).map_err(|e| error::malformed("command", e))?))
}

/// Plans the request in a descriptor.
pub(crate) async fn flight_info(
    core: &Core,
    call: &Call,
    descriptor: FlightDescriptor,
    observation: &mut Observation,
) -> Result<FlightInfo, Status> {
    let planned = match descriptor_target(&descriptor)? {
        DescriptorTarget::Table(sql) => {
            observation.rename(Operation::StatementQuery);
            statement::plan_text(core, call, &sql, None).await?
        }
        DescriptorTarget::Command(Command::CommandStatementQuery(query)) => {
            observation.rename(Operation::StatementQuery);
            let transaction = transaction(query.transaction_id.as_ref())?;
            statement::plan_text(core, call, &query.query, transaction.as_ref()).await?
        }
        DescriptorTarget::Command(Command::CommandPreparedStatementQuery(query)) => {
            observation.rename(Operation::PreparedQuery);
            prepared::plan(core, call, &query.prepared_statement_handle).await?
        }
        DescriptorTarget::Command(command) => {
            observation.rename(Operation::Metadata);
            let schema = metadata::schema(&command)?.ok_or_else(|| not_a_query(&command))?;
            let tickets = vec![descriptor.cmd.to_vec()];
            PlannedStatement { schema, tickets, expires_unix_us: None, is_ordered: false }
        }
    };
    let PlannedStatement { schema, tickets, expires_unix_us, is_ordered } = planned;
    let endpoint = |ticket| {
        let mut endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket));
        if let Some(expires) = expires_unix_us {
            set_expiration(&mut endpoint, expires);
        }
        endpoint
    };
    Ok(FlightInfo {
        schema: schema_bytes(&schema)?,
        flight_descriptor: Some(descriptor),
        endpoint: tickets.into_iter().map(endpoint).collect(),
        ordered: is_ordered,
        total_records: -1,
        total_bytes: -1,
        ..FlightInfo::default()
    })
}

/// The schema of the answer to a descriptor; runs nothing.
pub(crate) async fn schema(core: &Core, call: &Call, descriptor: &FlightDescriptor) -> Result<SchemaRef, Status> {
    match descriptor_target(descriptor)? {
        DescriptorTarget::Table(sql) => statement_schema(core, call, &sql, None).await,
        DescriptorTarget::Command(Command::CommandStatementQuery(query)) => {
            let transaction = transaction(query.transaction_id.as_ref())?;
            statement_schema(core, call, &query.query, transaction.as_ref()).await
        }
        DescriptorTarget::Command(Command::CommandPreparedStatementQuery(query)) => {
            let prepared = prepared::get(&call.session, &query.prepared_statement_handle)?;
            Ok(statement::result_schema(call, prepared.statement.as_ref()))
        }
        DescriptorTarget::Command(command) => metadata::schema(&command)?.ok_or_else(|| not_a_query(&command)),
    }
}

/// One description per table whose name contains `criteria`. To read a table, a client requests the information of its
/// path.
pub(crate) async fn list_tables(core: &Core, call: &Call, criteria: &[u8]) -> Result<Vec<FlightInfo>, Status> {
    let wanted = std::str::from_utf8(criteria).map_err(|e| error::malformed("criteria", e))?;
    let mut infos = Vec::new();
    for entry in core.engine.tables(&call.session.id).await? {
        if entry.name.contains(wanted) {
            infos.push(FlightInfo {
                schema: schema_bytes(&table_schema(&entry, call.types))?,
                flight_descriptor: Some(FlightDescriptor::new_path(vec![entry.catalog, entry.schema, entry.name])),
                total_records: -1,
                total_bytes: -1,
                ..FlightInfo::default()
            });
        }
    }
    Ok(infos)
}

async fn statement_schema(
    core: &Core,
    call: &Call,
    sql: &str,
    transaction: Option<&TransactionId>,
) -> Result<SchemaRef, Status> {
    let statement = statement::prepare(core, call, sql, transaction).await?;
    Ok(statement::result_schema(call, statement.as_ref()))
}

fn select_all(parts: &[String]) -> String {
    let quoted: Vec<String> = parts.iter().map(|part| format!("\"{}\"", part.replace('"', "\"\""))).collect();
    format!("SELECT * FROM {}", quoted.join("."))
}

fn not_a_query(command: &Command) -> Status {
    match command {
        Command::CommandStatementSubstraitPlan(_) => {
            Status::unimplemented("Substrait plans are not supported: send SQL")
        }
        other => Status::invalid_argument(format!("{} is not a command that returns rows", other.type_url())),
    }
}
