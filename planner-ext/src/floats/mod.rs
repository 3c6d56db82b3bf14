//! Floats with one zero and one NaN, the greatest number, wherever DataFusion has more than one.
//!
//! `=`, `<`, GROUP BY and joins of DataFusion know one zero, and order NaN above all numbers. What does not is repaired here
//! under the same names; docs/design/floats.md has each defect with its place in DataFusion.
//!
//! ```text
//!   lists      x IN (0.0, ..) finds -0.0
//!   rewrite    count(DISTINCT f) has one zero; -f of NaN stays the greatest
//!   extremes   min and max by group, of infinities and NaN
//!   keys       a join's run-time filter lets both zeros pass
//! ```

mod extremes;
mod keys;
mod lists;
mod rewrite;

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::SessionStateDefaults;

pub(crate) use keys::present_form;
pub(crate) use lists::OneZero;

/// Planning with the repairs that are no optimizer rules.
pub(crate) fn with_repairs(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut functions = SessionStateDefaults::default_aggregate_functions();
    functions.extend(extremes::functions());
    builder.with_aggregate_functions(functions).with_analyzer_rule(Arc::new(rewrite::OneZeroOneNan))
}
