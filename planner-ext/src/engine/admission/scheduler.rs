//! The running and the waiting statements.
//!
//! Statements wait in the order of the priorities of their workload groups; at one priority the group that executes the
//! least for its weight comes first, in a group the user who executes the least, and of those the statement that arrived first. One that does not fit beside the
//! running ones lets others pass, until it has waited for a quarter of the longest wait; then it comes first, whatever its
//! group, and only point statements pass; of several such, those of the user who executes the least come first. So large statements and low priorities are delayed, not starved. A statement that
//! runs alone always fits, unless it has found out before that it needs more than stalled ones leave. One that waits for a limit of its session or of its group stops nobody else.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{AdmissionPolicy, Demand};
use crate::engine::memory::StatementMemory;
use crate::engine::workload::{Counts, Group};

/// Each user may have this part of the queue, also while others fill it.
const USER_SHARE: usize = 8;

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
    /// Empty where nobody has shown who it is.
    pub(super) user: Arc<str>,
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

/// When a waiting statement comes, the least first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It has executed before.
    Resumed,
    /// It has waited for long: by the statements that its user executes.
    Aged(u64),
    /// By its priority, by what its group executes for its weight, and by the statements that its user executes.
    Waiting(Reverse<u32>, u64, u64),
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
        let before: Vec<&Request> = before.filter(|before| before.group.options.priority >= priority).collect();
        let waiting = before.len();
        // Nobody fills the queue for others.
        let of_user = before.iter().filter(|before| before.user == request.user).count();
        let is_full = waiting >= self.limits.max_queued && of_user >= self.limits.max_queued.div_ceil(USER_SHARE);
        let starts_at_once = || {
            let is_next = || self.fits(&request, self.used_bytes()) && !self.is_blocked(now_us);
            self.has_point_slot(&request) || is_next()
        };
        if is_full && !starts_at_once() {
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
            let mut of_groups: HashMap<*const Counts, u64> = HashMap::new();
            let mut of_users: HashMap<&str, u64> = HashMap::new();
            for Entry { request, .. } in self.general() {
                *of_groups.entry(request.group.id()).or_default() += 1;
                *of_users.entry(&request.user).or_default() += 1;
            }
            places.sort_by_cached_key(|place| {
                let Some(waiting) = self.queue.get(*place) else { return Turn::Resumed };
                let Some(Request { group, user, .. }) = &waiting.request else { return Turn::Resumed };
                let of_user = of_users.get(&**user).copied().unwrap_or(0);
                if self.comes_first(waiting, now_us) {
                    return Turn::Aged(of_user);
                }
                let of_group = of_groups.get(&group.id()).copied().unwrap_or(0);
                let share = of_group.saturating_mul(1 << 32) / u64::from(group.options.weight.max(1));
                Turn::Waiting(Reverse(group.options.priority), share, of_user)
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
        let is_of_group = |request: &Request| request.group.id() == group.id();
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
mod tests;
