//! UPDATE, DELETE, MERGE, TRUNCATE and transactions.

use terrace_test_support::depth::by_depth;

use super::*;

async fn with_rows() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT NOT NULL, v VARCHAR, n DECIMAL(10, 2)) WITH (chunk_rows = 3)").await.unwrap();
    let values: Vec<String> = (1..=8).map(|k| format!("({k}, 'v{k}', {k}.5)")).collect();
    server.run(&format!("INSERT INTO t VALUES {}", values.join(", "))).await.unwrap();
    server.run("INSERT INTO t VALUES (9, NULL, NULL)").await.unwrap();
    server.run("CREATE TABLE s (k INT, v VARCHAR)").await.unwrap();
    server.run("INSERT INTO s VALUES (2, 'two'), (3, 'three'), (NULL, 'none'), (20, 'twenty')").await.unwrap();
    server
}

impl Server {
    async fn keys(&self) -> String {
        self.rows("SELECT k FROM t ORDER BY k").await.join(" ")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_take_exactly_the_rows_a_query_would_name() {
    for (condition, count, left) in [
        ("", 9, ""),
        ("WHERE k > 6", 3, "1 2 3 4 5 6"),
        ("WHERE v = 'v2' OR v IS NULL", 2, "1 3 4 5 6 7 8"),
        ("WHERE k IN (SELECT k FROM s)", 2, "1 4 5 6 7 8 9"),
        ("WHERE k NOT IN (SELECT k FROM s)", 0, "1 2 3 4 5 6 7 8 9"),
        ("WHERE k NOT IN (SELECT k FROM s WHERE k IS NOT NULL)", 7, "2 3"),
        ("WHERE EXISTS (SELECT 1 FROM s WHERE s.k = t.k)", 2, "1 4 5 6 7 8 9"),
        ("AS x WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = x.k)", 7, "2 3"),
        ("WHERE k = (SELECT max(k) FROM t)", 1, "1 2 3 4 5 6 7 8"),
        ("WHERE k IN (SELECT k - 1 FROM t WHERE k > 7)", 2, "1 2 3 4 5 6 9"),
        ("USING s WHERE t.k = s.k", 2, "1 4 5 6 7 8 9"),
        ("USING s, (VALUES (1), (2)) AS d (x) WHERE t.k = s.k", 2, "1 4 5 6 7 8 9"),
        ("ORDER BY k DESC LIMIT 2", 2, "1 2 3 4 5 6 7"),
        ("WHERE k > 3 ORDER BY k LIMIT 2", 2, "1 2 3 6 7 8 9"),
        ("WHERE false", 0, "1 2 3 4 5 6 7 8 9"),
    ] {
        let server = with_rows().await;
        let sql = format!("DELETE FROM t {condition}");
        assert_eq!(server.run(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")), count, "{sql}");
        assert_eq!(server.keys().await, left, "{sql}");
        assert_eq!(server.rows("SELECT count(*), count(v) FROM t").await.len(), 1);
        let counted = left.split_whitespace().count().to_string();
        assert_eq!(server.rows("SELECT count(*) FROM t").await, [counted]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_put_new_rows_in_place_of_the_old() {
    for (change, count, question, answer) in [
        ("SET v = 'x'", 9, "SELECT count(*), min(v), max(v) FROM t", "9|x|x"),
        ("SET k = k + 100 WHERE k > 7", 2, "SELECT count(*), sum(k) FROM t", "9|245"),
        ("SET v = NULL, n = k * 2 WHERE k = 4", 1, "SELECT v, n FROM t WHERE k = 4", "|8.00"),
        (
            "SET v = (SELECT max(v) FROM s WHERE s.k = t.k) WHERE k < 4",
            3,
            "SELECT count(v), max(v) FROM t WHERE k < 4",
            "2|two",
        ),
        ("SET n = (SELECT max(n) FROM t) WHERE k = 1", 1, "SELECT n FROM t WHERE k = 1", "8.50"),
        ("SET v = s.v FROM s WHERE t.k = s.k", 2, "SELECT count(*), max(v) FROM t", "9|v8"),
        ("SET v = d.x FROM (VALUES ('a'), ('a')) AS d (x) WHERE k = 1", 1, "SELECT count(*), min(v) FROM t", "9|a"),
        ("AS x SET v = x.v || '!' WHERE x.k = 1", 1, "SELECT v FROM t WHERE k = 1", "v1!"),
        ("SET (k, v) = (50, 'fifty') WHERE k = 5", 1, "SELECT v FROM t WHERE k = 50", "fifty"),
        ("SET v = DEFAULT WHERE k = 5", 1, "SELECT count(v) FROM t", "7"),
        ("SET v = 'last' ORDER BY k DESC LIMIT 1", 1, "SELECT v FROM t WHERE k = 9", "last"),
        (
            "SET k = d.x FROM (SELECT 1 AS k, max(k) AS x FROM t UNION ALL SELECT 77, 5) AS d WHERE t.k = d.k",
            1,
            "SELECT sum(k) FROM t",
            "53",
        ),
        ("SET v = v WHERE k = 77", 0, "SELECT count(*) FROM t", "9"),
    ] {
        let server = with_rows().await;
        let sql = format!("UPDATE t {change}");
        assert_eq!(server.run(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")), count, "{sql}");
        assert_eq!(server.rows(question).await, [answer], "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merges_do_the_first_that_applies() {
    let server = with_rows().await;
    let merge = "MERGE INTO t USING s ON t.k = s.k \
         WHEN MATCHED AND s.v = 'two' THEN DELETE \
         WHEN MATCHED THEN UPDATE SET v = s.v, n = 1.5e0 \
         WHEN NOT MATCHED AND s.k IS NOT NULL THEN INSERT (v, k) VALUES (s.v, s.k) \
         WHEN NOT MATCHED BY SOURCE AND t.k > 7 THEN UPDATE SET v = 'gone' \
         WHEN NOT MATCHED BY SOURCE AND t.k = 1 THEN DELETE";
    assert_eq!(server.run(merge).await.unwrap(), 6);
    let expected =
        ["3|three|1.50", "4|v4|4.50", "5|v5|5.50", "6|v6|6.50", "7|v7|7.50", "8|gone|8.50", "9|gone|", "20|twenty|"];
    assert_eq!(server.rows("SELECT * FROM t ORDER BY k").await, expected);
    assert_eq!(
        server.run("MERGE INTO t USING (SELECT 3 AS k) AS d ON t.k = d.k WHEN MATCHED THEN DELETE").await.unwrap(),
        1
    );
    server.run("INSERT INTO s VALUES (4, 'a'), (4, 'b')").await.unwrap();
    let twice = "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v";
    server.fails(twice, ErrorKind::InvalidArgument, "twice").await;
    assert_eq!(server.rows("SELECT v FROM t WHERE k = 4").await, ["v4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_changed_is_refused_by_name() {
    use ErrorKind::*;
    let server = with_rows().await;
    server.run("CREATE VIEW w AS SELECT k FROM t").await.unwrap();
    for (sql, kind, words) in [
        ("UPDATE t SET zzz = 1", InvalidArgument, "'zzz' does not exist"),
        ("UPDATE t SET v = 'a', v = 'b'", InvalidArgument, "set twice"),
        ("UPDATE t SET k = NULL WHERE k = 1", InvalidArgument, "'k' is NOT NULL"),
        ("UPDATE t SET k = 'abc'", InvalidArgument, "abc"),
        ("UPDATE t SET s.v = 'a'", InvalidArgument, "s.v"),
        ("UPDATE w SET k = 1", InvalidArgument, "a view"),
        ("DELETE FROM w", InvalidArgument, "a view"),
        ("INSERT INTO w VALUES (1)", InvalidArgument, "a view"),
        ("TRUNCATE w", InvalidArgument, "a view"),
        ("DELETE FROM system.tiers", PermissionDenied, "system"),
        ("UPDATE nowhere SET a = 1", NotFound, "nowhere"),
        ("DELETE FROM t WHERE zzz = 1", InvalidArgument, "zzz"),
        (
            "MERGE INTO t USING s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (k) VALUES (1, 2)",
            InvalidArgument,
            "2 values",
        ),
        (
            "MERGE INTO t USING s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (v) VALUES (s.v)",
            InvalidArgument,
            "'k' is NOT NULL",
        ),
        ("CREATE TABLE bad (__row INT)", InvalidArgument, "__row"),
        ("ALTER TABLE t RENAME COLUMN v TO __row", InvalidArgument, "__row"),
        ("SELECT __row FROM t", InvalidArgument, "__row"),
        ("DELETE FROM t TABLESAMPLE BERNOULLI (10)", Unimplemented, "TABLESAMPLE"),
        (
            "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED AND random() < 0.5 THEN UPDATE SET v = '7'",
            Unimplemented,
            "conditions of MERGE",
        ),
        ("CREATE SCHEMA \"__target\"", InvalidArgument, "not a name"),
        ("SELECT * FROM __target.__target", NotFound, "__target"),
        ("COMMIT", FailedPrecondition, "no transaction"),
        ("SAVEPOINT a", FailedPrecondition, "no transaction"),
    ] {
        server.fails(sql, kind, words).await;
    }
    assert_eq!(server.rows("SELECT * FROM t LIMIT 0").await.len(), 0);
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    let plan = server.rows("EXPLAIN UPDATE t SET v = 'x' WHERE k = 2").await.join("\n");
    assert!(plan.contains("TierScanExec") && plan.contains("__row"), "{plan}");
    assert!(server.rows("EXPLAIN INSERT INTO t SELECT * FROM t").await.join("\n").contains("TierScanExec"));
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    assert_eq!(server.run("TRUNCATE TABLE t").await.unwrap(), 9);
    assert_eq!(server.run("TRUNCATE TABLE IF EXISTS nowhere").await.unwrap(), 0);
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_of_changes_are_bound_row_by_row_or_not_at_all() {
    let server = with_rows().await;
    let update = server.session.prepare("UPDATE t SET v = ?, n = n + ? WHERE k = ?").await.unwrap();
    let types: Vec<_> = update.parameter_schema().fields().iter().map(|f| f.data_type().clone()).collect();
    assert_eq!((&types[0], &types[2]), (&DataType::Utf8View, &DataType::Int32));
    let rows = |keys: Vec<Option<i64>>| {
        let text: Vec<String> = keys.iter().map(|k| format!("new {k:?}")).collect();
        let add = vec![1.25; keys.len()];
        batch(vec![
            ("a", Arc::new(StringArray::from(text)) as ArrayRef),
            ("b", Arc::new(arrow::array::Float64Array::from(add)) as ArrayRef),
            ("c", Arc::new(Int64Array::from(keys)) as ArrayRef),
        ])
    };
    assert_eq!(update.update(Some(rows(vec![Some(1), Some(2), Some(2), Some(70), None]))).await.unwrap(), 3);
    assert_eq!(server.rows("SELECT n FROM t WHERE k < 3 ORDER BY k").await, ["2.75", "5.00"]);
    // The last row does not fit, so none of the rows is stored.
    let delete = server.session.prepare("DELETE FROM t WHERE k = 2 / $1").await.unwrap();
    let divisors = batch(vec![("d", Arc::new(Int64Array::from(vec![1, 2, 0])) as ArrayRef)]);
    assert_eq!(delete.update(Some(divisors)).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    // A key that the column cannot hold equals none of its keys.
    let delete = server.session.prepare("DELETE FROM t WHERE k = $1").await.unwrap();
    let keys = batch(vec![("k", Arc::new(Int64Array::from(vec![1, 2, 1, 1 << 40])) as ArrayRef)]);
    assert_eq!(delete.update(Some(keys)).await.unwrap(), 2);
    assert_eq!(server.keys().await, "3 4 5 6 7 8 9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_reads_its_snapshot_and_its_own_writes() {
    let server = with_rows().await;
    let other = server.engine.open_session("other");
    let run = async |sql: &str| other.prepare(sql).await.unwrap().update(None).await;
    server.run("BEGIN").await.unwrap();
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    run("DELETE FROM t WHERE k = 9").await.unwrap();
    run("INSERT INTO t VALUES (30, 'other', NULL)").await.unwrap();
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9", "the snapshot stays");
    assert_eq!(server.run("DELETE FROM t WHERE k = 1").await.unwrap(), 1);
    server.run("SAVEPOINT a").await.unwrap();
    server.run("INSERT INTO t SELECT value, 'own', NULL FROM generate_series(100, 110)").await.unwrap();
    assert_eq!(server.run("UPDATE t SET v = 'own too' WHERE k IN (2, 105)").await.unwrap(), 2);
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE v LIKE 'own%'").await, ["12"]);
    server.fails("UPDATE t SET k = NULL", ErrorKind::InvalidArgument, "NOT NULL").await;
    server.fails("CREATE TABLE u (a INT)", ErrorKind::FailedPrecondition, "in the same transaction").await;
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["19"], "a failed statement leaves no trace");
    server.run("ROLLBACK TO SAVEPOINT a").await.unwrap();
    assert_eq!(server.keys().await, "2 3 4 5 6 7 8 9");
    server.run("INSERT INTO s VALUES (77, 'with t')").await.unwrap();
    server.run("COMMIT").await.unwrap();
    assert_eq!(server.keys().await, "2 3 4 5 6 7 8 30");
    assert_eq!(server.rows("SELECT v FROM s WHERE k = 77").await, ["with t"]);
    server.run("BEGIN").await.unwrap();
    server.run("UPDATE t SET v = 'mine' WHERE k = 5").await.unwrap();
    run("UPDATE t SET v = 'first' WHERE k = 5").await.unwrap();
    let lost = server.run("COMMIT").await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Aborted);
    assert!(lost.message().contains("public.t") && lost.message().contains("again"), "{lost}");
    assert_eq!(server.rows("SELECT v FROM t WHERE k = 5").await, ["first"]);
    server.run("BEGIN").await.unwrap();
    assert_eq!(server.keys().await, "2 3 4 5 6 7 8 30");
    server.run("CREATE TABLE made AS SELECT k FROM t").await.unwrap();
    assert_eq!(server.run("INSERT INTO made VALUES (1)").await.unwrap(), 1);
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.rows("SELECT count(*) FROM made").await, ["8"], "definitions commit by themselves");
    server.run("DROP TABLE made").await.unwrap();
    server.run("BEGIN").await.unwrap();
    server.run("TRUNCATE t").await.unwrap();
    assert_eq!(server.keys().await, "");
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.keys().await, "2 3 4 5 6 7 8 30");
    server.run("BEGIN").await.unwrap();
    server.run("DELETE FROM t").await.unwrap();
    server.engine.close_session(server.session.id());
    assert_eq!(server.engine.store().tables()[1].version().live_rows(), 8, "the end of a session rolls back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_transactions_end_once_and_idle_ones_by_themselves() {
    let server = with_rows().await;
    let transaction = server.engine.begin(&server.session).unwrap();
    let insert = server.session.prepare_in(transaction.id(), "INSERT INTO t VALUES (40, 'x', 1)").await.unwrap();
    assert_eq!(insert.update(None).await.unwrap(), 1);
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    let count = server.session.prepare_in(transaction.id(), "SELECT count(*) FROM t").await.unwrap();
    let rows = batch(vec![("k", Arc::new(Int32Array::from(vec![41, 42])) as ArrayRef)]);
    assert_eq!(server.append("t", rows, Some(transaction.id())).await.unwrap(), 2);
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9");
    server.session.end_transaction(transaction.id(), true).await.unwrap();
    assert_eq!(server.keys().await, "1 2 3 4 5 6 7 8 9 40 41 42");
    let batches: Vec<_> = count.query(None).await.unwrap().stream.try_collect().await.unwrap();
    assert_eq!(batches[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0), 12);
    assert_eq!(server.session.end_transaction(transaction.id(), true).await.unwrap_err().kind(), ErrorKind::NotFound);
    let next = server.engine.begin(&server.session).unwrap();
    assert_eq!(insert.update(None).await.unwrap(), 1, "a statement that is kept belongs to the next transaction");
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE k = 40").await, ["1"]);
    server.session.end_transaction(next.id(), false).await.unwrap();
    assert_eq!(insert.update(None).await.unwrap(), 1, "or to none");
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE k = 40").await, ["2"]);
    let fresh = server.engine.begin(&server.session).unwrap();
    server.run("BEGIN").await.unwrap();
    server.run("DELETE FROM t").await.unwrap();
    server.engine.end_idle_transactions(Some(Duration::from_secs(60)));
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["0"]);
    server.engine.end_idle_transactions(Some(Duration::ZERO));
    server.fails("SELECT count(*) FROM t", ErrorKind::FailedPrecondition, "without a statement").await;
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["13"]);
    server.session.end_transaction(fresh.id(), true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_another_session_is_like_none() {
    let server = with_rows().await;
    let transaction = server.engine.begin(&server.session).unwrap();
    let other = server.engine.open_session("other");
    let mut answers = Vec::new();
    for id in [transaction.id(), "none"] {
        let prepared = other.prepare_in(id, "SELECT count(*) FROM t").await.err().unwrap();
        let ended = other.end_transaction(id, true).await.unwrap_err();
        answers.push([prepared, ended].map(|error| (error.kind(), error.message().to_owned())));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0][0].0, ErrorKind::NotFound);
    server.session.end_transaction(transaction.id(), true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_statements_run_again_until_each_counts() {
    let server = with_rows().await;
    server.run("CREATE TABLE c (id INT, n BIGINT)").await.unwrap();
    server.run("INSERT INTO c VALUES (1, 0), (2, 0)").await.unwrap();
    let workers = (0..3).map(|n| {
        let session = server.engine.open_session("worker");
        tokio::spawn(async move {
            let id = n % 2 + 1;
            let add = session.prepare(&format!("UPDATE c SET n = n + 1 WHERE id = {id}")).await.unwrap();
            let mut done = [0, 0];
            for _ in 0..15 {
                match add.update(None).await {
                    Ok(count) => done[id - 1] += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Aborted, "{error}"),
                }
            }
            done
        })
    });
    let mut total = [0, 0];
    for worker in workers.collect::<Vec<_>>() {
        let done = worker.await.unwrap();
        total = [total[0] + done[0], total[1] + done[1]];
    }
    assert_eq!(server.rows("SELECT n FROM c ORDER BY id").await, total.map(|n| n.to_string()));
    assert!(total[0] > 15 && total[1] == 15, "{total:?}");
}

/// Another statement alters the table that a transaction writes to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_for_a_table_that_was_altered_meanwhile_are_refused() {
    let server = with_rows().await;
    server.run("CREATE TABLE a (x BIGINT, y BIGINT, z BIGINT)").await.unwrap();
    server.run("INSERT INTO a VALUES (1, 2, 3)").await.unwrap();
    let other = server.engine.open_session("other");
    server.run("BEGIN").await.unwrap();
    assert_eq!(server.rows("SELECT z FROM a").await, ["3"]);
    other.prepare("ALTER TABLE a DROP COLUMN x").await.unwrap().update(None).await.unwrap();
    server.run("INSERT INTO a VALUES (7, 8, 9)").await.unwrap();
    let number = |n| Arc::new(Int64Array::from(vec![n])) as ArrayRef;
    let rows = batch(vec![("y", number(8)), ("z", number(9))]);
    server.append("a", rows, None).await.unwrap();
    assert_eq!(server.rows("SELECT z FROM a ORDER BY z").await, ["3", "9", "9"], "its own table has the column still");
    assert_eq!(server.run("COMMIT").await.unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(server.rows("SELECT y + z FROM a").await, ["5"]);
}

/// A statement that is dropped while it runs leaves all of its changes in the transaction or none, and no change later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_statement_leaves_its_transaction_as_it_was() {
    let server = with_rows().await;
    let delete = server.session.prepare("DELETE FROM t WHERE k = $1").await.unwrap();
    for wait_ms in (0..30).step_by(by_depth(3, 1)) {
        server.run("BEGIN").await.unwrap();
        let keys = batch(vec![("k", Arc::new(Int64Array::from_iter_values(1..10)) as ArrayRef)]);
        let done = tokio::time::timeout(Duration::from_millis(wait_ms), delete.update(Some(keys))).await;
        // Waits until no other statement writes.
        server.run("DELETE FROM t WHERE k < 0").await.unwrap();
        // The statement may have been done when it was dropped.
        let possible: &[&str] = if done.is_ok() { &["0"] } else { &["0", "9"] };
        let left = server.rows("SELECT count(*) FROM t").await.concat();
        assert!(possible.contains(&left.as_str()), "dropped after {wait_ms} ms: {left} rows are left");
        server.run("ROLLBACK").await.unwrap();
    }
}
