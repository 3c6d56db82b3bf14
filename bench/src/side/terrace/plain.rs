//! The tables of a store behind leaves, under DataFusion's own plans: measures the cost of storage alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::prelude::{SessionConfig, SessionContext};
use terrace_planner_ext::TierTable;
use terrace_planner_ext::scan::session_config;
use terrace_tier_store::table::TableName;

use super::Terrace;
use crate::error::Result;
use crate::row::Sample;
use crate::side::datafusion::run_query;
use crate::side::leaf::LeafTable;
use crate::tpch::TABLES;

impl Terrace {
    /// Runs a query with only DataFusion's own rules.
    pub(super) fn leaf(&self, sql: &'static str) -> Result<Sample> {
        let store = self.engine.store();
        // The same batch size and thresholds as the peer.
        let config = session_config(SessionConfig::new()).with_target_partitions(self.threads);
        let context = SessionContext::new_with_config(config);
        for table in TABLES {
            let stored = store.table(&TableName::new("public", table.name))?;
            let version = stored.version();
            let rows = version.live_rows() as usize;
            let scanned = TierTable::new(Arc::clone(store), stored, version);
            context.register_table(table.name, Arc::new(LeafTable::new(table.name, rows, Arc::new(scanned))))?;
        }
        let read_bytes = || store.home().counters().read_bytes.load(Ordering::Relaxed);
        let before = read_bytes();
        let sample = run_query(&self.runtime, &context, sql)?;
        Ok(sample.with("cold_bytes", (read_bytes() - before) as f64))
    }
}
