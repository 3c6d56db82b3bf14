//! Binds values to the parameters of a statement.
//!
//! A value keeps the type in which it was bound: `7 / ?` with 2.0 is 3.5. In two places the type of a column decides:
//!
//! - where the value is stored (INSERT .. VALUES (?), SET a = ?) it is cast to the column, and refused when that would lose
//!   a part of it;
//! - where it is compared with a column, the comparison happens in the type of the column, so that statistics and keys
//!   serve it. A value that the column cannot hold lies between two of its values: `i < 2.5` is `i <= 2`, `i = 2.5` is
//!   false.
//!
//! Values of comparisons are marked in the metadata of their literals. The analysis may wrap both sides of a comparison
//! into casts; afterwards [`compare_in_column_types`] finds the marks and removes the casts.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, TimeUnit};
use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, TableReference};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Alias, Between, BinaryExpr, Cast, InList, Placeholder};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Values, cast, lit};

use super::analysis::analysed;
use super::types::exact_cast;
use crate::error::{Error, Result};
use terrace_scan::comparison::in_column_type;

/// Qualifier of the alias around a placeholder whose value is stored; the alias is the name of the column.
const STORED: &str = "__stored";

/// Key of the mark of a compared value.
const COMPARED: &str = "terrace.compared";

/// Wraps a placeholder whose value is stored in the column `field`.
pub(super) fn stored_placeholder(placeholder: Placeholder, field: &Field) -> Expr {
    let typed = Field::new(field.name(), field.data_type().clone(), true);
    let typed = Expr::Placeholder(Placeholder::new_with_field(placeholder.id, Some(typed.into())));
    typed.alias_qualified(Some(TableReference::bare(STORED)), field.name())
}

/// Replaces the placeholders of a plan by row `row` of the bound values, and analyses the plan.
pub(super) fn bind_row(
    state: &SessionState,
    plan: LogicalPlan,
    bound: &RecordBatch,
    row: usize,
) -> Result<LogicalPlan> {
    let bound = bound.slice(row, 1);
    let plan = analysed(state, Binding { bound: &bound }.bind_plan(plan)?)?;
    Ok(compare_in_column_types(plan)?)
}

/// One row of values.
struct Binding<'a> {
    bound: &'a RecordBatch,
}

type Rewrite = datafusion::error::Result<Transformed<Expr>>;

impl Binding<'_> {
    fn bind_plan(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let bound = plan.transform_up_with_subqueries(|node| {
            let names = NamePreserver::new(&node);
            let is_list = matches!(node, LogicalPlan::Values(_));
            let schema = merge_schema(&node.inputs());
            node.map_expressions(|expr| {
                if !expr.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))? {
                    return Ok(Transformed::no(expr));
                }
                let name = names.save(&expr);
                let expr = match expr {
                    Expr::Placeholder(Placeholder { id, field: Some(field) }) if is_list => {
                        self.stored_literal(&id, &field)?
                    }
                    other => {
                        let bound = other.transform_down(|part| self.bind_expr(part)).data()?;
                        bound.transform_up(|part| Ok(unify_time_units(part, &schema))).data()?
                    }
                };
                Ok(Transformed::yes(name.restore(expr)))
            })?
            .map_data(recompute_types)
        })?;
        Ok(bound.data)
    }

    fn bind_expr(&self, expr: Expr) -> Rewrite {
        Ok(match expr {
            Expr::Alias(Alias { expr, relation: Some(relation), .. }) if relation.table() == STORED => match *expr {
                Expr::Placeholder(Placeholder { id, field: Some(field) }) => {
                    Transformed::new(self.stored_literal(&id, &field)?, true, TreeNodeRecursion::Jump)
                }
                other => Transformed::no(other),
            },
            Expr::Placeholder(Placeholder { id, .. }) => Transformed::yes(Expr::Literal(self.value(&id)?, None)),
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() => {
                let left = Box::new(self.mark_compared(*left)?);
                let right = Box::new(self.mark_compared(*right)?);
                Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
            }
            Expr::Between(Between { expr, negated, low, high }) => {
                let low = Box::new(self.mark_compared(*low)?);
                let high = Box::new(self.mark_compared(*high)?);
                Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
            }
            Expr::InList(InList { expr, list, negated }) => {
                let list = list.into_iter().map(|item| self.mark_compared(item)).collect::<Result<_, _>>()?;
                Transformed::yes(Expr::InList(InList { expr, list, negated }))
            }
            other => Transformed::no(other),
        })
    }

    fn mark_compared(&self, expr: Expr) -> datafusion::error::Result<Expr> {
        match expr {
            Expr::Placeholder(Placeholder { id, .. }) => {
                let mark =
                    FieldMetadata::from(std::collections::BTreeMap::from([(COMPARED.to_owned(), String::new())]));
                Ok(Expr::Literal(self.value(&id)?, Some(mark)))
            }
            other => Ok(other),
        }
    }

    fn value(&self, id: &str) -> Result<ScalarValue> {
        let number = id.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
        let column = number.and_then(|number| self.bound.columns().get(number.checked_sub(1)?));
        let column = column.ok_or_else(|| Error::invalid(format!("no value is bound to parameter {id}")))?;
        Ok(match ScalarValue::try_from_array(column, 0)? {
            ScalarValue::Dictionary(_, value) => *value,
            value => value,
        })
    }

    /// The value of a parameter in the type of the column `field`.
    fn stored_literal(&self, id: &str, field: &Field) -> Result<Expr> {
        let value = self.value(id)?.to_array()?;
        let value = exact_cast(&value, field.data_type()).map_err(|why| does_not_fit(id, field, &why))?;
        Ok(Expr::Literal(ScalarValue::try_from_array(&value, 0)?, None))
    }
}

/// Casts both sides of a comparison of times of different units to nanoseconds: DataFusion cannot compare them.
fn unify_time_units(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let time = |side: &Expr| {
        side.get_type(schema).ok().filter(|kind| matches!(kind, DataType::Time32(_) | DataType::Time64(_)))
    };
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let differ = time(&left).zip(time(&right)).is_some_and(|(left, right)| left != right);
            let to_nanoseconds = |side: Box<Expr>| match differ {
                true => Box::new(cast(*side, DataType::Time64(TimeUnit::Nanosecond))),
                false => side,
            };
            let expr = Expr::BinaryExpr(BinaryExpr { left: to_nanoseconds(left), op, right: to_nanoseconds(right) });
            Transformed::new_transformed(expr, differ)
        }
        other => Transformed::no(other),
    }
}

/// The error of a bound value that a column cannot hold.
pub(super) fn does_not_fit(id: &str, field: &Field, why: &Error) -> Error {
    let column = field.name();
    Error::invalid(format!("parameter {id} does not fit column '{column}' ({}): {}", field.data_type(), why.message()))
}

/// Recomputes the schema of a node from its new expressions.
fn recompute_types(node: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
    match node {
        LogicalPlan::Values(Values { values, .. }) => LogicalPlanBuilder::values(values)?.build(),
        other => other.recompute_schema(),
    }
}

/// Rewrites comparisons with marked values of an analysed plan into the types of the columns.
fn compare_in_column_types(plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            if !expr.exists(|part| Ok(is_marked(part)))? {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let expr = expr.transform_down(|part| {
                let compared = in_column_type(part, &schema, &marked_value);
                Ok(if compared.transformed {
                    compared
                } else {
                    compared.transform_data(|part| Ok(remove_mark(part)))?
                })
            });
            Ok(Transformed::yes(name.restore(expr.data()?)))
        })
    })?;
    Ok(plan.data)
}

fn remove_mark(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::Literal(value, Some(_)) if is_marked(&expr) => Transformed::yes(lit(value)),
        other => Transformed::no(other),
    }
}

fn marked_value(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) if is_marked(expr) => Some(value),
        Expr::Cast(Cast { expr, .. }) => marked_value(expr),
        _ => None,
    }
}

fn is_marked(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(_, Some(metadata)) if metadata.inner().contains_key(COMPARED))
}
