//! Options that every session starts with.

use datafusion::common::config::{ConfigNonZeroUsize, SpillCompression};
use datafusion::prelude::SessionConfig;
use terrace_sql::{CATALOG, DEFAULT_SCHEMA};
use terrace_tier_store::Store;

/// The options for so many partitions and rows of a batch, over a store.
pub(super) fn base_config(target_partitions: usize, batch_size: usize, store: &Store) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(CATALOG, DEFAULT_SCHEMA)
        .with_target_partitions(target_partitions.max(1))
        .with_batch_size(batch_size.max(1));
    let settings = config.options_mut();
    settings.execution.time_zone = Some("+00:00".to_owned());
    settings.execution.parquet.pushdown_filters = true;
    // One file for each batch that an exchange spills: with two batches open for writing, the exchange waits for ever.
    // Upstream: https://github.com/apache/datafusion/issues/24883; can go when test_cold_shapes.py passes without it.
    if let Ok(least) = ConfigNonZeroUsize::try_new(1) {
        settings.execution.max_spill_file_size_bytes = least;
    }
    // Spilled rows go to the device of the chunk files.
    if store.compresses_files() {
        settings.execution.spill_compression = SpillCompression::Lz4Frame;
    }
    settings.sql_parser.map_string_types_to_utf8view = true;
    settings.sql_parser.parse_float_as_decimal = true;
    terrace_scan::joins::session_config(config)
}
