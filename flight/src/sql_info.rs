//! The server's capabilities, the answer to `CommandGetSqlInfo`.
//!
//! JDBC reads a missing entry as null and fails on it, so every code that its `DatabaseMetaData` asks for is here. A
//! limit of zero means "none known". What the engine alone knows it says itself ([`Engine`]), and some depend on the options of the service;
//! `tests/python/test_sql_info.py` holds the others against a server.

use std::{collections::BTreeMap, time::Duration};

use arrow::{error::ArrowError, record_batch::RecordBatch};
use arrow_flight::sql::{
    SqlInfo, SqlNullOrdering as NullOrdering, SqlOuterJoinsSupportLevel as OuterJoins, SqlSupportedCaseSensitivity,
    SqlSupportedTransaction, metadata::SqlInfoDataBuilder,
};

use crate::{
    engine::{Engine, Timeouts},
    options::FlightOptions,
};

/// The rows for the `wanted` codes; all rows when it is empty.
pub(crate) fn sql_info(
    engine: &dyn Engine,
    options: &FlightOptions,
    wanted: &[u32],
) -> Result<RecordBatch, ArrowError> {
    let mut builder = SqlInfoDataBuilder::new();
    let (name, version) = engine.product();
    let Timeouts { statement, transaction } = engine.timeouts();
    builder.append(SqlInfo::FlightSqlServerName, name.as_str());
    builder.append(SqlInfo::FlightSqlServerVersion, version.as_str());
    builder.append(SqlInfo::FlightSqlServerStatementTimeout, milliseconds(statement));
    builder.append(SqlInfo::FlightSqlServerTransactionTimeout, milliseconds(transaction));
    for (code, value) in server().into_iter().chain(grammar()) {
        match value {
            Value::Text(text) => builder.append(code, text),
            Value::Flag(flag) => builder.append(code, flag),
            Value::Number(number) => builder.append(code, number),
        }
    }
    for (code, values) in lists() {
        builder.append(code, values);
    }
    // Lists show a table to whoever has any right on its rows.
    let is_open = options.users.as_ref().is_none_or(|users| users.is_open());
    builder.append(SqlInfo::SqlAllTablesAreSelectable, is_open);
    let most_statements = i64::try_from(options.max_prepared_per_session).unwrap_or(i64::MAX);
    builder.append(SqlInfo::SqlMaxStatements, most_statements);
    for code in UNLIMITED {
        builder.append(*code, 0_i64);
    }
    // The protocol calls this an ordinal of 32 bits; the JDBC driver casts it to a long. Three is "repeatable read".
    builder.append(SqlInfo::SqlDefaultTransactionIsolation, 3_i64);
    builder.append(SqlInfo::SqlSupportsConvert, BTreeMap::<i32, Vec<i32>>::new());
    let data = builder.build().map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
    data.record_batch(wanted.iter().copied()).map_err(|e| ArrowError::ExternalError(Box::new(e)))
}

/// A value of one entry; numbers are ordinals or bit sets.
enum Value {
    Text(&'static str),
    Flag(bool),
    Number(i32),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// A limit of time in the protocol's milliseconds; zero: none.
fn milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(0, |timeout| i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX))
}

fn server() -> Vec<(SqlInfo, Value)> {
    use SqlInfo::*;
    vec![
        (FlightSqlServerArrowVersion, arrow::ARROW_VERSION.into()),
        (FlightSqlServerReadOnly, false.into()),
        (FlightSqlServerSql, true.into()),
        (FlightSqlServerSubstrait, false.into()),
        (FlightSqlServerTransaction, (SqlSupportedTransaction::Savepoint as i32).into()),
        (FlightSqlServerCancel, true.into()),
        (FlightSqlServerBulkIngestion, true.into()),
        (FlightSqlServerIngestTransactionsSupported, true.into()),
        (SqlDdlCatalog, false.into()),
        (SqlDdlSchema, true.into()),
        (SqlDdlTable, true.into()),
        (SqlTransactionsSupported, true.into()),
        // Bit n stands for ordinal n: a snapshot is repeatable read and more, but not serializable.
        (SqlSupportedTransactionsIsolationLevels, 0b1000_i32.into()),
        (SqlDataDefinitionCausesTransactionCommit, true.into()),
        (SqlDataDefinitionsInTransactionsIgnored, false.into()),
        // Bit n stands for ordinal n: forward only; read only.
        (SqlSupportedResultSetTypes, 0b10_i32.into()),
        (SqlSupportedConcurrenciesForResultSetUnspecified, 0_i32.into()),
        (SqlSupportedConcurrenciesForResultSetForwardOnly, 0b10_i32.into()),
        (SqlSupportedConcurrenciesForResultSetScrollSensitive, 0_i32.into()),
        (SqlSupportedConcurrenciesForResultSetScrollInsensitive, 0_i32.into()),
        (SqlBatchUpdatesSupported, true.into()),
        (SqlSavepointsSupported, true.into()),
        (SqlNamedParametersSupported, false.into()),
        (SqlLocatorsUpdateCopy, false.into()),
        (SqlStoredFunctionsUsingCallSyntaxSupported, false.into()),
    ]
}

fn grammar() -> Vec<(SqlInfo, Value)> {
    use SqlInfo::*;
    let lower = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    let exact = SqlSupportedCaseSensitivity::SqlCaseSensitivityUnknown as i32;
    vec![
        (SqlIdentifierCase, lower.into()),
        (SqlIdentifierQuoteChar, "\"".into()),
        (SqlQuotedIdentifierCase, exact.into()),
        (SqlNullOrdering, (NullOrdering::SqlNullsSortedHigh as i32).into()),
        (SqlSearchStringEscape, "\\".into()),
        (SqlExtraNameCharacters, "$".into()),
        (SqlSupportsColumnAliasing, true.into()),
        (SqlNullPlusNullIsNull, true.into()),
        (SqlSupportsTableCorrelationNames, true.into()),
        (SqlSupportsDifferentTableCorrelationNames, false.into()),
        (SqlSupportsExpressionsInOrderBy, true.into()),
        (SqlSupportsOrderByUnrelated, true.into()),
        (SqlSupportedGroupBy, 0b11_i32.into()),
        (SqlSupportsLikeEscapeClause, false.into()),
        (SqlSupportsNonNullableColumns, true.into()),
        (SqlSupportedGrammar, 0b11_i32.into()),
        (SqlAnsi92SupportedLevel, 0b1_i32.into()),
        (SqlSupportsIntegrityEnhancementFacility, false.into()),
        (SqlOuterJoinsSupportLevel, (OuterJoins::SqlFullOuterJoins as i32).into()),
        (SqlSchemaTerm, "schema".into()),
        (SqlProcedureTerm, "procedure".into()),
        (SqlCatalogTerm, "catalog".into()),
        (SqlCatalogAtStart, true.into()),
        // Bit n stands for ordinal n: GRANT and REVOKE name schemas.
        (SqlSchemasSupportedActions, 0b100_i32.into()),
        (SqlCatalogsSupportedActions, 0_i32.into()),
        (SqlSupportedPositionedCommands, 0_i32.into()),
        (SqlSelectForUpdateSupported, false.into()),
        (SqlStoredProceduresSupported, false.into()),
        // Bit n stands for ordinal n: in comparisons, EXISTS, IN, and ANY or ALL.
        (SqlSupportedSubqueries, 0b1111_i32.into()),
        (SqlCorrelatedSubqueriesSupported, true.into()),
        (SqlSupportedUnions, 0b11_i32.into()),
        (SqlMaxRowSizeIncludesBlobs, true.into()),
    ]
}

fn lists() -> Vec<(SqlInfo, &'static [&'static str])> {
    use SqlInfo::*;
    vec![
        (
            SqlKeywords,
            &[
                "CANCEL", "COMMENT", "COPY", "DESCRIBE", "EXCLUDE", "EXPLAIN", "EXTERNAL", "ILIKE", "LIMIT",
                "OPTIMIZE", "QUALIFY", "RESET", "SHOW", "TRUNCATE",
            ],
        ),
        (
            SqlNumericFunctions,
            &[
                "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cot", "degrees", "exp", "floor", "gcd", "ln",
                "log", "log10", "log2", "pi", "power", "radians", "random", "round", "signum", "sin", "sqrt", "tan",
                "trunc",
            ],
        ),
        (
            SqlStringFunctions,
            &[
                "ascii",
                "btrim",
                "chr",
                "concat",
                "left",
                "length",
                "lower",
                "lpad",
                "ltrim",
                "repeat",
                "replace",
                "reverse",
                "right",
                "rpad",
                "rtrim",
                "split_part",
                "strpos",
                "substr",
                "translate",
                "trim",
                "upper",
            ],
        ),
        (SqlSystemFunctions, &["coalesce", "nullif", "version"]),
        (
            SqlDatetimeFunctions,
            &[
                "current_date",
                "current_time",
                "date_bin",
                "date_part",
                "date_trunc",
                "now",
                "to_char",
                "to_date",
                "to_timestamp",
            ],
        ),
    ]
}

const UNLIMITED: &[SqlInfo] = &[
    SqlInfo::SqlMaxBinaryLiteralLength,
    SqlInfo::SqlMaxCharLiteralLength,
    SqlInfo::SqlMaxColumnNameLength,
    SqlInfo::SqlMaxColumnsInGroupBy,
    SqlInfo::SqlMaxColumnsInIndex,
    SqlInfo::SqlMaxColumnsInOrderBy,
    SqlInfo::SqlMaxColumnsInSelect,
    SqlInfo::SqlMaxColumnsInTable,
    SqlInfo::SqlMaxConnections,
    SqlInfo::SqlMaxCursorNameLength,
    SqlInfo::SqlMaxIndexLength,
    SqlInfo::SqlDbSchemaNameLength,
    SqlInfo::SqlMaxProcedureNameLength,
    SqlInfo::SqlMaxCatalogNameLength,
    SqlInfo::SqlMaxRowSize,
    SqlInfo::SqlMaxStatementLength,
    SqlInfo::SqlMaxTableNameLength,
    SqlInfo::SqlMaxTablesInSelect,
    SqlInfo::SqlMaxUsernameLength,
];
