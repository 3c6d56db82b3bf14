//! Aggregates that a device computes: answers do not depend on it, whatever lies there and whatever fails.

use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};
use terrace_tier_store::migrate::{ImageChange, change_image};
use terrace_tier_store::placement::EpochRequest;
use terrace_tier_store::store::HbmOptions;
use terrace_tier_store::tier::hbm::{DeviceFaults, FaultRates, HbmBacking};

use super::*;

const ROWS: &str = "SELECT value AS k, CAST(value % 50 AS DECIMAL(15, 2)) AS quantity, \
    CAST(value % 11 AS DECIMAL(15, 2)) AS discount, \
    CASE WHEN value % 7 = 0 THEN NULL ELSE CAST(value * 7 - 90000 AS INT) END AS n, \
    CAST('1992-01-01' AS DATE) + CAST(value % 2500 AS INT) AS day, value / 9 AS run, \
    CASE value % 3 WHEN 0 THEN 'MAIL' WHEN 1 THEN 'SHIP' END AS mode, CASE WHEN value % 5 < 2 THEN 'R' ELSE 'N' END AS flag, \
    'text ' || value AS comment, CAST(value AS DOUBLE) / 3 AS real FROM generate_series(1, 20000)";

/// Those that kernels compute, but for the last ones.
const QUERIES: [&str; 16] = [
    "SELECT count(*), sum(k), sum(quantity), sum(n), avg(quantity), count(n), count(mode) FROM t",
    "SELECT flag, mode, count(*), sum(quantity), sum(quantity * (1 - quantity)), avg(discount), min(n), max(n), count(n) \
     FROM t GROUP BY flag, mode ORDER BY flag, mode",
    "SELECT sum(quantity * discount) FROM t WHERE day >= DATE '1994-01-01' AND day < DATE '1995-01-01' \
     AND discount BETWEEN 5 AND 7 AND quantity < 24",
    "SELECT sum(quantity * (1 - quantity) * (1 + quantity)) FROM t WHERE NOT (quantity <> 7 AND n > 0)",
    "SELECT mode, sum(n) FROM t WHERE mode LIKE 'S%' OR n IS NULL GROUP BY mode ORDER BY mode",
    "SELECT count(*), sum(run) FROM t WHERE NOT (mode = 'MAIL') AND run IN (3, 5, 1700, 2000)",
    "SELECT count(*) FROM t WHERE mode IN ('MAIL', 'TRUCK') AND flag <> 'R' AND n NOT IN (1, 2, 3)",
    "SELECT count(*) FROM t WHERE (mode IS NULL OR flag = 'R') AND k <= 15000 AND k > 5000",
    "SELECT day, count(*), sum(k) FROM t WHERE flag = 'R' GROUP BY day ORDER BY day",
    "SELECT n % 2, sum(k) FROM t GROUP BY 1 ORDER BY 1",
    "SELECT min(day), max(day), min(k) FROM t WHERE quantity > 3",
    "SELECT sum(quantity) FROM t WHERE k < 0",
    "SELECT flag, count(*) FILTER (WHERE mode = 'SHIP'), sum(quantity) FILTER (WHERE n > 0), min(n) FILTER (WHERE mode IS NULL), \
     avg(discount) FILTER (WHERE flag = 'R') FROM t GROUP BY flag ORDER BY flag",
    "SELECT sum(CASE WHEN mode = 'MAIL' THEN quantity * discount ELSE 0 END), sum(CASE WHEN flag = 'R' THEN 1 ELSE 0 END), \
     sum(CASE WHEN mode LIKE 'S%' OR mode IS NULL THEN n END), count(CASE WHEN n > 5 THEN k END), \
     avg(CASE WHEN n < 0 THEN discount ELSE 0 END), sum(CASE WHEN k < 0 THEN n ELSE 0 END), \
     sum(CASE WHEN n > 0 THEN n ELSE 0 END) FILTER (WHERE k < 0) FROM t",
    "SELECT flag, sum(real) > 0, count(DISTINCT run) FROM t GROUP BY flag ORDER BY flag",
    "SELECT count(*), sum(real) FILTER (WHERE flag = 'R') > 0 FROM t WHERE length(comment) > 9",
];

fn server(faults: Option<DeviceFaults>) -> Server {
    server_with(faults, 2)
}

fn server_with(faults: Option<DeviceFaults>, partitions: usize) -> Server {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let backing = HbmBacking::Emulated { capacity_bytes: 64 << 20, faults };
    let hbm = Some(HbmOptions { backing, budget_bytes: None });
    let options = StoreOptions { hbm, ..StoreOptions::new(dir.path().join("data")) };
    Server::over(Store::open(options).unwrap(), dir, |options| options.target_partitions = partitions)
}

/// A table of eight chunks, in one of which rows were deleted, and of rows that are not sealed.
async fn fill(server: &Server) {
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 2500) AS {ROWS}")).await.unwrap();
    server.run("DELETE FROM t WHERE k BETWEEN 100 AND 110").await.unwrap();
    server.run("INSERT INTO t SELECT * FROM t WHERE k IN (5, 2600, 19999)").await.unwrap();
}

async fn answers(server: &Server, gpu: &str) -> Vec<Vec<String>> {
    server.run(&format!("SET terrace.gpu = {gpu}")).await.unwrap();
    let mut answers = Vec::new();
    for query in QUERIES {
        answers.push(server.rows(query).await);
    }
    answers
}

async fn explained(server: &Server, query: &str) -> String {
    server.rows(query).await.join("\n")
}

/// Gives each column of each chunk an image, or takes it away, as `wanted` says; those that have none are left out.
fn place(server: &Server, mut wanted: impl FnMut() -> bool) -> usize {
    let store = server.engine.store();
    let Some(tier) = store.device_tier() else { return 0 };
    let mut images = 0;
    for entry in store.table(&TableName::new("public", "t")).unwrap().version().chunks.iter() {
        for column in 0..entry.chunk.segments.len() {
            let change = ImageChange { chunk: Arc::clone(&entry.chunk), column, is_wanted: wanted() };
            let _ = change_image(tier, store.home().as_ref(), &change);
            images += usize::from(entry.chunk.segments[column].image.load().is_some());
        }
    }
    images
}

/// Draws numbers from a seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |limit| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_what_lies_on_the_device() {
    let server = server(None);
    fill(&server).await;
    let expected = answers(&server, "off").await;
    let mut draw = numbers(1);
    for share in [0, 10, 5, 9, 1, 7] {
        let images = place(&server, || draw(10) < share);
        assert_eq!(images > 0, share > 0);
        for gpu in ["force", "auto", "off"] {
            assert_eq!(answers(&server, gpu).await, expected, "{gpu} with {images} images");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_on_the_device_go_there_and_the_plan_says_so() {
    let server = server(None);
    fill(&server).await;
    place(&server, || true);
    server.run("SET terrace.gpu = force").await.unwrap();
    // The first chunk has deleted rows.
    for query in [0, 1, 4, 5, 7, 8, 12, 13].map(|number: usize| QUERIES[number]) {
        let plan = explained(&server, &format!("EXPLAIN {query}")).await;
        assert!(plan.contains("KernelExec: device=hbm (emulated), gpu=force, columns=["), "{query}: {plan}");
        assert!(!plan.contains("chunks=0 of ") && plan.contains("chosen: device"), "{plan}");
        let ran = explained(&server, &format!("EXPLAIN ANALYZE {query}")).await;
        assert!(ran.contains("chunks_on_device=") && !ran.contains("chunks_on_device=0"), "{query}: {ran}");
        assert!(ran.contains("device_failures=0"), "{query}: {ran}");
        // What processors read beside the device is shown, too.
        assert!(ran.contains("chunks_total=") && !ran.contains("chunks_total=0"), "{query}: {ran}");
    }
    for query in &QUERIES[14..] {
        let plan = explained(&server, &format!("EXPLAIN {query}")).await;
        assert!(!plan.contains("KernelExec"), "{query}: {plan}");
    }
    server.run("SET terrace.gpu = off").await.unwrap();
    let plan = explained(&server, &format!("EXPLAIN {}", QUERIES[0])).await;
    assert!(!plan.contains("KernelExec"), "{plan}");
    assert!(server.run("SET terrace.gpu = perhaps").await.unwrap_err().to_string().contains("off, auto or force"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregates_over_one_partition_go_there_too() {
    let server = server_with(None, 1);
    fill(&server).await;
    let expected = answers(&server, "off").await;
    place(&server, || true);
    assert_eq!(answers(&server, "force").await, expected);
    for query in &QUERIES[..2] {
        let plan = explained(&server, &format!("EXPLAIN {query}")).await;
        let lines = ["mode=Final", "CoalescePartitionsExec", "KernelExec", "mode=Partial", "TierScanExec"];
        let found: Vec<Option<usize>> = lines.iter().map(|line| plan.find(line)).collect();
        assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_kernels_could_make_are_counted_whoever_makes_them() {
    let server = server(None);
    fill(&server).await;
    let counts = "SELECT max(kernel) FILTER (WHERE column_name = 'quantity'), max(kernel) FILTER (WHERE column_name = 'real'), \
                  count(hbm_bytes) > 0 FROM system.segments WHERE table_name = 't'";
    let before = server.rows(counts).await;
    assert_eq!(before, ["0|0|false"]);
    for (number, gpu) in ["off", "auto", "force"].into_iter().enumerate() {
        if gpu == "force" {
            place(&server, || true);
        }
        server.run(&format!("SET terrace.gpu = {gpu}")).await.unwrap();
        server.rows("SELECT sum(quantity) FROM t").await;
        server.rows("SELECT sum(real) FROM t").await;
        assert_eq!(server.rows(counts).await, [format!("{}|0|{}", number + 1, gpu == "force")], "{gpu}");
    }
    let tiers = server.rows("SELECT tier, kind, emulated, segments > 0, stored_bytes > 0 FROM system.tiers").await;
    assert_eq!(tiers[0], "hbm|hbm|true|true|true");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_device_nothing_is_counted_and_nothing_planned() {
    let server = Server::new();
    fill(&server).await;
    server.run("SET terrace.gpu = force").await.unwrap();
    let plan = explained(&server, &format!("EXPLAIN {}", QUERIES[0])).await;
    assert!(!plan.contains("KernelExec"), "{plan}");
    server.rows(QUERIES[0]).await;
    assert_eq!(server.rows("SELECT sum(kernel), count(hbm_bytes) FROM system.segments").await, ["0|0"]);
    assert!(server.rows("SELECT tier FROM system.tiers").await.iter().all(|tier| tier != "hbm"));
    let error = server.run("ALTER TABLE t PIN TO hbm").await.unwrap_err().to_string();
    assert!(error.contains("tier 'hbm' does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_bring_columns_to_the_device_and_keep_them_off() {
    let server = server(None);
    fill(&server).await;
    let epoch = async || {
        let store = Arc::clone(server.engine.store());
        tokio::task::spawn_blocking(move || store.tiering().run_epoch(EpochRequest::now("test")).unwrap())
            .await
            .unwrap()
    };
    server.run("ALTER TABLE t PIN COLUMNS (quantity, flag) TO hbm").await.unwrap();
    let report = epoch().await;
    assert!(
        report.moves.iter().any(|moved| moved.to == "hbm" && moved.reason.starts_with("pinned: rule 1")),
        "{report:?}"
    );
    let there = "SELECT column_name FROM system.segments WHERE hbm_bytes IS NOT NULL GROUP BY 1 ORDER BY 1";
    assert_eq!(server.rows(there).await, ["flag", "quantity"]);
    let rules = "SELECT tier, met FROM system.placement_rules";
    assert_eq!(server.rows(rules).await, ["hbm|true"]);
    server.run("ALTER TABLE t EXCLUDE COLUMNS (flag) FROM hbm").await.unwrap();
    epoch().await;
    assert_eq!(server.rows(there).await, ["quantity"]);
    let error = server.run("ALTER TABLE t PIN TO hbm FORM packed").await.unwrap_err().to_string();
    assert!(error.contains("names no form"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_what_fails_on_the_device() {
    let mut failed = 0;
    for seed in seeds(0..by_depth(4, 40)) {
        let _report = SeedReport(seed);
        let rates = FaultRates { out_of_memory: 0.05, launch: 0.2, lost: 0.003 };
        let server = server(Some(DeviceFaults { seed, rates }));
        fill(&server).await;
        let expected = answers(&server, "off").await;
        let mut draw = numbers(seed);
        for _ in 0..3 {
            place(&server, || draw(10) < 8);
            assert_eq!(answers(&server, "force").await, expected);
        }
        let Some(tier) = server.engine.store().device_tier() else { continue };
        failed += usize::from(tier.lost().is_some());
        if tier.lost().is_some() {
            let store = Arc::clone(server.engine.store());
            let epoch = move || store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
            tokio::task::spawn_blocking(epoch).await.unwrap();
            assert_eq!(server.rows("SELECT count(hbm_bytes) FROM system.segments").await, ["0"]);
            assert_eq!(answers(&server, "force").await, expected);
        }
    }
    assert!(failed > 0 || std::env::var_os("TERRACE_SEED").is_some(), "no device was lost");
}
