//! Where numbers of different types meet: what DataFusion's coercion does otherwise.
//!
//! - Floats and decimals meet as floats ([`FloatsStay`]). DataFusion compares and unites them as DECIMAL(30, 15), which has
//!   no 1e300 and no infinity (`get_common_decimal_type` in expr-common/src/type_coercion/binary.rs).
//! - A decimal literal beside a float is the float that is nearest to what is written. A cast divides its digits as a
//!   float, is off by one place from 16 digits on, and the literal would miss the row that it was read from.
//! - A decimal literal beside an integer or decimal column is compared in the type of the column, so that statistics and
//!   keys serve it.

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

use crate::engine::comparison;
use crate::subqueries::EmptySubqueries;

/// Planning with our rules of analysis.
pub(crate) fn with_rules(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut rules = Analyzer::new().rules;
    rules.insert(0, Arc::new(FloatsStay));
    rules.push(Arc::new(LiteralArguments));
    rules.push(Arc::new(EmptySubqueries));
    builder.with_analyzer_rules(rules)
}

/// Functions whose arguments have one type, that of their result.
const OF_ONE_TYPE: [&str; 8] = ["coalesce", "nvl", "ifnull", "nvl2", "nullif", "greatest", "least", "make_array"];

/// The rule that casts decimals to floats where floats are; before the types are coerced.
#[derive(Debug)]
pub(crate) struct FloatsStay;

impl AnalyzerRule for FloatsStay {
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
            // What is below may have other types by now, and the schemas of nodes without expressions repeat them.
            let node = node.map_data(LogicalPlan::recompute_schema)?;
            node.transform_data(|node| match node {
                LogicalPlan::Union(union) => united(union),
                LogicalPlan::Values(values) => listed(values),
                LogicalPlan::Join(mut join) => {
                    let mut changed = false;
                    for (left, right) in &mut join.on {
                        let kinds = [left.get_type(join.left.schema()), right.get_type(join.right.schema())];
                        changed |= meet(&mut [(left, kinds[0].as_ref().ok()), (right, kinds[1].as_ref().ok())]);
                    }
                    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
                }
                other => Ok(Transformed::no(other)),
            })
        })
        .data()
    }
}

/// The rule that makes literals of cast literals that are arguments of functions. The type of a result may depend on the
/// value (`round(x, 2)`), and would be another one once the cast is folded: after the type was announced.
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
                            changed |= fold(argument);
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

fn fold(argument: &mut Expr) -> bool {
    let Expr::Cast(written) = argument else { return false };
    let Expr::Literal(value, _) = written.expr.as_ref() else { return false };
    let Ok(value) = value.cast_to(written.field.data_type()) else { return false };
    let nearest = nearest(argument.clone());
    *argument = if nearest.transformed { nearest.data } else { lit(value) };
    true
}

/// An expression that is not coerced yet, its decimals cast to floats where they meet floats.
pub(crate) fn with_floats(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|mut part| {
        let changed = match &mut part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if comparison::compares(*op) => {
                meet_in(vec![left.as_mut(), right.as_mut()], schema)
            }
            Expr::Between(Between { expr, low, high, .. }) => {
                meet_in(vec![expr.as_mut(), low.as_mut(), high.as_mut()], schema)
            }
            Expr::InList(InList { expr, list, .. }) => {
                meet_in(std::iter::once(expr.as_mut()).chain(list).collect(), schema)
            }
            Expr::Case(Case { expr, when_then_expr, else_expr }) => {
                let mut asked = Vec::new();
                let mut given = Vec::new();
                for (when, then) in when_then_expr {
                    asked.push(when.as_mut());
                    given.push(then.as_mut());
                }
                given.extend(else_expr.as_deref_mut());
                let compared =
                    expr.is_some() && meet_in(asked.into_iter().chain(expr.as_deref_mut()).collect(), schema);
                branches_meet(given, schema) | compared
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) if OF_ONE_TYPE.contains(&func.name()) => {
                meet_in(args.iter_mut().collect(), schema)
            }
            Expr::InSubquery(InSubquery { expr, subquery, .. })
            | Expr::SetComparison(SetComparison { expr, subquery, .. }) => meet_subquery(expr, subquery, schema)?,
            _ => false,
        };
        Ok(Transformed::new_transformed(part, changed))
    })
}

fn meet_in(parts: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let kinds: Vec<_> = parts.iter().map(|part| part.get_type(schema).ok()).collect();
    let mut parts: Vec<_> = parts.into_iter().zip(kinds.iter().map(Option::as_ref)).collect();
    meet(&mut parts)
}

/// Gives the branches of a CASE their common type, if they are numbers: what the CASE stands beside asks its first branch.
fn branches_meet(mut branches: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let kinds: Option<Vec<_>> = branches.iter().map(|branch| branch.get_type(schema).ok()).collect();
    let Some(kinds) = kinds else { return false };
    let mut changed =
        meet(&mut branches.iter_mut().map(|branch| &mut **branch).zip(kinds.iter().map(Some)).collect::<Vec<_>>());
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

/// Casts the decimals among some expressions when one of them is a float.
fn meet(parts: &mut [(&mut Expr, Option<&DataType>)]) -> bool {
    if !parts.iter().any(|(_, kind)| kind.is_some_and(DataType::is_floating)) {
        return false;
    }
    let mut changed = false;
    for (part, kind) in parts {
        if kind.is_some_and(DataType::is_decimal) {
            **part = as_float(std::mem::take(*part));
            changed = true;
        }
    }
    changed
}

fn as_float(decimal: Expr) -> Expr {
    nearest(cast(decimal, DataType::Float64)).data
}

fn meet_subquery(expr: &mut Expr, subquery: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let [found] = subquery.subquery.schema().fields().as_ref() else { return Ok(false) };
    let kind = expr.get_type(schema)?;
    if kind.is_decimal() && found.data_type().is_floating() {
        *expr = as_float(std::mem::take(expr));
        return Ok(true);
    }
    if !kind.is_floating() || !found.data_type().is_decimal() {
        return Ok(false);
    }
    subquery.subquery = Arc::new(with_float_columns(&subquery.subquery, &[true])?);
    Ok(true)
}

/// The plan with some of its columns cast to floats.
fn with_float_columns(plan: &Arc<LogicalPlan>, columns: &[bool]) -> Result<LogicalPlan> {
    let exprs = plan.schema().iter().zip(columns).map(|(column, cast)| {
        let expr = Expr::from(column);
        if *cast { as_float(expr).alias_qualified(column.0.cloned(), column.1.name()) } else { expr }
    });
    LogicalPlanBuilder::from(plan.as_ref().clone()).project(exprs.collect::<Vec<_>>())?.build()
}

/// A union whose columns are floats in one input and decimals in another has floats. Every union gets its common types,
/// as it has those of its first input until it is coerced, and what is above it asks for them.
fn united(mut union: Union) -> Result<Transformed<LogicalPlan>> {
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

/// A column of VALUES with floats and decimals has floats. The planner has cast the floats to decimals already.
fn listed(Values { schema, mut values }: Values) -> Result<Transformed<LogicalPlan>> {
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
        // All of them: a cast that the statement writes.
        if floats == 0 || floats == cells.len() {
            continue;
        }
        changed = true;
        for cell in &mut cells {
            let written = match std::mem::take(*cell) {
                Expr::Cast(cast) if cast.field.data_type().is_decimal() => *cast.expr,
                other => other,
            };
            **cell = nearest(written.cast_to(&DataType::Float64, &none)?).data;
        }
    }
    if !changed {
        return Ok(Transformed::no(LogicalPlan::Values(Values { schema, values })));
    }
    Ok(Transformed::yes(LogicalPlanBuilder::values(values)?.build()?))
}

/// The rule for literals; before casts of literals are folded.
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

/// An expression over some columns with the types that an analysed plan gives it.
pub(crate) fn coerced(simplifier: &ExprSimplifier, expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let expr = simplifier.coerce(with_floats(expr, schema)?.data, schema)?;
    Ok(in_column_types(expr, schema)?.data)
}

/// A coerced expression with its decimal literals in the types of the columns that they stand beside.
pub(crate) fn in_column_types(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !expr.exists(|part| Ok(decimal(part).is_some()))? {
        return Ok(Transformed::no(expr));
    }
    expr.transform_up(|part| Ok(nearest(part)))?
        .transform_data(|expr| expr.transform_down(|part| Ok(comparison::in_column_type(part, schema, &decimal))))
}

fn nearest(expr: Expr) -> Transformed<Expr> {
    let found = match &expr {
        Expr::Cast(cast) => match (cast.expr.as_ref(), cast.field.data_type()) {
            (Expr::Literal(value, _), DataType::Float64) => {
                written(value).and_then(|text| text.parse::<f64>().ok()).map(lit)
            }
            (Expr::Literal(value, _), DataType::Float32) => {
                written(value).and_then(|text| text.parse::<f32>().ok()).map(lit)
            }
            _ => None,
        },
        _ => None,
    };
    found.map_or_else(|| Transformed::no(expr), Transformed::yes)
}

fn decimal(expr: &Expr) -> Option<&ScalarValue> {
    comparison::literal(expr).filter(|value| value.data_type().is_decimal())
}

/// A decimal as it is written.
fn written(value: &ScalarValue) -> Option<String> {
    match value {
        ScalarValue::Decimal128(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        ScalarValue::Decimal256(Some(digits), _, scale) => Some(format!("{digits}e{}", -i32::from(*scale))),
        _ => None,
    }
}
