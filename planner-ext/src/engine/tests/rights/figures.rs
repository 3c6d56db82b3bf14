//! Figures of tables in plans: how many chunks and bytes of a table lie on which tier, for those only who see figures of it, whatever
//! the statement names.

use super::*;

/// A closed server with the table s.t of ann, a view of it, and a view of that, both for bob.
async fn with_views() -> Closed {
    let closed = Closed::new().await;
    closed.all("root", &["CREATE USER eve PASSWORD 'correct horse'"]).await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t WITH (chunk_rows = 300) AS SELECT value AS a, value % 7 AS b FROM generate_series(1, 1100)",
        "CREATE VIEW s.v AS SELECT a, b FROM s.t",
        "CREATE VIEW s.w AS SELECT a, b FROM s.v",
        "GRANT USAGE ON SCHEMA s TO PUBLIC",
        "GRANT SELECT ON s.v TO bob",
        "GRANT SELECT ON s.w TO bob",
    ];
    closed.all("ann", &made).await;
    closed
}

/// `{r}` is a relation.
const EXPLAINED: [&str; 6] = [
    "EXPLAIN SELECT a FROM {r} WHERE a > 5",
    "EXPLAIN VERBOSE SELECT a FROM {r} WHERE a > 5",
    "EXPLAIN FORMAT TREE SELECT a FROM {r} WHERE a > 5",
    "EXPLAIN ANALYZE SELECT a FROM {r} WHERE a > 5",
    "EXPLAIN ANALYZE VERBOSE SELECT x.a FROM {r} x JOIN {r} y ON x.a = y.b",
    "EXPLAIN ANALYZE SELECT * FROM {r} ORDER BY a LIMIT 3",
];

/// Words of figures in the line of an operator that reads the table.
const OF_READERS: [&str; 5] = ["segments", "reads", "bytes", "rows", "Rows"];

/// Whether a plan shows figures of a table. Operators above those that read it count what comes to them.
fn has_figures(plan: &str) -> bool {
    let mut readers = plan.lines().filter(|line| line.contains("TierScanExec") || line.contains("FetchExec"));
    ["chunks", "memory_demand"].iter().any(|word| plan.contains(word))
        || readers.any(|line| OF_READERS.iter().any(|word| line.contains(word)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_show_figures_of_a_table_to_those_who_see_figures_of_it() {
    let closed = with_views().await;
    let plan =
        async |user: &str, sql: &str, relation: &str| closed.rows(user, &sql.replace("{r}", relation)).await.join("\n");
    for sql in EXPLAINED {
        for relation in ["s.t", "s.v", "s.w"] {
            let plan = plan("ann", sql, relation).await;
            assert!(has_figures(&plan), "ann: {sql} of {relation}: {plan}");
        }
        for relation in ["s.v", "s.w"] {
            let plan = plan("bob", sql, relation).await;
            assert!(plan.contains("TierScanExec"), "bob: {sql} of {relation}: {plan}");
            assert!(!has_figures(&plan), "bob: {sql} of {relation}: {plan}");
        }
    }
    // Rights on a part of the table, and rights that read no value.
    closed.all("ann", &["GRANT SELECT (a) ON s.t TO eve", "GRANT DELETE ON s.t TO eve"]).await;
    for sql in [
        "EXPLAIN SELECT a FROM s.t",
        "EXPLAIN ANALYZE SELECT a FROM s.t WHERE a > 5",
        "EXPLAIN VERBOSE DELETE FROM s.t",
    ] {
        let shown = plan("eve", sql, "").await;
        assert!(!has_figures(&shown), "eve: {sql}: {shown}");
        let shown = plan("ann", sql, "").await;
        assert!(shown.contains("chunks"), "ann: {sql}: {shown}");
    }
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
    let monitored = plan("bob", EXPLAINED[0], "s.w").await;
    assert!(monitored.contains("chunks=") && monitored.contains("memory_demand"), "{monitored}");
    closed.all("root", &["REVOKE MONITOR ON SERVER FROM bob"]).await;
    assert!(!has_figures(&plan("bob", EXPLAINED[0], "s.w").await), "a revoked right counts from the next call on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_placement_of_a_query_leaves_out_tables_whose_figures_are_not_shown() {
    let closed = with_views().await;
    let sql = "EXPLAIN PLACEMENT SELECT a FROM s.w WHERE a > 5";
    let of_ann = closed.rows("ann", sql).await;
    assert!(of_ann.len() > 1 && of_ann[0].starts_with("s|t|a|"), "{of_ann:?}");
    let of_bob = closed.rows("bob", sql).await;
    assert!(of_bob.len() == 1 && of_bob[0].starts_with("||||0|0|"), "{of_bob:?}");
    let own = ["GRANT CREATE ON SCHEMA s TO bob", "GRANT MONITOR ON SERVER TO eve", "GRANT SELECT ON s.w TO eve"];
    closed.all("root", &own).await;
    let made = "CREATE TABLE s.own WITH (chunk_rows = 300) AS SELECT value AS a FROM generate_series(1, 1100)";
    closed.all("bob", &[made]).await;
    let both = closed.rows("bob", "EXPLAIN PLACEMENT SELECT count(*) FROM s.w JOIN s.own ON w.a = own.a").await;
    let [parts @ .., total] = both.as_slice() else { panic!("no rows") };
    assert!(!parts.is_empty() && parts.iter().all(|row| row.starts_with("s|own|a|")), "{both:?}");
    assert!(total.starts_with("||||") && !total.starts_with("||||0|"), "{both:?}");
    assert_eq!(closed.rows("eve", sql).await.len(), of_ann.len(), "with MONITOR");
}
