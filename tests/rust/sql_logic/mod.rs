//! DataFusion's own SQL logic files, answered by Terrace through Flight SQL and by plain DataFusion in this process.
//!
//! ```text
//!   crate datafusion-sqllogictest --files--> records --+--> plain DataFusion: the records that count
//!                                                      +--> Terrace (a server per file): verdict by record
//!   differences.txt: every record that plain DataFusion passes and Terrace does not, by cause
//! ```
//!
//! - [`differences`]: the list of known differences
//! - [`files`]: the SQL logic files
//! - [`plain`]: plain DataFusion
//! - [`render`]: cells and column types as text
//! - [`run`]: runs the records of a file
//! - [`terrace`]: a Terrace server
//!
//! A record counts when it is no EXPLAIN, SHOW, DESCRIBE or query of `information_schema`, and plain DataFusion of the
//! same version and features passes it here. Records that name data outside of the crate are left out on both sides;
//! records that need these data then fail in plain DataFusion and do not count. Rows of a query without ORDER BY are
//! compared in any order, on both sides. A record that expects an error passes with any error: the texts are Terrace's
//! own. The test fails when a record outside of `differences.txt` fails, when a record inside of it passes or does not
//! count, and, in a run of all files, below 98 %.
//!
//! A deep run has all files; a default run has those of [`FIXED`] and a drawn tenth of the others.
//!
//! `TERRACE_SQL_LOGIC=joins,union cargo test -p terrace-tests sql_logic -- --nocapture` runs the files whose path
//! contains one of the words, and checks only them. With `TERRACE_SQL_LOGIC_NODES=3` three nodes of each server execute parts of
//! its queries.

mod differences;
mod files;
mod plain;
mod render;
mod run;
mod terrace;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::differences::Differences;
use self::files::LogicFile;
use self::run::Verdict;
use terrace_test_support::depth::{is_deep, runs};

/// Files that run at a time.
const WORKERS: usize = 3;

/// Files of every run: together they have every kind of statement.
const FIXED: [&str; 8] =
    ["copy.slt", "ddl.slt", "insert.slt", "merge_into.slt", "prepare.slt", "select.slt", "truncate.slt", "update.slt"];

/// The least share of the counted records that Terrace must pass.
const WANTED_SHARE: f64 = 0.98;

/// The results of both sides for the counted records of all files.
#[derive(Default)]
struct Tally {
    counted: usize,
    failed: BTreeMap<String, String>,
    passed: Vec<String>,
}

impl Tally {
    fn add(&mut self, plain: &run::Verdicts, terrace: &run::Verdicts) {
        for (place, verdict) in plain {
            if !matches!(verdict, Verdict::Passed) {
                continue;
            }
            self.counted += 1;
            match terrace.get(place) {
                Some(Verdict::Passed) => self.passed.push(place.clone()),
                Some(Verdict::Failed(why)) => {
                    self.failed.insert(place.clone(), why.clone());
                }
                Some(Verdict::NotCounted) | None => {
                    self.failed.insert(place.clone(), "Terrace did not run this record".to_owned());
                }
            }
        }
    }

    fn share(&self) -> f64 {
        self.passed.len() as f64 / self.counted.max(1) as f64
    }

    fn report(&self) -> String {
        let mut text = format!(
            "{} records count, {} pass ({:.2} %), {} differ\n",
            self.counted,
            self.passed.len(),
            100.0 * self.share(),
            self.failed.len()
        );
        for (place, why) in &self.failed {
            text += &format!("\n== {place}\n{why}\n");
        }
        text
    }
}

fn run_all(files: &[LogicFile]) -> Tally {
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let plain = run::run_plain(file);
                    let terrace = run::run_terrace(file);
                    tally.lock().unwrap().add(&plain, &terrace);
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

#[test]
fn sql_logic_files_of_datafusion_pass() {
    let words = std::env::var("TERRACE_SQL_LOGIC").unwrap_or_default();
    let words: Vec<_> = words.split(',').filter(|word| !word.is_empty()).collect();
    let is_chosen = |file: &LogicFile| match words.is_empty() {
        true => FIXED.contains(&file.name.as_str()) || runs(&file.name),
        false => file.matches(&words),
    };
    let files: Vec<_> = files::find().into_iter().filter(is_chosen).collect();
    assert!(!files.is_empty(), "no SQL logic file has one of {words:?} in its path");

    let tally = run_all(&files);
    let report = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sql-logic.txt");
    std::fs::write(&report, tally.report()).unwrap();
    println!("{}(all of it: {})", tally.report().lines().next().unwrap_or_default(), report.display());

    let known = Differences::read();
    let unknown: Vec<_> = tally.failed.iter().filter(|(place, _)| !known.contains(place)).collect();
    for (place, why) in &unknown {
        println!("not in differences.txt: {place}\n{why}\n");
    }
    let mended: Vec<_> = tally.passed.iter().filter(|place| known.contains(place)).collect();
    assert!(unknown.is_empty(), "{} records differ that differences.txt does not list", unknown.len());
    assert!(mended.is_empty(), "differences.txt lists records that pass: {mended:?}");
    let missing = known.places().filter(|place| has_run(place, &files) && !tally.failed.contains_key(*place));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "differences.txt lists records that do not count: {missing:?}");
    if words.is_empty() && is_deep() {
        assert!(tally.share() >= WANTED_SHARE, "only {:.2} % pass", 100.0 * tally.share());
    }
}

/// True when the record at a place belongs to one of these files, or to a file that one of them includes.
fn has_run(place: &str, files: &[LogicFile]) -> bool {
    let including = place.rsplit(" < ").next().unwrap_or(place);
    let name = including.rsplit_once(':').map_or(including, |(name, _)| name);
    files.iter().any(|file| file.name == name)
}
