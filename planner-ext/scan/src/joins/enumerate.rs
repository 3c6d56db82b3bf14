//! Finds the cheapest tree of joins over a graph.
//!
//! For up to ten relations it compares every connected split of every set of relations (dynamic programming over
//! subsets, bushy trees included); above that, and between parts that no condition connects, it joins the pair with the
//! smallest result first (greedy operator ordering).

use super::graph::{Graph, Relations};

/// An order of joins. The left side of a join is the one with fewer rows: it is the build side, the right side probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tree {
    /// A relation, by its number.
    Relation(usize),
    /// A join of two trees.
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn join(left: Self, right: Self) -> Self {
        Self::Join(Box::new(left), Box::new(right))
    }
}

/// Most relations for which all trees are compared: 3^10 splits take a few milliseconds.
const MOST_COMPARED: usize = 10;

// Relative costs per row: insertion into a hash table, look-up in one, output.
const BUILD: f64 = 2.0;
const PROBE: f64 = 0.5;
const OUTPUT: f64 = 1.5;

/// Cost of one join, without the plans below it.
fn join_cost(left_rows: f64, right_rows: f64, rows: f64) -> f64 {
    BUILD * left_rows.min(right_rows) + PROBE * left_rows.max(right_rows) + OUTPUT * rows
}

/// Estimated cost of a tree.
pub(super) fn cost(graph: &Graph, tree: &Tree) -> f64 {
    fn walk(graph: &Graph, tree: &Tree) -> (f64, f64, Relations) {
        match tree {
            Tree::Relation(number) => (0.0, graph.rows(Relations::one(*number)), Relations::one(*number)),
            Tree::Join(left, right) => {
                let (left_cost, left_rows, left) = walk(graph, left);
                let (right_cost, right_rows, right) = walk(graph, right);
                let both = left.with(right);
                let rows = graph.rows(both);
                (left_cost + right_cost + join_cost(left_rows, right_rows, rows), rows, both)
            }
        }
    }
    walk(graph, tree).0
}

/// A set of relations that are joined already.
#[derive(Debug, Clone)]
struct Part {
    relations: Relations,
    rows: f64,
    cost: f64,
    tree: Tree,
}

impl Part {
    fn one(graph: &Graph, number: usize) -> Self {
        let relations = Relations::one(number);
        Self { relations, rows: graph.rows(relations), cost: 0.0, tree: Tree::Relation(number) }
    }

    fn join(self, other: Self, rows: f64) -> Self {
        let cost = self.cost + other.cost + join_cost(self.rows, other.rows, rows);
        let relations = self.relations.with(other.relations);
        let (left, right) = if other.rows < self.rows { (other, self) } else { (self, other) };
        Self { relations, rows, cost, tree: Tree::join(left.tree, right.tree) }
    }
}

/// The cheapest tree over all relations, and its cost.
pub(super) fn cheapest(graph: &Graph) -> (Tree, f64) {
    let components = graph.components();
    let parts = components.into_iter().flat_map(|component| match component.count() <= MOST_COMPARED {
        true => best_tree(graph, component),
        false => component.numbers().map(|number| Part::one(graph, number)).collect(),
    });
    let all = greedy(graph, parts.collect());
    (all.tree, all.cost)
}

/// The cheapest part over connected `relations`, by comparing all trees without cross products; single relations if
/// there is no such tree.
fn best_tree(graph: &Graph, relations: Relations) -> Vec<Part> {
    let numbers: Vec<usize> = relations.numbers().collect();
    let set = |mask: usize| {
        let chosen = numbers.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        chosen.fold(Relations::default(), |set, (_, number)| set.with(Relations::one(*number)))
    };
    let all = (1_usize << numbers.len()) - 1;
    // For each set of relations: rows, least cost, and the split that has it.
    let mut best: Vec<Option<(f64, f64, usize)>> = vec![None; all + 1];
    for mask in 1..=all {
        let rows = graph.rows(set(mask));
        if mask.is_power_of_two() {
            best[mask] = Some((rows, 0.0, 0));
            continue;
        }
        let lowest = mask & mask.wrapping_neg();
        let mut found: Option<(f64, usize)> = None;
        // Visits every split once, as the side with the lowest relation.
        let mut side = (mask - 1) & mask;
        while side > 0 {
            let other = mask ^ side;
            if side & lowest != 0
                && let (Some((left_rows, left_cost, _)), Some((right_rows, right_cost, _))) = (best[side], best[other])
                && graph.connected(set(side), set(other))
            {
                let cost = left_cost + right_cost + join_cost(left_rows, right_rows, rows);
                if found.is_none_or(|(least, _)| cost < least) {
                    found = Some((cost, side));
                }
            }
            side = (side - 1) & mask;
        }
        best[mask] = found.map(|(cost, side)| (rows, cost, side));
    }
    fn tree(best: &[Option<(f64, f64, usize)>], numbers: &[usize], mask: usize) -> Option<Tree> {
        if mask.is_power_of_two() {
            return numbers.get(mask.trailing_zeros() as usize).copied().map(Tree::Relation);
        }
        let (_, _, side) = (*best.get(mask)?)?;
        let rows = |mask: usize| best.get(mask).copied().flatten().map_or(0.0, |(rows, ..)| rows);
        let (few, many) = if rows(mask ^ side) < rows(side) { (mask ^ side, side) } else { (side, mask ^ side) };
        Some(Tree::join(tree(best, numbers, few)?, tree(best, numbers, many)?))
    }
    match (best.get(all).copied().flatten(), tree(&best, &numbers, all)) {
        (Some((rows, cost, _)), Some(tree)) => vec![Part { relations, rows, cost, tree }],
        _ => numbers.into_iter().map(|number| Part::one(graph, number)).collect(),
    }
}

/// Joins the pair with the fewest rows until one part is left; pairs that a condition connects come first.
fn greedy(graph: &Graph, mut parts: Vec<Part>) -> Part {
    while parts.len() > 1 {
        let mut found: Option<((bool, f64), usize, usize)> = None;
        for (i, left) in parts.iter().enumerate() {
            for (j, right) in parts.iter().enumerate().skip(i + 1) {
                let rows = graph.rows(left.relations.with(right.relations));
                let rank = (!graph.connected(left.relations, right.relations), rows);
                if found.is_none_or(|(least, ..)| rank < least) {
                    found = Some((rank, i, j));
                }
            }
        }
        let Some(((_, rows), i, j)) = found else { break };
        let right = parts.swap_remove(j);
        let left = parts.swap_remove(i);
        parts.push(left.join(right, rows));
    }
    parts.pop().unwrap_or_else(|| Part::one(graph, 0))
}
