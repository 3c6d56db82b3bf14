//! Disks that fail while they have power: a statement gets a typed error, nothing acknowledged is lost, everything else
//! continues, and charges are released.

use std::path::{Path, PathBuf};

use terrace_model::Error;
use terrace_placement::{Order, Scope};
use terrace_storage::io::FileSystem;
use terrace_storage::io::files::DiskFaults;

use super::model::{State, accounts_agree, definition, keys, observe, table_name};
use super::workload::Operation;
use super::{CRASHES_PER_SEED, DATA_DIR, Machine, crashes, options, run_seeds, template};
use crate::store::tests::rows;
use crate::store::{Store, StoreOptions};
use std::sync::Arc;
use std::time::Duration;

/// Checks the store after an operation failed on chunk files: the error names the failure and the path, and the content
/// is unchanged.
pub(super) fn check_failure(machine: &Machine, store: &Arc<Store>, operation: &Operation, error: &Error) {
    let seed = machine.seed;
    match (error, &machine.faults) {
        (Error::Io { path, errno: Some(libc::EIO | libc::ENOSPC), .. }, Some(_)) => {
            assert!(path.starts_with(DATA_DIR), "seed {seed}: {operation:?}: {error}");
        }
        // Readers use the copies that would have to be dropped.
        (Error::BudgetExceeded { .. }, _) => {}
        _ => panic!("seed {seed}: {operation:?}: {error}"),
    }
    machine.clear_faults();
    check_unchanged(machine, store);
    machine.disk.set_faults(machine.faults.clone().unwrap_or_default());
}

/// Checks the store after the catalog failed: tables can be read (bounds that were not loaded before stay unknown), and
/// nothing can be written until the catalog is opened again.
pub(super) fn check_refusal(machine: &Machine, store: &Arc<Store>) {
    let seed = machine.seed;
    assert!(machine.faults.is_some(), "seed {seed}: the catalog failed on a healthy disk");
    machine.clear_faults();
    for table in store.tables() {
        let found = keys(store, &table.version()).unwrap();
        let expected = machine
            .model
            .possible
            .iter()
            .any(|state| state.tables.get(&table.name().name).is_some_and(|rows| rows.all() == found));
        assert!(expected, "seed {seed}: rows of {} after the catalog failed", table.name());
    }
    let refused = [
        store.create_table(definition("late", true)).map(drop),
        store.put_object("view", "late", "").map(drop),
        store.tables().first().map_or(store.put_object("view", "late", ""), |t| store.drop_table(t.name())),
    ];
    for result in refused {
        // CREATE writes a description file first, and the power may be cut there.
        let refused = matches!(result, Err(Error::ReadOnly { .. })) || (result.is_err() && machine.disk.is_dead());
        assert!(refused, "seed {seed}: {result:?}");
    }
}

/// Reopens the catalog on a working disk and checks that the store has a possible state and takes writes again. False
/// when it cannot take writes: the refused operation did reach the disk, or the power was cut.
pub(super) fn check_recovery(machine: &mut Machine, store: &Arc<Store>) -> bool {
    let Err(error) = store.core.reopen_catalog() else {
        let found = match observe(store) {
            Ok(found) => found,
            Err(_) if machine.disk.is_dead() => return false,
            Err(error) => panic!("seed {}: {error}", machine.seed),
        };
        let possible = std::mem::take(&mut machine.model.possible);
        let is_found = |state: &&State| {
            state.epochs <= found.epochs && State { epochs: found.epochs, ..state.as_open_store() } == found
        };
        let state = possible.iter().find(is_found).cloned();
        let state =
            state.unwrap_or_else(|| panic!("seed {}: found {found:?}\n one of {possible:?} expected", machine.seed));
        machine.model.acknowledge(store, state);
        // Skip the check of accounts when they contain more than the tables: versions that readers pinned, or chunk
        // files that a failing disk did not delete.
        let catalog_only = machine.faults.as_ref().is_some_and(|faults| faults.below.is_some());
        if catalog_only
            && machine.model.pinned.is_empty()
            && let Err(error) = accounts_agree(store)
        {
            assert!(machine.disk.is_dead(), "seed {}: {error}", machine.seed);
            machine.model.possible = vec![machine.model.state.clone()];
            return false;
        }
        assert!(store.catalog_failing().is_none());
        machine.disk.set_faults(machine.faults.clone().unwrap_or_default());
        return true;
    };
    let is_there = error.to_string().contains("restart the server");
    assert!(is_there || machine.disk.is_dead(), "seed {}: {error}", machine.seed);
    assert!(machine.disk.is_dead() || matches!(store.put_object("view", "late", ""), Err(Error::ReadOnly { .. })));
    false
}

/// Checks that the open store has the content of the model.
fn check_unchanged(machine: &Machine, store: &Arc<Store>) {
    assert_eq!(observe(store).unwrap(), machine.model.state.as_open_store(), "seed {}", machine.seed);
}

/// Number of crashes in a test with faults: those of four seeds or more.
fn crashes_with_faults() -> u64 {
    (crashes() / 10).max(4 * CRASHES_PER_SEED)
}

fn below(path: &str) -> Option<PathBuf> {
    Some(Path::new(DATA_DIR).join(path))
}

#[test]
fn chunk_files_that_fail_cost_a_statement_and_nothing_else() {
    let faults =
        DiskFaults { error_rate: 0.05, full_rate: 0.05, short_rate: 0.3, below: below("ssd"), ..Default::default() };
    run_seeds(crashes_with_faults(), |_| Some(faults.clone()));
}

#[test]
fn a_catalog_that_fails_refuses_writes_and_comes_back() {
    let faults = |seed| {
        let rate = 0.02 / (1 << (seed % 4)) as f64;
        let below = if seed % 2 == 0 { below("catalog.redb") } else { None };
        DiskFaults { error_rate: rate, full_rate: rate, short_rate: 0.1, below, ..Default::default() }
    };
    run_seeds(crashes_with_faults(), |seed| Some(faults(seed)));
}

#[test]
fn a_full_disk_that_is_freed_needs_no_restart() {
    let machine = Machine::new(5, Some(&template()));
    let store = machine.open().unwrap();
    let table = store.create_table(definition("t", true)).unwrap();
    let volatile = store.create_table(definition("v", false)).unwrap();
    store.insert(&table, &[rows(0..50)]).unwrap();
    store.insert(&volatile, &[rows(0..5)]).unwrap();
    store.put_object("view", "kept", "{}").unwrap();
    let version = table.version();
    machine.disk.set_faults(DiskFaults { full_rate: 1.0, below: below("catalog.redb"), ..DiskFaults::default() });
    let full = |error: Error| {
        assert!(matches!(error, Error::ReadOnly { errno: Some(libc::ENOSPC), .. }), "{error}");
    };
    // Try all operations that move heads on before they are durable.
    full(store.insert(&table, &[rows(50..60)]).unwrap_err());
    full(store.seal(&table).unwrap_err());
    full(store.insert(&volatile, &[rows(5..9)]).unwrap_err());
    let renamed = terrace_storage::table::Alteration::Rename(table_name("renamed"));
    full(store.alter_table(table.name(), &[renamed]).map(drop).unwrap_err());
    full(store.drop_table(volatile.name()).unwrap_err());
    full(store.put_object("view", "late", "{}").unwrap_err());
    full(store.ingest_new(definition("new", true), false).unwrap().finish().map(drop).unwrap_err());
    let failing = store.catalog_failing().unwrap();
    assert!(failing.error.contains("the disk is full"), "{failing:?}");
    assert_eq!(keys(&store, &table.version()).unwrap().len(), 50, "reads go on");

    // Too early, then still full, then free.
    store.core.retry_catalog();
    machine.clock.advance(Duration::from_secs(1));
    store.core.retry_catalog();
    machine.clock.advance(Duration::from_secs(1));
    machine.clear_faults();
    store.core.retry_catalog();
    assert!(store.catalog_failing().is_some(), "the second pause is twice as long");
    machine.clock.advance(Duration::from_secs(60));
    store.core.retry_catalog();
    assert_eq!(store.catalog_failing(), None);

    assert_eq!(store.tables().iter().map(|t| t.name().name.clone()).collect::<Vec<_>>(), ["t", "v"]);
    store.insert(&table, &[rows(100..110)]).unwrap();
    store.insert(&volatile, &[rows(20..25)]).unwrap();
    // Delete rows of an old version, whose seal was refused.
    let mut transaction = store.begin();
    transaction.change(&table, &version, &(0..10).collect(), None).unwrap();
    transaction.commit().unwrap();
    store.seal(&table).unwrap();
    store.seal(&volatile).unwrap();
    let found = observe(&store).unwrap();
    assert_eq!(found.tables["t"].all(), (10..50).chain(100..110).collect::<std::collections::BTreeSet<i64>>());
    assert_eq!(found.tables["v"].all(), (0..5).chain(20..25).collect::<std::collections::BTreeSet<i64>>());
    assert_eq!(found.objects.keys().collect::<Vec<_>>(), ["kept"]);
    drop((version, table, volatile));
    accounts_agree(&store).unwrap();
    store.close().unwrap();
    drop(store);
    let store = machine.open().unwrap();
    assert_eq!(observe(&store).unwrap(), found.as_open_store());
}

#[test]
fn a_folder_that_vanishes_takes_its_rows_and_no_others() {
    let machine = Machine::new(1, Some(&template()));
    let store = machine.open().unwrap();
    for (name, start) in [("apples", 0), ("pears", 1_000)] {
        let mut ingest = store.ingest_new(definition(name, true), false).unwrap();
        ingest.write(rows(start..start + 200)).unwrap();
        ingest.finish().unwrap();
    }
    // Opened again, so that nothing is in memory and no file open.
    drop(store);
    let store = machine.open().unwrap();
    let table = |name| store.table(&table_name(name)).unwrap();
    let apples = table("apples");
    let pears = table("pears");
    let folder = apples.version().chunks[0].chunk.path.parent().unwrap().to_owned();
    machine.disk.vanish(&folder).unwrap();
    let count = |store: &Arc<Store>, name| {
        keys(store, &store.table(&table_name(name)).unwrap().version()).map(|keys| keys.len())
    };
    let gone = count(&store, "apples").unwrap_err();
    assert!(
        matches!(&gone, Error::Io { action: "open", errno: Some(libc::ENOENT), path, .. } if path.ends_with("c0.arrow")),
        "{gone}"
    );
    assert_eq!(count(&store, "pears").unwrap(), 200);
    // New chunks of the same table create the folder again.
    store.insert(&apples, &[rows(300..310)]).unwrap();
    store.seal(&apples).unwrap();
    store.insert(&pears, &[rows(1_300..1_310)]).unwrap();
    assert_eq!(store.io_account().used_bytes(), 0);
    drop((apples, pears, store));
    let store = machine.open().unwrap();
    assert!(count(&store, "apples").is_err());
    assert_eq!(count(&store, "pears").unwrap(), 210);
    let left = machine.disk.list(&folder).unwrap();
    assert_eq!(left.len(), 1, "the chunk sealed afterwards is there");
}

#[test]
fn a_slow_disk_changes_nothing_but_time() {
    let run = |latency| {
        let mut machine = Machine::new(3, Some(&template()));
        machine.faults = Some(DiskFaults { latency, ..Default::default() });
        machine.crash(5);
        let store = Store::open(options(&machine.disk, &machine.clock)).unwrap();
        accounts_agree(&store).unwrap();
        use terrace_model::clock::Clock;
        (observe(&store).unwrap(), machine.clock.now_us())
    };
    let fast = run(std::time::Duration::ZERO);
    let slow = run(std::time::Duration::from_millis(20));
    assert_eq!(fast.0, slow.0);
    assert!(slow.1 > fast.1 + 1_000_000, "{} us against {} us", slow.1, fast.1);
}

#[test]
fn a_disk_that_reads_nothing_pauses_what_comes_from_it_and_memory_is_served() {
    let machine = Machine::new(9, Some(&template()));
    let open = || {
        let mut options = StoreOptions { dram_budget_bytes: 4 << 20, ..options(&machine.disk, &machine.clock) };
        options.tiering.movers = 0;
        Store::open(options)
    };
    let store = open().unwrap();
    for (name, start) in [("apples", 0), ("pears", 1_000)] {
        let mut ingest = store.ingest_new(definition(name, true), false).unwrap();
        ingest.write(rows(start..start + 200)).unwrap();
        ingest.finish().unwrap();
    }
    // Opened again, so that nothing is in memory.
    drop(store);
    let store = open().unwrap();
    let count = |name| keys(&store, &store.table(&table_name(name)).unwrap().version()).map(|keys| keys.len());
    let bring = |name| {
        let table = table_name(name).to_string();
        let scope = Scope::all();
        let report = store.tiering().order(&Order::BringBack { table, scope, tier: "dram".into() }).unwrap();
        let whys = report.moves.iter().filter_map(|m| m.why.clone()).collect::<Vec<_>>();
        (report.epoch.moves_done, whys)
    };
    let failing = || store.tier_infos().into_iter().map(|tier| tier.failing).collect::<Vec<_>>();
    let (moved, whys) = bring("apples");
    assert!(moved >= 8 && whys.is_empty() && failing() == [None, None], "{moved} {whys:?}");
    machine.disk.set_faults(DiskFaults { error_rate: 1.0, below: below("ssd"), ..Default::default() });
    let (done, whys) = bring("pears");
    let paused = |whys: &[String]| whys.iter().filter(|why| why.starts_with("ssd is failing")).count();
    // The device counts as failing after three failures. All columns of the chunk with the third failure are still
    // tried; the other moves are paused.
    assert_eq!((done, whys.len()), (0, moved as usize));
    assert!((1..=moved as usize - 3).contains(&paused(&whys)), "{whys:?}");
    let found = failing().pop().flatten().unwrap();
    assert!(found.error.contains(DATA_DIR) && failing()[0].is_none(), "{found:?}");
    assert_eq!(count("apples").unwrap(), 200, "from memory");
    assert!(matches!(count("pears"), Err(Error::Io { errno: Some(libc::EIO), .. })));
    machine.clear_faults();
    assert_eq!(count("pears").unwrap(), 200, "statements do not wait");
    let warm_up = Order::WarmUp { table: table_name("pears").to_string(), scope: Scope::all() };
    let refused = store.tiering().order(&warm_up).unwrap_err().to_string();
    assert!(refused.starts_with("ssd is failing") && refused.ends_with("tried again in 30 s"), "{refused}");
    machine.clock.advance(std::time::Duration::from_secs(30));
    assert_eq!((bring("pears"), failing()), ((moved, Vec::new()), vec![None, None]));
}
