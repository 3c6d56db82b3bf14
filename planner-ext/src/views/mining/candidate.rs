//! A view that might pay: patterns of conditions, with all the values that the scans to be served asked for.

use super::pattern::{Pattern, Shape, Slot};
use super::scan::Scan;
use super::sql;
use super::window::{interval, lower_us};
use crate::views::domain::Domain;

/// Values that a view may list.
const MOST_VALUES: usize = 1_000;

/// What a slot of a view allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Room {
    Values(Domain),
    /// All from so many microseconds ago on.
    Window(u64),
}

/// Patterns in their order, and for each slot of theirs whether its lower end moves with the clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Template {
    pub(super) patterns: Vec<Pattern>,
    pub(super) moving: Vec<bool>,
}

impl Template {
    /// Its slots in order, each with whether it moves.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&Slot, bool)> {
        self.patterns.iter().flat_map(Pattern::slots).zip(self.moving.iter().copied())
    }

    /// The values of a scan, slot by slot; `None` when a pattern is missing.
    pub(super) fn domains<'a>(&self, scan: &'a Scan) -> Option<Vec<&'a Domain>> {
        let found = self.patterns.iter().map(|pattern| scan.domains(pattern)).collect::<Option<Vec<_>>>()?;
        Some(found.into_iter().flatten().collect())
    }

    /// What a view of one scan alone would have room for.
    pub(super) fn rooms(&self, scan: &Scan) -> Option<Vec<Room>> {
        let room = |((slot, moving), domain): ((&Slot, bool), &Domain)| {
            if !moving {
                return Some(Room::Values(domain.clone()));
            }
            let ago = i128::from(scan.at_us).checked_sub(lower_us(domain, &slot.data_type)?)?;
            u64::try_from(ago).ok().map(Room::Window)
        };
        self.slots().zip(self.domains(scan)?).map(room).collect()
    }

    /// A name for it that stays the same over restarts.
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
    rooms: Vec<Room>,
}

impl Candidate {
    /// Room for all of some scans; `None` for none of them.
    pub(super) fn of<'a>(template: &Template, parts: impl IntoIterator<Item = &'a Vec<Room>>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut rooms = parts.next()?.clone();
        // Points of many scans are put together at once.
        let mut points: Vec<Vec<Domain>> = vec![Vec::new(); rooms.len()];
        let slots: Vec<&Slot> = template.slots().map(|(slot, _)| slot).collect();
        for other in parts {
            for (((room, other), slot), points) in rooms.iter_mut().zip(other).zip(&slots).zip(&mut points) {
                match (room, other) {
                    (Room::Window(us), Room::Window(other)) => *us = (*us).max(*other),
                    (Room::Values(_), Room::Values(other)) if slot.shape == Shape::Points => points.push(other.clone()),
                    (Room::Values(values), Room::Values(other)) => *values = slot.shape.joined(values, other),
                    _ => return None,
                }
            }
        }
        for (room, points) in rooms.iter_mut().zip(points) {
            match room {
                Room::Values(values) if !points.is_empty() => {
                    *values = Domain::union(points.into_iter().chain([values.clone()]));
                }
                Room::Values(_) => {}
                Room::Window(us) => *us = interval(*us).0,
            }
        }
        Some(Self { template: template.clone(), rooms })
    }

    /// True when it lists no more values than a view should.
    pub(super) fn is_small(&self) -> bool {
        let values = |room: &Room| match room {
            Room::Values(domain) => domain.spans().len(),
            Room::Window(_) => 1,
        };
        self.rooms.iter().map(values).sum::<usize>() <= MOST_VALUES
    }

    /// True when all rows that the scan asks for are its rows, were it bound when the scan ran.
    pub(super) fn covers(&self, scan: &Scan) -> bool {
        let Some(asked) = self.template.rooms(scan) else { return false };
        self.rooms.iter().zip(&asked).all(|(room, asked)| match (room, asked) {
            (Room::Values(values), Room::Values(asked)) => asked.is_within(values),
            (Room::Window(us), Room::Window(asked)) => asked <= us,
            _ => false,
        })
    }

    /// Its condition; `None` for what SQL cannot say here.
    pub(super) fn predicate(&self) -> Option<String> {
        let mut said = self.template.slots().zip(&self.rooms).map(|((slot, _), room)| match room {
            Room::Window(us) => Some(format!("{} >= now() - INTERVAL '{}'", slot.term, interval(*us).1)),
            Room::Values(domain) => sql::domain(&slot.term, &slot.data_type, domain),
        });
        let patterns = &self.template.patterns;
        Some(patterns.iter().map(|pattern| pattern.sql(&mut said)).collect::<Option<Vec<_>>>()?.join(" AND "))
    }
}
