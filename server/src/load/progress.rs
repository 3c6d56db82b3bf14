//! Progress on stderr: a bar on a terminal, plain lines elsewhere; and the sum of several tables.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terrace_tier_store::clock::{Clock, SystemClock};

use crate::layout::{plural, span};
use crate::terminal::errln;
use crate::units::human_bytes;

/// Time between two plain lines.
const LINE_US: u64 = 5_000_000;
/// Time after which the rate tells how long the rest takes.
const SETTLED_US: u64 = 1_000_000;

/// Progress of one table.
#[derive(Debug)]
pub struct Progress {
    table: String,
    expected: Option<u64>,
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
            expected: rows,
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
        self.bar.set_message(self.rates() + &self.rest());
        let now_us = self.clock.now_us();
        if self.plain && now_us >= self.next_line_us.load(Ordering::Relaxed) {
            self.next_line_us.store(now_us + LINE_US, Ordering::Relaxed);
            errln!("{}: {} rows, {}{}", self.table, self.rows.load(Ordering::Relaxed), self.rates(), self.rest());
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

    /// How long the rest of the rows takes, where that is known.
    fn rest(&self) -> String {
        let rows = self.rows.load(Ordering::Relaxed);
        let left = self.expected.and_then(|expected| expected.checked_sub(self.bar.position()));
        let left_us = left.and_then(|left| time_left_us(self.clock.now_us(), rows, left));
        left_us.map_or_else(String::new, |left_us| format!(", {} left", span(left_us)))
    }

    fn rates(&self) -> String {
        let seconds = (self.clock.now_us() as f64 / 1e6).max(1e-3);
        let rows = self.rows.load(Ordering::Relaxed) as f64 / seconds;
        let bytes = self.bytes.load(Ordering::Relaxed) as f64 / seconds;
        format!("{} rows/s, {}/s", human_count(rows), human_bytes(bytes as u64))
    }
}

/// The time that `left` rows take, when `rows` took `elapsed_us`; nothing while that is too short to tell.
fn time_left_us(elapsed_us: u64, rows: u64, left: u64) -> Option<u64> {
    let is_known = elapsed_us >= SETTLED_US && rows > 0 && left > 0;
    is_known.then(|| (elapsed_us as f64 * left as f64 / rows as f64) as u64)
}

/// The tables of one command.
#[derive(Debug, Default)]
pub struct Sum {
    tables: u64,
    rows: u64,
    clock: SystemClock,
}

impl Sum {
    /// Counts a table that was loaded.
    pub fn add(&mut self, rows: u64) {
        self.tables += 1;
        self.rows += rows;
    }

    /// Tells the sum, where there is one.
    pub fn tell(&self) {
        if self.tables > 1 {
            let tables = plural(self.tables, "table");
            errln!("{tables:<16} {:>12} rows in {:.1} s", self.rows, self.clock.now_us() as f64 / 1e6);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_told_once_the_rate_is_known() {
        assert_eq!(time_left_us(2_000_000, 100, 300), Some(6_000_000));
        assert_eq!(time_left_us(900_000, 100, 300), None, "it has just begun");
        assert_eq!(time_left_us(2_000_000, 0, 300), None);
        assert_eq!(time_left_us(2_000_000, 300, 0), None, "nothing is left");
    }

    #[test]
    fn counts_are_short() {
        assert_eq!([999.0, 1_500.0, 2.6e6].map(human_count), ["999", "1.5 k", "2.6 M"]);
    }
}
