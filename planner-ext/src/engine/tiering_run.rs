//! Runs of hot views: when, for whom, and what becomes of a view when its run is over.
//!
//! ```text
//!   CREATE      version 1, pending ----> background run -----> published: scans leave chunks out by it
//!   REFRESH     version n + 1, pending -> run, the statement waits -> published in place of version n
//!   every refresh interval: a window moves (as by REFRESH); chunks written since are looked at
//! ```
//!
//! One run at a time; one in the background gives way to statements, and goes on after them. A pending version is in the
//! catalog, with its mark, so a run goes on after a restart where it ended: the chunks know how far it came.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_tier_store::clock::Clock;
use terrace_tier_store::table::{Marked, TableName};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinHandle;

use super::{Engine, run};
use crate::error::{Error, ErrorKind, Result};
use crate::views::{Definition, HotViews, Published, RunCounters};

/// How often it is looked for views that are due.
const TICK: Duration = Duration::from_secs(1);
/// A background run sleeps no longer at a time, so that it ends soon when it has to.
const NAP: Duration = Duration::from_millis(50);
/// Least time before a run that failed is tried again.
const RETRY_US: u64 = 60_000_000;

/// The runs of an engine.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Held by the run under way, by whichever thread does it.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Statements that wait for their turn.
    waiting: AtomicUsize,
    stopped: AtomicBool,
    wake: Notify,
    /// When views are looked at next, in microseconds since 1970.
    next: Mutex<HashMap<TableName, u64>>,
}

impl Runs {
    /// Ends the run under way and begins none in the background.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Looks for views that are due, now.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Another interval holds for a view.
    pub(super) fn forget(&self, view: &TableName) {
        self.next.lock().remove(view);
    }

    /// True once no run may begin or go on.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Whom a run is for.
#[derive(Debug, Clone)]
enum For {
    /// A statement, which ends it when this turns true.
    Statement(Arc<AtomicBool>),
    /// Nobody: it takes so many bytes per second at most, and ends when a statement waits.
    Background { bytes_per_s: u64 },
}

impl For {
    /// After `bytes` were read and written: whether to go on.
    fn goes_on(&self, runs: &Runs, clock: &dyn Clock, bytes: u64) -> bool {
        let stopped = || runs.is_stopped();
        match self {
            Self::Statement(gone) => !stopped() && !gone.load(Ordering::Acquire),
            Self::Background { bytes_per_s } => {
                let must_end = || stopped() || runs.waiting.load(Ordering::Acquire) > 0;
                let mut left = Duration::from_micros(bytes.saturating_mul(1_000_000) / (*bytes_per_s).max(1));
                while !left.is_zero() && !must_end() {
                    let nap = left.min(NAP);
                    clock.sleep(nap);
                    left -= nap;
                }
                !must_end()
            }
        }
    }
}

/// Says so when its statement is gone.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A statement that waits for its turn.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type Turn = OwnedMutexGuard<()>;

impl Engine {
    /// What runs of hot views did.
    pub fn view_runs(&self) -> &RunCounters {
        self.hot_views.runs()
    }

    /// Stores the next version of a view, bound to now, and runs it to its end.
    pub(super) async fn refresh_view(&self, view: &Definition) -> Result<()> {
        let Some(version) = self.advance(view).await? else { return Ok(()) };
        let turn = {
            let _waiting = Waiting::new(&self.runs.waiting);
            Arc::clone(&self.runs.turn).lock_owned().await
        };
        let Some(definition) = self.same_version(&version)? else { return Ok(()) };
        let gone = Gone(Arc::default());
        let (turn, result) = joined(self.spawn_run(&definition, For::Statement(Arc::clone(&gone.0)), turn).await)?;
        result?;
        self.publish(&definition, turn).await
    }

    /// The next version of a view, bound to now and stored; `None` when there is another one already.
    async fn advance(&self, view: &Definition) -> Result<Option<Definition>> {
        let _names = self.names.lock().await;
        let Some(now) = self.same_version(view)? else { return Ok(None) };
        let next = self.next_version(&now);
        let writer = Arc::clone(&self.hot_views);
        let put = move || {
            writer.bind(&Arc::new(next.clone()))?;
            writer.put(&next)?;
            Ok(Some(next))
        };
        self.blocking(put).await
    }

    /// The definition that is stored now; `None` when it is no longer of this version.
    fn same_version(&self, version: &Definition) -> Result<Option<Arc<Definition>>> {
        let views = self.hot_views.current()?;
        let now = views.get(&version.name).map(|status| Arc::clone(&status.definition));
        Ok(now.filter(|now| now.version == version.version && now.made_at_us == version.made_at_us))
    }

    fn spawn_run(&self, definition: &Arc<Definition>, whom: For, turn: Turn) -> JoinHandle<(Turn, Result<()>)> {
        let runs = Arc::clone(&self.runs);
        let views = Arc::clone(&self.hot_views);
        let clock = Arc::clone(&self.clock);
        let definition = Arc::clone(definition);
        self.options.cpu.spawn_blocking(move || {
            let pace = |bytes| whom.goes_on(&runs, clock.as_ref(), bytes) && views.is_current(&definition);
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
            (turn, result)
        })
    }

    /// Queries are checked against this version from now on, if it is still the newest one.
    async fn publish(&self, ran: &Definition, turn: Turn) -> Result<()> {
        let names = self.names.lock().await;
        let (Some(now), Some(mark)) = (self.same_version(ran)?, ran.mark) else { return Ok(()) };
        if !now.is_pending() || now.mark != Some(mark) {
            return Ok(());
        }
        let at_us = self.clock.unix_us();
        let mut next = now.as_ref().clone();
        let published = Published { mark, version: ran.version, bound_at_us: ran.bound_at_us, at_us };
        next.published = Some(published);
        let writer = Arc::clone(&self.hot_views);
        let table = next.table.clone();
        self.blocking(move || writer.put(&next)).await?;
        drop(names);
        // Who reads an older version of the table keeps its chunks, and what they know.
        let writer = Arc::clone(&self.hot_views);
        let forget = move || {
            let _turn = turn;
            writer.forget_unknown(&table);
            Ok(())
        };
        self.blocking(forget).await
    }

    /// The next version of a view, bound to now; it is pending.
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
            // A table that is gone took its views along.
            Err(_) if !job.is_there() => {
                Err(Error::new(ErrorKind::Cancelled, format!("table '{}' was dropped or replaced", definition.table)))
            }
            // It was altered: the same chunks under another definition.
            Err(error) if error.kind() == ErrorKind::Aborted && pace(0) => continue,
            result => result,
        };
    }
}

fn joined<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| run::join_error(&error))
}

/// Looks after views that are due, as long as the engine lives.
pub(super) fn start(engine: &Arc<Engine>) {
    let bytes_per_s = engine.options.hot_view_bytes_per_s;
    if bytes_per_s == 0 {
        return;
    }
    let weak = Arc::downgrade(engine);
    let runs = Arc::clone(&engine.runs);
    engine.options.cpu.spawn(async move {
        while !runs.is_stopped() {
            if let Err(error) = look(&weak, &runs, bytes_per_s).await {
                tracing::warn!(%error, "hot views are looked at later");
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = runs.wake.notified() => {}
            }
            if weak.strong_count() == 0 {
                return;
            }
        }
    });
}

/// Runs what is due. The engine is not held while a run works.
async fn look(weak: &Weak<Engine>, runs: &Arc<Runs>, bytes_per_s: u64) -> Result<()> {
    let due = match weak.upgrade() {
        Some(engine) => engine.due()?,
        None => return Ok(()),
    };
    for (definition, moves) in due {
        if runs.is_stopped() {
            return Ok(());
        }
        let definition = match weak.upgrade() {
            Some(engine) if moves => engine.advance(&definition).await?,
            _ => Some(definition),
        };
        let Some(definition) = definition else { continue };
        let turn = Arc::clone(&runs.turn).lock_owned().await;
        let Some(engine) = weak.upgrade() else { return Ok(()) };
        let retry_us = engine.clock.unix_us() + RETRY_US;
        runs.next.lock().insert(definition.name.clone(), retry_us.min(engine.after(&definition)));
        let Some(definition) = engine.same_version(&definition)? else { continue };
        let run = engine.spawn_run(&definition, For::Background { bytes_per_s }, turn);
        drop(engine);
        let (turn, result) = joined(run.await)?;
        let Some(engine) = weak.upgrade() else { return Ok(()) };
        match result {
            Ok(()) => {
                engine.publish(&definition, turn).await?;
                runs.next.lock().insert(definition.name.clone(), engine.after(&definition));
            }
            // For a statement, whose turn it is; it goes on at once.
            Err(error) if error.kind() == ErrorKind::Cancelled => _ = runs.next.lock().remove(&definition.name),
            Err(error) => tracing::warn!(%error, view = %definition.name, "a run of a hot view failed"),
        }
    }
    Ok(())
}

impl Engine {
    /// When a view is looked at again.
    fn after(&self, definition: &Definition) -> u64 {
        match definition.refresh_us {
            0 => u64::MAX,
            interval => self.clock.unix_us().saturating_add(interval),
        }
    }

    /// Views that are due, and whether their windows have to be moved before.
    fn due(&self) -> Result<Vec<(Definition, bool)>> {
        let now_us = self.clock.unix_us();
        let mut due = Vec::new();
        for status in self.hot_views.current()?.iter() {
            let (definition, Ok(bound)) = (&status.definition, &status.bound) else { continue };
            let next_us = self.runs.next.lock().get(&definition.name).copied().unwrap_or(0);
            let interval = definition.refresh_us;
            if definition.is_pending() {
                // One that failed waits; a newer version does not.
                if next_us <= now_us || self.hot_views.runs().error(&definition.name).is_none() {
                    due.push((definition.as_ref().clone(), false));
                }
            } else if interval > 0 && bound.is_moving() && definition.bound_at_us.saturating_add(interval) <= now_us {
                due.push((definition.as_ref().clone(), true));
            } else if interval > 0 && next_us <= now_us {
                match self.has_unknown_chunks(definition) {
                    true => due.push((definition.as_ref().clone(), false)),
                    false => _ = self.runs.next.lock().insert(definition.name.clone(), self.after(definition)),
                }
            }
        }
        Ok(due)
    }

    fn has_unknown_chunks(&self, definition: &Definition) -> bool {
        let (Ok(table), Some(mark)) = (self.store.table(&definition.table), definition.mark) else { return false };
        table.version().chunks.iter().any(|entry| entry.chunk.marked(mark) == Marked::Unknown)
    }
}
