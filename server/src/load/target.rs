//! Targets of a load: a running server or an engine of this process. Both run the same statements and ingests.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::error::FlightError;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use terrace_planner_ext::ErrorKind;
use terrace_planner_ext::engine::{Engine, IngestMode, IngestRequest, Prepared, Session};

use crate::client::{Client, Mode, Outcome, split_name};
use crate::error::{Error, Result};

/// A stream of rows.
pub type Rows = BoxStream<'static, RecordBatch>;

/// The target of a load.
pub enum Target {
    /// A running server.
    Server(Box<Client>),
    /// An engine of this process.
    Engine(Arc<Engine>),
}

impl Target {
    /// True when rows are sent over the network.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// Stores all rows, or none, and returns their number. `options` are those of a new table.
    pub async fn ingest(
        &mut self,
        table: &str,
        mode: Mode,
        options: HashMap<String, String>,
        schema: SchemaRef,
        rows: Rows,
    ) -> Result<u64> {
        match self {
            Self::Server(client) => client.ingest(table, mode, options, rows.map(Ok::<_, FlightError>)).await,
            Self::Engine(engine) => {
                let (name_schema, table) = split_name(table);
                let mode = match mode {
                    Mode::Create => IngestMode::Create,
                    Mode::Append => IngestMode::CreateAppend,
                    Mode::Extend => IngestMode::Append,
                    Mode::Replace => IngestMode::Replace,
                };
                let request = IngestRequest { schema: name_schema, table, mode, options };
                let session = engine.open_session("load");
                let stored = engine.ingest(&session, request, schema, rows.map(Ok).boxed(), None).await;
                engine.close_session(session.id());
                Ok(stored?)
            }
        }
    }

    /// The columns of a table; `None` when it does not exist.
    pub async fn columns(&mut self, table: &str) -> Result<Option<SchemaRef>> {
        let (schema, table) = split_name(table);
        let sql = format!("SELECT * FROM {}", sql_name(schema.as_deref(), &table));
        let found = match self {
            Self::Server(client) => client.describe(&sql).await.map(Arc::new),
            Self::Engine(engine) => {
                in_session(engine, async |session| Ok(prepare(&session, &sql).await?.dataset_schema())).await
            }
        };
        match found {
            Ok(columns) => Ok(Some(columns)),
            Err(Error::Server { code, .. }) if code == "NotFound" => Ok(None),
            Err(Error::Engine(error)) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs a statement without rows.
    pub async fn update(&mut self, sql: &str) -> Result<()> {
        match self {
            Self::Server(client) => match client.run(sql).await? {
                Outcome::Updated(_) => Ok(()),
                Outcome::Rows(..) => Err(Error::System(format!("'{sql}' gave rows"))),
            },
            Self::Engine(engine) => {
                in_session(engine, async |session| Ok(prepare(&session, sql).await?.update(None).await.map(drop)?))
                    .await
            }
        }
    }

    /// Runs a query and collects its rows.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        match self {
            Self::Server(client) => client.query(sql).await,
            Self::Engine(engine) => {
                in_session(engine, async |session| {
                    let running = prepare(&session, sql).await?.query(None).await?;
                    let rows = running.stream.try_collect().await;
                    Ok(rows.map_err(terrace_planner_ext::Error::from)?)
                })
                .await
            }
        }
    }
}

/// The quoted name of a table; without `schema` it is found in the session's schema.
pub fn sql_name(schema: Option<&str>, table: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let schema = schema.map(|schema| quoted(schema) + ".").unwrap_or_default();
    schema + &quoted(table)
}

async fn prepare(session: &Arc<Session>, sql: &str) -> Result<Arc<Prepared>> {
    Ok(session.prepare(sql).await?)
}

async fn in_session<T>(engine: &Arc<Engine>, work: impl AsyncFnOnce(Arc<Session>) -> Result<T>) -> Result<T> {
    let session = engine.open_session("load");
    let done = work(Arc::clone(&session)).await;
    engine.close_session(session.id());
    done
}
