//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terrace_tier_store::clock::{Clock, SystemClock};

use crate::terminal::errln;
use crate::units::human_bytes;

/// Time between two plain lines.
const LINE_US: u64 = 5_000_000;

/// Progress of one table.
#[derive(Debug)]
pub struct Progress {
    table: String,
    bar: ProgressBar,
    plain: bool,
    clock: SystemClock,
    rows: AtomicU64,
    bytes: AtomicU64,
    next_line_us: AtomicU64,
}

impl Progress {
    /// Starts the progress; `rows` is the expected number, where known.
    pub fn start(table: &str, rows: Option<u64>) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = rows.map_or_else(ProgressBar::no_length, ProgressBar::new);
        bar.set_draw_target(if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() });
        let template = match rows {
            Some(_) => "{prefix:<16} [{bar:30}] {percent:>3} %  {human_pos} rows  {msg}",
            None => "{prefix:<16} {spinner} {human_pos} rows  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(table.to_owned());
        Self {
            table: table.to_owned(),
            bar,
            plain,
            clock: SystemClock::default(),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            next_line_us: AtomicU64::new(LINE_US),
        }
    }

    /// Prints that an earlier run stored `rows`.
    pub fn resume(&self, rows: u64) {
        errln!("{:<16} resuming after {rows} rows", self.table);
        self.bar.set_position(rows);
    }

    /// Counts rows that were read and their bytes in Arrow form.
    pub fn add(&self, rows: u64, bytes: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(rows);
        self.bar.set_message(self.rates());
        let now_us = self.clock.now_us();
        if self.plain && now_us >= self.next_line_us.load(Ordering::Relaxed) {
            self.next_line_us.store(now_us + LINE_US, Ordering::Relaxed);
            errln!("{}: {} rows, {}", self.table, self.rows.load(Ordering::Relaxed), self.rates());
        }
    }

    /// Shows that all rows were read and are being sorted and stored.
    pub fn storing(&self) {
        self.bar.set_message(format!("{}, storing", self.rates()));
    }

    /// Ends with a line that stays on the screen.
    pub fn finish(&self, rows: u64) {
        self.bar.finish_and_clear();
        let seconds = self.clock.now_us() as f64 / 1e6;
        let rates = self.rates();
        errln!("{:<16} {rows:>12} rows in {seconds:.1} s  {rates}", self.table);
    }

    /// Removes the bar after an error.
    pub fn abandon(&self) {
        self.bar.finish_and_clear();
    }

    fn rates(&self) -> String {
        let seconds = (self.clock.now_us() as f64 / 1e6).max(1e-3);
        let rows = self.rows.load(Ordering::Relaxed) as f64 / seconds;
        let bytes = self.bytes.load(Ordering::Relaxed) as f64 / seconds;
        format!("{} rows/s, {}/s", human_count(rows), human_bytes(bytes as u64))
    }
}

/// 1,234,567 as "1.2 M".
fn human_count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 1e3 => format!("{:.1} k", v / 1e3),
        v => format!("{v:.0}"),
    }
}
