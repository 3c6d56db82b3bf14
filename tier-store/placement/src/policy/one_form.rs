//! The policy `one_form`: all copies have one form, the plain one or the packed one, whichever makes the least expected time; the
//! solver chooses their tiers. It is what a setting for all copies can reach at best.

use terrace_model::Result;
use terrace_storage::tier::codec::Form;

use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::solver::{judge, solve};

/// The better of one form for all copies that have a choice.
#[derive(Debug)]
pub(super) struct OneForm;

impl Policy for OneForm {
    fn kind(&self) -> PolicyKind {
        PolicyKind::OneForm
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut best: Option<(f64, Vec<u8>)> = None;
        for form in Form::ALL {
            let solution = solve(&problem.with_forms(|_| form), None, problem.work)?;
            if best.as_ref().is_none_or(|(least, _)| solution.objective < *least) {
                best = Some((solution.objective, solution.choice));
            }
        }
        let (_, choice) = best.unwrap_or_default();
        Ok(Decision { solution: judge(problem.instance, choice, problem.work)?, scores: Vec::new() })
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        context.reason_by_costs("one form for all", "is full of segments that save more per byte")
    }
}
