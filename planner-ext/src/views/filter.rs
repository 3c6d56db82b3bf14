//! What is known of the rows that a query asks a table for: analysed once, checked against every view.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, Operator};

use super::bound::{BoundView, without_names};
use super::facts::Facts;
use super::formula::{Formula, operands};
use super::proof::proven;
use crate::error::Result;

/// Ways to fulfil a filter that are followed one by one; alternatives beyond that are compared as they are written.
const MOST_WAYS: usize = 16;

/// The conjuncts of a filter.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    ways: Vec<Facts>,
}

/// What the check says of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every row that passes the filter belongs to the view.
    Implied,
    /// This conjunct of the view is not proven.
    Lacks(String),
}

impl Filter {
    /// The filter of a scan: conjuncts over the columns of `schema`, after simplification and with parameters bound.
    pub(crate) fn new(conjuncts: &[Expr], schema: &Arc<DFSchema>) -> Self {
        let parts = conjuncts.iter().flat_map(|conjunct| operands(conjunct, Operator::And));
        let parts: Vec<Formula> = parts.map(|part| Formula::of(part, schema)).collect();
        let mut common = Facts::new(schema);
        common.add(&Formula::all(parts));
        let mut open = vec![common];
        let mut ways = Vec::new();
        while let Some(mut way) = open.pop() {
            if way.is_impossible() {
                continue;
            }
            match way.next_alternatives() {
                None => {
                    way.spread();
                    ways.push(way);
                }
                Some(parts) if ways.len() + open.len() + parts.len() > MOST_WAYS => {
                    way.keep(parts);
                    open.push(way);
                }
                Some(parts) => open.extend(parts.iter().map(|part| {
                    let mut one = way.clone();
                    one.add(part);
                    one
                })),
            }
        }
        ways.retain(|way| !way.is_impossible());
        Self { ways }
    }

    /// The filter of a scan of a table, as plans have it.
    ///
    /// # Errors
    /// When the columns of the table cannot be named.
    pub(crate) fn of_scan(filters: &[Expr], columns: &SchemaRef) -> Result<Self> {
        let schema = Arc::new(DFSchema::try_from(Arc::clone(columns))?);
        let conjuncts = filters.iter().cloned().map(without_names).collect::<Result<Vec<_>>>()?;
        Ok(Self::new(&conjuncts, &schema))
    }

    /// Whether all rows of the filter belong to the view.
    pub(crate) fn check(&self, view: &BoundView) -> Verdict {
        match view.conjuncts().iter().find(|conjunct| !self.proves(&conjunct.formula)) {
            Some(conjunct) => Verdict::Lacks(conjunct.text.clone()),
            None => Verdict::Implied,
        }
    }

    /// True when all rows of the filter fulfil the formula.
    pub(super) fn proves(&self, formula: &Formula) -> bool {
        self.ways.iter().all(|way| proven(way, formula))
    }
}
