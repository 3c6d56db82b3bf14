//! The pool of one statement.
//!
//! Rules that keep an operator that spills from failing beside another one of its statement:
//!
//! - **The pool reserves the bytes that a sort's runs free for the sort's merge.** A sort frees the bytes of its runs when
//!   it passes their batches to its merge; the merge, which cannot spill, reserves them again when it reads the batches
//!   (DataFusion 55 sorts/sort.rs `sort_batch_stream`, sorts/builder.rs `push_batch`). The batches stay in memory all the
//!   time, so for other sorts of the statement these bytes count as used until the sort reserves them again, or its merge
//!   reserves as many or begins to free some: a merge frees bytes only after it has read from every run.
//! - **Small operators may use part of the last fifth**: an operator that holds no memory cannot spill to make room, so a
//!   refusal makes it fail. While less than nine tenths of the limit are used, the pool grants each operator up to a
//!   thirty-second of the limit, or 8 MiB if that is more (a batch of wide rows), but at most a fifth of the limit.
//!
//! - **The merge of a sort's spill files takes an equal part of half of the limit**, with the statement's other sorts, but room
//!   for two files. It asks for one file after the other (up to 16), so it would take all that there is, while other
//!   sorts still read their input, and a merge of their rows keeps some of each (DataFusion 55 sorts/multi_level_merge.rs
//!   `get_sorted_spill_files_to_merge`). With less room it merges fewer files at a time.
//! - **The merge of what an aggregation has spilled takes an equal part of a quarter of the limit**, with the statement's
//!   other aggregations, but room for two files. The operators above already hold memory then, and the table into which
//!   the aggregation reads the merged groups cannot spill any more, so it may use all that is left (aggregates/hash_stream.rs
//!   `into_replay_stream`). The table allocates some MiB for each column of texts, however few groups are in it
//!   (group_values/multi_group_by/bytes_view.rs).
//!
//! Rules that keep aggregations from holding what they do not reserve:
//!
//! - **What a partial aggregation emits stays reserved until it reads on.** One that gets no more memory turns its groups
//!   into one batch, frees the bytes of its table, and passes the batch on in slices (DataFusion 55 aggregates/hash_stream.rs
//!   `handle_emitting_on_memory_pressure`). Others took these bytes meanwhile, and twice what was reserved was held.
//!
//! - **A table of groups counts half as much again, beyond 8 MiB**, until its groups have been spilled. It asks for memory
//!   after it has grown, and while it grows the old table and a new one of twice the size are there: 604 MiB of 334 that
//!   were asked for. The merged groups cannot spill, so they count as they are.
//!
//! - **A table that is refused memory, and so spills, counts twice** until its groups are written: they are sorted first, by an
//!   index that has 36 bytes for each text view (arrow-ord `sort_byte_view`). DataFusion reserves four of them
//!   (aggregates/hash_stream.rs `reservation_size_for_table`): two tables of 290 MB each allocated 420 MB more. The statement's own
//!   requests of operators that cannot spill, or hold little, are not refused for it. The last table is sorted without a refusal,
//!   so its index is not counted.
//!
//! - **An aggregation with grouping sets counts twice what it asks for.** It emits a part of its groups in copies and keeps
//!   the room of its table (aggregates/grouped_hash_stream.rs `try_update_memory_reservation`, `Vec::drain`).
//!
//! - **What a query holds far beyond its reservations for a quarter of a second counts, too.** Some operators reserve nothing
//!   for what they keep: frames of windows, values of some aggregates, rows that a sort copies. Beyond a tolerance their bytes
//!   count as those of the statement, so that operators that can spill do so earlier. The statement's own requests of
//!   operators that cannot spill, or hold nothing to spill, are not refused for them.
//!
//! The pool still refuses larger requests while four fifths of the limit are used, and requests of merges and joins when
//! the whole limit is used.
//!
//! Upstream: <https://github.com/apache/datafusion/pull/20642> (Fix memory reservation starvation in sort-merge) keeps
//! the bytes of a merge from disk; no issue found on merges in memory (`in_mem_sort_stream` in
//! datafusion-physical-plan/src/sorts/sort.rs). The first rule can go when tests/python/test_cold_shapes.py passes a
//! hundred times without it. The fifth that operators with spilling cannot use works around
//! <https://github.com/apache/datafusion/issues/17334> (External sort failing with non-spillable operators as input
//! (RepartitionExec)), open.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;
use terrace_heap::HeapAccount;

use super::QueryMemory;
use crate::error::{Error, ErrorKind};

/// Bytes that a small operator may hold, so that it has room for one batch.
const ONE_BATCH_BYTES: usize = 8 << 20;

/// What a statement may hold beyond its reservations before that counts: batches on their way between operators, and what
/// both numbers are off by.
const TOLERATED_BYTES: usize = 64 << 20;
/// Or this part of its reservations, if that is more.
const TOLERATED_PART: usize = 8;
/// For so long it has to hold more without a break before that counts: a table of groups that grows is there twice for a
/// moment, and would be spilled for it.
const LASTING_US: u64 = 250_000;

/// Prefixes of DataFusion's names for the consumers of a sort: that of its runs, and that of its merge, registered later.
const SORT_CONSUMER: &str = "ExternalSorter[";
const MERGE_CONSUMER: &str = "ExternalSorterMerge[";

/// Prefix of the names of partial aggregations.
const PARTIAL_CONSUMER: &str = "PartialHashAggregateStream[";
/// A partial aggregation that keeps at most this share of its bytes has emitted its groups.
const EMPTY_TABLE: usize = 8;

/// Part of the names of aggregations with tables of groups.
const TABLE_CONSUMER: &str = "HashAggregateStream[";
/// Part of the names of all aggregations.
const AGGREGATION_CONSUMER: &str = "AggregateStream[";

/// Whether `consumer` is an aggregation that spills its groups to files, and frees all its memory before it merges them.
/// Aggregations with grouping sets keep some.
fn is_aggregation(consumer: &MemoryConsumer) -> bool {
    let name = consumer.name();
    let is_other = name.starts_with(PARTIAL_CONSUMER) || name.starts_with(GROUPING_SETS_CONSUMER);
    consumer.can_spill() && name.contains(AGGREGATION_CONSUMER) && !is_other
}

/// Files that a merge needs; with fewer it writes one of them again in smaller batches, or fails.
const LEAST_MERGED_FILES: usize = 2;

/// Prefix of the names of aggregations with grouping sets, and of some others: over ordered input, with a limit.
const GROUPING_SETS_CONSUMER: &str = "GroupedHashAggregateStream[";

/// Operators that an error names.
const LISTED_OPERATORS: usize = 5;

/// Memory of a partial aggregation.
#[derive(Debug, Default)]
struct PartialMemory {
    held_bytes: usize,
    /// Whether its last request was refused: it emits its groups now.
    was_refused: bool,
    /// Bytes that it freed when it emitted its groups, and has not taken again: the emitted batch.
    emitted_bytes: usize,
}

/// Memory of the sort of one partition.
#[derive(Debug)]
struct SortMemory {
    /// The thread that registered its runs, and registers its merge next.
    thread: ThreadId,
    /// Id of the consumer of the runs.
    runs: usize,
    /// Id of the consumer of the merge, once it is registered.
    merge: Option<usize>,
    /// Bytes that the runs gave back and the merge has not taken.
    handed_on_bytes: usize,
    /// Whether the runs were refused memory, so that they were written to files.
    has_spilled: bool,
    /// Whether the sort has read all its input.
    has_ended: bool,
}

impl SortMemory {
    fn new(runs: usize) -> Self {
        let thread = std::thread::current().id();
        Self { thread, runs, merge: None, handed_on_bytes: 0, has_spilled: false, has_ended: false }
    }
}

/// What one operator has reserved.
#[derive(Debug)]
struct HeldMemory {
    operator: String,
    /// The bytes that count against the limit.
    bytes: usize,
    /// The bytes that it has asked for.
    asked_bytes: usize,
    /// Requests that were granted since it held nothing.
    grants: usize,
    /// Whether the pool has refused a request of it.
    was_refused: bool,
    /// Whether it has got memory since the last refusal.
    has_grown_since: bool,
    /// What the sort of a table that is being spilled counts beside the table.
    sort_bytes: usize,
}

/// Memory that the operators of one statement hold.
#[derive(Debug, Default)]
struct OperatorMemory {
    /// What each operator that has asked for some holds, by the id of its consumer.
    held: HashMap<usize, HeldMemory>,
    sorts: Vec<SortMemory>,
    /// Partial aggregations by the ids of their consumers.
    partials: HashMap<usize, PartialMemory>,
    /// Number of aggregations that spill their groups to files.
    aggregations: usize,
    /// Ids of the consumers of those that have spilled and read their groups again.
    merging_aggregations: HashSet<usize>,
    /// What the statement has held beyond its reservations and the tolerance for some time, as last counted.
    unreserved_bytes: usize,
    /// The least that it has held so since a time in microseconds.
    least_excess: Option<LeastExcess>,
    /// Whether the statement has ended: its tasks may hold memory for a moment, which nobody counts.
    has_ended: bool,
}

/// The least that a statement has held beyond its reservations and the tolerance since a look.
#[derive(Debug, Clone, Copy)]
struct LeastExcess {
    since_us: u64,
    bytes: usize,
}

impl OperatorMemory {
    fn sort_of_runs(&mut self, id: usize) -> Option<&mut SortMemory> {
        self.sorts.iter_mut().find(|sort| sort.runs == id)
    }

    fn sort_of_merge(&mut self, id: usize) -> Option<&mut SortMemory> {
        self.sorts.iter_mut().find(|sort| sort.merge == Some(id))
    }

    /// The limit for all statements under which an operator is granted `additional` bytes.
    fn limit_for(&self, total: usize, reservation: &MemoryReservation, additional: usize) -> usize {
        if let Some(limit) = self.limit_for_merge(total, reservation, additional) {
            return limit;
        }
        let consumer = reservation.consumer();
        if !consumer.can_spill() {
            return total.saturating_add(self.forgiven_bytes());
        }
        let held = self.held_bytes(consumer.id());
        // A small operator has little to spill, so it may use half of the last fifth.
        let small = (total / 32).max(ONE_BATCH_BYTES.min(total / 5));
        // One that holds nothing has nothing to spill, so that it would fail for what the statement holds without reservation.
        let unreserved = if held == 0 { self.forgiven_bytes() } else { 0 };
        if held.saturating_add(additional) <= small {
            return (total - total / 10).saturating_add(unreserved.max(self.sort_bytes()));
        }
        // For a sort, bytes that other sorts have handed on count as used until their merges take them.
        let is_sort = self.sorts.iter().any(|sort| sort.runs == consumer.id());
        let others = self.sorts.iter().filter(|sort| is_sort && sort.runs != consumer.id());
        (total - total / 5).saturating_sub(others.map(|sort| sort.handed_on_bytes).sum()).saturating_add(unreserved)
    }

    /// The bytes that count against the limit where `consumer` holds `asked`.
    fn counted(&self, consumer: &MemoryConsumer, asked: usize) -> usize {
        // One that cannot spill has ordered input, and emits each group when it is complete.
        if !consumer.can_spill() || self.merging_aggregations.contains(&consumer.id()) {
            asked
        } else if consumer.name().starts_with(GROUPING_SETS_CONSUMER) {
            asked.saturating_mul(2)
        } else if consumer.name().contains(TABLE_CONSUMER) {
            asked.saturating_add(asked.saturating_sub(ONE_BATCH_BYTES) / 2)
        } else {
            asked
        }
    }

    /// What `additional` bytes that `consumer` asks for count.
    fn counted_growth(&self, consumer: &MemoryConsumer, additional: usize) -> usize {
        let asked = self.held.get(&consumer.id()).map_or(0, |held| held.asked_bytes);
        self.counted(consumer, asked.saturating_add(additional)) - self.counted(consumer, asked)
    }

    /// What `shrink` bytes that `consumer` gives back count.
    fn counted_shrink(&self, consumer: &MemoryConsumer, shrink: usize) -> usize {
        let asked = self.held.get(&consumer.id()).map_or(0, |held| held.asked_bytes);
        self.counted(consumer, asked) - self.counted(consumer, asked.saturating_sub(shrink))
    }

    /// What counts against the limit beyond what operators have asked for, and is refused to none of the statement that could
    /// not do without.
    fn forgiven_bytes(&self) -> usize {
        self.unreserved_bytes.saturating_add(self.sort_bytes())
    }

    /// What the sorts of tables that are being spilled count.
    fn sort_bytes(&self) -> usize {
        self.held.values().map(|held| held.sort_bytes).sum()
    }

    /// Counts the sort of the groups of an aggregation that was refused memory, and so spills. Returns what that adds.
    fn begin_sort_of_groups(&mut self, consumer: &MemoryConsumer) -> usize {
        let is_table = is_aggregation(consumer) && consumer.name().contains(TABLE_CONSUMER);
        if !is_table || self.merging_aggregations.contains(&consumer.id()) {
            return 0;
        }
        let held = self.held_mut(consumer);
        let more = (held.asked_bytes.saturating_sub(ONE_BATCH_BYTES) / 2).saturating_sub(held.sort_bytes);
        held.sort_bytes += more;
        more
    }

    /// Returns what the sort of the operator's groups has counted, which has ended.
    fn end_sort_of_groups(&mut self, consumer: &MemoryConsumer) -> usize {
        self.held.get_mut(&consumer.id()).map_or(0, |held| std::mem::take(&mut held.sort_bytes))
    }

    fn held_bytes(&self, id: usize) -> usize {
        self.held.get(&id).map_or(0, |held| held.bytes)
    }

    fn held_mut(&mut self, consumer: &MemoryConsumer) -> &mut HeldMemory {
        self.held.entry(consumer.id()).or_insert_with(|| HeldMemory {
            operator: consumer.name().to_owned(),
            bytes: 0,
            asked_bytes: 0,
            grants: 0,
            was_refused: false,
            has_grown_since: false,
            sort_bytes: 0,
        })
    }

    /// The limit under which a merge of files is granted `additional` bytes; `None` for other requests.
    fn limit_for_merge(&self, total: usize, reservation: &MemoryReservation, additional: usize) -> Option<usize> {
        let id = reservation.consumer().id();
        let held = self.held_bytes(id);
        let all = total.saturating_add(self.forgiven_bytes());
        let merges = |sort: &SortMemory| sort.merge == Some(id) && sort.has_spilled && sort.has_ended;
        let share = if self.merging_aggregations.contains(&id) {
            // Its table has another reservation than its merge, and begins when the merge has all that it gets.
            let is_table = reservation.size() != held;
            if is_table {
                return Some(all);
            }
            total / 4 / self.aggregations.max(1)
        } else if self.sorts.iter().any(merges) {
            total / 2 / self.sorts.len()
        } else {
            return None;
        };
        let has_two_files = self.held.get(&id).is_some_and(|held| held.grants >= LEAST_MERGED_FILES);
        let is_refused = has_two_files && held.saturating_add(additional) > share;
        Some(if is_refused { 0 } else { all })
    }

    /// Records that `consumer` got `asked` bytes, which count as `bytes`.
    fn record_growth(&mut self, consumer: &MemoryConsumer, asked: usize, bytes: usize) {
        let id = consumer.id();
        let held = self.held_mut(consumer);
        held.asked_bytes += asked;
        held.bytes += bytes;
        held.grants += 1;
        held.has_grown_since = true;
        if let Some(partial) = self.partials.get_mut(&id) {
            partial.held_bytes += bytes;
            partial.was_refused = false;
        }
        if let Some(sort) = self.sorts.iter_mut().find(|sort| sort.runs == id || sort.merge == Some(id)) {
            sort.handed_on_bytes = sort.handed_on_bytes.saturating_sub(bytes);
        }
    }

    /// Records that `consumer` gives `asked` bytes back, which count as `bytes`. Returns the bytes that others may have now.
    fn record_shrink(&mut self, consumer: &MemoryConsumer, asked: usize, bytes: usize) -> usize {
        if let Some(held) = self.held.get_mut(&consumer.id()) {
            held.asked_bytes = held.asked_bytes.saturating_sub(asked);
            held.bytes = held.bytes.saturating_sub(bytes);
            if held.bytes == 0 {
                held.grants = 0;
                // An aggregation frees its table when it is refused memory, reads on, and frees the last table when its
                // input has ended.
                if held.was_refused && held.has_grown_since && is_aggregation(consumer) {
                    self.merging_aggregations.insert(consumer.id());
                }
            }
        }
        if let Some(sort) = self.sort_of_runs(consumer.id()) {
            sort.handed_on_bytes += bytes;
        } else if let Some(sort) = self.sort_of_merge(consumer.id()) {
            sort.handed_on_bytes = 0;
        }
        let Some(partial) = self.partials.get_mut(&consumer.id()) else { return bytes };
        let before = partial.held_bytes;
        partial.held_bytes = before.saturating_sub(bytes);
        let emits = std::mem::take(&mut partial.was_refused) && partial.held_bytes <= before / EMPTY_TABLE;
        if !emits {
            return bytes;
        }
        partial.emitted_bytes += bytes;
        0
    }

    fn record_refusal(&mut self, consumer: &MemoryConsumer) {
        let held = self.held_mut(consumer);
        held.was_refused = true;
        held.has_grown_since = false;
        if let Some(partial) = self.partials.get_mut(&consumer.id()) {
            partial.was_refused = true;
        } else if let Some(sort) = self.sort_of_runs(consumer.id()) {
            sort.has_spilled = true;
        }
    }

    /// The operators that hold the most, and their bytes.
    fn largest(&self) -> String {
        let mut held: Vec<&HeldMemory> = self.held.values().filter(|held| held.bytes > 0).collect();
        held.sort_unstable_by_key(|held| (Reverse(held.bytes), &held.operator));
        let named = held.iter().take(LISTED_OPERATORS).map(|held| format!("{} {}", held.operator, held.bytes));
        let unreserved = self.forgiven_bytes();
        let unreserved = (unreserved > 0).then(|| format!("without reservation {unreserved}"));
        named.chain(unreserved).collect::<Vec<_>>().join(", ")
    }

    /// Takes what a partial aggregation emitted before it went on to read.
    fn take_emitted(&mut self, consumer: &MemoryConsumer) -> usize {
        self.partials.get_mut(&consumer.id()).map_or(0, |partial| std::mem::take(&mut partial.emitted_bytes))
    }
}

/// The pool of one statement.
#[derive(Debug)]
pub(in crate::engine) struct StatementPool {
    shared: Arc<QueryMemory>,
    /// What the statements of its workload group may reserve together, if that is limited.
    group: Option<Arc<QueryMemory>>,
    /// What its work allocates, where that counts.
    heap: Option<Arc<HeapAccount>>,
    used_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    /// Whether it was refused memory that it would have got if it had been alone.
    was_crowded_out: AtomicBool,
    operators: Mutex<OperatorMemory>,
}

impl StatementPool {
    pub(super) fn new(
        shared: Arc<QueryMemory>,
        group: Option<Arc<QueryMemory>>,
        heap: Option<Arc<HeapAccount>>,
    ) -> Self {
        Self {
            shared,
            group,
            heap,
            used_bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
            was_crowded_out: AtomicBool::new(false),
            operators: Mutex::default(),
        }
    }

    /// The most bytes that it can reserve.
    pub(in crate::engine) fn limit_bytes(&self) -> usize {
        self.memories().map(|memory| memory.limit_bytes).min().unwrap_or(0)
    }

    /// The most bytes that it has had reserved.
    pub(super) fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Whether it was refused memory since the last call that it would have got if it had been alone.
    pub(super) fn take_crowded_out(&self) -> bool {
        self.was_crowded_out.swap(false, Ordering::Relaxed)
    }

    /// What its operators have reserved, with what the sorts of their groups count.
    pub(super) fn operator_bytes(&self) -> usize {
        let operators = self.operators.lock();
        self.reserved().saturating_sub(operators.unreserved_bytes)
    }

    /// Counts nothing without reservation any more: the statement has ended.
    pub(super) fn end(&self) {
        let mut operators = self.operators.lock();
        operators.has_ended = true;
        self.release_unreserved(std::mem::take(&mut operators.unreserved_bytes));
    }

    /// Counts what the statement has held beyond its reservations for [`LASTING_US`]; `now_us` is the time of this look.
    pub(super) fn count_unreserved(&self, now_us: u64) {
        let operators = &mut *self.operators.lock();
        self.lower_unreserved(operators);
        let excess = self.excess_bytes(operators);
        let least = operators.least_excess.get_or_insert(LeastExcess { since_us: now_us, bytes: excess });
        least.bytes = least.bytes.min(excess);
        if now_us.saturating_sub(least.since_us) < LASTING_US {
            return;
        }
        let lasting = least.bytes;
        *least = LeastExcess { since_us: now_us, bytes: excess };
        let more = lasting.saturating_sub(operators.unreserved_bytes);
        operators.unreserved_bytes += more;
        self.take_unreserved(more);
        self.record_peak();
    }

    /// What the statement holds beyond its reservations and the tolerance now.
    fn excess_bytes(&self, operators: &OperatorMemory) -> usize {
        let Some(heap) = self.heap.as_ref().filter(|_| !operators.has_ended) else { return 0 };
        let reserved = self.reserved().saturating_sub(operators.unreserved_bytes);
        let tolerated = reserved.saturating_add(TOLERATED_BYTES.max(reserved / TOLERATED_PART));
        usize::try_from(heap.bytes()).unwrap_or(usize::MAX).saturating_sub(tolerated)
    }

    /// Counts no more without reservation than there is: operators have reserved or freed some of it.
    fn lower_unreserved(&self, operators: &mut OperatorMemory) {
        let less = operators.unreserved_bytes.saturating_sub(self.excess_bytes(operators));
        self.release_unreserved(less);
        operators.unreserved_bytes -= less;
    }

    fn release_unreserved(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memories().for_each(|memory| memory.sub_unreserved(bytes));
    }

    /// The memory that it takes part in.
    fn memories(&self) -> impl Iterator<Item = &Arc<QueryMemory>> {
        self.group.iter().chain([&self.shared])
    }

    /// Counts bytes that no operator has asked for.
    fn take_unreserved(&self, bytes: usize) {
        self.memories().for_each(|memory| memory.add_unreserved(bytes));
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives bytes to others.
    fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memories().for_each(|memory| memory.sub(bytes));
    }

    /// Records what `reservation` got. What was allocated before it was asked for is counted once.
    fn record_growth(
        &self,
        operators: &mut OperatorMemory,
        reservation: &MemoryReservation,
        asked: usize,
        counted: usize,
    ) {
        self.release_unreserved(operators.end_sort_of_groups(reservation.consumer()));
        self.used_bytes.fetch_add(counted, Ordering::Relaxed);
        operators.record_growth(reservation.consumer(), asked, counted);
        self.lower_unreserved(operators);
        self.record_peak();
    }

    /// Records what it has now as its peak, if it is.
    fn record_peak(&self) {
        self.peak_bytes.fetch_max(self.reserved(), Ordering::Relaxed);
    }
}

impl Drop for StatementPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Display for StatementPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "statement(used: {}, limit of all: {})", self.reserved(), self.shared.limit_bytes)
    }
}

/// The error of an operator that asks for memory while its statement has to stop. Not that of query memory that does not
/// suffice: for that one operators spill, and statements start again.
fn stopped(consumer: &MemoryConsumer, asked: usize) -> DataFusionError {
    let message = format!("{} asked for {asked} bytes; the statement has to stop", consumer.name());
    Error::new(ErrorKind::Cancelled, message).into()
}

impl MemoryPool for StatementPool {
    fn name(&self) -> &str {
        "statement"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let mut operators = self.operators.lock();
        operators.aggregations += usize::from(is_aggregation(consumer));
        if consumer.name().starts_with(SORT_CONSUMER) {
            operators.sorts.push(SortMemory::new(consumer.id()));
        } else if consumer.name().starts_with(MERGE_CONSUMER) {
            let thread = std::thread::current().id();
            let mut latest = operators.sorts.iter_mut().rev();
            if let Some(sort) = latest.find(|sort| sort.merge.is_none() && sort.thread == thread) {
                sort.merge = Some(consumer.id());
            }
        } else if consumer.name().starts_with(PARTIAL_CONSUMER) {
            operators.partials.insert(consumer.id(), PartialMemory::default());
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let mut operators = self.operators.lock();
        operators.held.remove(&consumer.id());
        operators.merging_aggregations.remove(&consumer.id());
        operators.aggregations -= usize::from(is_aggregation(consumer));
        self.release(operators.take_emitted(consumer));
        operators.partials.remove(&consumer.id());
        if let Some(sort) = operators.sort_of_runs(consumer.id()) {
            sort.has_ended = true;
        }
        // The runs end before the merge has taken what they handed on.
        let ends = |sort: &SortMemory| sort.merge.map_or(sort.runs == consumer.id(), |merge| merge == consumer.id());
        operators.sorts.retain(|sort| !ends(sort));
    }

    fn grow(&self, reservation: &MemoryReservation, asked: usize) {
        let mut operators = self.operators.lock();
        let additional = operators.counted_growth(reservation.consumer(), asked);
        self.release(operators.take_emitted(reservation.consumer()));
        self.memories().for_each(|memory| memory.add(additional));
        self.record_growth(&mut operators, reservation, asked, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, asked: usize) {
        let mut operators = self.operators.lock();
        let shrink = operators.counted_shrink(reservation.consumer(), asked);
        self.release_unreserved(operators.end_sort_of_groups(reservation.consumer()));
        self.release(operators.record_shrink(reservation.consumer(), asked, shrink));
    }

    fn try_grow(&self, reservation: &MemoryReservation, asked: usize) -> Result<()> {
        let consumer = reservation.consumer();
        if HeapAccount::current_should_stop() {
            return Err(stopped(consumer, asked));
        }
        let mut operators = self.operators.lock();
        let additional = operators.counted_growth(consumer, asked);
        self.release(operators.take_emitted(consumer));
        self.lower_unreserved(&mut operators);
        let try_add = |memory: &QueryMemory, holders: &str| {
            let total = memory.limit_bytes;
            let limit = operators.limit_for(total, reservation, additional);
            memory.try_add(additional, limit).map_err(|used| {
                if self.reserved().saturating_add(additional) <= limit {
                    self.was_crowded_out.store(true, Ordering::Relaxed);
                }
                DataFusionError::ResourcesExhausted(format!(
                    "{} asked for {additional} bytes; this statement holds {} ({}), {holders} {used} of {total}",
                    consumer.name(),
                    self.reserved(),
                    operators.largest(),
                ))
            })
        };
        let added = match &self.group {
            Some(group) => try_add(group, "all statements of its workload group"),
            None => Ok(()),
        };
        let added = added.and_then(|()| {
            try_add(&self.shared, "all statements")
                .inspect_err(|_| self.group.iter().for_each(|group| group.sub(additional)))
        });
        if let Err(error) = added {
            operators.record_refusal(consumer);
            self.take_unreserved(operators.begin_sort_of_groups(consumer));
            // What it holds beyond its reservations may be less beside that.
            self.lower_unreserved(&mut operators);
            self.record_peak();
            return Err(error);
        }
        self.record_growth(&mut operators, reservation, asked, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit_bytes())
    }
}

#[cfg(test)]
mod tests;
