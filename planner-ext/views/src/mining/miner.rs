//! One epoch of mining: turns the log of the epoch into proposals and actions.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use terrace_error::Result;
use terrace_scan::hot_views::{MiningCounters, MiningMode, MiningOptions, ProposalState};
use terrace_tier_store::Store;
use terrace_tier_store::table::TableName;

use super::log::ScanLog;
use super::proposal::{Proposal, Proposals, TableSummary};
use super::scan::{Scan, columns};
use super::search::{RemainingRows, RowEstimates, SearchParameters, judging_epochs, search};
use super::stored_proposals;
use super::table_rows::TableRows;
use crate::bound::BoundView;
use crate::definition::{Definition, Mined};
use crate::filter::Verdict;
use crate::registry::{HotViews, Views};

/// Number of epochs that have to find a view before the server makes it.
const SURE_AFTER: u32 = 2;
/// A mined view that saves less than this share of the bytes that it was expected to save does not pay.
const POOR: f64 = 0.1;
/// A new view has to save this many times as much as the view that is dropped for it.
const BETTER: f64 = 2.0;

/// An action that the server is to carry out.
#[derive(Debug, Clone)]
pub enum Action {
    /// Make a view, in place of one of the same name.
    Create(Box<Definition>),
    /// Drop a mined view, for this reason.
    Retire(TableName, String),
}

impl Action {
    /// The view that is made or dropped.
    pub fn view(&self) -> &TableName {
        match self {
            Self::Create(definition) => &definition.name,
            Self::Retire(view, _) => view,
        }
    }
}

/// Finds views that would pay for the logged statements.
#[derive(Debug)]
pub struct Miner {
    log: Arc<ScanLog>,
    counters: Arc<MiningCounters>,
    state: Mutex<MinerState>,
}

#[derive(Debug, Default)]
struct MinerState {
    epoch: u64,
    tables: HashMap<TableName, ScanHistory>,
    proposals: Proposals,
    /// For each mined view the number of consecutive epochs in which it did not pay.
    poor: HashMap<TableName, u32>,
}

/// The scans of a table, the oldest epoch first.
#[derive(Debug)]
struct ScanHistory {
    schema: SchemaRef,
    epochs: VecDeque<(u64, Vec<Scan>)>,
}

impl Miner {
    pub(crate) fn new() -> Self {
        let counters = Arc::default();
        Self { log: ScanLog::new(Arc::clone(&counters)), counters, state: Mutex::default() }
    }

    /// Counts since the server started.
    pub fn counters(&self) -> &MiningCounters {
        &self.counters
    }

    /// The log of scans.
    pub(crate) fn log(&self) -> &Arc<ScanLog> {
        &self.log
    }

    /// Starts logging scans unless mining is off, and loads the proposals from before the server started.
    pub fn prepare(&self, store: &Store, options: &MiningOptions) {
        self.log.switch(options.mode != MiningMode::Off);
        let before = stored_proposals::load(store).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot load the stored proposals of hot views; mining starts without them");
            Vec::new()
        });
        self.counters.show(before.iter().map(|proposal| proposal.state));
        self.state.lock().proposals = Proposals::from_stored(before);
    }

    /// Stores proposals that changed.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn store_proposals(&self, store: &Store) -> Result<()> {
        let proposals = &mut self.state.lock().proposals;
        self.counters.show(proposals.all().iter().map(|proposal| proposal.state));
        proposals.store_changes(|all| stored_proposals::save(store, all))
    }

    /// All open proposals and the latest closed ones, the oldest first.
    pub fn proposals(&self) -> Vec<Proposal> {
        self.state.lock().proposals.all().to_vec()
    }

    /// Rejects an open proposal: its view is neither proposed again nor made by the server.
    pub fn reject(&self, view: &TableName) {
        let now_us = self.log.now_us();
        self.state.lock().proposals.reject(view, now_us);
    }

    /// Whether a user rejected the proposal of a view.
    pub fn is_rejected(&self, view: &TableName) -> bool {
        let is_meant = |proposal: &Proposal| proposal.state == ProposalState::Rejected && proposal.view == *view;
        self.state.lock().proposals.all().iter().any(is_meant)
    }

    /// Notes that an action was carried out.
    pub fn done(&self, action: &Action) {
        let known = &mut *self.state.lock();
        let now_us = self.log.now_us();
        let change_states =
            |known: &mut MinerState, view: &TableName, from: ProposalState, to: ProposalState, reason: Option<&str>| {
                known.poor.remove(view);
                let all = known.proposals.all_mut().iter_mut();
                for proposal in all.filter(|p| p.state == from && p.view == *view) {
                    let reason = reason.map_or_else(|| proposal.reason.clone(), str::to_owned);
                    proposal.change_state(to, reason, now_us);
                }
            };
        match action {
            Action::Create(definition) => {
                let reason = format!("scans now ask for other values: version {} replaced it", definition.version);
                change_states(known, &definition.name, ProposalState::Created, ProposalState::Retired, Some(&reason));
                change_states(known, &definition.name, ProposalState::Proposed, ProposalState::Created, None);
                self.counters.created();
            }
            Action::Retire(view, reason) => {
                change_states(known, view, ProposalState::Created, ProposalState::Retired, Some(reason));
                self.counters.retired();
            }
        }
    }

    /// Ends an epoch and returns the actions to carry out; there are none unless the mode is auto.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn epoch(&self, hot_views: &HotViews, options: &MiningOptions) -> Result<Vec<Action>> {
        let views = hot_views.current()?;
        let now_us = self.log.now_us();
        let known = &mut *self.state.lock();
        known.epoch += 1;
        known.take(&self.log, options.epochs());
        known.update_states(&views, now_us);
        known.proposals.abandon(|table| hot_views.store.table(table).is_err(), now_us);
        let mut tables: Vec<TableName> = known.tables.keys().cloned().collect();
        tables.sort();
        let mut actions = Vec::new();
        for name in tables {
            let Some(history) = known.tables.get(&name) else { continue };
            let table = hot_views.store.table(&name).ok().filter(|table| *table.schema() == history.schema);
            let Some(table) = table else {
                known.tables.remove(&name);
                known.proposals.abandon(|table| *table == name, now_us);
                continue;
            };
            // Epochs without scans of a table do not count for it.
            if history.epochs.back().is_none_or(|(epoch, _)| *epoch != known.epoch) {
                continue;
            }
            let columns: Vec<String> = history.schema.fields().iter().map(|field| field.name().clone()).collect();
            let scans: Vec<Scan> = history.epochs.iter().flat_map(|(_, scans)| scans).cloned().collect();
            let mut rows = TableRows::new(hot_views, &table, now_us);
            let benefits = ViewBenefits::new(&scans, &views, &mut rows);
            let parameters =
                SearchParameters { payback_epochs: options.payback_epochs, half_life_epochs: options.half_life_epochs };
            let mut paying = search(&scans, benefits.remaining, parameters, &mut rows);
            paying.retain(|view| rows.confirms(view, &scans));
            let taken: BTreeSet<TableName> = views.iter().map(|status| status.definition.name.clone()).collect();
            let mut new_name = |proposals: &[Proposal]| new_name(&name, &taken, proposals);
            let summary = TableSummary { name: &name, rows: table.version().live_rows() as f64, columns: &columns };
            known.proposals.epoch(&summary, &paying, &mut new_name, options.retire_after, now_us);
            if options.mode == MiningMode::Auto && judging_epochs(&scans).is_some() {
                actions.extend(known.retirements(&views, &benefits.hits, options.retire_after));
            }
        }
        if options.mode == MiningMode::Auto {
            actions.extend(known.creations(&views, options.most_views, &actions, now_us));
        }
        Ok(actions)
    }
}

impl MinerState {
    /// Takes the scans that were logged since the last epoch.
    fn take(&mut self, log: &ScanLog, most_epochs: usize) {
        let epoch = self.epoch;
        for logged in log.take() {
            let schema = &logged.table.schema;
            let Some(columns) = columns(schema) else { continue };
            let scans: Vec<Scan> =
                logged.scans.iter().filter_map(|scan| Scan::from_log(scan, &columns, epoch)).collect();
            let name = logged.table.name.clone();
            tracing::debug!(table = %name, scans = scans.len(), missed = logged.missed, "mining the logged scans");
            let history = self
                .tables
                .entry(name)
                .or_insert_with(|| ScanHistory { schema: Arc::clone(schema), epochs: VecDeque::new() });
            if history.schema != *schema {
                *history = ScanHistory { schema: Arc::clone(schema), epochs: VecDeque::new() };
            }
            history.epochs.push_back((epoch, scans));
            if history.epochs.len() > most_epochs {
                history.epochs.pop_front();
            }
        }
    }

    /// Updates the states of proposals whose views were made, dropped or replaced meanwhile.
    fn update_states(&mut self, views: &Views, now_us: u64) {
        for proposal in self.proposals.all_mut() {
            let own = views.get(&proposal.view).map(|status| &status.definition).filter(|view| view.mined.is_some());
            let (state, reason) = match proposal.state {
                // The server made the view and went down before it stored the new state.
                ProposalState::Proposed if own.is_some_and(|view| view.predicate == proposal.predicate) => {
                    (ProposalState::Created, proposal.reason.clone())
                }
                ProposalState::Proposed => match views.iter().find(|status| proposal.is_made_by(&status.definition)) {
                    Some(status) => {
                        (ProposalState::Taken, format!("hot view '{}' already has its rows", status.definition.name))
                    }
                    None => continue,
                },
                ProposalState::Created if own.is_none() => {
                    (ProposalState::Retired, "a user dropped or replaced it".to_owned())
                }
                _ => continue,
            };
            proposal.change_state(state, reason, now_us);
        }
    }

    /// Retires mined views that stopped paying; `hits` are the scans per epoch that asked for rows of the view only.
    fn retirements(&mut self, views: &Views, hits: &HashMap<TableName, f64>, patience: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        for (view, hits) in hits {
            let Some(status) = views.get(view) else { continue };
            let Some(mined) = status.definition.mined.as_ref().filter(|_| status.published.is_some()) else { continue };
            let saved = hits * mined.saved_bytes_per_scan as f64;
            let poor = self.poor.entry(view.clone()).or_default();
            *poor = if saved < POOR * mined.saved_bytes as f64 { *poor + 1 } else { 0 };
            if *poor >= patience {
                let reason = format!(
                    "for {poor} epochs it saved less than {:.0} % of the expected bytes: {saved:.0} bytes per epoch \
                     instead of {}",
                    POOR * 100.0,
                    mined.saved_bytes
                );
                actions.push(Action::Retire(view.clone(), reason));
            }
        }
        actions
    }

    /// Creates views from proposals, and retires mined views that are replaced by better ones.
    fn creations(&mut self, views: &Views, most: usize, retired: &[Action], now_us: u64) -> Vec<Action> {
        let goes =
            |name: &TableName| retired.iter().any(|action| matches!(action, Action::Retire(view, _) if view == name));
        let mut mined: Vec<(TableName, TableName, Mined)> = Vec::new();
        for status in views.iter().filter(|status| !goes(&status.definition.name)) {
            let Definition { name, table, mined: own, .. } = status.definition.as_ref();
            mined.extend(own.clone().map(|own| (name.clone(), table.clone(), own)));
        }
        let mut sure: Vec<&mut Proposal> = self.proposals.all_mut().iter_mut().collect();
        sure.retain(|proposal| proposal.is_open() && proposal.found >= SURE_AFTER);
        sure.sort_by(|a, b| b.basis.saved_bytes.total_cmp(&a.basis.saved_bytes));
        let mut actions = Vec::new();
        for proposal in sure {
            let saves = proposal.basis.saved_bytes;
            let same = mined.iter().find(|(_, table, own)| *table == proposal.table && own.key == proposal.key);
            let replaced = same.and_then(|(name, ..)| views.get(name)).map(|status| Arc::clone(&status.definition));
            if replaced.is_none() && mined.len() >= most {
                let least = mined.iter().min_by_key(|(_, _, own)| own.saved_bytes).filter(|_| most > 0);
                let Some((name, ..)) = least.filter(|(_, _, own)| saves > BETTER * own.saved_bytes as f64).cloned()
                else {
                    continue;
                };
                actions.push(Action::Retire(name.clone(), format!("hot view '{}' saves more bytes", proposal.view)));
                mined.retain(|(other, ..)| *other != name);
            }
            if let Some(replaced) = &replaced {
                proposal.view = replaced.name.clone();
            }
            let per_scan = (saves / proposal.basis.served.max(f64::MIN_POSITIVE)) as u64;
            let own = Mined { key: proposal.key.clone(), saved_bytes: saves as u64, saved_bytes_per_scan: per_scan };
            mined.push((proposal.view.clone(), proposal.table.clone(), own.clone()));
            actions.push(Action::Create(Box::new(Definition {
                name: proposal.view.clone(),
                table: proposal.table.clone(),
                columns: proposal.columns.clone(),
                select: proposal.select(),
                predicate: proposal.predicate.clone(),
                decimal_literals: true,
                version: replaced.as_ref().map_or(1, |before| before.version + 1),
                bound_at_us: now_us,
                made_at_us: now_us,
                mark: None,
                published: None,
                refresh_us: crate::USUAL_REFRESH.as_micros() as u64,
                budget_bytes: None,
                mined: Some(own),
            })));
        }
        actions
    }
}

/// An unused name for a view of a table.
fn new_name(table: &TableName, taken: &BTreeSet<TableName>, proposals: &[Proposal]) -> TableName {
    let name = |number: u32| TableName::new(table.schema.clone(), format!("auto_{}_{number}", table.name));
    let free = |name: &TableName| !taken.contains(name) && proposals.iter().all(|proposal| proposal.view != *name);
    (1..).map(name).find(free).unwrap_or_else(|| name(0))
}

/// Benefits of the existing views for scans.
struct ViewBenefits {
    /// Rows that each scan reads with the views.
    remaining: RemainingRows,
    /// For each view the scans per judging epoch that ask for its rows only.
    hits: HashMap<TableName, f64>,
}

impl ViewBenefits {
    fn new(scans: &[Scan], views: &Views, rows: &mut TableRows<'_>) -> Self {
        let all: Vec<f64> = scans.iter().map(|scan| scan.volume.rows).collect();
        let judges = judging_epochs(scans).unwrap_or_default();
        let mut remaining = RemainingRows { rows: all, ..RemainingRows::default() };
        let mut hits = HashMap::new();
        for view in views.for_table(rows.table.name()) {
            let Some(estimate) = rows.estimate(&view.definition().predicate) else { continue };
            let key = view.definition().mined.as_ref().map(|mined| mined.key.as_str());
            if let Some(key) = key {
                remaining.without.insert(key.to_owned(), remaining.rows.clone());
            }
            let mut total = 0.0;
            let mut bound: HashMap<u64, Option<Arc<BoundView>>> = HashMap::new();
            for (at, scan) in scans.iter().enumerate() {
                // The present window does not show whether earlier windows served earlier scans, so the view is bound
                // anew for each epoch.
                let bind = || rows.at_epoch(view, scans, scan.epoch);
                let Some(then) = bound.entry(scan.epoch).or_insert_with(bind) else { continue };
                let columns = scan.columns.iter().map(String::as_str);
                if scan.filter.check(then) != Verdict::Implied || !then.missing_columns(columns).is_empty() {
                    continue;
                }
                if judges.contains(&scan.epoch) {
                    total += scan.runs;
                }
                remaining.serve(at, estimate.rows, key);
            }
            hits.insert(view.definition().name.clone(), total / judges.len().max(1) as f64);
        }
        Self { remaining, hits }
    }
}
