//! Rights on columns: what a statement may mention, and what follows when rights and columns change.

use super::*;

/// A closed server with the table s.t (a, b, c) of ann, whose schema bob may use.
async fn with_table() -> Closed {
    let closed = Closed::new().await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (a BIGINT, b VARCHAR DEFAULT 'new', c BIGINT)",
        "INSERT INTO s.t VALUES (1, 'one', 10), (2, 'two', 20)",
        "CREATE VIEW s.v AS SELECT a, b FROM s.t",
        "GRANT USAGE, CREATE ON SCHEMA s TO bob",
    ];
    closed.all("ann", &made).await;
    closed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_needs_select_on_each_column_that_it_mentions() {
    let closed = with_table().await;
    let dir = closed.server.dir.path().to_str().unwrap().to_owned();
    closed
        .all("root", &["GRANT WRITE FILES ON SERVER TO bob", "CREATE TABLE other AS SELECT 1 AS a, 'one' AS b"])
        .await;
    closed.all("root", &["GRANT SELECT ON other TO bob"]).await;
    closed.refused("bob", "SELECT a FROM s.t", ErrorKind::PermissionDenied, "permission denied for table s.t").await;
    closed.all("ann", &["GRANT SELECT (a, c) ON s.t TO bob"]).await;
    for (sql, rows) in [
        ("SELECT a FROM s.t ORDER BY a", vec!["1", "2"]),
        ("SELECT x.c + x.a FROM s.t AS x WHERE x.c > 10", vec!["22"]),
        ("SELECT count(*) FROM s.t", vec!["2"]),
        ("SELECT 7 FROM s.t LIMIT 1", vec!["7"]),
        ("WITH x AS (SELECT a, c FROM s.t) SELECT * FROM x ORDER BY 1 LIMIT 1", vec!["1|10"]),
        ("SELECT o.b FROM other o JOIN s.t USING (a)", vec!["one"]),
        ("SELECT a FROM s.t WHERE EXISTS (SELECT 1 FROM other o WHERE o.a = t.a)", vec!["1"]),
        ("SELECT a FROM s.t UNION ALL SELECT a FROM other ORDER BY 1", vec!["1", "1", "2"]),
    ] {
        assert_eq!(closed.rows("bob", sql).await, rows, "{sql}");
    }
    let copy = format!("COPY s.t TO '{dir}/all.csv'");
    for sql in [
        "SELECT b FROM s.t",
        "SELECT * FROM s.t",
        "SELECT x.* FROM s.t AS x",
        "SELECT a FROM s.t WHERE b = 'one'",
        "SELECT a FROM s.t ORDER BY b",
        "SELECT count(b) FROM s.t",
        "SELECT count(*) FROM s.t GROUP BY b",
        "SELECT count(*) FROM s.t GROUP BY a HAVING max(b) > ''",
        "SELECT DISTINCT ON (b) a FROM s.t",
        "SELECT rank() OVER (ORDER BY b) FROM s.t",
        "SELECT a FROM (SELECT a, b FROM s.t)",
        "WITH x AS (SELECT a, length(b) AS n FROM s.t) SELECT a FROM x",
        "SELECT o.a FROM other o JOIN s.t USING (b)",
        "SELECT o.a FROM other o NATURAL JOIN s.t",
        "SELECT o.a FROM other o JOIN s.t ON o.b || 'x' <> t.b",
        "SELECT a FROM other o WHERE EXISTS (SELECT 1 FROM s.t WHERE t.b = o.b)",
        "SELECT a FROM s.t WHERE EXISTS (SELECT 1 FROM other o WHERE o.b = t.b)",
        "SELECT (SELECT max(b) FROM s.t)",
        "SELECT a FROM other WHERE b IN (SELECT b FROM s.t)",
        "SELECT a, b FROM other UNION SELECT a, b FROM s.t",
        "EXPLAIN SELECT b FROM s.t",
        "EXPLAIN ANALYZE SELECT b FROM s.t",
        "CREATE TABLE s.n AS SELECT * FROM s.t",
        "CREATE VIEW s.n AS SELECT b FROM s.t",
        copy.as_str(),
    ] {
        closed.refused("bob", sql, ErrorKind::PermissionDenied, "column b of table s.t").await;
    }
    closed.refused("bob", "SHOW CREATE TABLE s.t", ErrorKind::PermissionDenied, "table s.t").await;
    assert_eq!(
        closed.rows("bob", "SELECT count(*) FROM system.columns WHERE table_name = 't'").await,
        ["0"],
        "figures"
    );
    closed.all("ann", &["GRANT UPDATE (a) ON s.t TO bob"]).await;
    for sql in ["EXPLAIN VERBOSE SELECT a FROM s.t", "EXPLAIN VERBOSE UPDATE s.t SET a = 1"] {
        let has_statistics = |rows: Vec<String>| rows.iter().any(|row| row.contains("statistics=["));
        assert!(has_statistics(closed.rows("ann", sql).await), "{sql}");
        assert!(
            !has_statistics(closed.rows("bob", sql).await),
            "{sql}: the least and greatest values of other columns"
        );
    }
    // A view of his is read with his rights, and a view of others is a relation with columns.
    closed.all("bob", &["CREATE VIEW s.his AS SELECT a FROM s.t", "GRANT SELECT ON s.his TO ann"]).await;
    assert_eq!(closed.rows("ann", "SELECT a FROM s.his ORDER BY a").await, ["1", "2"]);
    closed.all("ann", &["GRANT SELECT (b) ON s.v TO bob"]).await;
    assert_eq!(closed.rows("bob", "SELECT b FROM s.v ORDER BY b").await, ["one", "two"]);
    closed.refused("bob", "SELECT a FROM s.v", ErrorKind::PermissionDenied, "column a of table s.v").await;
    // A token uses rights on columns where its scope has the right on the table.
    let token = closed.bearer("bob", "(SELECT ON s.t)").await;
    assert_eq!(run_in(&token, "SELECT max(a) FROM s.t").await.unwrap(), ["2"]);
    assert!(run_in(&token, "SELECT max(b) FROM s.t").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_needs_the_rights_on_the_columns_that_it_writes_and_reads() {
    let closed = with_table().await;
    std::fs::write(closed.server.dir.path().join("in.csv"), "a\n7\n").unwrap();
    let file = format!("'{}/in.csv'", closed.server.dir.path().to_str().unwrap());
    closed.all("root", &["GRANT READ FILES ON SERVER TO bob"]).await;
    let all = "SELECT a, b, c FROM s.t ORDER BY a, c";
    let denied = ErrorKind::PermissionDenied;

    closed.all("ann", &["GRANT INSERT (a) ON s.t TO bob"]).await;
    closed.all("bob", &["INSERT INTO s.t (a) VALUES (3)", &format!("COPY s.t (a) FROM {file}")]).await;
    assert_eq!(closed.rows("ann", all).await, ["1|one|10", "2|two|20", "3|new|", "7|new|"]);
    let copy_all = format!("COPY s.t FROM {file}");
    for sql in [
        "INSERT INTO s.t VALUES (4, 'x', 5)",
        "INSERT INTO s.t (b) VALUES ('x')",
        "INSERT INTO s.t (no) VALUES (1)",
        copy_all.as_str(),
    ] {
        closed.refused("bob", sql, denied, "table s.t").await;
    }
    closed.all("ann", &["DELETE FROM s.t WHERE a > 2", "GRANT INSERT (b, c) ON s.t TO bob"]).await;
    closed.all("bob", &["INSERT INTO s.t VALUES (3, 'x', 30)"]).await;

    closed.all("ann", &["GRANT UPDATE (b), SELECT (a) ON s.t TO bob"]).await;
    closed
        .all("bob", &["UPDATE s.t SET b = 'y' WHERE a = 3", "INSERT INTO s.t (c) SELECT a FROM s.t WHERE a = 1"])
        .await;
    assert_eq!(closed.rows("ann", all).await, ["1|one|10", "2|two|20", "3|y|30", "|new|1"]);
    for (sql, words) in [
        ("UPDATE s.t SET a = 1", "table s.t"),
        ("UPDATE s.t SET b = 'z', c = 1 WHERE a = 3", "table s.t"),
        ("UPDATE s.t SET b = 'z' WHERE c = 30", "column c of table s.t"),
        ("UPDATE s.t SET b = b || 'z' WHERE a = 3", "column b of table s.t"),
        ("UPDATE s.t SET b = (SELECT max(c) FROM s.t) WHERE a = 3", "column c of table s.t"),
        ("EXPLAIN UPDATE s.t SET b = 'z' WHERE c = 30", "column c of table s.t"),
        ("DELETE FROM s.t WHERE a = 3", "table s.t"),
        ("MERGE INTO s.t USING (SELECT 3 AS k) n ON t.a = n.k WHEN MATCHED THEN UPDATE SET b = 'z'", "table s.t"),
    ] {
        closed.refused("bob", sql, denied, words).await;
    }
    closed.all("bob", &["UPDATE s.t SET b = 'set'"]).await;
    closed.all("ann", &["GRANT DELETE ON s.t TO bob"]).await;
    closed.refused("bob", "DELETE FROM s.t WHERE b = 'set'", denied, "column b of table s.t").await;
    closed.all("bob", &["DELETE FROM s.t WHERE a IS NULL OR a = 3"]).await;
    assert_eq!(closed.rows("ann", all).await, ["1|set|10", "2|set|20"]);

    let ingest = async |column: &str| {
        let rows = batch(vec![(column, Arc::new(Int64Array::from(vec![5])) as ArrayRef)]);
        let (schema, stream) = (rows.schema(), futures::stream::iter([Ok(rows)]).boxed());
        let mode = IngestMode::Append;
        let request = IngestRequest { schema: Some("s".into()), table: "t".into(), mode, options: HashMap::new() };
        closed.server.engine.ingest(&closed.session("bob"), request, schema, stream, None).await
    };
    closed.all("ann", &["REVOKE INSERT (c) ON s.t FROM bob"]).await;
    assert_eq!(ingest("a").await.unwrap(), 1);
    assert_eq!(ingest("c").await.unwrap_err().kind(), denied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_columns_follow_their_columns_and_act_at_once() {
    let closed = with_table().await;
    closed.all("ann", &["GRANT SELECT (a, b), UPDATE (b) ON TABLE s.t TO bob"]).await;
    let shown = "SELECT grantee, table_name, column_name, privilege FROM system.grants WHERE column_name IS NOT NULL \
                 ORDER BY 3, 4";
    assert_eq!(closed.rows("bob", shown).await, ["bob|t|a|SELECT", "bob|t|b|SELECT", "bob|t|b|UPDATE"]);
    let session = closed.session("bob");
    let prepared = session.prepare("SELECT b FROM s.t ORDER BY a").await.unwrap();
    let read = async || {
        let running = prepared.query(None).await?;
        running.stream.try_collect::<Vec<_>>().await.map_err(Error::from)
    };
    assert!(read().await.is_ok());
    closed.all("ann", &["REVOKE SELECT (b) ON s.t FROM bob"]).await;
    assert_eq!(read().await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(run_in(&session, "SELECT max(a) FROM s.t").await.unwrap(), ["2"], "the other one stays");

    closed.all("ann", &["DROP VIEW s.v", "ALTER TABLE s.t RENAME COLUMN a TO d, ADD COLUMN a BIGINT"]).await;
    assert_eq!(closed.rows("bob", "SELECT max(d) FROM s.t").await, ["2"]);
    closed.refused("bob", "SELECT a FROM s.t", ErrorKind::PermissionDenied, "column a of table s.t").await;
    closed.all("ann", &["ALTER TABLE s.t RENAME TO u", "ALTER TABLE s.u DROP COLUMN b, ADD COLUMN b VARCHAR"]).await;
    assert_eq!(closed.rows("bob", shown).await, ["bob|u|d|SELECT"]);
    // A transaction sees the columns of before; rights are on those of now.
    let before = closed.session("bob");
    for sql in ["BEGIN", "SELECT max(d) FROM s.u"] {
        run_in(&before, sql).await.unwrap();
    }
    let anew = ["ALTER TABLE s.u DROP COLUMN c, ADD COLUMN c BIGINT", "GRANT SELECT (c) ON s.u TO bob"];
    closed.all("ann", &anew).await;
    assert_eq!(run_in(&before, "SELECT max(c) FROM s.u").await.unwrap_err().kind(), ErrorKind::Aborted);
    run_in(&before, "ROLLBACK").await.unwrap();
    assert_eq!(closed.rows("bob", "SELECT count(c) FROM s.u").await, ["0"]);
    closed.refused("bob", "UPDATE s.u SET b = 'x'", ErrorKind::PermissionDenied, "table s.u").await;
    closed.all("ann", &["REVOKE SELECT ON s.u FROM bob"]).await;
    closed.refused("bob", "SELECT d FROM s.u", ErrorKind::PermissionDenied, "table s.u").await;

    closed.refused("ann", "GRANT SELECT (no) ON s.u TO bob", ErrorKind::NotFound, "column 'no' of 's.u'").await;
    closed.refused("ann", "GRANT DELETE (a) ON s.u TO bob", ErrorKind::InvalidArgument, "no right on a column").await;
    closed.refused("bob", "GRANT SELECT (a) ON s.u TO bob", ErrorKind::PermissionDenied, "s.u").await;
    closed.all("ann", &["GRANT ALL (d) ON s.u TO bob"]).await;
    for ended in [session, before] {
        closed.server.engine.close_session(ended.id());
    }
    drop(prepared);
    let again = closed.server.restart_with(|options| {
        options.owner = Some(Owner { name: "root".into(), password: PASSWORD.into() });
    });
    let closed = Closed { server: again.await };
    closed.all("bob", &["UPDATE s.u SET d = 9 WHERE d = 2"]).await;
    assert_eq!(closed.rows("bob", "SELECT max(d) FROM s.u").await, ["9"]);
    assert_eq!(closed.rows("bob", shown).await.len(), 3);
}
