//! Functions that differ from DataFusion's: those about the session, and repairs of result types.
//!
//! - `argument`: an argument of a call
//! - `bounded`: functions that refuse to make very large values
//! - `collecting`: aggregates that collect the values of a group, with an honest size
//! - `in_steps`: calls over much data, a few rows at a time
//! - `matches`: how often functions find what they replace
//! - `result_sizes`: the bytes that a call would make
//! - `text_concat`: the operator `||` as a function
//!
//! Upstream: <https://github.com/apache/datafusion/issues/24632> (`to_timestamp` with string input returns an array
//! whose timezone does not match its declared return type), closed; 55.2 still does so where a format is given. That
//! repair can go when the test `formats_of_times_keep_the_time_zone` passes without it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, make_array};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result as PlanResult;
use datafusion::execution::registry::FunctionRegistry;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::planner::ExprPlanner;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::udf_eq::UdfEq;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::CATALOG;
use super::types::{check_type, check_type_text};
use crate::error::Result;

mod argument;
mod bounded;
mod collecting;
mod in_steps;
mod matches;
mod result_sizes;
mod text_concat;

pub(super) use in_steps::array_bytes;

/// The user of a session, as an extension of its configuration.
pub(super) struct SessionUser(pub(super) String);

/// Repairs functions of DataFusion, and bounds or counts what they allocate; once per engine.
pub(super) fn repair(state: &mut SessionState, query_memory_bytes: u64) -> Result<()> {
    for name in
        ["to_timestamp", "to_timestamp_seconds", "to_timestamp_millis", "to_timestamp_micros", "to_timestamp_nanos"]
    {
        wrap(state, name, Repair::KeepTimeZone)?;
    }
    for name in ["arrow_cast", "arrow_try_cast"] {
        wrap(state, name, Repair::CheckType)?;
    }
    collecting::count_copies(state)?;
    bounded::bound(state, query_memory_bytes)
}

fn wrap(state: &mut SessionState, name: &str, repair: Repair) -> Result<()> {
    let inner = UdfEq::from(Arc::clone(state.udf(name)?.inner()));
    state.register_udf(Arc::new(ScalarUDF::new_from_impl(Repaired { inner, repair })))?;
    Ok(())
}

/// Planners of expressions that come before DataFusion's.
pub(super) fn expr_planners() -> Vec<Arc<dyn ExprPlanner>> {
    vec![Arc::new(collecting::ArrayAggElements)]
}

/// Updates functions to the configuration of the session: time zone, user, schema.
pub(super) fn configure(state: &mut SessionState) -> Result<()> {
    let options = Arc::clone(state.config_options());
    let functions = state.scalar_functions().values();
    let changed: Vec<ScalarUDF> = functions.filter_map(|f| f.inner().with_updated_config(&options)).collect();
    for function in changed {
        state.register_udf(Arc::new(function))?;
    }
    let user = state.config().get_extension::<SessionUser>().map(|user| user.0.clone());
    let version =
        format!("Terrace {}, {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS);
    for (name, value) in [
        ("version", Some(version)),
        ("current_user", user.clone()),
        ("session_user", user),
        ("current_catalog", Some(CATALOG.to_owned())),
        ("current_database", Some(CATALOG.to_owned())),
        ("current_schema", Some(options.catalog.default_schema.clone())),
    ] {
        // Not immutable: such a function could be used in the condition of a hot view, with the value of one session.
        let signature = Signature::nullary(Volatility::Stable);
        state.register_udf(Arc::new(ScalarUDF::new_from_impl(Constant { name, value, signature })))?;
    }
    Ok(())
}

/// A function without arguments whose value depends on the session.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Constant {
    name: &'static str,
    value: Option<String>,
    signature: Signature,
}

impl ScalarUDFImpl for Constant {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> PlanResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(self.value.clone())))
    }
}

/// Gives timestamps the time zone of the type `wanted` and keeps their instants; a cast would read them as local times.
fn with_time_zone(array: ArrayRef, wanted: &DataType) -> PlanResult<ArrayRef> {
    match (array.data_type(), wanted) {
        (DataType::Timestamp(has, None), DataType::Timestamp(wants, Some(_))) if has == wants => {
            Ok(make_array(array.to_data().into_builder().data_type(wanted.clone()).build()?))
        }
        _ => Ok(array),
    }
}

/// What a function of DataFusion lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Repair {
    /// `to_timestamp`: with a format, over columns, DataFusion's loses the time zone of its result type
    /// (`handle_multiple` of datafusion-functions, `src/datetime/common.rs`).
    KeepTimeZone,
    /// `arrow_cast` and `arrow_try_cast`: the text of the type may be nested so deeply that its parser overflows the stack,
    /// and values of the type so wide that there is no memory for a few of them.
    CheckType,
}

impl Repair {
    /// Refuses arguments before the function looks at them.
    fn check_arguments(self, args: &ReturnFieldArgs<'_>) -> PlanResult<()> {
        if self == Self::CheckType
            && let [_, Some(text)] = args.scalar_arguments
            && let Some(Some(text)) = text.try_as_str()
        {
            check_type_text(text)?;
        }
        Ok(())
    }

    /// Refuses a type of the result.
    fn check_result_type(self, data_type: &DataType) -> PlanResult<()> {
        match self {
            Self::KeepTimeZone => Ok(()),
            Self::CheckType => Ok(check_type(data_type)?),
        }
    }

    /// The result in the type that was announced.
    fn repaired(self, result: ColumnarValue, announced: &DataType) -> PlanResult<ColumnarValue> {
        match (self, result) {
            (Self::CheckType, result) => Ok(result),
            (Self::KeepTimeZone, ColumnarValue::Array(array)) => {
                Ok(ColumnarValue::Array(with_time_zone(array, announced)?))
            }
            (Self::KeepTimeZone, ColumnarValue::Scalar(value)) => {
                let one = with_time_zone(value.to_array()?, announced)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?))
            }
        }
    }
}

/// A function of DataFusion with a repair.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Repaired {
    inner: UdfEq<Arc<dyn ScalarUDFImpl>>,
    repair: Repair,
}

impl ScalarUDFImpl for Repaired {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> PlanResult<FieldRef> {
        self.repair.check_arguments(&args)?;
        let field = self.inner.return_field_from_args(args)?;
        self.repair.check_result_type(field.data_type())?;
        Ok(field)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let announced = Arc::clone(&args.return_field);
        self.repair.repaired(self.inner.invoke_with_args(args)?, announced.data_type())
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let inner = UdfEq::from(Arc::clone(self.inner.with_updated_config(config)?.inner()));
        Some(ScalarUDF::new_from_impl(Self { inner, repair: self.repair }))
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> PlanResult<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
