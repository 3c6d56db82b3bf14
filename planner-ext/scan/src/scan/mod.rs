//! Scans of a table: chunks on any tier and the delta, as record batches of up to 8,192 rows.
//!
//! - `coder`: gives out columns of texts as codes
//! - `cold`: a chunk with columns that are not resident, on its way from the home tier
//! - `comparison`: a column compared with a number, on values as they are stored and on bounds
//! - `counted_segments`: the segments that a statement has counted, one access each
//! - `dictionary_filter`: filters on texts, evaluated once per value of a dictionary
//! - `emitted_texts`: the form of texts in rows that leave the server
//! - `exec`: the plan node: properties, push-downs, statistics; one queue per execution
//! - `expected_reads`: the scans of a statement: their tallies, counted segments and expected reads
//! - `fetch`: fetches columns of rows that are known by their positions
//! - `filter`: conjuncts on a slice, cheapest first; run-time filters only while they pay
//! - `hot`: the chunks that have rows of the hot views to which a scan is restricted
//! - `kernel`: aggregates over scans that kernels of a device compute
//! - `keys`: passes the keys of a join's build side to the scan of its other side
//! - `lane`: chunks of a queue by their state, and how far it reads ahead
//! - `late`: late materialisation: reads the filters' columns first, if that pays
//! - `late_fetch`: ORDER BY .. LIMIT reads wide columns only of the rows that are left
//! - `levels`: gives the operators of a plan that read at random their levels
//! - `like`: LIKE with several pieces of text
//! - `membership`: a run-time filter on one integer column as a bitmap or Bloom filter
//! - `metrics`: the metrics that EXPLAIN ANALYZE shows
//! - `observer`: takes the outcomes of chunks: heat, metrics, page bounds, samples, filters, offers to memory
//! - `open`: a chunk whose columns are loaded, given out in slices
//! - `outcome`: what the scan of a chunk has read, as plain data
//! - `packed_test`: conjuncts as tests of values where they lie, which unpack nothing
//! - `pages`: the pages of a chunk that a predicate can match, by bounds learned from earlier reads
//! - `plain_texts`: texts and bytes as plain arrays
//! - `probe_values`: the single values that a predicate asks a column for
//! - `pruning`: the chunks that a predicate can match, by their bounds and membership filters
//! - `pushdown`: DataFusion's push-down of filters, corrected where names of columns are not unique
//! - `queue`: chunks still to read, reads in flight, chunks ready; shared by the partitions
//! - `residency`: tiers of a scan's segments, and the number of partitions that these are worth
//! - `rows`: filters on whole chunks, outside of scans
//! - `share`: a scan as plain data, and cut into shares for several nodes
//! - `source`: the scanned table version, addressed by items
//! - `statistics`: statistics of a scan for the planner
//! - `stream`: one partition: slices of chunks -> filter -> batches
//! - `survival`: the share of rows that pass the filters of a scan
//! - `tally`: counts of one scan, for the advisor
//! - `text_codes`: numbers for the texts of columns, the same for all chunks
//! - `trace`: the span of one execution, for traces
//! - `volume`: rows and bytes of a scan, for mining hot views
//!
//! Invariants: nothing is read before the first poll; dropping a stream drops its reads; resident data costs nothing
//! beyond the kernels that `FilterExec` would run on it.

mod coder;
mod cold;
mod comparison;
mod counted_segments;
mod dictionary_filter;
mod emitted_texts;
mod exec;
mod expected_reads;
mod fetch;
mod filter;
mod hot;
mod kernel;
mod keys;
mod lane;
mod late;
mod late_fetch;
mod levels;
mod like;
mod membership;
mod metrics;
mod observer;
mod open;
mod outcome;
mod packed_test;
mod pages;
mod plain_texts;
mod probe_values;
mod pruning;
mod pushdown;
mod queue;
mod residency;
mod rows;
mod share;
mod source;
mod statistics;
mod stream;
mod survival;
mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod text_codes;
mod trace;
mod volume;

use std::sync::Arc;

use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::filter_pushdown::FilterPushdownPhase;
use datafusion::prelude::SessionConfig;

pub(crate) use coder::coded_schema;
pub use emitted_texts::EmittedTexts;
pub use exec::{ScanConfig, ScanOrder, TierScanExec};
pub use expected_reads::StatementScans;
pub use fetch::FetchExec;
pub use kernel::KernelExec;
pub use levels::blocks_on;
use pushdown::CheckedPushdown;
pub use rows::{RowFilter, may_have};
pub use share::ScanParts;
pub use source::ScanSource;
pub use tally::ChunkCounts;
pub use terrace_error::ROW_COLUMN;
pub(crate) use text_codes::{MOST_TEXTS, SharedCodes};

/// Rows of a slice: the unit of filtering and of output.
pub const SLICE_ROWS: usize = 8192;

/// DataFusion's physical optimizer rules, with the rules of scans added that come before [`part_rules`].
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    for phase in [FilterPushdownPhase::Pre, FilterPushdownPhase::Post] {
        let checked = CheckedPushdown::new(phase);
        if let Some(at) = rules.iter().position(|rule| rule.name() == checked.name()) {
            rules.splice(at..=at, [Arc::new(checked) as _]);
            if phase == FilterPushdownPhase::Post {
                rules.insert(at, Arc::new(late_fetch::LateFetch));
            }
        }
    }
    // Before arithmetic on decimals becomes our own. It is no rule of parts: its operator has one partition more than the one that it
    // replaces, and is not sent, so a plan with it stays whole.
    rules.push(Arc::new(kernel::KernelRule));
    rules
}

/// The rules of scans that a part of a plan gets where it is executed.
pub(crate) fn part_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    vec![
        Arc::new(keys::JoinKeysRule),
        Arc::new(crate::decimal::DecimalRule),
        // When the plan has all its operators; what replaces one of them later reads at the same level.
        Arc::new(levels::LevelRule),
    ]
}

/// Largest build side of a join that is collected into one hash table, in bytes and, where those are unknown, rows.
const COLLECTED_BUILD_BYTES: usize = 64 << 20;
const COLLECTED_BUILD_ROWS: usize = 1 << 20;

/// Sets the session options that scans need.
pub fn session_config(config: SessionConfig) -> SessionConfig {
    join_thresholds(config.with_batch_size(SLICE_ROWS))
}

/// Sets the thresholds up to which a join builds one hash table for all partitions ([`COLLECTED_BUILD_BYTES`]): on few
/// cores, repartitioning both sides costs more than a parallel build gains (docs/design/scan.md). Benchmarks set the
/// same for their peers.
pub fn join_thresholds(mut config: SessionConfig) -> SessionConfig {
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = COLLECTED_BUILD_BYTES;
    optimizer.hash_join_single_partition_threshold_rows = COLLECTED_BUILD_ROWS;
    config
}
