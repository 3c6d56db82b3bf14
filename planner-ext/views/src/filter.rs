//! The filter of a query in disjunctive form: analysed once, checked against every view.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, Operator};
use terrace_error::Result;

use super::bound::{BoundView, without_names};
use super::facts::Facts;
use super::formula::{Formula, operands};
use super::proof::proven;

/// Most disjuncts that a filter is expanded to; alternatives beyond that stay unexpanded and are compared as they are
/// written.
const MOST_DISJUNCTS: usize = 16;

/// A filter as a disjunction of facts.
#[derive(Debug, Clone)]
pub struct Filter {
    disjuncts: Vec<Facts>,
}

/// Result of checking a filter against a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every row that passes the filter belongs to the view.
    Implied,
    /// This conjunct of the view is not proven.
    Lacks(String),
}

impl Filter {
    /// The filter of a scan: conjuncts over the columns of `schema`, after simplification and with parameters bound.
    pub(crate) fn new(conjuncts: &[Expr], schema: &Arc<DFSchema>) -> Self {
        let parts = conjuncts.iter().flat_map(|conjunct| operands(conjunct, Operator::And));
        let parts: Vec<Formula> = parts.map(|part| Formula::from_expr(part, schema)).collect();
        let mut common = Facts::new(schema);
        common.add(&Formula::all(parts));
        let mut open = vec![common];
        let mut disjuncts = Vec::new();
        while let Some(mut facts) = open.pop() {
            if facts.is_impossible() {
                continue;
            }
            match facts.next_alternatives() {
                None => {
                    facts.propagate();
                    disjuncts.push(facts);
                }
                Some(parts) if disjuncts.len() + open.len() + parts.len() > MOST_DISJUNCTS => {
                    facts.leave_unexpanded(parts);
                    open.push(facts);
                }
                Some(parts) => open.extend(parts.iter().map(|part| {
                    let mut one = facts.clone();
                    one.add(part);
                    one
                })),
            }
        }
        disjuncts.retain(|facts| !facts.is_impossible());
        Self { disjuncts }
    }

    /// The filter of a scan with the given columns, from the expressions in its plan.
    ///
    /// # Errors
    /// When the columns of the table cannot be named.
    pub fn for_scan(filters: &[Expr], columns: &SchemaRef) -> Result<Self> {
        let schema = Arc::new(DFSchema::try_from(Arc::clone(columns))?);
        let conjuncts = filters.iter().cloned().map(without_names).collect::<Result<Vec<_>>>()?;
        Ok(Self::new(&conjuncts, &schema))
    }

    /// Whether all rows of the filter belong to the view.
    pub fn check(&self, view: &BoundView) -> Verdict {
        match view.conjuncts().iter().find(|conjunct| !self.proves(&conjunct.formula)) {
            Some(conjunct) => Verdict::Lacks(conjunct.text.clone()),
            None => Verdict::Implied,
        }
    }

    /// True when all rows of the filter fulfil the formula.
    pub(super) fn proves(&self, formula: &Formula) -> bool {
        self.disjuncts.iter().all(|facts| proven(facts, formula))
    }
}
