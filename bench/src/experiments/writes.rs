//! Writes compared with raw writes to the disk: bulk ingest, inserts, compaction; and scans of tables with deleted
//! rows.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::{StoreClone, folder_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::side::SideSpec;
use crate::statistics::median;

const RAW: &str = "raw write + fsync";
/// Query memory of the server: little, because an ingest without clustering needs none.
const QUERY_BYTES: f64 = 64e6;
/// Memory of rows on their way into files.
const INGEST_BYTES: f64 = 128e6;
const ALLOWANCE_BYTES: f64 = 300e6;

fn megabytes_per_s(sample: &Sample) -> f64 {
    sample.value("bytes") / sample.ms / 1e3
}

/// Durable bulk ingest by DoPut into a real server, against raw writes of the bytes sent and of the bytes stored.
pub fn ingest(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    let folder = StoreClone::empty(bench.scratch("ingest"))?;
    let mut raw = Child::start(RAW, &SideSpec::Disk { folder: folder.path() })?;
    // A tenth of the bytes, as in the other experiments.
    let dram = (100e6 * scale).floor();
    let query = format!("memory.query={QUERY_BYTES}");
    let ingest = format!("memory.ingest={INGEST_BYTES}");
    let store = folder.path().join("store");
    let arguments =
        ["--set", &query, "--set", &ingest, "--set", "tiering.enabled=false", "--dram-budget", &dram.to_string()];
    let server = Server::start(&store, &arguments)?;
    let idle = server.memory()?;
    let spec = SideSpec::Client { url: server.url().to_owned(), scale };
    let mut client = Child::start("terrace serve, DoPut", &spec)?;
    client.ask("ingest warm")?;
    let stored = folder_bytes(&store.join("ssd"))? as f64;
    client.ask("update DROP TABLE warm")?;
    let mut sent = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    let mut a_rate = Vec::new();
    let mut rows_rate = Vec::new();
    let mut sent_bytes = 0.0;
    while bench.wants_another_round(kept.len()) {
        let a = bench.ask(&mut client, &format!("ingest t{}", kept.len()))?;
        client.ask(&format!("update DROP TABLE t{}", kept.len()))?;
        let as_sent = bench.ask(&mut raw, &format!("write {}", a.value("bytes")))?;
        let as_stored = bench.ask(&mut raw, &format!("write {stored}"))?;
        sent_bytes = a.value("bytes");
        sent.0.push(as_sent.ms / a.ms);
        sent.1.push(megabytes_per_s(&as_sent));
        kept.push(as_stored.ms / a.ms);
        a_rate.push(megabytes_per_s(&a));
        rows_rate.push(a.per_s("rows"));
    }
    let params = json!({
        "scale": scale, "mb_per_s_a": median(&a_rate), "rows_per_s_a": median(&rows_rate),
        "mb_per_s_b": median(&sent.1), "sent_bytes": sent_bytes, "stored_bytes": stored,
    });
    let sides = (client.name(), raw.name());
    let target = Target::above(0.3, 0.7);
    bench.add(Finding { sides, what: "bytes as sent", values: &sent.0, target, params: params.clone() });
    bench.add(Finding { sides, what: "bytes as stored (narrower)", values: &kept, target, params });
    let peak = server.memory()?.value("peak_bytes");
    let allowed = dram + QUERY_BYTES + INGEST_BYTES + ALLOWANCE_BYTES;
    bench.add(Finding {
        sides: ("resident memory of terrace serve (peak)", "DRAM budget + query and ingest memory + 300 MB"),
        what: "server memory",
        values: &[peak / allowed],
        target: Target::below(1.0, 1.0),
        params: json!({
            "scale": scale, "peak_bytes": peak, "idle_bytes": idle.value("resident_bytes"), "dram_budget_bytes": dram,
            "allowed_bytes": allowed,
        }),
    });
    Ok(())
}

/// Durable inserts by size and writers, against one thread that appends 4 KiB and syncs for each insert.
pub fn insert_rates(bench: &mut Bench) -> Result<()> {
    let folder = StoreClone::empty(bench.scratch("inserts"))?;
    let mut store =
        Child::start("Terrace, durable inserts", &SideSpec::Writer { store: folder.path(), stream: false })?;
    let mut raw = Child::start("4 KiB + fsync per row, one writer", &SideSpec::Disk { folder: folder.path() })?;
    let ms = if bench.quick { 80 } else { 1000 };
    for count in [1, 100, 10_000] {
        for writers in [1, 4, 16] {
            let found = bench.in_turn(bench.runs, |bench| {
                let a = bench.ask(&mut store, &format!("insert {count} {writers} {ms}"))?;
                let b = bench.ask(&mut raw, &format!("inserts {ms}"))?;
                Ok((a.per_s("rows"), b.per_s("inserts")))
            })?;
            bench.add(Finding {
                sides: (store.name(), raw.name()),
                what: &format!("{count} rows x {writers} writers"),
                values: &found.ratios,
                target: inserts_target(count, writers),
                params: json!({
                    "rows": count, "writers": writers, "rows_per_s_a": median(&found.a),
                    "inserts_per_s_a": median(&found.a) / f64::from(count), "inserts_per_s_b": median(&found.b),
                }),
            });
        }
    }
    Ok(())
}

/// On the reference side a sync makes one row durable. A single insert should come near to that; larger inserts and
/// parallel writers share a sync, until the bytes of their rows dominate.
fn inserts_target(rows: u32, writers: u32) -> Target {
    let shared = f64::from(rows.min(100)) * f64::from(writers.min(4));
    Target::above(0.5 * shared, 0.9 * shared)
}

const SCAN: &str =
    "sql SELECT sum(l_quantity), sum(l_extendedprice), sum(l_discount), sum(l_tax), sum(l_partkey) FROM lineitem";

/// Scans of `lineitem` in DRAM with a growing share of its rows deleted by chance, against none deleted.
pub fn deleted_rows(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    let data = bench.dataset(scale)?;
    let stores = (data.clone_store()?, data.clone_store()?);
    let spec = |store: &StoreClone| SideSpec::terrace(store.path(), bench.threads);
    let mut holed = Child::start("Terrace, rows deleted", &spec(&stores.0))?;
    let mut whole = Child::start("Terrace, none deleted", &spec(&stores.1))?;
    for side in [&mut holed, &mut whole] {
        side.ask(SCAN)?;
        side.ask("place 1")?;
    }
    let mut before = 0.0;
    for share in [0.0, 0.01, 0.1, 0.5] {
        let commit = bench.ask(&mut holed, &format!("delete lineitem {before} {share}"))?;
        before = share;
        let params = json!({ "share": share, "delete_ms": commit.ms });
        let what = format!("{} % deleted", share * 100.0);
        let target = Target::below(1.25, 1.05);
        compare_scans(bench, scale, (&mut holed, &mut whole), &what, target, params)?;
    }
    let done = bench.ask(&mut holed, "optimize lineitem")?;
    let params = json!({ "share": before, "optimize_ms": done.ms, "chunks_out": done.value("chunks_out") });
    // Half of the rows are left.
    let target = Target::below(0.65, 0.5);
    compare_scans(bench, scale, (&mut holed, &mut whole), "50 % deleted, then optimized", target, params)
}

fn compare_scans(
    bench: &mut Bench,
    scale: f64,
    sides: (&mut Child, &mut Child),
    what: &str,
    target: Target,
    mut params: serde_json::Value,
) -> Result<()> {
    sides.0.ask(SCAN)?;
    sides.1.ask(SCAN)?;
    let found = bench.in_turn(bench.runs, |bench| {
        let a = bench.ask(sides.0, SCAN)?;
        let b = bench.ask(sides.1, SCAN)?;
        if a.value("cold_bytes") + b.value("cold_bytes") > 0.0 {
            return Err(Error::failed("a side that should hold all in memory read from disk while it was measured"));
        }
        Ok((a.ms, b.ms))
    })?;
    if let Some(params) = params.as_object_mut() {
        let further = [("scale", scale), ("ms_a", median(&found.a)), ("ms_b", median(&found.b))];
        params.extend(further.map(|(name, value)| (name.to_owned(), json!(value))));
    }
    let sides = (sides.0.name(), sides.1.name());
    bench.add(Finding { sides, what, values: &found.ratios, target, params });
    Ok(())
}

/// `OPTIMIZE` of a table that lost half of its rows against raw writes of the same bytes, and how often a row of a slow
/// stream of small inserts is written until it rests.
pub fn compaction(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    let data = bench.dataset(scale)?;
    let folder = StoreClone::empty(bench.scratch("compaction"))?;
    let mut raw = Child::start(RAW, &SideSpec::Disk { folder: folder.path() })?;
    let found = bench.in_turn(bench.runs, |bench| {
        let store = data.clone_store()?;
        let spec = SideSpec::terrace(store.path(), bench.threads);
        let mut side = Child::start("Terrace, compaction", &spec)?;
        side.ask("delete lineitem 0 0.5")?;
        let a = bench.ask(&mut side, "optimize lineitem")?;
        let b = bench.ask(&mut raw, &format!("write {}", a.value("bytes")))?;
        Ok((megabytes_per_s(&a), megabytes_per_s(&b)))
    })?;
    bench.add(Finding {
        sides: ("Terrace, compaction", RAW),
        what: "half of lineitem's rows deleted",
        values: &found.ratios,
        target: Target::above(0.3, 0.7),
        params: json!({ "scale": scale, "mb_per_s_a": median(&found.a), "mb_per_s_b": median(&found.b) }),
    });
    amplification(bench, &folder)
}

fn amplification(bench: &mut Bench, folder: &StoreClone) -> Result<()> {
    let spec = SideSpec::Writer { store: folder.path().join("store"), stream: true };
    let mut side = Child::start("bytes of chunk files written", &spec)?;
    let rows_per_s = 20_000;
    let ms = if bench.quick { 1200 } else { 20_000 };
    let sample = bench.ask(&mut side, &format!("stream {rows_per_s} {ms}"))?;
    let written = sample.value("written_bytes");
    let live = sample.value("live_bytes");
    if sample.value("compactions") == 0.0 || live == 0.0 {
        return Err(Error::failed("the stream ended without a compaction"));
    }
    bench.add(Finding {
        sides: (side.name(), "bytes of the chunks left"),
        what: "write amplification of small inserts",
        values: &[written / live],
        target: Target::below(3.0, 2.0),
        params: json!({
            "rows": sample.value("rows"), "rows_per_s": rows_per_s, "rows_per_insert": 100, "chunk_rows": 16_384,
            "seal_rows": 1024, "written_bytes": written, "live_bytes": live, "chunks": sample.value("chunks"),
            "compactions": sample.value("compactions"),
            "process_amplification": sample.value("process_bytes") / live,
        }),
    });
    Ok(())
}
