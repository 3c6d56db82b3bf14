//! Zeros, infinities and NaN: the same rows wherever the data is stored.

use arrow::array::Float64Array;
use arrow::datatypes::{DataType, Field, Schema};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_have_one_zero_as_comparisons_do() {
    let server = Server::new();
    // Zeros in chunks of their own, and beside others.
    for (table, n) in [("apart", "value / 10"), ("mixed", "value % 2")] {
        let sql = format!(
            "CREATE TABLE {table} WITH (chunk_rows = 10) AS SELECT {n} AS n, \
             CASE WHEN {n} = 0 AND value % 3 = 0 THEN -0.0 ELSE arrow_cast({n}, 'Float64') END AS f \
             FROM generate_series(0, 19) ORDER BY value"
        );
        server.run(&sql).await.unwrap();
        for (condition, rows) in [
            ("n NOT IN (-0.0, 2, 5)", 10),
            ("n NOT IN (-0.0, 2, 5, 7, 9)", 10),
            ("n IN (-0.0, 2, 5, 7, 9)", 10),
            ("f IN (0.0, 2, 5, 7, 9)", 10),
            ("f IN (-0.0, 2, 5)", 10),
            ("f NOT IN (0.0, 2, 5, 7, 9)", 10),
            ("f IN (0.0, 5, 7, 9, 11) AND f IN (-0.0, 4, 6, 8, 10)", 10),
            ("f IN (1.0 - 1.0, 5, 7, 9, 11)", 10),
            ("f IN (1.0, 0.0, 5, 7, 9, 11)", 20),
        ] {
            let sql = format!("SELECT count(*) FROM {table} WHERE {condition}");
            assert_eq!(server.rows(&sql).await, [rows.to_string()], "{table}: {condition}");
        }
        let named = server.rows(&format!("DESCRIBE SELECT f IN (0.0, 5, 7, 9, 11) FROM {table}")).await;
        assert!(!named.concat().contains("-0"), "{named:?}");
        let statement =
            server.session.prepare(&format!("SELECT count(*) FROM {table} WHERE f IN (?, 5, 7, 9, 11)")).await;
        let schema = Arc::new(Schema::new(vec![Field::new("$1", DataType::Float64, true)]));
        let zero = RecordBatch::try_new(schema, vec![Arc::new(Float64Array::from(vec![-0.0]))]).unwrap();
        let found: Vec<RecordBatch> =
            statement.unwrap().query(Some(zero)).await.unwrap().stream.try_collect().await.unwrap();
        assert_eq!(found[0].column(0).as_primitive::<arrow::datatypes::Int64Type>().value(0), 10, "{table}");
    }
}

/// Rows with zeros, infinities and NaN, beside a table with keys.
async fn with_floats() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE f (k INT, f DOUBLE, r REAL) WITH (chunk_rows = 4)").await.unwrap();
    let values = ["0.0", "-0.0", "inf", "-inf", "nan", "2.5", "-0.0", "0.0"];
    let rows = values
        .iter()
        .enumerate()
        .map(|(key, value)| format!("({key}, CAST('{value}' AS DOUBLE), CAST('{value}' AS REAL))"));
    server.run(&format!("INSERT INTO f VALUES {}", rows.collect::<Vec<_>>().join(", "))).await.unwrap();
    server.run("OPTIMIZE f").await.unwrap();
    server.run("CREATE TABLE keys (k DOUBLE, n INT)").await.unwrap();
    server.run("INSERT INTO keys VALUES (0.0, 1), (2.5, 2)").await.unwrap();
    server.run("CREATE TABLE negative (k DOUBLE, n INT)").await.unwrap();
    server.run("INSERT INTO negative VALUES (-0.0, 1)").await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_match_both_zeros_behind_their_run_time_filters() {
    let server = with_floats().await;
    for (sql, wanted) in [
        ("SELECT count(*) FROM f JOIN keys ON f.f = keys.k", "5"),
        ("SELECT count(*) FROM f JOIN negative ON f.f = negative.k", "4"),
        ("SELECT count(*) FROM f JOIN negative ON f.r = CAST(negative.k AS REAL)", "4"),
        ("SELECT count(*) FROM f JOIN negative ON f.f = negative.k AND f.k > negative.n", "2"),
        ("SELECT count(*) FROM f JOIN (SELECT k, 0 AS z FROM negative) n ON f.f = n.k AND f.k = n.z", "1"),
        ("SELECT count(*) FROM f WHERE f IN (SELECT k FROM negative)", "4"),
        ("SELECT count(*) FROM f WHERE f NOT IN (SELECT k FROM keys)", "3"),
        ("SELECT count(*) FROM f WHERE f = (SELECT max(k) FROM negative)", "4"),
    ] {
        assert_eq!(server.rows(sql).await, [wanted], "{sql}");
    }
    assert_eq!(server.run("DELETE FROM f WHERE f IN (SELECT k FROM negative)").await.unwrap(), 4);
    assert_eq!(server.rows("SELECT count(*) FROM f").await, ["4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extremes_of_groups_know_infinities_and_nan() {
    let server = with_floats().await;
    for (sql, wanted) in [
        (
            "SELECT g, min(f), max(f) FROM (VALUES (1, 'inf')) t(g, x), (SELECT CAST('inf' AS DOUBLE) AS f) GROUP BY g",
            "1|inf|inf",
        ),
        ("SELECT k = 9, min(f), max(f) FROM f GROUP BY 1", "false|-inf|NaN"),
        ("SELECT k = 9, min(r), max(r) FROM f GROUP BY 1", "false|-inf|NaN"),
        ("SELECT k = 9, min(f), max(f) FROM f WHERE k IN (4, 5) GROUP BY 1", "false|2.5|NaN"),
        ("SELECT k = 9, min(f), max(f) FROM f WHERE k = 4 GROUP BY 1", "false|NaN|NaN"),
        ("SELECT k = 9, min(f), max(f) FROM f WHERE k = 3 GROUP BY 1", "false|-inf|-inf"),
        ("SELECT min(f), max(f) FROM f", "-inf|NaN"),
        ("SELECT min(k), max(k), min(-k) FROM f", "0|7|-7"),
    ] {
        assert_eq!(server.rows(sql).await, [wanted], "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distinct_counts_have_one_zero_and_negated_nan_stays_the_greatest() {
    let server = with_floats().await;
    for (sql, wanted) in [
        ("SELECT count(*), count(DISTINCT f) FROM f", vec!["8|5"]),
        ("SELECT count(*), count(DISTINCT r), count(DISTINCT f) FROM f", vec!["8|5|5"]),
        ("SELECT k < 2, count(*), count(DISTINCT f) FROM f WHERE k < 2 GROUP BY 1", vec!["true|2|1"]),
        ("SELECT cardinality(array_agg(DISTINCT f)) FROM f WHERE k < 2", vec!["1"]),
        ("SELECT array_agg(DISTINCT f ORDER BY f), count(*) FROM f WHERE k < 2", vec!["[0.0]|2"]),
        (
            "SELECT arrow_typeof(array_agg(DISTINCT r)) LIKE '%Float32%', arrow_typeof(-r) FROM f WHERE k = 2 GROUP BY r",
            vec!["true|Float32"],
        ),
        ("SELECT approx_median(DISTINCT k) > 2.0 FROM f", vec!["true"]),
        ("SELECT count(DISTINCT f), max(f) FROM f WHERE k < 2", vec!["1|0.0"]),
        ("SELECT min(-f) < 1e300, count(DISTINCT k) FROM f WHERE k IN (4, 5)", vec!["true|2"]),
        ("SELECT min(-f), count(DISTINCT f) FROM f WHERE k IN (0, 1, 5)", vec!["-2.5|2"]),
        ("SELECT count(DISTINCT f * 0e0), count(DISTINCT k) FROM f WHERE k IN (0, 1, 5)", vec!["1|3"]),
        ("SELECT k FROM f WHERE -f > 1e300 ORDER BY k", vec!["3", "4"]),
        ("SELECT k FROM f WHERE k > 1 AND k < 6 ORDER BY -f", vec!["2", "5", "3", "4"]),
        ("SELECT -f AS x, 1.0 / -f AS y FROM f WHERE k = 0", vec!["-0.0|-inf"]),
    ] {
        assert_eq!(server.rows(sql).await, wanted, "{sql}");
    }
    let names =
        server.session.prepare("SELECT -f, count(DISTINCT f) FROM f GROUP BY f").await.unwrap().dataset_schema();
    assert_eq!((names.field(0).name().as_str(), names.field(1).name().as_str()), ("(- f.f)", "count(DISTINCT f.f)"));
}
