//! What segments would choose at given prices.

use super::Options;
use super::instance::Row;

/// Prices per byte, by cell of the options.
pub(super) struct Prices {
    of_cells: Vec<f64>,
    /// Number of cells of each option.
    counts: Vec<usize>,
}

/// The two best options of a segment at given prices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) option: usize,
    /// Cost and price of its bytes.
    pub(super) reduced: f64,
    /// Price of its bytes.
    pub(super) paid: f64,
    /// Cost and price of the bytes of the second best option.
    second: f64,
    pub(super) second_paid: f64,
}

impl Prices {
    /// Lays out the prices of capacities by cells.
    pub(super) fn new(options: &Options, prices: &[f64]) -> Self {
        let price = |capacity: usize| prices.get(capacity).copied().unwrap_or(0.0);
        Self { of_cells: options.capacity_of_cells().map(price).collect(), counts: options.cell_counts().collect() }
    }

    /// The cost of a segment under each option, and the price of the bytes that it takes there.
    #[inline]
    pub(super) fn paid<'a>(&'a self, row: Row<'a>) -> Paid<'a> {
        Paid {
            costs: row.costs.iter(),
            counts: self.counts.iter(),
            bytes: row.bytes.iter(),
            prices: self.of_cells.iter(),
        }
    }

    /// The best option of a segment, with its cost and the price of its bytes.
    #[inline]
    pub(super) fn cheapest(&self, row: Row<'_>) -> (usize, f64) {
        let mut best = (0, f64::INFINITY);
        for (option, (cost, paid)) in self.paid(row).enumerate() {
            let reduced = cost + paid;
            if reduced < best.1 {
                best = (option, reduced);
            }
        }
        best
    }

    /// The best and the second best option of a segment.
    #[inline]
    pub(super) fn choose(&self, row: Row<'_>) -> Choice {
        let mut best = Choice { option: 0, reduced: f64::INFINITY, paid: 0.0, second: f64::INFINITY, second_paid: 0.0 };
        for (option, (cost, paid)) in self.paid(row).enumerate() {
            let reduced = cost + paid;
            if reduced < best.reduced {
                best = Choice { option, reduced, paid, second: best.reduced, second_paid: best.paid };
            } else if reduced < best.second {
                (best.second, best.second_paid) = (reduced, paid);
            }
        }
        best
    }
}

/// Pairs of cost and price, option by option. Not a `Zip`, see [`super::instance::Rows`].
#[derive(Debug, Clone)]
pub(super) struct Paid<'a> {
    costs: std::slice::Iter<'a, f64>,
    counts: std::slice::Iter<'a, usize>,
    bytes: std::slice::Iter<'a, f64>,
    prices: std::slice::Iter<'a, f64>,
}

impl Iterator for Paid<'_> {
    type Item = (f64, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (cost, cells) = (*self.costs.next()?, *self.counts.next()?);
        let mut paid = 0.0;
        for _ in 0..cells {
            if let (Some(bytes), Some(price)) = (self.bytes.next(), self.prices.next()) {
                paid += price * bytes;
            }
        }
        Some((cost, paid))
    }
}

impl Choice {
    /// How much worse the second best is.
    #[inline]
    pub(super) fn regret(&self) -> f64 {
        self.second - self.reduced
    }
}
