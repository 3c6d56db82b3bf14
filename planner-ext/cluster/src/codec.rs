//! Plan nodes of Terrace as bytes.
//!
//! Of ours, only scans are sent, and seals, which are gone when they arrive (`seal`). The other operators of Terrace (spilling
//! joins, windows by partition, sorts of even batches) replace operators of DataFusion after a plan is made, and a node replaces
//! them in its own part, as the coordinator does in its ([`TaskHost::operators`](crate::TaskHost::operators)). A plan with
//! another operator of ours (rows that a policy admits, columns fetched by position, aggregates that a device may compute) below
//! the top stage cannot be sent, and stays whole.
//!
//! Expressions are encoded by the converter that the caller gives: only so a run-time filter in a scan and the join that
//! publishes it are still one filter afterwards.

use std::sync::{Arc, Weak};

use arrow::compute::SortOptions;
use arrow::datatypes::Schema;
use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::DistributedCodec;
use datafusion_proto::physical_plan::{
    ComposedPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{PhysicalExprNode, PhysicalPlanNode};
use prost::Message;
use terrace_scan::scan::{ScanParts, TierScanExec};

use crate::counts::NodeCounts;
use crate::seal::{SealedBytes, opened};
use crate::statement::Statement;
use crate::wire::{PlanKind, PlanMessage, ScanMessage, SealedMessage, SortMessage, SourceKey};

/// Most seals within each other that are read. Each takes some of the stack.
const MOST_SEALS: usize = 16;

/// Encodes and decodes the plan nodes of one statement, as long as it lasts.
#[derive(Debug)]
pub struct ScanCodec {
    statement: Weak<Statement>,
    /// Where decoded scans are counted; `None` at the coordinator.
    counts: Option<Arc<NodeCounts>>,
    /// Seals around what is read with this codec.
    seals: usize,
}

impl ScanCodec {
    /// The codec of the coordinator of a statement.
    pub fn new(statement: &Arc<Statement>) -> Self {
        Self { statement: Arc::downgrade(statement), counts: None, seals: 0 }
    }

    /// The codec of a node, which counts the items that it is to scan.
    pub(crate) fn for_node(statement: &Arc<Statement>, counts: Arc<NodeCounts>) -> Self {
        Self { statement: Arc::downgrade(statement), counts: Some(counts), seals: 0 }
    }

    fn statement(&self) -> Result<Arc<Statement>> {
        self.statement.upgrade().ok_or_else(|| exec_datafusion_err!("the statement of a plan has ended"))
    }

    fn encoded_scan(
        &self,
        scan: &TierScanExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<ScanMessage> {
        let parts = scan.parts()?;
        let encoded = |exprs: &[Arc<dyn PhysicalExpr>]| {
            exprs.iter().map(|expr| converter.physical_expr_to_proto(expr, self)).collect::<Result<Vec<_>>>()
        };
        let sort = |sort: &PhysicalSortExpr| {
            let key = Some(converter.physical_expr_to_proto(&sort.expr, self)?);
            let SortOptions { descending, nulls_first } = sort.options;
            Ok::<_, DataFusionError>(SortMessage { key, is_descending: descending, has_nulls_first: nulls_first })
        };
        let mut message = ScanMessage {
            projection: parts.projection.iter().map(|column| *column as u32).collect(),
            filters: encoded(&parts.filters)?,
            dynamic: encoded(&parts.dynamic)?,
            chunks: parts.chunks,
            delta: parts.delta,
            fetch: parts.fetch.map(|fetch| fetch as u64),
            is_ordered: parts.is_ordered,
            ordering: parts.ordering.iter().flatten().map(sort).collect::<Result<Vec<_>>>()?,
            partitions: parts.partitions as u32,
            unreached: parts.unreached as u32,
            ..ScanMessage::default()
        };
        self.statement()?.note_source(&scan.config().source).write(&mut message);
        Ok(message)
    }

    fn decoded_scan(&self, message: ScanMessage, decoder: &Decoder<'_>) -> Result<TierScanExec> {
        let key = SourceKey::from_message(&message);
        let source = self.statement()?.source(&key).ok_or_else(|| {
            let (table, version) = (key.table(), key.version());
            exec_datafusion_err!("this node does not have version {version} of table {table}")
        })?;
        let columns = Arc::clone(source.schema());
        let projection: Vec<usize> = message.projection.iter().map(|column| *column as usize).collect();
        let output = columns.project(&projection)?;
        let ordering = message.ordering.iter().map(|sort| decoder.sort(sort, &output)).collect::<Result<Vec<_>>>()?;
        let parts = ScanParts {
            projection,
            filters: decoder.exprs(&message.filters, &columns)?,
            dynamic: decoder.exprs(&message.dynamic, &columns)?,
            chunks: message.chunks,
            delta: message.delta,
            fetch: message.fetch.map(|fetch| fetch as usize),
            is_ordered: message.is_ordered,
            ordering: LexOrdering::new(ordering),
            partitions: message.partitions as usize,
            unreached: message.unreached as usize,
        };
        if let Some(counts) = &self.counts {
            counts.add_items(parts.chunks.len() + parts.delta.len());
        }
        TierScanExec::from_parts(source, parts)
    }

    /// A sealed operator with all that is below it.
    fn unsealed(
        &self,
        message: &SealedMessage,
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.seals >= MOST_SEALS {
            return internal_err!("a plan has more than {MOST_SEALS} seals within each other");
        }
        let plan = PhysicalPlanNode::decode(message.plan.as_slice())
            .map_err(|error| internal_datafusion_err!("a sealed operator cannot be read: {error}"))?;
        let inner =
            Self { statement: Weak::clone(&self.statement), counts: self.counts.clone(), seals: self.seals + 1 };
        // In the order in which the library has them: codecs are known by their place.
        let codecs: Vec<Arc<dyn PhysicalExtensionCodec>> = vec![Arc::new(DistributedCodec), Arc::new(inner)];
        let codec = ComposedPhysicalExtensionCodec::new(codecs);
        let plan = converter.proto_to_execution_plan(&plan, &PhysicalPlanDecodeContext::new(context, &codec))?;
        opened(plan, message)
    }
}

impl PhysicalExtensionCodec for ScanCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let message = PlanMessage::decode(buf)
            .map_err(|error| internal_datafusion_err!("a plan node cannot be read: {error}"))?;
        if !inputs.is_empty() {
            return internal_err!("a plan node of Terrace with {} inputs", inputs.len());
        }
        let decoder = Decoder { context: PhysicalPlanDecodeContext::new(ctx, self), converter: proto_converter };
        match message.kind {
            Some(PlanKind::Scan(scan)) => Ok(Arc::new(self.decoded_scan(scan, &decoder)?)),
            Some(PlanKind::Sealed(sealed)) => self.unsealed(&sealed, ctx, proto_converter),
            None => internal_err!("a plan node of an unknown kind"),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let kind = match (node.downcast_ref::<TierScanExec>(), node.downcast_ref::<SealedBytes>()) {
            (Some(scan), _) => PlanKind::Scan(self.encoded_scan(scan, proto_converter)?),
            (None, Some(sealed)) => PlanKind::Sealed(sealed.message().clone()),
            (None, None) => return internal_err!("{} is not sent to other nodes", node.name()),
        };
        let written = PlanMessage { kind: Some(kind) }.encode(buf);
        written.map_err(|error| internal_datafusion_err!("a plan node cannot be written: {error}"))
    }
}

/// Decodes expressions.
struct Decoder<'a> {
    context: PhysicalPlanDecodeContext<'a>,
    converter: &'a dyn PhysicalProtoConverterExtension,
}

impl Decoder<'_> {
    fn expr(&self, node: &PhysicalExprNode, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
        self.converter.proto_to_physical_expr(node, schema, &self.context)
    }

    fn exprs(&self, nodes: &[PhysicalExprNode], schema: &Schema) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        nodes.iter().map(|node| self.expr(node, schema)).collect()
    }

    fn sort(&self, sort: &SortMessage, schema: &Schema) -> Result<PhysicalSortExpr> {
        let key = sort.key.as_ref().ok_or_else(|| internal_datafusion_err!("an order without a key"))?;
        let options = SortOptions { descending: sort.is_descending, nulls_first: sort.has_nulls_first };
        Ok(PhysicalSortExpr { expr: self.expr(key, schema)?, options })
    }
}
