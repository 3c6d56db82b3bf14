//! The highest point under a few planes within the unit box: a linear programme with a variable for each price.
//!
//! ```text
//!   most h:  h <= at_k + slope_k . p  for every plane k,  0 <= p <= 1
//! ```
//!
//! Solved by the simplex method on its dual, whose basis has one row more than there are prices, however many planes there
//! are: every plane is a column of it. A basis to start from is known, so there is no first phase, and the inverse of the
//! basis is kept. A general solver takes longer to set up than this takes to answer.

/// What is negative by less than this is zero.
const TOLERANCE: f64 = 1e-10;
/// Pivots after which the first column that helps is taken instead of the one that helps most, so that none comes back
/// again and again.
const HASTY: usize = 64;
/// Pivots after which the search is given up.
const MOST: usize = 10_000;

/// `h <= at_zero + slope . p`.
#[derive(Debug)]
pub(super) struct Roof {
    pub(super) at_zero: f64,
    pub(super) slope: Vec<f64>,
}

/// A column of the dual.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Plane(usize),
    /// That a price is at most 1.
    AtMost(usize),
    /// That a price is at least 0.
    AtLeast(usize),
}

/// The point and its height; `None` without planes, and when numbers are none.
pub(super) fn peak(roofs: &[Roof], prices: usize) -> Option<(Vec<f64>, f64)> {
    let mut basis = Basis::first(roofs.first()?, prices);
    for pivot in 0..MOST {
        let corner = basis.corner(roofs);
        let (height, point) = corner.split_first()?;
        if corner.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let Some(entering) = entering(roofs, *height, point, pivot >= HASTY) else {
            return Some((point.iter().map(|price| price.clamp(0.0, 1.0)).collect(), *height));
        };
        basis.exchange(roofs, entering)?;
    }
    None
}

/// The column that lowers the height: a plane that the point is above, or a side of the box that it is beyond.
fn entering(roofs: &[Roof], height: f64, point: &[f64], first: bool) -> Option<Column> {
    let planes = roofs.iter().enumerate().map(|(at, roof)| {
        let above =
            roof.slope.iter().zip(point).map(|(slope, price)| slope * price).sum::<f64>() + roof.at_zero - height;
        (above / (1.0 + roof.at_zero.abs() + height.abs()), Column::Plane(at))
    });
    let most = point.iter().enumerate().map(|(at, price)| (1.0 - price, Column::AtMost(at)));
    let least = point.iter().enumerate().map(|(at, price)| (*price, Column::AtLeast(at)));
    let mut helpful = planes.chain(most).chain(least).filter(|(left, _)| *left < -TOLERANCE);
    let found = if first { helpful.next() } else { helpful.min_by(|a, b| a.0.total_cmp(&b.0)) };
    found.map(|(_, column)| column)
}

/// Columns of the dual that make up a corner, and the inverse of their matrix by rows. The right side of the dual is 1 in the
/// first row and 0 elsewhere, so the values of the columns are the first column of the inverse.
struct Basis {
    columns: Vec<Column>,
    inverse: Vec<Vec<f64>>,
}

impl Basis {
    /// One plane, and the corner of the box that is highest under it.
    fn first(roof: &Roof, prices: usize) -> Self {
        let row = |ones: usize, value: f64| (0..=prices).map(|at| if at == ones { value } else { 0.0 }).collect();
        let mut columns = vec![Column::Plane(0)];
        let mut inverse = vec![row(0, 1.0)];
        for (at, slope) in roof.slope.iter().take(prices).enumerate() {
            let (column, sign) = if *slope >= 0.0 { (Column::AtMost(at), 1.0) } else { (Column::AtLeast(at), -1.0) };
            let mut line: Vec<f64> = row(at + 1, sign);
            if let Some(value) = line.first_mut() {
                *value = slope.abs();
            }
            columns.push(column);
            inverse.push(line);
        }
        Self { columns, inverse }
    }

    /// Height and prices where the constraints of all columns meet.
    fn corner(&self, roofs: &[Roof]) -> Vec<f64> {
        let mut corner = vec![0.0; self.inverse.len()];
        for (column, row) in self.columns.iter().zip(&self.inverse) {
            let limit = match column {
                Column::Plane(at) => roofs.get(*at).map_or(0.0, |roof| roof.at_zero),
                Column::AtMost(_) => 1.0,
                Column::AtLeast(_) => continue,
            };
            corner.iter_mut().zip(row).for_each(|(sum, value)| *sum += limit * value);
        }
        corner
    }

    /// Takes a column in for the one that is the first to become 0; `None` when there is none.
    fn exchange(&mut self, roofs: &[Roof], entering: Column) -> Option<()> {
        let weights: Vec<f64> = self.inverse.iter().map(|row| product(row, roofs, entering)).collect();
        let ratio = |(at, (row, weight)): (usize, (&Vec<f64>, &f64))| {
            (*weight > TOLERANCE).then(|| Some((row.first()?.max(0.0) / weight, *weight, at)))?
        };
        let candidates = self.inverse.iter().zip(&weights).enumerate().filter_map(ratio);
        // Of equals that with the largest weight: dividing by it is safest.
        let (_, weight, leaving) = candidates.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)))?;
        let mut pivot = std::mem::take(self.inverse.get_mut(leaving)?);
        pivot.iter_mut().for_each(|value| *value /= weight);
        for (row, weight) in self.inverse.iter_mut().zip(&weights) {
            row.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= weight * pivot);
        }
        *self.inverse.get_mut(leaving)? = pivot;
        *self.columns.get_mut(leaving)? = entering;
        Some(())
    }
}

/// A row of the inverse times a column: (1, -slope) of a plane, a unit for a side of the box.
fn product(row: &[f64], roofs: &[Roof], column: Column) -> f64 {
    let price = |at: usize| row.get(at + 1).copied().unwrap_or(0.0);
    match column {
        Column::AtMost(at) => price(at),
        Column::AtLeast(at) => -price(at),
        Column::Plane(at) => {
            let slope = roofs.get(at).map_or(&[][..], |roof| roof.slope.as_slice());
            let (first, rest) = row.split_first().unwrap_or((&0.0, &[]));
            first - rest.iter().zip(slope).map(|(value, slope)| value * slope).sum::<f64>()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

    use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// The same by a general solver.
    fn reference(roofs: &[Roof], prices: usize) -> f64 {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let height = problem.add_var(1.0, (f64::NEG_INFINITY, f64::INFINITY));
        let prices: Vec<_> = (0..prices).map(|_| problem.add_var(0.0, (0.0, 1.0))).collect();
        for roof in roofs {
            let terms = prices.iter().zip(&roof.slope).map(|(price, slope)| (*price, -slope));
            let terms: Vec<_> = std::iter::once((height, 1.0)).chain(terms).collect();
            problem.add_constraint(terms, ComparisonOp::Le, roof.at_zero);
        }
        let Ok(SolveOutcome::Solution(solution)) = problem.solve() else { panic!("no peak") };
        solution.objective()
    }

    #[test]
    fn the_peak_is_as_high_as_a_general_solver_finds_and_under_every_roof() {
        let mut rng = StdRng::seed_from_u64(3);
        for case in 0..5_000 {
            let prices = rng.random_range(0..=7);
            let count = rng.random_range(1..40);
            // Whole numbers meet in many corners at once.
            let whole = case % 2 == 0;
            let mut number = |scale: f64| {
                let value = rng.random_range(-scale..scale);
                if whole { value.round() } else { value }
            };
            let roofs: Vec<Roof> = (0..count)
                .map(|_| Roof { at_zero: number(3.0), slope: (0..prices).map(|_| number(5.0)).collect() })
                .collect();
            let (point, height) = peak(&roofs, prices).unwrap();
            let expected = reference(&roofs, prices);
            assert!((height - expected).abs() <= 1e-7 * expected.abs().max(1.0), "case {case}: {height} {expected}");
            assert!(point.len() == prices && point.iter().all(|price| (0.0..=1.0).contains(price)), "case {case}");
            for roof in &roofs {
                let above: f64 = roof.slope.iter().zip(&point).map(|(slope, price)| slope * price).sum();
                assert!(height <= roof.at_zero + above + 1e-7, "case {case}: above a roof");
            }
        }
    }

    #[test]
    fn nothing_and_numbers_that_are_none_have_no_peak() {
        assert!(peak(&[], 2).is_none());
        assert!(peak(&[Roof { at_zero: f64::NAN, slope: vec![1.0] }], 1).is_none());
        let flat = Roof { at_zero: 2.0, slope: Vec::new() };
        assert_eq!(peak(&[flat], 0), Some((Vec::new(), 2.0)));
    }
}
