//! Which views of a table would have paid for the scans of the past, and so may pay for those to come.
//!
//! A candidate gets its values from the older epochs and is judged by the newer ones: values that nobody asks for again, and
//! templates that went out of use, serve nothing there. Each scan counts for the view that serves it best: the search
//! takes the best view, gives its scans what is left to read with it, and goes on for the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::candidate::{Candidate, Room, Template};
use super::pattern::{Pattern, Shape};
use super::scan::Scan;
use super::window::{lower_us, moves};

/// Views of a table that are proposed at once.
const MOST_VIEWS: usize = 4;
/// Sets of patterns that are looked at, and patterns of a scan that are combined.
const MOST_TEMPLATES: usize = 64;
const MOST_PATTERNS: usize = 6;
/// Estimates that one view may cost.
const MOST_ESTIMATES: usize = 64;
/// Shares of the different values asked for, those asked for most first, that views are tried with; and counts of them.
const SHARES: [f64; 4] = [1.0, 0.95, 0.8, 0.5];
const COUNTS: [usize; 5] = [1, 4, 16, 64, 256];
/// What a view has to save of that which its scans read.
const LEAST_SHARE: f64 = 0.2;
/// Share of a table that its scans have to read: bounds have done the work where it is less.
const LEAST_ROWS: f64 = 0.05;
/// A pattern more has to be worth it.
const PER_PATTERN: f64 = 0.98;

/// What a view would be like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// Its rows.
    pub(super) rows: f64,
    /// Bytes that its run reads and writes.
    pub(super) cost_bytes: f64,
}

/// What is known of a table.
pub(super) trait Rows {
    /// Its rows.
    fn total(&self) -> f64;

    /// What a view with that condition would be like; `None` when it can be none.
    fn estimate(&mut self, predicate: &str) -> Option<Estimate>;
}

/// When a view pays, and how the past is weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Epochs within which it must have saved what its run costs.
    pub(super) payback_epochs: f64,
    /// Epochs after which a scan counts half.
    pub(super) half_life_epochs: f64,
}

/// A view that would pay.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Find {
    pub(super) key: String,
    pub(super) predicate: String,
    pub(super) moving: bool,
    /// Columns of the scans that it serves.
    pub(super) columns: BTreeSet<String>,
    pub(super) estimate: Estimate,
    /// Per epoch, of those that judged it: executions with these conditions, those of them that it serves, and bytes that
    /// these read, of which it would have saved so many.
    pub(super) scans: f64,
    pub(super) served: f64,
    pub(super) read_bytes: f64,
    pub(super) saved_bytes: f64,
}

/// What of a scan's bytes a view of so many rows leaves out, when the scan reads `left` rows without it.
pub(super) fn saved(scan: &Scan, left: f64, rows: f64) -> f64 {
    scan.runs * scan.volume.bytes * ((left - rows) / scan.volume.rows.max(1.0)).max(0.0)
}

/// The epochs by which views are judged: the newer ones of those with scans. `None` while there is one only.
pub(super) fn judges(scans: &[Scan]) -> Option<Vec<u64>> {
    let epochs: BTreeSet<u64> = scans.iter().map(|scan| scan.epoch).collect();
    let newest = (epochs.len() / 3).max(1);
    (epochs.len() > 1).then(|| epochs.into_iter().rev().take(newest).collect())
}

/// Rows that each scan reads with the views there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Left {
    pub(super) rows: Vec<f64>,
    /// The same without the mined view of a template, by its key: a new one of that template takes its place.
    pub(super) without: BTreeMap<String, Vec<f64>>,
}

impl Left {
    fn without(&self, key: &str) -> &[f64] {
        self.without.get(key).unwrap_or(&self.rows)
    }

    /// A view of so many rows serves a scan; `key` is that of its template when it is a mined one.
    pub(super) fn serve(&mut self, at: usize, view_rows: f64, key: Option<&str>) {
        let others = self.without.iter_mut().filter(|(other, _)| Some(other.as_str()) != key);
        for rows in others.map(|(_, rows)| rows).chain([&mut self.rows]) {
            rows.get_mut(at).into_iter().for_each(|rows| *rows = rows.min(view_rows));
        }
    }

    /// A view is there now, in place of the one of its template.
    fn add(&mut self, (candidate, find): (&Candidate, &Find), scans: &[Scan]) {
        if let Some(without) = self.without.remove(&find.key) {
            self.rows = without;
        }
        for (at, _) in scans.iter().enumerate().filter(|(_, scan)| candidate.covers(scan)) {
            self.serve(at, find.estimate.rows, None);
        }
    }
}

/// Views that pay, the best first, one of a template at most.
pub(super) fn search(scans: &[Scan], mut left: Left, terms: Terms, rows: &mut dyn Rows) -> Vec<Find> {
    let Some(judges) = judges(scans) else { return Vec::new() };
    let mut past = Past { scans, judges, terms, estimates: HashMap::new(), rows };
    let mut templates = past.templates();
    let mut found: Vec<Find> = Vec::new();
    while found.len() < MOST_VIEWS {
        let Some((candidate, find)) = past.best(&templates, &left) else { break };
        left.add((&candidate, &find), scans);
        templates.retain(|supported| supported.key != find.key);
        found.push(find);
    }
    found
}

/// A template with the scans that have its patterns.
struct Supported {
    template: Template,
    key: String,
    scans: Vec<usize>,
}

struct Past<'a> {
    scans: &'a [Scan],
    judges: Vec<u64>,
    terms: Terms,
    estimates: HashMap<String, Option<Estimate>>,
    rows: &'a mut dyn Rows,
}

impl Past<'_> {
    fn judges(&self, scan: &Scan) -> bool {
        self.judges.contains(&scan.epoch)
    }

    /// The sets of patterns that scans with most to read have in common: all of a scan's, pairs of them, single ones.
    fn templates(&self) -> Vec<Supported> {
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
            Supported { key: template.key(), template, scans }
        };
        sets.into_iter().map(supported).collect()
    }

    /// Of each slot, whether its lower end follows the clock.
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

    /// The different values that some scans asked for, those asked for most first.
    fn tuples(&self, template: &Template, scans: &[usize], older: bool) -> Vec<Vec<Room>> {
        let mut tuples: Vec<(Vec<Room>, f64, f64)> = Vec::new();
        let mut known: HashMap<Vec<String>, usize> = HashMap::new();
        let newest = self.scans.iter().map(|scan| scan.epoch).max().unwrap_or(0);
        let wanted = scans.iter().filter_map(|at| self.scans.get(*at)).filter(|scan| !older || !self.judges(scan));
        for scan in wanted {
            let Some(rooms) = template.rooms(scan) else { continue };
            // Windows are all of one kind.
            let key = rooms.iter().map(|room| match room {
                Room::Values(domain) => format!("{domain:?}"),
                Room::Window(_) => String::new(),
            });
            let age = (newest - scan.epoch) as f64;
            let weight = scan.runs * (-age / self.terms.half_life_epochs).exp2();
            let at = *known.entry(key.collect()).or_insert(tuples.len());
            match tuples.get_mut(at) {
                Some((before, total, least)) => {
                    for pair in before.iter_mut().zip(&rooms) {
                        if let (Room::Window(us), Room::Window(other)) = pair {
                            *us = (*us).max(*other);
                        }
                    }
                    *total += weight;
                    *least = least.min(scan.volume.rows);
                }
                None => tuples.push((rooms, weight, scan.volume.rows)),
            }
        }
        // Among equals those first that make no view large.
        tuples.sort_by(|(_, a, x), (_, b, y)| b.total_cmp(a).then(x.total_cmp(y)));
        tuples.into_iter().map(|(rooms, ..)| rooms).collect()
    }

    /// The view that pays best, if one does.
    fn best(&mut self, templates: &[Supported], left: &Left) -> Option<(Candidate, Find)> {
        let mut tried = Vec::new();
        for (at, supported) in templates.iter().enumerate() {
            let older = self.tuples(&supported.template, &supported.scans, true);
            for share in shares(older.len()) {
                let Some(candidate) = Candidate::of(&supported.template, older.iter().take(share.of(older.len())))
                else {
                    continue;
                };
                let most = self.judged(supported, &candidate, left, 0.0).gained;
                if candidate.is_small() && most > 0.0 {
                    tried.push((most, at, share, candidate));
                }
            }
        }
        tried.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let mut best: Option<(f64, Candidate, Find)> = None;
        for (most, at, share, candidate) in tried.into_iter().take(MOST_ESTIMATES) {
            if best.as_ref().is_some_and(|(score, ..)| most <= *score) {
                break;
            }
            let Some(supported) = templates.get(at) else { continue };
            let Some((score, _)) = self.find(supported, (&candidate, &candidate), left) else { continue };
            if best.as_ref().is_some_and(|(before, ..)| score <= *before) {
                continue;
            }
            // It served the newer scans with the values of the older ones; it is proposed with those of both.
            let all = self.tuples(&supported.template, &supported.scans, false);
            let Some(newest) = Candidate::of(&supported.template, all.iter().take(share.of(all.len()))) else {
                continue;
            };
            if let Some((_, find)) =
                newest.is_small().then(|| self.find(supported, (&candidate, &newest), left)).flatten()
            {
                best = Some((score, newest, find));
            }
        }
        best.map(|(_, candidate, find)| (candidate, find))
    }

    /// What a candidate is worth, if it pays, judged by the scans that one of older values serves.
    fn find(
        &mut self,
        supported: &Supported,
        (older, candidate): (&Candidate, &Candidate),
        left: &Left,
    ) -> Option<(f64, Find)> {
        let predicate = candidate.predicate()?;
        let estimate = self.estimate(&predicate)?;
        let judged = self.judged(supported, older, left, estimate.rows);
        let net = judged.gained - estimate.cost_bytes / self.terms.payback_epochs;
        let worth = judged.saved >= LEAST_SHARE * judged.read && judged.rows >= LEAST_ROWS * self.rows.total();
        if net <= 0.0 || !worth {
            return None;
        }
        let template = &candidate.template;
        let covered = supported.scans.iter().filter_map(|at| self.scans.get(*at)).filter(|scan| candidate.covers(scan));
        let find = Find {
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
        Some((net * PER_PATTERN.powi(template.patterns.len() as i32 - 1), find))
    }

    /// Per epoch, of the newer ones, what a view of so many rows does for the scans of its template.
    fn judged(&self, supported: &Supported, candidate: &Candidate, left: &Left, rows: f64) -> Judged {
        let mut judged = Judged::default();
        let without = left.without(&supported.key);
        let scans = supported.scans.iter();
        let scans = scans.filter_map(|at| Some((self.scans.get(*at)?, *left.rows.get(*at)?, *without.get(*at)?)));
        for (scan, left, without) in scans.filter(|(scan, ..)| self.judges(scan)) {
            let covered = candidate.covers(scan);
            // A scan that the view whose place it takes serves, and it does not, reads more.
            let then = if covered { without.min(rows) } else { without };
            judged.gained += saved(scan, left, then) - saved(scan, then, left);
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
        let Judged { scans, served, read, saved, gained, .. } = judged;
        let [scans, served, read, saved, gained] = [scans, served, read, saved, gained].map(|total| total / epochs);
        Judged { scans, served, read, saved, gained, rows }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Judged {
    scans: f64,
    served: f64,
    read: f64,
    saved: f64,
    /// The same against the views there are, less what is lost with the one whose place it takes.
    gained: f64,
    /// That one of the scans reads which are served.
    rows: f64,
}

/// How many of the values a view has.
#[derive(Debug, Clone, Copy)]
enum Share {
    Count(usize),
    Of(f64),
}

impl Share {
    fn of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Of(share) => (share * all as f64).ceil() as usize,
        }
    }
}

/// Different ones, for so many values.
fn shares(all: usize) -> Vec<Share> {
    let counts = COUNTS.into_iter().map(Share::Count);
    let mut shares: Vec<Share> = SHARES.into_iter().map(Share::Of).chain(counts).collect();
    let mut known = BTreeSet::new();
    shares.retain(|share| (1..=all).contains(&share.of(all)) && known.insert(share.of(all)));
    shares
}
