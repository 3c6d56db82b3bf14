//! Bulk ingest: a stream of rows becomes a table, or part of one, all or nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use arrow_flight::sql::{CommandStatementIngest, TableExistsOption, TableNotExistOption};
use futures::{StreamExt, TryStreamExt};
use tonic::Status;

use crate::{
    engine::{IfExists, IfNotExists, IngestTarget},
    metrics::Observation,
    put::PutStream,
    service::{Call, Core, transaction},
};

/// Stores the rows of `stream`; returns their number.
pub(crate) async fn ingest(
    core: &Core,
    call: &Call,
    command: CommandStatementIngest,
    mut stream: PutStream,
    observation: &Observation,
) -> Result<i64, Status> {
    let transaction = transaction(command.transaction_id.as_ref())?;
    let target = target(command)?;
    let schema = stream
        .schema()
        .await?
        .ok_or_else(|| Status::invalid_argument("the stream is empty: it must carry at least a schema"))?;
    let bytes = Arc::new(AtomicU64::new(0));
    let counter = bytes.clone();
    let batches = stream
        .batches()
        .inspect_ok(move |batch| {
            counter.fetch_add(batch.get_array_memory_size() as u64, Relaxed);
        })
        .boxed();
    let result = core.engine.ingest(&call.session.id, transaction.as_ref(), target, schema, batches).await;
    observation.add(0, bytes.load(Relaxed));
    Ok(i64::try_from(result?).unwrap_or(i64::MAX))
}

fn target(command: CommandStatementIngest) -> Result<IngestTarget, Status> {
    if command.table.is_empty() {
        return Err(Status::invalid_argument("the ingest does not name a table"));
    }
    let options = command.table_definition_options.unwrap_or_default();
    let if_exists = match TableExistsOption::try_from(options.if_exists) {
        Ok(TableExistsOption::Append) => IfExists::Append,
        Ok(TableExistsOption::Replace) => IfExists::Replace,
        Ok(TableExistsOption::Fail | TableExistsOption::Unspecified) => IfExists::Fail,
        Err(_) => return Err(Status::invalid_argument("the ingest has an unknown if_exists option")),
    };
    let if_not_exists = match TableNotExistOption::try_from(options.if_not_exist) {
        Ok(TableNotExistOption::Create) => IfNotExists::Create,
        Ok(TableNotExistOption::Fail | TableNotExistOption::Unspecified) => IfNotExists::Fail,
        Err(_) => return Err(Status::invalid_argument("the ingest has an unknown if_not_exist option")),
    };
    Ok(IngestTarget {
        catalog: command.catalog.filter(|name| !name.is_empty()),
        schema: command.schema.filter(|name| !name.is_empty()),
        table: command.table,
        temporary: command.temporary,
        if_exists,
        if_not_exists,
        options: command.options,
    })
}
