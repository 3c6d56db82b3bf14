//! The scheduler by itself: who may run beside whom, and who is next.

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
        let request = Request {
            session: name.into(),
            user: "ann".into(),
            group: group(),
            demand: Demand::fixed(mib * MIB),
            memory: None,
        };
        self.ask(request, name, now_us).unwrap()
    }

    fn ask_for_point(&mut self, name: &'static str, now_us: u64) -> u64 {
        let request =
            Request { session: name.into(), user: "ann".into(), group: group(), demand: Demand::point(), memory: None };
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
    let request = |name: &str, demand, memory| Request {
        session: name.into(),
        user: "ann".into(),
        group: group(),
        demand,
        memory,
    };
    let stalled = scheduler.ask(request("stalled", Demand::fixed(1), Some(Arc::clone(&held))), "stalled", 0).unwrap();
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
            let request =
                Request { session: name.into(), user: "ann".into(), group: group(), demand: demand(), memory: None };
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
            Request { session: "s".into(), user: "ann".into(), group: group(), demand: Demand::fixed(0), memory: None },
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
    let request =
        Request { session: "third".into(), user: "ann".into(), group: group(), demand: Demand::fixed(0), memory: None };
    assert!(scheduler.ask(request, "third", 0).is_ok(), "it need not wait");
    scheduler.ask_for_point("point", 5_000);
    assert_eq!(scheduler.admitted(5_000), ["third", "point"], "however long the others have waited");
}

#[test]
fn no_user_has_all_slots_or_the_queue_for_itself() {
    let mut scheduler = scheduler(AdmissionPolicy::WeightedDemand);
    let all = group();
    let ask = |scheduler: &mut Scheduler<_>, user: &str, name: &'static str, now_us| {
        let demand = Demand::fixed(MIB);
        let group = Arc::clone(&all);
        let request = Request { session: name.into(), user: user.into(), group, demand, memory: None };
        scheduler.ask(request, name, now_us)
    };
    let running = ["a1", "a2", "a3", "a4"].map(|name| ask(&mut scheduler, "ann", name, 0).unwrap());
    assert_eq!(scheduler.admitted(0).len(), 4);
    for name in ["a5", "a6", "a7"] {
        ask(&mut scheduler, "ann", name, 0).unwrap();
    }
    assert_eq!(ask(&mut scheduler, "ann", "a8", 0).unwrap_err(), 3);
    ask(&mut scheduler, "bob", "b1", 0).unwrap();
    assert_eq!(ask(&mut scheduler, "bob", "b2", 0).unwrap_err(), 4, "each has a part of it");
    scheduler.end(running[0], 1);
    assert_eq!(scheduler.admitted(1), ["b1"], "though it came last");
    ask(&mut scheduler, "cid", "c1", 1).unwrap();
    scheduler.end(running[1], 5_000);
    assert_eq!(scheduler.admitted(5_000), ["c1"], "also of those that have waited for long");
    scheduler.end(running[2], 5_001);
    assert_eq!(scheduler.admitted(5_001), ["a5"]);
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
fn admitted_of(scheduler: &mut Scheduler<&'static str>, asked: &[(&'static str, &Arc<Group>)]) -> Vec<&'static str> {
    for (number, (name, group)) in asked.iter().enumerate() {
        let session = format!("{name}{number}").into();
        let request = Request {
            session,
            user: "ann".into(),
            group: Arc::clone(group),
            demand: Demand::fixed(10 * MIB),
            memory: None,
        };
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
        .ask(
            Request { session: "u2".into(), user: "ann".into(), group: urgent, demand: Demand::fixed(0), memory: None },
            "u",
            999,
        )
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
