//! Messages of the codec, and the identity of what a scan reads.
//!
//! A scan is sent by the positions of its items in one version of one table, never by names or conditions that a node would
//! have to evaluate again: row positions, which changes and late fetches use, depend on them.

use std::sync::Arc;

use datafusion_proto::protobuf::{PhysicalExprNode, Schema};
use terrace_scan::scan::ScanSource;

/// The table version that a scan reads, and how it shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SourceKey {
    table: u64,
    version: u64,
    position_column: Option<String>,
    shows_figures: bool,
}

impl SourceKey {
    pub(crate) fn new(source: &Arc<ScanSource>) -> Self {
        Self {
            table: source.table.id().0,
            version: source.version.number,
            position_column: source.position_column().map(str::to_owned),
            shows_figures: source.shows_figures(),
        }
    }

    /// The key that a message names.
    pub(crate) fn from_message(message: &ScanMessage) -> Self {
        Self {
            table: message.table,
            version: message.version,
            position_column: message.position_column.clone(),
            shows_figures: message.shows_figures,
        }
    }

    /// Number of the table.
    pub(crate) fn table(&self) -> u64 {
        self.table
    }

    /// Number of its version.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Writes the key into a message.
    pub(crate) fn write(self, message: &mut ScanMessage) {
        message.table = self.table;
        message.version = self.version;
        message.position_column = self.position_column;
        message.shows_figures = self.shows_figures;
    }
}

/// A plan node of Terrace.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PlanMessage {
    /// Which one it is.
    #[prost(oneof = "PlanKind", tags = "1, 2")]
    pub kind: Option<PlanKind>,
}

/// The plan nodes that are sent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum PlanKind {
    /// A scan of a table, or a share of one.
    #[prost(message, tag = "1")]
    Scan(ScanMessage),
    /// An operator with all that is below it, as a message of its own.
    #[prost(message, tag = "2")]
    Sealed(SealedMessage),
}

/// An operator with all that is below it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SealedMessage {
    /// A `PhysicalPlanNode`.
    #[prost(bytes = "vec", tag = "1")]
    pub plan: Vec<u8>,
    /// Which casts of the operator, a projection, are those to the fields.
    #[prost(uint32, repeated, tag = "2")]
    pub casts: Vec<u32>,
    #[prost(message, optional, tag = "3")]
    pub fields: Option<Schema>,
}

/// A scan of a table, or a share of one.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ScanMessage {
    #[prost(uint64, tag = "1")]
    pub table: u64,
    #[prost(uint64, tag = "2")]
    pub version: u64,
    #[prost(string, optional, tag = "3")]
    pub position_column: Option<String>,
    #[prost(bool, tag = "4")]
    pub shows_figures: bool,
    #[prost(uint32, repeated, tag = "5")]
    pub projection: Vec<u32>,
    #[prost(message, repeated, tag = "6")]
    pub filters: Vec<PhysicalExprNode>,
    #[prost(message, repeated, tag = "7")]
    pub dynamic: Vec<PhysicalExprNode>,
    #[prost(uint32, repeated, tag = "8")]
    pub chunks: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub delta: Vec<u32>,
    #[prost(uint64, optional, tag = "10")]
    pub fetch: Option<u64>,
    #[prost(bool, tag = "11")]
    pub is_ordered: bool,
    #[prost(message, repeated, tag = "12")]
    pub ordering: Vec<SortMessage>,
    #[prost(uint32, tag = "13")]
    pub partitions: u32,
    #[prost(uint32, tag = "14")]
    pub unreached: u32,
}

/// A key of an order, over the output of a scan.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SortMessage {
    #[prost(message, optional, tag = "1")]
    pub key: Option<PhysicalExprNode>,
    #[prost(bool, tag = "2")]
    pub is_descending: bool,
    #[prost(bool, tag = "3")]
    pub has_nulls_first: bool,
}
