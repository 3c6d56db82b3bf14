//! A second opinion on the cost: a lower bound by a linear programme that `microlp` solves, small enough for every epoch.
//!
//! The programme has classes of alike segments in place of segments, and may split a class over options. At prices `p` per
//! byte of each capacity, segment `s` has a reduced cost `cost_so + p bytes_so` with option `o`; `r_so` is how much that
//! exceeds the least one of the segment. For feasible choices the cost is
//!
//! ```text
//!   sum of least reduced costs  +  sum r_so x_so  +  sum p_k slack_k  -  sum p_k capacity_k
//! ```
//!
//! where `slack_k` is the room that is left of capacity `k`. The programme replaces `r_so` by the least of the members of its
//! class, per unit of their sizes, and bytes by the fewest of them in one row and by the most in another:
//!
//! ```text
//!   least  sum W_c r_co y_co + sum p_k slack_k       y_co >= 0, slack_k >= 0,  sum over o of y_co = 1 for every class c
//!          sum W_c fewest_cok y_co <= capacity_k  and  sum W_c most_cok y_co + slack_k >= capacity_k for every capacity k
//! ```
//!
//! Every choice is a point of it that costs no more: `y_co` is the share of the class's size with option `o`. So its
//! optimum is a lower bound, whatever the prices, sizes and classes are, up to the tolerances of `microlp`. It is never
//! below the bound of the prices themselves, as all parts are at least 0, and with a class for each segment it is the linear
//! relaxation. Without prices in the programme, classes of 2,000 segments with several forms were short of it by half: a
//! class paired the cost of one member with the bytes of another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use microlp::{ComparisonOp, OptimizationDirection, Problem};

use super::Instance;
use super::instance::Row;

/// Name of the solver that certifies.
pub const CERTIFIER: &str = "microlp";
/// Instances with at most so many segments have a class for each.
const ALONE: usize = 128;
/// Classes of segments with the same two best options, by how much worse the second one is.
const REGRETS: usize = 4;
/// Maximum number of classes of larger instances; with more than 64 options there is one for each option and bucket of regret.
const CLASSES: usize = 256;
/// The programme wants numbers of like magnitudes: bytes of a class below this part of the largest number of their row count
/// as none in the row of the fewest bytes, and as this part in that of the most, which both keeps the bound one.
const SMALLEST: f64 = 1e-6;
/// What the programme's optimum may be off by for each of its rows: it takes reduced costs above -1e-10 for 0.
const ERROR: f64 = 1e-9;
/// The programme takes some milliseconds; one that goes in circles is ended.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Finds a lower bound of the cost of `instance`, whose segments may be forbidden the home. `prices`, one per capacity, are
/// those of a solution's bound; others make it less close. `None` when the programme has no answer.
pub fn certify(instance: &Instance, prices: &[f64]) -> Option<f64> {
    // A fault of the other solver must not end the epoch whose answer it was asked about.
    catch_unwind(AssertUnwindSafe(|| certify_with(instance, prices, ALONE, TIME_LIMIT))).ok()?
}

/// Like [`certify`]; `alone` segments at most have a class for each. `None`, too, when the programme takes longer than `time_limit`.
pub(super) fn certify_with(instance: &Instance, prices: &[f64], alone: usize, time_limit: Duration) -> Option<f64> {
    let priced = Priced { instance, prices };
    let Classes { least_reduced, classes } = priced.classes(alone)?;
    let limited = || instance.capacities.iter().zip(0..).filter(|(capacity, _)| capacity.is_finite());
    let worth: f64 = limited().map(|(capacity, at)| priced.price(at) * capacity).sum();
    let unit = least_reduced.abs().max(worth);
    if classes.is_empty() || unit == 0.0 {
        return Some(least_reduced - worth);
    }
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut rows = vec![(Vec::new(), Vec::new()); instance.capacities.len()];
    for class in &classes {
        let mut all = Vec::new();
        for (option, regret) in class.regrets.iter().enumerate().filter(|(_, regret)| regret.is_finite()) {
            let share = problem.add_var(class.size * regret / unit, (0.0, f64::INFINITY));
            all.push((share, 1.0));
            let capacities = instance.options.capacities_of(option).iter().zip(instance.options.cells_of(option));
            for (capacity, cell) in capacities {
                let (Some((fewest, most)), Some(bytes)) = (rows.get_mut(usize::from(*capacity)), class.bytes.get(cell))
                else {
                    continue;
                };
                fewest.push((share, class.size * bytes.fewest));
                most.push((share, class.size * bytes.most));
            }
        }
        problem.add_constraint(all, ComparisonOp::Eq, 1.0);
    }
    for (capacity, at) in limited() {
        let Some((fewest, mut most)) = rows.get_mut(at).map(std::mem::take) else { continue };
        let largest = most.iter().map(|(_, bytes)| *bytes).fold(*capacity, f64::max).max(f64::MIN_POSITIVE);
        let fewest = fewest.into_iter().map(|(share, bytes)| (share, bytes / largest));
        let fewest: Vec<_> = fewest.filter(|(_, part)| *part >= SMALLEST).collect();
        if !fewest.is_empty() {
            problem.add_constraint(fewest, ComparisonOp::Le, capacity / largest);
        }
        let price = priced.price(at);
        if price > 0.0 {
            most.iter_mut()
                .for_each(|(_, bytes)| *bytes = if *bytes > 0.0 { (*bytes / largest).max(SMALLEST) } else { 0.0 });
            most.push((problem.add_var(price * largest / unit, (0.0, f64::INFINITY)), 1.0));
            problem.add_constraint(most, ComparisonOp::Ge, capacity / largest);
        }
    }
    problem.set_time_limit(time_limit);
    let outcome = problem.solve().ok()?;
    let optimum = outcome.solution().filter(|_| outcome.is_optimal())?.objective();
    // No part of the programme is below 0.
    let error = ERROR * (classes.len() + instance.capacities.len()) as f64;
    Some(least_reduced - worth + (optimum - error).max(0.0) * unit).filter(|bound| bound.is_finite())
}

/// The classes, and the sum of the least reduced costs of all segments.
struct Classes {
    least_reduced: f64,
    classes: Vec<Class>,
}

/// Segments that count as alike.
struct Class {
    /// Sum of the members' sizes.
    size: f64,
    /// By option: the least of how much its reduced cost exceeds the least one, per unit of size.
    regrets: Vec<f64>,
    /// By cell: bytes per unit of size.
    bytes: Vec<Extremes>,
}

/// The fewest and the most bytes of the members of a class.
#[derive(Clone, Copy)]
struct Extremes {
    fewest: f64,
    most: f64,
}

/// An instance at prices. It computes reduced costs by itself, not by [`super::prices`], as it checks the bound found there.
struct Priced<'a> {
    instance: &'a Instance,
    prices: &'a [f64],
}

impl Priced<'_> {
    /// The price of a capacity; 0 where it has no limit.
    fn price(&self, capacity: usize) -> f64 {
        let is_limited = self.instance.capacities.get(capacity).is_some_and(|capacity| capacity.is_finite());
        if is_limited { self.prices.get(capacity).copied().unwrap_or(0.0).max(0.0) } else { 0.0 }
    }

    /// The price of the bytes that a segment takes with an option.
    fn paid(&self, row: Row<'_>, option: usize) -> f64 {
        let taken = row.taken(&self.instance.options, option);
        taken.fold(0.0, |sum, (capacity, bytes)| sum + self.price(capacity) * bytes)
    }

    /// Fills `reduced` with the reduced costs of a segment by option.
    fn reduce(&self, row: Row<'_>, reduced: &mut Vec<f64>) {
        reduced.clear();
        for (option, cost) in row.costs.iter().enumerate() {
            reduced.push(cost + self.paid(row, option));
        }
    }

    /// Groups all segments; `None` when a segment has no allowed option.
    fn classes(&self, alone: usize) -> Option<Classes> {
        let options = self.instance.options.count();
        let is_small = self.instance.segments() <= alone;
        // With more than eight options, second options share classes. The optimum is a lower bound for any grouping.
        let seconds = (CLASSES / (options * REGRETS).max(1)).clamp(1, options.max(1));
        let mut slots: Vec<Option<usize>> = vec![None; if is_small { 0 } else { options * seconds * REGRETS }];
        let mut classes: Vec<Class> = Vec::new();
        let mut least_reduced = 0.0;
        let mut reduced = Vec::with_capacity(options);
        for row in self.instance.rows() {
            self.reduce(row, &mut reduced);
            let (mut best, mut second) = ((0, f64::INFINITY), (0, f64::INFINITY));
            for (option, cost) in reduced.iter().copied().enumerate() {
                if cost < best.1 {
                    (second, best) = (best, (option, cost));
                } else if cost < second.1 {
                    second = (option, cost);
                }
            }
            if !best.1.is_finite() {
                return None;
            }
            least_reduced += best.1;
            // What a segment pays, or would pay with its second option; where that is nothing, the most bytes that it may
            // take. Without bytes it takes the option that is best, without regret.
            let most = || row.bytes.iter().copied().fold(0.0, f64::max);
            let paid = [best.0, second.0].map(|option| self.paid(row, option)).into_iter().find(|paid| *paid > 0.0);
            let size = paid.unwrap_or_else(most);
            if size <= 0.0 {
                continue;
            }
            let regret = (second.1 - best.1) / size;
            let slot = slots.get_mut((best.0 * seconds + second.0 % seconds) * REGRETS + bucket(regret));
            let at = match slot {
                Some(Some(at)) => *at,
                slot => {
                    classes.push(Class::empty(self.instance));
                    slot.into_iter().for_each(|slot| *slot = Some(classes.len() - 1));
                    classes.len() - 1
                }
            };
            if let Some(class) = classes.get_mut(at) {
                class.add(row, &reduced, best.1, size);
            }
        }
        Some(Classes { least_reduced, classes })
    }
}

impl Class {
    fn empty(instance: &Instance) -> Self {
        Self {
            size: 0.0,
            regrets: vec![f64::INFINITY; instance.options.count()],
            bytes: vec![Extremes { fewest: f64::INFINITY, most: 0.0 }; instance.options.cells()],
        }
    }

    fn add(&mut self, row: Row<'_>, reduced: &[f64], least: f64, size: f64) {
        self.size += size;
        for (regret, cost) in self.regrets.iter_mut().zip(reduced) {
            *regret = regret.min((cost - least) / size);
        }
        for (extremes, bytes) in self.bytes.iter_mut().zip(row.bytes) {
            *extremes = Extremes { fewest: extremes.fewest.min(bytes / size), most: extremes.most.max(bytes / size) };
        }
    }
}

/// The bucket of a regret per unit of size: nearly none, little, much, more.
fn bucket(regret: f64) -> usize {
    [0.003, 0.03, 0.3].iter().filter(|limit| regret > **limit).count()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::solver::{Effort, Options, dual, solve};

    /// A random instance of one tier, with many forms of many sizes there.
    fn random_forms(rng: &mut StdRng, segments: usize, forms: usize) -> Instance {
        let mut instance = Instance { options: Options::new(vec![[0_u8]; forms]), ..Instance::by_tier(vec![0.0]) };
        let mut total = 0.0;
        for _ in 0..segments {
            let size = rng.random_range(100.0..1e4_f64).floor();
            total += size;
            instance.bytes.extend((0..forms).map(|_| (size * rng.random_range(0.2..1.0)).ceil()));
            instance.costs.extend((0..forms).map(|_| size * rng.random_range(0.1..1.0)));
            instance.costs.push(size * 2.0);
        }
        instance.capacities = vec![(total * 0.2).floor()];
        instance
    }

    #[test]
    fn many_options_share_few_classes() {
        let mut rng = StdRng::seed_from_u64(31);
        for forms in [7, 11, 23] {
            let instance = random_forms(&mut rng, 5_000, forms);
            let solution = solve(&instance, None, Effort::default()).unwrap();
            let priced = Priced { instance: &instance, prices: &solution.bound_prices };
            let classes = priced.classes(ALONE).unwrap().classes.len();
            assert!((CLASSES / 8..=CLASSES).contains(&classes), "{forms} forms: {classes} classes");
            let bound = certify_with(&instance, &solution.bound_prices, ALONE, Duration::from_secs(60)).unwrap();
            let own = dual::value(&instance, &solution.bound_prices);
            let case = format!("{forms} forms: {bound}, {own} of the prices, {}", solution.objective);
            assert!(bound >= own * (1.0 - 1e-6) && bound <= solution.objective * (1.0 + 1e-7), "{case}");
        }
    }
}
