//! Views that are proposed, and what becomes of them.

use datafusion::execution::memory_pool::human_readable_size;
use serde::{Deserialize, Serialize};
use terrace_tier_store::table::TableName;

use super::search::Find;
use crate::engine::{qualified, quoted_name};
use crate::error::Result;
use crate::views::definition::Definition;

/// Proposals that are over and still shown.
const MOST_ENDED: usize = 100;

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It would pay.
    Proposed,
    /// Somebody made it.
    Taken,
    /// It would pay no longer.
    Withdrawn,
    /// The server made it.
    Created,
    /// The server made it, and it is gone or another one's by now.
    Retired,
}

impl State {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::Proposed, Self::Taken, Self::Withdrawn, Self::Created, Self::Retired];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Taken => "taken",
            Self::Withdrawn => "withdrawn",
            Self::Created => "created",
            Self::Retired => "retired",
        }
    }

    fn is_over(self) -> bool {
        matches!(self, Self::Taken | Self::Withdrawn | Self::Retired)
    }
}

/// A view that would pay, or did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Proposal {
    pub(crate) view: TableName,
    pub(crate) table: TableName,
    /// Empty: all.
    pub(crate) columns: Vec<String>,
    pub(crate) predicate: String,
    pub(crate) state: State,
    pub(crate) reason: String,
    /// What it rests on, as of the last epoch that found it.
    pub(crate) basis: Basis,
    /// Microseconds since 1970.
    pub(crate) made_at_us: u64,
    pub(crate) changed_at_us: u64,
    pub(super) key: String,
    /// Epochs that found it since the server started, and those in a row that did not.
    #[serde(skip)]
    pub(super) found: u32,
    #[serde(skip)]
    pub(super) missing: u32,
}

/// Numbers of a proposal, per epoch where they are about scans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Basis {
    pub(crate) scans: f64,
    pub(crate) served: f64,
    pub(crate) read_bytes: f64,
    pub(crate) saved_bytes: f64,
    pub(crate) rows: f64,
    pub(crate) table_rows: f64,
    pub(crate) cost_bytes: f64,
}

impl Basis {
    /// Epochs until it has saved what it costs.
    pub(crate) fn payback_epochs(&self) -> f64 {
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

    /// The statement that makes it.
    pub(crate) fn statement(&self) -> String {
        format!("CREATE HOT VIEW {} AS {}", qualified(&self.view), self.select())
    }

    /// True while it would pay, as the last epoch has it.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Proposed && self.missing == 0
    }

    /// True for the view that somebody made of it.
    pub(super) fn is_made_by(&self, view: &Definition) -> bool {
        let same = view.predicate == self.predicate || view.name == self.view;
        view.mined.is_none() && view.table == self.table && same
    }

    /// It becomes something else.
    pub(super) fn turn(&mut self, state: State, reason: String, now_us: u64) {
        tracing::info!(view = %self.view, state = state.name(), reason, "mined hot view");
        (self.state, self.reason, self.changed_at_us) = (state, reason, now_us);
    }

    fn found(&mut self, find: &Find, basis: Basis, columns: Vec<String>) {
        (self.basis, self.columns, self.predicate) = (basis, columns, find.predicate.clone());
        (self.found, self.missing, self.reason) = (self.found + 1, 0, reason(find, &basis));
    }
}

/// Why it is proposed, for people.
fn reason(find: &Find, basis: &Basis) -> String {
    let size = |bytes: f64| human_readable_size(bytes as usize);
    let share = 100.0 * basis.served / basis.scans.max(1.0);
    format!(
        "of {:.1} scans per epoch with such conditions {share:.0} % asked for these rows only, {:.0} of {:.0}; they read {} \
         that bounds do not exclude, of which {} would be left out; putting the rows together reads and writes {}, saved \
         within {:.1} epochs{}",
        basis.scans,
        basis.rows,
        basis.table_rows,
        size(basis.read_bytes),
        size(basis.saved_bytes),
        size(basis.cost_bytes),
        basis.payback_epochs(),
        if find.moving { "; its window moves with the clock" } else { "" },
    )
}

/// All proposals, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    all: Vec<Proposal>,
    /// States as they were kept last.
    kept: Vec<(TableName, State, u64)>,
}

impl Proposals {
    /// As they were kept.
    pub(super) fn from_kept(all: Vec<Proposal>) -> Self {
        let mut proposals = Self { all, kept: Vec::new() };
        proposals.kept = proposals.states();
        proposals
    }

    pub(super) fn all(&self) -> &[Proposal] {
        &self.all
    }

    pub(super) fn all_mut(&mut self) -> &mut [Proposal] {
        &mut self.all
    }

    /// Calls `keep` with all of them when one is new, gone, or in another state than it was kept in.
    pub(super) fn keep(&mut self, keep: impl FnOnce(&[Proposal]) -> Result<()>) -> Result<()> {
        let states = self.states();
        if states != self.kept {
            keep(&self.all)?;
            self.kept = states;
        }
        Ok(())
    }

    fn states(&self) -> Vec<(TableName, State, u64)> {
        self.all.iter().map(|p| (p.view.clone(), p.state, p.changed_at_us)).collect()
    }

    /// What an epoch found for a table of so many rows and these columns. `named` gives a new view its name, `patience`
    /// is how many epochs in a row a proposal may be missing.
    pub(super) fn epoch(
        &mut self,
        table: (&TableName, f64, &[String]),
        finds: &[Find],
        named: &mut dyn FnMut(&[Proposal]) -> TableName,
        (patience, now_us): (u32, u64),
    ) {
        let (table, table_rows, all_columns) = table;
        let open = |proposal: &Proposal| proposal.state == State::Proposed && proposal.table == *table;
        for find in finds {
            let basis = Basis {
                scans: find.scans,
                served: find.served,
                read_bytes: find.read_bytes,
                saved_bytes: find.saved_bytes,
                rows: find.estimate.rows,
                table_rows,
                cost_bytes: find.estimate.cost_bytes,
            };
            let whole = all_columns.iter().all(|column| find.columns.contains(column));
            let columns = if whole { Vec::new() } else { find.columns.iter().cloned().collect() };
            match self.all.iter_mut().find(|proposal| open(proposal) && proposal.key == find.key) {
                Some(known) => known.found(find, basis, columns),
                None => {
                    let proposal = Proposal {
                        view: named(&self.all),
                        table: table.clone(),
                        columns,
                        predicate: find.predicate.clone(),
                        state: State::Proposed,
                        reason: reason(find, &basis),
                        basis,
                        made_at_us: now_us,
                        changed_at_us: now_us,
                        key: find.key.clone(),
                        found: 1,
                        missing: 0,
                    };
                    self.all.push(proposal);
                }
            }
        }
        let lost = |proposal: &&mut Proposal| open(proposal) && !finds.iter().any(|find| find.key == proposal.key);
        for proposal in self.all.iter_mut().filter(lost) {
            proposal.missing += 1;
            if proposal.missing >= patience {
                let reason =
                    format!("scans of the last {} epochs would not have saved enough with it", proposal.missing);
                proposal.turn(State::Withdrawn, reason, now_us);
            }
        }
        let mut over = self.all.iter().filter(|proposal| proposal.state.is_over()).count();
        self.all.retain(|proposal| {
            let goes = over > MOST_ENDED && proposal.state.is_over();
            over -= usize::from(goes);
            !goes
        });
    }

    /// Proposals of tables that were dropped or got other columns.
    pub(super) fn abandon(&mut self, is_gone: impl Fn(&TableName) -> bool, now_us: u64) {
        let open = |proposal: &&mut Proposal| proposal.state == State::Proposed && is_gone(&proposal.table);
        for proposal in self.all.iter_mut().filter(open) {
            proposal.turn(State::Withdrawn, "its table was dropped or altered".to_owned(), now_us);
        }
    }
}
