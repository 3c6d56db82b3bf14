//! Large results by DoGet on loopback (P14), over one connection and over four at the same time: a real server with all
//! segments in DRAM, against a bare arrow-flight server that sends one batch again and again until it has sent as many
//! bytes.
//!
//! The result is all of `lineitem`: sixteen columns of integers, decimals, dates and texts, 1 GB at scale 1. The batch of
//! the bare server has 8,192 of its rows as Terrace sends them, so types, rows and bytes of a message are the same. It is
//! encoded for each message, as by any server that holds rows in memory; what the same takes with a message that was
//! encoded before, and what TCP carries without any protocol, is reported beside it. One program reads from all of
//! them, in a process of its own for each server, decodes every message and counts the bytes of the rows.

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::folder_bytes;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::server::Server;
use crate::side::SideSpec;
use crate::statistics::median;
use crate::tpch::{BATCH_ROWS, TABLES};

const QUERY: &str = "SELECT * FROM lineitem";
/// Connections that read at the same time, and their name in rows.
const STREAMS: [(usize, &str); 2] = [(1, "one stream"), (4, "four streams")];
/// Memory of the server with all data in DRAM, and of messages on their way, per scale factor.
const BYTES_PER_SCALE: u64 = 4_000_000_000;
const TARGET: Target = Target::above(0.9, 0.98);

/// Measures the servers in turn.
pub fn run(bench: &mut Bench) -> Result<()> {
    let scale = bench.scale.unwrap_or(if bench.quick { 0.1 } else { 1.0 });
    bench.check_memory(scale, BYTES_PER_SCALE)?;
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let dram = (3 * folder_bytes(&data.store().join("ssd"))? + (256 << 20)).to_string();
    let threads = format!("query.threads={}", bench.threads);
    let arguments = ["--set", "tiering.enabled=false", "--set", &threads, "--dram-budget", &dram];
    let server = Server::start(&store.path(), &arguments)?;
    server.pin_in_dram(&TABLES.map(|table| table.name))?;
    let rows = server.number("SELECT count(*) FROM lineitem")?;

    let sql = format!("{QUERY} LIMIT {BATCH_ROWS}");
    let mut bare = Child::start("bare server", &SideSpec::Bare { url: server.url().to_owned(), sql })?;
    let about = bare.ask("about")?;
    let reader = |name: &str, url: String| {
        let streams = STREAMS.iter().map(|(streams, _)| *streams).max().unwrap_or(1);
        Child::start(name, &SideSpec::Reader { url, streams })
    };
    let url = format!("grpc://127.0.0.1:{}", about.value("port"));
    let mut sides = Sides {
        ours: reader("Terrace, DoGet", server.url().to_owned())?,
        peer: reader("bare arrow-flight, DoGet of one batch", url)?,
        about,
    };
    for (streams, name) in STREAMS {
        let measured = sides.measure(bench, streams, rows)?;
        let params = json!({ "scale": scale, "streams": streams, "query": QUERY, "threads": bench.threads });
        add_rows(bench, &sides, name, &measured, &params);
    }
    // Check that all data is still in DRAM.
    server.check_in_dram()
}

/// The clients of both servers.
struct Sides {
    ours: Child,
    peer: Child,
    /// The ports of the bare server, and its batch.
    about: Sample,
}

/// Samples of the same number of connections, one per round.
#[derive(Debug, Default)]
struct Measured {
    ours: Vec<Sample>,
    /// The bare server, which encodes its batch for each message.
    batches: Vec<Sample>,
    /// The same with a message that was encoded before.
    messages: Vec<Sample>,
    /// TCP without a protocol.
    raw: Vec<Sample>,
}

impl Sides {
    /// Reads `rows` rows from Terrace on each of so many connections, and then as many bytes from the others, in turn.
    fn measure(&mut self, bench: &mut Bench, streams: usize, rows: f64) -> Result<Measured> {
        let ours = format!("read {streams} {QUERY}");
        let first = self.ours.ask(&ours)?;
        let read = first.value("rows");
        let expected = rows * streams as f64;
        if read != expected {
            return Err(Error::failed(format!("{streams} clients read {read} rows of {expected}")));
        }
        let bytes = first.value("bytes") / streams as f64;
        let count = batches_of_as_many_bytes(bytes, self.about.value("bytes"));
        let peers = [
            format!("read {streams} batches {count}"),
            format!("read {streams} messages {count}"),
            format!("raw {streams} {} {}", self.about.value("raw_port"), bytes.ceil()),
        ];
        for peer in &peers {
            self.peer.ask(peer)?;
        }
        let [batches, messages, raw] = &peers;
        let mut measured = Measured::default();
        while bench.wants_another_round(measured.ours.len()) {
            measured.ours.push(bench.ask(&mut self.ours, &ours)?);
            measured.batches.push(bench.ask(&mut self.peer, batches)?);
            measured.messages.push(bench.ask(&mut self.peer, messages)?);
            measured.raw.push(bench.ask(&mut self.peer, raw)?);
        }
        Ok(measured)
    }
}

/// The least number of batches that have as many bytes; at least one.
fn batches_of_as_many_bytes(bytes: f64, batch_bytes: f64) -> u64 {
    ((bytes / batch_bytes).ceil() as u64).max(1)
}

fn add_rows(bench: &mut Bench, sides: &Sides, name: &str, measured: &Measured, params: &serde_json::Value) {
    let ours = &measured.ours;
    let mut add = |peer: &str, what: String, samples: &[Sample], target: Target| {
        let mut params = params.clone();
        if let (Some(params), Some(further)) = (params.as_object_mut(), compared(ours, samples).as_object()) {
            params.extend(further.clone());
        }
        let values = ratios(ours, samples);
        bench.add(Finding { sides: (sides.ours.name(), peer), what: &what, values: &values, target, params });
    };
    add(sides.peer.name(), name.to_owned(), &measured.batches, TARGET);
    let encoded = "bare arrow-flight, DoGet of one message encoded before";
    add(encoded, format!("{name}, to encoded messages"), &measured.messages, Target::OPEN);
    add("TCP on loopback", format!("{name}, to raw TCP"), &measured.raw, Target::OPEN);

    // The client's part: with one core or more of decoding, the server may not be what limits the speed.
    let cores = |samples: &[Sample]| samples.iter().map(|s| s.value("cpu_ms") / s.ms).collect::<Vec<_>>();
    let mut params = params.clone();
    if let Some(params) = params.as_object_mut() {
        params.insert("bare_server".to_owned(), json!(median(&cores(&measured.batches))));
        params.insert("encoded_messages".to_owned(), json!(median(&cores(&measured.messages))));
        params.insert("raw_tcp".to_owned(), json!(median(&cores(&measured.raw))));
    }
    bench.add(Finding {
        sides: ("processor time of the client", "time of the result"),
        what: &format!("{name}, client's processor"),
        values: &cores(ours),
        target: Target::OPEN,
        params,
    });
}

/// Speeds of the first samples as shares of those of the others, round by round.
fn ratios(ours: &[Sample], others: &[Sample]) -> Vec<f64> {
    ours.iter().zip(others).map(|(a, b)| a.per_s("bytes") / b.per_s("bytes")).collect()
}

/// Medians of both sides; `null` where a side has no messages.
fn compared(ours: &[Sample], others: &[Sample]) -> serde_json::Value {
    let middle = |samples: &[Sample], figure: fn(&Sample) -> f64| {
        let values: Vec<f64> = samples.iter().map(figure).collect();
        median(&values)
    };
    let speed = |sample: &Sample| sample.per_s("bytes") / 1e6;
    let message = |sample: &Sample| sample.value("bytes") / sample.value("batches");
    let first = |sample: &Sample| sample.value("first_ms");
    let client = |sample: &Sample| sample.value("cpu_ms");
    json!({
        "bytes": middle(ours, |sample| sample.value("bytes")),
        "mb_per_s_a": middle(ours, speed), "mb_per_s_b": middle(others, speed),
        "ms_a": middle(ours, |sample| sample.ms), "ms_b": middle(others, |sample| sample.ms),
        "first_rows_ms_a": middle(ours, first), "first_rows_ms_b": middle(others, first),
        "client_cpu_ms_a": middle(ours, client), "client_cpu_ms_b": middle(others, client),
        "message_bytes_a": middle(ours, message), "message_bytes_b": middle(others, message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_sends_at_least_as_many_bytes() {
        assert_eq!(batches_of_as_many_bytes(1000.0, 300.0), 4);
        assert_eq!(batches_of_as_many_bytes(900.0, 300.0), 3);
        assert_eq!(batches_of_as_many_bytes(0.0, 300.0), 1);
    }

    #[test]
    fn speeds_are_compared_whatever_the_bytes() {
        let ours = [Sample::new(2.0).with("bytes", 2e6).with("batches", 2.0)];
        let others = [Sample::new(1.0).with("bytes", 4e6)];
        assert_eq!(ratios(&ours, &others), [0.25]);
        let params = compared(&ours, &others);
        assert_eq!(params["mb_per_s_a"], 1000.0);
        assert_eq!(params["mb_per_s_b"], 4000.0);
        assert_eq!(params["message_bytes_a"], 1e6);
        assert!(params["message_bytes_b"].is_null());
    }
}
