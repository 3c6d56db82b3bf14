//! Views of a table as they would be, by its samples and bounds.

use std::sync::Arc;

use terrace_tier_store::table::Table;

use super::scan::Scan;
use super::search::{Estimate, Find, Rows, judges};
use crate::scan::ScanSource;
use crate::views::bound::BoundView;
use crate::views::condition::{Bounded, Condition};
use crate::views::definition::Definition;
use crate::views::filter::Verdict;
use crate::views::registry::HotViews;

/// Of the scans that a find claims to serve, the share that the check has to confirm.
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
        bound.inspect_err(|error| tracing::debug!(%error, "not a hot view")).map(Arc::new).ok()
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

    /// The view as it would have been bound when an epoch began.
    pub(super) fn at_epoch(&self, view: &Arc<BoundView>, scans: &[Scan], epoch: u64) -> Option<Arc<BoundView>> {
        if !view.is_moving() {
            return Some(Arc::clone(view));
        }
        let first_us = scans.iter().filter(|scan| scan.epoch == epoch).map(|scan| scan.at_us).min()?;
        let bound_at_us = first_us.min(view.definition().bound_at_us);
        self.bind(Definition { bound_at_us, ..view.definition().as_ref().clone() })
    }

    /// True when the check says of as many scans as the find that they ask for its rows only.
    pub(super) fn confirms(&self, find: &Find, scans: &[Scan]) -> bool {
        let judges = judges(scans).unwrap_or_default();
        let judged = || scans.iter().filter(|scan| judges.contains(&scan.epoch));
        let first_us = judged().map(|scan| scan.at_us).min().unwrap_or(self.now_us);
        let Some(view) = self.bind(self.definition(&find.predicate, first_us)) else { return false };
        let implied = judged().filter(|scan| scan.filter.check(&view) == Verdict::Implied);
        let served = implied.map(|scan| scan.runs).sum::<f64>() / judges.len().max(1) as f64;
        let confirmed = served >= CONFIRMED * find.served;
        if !confirmed {
            tracing::debug!(find.predicate, served, claimed = find.served, "the check knows less scans");
        }
        confirmed
    }
}

impl Rows for TableRows<'_> {
    fn total(&self) -> f64 {
        self.source.version.live_rows() as f64
    }

    fn estimate(&mut self, predicate: &str) -> Option<Estimate> {
        let view = self.bind(self.definition(predicate, self.now_us))?;
        let physical = |expr| self.hot_views.state.create_physical_expr(expr, view.schema()).ok();
        let filters = view.exprs().iter().cloned().map(physical).collect::<Option<Vec<_>>>()?;
        let bounded = Condition::new(&view, &self.hot_views.state).ok()?.bounded(&self.source);
        let volume = |wanted: Bounded| {
            let chunks = (0..).zip(&bounded).filter(|(_, bounded)| **bounded == wanted);
            self.source.volume(&chunks.map(|(chunk, _)| chunk).collect::<Vec<u32>>())
        };
        // Samples see little of the few chunks that bounds leave of a table.
        let sure = volume(Bounded::Everything);
        let unsure = volume(Bounded::Unsure);
        let rows = self.source.estimated_rows(filters)?.clamp(sure.rows, sure.rows + unsure.rows);
        // All columns of the chunks in which there may be some rows and others are read, and written anew.
        Some(Estimate { rows, cost_bytes: 2.0 * unsure.bytes })
    }
}
