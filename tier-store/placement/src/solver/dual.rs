//! Prices: the Lagrangian dual, maximised by cutting planes.
//!
//! At prices `p` every segment takes the option with the least `cost + p * bytes`; the sum of these minus `p * capacity`
//! is a lower bound on every feasible placement, concave in `p`. Each evaluation gives a plane above it; the highest
//! point under all planes ([`super::peak`]) is tried next, until the two meet. Large instances are solved on a sample,
//! whose capacities are corrected by evaluations of the whole instance. Prices stay within a box that widens when they
//! reach its faces.

use super::peak::{Plane, peak};
use super::prices::Prices;
use super::{Instance, Work};

/// The search ends when planes and bound differ by less than this part.
const TOLERANCE: f64 = 1e-5;
/// The least unit of differences, as a part of the cost of everything at home.
const SMALLEST: f64 = 1e-9;
/// Size of the sample; instances above four times this size are solved on a sample.
const SAMPLE: usize = 16_384;

/// The Lagrangian at some prices.
struct Evaluation {
    value: f64,
    /// Bytes used minus capacity, of each priced capacity.
    slope: Vec<f64>,
}

/// The dual of one instance over the capacities that are finite.
struct Dual<'a> {
    instance: &'a Instance,
    priced: Vec<usize>,
}

/// Finds the best prices (one per capacity) until the work is over. Returns them with their bound; `None` when the search
/// failed.
pub(super) fn maximise(instance: &Instance, start: Option<&[f64]>, work: Work<'_>) -> Option<(Vec<f64>, f64)> {
    let dual = Dual { instance, priced: priced(instance) };
    let start: Option<Vec<f64>> = start
        .filter(|start| start.len() == instance.capacities.len())
        // Only prices from 0 on give a bound.
        .filter(|start| start.iter().all(|price| price.is_finite()))
        .map(|start| dual.priced.iter().map(|at| start.get(*at).map_or(0.0, |price| price.max(0.0))).collect());
    let warm = start.as_ref().is_some_and(|start| start.iter().any(|price| *price > 0.0));
    let found = match dual.sample() {
        // With prices to start from, the evaluation of the whole instance at zero prices can be saved: the sample would
        // show that there is room for all segments.
        Some(sample) if warm => dual.solve_by_sample(sample, start, work),
        sample => {
            let free = dual.evaluate(&vec![0.0; dual.priced.len()]);
            if free.slope.iter().all(|slope| *slope <= 0.0) {
                return Some((vec![0.0; instance.capacities.len()], free.value));
            }
            match sample {
                Some(sample) => dual.solve_by_sample(sample, start, work),
                None => dual.cutting_planes(free, start, work),
            }
        }
    };
    found.map(|(prices, bound)| {
        let all = dual.by_capacity(&prices);
        (all, bound)
    })
}

/// The bound at given prices, one per capacity.
pub(super) fn value(instance: &Instance, prices: &[f64]) -> f64 {
    let priced = priced(instance);
    let price = |capacity: &usize| prices.get(*capacity).copied().unwrap_or(0.0).max(0.0);
    let prices: Vec<f64> = priced.iter().map(price).collect();
    Dual { instance, priced }.evaluate(&prices).value
}

/// The capacities that are finite.
fn priced(instance: &Instance) -> Vec<usize> {
    instance.capacities.iter().zip(0..).filter(|(capacity, _)| capacity.is_finite()).map(|(_, at)| at).collect()
}

impl Dual<'_> {
    /// Prices of all capacities, from those of the priced ones.
    fn by_capacity(&self, prices: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; self.instance.capacities.len()];
        for (capacity, price) in self.priced.iter().zip(prices) {
            if let Some(slot) = all.get_mut(*capacity) {
                *slot = *price;
            }
        }
        all
    }

    fn evaluate(&self, prices: &[f64]) -> Evaluation {
        let options = &self.instance.options;
        let by_cell = Prices::new(options, &self.by_capacity(prices));
        let mut used = vec![0.0; self.instance.capacities.len()];
        let mut value = 0.0;
        for row in self.instance.rows() {
            let (option, reduced) = by_cell.cheapest(row);
            value += reduced;
            for (capacity, bytes) in row.taken(options, option) {
                if let Some(used) = used.get_mut(capacity) {
                    *used += bytes;
                }
            }
        }
        let mut slope = Vec::with_capacity(self.priced.len());
        for (at, price) in self.priced.iter().zip(prices) {
            let (Some(used), Some(capacity)) = (used.get(*at), self.instance.capacities.get(*at)) else { continue };
            value -= price * capacity;
            slope.push(used - capacity);
        }
        Evaluation { value, slope }
    }

    /// Computes the scaling to numbers near 1 for the linear programme, and the prices at which no segment takes a
    /// capacity.
    fn scale(&self) -> Scale {
        let options = &self.instance.options;
        let capacities = self.instance.capacities.len();
        let (mut limits, mut bytes_of) = (vec![0.0_f64; capacities], vec![0.0_f64; capacities]);
        let mut value = 0.0;
        for row in self.instance.rows() {
            let Some(home) = row.costs.last() else { continue };
            value += home.abs();
            for (option, cost) in row.costs.iter().enumerate() {
                for (capacity, bytes) in row.taken(options, option) {
                    if let (Some(limit), Some(sum)) = (limits.get_mut(capacity), bytes_of.get_mut(capacity)) {
                        let density = if bytes > 0.0 { (home - cost) / bytes } else { 0.0 };
                        *limit = limit.max(density);
                        *sum += bytes;
                    }
                }
            }
        }
        let value = value.max(f64::MIN_POSITIVE);
        let of_priced = |all: &[f64]| self.priced.iter().filter_map(|at| all.get(*at).copied()).collect::<Vec<f64>>();
        let units: Vec<f64> = of_priced(&bytes_of).iter().map(|bytes| value / bytes.max(1.0)).collect();
        let limits = of_priced(&limits).iter().zip(&units).map(|(limit, unit)| limit / unit * 1.000_001).collect();
        Scale { value, units, limits }
    }

    /// A regular sample of the segments, with the same share of the capacities; `None` for a small instance.
    fn sample(&self) -> Option<Instance> {
        let segments = self.instance.segments();
        if segments < 4 * SAMPLE {
            return None;
        }
        let rows: Vec<_> = self.instance.rows().step_by(segments / SAMPLE).collect();
        let share = rows.len() as f64 / segments as f64;
        Some(Instance {
            capacities: self.instance.capacities.iter().map(|capacity| capacity * share).collect(),
            options: self.instance.options.clone(),
            costs: rows.iter().flat_map(|row| row.costs.iter().copied()).collect(),
            bytes: rows.iter().flat_map(|row| row.bytes.iter().copied()).collect(),
        })
    }

    /// Solves the sample, then corrects its capacities so that at the found prices it exceeds them as the whole instance
    /// does, and repeats until the bound of the whole gains nothing more. Each step evaluates the whole instance once.
    fn solve_by_sample(
        &self,
        mut sample: Instance,
        start: Option<Vec<f64>>,
        work: Work<'_>,
    ) -> Option<(Vec<f64>, f64)> {
        let share = sample.segments() as f64 / self.instance.segments() as f64;
        let solve = |sample: &Instance, near: Option<Vec<f64>>| {
            let dual = Dual { instance: sample, priced: self.priced.clone() };
            let free = dual.evaluate(&vec![0.0; dual.priced.len()]);
            dual.cutting_planes(free, near, work).map(|(prices, _)| prices)
        };
        let mut prices = match start {
            Some(start) => start,
            None => solve(&sample, None)?,
        };
        let mut best: Option<(Vec<f64>, f64)> = None;
        for _ in 0..work.effort.evaluations.max(1) {
            let whole = self.evaluate(&prices);
            let before = best.as_ref().map_or(f64::NEG_INFINITY, |(_, value)| *value);
            if whole.value > before {
                best = Some((prices.clone(), whole.value));
            }
            if whole.value - before <= TOLERANCE * whole.value.abs() || work.is_over() {
                break;
            }
            let part = Dual { instance: &sample, priced: self.priced.clone() }.evaluate(&prices);
            for ((at, whole), part) in self.priced.iter().zip(&whole.slope).zip(&part.slope) {
                if let Some(capacity) = sample.capacities.get_mut(*at) {
                    *capacity = (*capacity + part - whole * share).max(0.0);
                }
            }
            let Some(next) = solve(&sample, Some(prices)) else { break };
            prices = next;
        }
        best.filter(|(_, value)| value.is_finite())
    }

    /// Maximises by cutting planes, from the evaluation at zero prices and, if there are any, from `near` prices.
    fn cutting_planes(&self, first: Evaluation, near: Option<Vec<f64>>, work: Work<'_>) -> Option<(Vec<f64>, f64)> {
        let scale = self.scale();
        let origin = vec![0.0; self.priced.len()];
        let near = near.map(|near| scale.point(&near));
        let mut region = Region::around(near.as_deref(), &scale.limits);
        let mut planes = vec![CuttingPlane::new(&origin, &first, &scale)];
        let mut best_point = origin.clone();
        let mut best = (origin, first.value);
        let mut before = Vec::new();
        let mut repeats = 0;
        for round in 0..work.effort.evaluations {
            if work.is_over() {
                break;
            }
            let (top_point, gap) = match (&near, round) {
                (Some(near), 0) => (near.clone(), f64::INFINITY),
                _ => match highest(&planes, &region, best.1 / scale.value) {
                    Some(found) => found,
                    None => break,
                },
            };
            repeats = if top_point == before { repeats + 1 } else { 0 };
            let met = gap <= TOLERANCE || repeats > 1;
            if met && !region.widen(&top_point, &scale.limits) {
                break;
            }
            before.clone_from(&top_point);
            // Evaluate half way to the best point so far: the highest point alone would swing from corner to corner.
            let between = top_point
                .iter()
                .zip(&best_point)
                .map(|(top, best)| if round < 2 || met || repeats > 0 { *top } else { 0.5 * (top + best) });
            let point: Vec<f64> = between.collect();
            let prices: Vec<f64> = point.iter().zip(&scale.units).map(|(p, unit)| p * unit).collect();
            let evaluation = self.evaluate(&prices);
            planes.push(CuttingPlane::new(&point, &evaluation, &scale));
            if evaluation.value > best.1 {
                region.widen(&point, &scale.limits);
                best = (prices, evaluation.value);
                best_point = point;
            }
        }
        best.1.is_finite().then_some(best)
    }
}

/// Units of prices and costs, so that numbers of the linear programme are near 1.
struct Scale {
    /// Cost of everything at home.
    value: f64,
    /// A typical price of each priced capacity.
    units: Vec<f64>,
    /// The largest price worth trying, in units.
    limits: Vec<f64>,
}

impl Scale {
    /// Prices in units.
    fn point(&self, prices: &[f64]) -> Vec<f64> {
        let parts = prices.iter().zip(&self.units).zip(&self.limits);
        parts.map(|((price, unit), limit)| (price / unit).clamp(0.0, *limit)).collect()
    }
}

/// value <= at_zero + slope * point, in scaled units.
struct CuttingPlane {
    at_zero: f64,
    slope: Vec<f64>,
}

impl CuttingPlane {
    fn new(point: &[f64], evaluation: &Evaluation, scale: &Scale) -> Self {
        let slope: Vec<f64> =
            evaluation.slope.iter().zip(&scale.units).map(|(s, unit)| s * unit / scale.value).collect();
        let at_zero = evaluation.value / scale.value - slope.iter().zip(point).map(|(s, p)| s * p).sum::<f64>();
        Self { at_zero, slope }
    }
}

/// The box within which prices are searched, in units.
struct Region {
    low: Vec<f64>,
    high: Vec<f64>,
}

impl Region {
    fn around(near: Option<&[f64]>, limits: &[f64]) -> Self {
        let Some(near) = near else { return Self { low: vec![0.0; limits.len()], high: limits.to_vec() } };
        let (low, high) =
            near.iter().zip(limits).map(|(at, limit)| (at * 0.9, (at * 1.1 + limit * 1e-6).min(*limit))).unzip();
        Self { low, high }
    }

    /// Moves faces on which `point` lies outwards, unless they are the natural limits; true when some moved.
    fn widen(&mut self, point: &[f64], limits: &[f64]) -> bool {
        let mut moved = false;
        for (((low, high), at), limit) in self.low.iter_mut().zip(&mut self.high).zip(point).zip(limits) {
            let margin = (*high - *low) * 1e-6;
            if *low > 0.0 && *at <= *low + margin {
                *low = if *low < limit * 1e-9 { 0.0 } else { *low * 0.25 };
                moved = true;
            }
            if *high < *limit && *at >= *high - margin {
                *high = (*high * 4.0 + limit * 1e-6).min(*limit);
                moved = true;
            }
        }
        moved
    }
}

/// Finds the highest point under all planes within the region, and its height above `best`, as a part of it.
///
/// The programme is solved relative to `best` and to the region's size, because its tolerances are absolute.
fn highest(planes: &[CuttingPlane], within: &Region, best: f64) -> Option<(Vec<f64>, f64)> {
    let unit = best.abs().max(SMALLEST);
    let widths: Vec<f64> = within.low.iter().zip(&within.high).map(|(low, high)| (high - low).max(0.0)).collect();
    let relative = |plane: &CuttingPlane| {
        let slope = plane.slope.iter().zip(&widths).map(|(slope, width)| slope * width / unit).collect();
        let corner: f64 = plane.slope.iter().zip(&within.low).map(|(slope, low)| slope * low).sum();
        Plane { at_zero: (plane.at_zero + corner - best) / unit, slope }
    };
    let relative_planes: Vec<Plane> = planes.iter().map(relative).collect();
    let (parts, gap) = peak(&relative_planes, widths.len())?;
    let places = parts.iter().zip(within.low.iter().zip(&widths));
    let point: Vec<f64> = places.map(|(part, (low, width))| low + part * width).collect();
    (gap.is_finite() && point.iter().all(|p| p.is_finite())).then_some((point, gap))
}
