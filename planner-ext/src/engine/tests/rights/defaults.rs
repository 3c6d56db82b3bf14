//! Default privileges: what the tables and views get that are made after them.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_tables_and_views_get_the_default_privileges() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    let all = ["GRANT CREATE ON SCHEMA s TO bob", "CREATE USER eve PASSWORD 'correct horse'", "CREATE ROLE readers"];
    closed.all("root", &all).await;
    closed.all("root", &["GRANT readers TO eve"]).await;
    // For what one makes oneself, and as the owner of the schema for what others make.
    closed.all("bob", &["ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT SELECT ON TABLES TO readers"]).await;
    closed
        .all("ann", &["ALTER DEFAULT PRIVILEGES FOR ROLE ann IN SCHEMA s GRANT SELECT, INSERT ON TABLES TO bob"])
        .await;
    closed.all("ann", &["ALTER DEFAULT PRIVILEGES FOR USER bob IN SCHEMA s GRANT INSERT ON TABLES TO PUBLIC"]).await;
    closed.all("ann", &["CREATE TABLE s.made (a BIGINT)", "CREATE VIEW s.shown AS SELECT a FROM s.t"]).await;
    closed.all("bob", &["INSERT INTO s.made VALUES (7)", "CREATE TABLE s.his AS SELECT a FROM s.made"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.made UNION ALL SELECT a FROM s.shown ORDER BY a").await, ["1", "7"]);
    assert_eq!(closed.rows("eve", "SELECT a FROM s.his").await, ["7"]);
    closed.all("eve", &["INSERT INTO s.his VALUES (8)"]).await;
    for (user, sql) in [("bob", "SELECT a FROM s.t"), ("eve", "SELECT a FROM s.made"), ("bob", "DELETE FROM s.made")] {
        assert!(closed.run(user, sql).await.is_err(), "{user}: {sql}");
    }
    let shown = "SELECT maker, grantee, privilege, granted_by FROM system.default_grants ORDER BY 1, 2, 3";
    let rows = ["ann|bob|INSERT|ann", "ann|bob|SELECT|ann", "bob|public|INSERT|ann", "bob|readers|SELECT|bob"];
    assert_eq!(closed.rows("ann", shown).await, rows);
    assert_eq!(closed.rows("eve", shown).await, rows[2..]);

    closed.all("ann", &["ALTER DEFAULT PRIVILEGES IN SCHEMA s REVOKE ALL ON TABLES FROM bob"]).await;
    closed
        .all("ann", &["CREATE TABLE s.later (a BIGINT)", "DROP TABLE s.made", "CREATE TABLE s.made (a BIGINT)"])
        .await;
    for sql in ["SELECT a FROM s.later", "SELECT a FROM s.made"] {
        assert!(closed.run("bob", sql).await.is_err(), "{sql}");
    }
    closed.all("bob", &["SELECT a FROM s.shown"]).await;
    let denied = ErrorKind::PermissionDenied;
    let of_ann = "ALTER DEFAULT PRIVILEGES FOR ROLE ann IN SCHEMA s GRANT SELECT ON TABLES TO bob";
    closed.refused("bob", of_ann, denied, "schema s").await;
    let hidden = "ALTER DEFAULT PRIVILEGES IN SCHEMA no GRANT SELECT ON TABLES TO bob";
    closed.refused("bob", hidden, ErrorKind::NotFound, "schema 'no'").await;
    closed.all("root", &["DROP SCHEMA s CASCADE"]).await;
    assert_eq!(closed.rows("root", shown).await, [""; 0]);
}
