//! Throughput of TPC-H by clients and threads: one client and fifty, each with all 22 queries in an order of its own, on
//! servers with all data in DRAM.
//!
//! Dreseler 2021, figure 4.8 (section 4.6.3), SF 10: with 50 clients and 56 cores Hyrise reaches 0.494 iterations/s and
//! MonetDB 0.496, an iteration being all 22 queries; with one client more threads hardly help Hyrise. Only whole iterations
//! count, as in the thesis.

use std::collections::HashMap;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{Dataset, StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::plot::{self, Axis, Series};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Statement};
use crate::tpch::{QUERIES, TABLES};

const CLIENTS: usize = 50;
/// Iterations of a single client.
const ALONE: usize = 3;
/// Most rounds: more would take longer than a quarter of an hour.
const RUNS: usize = 2;
/// Longer than a round, so that no wait is a failure.
const QUEUE_TIMEOUT_S: u64 = 3600;
/// Scale factor, cores, and iterations/s with 50 clients.
const THESIS: [(&str, f64, f64, f64); 2] = [("Hyrise", 10.0, 56.0, 0.494), ("MonetDB", 10.0, 56.0, 0.496)];

/// A server, with its iterations/s per round.
struct Side {
    threads: usize,
    server: Server,
    alone: Vec<f64>,
    crowd: Vec<f64>,
    _store: StoreClone,
}

impl Side {
    /// Starts one with all data in DRAM.
    fn start(data: &Dataset, threads: usize) -> Result<Self> {
        let store = data.clone_store()?;
        let dram = (3 * folder_bytes(&data.store().join("ssd"))? + (256 << 20)).to_string();
        let settings = [
            format!("query.threads={threads}"),
            format!("query.queue_timeout={QUEUE_TIMEOUT_S}s"),
            "query.max_queued=4096".to_owned(),
            "tiering.enabled=false".to_owned(),
        ];
        let mut arguments = vec!["--dram-budget", &dram];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting.as_str()]));
        let server = Server::start(&store.path(), &arguments)?;
        server.pin_in_dram(&TABLES.map(|table| table.name))?;
        Ok(Self { threads, server, alone: Vec::new(), crowd: Vec::new(), _store: store })
    }

    /// Iterations/s of clients that each run all their statements. Fails when one fails, or returns another number of rows
    /// than before.
    fn measure(
        &self,
        bench: &mut Bench,
        clients: &[Vec<Statement>],
        expected: &mut HashMap<String, usize>,
    ) -> Result<f64> {
        let answers = streams::run(self.server.url(), clients)?;
        for answer in &answers.all {
            let name = &answer.name;
            let rows = *answer.rows.as_ref().map_err(|error| Error::failed(format!("{name}: {error}")))?;
            let known = *expected.entry(name.clone()).or_insert(rows);
            if rows != known {
                return Err(Error::failed(format!("{name} returns {rows} rows, and {known} before")));
            }
        }
        let per_s = iterations_per_s(answers.all.len(), answers.ms);
        let sample = Sample::new(answers.ms).with("iterations_per_s", per_s);
        bench.record(&format!("{} threads", self.threads), &format!("{} clients", clients.len()), sample);
        Ok(per_s)
    }
}

/// Iterations/s where so many statements took so long.
fn iterations_per_s(statements: usize, ms: f64) -> f64 {
    statements as f64 / QUERIES.len() as f64 / ms * 1e3
}

/// Iterations/s on one core at scale 1, if both were proportional.
fn per_core(iterations_per_s: f64, scale: f64, cores: f64) -> f64 {
    iterations_per_s * scale / cores
}

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(0.5);
    let data = bench.dataset(scale)?;
    let mut threads = if bench.quick { vec![bench.threads] } else { vec![1, bench.threads] };
    threads.dedup();
    let statements = Statement::tpch();
    let crowd = streams::shuffled(&statements, CLIENTS, bench.seed);
    let one = [streams::shuffled(&statements, ALONE, bench.seed).concat()];
    let mut expected = HashMap::new();
    let mut sides = threads.iter().map(|threads| Side::start(&data, *threads)).collect::<Result<Vec<_>>>()?;
    for side in &sides {
        side.measure(bench, std::slice::from_ref(&statements), &mut expected)?;
    }
    let mut rounds = 0;
    while rounds < RUNS && bench.wants_another_round(rounds) {
        for side in &mut sides {
            let alone = side.measure(bench, &one, &mut expected)?;
            let many = side.measure(bench, &crowd, &mut expected)?;
            side.alone.push(alone);
            side.crowd.push(many);
        }
        rounds += 1;
    }
    for side in &sides {
        side.server.check_in_dram()?;
    }
    add(bench, scale, &sides);
    draw(bench, &sides);
    Ok(())
}

fn add(bench: &mut Bench, scale: f64, sides: &[Side]) {
    println!("  {:<9}{:>20}{:>22}", "threads", "1 client, per s", "50 clients, per s");
    for Side { threads, alone, crowd, .. } in sides {
        println!("  {threads:<9}{:>20.3}{:>22.3}", median(alone), median(crowd));
        let [(_, thesis_scale, thesis_cores, hyrise), (.., monetdb)] = THESIS;
        let params = json!({
            "scale": scale, "threads": threads, "clients": CLIENTS, "iterations_per_s_a": median(crowd),
            "iterations_per_s_b": median(alone), "iterations_per_s_hyrise_56_cores_sf_10": hyrise,
            "iterations_per_s_monetdb_56_cores_sf_10": monetdb,
        });
        let ratios: Vec<f64> = crowd.iter().zip(alone).map(|(crowd, alone)| crowd / alone).collect();
        bench.add(Finding {
            sides: ("50 clients", "one client"),
            what: &format!("throughput, {threads} threads"),
            values: &ratios,
            target: Target::OPEN,
            params: params.clone(),
        });
        let mut params = params;
        params["unit"] = json!("scale factor x iterations / s / core");
        params["paper"] = json!(per_core(hyrise, thesis_scale, thesis_cores));
        let values: Vec<f64> = crowd.iter().map(|per_s| per_core(*per_s, scale, *threads as f64)).collect();
        bench.add(Finding {
            sides: ("50 clients", "the thesis' Hyrise, on another machine"),
            what: &format!("50 clients by core, {threads} threads"),
            values: &values,
            target: Target::OPEN,
            params,
        });
    }
    let (Some(first), Some(last)) = (sides.first(), sides.last()) else { return };
    if first.threads == last.threads {
        return;
    }
    for (what, values) in [("one client", (&last.alone, &first.alone)), ("50 clients", (&last.crowd, &first.crowd))] {
        let ratios: Vec<f64> = values.0.iter().zip(values.1).map(|(many, one)| many / one).collect();
        bench.add(Finding {
            sides: ("all threads", "one thread"),
            what: &format!("{what}: speed by {} threads", last.threads),
            values: &ratios,
            target: Target::OPEN,
            params: json!({ "scale": scale, "threads": last.threads }),
        });
    }
}

fn draw(bench: &mut Bench, sides: &[Side]) {
    let line = |figure: fn(&Side) -> &Vec<f64>| {
        sides.iter().map(|side| (side.threads as f64, median(figure(side)))).collect::<Vec<_>>()
    };
    let series = [
        Series::measured("one client", line(|side| &side.alone)),
        Series::measured("50 clients", line(|side| &side.crowd)),
    ];
    let x = Axis::linear("threads");
    let y = Axis::linear("iterations of 22 queries / s");
    bench.draw("Throughput of TPC-H (compare Dreseler 2021, figure 4.8)", plot::svg(&x, &y, &series));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_is_all_queries() {
        assert!((iterations_per_s(22 * 50, 100_000.0) - 0.5).abs() < 1e-9);
        assert!((per_core(0.494, 10.0, 56.0) - 0.0882).abs() < 1e-4);
        assert_eq!(per_core(1.0, 0.5, 2.0), 0.25);
    }
}
