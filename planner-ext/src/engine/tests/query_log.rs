//! The query log: what it has of statements, to whom it shows them, and that it outlives the engine.

use std::path::Path;

use terrace_access::{NewUser, Owner, Principal};

use super::audit::{PASSWORD, run};
use super::*;

/// A closed server with the users ann and bob, who may nothing, and a query log in a folder.
fn closed(folder: &Path) -> Server {
    let query_log = QueryLogOptions {
        path: folder.join("log/statements.jsonl"),
        max_bytes: 1 << 20,
        keep_for: Duration::from_secs(3600),
        least_duration: Duration::ZERO,
        values: LoggedValues::Keep,
    };
    let server = Server::with(|options| {
        options.owner = Some(Owner { name: "root".into(), password: PASSWORD.into() });
        options.query_log = Some(query_log);
    });
    for name in ["ann", "bob"] {
        let user = NewUser { name: name.into(), password: PASSWORD.into(), is_superuser: false };
        server.engine.users().create_user(&Principal::inside("test"), &user).unwrap();
    }
    server
}

/// Queries of others than the query log.
const SHOWN: &str = "SELECT user_name, state, rows, error_kind, sql FROM system.query_log \
                     WHERE kind = 'query' AND sql NOT LIKE '%query_log%' ORDER BY ended";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_sees_the_own_statements_and_with_monitor_all() {
    let folder = tempfile::tempdir().unwrap();
    let server = closed(folder.path());
    run(&server, "root", "CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    run(&server, "root", "GRANT SELECT ON t TO ann").await.unwrap();
    run(&server, "ann", "SELECT a FROM t WHERE a > 0").await.unwrap();
    run(&server, "bob", "SELECT a FROM t").await.unwrap_err();
    let (of_ann, of_bob) =
        ("ann|done|1||SELECT a FROM t WHERE a > 0", "bob|failed|0|permission_denied|SELECT a FROM t");
    assert_eq!(run(&server, "ann", SHOWN).await.unwrap(), [of_ann]);
    assert_eq!(run(&server, "bob", SHOWN).await.unwrap(), [of_bob]);
    run(&server, "root", "GRANT MONITOR ON SERVER TO bob").await.unwrap();
    // Those of others without values.
    assert_eq!(run(&server, "bob", SHOWN).await.unwrap(), ["ann|done|1||SELECT a FROM t WHERE a > ?", of_bob]);
    run(&server, "root", "ALTER USER bob PASSWORD 'battery staple'").await.unwrap();
    let changed = "SELECT sql FROM system.query_log WHERE sql LIKE 'ALTER USER%'";
    assert_eq!(run(&server, "bob", changed).await.unwrap(), ["ALTER USER bob PASSWORD ***"]);
    assert_eq!(run(&server, "ann", changed).await.unwrap(), [] as [&str; 0]);
    // Another user of the same name.
    run(&server, "root", "DROP USER ann").await.unwrap();
    run(&server, "root", &format!("CREATE USER ann PASSWORD '{PASSWORD}'")).await.unwrap();
    assert_eq!(run(&server, "ann", SHOWN).await.unwrap(), [] as [&str; 0]);
    drop(server);
    // It outlives the engine; the users of the next one are others, too.
    let again = closed(folder.path());
    assert_eq!(run(&again, "root", SHOWN).await.unwrap(), [of_ann, of_bob]);
    assert_eq!(run(&again, "ann", SHOWN).await.unwrap(), [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_log_the_table_is_empty() {
    let server = Server::new();
    assert_eq!(server.rows("SELECT count(*) FROM system.query_log").await, ["0"]);
    assert!(server.engine.query_log().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_has_the_figures_of_queries() {
    let folder = tempfile::tempdir().unwrap();
    let server = closed(folder.path());
    run(&server, "root", "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 100000)").await.unwrap();
    run(&server, "root", "SELECT max(a + 1) FROM t").await.unwrap();
    let figures = "id, session, workload_group, kind, state, started, elapsed_us, rows, bytes, queued_us, busy_us, \
                   reserved_peak_bytes, allocated_peak_bytes, cold_bytes, chunks, pruned_chunks, read_wait_us";
    let of = |table: &str| format!("SELECT {figures} FROM system.{table} WHERE sql LIKE 'SELECT max%'");
    let logged = run(&server, "root", &of("query_log")).await.unwrap();
    assert_eq!(logged, run(&server, "root", &of("queries")).await.unwrap());
    let tiers = "SELECT memory_bytes > 0, tier_bytes LIKE 'dram=%' FROM system.query_log WHERE sql LIKE 'SELECT max%'";
    assert_eq!(run(&server, "root", tiers).await.unwrap(), ["true|true"]);
}
