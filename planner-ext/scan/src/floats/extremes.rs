//! `min` and `max` of floats by group.
//!
//! DataFusion starts a group at `f64::MAX` or `f64::MIN` and replaces it by lesser or greater values
//! (`primitive_min_accumulator`, `primitive_max_accumulator` in functions-aggregate/src/min_max.rs): `min` of infinity
//! alone is 1.797e308, `max` of NaN and 2.5 depends on their order. Everything else is passed on to DataFusion's
//! functions.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/24432> (Grouped floating-point `MIN` and `MAX` return
//! order-dependent results for NaNs and signed zeros), repaired by pull request 24433, which 55.2 lacks; can go when
//! the test `extremes_of_groups_know_infinities_and_nan` passes without it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// `min` and `max`.
pub(super) fn functions() -> Vec<Arc<AggregateUDF>> {
    let extreme = |original, greatest| Arc::new(AggregateUDF::new_from_impl(Extreme { original, greatest }));
    vec![extreme(min_udaf(), false), extreme(max_udaf(), true)]
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    /// DataFusion's function.
    original: Arc<AggregateUDF>,
    greatest: bool,
}

macro_rules! float_groups {
    ($kind:ty, $float:ident, $data_type:expr, $greatest:expr) => {
        if $greatest {
            let greater = |known: &mut $float, new: $float| {
                if new > *known || new.is_nan() {
                    *known = new;
                }
            };
            let groups = PrimitiveGroupsAccumulator::<$kind, _>::new($data_type, greater);
            Box::new(groups.with_starting_value($float::NEG_INFINITY)) as Box<dyn GroupsAccumulator>
        } else {
            let less = |known: &mut $float, new: $float| {
                if new < *known || known.is_nan() {
                    *known = new;
                }
            };
            let groups = PrimitiveGroupsAccumulator::<$kind, _>::new($data_type, less);
            Box::new(groups.with_starting_value($float::NAN)) as Box<dyn GroupsAccumulator>
        }
    };
}

impl AggregateUDFImpl for Extreme {
    fn name(&self) -> &str {
        self.original.name()
    }

    fn signature(&self) -> &Signature {
        self.original.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.original.inner().return_type(arguments)
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        self.original.inner().return_field(arguments)
    }

    fn accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.original.inner().accumulator(arguments)
    }

    fn state_fields(&self, arguments: StateFieldsArgs) -> Result<Vec<Arc<Field>>> {
        self.original.inner().state_fields(arguments)
    }

    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs) -> bool {
        self.original.inner().groups_accumulator_supported(arguments)
    }

    fn create_groups_accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let data_type = arguments.return_field.data_type();
        Ok(match data_type {
            DataType::Float32 => float_groups!(Float32Type, f32, data_type, self.greatest),
            DataType::Float64 => float_groups!(Float64Type, f64, data_type, self.greatest),
            _ => self.original.inner().create_groups_accumulator(arguments)?,
        })
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.original.inner().create_sliding_accumulator(arguments)
    }

    fn is_descending(&self) -> Option<bool> {
        self.original.inner().is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.original.inner().order_sensitivity()
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.original.inner().coerce_types(arguments)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.original.inner().reverse_expr()
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.original.inner().value_from_stats(statistics)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.inner().documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.original.inner().set_monotonicity(data_type)
    }
}
