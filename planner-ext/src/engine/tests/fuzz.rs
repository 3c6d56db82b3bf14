//! Any bytes as statements to plan, as files to copy from, and as rows and parameters of clients.
//!
//! The engine plans and reads on threads of its own, which charge what they allocate to the statement. So the harness watches the
//! time, and the records of statements say what memory each took.

use std::cell::Cell;
use std::io::Cursor;

use arrow::array::{DictionaryArray, FixedSizeBinaryArray, NullArray};
use arrow::datatypes::Int32Type;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use terrace_ipc::{FileReader, Limits};
use terrace_test_support::fuzz;
use terrace_test_support::fuzz::{Inputs, MOST_BYTES, sentence};
use tokio::runtime::Runtime;

use super::*;

/// The stack of a thread, as the server has it: plans of nested expressions are recursive.
const STACK_BYTES: usize = 64 << 20;

/// The memory of statements is looked at every so many inputs; records of more statements are kept.
const INPUTS_PER_LOOK: usize = 20;
/// Records of ended statements: an input has at most eight, and they are full after the first tenth of the inputs.
const KEPT_STATEMENTS: usize = 200;
/// Bytes of the catalog's cache, which is full soon, too.
const CATALOG_CACHE_BYTES: usize = 4 << 20;

/// The memory that the statements of a server take.
struct Watched<'a> {
    server: &'a Server,
    inputs: Cell<usize>,
}

impl<'a> Watched<'a> {
    fn new(server: &'a Server) -> Self {
        Self { server, inputs: Cell::new(0) }
    }

    /// Notes an input; fails where a statement took more than an input may.
    fn note_input(&self) {
        self.inputs.set(self.inputs.get() + 1);
        if !self.inputs.get().is_multiple_of(INPUTS_PER_LOOK) {
            return;
        }
        for record in self.server.engine.statements() {
            let bytes = record.memory.allocated_peak;
            assert!(bytes <= MOST_BYTES, "{bytes} bytes for {}", record.sql);
        }
    }
}

/// A server with two tables, and the runtime that it runs on.
fn start() -> (Runtime, Server) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).thread_stack_size(STACK_BYTES).enable_all().build().unwrap();
    let server = runtime.block_on(async {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut options = StoreOptions::new(dir.path().join("data"));
        options.catalog_cache_bytes = CATALOG_CACHE_BYTES;
        let server = Server::over(Store::open(options).unwrap(), dir, |options| options.history = KEPT_STATEMENTS);
        server.run("CREATE TABLE t (a BIGINT, s VARCHAR)").await.unwrap();
        server.run("CREATE TABLE u (a INT NOT NULL, d DATE, p DECIMAL(10, 2), x DOUBLE)").await.unwrap();
        server
    });
    (runtime, server)
}

/// Runs a harness on a thread with the stack that a server's threads have.
fn on_large_stack(harness: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fuzz".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, harness).unwrap();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Drops a server where it may still start tasks.
fn stop(runtime: &Runtime, server: Server) {
    runtime.block_on(async move { drop(server) });
}

const QUERIES: &[&str] = &[
    "SELECT s, count(*), sum(p) FROM t JOIN u USING (a) WHERE d > DATE '2024-01-31' AND s LIKE '%x_' GROUP BY s ORDER BY 2",
    "SELECT a, row_number() OVER (PARTITION BY s ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t LIMIT 3",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "SELECT * FROM t WHERE a IN (SELECT a FROM u WHERE x / p > 1e3) AND NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
    "SELECT CASE WHEN t.a > 1 THEN s ELSE 'n' END, substr(s, 1, 2), CAST(t.a AS VARCHAR), d + INTERVAL '1 month' FROM t, u",
    "INSERT INTO t SELECT a, 'x' FROM u",
    "UPDATE t SET s = s || '!' WHERE a = $1",
    "DELETE FROM t WHERE a BETWEEN 1 AND 2",
    "SELECT approx_distinct(a), regexp_match(s, '^(a|b)+$') FROM t GROUP BY GROUPING SETS ((s), ())",
    "SELECT table_name FROM information_schema.columns",
];

const WORDS: &[&str] = &[
    "SELECT",
    "SELECT",
    "FROM",
    "FROM",
    "t",
    "u",
    "a",
    "s",
    "d",
    "p",
    "x",
    "*",
    ",",
    "(",
    "(",
    ")",
    ")",
    "WHERE",
    "=",
    "<",
    "+",
    "/",
    "1",
    "0",
    "'x'",
    "NULL",
    "AND",
    "NOT",
    "IN",
    "count(*)",
    "sum(",
    "GROUP BY",
    "ORDER BY",
    "LIMIT",
    "JOIN",
    "USING (a)",
    "UNION ALL",
    "CAST(a AS INT)",
    "OVER ()",
    "repeat(s, 9)",
];

#[test]
fn plans() {
    on_large_stack(|| {
        let (runtime, server) = start();
        let plan = |text: &str| runtime.block_on(server.session.prepare(text)).is_ok();
        let watched = Watched::new(&server);
        let examples = QUERIES.iter().map(|sql| sql.as_bytes().to_vec()).collect();
        fuzz!("SQL to plans", Inputs::stateful(300, 1_000_000), examples, |input: &[u8]| {
            watched.note_input();
            let is_sentence = plan(&sentence(input, WORDS));
            plan(&String::from_utf8_lossy(input)) || is_sentence
        });
        stop(&runtime, server);
    });
}

fn rows() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..50));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..50).map(|i| format!("text {}", i % 7))));
    batch(vec![("a", numbers), ("s", texts)])
}

/// Copies files of a format, which end with its name, into a table.
fn copies(name: &'static str, format: &str, examples: Vec<Vec<u8>>) {
    let (runtime, server) = start();
    let path = server.dir.path().join(format!("input.{format}"));
    let copy = format!("COPY t FROM '{}'", path.display());
    let watched = Watched::new(&server);
    fuzz!(name, Inputs::stateful(20, 25_000), examples, |input: &[u8]| {
        watched.note_input();
        std::fs::write(&path, input).unwrap();
        let is_valid = runtime.block_on(server.run(&copy)).is_ok();
        if is_valid {
            runtime.block_on(server.run("TRUNCATE TABLE t")).unwrap();
        }
        is_valid
    });
    stop(&runtime, server);
}

#[test]
fn csv_files() {
    let examples = ["a,s\n1,x\n2,\"y,\"\"z\"\n3,\n", "a,s\r\n-9223372036854775808,\u{fffd}\r\n"];
    copies("CSV files", "csv", examples.map(|text| text.as_bytes().to_vec()).to_vec());
}

#[test]
fn json_files() {
    let examples = ["{\"a\": 1, \"s\": \"x\"}\n{\"a\": null}\n", "{\"s\": \"\\u00e9\\n\", \"a\": -7}"];
    copies("JSON files", "json", examples.map(|text| text.as_bytes().to_vec()).to_vec());
}

#[test]
fn parquet_files() {
    let rows = rows();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    copies("Parquet files", "parquet", vec![writer.into_inner().unwrap()]);
}

#[test]
fn arrow_files_of_others() {
    let rows = rows();
    let mut writer = FileWriter::try_new(Vec::new(), &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    copies("Arrow files", "arrow", vec![writer.into_inner().unwrap()]);
}

fn arrow_stream(rows: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema()).unwrap();
    writer.write(rows).unwrap();
    writer.into_inner().unwrap()
}

/// Rows of types that a new table converts, and those of a row of parameters.
fn streams() -> Vec<Vec<u8>> {
    let keys: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let fixed = FixedSizeBinaryArray::try_from_iter([[1_u8; 16], [2; 16], [3; 16]].into_iter()).unwrap();
    let columns: [(&str, ArrayRef); 4] = [
        ("k", Arc::new(keys)),
        ("f", Arc::new(fixed)),
        ("n", Arc::new(NullArray::new(3))),
        ("a", Arc::new(Int64Array::from(vec![1, 2, 3]))),
    ];
    let columns = columns.map(|(name, values)| (name, values, true));
    let of_other_types = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    vec![arrow_stream(&rows()), arrow_stream(&rows().slice(0, 1)), arrow_stream(&of_other_types)]
}

/// Rows that a client sends: to a new table, to one that is there, and as parameters. They come as the Flight service passes
/// them on, from messages that have been decoded within limits.
#[test]
fn rows_of_clients() {
    on_large_stack(|| {
        let (runtime, server) = start();
        let request =
            |table: &str, mode| IngestRequest { schema: None, table: table.to_owned(), mode, options: HashMap::new() };
        let limits = Limits { message_bytes: 1 << 20, expanded_bytes: 4 << 20, account: None };
        let watched = Watched::new(&server);
        fuzz!("rows of clients", Inputs::stateful(25, 200_000), streams(), |input: &[u8]| {
            watched.note_input();
            let Ok(reader) = FileReader::open(Cursor::new(input), None, None, limits.clone()) else { return false };
            let schema = reader.schema();
            let batches: Vec<RecordBatch> = reader.map_while(Result::ok).take(4).collect();
            runtime.block_on(async {
                let rows = || futures::stream::iter(batches.clone().into_iter().map(Ok)).boxed();
                let send = |request| server.engine.ingest(&server.session, request, schema.clone(), rows(), None);
                let is_made = send(request("made", IngestMode::Replace)).await.is_ok();
                if send(request("t", IngestMode::Append)).await.is_ok() {
                    server.run("TRUNCATE TABLE t").await.unwrap();
                }
                if let Some(bound) = batches.first().cloned() {
                    let row = bound.slice(0, bound.num_rows().min(1));
                    let query = server.session.prepare("SELECT $1, $2 FROM t WHERE a = $1").await.unwrap();
                    if let Ok(running) = query.query(Some(row)).await {
                        let _ = running.stream.try_collect::<Vec<_>>().await;
                    }
                    let insert = server.session.prepare("INSERT INTO t VALUES ($1, $2)").await.unwrap();
                    let few = bound.slice(0, bound.num_rows().min(3));
                    if insert.update(Some(few)).await.is_ok() {
                        server.run("TRUNCATE TABLE t").await.unwrap();
                    }
                }
                is_made
            })
        });
        stop(&runtime, server);
    });
}
