//! Queries of which several nodes execute parts.

use super::*;

/// An engine with so many nodes, and tables of many chunks; small ones go to nodes, too.
async fn with_nodes(nodes: usize) -> Server {
    let server = Server::with(|options| {
        options.nodes = nodes;
        options.nodes_least_rows = 0;
    });
    for sql in [
        "CREATE TABLE fact (k BIGINT NOT NULL, d INT, amount DECIMAL(12, 2) NOT NULL, name VARCHAR) WITH (chunk_rows = 500)",
        "CREATE TABLE dim (d INT NOT NULL, label VARCHAR NOT NULL)",
        "INSERT INTO fact SELECT value, CASE WHEN value % 11 > 0 THEN value % 97 END, value / 4, \
         CASE WHEN value % 5 > 0 THEN 'name ' || (value % 31) END FROM generate_series(1, 20000)",
        "INSERT INTO dim SELECT value, 'label ' || (value % 7) FROM generate_series(0, 96)",
        "INSERT INTO fact VALUES (20001, 5, 1.25, 'late'), (20002, NULL, 2.50, NULL)",
    ] {
        server.run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    server
}

/// What EXPLAIN says of nodes.
async fn placed(server: &Server, sql: &str) -> String {
    for batch in server.batches(&format!("EXPLAIN {sql}")).await.unwrap_or_else(|error| panic!("{sql}: {error}")) {
        let (kinds, texts) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        if let Some(at) = (0..batch.num_rows()).find(|at| kinds.value(*at) == "nodes") {
            return texts.value(at).to_owned();
        }
    }
    String::new()
}

async fn sorted_rows(server: &Server, sql: &str) -> Vec<String> {
    let mut rows = server.rows(sql).await;
    rows.sort_unstable();
    rows
}

/// Queries that nodes execute parts of.
const QUERIES: [&str; 15] = [
    "SELECT d, count(*), sum(amount), min(name) FROM fact GROUP BY d",
    "SELECT sum(amount * 2 + 1), avg(k), count(DISTINCT name) FROM fact WHERE name LIKE '%1%'",
    "SELECT label, count(*), sum(amount) FROM fact JOIN dim ON fact.d = dim.d WHERE label < 'label 3' GROUP BY label",
    "SELECT a.k, b.name FROM fact a JOIN fact b ON a.k = b.k + 1 WHERE a.d = 5",
    "SELECT * FROM fact ORDER BY name DESC NULLS LAST, k LIMIT 15",
    "SELECT k FROM fact WHERE d IN (SELECT d FROM dim WHERE label = 'label 4') ORDER BY k",
    "SELECT k FROM fact f WHERE NOT EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d AND label > 'label 0')",
    "SELECT dim.d, count(k) FROM dim LEFT JOIN fact ON fact.d = dim.d AND k < 400 GROUP BY dim.d",
    "SELECT k, rank() OVER (PARTITION BY d ORDER BY amount, k) FROM fact WHERE k % 7 = 0",
    "SELECT d, label FROM dim UNION SELECT d, name FROM fact WHERE k < 900",
    "SELECT count(*) FROM fact WHERE amount > (SELECT avg(amount) FROM fact WHERE d = 7)",
    "SELECT d, name, grouping(d), sum(k) FROM fact WHERE k < 3000 GROUP BY ROLLUP (d, name)",
    "SELECT array_agg(k ORDER BY k) FROM fact WHERE d = 13 GROUP BY name",
    "SELECT count(*) FROM fact WHERE k > (SELECT k FROM fact WHERE d = 7 ORDER BY k DESC LIMIT 1)",
    "WITH top AS (SELECT d, sum(amount) AS total FROM fact GROUP BY d) SELECT max(total) FROM top WHERE total < 60000",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_the_same_with_any_number_of_nodes() {
    let whole = with_nodes(1).await;
    assert!(whole.engine.nodes().is_empty() && placed(&whole, QUERIES[0]).await.is_empty());
    for count in [2, 3] {
        let server = with_nodes(count).await;
        let mut reasons = Vec::new();
        for sql in QUERIES {
            assert_eq!(sorted_rows(&server, sql).await, sorted_rows(&whole, sql).await, "{sql} on {count} nodes");
            let text = placed(&server, sql).await;
            if !text.contains("Stage 1") {
                assert!(text.starts_with("executed as a whole: "), "{sql}: {text}");
                reasons.push((sql, text));
            }
        }
        assert!(reasons.len() <= 4, "these are not executed by {count} nodes: {reasons:#?}");
        let records = server.engine.nodes();
        assert_eq!(records.len(), count);
        let items: u64 = records.iter().map(|record| record.items).sum();
        assert!(records.iter().all(|record| record.tasks > 0 && record.items * 5 >= items), "{records:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_stay_whole_for_reasons_that_explain_tells() {
    let server = with_nodes(2).await;
    for (sql, words) in [
        ("SELECT count(*) FROM system.tables", "is no plain table of the store"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r", "recursive"),
        ("SELECT * FROM dim", "one stage"),
        ("SELECT count(*) FROM fact WHERE k > (SELECT d FROM dim WHERE d = 5)", "more than one row"),
    ] {
        let text = placed(&server, sql).await;
        assert!(text.starts_with("executed as a whole: ") && text.contains(words), "{sql}: {text}");
        server.batches(sql).await.unwrap();
    }
    server.run("BEGIN").await.unwrap();
    server.run("DELETE FROM fact WHERE k > 100").await.unwrap();
    assert_eq!(server.rows("SELECT count(*) FROM fact").await, ["100"]);
    assert!(placed(&server, QUERIES[0]).await.contains("in a transaction"));
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.rows("SELECT count(DISTINCT k) FROM fact").await, ["20002"]);
    let large_only = Server::with(|options| options.nodes = 2);
    large_only.run("CREATE TABLE t AS SELECT value AS v FROM generate_series(1, 1000)").await.unwrap();
    let text = placed(&large_only, "SELECT sum(v) FROM t").await;
    assert!(text.contains("1000 rows, fewer than cluster.least_rows = 1000000"), "{text}");
    assert_eq!(large_only.rows("SELECT sum(v) FROM t").await, ["500500"]);
    assert!(large_only.engine.nodes().iter().all(|node| node.tasks == 0), "{:?}", large_only.engine.nodes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_nodes_are_those_of_the_statement() {
    let server = with_nodes(3).await;
    let divided = "SELECT d, sum(1 / (k - 777)) FROM fact GROUP BY d";
    assert!(placed(&server, divided).await.contains("Stage 1"));
    server.fails(divided, ErrorKind::InvalidArgument, "zero").await;
    let cast = "SELECT d, max(CAST(name AS INT)) FROM fact WHERE name IS NOT NULL GROUP BY d";
    server.fails(cast, ErrorKind::InvalidArgument, "name").await;
    // As a join it would return each row of the table five times.
    let several = "SELECT count(*) FROM fact WHERE k > (SELECT d FROM dim WHERE d < 5)";
    let whole = with_nodes(1).await;
    let error = |found: Result<Vec<RecordBatch>>| found.err().map(|error| (error.kind(), error.message().to_owned()));
    let expected = error(whole.batches(several).await);
    assert!(expected.is_some(), "a subquery of several rows is an error");
    assert_eq!(error(server.batches(several).await), expected);
    assert_eq!(server.rows("SELECT count(DISTINCT k) FROM fact").await, ["20002"], "the nodes go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_is_cancelled_ends_on_all_nodes() {
    let server = with_nodes(3).await;
    // 400 million pairs.
    let endless = "SELECT a.d, sum(a.k * b.k) FROM fact a CROSS JOIN fact b GROUP BY a.d";
    assert!(placed(&server, endless).await.contains("Stage 1"));
    let session = server.engine.open_session("test");
    let running =
        tokio::spawn(async move { session.prepare(endless).await?.query(None).await.map(|running| running.id) });
    for _ in 0..1_000 {
        if server.engine.nodes().iter().all(|node| node.tasks > 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let record = server.engine.statements().into_iter().find(|record| record.sql == endless).unwrap();
    server.run(&format!("CANCEL QUERY '{}'", record.id)).await.unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    for _ in 0..1_000 {
        if server.engine.statements_on_nodes() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} statements are known to nodes", server.engine.statements_on_nodes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_queries_go_to_nodes_with_their_values() {
    let server = with_nodes(2).await;
    let whole = with_nodes(1).await;
    let sql = "SELECT d, count(*) FROM fact WHERE k > $1 AND amount < (SELECT max(amount) FROM fact) GROUP BY d";
    let rows = async |server: &Server| {
        let prepared = server.session.prepare(sql).await.unwrap();
        let values = batch(vec![("1", Arc::new(Int64Array::from(vec![9_000])) as ArrayRef)]);
        let found = prepared.query(Some(values)).await.unwrap();
        let found: Vec<RecordBatch> = found.stream.try_collect().await.unwrap();
        let mut rows = row_texts(&found);
        rows.sort_unstable();
        rows
    };
    assert_eq!(rows(&server).await, rows(&whole).await);
    assert!(server.engine.nodes().iter().all(|node| node.tasks > 0), "{:?}", server.engine.nodes());
}
