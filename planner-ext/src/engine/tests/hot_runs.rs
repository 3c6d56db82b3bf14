//! Runs of hot views: the marks of chunks after a run, when runs happen, and the chunks that they do not change.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;

use terrace_test_support::depth::by_depth;
use terrace_tier_store::clock::ManualClock;
use terrace_tier_store::table::{ChunkEntry, Marked, Table};
use terrace_views::Definition;

use super::*;
use crate::engine::tests::generator::Rng;

const FEW: &str = "customer IN (3, 57, 111, 165, 219, 273, 327, 381, 435, 489)";
const MATTERS: &str = "status = 'open' OR urgency = 99";
/// No limit of the byte rate.
const UNLIMITED: u64 = 1 << 50;
const DAY_US: i64 = 86_400_000_000;

/// Customers and states anywhere in `chunks` chunks of 100 rows.
async fn orders(server: &Server, chunks: u64) {
    server
        .run(&format!(
            "CREATE TABLE orders WITH (chunk_rows = 100) AS SELECT value AS id, value * 7919 % 1000 AS customer, \
             CASE WHEN value * 104729 % 50 = 7 THEN 'open' ELSE 'done' END AS status, value * 15485863 % 100 AS urgency \
             FROM generate_series(0, {})",
            chunks * 100 - 1
        ))
        .await
        .unwrap();
}

impl Server {
    fn view(&self, name: &str) -> Arc<Definition> {
        let views = self.engine.hot_views.views.current().unwrap();
        Arc::clone(&views.get(&TableName::new("public", name)).unwrap().definition)
    }

    fn chunks(&self) -> Vec<ChunkEntry> {
        self.orders().version().chunks.to_vec()
    }

    fn orders(&self) -> Arc<Table> {
        self.engine.store().table(&TableName::new("public", "orders")).unwrap()
    }

    /// Number of chunks whose mark of the newest version of a view has this state.
    fn chunks_marked(&self, view: &str, as_what: Marked) -> usize {
        let mark = self.view(view).mark;
        let is_so = |entry: &&ChunkEntry| mark.map_or(Marked::Unknown, |mark| entry.chunk.marked(mark)) == as_what;
        self.chunks().iter().filter(is_so).count()
    }

    /// Numbers that EXPLAIN ALTER HOT VIEW gives in these columns.
    async fn forecast(&self, view: &str, columns: &[&str]) -> Vec<u64> {
        let rows = self.batches(&format!("EXPLAIN ALTER HOT VIEW {view} REFRESH")).await.unwrap();
        let column = |name: &&str| {
            let column = rows[0].column_by_name(name).unwrap_or_else(|| panic!("{name}"));
            column.as_primitive::<arrow::datatypes::UInt64Type>().value(0)
        };
        columns.iter().map(column).collect()
    }

    /// Checks that queries give the same rows with views and without.
    async fn same_answers(&self, queries: &[&str]) {
        for query in queries {
            let with = self.rows(query).await;
            self.run("SET terrace.hot_views = false").await.unwrap();
            let without = self.rows(query).await;
            self.run("RESET terrace.hot_views").await.unwrap();
            assert_eq!(with, without, "{query}");
        }
    }

    async fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..600 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what}: {:?}", self.rows("SELECT view_name, state, last_error FROM system.hot_views").await);
    }

    /// Stores the definition of a view with a new mark, which no chunk has.
    fn store_new_mark(&self, view: &str) -> Arc<Definition> {
        self.engine.hot_views.views.put(&Definition { mark: None, ..self.view(view).as_ref().clone() }).unwrap();
        self.view(view)
    }
}

const QUERIES: [&str; 5] = [
    "SELECT count(*), sum(id) FROM orders WHERE customer = 111",
    "SELECT count(*), sum(id) FROM orders WHERE customer IN (3, 489) AND urgency < 50",
    "SELECT count(*), sum(id) FROM orders WHERE status = 'open'",
    "SELECT count(*), sum(id) FROM orders WHERE status = 'open' AND customer = 57 OR urgency = 99",
    "SELECT count(*), sum(id) FROM orders",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_does_what_it_said_and_then_has_nothing_to_do() {
    let server = Server::new();
    orders(&server, 60).await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    let state = "SELECT state, published_version FROM system.hot_views";
    assert_eq!(server.rows(state).await, ["pending|"]);
    let columns = [
        "chunks",
        "chunks_none",
        "chunks_some",
        "chunks_to_rewrite",
        "chunks_to_write",
        "rows_read_now",
        "rows_read_then",
        "chunks_to_read",
    ];
    let told = server.forecast("few", &columns).await;
    let [chunks, _, some, rewritten, written, now, then, read] = told[..] else { panic!() };
    assert_eq!(
        (chunks, now, server.chunks_marked("few", Marked::Unknown)),
        (60, 6000, 60),
        "a forecast changes nothing"
    );
    assert!(some > 10 && rewritten == some && then < 100, "{told:?}");

    let expected = server.rows(QUERIES[0]).await;
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    assert_eq!(server.rows(state).await, ["published|2"]);
    let runs = server.engine.view_runs();
    assert_eq!((runs.chunks_in(), runs.chunks_out(), runs.chunks_read()), (rewritten, written, read));
    assert_eq!((runs.runs(), runs.failed(), runs.chunks_left()), (1, 0, 0));
    assert_eq!(server.chunks().len() as u64, 60 - rewritten + written);
    let hot = server.chunks_marked("few", Marked::All);
    assert_eq!((hot, server.chunks_marked("few", Marked::None)), (1, server.chunks().len() - 1));
    assert_eq!(server.rows("SELECT rows, unknown_chunks FROM system.hot_views").await, [format!("{then}|0")]);
    assert_eq!(server.rows(QUERIES[0]).await, expected);
    assert!(server.engine.view_tally().pruned_chunks() >= 50);
    server.same_answers(&QUERIES).await;

    // Chunks without rows of the older version have none of the newer one: only the rest is read, and nothing written.
    let told = server.forecast("few", &columns).await;
    assert_eq!(told[1..], [server.chunks().len() as u64 - 1, 0, 0, 0, then, then, 1]);
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    assert_eq!((runs.chunks_read(), runs.chunks_in()), (read + 1, rewritten));
    let of_chunks =
        server.chunks().iter().flat_map(|entry| entry.chunk.marks()).map(|(mark, _)| mark).collect::<Vec<_>>();
    assert!(of_chunks.iter().all(|mark| Some(*mark) == server.view("few").mark), "the older mark is forgotten");

    // Marks stay in use as long as the condition is the same.
    server
        .run(&format!("CREATE OR REPLACE HOT VIEW few AS SELECT id, customer FROM orders WHERE {FEW}"))
        .await
        .unwrap();
    assert_eq!(server.rows(state).await, ["pending|3"]);
    server.run("CREATE OR REPLACE HOT VIEW few AS SELECT * FROM orders WHERE customer = 3").await.unwrap();
    assert_eq!(server.rows(state).await, ["pending|"]);
    let asked = "EXPLAIN CREATE HOT VIEW other AS SELECT * FROM orders WHERE customer = 3";
    assert_eq!(server.batches(asked).await.unwrap()[0].num_rows(), 1);
    server.run("DROP HOT VIEW few").await.unwrap();
    assert!(server.chunks().iter().all(|entry| entry.chunk.marks().next().is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_move_and_new_chunks_are_looked_at_in_the_background() {
    let clock = Arc::new(ManualClock::default());
    clock.jump(100 * DAY_US);
    let server = Server::with(|options| {
        options.clock = clock.clone();
        options.hot_view_bytes_per_s = UNLIMITED;
    });
    // A chunk a day, 100 days.
    server
        .run(
            "CREATE TABLE orders WITH (chunk_rows = 100) AS SELECT value AS id, \
             arrow_cast(arrow_cast(value / 100, 'Int32'), 'Date32') AS placed FROM generate_series(0, 9999) \
             ORDER BY id",
        )
        .await
        .unwrap();
    server
        .run(
            "CREATE HOT VIEW fresh AS SELECT * FROM orders WHERE placed >= current_date - INTERVAL '10 days' \
             WITH (refresh = '2 hours')",
        )
        .await
        .unwrap();
    let published = |server: &Server| server.view("fresh").published.as_ref().map(|published| published.version);
    server.eventually("the first run", |server| published(server) == Some(1)).await;
    // A window over rows in its order is decided by bounds.
    assert_eq!((server.chunks_marked("fresh", Marked::None), server.chunks_marked("fresh", Marked::Unknown)), (90, 0));
    let runs = server.engine.view_runs();
    assert_eq!((runs.chunks_in(), runs.chunks_read() <= 1), (0, true));
    assert_eq!(server.rows("SELECT refresh FROM system.hot_views").await, ["2h"]);

    let insert = "INSERT INTO orders SELECT value, DATE '1970-04-11' FROM generate_series(10000, 10299)";
    server.run(insert).await.unwrap();
    server.engine.store().seal(&server.orders()).unwrap();
    assert_eq!(server.chunks_marked("fresh", Marked::Unknown), 3);
    let hours = |hours: i64| clock.jump(100 * DAY_US + hours * DAY_US / 24);
    hours(3);
    server.engine.hot_views.runner.wake();
    server.eventually("the window moves", |server| published(server) == Some(2)).await;
    assert_eq!((server.chunks_marked("fresh", Marked::None), server.chunks_marked("fresh", Marked::Unknown)), (90, 0));
    hours(5 * 24);
    server.engine.hot_views.runner.wake();
    server.eventually("it moves again", |server| published(server) == Some(3)).await;
    assert_eq!((server.chunks_marked("fresh", Marked::None), runs.chunks_in()), (95, 0));
    server.same_answers(&["SELECT count(*) FROM orders WHERE placed >= DATE '1970-04-07'"]).await;

    // A view whose window does not move is checked as well, and keeps its version.
    server.run("CREATE HOT VIEW late AS SELECT * FROM orders WHERE id % 1000 >= 900").await.unwrap();
    let late = |server: &Server| server.view("late").published.as_ref().map(|published| published.version);
    server.eventually("the run of another view", |server| late(server) == Some(1)).await;
    server.run(&insert.replace("10000, 10299", "10300, 10499")).await.unwrap();
    server.engine.store().seal(&server.orders()).unwrap();
    assert_eq!(server.chunks_marked("late", Marked::Unknown), 2);
    hours(7 * 24);
    server.engine.hot_views.runner.wake();
    server.eventually("new chunks are known", |server| server.chunks_marked("late", Marked::Unknown) == 0).await;
    assert_eq!(late(&server), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_of_one_table_keep_their_rows_apart() {
    let server = Server::new();
    orders(&server, 100).await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    server.run(&format!("CREATE HOT VIEW matters AS SELECT * FROM orders WHERE {MATTERS}")).await.unwrap();
    // The first run puts rows of both together, the second one has little left to write.
    let table_rows = server.chunks().iter().map(|entry| entry.live_rows()).sum::<u64>();
    let mut written_rows = Vec::new();
    for view in ["matters", "few"] {
        let before: HashSet<_> = server.chunks().iter().map(|entry| entry.chunk.id).collect();
        server.run(&format!("ALTER HOT VIEW {view} REFRESH")).await.unwrap();
        server.same_answers(&QUERIES).await;
        let chunks = server.chunks();
        let new = chunks.iter().filter(|entry| !before.contains(&entry.chunk.id));
        written_rows.push(new.map(|entry| entry.live_rows()).sum::<u64>());
    }
    assert!(written_rows[0] * 2 > table_rows && written_rows[1] * 10 < table_rows, "{written_rows:?} of {table_rows}");
    let chunks = server.chunks().len();
    for view in ["few", "matters"] {
        let none = server.chunks_marked(view, Marked::None);
        assert_eq!(server.chunks_marked(view, Marked::Unknown), 0, "{view}");
        assert!(none * 10 >= chunks * 9, "{view}: {none} of {chunks} chunks have no row of it");
    }
    // Compactions keep the marks of chunks.
    server.run("DELETE FROM orders WHERE id % 3 = 0").await.unwrap();
    server.run("OPTIMIZE orders").await.unwrap();
    for view in ["few", "matters"] {
        assert_eq!(server.chunks_marked(view, Marked::Unknown), 0, "{view}");
    }
    server.same_answers(&QUERIES).await;
    server.run("DROP HOT VIEW few").await.unwrap();
    let own = server.view("matters").mark;
    assert!(server.chunks().iter().flat_map(|entry| entry.chunk.marks()).all(|(mark, _)| Some(mark) == own));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_beside_writers_change_no_answer() {
    let seed = std::env::var("TERRACE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(52);
    println!("seed {seed}");
    let server = Server::new();
    orders(&server, 40).await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    server.run(&format!("CREATE HOT VIEW matters AS SELECT * FROM orders WHERE {MATTERS}")).await.unwrap();
    let rows = AtomicUsize::new(4000);
    let writes = async {
        let mut rng = Rng(seed);
        let mut next = 4000;
        for _ in 0..by_depth(15, 30) {
            let from = rng.below(next);
            let many = rng.below(300) + 1;
            let sql = match rng.below(3) {
                0 => format!("DELETE FROM orders WHERE id BETWEEN {from} AND {}", from + many / 4),
                1 => {
                    format!("UPDATE orders SET customer = customer + 1 WHERE id BETWEEN {from} AND {}", from + many / 4)
                }
                _ => {
                    next += many;
                    format!(
                        "INSERT INTO orders SELECT value, value * 7919 % 1000, CASE WHEN value % 50 = 7 THEN 'open' \
                         ELSE 'done' END, value % 100 FROM generate_series({}, {})",
                        next - many,
                        next - 1
                    )
                }
            };
            let changed = server.run(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")) as usize;
            match &sql[..6] {
                "DELETE" => _ = rows.fetch_sub(changed, Ordering::Relaxed),
                "INSERT" => _ = rows.fetch_add(changed, Ordering::Relaxed),
                _ => {}
            }
            if rng.below(4) == 0 {
                server.engine.store().seal(&server.orders()).unwrap();
            }
        }
    };
    let refreshes = async {
        let session = server.engine.open_session("other");
        for round in 0..by_depth(6, 12) {
            let view = ["few", "matters"][round % 2];
            let statement = session.prepare(&format!("ALTER HOT VIEW {view} REFRESH")).await.unwrap();
            statement.update(None).await.unwrap();
        }
    };
    tokio::join!(writes, refreshes);
    server.same_answers(&QUERIES).await;
    assert_eq!(server.rows("SELECT count(*) FROM orders").await, [rows.into_inner().to_string()]);
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    assert_eq!(server.chunks_marked("few", Marked::Unknown), 0);
    assert!(server.chunks_marked("few", Marked::None) > 20, "seed {seed}");
    server.same_answers(&QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_where_it_was_ended() {
    let server = Server::new();
    orders(&server, 60).await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    let definition = server.store_new_mark("few");
    let engine = Arc::clone(&server.engine);
    let left = AtomicUsize::new(40);
    // The run calls `pace` once for each chunk that it reads, and for each group that it writes.
    let stops = move |_| left.fetch_sub(1, Ordering::Relaxed) > 1;
    let ended =
        tokio::task::block_in_place(|| engine.hot_views.views.job(&definition)?.run(engine.view_runs(), &stops));
    drop(engine);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    let none = server.chunks_marked("few", Marked::None);
    assert!(none > 0 && server.chunks_marked("few", Marked::Unknown) > 20, "{none}");
    assert_eq!(server.rows("SELECT state FROM system.hot_views").await, ["pending"]);
    server.same_answers(&QUERIES).await;

    let server = server.restart_with(|options| options.hot_view_bytes_per_s = UNLIMITED).await;
    server.eventually("the run goes on", |server| !server.view("few").is_pending()).await;
    assert_eq!((server.view("few").mark, server.view("few").version), (definition.mark, 1));
    let read = server.engine.view_runs().chunks_read() as usize;
    assert!(read <= 60 - none, "{read} chunks are read after {none} of 60 were known");
    assert_eq!(server.chunks_marked("few", Marked::Unknown), 0);
    server.same_answers(&QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_run_is_about_may_go_meanwhile() {
    let server = Server::new();
    orders(&server, 20).await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    let run = |definition: &Arc<Definition>, at_first: &dyn Fn()| {
        let engine = &server.engine;
        let asked = AtomicUsize::new(0);
        let pace = |_| {
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                at_first();
            }
            true
        };
        tokio::task::block_in_place(|| {
            let job = engine.hot_views.views.job(definition).unwrap();
            (job.run(engine.view_runs(), &pace), job.is_there())
        })
    };
    // A chunk is replaced while the run reads the others.
    let definition = server.store_new_mark("few");
    let store = server.engine.store();
    let compact = || {
        let table = server.orders();
        let arrange =
            |rows: &RecordBatch| Ok(terrace_tier_store::table::Arrangement::in_current_order(rows.num_rows(), 100));
        store.rearrange(&table, &table.version().chunks[..4], &arrange).unwrap();
    };
    let (ran, is_there) = run(&definition, &compact);
    ran.unwrap();
    assert!(is_there);
    assert_eq!(server.chunks_marked("few", Marked::Unknown), 0);
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    // The table is altered: this job ends, and another one finds the same chunks.
    let definition = server.store_new_mark("few");
    let more = || {
        let field = Field::new("more", DataType::Int64, true);
        let change = terrace_tier_store::table::Alteration::AddColumn { field, default: None, value: None };
        store.alter_table(&TableName::new("public", "orders"), &[change]).unwrap();
    };
    let (ran, is_there) = run(&definition, &more);
    assert!(ran.is_err_and(|error| error.kind() == ErrorKind::Aborted) && is_there);
    server.run("ALTER HOT VIEW few REFRESH").await.unwrap();
    assert_eq!(server.chunks_marked("few", Marked::Unknown), 0);
    server.same_answers(&QUERIES).await;
    // The table is dropped.
    let definition = server.store_new_mark("few");
    let (ran, is_there) = run(&definition, &|| store.drop_table(&TableName::new("public", "orders")).unwrap());
    assert!(ran.is_err() && !is_there);
    server.fails("ALTER HOT VIEW few REFRESH", ErrorKind::NotFound, "orders").await;
    server.fails("EXPLAIN ALTER HOT VIEW nothing REFRESH", ErrorKind::NotFound, "nothing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_that_fail_on_a_row_leave_its_chunk_to_be_read() {
    let server = Server::new();
    orders(&server, 20).await;
    server.run("CREATE HOT VIEW shares AS SELECT * FROM orders WHERE 6000 / id > 5").await.unwrap();
    server.run("ALTER HOT VIEW shares REFRESH").await.unwrap();
    // Row 0 is in the first of 20 chunks, whose other rows and some of the next nine fulfil it.
    assert_eq!(server.chunks_marked("shares", Marked::Unknown), 0);
    assert!(server.chunks_marked("shares", Marked::None) >= 9);
    server.same_answers(&["SELECT count(*), sum(id) FROM orders WHERE id > 0 AND 6000 / id > 5"]).await;
}
