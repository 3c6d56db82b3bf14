//! The facade: one open data directory with its tables, tiers and background tasks.
//!
//! [`Core`] has the state that the tasks share (tables, tiers, catalog); [`Store`] adds the tasks themselves (tiering,
//! sealing) and stops them when it is dropped. All calls that write block; reading versions, statistics and resident
//! arrays does not.
//!
//! - `core`: tables, tiers and catalog, shared by the tasks
//! - `options`: options with which a store is opened
//! - `recovery`: opens a data directory and removes leftover files
//! - `home_place`: where the chunk files of a data directory lie, and whether they are its own
//! - `background`: background threads that end with the store
//! - `write`: inserts, seals, bulk publishes, creating and dropping tables
//! - `draft`: the next version of a table while it is made
//! - `commit`: makes changes of one or several tables durable and visible together
//! - `ingest`: bulk ingest of rows into chunk files
//! - `transaction`: changes that only their owner sees until they are committed
//! - `unpublished`: chunks that are no part of a table yet
//! - `unique`: enforces primary keys
//! - `alter`: ALTER of a table that keeps its chunk files
//! - `fold`: merges many small delta entries
//! - `compact`: rewrites chunks with deleted rows and small chunks
//! - `marks`: marks of hot views
//! - `rules`: placement rules of a table
//! - `new_tier`: adds a memory tier to an open store
//! - `retry`: opens the catalog again after a refused write
//! - `check`: verifies a store
//! - `heal`: repairs a damaged chunk file from good copies
//! - `backup`: backup and restore
//! - `rebuild`: rebuilds a catalog from the files of a data directory
//! - `old_catalog`: reads the catalog that a rebuild replaces
//! - `description`: descriptions of tables in files, for a rebuild
//! - `usage`: disk usage
//! - `crash`: simulated crashes (tests)
//! - `guest`: a store in a virtual machine that is killed (tests)
//! - `distinct_tests`: tests of distinct counts and sketches
//! - `format_tests`: tests with stores of earlier format versions
//! - `maintenance_tests`: tests of check, heal, backup and rebuild
//! - `read_gap_tests`: tests of reads on devices of several speeds
//! - `write_intent_tests`: tests of what the writes of chunk files are for
//! - `tests`: tests of inserting, sealing and reopening

mod alter;
mod background;
mod backup;
mod check;
mod commit;
mod compact;
mod core;
#[cfg(test)]
mod crash;
mod description;
#[cfg(test)]
mod distinct_tests;
mod draft;
mod fold;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod guest;
mod heal;
mod home_place;
#[cfg(test)]
mod home_tests;
pub(crate) mod ingest;
#[cfg(test)]
mod maintenance_tests;
mod marks;
mod new_tier;
mod old_catalog;
mod options;
#[cfg(test)]
mod read_gap_tests;
mod rebuild;
mod recovery;
mod retry;
mod rules;
#[cfg(test)]
mod tests;
mod transaction;
mod unique;
mod unpublished;
mod usage;
mod write;
#[cfg(test)]
mod write_intent_tests;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use terrace_model::{Account, FileFormat, MarkId, Result, TableName, TierId};
use terrace_placement::{EpochRecord, MergeOptions, MoveRecord, TierCost, Tiering, TieringHost, TieringOptions};
use terrace_storage::catalog::{Commit, Space};
use terrace_storage::io::{BlockIo, ColumnLevels, ReadingStatements, WritingStatement};
use terrace_storage::migrate::Failing;
use terrace_storage::table::{
    Alteration, Arrangement, Chunk, ChunkEntry, DeltaRows, FilterPool, IngestMemory, NewRule, Rule, RuleChoice, Table,
    TableDefinition, TableVersion,
};
use terrace_storage::tier::codec::CompressionRule;
use terrace_storage::tier::hbm::HbmTier;
use terrace_storage::tier::reader::{Admission, ColdColumns};
use terrace_storage::tier::ssd::files::{DiskSpace, disk_space};
use terrace_storage::tier::{Home, MemoryTiers};

pub use self::core::{Core, Snapshot, TierInfo};
pub use backup::{BackupReport, backup, restore};
pub use check::{CheckOptions, CheckReport, CheckedTable, Finding, Progress, Severity, Watch, check};
pub use home_place::HomePlace;
pub use marks::ChunkMark;
pub use new_tier::{NewTier, NewTierSpec};
pub use options::{CompressionChoice, HbmOptions, NvmOptions, ReadGapChoice, StoreOptions};
pub use rebuild::{Difference, RebuildReport, RebuiltTable, SkippedFile, rebuild_catalog};
pub use recovery::CATALOG_FILE;
pub use rules::RuleStatus;
pub use transaction::{Change, Savepoint, Transaction};
pub use usage::{TableUsage, Usage, usage};

use crate::store::ingest::SealedChunk;
use crate::store::ingest::{Ingest, NewRows};
use background::Background;
use commit::TableWrites;
pub use compact::{Compacted, CompactionCounters};

/// Time between two looks at the marks of unsealed rows.
const MARKS_LOOK: Duration = Duration::from_millis(100);
/// Finished reads that are offered to a memory tier may use the I/O budget divided by this.
const OFFER_DIVISOR: u64 = 8;

/// An open store.
#[derive(Debug)]
pub struct Store {
    core: Arc<Core>,
    tiering: Tiering,
    _background: Vec<Background>,
}

impl Store {
    /// Opens a data directory, or creates one. Tables can be queried at once, from their home.
    ///
    /// # Errors
    /// [`crate::Error::Locked`] when another process has it open; [`crate::Error::Io`] when it cannot be written;
    /// [`crate::Error::UnsupportedFormat`] for one written by another version.
    pub fn open(options: StoreOptions) -> Result<Arc<Self>> {
        let tiering_options = options.tiering.clone();
        let interval = options.epoch_interval;
        let seal = options.seal;
        let compaction_bytes_per_s = options.compaction_bytes_per_s;
        let compression = options.compression;
        let io_budget_bytes = options.io_budget_bytes;
        let core = Arc::new(recovery::open(options)?);
        let host: Arc<dyn TieringHost> = Arc::<Core>::clone(&core);
        // An offered read keeps its charge to the I/O budget until it is taken.
        let merge = MergeOptions { queue_bytes: io_budget_bytes / OFFER_DIVISOR, ..tiering_options.merge };
        let mut tiering_options = TieringOptions { merge, ..tiering_options };
        if let Some(device) = &core.device {
            tiering_options.max_budget_bytes.insert(device.name().to_owned(), device.most_bytes());
        }
        let tiering = Tiering::new(Arc::downgrade(&host), Arc::clone(&core.clock), tiering_options);
        let _ = core.pressure.set(Arc::clone(tiering.pressure()));
        tiering.restore()?;
        let _ = core.compression_rule.set(compression.compression_rule(tiering.calibration().as_ref()));
        if let Some(interval) = interval {
            tiering.start(interval)?;
        }
        let pause = Duration::from_micros(seal.age_us / 4).clamp(Duration::from_millis(50), Duration::from_secs(10));
        let look = pause.min(MARKS_LOOK);
        let mut since_aged = pause;
        let sealing = Arc::clone(&core);
        let watching = Arc::clone(&core);
        let mut background = vec![
            Background::start("terrace-sealer", None, move || {
                if since_aged >= pause {
                    sealing.seal_aged();
                    since_aged = Duration::ZERO;
                }
                let goes_on = seal.age_us == u64::MAX || sealing.seal_to_low_mark();
                let next = if goes_on { look } else { pause };
                since_aged += next;
                next
            }),
            Background::start("terrace-retry", None, move || watching.watch_catalog()),
        ];
        if compaction_bytes_per_s > 0 {
            background.push(compact::start(Arc::clone(&core), compaction_bytes_per_s));
        }
        Ok(Arc::new(Self { core, tiering, _background: background }))
    }

    /// All tables, by name.
    pub fn tables(&self) -> Vec<Arc<Table>> {
        self.core.tables()
    }

    /// One table.
    pub fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        self.core.table(name)
    }

    /// A number that grows with each change of the set of tables or objects; for caches of plans.
    pub fn schema_version(&self) -> u64 {
        self.core.schema_version()
    }

    /// All tables with their current versions, by name. Each commit is visible in all of its tables or in none.
    pub fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }

    /// Starts a transaction; it is rolled back when it is dropped.
    pub fn begin(self: &Arc<Self>) -> Transaction {
        Transaction::new(Arc::clone(self))
    }

    /// Microseconds on the store's clock.
    pub fn now_us(&self) -> u64 {
        self.core.clock.now_us()
    }

    /// The format of the chunk files of tables that are created without one.
    pub fn file_format(&self) -> FileFormat {
        self.core.file_format
    }

    /// Creates an empty table.
    pub fn create_table(&self, definition: TableDefinition) -> Result<Arc<Table>> {
        let table = self.core.new_table(definition, false)?;
        self.core.publish_table(&table, Vec::new(), false, &WritingStatement::default())?;
        Ok(table)
    }

    /// Drops a table. Its files are deleted when the last reader of a version has finished.
    pub fn drop_table(&self, name: &TableName) -> Result<()> {
        self.core.drop_table(name)
    }

    /// Changes a table's definition, in one commit and without writing a file. Readers of the old table continue with
    /// their version; writers of the old table get [`crate::Error::Conflict`].
    ///
    /// # Errors
    /// The errors of [`TableDefinition::altered`]; a new NOT NULL column of a table with rows needs a value.
    pub fn alter_table(&self, name: &TableName, changes: &[Alteration]) -> Result<Arc<Table>> {
        let table = self.core.alter_table(name, changes)?;
        if changes.iter().any(|change| matches!(change, Alteration::SetOptions(_))) {
            self.tiering.wake("settings of a table");
        }
        Ok(table)
    }

    /// Adds a placement rule, durable when it returns. Segments move with the next epoch, which is requested at once.
    /// Chunks that the rule names and that do not exist are left out.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] for table and tier; [`crate::Error::Invalid`] when the segments that must lie in
    /// memory would not fit there, with the figures, or when no chunk that it names exists.
    pub fn add_rule(&self, table: &TableName, new: NewRule) -> Result<Rule> {
        let rule = self.core.add_rule(table, new)?;
        self.tiering.wake("placement rules");
        Ok(rule)
    }

    /// Drops placement rules of a table and returns them.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] for the table, and when no rule has the number or the scope.
    pub fn drop_rules(&self, table: &TableName, choice: &RuleChoice) -> Result<Vec<Rule>> {
        let dropped = self.core.drop_rules(table, choice)?;
        if !dropped.is_empty() {
            self.tiering.wake("placement rules");
        }
        Ok(dropped)
    }

    /// The placement rules of the tables for which `wanted` is true, each with its present effect.
    pub fn rule_statuses(&self, wanted: &dyn Fn(&TableName) -> bool) -> Vec<RuleStatus> {
        self.core.rule_statuses(wanted)
    }

    /// By chunk and column of a version: the text of the placement rule that decides the tier of the segment. Empty for
    /// a table without rules.
    pub fn deciding_rules(&self, table: &Table, version: &TableVersion) -> Vec<Vec<Option<Arc<str>>>> {
        self.core.deciding_rules(table, version)
    }

    /// Adds rows to the delta; durable when it returns (unless the table opted out). Returns the rows.
    ///
    /// # Errors
    /// [`crate::Error::SchemaMismatch`]; [`crate::Error::BudgetExceeded`] when the deltas are full and sealing does not help.
    pub fn insert(&self, table: &Arc<Table>, batches: &[RecordBatch]) -> Result<u64> {
        self.core.insert(table, batches)
    }

    /// Seals a table's delta and rewrites chunks with deleted rows, small chunks, and chunks whose files do not have the
    /// table's format, until no group is worth rewriting.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when the table is altered or dropped meanwhile; groups compacted before stay
    /// compacted.
    pub fn optimize(&self, table: &Arc<Table>) -> Result<Compacted> {
        self.core.seal(table)?;
        let mut sum = Compacted::default();
        while let Some(done) = self.optimize_step(table)? {
            sum.add(&done);
        }
        Ok(sum)
    }

    /// One step of [`Store::optimize`] after its seal: rewrites a group of chunks; `None` when no group is worth
    /// rewriting.
    pub fn optimize_step(&self, table: &Arc<Table>) -> Result<Option<Compacted>> {
        self.core.optimize_step(table)
    }

    /// Bytes in memory of the chunks that [`Store::optimize_step`] has still to rewrite, an estimate.
    pub fn optimizable_bytes(&self, table: &Table) -> u64 {
        self.core.optimizable_bytes(table)
    }

    /// Allocates a mark for a version of a hot view: never used before, durable when it returns.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn new_mark(&self) -> Result<MarkId> {
        self.core.new_mark()
    }

    /// Records for chunks and marks that all rows of the chunk may fulfil the mark or that no row does, in one commit.
    /// It replaces earlier knowledge of the same marks. Chunks that no longer exist are skipped. Returns the number of
    /// chunks that were marked. Waits for a compaction of the table.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when the table was altered or dropped.
    pub fn set_marks(&self, table: &Arc<Table>, known: &[ChunkMark]) -> Result<u64> {
        self.core.set_marks(table, known)
    }

    /// Removes marks from all chunks of a table. Their bytes in files stay until the files are deleted.
    ///
    /// # Errors
    /// The errors of [`Store::set_marks`].
    pub fn forget_marks(&self, table: &Arc<Table>, marks: &[MarkId]) -> Result<()> {
        self.core.forget_marks(table, marks)
    }

    /// One bit for each row of a chunk: whether it may fulfil a mark; all true when the chunk does not know the mark.
    /// Blocks while bits are read.
    pub fn mark_bits(&self, chunk: &Arc<Chunk>, mark: MarkId) -> Result<BooleanArray> {
        self.core.mark_bits(chunk, mark)
    }

    /// Returns columns of a chunk by their positions, deleted rows included, from whichever tier has them; counts no
    /// access. Blocks while columns that no memory tier has are read, as upkeep: behind the reads of statements.
    pub fn columns(&self, chunk: &Arc<Chunk>, wanted: &[usize]) -> Result<Vec<ArrayRef>> {
        self.core.columns(chunk, wanted, Admission::Upkeep)
    }

    /// Rewrites the live rows of a group of chunks in the arrangement that `arrange` returns for them, and replaces the
    /// group by the new chunks. Readers and writers are not blocked; rows deleted meanwhile stay deleted. Other marks
    /// are carried over if every chunk of the group knows them. The bytes of the group are charged to the delta's
    /// memory.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when chunks of the group were replaced, when not all of them are named by the same
    /// placement rules, when the table was altered or dropped; [`crate::Error::BudgetExceeded`] when the group is too
    /// large for the delta's memory now; [`crate::Error::Invalid`] for an arrangement that does not keep each row. An
    /// error changes nothing.
    pub fn rearrange(
        &self,
        table: &Arc<Table>,
        group: &[ChunkEntry],
        arrange: &dyn Fn(&RecordBatch) -> Result<Arrangement>,
    ) -> Result<Compacted> {
        self.core.rearrange(table, group, arrange)
    }

    /// Counters of compactions.
    pub fn compactions(&self) -> &CompactionCounters {
        &self.core.compactions
    }

    /// Seals a table's delta into chunks now.
    pub fn seal(&self, table: &Arc<Table>) -> Result<()> {
        self.core.seal(table)
    }

    /// Starts a bulk ingest into a table.
    pub fn ingest(self: &Arc<Self>, table: &Arc<Table>) -> Ingest {
        Ingest::into_existing(Arc::clone(self), Arc::clone(table))
    }

    /// Starts a bulk ingest into a new table, which appears with all of its rows when the ingest finishes; `replace`
    /// drops an existing table of that name.
    pub fn ingest_new(self: &Arc<Self>, definition: TableDefinition, replace: bool) -> Result<Ingest> {
        let table = self.core.new_table(definition, replace)?;
        Ok(Ingest::into_new(Arc::clone(self), table, replace))
    }

    /// The byte-addressable tiers as they are now, fastest first.
    pub fn memory_tiers(&self) -> MemoryTiers {
        self.core.memory_tiers.load_full()
    }

    /// Reports that `bytes` of a segment are read in place on `tier`, so that an emulated device can take its time.
    /// Called for each slice of a scan, so it touches no shared reference count.
    pub fn touch(&self, tier: TierId, bytes: u64) {
        if let Some(tier) = self.core.memory_tiers.load().get(usize::from(tier.0)) {
            tier.touch(bytes, 0);
        }
    }

    /// The position of the home tier: after the last memory tier.
    pub fn home_tier(&self) -> TierId {
        self.core.home_tier()
    }

    /// The home of every sealed chunk.
    pub fn home(&self) -> &Arc<dyn Home> {
        &self.core.home
    }

    /// The engine that reads the home.
    pub fn io(&self) -> &Arc<dyn BlockIo> {
        &self.core.io
    }

    /// The engine of the files of this machine, such as those of spilled rows; the same one for a home in a folder.
    pub fn local_io(&self) -> &Arc<dyn BlockIo> {
        &self.core.local_io
    }

    /// The account of bytes of cold reads that are under way, or were read and not yet taken.
    pub fn io_account(&self) -> &Arc<Account> {
        &self.core.io_account
    }

    /// The statements that read ahead, which share that account.
    pub fn reading_statements(&self) -> &Arc<ReadingStatements> {
        &self.core.reading_statements
    }

    /// The levels at which running statements read columns at random.
    pub fn column_levels(&self) -> &Arc<ColumnLevels> {
        &self.core.column_levels
    }

    /// Cost of reads on each tier, the home last: typical values until measured.
    pub fn costs(&self) -> Arc<Vec<TierCost>> {
        self.core.costs.load_full()
    }

    /// Whether files of new chunks are compressed: the operator wants that, or it pays on the device by its calibration.
    pub fn compresses_files(&self) -> bool {
        self.core.compression_rule() != CompressionRule::Raw
    }

    /// Totals of accesses by tier and pattern.
    pub fn access_totals(&self) -> &Arc<terrace_storage::heat::AccessTotals> {
        &self.core.access_totals
    }

    /// Memory of bulk ingests.
    pub fn ingest_memory(&self) -> &Arc<IngestMemory> {
        &self.core.ingest_memory
    }

    /// The delta's account.
    pub fn delta_account(&self) -> &Arc<Account> {
        &self.core.delta
    }

    /// Membership filters of segments.
    pub fn filters(&self) -> &FilterPool {
        &self.core.filters
    }

    /// Releases columns that a scan has read, after it counted its access. While the tiering loop takes offers, they
    /// are offered to a memory tier: see [`Tiering::offer`].
    pub fn release_columns(&self, read: ColdColumns) {
        if self.tiering.takes_offers() {
            self.tiering.offer(read.into_read_columns());
        }
    }

    /// The tiering loop.
    pub fn tiering(&self) -> &Tiering {
        &self.tiering
    }

    /// Why nothing can be stored, and when it is tried again; `None` while the catalog can be written.
    pub fn catalog_failing(&self) -> Option<Failing> {
        self.core.catalog_failing()
    }

    /// The store's data directory.
    pub fn data_dir(&self) -> &std::path::Path {
        &self.core.data_dir
    }

    /// The room of the disk of the data directory; `None` where it does not tell.
    pub fn disk_space(&self) -> Option<DiskSpace> {
        disk_space(self.data_dir())
    }

    /// Tiers that processors read, with budgets and use, fastest first.
    pub fn tier_infos(&self) -> Vec<TierInfo> {
        let mut infos = self.core.tier_infos();
        for info in &mut infos {
            info.failing = self.tiering.failing(&info.name);
            info.rate_limit_bytes_per_s = self.tiering.rate_limit(&info.name);
        }
        infos
    }

    /// All tiers, that of a device included, which comes first.
    pub fn all_tier_infos(&self) -> Vec<TierInfo> {
        let mut device = self.core.device_info();
        if let Some(info) = &mut device {
            info.failing = self.tiering.failing(&info.name);
            info.rate_limit_bytes_per_s = self.tiering.rate_limit(&info.name);
        }
        device.into_iter().chain(self.tier_infos()).collect()
    }

    /// The tier of the device, if there is one.
    pub fn device_tier(&self) -> Option<&Arc<HbmTier>> {
        self.core.device.as_ref()
    }

    /// The last epochs, newest first.
    pub fn epochs(&self, limit: usize) -> Result<Vec<EpochRecord>> {
        self.core.newest_records(Space::Epochs, limit)
    }

    /// The last moves, newest epoch first.
    pub fn moves(&self, limit: usize) -> Result<Vec<MoveRecord>> {
        self.core.newest_records(Space::Moves, limit)
    }

    /// Calls `visit` with each move that is logged, oldest first, until it returns false.
    pub fn walk_moves(&self, mut visit: impl FnMut(MoveRecord) -> Result<bool>) -> Result<()> {
        self.core.visit_log(Space::Moves, &mut visit)
    }

    /// Stores a named object (a view, an external table, a schema) as JSON text.
    pub fn put_object(&self, kind: &str, name: &str, json: &str) -> Result<()> {
        self.put_record(kind, name, json)?;
        self.core.schema_changed();
        Ok(())
    }

    /// Stores a named object on which no plan of a statement depends (a user, a token) as JSON text.
    pub fn put_record(&self, kind: &str, name: &str, json: &str) -> Result<()> {
        let mut commit = Commit::default();
        commit.put(Space::Objects, object_key(kind, name), json.as_bytes().to_vec());
        self.core.catalog.commit(commit)?;
        Ok(())
    }

    /// Removes a named object; false when there was none.
    pub fn remove_object(&self, kind: &str, name: &str) -> Result<bool> {
        let found = self.remove_record(kind, name)?;
        if found {
            self.core.schema_changed();
        }
        Ok(found)
    }

    /// Removes what [`Store::put_record`] stored; false when there was nothing.
    pub fn remove_record(&self, kind: &str, name: &str) -> Result<bool> {
        let key = object_key(kind, name);
        let found = self.core.catalog.get(Space::Objects, &key)?.is_some();
        if found {
            let mut commit = Commit::default();
            commit.delete(Space::Objects, key);
            self.core.catalog.commit(commit)?;
        }
        Ok(found)
    }

    /// All objects of a kind: name and JSON text, by name.
    pub fn objects(&self, kind: &str) -> Result<Vec<(String, String)>> {
        let prefix = object_key(kind, "");
        let mut found = Vec::new();
        self.core.catalog.scan(Space::Objects, &prefix, |key, value| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            found.push((String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned()));
            Ok(true)
        })?;
        Ok(found)
    }

    /// Verifies all tables as they are now, and heals damage when asked; see [`check`].
    ///
    /// # Errors
    /// When the catalog cannot be read, or `watch` cancels. Damage is a finding, not an error.
    pub fn check(&self, options: CheckOptions, watch: Watch<'_>) -> Result<CheckReport> {
        self.core.check(options, watch)
    }

    /// Copies the store, as of one commit, to `target` while statements run; see [`backup`].
    ///
    /// # Errors
    /// The errors of [`backup`].
    pub fn backup(&self, target: &std::path::Path, watch: Watch<'_>) -> Result<BackupReport> {
        self.core.seal_volatile()?;
        self.core.backup(target, watch)
    }

    /// Disk usage of the data directory.
    ///
    /// # Errors
    /// When the catalog or a folder cannot be read.
    pub fn usage(&self) -> Result<Usage> {
        self.core.usage()
    }

    /// Stops background work, seals tables without durability, saves heat. The store can still be read.
    pub fn close(&self) -> Result<()> {
        self.tiering.stop();
        self.tiering.checkpoint()?;
        self.core.seal_volatile()
    }

    /// Commits rows that an ingest wrote.
    pub(crate) fn add_rows(&self, rows: NewRows) -> Result<()> {
        let chunks = rows.chunks.into_iter().map(|chunk| (chunk, None)).collect();
        let delta = rows.delta.into_iter().collect();
        let statement = rows.statement;
        self.core.commit(vec![TableWrites { chunks, delta, statement, ..TableWrites::new(&rows.table) }])
    }

    pub(crate) fn delta_rows(&self, table: &Arc<Table>, batches: &[RecordBatch]) -> Result<Option<DeltaRows>> {
        self.core.delta_rows(table, batches)
    }

    pub(crate) fn publish_table(
        &self,
        table: &Arc<Table>,
        chunks: Vec<SealedChunk>,
        replace: bool,
        statement: &WritingStatement,
    ) -> Result<()> {
        self.core.publish_table(table, chunks, replace, statement)
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}

fn object_key(kind: &str, name: &str) -> Vec<u8> {
    let mut key = kind.as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(name.as_bytes());
    key
}
