//! Tables: immutable versions of chunks, an open delta, statistics.
//!
//! Readers take [`Table::version`] and keep it as long as they like; writers publish a new version after the catalog
//! commit. A move replaces a segment's resident copy inside a chunk and makes no new version.

pub mod alteration;
pub mod chunk;
pub mod chunk_set;
pub mod column;
pub mod delta;
mod delta_column;
mod few_values;
pub mod filter;
pub mod filter_pool;
pub mod ingest;
pub mod ingest_memory;
pub(crate) mod key;
pub mod mark;
mod page_bounds;
pub mod predicate;
mod row_bytes;
mod row_map;
pub mod rule;
pub mod sample;
pub mod sketch;
pub mod statistics;
#[allow(clippy::module_inception)]
mod table;
mod value_hash;
pub mod version;

pub use alteration::Alteration;
pub use chunk::{Chunk, ChunkFile, ChunkId, Home, Resident, Segment};
pub use chunk_set::ChunkSet;
pub use column::{Column, ColumnId, Constant};
pub use delta_column::DeltaColumn;
pub use filter::{HashedValues, SegmentFilter};
pub use filter_pool::FilterPool;
pub use ingest::{Ingest, NewRows};
pub use ingest_memory::IngestMemory;
pub use mark::{Arrangement, MarkId, Marked};
pub use page_bounds::PageBounds;
pub use predicate::{Comparison, Literal, Predicate};
pub use row_bytes::row_bytes;
pub(crate) use row_map::{NewChunks, RowMap, Whereabouts};
pub use rule::{NewRule, Rule, RuleChoice, RuleKind, RuleRows, Rules};
pub use sketch::Sketch;
pub(crate) use statistics::sketch_key;
pub use statistics::{ChunkStatistics, ColumnBounds, TableStatistics};
pub(crate) use table::Head;
pub use table::{ChunkAdmission, Durability, OldVersions, Table, TableDefinition, TableId, TableName, TableOptions};
pub use version::{ChunkEntry, DeltaRows, TableVersion};
