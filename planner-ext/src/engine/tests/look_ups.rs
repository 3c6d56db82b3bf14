//! Look-ups by prepared statements: optimized before their values are known, with the answers of the same queries with literals.

use arrow::array::{
    Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int8Array, TimestampMicrosecondArray,
    TimestampNanosecondArray, UInt64Array,
};
use arrow::datatypes::Int8Type;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use terrace_scan::scan::TierScanExec;

use super::*;
use crate::engine::run::scan_alone;

async fn with_rows() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT, i INT, s VARCHAR, f DOUBLE) WITH (cluster_by = 'k')").await.unwrap();
    let rows = "SELECT value, CAST(value % 7 AS INT), concat('s', value % 100), CAST(value AS DOUBLE) AS f FROM generate_series(1, 3000)";
    server.run(&format!("INSERT INTO t {rows}")).await.unwrap();
    server.run("INSERT INTO t VALUES (NULL, NULL, NULL, NULL), (-5, 3, 's7', 0.5)").await.unwrap();
    server
}

fn int(value: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn short(value: i32) -> ArrayRef {
    Arc::new(Int32Array::from(vec![value]))
}

fn float(value: f64) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value]))
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn null() -> ArrayRef {
    Arc::new(Int64Array::from(vec![None::<i64>]))
}

/// The rows for one value of the only parameter.
async fn look_up(prepared: &Arc<Prepared>, value: ArrayRef) -> Result<Vec<String>> {
    let running = prepared.query(Some(batch(vec![("1", value)]))).await?;
    let rows: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
    Ok(row_texts(&rows))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn look_ups_answer_as_queries_with_literals() {
    let server = with_rows().await;
    let nothing = "CAST(NULL AS BIGINT)";
    let numbers = || {
        vec![
            (int(7), "7"),
            (null(), nothing),
            (short(8), "8"),
            (int(-5), "-5"),
            (int(3_000_000_000), "3000000000"),
            (float(2.5), "2.5"),
            (float(3.0), "3.0"),
        ]
    };
    let texts = vec![(text("s7"), "'s7'"), (text(""), "''"), (text("it''s"), "'it''''s'"), (text("s8"), "'s8'")];
    let mut cases = vec![("s = $1", texts.clone()), ("$1 <= s", texts)];
    for condition in [
        "k = $1",
        "i = $1",
        "k <> $1",
        "$1 > i",
        "k BETWEEN $1 AND 20",
        "NOT (k = $1)",
        "k >= $1 AND i = 3",
        "f = $1",
        "k = $1 OR i = 3",
        "k IN ($1, 9)",
        "k + 1 = $1",
    ] {
        cases.push((condition, numbers()));
    }
    for (condition, values) in cases {
        for select in ["SELECT k, i, s FROM t WHERE {} ORDER BY k", "SELECT count(*), sum(i), max(s) FROM t WHERE {}"] {
            let prepared = server.session.prepare(&select.replace("{}", condition)).await.unwrap();
            for (value, literal) in &values {
                let sql = select.replace("{}", &condition.replace("$1", literal));
                let found = look_up(&prepared, Arc::clone(value)).await;
                assert_eq!(found.unwrap_or_else(|error| panic!("{sql}: {error}")), server.rows(&sql).await, "{sql}");
            }
        }
    }
}

/// Values of many types, NULL among them: those that a column holds, and those that it cannot hold.
fn values_of_many_types() -> Vec<ArrayRef> {
    let cents = |value, precision, scale| {
        Arc::new(Decimal128Array::from(vec![value]).with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    // 2020-01-02 00:00:00
    let second = 1_577_923_200_i64;
    let micros = || TimestampMicrosecondArray::from(vec![second * 1_000_000]);
    let key: DictionaryArray<Int8Type> = ["s2"].into_iter().collect();
    vec![
        int(2),
        int(70_000),
        int(-1),
        Arc::new(Int8Array::from(vec![2])),
        Arc::new(Int8Array::from(vec![None::<i8>])),
        Arc::new(UInt64Array::from(vec![2])),
        Arc::new(UInt64Array::from(vec![u64::MAX])),
        float(2.5),
        float(f64::NAN),
        cents(Some(2500), 12, 3),
        cents(Some(2501), 12, 3),
        cents(Some(250), 10, 2),
        cents(None, 10, 2),
        Arc::new(Date32Array::from(vec![(second / 86_400) as i32])),
        Arc::new(micros()),
        Arc::new(micros().with_timezone("+00:00")),
        Arc::new(TimestampNanosecondArray::from(vec![second * 1_000_000_000 + 1])),
        text("s2"),
        Arc::new(StringArray::from(vec![None::<&str>])),
        Arc::new(StringViewArray::from(vec!["s2"])),
        Arc::new(key),
    ]
}

/// In a transaction, queries are optimized with their values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_any_type_answer_as_in_a_transaction() {
    let server = Server::new();
    let columns = "n SMALLINT, u BIGINT UNSIGNED, d DECIMAL(10, 2), at TIMESTAMP, day DATE, s VARCHAR";
    server.run(&format!("CREATE TABLE t ({columns})")).await.unwrap();
    for row in [
        "1, 1, 1.25, '2020-01-01 00:00:00', '2020-01-01', 's1'",
        "2, 2, 2.5, '2020-01-02 00:00:00', '2020-01-02', 's2'",
        "3, 18446744073709551615, -3.75, '2020-01-02 00:00:00.5', '1960-01-03', ''",
        "-4, 0, 0, NULL, NULL, NULL",
        "NULL, NULL, NULL, '1960-01-01 00:00:00', '2030-01-01', 's3'",
    ] {
        server.run(&format!("INSERT INTO t VALUES ({row})")).await.unwrap_or_else(|error| panic!("{row}: {error}"));
    }
    let mut answers = 0;
    for column in ["n", "u", "d", "at", "day", "s"] {
        for condition in ["c = $1", "$1 <= c", "NOT (c = $1)", "(c = $1) IS NOT NULL"] {
            let sql = format!("SELECT n, s FROM t WHERE {} ORDER BY n, s", condition.replace('c', column));
            let prepared = server.session.prepare(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let values = values_of_many_types();
            let mut alone = Vec::new();
            for value in &values {
                alone.push(look_up(&prepared, Arc::clone(value)).await.map_err(|error| error.kind()));
            }
            server.run("BEGIN").await.unwrap();
            for (value, alone) in values.iter().zip(alone) {
                let bound = look_up(&prepared, Arc::clone(value)).await.map_err(|error| error.kind());
                assert_eq!(alone, bound, "{sql} with {value:?}");
                answers += usize::from(alone.is_ok());
            }
            server.run("ROLLBACK").await.unwrap();
        }
    }
    assert!(answers > 150, "{answers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_on_groups_and_on_other_columns_wait_as_well() {
    let server = with_rows().await;
    server
        .run("CREATE VIEW sums AS SELECT i AS class, count(*) AS many, max(k) AS last FROM t GROUP BY i")
        .await
        .unwrap();
    for (condition, expected) in [
        ("class = $1", "SELECT last FROM sums WHERE class = 3 ORDER BY last"),
        ("many > $1", "SELECT last FROM sums WHERE many > 3 ORDER BY last"),
        ("many >= $1 AND last <> $1", "SELECT last FROM sums WHERE many >= 3 AND last <> 3 ORDER BY last"),
    ] {
        let sql = format!("SELECT last FROM sums WHERE {condition} ORDER BY last");
        let prepared = server.session.prepare(&sql).await.unwrap();
        assert_eq!(look_up(&prepared, int(3)).await.unwrap(), server.rows(expected).await, "{sql}");
        assert!(look_up(&prepared, null()).await.unwrap().is_empty(), "{sql}");
        assert_eq!(look_up(&prepared, int(3)).await.unwrap(), server.rows(expected).await, "{sql}, after NULL");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_values_is_optimized_once() {
    let server = with_rows().await;
    for (sql, expected) in [
        ("SELECT k, s FROM t WHERE k = $1", true),
        ("SELECT max(f) FROM t WHERE k > $1 AND s = $2", true),
        ("SELECT k FROM t WHERE f = $1", false),
        ("SELECT k FROM t WHERE k IN ($1)", false),
        ("SELECT repeat('x', 100000) AS x FROM t WHERE k = $1", false),
        ("SELECT k FROM t WHERE k = 1", false),
    ] {
        server.session.prepare(sql).await.unwrap();
        let key = server.session.plan_place(&Arc::from(sql)).unwrap().key;
        assert_eq!(server.engine.plans.find(&key).unwrap().has_skeleton(), expected, "{sql}");
    }
    // The wrong number of values is refused as ever.
    let prepared = server.session.prepare("SELECT k, s FROM t WHERE k = $1").await.unwrap();
    let error = prepared.query(Some(batch(vec![("1", int(1)), ("2", int(2))]))).await.map(drop).unwrap_err();
    assert!(error.message().contains("takes 1 parameters"), "{error}");
    let error = prepared.query(None).await.map(drop).unwrap_err();
    assert!(error.message().contains("takes 1 parameters"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn look_ups_see_each_change() {
    let server = with_rows().await;
    let prepared = server.session.prepare("SELECT i FROM t WHERE k = $1").await.unwrap();
    let seven = async || look_up(&prepared, int(7)).await;
    assert_eq!(seven().await.unwrap(), ["0"]);
    for (change, expected) in [
        ("UPDATE t SET i = 100 WHERE k = 7", vec!["100"]),
        ("DELETE FROM t WHERE k = 7", vec![]),
        ("INSERT INTO t (k, i) VALUES (7, 5)", vec!["5"]),
        ("ALTER TABLE t ADD COLUMN z INT", vec!["5"]),
        ("OPTIMIZE t", vec!["5"]),
        ("CREATE OR REPLACE TABLE t AS SELECT CAST(7 AS INT) AS k, 9 AS i", vec!["9"]),
    ] {
        server.run(change).await.unwrap_or_else(|error| panic!("{change}: {error}"));
        assert_eq!(seven().await.unwrap(), expected, "{change}");
        assert_eq!(seven().await.unwrap(), expected, "{change}, again");
    }
    server.run("BEGIN").await.unwrap();
    server.run("UPDATE t SET i = 10 WHERE k = 7").await.unwrap();
    assert_eq!(seven().await.unwrap(), ["10"], "its own change");
    server.run("ROLLBACK").await.unwrap();
    assert_eq!(seven().await.unwrap(), ["9"]);
    server.run("DROP TABLE t").await.unwrap();
    assert_eq!(seven().await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_are_looked_up_as_they_are() {
    let server = with_rows().await;
    server.run("CREATE VIEW seen AS SELECT k, i FROM t WHERE i < 3").await.unwrap();
    let prepared = server.session.prepare("SELECT i FROM seen WHERE k = $1").await.unwrap();
    assert_eq!(look_up(&prepared, int(8)).await.unwrap(), ["1"]);
    assert!(look_up(&prepared, int(10)).await.unwrap().is_empty());
    server.run("CREATE OR REPLACE VIEW seen AS SELECT k, i + 1 AS i FROM t").await.unwrap();
    assert_eq!(look_up(&prepared, int(10)).await.unwrap(), ["4"]);
    assert_eq!(look_up(&prepared, int(8)).await.unwrap(), ["2"]);
}

/// What the rules of the physical optimizer, which do not run then, would have made of a scan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_alone_is_planned_as_its_rules_plan_it() {
    let server = with_rows().await;
    let state = server.session.snapshot().unwrap().state();
    let optimized = async |sql: &str| state.optimize(&state.create_logical_plan(sql).await.unwrap()).unwrap();
    let shown = |plan: &Arc<dyn ExecutionPlan>| {
        let level = plan.downcast_ref::<TierScanExec>().unwrap().config().level;
        format!("{level} {}", displayable(plan.as_ref()).indent(true))
    };
    for sql in [
        "SELECT k, s FROM t WHERE k = 7",
        "SELECT s FROM t WHERE k > 5 AND s <> 'a' AND i IS NOT NULL",
        "SELECT k FROM t WHERE k = -1000000",
        "SELECT * FROM t",
        "SELECT k, f FROM t WHERE i = 3 OR k < 5",
    ] {
        let logical = optimized(sql).await;
        let alone = scan_alone(&state, &logical).unwrap().expect(sql);
        let by_rules = state.query_planner().create_physical_plan(&logical, &state).await.unwrap();
        assert_eq!(shown(&alone), shown(&by_rules), "{sql}");
    }
    // Columns in another order are a projection, which only the rules give to the scan.
    for sql in [
        "SELECT f, k FROM t",
        "SELECT k + 1 FROM t",
        "SELECT k FROM t LIMIT 3",
        "SELECT max(k) FROM t WHERE i = 1",
        "SELECT 1",
    ] {
        assert!(scan_alone(&state, &optimized(sql).await).unwrap().is_none(), "{sql}");
    }
    let explained = server.rows("EXPLAIN SELECT k FROM t WHERE k > 0").await;
    assert!(explained.iter().any(|row| row.contains("; a point statement")), "{explained:?}");
}
