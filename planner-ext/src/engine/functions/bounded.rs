//! Functions that refuse to make very large values.
//!
//! `repeat('x', 2000000000)` asks for more memory than a server may have, in one allocation that no memory pool sees.
//! [`BoundedFunction`] wraps such a function of DataFusion, computes the size of its result from its arguments and
//! refuses the call before anything is allocated. The sizes come from [`SizeRule`]. Functions whose result is as large as
//! their arguments together are wrapped too where a query can call them on their own results: `s || s` doubles a text.
//! So are functions that work for long on texts, so that a statement that has to stop does so between two steps.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ExprSchema, ScalarValue, internal_datafusion_err};
use datafusion::error::Result as PlanResult;
use datafusion::execution::registry::FunctionRegistry;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::udf_eq::UdfEq;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Documentation, Expr, ExpressionPlacement, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, StructFieldMapping,
};
use terrace_tier_store::units::human_bytes;

use super::in_steps::in_steps;
use super::result_sizes::{CONCAT_OPERATOR, SizeRule, VALUE_BYTES};
use super::text_concat::TextConcat;
use crate::error::{Error, Result};

/// The least limit of a batch, however little memory queries have: one value of full size.
const LEAST_BATCH_BYTES: u64 = VALUE_BYTES;

/// The greatest limit of a batch, however much memory queries have.
const GREATEST_BATCH_BYTES: u64 = 1 << 30;

/// The functions that can make a large result from small arguments, or by calls of their own results, or work for long.
const FUNCTIONS: [&str; 27] = [
    CONCAT_OPERATOR,
    "array_append",
    "array_concat",
    "array_prepend",
    "array_repeat",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
    "array_resize",
    "array_to_string",
    "array_union",
    "concat",
    "concat_ws",
    "encode",
    "generate_series",
    "levenshtein",
    "lpad",
    "overlay",
    "range",
    "regexp_count",
    "regexp_instr",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "repeat",
    "replace",
    "rpad",
];

/// Wraps the functions of `state` that can make a large result. Calls that the planner builds of DataFusion's own functions,
/// such as that of `||` on arrays, become calls of the wrapped ones.
pub(super) fn bound(state: &mut SessionState, query_memory_bytes: u64) -> Result<()> {
    let batch_bytes = (query_memory_bytes / 4).clamp(LEAST_BATCH_BYTES, GREATEST_BATCH_BYTES);
    state.register_udf(Arc::new(ScalarUDF::new_from_impl(TextConcat::default())))?;
    let mut wrapped = HashMap::new();
    for name in FUNCTIONS {
        let function = state.udf(name)?;
        if let Some(bounded) = BoundedFunction::new(&function, batch_bytes) {
            let bounded = Arc::new(ScalarUDF::new_from_impl(bounded));
            wrapped.insert(name, Arc::clone(&bounded));
            // Replaces the names of its aliases too.
            state.register_udf(bounded)?;
        }
    }
    state.register_function_rewrite(Arc::new(CallBounded { wrapped }))?;
    Ok(())
}

/// Calls the wrapped functions in place of DataFusion's own, and one in place of the operator `||`.
#[derive(Debug)]
struct CallBounded {
    wrapped: HashMap<&'static str, Arc<ScalarUDF>>,
}

impl FunctionRewrite for CallBounded {
    fn name(&self) -> &str {
        "call_bounded"
    }

    fn rewrite(&self, expr: Expr, _: &DFSchema, _: &ConfigOptions) -> PlanResult<Transformed<Expr>> {
        let (name, args) = match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) => {
                (CONCAT_OPERATOR, vec![*left, *right])
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) if !func.inner().is::<BoundedFunction>() => {
                return Ok(match self.wrapped.get(func.name()) {
                    Some(bounded) => Transformed::yes(bounded.call(args)),
                    None => Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args })),
                });
            }
            other => return Ok(Transformed::no(other)),
        };
        let bounded = self.wrapped.get(name).ok_or_else(|| internal_datafusion_err!("{name} is not registered"))?;
        Ok(Transformed::yes(bounded.call(args)))
    }
}

/// A function of DataFusion that refuses calls with a very large result.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BoundedFunction {
    inner: UdfEq<Arc<dyn ScalarUDFImpl>>,
    rule: SizeRule,
    /// The most bytes that one call makes, for all rows of a batch.
    batch_bytes: u64,
}

impl BoundedFunction {
    /// Wraps `function`; none if it has no rule.
    fn new(function: &ScalarUDF, batch_bytes: u64) -> Option<Self> {
        let rule = SizeRule::for_function(function.name())?;
        Some(Self { inner: UdfEq::from(Arc::clone(function.inner())), rule, batch_bytes })
    }

    /// Refuses a call whose result is too large. Returns its bytes, or 0 where they are few.
    fn check(&self, args: &ScalarFunctionArgs) -> PlanResult<u64> {
        let name = match self.inner.name() {
            CONCAT_OPERATOR => "||",
            name => name,
        };
        let rows = args.number_rows;
        let size = self.rule.result_size(name, &args.args, rows, self.batch_bytes)?;
        let problem = if size.largest_value > VALUE_BYTES {
            format!(
                "{name} would make a value of {}; a value has at most {}",
                human_bytes(size.largest_value),
                human_bytes(VALUE_BYTES)
            )
        } else if size.batch > self.batch_bytes && self.rule != SizeRule::EditDistance {
            format!(
                "{name} would make {} for a batch of {rows} rows; the limit is {} (a quarter of query memory, at least \
                 {} and at most {}). Let it read fewer rows at once (SET datafusion.execution.batch_size), or make \
                 shorter values",
                human_bytes(size.batch),
                human_bytes(self.batch_bytes),
                human_bytes(LEAST_BATCH_BYTES),
                human_bytes(GREATEST_BATCH_BYTES)
            )
        } else {
            return Ok(size.batch);
        };
        Err(Error::invalid(problem).into())
    }
}

/// Raises negative lengths to 0: `lpad` panics on a column with such a length, as of DataFusion 55.2.
fn raise_to_0(length: &mut ColumnarValue) {
    if let ColumnarValue::Array(array) = length
        && let Some(lengths) = array.as_primitive_opt::<Int64Type>()
    {
        *array = Arc::new(lengths.unary::<_, Int64Type>(|length| length.max(0)));
    }
}

#[warn(clippy::missing_trait_methods, reason = "a method that is not delegated changes the function")]
impl ScalarUDFImpl for BoundedFunction {
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        if let (SizeRule::Pad, Some(length)) = (self.rule, args.args.get_mut(1)) {
            raise_to_0(length);
        }
        let result_bytes = self.check(&args)?;
        in_steps(args, result_bytes, |args| self.inner.invoke_with_args(args))
    }

    /// Simplifies as DataFusion does, which may build a call of its own function. Its `concat` joins literals.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> PlanResult<ExprSimplifyResult> {
        if matches!(self.rule, SizeRule::Concat | SizeRule::ConcatWithSeparator) {
            let literals = args.iter().filter_map(|arg| match arg {
                Expr::Literal(value, _) => Some(ColumnarValue::Scalar(value.clone())),
                _ => None,
            });
            let joined = self.rule.result_size(self.name(), &literals.collect::<Vec<_>>(), 1, VALUE_BYTES)?;
            if joined.largest_value > VALUE_BYTES {
                return Ok(ExprSimplifyResult::Original(args));
            }
        }
        let call = match self.inner.simplify(args, info)? {
            ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)) if !call.func.inner().is::<Self>() => call,
            other => return Ok(other),
        };
        let ScalarFunction { func, args } = call;
        let func = match Self::new(&func, self.batch_bytes) {
            Some(bounded) => Arc::new(ScalarUDF::new_from_impl(bounded)),
            None => func,
        };
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(ScalarFunction { func, args })))
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let updated = self.inner.with_updated_config(config)?;
        Some(Self::new(&updated, self.batch_bytes).map_or(updated, ScalarUDF::new_from_impl))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn display_name(&self, args: &[Expr]) -> PlanResult<String> {
        #[expect(deprecated)]
        self.inner.display_name(args)
    }

    fn schema_name(&self, args: &[Expr]) -> PlanResult<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> PlanResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> PlanResult<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        #[expect(deprecated)]
        self.inner.is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.inner.is_strict()
    }

    fn preimage(&self, args: &[Expr], literal: &Expr, info: &SimplifyContext) -> PlanResult<PreimageResult> {
        self.inner.preimage(args, literal, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }

    fn evaluate_bounds(&self, input: &[&Interval]) -> PlanResult<Interval> {
        self.inner.evaluate_bounds(input)
    }

    fn propagate_constraints(&self, interval: &Interval, inputs: &[&Interval]) -> PlanResult<Option<Vec<Interval>>> {
        self.inner.propagate_constraints(interval, inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> PlanResult<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> PlanResult<bool> {
        self.inner.preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> PlanResult<bool> {
        self.inner.strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, types: &[DataType]) -> PlanResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn struct_field_mapping(&self, literals: &[Option<ScalarValue>]) -> Option<StructFieldMapping> {
        self.inner.struct_field_mapping(literals)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.inner.placement(args)
    }
}
