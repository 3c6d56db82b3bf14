//! Flight SQL clients that read results to their ends, each on a connection of its own; and readers of TCP without any
//! protocol.
//!
//! A thread per result decodes its messages into batches, counts them and drops them; the threads of the runtime read
//! the sockets. The same code reads from Terrace and from its peer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use arrow::array::{Array, RecordBatch};
use futures::StreamExt;
use futures::future::try_join_all;
use terrace_server::client::{Client, Connection, Outcome};
use tokio::runtime::Runtime;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// Bytes that a reader of TCP takes at once.
const RAW_PIECE_BYTES: usize = 256 << 10;

/// The side.
pub struct Reader {
    runtime: Runtime,
    clients: Vec<Client>,
}

impl Reader {
    /// Opens connections, one for each of so many results that are read at the same time.
    pub fn new(url: &str, streams: usize) -> Result<Self> {
        let runtime = Runtime::new().map_err(Error::io("cannot start a runtime"))?;
        let connection = Connection::to(url);
        let clients = runtime.block_on(try_join_all((0..streams).map(|_| Client::connect(&connection))))?;
        Ok(Self { runtime, clients })
    }

    /// Reads the results of a statement on some of the connections at the same time.
    fn read_rows(&mut self, streams: usize, sql: &str) -> Result<Sample> {
        let runtime = self.runtime.handle();
        let clients = self.clients.get_mut(..streams);
        let clients = clients.ok_or_else(|| Error::failed(format!("there are no {streams} connections")))?;
        let start = Instant::now();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .map(|client| scope.spawn(move || runtime.block_on(ReadRows::to_end(client, sql))))
                .collect();
            let lost = |_| Error::failed("a reader panicked");
            threads.into_iter().map(|thread| thread.join().map_err(lost)?).collect::<Result<Vec<ReadRows>>>()
        })?;
        let ms = ms_since(start);
        let sum = |count: fn(&ReadRows) -> usize| all.iter().map(count).sum::<usize>() as f64;
        let first_ms = all.iter().map(|read| read.first_ms).fold(0.0, f64::max);
        Ok(Sample::new(ms)
            .with("rows", sum(|read| read.rows))
            .with("bytes", sum(|read| read.bytes))
            .with("batches", sum(|read| read.batches))
            .with("first_ms", first_ms))
    }
}

impl Side for Reader {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match Request::parse(op).ok_or_else(|| unknown(op))? {
            Request::Rows { streams, sql } => self.read_rows(streams, sql),
            Request::Raw { streams, port, bytes } => read_raw(streams, port, bytes),
        }
    }
}

/// What is to be read.
#[derive(Debug, PartialEq, Eq)]
enum Request<'a> {
    /// `read STREAMS SQL`: results of a statement.
    Rows { streams: usize, sql: &'a str },
    /// `raw STREAMS PORT BYTES`: so many bytes from each of so many connections to a port of this machine.
    Raw { streams: usize, port: u16, bytes: u64 },
}

impl<'a> Request<'a> {
    fn parse(op: &'a str) -> Option<Self> {
        let (kind, rest) = op.split_once(' ')?;
        let (streams, rest) = rest.split_once(' ')?;
        let streams = streams.parse::<usize>().ok()?;
        match kind {
            "read" => Some(Self::Rows { streams, sql: rest }),
            "raw" => {
                let (port, bytes) = rest.split_once(' ')?;
                Some(Self::Raw { streams, port: port.parse().ok()?, bytes: bytes.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// A result that was read to its end.
#[derive(Debug, Default)]
struct ReadRows {
    rows: usize,
    /// As [`decoded_bytes`].
    bytes: usize,
    /// Batches, of which each came as one message.
    batches: usize,
    /// Time from the text of the statement to its first batch.
    first_ms: f64,
}

impl ReadRows {
    async fn to_end(client: &mut Client, sql: &str) -> Result<Self> {
        let start = Instant::now();
        let Outcome::Rows(_, mut batches) = client.run(sql).await? else {
            return Err(Error::failed(format!("'{sql}' has no rows")));
        };
        let mut read = Self::default();
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(terrace_server::Error::from)?;
            if read.batches == 0 {
                read.first_ms = ms_since(start);
            }
            read.batches += 1;
            read.rows += batch.num_rows();
            read.bytes += decoded_bytes(&batch)?;
        }
        Ok(read)
    }
}

/// Bytes of the rows of a batch in Arrow's layout: values, offsets and bitmaps of NULLs, without padding and headers.
pub fn decoded_bytes(batch: &RecordBatch) -> Result<usize> {
    let mut bytes = 0;
    for column in batch.columns() {
        bytes += column.to_data().get_slice_memory_size()?;
    }
    Ok(bytes)
}

fn read_raw(streams: usize, port: u16, bytes: u64) -> Result<Sample> {
    let start = Instant::now();
    let read = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..streams).map(|_| scope.spawn(move || receive(port, bytes))).collect();
        let lost = |_| Error::failed("a reader panicked");
        threads.into_iter().map(|thread| thread.join().map_err(lost)?).sum::<Result<u64>>()
    })?;
    Ok(Sample::new(ms_since(start)).with("bytes", read as f64))
}

/// Asks for bytes on a new connection and reads them.
fn receive(port: u16, bytes: u64) -> Result<u64> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).map_err(Error::io("cannot connect by TCP"))?;
    connection.write_all(&bytes.to_le_bytes()).map_err(Error::io("cannot ask by TCP"))?;
    let mut piece = vec![0_u8; RAW_PIECE_BYTES];
    let mut read = 0_u64;
    while read < bytes {
        match connection.read(&mut piece).map_err(Error::io("cannot read by TCP"))? {
            0 => return Err(Error::failed(format!("TCP ended after {read} of {bytes} bytes"))),
            more => read += more as u64,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn requests_name_what_is_read_and_how_often_at_once() {
        let sql = "SELECT * FROM t LIMIT 1";
        assert_eq!(Request::parse("read 4 SELECT * FROM t LIMIT 1"), Some(Request::Rows { streams: 4, sql }));
        assert_eq!(Request::parse("raw 1 80 7"), Some(Request::Raw { streams: 1, port: 80, bytes: 7 }));
        for wrong in ["read", "read 4", "read x SELECT 1", "raw 1 80", "raw 1 70000 7", "write 1 t"] {
            assert_eq!(Request::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_slice_counts_its_own_rows_only() {
        let columns: [(&str, ArrayRef); 2] = [
            ("i", Arc::new(Int64Array::from_iter_values(0..100))),
            ("s", Arc::new(StringArray::from_iter_values(std::iter::repeat_n("four", 100)))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        // Texts have one offset more than rows.
        assert_eq!(decoded_bytes(&batch.slice(20, 10)).unwrap(), 10 * 8 + 11 * 4 + 10 * 4);
    }
}
