//! Opens a data directory: takes the lock, opens the catalog, loads the tables, removes orphaned files.
//!
//! Only the catalog is read, and every part of it that query results depend on is verified by its checksums. Chunks can
//! be queried from their home at once; bounds load at first use. A file in the SSD folder that no table refers to is
//! left over from a crash if it is named like a chunk file, and is removed; other files are logged and not changed. A
//! chunk file that is missing or has another size is logged; only statements that read it fail.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use parking_lot::{Mutex, RwLock};
use roaring::RoaringBitmap;
use terrace_model::{Account, ChunkId, Error, Result, TableId, TierId};
use terrace_placement::TierCost;
use terrace_storage::catalog::records::{TableRecord, decode, decode_batches, decode_rows};
use terrace_storage::catalog::{Catalog, ChunkRecord, Commit, LOST_CATALOG, Space, key, key_part};
use terrace_storage::heat::AccessTotals;
use terrace_storage::io::best_engine;
use terrace_storage::io::files::{FileSystem, create_folders, parent, raise_open_file_limit, revoke_access_of_others};
use terrace_storage::table::delta::DeltaEntry;
use terrace_storage::table::mark::ConstantMarks;
use terrace_storage::table::{
    Chunk, ChunkEntry, DeltaRows, FilterPool, IngestMemory, Rules, Segment, Table, TableStatistics, WrittenFile,
};
use terrace_storage::tier::dram::DramTier;
use terrace_storage::tier::hbm::HbmTier;
use terrace_storage::tier::nvm::NvmTier;
use terrace_storage::tier::ssd;
use terrace_storage::tier::{MemoryTier, codec};

use super::compact::CompactionCounters;
use super::core::Core;
use super::description::Descriptions;
use super::home_place::{DataDirectory, HOME_FILE, HomeParts, HomePlace, QueueOptions, SSD_FOLDER};
use super::options::{HbmOptions, ReadGapChoice, StoreOptions};
use super::retry::Retry;
use super::unpublished::UnpublishedChunks;

/// The file of the catalog in a data directory, and in a backup.
pub const CATALOG_FILE: &str = "catalog.redb";
pub(super) const HOLDER_FILE: &str = "server.pid";
/// Name of the tier of a device.
pub(super) const HBM: &str = "hbm";
pub(super) const NEXT_TABLE_KEY: &[u8] = b"next_table";
/// Number of table ids that each start reserves in the catalog, so that no id is used twice.
const RESERVED_TABLES: u64 = 1 << 20;

/// Opens a data directory, or creates one.
pub(super) fn open(options: StoreOptions) -> Result<Core> {
    raise_open_file_limit();
    let dir = options.data_dir.as_path();
    let ssd_dir = dir.join(SSD_FOLDER);
    let files = options.files.as_ref();
    create_folders(files, &ssd_dir)?;
    let has_tables = refuse_lost_catalog(&options.files, dir)?;
    if files.len(&dir.join(CATALOG_FILE))?.is_none() {
        // A first start may have been stopped after it created the folder, so make its name durable. The server
        // may lack permission to open the parent folder, so errors are ignored.
        let _ = files.sync_folder(parent(dir));
    }
    revoke_access_of_others(dir);
    let catalog = open_catalog(files, dir, options.catalog_cache_bytes, has_tables)?;
    catalog.refuse_damage()?;
    let next_table = reserve_table_ids(&catalog)?;
    let mut core = assemble(&options, catalog, next_table)?;
    let owner = DataDirectory { files, path: dir, unix_us: options.clock.unix_us() };
    options.home.claim(&owner, &core.catalog, core.home.as_ref())?;
    let tables = load_tables(&core)?.into_iter().map(|(_, table)| table.map(|t| (t.name().clone(), t)));
    let tables = tables.collect::<Result<BTreeMap<_, _>>>()?;
    remove_orphans(&core, tables.values())?;
    refresh_descriptions(&core, tables.values())?;
    core.tables = RwLock::new(tables);
    Ok(core)
}

/// A data directory opened read-only: nothing in it changes, and no server can open it meanwhile.
#[derive(Debug)]
pub(super) struct Inspection {
    /// The tables that could be loaded.
    pub(super) core: Core,
    /// The tables that could not be loaded, and why.
    pub(super) broken: Vec<(TableId, Error)>,
}

/// Opens a data directory read-only.
pub(super) fn inspect(dir: &Path) -> Result<Inspection> {
    let catalog = dir.join(CATALOG_FILE);
    let ssd_dir = dir.join(SSD_FOLDER);
    if !ssd_dir.is_dir() {
        return Err(Error::not_found("data directory", dir.display().to_string()));
    }
    if !catalog.is_file() {
        return Err(lost_catalog(catalog));
    }
    let mut options = StoreOptions::new(dir);
    options.home = HomePlace::recorded(options.files.as_ref(), dir)?;
    let catalog =
        name_lock_holder(options.files.as_ref(), dir, Catalog::open_read_only(&catalog, options.catalog_cache_bytes))?;
    let mut core = assemble(&options, Arc::new(catalog), 0)?;
    let mut broken = Vec::new();
    let mut tables = BTreeMap::new();
    for (id, table) in load_tables(&core)? {
        match table {
            Ok(table) => drop(tables.insert(table.name().clone(), table)),
            Err(error) => broken.push((id, error)),
        }
    }
    core.tables = RwLock::new(tables);
    Ok(Inspection { core, broken })
}

/// Fails when there are files of tables but no catalog: with a new catalog every file would look orphaned and be
/// removed. Returns true when there are files of tables.
fn refuse_lost_catalog(files: &Arc<dyn FileSystem>, dir: &Path) -> Result<bool> {
    let catalog = dir.join(CATALOG_FILE);
    let chunks = ssd::files::list(files.as_ref(), &dir.join(SSD_FOLDER))?.iter().any(|file| file.chunk.is_some());
    // A home elsewhere may have files too. It was named after there was a catalog, and is not asked yet.
    let has_home = files.len(&dir.join(HOME_FILE))?.is_some();
    let has_tables = chunks || has_home || !Descriptions::new(Arc::clone(files), dir).list()?.is_empty();
    match has_tables && files.len(&catalog)?.is_none_or(|bytes| bytes == 0) {
        true => Err(lost_catalog(catalog)),
        false => Ok(has_tables),
    }
}

fn lost_catalog(path: PathBuf) -> Error {
    Error::Corrupt { path, what: LOST_CATALOG.into() }
}

/// Makes a store without tables over an open catalog.
fn assemble(options: &StoreOptions, catalog: Arc<Catalog>, next_table: u64) -> Result<Core> {
    let dir = options.data_dir.as_path();
    let io = options.io.clone().unwrap_or_else(best_engine);
    io.set_rules(options.io_rules);
    io.depth().set_beside_points(options.io_beside_points_bytes);
    let io_account = Account::new("cold reads", options.io_budget_bytes);
    let queue = QueueOptions { rules: options.io_rules, beside_points_bytes: options.io_beside_points_bytes };
    let parts = HomeParts {
        data_dir: dir.to_owned(),
        limit_bytes: options.ssd_budget_bytes.unwrap_or(u64::MAX),
        files: Arc::clone(&options.files),
        io: Arc::clone(&io),
        clock: Arc::clone(&options.clock),
        io_account: Arc::clone(&io_account),
    };
    let home = options.home.open(queue, parts)?;
    if let ReadGapChoice::Fixed(bytes) = options.read_gap {
        home.read_gap().fix(bytes);
    }
    let memory_tiers = memory_tiers(options)?;
    let kinds = memory_tiers.iter().map(|tier| tier.kind()).chain([home.kind()]);
    let costs = kinds.map(TierCost::typical).collect();
    Ok(Core {
        data_dir: dir.to_owned(),
        descriptions: Descriptions::new(Arc::clone(&options.files), dir),
        memory_tiers: ArcSwap::from_pointee(memory_tiers),
        device: device_tier(options),
        delta: Account::new("the delta", options.delta_budget_bytes),
        filters: FilterPool::new(options.filter_budget_bytes, Arc::clone(&options.clock)),
        access_totals: Arc::new(AccessTotals::default()),
        costs: ArcSwap::from_pointee(costs),
        clock: Arc::clone(&options.clock),
        seal: options.seal,
        ingest_threads: options.ingest_threads,
        ingest_memory: IngestMemory::new(options.ingest_budget_bytes),
        compression_rule: OnceLock::new(),
        form: options.form,
        file_format: options.file_format,
        pressure: OnceLock::new(),
        tables: RwLock::new(BTreeMap::new()),
        publications: Mutex::default(),
        retry: Retry::default(),
        compactions: CompactionCounters::default(),
        unpublished: UnpublishedChunks::default(),
        ddl: Mutex::new(()),
        marks: Mutex::new(()),
        next_table: AtomicU64::new(next_table),
        schema_version: AtomicU64::new(0),
        catalog,
        io: Arc::clone(home.io()),
        home,
        local_io: io,
        io_account,
        reading_statements: Arc::default(),
        column_levels: Arc::default(),
    })
}

/// Opens the device, if the options name one. Everything works without it, so one that does not work is left out.
fn device_tier(options: &StoreOptions) -> Option<Arc<HbmTier>> {
    let HbmOptions { backing, budget_bytes } = options.hbm?;
    match HbmTier::open(HBM, backing, budget_bytes) {
        Ok(tier) => {
            tracing::info!(device = tier.describe(), budget = tier.account().limit_bytes(), "opened a device");
            Some(Arc::new(tier))
        }
        Err(error) => {
            tracing::warn!(%error, "the device of tier hbm does not work; the server goes on without it");
            None
        }
    }
}

/// Opens the catalog, whose lock is the lock of the directory, and writes the process id to a file for the error
/// message of other processes. On return the names of catalog and SSD folder are durable, even if an earlier start was
/// stopped before it got there.
fn open_catalog(files: &dyn FileSystem, dir: &Path, cache_bytes: usize, has_tables: bool) -> Result<Arc<Catalog>> {
    let holder_file = dir.join(HOLDER_FILE);
    let path = dir.join(CATALOG_FILE);
    let opened = match has_tables {
        true => Catalog::open_existing(files, &path, cache_bytes),
        false => Catalog::open(files, &path, cache_bytes),
    };
    let catalog = name_lock_holder(files, dir, opened)?;
    files.write(&holder_file, std::process::id().to_string().as_bytes())?;
    files.sync_folder(dir)?;
    Ok(Arc::new(catalog))
}

/// Adds the process id of the lock holder to an [`Error::Locked`].
pub(super) fn name_lock_holder<T>(files: &dyn FileSystem, dir: &Path, opened: Result<T>) -> Result<T> {
    opened.map_err(|error| match error {
        Error::Locked { path, holder } => {
            let recorded = files.read(&dir.join(HOLDER_FILE)).map(|id| String::from_utf8_lossy(&id).trim().to_owned());
            Error::Locked { path, holder: recorded.unwrap_or(holder) }
        }
        other => other,
    })
}

fn reserve_table_ids(catalog: &Catalog) -> Result<u64> {
    let stored = catalog.get(Space::Meta, NEXT_TABLE_KEY)?;
    let next = stored.as_deref().map_or(1, |bytes| key_part(bytes, 0));
    let mut commit = Commit::default();
    commit.put(Space::Meta, NEXT_TABLE_KEY.to_vec(), key(&[next + RESERVED_TABLES]));
    catalog.commit(commit)?;
    Ok(next)
}

fn memory_tiers(options: &StoreOptions) -> Result<Vec<Arc<dyn MemoryTier>>> {
    let dram = DramTier::new(TierId(0), Account::new("dram", options.dram_budget_bytes));
    let mut tiers: Vec<Arc<dyn MemoryTier>> = vec![Arc::new(dram)];
    if let Some(nvm) = &options.nvm {
        let account = Account::new("nvm", nvm.capacity_bytes);
        tiers.push(Arc::new(NvmTier::open(TierId(1), "nvm", &nvm.backing, nvm.capacity_bytes, nvm.limiter, account)?));
    }
    Ok(tiers)
}

/// Loads every table; a table that cannot be loaded has its error.
fn load_tables(core: &Core) -> Result<Vec<(TableId, Result<Arc<Table>>)>> {
    let mut records = Vec::new();
    core.catalog.snapshot()?.scan_all(Space::Tables, &[], |k, v| {
        let record = v.map_err(|fault| fault.error(core.catalog.path()));
        records.push((TableId(key_part(k, 0)), record.and_then(|v| decode::<TableRecord>(v, "a table"))));
        Ok(true)
    })?;
    let load = |(id, record): (_, Result<_>)| (id, record.and_then(|record| load_table(core, id, record)));
    Ok(records.into_iter().map(load).collect())
}

fn load_table(core: &Core, id: TableId, record: TableRecord) -> Result<Arc<Table>> {
    let definition = record.definition()?;
    let schema = &definition.schema;
    let mut deletions = load_deletions(core, Space::Deletions, id)?;
    let mut chunks = Vec::new();
    let mut constants = ConstantMarks::default();
    core.catalog.scan(Space::Chunks, &key(&[id.0]), |k, v| {
        let record: ChunkRecord = decode(v, "a chunk")?;
        let path = core.home.absolute(&record.file);
        let known = record.marks.iter().map(|(mark, all)| constants.get(*mark, *all)).collect();
        let number = ChunkId(key_part(k, 1));
        let ChunkRecord { file_bytes: bytes, rows, place, .. } = record;
        let columns = record.columns.clone();
        let segments = Segment::of_file(columns, record.into_homes());
        let file = Chunk::new(id, number, rows, Arc::clone(schema), WrittenFile { path, bytes, segments });
        let chunk = file.with_definition(schema, &definition.columns).with_added_marks(known);
        core.home.adopt_file(&chunk.path, chunk.file_bytes);
        let deletions = deletions.remove(&number.0);
        chunks.push(ChunkEntry { chunk: Arc::new(chunk), deletions, place });
        Ok(true)
    })?;
    chunks.sort_unstable_by_key(|entry| entry.place);
    let mut deletions = load_deletions(core, Space::DeltaDeletions, id)?;
    let mut delta = Vec::new();
    let now = core.clock.now_us();
    core.catalog.scan(Space::Delta, &key(&[id.0]), |k, v| {
        for batch in decode_batches(v)?.1 {
            let sequence = key_part(k, 1);
            // Columns decoded from one message share its memory, and each would be charged for all of it.
            let batch = codec::normalize(&batch)?;
            let entry = Arc::new(DeltaEntry::restored(&core.delta, sequence, batch, now));
            delta.push(DeltaRows { entry, deletions: deletions.remove(&sequence) });
        }
        Ok(true)
    })?;
    let places = chunks.iter().map(|c| c.place);
    let statistics = TableStatistics::stored(&definition, &core.catalog, id, places);
    let rules = core.catalog.get(Space::Rules, &key(&[id.0]))?;
    let rules = rules.map(|bytes| decode::<Rules>(&bytes, "placement rules")).transpose()?.unwrap_or_default();
    Ok(Arc::new(Table::new(id, definition, chunks, statistics, delta, rules)))
}

/// Deleted rows of a table's chunks or delta entries, by number.
fn load_deletions(core: &Core, space: Space, table: TableId) -> Result<HashMap<u64, Arc<RoaringBitmap>>> {
    let mut found = HashMap::new();
    core.catalog.scan(space, &key(&[table.0]), |k, v| {
        found.insert(key_part(k, 1), Arc::new(decode_rows(v)?));
        Ok(true)
    })?;
    Ok(found)
}

/// Writes the descriptions that are missing or old, and removes those of dropped tables.
fn refresh_descriptions<'a>(core: &Core, tables: impl Iterator<Item = &'a Arc<Table>>) -> Result<()> {
    let mut known = HashSet::new();
    for table in tables {
        core.describe(table);
        known.insert(table.id());
    }
    for found in core.descriptions.list()? {
        if !known.contains(&found.id) {
            core.descriptions.remove(found.id);
        }
    }
    Ok(())
}

/// Removes chunk files that no table refers to; logs damaged and foreign files.
fn remove_orphans<'a>(core: &Core, tables: impl Iterator<Item = &'a Arc<Table>>) -> Result<()> {
    let files = core.home.list()?;
    let sizes: HashMap<&Path, u64> = files.iter().map(|file| (file.path.as_path(), file.bytes)).collect();
    let mut known = HashSet::new();
    for table in tables {
        for entry in table.version().chunks.iter() {
            let chunk = &entry.chunk;
            known.insert(chunk.path.clone());
            let bytes = sizes.get(chunk.path.as_path()).copied();
            if bytes != Some(chunk.file_bytes) {
                let found = bytes.map_or_else(|| "no file".to_owned(), |bytes| format!("{bytes} bytes"));
                tracing::error!(
                    "{} is damaged: expected {} bytes, found {found}. Statements that read chunk {} of table {} from it will fail; \
                     restore the file or load the table again",
                    chunk.path.display(),
                    chunk.file_bytes,
                    chunk.id.0,
                    table.name()
                );
            }
        }
    }
    for file in files.iter().filter(|file| !known.contains(&file.path)) {
        let path = file.path.display();
        let bytes = file.bytes;
        if !file.unfinished && file.chunk.is_none() {
            tracing::warn!(%path, "ignored a file that Terrace did not write");
        } else if file.is_fresh {
            tracing::info!(%path, bytes, "left a young file that no table refers to; a later start removes it");
        } else {
            tracing::info!(%path, bytes, "removed a file that an interrupted write left");
            core.home.remove(&file.path)?;
        }
    }
    Ok(())
}
