//! The policy `mosaic`: all chunks of a column lie on one tier in one form, as in Mosaic (Vogel et al., "Mosaic: A
//! Budget-Conscious Storage Engine for Relational Database Systems", PVLDB 13(11), 2020).
//!
//! The solver chooses among columns: a column costs under an option what its segments cost, and takes what they take. A segment
//! that may not have the form of the option has the other one, and one that rules keep off the tier is at home, as far as that
//! option is concerned.

use std::collections::BTreeMap;

use terrace_model::{ColumnId, Result, TableId};

use super::{Decision, Policy, PolicyKind, Problem, ReasonContext};
use crate::solver::{Instance, judge, solve};

/// One place for all chunks of a column.
#[derive(Debug)]
pub(super) struct Mosaic;

impl Mosaic {
    /// The option that a row has where its column has `option`.
    fn option_of_row(problem: &Problem<'_>, row: usize, option: usize) -> usize {
        let is_open = |option: &usize| problem.instance.cost(row, *option).is_finite();
        let tier = problem.places.tier(option);
        Some(option).filter(is_open).or_else(|| problem.option_on(row, tier)).unwrap_or(problem.home())
    }

    /// The problem of the columns, each given by its rows.
    fn instance(problem: &Problem<'_>, columns: &[Vec<usize>]) -> Instance {
        let all = problem.instance;
        let mut instance = Instance {
            capacities: all.capacities.clone(),
            options: all.options.clone(),
            costs: Vec::with_capacity(columns.len() * all.options.count()),
            bytes: Vec::with_capacity(columns.len() * all.options.cells()),
        };
        for rows in columns {
            for option in 0..problem.places.count() {
                let of_row = |row: &usize| (*row, Self::option_of_row(problem, *row, option));
                instance.costs.push(rows.iter().map(of_row).map(|(row, option)| all.cost(row, option)).sum());
                if option < problem.home() {
                    let taken = rows.iter().map(of_row).flat_map(|(row, option)| all.taken(row, option));
                    instance.bytes.push(taken.map(|(_, bytes)| bytes).sum());
                }
            }
        }
        instance
    }
}

impl Policy for Mosaic {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Mosaic
    }

    fn choose(&self, problem: &Problem<'_>) -> Result<Decision> {
        let mut columns: BTreeMap<(TableId, ColumnId), Vec<usize>> = BTreeMap::new();
        for (row, segment) in problem.rows().enumerate() {
            columns.entry((segment.key.table, segment.key.column)).or_default().push(row);
        }
        let columns: Vec<Vec<usize>> = columns.into_values().collect();
        let found = solve(&Self::instance(problem, &columns), None, problem.work)?;
        let mut choice = vec![problem.home() as u8; problem.segments.len()];
        for (rows, option) in columns.iter().zip(found.choice) {
            for row in rows {
                if let Some(slot) = choice.get_mut(*row) {
                    *slot = Self::option_of_row(problem, *row, usize::from(option)) as u8;
                }
            }
        }
        Ok(Decision { solution: judge(problem.instance, choice, problem.work)?, scores: Vec::new() })
    }

    fn reason(&self, context: &ReasonContext<'_>) -> String {
        context.reason_by_costs("with its whole column", "has no room for all of it")
    }
}
