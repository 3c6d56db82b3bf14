//! Texts that window functions pass on.
//!
//! A window operator that returns rows as they come keeps the rows of a partition that it still needs, and joins them with
//! the next batch (`PartitionBatchState::extend` in datafusion-expr/src/window_state.rs). Arrow joins two arrays of views
//! by keeping the texts of both, also of an array without rows. So `row_number() OVER (ORDER BY s)` kept every text that
//! it had seen: 430 MiB of TPC-H's `lineitem` at SF 1, none of it reserved. Arrays that are no views are copied, and only
//! what they refer to. Below such a window, texts are therefore cast from views, and above it back to views, which copies
//! nothing.
//!
//! No issue found upstream; can go when the test `a_window_over_texts_lets_go_of_them` passes without it.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, TableReference};
use datafusion::logical_expr::expr::{FieldMetadata, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Window, WindowFunctionDefinition, cast};
use datafusion::optimizer::AnalyzerRule;

/// Functions that take texts of any type. Others get views, as the analysis of types has chosen them.
const ANY_TEXT: [&str; 6] = ["count", "first_value", "last_value", "max", "min", "nth_value"];

/// Analyzer rule, after that of types, that casts texts from views below windows, and back above them.
#[derive(Debug)]
pub(crate) struct WindowTexts;

impl AnalyzerRule for WindowTexts {
    fn name(&self) -> &str {
        "window_texts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Window(window) if keeps_texts(&window) => Ok(Transformed::yes(without_views(window)?)),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }
}

/// The type for the values of a view.
fn type_without_views(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::LargeBinary),
        _ => None,
    }
}

/// Whether a window has views among its columns and returns rows before it has seen the end of their partition.
fn keeps_texts(window: &Window) -> bool {
    let has_views = window.input.schema().fields().iter().any(|field| type_without_views(field.data_type()).is_some());
    has_views && window.window_expr.iter().all(|expr| function(expr).is_some_and(|function| !sees_all_rows(function)))
}

fn function(expr: &Expr) -> Option<&WindowFunction> {
    match expr {
        Expr::WindowFunction(function) => Some(function),
        Expr::Alias(alias) => function(&alias.expr),
        _ => None,
    }
}

fn sees_all_rows(function: &WindowFunction) -> bool {
    let is_aggregate = matches!(function.fun, WindowFunctionDefinition::AggregateUDF(_));
    is_aggregate && function.params.window_frame.end_bound.is_unbounded()
}

/// The plan of `window` with texts that are no views below it.
fn without_views(window: Window) -> Result<LogicalPlan> {
    let names = NamePreserver::new(&LogicalPlan::Window(window.clone()));
    let Window { input, window_expr, schema } = window;
    let columns = input.schema().iter().map(|(qualifier, field)| match type_without_views(field.data_type()) {
        Some(data_type) => cast_field(qualifier, field, data_type),
        None => Expr::Column(Column::from((qualifier, field))),
    });
    let below = Projection::try_new(columns.collect(), Arc::clone(&input))?;
    let functions = window_expr.into_iter().map(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_down(|part| match part {
            Expr::WindowFunction(function) => Ok(Transformed::yes(with_views(*function, input.schema())?)),
            other => Ok(Transformed::no(other)),
        });
        Ok(name.restore(expr.data()?))
    });
    let window = Window::try_new(functions.collect::<Result<_>>()?, Arc::new(LogicalPlan::Projection(below)))?;
    let fields = schema.iter().zip(window.schema.fields());
    let columns = fields.map(|((qualifier, field), found)| match field.data_type() == found.data_type() {
        true => Expr::Column(Column::from((qualifier, field))),
        false => cast_field(qualifier, field, field.data_type().clone()),
    });
    let columns = columns.collect();
    let above = Projection::try_new_with_schema(columns, Arc::new(LogicalPlan::Window(window)), Arc::clone(&schema))?;
    Ok(LogicalPlan::Projection(above))
}

/// A column in another type, under its name.
fn cast_field(qualifier: Option<&TableReference>, field: &FieldRef, data_type: DataType) -> Expr {
    let metadata = FieldMetadata::from(field.as_ref());
    let column = Expr::Column(Column::from((qualifier, field)));
    cast(column, data_type).alias_qualified_with_metadata(qualifier.cloned(), field.name(), Some(metadata))
}

/// The function with views, as `schema` has them, in all but plain columns: those that it orders and partitions by, and its
/// arguments if it takes texts of any type.
fn with_views(function: WindowFunction, schema: &DFSchema) -> Result<Expr> {
    let WindowFunction { fun, params } = function;
    let WindowFunctionParams { args, partition_by, order_by, filter, .. } = params;
    let views = |expr: Expr| cast_columns(expr, schema);
    let unless_column = |expr: Expr| if matches!(expr, Expr::Column(_)) { Ok(expr) } else { views(expr) };
    let args = match ANY_TEXT.contains(&fun.name()) {
        true => args.into_iter().map(unless_column).collect::<Result<_>>()?,
        false => args.into_iter().map(views).collect::<Result<_>>()?,
    };
    let partition_by = partition_by.into_iter().map(unless_column).collect::<Result<_>>()?;
    let ordered = order_by.into_iter().map(|mut sort| {
        sort.expr = unless_column(sort.expr)?;
        Ok(sort)
    });
    let order_by = ordered.collect::<Result<_>>()?;
    let filter = filter.map(|filter| views(*filter)).transpose()?.map(Box::new);
    let params = WindowFunctionParams { args, partition_by, order_by, filter, ..params };
    Ok(Expr::from(WindowFunction { fun, params }))
}

/// The expression with each column cast that is a view in `schema`.
fn cast_columns(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let to_view = |part: Expr| {
        let Expr::Column(column) = &part else { return Ok(Transformed::no(part)) };
        let data_type = schema.field_from_column(column)?.data_type().clone();
        Ok(match type_without_views(&data_type) {
            Some(_) => Transformed::yes(cast(part, data_type)),
            None => Transformed::no(part),
        })
    };
    expr.transform_up(to_view).data()
}
