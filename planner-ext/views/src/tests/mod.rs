//! Tests of the check: against rows, and against a list of views that it has to prove implied.
//!
//! - `generator`: random rows, conditions and queries
//! - `promises`: pairs of query and view that the check has to prove, or must not prove
//! - `soundness`: random queries and views, checked against rows
//! - `windows`: views with moving windows, refused conditions, the work of a check

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

pub(crate) mod generator;
mod promises;
mod soundness;
mod windows;

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::DFSchema;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::prelude::SessionConfig;

use generator::columns;

use super::filter::Filter;
use super::formula::Formula;

/// A planner of conditions on [`columns`].
pub(crate) struct Planner {
    pub(crate) state: SessionState,
    pub(crate) schema: Arc<DFSchema>,
    simplifier: ExprSimplifier,
}

impl Planner {
    pub(crate) fn new() -> Self {
        Self::with_columns(&columns())
    }

    pub(crate) fn with_columns(columns: &Schema) -> Self {
        let mut config = SessionConfig::new();
        config.options_mut().sql_parser.map_string_types_to_utf8view = true;
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let state = SessionStateBuilder::new().with_default_features().with_config(config).build();
        let schema = Arc::new(DFSchema::try_from(columns.clone()).unwrap());
        let context = SimplifyContext::builder().with_schema(Arc::clone(&schema)).with_current_time().build();
        Self { state, schema, simplifier: ExprSimplifier::new(context) }
    }

    /// The expression after type coercion, and after simplification.
    fn planned(&self, sql: &str) -> datafusion::error::Result<(Expr, Expr)> {
        let expr = self.state.create_logical_expr(sql, &self.schema)?;
        let coerced = terrace_scan::coercion::coerced(&self.simplifier, expr, &self.schema)?;
        Ok((coerced.clone(), self.simplifier.simplify(coerced)?))
    }

    pub(crate) fn simplified(&self, sql: &str) -> Expr {
        self.planned(sql).unwrap_or_else(|e| panic!("{sql}: {e}")).1
    }

    /// True if the check proves that all rows of `query` are rows of `view`.
    fn implies(&self, query: &str, view: &str) -> bool {
        Filter::new(&[self.simplified(query)], &self.schema)
            .proves(&Formula::from_expr(&self.simplified(view), &self.schema))
    }
}
