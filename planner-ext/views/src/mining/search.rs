//! The search for views of a table that would have paid for past scans, and so may pay for future ones.
//!
//! A candidate gets its values from the older epochs and is judged by the newer ones: values that are not asked for
//! again, and templates that went out of use, serve nothing there. Each scan counts for the view that serves it best:
//! the search takes the best view, lowers the remaining rows of the scans that it serves, and goes on with what
//! remains.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::candidate::{Candidate, SlotValues, Template};
use super::pattern::{Pattern, Shape};
use super::scan::Scan;
use super::window::{lower_us, moves};

/// Most views of a table that are proposed at once.
const MOST_VIEWS: usize = 4;
/// Most sets of patterns that are examined.
const MOST_TEMPLATES: usize = 64;
/// Most patterns of a scan that are combined.
const MOST_PATTERNS: usize = 6;
/// Most estimates for finding one view.
const MOST_ESTIMATES: usize = 64;
/// Shares of the different values, the most frequent first, with which views are tried.
const SHARES: [f64; 4] = [1.0, 0.95, 0.8, 0.5];
/// Numbers of values with which views are tried.
const COUNTS: [usize; 5] = [1, 4, 16, 64, 256];
/// Share of the bytes read by its scans that a view has to save.
const LEAST_SHARE: f64 = 0.2;
/// Least share of a table that a view's scans have to read: if they read less, bounds are selective enough.
const LEAST_ROWS: f64 = 0.05;
/// Factor of the score for each further pattern, so that simpler views are preferred.
const PER_PATTERN: f64 = 0.98;

/// Estimate of a view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// Rows of the view.
    pub(super) rows: f64,
    /// Bytes that its tiering run reads and writes.
    pub(super) cost_bytes: f64,
}

/// Row estimates for a table.
pub(super) trait RowEstimates {
    /// Rows of the table.
    fn total(&self) -> f64;

    /// Estimate of a view with this condition; `None` if it cannot be the condition of a view.
    fn estimate(&mut self, predicate: &str) -> Option<Estimate>;
}

/// Parameters that decide when a view pays, and how past epochs are weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchParameters {
    /// Epochs within which it must have saved what its run costs.
    pub(super) payback_epochs: f64,
    /// Epochs after which a scan counts half.
    pub(super) half_life_epochs: f64,
}

/// A view that would pay.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PayingView {
    pub(super) key: String,
    pub(super) predicate: String,
    pub(super) moving: bool,
    /// Columns of the scans that it serves.
    pub(super) columns: BTreeSet<String>,
    pub(super) estimate: Estimate,
    /// Executions per judging epoch with these conditions.
    pub(super) scans: f64,
    /// Executions among these that the view serves.
    pub(super) served: f64,
    /// Bytes that the served executions read.
    pub(super) read_bytes: f64,
    /// Bytes among these that the view would have saved.
    pub(super) saved_bytes: f64,
}

/// Bytes that a view of `rows` rows saves a scan that reads `rows_before` rows without it.
pub(super) fn saved(scan: &Scan, rows_before: f64, rows: f64) -> f64 {
    scan.runs * scan.volume.bytes * ((rows_before - rows) / scan.volume.rows.max(1.0)).max(0.0)
}

/// The epochs by which views are judged: the newest third of those with scans. `None` while there is only one epoch.
pub(super) fn judging_epochs(scans: &[Scan]) -> Option<Vec<u64>> {
    let epochs: BTreeSet<u64> = scans.iter().map(|scan| scan.epoch).collect();
    let newest = (epochs.len() / 3).max(1);
    (epochs.len() > 1).then(|| epochs.into_iter().rev().take(newest).collect())
}

/// Rows that each scan still reads with the existing views.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RemainingRows {
    pub(super) rows: Vec<f64>,
    /// By the key of a template: rows that each scan reads without the mined view of this template, which a new view of
    /// the template would replace.
    pub(super) without: BTreeMap<String, Vec<f64>>,
}

impl RemainingRows {
    fn without(&self, key: &str) -> &[f64] {
        self.without.get(key).unwrap_or(&self.rows)
    }

    /// Notes that a view of `view_rows` rows serves a scan; `key` is that of its template if it is a mined view.
    pub(super) fn serve(&mut self, at: usize, view_rows: f64, key: Option<&str>) {
        let others = self.without.iter_mut().filter(|(other, _)| Some(other.as_str()) != key);
        for rows in others.map(|(_, rows)| rows).chain([&mut self.rows]) {
            rows.get_mut(at).into_iter().for_each(|rows| *rows = rows.min(view_rows));
        }
    }

    /// Notes that a view exists now, in place of the mined one of its template.
    fn add(&mut self, candidate: &Candidate, view: &PayingView, scans: &[Scan]) {
        if let Some(without) = self.without.remove(&view.key) {
            self.rows = without;
        }
        for (at, _) in scans.iter().enumerate().filter(|(_, scan)| candidate.covers(scan)) {
            self.serve(at, view.estimate.rows, None);
        }
    }
}

/// Finds views that pay, the best first, at most one of each template.
pub(super) fn search(
    scans: &[Scan],
    mut remaining: RemainingRows,
    parameters: SearchParameters,
    rows: &mut dyn RowEstimates,
) -> Vec<PayingView> {
    let Some(judges) = judging_epochs(scans) else { return Vec::new() };
    let mut search = Search { scans, judges, parameters, estimates: HashMap::new(), rows };
    let mut templates = search.templates();
    let mut found: Vec<PayingView> = Vec::new();
    while found.len() < MOST_VIEWS {
        let Some((candidate, view)) = search.best(&templates, &remaining) else { break };
        remaining.add(&candidate, &view, scans);
        templates.retain(|supported| supported.key != view.key);
        found.push(view);
    }
    found
}

/// A template with the scans that have its patterns.
struct SupportedTemplate {
    template: Template,
    key: String,
    scans: Vec<usize>,
}

/// State of a search.
struct Search<'a> {
    scans: &'a [Scan],
    /// Epochs by which views are judged.
    judges: Vec<u64>,
    parameters: SearchParameters,
    estimates: HashMap<String, Option<Estimate>>,
    rows: &'a mut dyn RowEstimates,
}

impl Search<'_> {
    fn is_judging(&self, scan: &Scan) -> bool {
        self.judges.contains(&scan.epoch)
    }

    /// The sets of patterns of the scans that read most: all patterns of a scan, pairs of them, single ones.
    fn templates(&self) -> Vec<SupportedTemplate> {
        let mut sets: BTreeMap<Vec<&Pattern>, (f64, Vec<usize>)> = BTreeMap::new();
        for (at, scan) in self.scans.iter().enumerate() {
            let all: Vec<&Pattern> =
                scan.conjuncts.iter().map(|conjunct| &conjunct.pattern).take(MOST_PATTERNS).collect();
            let single = all.iter().map(|pattern| vec![*pattern]);
            let later = |first: usize| all.iter().skip(first + 1);
            let pairs = all.iter().enumerate().flat_map(|(at, first)| later(at).map(|second| vec![*first, *second]));
            let own: BTreeSet<Vec<&Pattern>> =
                single.chain(pairs).chain([all.clone()]).filter(|set| !set.is_empty()).collect();
            for set in own {
                let (bytes, scans) = sets.entry(set).or_default();
                *bytes += scan.runs * scan.volume.bytes;
                scans.push(at);
            }
        }
        let mut sets: Vec<_> = sets.into_iter().collect();
        sets.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
        sets.truncate(MOST_TEMPLATES);
        let supported = |(set, (_, scans)): (Vec<&Pattern>, (f64, Vec<usize>))| {
            let patterns: Vec<Pattern> = set.into_iter().cloned().collect();
            let moving = self.moving(&patterns, &scans);
            let template = Template { patterns, moving };
            SupportedTemplate { key: template.key(), template, scans }
        };
        sets.into_iter().map(supported).collect()
    }

    /// For each slot, whether its lower end follows the clock.
    fn moving(&self, patterns: &[Pattern], scans: &[usize]) -> Vec<bool> {
        let plain = Template { patterns: patterns.to_vec(), moving: Vec::new() };
        let asked: Vec<_> = scans.iter().filter_map(|at| self.scans.get(*at)).collect();
        let asked: Vec<_> = asked.into_iter().filter_map(|scan| Some((scan.at_us, plain.domains(scan)?))).collect();
        let slots = patterns.iter().flat_map(Pattern::slots).enumerate();
        let slots = slots.map(|(slot_at, slot)| {
            let lower = |(at_us, domains): &(u64, Vec<_>)| {
                Some((*at_us, lower_us(domains.get(slot_at).copied()?, &slot.data_type)?))
            };
            let open = matches!(slot.shape, Shape::Above | Shape::Range);
            open && moves(&asked.iter().filter_map(lower).collect::<Vec<_>>())
        });
        slots.collect()
    }

    fn estimate(&mut self, predicate: &str) -> Option<Estimate> {
        if let Some(known) = self.estimates.get(predicate) {
            return *known;
        }
        let estimate = self.rows.estimate(predicate);
        self.estimates.insert(predicate.to_owned(), estimate);
        estimate
    }

    /// The different slot values that some scans asked for, the most frequent first; with `older` only those of scans
    /// that do not judge.
    fn tuples(&self, template: &Template, scans: &[usize], older: bool) -> Vec<Vec<SlotValues>> {
        let mut tuples: Vec<(Vec<SlotValues>, f64, f64)> = Vec::new();
        let mut known: HashMap<Vec<String>, usize> = HashMap::new();
        let newest = self.scans.iter().map(|scan| scan.epoch).max().unwrap_or(0);
        let wanted = scans.iter().filter_map(|at| self.scans.get(*at)).filter(|scan| !older || !self.is_judging(scan));
        for scan in wanted {
            let Some(slot_values) = template.slot_values(scan) else { continue };
            // All windows count as the same values: the longest one is taken.
            let key = slot_values.iter().map(|values| match values {
                SlotValues::Values(domain) => format!("{domain:?}"),
                SlotValues::Window(_) => String::new(),
            });
            let age = (newest - scan.epoch) as f64;
            let weight = scan.runs * (-age / self.parameters.half_life_epochs).exp2();
            let at = *known.entry(key.collect()).or_insert(tuples.len());
            match tuples.get_mut(at) {
                Some((before, total, least)) => {
                    for pair in before.iter_mut().zip(&slot_values) {
                        if let (SlotValues::Window(us), SlotValues::Window(other)) = pair {
                            *us = (*us).max(*other);
                        }
                    }
                    *total += weight;
                    *least = least.min(scan.volume.rows);
                }
                None => tuples.push((slot_values, weight, scan.volume.rows)),
            }
        }
        // Among equally frequent values the ones of the smallest scans come first, as they keep the view small.
        tuples.sort_by(|(_, a, x), (_, b, y)| b.total_cmp(a).then(x.total_cmp(y)));
        tuples.into_iter().map(|(slot_values, ..)| slot_values).collect()
    }

    /// The view that pays best, if one pays.
    fn best(&mut self, templates: &[SupportedTemplate], remaining: &RemainingRows) -> Option<(Candidate, PayingView)> {
        let mut tried = Vec::new();
        for (at, supported) in templates.iter().enumerate() {
            let older = self.tuples(&supported.template, &supported.scans, true);
            for share in shares(older.len()) {
                let Some(candidate) =
                    Candidate::merge(&supported.template, older.iter().take(share.count_of(older.len())))
                else {
                    continue;
                };
                // An upper bound of the gain, without an estimate: a view without any rows.
                let most = self.judge(supported, &candidate, remaining, 0.0).gained;
                if candidate.is_small() && most > 0.0 {
                    tried.push((most, at, share, candidate));
                }
            }
        }
        tried.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let mut best: Option<(f64, Candidate, PayingView)> = None;
        for (most, at, share, candidate) in tried.into_iter().take(MOST_ESTIMATES) {
            // Candidates are sorted by their upper bounds, so no later one can be better.
            if best.as_ref().is_some_and(|(score, ..)| most <= *score) {
                break;
            }
            let Some(supported) = templates.get(at) else { continue };
            let Some((score, _)) = self.evaluate(supported, &candidate, &candidate, remaining) else { continue };
            if best.as_ref().is_some_and(|(before, ..)| score <= *before) {
                continue;
            }
            // The candidate was judged with the values of the older epochs; it is proposed with those of all epochs.
            let all = self.tuples(&supported.template, &supported.scans, false);
            let Some(newest) = Candidate::merge(&supported.template, all.iter().take(share.count_of(all.len()))) else {
                continue;
            };
            if let Some((_, view)) =
                newest.is_small().then(|| self.evaluate(supported, &candidate, &newest, remaining)).flatten()
            {
                best = Some((score, newest, view));
            }
        }
        best.map(|(_, candidate, view)| (candidate, view))
    }

    /// The score of a candidate, if it pays, judged by the scans that `older`, the candidate with older values, serves.
    fn evaluate(
        &mut self,
        supported: &SupportedTemplate,
        older: &Candidate,
        candidate: &Candidate,
        remaining: &RemainingRows,
    ) -> Option<(f64, PayingView)> {
        let predicate = candidate.predicate()?;
        let estimate = self.estimate(&predicate)?;
        let judged = self.judge(supported, older, remaining, estimate.rows);
        let net = judged.gained - estimate.cost_bytes / self.parameters.payback_epochs;
        let worth = judged.saved >= LEAST_SHARE * judged.read && judged.rows >= LEAST_ROWS * self.rows.total();
        if net <= 0.0 || !worth {
            return None;
        }
        let template = &candidate.template;
        let covered = supported.scans.iter().filter_map(|at| self.scans.get(*at)).filter(|scan| candidate.covers(scan));
        let view = PayingView {
            key: supported.key.clone(),
            predicate,
            moving: template.moving.contains(&true),
            columns: covered.flat_map(|scan| scan.columns.iter().cloned()).collect(),
            estimate,
            scans: judged.scans,
            served: judged.served,
            read_bytes: judged.read,
            saved_bytes: judged.saved,
        };
        Some((net * PER_PATTERN.powi(template.patterns.len() as i32 - 1), view))
    }

    /// The gains per judging epoch of a view of `rows` rows for the scans of its template.
    fn judge(
        &self,
        supported: &SupportedTemplate,
        candidate: &Candidate,
        remaining: &RemainingRows,
        rows: f64,
    ) -> Gains {
        let mut judged = Gains::default();
        let without = remaining.without(&supported.key);
        let scans = supported.scans.iter();
        let scans = scans.filter_map(|at| Some((self.scans.get(*at)?, *remaining.rows.get(*at)?, *without.get(*at)?)));
        for (scan, before, without) in scans.filter(|(scan, ..)| self.is_judging(scan)) {
            let covered = candidate.covers(scan);
            // A scan that the replaced view serves, and the new one does not, reads more than before.
            let after = if covered { without.min(rows) } else { without };
            judged.gained += saved(scan, before, after) - saved(scan, after, before);
            judged.scans += scan.runs;
            if covered {
                judged.served += scan.runs;
                judged.read += saved(scan, scan.volume.rows, 0.0);
                judged.rows += scan.runs * scan.volume.rows;
                judged.saved += saved(scan, without, rows);
            }
        }
        let epochs = self.judges.len() as f64;
        let rows = judged.rows / judged.served.max(1.0);
        let Gains { scans, served, read, saved, gained, .. } = judged;
        let [scans, served, read, saved, gained] = [scans, served, read, saved, gained].map(|total| total / epochs);
        Gains { scans, served, read, saved, gained, rows }
    }
}

/// Gains of a view per epoch: executions, and bytes of the served ones.
#[derive(Debug, Clone, Copy, Default)]
struct Gains {
    scans: f64,
    served: f64,
    read: f64,
    /// Bytes saved compared with scans without mined views of this template.
    saved: f64,
    /// Bytes saved compared with the existing views, less those lost with the replaced view.
    gained: f64,
    /// Average rows that one of the served executions reads.
    rows: f64,
}

/// Number of the values that a view has.
#[derive(Debug, Clone, Copy)]
enum Share {
    Count(usize),
    Of(f64),
}

impl Share {
    fn count_of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Of(share) => (share * all as f64).ceil() as usize,
        }
    }
}

/// The shares that give different numbers of `all` values.
fn shares(all: usize) -> Vec<Share> {
    let counts = COUNTS.into_iter().map(Share::Count);
    let mut shares: Vec<Share> = SHARES.into_iter().map(Share::Of).chain(counts).collect();
    let mut known = BTreeSet::new();
    shares.retain(|share| (1..=all).contains(&share.count_of(all)) && known.insert(share.count_of(all)));
    shares
}
