//! Operators that are sent as bytes within the bytes of their plan.
//!
//! Two things get lost in a plan that is written operator by operator. A reader of messages stops at a hundred levels, of which each
//! operator has two, and a cast to a field (which the planner puts below a union, where a column may be NULL in one input and
//! not in another) arrives as a cast to a type, so that the union would put a second one above it. So some operators below a
//! boundary are sealed: what is below is a message of its own, with levels of its own, and with the fields of the casts.
//! Whoever reads it gets the operator itself.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::CastExpr;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::proto::ExecutionPlanEncodeCtx;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion_distributed::NetworkBoundaryExt;
use datafusion_proto::protobuf::PhysicalPlanNode;
use prost::Message;

use crate::wire::SealedMessage;

/// Operators of one message, above which the next one that may be is sealed. Their expressions have the other levels.
const LEVELS: usize = 16;

/// The plan whose stages have seals where they need them.
///
/// # Errors
/// As of changes to plans.
pub(crate) fn with_seals(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    sealed(plan, None)
}

/// The plan with the operators themselves where they are sealed: for whoever looks for operators of a kind.
///
/// # Errors
/// As of changes to plans.
pub fn without_seals(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let opened = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<SealedExec>() {
        Some(seal) => Ok(Transformed::yes(Arc::clone(&seal.operator))),
        None => Ok(Transformed::no(node)),
    };
    plan.transform_up(opened).data()
}

/// `levels`: operators above this one in its message; `None` above all boundaries, where nothing is sent.
fn sealed(node: &Arc<dyn ExecutionPlan>, levels: Option<usize>) -> Result<Arc<dyn ExecutionPlan>> {
    let casts = levels.map(|_| field_casts(node)).transpose()?.unwrap_or_default();
    let is_sealed = !casts.is_empty() || levels.is_some_and(|levels| levels >= LEVELS && may_be_sealed(node));
    let below = match (node.is_network_boundary(), is_sealed) {
        (true, _) => Some(0),
        (false, true) => Some(1),
        (false, false) => levels.map(|levels| levels + 1),
    };
    let inputs = node.children().into_iter().map(|input| sealed(input, below)).collect::<Result<Vec<_>>>()?;
    let operator = match inputs.is_empty() {
        true => Arc::clone(node),
        false => replace_children_if_necessary(Arc::clone(node), inputs)?,
    };
    if !is_sealed {
        return Ok(operator);
    }
    Ok(Arc::new(SealedExec { operator, casts }))
}

/// Whether an operator may be sealed: not one that the library looks for (boundaries, leaves, exchanges at the top of a stage).
fn may_be_sealed(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<ProjectionExec>() || node.is::<FilterExec>() || node.is::<HashJoinExec>()
}

/// The casts to fields in the expressions of a projection. Only those decide about the columns of a union.
fn field_casts(node: &Arc<dyn ExecutionPlan>) -> Result<Vec<FieldCast>> {
    let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(Vec::new()) };
    let mut casts = Vec::new();
    let mut number = 0;
    for column in projection.expr() {
        column.expr.apply(|part| {
            if let Some(cast) = part.downcast_ref::<CastExpr>() {
                // Only a cast to a field knows whether its values may be NULL.
                if cast.target_nullable().is_some() {
                    casts.push(FieldCast { number, field: Arc::clone(cast.target_field()) });
                }
                number += 1;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(casts)
}

/// What was sealed, as it was, from its parts.
///
/// # Errors
/// When the message is about another operator.
pub(crate) fn opened(plan: Arc<dyn ExecutionPlan>, message: &SealedMessage) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(fields) = &message.fields else { return Ok(plan) };
    let fields: Schema = fields.try_into()?;
    let Some(projection) = plan.downcast_ref::<ProjectionExec>() else {
        return internal_err!("{} was sealed with casts", plan.name());
    };
    let mut targets: HashMap<u32, FieldRef> =
        message.casts.iter().copied().zip(fields.fields().iter().cloned()).collect();
    let mut columns = Vec::with_capacity(projection.expr().len());
    let mut number = 0;
    for column in projection.expr() {
        // In the order in which they were numbered.
        let expr = Arc::clone(&column.expr).transform_down(|part| {
            let Some(cast) = part.downcast_ref::<CastExpr>() else { return Ok(Transformed::no(part)) };
            let field = targets.remove(&number);
            number += 1;
            Ok(match field {
                Some(field) => {
                    let cast = CastExpr::new_with_target_field(Arc::clone(cast.expr()), field, None);
                    Transformed::yes(Arc::new(cast) as Arc<dyn PhysicalExpr>)
                }
                None => Transformed::no(part),
            })
        });
        columns.push(ProjectionExpr { expr: expr.data()?, alias: column.alias.clone() });
    }
    if !targets.is_empty() {
        return internal_err!("a projection with {number} casts was sealed with more");
    }
    Ok(Arc::new(ProjectionExec::try_new(columns, Arc::clone(projection.input()))?))
}

/// A cast to a field, and which one it is of all casts of a projection, those to types included.
#[derive(Debug, Clone)]
struct FieldCast {
    number: u32,
    field: FieldRef,
}

/// An operator that is sent as a message of its own. It is shown and executed as the operator.
#[derive(Debug)]
struct SealedExec {
    operator: Arc<dyn ExecutionPlan>,
    casts: Vec<FieldCast>,
}

impl SealedExec {
    fn message(&self, plan: &PhysicalPlanNode) -> Result<SealedMessage> {
        let mut message = SealedMessage { plan: plan.encode_to_vec(), ..SealedMessage::default() };
        if !self.casts.is_empty() {
            let fields = Schema::new(self.casts.iter().map(|cast| Arc::clone(&cast.field)).collect::<Vec<_>>());
            message.casts = self.casts.iter().map(|cast| cast.number).collect();
            message.fields = Some((&fields).try_into()?);
        }
        Ok(message)
    }
}

impl DisplayAs for SealedExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operator.fmt_as(t, f)
    }
}

impl ExecutionPlan for SealedExec {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.operator.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.operator.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.operator.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.operator.dynamic_expressions_produced()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let operator = replace_children_if_necessary(Arc::clone(&self.operator), children)?;
        Ok(Arc::new(Self { operator, casts: self.casts.clone() }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.operator.execute(partition, context)
    }

    fn try_to_proto(&self, context: &ExecutionPlanEncodeCtx<'_>) -> Result<Option<PhysicalPlanNode>> {
        // Both go through the converter that writes the rest, so that a run-time filter inside and outside stays one.
        let message = self.message(&context.encode_child(&self.operator)?)?;
        let bytes: Arc<dyn ExecutionPlan> =
            Arc::new(SealedBytes { message, properties: Arc::clone(self.properties()) });
        context.encode_child(&bytes).map(Some)
    }
}

/// A sealed operator on its way into a plan: it exists while the plan is written.
#[derive(Debug)]
pub(crate) struct SealedBytes {
    message: SealedMessage,
    properties: Arc<PlanProperties>,
}

impl SealedBytes {
    /// What is written of it.
    pub(crate) fn message(&self) -> &SealedMessage {
        &self.message
    }
}

impl DisplayAs for SealedBytes {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for SealedBytes {
    fn name(&self) -> &str {
        "SealedBytes"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("{} is not executed", self.name())
    }
}
