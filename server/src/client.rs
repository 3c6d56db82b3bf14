//! The Flight SQL client of `sql`, `load` and `demo`.
//!
//! It uses only Flight SQL, so it also shows that other clients can do the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{
    CommandGetTables, CommandStatementIngest, DoPutUpdateResult, ProstMessageExt, TableDefinitionOptions,
    TableExistsOption, TableNotExistOption,
};
use arrow_flight::{FlightDescriptor, FlightInfo};
use futures::{Stream, TryStreamExt, stream};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::{Channel, Endpoint};
use tower::{ServiceExt, service_fn};

use crate::error::{Error, Result, root_cause};
use crate::login::{Credentials, Login};
use crate::network::{self, Address, Protocol, TlsOptions};

/// Time limit to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Where a server is and who asks.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// Address of the server; grpc+tls://HOST:PORT for TLS
    #[arg(long, env = "TERRACE_URL", default_value = "grpc://127.0.0.1:31337", value_name = "URL")]
    pub url: String,
    /// Who asks.
    #[command(flatten)]
    pub login: Login,
    /// Whom to trust, and what to show, where the address asks for TLS.
    #[command(flatten)]
    pub tls: TlsOptions,
}

impl Connection {
    /// A connection to a server that wants no user.
    pub fn to(url: impl Into<String>) -> Self {
        Self { url: url.into(), login: Login::default(), tls: TlsOptions::default() }
    }
}

/// The effect of a bulk ingest on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Creates the table, which must not exist.
    Create,
    /// Adds rows; creates the table when it is missing.
    Append,
    /// Adds rows to a table, which must exist.
    Extend,
    /// Replaces the rows of the table.
    Replace,
}

/// The result of a statement.
pub enum Outcome {
    /// Rows.
    Rows(SchemaRef, FlightRecordBatchStream),
    /// A number of rows affected; negative when the server does not know.
    Updated(i64),
}

/// A connection.
pub struct Client {
    channel: Channel,
    inner: FlightSqlServiceClient<Channel>,
}

impl Client {
    /// Connects and, with a user, logs in.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no server answers; [`Error::Server`] when the login is refused; [`Error::File`] for
    /// certificates and passwords that cannot be read.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        // First: while somebody types, a connection that says nothing would be closed.
        let credentials = connection.login.credentials()?;
        let unreachable = |message: String| Error::Unreachable { url: connection.url.clone(), message };
        let address = Address::parse(&connection.url)?;
        let endpoint = Endpoint::from_shared(address.http_url())
            .map_err(|_| Error::Usage(format!("'{}' is not an address; write grpc://HOST:PORT", connection.url)))?;
        let connector = connection.tls.connector(&address, Protocol::Http2)?;
        let connect = service_fn(move |_: http::Uri| {
            let (address, connector) = (address.clone(), connector.clone());
            async move { network::connect(&address, connector.as_ref(), CONNECT).await.map(TokioIo::new) }
        });
        let channel = endpoint.connect_with_connector(connect).await.map_err(|e| unreachable(root_cause(&e)))?;
        let service = FlightServiceClient::new(channel.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let mut inner = FlightSqlServiceClient::new_from_inner(service);
        if let Some(Credentials { user, password }) = credentials {
            inner.handshake(&user, &password).await.map_err(|e| login_error(&e))?;
        }
        Ok(Self { channel, inner })
    }

    /// Runs one statement of any kind.
    pub async fn run(&mut self, sql: &str) -> Result<Outcome> {
        let mut prepared = self.inner.prepare(sql.to_owned(), None).await.map_err(server_error)?;
        let schema = prepared.dataset_schema().map_err(server_error)?.clone();
        let outcome = if schema.fields().is_empty() {
            Outcome::Updated(prepared.execute_update().await.map_err(server_error)?)
        } else {
            let info = prepared.execute().await.map_err(server_error)?;
            Outcome::Rows(schema.into(), self.fetch(info).await?)
        };
        prepared.close().await.map_err(server_error)?;
        Ok(outcome)
    }

    /// The columns of a query's result; does not run it.
    pub async fn describe(&mut self, sql: &str) -> Result<Schema> {
        let prepared = self.inner.prepare(sql.to_owned(), None).await.map_err(server_error)?;
        let schema = prepared.dataset_schema().map_err(server_error)?.clone();
        prepared.close().await.map_err(server_error)?;
        Ok(schema)
    }

    /// Runs a query and collects its rows.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<RecordBatch>> {
        let info = self.inner.execute(sql.to_owned(), None).await?;
        Ok(self.fetch(info).await?.try_collect().await?)
    }

    /// Runs a statement without rows.
    pub async fn update(&mut self, sql: &str) -> Result<i64> {
        Ok(self.inner.execute_update(sql.to_owned(), None).await?)
    }

    /// All tables: catalog, schema, name, type.
    pub async fn tables(&mut self) -> Result<Vec<RecordBatch>> {
        let info = self.inner.get_tables(CommandGetTables::default()).await?;
        Ok(self.fetch(info).await?.try_collect().await?)
    }

    /// Ingests rows, all or nothing; returns their number. `options` are those of a new table.
    pub async fn ingest<S>(&mut self, table: &str, mode: Mode, options: HashMap<String, String>, rows: S) -> Result<u64>
    where
        S: Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
    {
        let (if_not_exist, if_exists) = match mode {
            Mode::Create => (TableNotExistOption::Create, TableExistsOption::Fail),
            Mode::Append => (TableNotExistOption::Create, TableExistsOption::Append),
            Mode::Extend => (TableNotExistOption::Fail, TableExistsOption::Append),
            Mode::Replace => (TableNotExistOption::Create, TableExistsOption::Replace),
        };
        let (schema, table) = split_name(table);
        let command = CommandStatementIngest {
            table_definition_options: Some(TableDefinitionOptions {
                if_not_exist: if_not_exist.into(),
                if_exists: if_exists.into(),
            }),
            table,
            schema,
            options,
            ..Default::default()
        };
        let failed = Arc::new(Mutex::new(None));
        let failure = Arc::clone(&failed);
        let rows = rows.map_err(move |error| {
            *failure.lock() = Some(error);
            Status::cancelled("reading the rows failed")
        });
        let upload = terrace_flight::upload(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()), rows);
        let done = self.put(upload).await;
        match failed.lock().take() {
            Some(error) => Err(ingest_error(error)),
            None => Ok(done?.record_count.max(0) as u64),
        }
    }

    /// Sends an encoded upload by DoPut.
    async fn put(&self, upload: Body) -> Result<DoPutUpdateResult, FlightError> {
        let channel = self.channel.clone();
        let mut upload = Some(upload);
        let service = service_fn(move |request: http::Request<Body>| {
            channel.clone().oneshot(request.map(|_| upload.take().unwrap_or_default()))
        });
        let mut request = tonic::Request::new(stream::empty());
        if let Some(token) = self.inner.token() {
            let bearer = format!("Bearer {token}").parse().map_err(|_| Status::internal("the token is not ASCII"))?;
            request.metadata_mut().insert("authorization", bearer);
        }
        let mut results = FlightServiceClient::new(service).do_put(request).await?.into_inner();
        let result = results.message().await?.ok_or_else(|| Status::internal("the server did not answer"))?;
        Ok(DoPutUpdateResult::decode(result.app_metadata)?)
    }

    /// Fetches all endpoints of a result, one after another.
    async fn fetch(&mut self, info: FlightInfo) -> Result<FlightRecordBatchStream> {
        let mut tickets = info.endpoint.into_iter().filter_map(|endpoint| endpoint.ticket);
        let (Some(ticket), None) = (tickets.next(), tickets.next()) else {
            let message =
                "the server split the result over several endpoints, which this client cannot read".to_owned();
            return Err(Error::Server { code: "Unimplemented".to_owned(), message });
        };
        Ok(self.inner.do_get(ticket).await?)
    }
}

/// `schema.table` or `table`.
pub fn split_name(name: &str) -> (Option<String>, String) {
    match name.split_once('.') {
        Some((schema, table)) => (Some(schema.to_owned()), table.to_owned()),
        None => (None, name.to_owned()),
    }
}

fn server_error(error: impl Into<FlightError>) -> Error {
    Error::from(error.into())
}

/// Extracts the server's message, which the client library wraps into another text.
fn login_error(error: &FlightError) -> Error {
    let text = error.to_string();
    let message = text.split("message: \"").nth(1).and_then(|rest| rest.split("\", ").next()).unwrap_or(&text);
    Error::Server { code: "Unauthenticated".to_owned(), message: message.trim_end_matches('"').to_owned() }
}

/// Converts an error of an ingest; the library boxes errors of the client's own rows.
fn ingest_error(error: FlightError) -> Error {
    match error {
        FlightError::ExternalError(inner) => match inner.downcast::<FlightError>() {
            Ok(flight) => ingest_error(*flight),
            Err(other) => Error::Usage(other.to_string()),
        },
        other => other.into(),
    }
}
