#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use super::*;

/// The message of the panic of `work`; `None` when it does not panic.
fn panic_message(work: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(work)).err()?;
    Some(payload.downcast_ref::<String>().cloned().unwrap_or_default())
}

fn epoch() -> OrderedMutex<u64> {
    OrderedMutex::new(Rank::Epoch, 0)
}

fn heat() -> OrderedRwLock<u64> {
    OrderedRwLock::new(Rank::Heat, 0)
}

#[test]
fn later_ranks_are_taken_under_earlier_ones_and_may_be_left_in_any_order() {
    let epoch = epoch();
    let heat = heat();
    let leaf = OrderedMutex::new(Rank::Leaf, 0);
    let first = epoch.lock();
    let second = heat.read();
    let third = leaf.lock();
    drop(first);
    drop(third);
    assert_eq!(*second, 0);
    drop(leaf.try_lock_for(Duration::from_millis(1)).unwrap());
    drop(second);
    *heat.write() += 1;
    assert_eq!((*epoch.lock(), *heat.read()), (0, 1));
}

#[test]
fn an_earlier_rank_under_a_later_one_panics_with_both_before_it_waits() {
    let epoch = epoch();
    let heat = heat();
    for write in [false, true] {
        let message = panic_message(|| match write {
            true => {
                let _held = heat.write();
                drop(epoch.lock());
            }
            false => {
                let _held = heat.read();
                drop(epoch.try_lock_for(Duration::from_secs(600)));
            }
        });
        assert_eq!(message.as_deref(), Some("a lock of rank Epoch is taken while one of rank Heat is held"));
    }
    // The panic released what was held.
    drop(epoch.lock());
    drop(heat.write());
}

#[test]
fn ranks_have_their_names() {
    let positions: Vec<usize> = check::ALL.into_iter().map(|rank| rank as usize).collect();
    assert_eq!(positions, (0..=Rank::Leaf as usize).collect::<Vec<_>>());
}

#[test]
fn one_rank_is_not_taken_twice() {
    let one = OrderedMutex::new(Rank::Leaf, ());
    let other = OrderedMutex::new(Rank::Leaf, ());
    let heat = heat();
    assert!(panic_message(|| drop((one.lock(), other.lock()))).is_some());
    assert!(panic_message(|| drop((one.lock(), one.lock()))).is_some(), "it would wait for itself");
    assert!(panic_message(|| drop((heat.read(), heat.read()))).is_some());
    drop(one.lock());
    drop(other.lock());
    drop(heat.read());
}

#[test]
fn trying_a_lock_that_is_taken_breaks_nothing_and_getting_it_counts() {
    let epoch = epoch();
    let heat = heat();
    let held = epoch.lock();
    assert!(epoch.try_lock().is_none());
    drop(held);
    let message = panic_message(|| {
        let _held = heat.read();
        drop(epoch.try_lock());
    });
    assert!(message.is_some());
    assert!(epoch.try_lock().is_some());
}

#[test]
fn every_thread_has_its_own_ranks() {
    let epoch = epoch();
    let heat = heat();
    let _held = heat.read();
    std::thread::scope(|scope| scope.spawn(|| *epoch.lock() += 1).join().unwrap());
    assert!(panic_message(|| drop(epoch.lock())).is_some());
}

#[test]
fn a_condition_gives_up_the_lock_and_takes_it_again() {
    let queue = OrderedMutex::new(Rank::Leaf, Vec::new());
    let wake = Condvar::new();
    let (began, begins) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut items = queue.lock();
            began.send(()).unwrap();
            while items.is_empty() {
                items.wait(&wake);
            }
            items.clear();
        });
        begins.recv().unwrap();
        queue.lock().push(1);
        wake.notify_all();
    });
    let mut items = queue.lock();
    assert!(items.is_empty() && items.wait_for(&wake, Duration::from_millis(1)).timed_out());
}
