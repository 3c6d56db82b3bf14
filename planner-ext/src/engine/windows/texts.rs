//! Lets windows that run over sorted rows free the texts of the rows that they have returned.
//!
//! DataFusion's `BoundedWindowAggExec` appends each batch to what it keeps of a partition, and takes a slice of that when
//! rows are complete (windows/bounded_window_agg_exec.rs `prune_partition_batches`). Appended views refer to the text
//! buffers of all batches, and a slice of them still does, so a partition keeps all its texts, which nothing reserves:
//! 430 MiB for `row_number() OVER (ORDER BY l_comment)` at TPC-H SF 1. So the texts that no window computes with go
//! through the operator with their bytes beside each other, which Arrow copies with the rows.
//!
//! The copies are made with each batch, so this is done for windows that need few rows only: ranks, and frames of few
//! `ROWS`. The values that windows compute with (`max(l_comment)`) stay as they are: the types of results depend on theirs. So
//! do all texts of a statement with `FILTER` in a window, as operators do not tell which columns a filter reads.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{EquivalenceProperties, expressions};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;

use crate::engine::stream_exec::StreamExec;

/// Window functions that need no rows but the last ones, whatever the frame.
const RANKS: [&str; 3] = ["row_number", "rank", "dense_rank"];

/// Rows before or after the current one that a frame may reach to.
const NEAR_ROWS: u64 = 1_000;

/// Casts the texts of each bounded window that it only passes on, and casts them back above it. `statement` is what `plan`
/// was made from.
pub(in crate::engine) fn with_copied_texts(
    plan: Arc<dyn ExecutionPlan>,
    statement: &LogicalPlan,
) -> Result<Arc<dyn ExecutionPlan>> {
    if has_filtered_windows(statement)? {
        return Ok(plan);
    }
    plan.transform_up(|node| {
        let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() else { return Ok(Transformed::no(node)) };
        // DataFusion compares bounds only of values of one type, so it refuses some orders of columns that were cast.
        match with_casts(&node, window) {
            Ok(Some(casted)) => Ok(Transformed::yes(casted)),
            Ok(None) | Err(_) => Ok(Transformed::no(node)),
        }
    })
    .data()
}

/// A bounded window between casts; `None` if it needs none.
fn with_casts(node: &Arc<dyn ExecutionPlan>, window: &BoundedWindowAggExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let input = window.input();
    let windows = window.window_expr();
    let schema = copied_schema(&input.schema(), windows)?;
    if schema == input.schema() || !windows.iter().all(|window| keeps_few_rows(window.as_ref())) {
        return Ok(None);
    }
    let properties = properties_with(input.properties(), &schema)?;
    let copied = with_cast(Arc::clone(input), properties);
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let input = Arc::clone(node).replace_children(vec![copied], options)?;
    Ok(Some(with_cast(input, Arc::clone(node.properties()))))
}

/// Whether the operator needs only the last rows for a window. It copies what it keeps with each batch.
fn keeps_few_rows(window: &dyn WindowExpr) -> bool {
    if let Some(window) = window.as_any().downcast_ref::<StandardWindowExpr>()
        && let Some(function) = window.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>()
        && RANKS.contains(&function.fun().name())
    {
        return true;
    }
    let frame = window.get_window_frame();
    let is_near = |rows: &ScalarValue| matches!(rows, ScalarValue::UInt64(Some(rows)) if *rows <= NEAR_ROWS);
    let starts_near = match &frame.start_bound {
        WindowFrameBound::CurrentRow => true,
        // An aggregate needs no rows that it has added.
        WindowFrameBound::Preceding(rows) if rows.is_null() => window.as_any().is::<PlainAggregateWindowExpr>(),
        WindowFrameBound::Preceding(rows) | WindowFrameBound::Following(rows) => is_near(rows),
    };
    let ends_near = match &frame.end_bound {
        WindowFrameBound::CurrentRow => true,
        WindowFrameBound::Preceding(rows) | WindowFrameBound::Following(rows) => is_near(rows),
    };
    frame.units == WindowFrameUnits::Rows && starts_near && ends_near
}

/// Whether a window of the statement has a `FILTER`.
fn has_filtered_windows(statement: &LogicalPlan) -> Result<bool> {
    let mut has_filter = false;
    statement.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            has_filter |= expression
                .exists(|inner| Ok(matches!(inner, Expr::WindowFunction(window) if window.params.filter.is_some())))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(has_filter)
}

/// The columns of the input of windows, with the types in which the operator is to keep them.
fn copied_schema(input: &SchemaRef, windows: &[Arc<dyn WindowExpr>]) -> Result<SchemaRef> {
    let mut computed = HashSet::new();
    for window in windows {
        let expressions = window.all_expressions();
        // Keys are compared with each other, whatever their type. Expressions over columns were made for one type.
        let keys = expressions.partition_by_exprs.into_iter().chain(expressions.order_by_exprs);
        let read = keys.filter(|key| !key.is::<expressions::Column>()).chain(expressions.args);
        computed.extend(read.flat_map(|expression| collect_columns(&expression)).map(|column| column.index()));
    }
    let fields = input.fields().iter().enumerate().map(|(index, field)| match copied_type(field.data_type()) {
        Some(copied) if !computed.contains(&index) => Arc::new(field.as_ref().clone().with_data_type(copied)),
        _ => Arc::clone(field),
    });
    Ok(Arc::new(Schema::new_with_metadata(fields.collect::<Vec<FieldRef>>(), input.metadata().clone())))
}

/// A type of the same values whose bytes are copied with them.
fn copied_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        // A partition may have more than 2 GiB.
        DataType::Utf8View => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::LargeBinary),
        _ => None,
    }
}

/// The properties of a plan with columns of other types.
fn properties_with(properties: &PlanProperties, schema: &SchemaRef) -> Result<Arc<PlanProperties>> {
    let found = properties.equivalence_properties();
    let mut equivalences = EquivalenceProperties::new(Arc::clone(schema));
    equivalences.add_equivalence_group(found.eq_group().clone())?;
    equivalences.add_orderings(found.oeq_class().iter().cloned());
    Ok(Arc::new(properties.clone().with_eq_properties(equivalences)))
}

/// Casts columns to the types that `properties` announce.
fn with_cast(input: Arc<dyn ExecutionPlan>, properties: Arc<PlanProperties>) -> Arc<dyn ExecutionPlan> {
    let schema = Arc::clone(properties.equivalence_properties().schema());
    let cast = move |batches: SendableRecordBatchStream, _: &TaskContext| {
        let schema = Arc::clone(&schema);
        batches.map(move |batch| cast_batch(&batch?, &schema)).boxed()
    };
    Arc::new(StreamExec::new("CastTextsExec", input, cast).with_properties(properties))
}

fn cast_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let pairs = batch.columns().iter().zip(schema.fields());
    // Arrow returns a column that has the type already as it is.
    let columns = pairs.map(|(column, field)| cast(&with_short_bytes(column)?, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// Copies a slice of more bytes than views can refer to. Arrow's cast would keep all of them, and panic.
fn with_short_bytes(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let bytes = match column.data_type() {
        DataType::LargeUtf8 => column.as_string::<i64>().values().len(),
        DataType::LargeBinary => column.as_binary::<i64>().values().len(),
        _ => 0,
    };
    match u32::try_from(bytes) {
        Ok(_) => Ok(Arc::clone(column)),
        Err(_) => concat(&[column.as_ref(), column.slice(0, 0).as_ref()]),
    }
}
