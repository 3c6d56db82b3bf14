//! The engine without hot views: the interface of `views_on` in a build without the feature `hot-views`.
//!
//! Statements on hot views are refused, tables about them are empty, and their counters stay zero.

use std::sync::Arc;

use datafusion::execution::session_state::SessionState;
use datafusion::sql::parser::Statement as SqlStatement;
use terrace_scan::hot_views::{MiningCounters, MiningMode, RunCounters, ViewOracle, ViewTally};
use terrace_sql::hot_view::HotViewCommand;
use terrace_tier_store::Store;
use terrace_tier_store::table::{TableDefinition, TableName};

use super::catalog::Snapshot;
use super::computed_rows::ComputedRows;
use super::registry::Ticket;
use super::session::Session;
use super::{Engine, EngineOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::system::{Batches, Live, NameFilter};

/// Kind of the definitions of hot views in the store's catalog, as in `terrace-views`.
pub(super) const HOT_VIEWS: &str = "hot_view";

/// The counters of hot views, which stay zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct EngineViews {
    tally: Arc<ViewTally>,
    runs: Arc<RunCounters>,
    mining: Arc<MiningCounters>,
}

impl EngineViews {
    /// No views.
    ///
    /// # Errors
    /// When the options ask the server to make views, and when the store has some: changes of their tables would leave
    /// marks that are no longer true.
    pub(super) fn new(store: &Arc<Store>, _: &SessionState, options: &EngineOptions) -> Result<Self> {
        if options.mining.mode == MiningMode::Auto {
            return Err(refused());
        }
        match store.objects(HOT_VIEWS)?.first() {
            Some((name, _)) => Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!(
                    "the data directory has hot views, such as {name}, and this build has none (feature hot-views); \
                     drop them with a build that has the feature"
                ),
            )),
            None => Ok(Self::default()),
        }
    }

    pub(super) fn stop(&self) {}

    pub(super) fn oracle(&self) -> Option<Arc<dyn ViewOracle>> {
        None
    }

    pub(super) fn tally(&self) -> &ViewTally {
        &self.tally
    }

    pub(super) fn runs(&self) -> &RunCounters {
        &self.runs
    }

    pub(super) fn mining(&self) -> &MiningCounters {
        &self.mining
    }

    pub(super) fn names_for_table(&self, _: &TableName) -> Result<Vec<TableName>> {
        Ok(Vec::new())
    }

    pub(super) fn broken_by(&self, _: &TableDefinition, _: &TableDefinition) -> Result<Vec<TableName>> {
        Ok(Vec::new())
    }

    pub(super) fn statements(&self, _: &TableName) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    pub(super) fn remove(&self, _: &TableName) -> Result<()> {
        Ok(())
    }
}

fn refused() -> Error {
    Error::unimplemented("the server was built without hot views; build it with the feature hot-views")
}

pub(super) fn start(_: &Arc<Engine>) {}

/// Refuses a statement on hot views.
pub(super) async fn run(_: &Session, _: &Ticket, _: &HotViewCommand) -> Result<u64> {
    Err(refused())
}

/// Refuses EXPLAIN HOT VIEWS.
pub(super) async fn explain_query(_: &Session, _: &Arc<Snapshot>, _: SqlStatement) -> Result<ComputedRows> {
    Err(refused())
}

/// Refuses EXPLAIN of a statement that would run a view.
pub(super) fn forecast(_: &Session, _: &Snapshot, _: &HotViewCommand) -> Result<ComputedRows> {
    Err(refused())
}

/// No rows.
pub(crate) fn hot_view_rows(_: Live, _: NameFilter) -> Result<Batches> {
    Ok(Box::new(std::iter::empty()))
}

/// No rows.
pub(crate) fn proposal_rows(_: Live, _: NameFilter) -> Result<Batches> {
    Ok(Box::new(std::iter::empty()))
}
