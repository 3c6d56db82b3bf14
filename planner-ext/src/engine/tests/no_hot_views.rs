//! A build without hot views refuses their statements; tables about them are empty.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_are_refused_and_tables_are_empty() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT)").await.unwrap();
    for sql in [
        "CREATE HOT VIEW v AS SELECT a FROM t WHERE a > 1",
        "DROP HOT VIEW IF EXISTS v",
        "ALTER HOT VIEW v REFRESH",
        "REJECT HOT VIEW PROPOSAL v",
        "ALTER HOT VIEW v SET (refresh = 'never')",
    ] {
        server.fails(sql, ErrorKind::Unimplemented, "feature hot-views").await;
    }
    let explained = server.batches("EXPLAIN HOT VIEWS SELECT a FROM t").await.unwrap_err();
    assert_eq!(explained.kind(), ErrorKind::Unimplemented);
    for table in ["hot_views", "hot_view_proposals"] {
        assert_eq!(server.rows(&format!("SELECT * FROM system.{table}")).await, [""; 0]);
    }
    assert_eq!(server.rows("SHOW HOT VIEWS").await, [""; 0]);
    server.run("SET terrace.hot_views = true").await.unwrap();
    server.run("DROP TABLE t").await.unwrap();
    assert_eq!(server.engine.view_tally().hits(), 0);
    assert_eq!(server.engine.view_runs().runs(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_hot_views_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path().join("data"))).unwrap();
    store.put_object(crate::engine::views_off::HOT_VIEWS, "public.v", "{}").unwrap();
    let options = EngineOptions::new(dir.path().join("spill"), tokio::runtime::Handle::current());
    let refused = Engine::new(store, options).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(refused.to_string().contains("such as public.v"), "{refused}");
}
