//! Functions that would make very large values: refused before they allocate, and unchanged otherwise.

use datafusion::logical_expr::ScalarUDF;
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
        ("max(length(replace(s || s, 'a', repeat(s, 3900))))", "replace would make"),
        ("max(length(concat(repeat(s, 2500), '-', '+', repeat(s, 2501))))", "concat would make"),
        ("max(length(concat_ws('-', repeat(s, 2500), repeat(s, 2501))))", "concat_ws would make"),
        ("max(cardinality(range(1, n * 1000)))", "range would make"),
        ("max(cardinality(array_repeat(s, n * 1000)))", "array_repeat would make"),
        ("max(cardinality(array_resize(make_array(s), n * 1000, s)))", "array_resize would make"),
    ] {
        server.fails(&format!("SELECT {expression} FROM t"), ErrorKind::InvalidArgument, refusal).await;
    }
    let refusal = "levenshtein of texts of 40000 and 60000 bytes compares too many of their characters; the product of \
                   the lengths is at most 1073741824";
    let far = "SELECT levenshtein(repeat('xy', 20000), repeat('y', 60000))";
    server.fails(far, ErrorKind::InvalidArgument, refusal).await;
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
        "levenshtein('kitten', 'sitting'), levenshtein('né', 'n'), levenshtein(NULL, 'a'), regexp_count('abaB', 'b', 1, 'i'), \
         regexp_instr('xay', 'a'), regexp_like('Abc', '^a', 'i'), regexp_like('Abc', '^a')",
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
        "'a' || 'b', 'a' || NULL, 'é' || 1, 1 || 'a', s || 1, s || s || f, NULL || s, (s || '-') || (f || n), \
         arrow_cast(s, 'Binary') || arrow_cast(f, 'Binary'), arrow_cast(s, 'Dictionary(Int32, Utf8)') || f",
        "make_array(n) || make_array(1), make_array(n) || 2, 0 || make_array(n), array_union(make_array(n), make_array(3))",
        "overlay('Txxxxas' PLACING 'hom' FROM 2 FOR 4), overlay(s PLACING 'Z' FROM 1), overlay(s PLACING f FROM 2)",
        "encode(arrow_cast(s, 'Binary'), 'hex'), encode(arrow_cast(s, 'Binary'), 'base64'), encode(NULL, 'hex')",
        "regexp_replace(s, 'a(.)', '\\1\\1'), regexp_replace(s, 'a', 'bb', 'g'), regexp_replace(s, 'A', f, 'gi'), \
         regexp_replace('aaa', f, s), regexp_match(s, '(a)(.)'), regexp_match('aXa', 'x', 'i')",
        "levenshtein(s, f), levenshtein(s, 'ab'), regexp_count(s, 'a'), regexp_instr(s, 'a'), regexp_like(s, '^a'), \
         regexp_like(s, f)",
        "array_to_string(make_array(n, 1, NULL), '-'), array_to_string(make_array(s, f), ',', '*'), \
         array_to_string(make_array(make_array(1, n), make_array(n)), '/')",
        "array_replace(make_array(n, 1, n), n, 7), array_replace_n(make_array(1, 1, 1), 1, n, 2), \
         array_replace_all(make_array(s, f, 'a'), 'a', 'bb'), array_replace_all(make_array(make_array(n)), make_array(3), make_array(4))",
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

/// Functions whose results are at most a few times as large as their arguments together, and do not grow when a query calls
/// them on their own results again and again, or have a type of their own each time.
const OF_ARGUMENT_SIZE: &str = "\
    abs acos acosh array_add array_any_value array_avg array_compact array_dims array_distance array_distinct \
    array_element array_except array_has array_has_all array_has_any array_intersect array_length array_max \
    array_min array_ndims array_normalize array_pop_back array_pop_front array_position array_positions \
    array_product array_remove array_remove_all array_remove_n array_reverse array_scale array_slice array_sort \
    array_subtract array_sum arrays_zip arrow_cast arrow_field arrow_metadata arrow_try_cast arrow_typeof ascii \
    asin asinh atan atan2 atanh bit_length btrim cardinality cast_to_type cbrt ceil character_length chr \
    coalesce contains cos cosh cosine_distance cot current_catalog current_database current_date current_schema \
    current_time current_user date_bin date_part date_trunc decode degrees digest empty ends_with exp factorial \
    file_row_index find_in_set flatten floor from_unixtime gcd get_field greatest initcap inner_product \
    input_file_name isnan iszero lcm least left ln log log10 log2 lower ltrim make_array make_date \
    make_time map map_entries map_extract map_keys map_values md5 named_struct nanvl now nullif nvl nvl2 \
    octet_length pi power radians random reverse right round rtrim \
    session_user sha224 sha256 sha384 sha512 signum sin sinh split_part sqrt starts_with string_to_array strpos \
    struct substr substr_index tan tanh to_char to_date to_hex to_local_time to_time to_timestamp \
    to_timestamp_micros to_timestamp_millis to_timestamp_nanos to_timestamp_seconds to_unixtime translate trunc \
    try_cast_to_type union_extract union_tag upper uuid version with_metadata";

#[tokio::test]
async fn every_function_is_bounded_or_known_to_be_small() {
    let server = Server::new();
    let state = server.session.snapshot().unwrap().state();
    let mut functions: Vec<_> = state.scalar_functions().values().map(Arc::clone).collect();
    functions.sort_by_key(|function| function.name().to_owned());
    functions.dedup_by_key(|function| function.name().to_owned());
    let is_bounded = |function: &ScalarUDF| format!("{:?}", function.inner()).starts_with("BoundedFunction");
    let small: Vec<&str> = OF_ARGUMENT_SIZE.split_whitespace().collect();
    let (bounded, others): (Vec<_>, Vec<_>) = functions.iter().partition(|function| is_bounded(function));
    assert!(bounded.len() > 20 && bounded.iter().any(|function| function.name() == "repeat"));
    let unknown: Vec<_> = others.iter().map(|function| function.name()).filter(|name| !small.contains(name)).collect();
    assert!(unknown.is_empty(), "bound these functions, or say that their results are small: {unknown:?}");
    let gone: Vec<_> = small.iter().filter(|name| !others.iter().any(|other| other.name() == **name)).collect();
    assert!(gone.is_empty(), "no such function, or it is bounded: {gone:?}");
}

/// Recursive queries double a value in each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_double_again_and_again_are_refused() {
    let server = Server::new();
    for (start, step, refusal) in [
        ("'0123456789'", "v || v", "|| would make a value of 80.0 MiB"),
        ("'0123456789'", "concat(v, v)", "concat would make a value of 80.0 MiB"),
        ("'0123456789'", "overlay(v PLACING v FROM 1 FOR 0)", "overlay would make a value of 80.0 MiB"),
        ("'0123456789'", "encode(arrow_cast(v, 'Binary'), 'hex')", "encode would make a value of 80.0 MiB"),
        ("'0123456789'", "regexp_replace(v, '^', v)", "regexp_replace would make a value of 80.0 MiB"),
        ("'0123456789'", "regexp_replace(v, '.*', '\\0\\0')", "regexp_replace would make a value of"),
        ("make_array(1, 2)", "v || v", "array_concat would make a value of"),
        ("make_array(1, 2)", "array_concat(v, v)", "array_concat would make a value of"),
    ] {
        let sql = format!(
            "WITH RECURSIVE r AS (SELECT {start} AS v, 1 AS n UNION ALL SELECT {step}, n + 1 FROM r WHERE n < 40) \
             SELECT max(n) FROM r WHERE v IS NOT NULL"
        );
        server.fails(&sql, ErrorKind::InvalidArgument, refusal).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_much_larger_than_their_arguments_are_refused() {
    let server = Server::with(|o| o.query_memory_bytes = 256 << 20);
    server
        .run(
            "CREATE TABLE t AS SELECT repeat('ab', 500) AS s, make_array(1, 2, 3) AS l, value AS n \
             FROM generate_series(1, 10000)",
        )
        .await
        .unwrap();
    for (expression, refusal) in [
        ("length(regexp_replace(repeat('ab', 1000), 'a', repeat('b', 1000000), 'g'))", "regexp_replace would make"),
        ("max(length(regexp_replace(s, 'a', repeat('b', 1000), 'g'))) FROM t", "regexp_replace would make"),
        ("max(length(regexp_replace(s, 'A', repeat('b', 1000), 'gi'))) FROM t", "regexp_replace would make"),
        (
            "max(cardinality(regexp_match(s, repeat('(', 100) || 'a' || repeat(')', 100)))) FROM t",
            "regexp_match would make",
        ),
        ("length(array_to_string(range(1000), repeat('x', 1000000)))", "array_to_string would make a value of"),
        (
            "cardinality(array_replace_all(array_repeat('a', 1000), 'a', repeat('b', 1000000)))",
            "array_replace_all would make a value of",
        ),
        (
            "max(cardinality(array_replace(l, 2, n))) || repeat('x', 60000000) || repeat('y', 9000000) FROM t",
            "|| would",
        ),
    ] {
        server.fails(&format!("SELECT {expression}"), ErrorKind::InvalidArgument, refusal).await;
    }
    // Few matches in long texts, and few equal elements.
    for (expression, answer) in [
        ("max(length(regexp_replace(s, '^a', repeat('b', 1000), 'g'))) FROM t", "1999"),
        ("max(length(regexp_replace(s, 'c', repeat('b', 100000), 'g'))) FROM t", "1000"),
        ("max(length(regexp_replace(s, 'a', repeat('b', 1000)))) FROM t", "1999"),
        ("max(cardinality(array_replace_all(l, 7, n))) FROM t", "3"),
        ("cardinality(array_replace_all(range(1000000), 7, 8))", "1000000"),
        (
            "length(array_to_string(array_replace_n(array_repeat('a', 1000), 'a', repeat('b', 1000000), 2), ''))",
            "2000998",
        ),
    ] {
        assert_eq!(server.rows(&format!("SELECT {expression}")).await, [answer], "{expression}");
    }
}

/// A literal has a copy for each row of a batch where it is a column.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_literals_are_copied_for_few_rows_at_a_time() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 20000)").await.unwrap();
    for (sql, rows) in [
        ("SELECT repeat('x', 100000) AS big, k FROM t", 20_000),
        ("SELECT k, CASE WHEN k % 2 = 0 THEN repeat('x', 100000) ELSE repeat('y', 50000) END AS big FROM t", 20_000),
        ("SELECT max(CASE WHEN k % 2 = 0 THEN repeat('x', 100000) ELSE repeat('y', 50000) END) AS big FROM t", 1),
        ("SELECT repeat('x', 100000) AS big, value FROM generate_series(1, 20000)", 20_000),
    ] {
        let mut running = server.session.prepare(sql).await.unwrap().query(None).await.unwrap();
        let mut found = 0;
        while let Some(batch) = running.stream.try_next().await.unwrap() {
            found += batch.num_rows();
            let big = batch.column_by_name("big").unwrap();
            assert!(big.get_array_memory_size() < 64 << 20, "{sql}: {} rows", batch.num_rows());
        }
        assert_eq!(found, rows, "{sql}");
        let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        assert!(record.memory.allocated_peak < 256 << 20, "{sql}: {:?}", record.memory);
    }
}

/// Conditions, sort keys and merges take large values for few rows at a time, or refuse them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_conditions_copy_large_texts_for_few_rows_at_a_time() {
    let server = Server::with(|o| o.query_memory_bytes = 256 << 20);
    server
        .run("CREATE TABLE t AS SELECT value AS k, 'row ' || value AS c FROM generate_series(1, 9000)")
        .await
        .unwrap();
    server.run("CREATE TABLE u AS SELECT repeat('x', 600000) AS big").await.unwrap();
    let (x, y) = ("repeat('x', 600000)", "repeat('y', 600000)");
    let case = format!("CASE WHEN k % 2 = 1 THEN {x} ELSE {y} END");
    for (sql, rows) in [
        (format!("SELECT k FROM generate_series(1, 9000) AS s (k) ORDER BY {case}, k DESC LIMIT 1"), "8999"),
        (format!("SELECT max(length(replace(c, 'r', {x}))) FROM t WHERE k <= 500"), "600006"),
        (format!("SELECT k FROM t ORDER BY CASE WHEN k % 2 = 1 THEN {x} ELSE c END, k LIMIT 1"), "10"),
        (format!("SELECT count(*) FROM generate_series(1, 9000) AS s (k) WHERE {case} > {x}"), "4500"),
        ("SELECT k FROM t CROSS JOIN u ORDER BY big, k DESC LIMIT 1".to_owned(), "9000"),
        (
            format!(
                "SELECT count(*) FROM t a JOIN t b ON a.k = b.k AND CASE WHEN a.c >= b.c THEN {x} ELSE 'y' END > b.c"
            ),
            "9000",
        ),
        (format!("SELECT count(*) FROM t, (VALUES ('{}')) AS v (x) WHERE x > c", "x".repeat(200_000)), "9000"),
        (
            format!(
                "SELECT sum(length(v.x)) FROM t JOIN (VALUES (1, '{}')) AS v (k, x) ON t.k % 2 = v.k",
                "x".repeat(200_000)
            ),
            "900000000",
        ),
        ("SELECT max(length(upper(big || c))) FROM t CROSS JOIN u".to_owned(), "600008"),
        ("SELECT count(*) FROM (SELECT big, k % 3, max(big) FROM t CROSS JOIN u GROUP BY 1, 2)".to_owned(), "3"),
        (format!("SELECT count(DISTINCT substr({x}, CAST(k % 9 AS INT) + 1, 1)) FROM t"), "1"),
    ] {
        assert_eq!(server.rows(&sql).await, [rows]);
        let record = server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap();
        assert!(
            record.memory.allocated_peak < 256 << 20,
            "{}: {:?}",
            sql.chars().take(120).collect::<String>(),
            record.memory
        );
    }
    // The keys of all rows at once would be 12 GB.
    let all = "SELECT count(n) FROM (SELECT row_number() OVER (ORDER BY big, k) AS n FROM t CROSS JOIN u)";
    server.fails(all, ErrorKind::ResourceExhausted, "asked for").await;
    for (sql, refusal) in [
        (
            format!("SELECT max({case}) OVER (ORDER BY k ROWS 1 PRECEDING) FROM t"),
            "a window function would copy literals",
        ),
        (format!("SELECT max({case}) OVER () FROM t"), "a window function would copy literals of 1.14 MiB"),
        (format!("SELECT count(*) FROM t WHERE {case} < c"), "a condition of a scan would copy literals of 1.14 MiB"),
    ] {
        server.fails(&sql, ErrorKind::InvalidArgument, refusal).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_of_which_no_value_fits_are_refused() {
    let server = Server::new();
    let in_every_way = |text: &str| {
        let casts = ["arrow_cast(NULL, '{}')", "arrow_try_cast(NULL, '{}')", "CAST(NULL AS ARROW('{}'))"];
        let casts = casts.map(|cast| format!("SELECT {}", cast.replace("{}", text)));
        casts.into_iter().chain([format!("CREATE TABLE t (a ARROW('{text}'))")])
    };
    for text in [
        "FixedSizeBinary(2000000000)",
        "FixedSizeList(2000000000, Int64)",
        "FixedSizeList(1000, FixedSizeList(1000, Int64))",
        "List(FixedSizeBinary(200000))",
    ] {
        for sql in in_every_way(text) {
            server.fails(&sql, ErrorKind::InvalidArgument, "are the limit").await;
        }
    }
    // Beyond what the stack of a thread has for their parser.
    let deep = format!("{}Int64{}", "List(".repeat(200_000), ")".repeat(200_000));
    for sql in in_every_way(&deep) {
        server.fails(&sql, ErrorKind::InvalidArgument, "levels deep").await;
    }
    let array = |levels: usize| format!("INT{}", "[]".repeat(levels));
    server.fails(&format!("SELECT CAST(NULL AS {})", array(100)), ErrorKind::InvalidArgument, "levels deep").await;
    server.fails(&format!("CREATE TABLE t (a {})", array(62)), ErrorKind::InvalidArgument, "levels deep").await;
    // What is stored can be read again.
    server.run(&format!("CREATE TABLE t (a {})", array(50))).await.unwrap();
    server.run("INSERT INTO t VALUES (NULL)").await.unwrap();
    let server = server.restart().await;
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE a IS NULL").await, ["1"]);
}
