//! Pairs of queries that need much memory.

use crate::streams::Statement;

/// A query as it runs alone, with all the memory that it asks for.
#[derive(Debug, Clone)]
pub(super) struct Alone {
    pub(super) statement: Statement,
    pub(super) rows: usize,
    pub(super) ms: f64,
    /// What the server expects it to need, weighted by time.
    pub(super) demand_bytes: f64,
    /// The most that its operators reserved.
    pub(super) peak_bytes: f64,
}

/// The queries with the largest peaks, the largest first.
pub(super) fn hungriest(all: &[Alone], count: usize) -> Vec<&Alone> {
    let mut sorted: Vec<&Alone> = all.iter().collect();
    sorted.sort_by(|a, b| b.peak_bytes.total_cmp(&a.peak_bytes));
    sorted.truncate(count);
    sorted
}

/// All pairs of `queries`, a query beside itself included, whose peaks together exceed `capacity_bytes`: the paper's
/// choice.
pub(super) fn conflicting_pairs<'a>(queries: &[&'a Alone], capacity_bytes: f64) -> Vec<[&'a Alone; 2]> {
    let pairs_with_later = |(at, first): (usize, &&'a Alone)| {
        let first = *first;
        queries.iter().skip(at).map(move |second| [first, *second]).collect::<Vec<_>>()
    };
    let all = queries.iter().enumerate().flat_map(pairs_with_later);
    all.filter(|[first, second]| first.peak_bytes + second.peak_bytes > capacity_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(name: &str, peak_bytes: f64) -> Alone {
        Alone { statement: Statement::new(name, ""), rows: 1, ms: 1.0, demand_bytes: peak_bytes / 2.0, peak_bytes }
    }

    #[test]
    fn pairs_are_those_of_the_hungriest_queries_that_conflict() {
        let all = [alone("q1", 10.0), alone("q2", 300.0), alone("q3", 100.0), alone("q4", 200.0)];
        let hungry = hungriest(&all, 3);
        let names = |pair: &[&Alone; 2]| format!("{} {}", pair[0].statement.name, pair[1].statement.name);
        assert_eq!(hungry.iter().map(|one| one.statement.name.as_str()).collect::<Vec<_>>(), ["q2", "q4", "q3"]);
        let pairs: Vec<String> = conflicting_pairs(&hungry, 299.0).iter().map(names).collect();
        assert_eq!(pairs, ["q2 q2", "q2 q4", "q2 q3", "q4 q4", "q4 q3"]);
        assert_eq!(conflicting_pairs(&hungry, 0.0).len(), 6);
        assert!(conflicting_pairs(&hungry, 600.0).is_empty());
    }
}
