//! Tables: immutable versions of chunks, an open delta, statistics.
//!
//! Readers take [`Table::version`] and keep it as long as they like; writers publish a new version after the catalog
//! commit. A move replaces a segment's resident copy inside a chunk and makes no new version.
//!
//! - [`alteration`]: changes of a table's definition that leave its chunk files alone
//! - [`chunk`]: chunks and segments
//! - [`chunk_set`]: a set of chunks of a table
//! - [`column`](mod@column): ids, defaults and constants of columns
//! - [`delta`]: recent inserts that are not sealed yet
//! - `delta_column`: values of a delta entry's column that plans need
//! - `few_values`: finds the distinct values of a column that has few
//! - [`filter`]: membership filters of segments
//! - [`filter_pool`]: builds and evicts membership filters under a budget
//! - [`ingest_memory`]: the memory limit of all bulk ingests
//! - [`key`]: primary keys as bytes that compare like the keys
//! - [`mark`]: which rows may satisfy a version of a hot view
//! - `page_bounds`: smallest and largest values of each page of a column
//! - [`predicate`]: the conditions by which placement rules select chunks
//! - `row_bytes`: the bytes that rows take
//! - `row_map`: translates row positions after a seal or a compaction
//! - [`rule`]: placement rules
//! - [`sample`]: samples of columns, for planners
//! - [`sketch`]: sketches that estimate numbers of distinct values
//! - [`statistics`]: bounds and sketches of chunks and tables
//! - `table`: a table, its definition and its versions
//! - `value_hash`: hashes of values, independent of their type's width
//! - [`version`]: table versions

pub mod alteration;
pub mod chunk;
pub mod chunk_set;
pub mod column;
pub mod delta;
mod delta_column;
mod few_values;
pub mod filter;
pub mod filter_pool;
pub mod ingest_memory;
pub mod key;
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
pub use chunk::{Chunk, ChunkFile, Resident, Segment, SegmentHome, WrittenFile};
pub use chunk_set::ChunkSet;
pub use column::{Column, Constant};
pub use delta_column::DeltaColumn;
pub use filter::{HashedValues, SegmentFilter};
pub use filter_pool::FilterPool;
pub use ingest_memory::IngestMemory;
pub use mark::{Arrangement, Marked};
pub use page_bounds::PageBounds;
pub use predicate::{Comparison, Literal, Predicate};
pub use row_bytes::row_bytes;
pub use row_map::{Forwarding, NewChunks, RowMap};
pub use rule::{NewRule, Rule, RuleChoice, RuleKind, RuleRows, Rules};
pub use sketch::Sketch;
pub use statistics::sketch_key;
pub use statistics::{ChunkStatistics, ColumnBounds, TableStatistics};
pub use table::Head;
pub use table::{ChunkAdmission, Durability, OldVersions, Table, TableDefinition, TableOptions};
pub use version::{ChunkEntry, DeltaRows, TableVersion};
