//! The controller: serialises epochs, orders and changes of tiers, and keeps the settings of users: mode, freeze, and the
//! largest budgets of tiers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Condvar;
use terrace_model::{Result, TieringMode};

use super::control::Control;
use super::epoch_steps::ProposedMove;
use super::lock_order::{OrderedMutex, OrderedMutexGuard, OrderedReadGuard, OrderedRwLock, OrderedWriteGuard, Rank};
use super::tier_set::CounterRows;
use super::tiering::{TieringHost, TieringOptions};

/// The signals and locks by which epochs, orders and changes of tiers take turns.
pub(super) struct Controller {
    settings: OrderedRwLock<Control>,
    /// Lets one epoch, order or change of tiers run at a time; guards the number of the last epoch, `None`: not loaded yet.
    epoch_mutex: OrderedMutex<Option<u64>>,
    /// Number of the epoch or order that is under way; 0: none. Dry runs change nothing and do not count.
    under_way: AtomicU64,
    /// True while an epoch is under way; false during an order that holds the epoch mutex.
    in_epoch: AtomicBool,
    /// True while the epoch under way is one of the loop's own: it gives way to a requested one.
    in_background: AtomicBool,
    /// The moves that were proposed last.
    proposed: OrderedMutex<Vec<ProposedMove>>,
    signal: OrderedMutex<Signal>,
    wake: Condvar,
    /// Held while tiers come, go, or are drained; guards the rows of their counters.
    counter_rows: OrderedMutex<CounterRows>,
    /// Read-locked by explanations and advice, which run without the epoch mutex; tiers change only between them.
    tier_set: OrderedRwLock<()>,
    tiers_changed_unix_us: AtomicU64,
    /// The largest budget of each tier that may have one, by name.
    max_budget_bytes: OrderedMutex<HashMap<String, u64>>,
}

#[derive(Debug, Default)]
struct Signal {
    stop: bool,
    interval: Duration,
    /// The trigger of an epoch that was requested to run at once.
    wanted: Option<&'static str>,
}

/// Why the loop's thread wakes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeUp {
    /// The loop ends.
    Stop,
    /// The interval is over.
    Interval,
    /// An epoch was requested, with this trigger.
    Wanted(&'static str),
}

/// The epochs that a waiting thread interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interruptible {
    /// Every epoch.
    Any,
    /// Those of the loop itself.
    Background,
}

impl Controller {
    /// Makes a controller with default settings and the largest budgets of the options.
    pub(super) fn new(options: &TieringOptions) -> Self {
        Self {
            settings: OrderedRwLock::new(Rank::Leaf, Control::default()),
            epoch_mutex: OrderedMutex::new(Rank::Epoch, None),
            under_way: AtomicU64::new(0),
            in_epoch: AtomicBool::new(false),
            in_background: AtomicBool::new(false),
            proposed: OrderedMutex::new(Rank::Leaf, Vec::new()),
            signal: OrderedMutex::new(Rank::Leaf, Signal::default()),
            wake: Condvar::new(),
            counter_rows: OrderedMutex::new(Rank::CounterRows, CounterRows::default()),
            tier_set: OrderedRwLock::new(Rank::TierSet, ()),
            tiers_changed_unix_us: AtomicU64::new(0),
            max_budget_bytes: OrderedMutex::new(Rank::Leaf, options.max_budget_bytes.clone()),
        }
    }

    /// The settings of users.
    pub(super) fn settings(&self) -> Control {
        self.settings.read().clone()
    }

    /// Restores the saved settings at the start.
    pub(super) fn restore(&self, settings: Control) {
        *self.settings.write() = settings;
    }

    /// Sets the mode for this run of the server.
    pub(super) fn set_mode(&self, mode: TieringMode) {
        self.settings.write().mode = mode;
    }

    /// Changes the settings once the changed ones are durable.
    ///
    /// # Errors
    /// When they cannot be made durable; nothing has changed then.
    pub(super) fn change_settings(&self, host: &dyn TieringHost, change: impl FnOnce(&mut Control)) -> Result<()> {
        // Held across the commit, so that two changes do not overwrite each other.
        let mut settings = self.settings.write();
        let mut next = settings.clone();
        change(&mut next);
        host.save_control(&next)?;
        *settings = next;
        Ok(())
    }

    /// Waits until no epoch, order or change of tiers is under way, and keeps others from beginning. The guarded value is
    /// the number of the last epoch; `None`: not loaded yet.
    #[track_caller]
    pub(super) fn lock_epoch(&self) -> OrderedMutexGuard<'_, Option<u64>> {
        self.epoch_mutex.lock()
    }

    /// Like [`Controller::lock_epoch`]; `None` while something is under way.
    #[track_caller]
    pub(super) fn try_lock_epoch(&self) -> Option<OrderedMutexGuard<'_, Option<u64>>> {
        self.epoch_mutex.try_lock()
    }

    /// Like [`Controller::lock_epoch`]; `None` when something was under way all the time.
    #[track_caller]
    pub(super) fn try_lock_epoch_for(&self, patience: Duration) -> Option<OrderedMutexGuard<'_, Option<u64>>> {
        self.epoch_mutex.try_lock_for(patience)
    }

    /// Marks epoch or order `id` as under way until the guard is dropped.
    pub(super) fn begin(&self, id: u64) -> UnderWay<'_> {
        self.under_way.store(id, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    /// Number of the epoch or order that is under way.
    pub(super) fn under_way(&self) -> Option<u64> {
        Some(self.under_way.load(Ordering::Relaxed)).filter(|epoch| *epoch > 0)
    }

    /// Notes that an epoch holds the epoch mutex, until the guard is dropped; with `background` it is one of the loop.
    pub(super) fn begin_epoch(&self, background: bool) -> EpochUnderWay<'_> {
        self.in_epoch.store(true, Ordering::Relaxed);
        self.in_background.store(background, Ordering::Relaxed);
        EpochUnderWay(self)
    }

    /// True while an epoch of this kind is under way.
    pub(super) fn is_under_way(&self, which: Interruptible) -> bool {
        match which {
            Interruptible::Any => self.in_epoch.load(Ordering::Relaxed),
            Interruptible::Background => self.in_background.load(Ordering::Relaxed),
        }
    }

    /// Keeps the proposals of an epoch. Returns those of the epoch before.
    pub(super) fn replace_proposals(&self, proposed: Vec<ProposedMove>) -> Vec<ProposedMove> {
        std::mem::replace(&mut *self.proposed.lock(), proposed)
    }

    /// Lets the loop run after [`Controller::stop`].
    pub(super) fn open(&self) {
        self.signal.lock().stop = false;
    }

    /// Ends the loop.
    pub(super) fn stop(&self) {
        self.signal.lock().stop = true;
        self.wake.notify_all();
    }

    /// True when the store is closing.
    pub(super) fn is_stopping(&self) -> bool {
        self.signal.lock().stop
    }

    /// Changes the interval of the loop; it begins anew.
    pub(super) fn set_interval(&self, interval: Duration) {
        self.signal.lock().interval = interval;
        self.wake.notify_all();
    }

    /// Sets the trigger with which the loop begins; `None`: it begins with the interval.
    pub(super) fn set_first_trigger(&self, reason: Option<&'static str>) {
        self.signal.lock().wanted = reason;
    }

    /// Asks the loop for an epoch at once.
    pub(super) fn wake(&self, reason: &'static str) {
        self.signal.lock().wanted = Some(reason);
        self.wake.notify_all();
    }

    /// Waits until the loop has to do something.
    pub(super) fn wait(&self) -> WakeUp {
        let mut signal = self.signal.lock();
        loop {
            if signal.stop {
                return WakeUp::Stop;
            }
            if let Some(reason) = signal.wanted.take() {
                return WakeUp::Wanted(reason);
            }
            let interval = signal.interval;
            if signal.wait_for(&self.wake, interval).timed_out() {
                return WakeUp::Interval;
            }
        }
    }

    /// Keeps tiers from coming, going and being drained.
    #[track_caller]
    pub(super) fn lock_counter_rows(&self) -> OrderedMutexGuard<'_, CounterRows> {
        self.counter_rows.lock()
    }

    /// Prevents changes of the set of tiers until the guard is dropped.
    #[track_caller]
    pub(super) fn read_tier_set(&self) -> OrderedReadGuard<'_, ()> {
        self.tier_set.read()
    }

    /// Waits until no other thread holds the guard of [`Self::read_tier_set`], and blocks new ones.
    #[track_caller]
    pub(super) fn write_tier_set(&self) -> OrderedWriteGuard<'_, ()> {
        self.tier_set.write()
    }

    /// Time of the last change of the set of tiers, in microseconds since the Unix epoch; 0 when there was none.
    pub(super) fn tiers_changed_unix_us(&self) -> u64 {
        self.tiers_changed_unix_us.load(Ordering::Relaxed)
    }

    /// Notes the time of a change of the set of tiers.
    pub(super) fn note_tiers_changed(&self, unix_us: u64) {
        self.tiers_changed_unix_us.store(unix_us, Ordering::Relaxed);
    }

    /// The largest budget that a tier may have, in bytes; `None`: any.
    pub(super) fn max_budget_bytes(&self, tier: &str) -> Option<u64> {
        self.max_budget_bytes.lock().get(tier).copied()
    }

    /// Sets the largest budget that a tier may have.
    pub(super) fn set_max_budget(&self, tier: &str, bytes: u64) {
        self.max_budget_bytes.lock().insert(tier.to_owned(), bytes);
    }

    /// Changes the largest budget of a tier that has one.
    pub(super) fn change_max_budget(&self, tier: &str, change: impl FnOnce(u64) -> u64) {
        if let Some(bytes) = self.max_budget_bytes.lock().get_mut(tier) {
            *bytes = change(*bytes);
        }
    }

    /// Forgets the largest budget of a tier that is gone.
    pub(super) fn forget_max_budget(&self, tier: &str) {
        self.max_budget_bytes.lock().remove(tier);
    }
}

/// Guard of [`Controller::begin`].
pub(super) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Guard of [`Controller::begin_epoch`].
pub(super) struct EpochUnderWay<'a>(&'a Controller);

impl Drop for EpochUnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_epoch.store(false, Ordering::Relaxed);
        self.0.in_background.store(false, Ordering::Relaxed);
    }
}
