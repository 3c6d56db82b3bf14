//! Any bytes as SQL, and sentences of words that SQL has.

use terrace_test_support::fuzz;
use terrace_test_support::fuzz::{Inputs, sentence};

use crate::masking::masked;
use crate::parse;
use crate::secrets::without_secrets;

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

/// Statements of most kinds.
const EXAMPLES: &[&str] = &[
    "SELECT a, sum(b) OVER (PARTITION BY c ORDER BY d) FROM t JOIN s.u USING (a) WHERE b LIKE '%x' GROUP BY 1 LIMIT 3",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "INSERT INTO t (a, b) VALUES (1, 'x'), (?, NULL)",
    "UPDATE t SET a = a + 1, b = 'y' WHERE c IN (SELECT d FROM u)",
    "DELETE FROM t WHERE a BETWEEN 1 AND 2",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET b = u.b WHEN NOT MATCHED THEN INSERT VALUES (u.a, u.b)",
    "CREATE TABLE t (a BIGINT NOT NULL DEFAULT 7, b DECIMAL(10, 2), PRIMARY KEY (a)) WITH (cluster_by = 'b', chunk_rows = 100)",
    "ALTER TABLE t ADD COLUMN c VARCHAR DEFAULT 'x'",
    "CREATE VIEW v AS SELECT a + 1 AS next FROM t",
    "CREATE EXTERNAL TABLE e (a INT) STORED AS CSV LOCATION '/x.csv' OPTIONS ('format.has_header' 'true')",
    "COPY t FROM '/x.csv' (FORMAT csv, DELIMITER ';')",
    "PREPARE p AS SELECT $1 + 1",
    "SHOW CREATE TABLE t",
    "EXPLAIN ANALYZE SELECT 1",
    "BEGIN",
    "OPTIMIZE t",
];

/// Words that nest, chain and end statements.
const WORDS: &[&str] = &[
    "SELECT",
    "FROM",
    "WHERE",
    "(",
    "(",
    "(",
    ")",
    ")",
    ",",
    "a",
    "b",
    "t",
    "1",
    "-1",
    "1e308",
    "'x'",
    "\"q\"",
    "NULL",
    "+",
    "-",
    "||",
    "=",
    "NOT",
    "NOT",
    "AND",
    "OR",
    "IN",
    "CASE",
    "WHEN",
    "THEN",
    "END",
    "JOIN",
    "ON",
    "UNION ALL",
    "WITH",
    "AS",
    "VALUES",
    "INTERVAL",
    "CAST",
    "::",
    "BIGINT",
    "[",
    "]",
    "?",
    "CREATE USER u PASSWORD 'secret'",
    "EXCLUDE",
    "PIN",
    ";",
];

fn parses(text: &str) -> bool {
    let _ = without_secrets(text);
    let _ = masked(text);
    // What is known of a statement is computed, not only stored.
    parse(text).map(|command| (command.privilege(), command.objects().len())).is_ok()
}

#[test]
fn statements() {
    let examples = EXAMPLES.iter().map(|sql| sql.as_bytes().to_vec()).collect();
    fuzz!("SQL to commands", Inputs::stateless(2_000, 1_000_000), examples, |input: &[u8]| {
        let words = sentence(input, WORDS);
        assert!(!masked(&words).contains("secret"), "{words}");
        let _ = parses(&words);
        parses(&String::from_utf8_lossy(input))
    });
}
