//! Admission: which statements execute at once, and how many may wait for how long.
//!
//! Refusing early keeps the server alive and tells the client to try again; a queue without a bound only delays both.
//!
//! - [`policy`]: the rules that can be chosen
//! - [`demand`]: the query memory that a plan needs, weighted by time
//! - [`scheduler`]: the running and the waiting statements; decides who is next

mod demand;
mod policy;
mod scheduler;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_tier_store::clock::Clock;
use tokio::sync::oneshot;

use super::memory::StatementMemory;
use super::workload::{Group, Groups, WorkloadGroupRecord};
use crate::error::{Error, ErrorKind, Result};

pub(super) use demand::Demand;
pub use policy::AdmissionPolicy;
use scheduler::{Limits, Request, Scheduler};

/// How often a waiting statement looks whether the demand of the running ones has fallen.
const RECHECK: Duration = Duration::from_millis(100);

/// Limits of admission.
#[derive(Debug, Clone)]
pub(super) struct AdmissionOptions {
    pub(super) policy: AdmissionPolicy,
    /// Statements that execute at once, point statements apart.
    pub(super) max_running: usize,
    /// Point statements that execute at once besides.
    pub(super) point_slots: usize,
    /// Statements that wait.
    pub(super) max_queued: usize,
    /// Longest wait.
    pub(super) timeout: Duration,
    /// Query memory, which the demands of the running statements share.
    pub(super) memory_bytes: u64,
}

/// Limits the statements that execute at once and those that wait.
#[derive(Debug)]
pub(super) struct Admission {
    options: AdmissionOptions,
    scheduler: Mutex<Scheduler<Grant>>,
    /// When a waiting statement looked last, in microseconds.
    rechecked_us: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// The id of no statement.
const NOBODY: u64 = 0;

/// Tells a waiting statement that it may execute.
type Grant = oneshot::Sender<ExecutionSlot>;

/// A statement that asks for a slot.
pub(super) struct Applicant<'a> {
    pub(super) session: &'a str,
    /// Empty where nobody has shown who it is.
    pub(super) user: &'a str,
    pub(super) group: &'a Arc<Group>,
    pub(super) demand: Arc<Demand>,
    /// What it holds while it executes.
    pub(super) memory: Arc<StatementMemory>,
}

/// The right of one statement to execute; dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ExecutionSlot {
    admission: Arc<Admission>,
    id: u64,
    /// False while the statement has given the slot back.
    held: AtomicBool,
}

impl Drop for ExecutionSlot {
    fn drop(&mut self) {
        self.admission.with_scheduler(|scheduler, now_us| scheduler.end(self.id, now_us));
    }
}

impl ExecutionSlot {
    /// Lets others execute while the statement waits for its client.
    pub(super) fn give_back(&self) {
        if self.held.swap(false, Ordering::SeqCst) {
            self.admission.with_scheduler(|scheduler, now_us| scheduler.pause(self.id, now_us));
        }
    }

    /// Waits for a slot again, before all that have not begun.
    pub(super) async fn take_again(&self) {
        if self.held.load(Ordering::SeqCst) {
            return;
        }
        let (grant, granted) = oneshot::channel();
        self.admission.with_scheduler(|scheduler, now_us| scheduler.resume(self.id, grant, now_us));
        if let Some(slot) = self.admission.wait(granted).await {
            // This slot goes on; the granted one names the same entry and must not end it.
            slot.forget();
        }
        self.held.store(true, Ordering::SeqCst);
    }

    /// Frees the slot before it is dropped.
    pub(super) fn free(&self) {
        self.admission.with_scheduler(|scheduler, now_us| scheduler.end(self.id, now_us));
    }

    /// Counts a point statement that turned out to be none as one of the others.
    pub(super) fn demote(&self) {
        self.admission.with_scheduler(|scheduler, now_us| scheduler.demote(self.id, now_us));
    }

    /// Whether it has a slot for point statements.
    pub(super) fn is_point(&self) -> bool {
        self.admission.scheduler.lock().is_point(self.id)
    }

    /// Drops it without freeing the slot.
    fn forget(mut self) {
        self.id = NOBODY;
    }
}

impl Admission {
    pub(super) fn new(options: AdmissionOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let limits = Limits {
            policy: options.policy,
            max_running: options.max_running.max(1),
            point_slots: options.point_slots,
            max_queued: options.max_queued,
            memory_bytes: options.memory_bytes,
            ageing_us: u64::try_from(options.timeout.as_micros() / 4).unwrap_or(u64::MAX),
        };
        let scheduler = Mutex::new(Scheduler::new(limits));
        Arc::new(Self { options, scheduler, rechecked_us: AtomicU64::new(0), clock })
    }

    /// Statements waiting now.
    pub(super) fn queued(&self) -> usize {
        self.scheduler.lock().waiting()
    }

    /// Query memory that the running statements are expected to need, in bytes.
    pub(super) fn demand_bytes(&self) -> u64 {
        self.scheduler.lock().demand_bytes()
    }

    /// While memory is short, a statement begins only if it is a point statement or no other one executes.
    pub(super) fn set_memory_short(self: &Arc<Self>, is_short: bool) {
        self.with_scheduler(|scheduler, _| scheduler.set_memory_short(is_short));
    }

    /// What the statements of each workload group do now.
    pub(super) fn group_records(&self, groups: &Groups) -> Vec<WorkloadGroupRecord> {
        groups.all().iter().map(|group| self.group_record(group)).collect()
    }

    fn group_record(&self, group: &Arc<Group>) -> WorkloadGroupRecord {
        let load = self.scheduler.lock().group_load(group);
        WorkloadGroupRecord {
            group: group.options.clone(),
            is_configured: group.is_configured,
            running: load.running,
            queued: load.queued,
            demand_bytes: load.demand_bytes,
            reserved_bytes: load.reserved_bytes,
            admitted: group.counts.admitted.load(Ordering::Relaxed),
            refused: group.counts.refused.load(Ordering::Relaxed),
            waited_us: group.counts.waited_us.load(Ordering::Relaxed),
        }
    }

    /// Waits for a slot. [`ErrorKind::ResourceExhausted`] when the queue is full or the wait too long.
    pub(super) async fn acquire_slot(self: &Arc<Self>, applicant: Applicant<'_>) -> Result<ExecutionSlot> {
        let Applicant { session, user, group, demand, memory } = applicant;
        let since_us = self.clock.now_us();
        let slot = self.wait_for_slot(Request {
            session: session.into(),
            user: user.into(),
            group: Arc::clone(group),
            demand,
            memory: Some(memory),
        });
        let slot = slot.await;
        let waited_us = self.clock.now_us().saturating_sub(since_us);
        match &slot {
            Ok(_) => group.count_admitted(waited_us),
            Err(_) => group.count_refused(waited_us),
        }
        slot
    }

    async fn wait_for_slot(self: &Arc<Self>, request: Request) -> Result<ExecutionSlot> {
        let (grant, granted) = oneshot::channel();
        let group = Arc::clone(&request.group);
        let asked = self.with_scheduler(|scheduler, now_us| scheduler.ask(request, grant, now_us));
        let id = match asked {
            Ok(id) => id,
            Err(ahead) => {
                let message =
                    format!("the server is busy: {} statements run and {ahead} wait; try again", self.running());
                return Err(self.try_again(message));
            }
        };
        let mut given_up = GivenUpWait { admission: self, id };
        let slot = tokio::time::timeout(self.options.timeout, self.wait(granted)).await;
        match slot {
            Ok(Some(slot)) => {
                given_up.id = NOBODY;
                Ok(slot)
            }
            Ok(None) => Err(Error::new(ErrorKind::Unavailable, "the server is stopping; try again")),
            Err(_) => Err(self.try_again(format!(
                "the statement waited {:?} for one of {} execution slots; the server, or the workload group '{}', is \
                 busy, try again",
                self.options.timeout, self.options.max_running, group.options.name
            ))),
        }
    }

    /// Waits for a grant, and looks from time to time whether running statements need less than before.
    async fn wait(self: &Arc<Self>, mut granted: oneshot::Receiver<ExecutionSlot>) -> Option<ExecutionSlot> {
        loop {
            match tokio::time::timeout(RECHECK, &mut granted).await {
                Ok(slot) => return slot.ok(),
                Err(_) => self.recheck(),
            }
        }
    }

    /// Looks for all that wait, if none of them has looked lately.
    fn recheck(self: &Arc<Self>) {
        let now_us = self.clock.now_us();
        let last_us = self.rechecked_us.load(Ordering::Relaxed);
        let is_due = u128::from(now_us.saturating_sub(last_us)) >= RECHECK.as_micros();
        let exchange = || self.rechecked_us.compare_exchange(last_us, now_us, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && exchange().is_ok() {
            self.with_scheduler(|_, _| ());
        }
    }

    fn running(&self) -> usize {
        self.scheduler.lock().running()
    }

    fn try_again(&self, message: String) -> Error {
        let delay = Duration::from_micros(self.scheduler.lock().expected_wait_us());
        let bounded = delay.clamp(Duration::from_secs(1), self.options.timeout.max(Duration::from_secs(1)));
        Error::new(ErrorKind::ResourceExhausted, message).with_retry_after(bounded)
    }

    /// Changes the scheduler, and starts those that may execute then.
    fn with_scheduler<T>(self: &Arc<Self>, change: impl FnOnce(&mut Scheduler<Grant>, u64) -> T) -> T {
        let now_us = self.clock.now_us();
        let mut scheduler = self.scheduler.lock();
        let result = change(&mut scheduler, now_us);
        let granted = scheduler.admit(now_us);
        drop(scheduler);
        for (id, grant) in granted {
            let slot = ExecutionSlot { admission: Arc::clone(self), id, held: AtomicBool::new(true) };
            // One that nobody waits for any more is dropped, which frees it.
            let _ = grant.send(slot);
        }
        result
    }
}

/// Takes a statement out of the queue when its wait is given up.
struct GivenUpWait<'a> {
    admission: &'a Arc<Admission>,
    id: u64,
}

impl Drop for GivenUpWait<'_> {
    fn drop(&mut self) {
        self.admission.with_scheduler(|scheduler, now_us| scheduler.end(self.id, now_us));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_tier_store::clock::SystemClock;

    use super::*;
    use crate::engine::memory::QueryMemory;
    use crate::engine::workload::WorkloadGroup;

    fn admission(point_slots: usize) -> Arc<Admission> {
        let options = AdmissionOptions {
            policy: AdmissionPolicy::WeightedDemand,
            max_running: 1,
            point_slots,
            max_queued: 4,
            timeout: Duration::from_secs(10),
            memory_bytes: 1 << 20,
        };
        Admission::new(options, Arc::new(SystemClock::default()))
    }

    async fn acquire(admission: &Arc<Admission>, session: &str, demand: Arc<Demand>) -> Result<ExecutionSlot> {
        let memory = Arc::new(StatementMemory::new(&QueryMemory::new(1 << 20), None));
        let group = &Group::new(WorkloadGroup::new("default"));
        admission.acquire_slot(Applicant { session, user: "ann", group, demand, memory }).await
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_nothing_behind() {
        let admission = admission(0);
        let slot = acquire(&admission, "a", Demand::fixed(1)).await.unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(20), acquire(&admission, "b", Demand::fixed(1)));
        assert!(wait.await.is_err());
        assert_eq!(admission.queued(), 0);
        // Also while it waits to go on.
        slot.give_back();
        let other = acquire(&admission, "b", Demand::fixed(1)).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), slot.take_again()).await.is_err());
        drop(slot);
        drop(other);
        let third = acquire(&admission, "c", Demand::fixed(1)).await.unwrap();
        assert_eq!((admission.running(), Arc::strong_count(&admission)), (1, 2));
        third.give_back();
        third.take_again().await;
        third.take_again().await;
        drop(third);
        assert_eq!((admission.running(), Arc::strong_count(&admission)), (0, 1));
    }

    #[tokio::test]
    async fn a_slot_that_is_freed_goes_to_the_next_one() {
        let admission = admission(1);
        let first = acquire(&admission, "a", Demand::fixed(1)).await.unwrap();
        let point = acquire(&admission, "a", Demand::point()).await.unwrap();
        assert!(point.is_point() && !first.is_point());
        let waiting = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { acquire(&admission, "b", Demand::fixed(1)).await.map(drop) }
        });
        while admission.queued() == 0 {
            tokio::task::yield_now().await;
        }
        point.demote();
        drop(first);
        assert!(!point.is_point() && !waiting.is_finished(), "the demoted one has the slot");
        drop(point);
        waiting.await.unwrap().unwrap();
    }
}
