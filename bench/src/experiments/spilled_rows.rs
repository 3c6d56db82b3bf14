//! Query 18 of TPC-H in so little query memory that it spills: temporary rows on disk against temporary rows on the fastest
//! tier (hStorage-DB, section 6.3.3, whose Q18 ran as on SSD alone).
//!
//! All servers have a DRAM tier without segments that would hold all the rows; they differ in the share of it that spilled
//! rows may have.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::statistics::median;
use crate::streams::{self, Statement};

/// Query memory per scale, and at least.
const QUERY_BYTES: f64 = 25e6;
const LEAST_QUERY_BYTES: f64 = 64e6;
/// Room on the DRAM tier per scale.
const DRAM_BYTES: f64 = 300e6;
const QUERY: &str = "q18";
/// Name in rows, and percent of the DRAM tier; the one to compare with last.
const SIDES: [(&str, u32); 3] = [("on disk", 0), ("10 % of the tier", 10), ("on the fastest tier", 100)];

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let query_bytes = (QUERY_BYTES * scale).max(LEAST_QUERY_BYTES) as u64;
    let dram_bytes = (DRAM_BYTES * scale) as u64;
    let statement = Statement::tpch().into_iter().find(|statement| statement.name == QUERY);
    let statement = statement.ok_or_else(|| Error::failed("there is no query 18"))?;
    let sides = SIDES.map(|(_, percent)| {
        let store = data.clone_store()?;
        let settings = [
            format!("memory.query={query_bytes}"),
            format!("query.threads={}", bench.threads),
            format!("query.spill_tier_percent={percent}"),
            "tiering.enabled=false".to_owned(),
            "tiering.merge=never".to_owned(),
        ];
        let dram = dram_bytes.to_string();
        let mut arguments = vec!["--dram-budget", &dram];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let server = Server::start(&store.path(), &arguments)?;
        Ok::<(Server, StoreClone), Error>((server, store))
    });
    let [disk, some, tier] = sides;
    let servers = [disk?, some?, tier?];
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut written = [0.0; 3];
    let mut spilled = [0.0; 3];
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        for place in 0..SIDES.len() {
            let place = if rounds.is_multiple_of(2) { place } else { SIDES.len() - 1 - place };
            let server = &servers[place].0;
            if rounds == 0 {
                streams::run(server.url(), &[vec![statement.clone()]])?;
            }
            let before = sums(server)?;
            let answers = streams::run(server.url(), &[vec![statement.clone()]])?;
            if let Some(Err(error)) = answers.all.first().map(|answer| answer.rows.as_ref()) {
                return Err(Error::failed(format!("{QUERY} {}: {error}", SIDES[place].0)));
            }
            let after = sums(server)?;
            written[place] = after[0] - before[0];
            spilled[place] = after[1] - before[1];
            times[place].push(answers.ms);
            let sample =
                Sample::new(answers.ms).with("spilled_bytes", spilled[place]).with("written_bytes", written[place]);
            bench.record(SIDES[place].0, QUERY, sample);
        }
        rounds += 1;
    }
    for (place, (name, _)) in SIDES.iter().enumerate() {
        println!(
            "  {name:<20}{:>9.0} ms   spilled {:>6.0} MB, of it to the disk {:>6.0} MB",
            median(&times[place]),
            spilled[place] / 1e6,
            written[place] / 1e6
        );
    }
    for place in 0..2 {
        let ratios: Vec<f64> = times[place].iter().zip(&times[2]).map(|(ours, peer)| ours / peer).collect();
        let mut params = json!({
            "scale": scale, "threads": bench.threads, "query_memory_bytes": query_bytes, "dram_budget": dram_bytes,
            "ms_a": median(&times[place]), "ms_b": median(&times[2]), "spilled_bytes": spilled[place],
            "disk_bytes_a": written[place], "disk_bytes_b": written[2],
        });
        if spilled[place] == 0.0 || written[2] > 0.0 || (place == 0 && written[0] == 0.0) {
            params["undecided"] = json!("the rows did not lie where they were to lie: use another scale");
        }
        let what = &format!("{QUERY}: {}", SIDES[place].0);
        let target = if place == 0 { Target::below(1.2, 1.05) } else { Target::OPEN };
        bench.add(Finding { sides: (SIDES[place].0, SIDES[2].0), what, values: &ratios, target, params });
    }
    servers.into_iter().try_for_each(|(server, _)| server.stop())
}

/// Bytes that statements have written to the disk for spilled rows, and spilled, so far.
fn sums(server: &Server) -> Result<[f64; 2]> {
    Ok([
        server.number("SELECT written_bytes FROM system.io WHERE class = 'spill'")?,
        server.number("SELECT coalesce(sum(spilled_bytes), 0) FROM system.queries")?,
    ])
}
