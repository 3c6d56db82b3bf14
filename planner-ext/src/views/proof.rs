//! Whether facts make a formula true.

use super::facts::Facts;
use super::formula::Formula;

/// How many alternatives within alternatives are followed.
const DEPTH: usize = 8;

/// True when every row with these facts fulfils the formula; false when that is not sure.
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
            // Where the simple alternatives fail, one of the others has to hold.
            let simple = |part: &&Formula| matches!(part, Formula::In(..));
            let others: Vec<&Formula> = parts.iter().filter(|part| !simple(part)).collect();
            if depth == 0 {
                return false;
            }
            let mut rest = facts.clone();
            parts.iter().filter(simple).for_each(|part| rest.add(&part.clone().negated()));
            rest.spread();
            rest.is_impossible() || others.iter().any(|part| proven_within(&rest, part, depth - 1))
        }
    }
}
