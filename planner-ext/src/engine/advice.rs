//! Budget advice: how other tier budgets would change the duration of recent queries.

use std::sync::Arc;
use std::time::Duration;

use terrace_sql::StatementKind;
use terrace_tier_store::placement::{Advice, AdviceRequest, StatementProfile, Workload};

use super::Engine;
use super::registry::{StatementRecord, StatementState};
use crate::error::Result;

impl Engine {
    /// Advises on budgets, from the queries in the history that succeeded and read stored columns. Only queries count that
    /// began within `last` and after the last change of the list of tiers.
    ///
    /// # Errors
    /// See [`terrace_tier_store::placement::Tiering::advise`].
    pub async fn advise(&self, request: AdviceRequest, last: Option<Duration>) -> Result<Advice> {
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let since_unix_us = last.map_or(0, |last| self.clock.unix_us().saturating_sub(us(last)));
        let store = Arc::clone(&self.store);
        // Profiles name tiers by their position in the list, so older ones would mean other tiers.
        let since_unix_us = since_unix_us.max(store.tiering().tiers_changed_unix_us());
        let workload = workload(&self.registry.statements(), since_unix_us);
        self.blocking(move || Ok(store.tiering().advise(&request, &workload)?)).await
    }
}

/// Selects the queries among `statements` that placement can make faster.
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
