//! State shared by the store's tasks: tables, tiers, catalog.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use terrace_model::clock::Clock;
use terrace_model::{Account, Error, FileFormat, Pattern, Result, TableId, TableName, TierId, TierKind};
use terrace_placement::snapshot::KEPT_SNAPSHOTS;
use terrace_placement::{
    Calibration, Control, EpochRecord, EpochReport, HomeReads, MoveRecord, Place, PlacementSnapshot, Pressure,
    TableSnapshot, TierCost, TierProfile, TierState, TieringHost,
};
use terrace_storage::catalog::records::{decode, encode};
use terrace_storage::catalog::{CALIBRATION_KEY, Catalog, Commit, HYSTERESIS_KEY, Space, TableRecord, key};
use terrace_storage::heat::AccessTotals;
use terrace_storage::io::{BlockIo, Class, ColumnLevels, ReadingStatements, WritingStatement};
use terrace_storage::migrate::Failing;
use terrace_storage::table::delta::SealRule;
use terrace_storage::table::{Chunk, ChunkAdmission, FilterPool, IngestMemory, Resident, Table, TableVersion};
use terrace_storage::tier::codec::{CompressionRule, Form, FormChoice, StoredColumn};
use terrace_storage::tier::hbm::HbmTier;
use terrace_storage::tier::reader::{Admission, ColdRead, ReadPurpose};
use terrace_storage::tier::{Home, HomeTier, MemoryTier, MemoryTiers, codec};

use super::commit::Publications;
use super::compact::CompactionCounters;
use super::description::Descriptions;
use super::retry::Retry;
use super::unpublished::UnpublishedChunks;

/// Epochs kept in the log.
const KEPT_EPOCHS: u64 = 1000;
/// How long upkeep waits for room in the memory for reads.
const UPKEEP_PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks for room.
const UPKEEP_RETRY: Duration = Duration::from_millis(5);
const CONTROL_KEY: &[u8] = b"tiering_control";

/// A tier with its budget and use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierInfo {
    /// Position, fastest first.
    pub id: TierId,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: TierKind,
    /// True when ordinary memory emulates the device.
    pub emulated: bool,
    /// The memory or device that it uses.
    pub description: String,
    /// State: whether it takes segments.
    pub state: TierState,
    /// Why moves to and from it are paused; `None` while its device works.
    pub failing: Option<Failing>,
    /// Most bytes per second that the loop's own moves read from its device, and write to it; `None`: no limit.
    pub rate_limit_bytes_per_s: Option<u64>,
    /// Byte limit; 0 while the tier is drained.
    pub budget_bytes: u64,
    /// Bytes charged, including replaced copies that readers still use.
    pub used_bytes: u64,
    /// Bytes of segments whose fastest copy lies on this tier.
    pub placed_bytes: u64,
    /// Bytes of all copies on this tier.
    pub stored_bytes: u64,
    /// Segments whose fastest copy lies on this tier.
    pub segments: u64,
    /// The longest hole between two pieces of a file that is read instead of skipped; `None` for memory tiers.
    pub read_gap_bytes: Option<u64>,
}

/// All tables, each with one of its versions, by name.
pub type Snapshot = Vec<(Arc<Table>, Arc<TableVersion>)>;

/// Tables, tiers and catalog of an open store.
#[derive(Debug)]
pub struct Core {
    pub(super) data_dir: PathBuf,
    pub(super) descriptions: Descriptions,
    pub(super) catalog: Arc<Catalog>,
    pub(super) memory_tiers: ArcSwap<Vec<Arc<dyn MemoryTier>>>,
    /// The memory of a device, if there is one: it holds second copies, and is none of the tiers that processors read.
    pub(super) device: Option<Arc<HbmTier>>,
    pub(crate) home: Arc<dyn Home>,
    /// The engine that reads the home.
    pub(super) io: Arc<dyn BlockIo>,
    /// The engine of the files of this machine, such as those of spilled rows; the same one for a home in a folder.
    pub(super) local_io: Arc<dyn BlockIo>,
    /// Bytes of cold reads that are under way, or were read and not yet taken.
    pub(super) io_account: Arc<Account>,
    /// The statements that read ahead, which share the account.
    pub(super) reading_statements: Arc<ReadingStatements>,
    /// The levels at which running statements read columns at random.
    pub(super) column_levels: Arc<ColumnLevels>,
    pub(super) delta: Arc<Account>,
    pub(super) filters: FilterPool,
    pub(super) access_totals: Arc<AccessTotals>,
    /// Cost of reads on each tier; typical values until measured.
    pub(super) costs: ArcSwap<Vec<TierCost>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seal: SealRule,
    pub(crate) ingest_threads: usize,
    pub(crate) ingest_memory: Arc<IngestMemory>,
    pub(super) unpublished: UnpublishedChunks,
    /// Receives the tiers on which new chunks find no room.
    pub(super) pressure: OnceLock<Arc<Pressure>>,
    /// Compression of new files; unset, and so none, until the device is calibrated.
    pub(super) compression_rule: OnceLock<CompressionRule<'static>>,
    /// The forms of copies in memory.
    pub(super) form: FormChoice,
    /// The format of the files of tables that are created without one.
    pub(super) file_format: FileFormat,
    /// Locked for writing while tables are added or removed and while versions are published.
    pub(super) tables: RwLock<BTreeMap<TableName, Arc<Table>>>,
    pub(super) publications: Mutex<Publications>,
    /// State of the retries to open the catalog again after a failure.
    pub(super) retry: Retry,
    pub(super) compactions: CompactionCounters,
    /// Locked while the set of tables changes.
    pub(super) ddl: Mutex<()>,
    /// Locked while a mark is allocated.
    pub(super) marks: Mutex<()>,
    pub(super) next_table: AtomicU64,
    pub(super) schema_version: AtomicU64,
}

impl Drop for Core {
    fn drop(&mut self) {
        // Before the catalog closes and another store may open the directory.
        self.home.end_removals();
    }
}

impl Core {
    pub(super) fn tables(&self) -> Vec<Arc<Table>> {
        self.tables.read().values().cloned().collect()
    }

    /// All tables with their current versions, by name. Each commit is visible in all of its tables or in none.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.tables.read().values().map(|table| (Arc::clone(table), table.version())).collect()
    }

    pub(super) fn table(&self, name: &TableName) -> Result<Arc<Table>> {
        let missing = || Error::not_found("table", name.to_string());
        self.tables.read().get(name).cloned().ok_or_else(missing)
    }

    /// Writes the description of a table after a change. A failure is logged, not returned: the change is in the
    /// catalog, and the next start writes the description again.
    pub(super) fn describe(&self, table: &Table) {
        let described = TableRecord::new(table.definition()).and_then(|r| self.descriptions.write(table.id(), &r));
        if let Err(error) = described {
            tracing::warn!(%error, table = %table.name(), "cannot write the description of a table; the next start does");
        }
    }

    pub(super) fn schema_version(&self) -> u64 {
        self.schema_version.load(Ordering::Acquire)
    }

    pub(super) fn schema_changed(&self) {
        self.schema_version.fetch_add(1, Ordering::AcqRel);
    }

    /// The position of the home tier: after the last memory tier.
    pub(crate) fn home_tier(&self) -> TierId {
        TierId(self.memory_tiers.load().len() as u8)
    }

    /// The tier on which new rows of a table start; `None`: at home.
    pub(crate) fn admission(&self, table: &Table) -> Option<TierId> {
        let dram = self.memory_tiers.load().iter().find(|t| t.kind() == TierKind::Dram).map(|t| t.id());
        dram.filter(|_| table.options().admission == ChunkAdmission::Auto)
    }

    /// Compression of the files of new chunks.
    pub(crate) fn compression_rule(&self) -> CompressionRule<'static> {
        self.compression_rule.get().copied().unwrap_or_default()
    }

    /// Stores a copy of each column of a new chunk at its place in `places`; bits of marks get none. A full budget is
    /// normal: the column stays at home.
    pub(crate) fn admit(&self, chunk: &Chunk, file: &[u8], places: &[Option<Place>]) -> Result<()> {
        let memory = self.memory_tiers.load();
        for ((segment, field), place) in chunk.columns().iter().zip(chunk.schema.fields()).zip(places) {
            let Some(place) = place else { continue };
            let Some(tier) = memory.get(usize::from(place.tier.0)) else { continue };
            let range = segment.home.offset as usize..(segment.home.offset + segment.home.len) as usize;
            let Some(stored) = file.get(range) else { continue };
            let form = segment.form(place.form);
            let bytes = segment.bytes_in(form);
            if !tier.has_room(bytes) {
                tier.account().recall(tier.charged_bytes(bytes as usize));
                if let Some(pressure) =
                    self.pressure.get().filter(|_| !tier.account().is_closed() && !tier.account().is_yielding())
                {
                    pressure.report_shortage(tier.id(), tier.charged_bytes(bytes as usize));
                }
                continue;
            }
            let home = &segment.home;
            let rows = chunk.rows as usize;
            let image = codec::decompressed(home, Buffer::from(stored), &Arc::default())?;
            // SAFETY: the bytes are those just written at this home, or a copy of them.
            let decoded = |image: &Buffer| unsafe { StoredColumn::decode_image(home, field.data_type(), rows, image) };
            let converted = match (home.form(), form) {
                (Form::Plain, Form::Packed) => decoded(&image)?.packed_image(),
                (Form::Packed, Form::Plain) => Some(decoded(&image)?.plain_image(home)?),
                (Form::Plain, Form::Plain) | (Form::Packed, Form::Packed) => None,
            };
            match tier.store(converted.as_deref().unwrap_or(&image)) {
                Ok(bytes) => {
                    let data_type = field.data_type();
                    let column = match (home.form(), converted.is_some()) {
                        (Form::Plain, false) => decoded(&bytes.buffer)?,
                        (Form::Packed, true) => StoredColumn::decode_plain(home, data_type, rows, &bytes.buffer)?,
                        (Form::Plain, true) | (Form::Packed, false) => {
                            segment.open_packed(data_type, rows, &bytes.buffer)?
                        }
                    };
                    segment.resident.store(Some(Arc::new(Resident { tier: bytes.tier.clone(), column, bytes })));
                }
                Err(Error::BudgetExceeded { .. }) => {}
                // A failing tier is no error of the ingest: the rows are safe at home.
                Err(error) if error.is_device_fault() => {
                    tracing::debug!(%error, tier = tier.name(), "cannot copy a new segment to its tier; it stays at home");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns columns of a chunk from whichever tier has them. Blocks while columns that no memory tier has are read.
    pub(super) fn columns(&self, chunk: &Arc<Chunk>, wanted: &[usize], admission: Admission) -> Result<Vec<ArrayRef>> {
        Ok(self.columns_for(chunk, wanted, admission.into())?.0)
    }

    /// The same for any purpose, and the microseconds for which the caller waited for what was read.
    fn columns_for(&self, chunk: &Arc<Chunk>, wanted: &[usize], purpose: ReadPurpose) -> Result<(Vec<ArrayRef>, u64)> {
        let mut columns = Vec::with_capacity(wanted.len());
        for column in wanted {
            let segment = chunk.segments.get(*column);
            let segment = segment.ok_or_else(|| Error::Invalid(format!("a chunk has no column {column}")))?;
            columns.push(match &segment.constant {
                Some(constant) => Some(constant.array(chunk.rows as usize)?),
                None => segment.resident.load().as_ref().map(|resident| resident.column.widened()).transpose()?,
            });
        }
        let missing = columns.iter().zip(wanted).filter(|(c, _)| c.is_none()).map(|(_, i)| *i).collect::<Vec<_>>();
        let read = match missing.is_empty() {
            true => None,
            false => Some(self.read_cold(chunk, &missing, purpose)?.wait()?),
        };
        let wait_us = read.as_ref().map_or(0, |read| read.wait_us);
        let mut read = read.iter().flat_map(|read| &read.columns);
        for (column, position) in columns.iter_mut().zip(wanted).filter(|(column, _)| column.is_none()) {
            let locate = |error| codec::locate(error, &chunk.path, &chunk.column_label(*position));
            *column = read.next().map(StoredColumn::widened).transpose().map_err(locate)?;
        }
        let columns = columns.into_iter().map(|column| column.ok_or(Error::Cancelled)).collect::<Result<_>>()?;
        Ok((columns, wait_us))
    }

    /// Starts a cold read. Upkeep waits until the memory for reads has room, at most [`UPKEEP_PATIENCE`]: where statements
    /// fill it all the time, one chunk per wait is read beyond it.
    fn read_cold(&self, chunk: &Arc<Chunk>, columns: &[usize], purpose: ReadPurpose) -> Result<ColdRead> {
        let start_us = self.clock.now_us();
        loop {
            if let Some(read) = self.home.read_rows(chunk, columns, None, purpose)? {
                return Ok(read);
            }
            if self.clock.now_us().saturating_sub(start_us) >= UPKEEP_PATIENCE.as_micros() as u64 {
                let read = self.home.read_columns(chunk, columns, Admission::Move)?;
                return read.ok_or(Error::Cancelled);
            }
            self.clock.sleep(UPKEEP_RETRY);
        }
    }

    /// Returns columns of a chunk for the check of a key. The first read of a check is counted as a sequential access;
    /// further reads only add to its values. Those of the home are [`Class::Needed`]: the rules of reads may exclude them.
    /// They take the turns of the statement, which is told how long it waited.
    pub(super) fn read_keys(
        &self,
        chunk: &Arc<Chunk>,
        wanted: &[usize],
        is_first: bool,
        statement: &WritingStatement,
    ) -> Result<Vec<ArrayRef>> {
        if !cfg!(feature = "no-counters") {
            for segment in wanted.iter().filter_map(|column| chunk.segments.get(*column)) {
                let tier = segment.resident.load().as_ref().map(|resident| resident.tier.id());
                let home = self.home_tier();
                let bytes = if tier.is_some() { segment.bytes() } else { segment.home.len };
                let counts = tier.is_some() || self.io.rules().admits(Class::Needed);
                match is_first {
                    _ if !counts => {}
                    true => segment.counters.record(Pattern::Sequential, chunk.rows.into()),
                    false => segment.counters.record_more(Pattern::Sequential, chunk.rows.into()),
                }
                self.access_totals.record(tier.unwrap_or(home), Pattern::Sequential, bytes);
            }
        }
        let purpose = ReadPurpose { statement: statement.id(), ..Admission::Guaranteed.into() };
        let (columns, wait_us) = self.columns_for(chunk, wanted, purpose)?;
        statement.add_key_wait(wait_us);
        Ok(columns)
    }

    pub(super) fn tier_infos(&self) -> Vec<TierInfo> {
        let memory = self.memory_tiers.load();
        let home = TierId(memory.len() as u8);
        let mut infos: Vec<TierInfo> = memory.iter().map(|t| memory_info(t.as_ref())).collect();
        let mut placed = 0;
        let mut stored = 0;
        let mut segments = 0;
        for table in self.tables() {
            for entry in table.version().chunks.iter() {
                for segment in entry.chunk.segments.iter().filter(|s| s.constant.is_none()) {
                    stored += segment.home.len;
                    let bytes = segment.bytes();
                    match segment.resident.load().as_ref().and_then(|r| infos.get_mut(usize::from(r.tier.id().0))) {
                        Some(info) => {
                            info.placed_bytes += bytes;
                            info.stored_bytes += bytes;
                            info.segments += 1;
                        }
                        None => {
                            placed += bytes;
                            segments += 1;
                        }
                    }
                }
            }
        }
        for (info, tier) in infos.iter_mut().zip(memory.iter()) {
            info.state = TierState::for_account(tier.account(), info.segments);
        }
        infos.push(TierInfo {
            id: home,
            name: self.home.name().into(),
            kind: self.home.kind(),
            emulated: false,
            description: self.home.describe(),
            state: TierState::Active,
            failing: None,
            rate_limit_bytes_per_s: None,
            budget_bytes: self.home.account().limit_bytes(),
            used_bytes: self.home.account().used_bytes(),
            placed_bytes: placed,
            stored_bytes: stored,
            segments,
            read_gap_bytes: Some(self.home.read_gap().bytes()),
        });
        infos
    }

    /// The tier of the device, if there is one. Its bytes and segments are those of the images there, second copies all.
    pub(super) fn device_info(&self) -> Option<TierInfo> {
        let device = self.device.as_ref()?;
        let mut segments = 0;
        let mut stored_bytes = 0;
        for table in self.tables() {
            for entry in table.version().chunks.iter() {
                for image in entry.chunk.segments.iter().filter_map(|segment| segment.image.load_full()) {
                    segments += 1;
                    stored_bytes += image.charged_bytes();
                }
            }
        }
        Some(TierInfo {
            // It has no position among the tiers that processors read.
            id: TierId(u8::MAX),
            name: device.name().to_owned(),
            kind: TierKind::Hbm,
            emulated: device.emulated(),
            description: device.describe(),
            state: TierState::Active,
            failing: None,
            rate_limit_bytes_per_s: None,
            budget_bytes: device.account().limit_bytes(),
            used_bytes: device.account().used_bytes(),
            placed_bytes: 0,
            stored_bytes,
            segments,
            read_gap_bytes: None,
        })
    }

    /// Calls `visit` with each record of a log, oldest first, until it returns false.
    pub(super) fn visit_log<T: DeserializeOwned>(
        &self,
        space: Space,
        visit: &mut dyn FnMut(T) -> Result<bool>,
    ) -> Result<()> {
        self.catalog.scan(space, &[], |_, value| visit(parse(value)?))
    }

    /// The newest records of a log, newest first.
    pub(super) fn newest_records<T: DeserializeOwned>(&self, space: Space, limit: usize) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.catalog.scan_back(space, &[], |_, value| {
            if found.len() < limit {
                found.push(parse(value)?);
            }
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }
}

fn memory_info(tier: &dyn MemoryTier) -> TierInfo {
    TierInfo {
        id: tier.id(),
        name: tier.name().to_owned(),
        kind: tier.kind(),
        emulated: tier.emulated(),
        description: tier.describe(),
        state: TierState::Active,
        failing: None,
        rate_limit_bytes_per_s: None,
        budget_bytes: tier.account().limit_bytes(),
        used_bytes: tier.account().used_bytes(),
        placed_bytes: 0,
        stored_bytes: 0,
        segments: 0,
        read_gap_bytes: None,
    }
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::Catalog(format!("cannot encode a log record: {e}")))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::Catalog(format!("cannot read a log record: {e}")))
}

/// Makes the snapshot of a table version for the tiering loop.
pub(super) fn table_snapshot(table: &Table, version: &TableVersion) -> TableSnapshot {
    TableSnapshot {
        id: table.id(),
        name: table.name().to_string(),
        chunks: Arc::clone(&version.chunks),
        statistics: Arc::clone(&version.statistics),
        rules: Arc::clone(&version.rules),
        mode: table.options().tiering,
    }
}

impl TieringHost for Core {
    fn tables(&self) -> Vec<TableSnapshot> {
        self.tables.read().values().map(|table| table_snapshot(table, &table.version())).collect()
    }

    fn memory_tiers(&self) -> MemoryTiers {
        self.memory_tiers.load_full()
    }

    fn set_memory_tiers(&self, tiers: MemoryTiers, rows: &[u8], reset: Option<u8>) -> Result<()> {
        let before = self.memory_tiers.swap(Arc::clone(&tiers));
        (0..).map(TierId).zip(tiers.iter()).for_each(|(id, tier)| tier.index().set(Some(id)));
        let is_gone = |tier: &&Arc<dyn MemoryTier>| !tiers.iter().any(|known| known.index() == tier.index());
        before.iter().filter(is_gone).for_each(|tier| tier.index().set(None));
        self.access_totals.rearrange(rows, reset);
        Ok(())
    }

    fn device_tier(&self) -> Option<Arc<HbmTier>> {
        self.device.clone()
    }

    fn drop_unpublished(&self, tier: TierId, wanted_bytes: u64) -> u64 {
        self.unpublished.drop_copies(tier, wanted_bytes)
    }

    fn form(&self) -> FormChoice {
        self.form
    }

    fn home(&self) -> &dyn HomeTier {
        self.home.as_ref()
    }

    fn save_epoch(&self, report: &EpochReport, move_history: &[u8]) -> Result<()> {
        let id = report.epoch.id;
        let mut commit = Commit::default();
        commit.put(Space::Epochs, key(&[id]), json(&report.epoch)?);
        commit.put(Space::Meta, HYSTERESIS_KEY.to_vec(), move_history.to_vec());
        for record in &report.moves {
            commit.put(Space::Moves, key(&[id, u64::from(record.number)]), json(record)?);
        }
        if let Some(old) = id.checked_sub(KEPT_EPOCHS) {
            commit.delete(Space::Epochs, key(&[old]));
            self.catalog.scan(Space::Moves, &key(&[old]), |k, _| {
                commit.delete(Space::Moves, k.to_vec());
                Ok(true)
            })?;
        }
        self.catalog.commit(commit)
    }

    fn load_epoch(&self, epoch: u64) -> Result<Option<EpochRecord>> {
        self.catalog.get(Space::Epochs, &key(&[epoch]))?.map(|bytes| parse(&bytes)).transpose()
    }

    fn load_move_history(&self) -> Result<Option<Vec<u8>>> {
        self.catalog.get(Space::Meta, HYSTERESIS_KEY)
    }

    fn update_records(&self, epochs: &[EpochRecord], moves: &[MoveRecord]) -> Result<()> {
        let mut commit = Commit::default();
        for epoch in epochs {
            commit.put(Space::Epochs, key(&[epoch.id]), json(epoch)?);
        }
        for record in moves {
            commit.put(Space::Moves, key(&[record.epoch, u64::from(record.number)]), json(record)?);
        }
        self.catalog.commit(commit)
    }

    fn append_moves(&self, epoch: u64, moves: Vec<MoveRecord>) -> Result<()> {
        let mut next = 0;
        self.catalog.scan_back(Space::Moves, &key(&[epoch]), |k, _| {
            next = terrace_storage::catalog::key_part(k, 1) + 1;
            Ok(false)
        })?;
        let mut commit = Commit::default();
        for (number, mut record) in (next..).zip(moves) {
            record.number = number as u32;
            commit.put(Space::Moves, key(&[epoch, number]), json(&record)?);
        }
        self.catalog.commit(commit)
    }

    fn save_placement_snapshot(&self, epoch: u64, snapshot: &PlacementSnapshot) -> Result<()> {
        let mut commit = Commit::default();
        commit.put(Space::Placements, key(&[epoch]), encode(snapshot)?);
        if let Some(old) = epoch.checked_sub(KEPT_SNAPSHOTS) {
            commit.delete(Space::Placements, key(&[old]));
        }
        self.catalog.commit(commit)
    }

    fn load_placement_snapshot(&self, epoch: u64) -> Result<Option<PlacementSnapshot>> {
        self.catalog.get(Space::Placements, &key(&[epoch]))?.map(|bytes| decode(&bytes, "a placement")).transpose()
    }

    fn placement_snapshots(&self) -> Result<Vec<u64>> {
        let mut kept = Vec::new();
        self.catalog.scan(Space::Placements, &[], |k, _| {
            kept.push(terrace_storage::catalog::key_part(k, 0));
            Ok(true)
        })?;
        Ok(kept)
    }

    fn save_control(&self, control: &Control) -> Result<()> {
        let mut commit = Commit::default();
        commit.put(Space::Meta, CONTROL_KEY.to_vec(), json(control)?);
        self.catalog.commit(commit)
    }

    fn load_control(&self) -> Result<Control> {
        Ok(self.catalog.get(Space::Meta, CONTROL_KEY)?.map(|bytes| parse(&bytes)).transpose()?.unwrap_or_default())
    }

    fn last_epoch(&self) -> Result<u64> {
        let mut last = 0;
        self.catalog.scan_back(Space::Epochs, &[], |k, _| {
            last = terrace_storage::catalog::key_part(k, 0);
            Ok(false)
        })?;
        Ok(last)
    }

    fn save_heat(&self, blobs: Vec<(TableId, Vec<u8>)>) -> Result<()> {
        let mut commit = Commit::default();
        for (table, blob) in blobs {
            commit.put(Space::Heat, key(&[table.0]), blob);
        }
        if commit.is_empty() { Ok(()) } else { self.catalog.commit(commit) }
    }

    fn load_heat(&self) -> Result<Vec<(TableId, Vec<u8>)>> {
        let mut blobs = Vec::new();
        self.catalog.scan(Space::Heat, &[], |k, v| {
            blobs.push((TableId(terrace_storage::catalog::key_part(k, 0)), v.to_vec()));
            Ok(true)
        })?;
        Ok(blobs)
    }

    fn save_calibration(&self, calibration: &Calibration) -> Result<()> {
        let mut commit = Commit::default();
        commit.put(Space::Meta, CALIBRATION_KEY.to_vec(), json(calibration)?);
        self.catalog.commit(commit)
    }

    fn home_reads(&self) -> HomeReads {
        let reads = self.io.stats().demand.sums();
        HomeReads { reads, wait_us: self.home.counters().wait_us.load(Ordering::Relaxed) }
    }

    fn use_calibration(&self, calibration: &Calibration) {
        self.costs.store(Arc::new(calibration.costs()));
        if let Some(busy) = calibration.tiers.last().and_then(|home| home.busy) {
            self.io.depth().set(busy.depth_bytes);
        }
        if let Some(cost) = calibration.tiers.last().and_then(TierProfile::read_cost) {
            self.home.read_gap().set_measured(cost);
        }
    }

    fn load_calibration(&self) -> Result<Option<Calibration>> {
        self.catalog.get(Space::Meta, CALIBRATION_KEY)?.map(|bytes| parse(&bytes)).transpose()
    }
}

#[cfg(test)]
mod tests;
