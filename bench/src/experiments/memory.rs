//! Resident memory of a real server whose DRAM budget is a tenth of the data, under the 22 queries.

use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Finding, Target};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::tpch::QUERIES;

const QUERY_BYTES_PER_SCALE: f64 = 512e6;
const ALLOWANCE_BYTES: f64 = 300e6;

/// Starts the server, runs the queries while it tiers, and looks at its memory.
pub fn run(bench: &mut Bench) -> Result<()> {
    let terrace = terrace()?;
    let scale = bench.scale(10.0);
    let data = bench.dataset(scale)?;
    let store = data.clone_store()?;
    let budget = (folder_bytes(&data.store().join("ssd"))? as f64 / 10.0).floor();
    let query = (QUERY_BYTES_PER_SCALE * scale.max(1.0)).floor();
    let server = Server::start(&terrace, &store.path(), budget, query)?;
    let file = store.path().join("queries.sql");
    std::fs::write(&file, QUERIES.join(";\n")).map_err(Error::path("write", &file))?;
    let mut peaks = Vec::new();
    while bench.another(peaks.len()) {
        server.sql(&terrace, &file)?;
        let sample = server.memory()?;
        bench.keep("terrace serve", "22 queries", sample.clone());
        peaks.push(sample.value("peak_bytes"));
    }
    let allowed = budget + query + ALLOWANCE_BYTES;
    let ratios: Vec<f64> = peaks.iter().map(|peak| peak / allowed).collect();
    let now = server.memory()?;
    bench.add(Finding {
        sides: ("resident memory of terrace serve (peak)", "DRAM budget + query memory + 300 MB"),
        what: "resident memory",
        values: &ratios,
        target: Target::below(1.0, 1.0),
        params: json!({
            "scale": scale, "dram_budget_bytes": budget, "query_memory_bytes": query, "allowed_bytes": allowed,
            "resident_bytes": now.value("resident_bytes"), "peak_bytes": now.value("peak_bytes"),
        }),
    });
    Ok(())
}

fn terrace() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("cannot find this program"))?.with_file_name("terrace");
    let program = std::env::var_os("TERRACE_BIN").map_or(own, PathBuf::from);
    if program.is_file() {
        return Ok(program);
    }
    let path = program.display();
    Err(Error::Missing(format!("{path} is missing: cargo build --release (or set TERRACE_BIN)")))
}

/// A command without variables of this tool, which the server would take for its configuration.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("TERRACE_BIN").env_remove("TERRACE_BENCH_PYTHON").env_remove("TERRACE_BENCH_NO_COUNTERS");
    command
}

struct Server {
    process: Process,
    flight: String,
}

impl Server {
    fn start(terrace: &Path, data_dir: &Path, dram: f64, query: f64) -> Result<Self> {
        let ready = data_dir.join("ready.json");
        let process = command(terrace)
            .args(["serve", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
            .args(["--set", "tiering.interval=1s", "--set", &format!("memory.query={query}")])
            .args(["--dram-budget", &format!("{dram}")])
            .arg("--data-dir")
            .arg(data_dir)
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::path("start", terrace))?;
        let mut server = Self { process, flight: String::new() };
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Ok(text) = std::fs::read_to_string(&ready)
                && let Ok(value) = serde_json::from_str::<serde_json::Value>(&text)
                && let Some(address) = value.get("flight").and_then(serde_json::Value::as_str)
            {
                server.flight = address.to_owned();
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(Error::failed("the server was not ready within 30 s"))
    }

    fn sql(&self, terrace: &Path, file: &Path) -> Result<()> {
        let status = command(terrace)
            .args(["sql", "--url", &format!("grpc://{}", self.flight), "--format", "csv", "-f"])
            .arg(file)
            .stdout(Stdio::null())
            .status()
            .map_err(Error::path("start", terrace))?;
        if status.success() { Ok(()) } else { Err(Error::failed(format!("the queries failed: {status}"))) }
    }

    fn memory(&self) -> Result<Sample> {
        let path = PathBuf::from(format!("/proc/{}/status", self.process.id()));
        let text = std::fs::read_to_string(&path).map_err(Error::path("read", &path))?;
        let kib = |name: &str| -> f64 {
            let line = text.lines().find_map(|l| l.strip_prefix(name));
            line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
        };
        let sample = Sample::new(0.0).with("resident_bytes", kib("VmRSS:") * 1024.0);
        Ok(sample.with("peak_bytes", kib("VmHWM:") * 1024.0))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(Error::path("read", folder))? {
        let path = entry.map_err(Error::path("read", folder))?.path();
        let metadata = path.metadata().map_err(Error::path("read", &path))?;
        bytes += if metadata.is_dir() { folder_bytes(&path)? } else { metadata.len() };
    }
    Ok(bytes)
}
