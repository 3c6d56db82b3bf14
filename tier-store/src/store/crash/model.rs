//! The expected content of the store: rows of tables and named objects that were acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::datatypes::Int64Type;
use terrace_model::{FileFormat, Result, TableName};
use terrace_storage::table::{ChunkEntry, DeltaRows, Durability, Sketch, Table, TableDefinition, TableVersion};
use terrace_storage::tier::stored_file::SAMPLE_NAME;

use crate::store::marks::tests::check_known_marks;
use crate::store::{Store, tests};

/// Rows of a table by key; the other column follows from it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// Keys that must be there.
    pub(super) durable: BTreeSet<i64>,
    /// Keys of unsealed rows of a table that does not log its inserts: after an outage all of these are there, or none.
    pub(super) volatile: BTreeSet<i64>,
    pub(super) logs_inserts: bool,
}

impl Rows {
    pub(super) fn all(&self) -> BTreeSet<i64> {
        self.durable.union(&self.volatile).copied().collect()
    }

    pub(super) fn add(&mut self, keys: impl Iterator<Item = i64>) {
        if self.logs_inserts { self.durable.extend(keys) } else { self.volatile.extend(keys) }
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = |keys: &BTreeSet<i64>| {
            let mut ranges: Vec<std::ops::RangeInclusive<i64>> = Vec::new();
            for key in keys {
                match ranges.last_mut() {
                    Some(last) if *last.end() + 1 == *key => *last = *last.start()..=*key,
                    _ => ranges.push(*key..=*key),
                }
            }
            ranges
        };
        write!(f, "{:?}", ranges(&self.durable))?;
        if self.volatile.is_empty() { Ok(()) } else { write!(f, ", volatile {:?}", ranges(&self.volatile)) }
    }
}

/// The whole content at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) tables: BTreeMap<String, Rows>,
    pub(super) objects: BTreeMap<String, String>,
    pub(super) epochs: u64,
}

impl State {
    /// The state as an open store returns it, which does not distinguish volatile rows.
    pub(super) fn as_open_store(&self) -> Self {
        let rows = |(name, rows): (&String, &Rows)| {
            (name.clone(), Rows { durable: rows.all(), volatile: BTreeSet::new(), logs_inserts: rows.logs_inserts })
        };
        Self { tables: self.tables.iter().map(rows).collect(), ..self.clone() }
    }

    /// True when an outage of this state may leave `found`.
    fn allows(&self, found: &State) -> bool {
        let rows = |(mine, other): (&Rows, &Rows)| other.durable == mine.durable || other.durable == mine.all();
        self.objects == found.objects
            // A refused epoch may skip a number.
            && self.epochs <= found.epochs
            && self.tables.keys().eq(found.tables.keys())
            && self.tables.values().zip(found.tables.values()).all(rows)
    }
}

/// The state, and the versions that readers pinned.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) state: State,
    /// Possible states after an outage.
    pub(super) possible: Vec<State>,
    /// Versions that a reader has pinned, with their rows.
    pub(super) pinned: Vec<(Arc<TableVersion>, BTreeSet<i64>)>,
    pub(super) next_key: i64,
}

impl Model {
    /// Updates the model after an operation was acknowledged: `after` is the state, and rows sealed meanwhile are
    /// durable.
    pub(super) fn acknowledge(&mut self, store: &Store, mut after: State) {
        let newest = store.epochs(1).ok().and_then(|epochs| epochs.first().map(|epoch| epoch.id));
        after.epochs = after.epochs.max(newest.unwrap_or(0));
        for (name, rows) in &mut after.tables {
            let delta = store.table(&table_name(name)).map_or_else(|_| Arc::default(), |t| t.version().delta.clone());
            let keys = |rows: &DeltaRows| rows.batch().column(0).as_primitive::<Int64Type>().values().to_vec();
            let open: BTreeSet<i64> = delta.iter().flat_map(keys).collect();
            rows.durable.extend(rows.volatile.iter().filter(|key| !open.contains(key)));
            rows.volatile.retain(|key| open.contains(key));
        }
        self.state = after;
    }

    /// Compares a store that was opened after an outage with the possible states; the error describes the difference.
    pub(super) fn check_recovered(&mut self, store: &Arc<Store>, possible: Vec<State>) -> Result<(), String> {
        self.possible = possible;
        let found = observe(store)?;
        if self.possible.is_empty() {
            self.possible.push(State::default());
        }
        if !self.possible.iter().any(|state| state.allows(&found)) {
            return Err(format!("found {found:?}\n one of {:?} expected", self.possible));
        }
        accounts_agree(store)?;
        self.possible.clear();
        self.state = found;
        Ok(())
    }
}

pub(super) fn table_name(name: &str) -> TableName {
    TableName::new("public", name)
}

/// The table whose files hold packed columns.
const PACKED_TABLE: &str = "plums";

/// Rows of a chunk. Texts of fewer rows than those of [`PACKED_TABLE`] are not packed.
fn chunk_rows(table: &str) -> u32 {
    if table == PACKED_TABLE { 256 } else { 64 }
}

/// An ingest of fewer rows goes to the delta.
pub(super) fn least_ingested_rows(table: &str) -> i64 {
    i64::from(chunk_rows(table) / 8)
}

pub(super) fn definition(name: &str, logs_inserts: bool) -> TableDefinition {
    let mut definition = tests::definition(name);
    definition.options.chunk_rows = chunk_rows(name);
    definition.options.format = (name == PACKED_TABLE).then_some(FileFormat::Packed);
    definition.options.durability = if logs_inserts { Durability::Full } else { Durability::None };
    definition
}

/// Reads the content of a store; an error when it is inconsistent or cannot be read.
pub(super) fn observe(store: &Arc<Store>) -> Result<State, String> {
    let mut state = State::default();
    for table in store.tables() {
        let logs_inserts = table.options().durability == Durability::Full;
        let durable = keys(store, &table.version()).map_err(|e| e.to_string())?;
        bounds_agree(store, &table)?;
        check_known_marks(store, &table.version())?;
        state.tables.insert(table.name().name.clone(), Rows { durable, volatile: BTreeSet::new(), logs_inserts });
    }
    state.objects = store.objects("view").map_err(|e| e.to_string())?.into_iter().collect();
    let newest = store.epochs(1).map_err(|e| e.to_string())?;
    state.epochs = newest.first().map_or(0, |epoch| epoch.id);
    Ok(state)
}

/// The positions of all keys of a version; panics when a row occurs twice or differs from the written one.
pub(super) fn positions(store: &Store, version: &TableVersion) -> Result<BTreeMap<i64, u64>> {
    let live = version.live_positions();
    let mut found = BTreeMap::new();
    for (batch, item) in tests::items(store, version)?.iter().zip(0..) {
        let keys = batch.column(0).as_primitive::<Int64Type>().values();
        let texts = batch.column(1).as_string_view();
        for ((key, text), row) in keys.iter().zip(texts).zip(0..) {
            let position = TableVersion::position(item, row);
            if live.contains(position) {
                assert!(found.insert(*key, position).is_none(), "row {key} occurs twice");
                assert_eq!(text, tests::text(*key).as_deref(), "row {key} has a wrong text");
            }
        }
    }
    Ok(found)
}

/// All keys of a version.
pub(super) fn keys(store: &Store, version: &TableVersion) -> Result<BTreeSet<i64>> {
    Ok(positions(store, version)?.into_keys().collect())
}

/// Checks that bounds and sketch of the keys match the chunks.
fn bounds_agree(store: &Store, table: &Table) -> Result<(), String> {
    let version = table.version();
    if version.chunks.is_empty() {
        return Ok(());
    }
    let bounds = version.statistics.column(0).map_err(|e| e.to_string())?;
    let items = tests::items(store, &version).map_err(|e| e.to_string())?;
    for (number, batch) in items.iter().take(version.chunks.len()).enumerate() {
        let keys = batch.column(0).as_primitive::<Int64Type>().values();
        let min = bounds.min.as_primitive::<Int64Type>();
        let max = bounds.max.as_primitive::<Int64Type>();
        if (keys.iter().min(), keys.iter().max()) != (Some(&min.value(number)), Some(&max.value(number))) {
            return Err(format!("bounds of chunk {number} of {} are not those of its rows", table.name()));
        }
    }
    let values = Sketch::from_arrays(items.iter().take(version.chunks.len()).map(|batch| batch.column(0)));
    match version.statistics.sketch(0).map_err(|e| e.to_string())? == values.as_ref() {
        true => Ok(()),
        false => Err(format!("the sketch of {} is not that of its rows", table.name())),
    }
}

/// Checks that accounts match the stored bytes, and that every file belongs to a table.
pub(super) fn accounts_agree(store: &Store) -> Result<(), String> {
    let versions: Vec<Arc<TableVersion>> = store.tables().iter().map(|table| table.version()).collect();
    let chunks: Vec<&ChunkEntry> = versions.iter().flat_map(|version| version.chunks.iter()).collect();
    let delta: u64 = versions.iter().map(|version| version.delta_bytes()).sum();
    let known: BTreeSet<_> = chunks.iter().map(|entry| entry.chunk.path.clone()).collect();
    let files = store.home().list().map_err(|e| e.to_string())?.into_iter().map(|file| file.path);
    // A scratch file that calibration could not delete on a failing disk is removed by the next start.
    let files: BTreeSet<_> = files.filter(|path| !path.ends_with(SAMPLE_NAME)).collect();
    let stored: u64 = chunks.iter().map(|entry| entry.chunk.file_bytes).sum();
    let resident = |tier: &dyn terrace_storage::tier::MemoryTier| -> u64 {
        let copies = chunks.iter().flat_map(|entry| entry.chunk.segments.iter()).filter_map(|s| s.resident.load_full());
        copies.filter(|copy| copy.tier.id() == tier.id()).map(|copy| copy.bytes.charged_bytes).sum()
    };
    let mut figures = vec![
        ("bytes of the deltas", store.delta_account().used_bytes(), delta),
        ("bytes of the files", store.home().account().used_bytes(), stored),
        ("bytes of cold reads", store.io_account().used_bytes(), 0),
    ];
    figures.extend(
        store.memory_tiers().iter().map(|t| ("bytes of a tier", t.account().used_bytes(), resident(t.as_ref()))),
    );
    match figures.iter().find(|(_, charged, there)| charged != there) {
        Some((what, charged, there)) => Err(format!("{what}: {charged} charged, {there} there")),
        None if files != known => Err(format!("files {files:?}, known {known:?}")),
        None => Ok(()),
    }
}
