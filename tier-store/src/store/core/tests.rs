//! Upkeep beside statements that fill the memory for reads, and options that reach the I/O engine.

#![allow(clippy::unwrap_used)]

use terrace_model::clock::ManualClock;
use terrace_storage::io::Depth;

use super::super::tests::{definition, rows};
use super::super::{Store, StoreOptions};
use super::*;

/// A manual clock on which nobody sleeps for long: a wait without an end fails.
#[derive(Debug, Default)]
struct ShortClock(ManualClock);

impl Clock for ShortClock {
    fn now_us(&self) -> u64 {
        self.0.now_us()
    }

    fn unix_us(&self) -> u64 {
        self.0.unix_us()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
        assert!(self.now_us() < 10_000_000, "somebody waits for ever");
    }
}

#[test]
fn upkeep_waits_a_second_for_memory_and_then_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ShortClock::default());
    let options = StoreOptions { clock: Arc::<ShortClock>::clone(&clock), ..StoreOptions::new(dir.path()) };
    let store = Store::open(options).unwrap();
    let mut definition = definition("t");
    definition.options.admission = ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    store.insert(&table, &[rows(0..1_000)]).unwrap();
    store.seal(&table).unwrap();
    let chunk = Arc::clone(&table.version().chunks.first().unwrap().chunk);
    let waited_us = |admission| {
        let start_us = clock.now_us();
        let columns = store.core().columns(&chunk, &[0, 1], admission).unwrap();
        assert_eq!(columns, rows(0..1_000).columns());
        clock.now_us() - start_us
    };
    assert_eq!(waited_us(Admission::Upkeep), 0, "there is room");
    let account = store.io_account();
    let of_statements = account.charge_always(account.limit_bytes());
    assert_eq!(waited_us(Admission::Upkeep), 1_000_000, "it waits for the statements, but not for ever");
    assert_eq!(waited_us(Admission::Guaranteed), 0, "statements wait for nobody");
    drop(of_statements);
    assert_eq!(waited_us(Admission::Upkeep), 0, "there is room again");
}

#[test]
fn the_bytes_beside_points_are_an_option() {
    let beside_points = |bytes: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path());
        options.io_beside_points_bytes = bytes.unwrap_or(options.io_beside_points_bytes);
        Store::open(options).unwrap().io().depth().beside_points()
    };
    assert_eq!((beside_points(None), beside_points(Some(2 << 20))), (Depth::BESIDE_POINTS, 2 << 20));
}
