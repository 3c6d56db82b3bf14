//! Finds the highest point under a few planes within the unit box: a linear programme with a variable for each price.
//!
//! ```text
//!   most h:  h <= at_k + slope_k . p  for every plane k,  0 <= p <= 1
//! ```
//!
//! The simplex method solves its dual, whose basis has one row more than there are prices, however many planes there are:
//! every plane is a column of it. An initial basis is known, so there is no first phase; the inverse of the basis is
//! kept. A general solver takes longer to set up than this takes to answer.

/// Values that are negative by less than this count as zero.
const TOLERANCE: f64 = 1e-10;
/// Pivots that take the column that helps most; later ones take the first that helps, so that columns do not cycle.
const GREEDY_PIVOTS: usize = 64;
/// The most pivots before the search is given up.
const MAX_PIVOTS: usize = 10_000;

/// `h <= at_zero + slope . p`.
#[derive(Debug)]
pub(super) struct Plane {
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

/// Finds the highest point and its height; `None` without planes, and when values are not finite.
pub(super) fn peak(planes: &[Plane], prices: usize) -> Option<(Vec<f64>, f64)> {
    let mut basis = Basis::first(planes.first()?, prices);
    for pivot in 0..MAX_PIVOTS {
        let corner = basis.corner(planes);
        let (height, point) = corner.split_first()?;
        if corner.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let Some(entering) = entering(planes, *height, point, pivot >= GREEDY_PIVOTS) else {
            return Some((point.iter().map(|price| price.clamp(0.0, 1.0)).collect(), *height));
        };
        basis.exchange(planes, entering)?;
    }
    None
}

/// The column that lowers the height: a plane below the point, or a side of the box that the point has crossed. With
/// `first`, the first such column, else the one that is violated most.
fn entering(planes: &[Plane], height: f64, point: &[f64], first: bool) -> Option<Column> {
    let planes = planes.iter().enumerate().map(|(at, plane)| {
        let above =
            plane.slope.iter().zip(point).map(|(slope, price)| slope * price).sum::<f64>() + plane.at_zero - height;
        (above / (1.0 + plane.at_zero.abs() + height.abs()), Column::Plane(at))
    });
    let most = point.iter().enumerate().map(|(at, price)| (1.0 - price, Column::AtMost(at)));
    let least = point.iter().enumerate().map(|(at, price)| (*price, Column::AtLeast(at)));
    let mut helpful = planes.chain(most).chain(least).filter(|(left, _)| *left < -TOLERANCE);
    let found = if first { helpful.next() } else { helpful.min_by(|a, b| a.0.total_cmp(&b.0)) };
    found.map(|(_, column)| column)
}

/// Columns of the dual that make up a corner, and the inverse of their matrix by rows. The right side of the dual is 1 in
/// the first row and 0 elsewhere, so the values of the columns are the first column of the inverse.
struct Basis {
    columns: Vec<Column>,
    inverse: Vec<Vec<f64>>,
}

impl Basis {
    /// One plane, and the corner of the box that is highest under it.
    fn first(plane: &Plane, prices: usize) -> Self {
        let row = |ones: usize, value: f64| (0..=prices).map(|at| if at == ones { value } else { 0.0 }).collect();
        let mut columns = vec![Column::Plane(0)];
        let mut inverse = vec![row(0, 1.0)];
        for (at, slope) in plane.slope.iter().take(prices).enumerate() {
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
    fn corner(&self, planes: &[Plane]) -> Vec<f64> {
        let mut corner = vec![0.0; self.inverse.len()];
        for (column, row) in self.columns.iter().zip(&self.inverse) {
            let limit = match column {
                Column::Plane(at) => planes.get(*at).map_or(0.0, |plane| plane.at_zero),
                Column::AtMost(_) => 1.0,
                Column::AtLeast(_) => continue,
            };
            corner.iter_mut().zip(row).for_each(|(sum, value)| *sum += limit * value);
        }
        corner
    }

    /// Replaces the column whose value becomes 0 first by `entering`; `None` when there is none.
    fn exchange(&mut self, planes: &[Plane], entering: Column) -> Option<()> {
        let weights: Vec<f64> = self.inverse.iter().map(|row| product(row, planes, entering)).collect();
        let ratio = |(at, (row, weight)): (usize, (&Vec<f64>, &f64))| {
            (*weight > TOLERANCE).then(|| Some((row.first()?.max(0.0) / weight, *weight, at)))?
        };
        let candidates = self.inverse.iter().zip(&weights).enumerate().filter_map(ratio);
        // Of equal ratios, the one with the largest weight: dividing by it is numerically safest.
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
fn product(row: &[f64], planes: &[Plane], column: Column) -> f64 {
    let price = |at: usize| row.get(at + 1).copied().unwrap_or(0.0);
    match column {
        Column::AtMost(at) => price(at),
        Column::AtLeast(at) => -price(at),
        Column::Plane(at) => {
            let slope = planes.get(at).map_or(&[][..], |plane| plane.slope.as_slice());
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

    /// Height of the peak by a general solver.
    fn reference(planes: &[Plane], prices: usize) -> f64 {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let height = problem.add_var(1.0, (f64::NEG_INFINITY, f64::INFINITY));
        let prices: Vec<_> = (0..prices).map(|_| problem.add_var(0.0, (0.0, 1.0))).collect();
        for plane in planes {
            let terms = prices.iter().zip(&plane.slope).map(|(price, slope)| (*price, -slope));
            let terms: Vec<_> = std::iter::once((height, 1.0)).chain(terms).collect();
            problem.add_constraint(terms, ComparisonOp::Le, plane.at_zero);
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
            // With whole numbers many planes meet in one corner.
            let whole = case % 2 == 0;
            let mut number = |scale: f64| {
                let value = rng.random_range(-scale..scale);
                if whole { value.round() } else { value }
            };
            let planes: Vec<Plane> = (0..count)
                .map(|_| Plane { at_zero: number(3.0), slope: (0..prices).map(|_| number(5.0)).collect() })
                .collect();
            let (point, height) = peak(&planes, prices).unwrap();
            let expected = reference(&planes, prices);
            assert!((height - expected).abs() <= 1e-7 * expected.abs().max(1.0), "case {case}: {height} {expected}");
            assert!(point.len() == prices && point.iter().all(|price| (0.0..=1.0).contains(price)), "case {case}");
            for plane in &planes {
                let above: f64 = plane.slope.iter().zip(&point).map(|(slope, price)| slope * price).sum();
                assert!(height <= plane.at_zero + above + 1e-7, "case {case}: above a plane");
            }
        }
    }

    #[test]
    fn nothing_and_numbers_that_are_none_have_no_peak() {
        assert!(peak(&[], 2).is_none());
        assert!(peak(&[Plane { at_zero: f64::NAN, slope: vec![1.0] }], 1).is_none());
        let flat = Plane { at_zero: 2.0, slope: Vec::new() };
        assert_eq!(peak(&[flat], 0), Some((Vec::new(), 2.0)));
    }
}
