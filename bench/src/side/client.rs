//! A Flight SQL client of a running server that holds `lineitem` in memory and sends it by bulk ingest.

use std::time::Instant;

use arrow::array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use futures::StreamExt;
use terrace_server::client::{Client as Connected, Connection, Mode};
use tokio::runtime::Runtime;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::tpch::{BATCH_ROWS, TABLES};

/// The side.
pub struct Client {
    runtime: Runtime,
    client: Connected,
    rows: Vec<RecordBatch>,
    sent_bytes: usize,
}

impl Client {
    /// Connects and generates the rows.
    pub fn new(url: String, scale: f64) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::io("cannot start a runtime"))?;
        let client = runtime.block_on(Connected::connect(&Connection::to(url)))?;
        let lineitem =
            TABLES.iter().find(|t| t.name == "lineitem").ok_or_else(|| Error::failed("no table lineitem"))?;
        let rows = lineitem.generate_part(scale, 1, 1, BATCH_ROWS).collect::<std::result::Result<Vec<_>, _>>()?;
        let sent_bytes = runtime.block_on(encoded_bytes(rows.clone()))?;
        Ok(Self { runtime, client, rows, sent_bytes })
    }

    /// Sends all rows; the server's acknowledgement means that they are durable.
    fn ingest(&mut self, table: &str) -> Result<Sample> {
        let rows = futures::stream::iter(self.rows.clone().into_iter().map(Ok::<_, FlightError>));
        let start = Instant::now();
        let stored = self.runtime.block_on(self.client.ingest(table, Mode::Create, Default::default(), rows))?;
        Ok(Sample::new(ms_since(start)).with("rows", stored as f64).with("bytes", self.sent_bytes as f64))
    }

    fn update(&mut self, sql: &str) -> Result<Sample> {
        let start = Instant::now();
        self.runtime.block_on(self.client.update(sql))?;
        Ok(Sample::new(ms_since(start)))
    }
}

/// Bytes of the Flight messages for these rows, with headers: the bytes that are sent, not those that the batches have
/// allocated.
async fn encoded_bytes(rows: Vec<RecordBatch>) -> Result<usize> {
    let rows = futures::stream::iter(rows.into_iter().map(Ok::<_, FlightError>));
    let mut messages = FlightDataEncoderBuilder::new().build(rows);
    let mut bytes = 0;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| Error::failed(format!("the rows cannot be encoded: {error}")))?;
        bytes += message.data_header.len() + message.data_body.len();
    }
    Ok(bytes)
}

impl Side for Client {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match op.split_once(' ') {
            Some(("ingest", table)) => self.ingest(table),
            Some(("update", sql)) => self.update(sql),
            _ => Err(unknown(op)),
        }
    }
}
