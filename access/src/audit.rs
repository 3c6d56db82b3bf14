//! The audit trail: who did what, from where, on which objects, and how it ended.
//!
//! Flight, HTTP and the engine record [`Event`]s in one [`Trail`]. It keeps the last ones in memory, for `system.audit`, and where
//! a file is configured a thread appends them to it, each as one line of JSON. Nobody who records waits for the disk: events that
//! find the queue of that thread full are lost and counted. With [`WhenFull::Wait`] statements begin only while the queue has room.
//!
//! - `event`: one event

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use terrace_model::clock::{Clock, SystemClock};

use crate::lines::{Line, LineLog, LogFile, LogOptions, RotatingFile};

mod event;

pub use event::{Ending, Event, EventKind, Origin, Port};

/// The log of events. Its thread does not wait for more: each event is written as soon as it can.
const LOG: LogOptions =
    LogOptions { name: "the audit trail", thread: "terrace-audit", capacity: 16_384, linger: Duration::ZERO };

impl Line for Arc<Event> {
    fn append_to(&self, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(lines, &**self)
    }
}

/// Which events are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditScope {
    /// None.
    Off,
    /// All but statements that only read, or change only their session.
    #[default]
    Changes,
    /// All.
    All,
}

/// What happens while events come faster than they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// Events are lost, and counted.
    #[default]
    Lose,
    /// Statements wait before they begin.
    Wait,
}

/// Options of a trail.
#[derive(Debug, Clone)]
pub struct TrailOptions {
    /// Which events are recorded.
    pub scope: AuditScope,
    /// The file; `None`: events are kept in memory only.
    pub file: Option<LogFile>,
    /// What happens while events come faster than they are written.
    pub when_full: WhenFull,
    /// Events that are kept in memory.
    pub remembered: usize,
}

impl Default for TrailOptions {
    fn default() -> Self {
        Self { scope: AuditScope::default(), file: None, when_full: WhenFull::default(), remembered: 1_000 }
    }
}

/// The audit trail of a server.
pub struct Trail {
    scope: AuditScope,
    when_full: WhenFull,
    remembered: usize,
    latest: Mutex<VecDeque<Arc<Event>>>,
    /// `None` without a file.
    writer: Option<LineLog<Arc<Event>>>,
    clock: Arc<dyn Clock>,
    recorded: AtomicU64,
    lost: AtomicU64,
}

impl fmt::Debug for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trail").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Default for Trail {
    /// One that keeps events in memory.
    fn default() -> Self {
        Self::new(TrailOptions::default(), None, Arc::new(SystemClock::default()))
    }
}

impl Trail {
    /// Starts a trail.
    ///
    /// # Errors
    /// When the file cannot be opened, or its thread not be started.
    pub fn start(options: TrailOptions, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        let file = options.file.clone().map(|file| RotatingFile::open(file, clock.unix_us())).transpose()?;
        let writer = file.map(|file| LineLog::over(file, LOG, Arc::clone(&clock))).transpose()?;
        Ok(Arc::new(Self::new(options, writer, clock)))
    }

    fn new(options: TrailOptions, writer: Option<LineLog<Arc<Event>>>, clock: Arc<dyn Clock>) -> Self {
        Self {
            scope: options.scope,
            when_full: options.when_full,
            remembered: options.remembered,
            latest: Mutex::default(),
            writer,
            clock,
            recorded: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Whether events of changes are recorded, or for `false` those of reads.
    pub fn records(&self, changes: bool) -> bool {
        match self.scope {
            AuditScope::Off => false,
            AuditScope::Changes => changes,
            AuditScope::All => true,
        }
    }

    /// Records an event, with its number and the time. Never waits.
    pub fn record(&self, mut event: Event) {
        if self.scope == AuditScope::Off {
            return;
        }
        event.time_unix_us = self.clock.unix_us();
        // One lock, so that the file has them in the order of their numbers.
        let mut latest = self.latest.lock();
        event.number = self.recorded.fetch_add(1, Ordering::Relaxed) + 1;
        let event = Arc::new(event);
        if self.writer.as_ref().is_some_and(|writer| !writer.send(Arc::clone(&event))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        if self.remembered > 0 {
            while latest.len() >= self.remembered {
                latest.pop_front();
            }
            latest.push_back(event);
        }
    }

    /// The events that are kept in memory, the newest first.
    pub fn latest(&self) -> Vec<Arc<Event>> {
        self.latest.lock().iter().rev().cloned().collect()
    }

    /// Waits while the queue is half full, where statements are to wait: the other half is for events of those that run.
    pub async fn ready(&self) {
        if let (WhenFull::Wait, Some(writer)) = (self.when_full, &self.writer) {
            writer.has_room().await;
        }
    }

    /// Waits until all events so far are written, for `most` at most if the file does not take them.
    pub fn flush(&self, most: Duration) {
        if let Some(writer) = &self.writer {
            writer.flush(most);
        }
    }

    /// Events recorded since the start.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Events that are missing in the file, because the queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Events that wait to be written.
    pub fn queued(&self) -> usize {
        self.writer.as_ref().map_or(0, LineLog::queued)
    }

    /// Whether the file does not take events now; it is tried again and again.
    pub fn is_failing(&self) -> bool {
        self.writer.as_ref().is_some_and(LineLog::is_failing)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn event(user: &str) -> Event {
        Event::new(EventKind::Statement, "insert", user, Origin::default())
    }

    fn trail(scope: AuditScope, remembered: usize) -> Trail {
        Trail::new(TrailOptions { scope, remembered, ..Default::default() }, None, Arc::new(SystemClock::default()))
    }

    fn users(trail: &Trail) -> Vec<String> {
        trail.latest().iter().map(|event| format!("{}{}", event.user, event.number)).collect()
    }

    #[test]
    fn the_latest_events_are_kept() {
        let trail = trail(AuditScope::Changes, 2);
        for user in ["a", "b", "c"] {
            trail.record(event(user));
        }
        assert_eq!(users(&trail), ["c3", "b2"]);
        assert_eq!((trail.recorded(), trail.lost(), trail.queued(), trail.is_failing()), (3, 0, 0, false));
        assert!(trail.records(true) && !trail.records(false));
    }

    #[test]
    fn nothing_is_recorded_where_the_trail_is_off() {
        let trail = trail(AuditScope::Off, 2);
        trail.record(event("a"));
        assert!(trail.latest().is_empty() && !trail.records(true) && trail.recorded() == 0);
    }

    #[test]
    fn events_come_to_the_file_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let file = LogFile { path: path.clone(), max_bytes: 1 << 20, keep: 1, keep_for: None };
        let options = TrailOptions { file: Some(file), ..Default::default() };
        let trail = Trail::start(options, Arc::new(SystemClock::default())).unwrap();
        for number in 0..5_000 {
            trail.record(event(&number.to_string()));
        }
        trail.flush(Duration::from_secs(60));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5_000);
        for (number, line) in lines.iter().enumerate() {
            assert_eq!(line["user"], number.to_string());
            assert_eq!(line["number"], number + 1);
        }
    }
}
