//! Prepared statements of a session: made, bound, planned, run, closed.
//!
//! Handles are random, belong to one session and are bounded in number and in bytes. Parameters bound to a query are
//! copied into its plan, so a later binding does not touch a result that is still being fetched.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parking_lot::Mutex;
use terrace_access::random_secret;
use tonic::Status;

use crate::{
    engine::{Statement, TransactionId},
    kept::{Charge, Pinned, parameter_bytes, statement_bytes},
    proto::CreatePreparedStatementResult,
    put::PutStream,
    schema::{parameter_schema, schema_bytes},
    service::{Call, Core},
    session::Session,
    statement::{self, PlannedStatement},
    ticket::handle_text,
};

/// One prepared statement.
pub(crate) struct Prepared {
    pub(crate) statement: Arc<dyn Statement>,
    bound: Mutex<Option<Bound>>,
    charge: Pinned,
}

/// Parameters bound to a prepared statement.
struct Bound {
    rows: RecordBatch,
    charge: Pinned,
}

impl Prepared {
    /// The rows bound last, with what the session is charged for them.
    fn bound(&self) -> Option<(RecordBatch, Arc<Charge>)> {
        self.bound.lock().as_ref().map(|bound| (bound.rows.clone(), bound.charge.share()))
    }
}

/// Prepares `sql` and keeps it in the session.
pub(crate) async fn create(
    core: &Core,
    call: &Call,
    sql: &str,
    transaction: Option<&TransactionId>,
) -> Result<CreatePreparedStatementResult, Status> {
    let charge = core.tickets.charge(&call.session, statement_bytes(sql))?;
    let statement = statement::prepare(core, call, sql, transaction).await?;
    let info = statement.info();
    let is_update = info.is_update;
    let dataset_schema = match is_update {
        true => Bytes::new(),
        false => schema_bytes(&statement::result_schema(call, statement.as_ref()))?,
    };
    let parameter_schema = schema_bytes(&parameter_schema(&info.parameter_schema, call.types))?;
    let handle = random_secret();
    let max = core.options.max_prepared_per_session;
    {
        let mut prepared = call.session.prepared.lock();
        if prepared.len() >= max {
            return Err(Status::resource_exhausted(format!(
                "this session has {max} prepared statements, which is the limit: close some of them"
            )));
        }
        let kept = Prepared { statement, bound: Mutex::default(), charge: Pinned::new(charge) };
        prepared.insert(handle.clone(), Arc::new(kept));
    }
    Ok(CreatePreparedStatementResult {
        prepared_statement_handle: handle.into(),
        dataset_schema,
        parameter_schema,
        is_update: Some(is_update),
    })
}

/// Closes a prepared statement; closing it twice does nothing.
pub(crate) fn close(session: &Session, handle: &[u8]) -> Result<(), Status> {
    session.prepared.lock().remove(handle_text(handle)?);
    Ok(())
}

/// Finds a prepared statement of this session by its handle.
pub(crate) fn get(session: &Session, handle: &[u8]) -> Result<Arc<Prepared>, Status> {
    session
        .prepared
        .lock()
        .get(handle_text(handle)?)
        .cloned()
        .ok_or_else(|| Status::not_found("the prepared statement is unknown or closed: prepare it again"))
}

/// Binds the parameters that `stream` carries.
pub(crate) async fn bind(core: &Core, call: &Call, handle: &[u8], stream: PutStream) -> Result<(), Status> {
    let prepared = get(&call.session, handle)?;
    let parameters = stream.read_parameters(core.options.max_parameter_bytes).await?;
    check(prepared.statement.as_ref(), parameters.as_ref())?;
    // The new rows take the place of the old ones, also in the account.
    *prepared.bound.lock() = None;
    let bound = match parameters {
        Some(rows) => {
            let charge = core.tickets.charge(&call.session, parameter_bytes(&rows))?;
            Some(Bound { rows, charge: Pinned::new(charge) })
        }
        None => None,
    };
    *prepared.bound.lock() = bound;
    Ok(())
}

/// Plans a prepared query with the parameters bound to it.
pub(crate) async fn plan(core: &Core, call: &Call, handle: &[u8]) -> Result<PlannedStatement, Status> {
    let prepared = get(&call.session, handle)?;
    let mut charges = vec![prepared.charge.share()];
    let parameters = prepared.bound().map(|(rows, charge)| {
        charges.push(charge);
        rows
    });
    statement::plan(core, call, prepared.statement.clone(), parameters, charges).await
}

/// Runs a prepared update once per row of the parameters in `stream`, or with those bound before.
pub(crate) async fn update(core: &Core, call: &Call, handle: &[u8], stream: PutStream) -> Result<i64, Status> {
    let prepared = get(&call.session, handle)?;
    let sent = stream.read_parameters(core.options.max_parameter_bytes).await?;
    check(prepared.statement.as_ref(), sent.as_ref())?;
    let parameters = sent.or_else(|| prepared.bound().map(|(rows, _)| rows));
    statement::update(prepared.statement.as_ref(), parameters).await
}

fn check(statement: &dyn Statement, parameters: Option<&RecordBatch>) -> Result<(), Status> {
    let Some(parameters) = parameters else { return Ok(()) };
    let expected = statement.info().parameter_schema.fields().len();
    let given = parameters.num_columns();
    match expected == given {
        true => Ok(()),
        false => {
            Err(Status::invalid_argument(format!("the statement has {expected} parameters, but {given} were bound")))
        }
    }
}
