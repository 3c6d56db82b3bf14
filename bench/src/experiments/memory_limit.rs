//! TPC-H in little memory: Terrace over Flight SQL, DuckDB on its own file, Polars and DataFusion on Parquet, one client,
//! each side in a control group of 2 GiB (P6).
//!
//! A query without an answer counts as its time-out: the time passed, the side refused the query, or the side's process
//! ended, because the kernel kills what passes the limit. A side whose process ended starts anew for the next query.
//! Terrace and DuckDB find the limit themselves and have their defaults. DataFusion does not look for one; it gets the
//! share of it that DuckDB takes. Polars knows no limit.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use super::peers::python;
use crate::bench::{Bench, Finding, Target};
use crate::cgroup::Cgroup;
use crate::child::Child;
use crate::data::{Dataset, StoreClone};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::side::SideSpec;
use crate::statistics::median;
use crate::tpch::{self, QUERIES, TABLES};

const LIMIT_BYTES: u64 = 2 << 30;
/// DuckDB's default is 80 % of the limit.
const DATAFUSION_MIB: u64 = (LIMIT_BYTES / 10 * 8) >> 20;
const TIME_OUT: Duration = Duration::from_secs(600);
const DUCKDB_SIDE: &str = include_str!("../side/duckdb.py");
const POLARS_SIDE: &str = include_str!("../side/polars.py");
const CLIENT_SIDE: &str = include_str!("../side/flight_sql.py");

/// Measures all sides in turn, query by query.
pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = Setup::new(bench)?;
    let mut ours = Contender::new(Kind::Terrace, &setup);
    let mut duckdb = Contender::new(Kind::DuckDb, &setup);
    let mut polars = Contender::new(Kind::Polars, &setup);
    let mut datafusion = Contender::new(Kind::DataFusion, &setup);
    measure(bench, &mut [&mut ours, &mut duckdb, &mut polars, &mut datafusion])?;
    show(&[&ours, &duckdb, &polars, &datafusion]);
    let targets = Targets { sum: Target::below(2.0, 1.0), answered: Target::above(1.0, 1.0) };
    add(bench, &ours, &duckdb, targets);
    for other in [&polars, &datafusion] {
        add(bench, other, &duckdb, Targets { sum: Target::OPEN, answered: Target::OPEN });
    }
    Ok(())
}

/// The sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Terrace,
    DuckDb,
    Polars,
    DataFusion,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Terrace => "terrace serve",
            Self::DuckDb => "DuckDB on its own file",
            Self::Polars => "Polars on Parquet",
            Self::DataFusion => "DataFusion on Parquet",
        }
    }

    /// Prefix of the names of its rows.
    const fn label(self) -> &'static str {
        match self {
            Self::Terrace => "",
            Self::DuckDb => "DuckDB ",
            Self::Polars => "Polars ",
            Self::DataFusion => "DataFusion ",
        }
    }
}

/// What sides start with.
struct Setup {
    data: Dataset,
    store: StoreClone,
    data_dir: PathBuf,
    threads: usize,
    python: PathBuf,
}

impl Setup {
    fn new(bench: &Bench) -> Result<Self> {
        let python = python(&["adbc_driver_flightsql", "duckdb", "polars", "pyarrow"])?;
        // Without control groups the experiment is left out here, before it makes data.
        drop(Cgroup::memory(LIMIT_BYTES)?);
        let data = bench.dataset(bench.scale(10.0))?;
        let store = data.clone_store()?;
        let setup = Self { data, store, data_dir: bench.data_dir.clone(), threads: bench.threads, python };
        // The first process of DuckDB makes its file, without a limit.
        Child::start_command(Kind::DuckDb.name(), setup.duckdb(Command::new(&setup.python)))?;
        Ok(setup)
    }

    fn start(&self, kind: Kind) -> Result<Running> {
        let limit = Cgroup::memory(LIMIT_BYTES)?;
        let (child, server) = match kind {
            Kind::Terrace => {
                let threads = format!("query.threads={}", self.threads);
                let server = Server::start_limited(&self.store.path(), &["--set", &threads], Some(&limit))?;
                let spec = json!({ "url": server.url(), "queries": texts() });
                let mut command = Command::new(&self.python);
                command.args(["-c", CLIENT_SIDE, &spec.to_string()]);
                (Child::start_command(kind.name(), command)?, Some(server))
            }
            Kind::DuckDb => (Child::start_command(kind.name(), self.duckdb(limit.start(&self.python)))?, None),
            Kind::Polars => {
                let mut command = limit.start(&self.python);
                let spec = json!({ "threads": self.threads, "tables": self.parquet(), "queries": texts() });
                command.args(["-c", POLARS_SIDE, &spec.to_string()]);
                (Child::start_command(kind.name(), command)?, None)
            }
            Kind::DataFusion => {
                let data_dir = self.data_dir.clone();
                let spec = SideSpec::Parquet { data_dir, scale: self.data.scale, threads: self.threads };
                let mut child = Child::start_limited(kind.name(), Some(&limit), &spec)?;
                child.ask(&format!("show SET datafusion.runtime.memory_limit = '{DATAFUSION_MIB}M'"))?;
                (child, None)
            }
        };
        Ok(Running { child, server, _limit: limit })
    }

    /// Adds DuckDB's side and its data to a command that starts Python.
    fn duckdb(&self, mut command: Command) -> Command {
        let folder = &self.data.dir;
        let spec = json!({ "threads": self.threads, "tables": self.parquet(), "queries": texts(), "folder": folder });
        command.args(["-c", DUCKDB_SIDE, &spec.to_string()]);
        command
    }

    /// The Parquet file of each table.
    fn parquet(&self) -> serde_json::Map<String, Value> {
        TABLES.iter().map(|table| (table.name.to_owned(), json!(self.data.parquet(table.name)))).collect()
    }
}

/// Query texts by name.
fn texts() -> serde_json::Map<String, Value> {
    tpch::names().zip(QUERIES).map(|(name, sql)| (name, json!(sql))).collect()
}

/// The processes of a side, and then their group: it can be removed when they have ended.
struct Running {
    child: Child,
    /// The server whose client `child` is; it alone is in the group then.
    server: Option<Server>,
    _limit: Cgroup,
}

impl Running {
    fn is_alive(&self) -> bool {
        let has_memory = |server: &Server| server.memory().is_ok_and(|memory| memory.value("resident_bytes") > 0.0);
        is_alive(self.child.id()) && self.server.as_ref().is_none_or(has_memory)
    }
}

/// False for a process that has ended, although nobody has waited for it: it has no memory.
fn is_alive(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| status.contains("VmRSS:"))
}

/// How a query ended.
#[derive(Debug, Clone)]
enum Outcome {
    Answered(Sample),
    TimedOut,
    /// The process ended.
    Killed,
    /// The side answered with an error.
    Refused,
}

impl Outcome {
    const fn word(&self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::TimedOut => "timed out",
            Self::Killed => "killed",
            Self::Refused => "refused",
        }
    }

    /// Its time, or the time-out.
    fn seconds(&self) -> f64 {
        match self {
            Self::Answered(sample) => sample.ms / 1e3,
            _ => TIME_OUT.as_secs_f64(),
        }
    }

    const fn is_answered(&self) -> bool {
        matches!(self, Self::Answered(_))
    }

    fn sample(&self) -> Sample {
        match self {
            Self::Answered(sample) => sample.clone().with("answered", 1.0),
            _ => Sample::new(self.seconds() * 1e3).with("answered", 0.0),
        }
    }
}

/// A side, with the outcomes of its queries.
struct Contender<'a> {
    kind: Kind,
    setup: &'a Setup,
    running: Option<Running>,
    /// Queries that timed out; they are not asked again.
    too_slow: BTreeSet<String>,
    /// The outcomes of all queries while the sides warm up.
    warm_up: Vec<Outcome>,
    /// Per measured round, the outcomes of all queries.
    rounds: Vec<Vec<Outcome>>,
}

impl<'a> Contender<'a> {
    fn new(kind: Kind, setup: &'a Setup) -> Self {
        Self { kind, setup, running: None, too_slow: BTreeSet::new(), warm_up: Vec::new(), rounds: Vec::new() }
    }

    /// Asks one query, of a new process if there is none.
    fn ask(&mut self, query: &str) -> Result<Outcome> {
        if self.too_slow.contains(query) {
            return Ok(Outcome::TimedOut);
        }
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.setup.start(self.kind)?,
        };
        let outcome = match ask_in_time(&mut running.child, query, TIME_OUT) {
            Some(Ok(sample)) => Outcome::Answered(sample),
            Some(Err(error)) => {
                eprintln!("  {}, {query}: {error}", self.kind.name());
                if running.is_alive() { Outcome::Refused } else { Outcome::Killed }
            }
            None => {
                self.too_slow.insert(query.to_owned());
                Outcome::TimedOut
            }
        };
        if matches!(outcome, Outcome::Answered(_) | Outcome::Refused) {
            self.running = Some(running);
        }
        Ok(outcome)
    }

    /// Per round, the outcome of one query.
    fn outcomes(&self, query: usize) -> Vec<&Outcome> {
        self.rounds.iter().filter_map(|round| round.get(query)).collect()
    }

    /// Per round, the time of one query.
    fn seconds(&self, query: usize) -> Vec<f64> {
        self.outcomes(query).into_iter().map(Outcome::seconds).collect()
    }

    /// The different outcomes of one query.
    fn words(&self, query: usize) -> String {
        let words: BTreeSet<&str> = self.outcomes(query).into_iter().map(Outcome::word).collect();
        words.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Per round, the time of all queries.
    fn sums(&self) -> Vec<f64> {
        self.rounds.iter().map(|round| round.iter().map(Outcome::seconds).sum()).collect()
    }

    /// Per round, that to warm up included, the share of the queries with an answer.
    fn answered(&self) -> Vec<f64> {
        let share = |round: &Vec<Outcome>| {
            round.iter().filter(|outcome| outcome.is_answered()).count() as f64 / round.len() as f64
        };
        std::iter::once(&self.warm_up).chain(&self.rounds).map(share).collect()
    }
}

/// Asks a side, and kills its process when the time passes before it answers: then there is no answer.
fn ask_in_time(child: &mut Child, query: &str, time_out: Duration) -> Option<Result<Sample>> {
    let process = child.id();
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let late = waiting.recv_timeout(time_out) == Err(RecvTimeoutError::Timeout);
            if late {
                kill(process);
            }
            late
        });
        let answer = child.ask(query);
        drop(done);
        let late = watch.join().unwrap_or(false);
        if answer.is_err() && late { None } else { Some(answer) }
    })
}

fn kill(process: u32) {
    // SAFETY: the call takes numbers only; the process is ours and not yet waited for, so its number is still its own.
    let sent = unsafe { libc::kill(process as i32, libc::SIGKILL) };
    if sent != 0 {
        eprintln!("cannot kill process {process}: {}", std::io::Error::last_os_error());
    }
}

/// Measures rounds, after one to warm up. Fails when sides that answer a query return different numbers of rows.
fn measure(bench: &mut Bench, sides: &mut [&mut Contender<'_>]) -> Result<()> {
    let mut warm = true;
    while warm || bench.wants_another_round(sides.first().map_or(0, |side| side.rounds.len())) {
        let mut round = vec![Vec::new(); sides.len()];
        for query in tpch::names() {
            let mut rows = None;
            for (side, outcomes) in sides.iter_mut().zip(&mut round) {
                let outcome = side.ask(&query)?;
                if let Outcome::Answered(sample) = &outcome {
                    let seen = sample.value("rows");
                    let first = *rows.get_or_insert(seen);
                    if seen != first {
                        let name = side.kind.name();
                        return Err(Error::failed(format!("{query}: {name} returns {seen} rows, others {first}")));
                    }
                }
                if !warm {
                    bench.record(side.kind.name(), &query, outcome.sample());
                }
                outcomes.push(outcome);
            }
        }
        for (side, outcomes) in sides.iter_mut().zip(round) {
            if warm {
                side.warm_up = outcomes;
            } else {
                side.rounds.push(outcomes);
            }
        }
        warm = false;
    }
    Ok(())
}

/// Prints a line per query: seconds, or how it ended.
fn show(sides: &[&Contender<'_>]) {
    show_line(sides, "", |side| side.kind.name().to_owned());
    for (number, query) in tpch::names().enumerate() {
        show_line(sides, &query, |side| match side.outcomes(number).into_iter().all(Outcome::is_answered) {
            true => format!("{:.2} s", median(&side.seconds(number))),
            false => side.words(number),
        });
    }
    show_line(sides, "sum", |side| format!("{:.1} s", median(&side.sums())));
}

fn show_line(sides: &[&Contender<'_>], name: &str, cell: impl Fn(&Contender<'_>) -> String) {
    let cells: Vec<String> = sides.iter().map(|side| format!("{:>24}", cell(side))).collect();
    println!("  {name:<6}{}", cells.concat());
}

/// Targets of a side's last two rows.
#[derive(Debug, Clone, Copy)]
struct Targets {
    sum: Target,
    answered: Target,
}

/// Adds a row per query, one for the sum, and one for the share of the queries that the side answers.
fn add(bench: &mut Bench, one: &Contender<'_>, peer: &Contender<'_>, targets: Targets) {
    let sides = (one.kind.name(), peer.kind.name());
    let label = one.kind.label();
    let scale = one.setup.data.scale;
    let threads = one.setup.threads;
    let params = |further: Value| {
        let mut params = json!({
            "scale": scale, "threads": threads, "limit_bytes": LIMIT_BYTES, "time_out_s": TIME_OUT.as_secs(),
            "datafusion_memory_bytes": DATAFUSION_MIB << 20,
        });
        if let (Some(params), Value::Object(further)) = (params.as_object_mut(), further) {
            params.extend(further);
        }
        params
    };
    let ratios = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>();
    for (number, query) in tpch::names().enumerate() {
        let a = one.seconds(number);
        let b = peer.seconds(number);
        bench.add(Finding {
            sides,
            what: &format!("{label}{query}"),
            values: &ratios(&a, &b),
            target: Target::OPEN,
            params: params(json!({
                "query": query, "s_a": median(&a), "s_b": median(&b),
                "outcome_a": one.words(number), "outcome_b": peer.words(number),
            })),
        });
    }
    let a = one.sums();
    let b = peer.sums();
    bench.add(Finding {
        sides,
        what: &format!("{label}sum"),
        values: &ratios(&a, &b),
        target: targets.sum,
        params: params(json!({ "query": "sum", "sum_s_a": median(&a), "sum_s_b": median(&b) })),
    });
    bench.add(Finding {
        sides: (one.kind.name(), "all 22 queries"),
        what: &format!("{label}answered"),
        values: &one.answered(),
        target: targets.answered,
        params: params(json!({ "unit": "share of the queries" })),
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A side that is a shell script.
    fn side(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo '{{\"ms\":0}}'; {script}")]);
        Child::start_command("script", command).unwrap()
    }

    #[test]
    fn a_query_without_an_answer_counts_as_its_time_out() {
        let answered = Outcome::Answered(Sample::new(1500.0).with("rows", 4.0));
        assert_eq!((answered.seconds(), answered.sample().value("answered")), (1.5, 1.0));
        for (outcome, word) in
            [(Outcome::TimedOut, "timed out"), (Outcome::Killed, "killed"), (Outcome::Refused, "refused")]
        {
            assert_eq!((outcome.seconds(), outcome.word()), (600.0, word));
            assert_eq!((outcome.sample().ms, outcome.sample().value("answered")), (600_000.0, 0.0));
        }
    }

    #[test]
    fn a_side_that_is_late_is_killed() {
        let mut slow = side("exec sleep 60");
        assert!(is_alive(slow.id()));
        assert!(ask_in_time(&mut slow, "q1", Duration::from_millis(50)).is_none());
        assert!(!is_alive(slow.id()));
    }

    #[test]
    fn a_side_that_refuses_lives_and_one_that_ends_does_not() {
        let mut refusing = side("read -r line; echo '{\"error\":\"no memory\"}'; read -r line; exit 1");
        assert!(ask_in_time(&mut refusing, "q1", LONG).is_some_and(|answer| answer.is_err()));
        assert!(is_alive(refusing.id()));
        assert!(ask_in_time(&mut refusing, "q2", LONG).is_some_and(|answer| answer.is_err()));
        assert!(!is_alive(refusing.id()));
    }
}
