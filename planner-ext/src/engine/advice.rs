//! What other budgets would bring to the queries that ran last.

use std::sync::Arc;
use std::time::Duration;

use terrace_tier_store::placement::{Advice, AdviceRequest, StatementProfile, Workload};

use super::Engine;
use super::registry::{StatementKind, StatementRecord, StatementState};
use crate::error::Result;

impl Engine {
    /// Advice on budgets for the queries that ended well and read stored columns, of those that the history has; only those
    /// begun within `last`, and since tiers came or went last.
    ///
    /// # Errors
    /// See [`terrace_tier_store::placement::Tiering::advise`].
    pub async fn advise(&self, request: AdviceRequest, last: Option<Duration>) -> Result<Advice> {
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let since_unix_us = last.map_or(0, |last| self.clock.unix_us().saturating_sub(us(last)));
        let store = Arc::clone(&self.store);
        // What they read is known by the places of tiers.
        let since_unix_us = since_unix_us.max(store.tiering().tiers_changed_unix_us());
        let workload = workload(&self.registry.statements(), since_unix_us);
        self.blocking(move || Ok(store.tiering().advise(&request, &workload)?)).await
    }
}

/// The queries among `statements` that placement can make faster.
fn workload(statements: &[StatementRecord], since_unix_us: u64) -> Workload {
    let counts = |record: &&StatementRecord| {
        record.kind == StatementKind::Query
            && record.state == StatementState::Done
            && record.started_unix_us >= since_unix_us
            && !record.scans.is_empty()
    };
    let profile = |record: &StatementRecord| StatementProfile {
        elapsed_us: record.elapsed_us as f64,
        scans: record.scans.to_vec(),
    };
    Workload { statements: statements.iter().filter(counts).map(profile).collect() }
}
