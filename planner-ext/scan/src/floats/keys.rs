//! Run-time filters of joins with a zero among their keys.
//!
//! A join with few keys publishes them as a list (`SharedBuildAccumulator::create_membership_predicate`), and a list
//! looks values up by their bits: with a key 0.0 it would exclude rows with -0.0 that the join itself matches. Such a
//! list is replaced by TRUE; the bounds beside it compare with one zero and stay.
//!
//! Upstream: <https://github.com/apache/datafusion/pull/25186> (IN LIST: treat signed zeros as equal), open; can go
//! when the test `joins_match_both_zeros_behind_their_run_time_filters` passes without it.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::expressions::{InListExpr, Literal, lit};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::snapshot_physical_expr;

/// The present form of a filter, with lists that contain a zero replaced by TRUE.
pub(crate) fn present_form(filter: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let dynamic = DynamicFilterTracking::classify(filter).contains_dynamic_filter();
    let snapshot = snapshot_physical_expr(Arc::clone(filter))?;
    if !dynamic {
        return Ok(snapshot);
    }
    // No run-time filter negates its list, so replacing the list by TRUE makes the filter weaker.
    let without_zeros = |expr: Arc<dyn PhysicalExpr>| {
        let finds_zero = expr.downcast_ref::<InListExpr>().is_some_and(has_zero);
        Ok(if finds_zero { Transformed::yes(lit(true)) } else { Transformed::no(expr) })
    };
    snapshot.transform_up(without_zeros).data()
}

fn has_zero(list: &InListExpr) -> bool {
    let values = list.list().iter().filter_map(|value| value.downcast_ref::<Literal>());
    values.into_iter().any(|literal| is_zero(literal.value()))
}

/// A float zero, or a key of several columns with one.
fn is_zero(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float16(Some(float)) => float.to_f32() == 0.0,
        ScalarValue::Float32(Some(float)) => *float == 0.0,
        ScalarValue::Float64(Some(float)) => *float == 0.0,
        ScalarValue::Dictionary(_, value) => is_zero(value),
        ScalarValue::Struct(key) => key.columns().iter().any(|column| match column.data_type() {
            DataType::Float16 => {
                column.as_primitive::<Float16Type>().iter().flatten().any(|float| float.to_f32() == 0.0)
            }
            DataType::Float32 => column.as_primitive::<Float32Type>().iter().flatten().any(|float| float == 0.0),
            DataType::Float64 => column.as_primitive::<Float64Type>().iter().flatten().any(|float| float == 0.0),
            _ => false,
        }),
        _ => false,
    }
}
