//! The operator `||` on texts and binary values, as a function.
//!
//! [`bounded`](super::bounded) calls it in place of the operator, so that it can refuse results that are too large. Types,
//! NULLs, values and names of columns are those of the operator.

use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

use super::result_sizes::CONCAT_OPERATOR;

/// Joins two values; NULL if one of them is.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct TextConcat {
    signature: Signature,
}

impl Default for TextConcat {
    fn default() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TextConcat {
    fn name(&self) -> &str {
        CONCAT_OPERATOR
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [left, right] => BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type(),
            _ => internal_err!("{CONCAT_OPERATOR} of {} values", types.len()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Field::new(self.name(), self.return_type(&types)?, nullable).into())
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [left, right] => {
                let (left, right) = BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
                Ok(vec![left, right])
            }
            _ => datafusion::common::plan_err!("{CONCAT_OPERATOR} takes two values, not {}", types.len()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let all_scalar = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if all_scalar { 1 } else { args.number_rows };
        let arrays = args.args.iter().map(|value| value.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let [left, right] = arrays.as_slice() else {
            return internal_err!("{CONCAT_OPERATOR} of {} values", arrays.len());
        };
        let joined = concat_elements_dyn(left.as_ref(), right.as_ref())?;
        Ok(match all_scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&joined, 0)?),
            false => ColumnarValue::Array(joined),
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [left, right] => {
                let operator = BinaryExpr::new(Box::new(left.clone()), Operator::StringConcat, Box::new(right.clone()));
                Ok(Expr::BinaryExpr(operator).schema_name().to_string())
            }
            _ => internal_err!("{CONCAT_OPERATOR} of {} values", args.len()),
        }
    }
}
