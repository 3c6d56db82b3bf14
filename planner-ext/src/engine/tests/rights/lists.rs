//! What lists and errors tell of objects: those only that one may see.

use terrace_access::{AuditScope, Trail, TrailOptions};
use terrace_tier_store::clock::SystemClock;

use super::*;
use crate::system::SystemTable;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_show_what_one_may_see() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    set_up(&closed.session("ann"), "hidden").await;
    closed.all("ann", &["GRANT SELECT ON s.t TO bob", "GRANT INSERT ON s.v TO bob"]).await;
    let of_users = "table_schema NOT IN ('system', 'information_schema')";
    let tables =
        format!("SELECT DISTINCT table_schema, table_name FROM information_schema.tables WHERE {of_users} ORDER BY 2");
    let columns = tables.replace("information_schema.tables", "information_schema.columns");
    let of_system = "SELECT table_name FROM information_schema.tables WHERE table_name IN ('tiers', 'epochs')";
    let schemas = "SELECT schema_name FROM information_schema.schemata ORDER BY 1";
    for (sql, want) in [
        (tables.as_str(), vec!["s|t", "s|v"]),
        (columns.as_str(), vec!["s|t", "s|v"]),
        (of_system, vec![]),
        (schemas, vec!["information_schema", "public", "s", "system"]),
        ("SELECT table_name FROM information_schema.views", vec!["v"]),
        ("SELECT table_schema, table_name FROM system.tables", vec!["s|t"]),
        ("SELECT DISTINCT table_schema FROM system.columns", vec!["s"]),
        ("SELECT name FROM system.users", vec!["bob"]),
        ("SELECT DISTINCT user_name FROM system.queries", vec!["bob"]),
        ("SELECT grantee, privilege FROM system.grants ORDER BY 2", vec!["bob|INSERT", "bob|SELECT"]),
    ] {
        assert_eq!(closed.rows("bob", sql).await, want, "{sql}");
    }
    let session = closed.session("bob");
    assert_eq!(session.schemas().unwrap(), ["information_schema", "public", "s", "system"]);
    let entries = session.entries().await.unwrap();
    let own = entries.iter().filter(|entry| entry.kind != EntryKind::System).map(|entry| entry.name.as_str());
    assert_eq!(own.collect::<Vec<_>>(), ["t", "v"]);
    assert!(session.set_option("schema", Some("hidden")).is_err() && session.set_option("schema", Some("s")).is_ok());
    closed.refused("bob", "SHOW TABLES IN hidden", ErrorKind::NotFound, "hidden").await;
    closed.refused("bob", "DESCRIBE hidden.t", ErrorKind::NotFound, "hidden.t").await;
    closed.refused("bob", "DROP TABLE hidden.t", ErrorKind::NotFound, "hidden.t").await;
    closed.all("bob", &["DROP TABLE IF EXISTS hidden.t"]).await;
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
    assert_eq!(closed.rows("bob", "SELECT count(*) FROM system.tables").await, ["2"]);
    assert!(closed.rows("bob", "SELECT DISTINCT user_name FROM system.queries").await.len() > 1);
    assert_eq!(closed.rows("ann", "SELECT count(*) FROM hidden.t").await, ["1"]);
}

/// A server with an audit trail of all statements and a query log, where all that has a name is called "hidden", and where bob may nothing.
async fn with_hidden_things() -> Closed {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let scope = AuditScope::All;
    let trail = Trail::start(TrailOptions { scope, ..TrailOptions::default() }, Arc::new(SystemClock::default()));
    let query_log = QueryLogOptions {
        path: dir.path().join("log/statements.jsonl"),
        max_bytes: 1 << 20,
        keep_for: Duration::from_secs(3600),
        least_duration: Duration::ZERO,
        values: LoggedValues::Keep,
    };
    let server = Server::open(dir, |options| {
        options.owner = Some(owner());
        options.audit = trail.unwrap();
        options.query_log = Some(query_log);
    });
    let closed = Closed::over(server).await;
    let of_root =
        ["CREATE USER hidden_user PASSWORD 'correct horse'", "CREATE ROLE hidden_clerks", "CREATE TOKEN hidden_token"];
    closed.all("root", &of_root).await;
    let of_ann = [
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.hidden_t WITH (chunk_rows = 300, admission = 'ssd') AS \
         SELECT value AS hidden_a FROM generate_series(1, 1100)",
        "CREATE VIEW hidden.hidden_v AS SELECT hidden_a FROM hidden.hidden_t",
        "BRING BACK hidden.hidden_t TO dram",
        "ALTER TABLE hidden.hidden_t PIN COLUMNS (hidden_a) TO dram",
        "GRANT SELECT ON hidden.hidden_t TO hidden_clerks",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA hidden GRANT SELECT ON TABLES TO hidden_clerks",
        "SELECT count(*) FROM hidden.hidden_v WHERE hidden_a > 7",
    ];
    closed.all("ann", &of_ann).await;
    #[cfg(feature = "hot-views")]
    closed.all("ann", &["CREATE HOT VIEW hidden.hidden_h AS SELECT * FROM hidden.hidden_t WHERE hidden_a > 1"]).await;
    let policy = "CREATE POLICY hidden_p ON hidden.hidden_t USING (hidden_a > 1)";
    closed.all("ann", &[policy, "ALTER TABLE hidden.hidden_t ENABLE ROW LEVEL SECURITY"]).await;
    closed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_list_names_what_is_hidden() {
    let closed = with_hidden_things().await;
    let names_hidden = async |user: &str, list: &str| {
        let rows = closed.rows(user, list).await;
        rows.into_iter().find(|row| row.contains("hidden"))
    };
    let mut telling = Vec::new();
    // A new table for everybody is asked as well.
    for name in SystemTable::names().filter(|name| SystemTable::is_for_everybody(name)) {
        let list = format!("SELECT * FROM system.{name}");
        assert_eq!(names_hidden("bob", &list).await, None, "{list}");
        if names_hidden("root", &list).await.is_some() {
            telling.push(name);
        }
    }
    for name in ["tables", "columns", "views", "schemata"] {
        let list = format!("SELECT * FROM information_schema.{name}");
        assert_eq!(names_hidden("bob", &list).await, None, "{list}");
        assert!(names_hidden("root", &list).await.is_some(), "{list}");
    }
    assert_eq!(names_hidden("bob", "SHOW TABLES").await, None);
    let expected = [
        "chunks",
        "columns",
        "default_grants",
        "grants",
        "moves",
        "placement_rules",
        "queries",
        "query_log",
        "roles",
        "row_policies",
        "segments",
        "tables",
        "tokens",
        "users",
    ];
    let silent: Vec<_> = expected.into_iter().filter(|name| !telling.contains(name)).collect();
    assert_eq!(silent, [""; 0], "root is told of nothing hidden, so that these show nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_do_not_tell_what_there_is() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "hidden").await;
    let message = async |sql: &str| closed.run("bob", sql).await.expect_err(sql).message().to_owned();
    for (sql, name) in [
        ("SELECT a FROM {}", "hidden.t"),
        ("SELECT a FROM {}", "hidden.v"),
        ("INSERT INTO {} VALUES (1)", "hidden.t"),
        ("DELETE FROM {}", "hidden.t"),
        ("TRUNCATE {}", "hidden.t"),
        ("ALTER TABLE {} ADD COLUMN c BIGINT", "hidden.t"),
        ("COMMENT ON VIEW {} IS 'x'", "hidden.v"),
        ("DROP TABLE {}", "hidden.t"),
        ("DROP VIEW {}", "hidden.v"),
        ("DROP SCHEMA {}", "hidden"),
        ("GRANT SELECT ON {} TO PUBLIC", "hidden.t"),
        ("GRANT SELECT ON SCHEMA {} TO PUBLIC", "hidden"),
        ("CREATE TABLE {}.n (a BIGINT)", "hidden"),
        ("SHOW CREATE TABLE {}", "hidden.t"),
    ] {
        let missing = format!("{name}0");
        let known = message(&sql.replace("{}", name)).await;
        assert_eq!(known.replace(name, &missing), message(&sql.replace("{}", &missing)).await, "{sql}");
    }
    // Nor which columns: the statement reads the name that it makes.
    closed.all("root", &["CREATE TABLE secret AS SELECT 42 AS n"]).await;
    for sql in
        ["CREATE TABLE secret AS SELECT no FROM public.secret", "CREATE VIEW secret AS SELECT no FROM public.secret"]
    {
        closed.refused("bob", sql, ErrorKind::PermissionDenied, "permission denied for table secret").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_on_the_database_is_none_on_figures_of_the_server() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("root", &["GRANT ALL ON DATABASE terrace TO bob"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.t").await, ["1"]);
    let token = closed.bearer("root", "(ALL ON DATABASE terrace)").await;
    assert_eq!(run_in(&token, "SELECT a FROM s.t").await.unwrap(), ["1"]);
    let of_server = || SystemTable::names().filter(|name| !SystemTable::is_for_everybody(name));
    assert!(of_server().any(|name| name == "tiers") && of_server().any(|name| name == "io"));
    for name in of_server() {
        let sql = format!("SELECT * FROM system.{name}");
        closed.refused("bob", &sql, ErrorKind::PermissionDenied, &format!("table system.{name}")).await;
        let error = run_in(&token, &sql).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{sql}: {error}");
        closed.rows("root", &sql).await;
    }
    assert_eq!(closed.rows("bob", "SELECT DISTINCT user_name FROM system.queries").await, ["bob"]);
    assert_eq!(closed.rows("bob", "SELECT table_name FROM system.tables").await, ["t"]);
    closed.all("root", &["GRANT SELECT ON system.tiers TO bob"]).await;
    assert!(!closed.rows("bob", "SELECT tier FROM system.tiers").await.is_empty(), "granted by name");
    closed.refused("bob", "SELECT * FROM system.io", ErrorKind::PermissionDenied, "system.io").await;
    closed.all("root", &["GRANT SELECT ON SCHEMA system TO bob"]).await;
    closed.rows("bob", "SELECT * FROM system.io").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_belong_to_a_table_and_not_to_its_name() {
    let closed = Closed::new().await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t WITH (chunk_rows = 300, admission = 'ssd') AS SELECT value AS a FROM generate_series(1, 1100)",
        "BRING BACK s.t TO dram",
        "GRANT USAGE, CREATE ON SCHEMA s TO bob",
    ];
    closed.all("ann", &made).await;
    let seen = async |user: &str| {
        closed.rows(user, "SELECT DISTINCT table_schema, table_name FROM system.moves WHERE table_name <> '*'").await
    };
    assert_eq!(seen("ann").await, ["s|t"]);
    assert_eq!(seen("bob").await, [""; 0]);
    closed.all("ann", &["GRANT SELECT ON s.t TO bob"]).await;
    assert_eq!(seen("bob").await, ["s|t"]);
    closed.all("ann", &["ALTER TABLE s.t RENAME TO u"]).await;
    assert_eq!(seen("bob").await, ["s|t"], "the table that has another name now");
    closed.all("ann", &["REVOKE SELECT ON s.u FROM bob"]).await;
    closed.all("bob", &["CREATE TABLE s.t AS SELECT 1 AS a"]).await;
    assert_eq!(seen("bob").await, [""; 0], "another table of the old name");
    closed.all("ann", &["DROP TABLE s.u"]).await;
    assert_eq!(seen("ann").await, [""; 0], "no table has them");
    assert_eq!(seen("root").await, ["s|t"], "with MONITOR");
}
