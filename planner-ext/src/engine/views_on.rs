//! Hot views in the engine: their statements, the schedule of their runs, and the epochs in which they are mined.
//!
//! The rest of the engine uses [`EngineViews`] and the functions of this module only; `views_off` offers the same
//! interface in a build without hot views.
//!
//! - `command`: executes statements on hot views
//! - `mining`: epochs of view mining
//! - `rows`: rows of `system.hot_views`, `system.hot_view_proposals` and EXPLAIN HOT VIEWS
//! - `run_forecast`: rows of EXPLAIN about tiering runs
//! - `runner`: schedules the runs that bring chunks up to date with hot views

mod command;
mod mining;
mod rows;
mod run_forecast;
mod runner;

use std::sync::Arc;

use datafusion::execution::session_state::SessionState;
use terrace_scan::hot_views::{MiningCounters, RunCounters, ViewOracle, ViewTally};
use terrace_sql::qualified;
use terrace_tier_store::Store;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_views::HotViews;

use super::{Engine, EngineOptions};
use crate::error::Result;
pub(super) use command::{explain_query, forecast, run};
pub(crate) use rows::{hot_view_rows, proposal_rows};
use runner::HotViewRunner;

/// The hot views of an engine, and the runner of their tiering runs.
#[derive(Debug, Clone)]
pub(crate) struct EngineViews {
    pub(super) views: Arc<HotViews>,
    pub(super) runner: Arc<HotViewRunner>,
    /// Makes every view serve every scan, so that a test can check that wrong answers are detected.
    #[cfg(test)]
    pub(super) credulous: Arc<std::sync::atomic::AtomicBool>,
}

impl EngineViews {
    /// Opens the hot views of `store`; their conditions are planned with the functions and options of `state`.
    ///
    /// # Errors
    /// Never fails; the twin in `views_off` fails when the options ask for hot views.
    pub(super) fn new(store: &Arc<Store>, state: &SessionState, options: &EngineOptions) -> Result<Self> {
        let views = HotViews::new(Arc::clone(store), state.clone());
        views.miner().prepare(store, &options.mining);
        let runner = Arc::default();
        #[cfg(test)]
        return Ok(Self { views, runner, credulous: Arc::default() });
        #[cfg(not(test))]
        Ok(Self { views, runner })
    }

    /// Stops the current run, and prevents further background runs.
    pub(super) fn stop(&self) {
        self.runner.stop();
    }

    /// Tells scans which views serve them.
    pub(super) fn oracle(&self) -> Option<Arc<dyn ViewOracle>> {
        #[cfg(test)]
        if self.credulous.load(std::sync::atomic::Ordering::Relaxed) {
            return Some(Arc::new(super::tests::credulous::CredulousOracle(Arc::clone(&self.views))));
        }
        Some(Arc::clone(&self.views) as _)
    }

    /// The tally of scans of all views.
    pub(super) fn tally(&self) -> &ViewTally {
        self.views.total()
    }

    /// Counts of tiering runs.
    pub(super) fn runs(&self) -> &RunCounters {
        self.views.runs()
    }

    /// Counts of view mining.
    pub(super) fn mining(&self) -> &MiningCounters {
        self.views.miner().counters()
    }

    /// Names of all views of a table.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(super) fn names_for_table(&self, table: &TableName) -> Result<Vec<TableName>> {
        Ok(self.views.current()?.names_for_table(table))
    }

    /// Views that a change of their table breaks because it changes the table's name or a column that they use.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(super) fn broken_by(&self, before: &TableDefinition, after: &TableDefinition) -> Result<Vec<TableName>> {
        Ok(self.views.current()?.broken_by(before, after))
    }

    /// The views of a table, as the statements that make them.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(super) fn statements(&self, table: &TableName) -> Result<Vec<String>> {
        let views = self.views.current()?;
        let of_table = views.iter().map(|status| &status.definition).filter(|view| view.table == *table);
        Ok(of_table
            .map(|view| format!("CREATE HOT VIEW {} AS {}{}", qualified(&view.name), view.select, view.options()))
            .collect())
    }

    /// Removes a view, if it exists.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub(super) fn remove(&self, name: &TableName) -> Result<()> {
        self.views.remove(name).map(drop)
    }
}

/// Starts the background tasks of hot views, which end with the engine.
pub(super) fn start(engine: &Arc<Engine>) {
    runner::start(engine);
    mining::start(engine);
}
