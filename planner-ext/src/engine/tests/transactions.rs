//! The transaction that a statement belongs to, and what the statement may do in it.

use super::*;

/// A statement that runs again after a conflict does so outside of the transaction that its session began meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_statement_stays_where_it_started() {
    let server = Server::with(|options| options.max_running = 1);
    server.run("CREATE TABLE t (k INT)").await.unwrap();
    server.run("CREATE TABLE s (k INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1), (2)").await.unwrap();
    server.run("INSERT INTO s VALUES (1)").await.unwrap();
    let other = server.engine.open_session("other");
    let run = async |sql: &str| other.prepare(sql).await.unwrap().update(None).await.unwrap();
    // The query with the only slot keeps it until its rows are read.
    let long = "SELECT value FROM generate_series(1, 10000000)";
    let holder = other.prepare(long).await.unwrap().query(None).await.unwrap();
    let update = server.session.prepare("UPDATE t SET k = k + 10 WHERE EXISTS (SELECT 1 FROM s)").await.unwrap();
    let update = tokio::spawn(async move { update.update(None).await });
    while server.engine.queued() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The statement is planned and waits. These need no slot; after the first, the statement has to run again.
    run("ALTER TABLE t ADD COLUMN v INT").await;
    server.run("BEGIN").await.unwrap();
    server.run("TRUNCATE s").await.unwrap();
    drop(holder);
    assert_eq!(update.await.unwrap().unwrap(), 2, "it does not see what the transaction did");
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.rows("SELECT k FROM t ORDER BY k").await, ["11", "12"]);
}

fn chunk_files(server: &Server) -> usize {
    let folder = std::fs::read_dir(server.dir.path().join("data/ssd")).unwrap();
    folder.map(|table| std::fs::read_dir(table.unwrap().path()).unwrap().count()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_statement_outlives_its_transaction_and_keeps_nothing_of_it() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT) WITH (chunk_rows = 100)").await.unwrap();
    server.run("INSERT INTO t VALUES (1)").await.unwrap();
    let files = chunk_files(&server);
    server.run("BEGIN").await.unwrap();
    server.run("INSERT INTO t SELECT value FROM generate_series(1, 1000)").await.unwrap();
    let count = server.session.prepare("SELECT count(*) FROM t").await.unwrap();
    let update = server.session.prepare("UPDATE t SET k = k + 1").await.unwrap();
    assert!(chunk_files(&server) > files);
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(chunk_files(&server), files, "rows that were rolled back leave their files");
    assert_eq!(update.update(None).await.unwrap(), 1);
    let rows: Vec<_> = count.query(None).await.unwrap().stream.try_collect().await.unwrap();
    assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().value(0), 1);
    server.run("BEGIN").await.unwrap();
    server.run("INSERT INTO t VALUES (7)").await.unwrap();
    let rows: Vec<_> = count.query(None).await.unwrap().stream.try_collect().await.unwrap();
    assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().value(0), 2);
    server.run("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_transaction_only_reads() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1)").await.unwrap();
    let csv = server.dir.path().join("t.csv");
    std::fs::write(&csv, "k\n1\n").unwrap();
    for begin in ["BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"] {
        server.run(begin).await.unwrap();
        let copy = format!("COPY t FROM '{}'", csv.display());
        for sql in [
            "INSERT INTO t VALUES (2)",
            "UPDATE t SET k = 2",
            "DELETE FROM t",
            "MERGE INTO t USING (SELECT 1 AS x) AS s ON t.k = s.x WHEN MATCHED THEN DELETE",
            "TRUNCATE t",
            "CREATE TABLE u (k INT)",
            "CREATE TABLE u AS SELECT 1 AS k",
            "ALTER TABLE t ADD COLUMN v INT",
            "DROP TABLE t",
            "OPTIMIZE t",
            "ALTER TABLE t PIN TO dram",
            "EPOCH NOW",
            "CANCEL EPOCH",
            "BRING BACK t TO dram",
            "WARM UP t",
            "ROLL BACK PLACEMENT TO EPOCH 1",
            "FREEZE PLACEMENT",
            "UNFREEZE PLACEMENT",
            "ALTER SYSTEM SET tiering = off",
            "ALTER SYSTEM DRAIN TIER dram",
            &copy,
        ] {
            server.fails(sql, ErrorKind::FailedPrecondition, "READ ONLY").await;
        }
        let rows = batch(vec![("k", Arc::new(Int32Array::from(vec![5])) as ArrayRef)]);
        let error = server.append("t", rows, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
        assert_eq!(server.rows("SELECT k FROM t").await, ["1"]);
        for sql in ["EXPLAIN PLACEMENT t", "EXPLAIN PLACEMENT SELECT * FROM t", "EPOCH DRY RUN"] {
            server.rows(sql).await;
        }
        server.run("COMMIT").await.unwrap();
    }
    server.run("BEGIN READ WRITE").await.unwrap();
    server.run("INSERT INTO t VALUES (2)").await.unwrap();
    server.run("COMMIT").await.unwrap();
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["2"]);
    for sql in ["SET TRANSACTION READ ONLY", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"] {
        assert!(server.run(sql).await.is_err(), "{sql}");
    }
}
