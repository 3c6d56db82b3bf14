//! The Flight SQL client of `sql`, `load` and `demo`.
//!
//! It uses only Flight SQL, so it also shows that other clients can do the same.

use std::collections::HashMap;
use std::sync::Arc;

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
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::{Channel, Endpoint};
use tower::{ServiceExt, service_fn};

use crate::error::{Error, Result};

/// Where a server is and who asks.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// Address of the server
    #[arg(long, env = "TERRACE_URL", default_value = "grpc://127.0.0.1:31337", value_name = "URL")]
    pub url: String,
    /// User, where the server wants one
    #[arg(long, env = "TERRACE_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// Password of the user; better given by the environment
    #[arg(long, env = "TERRACE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    pub password: Option<String>,
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
    /// [`Error::Unreachable`] when no server answers; [`Error::Server`] when the login is refused.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        let unreachable = |message: String| Error::Unreachable { url: connection.url.clone(), message };
        let endpoint = Endpoint::from_shared(http_url(&connection.url)?)
            .map_err(|_| Error::Usage(format!("'{}' is not an address; write grpc://HOST:PORT", connection.url)))?
            .connect_timeout(std::time::Duration::from_secs(5))
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|e| unreachable(root_cause(&e)))?;
        let service = FlightServiceClient::new(channel.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let mut inner = FlightSqlServiceClient::new_from_inner(service);
        if let Some(user) = &connection.user {
            let password = connection.password.as_deref().unwrap_or_default();
            inner.handshake(user, password).await.map_err(|e| login_error(&e))?;
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

fn http_url(url: &str) -> Result<String> {
    refuse_tls(url)?;
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(format!("http://{url}")) };
    match scheme.to_ascii_lowercase().as_str() {
        "grpc" | "grpc+tcp" | "http" => Ok(format!("http://{rest}")),
        _ => Err(Error::Usage(format!("'{url}' is not the address of a server; write grpc://HOST:PORT"))),
    }
}

/// Refuses an address for an encrypted connection, because the connection would not be encrypted.
pub(crate) fn refuse_tls(address: &str) -> Result<()> {
    let scheme = address.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme.as_deref() {
        Some("grpc+tls" | "grpcs" | "grpc+ssl" | "https" | "tls") => Err(Error::Usage(format!(
            "{address} asks for TLS, which Terrace does not support yet, so the connection would not be encrypted. \
             Use a tunnel (ssh -L) or a proxy that terminates TLS, and give its plain address"
        ))),
        _ => Ok(()),
    }
}

/// The message of the innermost cause.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_never_loses_its_encryption() {
        for url in ["grpc://h:1", "grpc+tcp://h:1", "http://h:1", "GRPC://h:1", "h:1"] {
            assert_eq!(http_url(url).unwrap(), "http://h:1");
        }
        for url in ["grpc+tls://h:1", "https://h:1", "HTTPS://h:1", "grpcs://h:1", "grpc+ssl://h:1"] {
            let refused = http_url(url).unwrap_err().to_string();
            assert!(refused.contains(url) && refused.contains("TLS"), "{refused}");
        }
        assert!(http_url("ftp://h:1").unwrap_err().to_string().contains("grpc://HOST:PORT"));
    }
}
