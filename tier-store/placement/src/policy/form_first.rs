//! The policy `form_first`: forms first, then tiers, each as well as it can be done alone.
//!
//! The first step knows no tiers: it chooses the forms that make reads from memory take the least time while all copies together
//! fit into the budgets of all memory tiers; where not even the smaller ones do, it takes those. This is the choice of encodings
//! under a budget of memory of Boissier ("Robust and Budget-Constrained Encoding Configurations for In-Memory Database Systems",
//! PVLDB 15(4), 2021). The second step chooses tiers for copies of these forms by the solver.

use terrace_model::{Result, TierId};
use terrace_storage::tier::codec::Form;

use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::epoch::{SegmentInput, expected_us};
use crate::place::Place;
use crate::solver::{Instance, Options, judge, solve};

/// The fastest tier, on which the first step assumes all copies.
const FASTEST: TierId = TierId(0);
/// Options of the first step: the plain form takes the bytes by which it is larger; the packed one is the home.
const PLAIN: u8 = 0;

/// Chooses forms, then tiers.
#[derive(Debug)]
pub(super) struct FormFirst;

impl FormFirst {
    /// The forms of the first step, by row; rows without a choice have any.
    fn forms(problem: &Problem<'_>) -> Result<Vec<Form>> {
        let has_choice = |segment: &SegmentInput| problem.memory_tiers().any(|tier| segment.has_choice_on(tier));
        let mut instance =
            Instance { capacities: Vec::new(), options: Options::by_tier(1), costs: Vec::new(), bytes: Vec::new() };
        let mut room: f64 = problem.instance.capacities.iter().sum();
        for segment in problem.rows() {
            let [plain, packed] = Form::ALL.map(|form| Place { tier: FASTEST, form });
            let least = segment.charged_on(FASTEST);
            room -= least as f64;
            let (plain_us, packed_us) = match has_choice(segment) {
                true => (expected_us(problem.inputs, segment, plain), expected_us(problem.inputs, segment, packed)),
                false => (f64::INFINITY, 0.0),
            };
            instance.costs.extend([plain_us, packed_us]);
            instance.bytes.push(segment.charged_at(plain).saturating_sub(least) as f64);
        }
        instance.capacities.push(room.max(0.0));
        let choice = solve(&instance, None, problem.work)?.choice;
        Ok(choice.into_iter().map(|option| if option == PLAIN { Form::Plain } else { Form::Packed }).collect())
    }
}

impl Policy for FormFirst {
    fn kind(&self) -> PolicyKind {
        PolicyKind::FormFirst
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let forms = Self::forms(problem)?;
        let form = |row: usize| forms.get(row).copied().unwrap_or_default();
        let solution = solve(&problem.with_forms(form), None, problem.work)?;
        Ok(Decision { solution: judge(problem.instance, solution.choice, problem.work)?, scores: Vec::new() })
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        context.reason_by_costs("form chosen first", "is full of segments that save more per byte")
    }
}
