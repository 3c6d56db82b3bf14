//! The single values that a predicate asks a column for: `k = 7`, `k IN (7, 9)`, the same written with OR, and the keys
//! of a small join, which are published as a list.
//!
//! DataFusion finds the values in a predicate; they are hashed here like the values in the membership filters of
//! segments. A literal of another type than the column's is not compared with it by bytes, so it gives no probe values.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::{Guarantee, LiteralGuarantee};
use terrace_tier_store::table::HashedValues;

/// Values of one column such that a predicate is true only for rows that have one of them.
#[derive(Debug)]
pub(super) struct ProbeValues {
    /// Position in the table's schema.
    pub column: usize,
    /// The values; at least one.
    pub values: HashedValues,
}

impl ProbeValues {
    /// Probe values of `predicate`, which is over the table's `schema`; there may be some for several columns.
    pub(super) fn from_predicate(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Vec<Self> {
        let found = LiteralGuarantee::analyze(predicate).into_iter().filter(|g| g.guarantee == Guarantee::In);
        let probes = found.filter_map(|guarantee| {
            let column = schema.index_of(&guarantee.column.name).ok()?;
            let data_type = schema.field(column).data_type();
            let same = guarantee.literals.iter().all(|literal| literal.data_type() == *data_type);
            let values = same.then(|| ScalarValue::iter_to_array(guarantee.literals).ok()).flatten()?;
            HashedValues::from_array(&values).filter(|values| !values.is_empty()).map(|values| Self { column, values })
        });
        probes.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{ArrayRef, Int64Array, StringViewArray};
    use arrow::datatypes::{DataType, Field};
    use datafusion::common::ToDFSchema;
    use datafusion::prelude::{Expr, SessionContext, col, lit};

    use super::*;

    fn probes(expr: Expr) -> Vec<(usize, HashedValues)> {
        let field = |name, data_type| Field::new(name, data_type, true);
        let fields = [("k", DataType::Int64), ("s", DataType::Utf8View), ("f", DataType::Float64)];
        let schema = Arc::new(Schema::new(fields.map(|(name, data_type)| field(name, data_type)).to_vec()));
        let columns = Arc::clone(&schema).to_dfschema().unwrap();
        let expr = SessionContext::new().create_physical_expr(expr, &columns).unwrap();
        ProbeValues::from_predicate(&expr, &schema).into_iter().map(|probe| (probe.column, probe.values)).collect()
    }

    fn numbers(values: &[i64]) -> (usize, HashedValues) {
        let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
        (0, HashedValues::from_array(&values).unwrap())
    }

    #[test]
    fn equalities_and_lists_ask_and_nothing_else_does() {
        let k = || col("k");
        let s = || col("s");
        let text = || lit(ScalarValue::Utf8View(Some("x".into())));
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec!["x"]));
        let x = (1, HashedValues::from_array(&texts).unwrap());
        assert_eq!(probes(k().eq(lit(7_i64))), [numbers(&[7])]);
        assert_eq!(probes(lit(7_i64).eq(k()).and(s().eq(text()))), [numbers(&[7]), x]);
        assert_eq!(
            probes(k().in_list(vec![lit(7_i64), lit(9_i64), lit(-1_i64), lit(12_i64)], false)),
            [numbers(&[-1, 7, 9, 12])]
        );
        assert_eq!(probes(k().eq(lit(7_i64)).or(k().eq(lit(9_i64)))), [numbers(&[7, 9])]);
        let pairs = k().eq(lit(1_i64)).and(s().eq(text())).or(k().eq(lit(2_i64)).and(s().not_eq(text())));
        assert_eq!(probes(pairs), [numbers(&[1, 2])]);
        for nothing in [
            k().not_eq(lit(7_i64)),
            k().gt(lit(7_i64)),
            k().in_list(vec![lit(7_i64), lit(9_i64)], true),
            k().eq(lit(7_i64)).or(s().eq(text())),
            k().eq(lit(7_i64)).or(k().is_null()),
            k().eq(lit(ScalarValue::Int64(None))),
            (k() + lit(1_i64)).eq(lit(7_i64)),
            col("f").eq(lit(0.5)),
            datafusion::prelude::not(k().eq(lit(7_i64))),
        ] {
            let text = nothing.to_string();
            assert!(probes(nothing).is_empty(), "{text}");
        }
    }
}
