//! Proposals of views, and their states.

use std::collections::BTreeSet;

use datafusion::execution::memory_pool::human_readable_size;
use serde::{Deserialize, Serialize};
use terrace_error::Result;
use terrace_scan::hot_views::ProposalState;
use terrace_sql::{qualified, quoted_name};
use terrace_tier_store::table::TableName;

use super::search::PayingView;
use crate::definition::Definition;

/// Most closed proposals that are still shown.
const MOST_CLOSED: usize = 100;

/// A proposed view.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Proposal {
    /// Name of the view.
    pub view: TableName,
    /// Its table.
    pub table: TableName,
    /// Names of its columns; empty for all columns of the table.
    pub(crate) columns: Vec<String>,
    /// The condition after WHERE.
    pub predicate: String,
    /// Its state.
    pub state: ProposalState,
    /// The reason for the state, for users.
    pub reason: String,
    /// Figures of the last epoch that found it.
    pub basis: Basis,
    /// Time when it was proposed, in microseconds since 1970.
    pub made_at_us: u64,
    /// Time of its last change of state, likewise.
    pub changed_at_us: u64,
    pub(super) key: String,
    /// Number of epochs that found it since the server started.
    #[serde(skip)]
    pub(super) found: u32,
    /// Number of consecutive epochs since then that did not find it.
    #[serde(skip)]
    pub(super) missing: u32,
}

/// Figures behind a proposal; those about scans are per epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Basis {
    /// Scans with such conditions.
    pub scans: f64,
    /// Scans among these whose filter implies the view.
    pub served: f64,
    /// Bytes that the scans read.
    pub read_bytes: f64,
    /// Bytes that they would not have read with the view.
    pub saved_bytes: f64,
    /// Rows of the view.
    pub rows: f64,
    /// Rows of its table.
    pub table_rows: f64,
    /// Bytes that a run of the view reads and writes.
    pub cost_bytes: f64,
}

impl Basis {
    /// Number of epochs until the view has saved what it costs.
    pub fn payback_epochs(&self) -> f64 {
        self.cost_bytes / self.saved_bytes.max(1.0)
    }
}

impl Proposal {
    /// SELECT .. FROM .. WHERE ..
    pub(crate) fn select(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| quoted_name(column)).collect();
        let columns = if columns.is_empty() { "*".to_owned() } else { columns.join(", ") };
        format!("SELECT {columns} FROM {} WHERE {}", qualified(&self.table), self.predicate)
    }

    /// The statement that makes the view.
    pub fn statement(&self) -> String {
        format!("CREATE HOT VIEW {} AS {}", qualified(&self.view), self.select())
    }

    /// True while the last epoch found it.
    pub(super) fn is_open(&self) -> bool {
        self.state == ProposalState::Proposed && self.missing == 0
    }

    /// True for a view that a user made from this proposal.
    pub(super) fn is_made_by(&self, view: &Definition) -> bool {
        let same = view.predicate == self.predicate || view.name == self.view;
        view.mined.is_none() && view.table == self.table && same
    }

    /// Changes the state and logs the change.
    pub(super) fn change_state(&mut self, state: ProposalState, reason: String, now_us: u64) {
        tracing::info!(view = %self.view, state = state.name(), reason, "mined hot view");
        (self.state, self.reason, self.changed_at_us) = (state, reason, now_us);
    }

    /// Updates the proposal in an epoch that found it again.
    fn update(&mut self, view: &PayingView, basis: Basis, columns: Vec<String>) {
        self.basis = basis;
        self.columns = columns;
        self.predicate = view.predicate.clone();
        self.found += 1;
        self.missing = 0;
        self.reason = reason(view, &basis);
    }
}

/// The reason for which a view is proposed, for users.
fn reason(view: &PayingView, basis: &Basis) -> String {
    let size = |bytes: f64| human_readable_size(bytes as usize);
    let share = 100.0 * basis.served / basis.scans.max(1.0);
    format!(
        "of {:.1} scans per epoch with such conditions, {share:.0} % asked for these rows only, {:.0} of the table's \
         {:.0}; the scans read {} that bounds do not exclude, and would skip {} of it with the hot view; putting the \
         rows together reads and writes {}, which the scans save within {:.1} epochs{}",
        basis.scans,
        basis.rows,
        basis.table_rows,
        size(basis.read_bytes),
        size(basis.saved_bytes),
        size(basis.cost_bytes),
        basis.payback_epochs(),
        if view.moving { "; its window moves with the current time" } else { "" },
    )
}

/// The parts of a table that proposals need.
pub(super) struct TableSummary<'a> {
    pub(super) name: &'a TableName,
    pub(super) rows: f64,
    /// Names of all columns.
    pub(super) columns: &'a [String],
}

/// All proposals, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    all: Vec<Proposal>,
    /// States as they were stored last.
    stored: Vec<(TableName, ProposalState, u64)>,
}

impl Proposals {
    /// Proposals that were read from the catalog.
    pub(super) fn from_stored(all: Vec<Proposal>) -> Self {
        let mut proposals = Self { all, stored: Vec::new() };
        proposals.stored = proposals.states();
        proposals
    }

    pub(super) fn all(&self) -> &[Proposal] {
        &self.all
    }

    pub(super) fn all_mut(&mut self) -> &mut [Proposal] {
        &mut self.all
    }

    /// Calls `store` with all proposals if one is new, removed, or not in the state in which it was stored.
    pub(super) fn store_changes(&mut self, store: impl FnOnce(&[Proposal]) -> Result<()>) -> Result<()> {
        let states = self.states();
        if states != self.stored {
            store(&self.all)?;
            self.stored = states;
        }
        Ok(())
    }

    fn states(&self) -> Vec<(TableName, ProposalState, u64)> {
        self.all.iter().map(|p| (p.view.clone(), p.state, p.changed_at_us)).collect()
    }

    /// Updates the proposals for a table by the views that an epoch found, without those that a user rejected. `new_name`
    /// gives a new view its name, `patience` is the number of consecutive epochs in which a proposal may be missing.
    pub(super) fn epoch(
        &mut self,
        table: &TableSummary<'_>,
        views: &[PayingView],
        new_name: &mut dyn FnMut(&[Proposal]) -> TableName,
        patience: u32,
        now_us: u64,
    ) {
        let open = |proposal: &Proposal| proposal.state == ProposalState::Proposed && proposal.table == *table.name;
        let is_rejected =
            |proposal: &&Proposal| proposal.state == ProposalState::Rejected && proposal.table == *table.name;
        let rejected: BTreeSet<String> =
            self.all.iter().filter(is_rejected).map(|proposal| proposal.key.clone()).collect();
        for view in views.iter().filter(|view| !rejected.contains(&view.key)) {
            let basis = Basis {
                scans: view.scans,
                served: view.served,
                read_bytes: view.read_bytes,
                saved_bytes: view.saved_bytes,
                rows: view.estimate.rows,
                table_rows: table.rows,
                cost_bytes: view.estimate.cost_bytes,
            };
            let has_all = table.columns.iter().all(|column| view.columns.contains(column));
            let columns = if has_all { Vec::new() } else { view.columns.iter().cloned().collect() };
            match self.all.iter_mut().find(|proposal| open(proposal) && proposal.key == view.key) {
                Some(known) => known.update(view, basis, columns),
                None => {
                    let proposal = Proposal {
                        view: new_name(&self.all),
                        table: table.name.clone(),
                        columns,
                        predicate: view.predicate.clone(),
                        state: ProposalState::Proposed,
                        reason: reason(view, &basis),
                        basis,
                        made_at_us: now_us,
                        changed_at_us: now_us,
                        key: view.key.clone(),
                        found: 1,
                        missing: 0,
                    };
                    self.all.push(proposal);
                }
            }
        }
        let lost = |proposal: &&mut Proposal| open(proposal) && !views.iter().any(|view| view.key == proposal.key);
        for proposal in self.all.iter_mut().filter(lost) {
            proposal.missing += 1;
            if proposal.missing >= patience {
                let reason =
                    format!("scans of the last {} epochs would not have saved enough with it", proposal.missing);
                proposal.change_state(ProposalState::Withdrawn, reason, now_us);
            }
        }
        let mut closed = self.all.iter().filter(|proposal| proposal.state.is_closed()).count();
        self.all.retain(|proposal| {
            let goes = closed > MOST_CLOSED && proposal.state.is_closed();
            closed -= usize::from(goes);
            !goes
        });
    }

    /// Rejects an open proposal, whose view is not proposed again as long as this one is known.
    pub(super) fn reject(&mut self, view: &TableName, now_us: u64) {
        let open = |proposal: &&mut Proposal| proposal.state == ProposalState::Proposed && proposal.view == *view;
        for proposal in self.all.iter_mut().filter(open) {
            proposal.change_state(ProposalState::Rejected, "a user rejected it".to_owned(), now_us);
        }
    }

    /// Withdraws proposals for tables that were dropped or altered.
    pub(super) fn abandon(&mut self, is_gone: impl Fn(&TableName) -> bool, now_us: u64) {
        let open = |proposal: &&mut Proposal| proposal.state == ProposalState::Proposed && is_gone(&proposal.table);
        for proposal in self.all.iter_mut().filter(open) {
            proposal.change_state(ProposalState::Withdrawn, "its table was dropped or altered".to_owned(), now_us);
        }
    }
}
