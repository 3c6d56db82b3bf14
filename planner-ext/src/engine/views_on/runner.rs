//! Schedules runs of hot views: when a run starts, for a statement or in the background, and how its version is published.
//!
//! ```text
//!   CREATE      version 1, pending ----> background run -----> published: scans skip chunks by it
//!   REFRESH     version n + 1, pending -> run, the statement waits -> published in place of version n
//!   every refresh interval: a window moves (as by REFRESH); a run marks the chunks written since
//! ```
//!
//! One run executes at a time. A background run stops when a statement waits, and continues after it. The catalog stores
//! a pending version with its mark, so a run continues after a restart where it ended: the chunks carry the marks that it
//! has set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_scan::hot_views::RunCounters;
use terrace_tier_store::clock::Clock;
use terrace_tier_store::table::{Marked, TableName};
use terrace_views::{Definition, HotViews, PublishedVersion};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinHandle;

use crate::engine::{Engine, tasks};
use crate::error::{Error, ErrorKind, Result};

/// Interval at which the runner looks for due views.
const TICK: Duration = Duration::from_secs(1);
/// Longest single sleep of a background run, so that it reacts soon when it must end.
const SLEEP_STEP: Duration = Duration::from_millis(50);
/// Least time before a run that failed is tried again.
const RETRY_US: u64 = 60_000_000;

/// State of the runner: one for each engine.
#[derive(Debug, Default)]
pub(in crate::engine) struct HotViewRunner {
    /// Held by the run that executes, whichever thread executes it.
    run_lock: Arc<tokio::sync::Mutex<()>>,
    /// Statements that wait for `run_lock`.
    waiting: AtomicUsize,
    stopped: AtomicBool,
    wake: Notify,
    /// Time of the next check of each view, in microseconds since 1970.
    next_check_us: Mutex<HashMap<TableName, u64>>,
}

impl HotViewRunner {
    /// Ends the run under way and begins none in the background.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Makes the background task look for due views now.
    pub(in crate::engine) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Forgets the next check of a view, because its refresh interval changed.
    pub(super) fn clear_schedule(&self, view: &TableName) {
        self.next_check_us.lock().remove(view);
    }

    /// True once no run may begin or continue.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Whether a run belongs to a statement or to the background.
#[derive(Debug, Clone)]
enum RunPurpose {
    /// A statement waits for it; the flag becomes true when the statement is gone, and the run ends.
    Statement(Arc<AtomicBool>),
    /// No statement waits for it: it reads and writes at most so many bytes per second, and ends when a statement waits.
    Background { bytes_per_s: u64 },
}

impl RunPurpose {
    /// Called after the run has read and written `bytes`: sleeps as the byte rate demands, and returns whether to continue.
    fn may_go_on(&self, runner: &HotViewRunner, clock: &dyn Clock, bytes: u64) -> bool {
        let stopped = || runner.is_stopped();
        match self {
            Self::Statement(stop) => !stopped() && !stop.load(Ordering::Acquire),
            Self::Background { bytes_per_s } => {
                let must_end = || stopped() || runner.waiting.load(Ordering::Acquire) > 0;
                let mut left = Duration::from_micros(bytes.saturating_mul(1_000_000) / (*bytes_per_s).max(1));
                while !left.is_zero() && !must_end() {
                    let step = left.min(SLEEP_STEP);
                    clock.sleep(step);
                    left -= step;
                }
                !must_end()
            }
        }
    }
}

/// Sets the flag of a statement's run when the statement is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Counts a statement among the waiting ones until it is dropped.
struct WaitingStatement<'a>(&'a AtomicUsize);

impl<'a> WaitingStatement<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for WaitingStatement<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type RunGuard = OwnedMutexGuard<()>;

impl Engine {
    /// Stores the next version of a view, bound to the present time, and runs it to its end.
    pub(super) async fn refresh_view(&self, view: &Definition) -> Result<()> {
        let Some(version) = self.store_next_version(view).await? else { return Ok(()) };
        let run_guard = {
            let _waiting = WaitingStatement::new(&self.hot_views.runner.waiting);
            Arc::clone(&self.hot_views.runner.run_lock).lock_owned().await
        };
        let Some(definition) = self.stored_version(&version)? else { return Ok(()) };
        let stop = StopOnDrop(Arc::default());
        let (run_guard, result) =
            task_result(self.spawn_run(&definition, RunPurpose::Statement(Arc::clone(&stop.0)), run_guard).await)?;
        result?;
        self.publish(&definition, run_guard).await
    }

    /// Stores the next version of a view, bound to the present time; `None` when a newer version is stored already.
    async fn store_next_version(&self, view: &Definition) -> Result<Option<Definition>> {
        let _name_lock = self.name_lock.lock().await;
        let Some(now) = self.stored_version(view)? else { return Ok(None) };
        let next = self.next_version(&now);
        let views_writer = Arc::clone(&self.hot_views.views);
        let put = move || {
            views_writer.bind(&Arc::new(next.clone()))?;
            views_writer.put(&next)?;
            Ok(Some(next))
        };
        self.blocking(put).await
    }

    /// Returns the stored definition; `None` when it is no longer of this version.
    fn stored_version(&self, version: &Definition) -> Result<Option<Arc<Definition>>> {
        let views = self.hot_views.views.current()?;
        let now = views.get(&version.name).map(|status| Arc::clone(&status.definition));
        Ok(now.filter(|now| now.version == version.version && now.made_at_us == version.made_at_us))
    }

    fn spawn_run(
        &self,
        definition: &Arc<Definition>,
        purpose: RunPurpose,
        run_guard: RunGuard,
    ) -> JoinHandle<(RunGuard, Result<()>)> {
        let runner = Arc::clone(&self.hot_views.runner);
        let views = Arc::clone(&self.hot_views.views);
        let clock = Arc::clone(&self.clock);
        let definition = Arc::clone(definition);
        self.options.cpu.spawn_blocking(move || {
            let pace = |bytes| purpose.may_go_on(&runner, clock.as_ref(), bytes) && views.is_current(&definition);
            views.runs().begin(&definition.name);
            let result = run_to_end(&views, &definition, views.runs(), &pace);
            if !views.is_current(&definition) {
                views.forget_unknown(&definition.table);
            }
            let ended = match &result {
                Ok(()) => Some(Ok(())),
                Err(error) if error.kind() == ErrorKind::Cancelled => None,
                Err(error) => Some(Err(error.message().to_owned())),
            };
            views.runs().end(&definition.name, ended);
            (run_guard, result)
        })
    }

    /// Publishes a version whose run has ended, if it is still the newest one: from then on queries are checked against it.
    async fn publish(&self, definition: &Definition, run_guard: RunGuard) -> Result<()> {
        let name_lock = self.name_lock.lock().await;
        let (Some(now), Some(mark)) = (self.stored_version(definition)?, definition.mark) else { return Ok(()) };
        if !now.is_pending() || now.mark != Some(mark) {
            return Ok(());
        }
        let at_us = self.clock.unix_us();
        let mut next = now.as_ref().clone();
        let published =
            PublishedVersion { mark, version: definition.version, bound_at_us: definition.bound_at_us, at_us };
        next.published = Some(published);
        let views_writer = Arc::clone(&self.hot_views.views);
        let table = next.table.clone();
        self.blocking(move || views_writer.put(&next)).await?;
        drop(name_lock);
        // Readers of an older table version hold its chunks, and with them their marks.
        let views_writer = Arc::clone(&self.hot_views.views);
        let forget = move || {
            let _run_guard = run_guard;
            views_writer.forget_unknown(&table);
            Ok(())
        };
        self.blocking(forget).await
    }

    /// Builds the next version of a view, pending and bound to the present time.
    pub(super) fn next_version(&self, definition: &Definition) -> Definition {
        let version = definition.version + 1;
        let bound_at_us = self.clock.unix_us();
        Definition { version, bound_at_us, mark: None, ..definition.clone() }
    }
}

fn run_to_end(
    views: &HotViews,
    definition: &Arc<Definition>,
    counters: &RunCounters,
    pace: &dyn Fn(u64) -> bool,
) -> Result<()> {
    views.forget_unknown(&definition.table);
    loop {
        let job = views.job(definition)?;
        return match job.run(counters, pace) {
            // The table was dropped, and its views with it.
            Err(_) if !job.is_there() => {
                Err(Error::new(ErrorKind::Cancelled, format!("table '{}' was dropped or replaced", definition.table)))
            }
            // The table was altered: it has the same chunks under another definition.
            Err(error) if error.kind() == ErrorKind::Aborted && pace(0) => continue,
            result => result,
        };
    }
}

fn task_result<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| tasks::join_error(&error))
}

/// Starts the background task that runs due views as long as the engine lives.
pub(super) fn start(engine: &Arc<Engine>) {
    let bytes_per_s = engine.options.hot_view_bytes_per_s;
    if bytes_per_s == 0 {
        return;
    }
    let weak = Arc::downgrade(engine);
    let runner = Arc::clone(&engine.hot_views.runner);
    engine.options.cpu.spawn(async move {
        while !runner.is_stopped() {
            if let Err(error) = run_due_views(&weak, &runner, bytes_per_s).await {
                tracing::warn!(%error, "cannot run the hot views that are due; trying again later");
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = runner.wake.notified() => {}
            }
            if weak.strong_count() == 0 {
                return;
            }
        }
    });
}

/// Runs the due views. No reference to the engine is kept while a run executes, so that the engine can be dropped.
async fn run_due_views(weak: &Weak<Engine>, runner: &Arc<HotViewRunner>, bytes_per_s: u64) -> Result<()> {
    let due = match weak.upgrade() {
        Some(engine) => engine.due_views()?,
        None => return Ok(()),
    };
    for (definition, window_moves) in due {
        if runner.is_stopped() {
            return Ok(());
        }
        let definition = match weak.upgrade() {
            Some(engine) if window_moves => engine.store_next_version(&definition).await?,
            _ => Some(definition),
        };
        let Some(definition) = definition else { continue };
        let run_guard = Arc::clone(&runner.run_lock).lock_owned().await;
        let Some(engine) = weak.upgrade() else { return Ok(()) };
        // Scheduled before the run, so that a failing run is not repeated at once.
        let retry_us = engine.clock.unix_us() + RETRY_US;
        runner
            .next_check_us
            .lock()
            .insert(definition.name.clone(), retry_us.min(engine.scheduled_check_us(&definition)));
        let Some(definition) = engine.stored_version(&definition)? else { continue };
        let run = engine.spawn_run(&definition, RunPurpose::Background { bytes_per_s }, run_guard);
        drop(engine);
        let (run_guard, result) = task_result(run.await)?;
        let Some(engine) = weak.upgrade() else { return Ok(()) };
        match result {
            Ok(()) => {
                engine.publish(&definition, run_guard).await?;
                runner.next_check_us.lock().insert(definition.name.clone(), engine.scheduled_check_us(&definition));
            }
            // The run stopped for a waiting statement: it is due again at once.
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                _ = runner.next_check_us.lock().remove(&definition.name)
            }
            Err(error) => tracing::warn!(%error, view = %definition.name, "a run of a hot view failed"),
        }
    }
    Ok(())
}

impl Engine {
    /// Time of the next check of a view, one refresh interval from now.
    fn scheduled_check_us(&self, definition: &Definition) -> u64 {
        match definition.refresh_us {
            0 => u64::MAX,
            interval => self.clock.unix_us().saturating_add(interval),
        }
    }

    /// Returns the due views, each with whether its window has to move first.
    fn due_views(&self) -> Result<Vec<(Definition, bool)>> {
        let now_us = self.clock.unix_us();
        let mut due = Vec::new();
        for status in self.hot_views.views.current()?.iter() {
            let (definition, Ok(bound)) = (&status.definition, &status.bound) else { continue };
            let next_us = self.hot_views.runner.next_check_us.lock().get(&definition.name).copied().unwrap_or(0);
            let interval = definition.refresh_us;
            if definition.is_pending() {
                // After a failure the view waits until its next check; a newer version has not failed yet.
                if next_us <= now_us || self.hot_views.views.runs().error(&definition.name).is_none() {
                    due.push((definition.as_ref().clone(), false));
                }
            } else if interval > 0 && bound.is_moving() && definition.bound_at_us.saturating_add(interval) <= now_us {
                due.push((definition.as_ref().clone(), true));
            } else if interval > 0 && next_us <= now_us {
                match self.has_unmarked_chunks(definition) {
                    true => due.push((definition.as_ref().clone(), false)),
                    false => {
                        _ = self
                            .hot_views
                            .runner
                            .next_check_us
                            .lock()
                            .insert(definition.name.clone(), self.scheduled_check_us(definition))
                    }
                }
            }
        }
        Ok(due)
    }

    fn has_unmarked_chunks(&self, definition: &Definition) -> bool {
        let (Ok(table), Some(mark)) = (self.store.table(&definition.table), definition.mark) else { return false };
        table.version().chunks.iter().any(|entry| entry.chunk.marked(mark) == Marked::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use terrace_tier_store::clock::ManualClock;

    use super::*;

    #[test]
    fn a_background_run_keeps_to_its_rate_and_ends_for_a_statement() {
        let runner = HotViewRunner::default();
        let clock = ManualClock::default();
        let background = RunPurpose::Background { bytes_per_s: 1 << 20 };
        assert!(background.may_go_on(&runner, &clock, 3 << 20));
        assert_eq!(clock.now_us(), 3_000_000);
        let statement = RunPurpose::Statement(Arc::default());
        assert!(statement.may_go_on(&runner, &clock, 3 << 20));
        let waiting = WaitingStatement::new(&runner.waiting);
        assert!(!background.may_go_on(&runner, &clock, 3 << 20), "it ends at once");
        drop(waiting);
        assert!(background.may_go_on(&runner, &clock, 0));
        runner.stop();
        assert!(!background.may_go_on(&runner, &clock, 0) && !statement.may_go_on(&runner, &clock, 0));
        assert_eq!(clock.now_us(), 3_000_000, "a statement's run has no rate");
    }
}
