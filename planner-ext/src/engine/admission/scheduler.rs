//! The running and the waiting statements.
//!
//! Statements wait in the order of the priorities of their workload groups; at one priority the group that executes the
//! least for its weight comes first, and in a group the statement that arrived first. One that does not fit beside the
//! running ones lets others pass, until it has waited for a quarter of the longest wait; then it comes first, whatever its
//! group, and only point statements pass. So large statements and low priorities are delayed, not starved. A statement that
//! runs alone always fits, unless it has found out before that it needs more than stalled ones leave. One that waits for a limit of its session or of its group stops nobody else.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{AdmissionPolicy, Demand};
use crate::engine::memory::StatementMemory;
use crate::engine::workload::Group;

/// Limits of the scheduler.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) policy: AdmissionPolicy,
    pub(super) max_running: usize,
    pub(super) point_slots: usize,
    pub(super) max_queued: usize,
    pub(super) memory_bytes: u64,
    /// Wait after which no other statement passes, in microseconds.
    pub(super) ageing_us: u64,
}

/// A statement as the scheduler knows it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) session: Arc<str>,
    pub(super) group: Arc<Group>,
    pub(super) demand: Arc<Demand>,
    /// What it holds while it executes.
    pub(super) memory: Option<Arc<StatementMemory>>,
}

impl Request {
    fn held_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.held_bytes())
    }
}

#[derive(Debug)]
struct Entry {
    request: Request,
    /// It has a slot for point statements.
    is_point: bool,
    /// It has given its slot back.
    is_paused: bool,
    /// When it got its slot, in microseconds.
    since_us: u64,
}

#[derive(Debug)]
struct Waiting<G> {
    id: u64,
    /// `None` for one that resumes, whose entry exists.
    request: Option<Request>,
    grant: G,
    since_us: u64,
}

/// What the statements of a workload group do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GroupLoad {
    pub(super) running: usize,
    pub(super) queued: usize,
    pub(super) demand_bytes: u64,
    pub(super) reserved_bytes: u64,
}

/// The place in the queue of a statement that may execute.
struct Next {
    place: usize,
    is_point: bool,
}

/// The state of admission. `G` is how a statement learns that it may execute.
#[derive(Debug)]
pub(super) struct Scheduler<G> {
    limits: Limits,
    entries: HashMap<u64, Entry>,
    queue: VecDeque<Waiting<G>>,
    next_id: u64,
    /// Moving average of the time that slots are held.
    held_us: u64,
    /// Memory is short, whatever the demands say.
    memory_is_short: bool,
}

impl<G> Scheduler<G> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, entries: HashMap::new(), queue: VecDeque::new(), next_id: 0, held_us: 0, memory_is_short: false }
    }

    /// Lets no statement begin beside others, point statements excepted.
    pub(super) fn set_memory_short(&mut self, is_short: bool) {
        self.memory_is_short = is_short;
    }

    /// Statements that wait, those that resume apart.
    pub(super) fn waiting(&self) -> usize {
        self.queue.iter().filter(|waiting| waiting.request.is_some()).count()
    }

    /// Statements that have a slot.
    pub(super) fn running(&self) -> usize {
        self.entries.values().filter(|entry| !entry.is_paused).count()
    }

    /// Sum of the demands of those that execute.
    pub(super) fn demand_bytes(&self) -> u64 {
        self.general().map(|entry| self.demand_of(&entry.request)).sum()
    }

    /// Time until a statement that asks now may get a slot.
    pub(super) fn expected_wait_us(&self) -> u64 {
        let before = self.queue.len() as u64 + 1;
        self.held_us.saturating_mul(before) / self.limits.max_running as u64
    }

    pub(super) fn is_point(&self, id: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.is_point)
    }

    /// Puts a statement into the queue; an error is the number of those that wait already.
    pub(super) fn ask(&mut self, request: Request, grant: G, now_us: u64) -> Result<u64, usize> {
        // Those of lower priority take no place from it.
        let priority = request.group.options.priority;
        let before = self.queue.iter().filter_map(|waiting| waiting.request.as_ref());
        let waiting = before.filter(|before| before.group.options.priority >= priority).count();
        let starts_at_once = || {
            let is_next = || self.fits(&request, self.used_bytes()) && !self.is_blocked(now_us);
            self.has_point_slot(&request) || is_next()
        };
        if waiting >= self.limits.max_queued && !starts_at_once() {
            return Err(waiting);
        }
        self.next_id += 1;
        let id = self.next_id;
        self.queue.push_back(Waiting { id, request: Some(request), grant, since_us: now_us });
        Ok(id)
    }

    /// Forgets a statement that runs or waits.
    ///
    /// Returns what it knew of it, to be dropped once no lock is held.
    pub(super) fn end(&mut self, id: u64, now_us: u64) -> Option<Request> {
        let waiting = self.queue.iter().position(|waiting| waiting.id == id).and_then(|at| self.queue.remove(at));
        let Some(entry) = self.entries.remove(&id) else { return waiting.and_then(|waiting| waiting.request) };
        if !entry.is_point && !entry.is_paused {
            let held_us = now_us.saturating_sub(entry.since_us);
            self.held_us = if self.held_us == 0 { held_us } else { (self.held_us * 7 + held_us) / 8 };
        }
        Some(entry.request)
    }

    /// Gives the slot of a statement to others.
    pub(super) fn pause(&mut self, id: u64, _now_us: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_paused = true;
        }
    }

    /// Puts a paused statement before all that have not begun.
    pub(super) fn resume(&mut self, id: u64, grant: G, now_us: u64) {
        let begun = self.queue.iter().take_while(|waiting| waiting.request.is_none()).count();
        self.queue.insert(begun, Waiting { id, request: None, grant, since_us: now_us });
    }

    /// Counts a point statement as one of the others.
    pub(super) fn demote(&mut self, id: u64, now_us: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_point = false;
            entry.since_us = now_us;
        }
    }

    /// Takes those out of the queue that may execute now.
    pub(super) fn admit(&mut self, now_us: u64) -> Vec<(u64, G)> {
        let mut granted = Vec::new();
        let mut used_bytes = None;
        while let Some(Next { place, is_point }) = self.next(now_us, &mut used_bytes) {
            let Some(waiting) = self.queue.remove(place) else { break };
            match waiting.request {
                Some(request) => {
                    if let Some(bytes) = used_bytes.as_mut().filter(|_| !is_point) {
                        *bytes = bytes.saturating_add(self.demand_of(&request));
                    }
                    let entry = Entry { request, is_point, is_paused: false, since_us: now_us };
                    self.entries.insert(waiting.id, entry);
                }
                None => {
                    if let Some(entry) = self.entries.get_mut(&waiting.id) {
                        entry.is_paused = false;
                        entry.since_us = now_us;
                    }
                    used_bytes = None;
                }
            }
            granted.push((waiting.id, waiting.grant));
        }
        granted
    }

    /// The first one in the queue that may execute now. Keeps the memory that is in use in `used_bytes`.
    fn next(&self, now_us: u64, used_bytes: &mut Option<u64>) -> Option<Next> {
        let mut blocked = false;
        for place in self.order(now_us) {
            let waiting = self.queue.get(place)?;
            let fits = match &waiting.request {
                Some(request) if !self.group_has_room(request) => continue,
                Some(request) if self.has_point_slot(request) => return Some(Next { place, is_point: true }),
                Some(request) if self.session_is_full(&request.session) => continue,
                Some(request) => {
                    let mut has_memory = || self.fits(request, *used_bytes.get_or_insert_with(|| self.used_bytes()));
                    !blocked && self.has_general_slot() && has_memory()
                }
                None => !blocked && self.has_general_slot(),
            };
            if fits {
                return Some(Next { place, is_point: false });
            }
            blocked = blocked || self.lets_nobody_pass(waiting, now_us);
        }
        None
    }

    /// The places of the queue in the order in which their statements come.
    fn order(&self, now_us: u64) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.queue.len()).collect();
        let by_group =
            matches!(self.limits.policy, AdmissionPolicy::WeightedDemand | AdmissionPolicy::MaximalReservation);
        if by_group && places.len() > 1 {
            let mut running: HashMap<*const Group, u64> = HashMap::new();
            for entry in self.general() {
                *running.entry(Arc::as_ptr(&entry.request.group)).or_default() += 1;
            }
            places.sort_by_cached_key(|place| {
                let group = self.queue.get(*place).filter(|waiting| !self.comes_first(waiting, now_us));
                let group = group.and_then(|waiting| Some(&waiting.request.as_ref()?.group));
                group.map(|group| {
                    let running = running.get(&Arc::as_ptr(group)).copied().unwrap_or(0);
                    let share = running.saturating_mul(1 << 32) / u64::from(group.options.weight.max(1));
                    (Reverse(group.options.priority), share)
                })
            });
        }
        places
    }

    fn is_blocked(&self, now_us: u64) -> bool {
        let waits_for_its_own = |waiting: &Waiting<G>| {
            waiting.request.as_ref().is_some_and(|r| self.session_is_full(&r.session) || !self.group_has_room(r))
        };
        self.queue.iter().any(|waiting| self.lets_nobody_pass(waiting, now_us) && !waits_for_its_own(waiting))
    }

    fn lets_nobody_pass(&self, waiting: &Waiting<G>, now_us: u64) -> bool {
        let is_next = self.comes_first(waiting, now_us) || self.limits.policy == AdmissionPolicy::Fifo;
        is_next && !waiting.request.as_ref().is_some_and(|request| self.waits_for_stalled(request))
    }

    /// Whether it waits for memory that is short, or that stalled statements hold, however few others execute.
    fn waits_for_stalled(&self, request: &Request) -> bool {
        let is_held = || self.stalled_bytes().saturating_add(self.demand_of(request)) > self.limits.memory_bytes;
        request.demand.is_required() && (self.memory_is_short || is_held())
    }

    /// Whether it has executed before, or has waited for long.
    fn comes_first(&self, waiting: &Waiting<G>, now_us: u64) -> bool {
        waiting.request.is_none() || now_us.saturating_sub(waiting.since_us) >= self.limits.ageing_us
    }

    /// Statements that execute and have no slot for point statements.
    fn general(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| !entry.is_point && !entry.is_paused)
    }

    /// What running statements are expected to need, and paused ones have.
    fn used_bytes(&self) -> u64 {
        self.demand_bytes().saturating_add(self.stalled_bytes())
    }

    fn stalled_bytes(&self) -> u64 {
        let paused = self.entries.values().filter(|entry| entry.is_paused);
        paused.map(|entry| entry.request.held_bytes()).fold(0, u64::saturating_add)
    }

    /// Whether a statement may run beside those that use `used_bytes`.
    fn fits(&self, request: &Request, used_bytes: u64) -> bool {
        if self.limits.policy == AdmissionPolicy::None {
            return true;
        }
        let has_slot = || self.has_general_slot() && !self.session_is_full(&request.session);
        self.group_has_room(request)
            && (self.has_point_slot(request) || has_slot() && self.has_memory_for(request, used_bytes))
    }

    /// Whether the limits of its workload group let a statement run. One that runs alone in its group always has memory.
    fn group_has_room(&self, request: &Request) -> bool {
        let group = &request.group.options;
        let limited = group.max_running.is_some() || group.memory_bytes.is_some();
        if !limited || self.limits.policy == AdmissionPolicy::None {
            return true;
        }
        let load = self.group_load(&request.group);
        let has_memory = |limit: u64| load.demand_bytes.saturating_add(self.demand_of(request)) <= limit;
        group.max_running.is_none_or(|limit| load.running < limit)
            && (group.memory_bytes.is_none_or(has_memory) || load.running == 0)
    }

    /// What the statements of a workload group do.
    pub(super) fn group_load(&self, group: &Arc<Group>) -> GroupLoad {
        let is_of_group = |request: &Request| Arc::ptr_eq(&request.group, group);
        let waiting = self.queue.iter().filter_map(|waiting| waiting.request.as_ref());
        let mut load = GroupLoad { queued: waiting.filter(|r| is_of_group(r)).count(), ..GroupLoad::default() };
        for entry in self.entries.values().filter(|entry| is_of_group(&entry.request)) {
            let reserved = entry.request.memory.as_ref().map_or(0, |memory| memory.reserved_bytes());
            load.reserved_bytes = load.reserved_bytes.saturating_add(reserved);
            let needed = if entry.is_paused { entry.request.held_bytes() } else { self.demand_of(&entry.request) };
            load.demand_bytes = load.demand_bytes.saturating_add(needed);
            load.running += usize::from(!entry.is_paused);
        }
        load
    }

    /// A session has at most half of the slots that are not for point statements.
    fn session_is_full(&self, session: &str) -> bool {
        let running = self.general().filter(|entry| *entry.request.session == *session);
        self.limits.policy != AdmissionPolicy::None && running.count() >= self.limits.max_running.div_ceil(2)
    }

    fn has_point_slot(&self, request: &Request) -> bool {
        let by_demand =
            matches!(self.limits.policy, AdmissionPolicy::WeightedDemand | AdmissionPolicy::MaximalReservation);
        let used = self.entries.values().filter(|entry| entry.is_point).count();
        by_demand && request.demand.is_point() && used < self.limits.point_slots
    }

    fn has_general_slot(&self) -> bool {
        self.limits.policy == AdmissionPolicy::None || self.general().count() < self.limits.max_running
    }

    fn has_memory_for(&self, request: &Request, used_bytes: u64) -> bool {
        let needed = match self.limits.policy {
            AdmissionPolicy::WeightedDemand | AdmissionPolicy::MaximalReservation => self.demand_of(request),
            AdmissionPolicy::Fifo | AdmissionPolicy::None => return true,
        };
        let fits = !self.memory_is_short && used_bytes.saturating_add(needed) <= self.limits.memory_bytes;
        fits || !request.demand.is_required() && self.general().next().is_none()
    }

    /// What a statement needs from now on; at least what it has.
    fn demand_of(&self, request: &Request) -> u64 {
        let expected = match self.limits.policy {
            AdmissionPolicy::MaximalReservation => request.demand.most_bytes(),
            _ => request.demand.weighted_bytes(),
        };
        expected.max(request.held_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};

    use super::*;
    use crate::engine::memory::QueryMemory;
    use crate::engine::workload::WorkloadGroup;

    const MIB: u64 = 1 << 20;

    fn group() -> Arc<Group> {
        Group::new(WorkloadGroup::new("default"))
    }

    /// A scheduler with 4 slots, 1 for point statements, room for 3 in the queue and 100 MiB.
    fn scheduler(policy: AdmissionPolicy) -> Scheduler<&'static str> {
        let (max_running, point_slots, max_queued) = (4, 1, 3);
        let memory_bytes = 100 * MIB;
        Scheduler::new(Limits { policy, max_running, point_slots, max_queued, memory_bytes, ageing_us: 1_000 })
    }

    impl Scheduler<&'static str> {
        /// Asks for a statement of its own session and returns its id.
        fn ask_for(&mut self, name: &'static str, mib: u64, now_us: u64) -> u64 {
            let request =
                Request { session: name.into(), group: group(), demand: Demand::fixed(mib * MIB), memory: None };
            self.ask(request, name, now_us).unwrap()
        }

        fn ask_for_point(&mut self, name: &'static str, now_us: u64) -> u64 {
            let request = Request { session: name.into(), group: group(), demand: Demand::point(), memory: None };
            self.ask(request, name, now_us).unwrap()
        }

        fn admitted(&mut self, now_us: u64) -> Vec<&'static str> {
            self.admit(now_us).into_iter().map(|(_, name)| name).collect()
        }
    }

    #[test]
    fn demands_share_query_memory_and_a_large_one_is_not_starved() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let first = scheduler.ask_for("60", 60, 0);
        scheduler.ask_for("80", 80, 0);
        let second = scheduler.ask_for("30", 30, 0);
        assert_eq!(scheduler.admitted(0), ["60", "30"], "the one of 80 does not fit beside the first one");
        scheduler.end(second, 100);
        scheduler.ask_for("20", 20, 100);
        assert_eq!(scheduler.admitted(100), ["20"], "it may pass");
        scheduler.ask_for("10", 10, 1_000);
        scheduler.ask_for_point("point", 1_000);
        assert_eq!(scheduler.admitted(1_000), ["point"], "the one of 80 has waited long enough");
        scheduler.end(first, 1_100);
        assert_eq!(scheduler.admitted(1_100), ["80"]);
        assert_eq!(scheduler.demand_bytes(), 100 * MIB);
    }

    #[test]
    fn while_memory_is_short_nobody_begins_beside_others() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let first = scheduler.ask_for("a", 1, 0);
        assert_eq!(scheduler.admitted(0), ["a"]);
        scheduler.set_memory_short(true);
        scheduler.ask_for("b", 1, 0);
        scheduler.ask_for("c", 1, 0);
        scheduler.ask_for_point("point", 0);
        assert_eq!(scheduler.admitted(0), ["point"]);
        scheduler.end(first, 1);
        assert_eq!(scheduler.admitted(1), ["b"]);
        scheduler.set_memory_short(false);
        assert_eq!(scheduler.admitted(2), ["c"]);
    }

    #[test]
    fn one_that_needs_what_a_stalled_one_holds_waits_for_it() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let memory = QueryMemory::new(100 * MIB);
        let held = Arc::new(StatementMemory::new(&memory, None));
        let request = |name: &str, demand, memory| Request { session: name.into(), group: group(), demand, memory };
        let stalled =
            scheduler.ask(request("stalled", Demand::fixed(1), Some(Arc::clone(&held))), "stalled", 0).unwrap();
        assert_eq!(scheduler.admitted(0), ["stalled"]);
        let pool: Arc<dyn MemoryPool> = held.pool();
        let reservation = MemoryConsumer::new("join").register(&pool);
        reservation.grow(50 << 20);
        scheduler.pause(stalled, 0);
        scheduler.ask(request("again", Demand::required(75 * MIB), None), "again", 0).unwrap();
        assert!(scheduler.admitted(0).is_empty());
        let large = scheduler.ask(request("large", Demand::fixed(900 * MIB), None), "large", 0).unwrap();
        assert_eq!(scheduler.admitted(0), ["large"], "what is left may suffice");
        scheduler.end(large, 1);
        assert!(scheduler.admitted(1).is_empty());
        let other = scheduler.ask_for("other", 10, 5_000);
        assert_eq!(scheduler.admitted(5_000), ["other"], "it stops nobody else");
        scheduler.end(other, 1);
        drop(reservation);
        assert_eq!(scheduler.admitted(5_001), ["again"]);
    }

    #[test]
    fn one_that_is_larger_than_memory_runs_alone() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let small = scheduler.ask_for("1", 1, 0);
        let large = scheduler.ask_for("900", 900, 0);
        assert_eq!(scheduler.admitted(0), ["1"]);
        scheduler.end(small, 10);
        assert_eq!(scheduler.admitted(10), ["900"]);
        scheduler.ask_for("2", 1, 20);
        assert!(scheduler.admitted(20).is_empty());
        scheduler.end(large, 30);
        assert_eq!(scheduler.admitted(30), ["2"]);
    }

    #[test]
    fn other_policies_reserve_more_or_nothing() {
        // A sort of 80 MiB that holds them for a fifth of its time.
        let demand = || Demand::from_operators([(1.0, 80 * MIB), (4.0, 0)]);
        let started = |policy| {
            let mut scheduler = scheduler(policy);
            let ask = |name: &'static str| {
                let request = Request { session: name.into(), group: group(), demand: demand(), memory: None };
                let _ = scheduler.ask(request, name, 0);
                scheduler.admitted(0).len()
            };
            ["a", "b", "c", "d", "e"].map(ask).iter().sum::<usize>()
        };
        // There are four slots, and memory for six demands of 16 MiB.
        assert_eq!(started(AdmissionPolicy::WeightedDemand), 4);
        assert_eq!(started(AdmissionPolicy::MaximalReservation), 1);
        assert_eq!(started(AdmissionPolicy::Fifo), 4);
        assert_eq!(started(AdmissionPolicy::None), 5);
    }

    #[test]
    fn in_the_order_of_arrival_nobody_passes() {
        let mut scheduler = scheduler(AdmissionPolicy::Fifo);
        for name in ["a", "b", "c"] {
            scheduler.ask_for(name, 900, 0);
        }
        assert_eq!(scheduler.admitted(0), ["a", "b", "c"]);
        let last = scheduler.ask_for("d", 900, 0);
        assert_eq!(scheduler.admitted(0), ["d"]);
        scheduler.ask_for("e", 900, 0);
        scheduler.ask_for_point("point", 0);
        assert!(scheduler.admitted(0).is_empty(), "no slot for point statements");
        scheduler.end(last, 1);
        assert_eq!(scheduler.admitted(1), ["e"]);
    }

    #[test]
    fn a_session_has_half_of_the_slots_and_the_queue_is_bounded() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let ask = |scheduler: &mut Scheduler<_>, name| {
            scheduler.ask(
                Request { session: "s".into(), group: group(), demand: Demand::fixed(0), memory: None },
                name,
                0,
            )
        };
        for name in ["a", "b", "c"] {
            ask(&mut scheduler, name).unwrap();
        }
        assert_eq!(scheduler.admitted(0), ["a", "b"]);
        scheduler.ask_for("other", 1, 0);
        assert_eq!(scheduler.admitted(2_000), ["other"], "one that waits for its own session stops nobody else");
        ask(&mut scheduler, "d").unwrap();
        ask(&mut scheduler, "e").unwrap();
        assert_eq!(ask(&mut scheduler, "f").unwrap_err(), 3);
        assert_eq!(scheduler.waiting(), 3);
        let request = Request { session: "third".into(), group: group(), demand: Demand::fixed(0), memory: None };
        assert!(scheduler.ask(request, "third", 0).is_ok(), "it need not wait");
        scheduler.ask_for_point("point", 5_000);
        assert_eq!(scheduler.admitted(5_000), ["third", "point"], "however long the others have waited");
    }

    #[test]
    fn a_paused_statement_leaves_its_slot_and_comes_back_first() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let ids: Vec<u64> = ["a", "b", "c"].map(|name| scheduler.ask_for(name, 30, 0)).into();
        assert_eq!(scheduler.admitted(0).len(), 3);
        scheduler.ask_for("d", 40, 0);
        assert!(scheduler.admitted(0).is_empty());
        scheduler.pause(ids[0], 0);
        assert_eq!(scheduler.admitted(0), ["d"]);
        let fifth = scheduler.ask_for("e", 0, 0);
        assert_eq!(scheduler.admitted(0), ["e"]);
        scheduler.ask_for("f", 0, 0);
        scheduler.resume(ids[0], "a again", 0);
        assert!(scheduler.admitted(0).is_empty());
        scheduler.end(fifth, 1);
        assert_eq!(scheduler.admitted(1), ["a again"]);
        scheduler.end(ids[0], 2);
        assert_eq!(scheduler.admitted(2), ["f"]);
    }

    #[test]
    fn a_demoted_point_statement_counts_as_another_one() {
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        let first = scheduler.ask_for_point("p", 0);
        scheduler.ask_for_point("q", 0);
        assert_eq!(scheduler.admitted(0), ["p", "q"], "the second one has an ordinary slot");
        assert!(scheduler.is_point(first));
        for name in ["a", "b"] {
            scheduler.ask_for(name, 1, 0);
        }
        assert_eq!(scheduler.admitted(0).len(), 2);
        scheduler.demote(first, 10);
        assert!(!scheduler.is_point(first));
        scheduler.ask_for("c", 1, 10);
        assert!(scheduler.admitted(10).is_empty(), "four have ordinary slots");
        scheduler.ask_for_point("r", 10);
        assert_eq!(scheduler.admitted(10), ["r"]);
    }

    /// Asks for statements that need nothing, each of its own session, and admits those that may run.
    fn admitted_of(
        scheduler: &mut Scheduler<&'static str>,
        asked: &[(&'static str, &Arc<Group>)],
    ) -> Vec<&'static str> {
        for (number, (name, group)) in asked.iter().enumerate() {
            let session = format!("{name}{number}").into();
            let request = Request { session, group: Arc::clone(group), demand: Demand::fixed(10 * MIB), memory: None };
            scheduler.ask(request, *name, 0).unwrap();
        }
        scheduler.admitted(0)
    }

    #[test]
    fn slots_go_to_the_higher_priority_and_then_by_weight() {
        let with = |name, priority, weight| Group::new(WorkloadGroup { priority, weight, ..WorkloadGroup::new(name) });
        let (urgent, heavy, light) = (with("urgent", 101, 1), with("heavy", 100, 3), with("light", 100, 1));
        let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
        scheduler.limits.max_queued = 100;
        scheduler.limits.max_running = 5;
        let asked = [
            ("l", &light),
            ("l", &light),
            ("l", &light),
            ("h", &heavy),
            ("h", &heavy),
            ("h", &heavy),
            ("h", &heavy),
            ("u", &urgent),
        ];
        assert_eq!(admitted_of(&mut scheduler, &asked), ["u", "l", "h", "h", "h"]);
        assert_eq!(
            scheduler.group_load(&light),
            GroupLoad { running: 1, queued: 2, demand_bytes: 10 * MIB, reserved_bytes: 0 }
        );
        // Who has waited for long comes first, whatever its group.
        let running: Vec<u64> = scheduler.entries.keys().copied().collect();
        scheduler
            .ask(Request { session: "u2".into(), group: urgent, demand: Demand::fixed(0), memory: None }, "u", 999)
            .unwrap();
        for id in running.iter().take(2) {
            scheduler.end(*id, 1_000);
        }
        assert_eq!(scheduler.admitted(1_000), ["l", "l"]);
    }

    #[test]
    fn a_full_group_waits_and_stops_nobody_else() {
        let two = Group::new(WorkloadGroup { max_running: Some(2), ..WorkloadGroup::new("two") });
        let small = Group::new(WorkloadGroup { memory_bytes: Some(15 * MIB), ..WorkloadGroup::new("small") });
        for policy in [AdmissionPolicy::WeightedDemand, AdmissionPolicy::Fifo] {
            let mut scheduler = scheduler(policy);
            scheduler.limits.max_queued = 100;
            scheduler.limits.max_running = 10;
            let asked = [("2", &two), ("2", &two), ("2", &two), ("s", &small), ("s", &small), ("o", &group())];
            let mut admitted = admitted_of(&mut scheduler, &asked);
            admitted.sort_unstable();
            assert_eq!(admitted, ["2", "2", "o", "s"], "{policy:?}");
            assert!(scheduler.admitted(5_000).is_empty());
        }
        let mut scheduler = scheduler(AdmissionPolicy::None);
        assert_eq!(admitted_of(&mut scheduler, &[("2", &two), ("2", &two), ("2", &two)]).len(), 3);
    }
}
