//! Rewrites of changes must not misprint them, nor expose the hidden names.

use terrace_tier_store::table::ColumnBounds;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_after_a_sign_is_no_comment() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT DEFAULT - -7, b INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 1), (5, 2)").await.unwrap();
    server.run("INSERT INTO t (b) VALUES (3)").await.unwrap();
    assert_eq!(server.run("UPDATE t SET a = - -10 - - - 4 WHERE a = - -5").await.unwrap(), 1);
    assert_eq!(server.run("UPDATE t SET b = - -b * 2 WHERE b = - - -(-1)").await.unwrap(), 1);
    assert_eq!(server.rows("SELECT a, b FROM t ORDER BY a").await, ["1|2", "6|2", "7|3"]);
    server.run("CREATE VIEW v AS SELECT a, - -b AS c FROM t WHERE a > - -1").await.unwrap();
    assert_eq!(server.rows("SELECT a, c FROM v ORDER BY a").await, ["6|2", "7|3"]);
    server.run("ALTER TABLE t ALTER COLUMN b SET DEFAULT - -9").await.unwrap();
    server.run("INSERT INTO t (a) VALUES (100)").await.unwrap();
    assert_eq!(server.rows("SELECT b FROM t WHERE a = 100").await, ["9"]);
    let merge = "MERGE INTO t USING (SELECT 100 AS k) AS s ON t.a = s.k WHEN MATCHED AND - -b = 9 THEN DELETE";
    assert_eq!(server.run(merge).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_may_be_named_like_those_of_the_query() {
    let server = Server::new();
    server.run("CREATE TABLE t (k INT, __action VARCHAR, __source INT)").await.unwrap();
    server.run("CREATE TABLE s (k INT, __action VARCHAR, __source INT, __row_ INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)").await.unwrap();
    server.run("INSERT INTO s VALUES (2, 'two', 22, 5), (4, 'four', 44, 6)").await.unwrap();
    let merge = "MERGE INTO t USING s ON t.k = s.k \
         WHEN MATCHED THEN UPDATE SET __action = s.__action, __source = __row_ \
         WHEN NOT MATCHED THEN INSERT (k, __action, __source) VALUES (s.k, s.__action, s.__source) \
         WHEN NOT MATCHED BY SOURCE AND t.__action = 'c' THEN DELETE";
    assert_eq!(server.run(merge).await.unwrap(), 3);
    assert_eq!(server.rows("SELECT * FROM t ORDER BY k").await, ["1|a|1", "2|two|5", "4|four|44"]);
    let own = "MERGE INTO t USING (SELECT 1 AS __row, 7 AS __terrace_source_) AS s ON t.k = s.__row \
         WHEN MATCHED THEN UPDATE SET __source = s.__terrace_source_ + __row";
    assert_eq!(server.run(own).await.unwrap(), 1);
    assert_eq!(server.rows("SELECT __source FROM t WHERE k = 1").await, ["8"]);
    server.run("CREATE VIEW v AS SELECT 2 AS k, 3 AS __terrace_source").await.unwrap();
    for source in ["v", "(SELECT * FROM v) AS v"] {
        let merge = format!("MERGE INTO t USING {source} ON t.k = v.k WHEN MATCHED THEN DELETE");
        server.fails(&merge, ErrorKind::InvalidArgument, "a name that MERGE itself uses; leave it out").await;
    }
    let renamed = "MERGE INTO t USING (SELECT k FROM v) AS v ON t.k = v.k WHEN MATCHED THEN UPDATE SET __source = 22";
    assert_eq!(server.run(renamed).await.unwrap(), 1);
    let reserved = "CREATE TABLE bad (__terrace_source INT)";
    server.fails(reserved, ErrorKind::InvalidArgument, "__terrace_source").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_where_a_row_lies() {
    use ErrorKind::{InvalidArgument, NotFound};
    let server = Server::new();
    server.run("CREATE TABLE t (a BIGINT, b BIGINT)").await.unwrap();
    server.run("CREATE TABLE s (a BIGINT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 1), (2, 2)").await.unwrap();
    for sql in [
        "UPDATE t SET a = __row",
        "UPDATE t SET a = \"__row\"",
        "UPDATE t SET a = t.__ROW",
        "UPDATE t SET a = 1 WHERE __row = 0",
        "UPDATE t SET a = (SELECT max(s.a) FROM s WHERE s.a = __row)",
        "DELETE FROM t WHERE __row = 0",
        "DELETE FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.a = t.__row)",
        "DELETE FROM t ORDER BY __row LIMIT 1",
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET a = __row",
        "MERGE INTO t USING s ON t.__row = s.a WHEN MATCHED THEN DELETE",
        "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED BY SOURCE AND __row = 1 THEN DELETE",
    ] {
        server.fails(sql, InvalidArgument, "column '__row' does not exist").await;
    }
    server.fails("UPDATE t SET a = 1 WHERE zzz = 1", InvalidArgument, "there are: a, b").await;
    server.fails("UPDATE t SET __row = 1", InvalidArgument, "'__row' does not exist").await;
    for sql in ["DELETE FROM t WHERE a IN (SELECT a FROM __target.__target)", "DELETE FROM t USING __target.__target"] {
        server.fails(sql, NotFound, "__target").await;
    }
    assert_eq!(server.rows("SELECT a FROM t ORDER BY a").await, ["1", "2"]);
}

/// Bounds of the chunks of a table's first column.
fn ranges(server: &Server, table: &str) -> Vec<(i64, i64)> {
    let table = server.engine.store().table(&TableName::new("public", table)).unwrap();
    let version = table.version();
    let ColumnBounds { min, max, .. } = version.statistics.column(0).unwrap();
    let values = |bounds: &ArrayRef| bounds.as_primitive::<Int64Type>().values().to_vec();
    values(min).into_iter().zip(values(max)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rows_are_clustered_like_loaded_ones() {
    let server = Server::new();
    let disjoint = |ranges: &[(i64, i64)]| {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        sorted.windows(2).all(|pair| pair[0].1 < pair[1].0)
    };
    server.run("CREATE TABLE c (k BIGINT, v BIGINT) WITH (cluster_by = 'k', chunk_rows = 100)").await.unwrap();
    server.run("INSERT INTO c SELECT value, value AS v FROM generate_series(1, 2000)").await.unwrap();
    assert_eq!(server.run("UPDATE c SET k = (v * 7919) % 2003").await.unwrap(), 2000);
    let updated = ranges(&server, "c");
    assert!(updated.len() == 20 && disjoint(&updated), "{updated:?}");
    let merge = "MERGE INTO c USING (SELECT value AS v FROM generate_series(1001, 3000)) AS s ON c.v = s.v \
         WHEN MATCHED THEN UPDATE SET k = 10000 + (s.v * 7919) % 2003 \
         WHEN NOT MATCHED THEN INSERT VALUES (20000 + (s.v * 7919) % 2003, s.v) \
         WHEN NOT MATCHED BY SOURCE THEN DELETE";
    assert_eq!(server.run(merge).await.unwrap(), 3000);
    let merged = ranges(&server, "c");
    assert!(merged.len() == 20 && disjoint(&merged), "{merged:?}");
    assert_eq!(server.rows("SELECT count(*), count(DISTINCT k), min(v) FROM c").await, ["2000|2000|1001"]);
}
