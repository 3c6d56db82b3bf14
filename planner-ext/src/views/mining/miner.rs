//! One turn of mining: the log of an epoch comes in, proposals and what is to be done go out.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use terrace_tier_store::table::{Table, TableName};

use super::log::AskedLog;
use super::options::{MiningMode, MiningOptions};
use super::proposal::{Proposal, Proposals, State};
use super::scan::{Scan, columns};
use super::search::{Estimate, Find, Rows, Terms, judges, search};
use crate::error::Result;
use crate::scan::ScanSource;
use crate::views::bound::BoundView;
use crate::views::condition::{Bounded, Condition};
use crate::views::definition::{Definition, Mined};
use crate::views::filter::Verdict;
use crate::views::registry::{HotViews, Views};

/// Epochs that have to find a view before the server makes it.
const SURE_AFTER: u32 = 2;
/// A mined view that saves less than this share of what it was made for does not pay.
const POOR: f64 = 0.1;
/// A new view has to save so many times as much as the one that gives way to it.
const BETTER: f64 = 2.0;
/// Of the scans that a find claims to serve, the share that the check has to confirm.
const CONFIRMED: f64 = 0.9;

/// What the server is to do by itself.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Make a view, in place of one of the same name.
    Create(Box<Definition>),
    /// Drop one of its own, for this reason.
    Retire(TableName, String),
}

/// What is learned from statements.
#[derive(Debug)]
pub(crate) struct Miner {
    log: Arc<AskedLog>,
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
        Self { log: AskedLog::new(), known: Mutex::default() }
    }

    /// Where scans are noted.
    pub(crate) fn log(&self) -> &Arc<AskedLog> {
        &self.log
    }

    /// Notes scans, unless nobody wants to learn from them.
    pub(crate) fn prepare(&self, options: &MiningOptions) {
        self.log.switch(options.mode != MiningMode::Off);
    }

    /// All proposals there are and were, the oldest first.
    pub(crate) fn proposals(&self) -> Vec<Proposal> {
        self.known.lock().proposals.all().to_vec()
    }

    /// An action was carried out.
    pub(crate) fn done(&self, action: &Action) {
        let (known, now_us) = (&mut *self.known.lock(), self.log.now_us());
        match action {
            Action::Create(definition) => {
                let made = |p: &&mut Proposal| p.state == State::Proposed && p.view == definition.name;
                known.poor.remove(&definition.name);
                if let Some(proposal) = known.proposals.all_mut().iter_mut().find(made) {
                    proposal.turn(State::Created, proposal.reason.clone(), now_us);
                }
            }
            Action::Retire(view, reason) => {
                known.poor.remove(view);
                let made = |p: &&mut Proposal| p.state == State::Created && p.view == *view;
                known
                    .proposals
                    .all_mut()
                    .iter_mut()
                    .filter(made)
                    .for_each(|p| p.turn(State::Retired, reason.clone(), now_us));
            }
        }
    }

    /// Ends an epoch. What is to be done is empty unless the mode is auto.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(crate) fn epoch(&self, hot_views: &HotViews, options: &MiningOptions) -> Result<Vec<Action>> {
        let (views, now_us, known) = (hot_views.current()?, self.log.now_us(), &mut *self.known.lock());
        known.epoch += 1;
        known.take(&self.log, options.epochs());
        let mut tables: Vec<TableName> = known.tables.keys().cloned().collect();
        tables.sort();
        let mut actions = Vec::new();
        for name in tables {
            let Some(past) = known.tables.get(&name) else { continue };
            let table = hot_views.store.table(&name).ok().filter(|table| *table.schema() == past.schema);
            let Some(table) = table else {
                known.tables.remove(&name);
                known.proposals.abandon(&name, now_us);
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
            known.note_taken(&views, &name, now_us);
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

    /// Proposals that are views now.
    fn note_taken(&mut self, views: &Views, table: &TableName, now_us: u64) {
        let open = |p: &&mut Proposal| p.state == State::Proposed && p.table == *table;
        for proposal in self.proposals.all_mut().iter_mut().filter(open) {
            let same = |view: &&Arc<BoundView>| {
                let definition = view.definition();
                definition.mined.is_none()
                    && (definition.predicate == proposal.predicate || definition.name == proposal.view)
            };
            if let Some(view) = views.of(table).iter().find(same) {
                let reason = format!("hot view '{}' has its rows", view.definition().name);
                proposal.turn(State::Taken, reason, now_us);
            }
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
        sure.retain(|proposal| proposal.state == State::Proposed && proposal.found >= SURE_AFTER);
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
    left: Vec<f64>,
    /// Scans per epoch that ask for the rows of each only, in the epochs that judge.
    hits: HashMap<TableName, f64>,
}

impl Served {
    fn of(scans: &[Scan], views: &Views, rows: &mut TableRows<'_>) -> Self {
        let mut left: Vec<f64> = scans.iter().map(|scan| scan.volume.rows).collect();
        let judges = judges(scans).unwrap_or_default();
        let mut hits = HashMap::new();
        for view in views.of(rows.table.name()) {
            let Some(estimate) = rows.estimate(&view.definition().predicate) else { continue };
            let mut total = 0.0;
            let mut bound: HashMap<u64, Option<Arc<BoundView>>> = HashMap::new();
            for (scan, left) in scans.iter().zip(&mut left) {
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
                *left = left.min(estimate.rows);
            }
            hits.insert(view.definition().name.clone(), total / judges.len().max(1) as f64);
        }
        Self { left, hits }
    }
}

/// Estimates by the samples and bounds of a table.
struct TableRows<'a> {
    hot_views: &'a HotViews,
    table: &'a Arc<Table>,
    source: Arc<ScanSource>,
    now_us: u64,
}

impl<'a> TableRows<'a> {
    fn new(hot_views: &'a HotViews, table: &'a Arc<Table>, now_us: u64) -> Self {
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
    fn at_epoch(&self, view: &Arc<BoundView>, scans: &[Scan], epoch: u64) -> Option<Arc<BoundView>> {
        if !view.is_moving() {
            return Some(Arc::clone(view));
        }
        let first_us = scans.iter().filter(|scan| scan.epoch == epoch).map(|scan| scan.at_us).min()?;
        let bound_at_us = first_us.min(view.definition().bound_at_us);
        self.bind(Definition { bound_at_us, ..view.definition().as_ref().clone() })
    }

    /// True when the check says of as many scans as the find that they ask for its rows only.
    fn confirms(&self, find: &Find, scans: &[Scan]) -> bool {
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
        let (sure, unsure) = (volume(Bounded::Everything), volume(Bounded::Unsure));
        let rows = self.source.estimated_rows(filters)?.clamp(sure.rows, sure.rows + unsure.rows);
        // All columns of the chunks in which there may be some rows and others are read, and written anew.
        Some(Estimate { rows, cost_bytes: 2.0 * unsure.bytes })
    }
}
