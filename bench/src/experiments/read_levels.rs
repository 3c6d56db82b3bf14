//! Statements that read the same columns at several levels of their plans, as the queue serves reads: by the levels of their
//! operators (rules 2 and 5 of hStorage-DB, whose rule 5 its authors have not measured), and whatever the level.
//!
//! Nothing is in memory. Levels differ where nothing blocks between the operators that read at random: rows of a top-k are
//! fetched by position above the scan that found them, and a branch of UNION ALL may be deeper than another one.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Answers, Statement};

const STREAMS: usize = 4;
/// Times that each stream runs each statement in a round.
const REPEATS: usize = 3;
/// By name. The first reads its rows at random at level 0, the second fetches them above a top-k, the third does both.
const STATEMENTS: [(&str, &str); 3] = [
    ("filter", "SELECT max(l_comment), min(l_shipinstruct) FROM lineitem WHERE l_suppkey = 777"),
    ("top-k", "SELECT * FROM lineitem ORDER BY l_extendedprice % 9973, l_orderkey, l_linenumber LIMIT 500"),
    (
        "union",
        "SELECT max(c), min(i) FROM (SELECT l_comment AS c, l_shipinstruct AS i FROM lineitem WHERE l_suppkey = 778 UNION ALL \
         SELECT l_comment, l_shipinstruct FROM (SELECT * FROM lineitem ORDER BY l_extendedprice % 9967, l_orderkey, \
         l_linenumber LIMIT 500))",
    ),
];
/// Name in rows, and the setting; the measured one first.
const SIDES: [(&str, &str); 2] = [("by level", "io.turns=statement"), ("whatever the level", "io.turns=bytes")];

/// What a server did in a round.
struct Measured {
    answers: Answers,
    read_bytes: f64,
}

impl Measured {
    /// Median latency of a statement.
    fn median_ms(&self, name: &str) -> f64 {
        let times = self.answers.all.iter().filter(|answer| answer.name == name).map(|answer| answer.ms);
        median(&times.collect::<Vec<_>>())
    }
}

/// Measures both servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let threads = format!("query.threads={}", bench.threads);
    let start = |(_, turns): (&str, &str)| {
        let store = data.clone_store()?;
        let settings = [threads.as_str(), turns, "tiering.enabled=false", "tiering.merge=never"];
        let mut arguments = vec!["--dram-budget", "1MiB"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        let server = Server::start(&store.path(), &arguments)?;
        Ok::<(Server, StoreClone), Error>((server, store))
    };
    let servers = SIDES.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    let statements: Vec<Statement> = STATEMENTS.iter().map(|(name, sql)| Statement::new(name, sql)).collect();
    let repeated: Vec<Statement> = (0..REPEATS).flat_map(|_| statements.clone()).collect();
    let streams = streams::shuffled(&repeated, STREAMS, bench.seed);
    let mut rounds: Vec<[Measured; 2]> = Vec::new();
    for (server, _) in &servers {
        measure(server, std::slice::from_ref(&statements))?;
    }
    while bench.wants_another_round(rounds.len()) {
        let [ours, peer] = [&servers[0].0, &servers[1].0];
        // Forth and back, so that a drift of the machine meets both.
        let round = if rounds.len().is_multiple_of(2) {
            [measure(ours, &streams)?, measure(peer, &streams)?]
        } else {
            let peer = measure(peer, &streams)?;
            [measure(ours, &streams)?, peer]
        };
        for (measured, (side, _)) in round.iter().zip(SIDES) {
            let mut sample = Sample::new(measured.answers.ms).with("read_bytes", measured.read_bytes);
            for (name, _) in STATEMENTS {
                sample = sample.with(&format!("{name}_ms"), measured.median_ms(name));
            }
            bench.record(side, "streams", sample);
        }
        rounds.push(round);
    }
    let ratios = |figure: &dyn Fn(&Measured) -> f64| -> Vec<f64> {
        rounds.iter().map(|[ours, peer]| figure(ours) / figure(peer)).collect()
    };
    let sides = (SIDES[0].0, SIDES[1].0);
    let medians = |figure: &dyn Fn(&Measured) -> f64| {
        [0, 1].map(|side| median(&rounds.iter().map(|round| figure(&round[side])).collect::<Vec<_>>()))
    };
    let [ms_a, ms_b] = medians(&|measured| measured.answers.ms);
    let [read_a, read_b] = medians(&|measured| measured.read_bytes);
    let params = json!({
        "scale": scale, "threads": bench.threads, "seed": bench.seed, "streams": STREAMS,
        "ms_a": ms_a, "ms_b": ms_b, "read_bytes_a": read_a, "read_bytes_b": read_b,
    });
    let values = ratios(&|measured| measured.answers.ms);
    bench.add(Finding {
        sides,
        what: "time of 4 streams",
        values: &values,
        target: Target::OPEN,
        params: params.clone(),
    });
    for (name, _) in STATEMENTS {
        let values = ratios(&|measured| measured.median_ms(name));
        let what = &format!("median latency of {name}");
        bench.add(Finding { sides, what, values: &values, target: Target::OPEN, params: params.clone() });
    }
    servers.into_iter().try_for_each(|(server, _)| server.stop())
}

/// Runs all streams once.
fn measure(server: &Server, streams: &[Vec<Statement>]) -> Result<Measured> {
    let read = "SELECT sum(bytes) FROM system.io WHERE class IN ('point', 'needed', 'prefetch')";
    let before = server.number(read)?;
    let answers = streams::run(server.url(), streams)?;
    if let Some(error) = answers.all.iter().find_map(|answer| answer.rows.as_ref().err()) {
        return Err(Error::failed(format!("a statement failed: {error}")));
    }
    Ok(Measured { answers, read_bytes: server.number(read)? - before })
}
