//! Scalar subqueries that return no row.
//!
//! Such a subquery is NULL, but DataFusion takes it to be as nullable as its column (`Expr::nullable` in
//! expr/src/expr_schema.rs), and simplifies the expression around it: `coalesce((SELECT k ..), 0)` becomes the subquery.
//! Where a subquery may be empty and its column is NOT NULL, the analysis therefore wraps it in a function whose result
//! may be NULL.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/24513> (Scalar subquery returning no rows is incorrectly
//! marked non-nullable), repaired by pull request 24516, which 55.2 lacks; can go when the test
//! `a_scalar_subquery_without_a_row_is_null` passes without it.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::optimizer::AnalyzerRule;

static NULL_IF_EMPTY: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(ScalarUDF::from(NullIfEmpty::new())));

/// The function, for sessions that read plans in which it is called by its name. Statements cannot name it otherwise.
pub fn null_if_empty_function() -> Arc<ScalarUDF> {
    Arc::clone(&NULL_IF_EMPTY)
}

/// Analyzer rule that makes scalar subqueries nullable where they may be empty.
#[derive(Debug)]
pub(crate) struct EmptySubqueries;

impl AnalyzerRule for EmptySubqueries {
    fn name(&self) -> &str {
        "empty_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(expr.transform_down(|part| Ok(null_if_empty(part)))?.update_data(|expr| name.restore(expr)))
            })?
            .map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}

fn null_if_empty(expr: Expr) -> Transformed<Expr> {
    match &expr {
        // Already wrapped: a plan is analysed more than once.
        Expr::ScalarFunction(function) if function.func.inner().is::<NullIfEmpty>() => {
            Transformed::new(expr, false, TreeNodeRecursion::Jump)
        }
        Expr::ScalarSubquery(subquery)
            if !subquery.subquery.schema().field(0).is_nullable() && !has_one_row(&subquery.subquery) =>
        {
            Transformed::new(NULL_IF_EMPTY.call(vec![expr]), true, TreeNodeRecursion::Jump)
        }
        _ => Transformed::no(expr),
    }
}

/// Whether a plan always returns a row: aggregates without groups, and nodes that keep the row above them.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::Sort(sort) => sort.fetch.is_none() && has_one_row(&sort.input),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        _ => false,
    }
}

/// A function that returns its argument and is declared nullable.
#[derive(Debug, PartialEq, Eq, Hash)]
struct NullIfEmpty {
    signature: Signature,
}

impl NullIfEmpty {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for NullIfEmpty {
    fn name(&self) -> &str {
        "null_if_empty"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("the type of null_if_empty is that of its field")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [argument] = args.arg_fields else { return internal_err!("null_if_empty takes one argument") };
        Ok(Arc::new(Field::clone(argument).with_nullable(true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match <[_; 1]>::try_from(args.args) {
            Ok([value]) => Ok(value),
            Err(_) => internal_err!("null_if_empty takes one argument"),
        }
    }
}
