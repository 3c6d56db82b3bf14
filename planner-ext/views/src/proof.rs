//! Proves that facts make a formula true.

use super::facts::Facts;
use super::formula::Formula;

/// Depth of nested alternatives that are followed.
const DEPTH: usize = 8;

/// True when every row with these facts fulfils the formula; false when that is not proven.
pub(super) fn proven(facts: &Facts, formula: &Formula) -> bool {
    proven_within(facts, formula, DEPTH)
}

fn proven_within(facts: &Facts, formula: &Formula, depth: usize) -> bool {
    if facts.is_impossible() {
        return true;
    }
    match formula {
        Formula::Known(known) => *known,
        Formula::Unknown => false,
        Formula::In(term, domain) => facts.domain(term).is_within(domain),
        Formula::All(parts) => parts.iter().all(|part| proven_within(facts, part, depth)),
        Formula::Any(parts) => {
            if facts.has_one_of(parts) || parts.iter().any(|part| proven_within(facts, part, depth)) {
                return true;
            }
            // The formula is proven if, with all simple alternatives false, one of the others is proven.
            let simple = |part: &&Formula| matches!(part, Formula::In(..));
            let others: Vec<&Formula> = parts.iter().filter(|part| !simple(part)).collect();
            if depth == 0 {
                return false;
            }
            let mut remaining = facts.clone();
            parts.iter().filter(simple).for_each(|part| remaining.add(&part.clone().negated()));
            remaining.propagate();
            remaining.is_impossible() || others.iter().any(|part| proven_within(&remaining, part, depth - 1))
        }
    }
}
