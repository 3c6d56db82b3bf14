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
/// A way to keep spilled rows.
struct Side {
    name: &'static str,
    /// Percent of the DRAM tier that they may have.
    tier_percent: u32,
    /// How batches are compressed before they are written.
    compression: &'static str,
}

/// The one to compare with last.
const SIDES: [Side; 5] = [
    Side { name: "on disk", tier_percent: 0, compression: "uncompressed" },
    Side { name: "10 % of the tier", tier_percent: 10, compression: "uncompressed" },
    Side { name: "on disk, LZ4", tier_percent: 0, compression: "lz4_frame" },
    Side { name: "on disk, ZSTD", tier_percent: 0, compression: "zstd" },
    Side { name: "on the fastest tier", tier_percent: 100, compression: "uncompressed" },
];

/// Measures all servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let query_bytes = (QUERY_BYTES * scale).max(LEAST_QUERY_BYTES) as u64;
    let dram_bytes = (DRAM_BYTES * scale) as u64;
    let statement = Statement::tpch().into_iter().find(|statement| statement.name == QUERY);
    let statement = statement.ok_or_else(|| Error::failed("there is no query 18"))?;
    let start = |Side { tier_percent, .. }: &Side| {
        let store = data.clone_store()?;
        let settings = [
            format!("memory.query={query_bytes}"),
            format!("query.threads={}", bench.threads),
            format!("query.spill_tier_percent={tier_percent}"),
            "tiering.enabled=false".to_owned(),
            "tiering.merge=never".to_owned(),
        ];
        let dram = dram_bytes.to_string();
        let mut arguments = vec!["--dram-budget", &dram];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let server = Server::start(&store.path(), &arguments)?;
        Ok::<(Server, StoreClone), Error>((server, store))
    };
    let servers = SIDES.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut times: [Vec<f64>; SIDES.len()] = Default::default();
    let mut written = [0.0; SIDES.len()];
    let mut spilled = [0.0; SIDES.len()];
    let mut rounds = 0;
    while bench.wants_another_round(rounds) {
        for place in 0..SIDES.len() {
            let place = if rounds.is_multiple_of(2) { place } else { SIDES.len() - 1 - place };
            let server = &servers[place].0;
            let Side { name, compression, .. } = SIDES[place];
            let set = format!("SET datafusion.execution.spill_compression = '{compression}'");
            let statements = [vec![Statement::new("set", &set), statement.clone()]];
            if rounds == 0 {
                streams::run(server.url(), &statements)?;
            }
            let before = sums(server)?;
            let answers = streams::run(server.url(), &statements)?;
            let mut ms = f64::NAN;
            for answer in answers.all {
                answer.rows.map_err(|error| Error::failed(format!("{} {name}: {error}", answer.name)))?;
                ms = answer.ms;
            }
            let after = sums(server)?;
            written[place] = after[0] - before[0];
            spilled[place] = after[1] - before[1];
            times[place].push(ms);
            let sample = Sample::new(ms).with("spilled_bytes", spilled[place]).with("written_bytes", written[place]);
            bench.record(name, QUERY, sample);
        }
        rounds += 1;
    }
    for (place, Side { name, .. }) in SIDES.iter().enumerate() {
        println!(
            "  {name:<20}{:>9.0} ms   spilled {:>6.0} MB, of it to the disk {:>6.0} MB",
            median(&times[place]),
            spilled[place] / 1e6,
            written[place] / 1e6
        );
    }
    let [others @ .., tier] = &SIDES;
    let last = others.len();
    for (place, side) in others.iter().enumerate() {
        let ratios: Vec<f64> = times[place].iter().zip(&times[last]).map(|(ours, peer)| ours / peer).collect();
        let mut params = json!({
            "scale": scale, "threads": bench.threads, "query_memory_bytes": query_bytes, "dram_budget": dram_bytes,
            "ms_a": median(&times[place]), "ms_b": median(&times[last]), "spilled_bytes": spilled[place],
            "disk_bytes_a": written[place], "disk_bytes_b": written[last],
        });
        if spilled[place] == 0.0 || written[last] > 0.0 || (side.tier_percent == 0 && written[place] == 0.0) {
            params["undecided"] = json!("the rows did not lie where they were to lie: use another scale");
        }
        let what = &format!("{QUERY}: {}", side.name);
        let target = if place == 0 { Target::below(1.2, 1.05) } else { Target::OPEN };
        bench.add(Finding { sides: (side.name, tier.name), what, values: &ratios, target, params });
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
