//! Restart of a real server: the time until its first query over cold data has answered, and until the segments that
//! were in DRAM before are there again, for ten times the data.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::{StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::tpch::QUERIES;

const FIRST_QUERY: &str = "SELECT l_orderkey, l_comment FROM lineitem LIMIT 1";
/// The share of the bytes in DRAM before the restart at which the hot set counts as restored.
const BACK: f64 = 0.95;
const LIMIT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A store with a hot set.
struct Side {
    store: StoreClone,
    name: String,
    arguments: Vec<String>,
    hot_bytes: f64,
}

/// Measures restarts on a tenth of the data and on all of it, in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let large = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 10.0 });
    let small = large / 10.0;
    let a = Side::heated(bench, large)?;
    let b = Side::heated(bench, small)?;
    let (mut first, mut back): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    while bench.wants_another_round(first[0].len()) {
        for (at, side) in [&a, &b].into_iter().enumerate() {
            let sample = side.restart()?;
            bench.record(&side.name, "restart", sample.clone());
            first[at].push(sample.ms);
            back[at].push(sample.value("hot_ms"));
        }
    }
    let sides = (a.name.as_str(), b.name.as_str());
    let ratios = |[a, b]: &[Vec<f64>; 2]| a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>();
    for (what, times, target) in
        [("start to first answer", &first, Target::below(2.0, 1.0)), ("start to hot set back", &back, Target::OPEN)]
    {
        bench.add(Finding {
            sides,
            what,
            values: &ratios(times),
            target,
            params: json!({
                "scale_a": large, "scale_b": small, "ms_a": median(&times[0]), "ms_b": median(&times[1]),
                "hot_bytes_a": a.hot_bytes, "hot_bytes_b": b.hot_bytes,
            }),
        });
    }
    Ok(())
}

impl Side {
    /// A store whose server ran the 22 queries twice, a tenth of its bytes in DRAM.
    fn heated(bench: &Bench, scale: f64) -> Result<Self> {
        let data = bench.dataset(scale)?;
        let store = data.clone_store()?;
        let budget = folder_bytes(&data.store().join("ssd"))? / 10;
        let mut arguments = vec!["--dram-budget".to_owned(), budget.to_string()];
        if bench.quick {
            // Otherwise epochs would run only at a server's default interval.
            arguments.extend(["--set".to_owned(), "tiering.interval=1s".to_owned()]);
        }
        let file = store.path().join("queries.sql");
        std::fs::write(&file, QUERIES.join(";\n")).map_err(Error::path("write", &file))?;
        let mut side = Self { store, name: format!("scale {scale}"), arguments, hot_bytes: 0.0 };
        let server = side.start()?;
        for _ in 0..2 {
            server.sql(&file)?;
            server.run_epoch()?;
        }
        side.hot_bytes = server.placed_bytes("dram")?;
        server.stop()?;
        if side.hot_bytes > 0.0 { Ok(side) } else { Err(Error::failed("the queries brought nothing to DRAM")) }
    }

    fn start(&self) -> Result<Server> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Server::start(&self.store.path(), &arguments)
    }

    /// The time to the first answer; `hot_ms` is the time to the hot set, without queries meanwhile.
    fn restart(&self) -> Result<Sample> {
        let start = Instant::now();
        let ms = || start.elapsed().as_secs_f64() * 1e3;
        let server = self.start()?;
        let ready_ms = ms();
        server.number(FIRST_QUERY)?;
        let first_ms = ms();
        while server.placed_bytes("dram")? < BACK * self.hot_bytes {
            if start.elapsed() > LIMIT {
                let name = &self.name;
                let seconds = LIMIT.as_secs();
                return Err(Error::failed(format!("{name}: the hot set was not back within {seconds} s")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let sample = Sample::new(first_ms).with("ready_ms", ready_ms).with("hot_ms", ms());
        server.stop()?;
        Ok(sample)
    }
}
