//! Promises for scans that use views: the chunks that they skip, and how that is shown.

use super::*;

const ROWS: u64 = 10_000;

/// Customers and states anywhere in 100 chunks of 100 rows.
async fn orders() -> Server {
    let server = Server::new();
    server
        .run(&format!(
            "CREATE TABLE orders WITH (chunk_rows = 100) AS SELECT value AS id, value * 7919 % 1000 AS customer, \
             CASE WHEN value * 104729 % 50 = 7 THEN 'open' ELSE 'done' END AS status, value * 15485863 % 100 AS urgency, \
             'note ' || value AS note FROM generate_series(0, {})",
            ROWS - 1
        ))
        .await
        .unwrap();
    server
}

/// Twenty of the customers.
const FEW: &str =
    "customer IN (3, 57, 111, 165, 219, 273, 327, 381, 435, 489, 543, 597, 651, 705, 759, 813, 867, 921, 975, 999)";
const MATTERS: &str = "status = 'open' OR urgency = 99";

async fn with_views() -> Server {
    let server = orders().await;
    server.run(&format!("CREATE HOT VIEW few AS SELECT * FROM orders WHERE {FEW}")).await.unwrap();
    server
        .run(&format!("CREATE HOT VIEW matters AS SELECT id, status, urgency FROM orders WHERE {MATTERS}"))
        .await
        .unwrap();
    server
}

impl Server {
    /// Chunks that a scan skips by bounds, and further chunks that it skips by views, from EXPLAIN ANALYZE.
    async fn pruned(&self, query: &str) -> (u64, u64) {
        let told = self.explain(&format!("EXPLAIN ANALYZE {query}")).await;
        let metric = |name: &str| -> u64 {
            let found = told.split(&format!(" {name}=")).nth(1).unwrap_or_else(|| panic!("{name} in {told}"));
            found.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
        };
        let all = metric("chunks_pruned");
        let views = metric("chunks_pruned_views");
        (all - views, views)
    }

    async fn explain(&self, sql: &str) -> String {
        self.rows(sql).await.join("\n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scattered_rows_are_found_in_few_chunks() {
    for (view, query) in [
        ("few", "SELECT sum(id), count(*) FROM orders WHERE customer = 111"),
        ("few", "SELECT count(*) FROM orders WHERE customer IN (57, 999, 435) AND id > 20"),
        ("matters", "SELECT count(*), sum(id) FROM orders WHERE status = 'open' OR urgency = 99"),
        ("matters", "SELECT count(*) FROM orders WHERE urgency = 99 AND id > 100"),
        (
            "matters",
            "SELECT max(id) FROM orders WHERE (status = 'open' AND id % 2 = 1) OR (urgency = 99 AND id % 2 = 0)",
        ),
    ] {
        let server = with_views().await;
        server.run("SET terrace.hot_views = false").await.unwrap();
        let expected = server.rows(query).await;
        assert_ne!(expected[0].split('|').next().unwrap(), "0", "{query}");
        let chunks = server.table("orders").version().chunks.len() as u64;
        let (bounds, views) = server.pruned(query).await;
        assert!(bounds * 20 < chunks && views == 0, "{query}: bounds alone leave out {bounds} of {chunks}");
        server.run("RESET terrace.hot_views").await.unwrap();
        server.run(&format!("ALTER HOT VIEW {view} REFRESH")).await.unwrap();
        assert_eq!(server.rows(query).await, expected, "{query}");
        // By the view alone, and with the bounds of the rewritten chunks.
        let plan = server.explain(&format!("EXPLAIN {query}")).await;
        let told = plan.split(&format!("hot_views=[{view}: ")).nth(1).unwrap_or_else(|| panic!("{plan}"));
        let mut numbers = told.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let left = numbers.next().unwrap();
        let chunks = numbers.next().unwrap();
        assert!(left * 10 <= chunks * 2, "{query}: {left} of {chunks} chunks are left");
        let (bounds, views) = server.pruned(query).await;
        assert!((bounds + views) * 10 >= chunks * 8, "{query}: {bounds} and {views} of {chunks} chunks are left out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_of_all_kinds_are_served() {
    let server = with_views().await;
    server
        .run("CREATE TABLE customers AS SELECT value AS id, value % 3 AS kind FROM generate_series(0, 999)")
        .await
        .unwrap();
    ["few", "matters"].into_iter().for_each(|view| server.publish(view, Fault::None, 100, || Marking::Apart));
    for (query, views) in [
        ("SELECT count(*) FROM orders WHERE customer = 111", "few"),
        // A condition on one side of a join holds for the other side too.
        ("SELECT count(*) FROM orders o JOIN customers c ON o.customer = c.id WHERE c.id IN (3, 57)", "few"),
        ("SELECT count(*) FROM orders o, customers c WHERE o.customer = c.id AND c.id = 111 AND c.kind = 0", "few"),
        (
            "SELECT count(*) FROM customers c WHERE EXISTS (SELECT 1 FROM orders WHERE customer = c.id AND customer = 3)",
            "few",
        ),
        ("SELECT kind FROM customers WHERE id IN (SELECT customer FROM orders WHERE customer = 57)", "few"),
        ("WITH w AS (SELECT * FROM orders WHERE customer = 57) SELECT count(*) FROM w WHERE urgency > 3", "few"),
        ("DELETE FROM orders WHERE customer = 57 AND id < 0", "few"),
        ("UPDATE orders SET note = 'x' WHERE customer = 57", "few"),
        ("SELECT id FROM orders WHERE status = 'open' AND urgency = 99", "matters"),
        ("SELECT id FROM orders WHERE customer = 57 AND status = 'open' AND urgency = 99", "few"),
        // The query reads columns that the view lacks.
        ("SELECT note FROM orders WHERE status = 'open'", ""),
        ("UPDATE orders SET urgency = 0 WHERE status = 'open'", ""),
        ("SELECT count(*) FROM orders WHERE customer = 4", ""),
        ("SELECT count(*) FROM orders WHERE customer = 3 OR urgency = 5", ""),
        ("SELECT count(*) FROM orders", ""),
        ("SELECT count(*) FROM orders o LEFT JOIN customers c ON o.customer = c.id AND c.id = 3", ""),
        // Run-time filters come too late.
        (
            "SELECT count(*) FROM orders o JOIN (SELECT max(id) AS id FROM customers WHERE id < 4) c ON o.customer = c.id",
            "",
        ),
    ] {
        let plan = server.explain(&format!("EXPLAIN {query}")).await;
        let served = plan.split("hot_views=[").nth(1).map_or("", |rest| rest.split(':').next().unwrap());
        assert_eq!(served, views, "{query}\n{plan}");
        if query.starts_with("SELECT") || query.starts_with("WITH") {
            let found = server.rows(query).await;
            server.run("SET terrace.hot_views = false").await.unwrap();
            let mut expected = server.rows(query).await;
            let mut found = found;
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{query}");
            assert!(!server.explain(&format!("EXPLAIN {query}")).await.contains("hot_views"));
            server.run("RESET terrace.hot_views").await.unwrap();
        }
    }
    // Functions of another time zone may mean other rows.
    server.run("SET datafusion.execution.time_zone = '+05:00'").await.unwrap();
    assert!(!server.explain("EXPLAIN SELECT id FROM orders WHERE customer = 3").await.contains("hot_views"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_are_kept_follow_their_views() {
    let server = with_views().await;
    let ask = async |prepared: &Arc<Prepared>, customer: i64| {
        let parameter: ArrayRef = Arc::new(Int64Array::from(vec![customer]));
        let before = server.left_out();
        let misses = server.engine.view_tally().misses();
        let running = prepared.query(Some(batch(vec![("$1", parameter)]))).await.unwrap();
        let rows: Vec<_> = running.stream.try_collect().await.unwrap();
        let count = rows[0].column(0).as_primitive::<Int64Type>().value(0);
        (count, server.left_out() > before, server.engine.view_tally().misses() > misses)
    };
    let prepared = server.session.prepare("SELECT count(*) FROM orders WHERE customer = $1").await.unwrap();
    assert_eq!(ask(&prepared, 111).await, (10, false, false));
    server.publish("few", Fault::None, 100, || Marking::Apart);
    assert_eq!(ask(&prepared, 111).await, (10, true, false), "published since");
    assert_eq!(ask(&prepared, 112).await, (10, false, true), "another value is not implied");
    assert_eq!(ask(&prepared, 975).await, (10, true, false));
    // Rows that are inserted later are read, from the delta and from sealed chunks.
    server
        .run("INSERT INTO orders SELECT id + 10000, 111, status, urgency, note FROM orders WHERE id < 150")
        .await
        .unwrap();
    assert_eq!(ask(&prepared, 111).await, (160, true, false));
    server.engine.store().seal(&server.table("orders")).unwrap();
    assert_eq!(ask(&prepared, 111).await, (160, true, false));
    server.run("DELETE FROM orders WHERE customer = 111 AND id % 2 = 0").await.unwrap();
    let (left, served, _) = ask(&prepared, 111).await;
    assert!(left < 100 && served);
    // A snapshot uses the marks of its chunks, also when the view changes.
    server.run("BEGIN").await.unwrap();
    assert_eq!(ask(&prepared, 111).await, (left, true, false));
    let other = server.engine.open_session("other");
    let run = async |sql: &str| other.prepare(sql).await.unwrap().update(None).await.unwrap();
    run("INSERT INTO orders VALUES (-1, 111, 'open', 1, '')").await;
    server.publish("few", Fault::None, 100, || Marking::Apart);
    assert_eq!(ask(&prepared, 111).await.0, left, "rows as of the snapshot");
    server.run("COMMIT").await.unwrap();
    assert_eq!(ask(&prepared, 111).await, (left + 1, true, false));
    run("CREATE OR REPLACE HOT VIEW few AS SELECT * FROM orders WHERE customer = 111 AND urgency > 5").await;
    assert_eq!(ask(&prepared, 111).await, (left + 1, false, false), "not published again yet");
    run("DROP HOT VIEW few").await;
    assert_eq!(ask(&prepared, 111).await, (left + 1, false, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_views_save_is_shown() {
    let server = with_views().await;
    let shown = "SELECT view_name, published_version, chunks, hot_chunks, unknown_chunks, rows, hits, misses, pruned_chunks, \
                 bytes > 0, saved_bytes > 0 FROM system.hot_views ORDER BY view_name";
    assert_eq!(
        server.rows(shown).await,
        ["few||100|0|100|0|0|0|0|false|false", "matters||100|0|100|0|0|0|0|false|false"]
    );
    server.publish("few", Fault::None, 100, || Marking::Apart);
    let query = "SELECT count(*) FROM orders WHERE customer = 111";
    let plan = server.explain(&format!("EXPLAIN {query}")).await;
    assert!(plan.contains("hot_views=[few: 2 of 100 chunks left]") && plan.contains("chunks=2 of 100"), "{plan}");
    assert_eq!(server.left_out(), 0, "a plan saves nothing");
    let others =
        ["urgency = 99", "customer = 111 AND id < 0"].map(|c| format!("SELECT count(*) FROM orders WHERE {c}"));
    let mut runs = Vec::new();
    for sql in [query, &others[0], &others[1]] {
        server.rows(sql).await;
        // On a busy machine a point statement may compute for so long that it begins anew.
        runs.push(1 + server.engine.statements().into_iter().find(|record| record.sql == sql).unwrap().restarts);
    }
    // For the last query, bounds alone skip all chunks.
    let few = format!("few|1|100|2|0|200|{}|{}|{}|true|true", runs[0] + runs[2], runs[1], 98 * runs[0]);
    assert_eq!(server.rows(shown).await, [few.as_str(), "matters||100|0|100|0|0|0|0|false|false"]);
    let version = server.table("orders").version();
    let cold = version.chunks.iter().filter(|entry| entry.chunk.marks().any(|(_, marked)| marked == Marked::None));
    let saved: u64 = cold.map(|entry| entry.chunk.segments[1].home.len).sum();
    assert_eq!(server.engine.view_tally().saved_bytes(), saved * runs[0]);
    // Estimates include it.
    server.run("SET datafusion.explain.show_statistics = true").await.unwrap();
    let rows = async || {
        let plan = server.explain(&format!("EXPLAIN {query}")).await;
        let scan = plan.lines().find(|line| line.contains("TierScanExec")).unwrap().to_owned();
        let rows = scan.split("Rows=Inexact(").nth(1).unwrap_or_else(|| panic!("{plan}"));
        rows.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
    };
    let with = rows().await;
    server.run("SET terrace.hot_views = false").await.unwrap();
    assert!(with <= 200, "{with} rows of 200 in the chunks that are left; {} without views", rows().await);
    server.run("RESET terrace.hot_views").await.unwrap();
    // The reasons of a check, and its coverage.
    let told = server
        .rows("EXPLAIN HOT VIEWS SELECT id FROM orders WHERE customer = 111 AND status = 'open'")
        .await
        .iter()
        .map(|line| line.split('|').skip(2).collect::<Vec<_>>().join("|"))
        .collect::<Vec<_>>();
    assert_eq!(told, ["few|1|true|||true|2|100", "matters|1|true||customer|false||"]);
    let server = server.restart().await;
    let plan = server.explain(&format!("EXPLAIN {query}")).await;
    assert!(plan.contains("hot_views=[few: 2 of 100 chunks left]"), "{plan}");
}
