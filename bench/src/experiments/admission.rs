//! Statements that together exceed query memory, admitted by weighted demand and by other policies (Hetero-DB, sections
//! 4.3 and 6.2), on a real server over Flight SQL.
//!
//! As in the paper, the pairs are those of which both fit alone and not together. Query memory is a tenth above the least
//! with which the hungriest query does not spill when it runs alone. The paper has the memory of a GPU, and compares co-running
//! pairs with one query at a time; that is a side here, too. The paper has no streams.
//!
//! - [`contender`]: a policy with its measurements
//! - [`workload`]: pairs of queries that need much memory

mod contender;
mod workload;

use serde_json::{Value, json};

use self::contender::{Measured, ONE_AT_A_TIME, POLICIES, Policy, QUEUE_TIMEOUT_S, Running};
use self::workload::{Alone, conflicting_pairs, hungriest};
use crate::bench::{Bench, Finding, Target};
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::statistics::{mean, median};
use crate::streams::{self, Statement};

/// Queries of which pairs are made.
const HUNGRY: usize = 5;
const QUICK_HUNGRY: usize = 2;
/// Streams of all queries.
const STREAMS: usize = 8;
const QUICK_STREAMS: usize = 4;
/// Operators that can spill get this share of query memory (`planner-ext/src/engine/memory.rs`).
const SPILLABLE: f64 = 0.8;
/// Query memory per scale, and at least, of the server on which queries run alone.
const AMPLE_BYTES: f64 = 4e9;
const LEAST_AMPLE_BYTES: f64 = 1e9;
/// Query memory relative to the least with which the hungriest query does not spill alone: peaks differ from run to run.
const MARGIN: f64 = 1.1;
/// Memory of five servers per scale, all with all tables in DRAM.
const BYTES_PER_SCALE: u64 = 8_000_000_000;
/// Less leaves no room for the buffers of operators.
const LEAST_BYTES: f64 = 32e6;
/// The paper's gains of throughput by running two queries at a time: mean and least of 69 pairs, and what its best three
/// exceed.
const PAPER_GAINS: [f64; 3] = [1.39, 1.15, 1.55];
/// The paper's pairs of queries, and those of them that conflict.
const PAPER_PAIRS: [usize; 2] = [91, 69];

/// Measures all policies in turn: each pair on one server after another, then the streams.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = bench.dataset(scale)?;
    let plan = Plan::new(bench, &data)?;
    let mut sides: Vec<Contender> = Vec::new();
    for policy in POLICIES {
        sides.push(Contender::start(policy, bench.threads, &data, &plan)?);
    }
    let mut round = 0;
    while bench.wants_another_round(round) {
        measure_round(bench, &mut sides, &plan)?;
        round += 1;
    }
    let (ours, peers) = sides.split_first().ok_or_else(|| Error::failed("there are policies"))?;
    plan.show_pairs(&sides);
    show(&sides);
    for peer in peers {
        add(bench, ours, peer, &plan);
    }
    add_answered(bench, ours, &plan);
    let one = peers.iter().find(|peer| peer.policy.name == ONE_AT_A_TIME);
    one.into_iter().for_each(|one| add_gains(bench, ours, one, &plan));
    Ok(())
}

/// What every policy runs, with how much memory.
struct Plan {
    alone: Vec<Alone>,
    pairs: Vec<[Statement; 2]>,
    streams: Vec<Vec<Statement>>,
    query_bytes: u64,
    params: Value,
}

impl Plan {
    /// Runs all queries alone, and chooses.
    fn new(bench: &Bench, data: &Dataset) -> Result<Self> {
        let statements = Statement::tpch();
        let machine = bench.environment().memory_bytes as f64;
        let ample = (AMPLE_BYTES * data.scale).max(LEAST_AMPLE_BYTES).min(machine * 0.4) as u64;
        let alone = Policy::NONE.start(data, ample, bench.threads)?.run_alone(&statements)?;
        let hungry = hungriest(&alone, if bench.quick { QUICK_HUNGRY } else { HUNGRY });
        let largest = hungry.first().map_or(0.0, |one| one.peak_bytes);
        let query_bytes = (largest * MARGIN / SPILLABLE).max(LEAST_BYTES);
        let all_pairs = conflicting_pairs(&hungry, 0.0).len();
        let conflicting = conflicting_pairs(&hungry, query_bytes * SPILLABLE);
        let pairs: Vec<_> = conflicting.iter().map(|[a, b]| [a.statement.clone(), b.statement.clone()]).collect();
        if pairs.is_empty() {
            let largest = largest / 1e6;
            let why = format!(
                "no pair of queries exceeds query memory: the largest needs {largest:.1} MB; use a larger scale"
            );
            return Err(Error::failed(why));
        }
        let count = if bench.quick { QUICK_STREAMS } else { STREAMS };
        let streams = streams::shuffled(&statements, count, bench.seed);
        let sum_of = |bytes: fn(&Alone) -> f64| alone.iter().map(bytes).sum::<f64>();
        println!(
            "  query memory {:.0} MB, which {} of {all_pairs} pairs exceed; alone, the hungriest:",
            query_bytes / 1e6,
            pairs.len()
        );
        for one in &hungry {
            let [peak, demand] = [one.peak_bytes, one.demand_bytes].map(|bytes| bytes / 1e6);
            let Alone { statement, ms, .. } = one;
            println!("  {:<6}{ms:>9.0} ms, reserves {peak:.0} MB, expected {demand:.0} MB", statement.name);
        }
        let params = json!({
            "scale": data.scale, "threads": bench.threads, "seed": bench.seed, "query_memory_bytes": query_bytes,
            "queue_timeout_s": QUEUE_TIMEOUT_S, "streams": count, "pairs": pairs.len(),
            "pairs_without_conflict": all_pairs - pairs.len(), "hungry": hungry.iter().map(|one| one.statement.name.as_str()).collect::<Vec<_>>().join(" "),
            "sum_of_peaks_bytes": sum_of(|one| one.peak_bytes), "sum_of_demands_bytes": sum_of(|one| one.demand_bytes),
        });
        Ok(Self { pairs, streams, query_bytes: query_bytes as u64, params, alone })
    }

    fn params(&self, further: Value) -> Value {
        let mut params = self.params.clone();
        if let (Some(params), Value::Object(further)) = (params.as_object_mut(), further) {
            params.extend(further);
        }
        params
    }

    /// Prints the time of each pair under each policy.
    fn show_pairs(&self, sides: &[Contender]) {
        let names: String = sides.iter().map(|side| format!("{:>21}", side.policy.name)).collect();
        println!("  {:<10}{names}", "pair");
        for (at, [first, second]) in self.pairs.iter().enumerate() {
            let cells: String = sides.iter().map(|side| format!("{:>18.0} ms", median(&side.pair_ms(at)))).collect();
            println!("  {:<10}{cells}", format!("{} {}", first.name, second.name));
        }
    }
}

/// The two workloads.
#[derive(Debug, Clone, Copy)]
enum Workload {
    Pairs,
    Streams,
}

impl Workload {
    const ALL: [Self; 2] = [Self::Pairs, Self::Streams];

    const fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::Streams => "streams",
        }
    }
}

/// What the workloads took in one round.
#[derive(Default)]
struct Round {
    pairs: Vec<Measured>,
    streams: Measured,
}

/// A policy with its server and its rounds.
struct Contender {
    policy: Policy,
    running: Running,
    rounds: Vec<Round>,
}

/// Runs each pair and then the streams on one server after another, so that the machine's drift meets all of them.
fn measure_round(bench: &mut Bench, sides: &mut [Contender], plan: &Plan) -> Result<()> {
    let mut rounds: Vec<Round> = sides.iter().map(|_| Round::default()).collect();
    for [first, second] in &plan.pairs {
        let op = format!("{} beside {}", first.name, second.name);
        let streams = [vec![first.clone()], vec![second.clone()]];
        for (side, round) in sides.iter().zip(&mut rounds) {
            round.pairs.push(side.measure(bench, &op, &streams, plan)?);
        }
    }
    for (side, round) in sides.iter().zip(&mut rounds) {
        round.streams = side.measure(bench, "streams", &plan.streams, plan)?;
    }
    for (side, round) in sides.iter_mut().zip(rounds) {
        side.rounds.push(round);
    }
    Ok(())
}

impl Contender {
    /// Starts the server and runs all queries once, to warm it up.
    fn start(policy: Policy, threads: usize, data: &Dataset, plan: &Plan) -> Result<Self> {
        let running = policy.start(data, plan.query_bytes, threads)?;
        running.measure(&[Statement::tpch()], &plan.alone)?;
        Ok(Self { policy, running, rounds: Vec::new() })
    }

    fn measure(&self, bench: &mut Bench, op: &str, streams: &[Vec<Statement>], plan: &Plan) -> Result<Measured> {
        let measured = self.running.measure(streams, &plan.alone)?;
        bench.record(self.policy.name, op, measured.sample());
        Ok(measured)
    }

    /// Per round, what a workload took.
    fn measured(&self, workload: Workload) -> Vec<Measured> {
        let in_round = |round: &Round| match workload {
            Workload::Pairs => Measured::sum(&round.pairs),
            Workload::Streams => round.streams.clone(),
        };
        self.rounds.iter().map(in_round).collect()
    }

    /// Per round, a figure of a workload.
    fn values(&self, workload: Workload, figure: impl Fn(&Measured) -> f64) -> Vec<f64> {
        self.measured(workload).iter().map(figure).collect()
    }

    /// Per round, the time of one pair.
    fn pair_ms(&self, pair: usize) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| Some(round.pairs.get(pair)?.makespan_ms)).collect()
    }

    fn failed(&self, workload: Workload) -> usize {
        self.measured(workload).iter().map(|measured| measured.failed).sum()
    }
}

/// Prints a line per workload and policy.
fn show(sides: &[Contender]) {
    let head = ["makespan", "mean", "p95", "waited", "spilled", "failed"].map(|name| format!("{name:>13}"));
    println!("  {:<9}{:<21}{}", "", "", head.concat());
    for workload in Workload::ALL {
        for side in sides {
            let seconds =
                |figure: fn(&Measured) -> f64| format!("{:>11.2} s", median(&side.values(workload, figure)) / 1e3);
            println!(
                "  {:<9}{:<21}{}{}{}{}{:>10.1} MB{:>13}",
                workload.name(),
                side.policy.name,
                seconds(|measured| measured.makespan_ms),
                seconds(Measured::mean_ms),
                seconds(Measured::p95_ms),
                seconds(|measured| measured.queued_ms),
                median(&side.values(workload, |measured| measured.spilled_bytes)) / 1e6,
                side.failed(workload)
            );
        }
    }
}

/// A figure of a workload by which policies are compared.
struct Figure {
    name: &'static str,
    value: fn(&Measured) -> f64,
    target: Target,
}

/// Adds rows for the makespan and the mean latency of both workloads.
fn add(bench: &mut Bench, ours: &Contender, peer: &Contender, plan: &Plan) {
    let makespan = Figure { name: "makespan", value: |measured| measured.makespan_ms, target: Target::below(1.0, 0.9) };
    let latency = Figure { name: "mean latency", value: Measured::mean_ms, target: Target::OPEN };
    for workload in Workload::ALL {
        for Figure { name, value, target } in [&makespan, &latency] {
            let [a, b] = [ours, peer].map(|side| side.values(workload, value));
            let median_of = |side: &Contender, figure: fn(&Measured) -> f64| median(&side.values(workload, figure));
            let mut params = plan.params(json!({
                "ms_a": median(&a), "ms_b": median(&b),
                "p95_ms_a": median_of(ours, Measured::p95_ms), "p95_ms_b": median_of(peer, Measured::p95_ms),
                "queued_ms_a": median_of(ours, |m| m.queued_ms), "queued_ms_b": median_of(peer, |m| m.queued_ms),
                "spilled_bytes_a": median_of(ours, |m| m.spilled_bytes),
                "spilled_bytes_b": median_of(peer, |m| m.spilled_bytes),
                "failed_a": ours.failed(workload), "failed_b": peer.failed(workload),
            }));
            if let Some(params) = params.as_object_mut()
                && ours.failed(workload) + peer.failed(workload) > 0
            {
                params.insert("undecided".to_owned(), json!("statements failed, so the sides did not do equal work"));
            }
            bench.add(Finding {
                sides: (ours.policy.name, peer.policy.name),
                what: &format!("{}: {name}, to {}", workload.name(), peer.policy.name),
                values: &ratios(&a, &b),
                target: *target,
                params,
            });
        }
    }
}

/// Adds a row per workload for the share of the statements that were answered.
fn add_answered(bench: &mut Bench, ours: &Contender, plan: &Plan) {
    for workload in Workload::ALL {
        bench.add(Finding {
            sides: (ours.policy.name, "all statements"),
            what: &format!("{}: answered", workload.name()),
            values: &ours.values(workload, Measured::answered),
            target: Target::above(1.0, 1.0),
            params: plan.params(json!({ "unit": "share of the statements", "failed": ours.failed(workload) })),
        });
    }
}

/// Adds rows for the throughput of pairs relative to one query at a time, beside the paper's.
fn add_gains(bench: &mut Bench, ours: &Contender, one: &Contender, plan: &Plan) {
    let by_round: Vec<Vec<f64>> = ours
        .rounds
        .iter()
        .zip(&one.rounds)
        .map(|(ours, one)| ours.pairs.iter().zip(&one.pairs).map(|(a, b)| b.makespan_ms / a.makespan_ms).collect())
        .collect();
    let least = |gains: &[f64]| gains.iter().copied().fold(f64::INFINITY, f64::min);
    let best = |gains: &[f64]| gains.iter().copied().fold(0.0, f64::max);
    let in_rounds = |figure: &dyn Fn(&[f64]) -> f64| by_round.iter().map(|gains| figure(gains)).collect::<Vec<f64>>();
    let [paper_mean, paper_least, paper_best] = PAPER_GAINS;
    let [all_pairs, conflicting] = PAPER_PAIRS;
    let [means, leasts, bests] = [in_rounds(&mean), in_rounds(&least), in_rounds(&best)];
    println!(
        "  throughput of pairs, to one query at a time: mean {:.2}, least {:.2}, best {:.2}",
        median(&means),
        median(&leasts),
        median(&bests)
    );
    println!(
        "  Hetero-DB on a GPU, {conflicting} of {all_pairs} pairs of SSB: mean {paper_mean}, least {paper_least}, best \
         over {paper_best}"
    );
    let rows = [
        ("mean", means, Target::above(1.0, paper_mean)),
        ("least", leasts, Target::OPEN),
        ("best", bests, Target::OPEN),
    ];
    for (name, values, target) in rows {
        bench.add(Finding {
            sides: (ours.policy.name, one.policy.name),
            what: &format!("pairs: throughput, {name}"),
            values: &values,
            target,
            params: plan.params(json!({
                "paper_mean": paper_mean, "paper_least": paper_least, "paper_best_above": paper_best,
                "paper_pairs": all_pairs, "paper_conflicting_pairs": conflicting,
            })),
        });
    }
}

fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}
