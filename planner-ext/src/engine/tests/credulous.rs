//! A wrong [`ViewOracle`] for tests: it treats every filter as implying every view. The tests must detect its wrong
//! answers.

use terrace_scan::hot_views::{PlannedScan, ScanRequest, ScanView, ViewOracle};
use terrace_views::{HotViews, PublishedView};

use super::*;

/// A `ViewOracle` that serves every scan of a table with every published view of it.
#[derive(Debug)]
pub(in crate::engine) struct CredulousOracle(pub(in crate::engine) Arc<HotViews>);

impl ViewOracle for CredulousOracle {
    fn views_for_scan(&self, scan: &PlannedScan<'_>) -> Result<Vec<ScanView>> {
        let views = self.0.current()?;
        let mut found = self.0.views_for_scan(scan)?;
        found.iter_mut().for_each(|view| view.mark = views.published(&view.name, scan.table).map(PublishedView::mark));
        Ok(found)
    }

    fn scan_request(&self, scan: &PlannedScan<'_>) -> Option<Arc<dyn ScanRequest>> {
        self.0.scan_request(scan)
    }
}
