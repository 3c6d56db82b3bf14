//! The engine through its public interface, over a store in a temporary folder.
//!
//! - [`changes`]: UPDATE, DELETE, MERGE, TRUNCATE and transactions
//! - [`rewrites`]: rewrites of changes to queries
//! - [`transactions`]: which transaction a statement belongs to
//! - [`limits`]: statements that are cancelled, refused or ended by a limit
//! - [`collecting`]: operators that hold all rows
//! - [`cluster`]: queries of which several nodes execute parts
//! - [`workload`]: workload groups, point statements, and limits of planning
//! - [`keys`]: enforced primary keys
//! - [`ddl`]: ALTER TABLE, defaults, comments, SHOW and `information_schema`
//! - [`source_text`]: stored texts, and expressions in all kinds of statements
//! - [`dialect`]: the SQL dialect
//! - [`parameters`]: bound values
//! - [`result_types`]: types of results
//! - [`value_bounds`]: functions that would make very large values
//! - [`zeros`]: zeros, infinities and NaN
//! - [`columns`]: columns that clients declare and ingest
//! - [`uploads`]: bulk ingests of large messages
//! - [`files`]: files as tables and loaded into tables
//! - [`arrow_files`]: foreign Arrow files
//! - [`objects`]: objects of object stores as tables and loaded into tables
//! - [`fuzz`]: any bytes as statements and as files
//! - [`placement`]: placement rules
//! - [`plan_cache`]: plans of earlier queries
//! - [`look_ups`]: look-ups by prepared statements
//! - [`repeatable`]: queries that read the same table versions each time
//! - [`rights`]: who may do what
//! - [`audit`]: the audit trail
//! - [`query_log`]: the query log
//! - [`forms`]: forms of columns in memory
//! - `kernels`: aggregates that a device computes
//! - `reads`: reads of the home tier
//! - [`credulous`]: a faulty check of hot views
//! - [`generator`]: random rows, conditions and queries, shared with the tests of `terrace_views`
//! - [`hot_views`]: statements on hot views
//! - [`no_hot_views`]: a build without them
//! - [`hot_runs`]: runs of hot views
//! - [`hot_scans`]: scans that use hot views
//! - [`hot_weights`]: hot views and placement
//! - [`mining`]: mined views

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod changes;
mod rewrites;
mod transactions;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::util::pretty::pretty_format_batches;
use futures::{StreamExt, TryStreamExt};
use terrace_tier_store::table::TableName;
use terrace_tier_store::{Store, StoreOptions};

use super::*;

mod arrow_files;
mod audit;
mod cluster;
mod collecting;
mod columns;
#[cfg(feature = "hot-views")]
pub(super) mod credulous;
mod ddl;
mod dialect;
mod files;
mod forms;
mod fuzz;
#[cfg(feature = "hot-views")]
#[path = "../../views/src/tests/generator.rs"]
mod generator;
#[cfg(feature = "hot-views")]
mod hot_runs;
#[cfg(feature = "hot-views")]
mod hot_scans;
#[cfg(feature = "hot-views")]
mod hot_views;
#[cfg(feature = "hot-views")]
mod hot_weights;
mod kernels;
mod keys;
mod limits;
mod look_ups;
#[cfg(feature = "hot-views")]
mod mining;
#[cfg(not(feature = "hot-views"))]
mod no_hot_views;
mod objects;
mod parameters;
mod placement;
mod plan_cache;
mod query_log;
mod reads;
mod repeatable;
mod result_types;
mod rights;
mod source_text;
mod uploads;
mod value_bounds;
mod workload;
mod zeros;

/// Counts what statements allocate, as that of the server.
#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

/// The rows of an answer as text, without the names of their columns.
fn row_texts(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).unwrap().to_string();
    let lines = text.lines().filter(|l| l.starts_with('|')).skip(1);
    lines.map(|l| l.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join("|")).collect()
}

/// An engine with one session, on a folder that may outlive it.
struct Server {
    engine: Arc<Engine>,
    session: Arc<Session>,
    dir: Arc<tempfile::TempDir>,
}

impl Server {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut EngineOptions)) -> Self {
        Self::open(Arc::new(tempfile::tempdir().unwrap()), change)
    }

    fn open(dir: Arc<tempfile::TempDir>, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let store = Store::open(StoreOptions::new(dir.path().join("data"))).unwrap();
        Self::over(store, dir, change)
    }

    fn over(store: Arc<Store>, dir: Arc<tempfile::TempDir>, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let mut options = EngineOptions::new(dir.path().join("spill"), tokio::runtime::Handle::current());
        options.target_partitions = 2;
        change(&mut options);
        let engine = Engine::new(store, options).unwrap();
        let session = engine.open_session("test");
        Self { engine, session, dir }
    }

    /// Stops, and starts again on the same folder.
    async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// Like [`Self::restart`], with other options.
    async fn restart_with(self, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let Self { engine, session, dir } = self;
        engine.close_session(session.id());
        engine.store().close().unwrap();
        drop((engine, session));
        // Aborted tasks drop their references to the store a moment later.
        let mut attempts = 0;
        let store = loop {
            match Store::open(StoreOptions::new(dir.path().join("data"))) {
                Ok(store) => break store,
                Err(error) => assert!(attempts < 200, "{error}"),
            }
            attempts += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        Self::over(store, dir, change)
    }

    async fn run(&self, sql: &str) -> Result<u64> {
        self.session.prepare(sql).await?.update(None).await
    }

    async fn batches(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let running = self.session.prepare(sql).await?.query(None).await?;
        running.stream.try_collect().await.map_err(Error::from)
    }

    /// Rows as text: cells by `|`, lines in order.
    async fn rows(&self, sql: &str) -> Vec<String> {
        row_texts(&self.batches(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")))
    }

    /// The statement that recreates a table or view.
    async fn definition(&self, name: &str) -> String {
        let shown = self.batches(&format!("SHOW CREATE TABLE {name}")).await.unwrap();
        shown[0].column_by_name("definition").unwrap().as_string::<i32>().value(0).to_owned()
    }

    /// Sends rows as a stream.
    async fn ingest(&self, request: IngestRequest, rows: RecordBatch, transaction: Option<&str>) -> Result<u64> {
        let schema = rows.schema();
        let stream = futures::stream::iter([Ok(rows)]).boxed();
        self.engine.ingest(&self.session, request, schema, stream, transaction).await
    }

    /// Appends rows to a table.
    async fn append(&self, table: &str, rows: RecordBatch, transaction: Option<&str>) -> Result<u64> {
        let mode = IngestMode::Append;
        let options = HashMap::new();
        self.ingest(IngestRequest { schema: None, table: table.into(), mode, options }, rows, transaction).await
    }

    async fn fails(&self, sql: &str, kind: ErrorKind, words: &str) {
        let result = match self.session.prepare(sql).await {
            Ok(prepared) if prepared.is_update() => prepared.update(None).await.map(|_| ()),
            Ok(prepared) => match prepared.query(None).await {
                Ok(running) => running.stream.try_collect::<Vec<_>>().await.map(|_| ()).map_err(Error::from),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let error = result.expect_err(sql);
        assert_eq!(error.kind(), kind, "{sql}: {error}");
        assert!(error.message().contains(words), "{sql}: {error}");
        for dump in ["Error(", "Some(", "DataFusionError", "backtrace"] {
            assert!(!error.message().contains(dump), "{sql}: {error}");
        }
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_survive_a_restart() {
    let server = Server::new();
    let csv = server.dir.path().join("x.csv");
    std::fs::write(&csv, "id,name\n1,007\n2,b\n").unwrap();
    server
        .run("CREATE TABLE t (a BIGINT NOT NULL, b VARCHAR, PRIMARY KEY (a)) WITH (cluster_by = 'b, a', chunk_rows = 100)")
        .await
        .unwrap();
    assert_eq!(server.run("INSERT INTO t VALUES (1, 'x'), (2, NULL), (3, 'y')").await.unwrap(), 3);
    assert_eq!(
        server.run("CREATE TABLE big AS SELECT value AS v, 'k' AS k FROM generate_series(1, 1000)").await.unwrap(),
        1000
    );
    server.run("CREATE SCHEMA s").await.unwrap();
    server.run("CREATE TABLE s.t AS SELECT 7 AS seven").await.unwrap();
    server.run("CREATE VIEW v AS SELECT a + 1 AS next FROM t WHERE b IS NOT NULL").await.unwrap();
    server.run("CREATE VIEW w AS SELECT sum(next) AS total FROM v").await.unwrap();
    let location = csv.display();
    server
        .run(&format!("CREATE EXTERNAL TABLE e (id INT, name VARCHAR) STORED AS CSV LOCATION '{location}' OPTIONS ('format.has_header' 'true')"))
        .await
        .unwrap();
    let server = server.restart().await;
    assert_eq!(server.rows("SELECT * FROM t ORDER BY a").await, ["1|x", "2|", "3|y"]);
    assert_eq!(server.rows("SELECT count(*), min(v), max(v) FROM big").await, ["1000|1|1000"]);
    assert_eq!(server.rows("SELECT * FROM s.t").await, ["7"]);
    assert_eq!(server.rows("SELECT * FROM w").await, ["6"]);
    assert_eq!(server.rows("SELECT * FROM e ORDER BY id").await, ["1|007", "2|b"]);
    let table = server.engine.store().table(&terrace_tier_store::table::TableName::new("public", "t")).unwrap();
    assert_eq!((table.primary_key(), table.options().chunk_rows), (&["a".to_owned()][..], 100));
    assert_eq!(table.options().cluster_by, ["b", "a"]);
    for sql in ["DROP TABLE t", "DROP VIEW w", "DROP VIEW v", "DROP TABLE e, big", "DROP SCHEMA s CASCADE"] {
        server.run(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
    let server = server.restart().await;
    assert!(
        server
            .rows("SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', 's')")
            .await
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_taken_once() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT)").await.unwrap();
    server.run("CREATE VIEW v AS SELECT 1 AS one").await.unwrap();
    server.fails("CREATE TABLE t (a INT)", ErrorKind::AlreadyExists, "table 't' already exists").await;
    server.fails("CREATE TABLE v (a INT)", ErrorKind::AlreadyExists, "view").await;
    server.fails("CREATE VIEW t AS SELECT 1 AS one", ErrorKind::AlreadyExists, "table").await;
    server.fails("CREATE VIEW v AS SELECT 2 AS two", ErrorKind::AlreadyExists, "OR REPLACE").await;
    server.fails("CREATE OR REPLACE VIEW v AS SELECT * FROM v", ErrorKind::InvalidArgument, "itself").await;
    assert_eq!(server.run("CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS a").await.unwrap(), 0);
    server.run("CREATE OR REPLACE VIEW v AS SELECT 2 AS two").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM v").await, ["2"]);
    server.run("INSERT INTO t VALUES (1)").await.unwrap();
    server.run("CREATE OR REPLACE TABLE t AS SELECT a + 1 AS a FROM t").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM t").await, ["2"]);
    server.run("CREATE OR REPLACE TABLE t (b VARCHAR)").await.unwrap();
    assert!(server.rows("SELECT b FROM t").await.is_empty());
    server.fails("DROP VIEW t", ErrorKind::InvalidArgument, "DROP TABLE").await;
    server.fails("DROP TABLE v", ErrorKind::InvalidArgument, "DROP VIEW").await;
    server.fails("DROP TABLE missing", ErrorKind::NotFound, "table 'missing' does not exist").await;
    assert_eq!(server.run("DROP TABLE IF EXISTS missing").await.unwrap(), 0);
    // The error names a view whose table was dropped, and the view can be dropped.
    server.run("CREATE TABLE base (a INT)").await.unwrap();
    server.run("CREATE VIEW broken AS SELECT a FROM base").await.unwrap();
    server.run("DROP TABLE base").await.unwrap();
    server.fails("SELECT * FROM broken", ErrorKind::NotFound, "broken").await;
    server.run("DROP VIEW broken").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_create_table_as_leaves_nothing() {
    let server = Server::new();
    server
        .fails(
            "CREATE TABLE t AS SELECT 1 / (value - 150000) AS x FROM generate_series(1, 200000)",
            ErrorKind::InvalidArgument,
            "zero",
        )
        .await;
    server.fails("SELECT * FROM t", ErrorKind::NotFound, "table 't' does not exist; SHOW TABLES").await;
    let files = std::fs::read_dir(server.engine.store().data_dir().join("ssd")).map_or(0, Iterator::count);
    assert_eq!(files, 0, "chunk files stay behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_count_rows_and_are_read_back() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT NOT NULL, b DOUBLE) WITH (cluster_by = 'a')").await.unwrap();
    let select = server.session.prepare("SELECT count(*) FROM t").await.unwrap();
    let count = async || {
        let rows: Vec<RecordBatch> = select.query(None).await.unwrap().stream.try_collect().await.unwrap();
        rows[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0)
    };
    assert_eq!(count().await, 0);
    assert_eq!(server.run("INSERT INTO t (b, a) VALUES (1.5, 2)").await.unwrap(), 1);
    assert_eq!(count().await, 1, "a prepared statement sees what was committed since");
    assert_eq!(
        server.run("INSERT INTO t SELECT 100000 - value, 0 FROM generate_series(1, 100000)").await.unwrap(),
        100_000
    );
    assert_eq!(count().await, 100_001);
    server.fails("INSERT INTO t VALUES (NULL, 1)", ErrorKind::InvalidArgument, "'a' is NOT NULL").await;
    server
        .fails(
            "INSERT INTO t SELECT NULL, value FROM generate_series(1, 2)",
            ErrorKind::InvalidArgument,
            "'a' is NOT NULL",
        )
        .await;
    server.fails("INSERT INTO t VALUES ('x', 1)", ErrorKind::InvalidArgument, "x").await;
    // An update through query runs once and reports its count.
    let rows = server.rows("INSERT INTO t VALUES (1, 1), (1, 1)").await;
    assert_eq!((rows, count().await), (vec!["2".to_owned()], 100_003));
    // Clustered: the first chunk holds the smallest keys.
    let chunk = "SELECT count(*) FROM system.chunks WHERE table_name = 't'";
    assert_eq!(server.rows(chunk).await, ["2"]);
    assert_eq!(server.rows("SELECT count(*) FROM t a JOIN t b ON a.a = b.a WHERE a.a = 1").await, ["9"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_are_typed_by_the_planner() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT, b VARCHAR, c DECIMAL(10, 2))").await.unwrap();
    let insert = server.session.prepare("INSERT INTO t VALUES (?, ?, ? + 1)").await.unwrap();
    assert!(insert.is_update() && insert.dataset_schema().fields().is_empty());
    let types: Vec<DataType> = insert.parameter_schema().fields().iter().map(|f| f.data_type().clone()).collect();
    assert_eq!(types[..2], [DataType::Int32, DataType::Utf8View]);
    let many = batch(vec![
        ("0", Arc::new(Int64Array::from(vec![Some(1), Some(2), None])) as ArrayRef),
        ("1", Arc::new(StringArray::from(vec!["x", "y", "z"])) as ArrayRef),
        ("2", Arc::new(Int64Array::from(vec![10, 20, 30])) as ArrayRef),
    ]);
    assert_eq!(insert.update(Some(many.clone())).await.unwrap(), 3);
    assert_eq!(insert.update(Some(many.slice(1, 1))).await.unwrap(), 1);
    assert_eq!(insert.update(Some(many.slice(0, 0))).await.unwrap(), 0);
    assert_eq!(server.rows("SELECT * FROM t ORDER BY b, c").await, ["1|x|11.00", "2|y|21.00", "2|y|21.00", "|z|31.00"]);
    // All rows or none.
    let bad = batch(vec![
        ("0", Arc::new(StringArray::from(vec!["5", "five"])) as ArrayRef),
        ("1", Arc::new(StringArray::from(vec!["p", "q"])) as ArrayRef),
        ("2", Arc::new(Int64Array::from(vec![1, 1])) as ArrayRef),
    ]);
    let error = insert.update(Some(bad)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("$1"), "{error}");
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["4"]);

    let select = server.session.prepare("SELECT b FROM t WHERE a = $1 AND b <> $2 LIMIT 1").await.unwrap();
    let one = batch(vec![
        ("a", Arc::new(Int64Array::from(vec![1])) as ArrayRef),
        ("b", Arc::new(StringArray::from(vec!["q"])) as ArrayRef),
    ]);
    let rows: Vec<RecordBatch> = select.query(Some(one)).await.unwrap().stream.try_collect().await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    let error = select.query(None).await.unwrap_err();
    assert!(error.message().contains("takes 2 parameters"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_stores_all_rows_or_none() {
    let server = Server::new();
    let rows = batch(vec![
        ("id", Arc::new(Int32Array::from(vec![3, 1, 2])) as ArrayRef),
        ("name", Arc::new(StringArray::from(vec![Some("c"), None, Some("b")])) as ArrayRef),
    ]);
    let send = async |mode, rows: Vec<Result<RecordBatch>>, options: &[(&str, &str)]| {
        let schema = rows[0].as_ref().unwrap().schema();
        let options: HashMap<String, String> =
            options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let request = IngestRequest { schema: None, table: "t".to_owned(), mode, options };
        server.engine.ingest(&server.session, request, schema, futures::stream::iter(rows).boxed(), None).await
    };
    let error = send(IngestMode::Append, vec![Ok(rows.clone())], &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(send(IngestMode::Create, vec![Ok(rows.clone())], &[("cluster_by", "id")]).await.unwrap(), 3);
    assert_eq!(server.rows("SELECT id FROM t").await, ["1", "2", "3"], "sorted by cluster_by");
    let error = send(IngestMode::Create, vec![Ok(rows.clone())], &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(send(IngestMode::Append, vec![Ok(rows.clone()), Ok(rows.clone())], &[]).await.unwrap(), 6);
    assert_eq!(send(IngestMode::CreateAppend, vec![Ok(rows.clone())], &[]).await.unwrap(), 3);
    // A stream that breaks leaves no row.
    let broken = vec![Ok(rows.clone()), Err(Error::new(ErrorKind::Cancelled, "the client went away"))];
    assert_eq!(send(IngestMode::Append, broken, &[]).await.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["12"]);
    // Columns are matched by name, in any order; the error names every mismatch.
    let wrong = batch(vec![
        ("name", Arc::new(Int32Array::from(vec![1])) as ArrayRef),
        ("extra", Arc::new(Int32Array::from(vec![1])) as ArrayRef),
        ("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef),
    ]);
    let error = send(IngestMode::Append, vec![Ok(wrong)], &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    for words in ["'name' is Utf8View, the rows have Int32", "'id' is Int32, the rows have Int64", "no column 'extra'"]
    {
        assert!(error.message().contains(words), "{error}");
    }
    assert_eq!(send(IngestMode::Replace, vec![Ok(rows.slice(0, 1))], &[]).await.unwrap(), 1);
    assert_eq!(server.rows("SELECT * FROM t").await, ["3|c"]);
    let error = send(IngestMode::Replace, vec![Ok(rows)], &[("cluster_bye", "id")]).await.unwrap_err();
    assert!(error.message().contains("cluster_by"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clustered_ingest_larger_than_query_memory_spills_and_is_sorted() {
    larger_than_query_memory(8192, |text| Arc::new(text.into_iter().collect::<StringArray>())).await;
    // A sort cuts these into batches that share the buffers of their texts.
    larger_than_query_memory(65_536, |text| Arc::new(text.into_iter().collect::<StringViewArray>())).await;
}

async fn larger_than_query_memory(batch_rows: u64, text: fn(Vec<Option<String>>) -> ArrayRef) {
    const ROWS: u64 = 983_040;
    let server = Server::with(|o| o.query_memory_bytes = 32 << 20);
    let rows = move |number: u64| {
        let keys = number * batch_rows..(number + 1) * batch_rows;
        let keys = keys.map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) as i64);
        let texts = |name: &str| text(keys.clone().map(|k| Some(format!("{name} of row {k}, not inlined"))).collect());
        let s = texts("a text");
        let t = texts("another text");
        batch(vec![("k", Arc::new(keys.collect::<Int64Array>()) as ArrayRef), ("s", s), ("t", t)])
    };
    let spilled = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&spilled);
    let engine = Arc::clone(&server.engine);
    let source = futures::stream::iter(0..ROWS / batch_rows).map(move |number| {
        seen.fetch_max(engine.spilled_bytes(), Ordering::Relaxed);
        Ok(rows(number))
    });
    let options = [("cluster_by".to_owned(), "k".to_owned())].into();
    let request = IngestRequest { schema: None, table: "t".to_owned(), mode: IngestMode::Create, options };
    let schema = rows(0).schema();
    assert_eq!(server.engine.ingest(&server.session, request, schema, source.boxed(), None).await.unwrap(), ROWS);
    assert!(spilled.load(Ordering::Relaxed) > 0, "all of it was held in memory");
    // The tasks of the sort may end a moment later.
    for _ in 0..1000 {
        if server.engine.spilled_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(server.engine.spilled_bytes(), 0, "spill files stay behind");
    assert_eq!(server.rows("SELECT count(DISTINCT k), count(s) FROM t").await, ["983040|983040"]);
    // Chunks do not overlap: all rows were sorted, not each chunk by itself.
    let table = server.engine.store().table(&TableName::new("public", "t")).unwrap();
    let version = table.version();
    let bounds = version.statistics.column(0).unwrap();
    let min = bounds.min.as_primitive::<Int64Type>();
    let max = bounds.max.as_primitive::<Int64Type>();
    assert!(min.len() >= 15 && (1..min.len()).all(|i| max.value(i - 1) < min.value(i)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_writes_and_reads_files() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT, b VARCHAR)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, '007'), (2, NULL)").await.unwrap();
    let path = |name: &str| server.dir.path().join(name).display().to_string();
    for name in ["t.parquet", "t.csv", "t.json"] {
        let file = path(name);
        assert_eq!(server.run(&format!("COPY t TO '{file}'")).await.unwrap(), 2, "{name}");
        server.run("CREATE OR REPLACE TABLE u (b VARCHAR, a BIGINT)").await.unwrap();
        assert_eq!(server.run(&format!("COPY u FROM '{file}'")).await.unwrap(), 2, "{name}");
        assert_eq!(server.rows("SELECT a, b FROM u ORDER BY a").await, ["1|007", "2|"], "{name}");
    }
    let file = path("q.parquet");
    assert_eq!(server.run(&format!("COPY (SELECT a FROM t WHERE a = 1) TO '{file}'")).await.unwrap(), 1);
    std::fs::write(path("p.tbl"), "5|x\n6|y\n").unwrap();
    let file = path("p.tbl");
    assert_eq!(
        server
            .run(&format!("COPY t (a, b) FROM '{file}' WITH (FORMAT csv, HEADER false, DELIMITER '|')"))
            .await
            .unwrap(),
        2
    );
    assert_eq!(server.rows("SELECT a, b FROM t WHERE a > 4 ORDER BY a").await, ["5|x", "6|y"]);
    std::fs::write(path("bad.csv"), "a,b\n1,x\nnope,y\n").unwrap();
    let file = path("bad.csv");
    server.fails(&format!("COPY t FROM '{file}'"), ErrorKind::InvalidArgument, "nope").await;
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["4"]);
    server.fails("COPY t FROM '/nowhere/x.csv'", ErrorKind::NotFound, "/nowhere/x.csv").await;
    server.fails("COPY missing FROM '/nowhere/x.csv'", ErrorKind::NotFound, "table 'missing' does not exist").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_tables_show_what_is_there() {
    let server = Server::new();
    server
        .run("CREATE TABLE t WITH (chunk_rows = 1000) AS SELECT value AS a, 'x' AS b FROM generate_series(1, 2500)")
        .await
        .unwrap();
    server.run("CREATE TABLE other AS SELECT 1 AS a").await.unwrap();
    server.rows("SELECT sum(a) FROM t").await;
    let segments =
        "SELECT chunk, column_name, accesses FROM system.segments WHERE table_name = 't' ORDER BY chunk, position";
    assert_eq!(server.rows(segments).await, ["0|a|1", "0|b|0", "1|a|1", "1|b|0", "2|a|1", "2|b|0"]);
    // However often a statement names the table.
    server
        .rows("SELECT count(*) FROM t x JOIN t y ON x.a = y.a WHERE x.a IN (SELECT max(a) - 1 FROM t GROUP BY b)")
        .await;
    server.rows("SELECT a FROM t UNION ALL SELECT a FROM t UNION ALL SELECT -a FROM t").await;
    let counts =
        "SELECT max(accesses), max(sequential), max(values_read) > 3000 FROM system.segments WHERE column_name = 'a'";
    assert_eq!(server.rows(counts).await, ["3|3|true"]);
    assert_eq!(
        server.rows("SELECT rows, chunks, columns FROM system.tables WHERE table_name = 't'").await,
        ["2500|3|2"]
    );
    assert_eq!(
        server.rows("SELECT sum(rows) FROM system.chunks WHERE table_schema = 'public' AND table_name = 't'").await,
        ["2500"]
    );
    let columns = "SELECT column_name, position, data_type, distinct_values BETWEEN 2000 AND 2500, stored_bytes <= bytes \
                   FROM system.columns WHERE table_name = 't' ORDER BY position";
    assert_eq!(server.rows(columns).await, ["a|0|Int64|true|true", "b|1|Utf8View|false|true"]);
    assert_eq!(server.rows("SELECT distinct_values FROM system.columns WHERE column_name = 'b'").await, ["1"]);
    let agree = "SELECT (SELECT sum(bytes) FROM system.segments) = (SELECT sum(placed_bytes) FROM system.tiers)";
    assert_eq!(server.rows(agree).await, ["true"]);
    let gaps = "SELECT tier, read_gap_bytes FROM system.tiers WHERE read_gap_bytes IS NOT NULL";
    assert_eq!(server.rows(gaps).await, ["ssd|16384"]);
    assert_eq!(
        server.rows("SELECT state FROM system.queries WHERE sql LIKE '%sum(a)%' ORDER BY state").await,
        ["done", "running"]
    );
    for table in ["epochs", "moves"] {
        assert_eq!(server.rows(&format!("SELECT count(*) FROM system.{table}")).await, ["0"]);
    }
    let classes = ["point", "needed", "spill", "prefetch", "write", "upkeep"];
    assert_eq!(server.rows("SELECT class FROM system.io").await, classes);
    for [operations, bytes, wait] in [["reads", "bytes", "wait"], ["writes", "written_bytes", "write_wait"]] {
        let waits = format!(
            "SELECT count(*) FROM system.io WHERE ({operations} = 0) = ({wait}_p50_us IS NULL) \
             AND ({operations} = 0) = ({wait}_p99_us IS NULL) AND coalesce({wait}_p50_us <= {wait}_p99_us, true) \
             AND ({operations} = 0) = ({bytes} = 0) AND {bytes} >= {operations}"
        );
        assert_eq!(server.rows(&waits).await, ["6"], "{operations}");
    }
    let entries = server.session.entries().await.unwrap();
    assert!(entries.iter().all(|e| !e.columns.fields().is_empty()));
    assert_eq!(entries.iter().filter(|e| e.kind == EntryKind::System && e.schema == "system").count(), 25);
    assert!(server.rows("SHOW TABLES").await.iter().any(|r| r.contains("public|t|")));
    server.fails("DROP TABLE system.tiers", ErrorKind::PermissionDenied, "system").await;
    server.fails("INSERT INTO system.tiers SELECT * FROM system.tiers", ErrorKind::PermissionDenied, "system").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_kinds_and_readable_words() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT, b VARCHAR)").await.unwrap();
    for (sql, kind, words) in [
        ("SELECT * FROM x", ErrorKind::NotFound, "table 'x' does not exist; SHOW TABLES lists"),
        ("SELECT * FROM nope.x", ErrorKind::NotFound, "nope.x"),
        ("SELECT c FROM t", ErrorKind::InvalidArgument, "'c' does not exist"),
        ("SELECT (a FROM t", ErrorKind::InvalidArgument, "SQL syntax"),
        ("SELECT nofunction(a) FROM t", ErrorKind::InvalidArgument, "nofunction"),
        ("SELECT 1 / 0", ErrorKind::InvalidArgument, "zero"),
        ("SELECT CAST(b AS INT) FROM (VALUES ('x')) v(b)", ErrorKind::InvalidArgument, "x"),
        ("CREATE TABLE u (a INT DEFAULT b)", ErrorKind::InvalidArgument, "DEFAULT"),
        ("CREATE TABLE u (a INT) WITH (compression = 'zstd')", ErrorKind::InvalidArgument, "cluster_by"),
        ("CREATE TABLE u (a INT) WITH (cluster_by = 'z')", ErrorKind::NotFound, "z"),
        ("CREATE TABLE nope.u (a INT)", ErrorKind::NotFound, "CREATE SCHEMA nope"),
        ("CREATE EXTERNAL TABLE u STORED AS PARQUET LOCATION '/nowhere/'", ErrorKind::NotFound, "/nowhere/"),
        ("CREATE EXTERNAL TABLE u STORED AS PARQUET LOCATION 's3://b/'", ErrorKind::PermissionDenied, "object_roots"),
        ("EXPLAIN ANALYZE INSERT INTO t VALUES (1, 'x')", ErrorKind::Unimplemented, "queries only"),
        ("SET datafusion.runtime.memory_limit = '1G'", ErrorKind::PermissionDenied, "datafusion.optimizer."),
        ("SET datafusion.execution.batch_size = 0", ErrorKind::InvalidArgument, "1 to 65536"),
        ("GRANT SELECT ON t TO u", ErrorKind::NotFound, "'u' does not exist"),
    ] {
        server.fails(sql, kind, words).await;
    }
    assert!(server.engine.counters().ended(StatementKind::Query, Outcome::Failed) > 0);
    assert!(server.session.prepare("SELECT 1").await.unwrap().update(None).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_have_options_of_their_own() {
    let server = Server::new();
    let other = server.engine.open_session("other");
    server.run("SET datafusion.execution.batch_size = 17").await.unwrap();
    assert_eq!(server.rows("SHOW datafusion.execution.batch_size").await, ["datafusion.execution.batch_size|17"]);
    assert_eq!(server.session.options().get("datafusion.execution.batch_size").map(String::as_str), Some("17"));
    assert!(!other.options().contains_key("datafusion.execution.batch_size"));
    server.run("RESET datafusion.execution.batch_size").await.unwrap();
    assert_eq!(server.rows("SHOW datafusion.execution.batch_size").await, ["datafusion.execution.batch_size|8192"]);
    server.run("SET TIME ZONE = '+02:00'").await.unwrap();
    assert_eq!(server.rows("SELECT '2024-01-01T00:00:00Z'::timestamptz").await, ["2024-01-01T02:00:00+02:00"]);
    server.run("CREATE SCHEMA s").await.unwrap();
    server.run("CREATE TABLE s.t AS SELECT 1 AS a").await.unwrap();
    server.run("CREATE VIEW s.v AS SELECT a FROM s.t").await.unwrap();
    assert_eq!(server.rows("DESCRIBE s.t").await.len(), 1);
    assert_eq!(server.rows("SHOW COLUMNS FROM s.t").await.len(), 1);
    assert!(server.rows("SHOW CREATE TABLE s.v").await.concat().contains("SELECT a FROM s.t"));
    server.session.set_option("schema", Some("s")).unwrap();
    assert_eq!(server.rows("SELECT a FROM t").await, ["1"]);
    assert_eq!(server.session.set_option("schema", Some("nope")).unwrap_err().kind(), ErrorKind::NotFound);
    server.engine.close_session(server.session.id());
    assert!(server.engine.session(server.session.id()).is_err() && server.engine.session(other.id()).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_refuses_new_work_and_ends_the_old() {
    let server = Server::new();
    let endless = server.session.prepare("SELECT * FROM generate_series(1, 1000000000)").await.unwrap();
    let mut slow = endless.query(None).await.unwrap();
    slow.stream.next().await.unwrap().unwrap();
    server.engine.drain(Duration::from_millis(100)).await;
    let mut last = None;
    while let Some(item) = slow.stream.next().await {
        last = item.err().map(|e| Error::from(e).kind());
    }
    assert_eq!(last, Some(ErrorKind::Cancelled));
    assert_eq!(server.batches("SELECT 1").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_key_is_not_trusted() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT PRIMARY KEY, v INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 1), (1, 2)").await.unwrap();
    assert_eq!(server.rows("SELECT DISTINCT k FROM t").await, ["1"]);
    assert_eq!(server.rows("SELECT k, count(*) FROM t GROUP BY k").await, ["1|2"]);
}

#[test]
fn stored_types_are_views_and_hydrated() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let list = DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)));
    let schema = Schema::new(vec![Field::new("d", dictionary, true), Field::new("l", list, true)]);
    let stored = types::stored_schema(&schema, &["d".to_owned()]).unwrap();
    assert_eq!(stored.field(0), &Field::new("d", DataType::Utf8View, false));
    let list = DataType::List(Arc::new(Field::new("item", DataType::Utf8View, true)));
    assert_eq!(stored.field(1).data_type(), &list);
}
