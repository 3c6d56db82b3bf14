//! Plans of earlier queries: used where the answer is the same, and nowhere else.

use super::*;

impl Server {
    /// How many of the queries that `work` sends used the plan of an earlier one.
    async fn hits(&self, work: impl AsyncFnOnce()) -> u64 {
        let before = self.engine.plan_cache().hits();
        work().await;
        self.engine.plan_cache().hits() - before
    }
}

async fn with_rows() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT NOT NULL, v BIGINT, s VARCHAR)").await.unwrap();
    server
        .run("INSERT INTO t SELECT value, value % 7, concat('s', value % 3) FROM generate_series(1, 1000)")
        .await
        .unwrap();
    server.run("CREATE TABLE u (k BIGINT NOT NULL, w BIGINT)").await.unwrap();
    server.run("INSERT INTO u SELECT value, value * 2 FROM generate_series(1, 100)").await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_comes_again_is_not_planned_again() {
    let server = with_rows().await;
    let queries = [
        "SELECT count(*), sum(v) FROM t WHERE k > 500",
        "SELECT s, sum(w) AS total FROM t JOIN u USING (k) WHERE v < 5 GROUP BY s ORDER BY total DESC, s LIMIT 2",
        "SELECT k FROM t WHERE k = (SELECT max(k) FROM u) OR k IN (SELECT w FROM u WHERE w > 198) ORDER BY k",
        "WITH a AS (SELECT v, count(*) AS n FROM t GROUP BY v) SELECT x.v FROM a x, a y WHERE x.n = y.n AND x.v > y.v ORDER BY 1 LIMIT 3",
        "SELECT row_number() OVER (PARTITION BY s ORDER BY k) AS r, k FROM t ORDER BY k DESC LIMIT 2",
    ];
    for sql in queries {
        let first = server.rows(sql).await;
        let other = server.engine.open_session("test");
        let hits = server
            .hits(async || {
                assert_eq!(server.rows(sql).await, first, "{sql}");
                let again = other.prepare(sql).await.unwrap().query(None).await.unwrap();
                let again: Vec<RecordBatch> = again.stream.try_collect().await.unwrap();
                assert_eq!(row_texts(&again), first, "{sql}");
            })
            .await;
        assert_eq!(hits, 2, "{sql}");
    }
    // Executions at the same time share one plan.
    let sql = queries[1];
    let expected = server.rows(sql).await;
    let answers = futures::future::join_all((0..16).map(|_| server.rows(sql))).await;
    assert!(answers.iter().all(|answer| *answer == expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_seen_by_the_next_query() {
    let server = with_rows().await;
    let sql = "SELECT count(*), sum(v) FROM t WHERE k >= 999";
    let star = "SELECT * FROM t WHERE k = 1";
    assert_eq!((server.rows(sql).await, server.rows(star).await), (vec!["2|11".to_owned()], vec!["1|1|s1".to_owned()]));
    for (change, expected) in [
        ("INSERT INTO t VALUES (1001, 100, 'new')", "3|111"),
        ("UPDATE t SET v = 0 WHERE k = 1001", "3|11"),
        ("DELETE FROM t WHERE k = 999", "2|6"),
        ("CREATE OR REPLACE TABLE t AS SELECT 2000 AS k, 5 AS v, 'x' AS s", "1|5"),
        ("TRUNCATE TABLE t", "0|"),
    ] {
        server.run(change).await.unwrap();
        let hits = server.hits(async || assert_eq!(server.rows(sql).await, [expected], "{change}")).await;
        assert_eq!(hits, 0, "{change}");
    }
    // Columns and views.
    server.run("INSERT INTO t VALUES (1, 2, 'y')").await.unwrap();
    server.run("CREATE VIEW seen AS SELECT k FROM t").await.unwrap();
    assert_eq!(server.rows(star).await, ["1|2|y"]);
    assert_eq!(server.rows("SELECT * FROM seen").await, ["1"]);
    server.run("ALTER TABLE t ADD COLUMN z BIGINT").await.unwrap();
    server.run("CREATE OR REPLACE VIEW seen AS SELECT v FROM t").await.unwrap();
    assert_eq!(server.rows(star).await, ["1|2|y|"]);
    assert_eq!(server.rows("SELECT * FROM seen").await, ["2"]);
    server.run("DROP TABLE t CASCADE").await.ok();
    server.run("DROP VIEW seen").await.ok();
    server.run("DROP TABLE IF EXISTS t").await.unwrap();
    server.fails(star, ErrorKind::NotFound, "'t' does not exist").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_with_other_answers_each_time_are_planned_each_time() {
    let server = with_rows().await;
    server.run("CREATE VIEW clock AS SELECT k, now() AS time FROM t WHERE k = 1").await.unwrap();
    for sql in [
        "SELECT now() FROM t WHERE k = 1",
        "SELECT time FROM clock",
        "SELECT random() FROM t WHERE k = 1",
        "SELECT uuid() FROM t WHERE k = 1",
        "SELECT k FROM t WHERE k = 1 AND now() > TIMESTAMP '2020-01-01'",
        "SELECT (SELECT max(now()) FROM u) FROM t WHERE k = 1",
        "SELECT current_date FROM t WHERE k = 1",
        "SELECT current_user FROM t WHERE k = 1",
        "SELECT count(*) FROM system.queries",
        "SELECT table_name FROM information_schema.tables",
        "SELECT count(*) FROM generate_series(1, 3)",
        "EXPLAIN SELECT k FROM t WHERE k = 1",
        "SHOW TABLES",
    ] {
        server.batches(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let hits = server.hits(async || drop(server.batches(sql).await.unwrap())).await;
        assert_eq!(hits, 0, "{sql}");
    }
    assert_ne!(
        server.rows("SELECT now() FROM t WHERE k = 1").await,
        server.rows("SELECT now() FROM t WHERE k = 1").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_belong_to_a_user_and_its_options() {
    let server = with_rows().await;
    let sql = "SELECT count(*) FROM t WHERE k < 10";
    let hits = async |session: &Arc<Session>| server.hits(async || drop(session.prepare(sql).await.unwrap())).await;
    assert_eq!((hits(&server.session).await, hits(&server.session).await), (0, 1));
    let other = server.engine.open_session("other");
    assert_eq!((hits(&other).await, hits(&other).await), (0, 1));
    // A name means another table in another schema.
    server.run("CREATE SCHEMA empty").await.unwrap();
    server.run("CREATE TABLE empty.t (k BIGINT)").await.unwrap();
    assert_eq!(server.rows(sql).await, ["9"]);
    let prepared = server.session.prepare(sql).await.unwrap();
    server.run("SET datafusion.catalog.default_schema = 'empty'").await.unwrap();
    assert_eq!(server.rows(sql).await, ["0"]);
    let rows = async || -> Vec<RecordBatch> { prepared.query(None).await.unwrap().stream.try_collect().await.unwrap() };
    assert_eq!(row_texts(&rows().await), ["0"], "a prepared statement follows the options, too");
    server.run("RESET datafusion.catalog.default_schema").await.unwrap();
    assert_eq!(server.rows(sql).await, ["9"]);
    assert_eq!(row_texts(&rows().await), ["9"]);
    // As many changes of options as the session that planned it, but others.
    let (one, two) = (server.engine.open_session("test"), server.engine.open_session("test"));
    one.set_option("datafusion.execution.batch_size", Some("100")).unwrap();
    two.set_option("schema", Some("empty")).unwrap();
    // The plan in the other schema is the one from above.
    assert_eq!((hits(&one).await, hits(&two).await, hits(&one).await), (0, 1, 1));
    let counted = two.prepare(sql).await.unwrap().query(None).await.unwrap();
    assert_eq!(row_texts(&counted.stream.try_collect::<Vec<_>>().await.unwrap()), ["0"]);
    // An option may change others: both sessions have set the same one, and differ in it.
    let both = "datafusion.optimizer.enable_join_dynamic_filter_pushdown";
    let all = "datafusion.optimizer.enable_dynamic_filter_pushdown";
    let (one, two) = (server.engine.open_session("test"), server.engine.open_session("test"));
    one.set_option(both, Some("false")).unwrap();
    two.set_option(both, Some("false")).unwrap();
    two.set_option(all, None).unwrap();
    assert_eq!((hits(&one).await, hits(&two).await, hits(&one).await), (0, 0, 1));
    // The session plans every query.
    server.run("SET terrace.plan_cache = false").await.unwrap();
    assert_eq!((hits(&server.session).await, hits(&server.session).await), (0, 0));
}

/// The text of an EXECUTE says nothing without the session's statement of that name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn execute_means_the_statement_of_its_session() {
    let server = with_rows().await;
    for (prepare, answer) in [("SELECT max(k) FROM t WHERE k < $1", "499"), ("SELECT min(k) FROM t WHERE k < $1", "1")]
    {
        server.run(&format!("PREPARE p AS {prepare}")).await.unwrap();
        for execute in ["EXECUTE p(500)", "/* again */ EXECUTE p(500)", "EXECUTE p(500)"] {
            assert_eq!(server.rows(execute).await, [answer]);
        }
        server.run("DEALLOCATE p").await.unwrap();
    }
    server.run("PREPARE p AS SELECT count(*) FROM t").await.unwrap();
    assert_eq!(server.rows("EXECUTE p").await, ["1000"]);
    let other = server.engine.open_session("test");
    assert_eq!(other.prepare("EXECUTE p").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_with_large_literals_are_not_kept_optimized() {
    let server = Server::new();
    let sql = "SELECT length(s), 1 FROM (SELECT repeat('x', 50000000) AS s)";
    assert_eq!(server.rows(sql).await, ["50000000|1"]);
    let sql = "SELECT repeat('x', 50000000) AS s";
    server.batches(sql).await.unwrap();
    let key = server.session.plan_place(&Arc::from(sql)).unwrap().key;
    let kept = server.engine.plans.find(&key).unwrap();
    assert_eq!(kept.has_optimized_plan(), Some(false));
    let small = "SELECT repeat('x', 5) AS s";
    server.batches(small).await.unwrap();
    let key = server.session.plan_place(&Arc::from(small)).unwrap().key;
    assert_eq!(server.engine.plans.find(&key).unwrap().has_optimized_plan(), Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_sees_its_own_changes() {
    let server = with_rows().await;
    let sql = "SELECT count(*) FROM t";
    assert_eq!((server.rows(sql).await, server.rows(sql).await), (vec!["1000".to_owned()], vec!["1000".to_owned()]));
    server.run("BEGIN").await.unwrap();
    server.run("DELETE FROM t WHERE k <= 400").await.unwrap();
    let hits = server.hits(async || assert_eq!(server.rows(sql).await, ["600"])).await;
    assert_eq!(hits, 0);
    let other = server.engine.open_session("test");
    let counted = other.prepare(sql).await.unwrap().query(None).await.unwrap();
    assert_eq!(row_texts(&counted.stream.try_collect::<Vec<_>>().await.unwrap()), ["1000"]);
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(server.rows(sql).await, ["1000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_bound_to_a_kept_plan() {
    let server = with_rows().await;
    let sql = "SELECT count(*) FROM t WHERE k <= $1";
    for (value, expected) in [(10, "10"), (20, "20"), (20, "20"), (3, "3")] {
        let prepared = server.session.prepare(sql).await.unwrap();
        let values = batch(vec![("1", Arc::new(Int64Array::from(vec![value])) as ArrayRef)]);
        let rows = prepared.query(Some(values)).await.unwrap().stream.try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(row_texts(&rows), [expected]);
    }
    assert_eq!(server.hits(async || drop(server.session.prepare(sql).await.unwrap())).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_plans_are_kept_and_no_stale_ones() {
    let server = with_rows().await;
    let sql = |number: usize| format!("SELECT count(*) FROM t WHERE k < {number}");
    for number in 0..80 {
        server.batches(&sql(number)).await.unwrap();
    }
    let found = async |number| server.hits(async || drop(server.session.prepare(&sql(number)).await.unwrap())).await;
    assert_eq!((found(79).await, found(16).await, found(3).await), (1, 1, 0));
    // A plan that is not current is dropped with the statement that changed its table, so that nothing keeps the old version.
    let table = server.engine.store().table(&TableName::new("public", "t")).unwrap();
    let version = Arc::downgrade(&table.version());
    server.run("DELETE FROM t WHERE k = 7").await.unwrap();
    let mut checks = 0;
    while version.upgrade().is_some() {
        checks += 1;
        assert!(checks < 200, "something keeps the old version of the table");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
