//! The options from which every segment of a problem picks one.
//!
//! An option is a way to keep a segment: on a tier, in a form there, or on two tiers at once. It takes bytes of one
//! capacity, or of several; the home takes bytes of none. A *cell* is one capacity of one option: the bytes of a segment
//! are listed cell by cell.

use std::ops::Range;

/// The capacities of which each option takes bytes. The last option is the home, which takes none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The capacity of each cell, option by option.
    capacities: Vec<u8>,
    /// Where the cells of each option begin, and where the last ones end.
    bounds: Vec<usize>,
}

impl Options {
    /// One option for each of `tiers` capacities, in their order, and the home.
    pub fn by_tier(tiers: usize) -> Self {
        Self::new((0..tiers).map(|tier| [tier as u8]))
    }

    /// Options that take bytes of the listed capacities, by position, and the home after them.
    pub fn new<C: AsRef<[u8]>>(options: impl IntoIterator<Item = C>) -> Self {
        let mut capacities = Vec::new();
        let mut bounds = vec![0];
        for option in options {
            capacities.extend_from_slice(option.as_ref());
            bounds.push(capacities.len());
        }
        bounds.push(capacities.len());
        Self { capacities, bounds }
    }

    /// Number of options, the home included.
    pub fn count(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Position of the home.
    pub fn home(&self) -> usize {
        self.bounds.len().saturating_sub(2)
    }

    /// Number of cells of a segment.
    pub fn cells(&self) -> usize {
        self.capacities.len()
    }

    /// Cells of an option.
    #[inline]
    pub(super) fn cells_of(&self, option: usize) -> Range<usize> {
        match self.bounds.get(option..=option + 1) {
            Some([start, end]) => *start..*end,
            _ => 0..0,
        }
    }

    /// Numbers of cells of the options.
    pub(super) fn cell_counts(&self) -> impl Iterator<Item = usize> {
        (0..self.count()).map(|option| self.cells_of(option).len())
    }

    /// The capacity of each cell.
    pub(super) fn capacity_of_cells(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.capacities.iter().map(|capacity| usize::from(*capacity))
    }

    /// The capacities of which an option takes bytes.
    #[inline]
    pub(super) fn capacities_of(&self, option: usize) -> &[u8] {
        self.capacities.get(self.cells_of(option)).unwrap_or(&[])
    }
}
