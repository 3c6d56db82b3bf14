//! Repairs of float operations in which DataFusion distinguishes two zeros or several NaNs: there is one zero, and one
//! NaN, which is greater than all numbers.
//!
//! In DataFusion `=`, `<`, GROUP BY and joins have one zero, and order NaN above all numbers. The operations that
//! differ are repaired here under the same names; docs/design/floats.md lists each defect with its place in DataFusion.
//!
//! - `extremes`: min and max by group, of infinities and NaN
//! - `keys`: a join's run-time filter lets both zeros pass
//! - `lists`: x IN (0.0, ..) finds -0.0
//! - `rewrite`: count(DISTINCT f) has one zero; -f of NaN stays the greatest value
//!
//! Upstream: an issue for each submodule, named there; can go when the tests of planner-ext/src/engine/tests/zeros.rs
//! pass without it.

mod extremes;
mod keys;
mod lists;
mod rewrite;

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::SessionStateDefaults;

pub(crate) use keys::present_form;
pub(crate) use lists::OneZero;

/// Adds the repairs that are not optimizer rules.
pub(crate) fn with_repairs(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut functions = SessionStateDefaults::default_aggregate_functions();
    functions.extend(extremes::functions());
    builder.with_aggregate_functions(functions).with_analyzer_rule(Arc::new(rewrite::OneZeroOneNan))
}
