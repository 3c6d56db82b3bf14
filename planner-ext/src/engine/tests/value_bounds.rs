//! Functions that would make very large values: refused before they allocate, and unchanged otherwise.

use datafusion::prelude::SessionContext;

use super::*;

/// Values of expressions as DataFusion computes them without Terrace.
async fn plain(sql: &str) -> Vec<String> {
    let frame = SessionContext::new().sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    row_texts(&frame.collect().await.unwrap_or_else(|e| panic!("{sql}: {e}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_large_values_are_refused() {
    let server = Server::new();
    for (expression, refusal) in [
        ("length(repeat('x', 1000000000))", "repeat would make a value of 954 MiB; a value has at most 64.0 MiB"),
        ("length(lpad('x', 1000000000))", "lpad would make a value of 954 MiB; a value has at most 64.0 MiB"),
        ("length(rpad('x', 1000000000, 'é'))", "rpad would make a value of 1.86 GiB; a value has at most 64.0 MiB"),
        (
            "length(replace(repeat('a', 1000), 'a', repeat('b', 1000000)))",
            "replace would make a value of 954 MiB; a value has at most 64.0 MiB",
        ),
        (
            "length(concat(repeat('x', 40000000), repeat('y', 40000000)))",
            "concat would make a value of 76.3 MiB; a value has at most 64.0 MiB",
        ),
        (
            "length(concat_ws(repeat('-', 40000000), 'a', 'b', NULL, 'c'))",
            "concat_ws would make a value of 76.3 MiB; a value has at most 64.0 MiB",
        ),
        ("cardinality(range(3000000000))", "range would make a value of 22.4 GiB; a value has at most 64.0 MiB"),
        ("cardinality(range(1, 3000000000))", "range would make a value of 22.4 GiB"),
        ("cardinality(range(3000000000, 1, -2))", "range would make a value of 11.2 GiB"),
        (
            "cardinality(generate_series(-9223372036854775807, 9223372036854775807))",
            "generate_series would make a value",
        ),
        (
            "cardinality(range(TIMESTAMP '2024-01-01', TIMESTAMP '2025-01-01', INTERVAL '1 millisecond'))",
            "range would make a value of",
        ),
        (
            "cardinality(generate_series(DATE '2024-01-01', DATE '2024-01-01', INTERVAL '1 month -31 days'))",
            "generate_series needs a step that goes one way",
        ),
        ("cardinality(array_repeat(true, 1000000000))", "array_repeat would make a value of 7.45 GiB"),
        ("cardinality(list_repeat(make_array(1, 2), 1000000000))", "array_repeat would make a value of"),
        ("cardinality(array_resize(make_array(1, 2), 1000000000))", "array_resize would make a value of 7.45 GiB"),
        ("cardinality(list_resize(make_array('a'), 1000000, repeat('b', 1000)))", "array_resize would make a value of"),
    ] {
        server.fails(&format!("SELECT {expression}"), ErrorKind::InvalidArgument, refusal).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_over_a_column_are_refused_one_by_one_and_together() {
    let server = Server::with(|o| o.query_memory_bytes = 256 << 20);
    server
        .run("CREATE TABLE t AS SELECT 'a' || (value % 10) AS s, 5000 AS n FROM generate_series(1, 20000)")
        .await
        .unwrap();
    for (expression, refusal) in [
        ("max(length(repeat(s, 100000000)))", "repeat would make a value of 191 MiB"),
        ("max(length(repeat(arrow_cast(s, 'Dictionary(Int32, Utf8)'), 100000000)))", "repeat would make a value of"),
        ("max(length(repeat(s, n * 100)))", "repeat would make"),
        ("max(length(lpad(s, 1000000, 'y')))", "lpad would make"),
        ("max(length(rpad('é', n * 100, s)))", "rpad would make"),
        ("max(length(replace(s, 'a', repeat('b', 1000000))))", "replace would make"),
        ("max(length(concat(repeat(s, 2500), '-', '+', repeat(s, 2501))))", "concat would make"),
        ("max(length(concat_ws('-', repeat(s, 2500), repeat(s, 2501))))", "concat_ws would make"),
        ("max(cardinality(range(1, n * 1000)))", "range would make"),
        ("max(cardinality(array_repeat(s, n * 1000)))", "array_repeat would make"),
        ("max(cardinality(array_resize(make_array(s), n * 1000, s)))", "array_resize would make"),
    ] {
        server.fails(&format!("SELECT {expression} FROM t"), ErrorKind::InvalidArgument, refusal).await;
    }
    // Steps of dates that go back although their days go forward.
    let back = "range(DATE '2020-01-01', DATE '2030-01-01', INTERVAL '1 day -100 hours')";
    server.fails(&format!("SELECT {back}"), ErrorKind::InvalidArgument, "different signs").await;
    let forward = "range(DATE '2020-01-01', DATE '2020-01-03', INTERVAL '1 day -23 hours')";
    assert_eq!(server.rows(&format!("SELECT cardinality({forward})")).await, ["2"]);
    // What the refusal advises.
    let sql = "SELECT max(length(lpad('x', 10000 + value % 2, 'y'))) FROM generate_series(1, 10000)";
    let refusal = "for a batch of 8192 rows; the limit is 64.0 MiB (a quarter of query memory, at least 64.0 MiB and at \
                   most 1.00 GiB). Let it read fewer rows at once (SET datafusion.execution.batch_size)";
    server.fails(sql, ErrorKind::InvalidArgument, refusal).await;
    server.run("SET datafusion.execution.batch_size = 1024").await.unwrap();
    assert_eq!(server.rows(sql).await, ["10001"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_calls_are_those_of_datafusion() {
    let server = Server::new();
    let columns = "(VALUES ('ab', 3, 'né'), (NULL, 2, 'x'), ('', 0, ''), ('naïve 日本', -1, NULL), ('aaa', NULL, 'a')) \
                   AS t (s, n, f)";
    for expressions in [
        "repeat('ab', 3), repeat('ab', 0), repeat('ab', -1), repeat(NULL, 3), repeat('日本', 2)",
        "lpad('ab', 5), lpad('ab', 5, 'xyz'), lpad('abc', 2, 'x'), lpad('é', 4, '日a'), lpad('ab', -1), lpad('ab', 5, '')",
        "rpad('ab', 5), rpad('ab', 5, 'xyz'), rpad('abc', 2, 'x'), rpad('é', 4, '日a'), rpad('ab', 0), rpad(NULL, 5)",
        "replace('aXbXc', 'X', '--'), replace('abc', '', 'x'), replace('abc', 'b', ''), replace('日本日', '日', 'ni')",
        "concat('a', NULL, 'b', 1), concat('é'), concat_ws('-', 'a', NULL, 'b'), concat_ws('', 'a', 'b')",
        "range(5), range(2, 5), range(5, 2), range(2, 10, 3), range(10, 2, -3), range(NULL, 3, 1), range(3, 3)",
        "generate_series(5), generate_series(2, 5), generate_series(2, 10, 3), generate_series(10, 2, -3)",
        "range(DATE '2024-01-31', DATE '2024-06-01', INTERVAL '1 month'), \
         generate_series(DATE '2024-03-03', DATE '2024-03-01', INTERVAL '-1 day')",
        "range(TIMESTAMP '2024-01-01T00:00:00', TIMESTAMP '2024-01-01T06:00:00', INTERVAL '2 hours')",
        "array_repeat(1, 3), list_repeat('a', 2), array_repeat(NULL, 2), array_repeat(make_array(1, 2), 2), \
         array_repeat(1, 0), array_repeat(1, -1)",
        "array_resize(make_array(1, 2), 4), array_resize(make_array(1, 2), 4, 9), list_resize(make_array(1, 2), 1)",
        "repeat(s, n), lpad(s, 4, f), rpad(s, 4, f), rpad('é', 4, f)",
        "replace(s, 'a', f), replace(s, f, 'yy'), replace('aab', f, s), replace(s, 'a', '日')",
        "concat(s, f), concat(s, '-', '+', f), s || f, concat_ws('-', s, f, 'z'), concat_ws(f, s, 'y', 'z')",
        "range(n), range(0, n), generate_series(n, 5, 2), array_repeat(s, n), list_repeat(n, 2)",
        "array_resize(make_array(s, f), 3, 'z'), array_repeat(make_array(n, 1), n), array_resize(make_array(n), 2)",
    ] {
        let sql = format!("SELECT {expressions} FROM {columns}");
        assert_eq!(server.rows(&sql).await, plain(&sql).await, "{expressions}");
    }
    // DataFusion's lpad panics on a column with a negative length.
    let padded = |length: &str| {
        let names = ["lpad", "rpad"];
        let calls =
            names.map(|name| format!("{name}(s, {length}), {name}(s, {length}, f), {name}('é', {length}, 'x')"));
        format!("SELECT {} FROM {columns}", calls.join(", "))
    };
    let at_least_0 = padded("CASE WHEN n < 0 THEN 0 ELSE n END");
    assert_eq!(server.rows(&padded("n")).await, plain(&at_least_0).await);
    for wrong in ["range(1, 5, 0)", "array_resize(make_array(1), -1)"] {
        assert!(server.batches(&format!("SELECT {wrong}")).await.is_err(), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_name_functions_as_datafusion_does() {
    let sql = "EXPLAIN SELECT repeat(s, n), lpad(s, n, 'x'), concat(s, 'a', 'b'), list_repeat(n, 2), range(n) \
               FROM (VALUES ('ab', 3), ('c', 4)) AS t (s, n)";
    let named = |lines: Vec<String>| lines.into_iter().filter(|line| line.contains("repeat(")).collect::<Vec<_>>();
    let wanted = named(plain(sql).await);
    assert!(!wanted.is_empty());
    assert_eq!(named(Server::new().rows(sql).await), wanted);
}
