//! Candidates for views: patterns of conditions, with all values that the scans to be served asked for.

use super::pattern::{Pattern, Shape, Slot};
use super::scan::Scan;
use super::sql;
use super::window::{interval, lower_us};
use crate::domain::Domain;

/// Most values that a view may list.
const MOST_VALUES: usize = 1_000;

/// The values that a slot of a view allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotValues {
    Values(Domain),
    /// All times since this many microseconds ago.
    Window(u64),
}

/// Sorted patterns, and for each of their slots whether its lower end moves with the clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Template {
    pub(super) patterns: Vec<Pattern>,
    pub(super) moving: Vec<bool>,
}

impl Template {
    /// The slots in order, each with whether it moves.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&Slot, bool)> {
        self.patterns.iter().flat_map(Pattern::slots).zip(self.moving.iter().copied())
    }

    /// The values of a scan, slot by slot; `None` when a pattern is missing.
    pub(super) fn domains<'a>(&self, scan: &'a Scan) -> Option<Vec<&'a Domain>> {
        let found = self.patterns.iter().map(|pattern| scan.domains(pattern)).collect::<Option<Vec<_>>>()?;
        Some(found.into_iter().flatten().collect())
    }

    /// The slot values of a view for this scan alone.
    pub(super) fn slot_values(&self, scan: &Scan) -> Option<Vec<SlotValues>> {
        let slot_values = |((slot, moving), domain): ((&Slot, bool), &Domain)| {
            if !moving {
                return Some(SlotValues::Values(domain.clone()));
            }
            let ago = i128::from(scan.at_us).checked_sub(lower_us(domain, &slot.data_type)?)?;
            u64::try_from(ago).ok().map(SlotValues::Window)
        };
        self.slots().zip(self.domains(scan)?).map(slot_values).collect()
    }

    /// A name of the template that stays the same over restarts.
    pub(super) fn key(&self) -> String {
        let mut slots = self.slots().map(|(slot, moving)| {
            Some(match (&slot.shape, moving) {
                (_, true) => format!("{} within now() - ?", slot.term),
                (Shape::Points, _) => format!("{} in ?", slot.term),
                (Shape::Above, _) => format!("{} from ?", slot.term),
                (Shape::Below, _) => format!("{} up to ?", slot.term),
                (Shape::Range, _) => format!("{} between ?", slot.term),
                (Shape::Fixed(text), _) => text.clone(),
            })
        });
        let parts = self.patterns.iter().map(|pattern| pattern.sql(&mut slots).unwrap_or_default());
        parts.collect::<Vec<_>>().join(" AND ")
    }
}

/// A template with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) template: Template,
    slot_values: Vec<SlotValues>,
}

impl Candidate {
    /// Merges the slot values of several scans; `None` without any scan.
    pub(super) fn merge<'a>(template: &Template, parts: impl IntoIterator<Item = &'a Vec<SlotValues>>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut slot_values = parts.next()?.clone();
        // The points of many scans are united at the end, as uniting them one by one would be quadratic.
        let mut points: Vec<Vec<Domain>> = vec![Vec::new(); slot_values.len()];
        let slots: Vec<&Slot> = template.slots().map(|(slot, _)| slot).collect();
        for other in parts {
            for (((allowed, other), slot), points) in slot_values.iter_mut().zip(other).zip(&slots).zip(&mut points) {
                match (allowed, other) {
                    (SlotValues::Window(us), SlotValues::Window(other)) => *us = (*us).max(*other),
                    (SlotValues::Values(_), SlotValues::Values(other)) if slot.shape == Shape::Points => {
                        points.push(other.clone())
                    }
                    (SlotValues::Values(values), SlotValues::Values(other)) => {
                        *values = slot.shape.joined(values, other)
                    }
                    _ => return None,
                }
            }
        }
        for (allowed, points) in slot_values.iter_mut().zip(points) {
            match allowed {
                SlotValues::Values(values) if !points.is_empty() => {
                    *values = Domain::union(points.into_iter().chain([values.clone()]));
                }
                SlotValues::Values(_) => {}
                SlotValues::Window(us) => *us = interval(*us).0,
            }
        }
        Some(Self { template: template.clone(), slot_values })
    }

    /// True when it lists no more values than a view may.
    pub(super) fn is_small(&self) -> bool {
        let values = |slot: &SlotValues| match slot {
            SlotValues::Values(domain) => domain.spans().len(),
            SlotValues::Window(_) => 1,
        };
        self.slot_values.iter().map(values).sum::<usize>() <= MOST_VALUES
    }

    /// True when all rows that the scan asks for would belong to the view, had it been bound when the scan ran.
    pub(super) fn covers(&self, scan: &Scan) -> bool {
        let Some(asked) = self.template.slot_values(scan) else { return false };
        self.slot_values.iter().zip(&asked).all(|(allowed, asked)| match (allowed, asked) {
            (SlotValues::Values(values), SlotValues::Values(asked)) => asked.is_within(values),
            (SlotValues::Window(us), SlotValues::Window(asked)) => asked <= us,
            _ => false,
        })
    }

    /// The condition as SQL; `None` if it cannot be written in SQL.
    pub(super) fn predicate(&self) -> Option<String> {
        let mut conditions = self.template.slots().zip(&self.slot_values).map(|((slot, _), allowed)| match allowed {
            SlotValues::Window(us) => Some(format!("{} >= now() - INTERVAL '{}'", slot.term, interval(*us).1)),
            SlotValues::Values(domain) => sql::domain(&slot.term, &slot.data_type, domain),
        });
        let patterns = &self.template.patterns;
        Some(patterns.iter().map(|pattern| pattern.sql(&mut conditions)).collect::<Option<Vec<_>>>()?.join(" AND "))
    }
}
