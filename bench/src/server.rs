//! A real `terrace serve` for experiments: started on a data directory, asked by its own `terrace sql`, watched in /proc.

use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::row::Sample;

fn program() -> Result<PathBuf> {
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

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    process: Process,
    url: String,
}

impl Server {
    /// Starts one on a data directory, with further arguments.
    pub fn start(data_dir: &Path, arguments: &[&str]) -> Result<Self> {
        let program = program()?;
        let ready = data_dir.join("ready.json");
        let process = command(&program)
            .args(["serve", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
            .args(arguments)
            .arg("--data-dir")
            .arg(data_dir)
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::path("start", &program))?;
        let mut server = Self { program, process, url: String::new() };
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Ok(text) = std::fs::read_to_string(&ready)
                && let Ok(value) = serde_json::from_str::<serde_json::Value>(&text)
                && let Some(address) = value.get("flight").and_then(serde_json::Value::as_str)
            {
                server.url = format!("grpc://{address}");
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Error::failed("the server was not ready within 30 s"))
    }

    /// Where it speaks Flight SQL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs the statements of a file.
    pub fn sql(&self, file: &Path) -> Result<()> {
        let status = command(&self.program)
            .args(["sql", "--url", &self.url, "--format", "csv", "-f"])
            .arg(file)
            .stdout(Stdio::null())
            .status()
            .map_err(Error::path("start", &self.program))?;
        if status.success() { Ok(()) } else { Err(Error::failed(format!("the statements failed: {status}"))) }
    }

    /// Its resident memory, now and at its peak, and bytes it wrote to disk.
    pub fn memory(&self) -> Result<Sample> {
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
