//! Coercion of numbers of different types, where it differs from DataFusion's.
//!
//! - A float and a decimal are both coerced to floats ([`DecimalsToFloats`]). DataFusion coerces them to DECIMAL(30, 15),
//!   which has no 1e300 and no infinity (`get_common_decimal_type` in expr-common/src/type_coercion/binary.rs).
//! - A decimal literal beside a float becomes the nearest float to the written number. A cast divides the digits as a
//!   float, which is off by one unit in the last place from 16 digits on, and the literal would miss the row that it was
//!   copied from.
//! - A decimal literal beside an integer or decimal column is compared in the type of the column, so that statistics and
//!   keys serve it.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/14272> (Coercion between floating point types and exact
//! numeric types should result in floating point type as the common super type), open, and
//! <https://github.com/apache/arrow-rs/issues/10508> (Casting decimal to Float64 / Float32 is not correctly rounded),
//! open; can go when the test `decimal_literals_are_decimals` passes without it.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::expr::{Between, BinaryExpr, Case, InList, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::type_coercion::other::get_coerce_type_for_case_expression;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Subquery, Union, Values, cast, lit,
};
use datafusion::optimizer::analyzer::Analyzer;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercionRewriter;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::comparison;
use crate::subqueries::EmptySubqueries;

/// Adds the rules of this module to the analyzer.
pub(crate) fn with_rules(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut rules = Analyzer::new().rules;
    rules.insert(0, Arc::new(DecimalsToFloats));
    rules.push(Arc::new(LiteralArguments));
    rules.push(Arc::new(EmptySubqueries));
    builder.with_analyzer_rules(rules)
}

/// Functions whose arguments and result have the same type.
const SAME_TYPE_FUNCTIONS: [&str; 8] =
    ["coalesce", "nvl", "ifnull", "nvl2", "nullif", "greatest", "least", "make_array"];

/// Analyzer rule, before type coercion, that casts decimals to floats where they are combined with floats.
#[derive(Debug)]
pub(crate) struct DecimalsToFloats;

impl AnalyzerRule for DecimalsToFloats {
    fn name(&self) -> &str {
        "floats_stay"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            let node = node.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(with_floats(expr, &schema)?.update_data(|expr| name.restore(expr)))
            })?;
            // Nodes below may have other types now, and the schemas of nodes without expressions repeat them.
            let node = node.map_data(LogicalPlan::recompute_schema)?;
            node.transform_data(|node| match node {
                LogicalPlan::Union(union) => coerce_union(union),
                LogicalPlan::Values(values) => coerce_values(values),
                LogicalPlan::Join(mut join) => {
                    let mut changed = false;
                    for (left, right) in &mut join.on {
                        let kinds = [left.get_type(join.left.schema()), right.get_type(join.right.schema())];
                        changed |= cast_decimals_beside_floats(&mut [
                            (left, kinds[0].as_ref().ok()),
                            (right, kinds[1].as_ref().ok()),
                        ]);
                    }
                    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
                }
                other => Ok(Transformed::no(other)),
            })
        })
        .data()
    }
}

/// Analyzer rule that folds casts of literals in the arguments of functions. The type of a result may depend on the value
/// (`round(x, 2)`), and would change when the optimizer folds the cast, after the result type was sent to the client.
#[derive(Debug)]
struct LiteralArguments;

impl AnalyzerRule for LiteralArguments {
    fn name(&self) -> &str {
        "literal_arguments"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let names = NamePreserver::new(&node);
            let node = node.map_expressions(|expr| {
                let name = names.save(&expr);
                let folded = expr.transform_up(|mut part| {
                    let mut changed = false;
                    if let Expr::ScalarFunction(function) = &mut part {
                        for argument in &mut function.args {
                            changed |= fold_cast_literal(argument);
                        }
                    }
                    Ok(Transformed::new_transformed(part, changed))
                })?;
                Ok(folded.update_data(|expr| name.restore(expr)))
            })?;
            node.map_data(LogicalPlan::recompute_schema)
        })
        .data()
    }
}

fn fold_cast_literal(argument: &mut Expr) -> bool {
    let Expr::Cast(written) = argument else { return false };
    let Expr::Literal(value, _) = written.expr.as_ref() else { return false };
    let Ok(value) = value.cast_to(written.field.data_type()) else { return false };
    let nearest = nearest_float(argument.clone());
    *argument = if nearest.transformed { nearest.data } else { lit(value) };
    true
}

/// Casts decimals to floats where an expression, which is not coerced yet, combines them with floats.
pub(crate) fn with_floats(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|mut part| {
        let changed = match &mut part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if comparison::is_comparison(*op) => {
                cast_decimals_in(vec![left.as_mut(), right.as_mut()], schema)
            }
            Expr::Between(Between { expr, low, high, .. }) => {
                cast_decimals_in(vec![expr.as_mut(), low.as_mut(), high.as_mut()], schema)
            }
            Expr::InList(InList { expr, list, .. }) => {
                cast_decimals_in(std::iter::once(expr.as_mut()).chain(list).collect(), schema)
            }
            Expr::Case(Case { expr, when_then_expr, else_expr }) => {
                let mut conditions = Vec::new();
                let mut results = Vec::new();
                for (when, then) in when_then_expr {
                    conditions.push(when.as_mut());
                    results.push(then.as_mut());
                }
                results.extend(else_expr.as_deref_mut());
                let compared = expr.is_some()
                    && cast_decimals_in(conditions.into_iter().chain(expr.as_deref_mut()).collect(), schema);
                coerce_branches(results, schema) | compared
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) if SAME_TYPE_FUNCTIONS.contains(&func.name()) => {
                cast_decimals_in(args.iter_mut().collect(), schema)
            }
            Expr::InSubquery(InSubquery { expr, subquery, .. })
            | Expr::SetComparison(SetComparison { expr, subquery, .. }) => coerce_subquery(expr, subquery, schema)?,
            _ => false,
        };
        Ok(Transformed::new_transformed(part, changed))
    })
}

fn cast_decimals_in(parts: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let kinds: Vec<_> = parts.iter().map(|part| part.get_type(schema).ok()).collect();
    let mut parts: Vec<_> = parts.into_iter().zip(kinds.iter().map(Option::as_ref)).collect();
    cast_decimals_beside_floats(&mut parts)
}

/// Casts the branches of a CASE to their common type, if they are numbers: before coercion, the type of a CASE is that of
/// its first branch.
fn coerce_branches(mut branches: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let kinds: Option<Vec<_>> = branches.iter().map(|branch| branch.get_type(schema).ok()).collect();
    let Some(kinds) = kinds else { return false };
    let mut changed = cast_decimals_beside_floats(
        &mut branches.iter_mut().map(|branch| &mut **branch).zip(kinds.iter().map(Some)).collect::<Vec<_>>(),
    );
    let kinds: Vec<_> = branches.iter().filter_map(|branch| branch.get_type(schema).ok()).collect();
    let common = get_coerce_type_for_case_expression(&kinds, None).filter(DataType::is_numeric);
    let Some(common) = common else { return changed };
    for (branch, kind) in branches.into_iter().zip(&kinds) {
        if kind.is_numeric() && *kind != common {
            *branch = cast(std::mem::take(branch), common.clone());
            changed = true;
        }
    }
    changed
}

/// Casts the decimals among expressions to floats when one of the expressions is a float.
fn cast_decimals_beside_floats(parts: &mut [(&mut Expr, Option<&DataType>)]) -> bool {
    if !parts.iter().any(|(_, kind)| kind.is_some_and(DataType::is_floating)) {
        return false;
    }
    let mut changed = false;
    for (part, kind) in parts {
        if kind.is_some_and(DataType::is_decimal) {
            **part = cast_to_float(std::mem::take(*part));
            changed = true;
        }
    }
    changed
}

fn cast_to_float(decimal: Expr) -> Expr {
    nearest_float(cast(decimal, DataType::Float64)).data
}

fn coerce_subquery(expr: &mut Expr, subquery: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let [found] = subquery.subquery.schema().fields().as_ref() else { return Ok(false) };
    let kind = expr.get_type(schema)?;
    if kind.is_decimal() && found.data_type().is_floating() {
        *expr = cast_to_float(std::mem::take(expr));
        return Ok(true);
    }
    if !kind.is_floating() || !found.data_type().is_decimal() {
        return Ok(false);
    }
    subquery.subquery = Arc::new(with_float_columns(&subquery.subquery, &[true])?);
    Ok(true)
}

/// Casts those columns of a plan to floats for which `columns` is true.
fn with_float_columns(plan: &Arc<LogicalPlan>, columns: &[bool]) -> Result<LogicalPlan> {
    let exprs = plan.schema().iter().zip(columns).map(|(column, cast)| {
        let expr = Expr::from(column);
        if *cast { cast_to_float(expr).alias_qualified(column.0.cloned(), column.1.name()) } else { expr }
    });
    LogicalPlanBuilder::from(plan.as_ref().clone()).project(exprs.collect::<Vec<_>>())?.build()
}

/// Casts a column of a union to floats if it is a float in one input and a decimal in another. Coerces every union, as its
/// types are those of its first input until then, and the nodes above it ask for them.
fn coerce_union(mut union: Union) -> Result<Transformed<LogicalPlan>> {
    let kinds = |column: usize| union.inputs.iter().map(move |input| input.schema().fields().get(column));
    let has = |column, is: fn(&DataType) -> bool| kinds(column).flatten().any(|field| is(field.data_type()));
    let mixed: Vec<_> = (0..union.schema.fields().len())
        .map(|column| has(column, DataType::is_floating) && has(column, DataType::is_decimal))
        .collect();
    for input in &mut union.inputs {
        let fields = input.schema().fields().iter().zip(&mixed);
        let decimals: Vec<_> = fields.map(|(field, mixed)| *mixed && field.data_type().is_decimal()).collect();
        if decimals.contains(&true) {
            *input = Arc::new(with_float_columns(input, &decimals)?);
        }
    }
    if mixed.contains(&true) {
        union = Union::try_new_with_loose_types(union.inputs)?;
    }
    let types = |schema: &DFSchema| schema.fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>();
    let wanted = types(&union.schema);
    if union.inputs.iter().all(|input| types(input.schema()) == wanted) {
        return Ok(Transformed::new_transformed(LogicalPlan::Union(union), mixed.contains(&true)));
    }
    TypeCoercionRewriter::coerce_union(union).map(Transformed::yes)
}

/// Casts a column of VALUES with floats and decimals to floats. The planner has cast its floats to decimals already.
fn coerce_values(Values { schema, mut values }: Values) -> Result<Transformed<LogicalPlan>> {
    let none = DFSchema::empty();
    let mut changed = false;
    for column in 0..schema.fields().len() {
        let was_float = |cell: &Expr| match cell {
            Expr::Cast(cast) if cast.field.data_type().is_decimal() => {
                cast.expr.get_type(&none).is_ok_and(|kind| kind.is_floating())
            }
            _ => false,
        };
        let mut cells: Vec<_> = values.iter_mut().filter_map(|row| row.get_mut(column)).collect();
        let floats = cells.iter().filter(|cell| was_float(cell)).count();
        // If all cells are cast, the cast is the statement's own.
        if floats == 0 || floats == cells.len() {
            continue;
        }
        changed = true;
        for cell in &mut cells {
            let written = match std::mem::take(*cell) {
                Expr::Cast(cast) if cast.field.data_type().is_decimal() => *cast.expr,
                other => other,
            };
            **cell = nearest_float(written.cast_to(&DataType::Float64, &none)?).data;
        }
    }
    if !changed {
        return Ok(Transformed::no(LogicalPlan::Values(Values { schema, values })));
    }
    Ok(Transformed::yes(LogicalPlanBuilder::values(values)?.build()?))
}

/// Optimizer rule, before casts of literals are folded, that rewrites decimal literals into the types of columns.
#[derive(Debug)]
pub(crate) struct DecimalLiterals;

impl OptimizerRule for DecimalLiterals {
    fn name(&self) -> &str {
        "decimal_literals"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        let schema = merge_schema(&plan.inputs());
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(in_column_types(expr, &schema)?.update_data(|expr| name.restore(expr)))
        })
    }
}

/// Coerces an expression over columns as the analysis of a plan does.
pub fn coerced(simplifier: &ExprSimplifier, expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let expr = simplifier.coerce(with_floats(expr, schema)?.data, schema)?;
    Ok(in_column_types(expr, schema)?.data)
}

/// Rewrites the decimal literals of a coerced expression into the types of the columns that they are compared with.
pub fn in_column_types(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !expr.exists(|part| Ok(decimal_literal(part).is_some()))? {
        return Ok(Transformed::no(expr));
    }
    expr.transform_up(|part| Ok(nearest_float(part)))?.transform_data(|expr| {
        expr.transform_down(|part| Ok(comparison::in_column_type(part, schema, &decimal_literal)))
    })
}

fn nearest_float(expr: Expr) -> Transformed<Expr> {
    let found = match &expr {
        Expr::Cast(cast) => match (cast.expr.as_ref(), cast.field.data_type()) {
            (Expr::Literal(value, _), DataType::Float64) => {
                decimal_text(value).and_then(|text| text.parse::<f64>().ok()).map(lit)
            }
            (Expr::Literal(value, _), DataType::Float32) => {
                decimal_text(value).and_then(|text| text.parse::<f32>().ok()).map(lit)
            }
            _ => None,
        },
        _ => None,
    };
    found.map_or_else(|| Transformed::no(expr), Transformed::yes)
}

fn decimal_literal(expr: &Expr) -> Option<&ScalarValue> {
    comparison::literal(expr).filter(|value| value.data_type().is_decimal())
}

/// The text of a decimal, as digits and exponent.
fn decimal_text(value: &ScalarValue) -> Option<String> {
    match value {
        ScalarValue::Decimal128(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        ScalarValue::Decimal256(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        _ => None,
    }
}
