//! The exact last step: branch and bound over the core, the segments that are closest to indifferent at the best prices.
//!
//! All other segments keep their option. A small instance is its own core, so its answer is optimal when the search ends
//! within its nodes (compare Dreseler 2021, section 7.2.4, which searches all segments).

use super::instance::{fits, take};
use super::prices::Prices;
use super::{Instance, Work};

/// Segments in the core.
const CORE: usize = 28;
/// Relative difference below which two sums of costs are the same.
const EPSILON: f64 = 1e-12;
/// Nodes between two checks of the deadline; a power of two.
const NODES_PER_CHECK: usize = 1024;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With the optimum of the whole instance.
    Proven,
    /// With the best choice found: the core is not the whole instance, or the nodes were used up.
    Effort,
    /// With the best choice found until the deadline.
    Deadline,
}

/// An allowed option of a segment.
struct ItemOption {
    /// Cost and price of its bytes.
    reduced: f64,
    cost: f64,
    option: u8,
}

/// A segment of the core.
struct Item {
    segment: usize,
    /// Its allowed options, by reduced cost.
    options: Vec<ItemOption>,
    regret: f64,
}

/// The state of the search.
struct Search<'a> {
    instance: &'a Instance,
    items: &'a [Item],
    room: Vec<f64>,
    path: Vec<u8>,
    best: Vec<u8>,
    best_cost: f64,
    nodes: usize,
    work: Work<'a>,
    is_late: bool,
}

/// Improves `choice` in place; `regrets` are those at `prices`, `room` is the room that `choice` leaves.
pub(super) fn improve(
    instance: &Instance,
    prices: &[f64],
    regrets: &[f64],
    choice: &mut [u8],
    mut room: Vec<f64>,
    work: Work<'_>,
) -> End {
    if work.is_over() {
        return End::Deadline;
    }
    let segments = instance.segments();
    let core = core(regrets.iter().copied());
    let by_cell = Prices::new(&instance.options, prices);
    let mut items: Vec<Item> =
        core.into_iter().map(|(regret, segment)| item(instance, &by_cell, segment, regret)).collect();
    // Items with the largest regret first: they prune best.
    items.sort_by(|a, b| b.regret.total_cmp(&a.regret).then(a.segment.cmp(&b.segment)));
    let mut best = Vec::with_capacity(items.len());
    let mut best_cost = 0.0;
    for item in &items {
        let option = choice.get(item.segment).copied().unwrap_or(0);
        best_cost += instance.cost(item.segment, usize::from(option));
        best.push(option);
        give_back(&mut room, instance.taken(item.segment, usize::from(option)));
    }
    if room.iter().any(|room| *room < 0.0) || !best_cost.is_finite() {
        return End::Effort;
    }
    // The Lagrangian bound of the items: their least reduced costs, less the price of the room that they share.
    let worth = prices.iter().zip(&room).filter(|(price, _)| **price > 0.0).map(|(price, room)| price * room);
    let least = items.iter().map(Item::least).sum::<f64>() - worth.sum::<f64>();
    let path = Vec::with_capacity(items.len());
    let nodes = work.effort.nodes;
    let mut search = Search { instance, items: &items, room, path, best, best_cost, nodes, work, is_late: false };
    search.descend(0.0, least);
    for (item, option) in items.iter().zip(&search.best) {
        if let Some(slot) = choice.get_mut(item.segment) {
            *slot = *option;
        }
    }
    match search.nodes > 0 && segments <= CORE {
        _ if search.is_late => End::Deadline,
        true => End::Proven,
        false => End::Effort,
    }
}

/// The segments with the least regrets, at most [`CORE`] of them, with their regrets.
fn core(regrets: impl Iterator<Item = f64>) -> Vec<(f64, usize)> {
    let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let mut core = Vec::with_capacity(8 * CORE);
    let mut limit = f64::INFINITY;
    for (segment, regret) in regrets.enumerate() {
        if regret < limit || core.len() < CORE {
            core.push((regret, segment));
        }
        if core.len() == 8 * CORE {
            core.select_nth_unstable_by(CORE, order);
            core.truncate(CORE);
            limit = core.iter().map(|(regret, _)| *regret).fold(0.0, f64::max);
        }
    }
    core.sort_unstable_by(order);
    core.truncate(CORE);
    core
}

fn item(instance: &Instance, prices: &Prices, segment: usize, regret: f64) -> Item {
    let option =
        |(option, (cost, paid)): (usize, (f64, f64))| ItemOption { reduced: cost + paid, cost, option: option as u8 };
    let all = prices.paid(instance.row(segment)).enumerate().map(option);
    let mut options: Vec<ItemOption> = all.filter(|option| option.cost.is_finite()).collect();
    options.sort_by(|a, b| a.reduced.total_cmp(&b.reduced).then(a.option.cmp(&b.option)));
    Item { segment, options, regret }
}

/// Gives `taken`, pairs of capacity and bytes, back to `room`.
fn give_back(room: &mut [f64], taken: impl Iterator<Item = (usize, f64)>) {
    take(room, taken.map(|(capacity, bytes)| (capacity, -bytes)));
}

impl Item {
    /// The least reduced cost.
    fn least(&self) -> f64 {
        self.options.first().map_or(0.0, |first| first.reduced)
    }
}

impl Search<'_> {
    /// Searches below the current path. `cost` is the cost of the path, `bound` a lower bound of all items along it: it
    /// grows by the reduced cost of each chosen option above that of the best option of its item.
    fn descend(&mut self, cost: f64, bound: f64) {
        let items = self.items;
        let Some(item) = items.get(self.path.len()) else {
            if cost < self.best_cost - EPSILON * self.best_cost.abs() {
                self.best_cost = cost;
                self.best.clone_from(&self.path);
            }
            return;
        };
        let least = item.least();
        for ItemOption { reduced, cost: option_cost, option } in &item.options {
            let bound = bound + (reduced - least);
            // Options are sorted by reduced cost, so the later ones have no lower bound.
            if self.nodes == 0 || bound >= self.best_cost - EPSILON * self.best_cost.abs() {
                return;
            }
            self.nodes -= 1;
            if self.nodes.is_multiple_of(NODES_PER_CHECK) && self.work.is_over() {
                (self.nodes, self.is_late) = (0, true);
                return;
            }
            let taken = self.instance.taken(item.segment, usize::from(*option));
            if fits(&self.room, taken.clone()) {
                take(&mut self.room, taken.clone());
                self.path.push(*option);
                self.descend(cost + option_cost, bound);
                self.path.pop();
                give_back(&mut self.room, taken);
            }
        }
    }
}
