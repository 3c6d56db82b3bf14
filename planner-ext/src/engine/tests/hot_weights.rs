//! Hot views and placement: expected reads of their scans, and the effect of their budgets on DRAM.

use terrace_tier_store::placement::{EpochRequest, Scope};
use terrace_tier_store::table::{ChunkEntry, Table};

use super::*;

const VIEW_QUERY: &str = "SELECT count(*), sum(id) FROM orders WHERE customer = 111";

impl Server {
    fn table_of_orders(&self) -> Arc<Table> {
        self.engine.store().table(&TableName::new("public", "orders")).unwrap()
    }

    fn last_chunk(&self) -> ChunkEntry {
        self.table_of_orders().version().chunks.last().unwrap().clone()
    }

    fn epoch(&self) {
        self.engine.store().tiering().run_epoch(EpochRequest::now("test")).unwrap();
    }

    async fn dram_bytes(&self) -> u64 {
        self.rows("SELECT dram_bytes FROM system.hot_views").await[0].parse().unwrap()
    }

    /// Where each segment lies, and why.
    fn why(&self) -> Vec<String> {
        let explained = self.engine.store().tiering().explain("public.orders", &Scope::all()).unwrap();
        explained.into_iter().map(|found| format!("{} {}: {}", found.chunk, found.column, found.why)).collect()
    }

    /// Columns of a chunk that are in memory.
    fn in_memory(&self, entry: &ChunkEntry) -> Vec<usize> {
        let columns = entry.chunk.columns().iter().enumerate();
        columns.filter(|(_, segment)| segment.resident.load().is_some()).map(|(at, _)| at).collect()
    }
}

/// Customers anywhere in 30 chunks that start at home, and a view of few of them, which has all columns but one.
async fn orders() -> Server {
    let server = Server::new();
    server
        .run(
            "CREATE TABLE orders WITH (chunk_rows = 1000, admission = 'ssd') AS SELECT value AS id, \
             value * 7919 % 1000 AS customer, value % 7 AS state, value % 11 AS other FROM generate_series(0, 29999)",
        )
        .await
        .unwrap();
    server
        .run("CREATE HOT VIEW few AS SELECT id, customer, state FROM orders WHERE customer IN (3, 111, 435)")
        .await
        .unwrap();
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    server
}

/// A new chunk of the view that was never read, after so many scans of the view.
async fn with_new_chunk(scans: usize) -> Server {
    let server = orders().await;
    for _ in 0..scans {
        server.rows(VIEW_QUERY).await;
    }
    server
        .run("INSERT INTO orders SELECT value, 111, value % 7, value % 11 FROM generate_series(30000, 30999)")
        .await
        .unwrap();
    server.engine.store().seal(&server.table_of_orders()).unwrap();
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    let new = server.last_chunk();
    assert!(new.live_rows() == 1_000 && server.in_memory(&new).is_empty());
    assert!(new.chunk.columns().iter().all(|segment| segment.counters.snapshot().accesses == [0; 4]));
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_chunk_of_a_view_comes_into_memory_before_anybody_read_it() {
    let server = with_new_chunk(10).await;
    // Others are read too, and there is no room for all of them.
    for _ in 0..2 {
        server.rows("SELECT sum(id), sum(customer) FROM orders WHERE id < 30000").await;
    }
    server.run("ALTER SYSTEM ALTER TIER dram SET (budget = '96KiB')").await.unwrap();
    server.epoch();
    // Columns that scans of the view read, and no others of the view.
    let new = server.last_chunk();
    let moved = server.in_memory(&new);
    assert_eq!(moved, [0, 1]);
    let by_view =
        "SELECT count(*) > 0 FROM system.moves WHERE reason LIKE '%scans of hot view public.few are expected%'";
    assert_eq!(server.rows(by_view).await, ["true"]);
    assert!(server.dram_bytes().await > 0);
    // Expected reads are not counted accesses, which the advisor and the records use.
    let store = server.engine.store();
    let explained = store.tiering().explain("public.orders", &Scope::all()).unwrap();
    let found = explained.iter().find(|found| found.chunk == new.chunk.id.0 && found.column == "id").unwrap();
    assert!(found.reads == 0.0 && found.why.contains("scans of hot view public.few"), "{}: {}", found.reads, found.why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_nobody_asks_for_weighs_nothing() {
    let server = with_new_chunk(0).await;
    server.epoch();
    assert_eq!((server.in_memory(&server.last_chunk()), server.dram_bytes().await), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_bounds_what_a_view_takes_of_dram() {
    let server = with_new_chunk(10).await;
    server.epoch();
    let all = server.dram_bytes().await;
    assert!(all > 0);
    for budget in [all / 2, 0] {
        server.run(&format!("ALTER HOT VIEW few SET (budget = '{budget}')")).await.unwrap();
        server.rows(VIEW_QUERY).await;
        server.epoch();
        let taken = server.dram_bytes().await;
        assert!(taken <= budget && (taken > 0) == (budget > 0), "{taken} of {budget}");
        assert_eq!(server.rows("SELECT budget_bytes FROM system.hot_views").await, [budget.to_string()]);
    }
    let by_budget =
        "SELECT count(*) > 0 FROM system.moves WHERE reason LIKE 'leaves DRAM; %the budget of hot view public.few%'";
    assert_eq!(server.rows(by_budget).await, ["true"]);
    server.run("ALTER HOT VIEW few SET (refresh = '2 hours')").await.unwrap();
    let shown = server.definition("orders").await;
    assert!(shown.contains("WITH (budget = '0', refresh = "), "{shown}");
    server.run("ALTER HOT VIEW few SET (budget = 'none')").await.unwrap();
    // Heat is the mean of the epochs, and the last two had one query each: what was just worth its place with ten in its
    // first epoch needs more than ten now.
    for _ in 0..50 {
        server.rows(VIEW_QUERY).await;
    }
    server.epoch();
    // At least, as a column that was not worth its place at first may be by now.
    let taken = server.dram_bytes().await;
    assert!(taken >= all, "{taken} of {all}: {:#?}", server.why());
    assert_eq!(server.rows("SELECT budget_bytes FROM system.hot_views").await.concat(), "");
    // A budget above the size of DRAM limits nothing.
    server.run("ALTER HOT VIEW few SET (budget = '100 TB')").await.unwrap();
    server.epoch();
    assert!(server.dram_bytes().await >= all);
    let missing = server.run("ALTER HOT VIEW nothing SET (budget = '1GiB')").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    server.run("ALTER HOT VIEW IF EXISTS nothing SET (budget = '1GiB')").await.unwrap();
}
