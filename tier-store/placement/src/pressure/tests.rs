#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use terrace_model::ChunkId;
use terrace_storage::table::{NewRule, RuleKind, RuleRows, Rules};

use super::*;
use crate::testing::{COLUMN_BYTES, FakeHost};
use crate::tiering::Tiering;
use crate::{MoveRecord, MoveStatus};

const DRAM: TierId = TierId(0);

/// Four chunks in DRAM: 0 was read four epochs ago, 3 in the last one.
fn aged() -> (Arc<FakeHost>, Tiering) {
    let host = FakeHost::new(4 * COLUMN_BYTES, Arc::default()).with_usual_costs();
    let tiering = host.tiering();
    for chunk in 0..4 {
        host.read(chunk, 20);
        tiering.run_epoch(EpochRequest::now("test")).unwrap();
    }
    assert_eq!(host.resident(), [0, 1, 2, 3]);
    (host, tiering)
}

fn relieve(tiering: &Tiering, need: Need) -> Vec<MoveRecord> {
    tiering.shared.relieve(DRAM, need).unwrap().map_or_else(Vec::new, |report| {
        assert_eq!(report.epoch.trigger, TRIGGER);
        assert_eq!(report.epoch.moves, report.moves.len() as u32);
        report.moves
    })
}

#[test]
fn the_cost_is_what_has_to_be_written_and_then_size_by_last_use() {
    assert_eq!(eviction_cost(0, 1000, 0.5), 5.0);
    assert_eq!(eviction_cost(1000, 1000, 0.5), 1005.0);
    assert!(eviction_cost(0, 4096, 1.0) < eviction_cost(4096, 4096, 0.001), "to write is dearest");
    assert!(eviction_cost(0, 1000, 0.1) < eviction_cost(0, 1000, 0.2));
    assert!(eviction_cost(0, 1000, 0.2) < eviction_cost(0, 5000, 0.2));
}

#[test]
fn a_lowered_budget_drops_what_was_used_longest_ago_at_once_and_says_so() {
    let (host, tiering) = aged();
    assert!(relieve(&tiering, Need::Budget).is_empty(), "nothing is over");
    tiering.set_budget("dram", 2 * COLUMN_BYTES + 100).unwrap();
    let reads = host.home.reads.load(Ordering::Relaxed);
    let moves = relieve(&tiering, Need::Budget);
    assert_eq!(host.resident(), [2, 3]);
    assert_eq!(host.home.reads.load(Ordering::Relaxed), reads, "nothing is read or written");
    assert_eq!(host.tiers[0].account().used_bytes(), 2 * COLUMN_BYTES);
    assert_eq!(moves.iter().map(|record| record.chunk).collect::<Vec<_>>(), [0, 1]);
    assert!(moves.iter().all(|record| record.status == MoveStatus::Done && record.benefit_us < 0.0));
    assert_eq!(
        moves[0].reason,
        "memory pressure: dram is 15.9 KiB over its budget of 16.1 KiB; its eviction cost 20.5 is among the lowest: no \
         bytes to write, 0.01 of 8.0 KiB by its position in the order of last use, 1 of 4"
    );
    let unweighed = "no price and no second tier was weighed, only last use and size";
    let conditions: Vec<_> = moves.iter().map(|record| record.condition.as_str()).collect();
    assert_eq!(conditions, [15.9, 7.9].map(|more| format!("stays when dram has {more} KiB more; {unweighed}")));
    assert!(moves.iter().all(|record| record.price_ns_per_byte.is_none() && record.runner_up.is_none()));
    let saved = host.saved.lock().epochs.last().unwrap().clone();
    assert_eq!((saved.epoch.id, saved.moves.len()), (5, 2));
    assert_eq!(saved.epoch.prices[0].planned_bytes, 2 * COLUMN_BYTES);
    assert!(relieve(&tiering, Need::Budget).is_empty());
    assert_eq!(tiering.run_epoch(EpochRequest::now("test")).unwrap().epoch.id, 6);
}

#[test]
fn the_condition_of_a_victim_is_what_it_would_have_taken() {
    let left = |more: u64| {
        let (host, tiering) = aged();
        tiering.set_budget("dram", 2 * COLUMN_BYTES + 100 + more).unwrap();
        relieve(&tiering, Need::Budget);
        host.resident()
    };
    // 7.9 KiB as in the sentence above, in bytes.
    assert_eq!([left(COLUMN_BYTES - 101), left(COLUMN_BYTES - 100)], [vec![2, 3], vec![1, 2, 3]]);
}

#[test]
fn what_readers_hold_is_not_waited_for_and_frees_itself() {
    let (host, tiering) = aged();
    let reader = host.chunks[0].chunk.segments[0].resident.load_full();
    tiering.set_budget("dram", 2 * COLUMN_BYTES).unwrap();
    assert_eq!(relieve(&tiering, Need::Budget).len(), 2);
    assert_eq!(host.tiers[0].account().used_bytes(), 3 * COLUMN_BYTES, "the reader has it still");
    assert!(relieve(&tiering, Need::Budget).is_empty(), "nothing more leaves for it");
    drop(reader);
    assert_eq!((host.tiers[0].account().used_bytes(), host.resident()), (2 * COLUMN_BYTES, vec![2, 3]));
}

#[test]
fn small_ones_stay_where_a_large_one_frees_enough() {
    let (host, tiering) = aged();
    // A word column has few different values: it is far smaller, and costs less though it was read last.
    host.tiers[0].account().set_limit_bytes(1 << 20);
    for entry in host.chunks.iter().take(3) {
        (0..50).for_each(|_| entry.chunk.segments[1].counters.record(terrace_model::Pattern::Sequential, 1000));
    }
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    let words = || host.chunks.iter().filter(|entry| entry.chunk.segments[1].resident.load().is_some()).count();
    assert_eq!(words(), 3);
    tiering.set_budget("dram", host.tiers[0].account().used_bytes() - 5000).unwrap();
    let moves = relieve(&tiering, Need::Budget);
    assert_eq!(moves.iter().map(|record| (record.chunk, record.column.as_str())).collect::<Vec<_>>(), [(0, "id")]);
    assert_eq!(words(), 3);
}

#[test]
fn pins_modes_and_freezes_hold_under_pressure() {
    let (host, tiering) = aged();
    let rows = RuleRows::Chunks([0, 1].map(ChunkId).into_iter().collect());
    let pin = NewRule {
        kind: RuleKind::Pin,
        tier: "dram".into(),
        columns: vec![terrace_model::ColumnId(0)],
        rows,
        form: None,
    };
    *host.rules.lock() = Arc::new(Rules::default().with(pin, 0).0);
    tiering.set_budget("dram", 3 * COLUMN_BYTES).unwrap();
    *host.mode.lock() = TieringMode::Advise;
    assert!(relieve(&tiering, Need::Budget).is_empty());
    *host.mode.lock() = TieringMode::Auto;
    for mode in [TieringMode::Advise, TieringMode::Off] {
        tiering.set_first_mode(mode);
        assert!(relieve(&tiering, Need::Budget).is_empty(), "{mode:?}");
    }
    tiering.set_first_mode(TieringMode::Auto);
    tiering.freeze().unwrap();
    assert!(relieve(&tiering, Need::Budget).is_empty());
    tiering.unfreeze().unwrap();
    assert_eq!(relieve(&tiering, Need::Budget).iter().map(|record| record.chunk).collect::<Vec<_>>(), [2]);
    assert_eq!(host.resident(), [0, 1, 3]);
}

#[test]
fn a_load_takes_only_what_nobody_read_for_long() {
    let (host, tiering) = aged();
    assert!(relieve(&tiering, Need::Load(COLUMN_BYTES)).is_empty(), "all of it was read within four epochs");
    host.read(3, 5);
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    let moves = relieve(&tiering, Need::Load(3 * COLUMN_BYTES));
    assert_eq!(moves.iter().map(|record| record.chunk).collect::<Vec<_>>(), [0], "0 was read five epochs ago");
    assert!(moves[0].reason.contains("a load needs 24.0 KiB of dram"), "{}", moves[0].reason);
    let condition = &moves[0].condition;
    assert!(
        condition.starts_with("stays when dram has 24.0 KiB more free, or when it was read within the last 4 epochs; "),
        "{condition}"
    );
    let epoch_under_way = tiering.shared.controller.lock_epoch();
    assert!(relieve(&tiering, Need::Load(3 * COLUMN_BYTES)).is_empty(), "an epoch under way decides better");
    drop(epoch_under_way);
}

#[test]
fn statements_get_up_to_half_of_the_budget_and_say_when_it_ends() {
    let (host, tiering) = aged();
    let account = || host.tiers[0].account().clone();
    tiering.yield_memory(100);
    assert_eq!(tiering.pressure().wait(), Some((DRAM, Need::Memory(100))));
    assert!(!account().is_yielding());
    tiering.set_first_mode(TieringMode::Advise);
    assert!(relieve(&tiering, Need::Memory(100)).is_empty() && !account().is_yielding());
    tiering.set_first_mode(TieringMode::Auto);
    let moves = relieve(&tiering, Need::Memory(100));
    assert!(account().is_yielding());
    assert_eq!(moves.iter().map(|record| record.chunk).collect::<Vec<_>>(), [0], "what was read longest ago");
    assert!(
        moves[0].reason.contains("running statements need 100 bytes of memory that dram yields"),
        "{}",
        moves[0].reason
    );
    assert!(
        moves[0].condition.starts_with("stays when running statements need 100 bytes less; "),
        "{}",
        moves[0].condition
    );
    assert_eq!(account().limit_bytes(), 4 * COLUMN_BYTES, "the budget stays");
    assert_eq!(relieve(&tiering, Need::Memory(u64::MAX)).len(), 1);
    assert!(relieve(&tiering, Need::Memory(u64::MAX)).is_empty(), "half of the budget stays");
    host.read(0, 100);
    let promoted = |report: crate::EpochReport| {
        report.moves.into_iter().map(|record| (record.chunk, record.status, record.why)).collect::<Vec<_>>()
    };
    let tried = promoted(tiering.run_epoch(EpochRequest::now("test")).unwrap());
    let refused = "dram takes nothing while running statements need its memory";
    assert!(
        tried.iter().any(|(chunk, status, why)| {
            *chunk == 0 && *status == MoveStatus::Skipped && why.as_deref() == Some(refused)
        }),
        "{tried:?}"
    );
    assert_eq!(host.resident(), [2, 3]);
    tiering.end_yielding();
    tiering.run_epoch(EpochRequest::now("test")).unwrap();
    assert!(host.resident().contains(&0), "{:?}", host.resident());
}

#[test]
fn a_running_loop_makes_room_as_soon_as_the_budget_is_set() {
    let (host, tiering) = aged();
    tiering.start(Duration::from_secs(3600)).unwrap();
    tiering.set_budget("dram", COLUMN_BYTES).unwrap();
    let start = Instant::now();
    while host.tiers[0].account().used_bytes() > COLUMN_BYTES {
        assert!(start.elapsed().as_secs() < 20, "no room was made");
        std::thread::sleep(Duration::from_millis(1));
    }
    tiering.stop();
    assert_eq!(host.resident(), [3]);
    assert_eq!(tiering.metrics().relieved_segments.load(Ordering::Relaxed), 3);
}
