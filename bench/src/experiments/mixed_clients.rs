//! Short statements of many clients beside heavy sorts of some, in little memory: the server's admission against slots alone.
//!
//! Of 32 clients, 8 sort all rows of `lineitem` again and again, and 24 take turns between a row by its key and TPC-H's
//! query 6. Both servers have 2 GiB and their defaults; the peer has `query.admission = fifo`: 16 slots, first come, first
//! served, and none for point statements.

use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{Dataset, StoreClone};
use crate::error::Result;
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::{median, percentile};
use crate::streams::{self, Answer, Statement};
use crate::tpch::QUERIES;

const LIMIT: &str = "2GiB";
const HEAVY_CLIENTS: usize = 8;
const SHORT_CLIENTS: usize = 24;
/// For so long clients begin statements.
const ROUND: Duration = Duration::from_secs(60);
const QUICK_ROUND: Duration = Duration::from_secs(5);
/// Longer than the statements of a round, so that a wait is no failure.
const QUEUE_TIMEOUT_S: u64 = 1800;
/// The setting, and its name in rows. The peer is the last one.
const ADMISSIONS: [&str; 2] = ["weighted-demand", "fifo"];

const HEAVY: &str = "heavy sort";
const POINT: &str = "point";
const SHORT: &str = "q6";
const SORT: &str = "SELECT sum(l_orderkey * (n % 97)) FROM (SELECT l_orderkey, row_number() OVER (ORDER BY l_comment, \
                    l_orderkey, l_linenumber) AS n FROM lineitem)";

/// Measures both servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    let data = bench.dataset(scale)?;
    let clients = clients(scale);
    let duration = if bench.quick { QUICK_ROUND } else { ROUND };
    let sides: Vec<Side> = ADMISSIONS.into_iter().map(|name| Side::start(name, &data)).collect::<Result<_>>()?;
    let mut rounds: Vec<[Measured; 2]> = Vec::new();
    while bench.wants_another_round(rounds.len()) {
        let mut round = [Measured::default(), Measured::default()];
        for (side, measured) in sides.iter().zip(&mut round) {
            let answers = streams::run_for(side.server.url(), &clients, duration)?;
            *measured = Measured::new(&answers.all);
            bench.record(side.admission, "32 clients", measured.sample());
        }
        rounds.push(round);
    }
    show(&rounds);
    let params = json!({
        "scale": scale, "seconds": duration.as_secs(), "heavy_clients": HEAVY_CLIENTS, "short_clients": SHORT_CLIENTS,
        "memory_limit": LIMIT,
    });
    let [ours, peer] = ADMISSIONS;
    let mut add = |what: &str, figure: fn(&Measured) -> f64, target| {
        let ratios: Vec<f64> = rounds.iter().map(|[a, b]| figure(a) / figure(b)).collect();
        bench.add(Finding { sides: (ours, peer), what, values: &ratios, target, params: params.clone() });
    };
    add("p99 of the rest", |side| side.rest.p99(), Target::below(0.5, 0.2));
    add("p99 of point statements", |side| side.point.p99(), Target::OPEN);
    add("p99 of q6", |side| side.short.p99(), Target::OPEN);
    add("heavy sorts answered", |side| side.heavy.ms.len() as f64, Target::OPEN);
    let answered: Vec<f64> = rounds.iter().map(|[ours, _]| ours.answered()).collect();
    bench.add(Finding {
        sides: (ours, "all statements"),
        what: "answered",
        values: &answered,
        target: Target::above(1.0, 1.0),
        params,
    });
    Ok(())
}

/// The statements of each client, in the order in which it repeats them.
fn clients(scale: f64) -> Vec<Vec<Statement>> {
    let heavy = (0..HEAVY_CLIENTS).map(|_| vec![Statement::new(HEAVY, SORT)]);
    let short = (0..SHORT_CLIENTS).map(|client| {
        // The first of every eight keys up to 6,000,000 per scale is one of an order.
        let key = ((client + 1) as f64 * 200_000.0 * scale) as u64 / 8 * 8 + 1;
        let point = format!("SELECT l_comment FROM lineitem WHERE l_orderkey = {key} AND l_linenumber = 1");
        vec![Statement::new(POINT, &point), Statement::new(SHORT, QUERIES[5])]
    });
    heavy.chain(short).collect()
}

/// A server with its data.
struct Side {
    admission: &'static str,
    server: Server,
    _store: StoreClone,
}

impl Side {
    fn start(admission: &'static str, data: &Dataset) -> Result<Self> {
        let store = data.clone_store()?;
        let policy = format!("query.admission={admission}");
        let wait = format!("query.queue_timeout={QUEUE_TIMEOUT_S}s");
        let server = Server::start(&store.path(), &["--memory-limit", LIMIT, "--set", &policy, "--set", &wait])?;
        Ok(Self { admission, server, _store: store })
    }
}

/// Times of the statements of one kind that were answered.
#[derive(Debug, Clone, Default)]
struct Kind {
    ms: Vec<f64>,
    failed: usize,
}

impl Kind {
    fn new<'a>(answers: impl Iterator<Item = &'a Answer>) -> Self {
        let mut kind = Self::default();
        for answer in answers {
            match &answer.rows {
                Ok(_) => kind.ms.push(answer.ms),
                Err(error) => {
                    if kind.failed == 0 {
                        eprintln!("  {}, first of those that failed: {error}", answer.name);
                    }
                    kind.failed += 1;
                }
            }
        }
        kind
    }

    fn p99(&self) -> f64 {
        percentile(&self.ms, 0.99)
    }
}

/// What became of the statements of one round.
#[derive(Debug, Clone, Default)]
struct Measured {
    heavy: Kind,
    point: Kind,
    short: Kind,
    /// All but the heavy ones.
    rest: Kind,
}

impl Measured {
    fn new(answers: &[Answer]) -> Self {
        let named = |name: &'static str| Kind::new(answers.iter().filter(move |answer| answer.name == name));
        let (point, short) = (named(POINT), named(SHORT));
        let ms = point.ms.iter().chain(&short.ms).copied().collect();
        let rest = Kind { ms, failed: point.failed + short.failed };
        Self { heavy: named(HEAVY), point, short, rest }
    }

    fn kinds(&self) -> [&Kind; 3] {
        [&self.point, &self.short, &self.heavy]
    }

    fn answered(&self) -> f64 {
        let answered = (self.heavy.ms.len() + self.rest.ms.len()) as f64;
        answered / (answered + (self.heavy.failed + self.rest.failed) as f64)
    }

    fn sample(&self) -> Sample {
        Sample::new(self.rest.p99())
            .with("point_p99_ms", self.point.p99())
            .with("q6_p99_ms", self.short.p99())
            .with("rest_answered", self.rest.ms.len() as f64)
            .with("heavy_answered", self.heavy.ms.len() as f64)
            .with("heavy_p99_ms", self.heavy.p99())
            .with("failed", (self.heavy.failed + self.rest.failed) as f64)
    }
}

fn show(rounds: &[[Measured; 2]]) {
    let head = ["answered", "failed", "median", "p99"].map(|name| format!("{name:>12}"));
    println!("  {:<17}{:<12}{}", "", "", head.concat());
    for (at, admission) in ADMISSIONS.into_iter().enumerate() {
        for (which, name) in [POINT, SHORT, HEAVY].into_iter().enumerate() {
            let of_rounds = |figure: fn(&Kind) -> f64| {
                median(&rounds.iter().map(|round| figure(round[at].kinds()[which])).collect::<Vec<_>>())
            };
            println!(
                "  {admission:<17}{name:<12}{:>12.0}{:>12.0}{:>9.0} ms{:>9.0} ms",
                of_rounds(|kind| kind.ms.len() as f64),
                of_rounds(|kind| kind.failed as f64),
                of_rounds(|kind| median(&kind.ms)),
                of_rounds(Kind::p99),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_what_is_no_heavy_sort() {
        let answer = |name: &str, ms, rows| Answer { name: name.to_owned(), at_ms: 0.0, ms, rows };
        let refused = || Err("try again".to_owned());
        let answers = [
            answer(POINT, 1.0, Ok(1)),
            answer(SHORT, 9.0, Ok(1)),
            answer(HEAVY, 500.0, Ok(1)),
            answer(POINT, 0.1, refused()),
        ];
        let measured = Measured::new(&answers);
        assert_eq!((measured.rest.p99(), measured.point.p99(), measured.heavy.p99()), (9.0, 1.0, 500.0));
        assert_eq!((measured.answered(), measured.rest.failed), (0.75, 1));
    }

    #[test]
    fn every_client_has_statements_and_a_quarter_sorts() {
        let clients = clients(1.0);
        let sorting = clients.iter().filter(|statements| statements.iter().any(|one| one.name == HEAVY)).count();
        assert_eq!((clients.len(), sorting), (32, 8));
        assert!(clients.iter().all(|statements| !statements.is_empty()));
    }
}
