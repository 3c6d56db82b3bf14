//! Placement rules in SQL, and their text as the catalog returns it.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_become_comparisons_and_read_as_they_were_meant() {
    let server = Server::new();
    server
        .run(
            "CREATE TABLE t (n INT, big BIGINT, d DECIMAL(15, 2), day DATE, at TIMESTAMP, s VARCHAR, f DOUBLE, yes BOOLEAN, \
             \"Odd one\" INT)",
        )
        .await
        .unwrap();
    for (condition, stored) in [
        ("n > 5", "n > 5"),
        ("5 > n", "n < 5"),
        ("n = 2 + 3", "n = 5"),
        ("n BETWEEN 1 AND 3", "n >= 1 AND n <= 3"),
        ("n NOT BETWEEN 1 AND 3", "n < 1 OR n > 3"),
        ("big <> -7", "big <> -7"),
        ("d >= 5", "d >= 5.00"),
        ("d < 5.25", "d < 5.25"),
        ("day >= '2026-01-01'", "day >= '2026-01-01'"),
        ("day < (DATE '2026-01-01' + INTERVAL '1' DAY)", "day < '2026-01-02'"),
        ("at >= TIMESTAMP '2026-01-01 10:00:00'", "at >= '2026-01-01T10:00:00'"),
        ("s = 'o''k'", "s = 'o''k'"),
        ("s IN ('a', 'b')", "s = 'a' OR s = 'b'"),
        ("s NOT IN ('a', 'b', 'c', 'd')", "s <> 'a' AND s <> 'b' AND s <> 'c' AND s <> 'd'"),
        ("f <= 0.5", "f <= 0.5"),
        ("yes", "yes = true"),
        ("NOT yes", "yes = false"),
        ("n IS NULL OR (s IS NOT NULL AND n < 3)", "n IS NULL OR (s IS NOT NULL AND n < 3)"),
        ("NOT (n < 3 OR s = 'x')", "n >= 3 AND s <> 'x'"),
        ("\"Odd one\" = 1", "\"Odd one\" = 1"),
    ] {
        server.run(&format!("ALTER TABLE t PIN COLUMNS (n) WHERE {condition} TO dram")).await.unwrap();
        let said = server.rows("SELECT definition FROM system.placement_rules").await;
        assert_eq!(said, [format!("PIN COLUMNS (n) WHERE {stored} TO dram")], "{condition}");
        // The text that is shown is a statement that makes the same rule.
        server.run(&format!("ALTER TABLE t {}", said[0])).await.unwrap();
        assert_eq!(server.rows("SELECT definition FROM system.placement_rules").await, said);
        server.run(&format!("ALTER TABLE t UNPIN COLUMNS (n) WHERE {stored}")).await.unwrap();
    }
    for (condition, words) in [
        ("n % 2 = 0", "joined by AND and OR; not"),
        ("n > big", "joined by AND and OR; not"),
        ("s LIKE '%x'", "joined by AND and OR; not"),
        ("random() < 0.5", "not the same"),
        ("1 = 1", "holds for every row"),
        ("1 = 2", "holds for no row"),
        ("nothing = 1", "nothing"),
    ] {
        let sql = format!("ALTER TABLE t PIN WHERE {condition} TO dram");
        let error = server.run(&sql).await.unwrap_err();
        assert!(error.message().contains(words), "{condition}: {error}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{condition}: {error}");
    }
    assert!(server.rows("SELECT rule FROM system.placement_rules").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_keep_to_the_ways_of_other_definitions() {
    let server = Server::new();
    server
        .run("CREATE TABLE t WITH (chunk_rows = 100) AS SELECT value AS a, value % 7 AS b FROM generate_series(1, 250)")
        .await
        .unwrap();
    server.run("CREATE VIEW v AS SELECT a FROM t").await.unwrap();
    server.run("ALTER TABLE t PIN CHUNKS 0 TO 1 TO dram").await.unwrap();
    server.run("ALTER TABLE t EXCLUDE COLUMNS (b) WHERE a > 200 FROM dram").await.unwrap();
    let invalid = ErrorKind::InvalidArgument;
    let missing = ErrorKind::NotFound;
    server.fails("ALTER TABLE v PIN TO dram", invalid, "placement rules are for tables").await;
    server.fails("ALTER TABLE system.tiers PIN TO dram", ErrorKind::PermissionDenied, "system").await;
    server.fails("ALTER TABLE t PIN CHUNKS 0 TO 1000000000000000000 TO tape", missing, "dram, ssd").await;
    server.fails("ALTER TABLE nowhere UNPIN", missing, "nowhere").await;
    assert_eq!(server.run("ALTER TABLE IF EXISTS nowhere UNPIN").await.unwrap(), 0);
    let created = server.rows("SHOW CREATE TABLE t").await.join("");
    assert!(created.contains(".t PIN CHUNKS 0 TO 1 TO dram;"), "{created}");
    server.run("ALTER TABLE t DROP COLUMN a CASCADE").await.unwrap();
    let left = server.rows("SELECT rule, definition, overruled_bytes FROM system.placement_rules").await;
    assert_eq!(left, ["1|PIN CHUNKS 0 TO 1 TO dram|0"]);
    let told = server.rows("SELECT DISTINCT placement_rule FROM system.segments WHERE chunk < 2").await;
    assert_eq!(told, ["rule 1: PIN CHUNKS 0 TO 1 TO dram"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_may_name_a_form() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT value AS a, value % 7 AS b FROM generate_series(1, 250)").await.unwrap();
    for definition in [
        "PIN TO dram FORM packed",
        "EXCLUDE COLUMNS (b) FROM dram FORM plain",
        "PREFER WHERE a > 5 ON dram FORM packed",
        "PREFER WHERE a > 5 ON dram",
    ] {
        server.run(&format!("ALTER TABLE t {definition}")).await.unwrap();
    }
    // The same rule in another form is another rule; the same again replaces the first.
    server.run("ALTER TABLE t PIN TO dram FORM plain").await.unwrap();
    server.run("ALTER TABLE t pin to dram form PACKED").await.unwrap();
    let said = server.rows("SELECT definition, form FROM system.placement_rules ORDER BY rule").await;
    let expected = [
        "EXCLUDE COLUMNS (b) FROM dram FORM plain|plain",
        "PREFER WHERE a > 5 ON dram FORM packed|packed",
        "PREFER WHERE a > 5 ON dram|",
        "PIN TO dram FORM plain|plain",
        "PIN TO dram FORM packed|packed",
    ];
    assert_eq!(said, expected);
    let created = server.rows("SHOW CREATE TABLE t").await.join("");
    assert!(created.contains(".t PIN TO dram FORM packed;"), "{created}");
    let invalid = ErrorKind::InvalidArgument;
    server.fails("ALTER TABLE t PIN TO dram FORM flat", invalid, "a form is plain or packed").await;
    server.fails("ALTER TABLE t PIN TO ssd FORM packed", invalid, "leave out FORM packed").await;
    server.run("ALTER TABLE t DROP PLACEMENT RULES").await.unwrap();
}
