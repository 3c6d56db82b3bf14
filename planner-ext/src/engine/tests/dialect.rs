//! Meaning of statements and stored texts in the dialect.

use super::*;

async fn flags() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE t (id INT, paid BOOLEAN, n INT)").await.unwrap();
    server
        .run("INSERT INTO t VALUES (1, TRUE, 1), (2, TRUE, 9), (3, FALSE, 9), (4, NULL, 9), (5, NULL, 1)")
        .await
        .unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distinct_from_ends_before_and() {
    let server = flags().await;
    let ids = async |condition: &str| server.rows(&format!("SELECT id FROM t WHERE {condition} ORDER BY id")).await;
    assert_eq!(ids("paid IS DISTINCT FROM FALSE AND n > 5").await, ["2", "4"]);
    assert_eq!(ids("n > 5 AND paid IS NOT DISTINCT FROM NULL AND id < 9").await, ["4"]);
    assert_eq!(ids("paid IS NOT DISTINCT FROM TRUE OR id = 5").await, ["1", "2", "5"]);
    assert_eq!(ids("NOT paid IS DISTINCT FROM FALSE AND n > 5").await, ["3"]);
    assert_eq!(ids("n IS DISTINCT FROM 8 + 1 AND paid").await, ["1"]);
    assert_eq!(ids("(n IS DISTINCT FROM 9) IS TRUE AND paid IS NULL").await, ["5"]);
    // The same in views.
    server.run("CREATE VIEW v AS SELECT id FROM t WHERE paid IS DISTINCT FROM FALSE AND n > 5").await.unwrap();
    assert_eq!(server.rows("SELECT id FROM v ORDER BY id").await, ["2", "4"]);
    if cfg!(feature = "hot-views") {
        server.run("CREATE HOT VIEW h AS SELECT id FROM t WHERE n IS DISTINCT FROM 1 AND id > 2").await.unwrap();
        let checked = server.rows("EXPLAIN HOT VIEWS SELECT id FROM t WHERE n IS DISTINCT FROM 1 AND id > 2").await;
        assert!(!checked.iter().any(|row| row.contains("not proven")), "{checked:?}");
    }
    // The same in a default.
    server.run("ALTER TABLE t ADD COLUMN d BOOLEAN DEFAULT 1 IS DISTINCT FROM 2 AND FALSE").await.unwrap();
    server.run("INSERT INTO t (id) VALUES (6)").await.unwrap();
    assert_eq!(server.rows("SELECT d FROM t WHERE id = 6").await, ["false"]);
    assert_eq!(server.run("DELETE FROM t WHERE paid IS DISTINCT FROM FALSE AND n > 5").await.unwrap(), 2);
    assert_eq!(server.rows("SELECT id FROM t ORDER BY id").await, ["1", "3", "5", "6"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_are_read_whole() {
    let server = flags().await;
    assert_eq!(server.rows("SELECT 1_000 AS x, 1_0.5_0 AS y, 1.5e3 AS z").await, ["1000|10.50|1500.0"]);
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE id < 1_000 LIMIT 1_0").await, ["5"]);
    for sql in ["SELECT 1__0", "SELECT 1_", "SELECT 0b11", "SELECT 1abc", "SELECT id FROM t WHERE id = 10OR TRUE"] {
        server.fails(sql, ErrorKind::InvalidArgument, "runs into").await;
    }
    server.fails("SELECT 2 ^ 3", ErrorKind::InvalidArgument, "power(a, b)").await;
    server.fails("DELETE FROM t WHERE id = 2 ^ 3", ErrorKind::InvalidArgument, "power(a, b)").await;
    server.fails("CREATE TABLE u (a INT DEFAULT 2 ^ 3)", ErrorKind::InvalidArgument, "power(a, b)").await;
    assert_eq!(server.rows("SELECT power(2, 3), 2 XOR 3").await, ["8.0|1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lambdas_are_arguments() {
    let server = flags().await;
    assert_eq!(server.rows("SELECT array_transform([1, 2, 3], x -> x + 1)").await, ["[2, 3, 4]"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clauses_that_would_be_ignored_are_errors() {
    let server = flags().await;
    let mut wrong = Vec::new();
    for (sql, clause) in [
        ("SELECT * FROM t TABLESAMPLE BERNOULLI (10)", "TABLESAMPLE"),
        ("SELECT * FROM (SELECT 1) AS s TABLESAMPLE SYSTEM (1)", "TABLESAMPLE"),
        ("SELECT 1 WHERE EXISTS (SELECT * FROM t TABLESAMPLE (5 ROWS))", "TABLESAMPLE"),
        ("CREATE VIEW v AS SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("CREATE TABLE c AS SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("INSERT INTO t SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("DELETE FROM t WHERE id IN (SELECT id FROM t TABLESAMPLE (10 PERCENT))", "TABLESAMPLE"),
        ("EXPLAIN SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("COPY (SELECT * FROM t TABLESAMPLE (10 PERCENT)) TO '/nowhere/x.csv'", "TABLESAMPLE"),
        ("SELECT * FROM t WITH (NOLOCK)", "hint"),
        ("SELECT * FROM t PARTITION (p0)", "PARTITION"),
        ("SELECT * FROM t FOR UPDATE", "FOR UPDATE"),
        ("SELECT * FROM t FOR SHARE", "FOR SHARE"),
        ("SELECT * FROM t PREWHERE id = 1", "PREWHERE"),
        ("SELECT * FROM t SETTINGS max_threads = 1", "SETTINGS"),
        ("SELECT * FROM t FORMAT CSV", "FORMAT"),
        ("SELECT id FROM t ORDER BY id WITH FILL FROM 1 TO 9", "WITH FILL"),
        ("SELECT id FROM t START WITH id = 1 CONNECT BY PRIOR id = n", "CONNECT BY"),
        ("SELECT * FROM generate_series(1, 3) WITH ORDINALITY", "WITH ORDINALITY"),
        ("SELECT abs(n) FILTER (WHERE id = 1) FROM t", "FILTER in a call of abs"),
        ("SELECT abs(n) OVER () FROM t", "OVER in a call of abs"),
        ("SELECT abs(DISTINCT n) FROM t", "DISTINCT or ALL in a call of abs"),
        ("SELECT abs(n ORDER BY id) FROM t", "ORDER BY in a call of abs"),
    ] {
        match server.session.prepare(sql).await {
            Err(error) if error.kind() == ErrorKind::Unimplemented && error.message().contains(clause) => {}
            other => wrong.push((sql, other.map(|_| ()))),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(server.rows("SELECT count(DISTINCT n) FILTER (WHERE id < 3) FROM t").await, ["2"]);
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_columns_may_have_one_name() {
    let server = flags().await;
    let names = async |sql: &str| {
        let statement = server.session.prepare(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let announced: Vec<String> = statement.dataset_schema().fields().iter().map(|f| f.name().clone()).collect();
        for batch in server.batches(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")) {
            let sent: Vec<String> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
            assert_eq!(sent, announced, "{sql}");
        }
        announced.join(",")
    };
    for (sql, columns, row) in [
        ("SELECT 1 AS a, 2 AS a", "a,a", "1|2"),
        ("SELECT id, id FROM t ORDER BY id LIMIT 1", "id,id", "1|1"),
        ("SELECT *, id FROM t ORDER BY id LIMIT 1", "id,paid,n,id", "1|true|1|1"),
        ("SELECT id, n AS id FROM t WHERE id = 2", "id,id", "2|9"),
        ("SELECT *, n AS id FROM t WHERE id = 2", "id,paid,n,id", "2|true|9|9"),
        ("SELECT count(*), count(*) FROM t", "count(*),count(*)", "5|5"),
        ("SELECT n, sum(id) AS n, max(id) AS n FROM t GROUP BY n HAVING n > 1", "n,n,n", "9|9|4"),
        ("SELECT a.id, b.id, a.id FROM t a JOIN t b ON a.id = b.id WHERE a.id = 3", "id,id,id", "3|3|3"),
        ("SELECT DISTINCT paid, paid FROM t WHERE id = 1", "paid,paid", "true|true"),
        ("WITH s AS (SELECT 7 AS x) SELECT x, x FROM s", "x,x", "7|7"),
    ] {
        assert_eq!(names(sql).await, columns, "{sql}");
        assert_eq!(server.rows(sql).await, [row], "{sql}");
    }
    server.fails("CREATE TABLE u AS SELECT 1 AS a, 2 AS a", ErrorKind::InvalidArgument, "a").await;
    server.fails("CREATE VIEW u AS SELECT 1 AS a, 2 AS a", ErrorKind::InvalidArgument, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_say_who_and_where() {
    let server = flags().await;
    let version = format!("Terrace {}", env!("CARGO_PKG_VERSION"));
    assert!(server.rows("SELECT version()").await[0].starts_with(&version));
    let sql = "SELECT current_user, session_user, current_catalog, current_database(), current_schema()";
    assert_eq!(server.rows(sql).await, ["test|test|terrace|terrace|public"]);
    server.run("CREATE SCHEMA s").await.unwrap();
    server.run("SET datafusion.catalog.default_schema = 's'").await.unwrap();
    assert_eq!(server.rows("SELECT current_schema()").await, ["s"]);
    // A column of the name of a function stays a column.
    assert_eq!(server.rows("SELECT user FROM (SELECT 1 AS user)").await, ["1"]);
    if cfg!(feature = "hot-views") {
        let sql = "CREATE HOT VIEW h AS SELECT id FROM public.t WHERE current_user = 'x' AND id > 1";
        server.fails(sql, ErrorKind::InvalidArgument, "").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn formats_of_times_keep_the_time_zone() {
    let server = Server::new();
    server.run("CREATE TABLE s (text VARCHAR)").await.unwrap();
    server.run("INSERT INTO s VALUES ('2024/01/02 03:04:05')").await.unwrap();
    let sql = "SELECT to_timestamp(text, '%Y/%m/%d %H:%M:%S') AS x FROM s";
    assert_eq!(server.rows(sql).await, ["2024-01-02T03:04:05Z"]);
    for unit in ["seconds", "millis", "micros", "nanos"] {
        assert_eq!(server.rows(&sql.replace("to_timestamp(", &format!("to_timestamp_{unit}("))).await.len(), 1);
    }
    server.run("SET TIME ZONE = '+02:00'").await.unwrap();
    assert_eq!(server.rows(sql).await, ["2024-01-02T03:04:05+02:00"]);
    assert_eq!(server.rows("SELECT to_timestamp('2024-01-02 03:04:05')").await, ["2024-01-02T03:04:05+02:00"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maps_are_join_keys() {
    let server = Server::new();
    for table in ["a", "b"] {
        let sql =
            format!("CREATE TABLE {table} AS SELECT map(['x'], [column1]) AS m, column1 AS k FROM (VALUES (1), (2))");
        server.run(&sql).await.unwrap();
    }
    assert_eq!(server.rows("SELECT a.k FROM a JOIN b ON a.m = b.m ORDER BY a.k").await, ["1", "2"]);
    assert_eq!(server.rows("SELECT k FROM a WHERE m IN (SELECT m FROM b WHERE k = 2)").await, ["2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_prepared_by_name() {
    let server = flags().await;
    server.run("PREPARE p(INT) AS SELECT id FROM t WHERE n = $1 ORDER BY id LIMIT 2").await.unwrap();
    assert_eq!(server.rows("EXECUTE p(9)").await, ["2", "3"]);
    assert_eq!(server.rows("EXECUTE p('1')").await, ["1", "5"]);
    server.fails("EXECUTE p", ErrorKind::InvalidArgument, "takes 1 parameters, but 0 were given").await;
    server.fails("PREPARE p AS SELECT 1", ErrorKind::AlreadyExists, "DEALLOCATE p").await;
    server.run("PREPARE q AS SELECT $1 + $2 AS s").await.unwrap();
    assert_eq!(server.rows("EXECUTE q(1, 2 * 3)").await, ["7"]);
    server.fails("EXECUTE q(1)", ErrorKind::InvalidArgument, "parameter $2").await;
    server.fails("EXECUTE q(1, 2, 3)", ErrorKind::InvalidArgument, "takes 2 parameters").await;
    server.run("PREPARE d AS DELETE FROM t WHERE id = $1").await.unwrap();
    assert_eq!(server.run("EXECUTE d(2)").await.unwrap(), 1);
    server.run("PREPARE i AS INSERT INTO t (id) VALUES ($1), ($2)").await.unwrap();
    assert_eq!(server.run("EXECUTE i(7, 8)").await.unwrap(), 2);
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["6"]);
    // Values, not columns of the statement's tables; not too many of them, wherever they go.
    server.fails("EXECUTE p(id)", ErrorKind::InvalidArgument, "single quotes").await;
    server.fails("EXECUTE p((SELECT 1))", ErrorKind::InvalidArgument, "subquery").await;
    server.run(&format!("PREPARE many AS SELECT $1{}", " + $1".repeat(400))).await.unwrap();
    let sum = |terms: usize| format!("EXECUTE many(1{})", " + 1".repeat(terms));
    server.fails(&sum(900), ErrorKind::InvalidArgument, "longer than").await;
    server.fails(&sum(5_000), ErrorKind::InvalidArgument, "operators").await;
    assert_eq!(server.rows(&sum(1)).await, ["802"]);
    server.run("DEALLOCATE p").await.unwrap();
    server.fails("EXECUTE p(1)", ErrorKind::NotFound, "PREPARE").await;
    server.fails("PREPARE c AS CREATE TABLE x (a INT)", ErrorKind::Unimplemented, "PREPARE takes").await;
    // Another session has its own statements.
    let other = server.engine.open_session("other");
    assert!(other.prepare("EXECUTE q(1, 2)").await.is_err());
}

const DECIMALS: &str = "datafusion.sql_parser.parse_float_as_decimal";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decimal_literals_are_decimals() {
    let server = Server::new();
    server.run("CREATE TABLE t (d DECIMAL(30, 10), f DOUBLE, i INT)").await.unwrap();
    server.run("INSERT INTO t VALUES (12345678901234567890.1234567891, 0.12345678901234567, 2)").await.unwrap();
    server.run("INSERT INTO t VALUES (9999999999.99, 1e3, 3)").await.unwrap();
    for (sql, wanted) in [
        ("SELECT d FROM t WHERE f < 1", "12345678901234567890.1234567891"),
        ("SELECT f FROM t WHERE d = 9999999999.99", "1000.0"),
        // Beside a float, the literal becomes the nearest float.
        ("SELECT count(*) FROM t WHERE f = 0.12345678901234567", "1"),
        ("SELECT count(*) FROM t WHERE f IN (0.12345678901234567, 2.5)", "1"),
        ("SELECT count(*) FROM t WHERE i = 2.5", "0"),
        ("SELECT count(*) FROM t WHERE i < 2.5", "1"),
        ("SELECT count(*) FROM t WHERE 2.0 = i", "1"),
        ("SELECT count(*) FROM t WHERE i BETWEEN 1.5 AND 2.5", "1"),
        ("SELECT count(*) FROM t WHERE i IN (2.5, 3.0)", "1"),
        ("SELECT count(*) FROM t WHERE i NOT IN (2.5, 3.0)", "1"),
        ("SELECT count(*) FROM t WHERE i IN (2.5, CAST(2.7 AS INT))", "1"),
        ("SELECT count(*) FROM t WHERE d < 9999999999.991", "1"),
        ("SELECT 0.1 + 0.2 = 0.3", "true"),
        ("SELECT arrow_typeof(1e3), arrow_typeof(-2E-1), 1e300", "Float64|Float64|1e300"),
        // A decimal and a float give a float: DECIMAL(30, 15) has neither 1e300 nor infinity.
        ("SELECT count(*) FROM t WHERE f * 1e300 > 0.5", "2"),
        ("SELECT count(*) FROM t WHERE f / 0e0 IN (0.5, 1e300)", "0"),
        ("SELECT count(*) FROM t WHERE f * 1e300 BETWEEN 0.5 AND 1e303", "2"),
        (
            "SELECT coalesce(f * 1e300, 0.5) > 1.5, CASE WHEN f < 1 THEN 0.5 ELSE 1e300 END FROM t WHERE i = 3",
            "true|1e300",
        ),
        ("SELECT max(x) FROM (SELECT 0.5 AS x UNION ALL SELECT 1e300)", "1e300"),
        ("SELECT max(x) FROM (VALUES (0.5), (1e300)) v(x)", "1e300"),
        ("SELECT count(*) FROM t WHERE f * 1e300 IN (SELECT 0.5)", "0"),
        ("SELECT count(*) FROM t WHERE 0.5 < ANY (SELECT f * 1e300 FROM t)", "2"),
        ("SELECT count(*) FROM t WHERE f * 1e300 > CASE WHEN i = 2 THEN 1 ELSE 2.5 END", "2"),
        (
            "SELECT x FROM (SELECT CASE WHEN i = 2 THEN 1 ELSE 2.5 END AS x, f FROM t) WHERE x < f * 1e300 AND x > 2",
            "2.5",
        ),
        // Above a union, which has the types of its first input until it is coerced.
        ("WITH s AS (SELECT 0.5 AS x UNION ALL SELECT 1e-20) SELECT count(*) FROM s WHERE x = 0.0", "0"),
        ("WITH s AS (SELECT 0.5 AS x UNION ALL SELECT 1e300) SELECT count(*) FROM s WHERE x > 0.7", "1"),
        ("WITH s AS (SELECT 1 AS x UNION ALL SELECT 1e300) SELECT count(*) FROM s WHERE x > 0.7", "2"),
        ("SELECT max(x) FROM (SELECT x FROM (SELECT 1 AS x UNION SELECT 1e300) s) WHERE x IN (0.5, 1e300)", "1e300"),
        ("SELECT count(*) FROM t WHERE 0.5 IN (SELECT f * 1e300 FROM t)", "0"),
        ("SELECT count(*) FROM t JOIN (SELECT 0.5 AS x) s ON f * 1e300 > x AND f * 1e300 <> x", "2"),
        ("SELECT count(*) FROM t JOIN (SELECT 1000.0 AS x) s ON f = x", "1"),
        ("SELECT d * 2, i * 2.5 FROM t WHERE i = 3", "19999999999.9800000000|7.5"),
        ("SELECT round(173975140545.855, 2)", "173975140545.86"),
    ] {
        assert_eq!(server.rows(sql).await, [wanted], "{sql}");
    }
    let sql = "EXPLAIN SELECT f FROM t WHERE f > 0.25 AND d > 2.5 AND i < 2.5 AND i IN (1.0, 2.5, 7.0)";
    let plan = server.rows(sql).await.concat();
    assert!(!plan.contains("CAST"), "{plan}");
    server.fails(&format!("SELECT 0.{}", "1".repeat(77)), ErrorKind::InvalidArgument, "76").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_texts_keep_what_numbers_were_when_they_were_made() {
    let server = Server::new();
    let types = "SELECT arrow_typeof(x) LIKE 'Float%' FROM";
    for (setting, name, is_float) in [("false", "floats", "true"), ("true", "decimals", "false")] {
        server.run(&format!("SET {DECIMALS} = {setting}")).await.unwrap();
        server.run(&format!("CREATE VIEW {name} AS SELECT 0.3 AS x")).await.unwrap();
        let columns = "a INT, d DECIMAL(30, 10) DEFAULT 12345678901234567890.1234567891, g DOUBLE DEFAULT 0.5, s VARCHAR \
                       DEFAULT arrow_typeof(1.5 + 1)";
        server.run(&format!("CREATE TABLE {name}_t ({columns})")).await.unwrap();
        server.run(&format!("ALTER TABLE {name}_t ADD COLUMN t VARCHAR DEFAULT arrow_typeof(0.25)")).await.unwrap();
        if cfg!(feature = "hot-views") {
            let sql = format!("CREATE HOT VIEW {name}_h AS SELECT * FROM {name}_t WHERE d > 12345678901234567890.1");
            server.run(&sql).await.unwrap();
        }
        assert_eq!(server.rows(&format!("{types} {name}")).await, [is_float]);
    }
    for setting in ["true", "false"] {
        server.run(&format!("SET {DECIMALS} = {setting}")).await.unwrap();
        for (name, is_float) in [("floats", "true"), ("decimals", "false")] {
            assert_eq!(server.rows(&format!("{types} {name}")).await, [is_float], "{name} {setting}");
            server.run(&format!("DELETE FROM {name}_t")).await.unwrap();
            server.run(&format!("INSERT INTO {name}_t (a) VALUES (1)")).await.unwrap();
            server
                .run(&format!("INSERT INTO {name}_t (a, d, g, s, t) VALUES (1, DEFAULT, DEFAULT, DEFAULT, DEFAULT)"))
                .await
                .unwrap();
            server.run(&format!("UPDATE {name}_t SET d = DEFAULT")).await.unwrap();
            let sql = format!("SELECT g, s LIKE 'Float%', t LIKE 'Float%' FROM {name}_t");
            let row = format!("0.5|{is_float}|{is_float}");
            assert_eq!(server.rows(&sql).await, [row.as_str(), row.as_str()], "{name} {setting}");
            let exact =
                server.rows(&format!("SELECT count(*) FROM {name}_t WHERE d = 12345678901234567890.1234567891")).await;
            if is_float == "false" && setting == "true" {
                assert_eq!(exact, ["2"]);
            }
        }
    }
    server.run(&format!("SET {DECIMALS} = true")).await.unwrap();
    // The text of a default that is shown recreates the same default.
    let shown = server.rows("SHOW CREATE TABLE decimals_t").await.concat();
    assert!(shown.contains("DEFAULT 0.5") && shown.contains("DECIMAL(30,10)"), "{shown}");
    if cfg!(feature = "hot-views") {
        let sql = "EXPLAIN HOT VIEWS SELECT * FROM decimals_t WHERE d > 12345678901234567890.1";
        let checked = server.rows(sql).await.concat();
        assert!(!checked.contains("not proven"), "{checked}");
    }
    server.run(&format!("RESET {DECIMALS}")).await.unwrap();
    assert_eq!(server.rows("SELECT arrow_typeof(0.3) LIKE 'Decimal%'").await, ["true"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_of_structs_are_written_with_either_bracket() {
    let server = Server::new();
    server
        .run("CREATE TABLE s (k INT, x STRUCT(a INT, b STRUCT(c TEXT, \"d e\" DECIMAL(5, 2))), y STRUCT<a INT>)")
        .await
        .unwrap();
    server
        .run("INSERT INTO s VALUES (1, named_struct('a', 1, 'b', named_struct('c', 'z', 'd e', 2.5)), named_struct('a', 7))")
        .await
        .unwrap();
    for (sql, wanted) in [
        ("SELECT x['a'], x['b']['c'], x['b']['d e'], y['a'] FROM s", "1|z|2.50|7"),
        ("SELECT (named_struct('a', 1)::STRUCT(a BIGINT))['a']", "1"),
        ("SELECT (CAST(named_struct('a', 1) AS STRUCT(a STRING)))['a']", "1"),
        ("SELECT count(*) FROM (SELECT struct(k IS NULL, k) AS q FROM s WHERE struct(k, k)['c0'] = 1)", "1"),
    ] {
        assert_eq!(server.rows(sql).await, [wanted], "{sql}");
    }
}
