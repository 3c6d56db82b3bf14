//! Actions: prepared statements, cancelling, renewal of tickets, session options.
//!
//! Flight SQL actions travel inside an `Any`, the actions of plain Flight do not.

use std::collections::{HashMap, HashSet};

use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo,
    RenewFlightEndpointRequest, Ticket,
    sql::{
        ActionBeginSavepointRequest, ActionBeginSavepointResult, ActionBeginTransactionResult,
        ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
        ActionCreatePreparedStatementRequest, ActionEndSavepointRequest, ActionEndTransactionRequest, Any, Command,
        EndTransaction, ProstMessageExt,
    },
};
use bytes::Bytes;
use prost::Message;
use tonic::Status;

use crate::{
    engine::{EngineError, EngineResult, ErrorKind, OptionKind, TransactionId},
    error,
    execution::was_cancelled,
    metrics::{Observation, Operation},
    prepared,
    proto::{
        CreatePreparedStatementResult, GetSessionOptionsResult, OptionValue, SessionOptionError,
        SessionOptionErrorValue, SessionOptionValue, SetSessionOptionsRequest, SetSessionOptionsResult, set_expiration,
    },
    service::{Call, Core, transaction},
    ticket::handle_text,
};

/// The action that ends a session; the only action that does not need one.
pub(crate) const CLOSE_SESSION: &str = "CloseSession";

/// The action that closes a prepared statement.
pub(crate) const CLOSE_PREPARED: &str = "ClosePreparedStatement";

const ACTIONS: [(&str, &str); 12] = [
    ("CreatePreparedStatement", "Prepares a statement."),
    (CLOSE_PREPARED, "Closes a prepared statement."),
    ("BeginTransaction", "Begins a transaction."),
    ("EndTransaction", "Commits a transaction or rolls it back."),
    ("BeginSavepoint", "Sets a savepoint in a transaction."),
    ("EndSavepoint", "Releases a savepoint or rolls back to it."),
    ("CancelQuery", "Cancels a query by its Flight information."),
    ("CancelFlightInfo", "Cancels a query by its Flight information."),
    ("RenewFlightEndpoint", "Extends the time for which a result can be fetched again."),
    ("SetSessionOptions", "Sets options of the session."),
    ("GetSessionOptions", "Returns the options of the session."),
    (CLOSE_SESSION, "Ends the session and frees what it holds."),
];

// Values of `ActionEndSavepointRequest::action`; `arrow-flight` does not export the enumeration.
const RELEASE_SAVEPOINT: i32 = 1;
const ROLL_BACK_TO_SAVEPOINT: i32 = 2;

const CREATE_RESULT_URL: &str = "type.googleapis.com/arrow.flight.protocol.sql.ActionCreatePreparedStatementResult";

/// The actions that the service offers.
pub(crate) fn list() -> Vec<ActionType> {
    ACTIONS
        .into_iter()
        .map(|(name, description)| ActionType { r#type: name.to_owned(), description: description.to_owned() })
        .collect()
}

/// Runs one action; returns the body of its result, if it has one.
pub(crate) async fn dispatch(
    core: &Core,
    call: &Call,
    action: Action,
    observation: &mut Observation,
) -> Result<Option<Bytes>, Status> {
    match action.r#type.as_str() {
        "CreatePreparedStatement" => {
            observation.rename(Operation::Prepare);
            let request: ActionCreatePreparedStatementRequest = unpack(&action.body)?;
            let transaction = transaction(request.transaction_id.as_ref())?;
            let result = prepared::create(core, call, &request.query, transaction.as_ref()).await?;
            Ok(Some(pack_created(&result)))
        }
        CLOSE_PREPARED => {
            observation.rename(Operation::ClosePrepared);
            let request: ActionClosePreparedStatementRequest = unpack(&action.body)?;
            prepared::close(&call.session, &request.prepared_statement_handle)?;
            Ok(None)
        }
        "CancelQuery" => {
            observation.rename(Operation::Cancel);
            let request: ActionCancelQueryRequest = unpack(&action.body)?;
            let info = FlightInfo::decode(request.info).map_err(|e| error::malformed("flight information", e))?;
            // The two enumerations have the same numbers.
            let result = ActionCancelQueryResult { result: cancel(core, call, &info).await? as i32 };
            Ok(Some(result.as_any().encode_to_vec().into()))
        }
        "CancelFlightInfo" => {
            observation.rename(Operation::Cancel);
            let request =
                CancelFlightInfoRequest::decode(action.body).map_err(|e| error::malformed("cancel request", e))?;
            let info =
                request.info.ok_or_else(|| Status::invalid_argument("the cancel request does not name a query"))?;
            let result = CancelFlightInfoResult { status: cancel(core, call, &info).await? as i32 };
            Ok(Some(result.encode_to_vec().into()))
        }
        "RenewFlightEndpoint" => renew(core, call, action.body).map(Some),
        "SetSessionOptions" => {
            observation.rename(Operation::Session);
            set_options(core, call, action.body).await.map(Some)
        }
        "GetSessionOptions" => {
            observation.rename(Operation::Session);
            let options = core.engine.session_options(&call.session.id)?;
            let session_options = typed_options(core, call, options);
            Ok(Some(GetSessionOptionsResult { session_options }.encode_to_vec().into()))
        }
        "BeginTransaction" => {
            observation.rename(Operation::Transaction);
            let id = core.engine.begin_transaction(&call.session.id)?;
            let result = ActionBeginTransactionResult { transaction_id: id.0.into() };
            Ok(Some(result.as_any().encode_to_vec().into()))
        }
        "EndTransaction" => {
            observation.rename(Operation::Transaction);
            let request: ActionEndTransactionRequest = unpack(&action.body)?;
            let commit = match EndTransaction::try_from(request.action) {
                Ok(EndTransaction::Commit) => true,
                Ok(EndTransaction::Rollback) => false,
                _ => return Err(Status::invalid_argument("a transaction must end with commit or rollback")),
            };
            let id = required_transaction(&request.transaction_id)?;
            core.engine.end_transaction(&call.session.id, &id, commit).await?;
            Ok(None)
        }
        "BeginSavepoint" => {
            observation.rename(Operation::Transaction);
            let request: ActionBeginSavepointRequest = unpack(&action.body)?;
            let id = required_transaction(&request.transaction_id)?;
            core.engine.begin_savepoint(&call.session.id, &id, &request.name)?;
            let result = ActionBeginSavepointResult { savepoint_id: format!("{}/{}", id.0, request.name).into() };
            Ok(Some(result.as_any().encode_to_vec().into()))
        }
        "EndSavepoint" => {
            observation.rename(Operation::Transaction);
            let request: ActionEndSavepointRequest = unpack(&action.body)?;
            let roll_back = match request.action {
                RELEASE_SAVEPOINT => false,
                ROLL_BACK_TO_SAVEPOINT => true,
                _ => return Err(Status::invalid_argument("a savepoint must end with release or rollback")),
            };
            let full_id = required_transaction(&request.savepoint_id)?.0;
            let (id, name) = full_id
                .split_once('/')
                .ok_or_else(|| Status::invalid_argument("this server did not issue the savepoint"))?;
            let id = TransactionId(id.to_owned());
            core.engine.end_savepoint(&call.session.id, &id, name, roll_back).await?;
            Ok(None)
        }
        "CreatePreparedSubstraitPlan" => Err(Status::unimplemented("Substrait plans are not supported: send SQL")),
        other => Err(Status::unimplemented(format!("action '{other}' does not exist; ListActions lists the actions"))),
    }
}

/// The transaction or savepoint that a request must name.
fn required_transaction(id: &Bytes) -> Result<TransactionId, Status> {
    transaction(Some(id))?.ok_or_else(|| Status::invalid_argument("the request does not name a transaction"))
}

async fn cancel(core: &Core, call: &Call, info: &FlightInfo) -> Result<CancelStatus, Status> {
    let mut status = CancelStatus::NotCancellable;
    // Endpoints may share a statement.
    let mut told = HashSet::new();
    for ticket in info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref()) {
        let Some(handle) = statement_handle(ticket)? else { continue };
        let may_cancel_all = || core.sessions.may_cancel_all(&call.session.principal);
        let target = core.tickets.cancel(handle_text(&handle)?, &call.session, may_cancel_all);
        if target.was_removed {
            status = CancelStatus::Cancelled;
        }
        for run in target.running {
            let has_ended = match run.executions.cancel() {
                Some(statement) => {
                    told.insert(statement.clone()) && core.engine.cancel(&call.session.id, &statement)?
                }
                // Its statement gets no name any more.
                None => true,
            };
            if has_ended {
                status = CancelStatus::Cancelled;
            }
        }
        if let Some(rows) = target.shared {
            rows.end(was_cancelled());
        }
    }
    Ok(status)
}

/// Renews the ticket of an endpoint; returns the endpoint with its new expiration time.
fn renew(core: &Core, call: &Call, body: Bytes) -> Result<Bytes, Status> {
    let request = RenewFlightEndpointRequest::decode(body).map_err(|e| error::malformed("renewal", e))?;
    let mut endpoint =
        request.endpoint.ok_or_else(|| Status::invalid_argument("the renewal does not name an endpoint"))?;
    let ticket =
        endpoint.ticket.as_ref().ok_or_else(|| Status::invalid_argument("the endpoint does not have a ticket"))?;
    let handle = statement_handle(ticket)?
        .ok_or_else(|| Status::invalid_argument("the ticket names a command, which does not expire"))?;
    let expires = core.tickets.renew(handle_text(&handle)?, &call.session)?;
    set_expiration(&mut endpoint, expires);
    Ok(endpoint.encode_to_vec().into())
}

/// The handle of the query that a ticket names; `None` for the ticket of another command.
fn statement_handle(ticket: &Ticket) -> Result<Option<Bytes>, Status> {
    let any = Any::decode(ticket.ticket.clone()).map_err(|e| error::malformed("ticket", e))?;
    Ok(match Command::try_from(any) {
        Ok(Command::TicketStatementQuery(query)) => Some(query.statement_handle),
        _ => None,
    })
}

async fn set_options(core: &Core, call: &Call, body: Bytes) -> Result<Bytes, Status> {
    let request = SetSessionOptionsRequest::decode(body).map_err(|e| error::malformed("session options", e))?;
    let mut errors = HashMap::new();
    for (name, value) in request.session_options {
        let set = set_option(core, call, &name, &value);
        if set.is_ok() {
            // Bounded: the engine knows the names of all options.
            call.session.options.lock().insert(name.to_ascii_lowercase(), value);
        }
        if let Err(failed) = set {
            let reason = match failed.kind {
                ErrorKind::NotFound => SessionOptionErrorValue::InvalidName,
                ErrorKind::InvalidArgument => SessionOptionErrorValue::InvalidValue,
                _ => SessionOptionErrorValue::Error,
            };
            errors.insert(name, SessionOptionError { value: reason as i32 });
        }
    }
    Ok(SetSessionOptionsResult { errors }.encode_to_vec().into())
}

/// Sets an option, or with a value of no type returns it to its default. Text is taken for all options, as SQL writes it, and other values
/// for options of their type.
fn set_option(core: &Core, call: &Call, name: &str, value: &SessionOptionValue) -> EngineResult<()> {
    let session = &call.session.id;
    let is_right = match (&value.value, core.engine.option_kind(session, name)?) {
        (None | Some(OptionValue::Text(_)), _)
        | (Some(OptionValue::Bool(_)), OptionKind::Bool | OptionKind::Unknown)
        | (Some(OptionValue::Integer(_)), OptionKind::Integer | OptionKind::Double | OptionKind::Unknown) => true,
        (Some(OptionValue::Double(number)), OptionKind::Double | OptionKind::Unknown) => number.is_finite(),
        // No option takes a list.
        _ => false,
    };
    if !is_right {
        let message = format!("the value has another type than option '{name}'");
        return Err(EngineError::new(ErrorKind::InvalidArgument, message));
    }
    core.engine.set_session_option(session, name, value.clone().into_text().as_deref())
}

/// The options of the session. An option that still has the value that the client set keeps the client's type; all
/// others have that of the option.
fn typed_options(core: &Core, call: &Call, options: HashMap<String, String>) -> HashMap<String, SessionOptionValue> {
    let set = call.session.options.lock();
    let typed = options.into_iter().map(|(name, text)| {
        let same = |value: &&SessionOptionValue| (*value).clone().into_text().as_deref() == Some(text.as_str());
        let value = set.get(&name.to_ascii_lowercase()).filter(same).cloned();
        let kind = || core.engine.option_kind(&call.session.id, &name).unwrap_or(OptionKind::Unknown);
        let value = value.unwrap_or_else(|| typed_value(kind(), text));
        (name, value)
    });
    typed.collect()
}

/// A value of the engine in the type of its option.
fn typed_value(kind: OptionKind, text: String) -> SessionOptionValue {
    let typed = match kind {
        OptionKind::Bool => text.parse::<bool>().ok().map(OptionValue::Bool),
        OptionKind::Integer => text.parse::<i64>().ok().map(OptionValue::Integer),
        OptionKind::Double => text.parse::<f64>().ok().map(OptionValue::Double),
        OptionKind::Text | OptionKind::Unknown => None,
    };
    typed.map_or_else(|| SessionOptionValue::text(text), |value| SessionOptionValue { value: Some(value) })
}

fn pack_created(result: &CreatePreparedStatementResult) -> Bytes {
    let any = Any { type_url: CREATE_RESULT_URL.to_owned(), value: result.encode_to_vec().into() };
    any.encode_to_vec().into()
}

fn unpack<M: ProstMessageExt + prost::Message>(body: &Bytes) -> Result<M, Status> {
    let any = Any::decode(body.clone()).map_err(|e| error::malformed("action", e))?;
    any.unpack::<M>().map_err(|e| error::malformed("action", e))?.ok_or_else(|| {
        Status::invalid_argument(format!("the action carries a {} instead of its request", any.type_url))
    })
}
