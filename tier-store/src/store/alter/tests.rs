//! ALTER against a model: after any order of changes every row has the values of the model, also for readers of old
//! versions.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use proptest::prelude::*;
use terrace_model::{Error, Result, TableName};
use terrace_placement::EpochRequest;
use terrace_storage::table::{Alteration, ChunkAdmission, Sketch, Table, TableDefinition, TableVersion};
use terrace_storage::tier::reader::{Admission, ColdRead};
use terrace_test_support::depth::by_depth;

use crate::{Store, StoreOptions};

fn name() -> TableName {
    TableName::new("public", "t")
}

/// A column of one row per value: numbers, or texts made of them.
fn column(data_type: &DataType, values: &[Option<i64>]) -> ArrayRef {
    match data_type {
        DataType::Int64 => Arc::new(Int64Array::from(values.to_vec())),
        _ => Arc::new(StringViewArray::from_iter(values.iter().map(|v| v.map(|v| format!("text of number {v}"))))),
    }
}

fn numbers(array: &ArrayRef) -> Vec<Option<i64>> {
    match array.data_type() {
        DataType::Int64 => array.as_primitive::<Int64Type>().iter().collect(),
        _ => array.as_string_view().iter().map(|v| v.map(|v| v["text of number ".len()..].parse().unwrap())).collect(),
    }
}

/// All rows of a version, in order, from whichever tier has them. Checks the bounds of the chunks too.
fn read(store: &Store, version: &TableVersion) -> Result<Vec<Vec<Option<i64>>>> {
    let mut rows = Vec::new();
    let mut item = 0_u32;
    let live = version.live_positions();
    let mut add = |columns: Vec<ArrayRef>| {
        let columns: Vec<_> = columns.iter().map(numbers).collect();
        let kept = |row: &usize| live.contains(TableVersion::position(item, *row as u32));
        rows.extend((0..columns[0].len()).filter(kept).map(|row| columns.iter().map(|c| c[row]).collect()));
        item += 1;
    };
    let mut sketches = vec![Sketch::default(); version.chunks.first().map_or(0, |c| c.chunk.segments.len())];
    for (position, entry) in version.chunks.iter().enumerate() {
        let chunk = &entry.chunk;
        let mut columns = Vec::new();
        for (at, segment) in chunk.segments.iter().enumerate() {
            let resident = segment.resident.load_full();
            let array = match (&segment.constant, resident) {
                (Some(constant), _) => constant.array(chunk.rows as usize)?,
                (None, Some(resident)) => resident.column.widened()?,
                (None, None) => {
                    let read = store.home().read_columns(chunk, &[at], Admission::Guaranteed)?.map(ColdRead::wait);
                    read.unwrap()?.columns[0].widened()?
                }
            };
            let bounds = version.statistics.column(at)?;
            assert_eq!(bounds.null_counts.value(position), array.null_count() as u64, "nulls of column {at}");
            let min = numbers(&bounds.min)[position];
            let max = numbers(&bounds.max)[position];
            let known = array.null_count() < array.len();
            assert_eq!((min.is_some(), max.is_some()), (known, known), "bounds of column {at}");
            if array.data_type() == &DataType::Int64 {
                assert_eq!(
                    (min, max),
                    (numbers(&array).into_iter().flatten().min(), numbers(&array).into_iter().max().flatten())
                );
            }
            sketches[at].merge(&Sketch::from_arrays([&array]).unwrap());
            columns.push(array);
        }
        RecordBatch::try_new(Arc::clone(&chunk.schema), columns.clone())?;
        add(columns);
    }
    for (at, sketch) in sketches.iter().enumerate() {
        // The sketch is unknown only while the column is being dropped.
        assert!(version.statistics.sketch(at)?.is_none_or(|found| found == sketch), "distinct values of column {at}");
    }
    for rows in version.delta.iter() {
        add(rows.batch().columns().to_vec());
    }
    Ok(rows)
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u8),
    Bulk(u16),
    Delete(u8),
    Seal,
    Epoch,
    Reopen,
    Add { text: bool, value: Option<i8>, not_null: bool },
    Drop(u8),
    Rename(u8),
    DropNotNull(u8),
    RenameTable,
    PinVersion,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..40_u8).prop_map(Step::Insert),
        2 => (1..400_u16).prop_map(Step::Bulk),
        2 => (1..9_u8).prop_map(Step::Delete),
        2 => Just(Step::Seal),
        1 => Just(Step::Epoch),
        1 => Just(Step::Reopen),
        3 => (any::<bool>(), any::<Option<i8>>(), any::<bool>())
            .prop_map(|(text, value, not_null)| Step::Add { text, value, not_null }),
        2 => any::<u8>().prop_map(Step::Drop),
        2 => any::<u8>().prop_map(Step::Rename),
        1 => any::<u8>().prop_map(Step::DropNotNull),
        1 => Just(Step::RenameTable),
        1 => Just(Step::PinVersion),
    ]
}

/// The expected table.
struct Model {
    name: TableName,
    fields: Vec<Field>,
    rows: Vec<Vec<Option<i64>>>,
    next: i64,
}

impl Model {
    fn options(dir: &std::path::Path) -> StoreOptions {
        // Some segments fit in DRAM, some do not.
        StoreOptions { dram_budget_bytes: 6_000, ..StoreOptions::new(dir) }
    }

    fn rows_to_insert(&mut self, count: usize) -> RecordBatch {
        let first = self.next;
        self.next += count as i64;
        let mut columns = Vec::new();
        for (at, field) in self.fields.iter().enumerate() {
            let value = |n: i64| (!field.is_nullable() || (n + at as i64) % 5 != 0).then_some(n * 10 + at as i64);
            columns.push((first..self.next).map(value).collect::<Vec<_>>());
        }
        self.rows.extend((0..count).map(|row| columns.iter().map(|c| c[row]).collect()));
        let arrays = columns.iter().zip(&self.fields).map(|(c, f)| column(f.data_type(), c)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(self.fields.clone())), arrays).unwrap()
    }

    fn at(&self, place: u8) -> usize {
        usize::from(place) % self.fields.len()
    }

    fn alter(&mut self, store: &Store, step: &Step) {
        let fresh = format!("c{}", self.next);
        self.next += 1;
        let changes = match step {
            Step::Add { text, value, not_null } => {
                let data_type = if *text { DataType::Utf8View } else { DataType::Int64 };
                let field = Field::new(&fresh, data_type.clone(), !not_null);
                let value = value.map(i64::from);
                let array = value.map(|value| column(&data_type, &[Some(value)]));
                let change = [Alteration::AddColumn { field: field.clone(), default: None, value: array }];
                let lacking = *not_null && value.is_none() && !self.rows.is_empty();
                match store.alter_table(&self.name, &change) {
                    Err(Error::Invalid(message)) if lacking => assert!(message.contains("DEFAULT"), "{message}"),
                    result => {
                        result.unwrap();
                        assert!(!lacking);
                        self.fields.push(field);
                        self.rows.iter_mut().for_each(|row| row.push(value));
                    }
                }
                return;
            }
            Step::Drop(_) if self.fields.len() == 1 => {
                let last = self.fields[0].name().clone();
                assert!(store.alter_table(&self.name, &[Alteration::DropColumn(last)]).is_err());
                return;
            }
            Step::Drop(place) => {
                let at = self.at(*place);
                self.rows.iter_mut().for_each(|row| {
                    row.remove(at);
                });
                vec![Alteration::DropColumn(self.fields.remove(at).name().clone())]
            }
            Step::Rename(place) => {
                let at = self.at(*place);
                let from = self.fields[at].name().clone();
                self.fields[at].set_name(&fresh);
                vec![Alteration::RenameColumn { from, to: fresh }]
            }
            Step::DropNotNull(place) => {
                let at = self.at(*place);
                self.fields[at].set_nullable(true);
                vec![Alteration::DropNotNull(self.fields[at].name().clone())]
            }
            _ => {
                self.name = TableName::new("public", fresh);
                vec![Alteration::Rename(self.name.clone())]
            }
        };
        let name = store.tables()[0].name().clone();
        store.alter_table(&name, &changes).unwrap();
    }
}

fn run(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(Model::options(dir.path())).unwrap();
    let fields = vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Utf8View, true)];
    let mut definition = TableDefinition::new(name(), Arc::new(Schema::new(fields.clone())));
    definition.options.chunk_rows = 64;
    store.create_table(definition).unwrap();
    let mut model = Model { name: name(), fields, rows: Vec::new(), next: 0 };
    let mut pinned: Vec<PinnedVersion> = Vec::new();
    for step in steps {
        let table = store.table(&model.name).unwrap();
        match step {
            Step::Insert(rows) => {
                let batch = model.rows_to_insert(usize::from(*rows));
                assert_eq!(store.insert(&table, &[batch]).unwrap(), u64::from(*rows));
            }
            Step::Bulk(rows) => {
                // Seal first, so that the ingested chunks come after those of the delta, as in the model.
                store.seal(&table).unwrap();
                let mut ingest = store.ingest(&table);
                ingest.write(model.rows_to_insert(usize::from(*rows))).unwrap();
                ingest.finish().unwrap();
            }
            Step::Delete(every) => {
                let version = table.version();
                let every = usize::from(*every);
                let chosen = |(at, _): &(usize, u64)| at.is_multiple_of(every);
                let deleted = version.live_positions().into_iter().enumerate().filter(chosen).map(|(_, p)| p).collect();
                let mut transaction = store.begin();
                transaction.change(&table, &version, &deleted, None).unwrap();
                transaction.commit().unwrap();
                let mut at = 0_usize..;
                model.rows.retain(|_| !at.next().unwrap().is_multiple_of(every));
            }
            Step::Seal => store.seal(&table).unwrap(),
            Step::Epoch => drop(store.tiering().run_epoch(EpochRequest::now("test")).unwrap()),
            Step::Reopen => {
                check(&store, &pinned);
                pinned.clear();
                drop(table);
                drop(store);
                store = Store::open(Model::options(dir.path())).unwrap();
            }
            Step::PinVersion => {
                let version = table.version();
                pinned.push(PinnedVersion { table: Arc::clone(&table), version, rows: model.rows.clone() });
            }
            altering => model.alter(&store, altering),
        }
        let table = store.table(&model.name).unwrap();
        let names: Vec<_> = table.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
        assert_eq!(names, model.fields);
        assert_eq!(read(&store, &table.version()).unwrap(), model.rows, "after {step:?}");
        assert!((0..names.len()).all(|at| table.version().distinct(at).unwrap().is_some()), "after {step:?}");
    }
    check(&store, &pinned);
}

/// A table, a version of it, and the rows of that version.
struct PinnedVersion {
    table: Arc<Table>,
    version: Arc<TableVersion>,
    rows: Vec<Vec<Option<i64>>>,
}

/// Checks that a reader that has an altered table still reads its old rows, and that a writer of it is refused.
fn check(store: &Store, pinned: &[PinnedVersion]) {
    for PinnedVersion { table, version, rows } in pinned {
        assert_eq!(&read(store, version).unwrap(), rows);
        if !Arc::ptr_eq(&store.tables()[0], table) {
            let empty = RecordBatch::new_empty(Arc::clone(table.schema()));
            let columns = table.schema().fields().iter().map(|f| column(f.data_type(), &[Some(1)])).collect();
            let row = RecordBatch::try_new(empty.schema(), columns).unwrap();
            assert!(matches!(store.insert(table, &[row]), Err(Error::Conflict { .. })));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(by_depth(8, 32)))]

    #[test]
    fn any_order_of_changes_reads_as_the_model(steps in prop::collection::vec(step(), 1..30)) {
        run(&steps);
    }
}

#[test]
fn inserts_and_readers_during_alter_see_one_definition_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
    let mut definition = TableDefinition::new(name(), schema);
    definition.options.chunk_rows = 128;
    definition.options.admission = ChunkAdmission::Ssd;
    store.create_table(definition).unwrap();
    let done = AtomicBool::new(false);
    let next = AtomicI64::new(0);
    let acknowledged = AtomicI64::new(0);
    // Every column of a row holds the same number, or -1 where the row is older than the column.
    let insert = || {
        while !done.load(Ordering::Relaxed) {
            let table = store.table(&name()).unwrap();
            let number = next.fetch_add(1, Ordering::Relaxed);
            let columns = table.schema().fields().iter().map(|f| column(f.data_type(), &[Some(number)])).collect();
            let row = RecordBatch::try_new(Arc::clone(table.schema()), columns).unwrap();
            match store.insert(&table, &[row]) {
                Ok(_) => drop(acknowledged.fetch_add(1, Ordering::Relaxed)),
                Err(Error::Conflict { .. }) => {}
                // On a slow disk rows are inserted faster than chunks are sealed.
                Err(Error::BudgetExceeded { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let scan = || {
        while !done.load(Ordering::Relaxed) {
            let table = store.table(&name()).unwrap();
            for row in read(&store, &table.version()).unwrap() {
                assert_eq!(row.len(), table.schema().fields().len());
                assert!(row[1..].iter().all(|v| *v == row[0] || *v == Some(-1)), "{row:?}");
            }
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(insert);
        threads.spawn(insert);
        threads.spawn(scan);
        for round in 0..30 {
            let field = Field::new(format!("c{round}"), DataType::Int64, false);
            let value = Some(column(&DataType::Int64, &[Some(-1)]));
            let add = Alteration::AddColumn { field, default: None, value };
            store.alter_table(&name(), &[add]).unwrap();
            if round % 3 == 2 {
                store.alter_table(&name(), &[Alteration::DropColumn(format!("c{}", round - 1))]).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let rows = read(&store, &store.table(&name()).unwrap().version()).unwrap().len();
    assert_eq!(rows as i64, acknowledged.load(Ordering::Relaxed));
    drop(store);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(read(&store, &store.table(&name()).unwrap().version()).unwrap().len(), rows);
}

#[test]
fn added_columns_take_no_tier_and_dropped_ones_leave_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let fields = vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int64, false)];
    let definition = TableDefinition::new(name(), Arc::new(Schema::new(fields)));
    let mut ingest = store.ingest_new(definition, false).unwrap();
    let values: Vec<_> = (0..10_000).map(Some).collect();
    let columns = vec![column(&DataType::Int64, &values), column(&DataType::Int64, &values)];
    ingest.write(RecordBatch::try_new(Arc::clone(ingest.table().schema()), columns).unwrap()).unwrap();
    ingest.finish().unwrap();
    let before = store.tier_infos();
    let reader = store.table(&name()).unwrap();
    let field = Field::new("c", DataType::Int64, true);
    let add = Alteration::AddColumn { field, default: None, value: None };
    let table = store.alter_table(&name(), &[add, Alteration::DropColumn("b".into())]).unwrap();
    let dram = store.tier_infos().remove(0);
    assert_eq!((dram.segments, before[0].segments), (1, 2));
    assert_eq!(dram.used_bytes * 2, before[0].used_bytes);
    assert_eq!(store.tiering().run_epoch(EpochRequest::now("test")).unwrap().epoch.segments, 1);
    let files = std::fs::read_dir(dir.path().join("ssd/t1")).unwrap().count();
    assert_eq!((files, read(&store, &reader.version()).unwrap().len()), (1, 10_000));
    store.drop_table(&name()).unwrap();
    drop((reader, table));
    assert!(!dir.path().join("ssd/t1").exists());
}
