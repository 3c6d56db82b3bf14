//! `terrace top`: running statements and tiers on a screen that refreshes itself.
//!
//! - [`keys`]: single keys from the terminal

mod keys;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::error::{Error, Result};
use crate::http_client::HttpConnection;
use crate::layout::{percent, plural, span};
use crate::profiles::HttpOptions;
use crate::status::overview::{self, Overview, Statement};
use crate::terminal::{self, Size, out, outln};
use crate::units::{Span, human_bytes};
use keys::Keys;

/// Characters of a tier's bar.
const BAR: usize = 20;
/// Size of a screen that does not tell its own, and of what `--once` prints.
const USUAL: Size = Size { columns: 120, lines: 40 };
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(60);

/// Enters the other screen of the terminal and hides the cursor; the reverse.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What to watch.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    server: HttpOptions,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "2s")]
    interval: Span,
    /// Print one look and end, for scripts
    #[arg(long)]
    once: bool,
}

/// Runs the command until the user presses q.
///
/// # Errors
/// With `--once` those of the requests; else when there is no terminal. While it watches, errors are shown on the screen.
pub fn run(options: &Options) -> Result<()> {
    let server = options.server.connection()?;
    if options.once {
        screen(server, USUAL)?.iter().for_each(|line| outln!("{line}"));
        return Ok(());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Error::Usage("terrace top needs a terminal; --once prints one look".to_owned()));
    }
    // A server that cannot be reached at all is an error, not a screen.
    let mut lines = screen(server, terminal::size().unwrap_or(USUAL));
    if let Err(error @ Error::Unreachable { .. }) = lines {
        return Err(error);
    }
    let keys = Keys::open()?;
    let _screen = OtherScreen::enter();
    let pause = options.interval.0.clamp(SHORTEST, LONGEST);
    loop {
        draw(&lines.unwrap_or_else(|error| vec![format!("no answer: {error}"), "q quits".to_owned()]));
        if terminal::is_closed() || keys.wait(pause)?.is_some_and(is_quit) {
            break;
        }
        lines = screen(server, terminal::size().unwrap_or(USUAL));
    }
    terminal::finish()
}

/// The other screen of the terminal; dropping it brings the first one back.
struct OtherScreen;

impl OtherScreen {
    fn enter() -> Self {
        out!("{ENTER}");
        Self
    }
}

impl Drop for OtherScreen {
    fn drop(&mut self) {
        out!("{LEAVE}");
        flush();
    }
}

fn flush() {
    // Failures are remembered by the terminal.
    let _ = std::io::Write::flush(&mut terminal::Output);
}

/// q, Q, Ctrl-C and Ctrl-D.
fn is_quit(key: u8) -> bool {
    [b'q', b'Q', 3, 4].contains(&key)
}

/// Shows lines from the top; each replaces what was there.
fn draw(lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\x1b[K\r\n")).collect();
    out!("\x1b[H{}\x1b[J", text.trim_end_matches("\r\n"));
    // The last line has no end that would flush it.
    flush();
}

/// The lines of a look, at most as many as the terminal has.
fn screen(server: &HttpConnection, size: Size) -> Result<Vec<String>> {
    let overview: Overview = crate::placement::parse(overview::ask(server)?)?;
    Ok(lines(&overview, &overview::statements(server)?, size))
}

fn lines(overview: &Overview, statements: &[Statement], size: Size) -> Vec<String> {
    let server = &overview.server;
    let mut lines = vec![format!(
        "Terrace {}  up {}  {}  {} resident  {}",
        server.version,
        span(server.uptime_us),
        overview.ready.status,
        human_bytes(server.resident_bytes),
        plural(server.sessions, "session")
    )];
    for tier in &overview.tiers {
        let used = human_bytes(tier.used_bytes);
        lines.push(match tier.budget_bytes {
            Some(budget) => {
                let filled = filled(tier.used_bytes, budget);
                let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
                let share = percent(tier.used_bytes, budget);
                format!("{:<8} [{bar}] {used} of {}, {share}", tier.name, human_bytes(budget))
            }
            None => format!("{:<8} {:BAR$}   {used}, no limit", tier.name, ""),
        });
    }
    let counts = overview::counts(statements);
    lines.push(format!("statements: {} running, {} queued; q quits", counts.running, counts.queued));
    lines.push(String::new());
    lines.push(format!(
        "{:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10}  statement",
        "time", "state", "user", "rows", "memory", "read cold", "spilled"
    ));
    let mut statements: Vec<&Statement> = statements.iter().collect();
    statements.sort_by_key(|statement| std::cmp::Reverse(statement.elapsed_us));
    lines.extend(statements.into_iter().map(row));
    let cut = |line: String| line.chars().take(size.columns).collect::<String>();
    lines.into_iter().take(size.lines).map(|line| cut(line).trim_end().to_owned()).collect()
}

/// Characters of a bar that stand for `part` of `whole`: none only for nothing.
fn filled(part: u64, whole: u64) -> usize {
    let share = part as f64 / (whole as f64).max(1.0);
    let filled = (share * BAR as f64).round() as usize;
    filled.clamp(usize::from(part > 0), BAR)
}

/// What a statement does; of one that counts its work, how much of it is done.
fn doing(statement: &Statement) -> String {
    match statement.work_total_bytes {
        0 => statement.state.clone(),
        total => format!("{} done", percent(statement.work_done_bytes, total)),
    }
}

fn row(statement: &Statement) -> String {
    let Statement { user, elapsed_us, rows, reserved_bytes, cold_bytes, spilled_bytes, sql, .. } = statement;
    let doing = doing(statement);
    let user: String = user.chars().take(10).collect();
    let words: Vec<&str> =
        sql.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    format!(
        "{:>10} {doing:>10} {user:>10} {rows:>12} {:>10} {:>10} {:>10}  {}",
        span(*elapsed_us),
        human_bytes(*reserved_bytes),
        human_bytes(*cold_bytes),
        human_bytes(*spilled_bytes),
        words.join(" ")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn overview() -> Overview {
        let answers = json!({
            "server": {"version": "0.1.0", "uptime_us": 5_000_000, "flight_url": "grpc://h:1", "data_dir": "/d",
                       "resident_bytes": 1024, "sessions": 2, "authentication": true},
            "ready": {"status": "ready", "tables": 1},
            "tiers": [
                {"name": "dram", "state": "active", "used_bytes": 50, "budget_bytes": 100, "segments": 1, "failing": null},
                {"name": "ssd", "state": "active", "used_bytes": 7, "budget_bytes": null, "segments": 1, "failing": null},
            ],
            "statements": {"running": 1, "queued": 0},
            "placement": {"mode": "auto", "frozen": false, "epoch_under_way": null},
            "epoch": null,
            "damaged_segments": 0,
        });
        crate::placement::parse(answers).unwrap()
    }

    fn statement(sql: &str, elapsed_us: u64) -> Statement {
        Statement {
            id: "q1".to_owned(),
            user: "ann".to_owned(),
            state: "running".to_owned(),
            running: true,
            elapsed_us,
            rows: 12,
            reserved_bytes: 2048,
            cold_bytes: 0,
            spilled_bytes: 0,
            work_done_bytes: 0,
            work_total_bytes: 0,
            sql: sql.to_owned(),
        }
    }

    #[test]
    fn a_look_has_tiers_and_the_longest_statements_first() {
        let optimize = Statement { work_done_bytes: 40, work_total_bytes: 50, ..statement("optimize t", 2_000_000) };
        let statements = [statement("select 1", 1_500), statement("select\n  2\x1b[2J", 61_000_000), optimize];
        let expected = "\
Terrace 0.1.0  up 5.0 s  ready  1.00 KiB resident  2 sessions
dram     [##########..........] 50 B of 100 B, 50 %
ssd                             7 B, no limit
statements: 3 running, 0 queued; q quits

      time      state       user         rows     memory  read cold    spilled  statement
 1 min 1 s    running        ann           12   2.00 KiB        0 B        0 B  select 2 [2J
     2.0 s  80 % done        ann           12   2.00 KiB        0 B        0 B  optimize t
      1 ms    running        ann           12   2.00 KiB        0 B        0 B  select 1";
        assert_eq!(lines(&overview(), &statements, USUAL).join("\n"), expected);
    }

    #[test]
    fn a_look_fits_the_terminal() {
        let statements: Vec<Statement> = (0..50).map(|n| statement(&"x".repeat(300), n)).collect();
        let lines = lines(&overview(), &statements, Size { columns: 80, lines: 24 });
        assert!(lines.len() == 24 && lines.iter().all(|line| line.chars().count() <= 80));
        assert_eq!((filled(0, 10), filled(1, 1000), filled(20, 10)), (0, 1, BAR));
    }
}
