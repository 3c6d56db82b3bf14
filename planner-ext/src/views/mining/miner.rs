//! One turn of mining: the log of an epoch comes in, proposals and what is to be done go out.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use terrace_tier_store::Store;
use terrace_tier_store::table::TableName;

use super::counters::MiningCounters;
use super::kept;
use super::log::AskedLog;
use super::options::{MiningMode, MiningOptions};
use super::proposal::{Proposal, Proposals, State};
use super::scan::{Scan, columns};
use super::search::{Left, Rows, Terms, judges, search};
use super::table_rows::TableRows;
use crate::error::Result;
use crate::views::bound::BoundView;
use crate::views::definition::{Definition, Mined};
use crate::views::filter::Verdict;
use crate::views::registry::{HotViews, Views};

/// Epochs that have to find a view before the server makes it.
const SURE_AFTER: u32 = 2;
/// A mined view that saves less than this share of what it was made for does not pay.
const POOR: f64 = 0.1;
/// A new view has to save so many times as much as the one that gives way to it.
const BETTER: f64 = 2.0;

/// What the server is to do by itself.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Make a view, in place of one of the same name.
    Create(Box<Definition>),
    /// Drop one of its own, for this reason.
    Retire(TableName, String),
}

impl Action {
    /// What it is about.
    pub(crate) fn view(&self) -> &TableName {
        match self {
            Self::Create(definition) => &definition.name,
            Self::Retire(view, _) => view,
        }
    }
}

/// What is learned from statements.
#[derive(Debug)]
pub(crate) struct Miner {
    log: Arc<AskedLog>,
    counters: Arc<MiningCounters>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    epoch: u64,
    tables: HashMap<TableName, Past>,
    proposals: Proposals,
    /// Of mined views, epochs in a row in which they did not pay.
    poor: HashMap<TableName, u32>,
}

/// The scans of a table, the oldest epoch first.
#[derive(Debug)]
struct Past {
    schema: SchemaRef,
    epochs: VecDeque<(u64, Vec<Scan>)>,
}

impl Miner {
    pub(crate) fn new() -> Self {
        let counters = Arc::default();
        Self { log: AskedLog::new(Arc::clone(&counters)), counters, known: Mutex::default() }
    }

    /// What was learned since the server started.
    pub(crate) fn counters(&self) -> &MiningCounters {
        &self.counters
    }

    /// Where scans are noted.
    pub(crate) fn log(&self) -> &Arc<AskedLog> {
        &self.log
    }

    /// Notes scans from now on, unless nobody wants to learn from them, and knows what was proposed before.
    pub(crate) fn prepare(&self, store: &Store, options: &MiningOptions) {
        self.log.switch(options.mode != MiningMode::Off);
        let before = kept::load(store).unwrap_or_else(|error| {
            tracing::warn!(%error, "hot views are proposed anew");
            Vec::new()
        });
        self.counters.show(&before);
        self.known.lock().proposals = Proposals::from_kept(before);
    }

    /// Stores proposals that changed.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub(crate) fn keep(&self, store: &Store) -> Result<()> {
        let proposals = &mut self.known.lock().proposals;
        self.counters.show(proposals.all());
        proposals.keep(|all| kept::save(store, all))
    }

    /// All proposals there are and were, the oldest first.
    pub(crate) fn proposals(&self) -> Vec<Proposal> {
        self.known.lock().proposals.all().to_vec()
    }

    /// An action was carried out.
    pub(crate) fn done(&self, action: &Action) {
        let known = &mut *self.known.lock();
        let now_us = self.log.now_us();
        let turn = |known: &mut Known, view: &TableName, (from, to): (State, State), reason: Option<&str>| {
            known.poor.remove(view);
            let all = known.proposals.all_mut().iter_mut();
            for proposal in all.filter(|p| p.state == from && p.view == *view) {
                let reason = reason.map_or_else(|| proposal.reason.clone(), str::to_owned);
                proposal.turn(to, reason, now_us);
            }
        };
        match action {
            Action::Create(definition) => {
                let reason = format!("other values are asked for: version {} took its place", definition.version);
                turn(known, &definition.name, (State::Created, State::Retired), Some(&reason));
                turn(known, &definition.name, (State::Proposed, State::Created), None);
                self.counters.created();
            }
            Action::Retire(view, reason) => {
                turn(known, view, (State::Created, State::Retired), Some(reason));
                self.counters.retired();
            }
        }
    }

    /// Ends an epoch. What is to be done is empty unless the mode is auto.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(crate) fn epoch(&self, hot_views: &HotViews, options: &MiningOptions) -> Result<Vec<Action>> {
        let views = hot_views.current()?;
        let now_us = self.log.now_us();
        let known = &mut *self.known.lock();
        known.epoch += 1;
        known.take(&self.log, options.epochs());
        known.note_others(&views, now_us);
        known.proposals.abandon(|table| hot_views.store.table(table).is_err(), now_us);
        let mut tables: Vec<TableName> = known.tables.keys().cloned().collect();
        tables.sort();
        let mut actions = Vec::new();
        for name in tables {
            let Some(past) = known.tables.get(&name) else { continue };
            let table = hot_views.store.table(&name).ok().filter(|table| *table.schema() == past.schema);
            let Some(table) = table else {
                known.tables.remove(&name);
                known.proposals.abandon(|table| *table == name, now_us);
                continue;
            };
            // Epochs in which nobody asked a table for anything are none of its own.
            if past.epochs.back().is_none_or(|(epoch, _)| *epoch != known.epoch) {
                continue;
            }
            let columns: Vec<String> = past.schema.fields().iter().map(|field| field.name().clone()).collect();
            let scans: Vec<Scan> = past.epochs.iter().flat_map(|(_, scans)| scans).cloned().collect();
            let mut rows = TableRows::new(hot_views, &table, now_us);
            let served = Served::of(&scans, &views, &mut rows);
            let terms = Terms { payback_epochs: options.payback_epochs, half_life_epochs: options.half_life_epochs };
            let mut finds = search(&scans, served.left, terms, &mut rows);
            finds.retain(|find| rows.confirms(find, &scans));
            let taken: BTreeSet<TableName> = views.iter().map(|status| status.definition.name.clone()).collect();
            let mut named = |proposals: &[Proposal]| new_name(&name, &taken, proposals);
            let rows = table.version().live_rows() as f64;
            known.proposals.epoch((&name, rows, &columns), &finds, &mut named, (options.retire_after, now_us));
            if options.mode == MiningMode::Auto && judges(&scans).is_some() {
                actions.extend(known.retirements(&views, &served.hits, options.retire_after));
            }
        }
        if options.mode == MiningMode::Auto {
            actions.extend(known.creations(&views, options.most_views, &actions, now_us));
        }
        Ok(actions)
    }
}

impl Known {
    /// What was noted since the last epoch.
    fn take(&mut self, log: &AskedLog, most_epochs: usize) {
        let epoch = self.epoch;
        for noted in log.take() {
            let schema = noted.table.schema();
            let Some(columns) = columns(schema) else { continue };
            let scans: Vec<Scan> = noted.scans.iter().filter_map(|asked| Scan::of(asked, &columns, epoch)).collect();
            let name = noted.table.name().clone();
            tracing::debug!(table = %name, scans = scans.len(), missed = noted.missed, "scans to learn from");
            let past =
                self.tables.entry(name).or_insert_with(|| Past { schema: Arc::clone(schema), epochs: VecDeque::new() });
            if past.schema != *schema {
                *past = Past { schema: Arc::clone(schema), epochs: VecDeque::new() };
            }
            past.epochs.push_back((epoch, scans));
            if past.epochs.len() > most_epochs {
                past.epochs.pop_front();
            }
        }
    }

    /// What became of proposals without the server's doing.
    fn note_others(&mut self, views: &Views, now_us: u64) {
        for proposal in self.proposals.all_mut() {
            let own = views.get(&proposal.view).map(|status| &status.definition).filter(|view| view.mined.is_some());
            let (state, reason) = match proposal.state {
                // It was made when the server went down.
                State::Proposed if own.is_some_and(|view| view.predicate == proposal.predicate) => {
                    (State::Created, proposal.reason.clone())
                }
                State::Proposed => match views.iter().find(|status| proposal.is_made_by(&status.definition)) {
                    Some(status) => (State::Taken, format!("hot view '{}' has its rows", status.definition.name)),
                    None => continue,
                },
                State::Created if own.is_none() => (State::Retired, "somebody dropped or replaced it".to_owned()),
                _ => continue,
            };
            proposal.turn(state, reason, now_us);
        }
    }

    /// Mined views that stopped paying; `hits` are scans per epoch that asked for their rows only.
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
                    "for {poor} epochs it left out less than {:.0} % of what it was made for: {saved:.0} bytes per epoch instead \
                     of {}",
                    POOR * 100.0,
                    mined.saved_bytes
                );
                actions.push(Action::Retire(view.clone(), reason));
            }
        }
        actions
    }

    /// Proposals that become views, and those of the server's own that give way to them.
    fn creations(&mut self, views: &Views, most: usize, retired: &[Action], now_us: u64) -> Vec<Action> {
        let goes =
            |name: &TableName| retired.iter().any(|action| matches!(action, Action::Retire(view, _) if view == name));
        let mut mined: Vec<(TableName, TableName, Mined)> = Vec::new();
        for status in views.iter().filter(|status| !goes(&status.definition.name)) {
            let Definition { name, table, mined: of, .. } = status.definition.as_ref();
            mined.extend(of.clone().map(|of| (name.clone(), table.clone(), of)));
        }
        let mut sure: Vec<&mut Proposal> = self.proposals.all_mut().iter_mut().collect();
        sure.retain(|proposal| proposal.is_open() && proposal.found >= SURE_AFTER);
        sure.sort_by(|a, b| b.basis.saved_bytes.total_cmp(&a.basis.saved_bytes));
        let mut actions = Vec::new();
        for proposal in sure {
            let saves = proposal.basis.saved_bytes;
            let same = mined.iter().find(|(_, table, of)| *table == proposal.table && of.key == proposal.key);
            let replaced = same.and_then(|(name, ..)| views.get(name)).map(|status| Arc::clone(&status.definition));
            if replaced.is_none() && mined.len() >= most {
                let least = mined.iter().min_by_key(|(_, _, of)| of.saved_bytes).filter(|_| most > 0);
                let Some((name, ..)) = least.filter(|(_, _, of)| saves > BETTER * of.saved_bytes as f64).cloned()
                else {
                    continue;
                };
                actions.push(Action::Retire(name.clone(), format!("'{}' saves more", proposal.view)));
                mined.retain(|(other, ..)| *other != name);
            }
            if let Some(replaced) = &replaced {
                proposal.view = replaced.name.clone();
            }
            let per_scan = (saves / proposal.basis.served.max(f64::MIN_POSITIVE)) as u64;
            let of = Mined { key: proposal.key.clone(), saved_bytes: saves as u64, saved_bytes_per_scan: per_scan };
            mined.push((proposal.view.clone(), proposal.table.clone(), of.clone()));
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
                refresh_us: crate::views::USUAL_REFRESH.as_micros() as u64,
                budget_bytes: None,
                mined: Some(of),
            })));
        }
        actions
    }
}

/// A name for a view of a table that nobody has.
fn new_name(table: &TableName, taken: &BTreeSet<TableName>, proposals: &[Proposal]) -> TableName {
    let name = |number: u32| TableName::new(table.schema.clone(), format!("auto_{}_{number}", table.name));
    let free = |name: &TableName| !taken.contains(name) && proposals.iter().all(|proposal| proposal.view != *name);
    (1..).map(name).find(free).unwrap_or_else(|| name(0))
}

/// What the views there are do for scans.
struct Served {
    /// Rows that each scan reads with them.
    left: Left,
    /// Scans per epoch that ask for the rows of each only, in the epochs that judge.
    hits: HashMap<TableName, f64>,
}

impl Served {
    fn of(scans: &[Scan], views: &Views, rows: &mut TableRows<'_>) -> Self {
        let all: Vec<f64> = scans.iter().map(|scan| scan.volume.rows).collect();
        let judges = judges(scans).unwrap_or_default();
        let mut left = Left { rows: all, ..Left::default() };
        let mut hits = HashMap::new();
        for view in views.of(rows.table.name()) {
            let Some(estimate) = rows.estimate(&view.definition().predicate) else { continue };
            let key = view.definition().mined.as_ref().map(|mined| mined.key.as_str());
            if let Some(key) = key {
                left.without.insert(key.to_owned(), left.rows.clone());
            }
            let mut total = 0.0;
            let mut bound: HashMap<u64, Option<Arc<BoundView>>> = HashMap::new();
            for (at, scan) in scans.iter().enumerate() {
                // A window of today says nothing of the scans of yesterday.
                let of_epoch = || rows.at_epoch(view, scans, scan.epoch);
                let Some(then) = bound.entry(scan.epoch).or_insert_with(of_epoch) else { continue };
                let columns = scan.columns.iter().map(String::as_str);
                if scan.filter.check(then) != Verdict::Implied || !then.lacks(columns).is_empty() {
                    continue;
                }
                if judges.contains(&scan.epoch) {
                    total += scan.runs;
                }
                left.serve(at, estimate.rows, key);
            }
            hits.insert(view.definition().name.clone(), total / judges.len().max(1) as f64);
        }
        Self { left, hits }
    }
}
