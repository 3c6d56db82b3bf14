//! Columns in the forms that images in memory have, and files of both formats.

use terrace_tier_store::migrate::{Outcome, Relocation, try_move};
use terrace_tier_store::placement::EpochRequest;
use terrace_tier_store::table::FileFormat;
use terrace_tier_store::tier::TierId;
use terrace_tier_store::tier::codec::{Form, FormChoice};

use super::*;

const ROWS: &str = "SELECT value AS k, CAST(value % 50 AS DECIMAL(15, 2)) * 1.00 AS quantity, \
    CASE WHEN value % 11 = 0 THEN NULL ELSE CAST(value * 7 - 90000 AS INT) END AS n, \
    CAST('1992-01-01' AS DATE) + CAST(value % 2500 AS INT) AS day, value / 9 AS run, \
    CASE value % 3 WHEN 0 THEN 'MAIL' WHEN 1 THEN 'SHIP' END AS mode, 'text ' || value AS comment, CAST(value AS DOUBLE) / 3 AS real, \
    CAST('12345678901234567890123456' AS DECIMAL(38, 2)) + value AS wide, to_timestamp_micros(value * 1000003) AS at \
    FROM generate_series(1, 70000)";

const QUERIES: [&str; 13] = [
    "SELECT count(*), sum(k), sum(quantity), sum(n), min(day), max(day), sum(run), count(mode), min(wide), max(at) FROM t",
    "SELECT mode, count(*), sum(quantity), min(n), max(n) FROM t GROUP BY mode ORDER BY mode",
    "SELECT count(*), sum(k) FROM t WHERE day BETWEEN '1994-01-01' AND '1994-06-30' AND quantity < 24",
    "SELECT * FROM t WHERE k IN (1, 8192, 8193, 65536, 70000) ORDER BY k",
    "SELECT * FROM t WHERE n IS NULL AND mode = 'MAIL' ORDER BY k DESC LIMIT 7",
    "SELECT count(*) FROM t WHERE n = -89993 OR n > 399000 OR n IS NULL",
    "SELECT a.k, b.k FROM t a JOIN t b ON a.k = b.run WHERE a.n < -89900 ORDER BY 1, 2",
    "SELECT * FROM t ORDER BY n % 997, k LIMIT 5",
    "SELECT count(*), sum(k) FROM t WHERE n IN (-89993, -89986, 5, 399000, NULL) OR comment IN ('text 7', 'text 70000', 'text', '')",
    "SELECT count(*), min(k) FROM t WHERE n NOT IN (-89993, -89986, 5, 12) AND mode IN ('MAIL', 'RAIL') AND day <> '1992-01-05'",
    "SELECT k, comment FROM t WHERE comment = 'text 4711' OR (n IS NULL AND k < 40) ORDER BY k",
    "SELECT k, n, comment FROM t WHERE n IS NOT NULL ORDER BY run DESC, k LIMIT 4",
    "SELECT count(DISTINCT run), count(DISTINCT mode), sum(wide), avg(real) FROM t WHERE at < '1970-01-01 12:00:00'",
];

/// A server whose copies in memory have these forms.
fn server(form: FormChoice) -> Server {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let options = StoreOptions { form, ..StoreOptions::new(dir.path().join("data")) };
    Server::over(Store::open(options).unwrap(), dir, in_one_order)
}

/// A scan of an order of its own would add floats in another order.
fn in_one_order(options: &mut EngineOptions) {
    options.target_partitions = 1;
}

async fn answers(server: &Server) -> Vec<Vec<String>> {
    answers_to(server, &QUERIES).await
}

async fn answers_to(server: &Server, queries: &[&str]) -> Vec<Vec<String>> {
    let mut answers = Vec::new();
    for query in queries {
        answers.push(server.rows(query).await);
    }
    answers
}

/// A server without room in memory, whose new tables have files of a format.
fn cold_server(file_format: FileFormat) -> Server {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let data_dir = dir.path().join("data");
    let options = StoreOptions { file_format, dram_budget_bytes: 0, ..StoreOptions::new(data_dir) };
    Server::over(Store::open(options).unwrap(), dir, |options| options.target_partitions = 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_the_format_of_files() {
    // Chunks that are read from disk arrive in any order, in which floats have another sum.
    let queries = &QUERIES[..12];
    let create = format!("CREATE TABLE t WITH (chunk_rows = 30000) AS {ROWS}");
    let arrow = cold_server(FileFormat::Arrow);
    arrow.run(&create).await.unwrap();
    let expected = answers_to(&arrow, queries).await;
    let packed = cold_server(FileFormat::Packed);
    packed.run(&create).await.unwrap();
    assert_eq!(answers_to(&packed, queries).await, expected);

    let stored = "SELECT column_name, bool_and(encoding LIKE '%, packed' AND stored_bytes = packed_bytes) FROM system.segments \
                  GROUP BY column_name, position ORDER BY position";
    for row in packed.rows(stored).await {
        let (column, is_packed) = row.split_once('|').unwrap();
        assert_eq!(is_packed == "true", column != "real", "{row}");
    }
    let bytes = "SELECT sum(stored_bytes) FROM system.segments WHERE column_name <> 'real'";
    let [few, many] = [packed.rows(bytes).await, arrow.rows(bytes).await].map(|rows| rows[0].parse::<u64>().unwrap());
    assert!(few * 2 < many, "{few} of {many} bytes");

    // Rows that are few, deleted, changed; then the files get the other format.
    for server in [&arrow, &packed] {
        server.run("DELETE FROM t WHERE k % 5 = 0").await.unwrap();
        server.run("UPDATE t SET n = NULL WHERE k % 7 = 0").await.unwrap();
        server.run("INSERT INTO t SELECT * FROM t WHERE k < 50").await.unwrap();
    }
    let expected = answers_to(&arrow, queries).await;
    assert_eq!(answers_to(&packed, queries).await, expected);
    let packed_segments = "SELECT count(*) > 0 FROM system.segments WHERE encoding LIKE '%packed'";
    for (server, format, is_packed) in [(&arrow, "packed", "true"), (&packed, "arrow", "false")] {
        server.run(&format!("ALTER TABLE t SET (format = '{format}')")).await.unwrap();
        assert_eq!(server.rows("SELECT format FROM system.tables").await, [format]);
        assert!(server.definition("t").await.contains(&format!("format = '{format}'")));
        server.run("OPTIMIZE TABLE t").await.unwrap();
        assert_eq!(server.rows(packed_segments).await, [is_packed]);
        assert_eq!(answers_to(server, queries).await, expected);
    }
    arrow
        .fails("CREATE TABLE x (a INT) WITH (format = 'zip')", ErrorKind::InvalidArgument, "'arrow' or 'packed'")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_the_form() {
    let create = format!("CREATE TABLE t WITH (chunk_rows = 30000) AS {ROWS}");
    let plain = server(FormChoice::Plain);
    plain.run(&create).await.unwrap();
    let expected = answers(&plain).await;
    let packed = server(FormChoice::Packed);
    packed.run(&create).await.unwrap();
    assert_eq!(answers(&packed).await, expected);

    // The bytes of packed texts are an estimate.
    let forms = "SELECT column_name, string_agg(DISTINCT tier || ' ' || form, ','), \
                 abs(1.0 * sum(bytes) / sum(packed_bytes) - 1) <= CASE column_name WHEN 'comment' THEN 0.1 ELSE 0 END \
                 FROM system.segments GROUP BY column_name, position ORDER BY position";
    let packed_columns = ["k", "quantity", "n", "day", "run", "mode", "comment", "wide", "at"];
    for row in packed.rows(forms).await {
        let (column, rest) = row.split_once('|').unwrap();
        let expected = if packed_columns.contains(&column) { "dram packed|true" } else { "dram plain|" };
        assert_eq!(rest, expected, "{column}");
    }
    let bytes = "SELECT sum(bytes) FROM system.segments WHERE column_name <> 'real'";
    let [few, many] = [packed.rows(bytes).await, plain.rows(bytes).await].map(|rows| rows[0].parse::<u64>().unwrap());
    assert!(few * 2 < many, "{few} of {many} bytes");
    // What the segments take is what the tier is charged.
    let used = "SELECT used_bytes >= (SELECT sum(bytes) FROM system.segments) AND \
                used_bytes < (SELECT sum(bytes) FROM system.segments) * 1.1 + 200000 FROM system.tiers WHERE tier = 'dram'";
    assert_eq!(packed.rows(used).await, ["true"]);

    // Changes, and chunks that are written anew from packed copies.
    for server in [&plain, &packed] {
        server.run("DELETE FROM t WHERE k % 5 = 0").await.unwrap();
        server.run("UPDATE t SET n = NULL WHERE k % 7 = 0").await.unwrap();
        server.run("OPTIMIZE TABLE t").await.unwrap();
    }
    assert_eq!(answers(&packed).await, answers(&plain).await);
}

/// Every segment is moved between home and memory and from form to form, many times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_random_moves_between_forms() {
    let server = server(FormChoice::Plain);
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 30000) AS {ROWS}")).await.unwrap();
    let expected = answers(&server).await;
    let mut rng = 0x5eed_u64;
    let mut below = |limit: u64| {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (rng >> 33) % limit
    };
    let mut repacked = 0;
    for round in 0..12 {
        let store = server.engine.store();
        let tiers = store.memory_tiers();
        for entry in store.table(&TableName::new("public", "t")).unwrap().version().chunks.iter() {
            for (column, segment) in entry.chunk.segments.iter().enumerate() {
                let copy = segment.resident.load_full();
                let from = copy.as_ref().map_or(TierId(tiers.len() as u8), |copy| copy.tier.id());
                let to = TierId(below(tiers.len() as u64 + 1) as u8);
                let form = [Form::Plain, Form::Packed][below(2) as usize];
                let relocation = Relocation { chunk: Arc::clone(&entry.chunk), column, from, to, form };
                let moved = try_move(&tiers, store.home().as_ref(), &relocation).unwrap();
                assert_eq!(moved, Outcome::Moved);
                let after = segment.resident.load_full();
                assert_eq!(after.as_ref().map_or(TierId(tiers.len() as u8), |copy| copy.tier.id()), to);
                if let Some(after) = after {
                    assert_eq!(after.column.form(), segment.form(form));
                    repacked += usize::from(copy.is_some_and(|copy| copy.column.form() != after.column.form()));
                }
            }
        }
        assert_eq!(answers(&server).await, expected, "round {round}");
    }
    assert!(repacked > 20, "{repacked}");
}

/// Runs an epoch while statements read, and checks their answers.
async fn epoch_beside_statements(server: &Server, expected: &[Vec<String>]) {
    let store = Arc::clone(server.engine.store());
    let epoch = move || store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
    let epoch = tokio::task::spawn_blocking(epoch);
    assert_eq!(answers(server).await, expected);
    epoch.await.unwrap();
}

/// The loop chooses tiers and forms at budgets that rise and fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_budgets_hold_while_the_loop_chooses_forms() {
    answers_and_budgets_hold(FileFormat::Arrow).await;
}

/// From packed files a packed copy is made by copying, and a plain one by unpacking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_and_budgets_hold_while_the_loop_chooses_forms_over_packed_files() {
    answers_and_budgets_hold(FileFormat::Packed).await;
}

async fn answers_and_budgets_hold(file_format: FileFormat) {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let options = StoreOptions::new(dir.path().join("data"));
    let options = StoreOptions { form: FormChoice::Auto, file_format, dram_budget_bytes: 0, ..options };
    let server = Server::over(Store::open(options).unwrap(), dir, in_one_order);
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 30000) AS {ROWS}")).await.unwrap();
    let expected = answers(&server).await;
    let store = Arc::clone(server.engine.store());
    let chunks = store.table(&TableName::new("public", "t")).unwrap().version().chunks.to_vec();
    let all_bytes: u64 = chunks.iter().flat_map(|entry| entry.chunk.segments.iter()).map(|s| s.bytes()).sum();
    let account = Arc::clone(store.memory_tiers()[0].account());
    let budget = |percent: u64| all_bytes * percent / 100 + 1;
    // While the budget rises, the peak shows every moment at which a copy has two images.
    for percent in [5, 20, 40, 70, 110] {
        store.tiering().set_budget("dram", budget(percent)).unwrap();
        for _ in 0..2 {
            epoch_beside_statements(&server, &expected).await;
        }
        assert!(account.peak_bytes() <= budget(percent), "{percent} %: {}", account.peak_bytes());
    }
    for percent in [60, 30, 80, 10] {
        store.tiering().set_budget("dram", budget(percent)).unwrap();
        epoch_beside_statements(&server, &expected).await;
        // No reader keeps a copy now.
        store.tiering().run_epoch(EpochRequest::now("test")).unwrap();
        assert!(account.used_bytes() <= budget(percent), "{percent} %: {}", account.used_bytes());
    }
    assert!(account.peak_bytes() <= budget(110), "{}", account.peak_bytes());
}

/// A rule that names a form decides it, whatever costs and the setting say; a copy changes its form where it lies, and has it
/// again after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_changes_the_form_of_a_copy_where_it_lies() {
    let server = server(FormChoice::Plain);
    server.run(&format!("CREATE TABLE t WITH (chunk_rows = 30000) AS {ROWS}")).await.unwrap();
    let expected = answers(&server).await;
    let places = |column: &str| {
        format!(
            "SELECT DISTINCT tier, form, substr(placement_rule, 1, 7) FROM system.segments WHERE column_name = '{column}'"
        )
    };
    for (number, form) in [(1, "packed"), (2, "plain"), (3, "packed")] {
        server.run(&format!("ALTER TABLE t PIN COLUMNS (k) TO dram FORM {form}")).await.unwrap();
        epoch_beside_statements(&server, &expected).await;
        assert_eq!(server.rows(&places("k")).await, [format!("dram|{form}|rule {number}:")]);
        let met = "SELECT form, met FROM system.placement_rules ORDER BY rule DESC LIMIT 1";
        assert_eq!(server.rows(met).await, [format!("{form}|true")]);
    }
    // The three chunks of the column, once for each rule.
    let moves = "SELECT from_tier, to_tier, from_form, to_form, count(*) FROM system.moves WHERE status = 'done' \
                 GROUP BY 1, 2, 3, 4 ORDER BY from_form";
    assert_eq!(server.rows(moves).await, ["dram|dram|packed|plain|3", "dram|dram|plain|packed|6"]);
    let why = server.rows("EXPLAIN PLACEMENT t COLUMNS (k)").await.join("\n");
    assert!(why.contains("PIN COLUMNS (k) TO dram FORM packed") && why.contains("; packed: "), "{why}");
    // A column of floats has no packed form: its plain copy meets the rule.
    server.run("ALTER TABLE t PIN COLUMNS (real) TO dram FORM packed").await.unwrap();
    epoch_beside_statements(&server, &expected).await;
    assert_eq!(server.rows(&places("real")).await, ["dram|plain|rule 4:"]);
    let server = server.restart_with(in_one_order).await;
    epoch_beside_statements(&server, &expected).await;
    assert_eq!(server.rows(&places("k")).await, ["dram|packed|rule 3:"]);
    assert_eq!(
        server.rows("SELECT form, met FROM system.placement_rules ORDER BY rule DESC LIMIT 1").await,
        ["packed|true"]
    );
}
