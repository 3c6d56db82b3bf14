#![allow(clippy::unwrap_used)]
use super::*;

const LIMIT: u64 = 3_200;

fn pool() -> (Arc<QueryMemory>, Arc<dyn MemoryPool>) {
    let memory = QueryMemory::new(LIMIT);
    let pool: Arc<dyn MemoryPool> = memory.statement_pool(None);
    (memory, pool)
}

fn operator(pool: &Arc<dyn MemoryPool>, name: &str, can_spill: bool) -> MemoryReservation {
    MemoryConsumer::new(name).with_can_spill(can_spill).register(pool)
}

fn sort(pool: &Arc<dyn MemoryPool>, partition: usize) -> (MemoryReservation, MemoryReservation) {
    let runs = operator(pool, &format!("ExternalSorter[{partition}]"), true);
    (runs, operator(pool, &format!("ExternalSorterMerge[{partition}]"), false))
}

#[test]
fn what_a_sort_hands_on_its_merge_finds_again() {
    let (memory, pool) = pool();
    let (first, merge) = sort(&pool, 0);
    let (second, _other) = sort(&pool, 1);
    first.try_grow(1_280).unwrap();
    second.try_grow(1_000).unwrap();
    // The runs of the first hand their batches on and end, and the second still has rows coming in.
    drop(first);
    second.try_grow(280).unwrap();
    second.try_grow(1).unwrap_err();
    // The merge finds the room of its runs, and a little more.
    merge.try_grow(1_280).unwrap();
    merge.try_grow(640).unwrap();
    merge.try_grow(1).unwrap_err();
    merge.free();
    // Taken once, they are kept no longer.
    second.try_grow(1_280).unwrap();
    assert_eq!(memory.used_bytes(), 2_560);
    assert_eq!(pool.reserved(), 2_560);
}

#[test]
fn what_is_handed_on_is_kept_from_sorts_alone_and_until_the_merge_gives_back_or_ends() {
    let (memory, pool) = pool();
    let (first, merge) = sort(&pool, 0);
    let (second, other) = sort(&pool, 1);
    let aggregate = operator(&pool, "FinalHashAggregateStream[0]", true);
    // More than the 640 bytes that a small operator may have.
    first.try_grow(2_000).unwrap();
    first.free();
    second.try_grow(700).unwrap_err();
    // The sort itself may take its bytes again, and the rule does not concern operators that are no sorts.
    first.try_grow(2_560).unwrap();
    first.free();
    aggregate.try_grow(2_560).unwrap();
    aggregate.free();
    // Half of what is freed was not handed on: the merge has seen every run once it gives back.
    merge.try_grow(1_000).unwrap();
    second.try_grow(700).unwrap_err();
    merge.shrink(1);
    second.try_grow(1_500).unwrap();
    second.free();
    first.try_grow(700).unwrap_err();
    drop((second, other));
    first.try_grow(700).unwrap();
    drop((first, merge, aggregate));
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn what_a_partial_aggregation_emits_stays_reserved_until_it_reads_on() {
    let (memory, pool) = pool();
    let partial = operator(&pool, "PartialHashAggregateStream[0]", true);
    let other = operator(&pool, "join", false);
    partial.try_grow(2_000).unwrap();
    // It passes on a materialized batch in slices, and reads on without groups.
    partial.shrink(500);
    partial.shrink(1_500);
    assert_eq!(memory.used_bytes(), 0);
    partial.try_grow(1_500).unwrap();
    partial.try_grow(1_500).unwrap_err();
    // It emits its groups, and keeps an empty table.
    partial.shrink(1_400);
    assert_eq!((memory.used_bytes(), pool.reserved(), partial.size()), (1_500, 1_500, 100));
    other.try_grow(1_701).unwrap_err();
    partial.try_grow(50).unwrap();
    assert_eq!((memory.used_bytes(), pool.reserved()), (150, 150));
    // One that ends while it emits.
    partial.try_grow(1_800).unwrap();
    partial.try_grow(1_500).unwrap_err();
    partial.free();
    assert_eq!(memory.used_bytes(), 1_950);
    drop(partial);
    assert_eq!((memory.used_bytes(), pool.reserved()), (0, 0));
    other.try_grow(3_200).unwrap();
}

#[test]
fn a_table_of_groups_counts_its_growth_until_it_has_spilled() {
    const MIB: usize = 1 << 20;
    let memory = QueryMemory::new(300 << 20);
    let pool: Arc<dyn MemoryPool> = memory.statement_pool(None);
    let table = operator(&pool, "FinalHashAggregateStream[0]", true);
    table.try_grow(8 * MIB).unwrap();
    assert_eq!(pool.reserved(), 8 * MIB, "small ones count as they are");
    // 240 MiB are four fifths.
    table.try_grow(154 * MIB).unwrap();
    assert_eq!(pool.reserved(), 239 * MIB);
    table.shrink(54 * MIB);
    assert_eq!(pool.reserved(), 158 * MIB);
    table.try_grow(56 * MIB).unwrap_err();
    // Its groups are sorted by an index before they are written.
    assert_eq!((pool.reserved(), memory.used_bytes()), (208 * MIB, 208 * MIB));
    table.try_grow(56 * MIB).unwrap_err();
    assert_eq!(pool.reserved(), 208 * MIB, "once");
    let join = operator(&pool, "HashJoinInput", false);
    let other: Arc<dyn MemoryPool> = memory.statement_pool(None);
    operator(&other, "HashJoinInput", false).try_grow(100 * MIB).unwrap_err();
    join.try_grow(130 * MIB).unwrap();
    drop(join);
    // One that holds little and can spill is not refused for it, and need not write tiny runs.
    let little = operator(&pool, "OrderedFinalAggregateStream[0]", true);
    little.try_grow(MIB).unwrap();
    little.try_grow(MIB).unwrap();
    little.try_grow(120 * MIB).unwrap_err();
    assert_eq!(pool.reserved(), 210 * MIB, "it has no table to sort");
    drop(little);
    table.free();
    assert_eq!((pool.reserved(), memory.used_bytes()), (0, 0));
    // It reads on, ends, and merges.
    table.try_grow(100 * MIB).unwrap();
    assert_eq!(pool.reserved(), 146 * MIB);
    table.free();
    table.try_grow(100 * MIB).unwrap();
    assert_eq!(pool.reserved(), 100 * MIB);
    table.free();
    assert_eq!(memory.used_bytes(), 0);
    let other = operator(&pool, "FinalHashAggregateStream[1]", false);
    other.try_grow(100 * MIB).unwrap();
    assert_eq!(pool.reserved(), 100 * MIB, "what cannot spill counts as it is");
}

#[test]
fn merges_of_files_leave_memory_to_other_sorts() {
    let (_, pool) = pool();
    let (runs, merge) = sort(&pool, 0);
    let (other, _merge) = sort(&pool, 1);
    runs.try_grow(2_000).unwrap();
    runs.try_grow(1_000).unwrap_err();
    runs.free();
    // It merges what is to be spilled, and reads on.
    merge.try_grow(2_800).unwrap();
    merge.free();
    drop(runs);
    // Two files always, more up to a quarter of the limit.
    merge.try_grow(500).unwrap();
    merge.try_grow(200).unwrap();
    merge.try_grow(100).unwrap();
    other.try_grow(700).unwrap();
    let error = merge.try_grow(1).unwrap_err().to_string();
    assert!(error.contains("(ExternalSorterMerge[0] 800, ExternalSorter[1] 700)"), "{error}");
    merge.free();
    merge.try_grow(700).unwrap();
    merge.try_grow(700).unwrap();
    merge.try_grow(1).unwrap_err();
    merge.free();
    // One in memory needs what it asks for.
    let (runs, merge) = sort(&pool, 2);
    runs.try_grow(200).unwrap();
    drop(runs);
    merge.try_grow(900).unwrap();
}

#[test]
fn the_table_of_merged_groups_gets_what_their_merge_leaves() {
    let (_, pool) = pool();
    let aggregation = operator(&pool, "FinalHashAggregateStream[0]", true);
    // It spills its groups, and reads on with as much as before.
    aggregation.try_grow(2_500).unwrap();
    aggregation.try_grow(100).unwrap_err();
    aggregation.free();
    aggregation.try_grow(1_000).unwrap();
    aggregation.try_grow(1_560).unwrap();
    aggregation.try_grow(1).unwrap_err();
    aggregation.free();
    // It spills the rest.
    aggregation.try_grow(100).unwrap();
    aggregation.free();
    let sort = operator(&pool, "ExternalSorter[0]", true);
    sort.try_grow(1_000).unwrap();
    let (merge, table) = (aggregation.new_empty(), aggregation);
    merge.try_grow(500).unwrap();
    merge.try_grow(300).unwrap();
    merge.try_grow(1).unwrap_err();
    sort.try_grow(760).unwrap();
    sort.try_grow(100).unwrap_err();
    table.try_grow(300).unwrap();
    table.try_grow(340).unwrap();
    table.try_grow(1).unwrap_err();
}

#[test]
fn who_holds_little_finds_room_beside_who_holds_all() {
    let (_, pool) = pool();
    let [large, small] = [0, 1].map(|_| operator(&pool, "operator", true));
    let join = operator(&pool, "join", false);
    large.try_grow(2_560).unwrap();
    large.try_grow(1).unwrap_err();
    // Up to nine tenths of 3,200.
    small.try_grow(321).unwrap_err();
    small.try_grow(320).unwrap();
    small.try_grow(1).unwrap_err();
    join.try_grow(320).unwrap();
    join.try_grow(1).unwrap_err();
}

#[test]
fn statements_of_a_group_share_its_limit() {
    let (memory, alone) = pool();
    let group = QueryMemory::new(1_000);
    let pools: [Arc<dyn MemoryPool>; 2] = [0, 1].map(|_| memory.statement_pool(Some(&group)) as Arc<dyn MemoryPool>);
    let [first, second] = [0, 1].map(|i| operator(&pools[i], "join", false));
    first.try_grow(700).unwrap();
    let error = second.try_grow(301).unwrap_err().to_string();
    assert!(error.contains("workload group 700 of 1000"), "{error}");
    second.try_grow(300).unwrap();
    second.free();
    // What all statements together do not have, a group has not either.
    let other = operator(&alone, "join", false);
    other.try_grow(2_400).unwrap();
    second.try_grow(200).unwrap_err();
    assert_eq!((group.used_bytes(), memory.used_bytes()), (700, 3_100));
    first.shrink(700);
    assert_eq!((group.used_bytes(), memory.used_bytes()), (0, 2_400));
}

#[test]
fn what_a_statement_allocates_far_beyond_its_reservations_counts() {
    const MIB: usize = 1 << 20;
    let memory = QueryMemory::new(400 << 20);
    let heap = HeapAccount::new();
    let pool = Arc::new(StatementPool::new(Arc::clone(&memory), None, Some(Arc::clone(&heap))));
    let operators: Arc<dyn MemoryPool> = Arc::clone(&pool) as _;
    let aggregate = operator(&operators, "FinalHashAggregateStream[0]", true);
    let join = operator(&operators, "HashJoinInput", false);
    let mib = |bytes: usize| (bytes + MIB / 2) / MIB;
    aggregate.try_grow(4 * MIB).unwrap();
    let now_us = std::cell::Cell::new(0);
    // The excess lasts from the second look to the third; the first ends an earlier time.
    let count_unreserved = || {
        for _ in 0..3 {
            pool.count_unreserved(now_us.get());
            now_us.set(now_us.get() + LASTING_US);
        }
    };
    let rows = heap.charge_call(|| vec![1_u8; 60 * MIB]);
    count_unreserved();
    assert_eq!(mib(memory.used_bytes()), 4, "64 MiB are tolerated");
    let more = heap.charge_call(|| vec![1_u8; 208 * MIB]);
    count_unreserved();
    assert_eq!((mib(memory.used_bytes()), mib(pool.reserved()), mib(pool.peak_bytes())), (204, 204, 204));
    let moment = heap.charge_call(|| vec![1_u8; 100 * MIB]);
    now_us.set(now_us.get() + 1);
    pool.count_unreserved(now_us.get());
    heap.charge_call(|| drop(moment));
    count_unreserved();
    assert_eq!(mib(memory.used_bytes()), 204, "what lasts a moment does not count");
    // An operator that can spill does, a request of another statement is refused, and one that cannot spill has its room.
    let refused = aggregate.try_grow(150 * MIB).unwrap_err().to_string();
    assert!(refused.contains("without reservation 2"), "{refused}");
    assert!(!pool.take_crowded_out(), "it would not get them alone either");
    assert_eq!(mib(pool.operator_bytes()), 4);
    let other: Arc<dyn MemoryPool> = memory.statement_pool(None);
    let others = operator(&other, "HashJoinInput", false);
    others.try_grow(200 * MIB).unwrap_err();
    // Nor one that has nothing to spill yet.
    let sort = operator(&operators, "ExternalSorter[0]", true);
    sort.try_grow(150 * MIB).unwrap();
    sort.try_grow(200 * MIB).unwrap_err();
    drop(sort);
    join.try_grow(390 * MIB).unwrap();
    // What is reserved now is counted once.
    assert_eq!((mib(memory.used_bytes()), mib(pool.peak_bytes())), (394, 394));
    drop(join);
    heap.charge_call(|| drop(more));
    count_unreserved();
    assert_eq!(memory.used_bytes(), 4 * MIB);
    drop(aggregate);
    let rest = heap.charge_call(|| vec![1_u8; 18 * MIB]);
    count_unreserved();
    assert_eq!((pool.operator_bytes(), mib(memory.used_bytes())), (0, 14));
    // A message has no statement that could start again.
    let messages = super::super::MessageMemory(Arc::clone(&memory));
    let message = terrace_ipc::Account::charge(&messages, 400 << 20).unwrap();
    assert!(terrace_ipc::Account::charge(&messages, 1 << 20).is_err());
    drop(message);
    pool.end();
    count_unreserved();
    assert_eq!(memory.used_bytes(), 0, "a statement that has ended counts no more");
    drop((operators, pool));
    assert_eq!(memory.used_bytes(), 0);
    drop((rows, rest));
}

/// An operator that took this refusal for too little memory would spill, and its statement would start again.
#[test]
fn a_statement_that_has_to_stop_asks_in_vain() {
    let (memory, pool) = pool();
    let join = operator(&pool, "HashJoinInput", false);
    let heap = HeapAccount::new();
    let stops = Arc::new(AtomicBool::new(false));
    let check = Arc::clone(&stops);
    heap.set_stop_check(move || check.load(Ordering::Relaxed));
    heap.charge_call(|| join.try_grow(100)).unwrap();
    stops.store(true, Ordering::Relaxed);
    let error = heap.charge_call(|| join.try_grow(100)).unwrap_err();
    assert!(error.to_string().contains("HashJoinInput asked for 100 bytes; the statement has to stop"), "{error}");
    assert!(!matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
    assert_eq!(memory.used_bytes(), 100);
    // Others go on.
    join.try_grow(100).unwrap();
}
