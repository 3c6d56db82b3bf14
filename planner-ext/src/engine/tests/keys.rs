//! Enforced primary keys through SQL.

use super::*;

const EXISTS: ErrorKind = ErrorKind::AlreadyExists;

async fn with_rows() -> Server {
    let server = Server::new();
    server
        .run("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR) WITH (enforce_primary_key = 'true', chunk_rows = 3)")
        .await
        .unwrap();
    server.run("INSERT INTO t SELECT value, 'v' || value FROM generate_series(1, 9)").await.unwrap();
    server
}

impl Server {
    async fn ids(&self) -> String {
        self.rows("SELECT id FROM t ORDER BY id").await.join(" ")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_would_repeat_a_key_are_refused_as_a_whole() {
    let server = with_rows().await;
    for (sql, key, what) in [
        ("INSERT INTO t VALUES (10, 'x'), (9, 'y')", 9, "exists already"),
        ("INSERT INTO t VALUES (10, 'x'), (11, 'y'), (10, 'z')", 10, "is given twice"),
        ("INSERT INTO t SELECT id + 8, v FROM t", 9, "exists already"),
        ("UPDATE t SET id = 1 WHERE id = 2", 1, "exists already"),
        ("UPDATE t SET id = 20 WHERE id < 3", 20, "is given twice"),
        ("UPDATE t SET id = id + 1 WHERE id < 9", 9, "exists already"),
        (
            "MERGE INTO t USING (VALUES (2), (20)) AS s (id) ON t.id = s.id AND t.id < 0 \
             WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'm')",
            2,
            "exists already",
        ),
    ] {
        server.fails(sql, EXISTS, &format!("duplicate key in table 'public.t': (id) = ({key}) {what}")).await;
        assert_eq!(server.ids().await, "1 2 3 4 5 6 7 8 9", "{sql}");
    }
    server.fails("INSERT INTO t VALUES (NULL, 'x')", ErrorKind::InvalidArgument, "'id'").await;
    for (sql, after) in [
        ("UPDATE t SET id = id + 1", "2 3 4 5 6 7 8 9 10"),
        ("UPDATE t SET id = 12 - id", "2 3 4 5 6 7 8 9 10"),
        ("UPDATE t SET v = 'same'", "2 3 4 5 6 7 8 9 10"),
        (
            "MERGE INTO t USING (VALUES (2), (20)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'm' \
             WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'm')",
            "2 3 4 5 6 7 8 9 10 20",
        ),
        ("DELETE FROM t WHERE id > 3", "2 3"),
        ("INSERT INTO t VALUES (20, 'again')", "2 3 20"),
    ] {
        server.run(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(server.ids().await, after, "{sql}");
    }
    server
        .fails(
            "CREATE TABLE c (id INT PRIMARY KEY) WITH (enforce_primary_key = true) AS VALUES (1), (1)",
            EXISTS,
            "(1)",
        )
        .await;
    server.fails("SELECT * FROM c", ErrorKind::NotFound, "c").await;
    let rows = batch(vec![("id", Arc::new(Int64Array::from(vec![30, 31, 20])) as ArrayRef)]);
    let error = server.append("t", rows, None).await.unwrap_err();
    assert_eq!((error.kind(), error.message().contains("(20) exists")), (EXISTS, true), "{error}");
    assert_eq!(server.ids().await, "2 3 20");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_goes_on_after_a_refused_statement_and_ends_at_a_key_of_another() {
    let server = with_rows().await;
    server.run("BEGIN").await.unwrap();
    server.run("DELETE FROM t WHERE id = 5").await.unwrap();
    server.fails("INSERT INTO t VALUES (6, 'x')", EXISTS, "(6)").await;
    server.run("INSERT INTO t VALUES (5, 'new'), (10, 'x')").await.unwrap();
    server.fails("INSERT INTO t VALUES (10, 'y')", EXISTS, "(10)").await;
    server.run("SAVEPOINT s").await.unwrap();
    server.run("DELETE FROM t WHERE id = 10").await.unwrap();
    server.run("ROLLBACK TO SAVEPOINT s").await.unwrap();
    server.fails("INSERT INTO t VALUES (10, 'y')", EXISTS, "(10)").await;
    server.run("COMMIT").await.unwrap();
    assert_eq!(server.ids().await, "1 2 3 4 5 6 7 8 9 10");
    server.run("BEGIN").await.unwrap();
    server.run("INSERT INTO t VALUES (11, 'mine')").await.unwrap();
    let other = server.engine.open_session("other");
    other.prepare("INSERT INTO t VALUES (11, 'theirs')").await.unwrap().update(None).await.unwrap();
    server.fails("COMMIT", EXISTS, "duplicate key in table 'public.t': (id) = (11) exists already").await;
    assert_eq!(server.rows("SELECT v FROM t WHERE id = 11").await, ["theirs"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upserts_of_the_same_key_at_the_same_time_all_succeed() {
    let server = with_rows().await;
    let merge = "MERGE INTO t USING (VALUES (50)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v || 'x' \
                 WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'x')";
    let sessions: Vec<_> = (0..4).map(|n| server.engine.open_session(&format!("s{n}"))).collect();
    let run = |session: Arc<Session>| async move { session.prepare(merge).await?.update(None).await };
    let done = futures::future::join_all(sessions.into_iter().map(|session| tokio::spawn(run(session)))).await;
    done.into_iter().for_each(|one| assert_eq!(one.unwrap().unwrap(), 1));
    assert_eq!(server.rows("SELECT v FROM t WHERE id = 50").await, ["xxxx"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setting_is_declared_altered_and_shown() {
    let server = Server::new();
    let invalid = ErrorKind::InvalidArgument;
    let on = "WITH (enforce_primary_key = 'true')";
    server.fails(&format!("CREATE TABLE t (id INT) {on}"), invalid, "'public.t' has no primary key").await;
    server.fails(&format!("CREATE TABLE t (id DOUBLE PRIMARY KEY) {on}"), invalid, "is Float64").await;
    server
        .fails("CREATE TABLE t (id INT PRIMARY KEY) WITH (enforce_primary_key = 1)", invalid, "'true' or 'false'")
        .await;
    server.run("CREATE TABLE t (id INT, n INT, v VARCHAR, PRIMARY KEY (id, n))").await.unwrap();
    let enforced = "SELECT enforced FROM information_schema.table_constraints WHERE table_name = 't'";
    let system = "SELECT primary_key, key_enforced FROM system.tables WHERE table_name = 't'";
    assert_eq!(
        (server.rows(enforced).await, server.rows(system).await),
        (vec!["NO".into()], vec!["id,n|false".into()])
    );
    server.run("INSERT INTO t VALUES (1, 1, 'a'), (1, 2, 'b'), (1, 1, 'c')").await.unwrap();
    let enforce = "ALTER TABLE t SET (enforce_primary_key = true)";
    server.fails(enforce, EXISTS, "(id, n) = (1, 1) occurs more than once").await;
    assert_eq!(server.rows(enforced).await, ["NO"]);
    server.run("DELETE FROM t WHERE v = 'c'").await.unwrap();
    server.run(enforce).await.unwrap();
    assert_eq!(
        (server.rows(enforced).await, server.rows(system).await),
        (vec!["YES".into()], vec!["id,n|true".into()])
    );
    assert!(server.rows("SHOW CREATE TABLE t").await.join("\n").contains("WITH (enforce_primary_key = 'true')"));
    let server = server.restart().await;
    assert_eq!(server.rows(enforced).await, ["YES"]);
    server.fails("INSERT INTO t VALUES (1, 2, 'd')", EXISTS, "(id, n) = (1, 2) exists already").await;
    server.run("ALTER TABLE t RENAME COLUMN n TO m, RENAME TO u").await.unwrap();
    server.fails("INSERT INTO u VALUES (1, 2, 'd')", EXISTS, "'public.u': (id, m) = (1, 2)").await;
    server.fails("ALTER TABLE u DROP COLUMN m", ErrorKind::FailedPrecondition, "the primary key").await;
    server.run("ALTER TABLE u SET (enforce_primary_key = 'false')").await.unwrap();
    server.run("INSERT INTO u VALUES (1, 2, 'd')").await.unwrap();
    server.fails("ALTER TABLE u SET (enforce_primary_key = true)", EXISTS, "(1, 2)").await;
    server.run("DELETE FROM u WHERE v = 'd'").await.unwrap();
    server.run("ALTER TABLE u SET (enforce_primary_key = true)").await.unwrap();
    server.run("ALTER TABLE u DROP COLUMN m CASCADE").await.unwrap();
    assert!(server.rows("SELECT * FROM information_schema.table_constraints").await.is_empty());
    server.run("INSERT INTO u VALUES (1, 'e')").await.unwrap();
    server.fails("ALTER TABLE u SET (enforce_primary_key = true)", invalid, "no primary key").await;
    let options = HashMap::from([("enforce_primary_key".to_owned(), "true".to_owned())]);
    let rows = batch(vec![("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    let request = IngestRequest { schema: None, table: "n".into(), mode: IngestMode::Create, options };
    let error = server.ingest(request, rows, None).await.unwrap_err();
    assert!(error.message().contains("no primary key"), "{error}");
}
