//! What streams of TPC-H read on a server, replayed on virtual time under every policy ([`terrace_simulate`]).
//!
//! The server counts the sequential reads of each column of each chunk. The statements of the streams run one at a time, one of
//! each stream in turn, and an epoch follows each. Which columns and chunks a statement reads does not depend on where they
//! lie, so one recording serves all policies; which pages it reads does, so reads of pages count as none here.

use std::time::Instant;

use terrace_simulate::{Course, Recording};
use terrace_tier_store::placement::PolicyKind;

use super::simulation::{add, fault, head, line, record};
use crate::bench::Bench;
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::server::Server;
use crate::streams::{self, Statement};

const STREAMS: usize = 4;
const SEGMENTS: &str =
    "SELECT bytes, sequential + monotonic FROM system.segments ORDER BY table_schema, table_name, chunk, position";

/// Records streams in an order of each round's own, and replays them.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let data = bench.dataset(scale)?;
    let mut all = PolicyKind::BY_TIER.map(|policy| (policy, Vec::new()));
    let mut epochs = 0;
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        let recording = recorded(bench, &data, bench.seed + rounds as u64)?;
        rounds += 1;
        epochs = recording.scans.len();
        let course = Course::recorded(recording).map_err(fault)?;
        head(course.name());
        for (policy, ratios) in &mut all {
            let start = Instant::now();
            let outcome = terrace_simulate::run(&course, *policy).map_err(fault)?;
            let seconds = start.elapsed().as_secs_f64();
            record(bench, course.name(), policy.name(), &outcome, seconds);
            line(policy.name(), &outcome, epochs as f64 / seconds);
            ratios.push(1.0 + outcome.regret());
        }
    }
    add(bench, "recorded", epochs as u32, &all);
    Ok(())
}

/// Runs the streams on a server, and notes the reads of each statement.
fn recorded(bench: &Bench, data: &Dataset, seed: u64) -> Result<Recording> {
    let store = data.clone_store()?;
    let threads = format!("query.threads={}", bench.threads);
    let arguments = ["--set", &threads, "--set", "tiering.enabled=false", "--set", "tiering.merge=never"];
    let server = Server::start(&store.path(), &arguments)?;
    let streams = streams::shuffled(&Statement::tpch(), STREAMS, seed);
    let in_turn = (0..streams.first().map_or(0, Vec::len)).flat_map(|at| streams.iter().filter_map(move |s| s.get(at)));
    let (bytes, mut before) = counts(&server)?;
    let mut scans = Vec::new();
    for statement in in_turn {
        let answers = streams::run(server.url(), &[vec![statement.clone()]])?;
        if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
            return Err(Error::failed(format!("{} failed: {error}", statement.name)));
        }
        let (_, after) = counts(&server)?;
        scans.push(after.iter().zip(&before).map(|(after, before)| (after - before) as u32).collect());
        before = after;
    }
    server.stop()?;
    Ok(Recording { bytes: bytes.into_iter().map(|bytes| bytes as u64).collect(), scans })
}

/// Bytes and reads so far of each segment.
fn counts(server: &Server) -> Result<(Vec<f64>, Vec<f64>)> {
    match <[Vec<f64>; 2]>::try_from(server.columns(SEGMENTS)?) {
        Ok([bytes, reads]) => Ok((bytes, reads)),
        Err(_) => Err(Error::failed("the server has no segments")),
    }
}
