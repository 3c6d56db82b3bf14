//! The Flight SQL client of `sql`, `load` and `demo`.
//!
//! It uses only Flight SQL, so it also shows that other clients can do the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{
    CommandGetDbSchemas, CommandGetPrimaryKeys, CommandGetTables, CommandStatementIngest, DoPutUpdateResult,
    ProstMessageExt, TableDefinitionOptions, TableExistsOption, TableNotExistOption,
};
use arrow_flight::{FlightDescriptor, FlightInfo};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
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
use crate::network::{self, Address, Protocol, TlsOptions};

/// Time limit to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Where a server is and who asks.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Address of the server; `grpc+tls://HOST:PORT` for TLS.
    pub url: String,
    /// User, where the server wants one.
    pub user: Option<String>,
    /// Password of the user, or a token.
    pub password: Option<String>,
    /// Whom to trust, and what to show, where the address asks for TLS.
    pub tls: TlsOptions,
}

impl Connection {
    /// A connection to a server that wants no user.
    pub fn to(url: impl Into<String>) -> Self {
        Self { url: url.into(), user: None, password: None, tls: TlsOptions::default() }
    }

    /// Where it leads to, who asks, and whether it is encrypted, as a line for people.
    pub fn describe(&self) -> String {
        let user = self.user.as_ref().map_or_else(|| "nobody".to_owned(), |user| format!("user {user}"));
        let is_encrypted = Address::parse(&self.url).is_ok_and(|address| address.tls);
        format!("{} as {user}, {}", self.url, if is_encrypted { "by TLS" } else { "not encrypted" })
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
    /// certificates that cannot be used.
    pub async fn connect(connection: &Connection) -> Result<Self> {
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

    /// The tables and views that one may see, by schema and name.
    pub async fn tables(&mut self, wanted: &TableFilter) -> Result<Vec<Listed>> {
        let command = CommandGetTables {
            db_schema_filter_pattern: wanted.schema.as_deref().map(pattern),
            table_name_filter_pattern: wanted.name.as_deref().map(pattern),
            include_schema: wanted.with_columns,
            ..Default::default()
        };
        let info = self.inner.get_tables(command).await?;
        let batches: Vec<RecordBatch> = self.fetch(info).await?.try_collect().await?;
        let mut tables = Vec::new();
        for batch in batches {
            let schemas = batch.column_by_name("table_schema").and_then(|column| column.as_binary_opt::<i32>());
            for row in 0..batch.num_rows() {
                let columns = schemas.map(|schemas| try_schema_from_ipc_buffer(schemas.value(row))).transpose()?;
                tables.push(Listed {
                    catalog: text(&batch, "catalog_name", row),
                    schema: text(&batch, "db_schema_name", row),
                    name: text(&batch, "table_name", row),
                    kind: text(&batch, "table_type", row).to_lowercase(),
                    columns,
                });
            }
        }
        tables.sort_by(|a, b| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
        Ok(tables)
    }

    /// The schemas that one may see, with their catalogs.
    pub async fn schemas(&mut self) -> Result<Vec<RecordBatch>> {
        let info = self.inner.get_db_schemas(CommandGetDbSchemas::default()).await?;
        Ok(self.fetch(info).await?.try_collect().await?)
    }

    /// The columns of a table's primary key, in its order; none without one.
    pub async fn primary_key(&mut self, schema: &str, table: &str) -> Result<Vec<String>> {
        let command =
            CommandGetPrimaryKeys { catalog: None, db_schema: Some(schema.to_owned()), table: table.to_owned() };
        let info = self.inner.get_primary_keys(command).await?;
        let batches: Vec<RecordBatch> = self.fetch(info).await?.try_collect().await?;
        let mut names = Vec::new();
        for batch in &batches {
            names.extend((0..batch.num_rows()).map(|row| text(batch, "column_name", row)));
        }
        Ok(names)
    }

    /// Another client of the same session, on the same connection.
    pub fn another(&self) -> Self {
        let mut inner = FlightSqlServiceClient::new_from_inner(self.inner.inner().clone());
        if let Some(token) = self.inner.token() {
            inner.set_token(token.clone());
        }
        Self { channel: self.channel.clone(), inner }
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

/// Which tables to list.
#[derive(Debug, Clone, Default)]
pub struct TableFilter {
    /// Those of this schema; in it `*` stands for any text, `?` for one character.
    pub schema: Option<String>,
    /// Those with this name, likewise.
    pub name: Option<String>,
    /// With their columns.
    pub with_columns: bool,
}

/// A table or view as the server lists it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its catalog.
    pub catalog: String,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// "table", "view" or "system table".
    pub kind: String,
    /// Its columns, where asked for.
    pub columns: Option<Schema>,
}

/// A pattern of the protocol: `%` for any text, `_` for one character.
fn pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '*' => pattern.push('%'),
            '?' => pattern.push('_'),
            '%' | '_' | '\\' => pattern.extend(['\\', c]),
            c => pattern.push(c),
        }
    }
    pattern
}

/// A text of a listing; empty where it is missing.
fn text(batch: &RecordBatch, column: &str, row: usize) -> String {
    let texts = batch.column_by_name(column).and_then(|column| column.as_string_opt::<i32>());
    texts.filter(|texts| texts.is_valid(row)).map(|texts| texts.value(row).to_owned()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_protocol() {
        assert_eq!(pattern("line*"), "line%");
        assert_eq!(pattern("l_tax?"), "l\\_tax_");
    }
}
