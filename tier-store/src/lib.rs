//! Storage and placement of Arrow data on tiers of memory: the crate that users of the library name.
//!
//! A table is cut into *chunks* of up to 65,536 rows; each column of a chunk is a *segment*. Every segment has a
//! durable *home* in a chunk file and may have one faster copy on a byte-addressable tier. Placement chooses the
//! tier; readers take a handle and never wait for a move.
//!
//! The crate has the store itself and re-exports what users need of the crates below, each of which knows only those to
//! its right:
//!
//! ```text
//!   terrace-tier-store (this crate) -> terrace-placement -> terrace-storage -> terrace-model
//! ```
//!
//! Modules, the upper layers first:
//!
//! - [`store`]: an open data directory with all layers
//! - [`placement`]: decides which tier each segment should lie on
//! - [`migrate`]: carries out moves between tiers
//! - [`table`]: versions, chunks, deltas, statistics
//! - [`heat`]: counters of accesses and their decay
//! - [`tier`]: places for bytes: DRAM, NVM, SSD
//! - [`io`]: block reads and the file system
//! - [`clock`]: time as a dependency
//! - [`durations`]: histograms of durations
//! - [`error`]: the error of the tier store
//! - [`trace`]: the mark of spans that belong to traces
//! - [`units`]: sizes and durations as text
//!
//! It depends on Arrow, not on DataFusion and not on tokio.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{Int64Array, RecordBatch};
//! use arrow::datatypes::{DataType, Field, Schema};
//! use terrace_tier_store::table::{TableDefinition, TableName};
//! use terrace_tier_store::{Store, StoreOptions};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let data_dir = folder.path().join("data");
//! let store = Store::open(StoreOptions::new(&data_dir))?;
//! let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
//! let name = TableName::new("public", "notes");
//! let table = store.create_table(TableDefinition::new(name, Arc::clone(&schema)))?;
//! let keys = Arc::new(Int64Array::from_iter_values(0..100_000));
//! store.insert(&table, &[RecordBatch::try_new(schema, vec![keys])?])?;
//! store.seal(&table)?;
//!
//! let version = table.version();
//! assert_eq!((version.live_rows(), version.chunks.len()), (100_000, 2));
//! store.close()?;
//! # Ok::<(), terrace_tier_store::Error>(())
//! ```
//!
//! `examples/library.rs` goes on from here: it counts reads, and lets an epoch place the segments.

pub mod store;

pub use store::{Store, StoreOptions};
pub use terrace_model::{Error, ErrorKind, Result, clock, durations, error, trace, units};
pub use terrace_storage::{io, migrate};

/// Decides which tier each segment should lie on, and runs the loop that moves it there.
pub mod placement {
    pub use terrace_model::TieringMode;
    pub use terrace_placement::{
        Advice, AdviceRequest, Basis, BudgetPoint, Calibration, ColumnReads, Condition, Configuration, Control,
        Correction, DeviceInput, EpochRecord, EpochReport, EpochRequest, ExpectedRead, ExpectedReadSource, Explanation,
        Extent, FormCost, FormTiers, Goal, HomeReads, HysteresisOptions, ImageInput, ImageRule, Lever, MergeKind,
        MergeOptions, MoreRoom, MoveRecord, MoveStatus, Order, OrderOutcome, OrderReport, PackedValues, PatternCost,
        Place, PlacementConstraints, PlacementSnapshot, PlannedImage, Point, PolicyKind, Pressure, QueryCost, ReadPart,
        SEVERAL, ScanProfile, Scope, StatementProfile, TableSnapshot, TierCost, TierMask, TierOption, TierPrice,
        TierProfile, TierState, Tiering, TieringHost, TieringMetrics, TieringOptions, UnreadColumn, ViewInfluence,
        ViewInput, Workload, advice, calibrate, comparison, constraints, correction, cost, epoch, explain, hysteresis,
        merge, metrics, order, policy, pressure, query_cost, record, snapshot, solver, tiering, views, workload,
    };
}

/// Counters of accesses to segments, and the heat that follows from them.
pub mod heat {
    pub use terrace_model::Pattern;
    pub use terrace_placement::heat::{Heat, SegmentHeat, SegmentKey, ViewSource, ViewUse, decay, views};
    pub use terrace_storage::heat::{
        AccessTotals, Heritage, PatternCounts, Sample, SegmentCounters, access, counters, sample,
    };
}

/// Tables: immutable versions of chunks, an open delta, statistics; and bulk ingests into them.
pub mod table {
    pub use terrace_model::{ChunkId, ColumnId, FileFormat, MarkId, TableId, TableName};
    pub use terrace_storage::table::{
        Alteration, Arrangement, Chunk, ChunkAdmission, ChunkEntry, ChunkFile, ChunkSet, ChunkStatistics, Column,
        ColumnBounds, Comparison, Constant, DeltaColumn, DeltaRows, Durability, FilterPool, HashedValues, IngestMemory,
        Literal, Marked, NewRule, OldVersions, PageBounds, Predicate, Resident, Rule, RuleChoice, RuleKind, RuleRows,
        Rules, Segment, SegmentFilter, SegmentHome, Sketch, Table, TableDefinition, TableOptions, TableStatistics,
        TableVersion, row_bytes,
    };

    pub use crate::store::ingest::{Ingest, NewRows};
}

/// Tiers: places for segments, each with a kind, a byte budget and an owner type for its bytes.
pub mod tier {
    pub use terrace_model::{Account, Charge, Loan, MAX_TIERS, TierId, TierIndex, TierKind};
    pub use terrace_storage::tier::{
        Home, HomeTier, MeasuredHome, MemoryTier, MemoryTiers, SegmentBytes, codec, dram, hbm, home, nvm, object_home,
        reader, ssd, stored_file,
    };
}
