//! Aggregations that collect values, and other operators that hold all rows: what they reserve, and how they are refused.

use super::*;

/// Texts of `array_agg` are views, whose texts DataFusion does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn array_agg_of_texts_counts_what_its_result_takes() {
    let server = Server::with(|o| o.query_memory_bytes = 64 << 20);
    server
        .run("CREATE TABLE t AS SELECT k, repeat('x', 200) AS s FROM generate_series(1, 800000) AS g(k)")
        .await
        .unwrap();
    for (sql, groups) in [
        ("SELECT cardinality(array_agg(concat(s, k))) FROM t", "all"),
        ("SELECT length(string_agg(s, ',')) FROM t", "a text"),
    ] {
        let error = server.batches(sql).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{groups}: {error}");
        let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        assert!(record.memory.allocated_peak < 192 << 20, "{groups}: {record:?}");
    }
    let small = "SELECT cardinality(array_agg(concat(s, k))) FROM t WHERE k <= 10000";
    assert_eq!(server.rows(small).await, ["10000"]);
    // Many views of one text take one text.
    server
        .run("CREATE TABLE one AS SELECT arrow_cast(repeat('y', 1000000 + k), 'Utf8View') AS y FROM t WHERE k = 1")
        .await
        .unwrap();
    let shared = "SELECT cardinality(array_agg(y)), count(DISTINCT k) FROM one, t WHERE k <= 5000";
    assert_eq!(server.rows(shared).await, ["5000|5000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused_with_the_operator_and_its_memory() {
    let server = Server::with(|o| o.query_memory_bytes = 16 << 20);
    server
        .run(
            "CREATE TABLE t AS SELECT value AS k, concat(repeat('x', 100), value) AS s FROM generate_series(1, 400000)",
        )
        .await
        .unwrap();
    for (sql, operator) in [
        ("SELECT cardinality(array_agg(s)) FROM t", "Aggregate"),
        ("SELECT median(value) FROM generate_series(1, 4000000)", "Aggregate"),
        ("SELECT s, sum(k) OVER (PARTITION BY k > 0) FROM t", "WindowAggExec"),
        // It keeps its left side, and cannot spill.
        ("SELECT max(concat(a.s, b.s)) FROM t AS a CROSS JOIN t AS b", "Join"),
    ] {
        let answer = tokio::time::timeout(Duration::from_secs(60), server.batches(sql)).await.expect(sql);
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{sql}: {error}");
        for part in [operator, " asked for ", "this statement holds ", "of 16777216"] {
            assert!(error.message().contains(part), "{sql}: {part}: {error}");
        }
    }
}

async fn wait_for_spilled(server: &Server, is_meant: fn(u64) -> bool) {
    let wait = async {
        while !is_meant(server.engine.spilled_bytes()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{} bytes are spilled", server.engine.spilled_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_statement_has_spilled_goes_with_it() {
    let server = Server::with(|o| o.query_memory_bytes = 16 << 20);
    let sql = "SELECT value, count(*) FROM generate_series(1, 100000000) GROUP BY value ORDER BY 2, 1";
    for is_dropped in [true, false] {
        let task = server.start(sql);
        wait_for_spilled(&server, |bytes| bytes > 0).await;
        let running = server.running(|record| record.sql == sql).await;
        if is_dropped {
            task.abort();
        } else {
            assert!(server.engine.cancel(&running.id));
        }
        wait_for_spilled(&server, |bytes| bytes == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_statement_has_read_back_is_gone() {
    let server = Server::with(|o| o.query_memory_bytes = 24 << 20);
    let sort = "SELECT s, value FROM (SELECT value, lpad(CAST(value % 1000 AS VARCHAR), 90, 'x') AS s \
                FROM generate_series(1, 300000)) ORDER BY s, value";
    let mut rows = server.session.prepare(sort).await.unwrap().query(None).await.unwrap();
    let mut count = 0;
    let mut most = 0;
    while let Some(batch) = rows.stream.next().await {
        count += batch.unwrap().num_rows();
        most = most.max(server.engine.spilled_bytes());
    }
    assert!(count == 300_000 && most > 0, "{count} rows, {most} bytes at most");
    drop(rows);
    wait_for_spilled(&server, |bytes| bytes == 0).await;
    let record = server.engine.statements().into_iter().find(|record| record.sql == sort).unwrap();
    assert!(record.spilled_bytes >= most, "{record:?}");
}

/// Operators that spill are refused memory all the time; the last refusals are those of a statement that has to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_spills_stops_with_the_reason() {
    let server = Server::with(|o| o.query_memory_bytes = 16 << 20);
    for sql in [
        "SELECT value, count(*) FROM generate_series(1, 100000000) GROUP BY value ORDER BY 2, 1",
        "SELECT value % 1000 AS v, value FROM generate_series(1, 100000000) ORDER BY v, value",
    ] {
        let task = server.start(sql);
        while server.engine.spilled_bytes() == 0 {
            assert!(!task.is_finished(), "{sql}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let order = StopOrder { needed_bytes: 1, least_bytes: 1, counts_stopping: true, unreserved: false };
        let reason = |_: &StatementRecord| Error::new(ErrorKind::ResourceExhausted, "memory is short");
        let stopped = server.engine.stop_largest(order, reason);
        assert_eq!(stopped.iter().map(|record| record.sql.as_str()).collect::<Vec<_>>(), [sql]);
        let error = task.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::ResourceExhausted, "memory is short"), "{sql}");
        let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        assert_eq!(record.restarts, stopped[0].restarts, "{sql}");
        // Its tasks may still be at work.
        let gone = async {
            while server.engine.spilled_bytes() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), gone).await.is_ok(), "{sql}");
    }
}

/// DataFusion plans an element of `array_agg` as `nth_value`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_of_array_agg_stands_beside_nth_value() {
    let server = Server::new();
    for (sql, row) in [
        (
            "SELECT array_agg(k ORDER BY k)[2] AS a, nth_value(k, 2 ORDER BY k) AS b, first_value(k ORDER BY k) AS c",
            "2|2|1",
        ),
        ("SELECT array_agg(k ORDER BY k DESC)[1] AS a, array_agg(k ORDER BY k)[2:3] AS b, max(k) AS c", "5|[2, 3]|5"),
        ("SELECT array_agg(k ORDER BY k)[9] AS a, nth_value(k, 9 ORDER BY k) AS b, min(k) AS c", "||1"),
    ] {
        let sql = format!("{sql} FROM generate_series(1, 5) AS g(k)");
        assert_eq!(server.rows(&sql).await, [row], "{sql}");
    }
    let sql = "SELECT k % 2 AS m FROM generate_series(1, 5) AS g(k) GROUP BY m HAVING nth_value(k, 2 ORDER BY k) > 3 \
               ORDER BY array_agg(k ORDER BY k)[2]";
    assert_eq!(server.rows(sql).await, ["0"]);
}

/// A partial aggregation turns the states of its groups into lists, one by one, while it holds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn percentiles_of_many_groups_spill_before_their_states_are_too_many() {
    let server = Server::with(|o| o.query_memory_bytes = 64 << 20);
    let sql = "SELECT count(p), sum(p) FROM (SELECT k, approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY CAST(k AS DOUBLE)) \
               AS p FROM (SELECT value % 200000 AS k FROM generate_series(1, 800000)) GROUP BY k)";
    match server.batches(sql).await {
        Ok(batches) => assert_eq!(row_texts(&batches), ["200000|19999900000.0"]),
        // Of two partitions that spill at once, one may find no room for what it holds next.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}"),
    }
    let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
    // 222 MB where the states are not counted.
    assert!(record.memory.allocated_peak < 176 << 20, "{record:?}");
}

/// Sets of distinct values, and the arrays into which partial aggregations turn them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distinct_values_are_reserved_with_the_copy_that_passes_them_on() {
    let server = Server::with(|o| o.query_memory_bytes = 1 << 30);
    server
        .run(
            "CREATE TABLE t AS SELECT value AS k, CAST(value AS DOUBLE) AS d, concat(repeat('x', 30), value) AS s \
             FROM generate_series(1, 1500000)",
        )
        .await
        .unwrap();
    // With FILTER they stay sets.
    let sql = "SELECT count(DISTINCT s) FILTER (WHERE k > 0), count(DISTINCT k) FILTER (WHERE k > 0), \
               sum(DISTINCT k) FILTER (WHERE k > 0), avg(DISTINCT d) FILTER (WHERE k > 0), count(*), sum(k) FROM t";
    let sum = 1_500_000_i64 * 1_500_001 / 2;
    assert_eq!(server.rows(sql).await, [format!("1500000|1500000|{sum}|750000.5|1500000|{sum}")]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
    let (reserved, allocated) = (record.memory.reserved_peak as f64, record.memory.allocated_peak as f64);
    assert!(allocated > 1e8 && allocated <= 1.15 * reserved, "{allocated} of {reserved}");
    let shown = format!("SELECT allocated_to_reserved FROM system.queries WHERE sql = '{sql}'");
    let shown: f64 = server.rows(&shown).await[0].parse().unwrap();
    assert!((shown - allocated / reserved).abs() < 1e-9, "{shown}");
    // One that reserved nothing has no ratio.
    assert_eq!(server.rows("SELECT 1").await, ["1"]);
    let none = "SELECT allocated_to_reserved IS NULL FROM system.queries WHERE sql = 'SELECT 1'";
    assert_eq!(server.rows(none).await, ["true"]);
}

/// Each column is aggregated by itself, in groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_distinct_columns_spill() {
    let server = Server::with(|o| o.query_memory_bytes = 48 << 20);
    server
        .run(
            "CREATE TABLE t AS SELECT value AS k, CASE WHEN value % 3 > 0 THEN value % 100000 END AS n, \
             concat(repeat('x', 30), value) AS s FROM generate_series(1, 700000)",
        )
        .await
        .unwrap();
    let sql = "SELECT count(*), count(DISTINCT s) AS texts, sum(DISTINCT n), count(DISTINCT k + 1), avg(k), count(DISTINCT n), \
               count(s) FILTER (WHERE k % 2 = 0) FROM t WHERE k > 10";
    assert_eq!(server.rows(sql).await, ["699990|699990|4999950000|699990|350005.5|100000|349995"]);
    let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
    assert!(record.spilled_bytes > 1 << 20, "{record:?}");
    // The same aggregate twice, and floats, whose zeros are one value.
    let twice = "SELECT count(DISTINCT n) AS a, count(DISTINCT f) AS b, count(DISTINCT n) + 1 AS c, sum(DISTINCT f), count(*), count(*) AS d \
                 FROM (SELECT n, CASE k WHEN 1 THEN -0.0 WHEN 2 THEN 0.0 WHEN 3 THEN CAST('NaN' AS DOUBLE) \
                 WHEN 4 THEN -CAST('NaN' AS DOUBLE) ELSE 1.0 END AS f FROM t)";
    assert_eq!(server.rows(twice).await, ["100000|3|100001|NaN|700000|700000"]);
    let none = "SELECT count(DISTINCT s), max(k), avg(DISTINCT n) FROM t WHERE k < 0";
    assert_eq!(server.rows(none).await, ["0||"]);
    let beside = "SELECT o.k, (SELECT count(DISTINCT i.s) + count(DISTINCT i.n) + count(*) FROM t AS i WHERE i.k = o.k) AS c \
                  FROM (VALUES (2), (3)) AS o(k) ORDER BY 1";
    assert_eq!(server.rows(beside).await, ["2|3", "3|2"]);
    // DataFusion makes one sum, and a count, of these sums.
    let sums = "SELECT count(k), sum(k + 1) - sum(k + 2), sum(k + 3) - sum(k + 1) FROM t WHERE k <= 5";
    assert_eq!(server.rows(sums).await, ["5|-5|10"]);
    // Volatile values would differ between the parts.
    let random = server
        .rows("EXPLAIN SELECT count(DISTINCT s), count(DISTINCT r) FROM (SELECT s, random() AS r FROM t)")
        .await
        .concat();
    assert!(!random.contains("CrossJoin"), "{random}");
    let dear = "EXPLAIN SELECT count(DISTINCT k), count(DISTINCT n) FROM t WHERE s LIKE '%7%'";
    let dear = server.rows(dear).await.concat();
    assert!(!dear.contains("CrossJoin"), "{dear}");
    let split =
        server.rows("EXPLAIN SELECT count(DISTINCT s), count(DISTINCT n) FROM t WHERE n IN (5, 6, 7)").await.concat();
    assert!(split.contains("CrossJoin"), "{split}");
}
