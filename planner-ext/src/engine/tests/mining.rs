//! Mined views: what the server learns from statements, and the views that it proposes and makes.

use super::*;

const SHOWN: &str = "SELECT view_name, state, predicate FROM system.hot_view_proposals ORDER BY proposed_at, view_name";
const OPEN: &str = "SELECT sum(amount) FROM orders WHERE outcome = 'open'";

/// Values that the bounds of chunks do not exclude, wherever their rows are.
const FEW: &str = "SELECT sum(amount) FROM orders WHERE customer IN (3, 157, 411, 665, 919)";

/// 400 chunks of 100 rows, of which 2 % are open, anywhere.
async fn orders(change: impl FnOnce(&mut EngineOptions)) -> Server {
    let server = Server::with(|options| {
        options.mining.mode = MiningMode::Advise;
        options.mining.payback_epochs = 1000.0;
        options.mining.retire_after = 2;
        change(options);
    });
    server
        .run(
            "CREATE TABLE orders WITH (chunk_rows = 100) AS SELECT value AS id, value * 7919 % 1000 AS customer, \
             CASE WHEN value * 104729 % 50 = 7 THEN 'open' ELSE 'done' END AS outcome, value * 1.5 AS amount \
             FROM generate_series(0, 39999)",
        )
        .await
        .unwrap();
    server
}

impl Server {
    async fn epochs(&self, epochs: usize, queries: &[&str]) {
        for _ in 0..epochs {
            for query in queries {
                self.rows(query).await;
            }
            self.engine.mine_views().await.unwrap();
        }
    }

    /// Waits for the runs of views in the background.
    async fn published(&self, view: &str) {
        let published = format!("SELECT count(published_version) FROM system.hot_views WHERE view_name = '{view}'");
        for _ in 0..1_200 {
            if self.rows(&published).await == ["1"] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{view} was not published");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_serves_the_statements_that_it_came_from() {
    let server = orders(|_| {}).await;
    server.epochs(1, &[OPEN, OPEN]).await;
    assert!(server.rows(SHOWN).await.is_empty(), "one epoch is no habit");
    // Queries of EXPLAIN do not count, and a view gains nothing where bounds exclude the chunks anyway.
    let others = ["EXPLAIN SELECT * FROM orders WHERE customer = 3", "SELECT count(*) FROM orders WHERE id < 500"];
    server.epochs(2, &[OPEN, OPEN, others[0], others[1]]).await;
    assert_eq!(server.rows(SHOWN).await, ["auto_orders_1|proposed|outcome = 'open'"]);
    assert_eq!(server.rows("SHOW HOT VIEW PROPOSALS").await.len(), 1);
    let numbers = "SELECT scans_per_epoch, served_per_epoch, table_rows, rows BETWEEN 400 AND 1600, \
                   saved_bytes_per_epoch BETWEEN read_bytes_per_epoch * 0.9 AND read_bytes_per_epoch, \
                   cost_bytes > saved_bytes_per_epoch FROM system.hot_view_proposals";
    assert_eq!(server.rows(numbers).await, ["2.0|2.0|40000|true|true|true"]);
    let statement = server.batches("SELECT statement FROM system.hot_view_proposals").await.unwrap();
    let statement = statement[0].column(0).as_string_view().value(0).to_owned();
    assert!(statement.starts_with("CREATE HOT VIEW ") && statement.contains("amount"), "{statement}");
    server.run(&statement).await.unwrap();
    let checked = server.rows(&format!("EXPLAIN HOT VIEWS {OPEN}")).await;
    assert!(checked.len() == 1 && checked[0].contains("auto_orders_1|1|true||"), "{checked:?}");
    server.epochs(1, &[OPEN, OPEN]).await;
    assert_eq!(server.rows(SHOWN).await, ["auto_orders_1|taken|outcome = 'open'"]);
    server.epochs(4, &[OPEN, OPEN]).await;
    assert_eq!(server.rows(SHOWN).await, ["auto_orders_1|taken|outcome = 'open'"], "it is not proposed again");
    // In this mode the server drops nothing.
    server.epochs(12, &["SELECT count(*) FROM orders WHERE amount = 3"]).await;
    assert_eq!(server.rows("SELECT view_name FROM system.hot_views").await, ["auto_orders_1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_follow_parameters_and_go_when_statements_change() {
    let server = orders(|_| {}).await;
    let some = "SELECT count(amount) FROM orders WHERE customer = $1 OR customer IN (11, 12)";
    let prepared = server.session.prepare(some).await.unwrap();
    for _ in 0..3 {
        for value in [3_i64, 500, 700] {
            let rows = batch(vec![("$1", Arc::new(Int64Array::from(vec![value])) as ArrayRef)]);
            let running = prepared.query(Some(rows)).await.unwrap();
            running.stream.try_collect::<Vec<_>>().await.unwrap();
        }
        server.engine.mine_views().await.unwrap();
    }
    let shown = server.rows(SHOWN).await;
    assert_eq!(shown, ["auto_orders_1|proposed|customer IN (3, 11, 12, 500, 700)"]);
    server.epochs(12, &[OPEN]).await;
    let shown = server.rows(SHOWN).await;
    assert_eq!(shown[0], "auto_orders_1|withdrawn|customer IN (3, 11, 12, 500, 700)");
    assert_eq!(shown[1..], ["auto_orders_2|proposed|outcome = 'open'"]);
    // A table with other columns is another one.
    server.run("ALTER TABLE orders ADD COLUMN note VARCHAR").await.unwrap();
    server.epochs(1, &[]).await;
    assert!(server.rows(SHOWN).await.iter().all(|row| row.contains("|withdrawn|")), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_is_rejected_does_not_come_again() {
    let server = orders(|options| options.mining.mode = MiningMode::Auto).await;
    server.epochs(2, &[OPEN, OPEN]).await;
    let missing = ErrorKind::NotFound;
    server.fails("REJECT HOT VIEW PROPOSAL nothing", missing, "no open proposal is for a hot view 'nothing'").await;
    let proposed = server.rows(SHOWN).await;
    assert_eq!(proposed, ["auto_orders_1|proposed|outcome = 'open'"]);
    server.run("REJECT HOT VIEW PROPOSAL public.auto_orders_1").await.unwrap();
    let rejected = ["auto_orders_1|rejected|outcome = 'open'"];
    assert_eq!(server.rows(SHOWN).await, rejected);
    let reason = "SELECT reason FROM system.hot_view_proposals";
    assert_eq!(server.rows(reason).await, ["a user rejected it"]);
    server.epochs(4, &[OPEN, OPEN]).await;
    assert_eq!(server.rows(SHOWN).await, rejected, "it is not proposed again");
    assert_eq!(server.rows("SELECT view_name FROM system.hot_views").await, [""; 0], "nor made");
    server.fails("REJECT HOT VIEW PROPOSAL auto_orders_1", missing, "no open proposal").await;
    // Others are, and a user can still make the view.
    server.epochs(12, &[FEW, FEW]).await;
    let shown = server.rows(SHOWN).await;
    assert!(shown.iter().any(|row| row.starts_with("auto_orders_2|") && row.contains("customer IN (3")), "{shown:?}");
    server.run("CREATE HOT VIEW mine AS SELECT * FROM orders WHERE outcome = 'open'").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_queries_by_key_do_not_keep_out_what_comes_after_them() {
    let server = orders(|_| {}).await;
    let by_key = |id: usize| format!("SELECT sum(amount) FROM orders WHERE id = {id}");
    let mut queries: Vec<String> = (0..700).map(by_key).collect();
    queries.extend(std::iter::repeat_n(OPEN.to_owned(), 8));
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    server.epochs(3, &queries).await;
    assert_eq!(server.rows(SHOWN).await, ["auto_orders_1|proposed|outcome = 'open'"]);
    let [(_, noted), (_, missed)] = server.engine.mining_counters().scans();
    // On a busy machine a point statement may start again among the others, which counts its scan again.
    assert!((3 * 708..3 * 708 + 30).contains(&(noted + missed)), "{noted} and {missed}");
    assert!(noted > 3 * 512 && missed > 30, "there is room for 512 at a time: {missed}");
}

/// Waits until all of these files are deleted.
async fn are_deleted(files: &[std::path::PathBuf], why: &str) {
    assert!(!files.is_empty(), "{why}");
    let mut checks = 0;
    while files.iter().any(|file| file.exists()) {
        checks += 1;
        assert!(checks < 200, "something keeps files of chunks that are no part of a table any more: {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_that_are_logged_keep_no_files() {
    let server = Server::with(|options| options.mining.mode = MiningMode::Advise);
    let rows = "SELECT value AS k, value % 7 AS v FROM generate_series(1, 1000)";
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 100) AS {rows}")).await.unwrap();
    server.run("OPTIMIZE TABLE t").await.unwrap();
    let files = || -> Vec<std::path::PathBuf> {
        let table = server.engine.store().table(&TableName::new("public", "t")).unwrap();
        table.version().chunks.iter().map(|entry| entry.chunk.path.clone()).collect()
    };
    assert!(files().iter().all(|file| file.exists()));
    let logged_scans = || server.engine.mining_counters().scans()[0].1;
    let alter = ["ALTER TABLE t SET (cluster_by = 'v')", "ALTER TABLE t ADD COLUMN w BIGINT"];
    for (digit, alter) in alter.into_iter().enumerate() {
        // OPTIMIZE rewrites the chunks with deleted rows.
        server.run(&format!("DELETE FROM t WHERE k % 10 = {digit}")).await.unwrap();
        let (mut replaced, logged) = (files(), logged_scans());
        server.rows("SELECT count(*) FROM t WHERE v = 3").await;
        assert!(logged_scans() > logged, "{alter}");
        server.run(alter).await.unwrap();
        server.run("OPTIMIZE TABLE t").await.unwrap();
        let kept = files();
        replaced.retain(|file| !kept.contains(file));
        are_deleted(&replaced, alter).await;
    }
    let (dropped, logged) = (files(), logged_scans());
    server.rows("SELECT count(*) FROM t WHERE v = 4").await;
    assert!(logged_scans() > logged, "DROP TABLE");
    server.run("DROP TABLE t").await.unwrap();
    are_deleted(&dropped, "DROP TABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_learned_when_nobody_wants_it() {
    let server = orders(|options| options.mining.mode = MiningMode::Off).await;
    server.epochs(4, &[OPEN]).await;
    assert!(server.rows(SHOWN).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_makes_views_and_drops_them_again() {
    let server = orders(|options| {
        options.mining.mode = MiningMode::Auto;
        options.hot_view_bytes_per_s = 1 << 50;
    })
    .await;
    server.run("CREATE HOT VIEW own AS SELECT * FROM orders WHERE customer = 999").await.unwrap();
    server.epochs(4, &[FEW, FEW]).await;
    assert_eq!(server.rows(SHOWN).await, ["auto_orders_1|created|customer IN (3, 157, 411, 665, 919)"]);
    server.published("auto_orders_1").await;
    let before = server.engine.view_tally().pruned_chunks();
    let answer = server.rows(FEW).await;
    assert!(server.engine.view_tally().pruned_chunks() >= before + 300, "400 chunks, 0.5 % of the rows");
    server.run("SET terrace.hot_views = false").await.unwrap();
    assert_eq!(server.rows(FEW).await, answer);
    server.run("RESET terrace.hot_views").await.unwrap();
    // The view stays while queries use it.
    server.epochs(12, &[FEW, FEW]).await;
    let views = "SELECT view_name FROM system.hot_views ORDER BY 1";
    assert_eq!(server.rows(views).await, ["auto_orders_1", "own"]);
    // Other queries begin: within the epochs that count, a view serves them and the old view is dropped.
    server.epochs(12, &[OPEN, "SELECT 1"]).await;
    assert_eq!(server.rows(views).await, ["auto_orders_2", "own"]);
    let states = server.rows("SELECT view_name, state FROM system.hot_view_proposals ORDER BY 1").await;
    assert_eq!(states, ["auto_orders_1|retired", "auto_orders_2|created"]);
    let why = server.rows("SELECT reason FROM system.hot_view_proposals WHERE state = 'retired'").await;
    assert!(why[0].contains("for 2 epochs it saved less than 10 %"), "{why:?}");
    // No chunk has the mark of the dropped view.
    server.published("auto_orders_2").await;
    let table = server.engine.store().table(&TableName::new("public", "orders")).unwrap();
    let marks = server.engine.hot_views.views.current().unwrap().iter().flat_map(|s| s.definition.marks()).count();
    assert!(table.version().chunks.iter().all(|entry| entry.chunk.segments.len() <= 4 + marks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_more_mined_views_than_may_be() {
    let server = orders(|options| {
        options.mining.mode = MiningMode::Auto;
        options.mining.most_views = 1;
    })
    .await;
    let one = "SELECT sum(amount) FROM orders WHERE customer = 77";
    server.epochs(5, &[OPEN, one, one]).await;
    assert_eq!(server.rows("SELECT predicate FROM system.hot_views").await, ["customer = 77"]);
    // A view that saves much more replaces it.
    server.epochs(8, &[[OPEN; 14].as_slice(), &[one, one]].concat()).await;
    assert_eq!(server.rows("SELECT predicate FROM system.hot_views").await, ["outcome = 'open'"]);
}
