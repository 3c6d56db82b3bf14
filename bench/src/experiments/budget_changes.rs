//! Latency of TPC-H over time while the budget of DRAM changes under running clients.
//!
//! Dreseler 2021, figure 7.2 (section 7.2.1): 20 clients, another budget every five minutes, the time of each query 10; moves
//! run beside the queries. The figure is a chart; of it the text says that 5 % in DRAM takes visibly longer than all. Here
//! each change of the budget is an epoch that a user asks for, which moves as fast as it can, so its effect on statements is
//! the largest there is. A row is the latency of statements that begin while it moves, to that of those after it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::folder_bytes;
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{geomean, mean, median};
use crate::streams::{self, Answer, Statement};

/// Shares of all bytes in DRAM, one after the other; the first is there at the start.
const SHARES: [f64; 7] = [1.0, 0.05, 0.6, 0.1, 0.3, 0.0, 1.0];
const QUICK_SHARES: [f64; 3] = [1.0, 0.05, 1.0];
const SECONDS: u64 = 60;
const QUICK_SECONDS: u64 = 5;
/// Fewer than the thesis' 20, for fewer cores.
const CLIENTS: usize = 4;
/// The query of the figure.
const SHOWN: &str = "q10";
/// Images of segments are padded on their tier.
const ROOM_FOR_ALL: f64 = 1.1;
const PADDING_BYTES: f64 = 67e6;

/// A time with one budget, in milliseconds after the start of the clients.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Phase {
    share: f64,
    /// Change of the budget.
    from_ms: f64,
    /// End of the moves that it asked for.
    moved_ms: f64,
    /// Share of all bytes in DRAM then: less than the budget where fewer segments are worth a move.
    placed: f64,
    until_ms: f64,
}

impl Phase {
    /// Statements that began while segments moved.
    fn moving<'a>(&self, answers: &'a [Answer]) -> impl Iterator<Item = &'a Answer> + use<'a> {
        between(answers, self.from_ms, self.moved_ms)
    }

    /// Statements that began after the moves.
    fn steady<'a>(&self, answers: &'a [Answer]) -> impl Iterator<Item = &'a Answer> + use<'a> {
        between(answers, self.moved_ms, self.until_ms)
    }
}

fn between(answers: &[Answer], from_ms: f64, until_ms: f64) -> impl Iterator<Item = &Answer> {
    answers.iter().filter(move |answer| (from_ms..until_ms).contains(&answer.at_ms))
}

/// The mean latency of each statement.
fn means<'a>(answers: impl Iterator<Item = &'a Answer>) -> BTreeMap<&'a str, f64> {
    let mut times = BTreeMap::<&str, Vec<f64>>::new();
    for answer in answers {
        times.entry(answer.name.as_str()).or_default().push(answer.ms);
    }
    times.into_iter().map(|(name, times)| (name, mean(&times))).collect()
}

/// The geometric mean of the ratios of the statements that both have; `None` where they have none in common.
fn ratio(a: &BTreeMap<&str, f64>, b: &BTreeMap<&str, f64>) -> Option<f64> {
    let ratios: Vec<f64> = a.iter().filter_map(|(name, ms)| Some(ms / b.get(name)?)).collect();
    (!ratios.is_empty()).then(|| geomean(&ratios))
}

/// Runs clients all the time, and changes the budget under them.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(1.0);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let dram = (3 * folder_bytes(&data.store().join("ssd"))? + (256 << 20)).to_string();
    let threads = format!("query.threads={}", bench.threads);
    let settings = [threads.as_str(), "tiering.interval=1h", "tiering.merge=never", "query.queue_timeout=3600s"];
    let mut arguments = vec!["--dram-budget", &dram];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    let server = Server::start(&store.path(), &arguments)?;
    let bytes = server.number("SELECT sum(bytes) FROM system.segments")?;
    let statements = Statement::tpch();
    // Heat, by which epochs place.
    check(&streams::run(server.url(), std::slice::from_ref(&statements))?.all)?;
    let clients = streams::shuffled(&statements, CLIENTS, bench.seed);
    let shares: &[f64] = if bench.quick { &QUICK_SHARES } else { &SHARES };
    let each = Duration::from_secs(if bench.quick { QUICK_SECONDS } else { SECONDS });
    let budget = |share: f64| if share >= 1.0 { bytes * ROOM_FOR_ALL + PADDING_BYTES } else { bytes * share };
    let change = |share: f64| {
        server.statement(&format!("ALTER SYSTEM ALTER TIER dram SET (budget = '{:.0}')", budget(share)))?;
        server.run_epoch()?;
        Ok::<_, Error>(server.placed_bytes("dram")? / bytes)
    };
    change(shares.first().copied().unwrap_or(1.0))?;
    let start = Instant::now();
    let duration = each * shares.len() as u32;
    let (answers, phases) = std::thread::scope(|scope| {
        let running = scope.spawn(|| streams::run_for(server.url(), &clients, duration));
        let phases = phases(shares, each, start, &change);
        let answers = running.join().map_err(|_| Error::failed("the thread of the clients panicked"))?;
        Ok::<_, Error>((answers?, phases?))
    })?;
    check(&answers.all)?;
    for answer in &answers.all {
        bench.record("clients", &answer.name, Sample::new(answer.ms).with("at_ms", answer.at_ms));
    }
    let params = json!({
        "scale": scale, "threads": bench.threads, "clients": CLIENTS, "seconds": each.as_secs(), "bytes": bytes,
        "paper": "NVM: 42 % longer with none in DRAM, 11.6 % with 10 %",
    });
    add(bench, &phases, &answers.all, &params);
    draw(bench, &phases, &answers.all);
    server.stop()
}

/// Sets the budget once per phase, and waits for the end of each. `change` returns the share that lies in DRAM then.
fn phases(shares: &[f64], each: Duration, start: Instant, change: &dyn Fn(f64) -> Result<f64>) -> Result<Vec<Phase>> {
    let now_ms = || start.elapsed().as_secs_f64() * 1e3;
    let mut phases: Vec<Phase> = Vec::new();
    for (number, share) in (1_u32..).zip(shares) {
        let from_ms = now_ms();
        let placed = change(*share)?;
        let moved_ms = now_ms();
        std::thread::sleep((each * number).saturating_sub(start.elapsed()));
        phases.push(Phase { share: *share, from_ms, moved_ms, placed, until_ms: now_ms() });
    }
    Ok(phases)
}

fn check(answers: &[Answer]) -> Result<()> {
    for Answer { name, rows, .. } in answers {
        rows.as_ref().map_err(|error| Error::failed(format!("{name}: {error}")))?;
    }
    Ok(())
}

fn add(bench: &mut Bench, phases: &[Phase], answers: &[Answer], params: &serde_json::Value) {
    let sides = ("another budget", "all in DRAM, before");
    let Some((first, changed)) = phases.split_first() else { return };
    let all = means(first.steady(answers));
    let mut while_moving = Vec::new();
    println!(
        "  {:<9}{:>9}{:>11}{:>13}{:>15}{:>17}",
        "budget", "placed", "moved, s", "statements", "to all in DRAM", "moving to after"
    );
    for (number, phase) in (1..).zip(changed) {
        let steady = means(phase.steady(answers));
        let to_all = ratio(&steady, &all);
        let moving = ratio(&means(phase.moving(answers)), &steady);
        while_moving.extend(moving);
        let moved_s = (phase.moved_ms - phase.from_ms) / 1e3;
        let percent = phase.share * 100.0;
        let count = phase.steady(answers).count();
        let shown = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        println!(
            "  {:<9}{:>9}{moved_s:>11.2}{count:>13}{:>15}{:>17}",
            format!("{percent:.0} %"),
            format!("{:.0} %", phase.placed * 100.0),
            shown(to_all),
            shown(moving)
        );
        let mut params = params.clone();
        params["moved_s"] = json!(moved_s);
        params["placed_share"] = json!(phase.placed);
        params["statements"] = json!(count);
        let what = format!("change {number}: {percent:.0} % in DRAM");
        let values: Vec<f64> = to_all.into_iter().collect();
        if values.is_empty() {
            bench.leave_out(&what, "no statement ended with this budget: use a smaller scale");
            continue;
        }
        bench.add(Finding { sides, what: &what, values: &values, target: Target::OPEN, params });
    }
    let sides = ("statements that begin while segments move", "those after the moves");
    let mut params = params.clone();
    if while_moving.is_empty() {
        params["undecided"] = json!("no statement began while segments moved");
    }
    params["median"] = json!(median(&while_moving));
    let what = "latency while segments move";
    bench.add(Finding { sides, what, values: &while_moving, target: Target::OPEN, params });
}

fn draw(bench: &mut Bench, phases: &[Phase], answers: &[Answer]) {
    let point = |answer: &Answer| (answer.at_ms / 1e3, answer.ms);
    let of_phase = |phase: &Phase| {
        let shown = between(answers, phase.from_ms, phase.until_ms).filter(|answer| answer.name == SHOWN);
        Series::scattered(&format!("{:.0} % in DRAM", phase.share * 100.0), shown.map(point).collect())
    };
    let series: Vec<Series> = phases.iter().map(of_phase).collect();
    let x = Axis::linear("s");
    let y = Axis::linear("ms of query 10");
    bench.draw("Query 10 while the budget changes (compare Dreseler 2021, figure 7.2)", plot::svg(&x, &y, &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_belong_to_the_time_of_their_start() {
        let answer = |name: &str, at_ms, ms| Answer { name: name.to_owned(), at_ms, ms, rows: Ok(1) };
        let answers = [
            answer("a", 10.0, 8.0),
            answer("a", 30.0, 2.0),
            answer("a", 40.0, 4.0),
            answer("b", 15.0, 5.0),
            answer("b", 99.0, 1.0),
        ];
        let phase = Phase { share: 0.1, from_ms: 5.0, moved_ms: 30.0, placed: 0.1, until_ms: 50.0 };
        let moving = means(phase.moving(&answers));
        let steady = means(phase.steady(&answers));
        assert_eq!((moving.get("a"), moving.get("b")), (Some(&8.0), Some(&5.0)));
        assert_eq!((steady.get("a"), steady.get("b")), (Some(&3.0), None));
        let both = ratio(&moving, &steady);
        assert!(both.is_some_and(|both| (both - 8.0 / 3.0).abs() < 1e-9), "{both:?}");
        assert_eq!(ratio(&steady, &BTreeMap::new()), None);
    }

    #[test]
    fn every_budget_is_set_and_what_it_brought_noted() {
        let set = std::cell::RefCell::new(Vec::new());
        let change = |share: f64| {
            set.borrow_mut().push(share);
            Ok(share / 2.0)
        };
        let found = phases(&[1.0, 0.5, 0.2], Duration::from_millis(2), Instant::now(), &change);
        let found = found.unwrap_or_default();
        assert_eq!(set.into_inner(), [1.0, 0.5, 0.2]);
        let shares: Vec<_> = found.iter().map(|phase| (phase.share, phase.placed)).collect();
        assert_eq!(shares, [(1.0, 0.5), (0.5, 0.25), (0.2, 0.1)]);
        assert!(found.iter().all(|p| p.from_ms <= p.moved_ms && p.moved_ms <= p.until_ms));
        assert!(found.is_sorted_by_key(|phase| phase.until_ms));
    }
}
