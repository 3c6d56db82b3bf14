//! Views with `security_invoker`: read with the rights of who asks.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn such_a_view_is_read_with_the_rights_of_who_asks() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("root", &["CREATE USER eve PASSWORD 'correct horse'"]).await;
    let view = "CREATE VIEW s.asks WITH (security_invoker = true) AS SELECT a FROM s.t";
    closed.all("ann", &[view, "GRANT SELECT ON s.asks TO bob", "GRANT USAGE ON SCHEMA s TO bob"]).await;
    let query = "SELECT a FROM s.asks";
    assert_eq!(closed.rows("ann", query).await, ["1"]);
    closed.refused("bob", query, ErrorKind::PermissionDenied, "permission denied for table s.t").await;
    closed.all("ann", &["GRANT SELECT ON s.t TO bob"]).await;
    assert_eq!(closed.rows("bob", query).await, ["1"]);
    let token = closed.bearer("bob", "(SELECT ON s.asks), (USAGE ON SCHEMA s)").await;
    assert_eq!(
        run_in(&token, query).await.unwrap_err().kind(),
        ErrorKind::PermissionDenied,
        "the scope lacks the table"
    );
    assert!(closed.rows("bob", "SHOW CREATE TABLE s.asks").await[0].contains("security_invoker"));
    // Within a view of another kind it is the owner of that one who asks.
    closed.all("ann", &["CREATE VIEW s.around AS SELECT a FROM s.asks", "GRANT SELECT ON s.around TO eve"]).await;
    assert_eq!(closed.rows("eve", "SELECT a FROM s.around").await, ["1"]);
    assert!(closed.run("eve", query).await.is_err());
    closed.all("ann", &["REVOKE SELECT ON s.t FROM bob"]).await;
    closed.refused("bob", query, ErrorKind::PermissionDenied, "permission denied for table s.t").await;
    // The text says it, so another text may say something else.
    for (option, rows) in
        [("", Some("1")), ("WITH (security_invoker = true)", None), ("WITH (security_invoker = 'off')", Some("1"))]
    {
        closed.all("ann", &[&format!("CREATE OR REPLACE VIEW s.asks {option} AS SELECT a FROM s.t")]).await;
        let read = closed.run("bob", query).await;
        assert_eq!(read.as_ref().ok().and_then(|rows| rows.first()).map(String::as_str), rows, "{option}: {read:?}");
    }
    for (option, kind) in [
        ("security_invoker = maybe", ErrorKind::InvalidArgument),
        ("security_barrier = true", ErrorKind::Unimplemented),
    ] {
        let sql = format!("CREATE VIEW s.other WITH ({option}) AS SELECT a FROM s.t");
        closed.refused("ann", &sql, kind, "security_invoker").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn such_a_view_stays_one_after_a_restart() {
    let closed = Closed::new().await;
    closed.all("ann", &["CREATE SCHEMA s", "CREATE TABLE s.t AS SELECT 1 AS a"]).await;
    closed.all("ann", &["CREATE VIEW s.asks WITH (security_invoker = true) AS SELECT a FROM s.t"]).await;
    closed.all("ann", &["GRANT SELECT ON s.asks TO bob", "GRANT USAGE ON SCHEMA s TO bob"]).await;
    let again = closed.server.restart_with(|options| {
        options.owner = Some(Owner { name: "root".into(), password: PASSWORD.into() });
    });
    let closed = Closed { server: again.await };
    closed.refused("bob", "SELECT a FROM s.asks", ErrorKind::PermissionDenied, "permission denied for table s.t").await;
    assert_eq!(closed.rows("ann", "SELECT a FROM s.asks").await, ["1"]);
}
