//! Hot views in SQL: stored definitions, refusals, and which queries a view serves.

use super::*;

const SHOWN: &str =
    "SELECT view_name, columns, predicate, bound_predicate, moving, version, problem FROM system.hot_views";

async fn orders() -> Server {
    let server = Server::new();
    server
        .run("CREATE TABLE orders (id BIGINT NOT NULL, status VARCHAR, day DATE, amount DECIMAL(15, 2), note VARCHAR)")
        .await
        .unwrap();
    server
}

/// View and reason for each check of a query.
async fn explained(server: &Server, query: &str) -> Vec<String> {
    server.rows(&format!("SELECT * FROM ({query})")).await;
    let rows = server.batches(&format!("EXPLAIN HOT VIEWS {query}")).await.unwrap_or_else(|e| panic!("{query}: {e}"));
    let text = pretty_format_batches(&rows).unwrap().to_string();
    let lines = text.lines().filter(|l| l.starts_with('|')).skip(1);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    lines.map(cells).map(|c| format!("{}: {} [{}] outside [{}]", c[2], c[4], c[5], c[6])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_kept_shown_and_dropped() {
    let server = orders().await;
    server.run("CREATE HOT VIEW open_orders AS SELECT * FROM orders WHERE status = 'O' -- still\n").await.unwrap();
    server.run("CREATE HOT VIEW dear AS SELECT id, amount FROM public.orders WHERE Amount > 1000;").await.unwrap();
    let all =
        ["dear|id, amount|Amount > 1000|amount > 1000.00|false|1|", "open_orders|*|status = 'O'|status = 'O'|false|1|"];
    let shown = format!("{SHOWN} ORDER BY view_name");
    assert_eq!(server.rows(&shown).await, all);
    let exists = ErrorKind::AlreadyExists;
    let missing = ErrorKind::NotFound;
    server.fails("CREATE HOT VIEW dear AS SELECT id FROM orders WHERE id > 3", exists, "OR REPLACE").await;
    server.run("CREATE HOT VIEW IF NOT EXISTS dear AS SELECT id FROM orders WHERE id > 3").await.unwrap();
    assert_eq!(server.rows(&shown).await, all);
    let server = server.restart().await;
    assert_eq!(server.rows(&shown).await, all);
    server.run("CREATE OR REPLACE HOT VIEW dear AS SELECT id FROM orders WHERE id > 3").await.unwrap();
    assert_eq!(server.rows(&format!("{SHOWN} WHERE view_name = 'dear'")).await, ["dear|id|id > 3|id > 3|false|2|"]);
    assert_eq!(server.rows("SHOW HOT VIEWS").await.len(), 2);
    let created = server.definition("orders").await;
    assert!(
        created.contains("\n-- CREATE HOT VIEW \"public\".dear AS SELECT id FROM orders WHERE id > 3;"),
        "{created}"
    );
    server.fails("DROP HOT VIEW nothing", missing, "hot view 'nothing' does not exist").await;
    server.run("DROP HOT VIEW IF EXISTS nothing, dear").await.unwrap();
    assert_eq!(server.rows(&shown).await, [all[1]]);
    // Hot views have a namespace of their own: tables and views do not conflict with them.
    server.run("CREATE TABLE open_orders (a INT)").await.unwrap();
    server.run("CREATE VIEW dear AS SELECT 1 AS one").await.unwrap();
    server.run("CREATE HOT VIEW dear AS SELECT id FROM orders WHERE id > 3").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_moves_the_window() {
    let server = orders().await;
    server
        .run("CREATE HOT VIEW fresh AS SELECT * FROM orders WHERE day >= current_date - INTERVAL '30 days'")
        .await
        .unwrap();
    server.run("CREATE HOT VIEW old AS SELECT * FROM orders WHERE day < DATE '2020-01-01'").await.unwrap();
    let moving = server.rows("SELECT view_name, moving, version FROM system.hot_views ORDER BY view_name").await;
    assert_eq!(moving, ["fresh|true|1", "old|false|1"]);
    let bound = "SELECT CAST(bound_at AS BIGINT) FROM system.hot_views WHERE view_name = 'fresh'";
    let first = server.rows(bound).await;
    let implied = "SELECT sum(amount) FROM orders WHERE day >= current_date - INTERVAL '29 days'";
    assert_eq!(
        explained(&server, implied).await,
        ["fresh: true [] outside []", "old: false [not proven: day < DATE '2020-01-01'] outside []"]
    );
    let wider = "SELECT sum(amount) FROM orders WHERE day >= current_date - INTERVAL '40 days'";
    assert!(explained(&server, wider).await[0].starts_with("fresh: false [not proven: day >= current_date"));
    server.run("ALTER HOT VIEW fresh REFRESH").await.unwrap();
    let version = server.rows("SELECT version FROM system.hot_views WHERE view_name = 'fresh'").await;
    assert_eq!(version, ["2"]);
    assert!(server.rows(bound).await > first);
    server.fails("ALTER HOT VIEW nothing REFRESH", ErrorKind::NotFound, "nothing").await;
    server.run("ALTER HOT VIEW IF EXISTS nothing REFRESH").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_are_checked_scan_by_scan() {
    let server = orders().await;
    server.run("CREATE TABLE parts (order_id BIGINT, part BIGINT, \"Odd\" INT)").await.unwrap();
    server.run("CREATE HOT VIEW open_orders AS SELECT id, status, day FROM orders WHERE status = 'O'").await.unwrap();
    server.run("CREATE HOT VIEW late_parts AS SELECT * FROM parts WHERE order_id > 1000").await.unwrap();
    let yes = "open_orders: true [] outside []";
    let no = "open_orders: false [not proven: status = 'O'] outside []";
    for (query, expected) in [
        ("SELECT id FROM orders WHERE status = 'O'", vec![yes]),
        ("SELECT id FROM orders o WHERE o.status = 'O' AND o.day > DATE '2026-01-01'", vec![yes]),
        ("SELECT id FROM orders WHERE status IN ('O', 'P')", vec![no]),
        ("SELECT id FROM orders WHERE status = 'O' OR id = 3", vec![no]),
        ("SELECT id FROM orders", vec![no]),
        ("SELECT id, note FROM orders WHERE status = 'O'", vec!["open_orders: true [] outside [note]"]),
        ("SELECT id FROM orders WHERE status = 'O' AND amount > 3", vec!["open_orders: true [] outside [amount]"]),
        // A condition on one side of a join holds for the other side too.
        (
            "SELECT o.id FROM orders o JOIN parts p ON o.id = p.order_id WHERE o.id > 2000 AND o.status = 'O'",
            vec![yes, "late_parts: true [] outside []"],
        ),
        (
            "SELECT o.id FROM orders o LEFT JOIN parts p ON o.id = p.order_id WHERE o.status = 'O'",
            vec![yes, "late_parts: false [not proven: order_id > 1000] outside []"],
        ),
        // In subqueries, in views, in both parts of a union.
        ("SELECT 1 AS one WHERE EXISTS (SELECT 1 FROM orders WHERE status = 'O')", vec![yes]),
        ("SELECT id FROM (SELECT * FROM orders WHERE status = 'O') AS o WHERE id < 5", vec![yes]),
        ("SELECT id FROM orders WHERE status = 'O' UNION ALL SELECT id FROM orders WHERE status = 'P'", vec![yes, no]),
        ("SELECT 1 AS one", vec![]),
    ] {
        let mut found = explained(&server, query).await;
        let mut expected: Vec<_> = expected.into_iter().map(str::to_owned).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{query}");
    }
    server
        .run("CREATE VIEW of_today AS SELECT id FROM orders WHERE status = 'O' AND day = current_date")
        .await
        .unwrap();
    assert_eq!(explained(&server, "SELECT * FROM of_today").await, [yes]);
    // Functions of another time zone may mean other rows.
    server.run("SET datafusion.execution.time_zone = '+05:00'").await.unwrap();
    let told = explained(&server, "SELECT id FROM orders WHERE status = 'O'").await;
    assert_eq!(told, ["open_orders: false [the time zone of the session is not the server's] outside []"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_hot_view_is_refused() {
    let server = orders().await;
    server.run("CREATE VIEW v AS SELECT id FROM orders").await.unwrap();
    server.run("CREATE SCHEMA s").await.unwrap();
    let invalid = ErrorKind::InvalidArgument;
    let missing = ErrorKind::NotFound;
    for (rest, kind, words) in [
        ("SELECT id FROM v WHERE id > 3", invalid, "hot views are for tables"),
        ("SELECT id FROM nowhere WHERE id > 3", missing, "nowhere"),
        ("SELECT id FROM system.tables WHERE id > 3", ErrorKind::PermissionDenied, "system"),
        ("SELECT nothing FROM orders WHERE id > 3", missing, "column 'nothing'"),
        ("SELECT id FROM orders WHERE nothing > 3", invalid, "nothing"),
        ("SELECT id FROM orders WHERE random() < 0.1", invalid, "not the same for a row"),
        ("SELECT id FROM orders WHERE id IN (SELECT 3)", invalid, "no subquery"),
        ("SELECT id FROM orders WHERE count(*) > 3", invalid, "aggregate function"),
        ("SELECT id FROM orders WHERE id = ?", invalid, "parameter"),
        ("SELECT id FROM orders WHERE coalesce(day, current_date) > DATE '2020-01-01'", invalid, "bound a window"),
        ("SELECT id FROM orders WHERE 1 = 1", invalid, "every row"),
        ("SELECT id FROM orders WHERE id > 3 WITH (budget = '-1GiB')", invalid, "budget = '-1GiB'"),
        ("SELECT id FROM orders WHERE id > 3 WITH (budget = '10%')", invalid, "budget is a number of bytes"),
        ("SELECT id FROM orders WHERE id > 3 WITH (refresh = 'often')", invalid, "not a duration"),
    ] {
        server.fails(&format!("CREATE HOT VIEW h AS {rest}"), kind, words).await;
    }
    server.fails("CREATE HOT VIEW s.h AS SELECT id FROM orders WHERE id > 3", invalid, "call it public.h").await;
    assert!(server.rows("SHOW HOT VIEWS").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_views_go_with_what_they_are_about() {
    let server = orders().await;
    server.run("CREATE HOT VIEW open_orders AS SELECT id, day FROM orders WHERE status = 'O'").await.unwrap();
    let used = ErrorKind::FailedPrecondition;
    for change in ["RENAME TO sales", "RENAME COLUMN status TO state", "DROP COLUMN day", "DROP COLUMN status"] {
        server.fails(&format!("ALTER TABLE orders {change}"), used, "used by hot view 'open_orders'").await;
    }
    // Another column of the same name is another column.
    server.fails("ALTER TABLE orders DROP COLUMN day, ADD COLUMN day DATE", used, "hot view 'open_orders'").await;
    server.fails("DROP TABLE orders RESTRICT", used, "hot view 'open_orders'").await;
    server.run("ALTER TABLE orders DROP COLUMN note").await.unwrap();
    server.run("ALTER TABLE orders ADD COLUMN more INT").await.unwrap();
    let shown = format!("{SHOWN} ORDER BY view_name");
    assert_eq!(server.rows(&shown).await, ["open_orders|id, day|status = 'O'|status = 'O'|false|1|"]);
    server.run("ALTER TABLE orders DROP COLUMN status CASCADE").await.unwrap();
    assert!(server.rows(&shown).await.is_empty());

    // A view of all columns survives the loss of a column; it is dropped with the table.
    server.run("CREATE HOT VIEW late AS SELECT * FROM orders WHERE id > 100").await.unwrap();
    server.run("ALTER TABLE orders DROP COLUMN more").await.unwrap();
    server.run("DROP TABLE orders").await.unwrap();
    assert!(server.rows(&shown).await.is_empty());

    // A table that replaces another one keeps the views that fit it.
    server.run("CREATE TABLE t AS SELECT 1 AS a, 2 AS b").await.unwrap();
    server.run("CREATE HOT VIEW on_a AS SELECT * FROM t WHERE a > 0").await.unwrap();
    server.run("CREATE HOT VIEW on_b AS SELECT * FROM t WHERE b > 0").await.unwrap();
    server.run("CREATE OR REPLACE TABLE t AS SELECT 1 AS a, 'x' AS c").await.unwrap();
    let problems =
        server.rows("SELECT view_name, problem IS NULL, bound_predicate FROM system.hot_views ORDER BY 1").await;
    assert_eq!(problems, ["on_a|true|a > 0", "on_b|false|"]);
    assert_eq!(explained(&server, "SELECT a FROM t WHERE a > 5").await, ["on_a: true [] outside []"]);

    server.run("CREATE SCHEMA s").await.unwrap();
    server.run("CREATE TABLE s.t AS SELECT 1 AS a").await.unwrap();
    server.run("CREATE HOT VIEW s.h AS SELECT a FROM s.t WHERE t.a > 0").await.unwrap();
    server.run("DROP SCHEMA s CASCADE").await.unwrap();
    assert_eq!(server.rows("SELECT view_name FROM system.hot_views ORDER BY 1").await, ["on_a", "on_b"]);
}
