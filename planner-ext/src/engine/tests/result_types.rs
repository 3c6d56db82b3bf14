//! The announced type of a result is that of its rows, and of a view or a table made from it.

use arrow::datatypes::{DataType, TimeUnit};

use super::*;

/// Queries whose analysis widens the planner's type, with their type and their rows.
fn widened() -> Vec<(&'static str, DataType, Vec<&'static str>)> {
    let timestamp = DataType::Timestamp(TimeUnit::Nanosecond, None);
    vec![
        ("SELECT 1 AS x UNION ALL SELECT 2.5", DataType::Decimal128(21, 1), vec!["1.0", "2.5"]),
        ("SELECT 1 AS x UNION ALL SELECT 25e-1", DataType::Float64, vec!["1.0", "2.5"]),
        ("SELECT sum(x) AS x FROM (SELECT 1 AS x UNION ALL SELECT 2.5)", DataType::Decimal128(31, 1), vec!["3.5"]),
        (
            "SELECT sum(CASE WHEN x = 1 THEN 0 ELSE f END) AS x FROM (VALUES (1, 2.75), (2, 3.5)) t(x, f)",
            DataType::Decimal128(32, 2),
            vec!["3.50"],
        ),
        (
            "SELECT DATE '2024-01-02' AS x UNION ALL SELECT TIMESTAMP '2024-01-01T10:11:12'",
            timestamp,
            vec!["2024-01-01T10:11:12", "2024-01-02T00:00:00"],
        ),
        ("SELECT NULL AS x UNION ALL SELECT 3", DataType::Int64, vec!["", "3"]),
        ("SELECT 1 AS x UNION ALL SELECT 'abc'", DataType::Utf8View, vec!["1", "abc"]),
        ("SELECT CAST(1 AS INT) AS x UNION ALL SELECT 3000000000", DataType::Int64, vec!["1", "3000000000"]),
        ("SELECT coalesce(NULL, CAST(1 AS INT), 2.5) AS x", DataType::Decimal128(11, 1), vec!["1.0"]),
        ("SELECT CASE WHEN 1 = 2 THEN 1 ELSE 2.5 END AS x", DataType::Decimal128(21, 1), vec!["2.5"]),
    ]
}

fn unview(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::Utf8View => DataType::Utf8,
        other => other.clone(),
    }
}

#[tokio::test]
async fn prepare_rows_views_and_tables_have_one_type() {
    let server = Server::new();
    for (number, (sql, wanted, rows)) in widened().into_iter().enumerate() {
        let sorted = format!("SELECT * FROM ({sql}) ORDER BY x NULLS FIRST");
        for query in [sql, &sorted] {
            let prepared = server.session.prepare(query).await.unwrap();
            let announced = prepared.dataset_schema();
            let running = prepared.query(None).await.unwrap();
            assert_eq!(unview(announced.field(0).data_type()), unview(&wanted), "{query}");
            assert_eq!(running.schema.field(0).data_type(), announced.field(0).data_type(), "{query}");
        }
        assert_eq!(server.rows(&sorted).await, rows, "{sql}");

        server.run(&format!("CREATE VIEW v{number} AS {sql}")).await.unwrap();
        server.run(&format!("CREATE TABLE t{number} AS {sql}")).await.unwrap();
        for object in [format!("v{number}"), format!("t{number}")] {
            let of_object = format!("SELECT x FROM {object} ORDER BY x NULLS FIRST");
            let prepared = server.session.prepare(&of_object).await.unwrap();
            assert_eq!(unview(prepared.dataset_schema().field(0).data_type()), unview(&wanted), "{object}: {sql}");
            assert_eq!(server.rows(&of_object).await, rows, "{object}: {sql}");
        }
    }
}

#[tokio::test]
async fn folded_numbers_have_the_announced_type() {
    let server = Server::new();
    server.run("CREATE TABLE t (d DECIMAL(20, 2) NOT NULL, b BIGINT NOT NULL)").await.unwrap();
    server.run("INSERT INTO t VALUES (2.5, 3)").await.unwrap();
    for (sql, wanted) in [
        ("SELECT d * 0 AS x FROM t", "0.00"),
        ("SELECT d * 0 + 1 AS x FROM t", "1.00"),
        ("SELECT round(125.0::DECIMAL(10, 1), -1::INT) AS x", "130.0"),
        ("SELECT b * 0 AS x FROM t", "0"),
    ] {
        let prepared = server.session.prepare(sql).await.unwrap();
        let announced = prepared.dataset_schema();
        let running = prepared.query(None).await.unwrap();
        let rows: Vec<_> = running.stream.try_collect().await.unwrap();
        assert_eq!(rows[0].schema().field(0).data_type(), announced.field(0).data_type(), "{sql}");
        assert_eq!(server.rows(sql).await, [wanted], "{sql}");
    }
}

#[tokio::test]
async fn sums_over_a_widened_view_keep_their_fraction() {
    let server = Server::new();
    server.run("CREATE VIEW v AS SELECT 1 AS x UNION ALL SELECT 2.5").await.unwrap();
    assert_eq!(server.rows("SELECT sum(x), max(x) FROM v").await, ["3.5|2.5"]);
}

#[tokio::test]
async fn a_scalar_subquery_without_a_row_is_null() {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT NOT NULL)").await.unwrap();
    server.run("INSERT INTO t VALUES (1), (2)").await.unwrap();
    let sql = "SELECT k, (SELECT max(s.k) FROM t s WHERE s.k > 1 AND s.k = t.k) AS x FROM t ORDER BY k";
    assert!(server.session.prepare(sql).await.unwrap().dataset_schema().field(1).is_nullable());
    assert_eq!(server.rows(sql).await, ["1|", "2|2"]);
    server.run(&format!("CREATE TABLE u AS {sql}")).await.unwrap();
    assert_eq!(server.rows("SELECT * FROM u ORDER BY k").await, ["1|", "2|2"]);
    let none = "(SELECT k FROM t WHERE k = 9)";
    let own = "(SELECT max(s.k) FROM t s WHERE s.k = t.k + 1)";
    for (sql, wanted) in [
        (format!("SELECT coalesce({none}, 0), {none} IS NULL"), vec!["0|true"]),
        (format!("SELECT k FROM t WHERE {none} IS NULL ORDER BY k"), vec!["1", "2"]),
        (format!("SELECT k FROM t WHERE {none} IS NOT NULL"), vec![]),
        (format!("SELECT k, coalesce({own}, 0) FROM t ORDER BY k"), vec!["1|2", "2|0"]),
        (format!("SELECT k FROM t WHERE {own} IS NULL"), vec!["2"]),
        (format!("SELECT k FROM t GROUP BY k HAVING coalesce({own}, 0) = 0"), vec!["2"]),
        // count(*) of no row is 0, unless HAVING takes it away.
        ("SELECT k, (SELECT count(*) FROM t s WHERE s.k = t.k + 1) FROM t ORDER BY k".to_owned(), vec!["1|1", "2|0"]),
        ("SELECT coalesce((SELECT count(*) FROM t HAVING count(*) > 9), -1)".to_owned(), vec!["-1"]),
    ] {
        assert_eq!(server.rows(&sql).await, wanted, "{sql}");
    }
    // Columns beside it are as they are declared.
    let schema = server.session.prepare(&format!("SELECT k, {none} AS x FROM t")).await.unwrap().dataset_schema();
    assert_eq!([schema.field(0).is_nullable(), schema.field(1).is_nullable()], [false, true]);
}

#[tokio::test]
async fn rows_of_an_insert_are_cast_once() {
    let server = Server::new();
    server.run("CREATE TABLE t (d DOUBLE, i BIGINT)").await.unwrap();
    server.run("INSERT INTO t (d, i) SELECT 1 AS d, 1 AS i UNION ALL SELECT 2.5, 2.6").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM t ORDER BY d").await, ["1.0|1", "2.5|2"]);
}

#[tokio::test]
async fn a_recursive_term_that_is_wider_is_refused() {
    let server = Server::new();
    let wide = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 0.5 FROM r WHERE n < 3) SELECT * FROM r";
    for words in ["Int64", "Decimal128", "CAST", "'r'", "'n'"] {
        server.fails(wide, ErrorKind::InvalidArgument, words).await;
    }
    server.fails(&format!("CREATE VIEW v AS {wide}"), ErrorKind::InvalidArgument, "CAST").await;
    let cast = "WITH RECURSIVE r AS (SELECT CAST(1 AS DOUBLE) AS n UNION ALL SELECT n + 0.5 FROM r WHERE n < 2) SELECT * FROM r ORDER BY n";
    assert_eq!(server.rows(cast).await, ["1.0", "1.5", "2.0"]);
    let int = "WITH RECURSIVE r AS (SELECT CAST(1 AS INT) AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r ORDER BY n";
    assert_eq!(server.rows(int).await, ["1", "2", "3"]);
    let own = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT CAST(n + 1.5 AS BIGINT) FROM r WHERE n < 3) SELECT * FROM r ORDER BY n";
    assert_eq!(server.rows(own).await, ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn recursion_without_end_counts_against_the_time_limit() {
    let server = Server::with(|options| options.statement_timeout = Some(Duration::from_millis(300)));
    let endless = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT count(*) FROM r";
    server.fails(endless, ErrorKind::DeadlineExceeded, "longer than").await;
}

#[tokio::test]
async fn a_query_has_the_order_of_its_own_order_by() {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT, v BIGINT)").await.unwrap();
    for (sql, is_ordered) in [
        ("SELECT k FROM t ORDER BY k", true),
        ("SELECT v FROM t ORDER BY k DESC LIMIT 5 OFFSET 1", true),
        ("SELECT DISTINCT v FROM t ORDER BY v", true),
        ("SELECT DISTINCT ON (v) k, v FROM t ORDER BY v, k", true),
        ("SELECT k FROM t UNION ALL SELECT v FROM t ORDER BY 1", true),
        ("WITH s AS (SELECT k FROM t) SELECT k FROM s ORDER BY k", true),
        ("SELECT k FROM t", false),
        ("SELECT DISTINCT ON (v) k, v FROM t", false),
        ("SELECT k FROM t LIMIT 5", false),
        ("SELECT count(*) FROM (SELECT k FROM t ORDER BY k LIMIT 5)", false),
        ("SELECT k FROM (SELECT k FROM t ORDER BY k) s", false),
        ("SELECT row_number() OVER (ORDER BY k) FROM t", false),
        ("INSERT INTO t SELECT k, v FROM t ORDER BY k", false),
        ("EXPLAIN SELECT k FROM t ORDER BY k", false),
    ] {
        // The second time the plan may come from the cache.
        for _ in 0..2 {
            assert_eq!(server.session.prepare(sql).await.unwrap().is_ordered(), is_ordered, "{sql}");
        }
    }
}

#[tokio::test]
async fn texts_of_other_forms_come_from_scans_and_are_the_same() {
    let server = Server::new();
    let text = "CASE WHEN value % 10 > 0 THEN 'text ' || (value % 9) END";
    server
        .run(&format!("CREATE TABLE t AS SELECT value AS k, {text} AS s FROM generate_series(1, 5000)"))
        .await
        .unwrap();
    server.run("INSERT INTO t VALUES (0, NULL), (-1, 'a text that is in no chunk yet')").await.unwrap();
    for (sql, is_scan) in [
        ("SELECT k, s FROM t", true),
        ("SELECT s, k FROM t WHERE k % 2 = 0", true),
        ("SELECT k, s || '!' AS s FROM t", false),
        ("SELECT s, count(*) FROM t GROUP BY s", false),
        ("SELECT k, s FROM t ORDER BY k LIMIT 7", false),
    ] {
        let prepared = server.session.prepare(sql).await.unwrap();
        let rows = async |texts: Texts| {
            let running = prepared.query_with_texts(None, texts).await.unwrap();
            let has_views = running.schema.fields().iter().any(|field| *field.data_type() == DataType::Utf8View);
            let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
            assert!(batches.iter().all(|batch| batch.schema().fields() == running.schema.fields()), "{sql}");
            let mut rows = row_texts(&batches);
            rows.sort_unstable();
            (rows, has_views)
        };
        let (views, _) = rows(Texts::Views).await;
        for texts in [Texts::PlainFromScans, Texts::KeysFromScans] {
            let (found, has_views) = rows(texts).await;
            assert_eq!(found, views, "{sql} as {texts:?}");
            // What one execution wants changes no other.
            assert!(!is_scan || !has_views && rows(Texts::Views).await.1, "{sql} as {texts:?}");
        }
    }
}
