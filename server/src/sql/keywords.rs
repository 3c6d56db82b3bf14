//! Words of SQL: those that the prompt colours, and those that it only completes.

/// Words that mean something wherever they stand; sorted.
#[rustfmt::skip]
pub const KEYWORDS: [&str; 134] = [
    "ALL", "ALTER", "ANALYZE", "AND", "ANY", "ARRAY", "AS", "ASC", "BEGIN", "BETWEEN", "BIGINT", "BOOLEAN", "BY",
    "BYTEA", "CASCADE", "CASE", "CAST", "CHECK", "COLUMN", "COLUMNS", "COMMENT", "COMMIT", "CONSTRAINT", "COPY",
    "CREATE", "CROSS", "CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_USER", "DECIMAL", "DEFAULT", "DELETE", "DESC",
    "DESCRIBE", "DISTINCT", "DOUBLE", "DROP", "ELSE", "END", "ESCAPE", "EXCEPT", "EXCLUDE", "EXISTS", "EXPLAIN",
    "EXTERNAL", "EXTRACT", "FALSE", "FILTER", "FIRST", "FOLLOWING", "FOR", "FROM", "FULL", "GRANT", "GROUP",
    "GROUPING", "HAVING", "IF", "ILIKE", "IN", "INNER", "INSERT", "INT", "INTEGER", "INTERSECT", "INTERVAL", "INTO",
    "IS", "JOIN", "KEY", "LAST", "LATERAL", "LEFT", "LIKE", "LIMIT", "MATCHED", "MERGE", "NATURAL", "NOT", "NULL",
    "NULLS", "OFFSET", "ON", "OPTIMIZE", "OR", "ORDER", "OUTER", "OVER", "PARTITION", "PRECEDING", "PRIMARY",
    "QUALIFY", "RANGE", "REAL", "RECURSIVE", "RELEASE", "RENAME", "REPLACE", "RESET", "RESTRICT", "REVOKE", "RIGHT",
    "ROLLBACK", "ROLLUP", "ROW", "ROWS", "SAVEPOINT", "SCHEMA", "SELECT", "SEMI", "SET", "SHOW", "SIMILAR",
    "SMALLINT", "TABLE", "TABLES", "THEN", "TINYINT", "TO", "TRUE", "TRUNCATE", "UNBOUNDED", "UNION", "UNIQUE",
    "UNSIGNED", "UPDATE", "USING", "VALUES", "VARCHAR", "VIEW", "WHEN", "WHERE", "WINDOW", "WITH",
];

/// Further words of statements, which are names of columns as well; sorted.
#[rustfmt::skip]
pub const WORDS: [&str; 95] = [
    "ACTION", "ADD", "BACK", "BRING", "CALIBRATE", "CANCEL", "CHUNKS", "CONCURRENTLY", "CSV", "CUBE", "DATABASE",
    "DATE", "DAY", "DELIMITER", "DISABLE", "DRAIN", "DRY", "ENABLE", "EPOCH", "FORM", "FORMAT", "FREEZE",
    "FUNCTION", "HEADER", "HOT", "HOUR", "ISOLATION", "JSON", "LEVEL", "LOCATION", "MATERIALIZED", "MINUTE",
    "MONTH", "NEXT", "NOSUPERUSER", "NOW", "ONLY", "OPTIONS", "OWNER", "PARQUET", "PASSWORD", "PIN", "PLACEMENT",
    "POLICY", "PREFER", "PRIVILEGES", "PROPOSAL", "PROPOSALS", "PUBLIC", "QUERY", "READ", "REFRESH", "REJECT",
    "RESUME", "ROLE", "ROLES", "ROLL", "RULE", "RULES", "RUN", "SCHEMAS", "SCOPE", "SECOND", "SECURITY", "SERVER",
    "SETS", "SOURCE", "START", "STORED", "SUPERUSER", "SYSTEM", "TARGET", "TIER", "TIERS", "TIME", "TIMESTAMP",
    "TOKEN", "TRANSACTION", "TREE", "TRIM", "TYPE", "UNFREEZE", "UNNEST", "UNPIN", "UP", "USER", "VALID", "VERBOSE",
    "VIEWS", "WARM", "WORK", "WORKLOAD", "WRITE", "YEAR", "ZONE",
];

/// Whether a word is among [`KEYWORDS`], in upper or lower case.
pub fn is_keyword(word: &str) -> bool {
    word.is_ascii() && KEYWORDS.binary_search(&word.to_ascii_uppercase().as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sorted_and_listed_once() {
        assert!(KEYWORDS.is_sorted_by(|a, b| a < b) && WORDS.is_sorted_by(|a, b| a < b));
        assert!(WORDS.iter().all(|word| !is_keyword(word)));
        assert!(is_keyword("select") && is_keyword("Select") && !is_keyword("selects") && !is_keyword("ünion"));
    }
}
