//! A placement problem: capacities, options, and what each segment costs and takes under each option.

use terrace_model::{Error, Result};

use super::Options;

/// A placement problem. Row `i` of a matrix is segment `i`.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Capacities in bytes; infinite for no limit. Scarce and fast ones first.
    pub capacities: Vec<f64>,
    /// The options of every segment.
    pub options: Options,
    /// Row-major: cost of each segment under each option; infinite = not allowed. The home must be allowed.
    pub costs: Vec<f64>,
    /// Row-major: whole bytes that the segment would take, one number for each cell of the options.
    pub bytes: Vec<f64>,
}

impl Instance {
    /// A problem without segments yet, with one option for each capacity and the home.
    pub fn by_tier(capacities: Vec<f64>) -> Self {
        let options = Options::by_tier(capacities.len());
        Self { capacities, options, costs: Vec::new(), bytes: Vec::new() }
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.costs.len().checked_div(self.options.count()).unwrap_or(0)
    }

    /// Costs and bytes of each segment.
    pub(super) fn rows(&self) -> Rows<'_> {
        let options = self.options.count().max(1);
        Rows { costs: &self.costs, bytes: &self.bytes, options, cells: self.options.cells() }
    }

    pub(super) fn row(&self, segment: usize) -> Row<'_> {
        let options = segment * self.options.count()..(segment + 1) * self.options.count();
        let cells = segment * self.options.cells()..(segment + 1) * self.options.cells();
        Row { costs: self.costs.get(options).unwrap_or(&[]), bytes: self.bytes.get(cells).unwrap_or(&[]) }
    }

    /// Cost of a segment under an option; infinite where it is not allowed.
    pub fn cost(&self, segment: usize, option: usize) -> f64 {
        self.costs.get(segment * self.options.count() + option).copied().unwrap_or(f64::INFINITY)
    }

    /// Bytes of a segment, one number for each cell of the options.
    pub fn cells(&self, segment: usize) -> &[f64] {
        self.row(segment).bytes
    }

    /// Bytes that a segment takes under an option: pairs of capacity and bytes.
    #[inline]
    pub fn taken(&self, segment: usize, option: usize) -> Taken<'_> {
        self.row(segment).taken(&self.options, option)
    }

    /// True when `room` has the bytes that a segment takes under an option.
    pub fn fits(&self, room: &[f64], segment: usize, option: usize) -> bool {
        fits(room, self.taken(segment, option))
    }

    /// Takes the bytes of a segment under an option from `room`.
    pub fn take(&self, room: &mut [f64], segment: usize, option: usize) {
        take(room, self.taken(segment, option));
    }

    /// Room of each capacity that `choice` leaves; negative where it is exceeded.
    pub fn room(&self, choice: &[u8]) -> Vec<f64> {
        let mut room = self.capacities.clone();
        for (segment, option) in choice.iter().enumerate() {
            self.take(&mut room, segment, usize::from(*option));
        }
        room
    }

    /// Sum of costs of `choice`.
    pub fn objective(&self, choice: &[u8]) -> f64 {
        choice.iter().enumerate().map(|(segment, option)| self.cost(segment, usize::from(*option))).sum()
    }

    /// True when every segment has an allowed option and no capacity is exceeded: the independent check of any answer.
    pub fn is_feasible(&self, choice: &[u8]) -> bool {
        let fits = choice.len() == self.segments() && self.room(choice).iter().all(|room| *room >= 0.0);
        fits && self.objective(choice).is_finite()
    }

    /// True when the capacities of an option exist, and none is listed twice.
    fn lists_capacities(&self, option: usize) -> bool {
        let listed = self.options.capacities_of(option);
        let is_first = |(at, capacity)| !listed.iter().take(at).any(|earlier| earlier == capacity);
        listed.iter().all(|capacity| usize::from(*capacity) < self.capacities.len())
            && listed.iter().enumerate().all(is_first)
    }

    pub(super) fn validate(&self) -> Result<()> {
        let (options, cells) = (self.options.count(), self.options.cells());
        let shape = (1..=usize::from(u8::MAX)).contains(&options)
            && self.costs.len().is_multiple_of(options)
            && self.bytes.len() == self.segments() * cells
            && (0..options).all(|option| self.lists_capacities(option));
        // Comparisons with NaN are false, so these refuse it.
        let row = |Row { costs, bytes }: Row<'_>| {
            costs.iter().all(|cost| *cost > f64::NEG_INFINITY)
                && costs.last().is_some_and(|home| home.is_finite())
                && bytes.iter().all(|bytes| (0.0..f64::INFINITY).contains(bytes))
        };
        if shape && self.capacities.iter().all(|capacity| *capacity >= 0.0) && self.rows().all(row) {
            return Ok(());
        }
        Err(Error::Invalid("a placement problem needs finite home costs, whole bytes and no negative capacity".into()))
    }
}

/// True when `room` has all of `taken`, pairs of capacity and bytes.
#[inline]
pub(super) fn fits(room: &[f64], taken: impl Iterator<Item = (usize, f64)>) -> bool {
    for (capacity, bytes) in taken {
        if room.get(capacity).is_none_or(|room| bytes > *room) {
            return false;
        }
    }
    true
}

/// Takes `taken`, pairs of capacity and bytes, from `room`.
#[inline]
pub(super) fn take(room: &mut [f64], taken: impl Iterator<Item = (usize, f64)>) {
    for (capacity, bytes) in taken {
        if let Some(room) = room.get_mut(capacity) {
            *room -= bytes;
        }
    }
}

/// Costs of one segment by option, and its bytes by cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) costs: &'a [f64],
    pub(super) bytes: &'a [f64],
}

impl<'a> Row<'a> {
    /// Bytes that the segment takes under an option: pairs of capacity and bytes.
    #[inline]
    pub(super) fn taken(self, options: &'a Options, option: usize) -> Taken<'a> {
        Taken { capacities: options.capacities_of(option).iter(), bytes: self.cells(options, option).iter() }
    }

    /// Bytes that the segment takes of one capacity under an option.
    #[inline]
    pub(super) fn taken_of(self, options: &Options, option: usize, capacity: usize) -> f64 {
        let mut sum = 0.0;
        for (of, bytes) in self.taken(options, option) {
            if of == capacity {
                sum += bytes;
            }
        }
        sum
    }

    /// Bytes of an option by its cells.
    #[inline]
    pub(super) fn cells(self, options: &Options, option: usize) -> &'a [f64] {
        self.bytes.get(options.cells_of(option)).unwrap_or(&[])
    }
}

/// Pairs of capacity and bytes. Not a `Zip`, see [`Rows`].
#[derive(Debug, Clone)]
pub struct Taken<'a> {
    capacities: std::slice::Iter<'a, u8>,
    bytes: std::slice::Iter<'a, f64>,
}

impl Iterator for Taken<'_> {
    type Item = (usize, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Some((usize::from(*self.capacities.next()?), *self.bytes.next()?))
    }
}

/// See [`Instance::rows`]. Not a `Zip` of chunks, which costs a call per row where it is compiled in another codegen unit.
#[derive(Debug, Clone)]
pub(super) struct Rows<'a> {
    costs: &'a [f64],
    bytes: &'a [f64],
    options: usize,
    cells: usize,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    #[inline]
    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        let costs = self.costs.get(skipped.saturating_mul(self.options)..)?;
        let bytes = self.bytes.get(skipped.saturating_mul(self.cells)..)?;
        let (costs, later_costs) = costs.split_at_checked(self.options)?;
        let (bytes, later_bytes) = bytes.split_at_checked(self.cells)?;
        self.costs = later_costs;
        self.bytes = later_bytes;
        Some(Row { costs, bytes })
    }
}
