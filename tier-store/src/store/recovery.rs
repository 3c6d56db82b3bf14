//! Opening a data directory: lock, catalog, tables, orphans.
//!
//! Nothing but the catalog is read: chunks are queryable from their home at once, bounds load at first use. Files in the
//! SSD folder that no table knows are left over from a crash if they carry our names, and removed; any other file is
//! named in the log and left alone. A chunk file that is missing or has another size is named; only statements that
//! read it fail.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};
use roaring::RoaringBitmap;

use super::core::Core;
use super::options::StoreOptions;
use crate::catalog::records::{TableRecord, decode, decode_batches, decode_rows};
use crate::catalog::{Catalog, ChunkRecord, Commit, Space, key, key_part};
use crate::error::{Error, Result};
use crate::heat::AccessTotals;
use crate::io::best_engine;
use crate::table::delta::DeltaEntry;
use crate::table::{Chunk, ChunkEntry, ChunkId, DeltaRows, Segment, Table, TableId, TableName, TableStatistics};
use crate::tier::dram::DramTier;
use crate::tier::nvm::NvmTier;
use crate::tier::ssd::SsdTier;
use crate::tier::{Account, MemoryTier, TierId};

const CATALOG_FILE: &str = "catalog.redb";
const HOLDER_FILE: &str = "server.pid";
const SSD_FOLDER: &str = "ssd";
const NEXT_TABLE_KEY: &[u8] = b"next_table";
/// Table ids are reserved in the catalog by this many, so that none is used twice.
const RESERVED_TABLES: u64 = 1 << 20;

pub(super) fn open(options: StoreOptions) -> Result<Core> {
    let dir = options.data_dir.as_path();
    let ssd_dir = dir.join(SSD_FOLDER);
    std::fs::create_dir_all(&ssd_dir).map_err(|e| Error::io("create", &ssd_dir, &e))?;
    let catalog = open_catalog(dir, options.catalog_cache_bytes)?;
    let io = options.io.clone().unwrap_or_else(best_engine);
    let io_account = Account::new("cold reads", options.io_budget_bytes);
    let ssd_account = Account::new("ssd", options.ssd_budget_bytes.unwrap_or(u64::MAX));
    let ssd = Arc::new(SsdTier::new(ssd_dir, io, Arc::clone(&options.clock), io_account, ssd_account)?);
    let mut core = Core {
        data_dir: dir.to_owned(),
        memory_tiers: memory_tiers(&options)?,
        delta: Account::new("the delta", options.delta_budget_bytes),
        access_totals: Arc::new(AccessTotals::default()),
        clock: Arc::clone(&options.clock),
        seal: options.seal,
        tables: RwLock::new(BTreeMap::new()),
        publications: Mutex::default(),
        ddl: Mutex::new(()),
        next_table: AtomicU64::new(reserve_table_ids(&catalog)?),
        schema_version: AtomicU64::new(0),
        catalog,
        ssd,
    };
    let tables = load_tables(&core)?;
    sweep(&core, tables.values())?;
    core.tables = RwLock::new(tables);
    Ok(core)
}

/// Opens the catalog, whose lock is the lock of the directory; the holder's process id is kept beside it for the error.
fn open_catalog(dir: &Path, cache_bytes: usize) -> Result<Arc<Catalog>> {
    let holder_file = dir.join(HOLDER_FILE);
    match Catalog::open(&dir.join(CATALOG_FILE), cache_bytes) {
        Ok(catalog) => {
            let id = std::process::id().to_string();
            std::fs::write(&holder_file, id).map_err(|e| Error::io("write", &holder_file, &e))?;
            Ok(Arc::new(catalog))
        }
        Err(Error::Locked { path, holder }) => {
            let holder = std::fs::read_to_string(&holder_file).map_or(holder, |id| id.trim().to_owned());
            Err(Error::Locked { path, holder })
        }
        Err(error) => Err(error),
    }
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

fn load_tables(core: &Core) -> Result<BTreeMap<TableName, Arc<Table>>> {
    let mut records = Vec::new();
    core.catalog.scan(Space::Tables, &[], |k, v| {
        records.push((TableId(key_part(k, 0)), decode::<TableRecord>(v, "a table")?));
        Ok(true)
    })?;
    let load = |(id, record)| load_table(core, id, record).map(|table| (table.name().clone(), table));
    records.into_iter().map(load).collect()
}

fn load_table(core: &Core, id: TableId, record: TableRecord) -> Result<Arc<Table>> {
    let definition = record.definition()?;
    let schema = &definition.schema;
    let mut deletions = load_deletions(core, Space::Deletions, id)?;
    let mut chunks = Vec::new();
    core.catalog.scan(Space::Chunks, &key(&[id.0]), |k, v| {
        let record: ChunkRecord = decode(v, "a chunk")?;
        let path = core.ssd.dir().join(&record.file);
        let segments = Segment::of_file(record.columns, record.homes);
        let number = ChunkId(key_part(k, 1));
        let file = Chunk::new(id, number, record.rows, Arc::clone(schema), path, record.file_bytes, segments);
        let chunk = file.under(schema, &definition.columns);
        core.ssd.adopt_file(&chunk.path, chunk.file_bytes);
        let deletions = deletions.remove(&number.0);
        chunks.push(ChunkEntry { chunk: Arc::new(chunk), deletions, place: record.place });
        Ok(true)
    })?;
    chunks.sort_unstable_by_key(|entry| entry.place);
    let mut deletions = load_deletions(core, Space::DeltaDeletions, id)?;
    let mut delta = Vec::new();
    let now = core.clock.now_us();
    core.catalog.scan(Space::Delta, &key(&[id.0]), |k, v| {
        for batch in decode_batches(v)?.1 {
            let sequence = key_part(k, 1);
            let entry = Arc::new(DeltaEntry::restored(&core.delta, sequence, batch, now));
            delta.push(DeltaRows { entry, deletions: deletions.remove(&sequence) });
        }
        Ok(true)
    })?;
    let places = chunks.iter().map(|c| c.place);
    let statistics = TableStatistics::stored(&definition, &core.catalog, id, places);
    Ok(Arc::new(Table::new(id, definition, chunks, statistics, delta)))
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

/// Removes files of ours that no table knows; names damaged and foreign ones.
fn sweep<'a>(core: &Core, tables: impl Iterator<Item = &'a Arc<Table>>) -> Result<()> {
    let mut known = HashSet::new();
    for table in tables {
        for entry in table.version().chunks.iter() {
            let chunk = &entry.chunk;
            known.insert(chunk.path.clone());
            let found = std::fs::metadata(&chunk.path).map(|m| m.len());
            if found.as_ref().ok() != Some(&chunk.file_bytes) {
                let found = found.map_or_else(|e| e.to_string(), |len| format!("{len} bytes"));
                tracing::error!(
                    "{} is damaged: {} bytes expected, found: {found}. Statements that read chunk {} of table {} from it will fail; \
                     restore the file or load the table again",
                    chunk.path.display(),
                    chunk.file_bytes,
                    chunk.id.0,
                    table.name()
                );
            }
        }
    }
    for file in core.ssd.list()? {
        let ours = file.unfinished || file.chunk.is_some();
        match (known.contains(&file.path), ours) {
            (true, _) => {}
            (false, true) => {
                tracing::info!(path = %file.path.display(), bytes = file.bytes, "removed: left over from an interrupted write");
                core.ssd.remove(&file.path)?;
            }
            (false, false) => tracing::warn!(path = %file.path.display(), "not a file of Terrace; left alone"),
        }
    }
    Ok(())
}
