//! Queries that read the same table versions each time.

use super::*;

async fn rows(prepared: &Arc<Prepared>) -> Result<Vec<String>> {
    let running = prepared.query(None).await?;
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
    Ok(row_texts(&batches))
}

async fn with_rows() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT NOT NULL, v BIGINT, f DOUBLE, s VARCHAR)").await.unwrap();
    let rows =
        "SELECT value, value % 7, CAST(value AS DOUBLE) / 3, concat('s', value % 3) FROM generate_series(1, 1000)";
    server.run(&format!("INSERT INTO t {rows}")).await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_not_seen() {
    let server = with_rows().await;
    let sql = "SELECT s, count(*), sum(v), max(k) FROM t GROUP BY s ORDER BY s";
    let prepared = server.session.prepare(sql).await.unwrap();
    let pinned = prepared.pinned().await.unwrap().unwrap();
    let first = rows(&pinned).await.unwrap();
    for change in [
        "INSERT INTO t VALUES (2000, 5, 1.0, 's1')",
        "UPDATE t SET v = 0",
        "DELETE FROM t WHERE k > 10",
        "OPTIMIZE t",
        "ALTER TABLE t ADD COLUMN z BIGINT",
    ] {
        server.run(change).await.unwrap();
        assert_eq!(rows(&pinned).await.unwrap(), first, "{change}");
        assert_ne!(server.rows(sql).await, first, "{change}");
    }
    // A transaction that begins later is none of its business.
    server.run("BEGIN").await.unwrap();
    server.run("INSERT INTO t (k) VALUES (3000)").await.unwrap();
    assert_eq!(rows(&pinned).await.unwrap(), first);
    server.run("ROLLBACK").await.unwrap();
    server.run("DROP TABLE t").await.unwrap();
    assert_eq!(rows(&pinned).await.unwrap(), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_queries_whose_rows_the_tables_decide_are_pinned() {
    let server = with_rows().await;
    for (sql, is_pinned) in [
        ("SELECT * FROM t", true),
        ("SELECT k, f * 2 FROM t WHERE f > 10 ORDER BY k", true),
        ("SELECT DISTINCT s FROM t UNION ALL SELECT s FROM t WHERE k IN (SELECT max(k) FROM t)", true),
        ("SELECT a.k FROM t a LEFT JOIN t b ON a.k = b.v WHERE a.s LIKE 's%'", true),
        ("SELECT count(DISTINCT f), min(s), sum(k) FROM t", true),
        // Which rows, which of equal ones, and in which order they are added.
        ("SELECT k FROM t LIMIT 5", false),
        ("SELECT k FROM t WHERE k = (SELECT v FROM t LIMIT 1)", false),
        ("SELECT row_number() OVER (ORDER BY v) FROM t", false),
        ("SELECT sum(f) FROM t", false),
        ("SELECT avg(k) FROM t", false),
        ("SELECT DISTINCT f FROM t", false),
        ("SELECT array_agg(k) FROM t", false),
        // More than tables.
        ("SELECT now() FROM t", false),
        ("SELECT random() FROM t", false),
        ("SELECT count(*) FROM system.queries", false),
        ("SELECT count(*) FROM generate_series(1, 3)", false),
        ("EXPLAIN SELECT k FROM t", false),
        ("SHOW TABLES", false),
    ] {
        let prepared = server.session.prepare(sql).await.unwrap();
        assert_eq!(prepared.pinned().await.unwrap().is_some(), is_pinned, "{sql}");
    }
    let change = server.session.prepare("DELETE FROM t").await.unwrap();
    assert!(change.pinned().await.unwrap().is_none());
    server.run("BEGIN").await.unwrap();
    let prepared = server.session.prepare("SELECT k FROM t").await.unwrap();
    assert!(prepared.pinned().await.unwrap().is_none(), "its snapshot ends with the transaction");
    server.run("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_rights_ends_what_was_pinned() {
    let server = with_rows().await;
    let prepared = server.session.prepare("SELECT k FROM t").await.unwrap();
    let pinned = prepared.pinned().await.unwrap().unwrap();
    assert_eq!(rows(&pinned).await.unwrap().len(), 1000);
    server.run("CREATE ROLE readers").await.unwrap();
    server.run("GRANT SELECT ON t TO readers").await.unwrap();
    let error = rows(&pinned).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(error.message().contains("run it again"), "{error}");
    assert_eq!(rows(&prepared).await.unwrap().len(), 1000);
}
