//! Runs the records of one file on one side, each with a time limit, and keeps a verdict by place.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use sqllogictest::{AsyncDB, Location, MakeConnection, Normalizer, Record, Runner, TestError, TestErrorKind};
use tempfile::TempDir;
use terrace_server::client::Client;
use terrace_server::config::Config;
use terrace_server::serve::Server;

use super::files::LogicFile;
use super::plain::Plain;
use super::render::Column;
use super::terrace::Terrace;

/// The result of a record.
pub enum Verdict {
    /// The answer is the expected one.
    Passed,
    /// The answer is another one, or an error; with the reason.
    Failed(String),
    /// EXPLAIN, SHOW, DESCRIBE, `information_schema`, or no statement at all.
    NotCounted,
}

/// Verdicts by place (`file:line`).
pub type Verdicts = BTreeMap<String, Verdict>;

/// Time limit of a record; some files hold queries that never end on purpose.
const LIMIT: Duration = Duration::from_secs(60);

/// Folders for the relative paths of a file: its data is in the crate, its output in a folder of this side.
#[derive(Clone)]
pub struct Folders {
    scratch: PathBuf,
    crate_folder: PathBuf,
}

impl Folders {
    fn new(file: &LogicFile, side: &TempDir) -> Self {
        let scratch = side.path().join("scratch");
        let stem = Path::new(&file.name).file_stem().unwrap();
        std::fs::create_dir_all(scratch.join(stem)).unwrap();
        Self { scratch, crate_folder: file.crate_folder() }
    }

    /// Replaces relative paths in a statement by absolute ones.
    pub fn place(&self, sql: &str) -> String {
        sql.replace("test_files/scratch", &self.scratch.to_string_lossy())
            .replace("'test_files/", &format!("'{}/test_files/", self.crate_folder.display()))
            .replace("'data/", &format!("'{}/data/", self.crate_folder.display()))
    }
}

/// Runs the file on plain DataFusion.
pub fn run_plain(file: &LogicFile) -> Verdicts {
    let side = TempDir::new().unwrap();
    let folders = Folders::new(file, &side);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let verdicts = runtime.block_on(run_file(file, Runner::new(|| async { Ok(Plain::new(folders.clone())) })));
    runtime.shutdown_background();
    verdicts
}

/// Runs the file on a server of its own.
pub fn run_terrace(file: &LogicFile) -> Verdicts {
    let side = TempDir::new().unwrap();
    let folders = Folders::new(file, &side);
    let server = Server::start(config(&side)).unwrap();
    let connection = server.connection();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let connect = || async {
        let client = Client::connect(&connection).await?;
        Terrace::new(client, folders.clone()).await
    };
    let verdicts = runtime.block_on(run_file(file, Runner::new(connect)));
    runtime.shutdown_background();
    verdicts
}

fn config(side: &TempDir) -> Config {
    let mut config = Config { data_dir: side.path().join("data"), ..Config::default() };
    if let Ok(nodes) = std::env::var("TERRACE_SQL_LOGIC_NODES") {
        config.cluster.nodes = nodes.parse().unwrap();
        config.cluster.least_rows = 0;
    }
    config.flight.addr = "127.0.0.1:0".to_owned();
    config.http.addr = "127.0.0.1:0".to_owned();
    config.memory.limit = Some("3GiB".parse().unwrap());
    config
}

async fn run_file<D, M>(file: &LogicFile, mut runner: Runner<D, M>) -> Verdicts
where
    D: AsyncDB<ColumnType = Column>,
    M: MakeConnection<Conn = D>,
{
    runner.with_column_validator(same_kinds);
    runner.with_normalizer(trim_end);
    let records = match sqllogictest::parse_file::<Column>(&file.path) {
        Ok(records) => records,
        Err(error) => panic!("{}: {error}", file.name),
    };
    let top = file.crate_folder().join("test_files");
    let mut verdicts = Verdicts::new();
    for record in records {
        let Some(statement) = StatementRecord::from_record(&record) else {
            let _ = runner.run_async(record).await;
            continue;
        };
        if !statement.has_its_files {
            continue;
        }
        runner.with_validator(if is_ordered(&record) { same_rows } else { same_rows_in_any_order });
        let verdict = judge(runner.run_async(record)).await;
        let verdict = if statement.counts { verdict } else { Verdict::NotCounted };
        verdicts.insert(place_of(&statement.location, &top), verdict);
    }
    verdicts
}

async fn judge<T>(run: impl Future<Output = Result<T, TestError>>) -> Verdict {
    match tokio::time::timeout(LIMIT, AssertUnwindSafe(run).catch_unwind()).await {
        Ok(Ok(Ok(_))) => Verdict::Passed,
        Ok(Ok(Err(error))) => match error.kind() {
            TestErrorKind::ErrorMismatch { .. } => Verdict::Passed,
            kind => Verdict::Failed(kind.to_string()),
        },
        Ok(Err(_)) => Verdict::Failed("it panicked".to_owned()),
        Err(_) => Verdict::Failed(format!("no answer in {} s", LIMIT.as_secs())),
    }
}

/// A record that is a statement or a query.
struct StatementRecord {
    location: Location,
    counts: bool,
    /// True when the files that it names are in the crate.
    has_its_files: bool,
}

impl StatementRecord {
    /// `None` for records that are neither a statement nor a query.
    fn from_record(record: &Record<Column>) -> Option<Self> {
        match record {
            Record::Statement { loc, sql, .. } | Record::Query { loc, sql, .. } => {
                Some(Self { location: loc.clone(), counts: counts(sql), has_its_files: !sql.contains("'../") })
            }
            _ => None,
        }
    }
}

/// True when a record defines the order of its rows. Otherwise the order depends on threads.
fn is_ordered(record: &Record<Column>) -> bool {
    matches!(record, Record::Query { sql, .. } if sql.to_uppercase().contains("ORDER BY"))
}

/// The statement without the comment lines before it.
pub fn without_comments(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    while rest.starts_with("--") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
    }
    rest
}

fn counts(sql: &str) -> bool {
    let upper = without_comments(sql).trim_start_matches(['(', ' ', '\n']).to_uppercase();
    let first = upper.split_whitespace().next().unwrap_or_default();
    !["EXPLAIN", "SHOW", "DESCRIBE", "DESC"].contains(&first) && !upper.contains("INFORMATION_SCHEMA")
}

/// `file:line`, with the including file behind `<` for an included one.
fn place_of(location: &Location, top: &Path) -> String {
    let prefix = format!("{}/", top.display());
    location.to_string().replace(&prefix, "").replace("\nat ", " < ")
}

/// A column of the kind `?` may be of any: Flight SQL sends the values of dictionaries and run-end encoded arrays,
/// whose kind is known.
#[expect(clippy::ptr_arg, reason = "the crate `sqllogictest` names the type of the function")]
fn same_kinds(actual: &Vec<Column>, expected: &Vec<Column>) -> bool {
    let matches = |(actual, expected): (&Column, &Column)| *expected == Column::Another || actual == expected;
    actual.len() == expected.len() && actual.iter().zip(expected).all(matches)
}

#[expect(clippy::ptr_arg, reason = "the crate `sqllogictest` names the type of the function")]
fn trim_end(line: &String) -> String {
    line.trim_end().to_owned()
}

/// Compares line by line; `<slt:ignore>` stands for any text.
fn same_rows(normalize: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    let actual: Vec<_> = actual.iter().map(|row| row.join(" ").trim_end().to_owned()).collect();
    let expected: Vec<_> = expected.iter().map(normalize).collect();
    if !expected.iter().any(|line| line.contains("<slt:ignore>")) {
        return actual == expected;
    }
    let actual = actual.join("\n");
    let mut rest = actual.as_str();
    for (index, part) in expected.join("\n").split("<slt:ignore>").enumerate() {
        match rest.find(part) {
            Some(at) if index > 0 || at == 0 => rest = &rest[at + part.len()..],
            _ => return false,
        }
    }
    true
}

fn same_rows_in_any_order(normalize: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    let mut sorted: Vec<_> = actual.iter().map(|row| row.join(" ").trim_end().to_owned()).collect();
    let mut wanted: Vec<_> = expected.iter().map(normalize).collect();
    sorted.sort_unstable();
    wanted.sort_unstable();
    sorted == wanted || same_rows(normalize, actual, expected)
}
