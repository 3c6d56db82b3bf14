//! Reading a table: chunks on any tier and the delta, as record batches of up to 8,192 rows.
//!
//! ```text
//!   exec        the plan node: properties, push-downs, statistics; one queue per execution
//!   queue       chunks still to read, reads in flight, chunks ready; shared by the partitions
//!   open        a chunk whose columns are in reach; counts its segments when done
//!   stream      one partition: slices of chunks -> filter -> batches
//!   filter      conjuncts on a slice, cheapest first; dynamic ones only while they pay
//!   comparison  a column compared with a number, on values as they are stored and on bounds
//!   membership  a run-time filter on one integer column as a bitmap or Bloom filter
//!   keys        the keys of a join's build side, on their way to the scan of its other side
//!   late_fetch  ORDER BY .. LIMIT reads wide columns of the rows that are left only
//!   fetch       columns of rows that are known by their positions
//!   pushdown    DataFusion's push-down of filters, corrected where names of columns are not unique
//!   pruning     which chunks a predicate can match, by their bounds and membership filters
//!   pages       which pages of a chunk it can match, by bounds learned from earlier reads
//!   hot         which chunks have rows of the hot views that the scan asks for
//!   asked       the single values that a predicate asks a column for
//!   rows        filters on whole chunks, for those who are no scan
//!   reach       where its segments lie, how each tier's are read, how many partitions that is worth
//!   statistics  what the planner may believe about the rows of a scan
//!   metrics     what EXPLAIN ANALYZE shows
//!   journal     the scans of a statement: what they did, counted, and still have to read
//! ```
//!
//! Invariants: nothing is read before the first poll; dropping a stream drops its reads; resident data costs nothing
//! beyond the kernels that `FilterExec` would run on it.

mod asked;
mod comparison;
mod counted;
mod exec;
mod fetch;
mod filter;
mod hot;
pub(crate) mod journal;
mod keys;
mod late;
mod late_fetch;
mod like;
mod membership;
mod metrics;
mod open;
mod pages;
mod pruning;
mod pushdown;
mod queue;
mod reach;
mod rows;
mod source;
mod statistics;
mod stream;
mod tally;
#[cfg(test)]
pub(crate) mod tests;
mod volume;
mod words;

use std::sync::Arc;

use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::filter_pushdown::FilterPushdownPhase;
use datafusion::prelude::SessionConfig;

pub use exec::{ScanConfig, ScanOrder, TierScanExec};
pub(crate) use fetch::FetchExec;
use pushdown::CheckedPushdown;
pub(crate) use rows::{RowFilter, may_have};
pub use source::{ROW_COLUMN, ScanSource};

/// Rows of a slice: the unit of filtering and of output.
pub const SLICE_ROWS: usize = 8192;

/// DataFusion's physical optimizer rules with ours among them.
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
    rules.push(Arc::new(keys::JoinKeysRule));
    rules.push(Arc::new(crate::decimal::DecimalRule));
    rules
}

/// Largest build side of a join that is collected into one hash table, in bytes and, where those are unknown, rows.
const COLLECTED_BUILD_BYTES: usize = 64 << 20;
const COLLECTED_BUILD_ROWS: usize = 1 << 20;

/// Session options the scan wants.
pub fn session_config(config: SessionConfig) -> SessionConfig {
    join_thresholds(config.with_batch_size(SLICE_ROWS))
}

/// One hash table for all partitions up to [`COLLECTED_BUILD_BYTES`]: on few cores, sending both sides through a
/// repartitioning costs more than the build gains (docs/design/scan.md). Benchmarks give their peers the same.
pub fn join_thresholds(mut config: SessionConfig) -> SessionConfig {
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = COLLECTED_BUILD_BYTES;
    optimizer.hash_join_single_partition_threshold_rows = COLLECTED_BUILD_ROWS;
    config
}
