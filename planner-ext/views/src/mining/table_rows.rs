//! Estimates of views by the samples and bounds of a table.

use std::sync::Arc;

use terrace_scan::scan::ScanSource;
use terrace_tier_store::table::Table;

use super::scan::Scan;
use super::search::{Estimate, PayingView, RowEstimates, judging_epochs};
use crate::bound::BoundView;
use crate::condition::{BoundsVerdict, Condition};
use crate::definition::Definition;
use crate::filter::Verdict;
use crate::registry::HotViews;

/// Share of the scans that a found view claims to serve that the check has to confirm.
const CONFIRMED: f64 = 0.9;

/// Estimates by the samples and bounds of a table.
pub(super) struct TableRows<'a> {
    hot_views: &'a HotViews,
    pub(super) table: &'a Arc<Table>,
    source: Arc<ScanSource>,
    now_us: u64,
}

impl<'a> TableRows<'a> {
    pub(super) fn new(hot_views: &'a HotViews, table: &'a Arc<Table>, now_us: u64) -> Self {
        let source = ScanSource::new(Arc::clone(&hot_views.store), Arc::clone(table), table.version());
        Self { hot_views, table, source: Arc::new(source), now_us }
    }

    fn bind(&self, definition: Definition) -> Option<Arc<BoundView>> {
        let bound = BoundView::new(&Arc::new(definition), self.table.definition(), &self.hot_views.state);
        bound
            .inspect_err(|error| tracing::debug!(%error, "a mined condition cannot be a hot view's"))
            .map(Arc::new)
            .ok()
    }

    fn definition(&self, predicate: &str, bound_at_us: u64) -> Definition {
        Definition {
            name: self.table.name().clone(),
            table: self.table.name().clone(),
            columns: Vec::new(),
            select: String::new(),
            predicate: predicate.to_owned(),
            decimal_literals: true,
            version: 1,
            bound_at_us,
            made_at_us: self.now_us,
            mark: None,
            published: None,
            refresh_us: 0,
            budget_bytes: None,
            mined: None,
        }
    }

    /// Binds the view to the time at which an epoch began.
    pub(super) fn at_epoch(&self, view: &Arc<BoundView>, scans: &[Scan], epoch: u64) -> Option<Arc<BoundView>> {
        if !view.is_moving() {
            return Some(Arc::clone(view));
        }
        let first_us = scans.iter().filter(|scan| scan.epoch == epoch).map(|scan| scan.at_us).min()?;
        let bound_at_us = first_us.min(view.definition().bound_at_us);
        self.bind(Definition { bound_at_us, ..view.definition().as_ref().clone() })
    }

    /// True when the check confirms that the scans which the found view serves ask for its rows only.
    pub(super) fn confirms(&self, found: &PayingView, scans: &[Scan]) -> bool {
        let judges = judging_epochs(scans).unwrap_or_default();
        let judged = || scans.iter().filter(|scan| judges.contains(&scan.epoch));
        let first_us = judged().map(|scan| scan.at_us).min().unwrap_or(self.now_us);
        let Some(view) = self.bind(self.definition(&found.predicate, first_us)) else { return false };
        let implied = judged().filter(|scan| scan.filter.check(&view) == Verdict::Implied);
        let served = implied.map(|scan| scan.runs).sum::<f64>() / judges.len().max(1) as f64;
        let confirmed = served >= CONFIRMED * found.served;
        if !confirmed {
            tracing::debug!(
                find.predicate = found.predicate,
                served,
                claimed = found.served,
                "the check found fewer scans that a mined hot view would serve"
            );
        }
        confirmed
    }
}

impl RowEstimates for TableRows<'_> {
    fn total(&self) -> f64 {
        self.source.version.live_rows() as f64
    }

    fn estimate(&mut self, predicate: &str) -> Option<Estimate> {
        let view = self.bind(self.definition(predicate, self.now_us))?;
        let physical = |expr| self.hot_views.state.create_physical_expr(expr, view.schema()).ok();
        let filters = view.exprs().iter().cloned().map(physical).collect::<Option<Vec<_>>>()?;
        let bounded = Condition::new(&view, &self.hot_views.state).ok()?.judge_by_bounds(&self.source);
        let volume = |wanted: BoundsVerdict| {
            let chunks = (0..).zip(&bounded).filter(|(_, bounded)| **bounded == wanted);
            self.source.volume(&chunks.map(|(chunk, _)| chunk).collect::<Vec<u32>>())
        };
        // Samples are unreliable when bounds leave only a few chunks of a table, so the bounds limit the estimate.
        let sure = volume(BoundsVerdict::Everything);
        let unsure = volume(BoundsVerdict::Unsure);
        let rows = self.source.estimated_rows(filters)?.clamp(sure.rows, sure.rows + unsure.rows);
        // The run reads and rewrites all columns of the chunks that may have both rows of the view and other rows.
        Some(Estimate { rows, cost_bytes: 2.0 * unsure.bytes })
    }
}
