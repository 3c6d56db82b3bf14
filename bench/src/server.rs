//! A real `terrace serve` for experiments: started on a data directory, asked over Flight SQL and HTTP, watched in
//! /proc.

use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use arrow::array::{Array, Float64Array};
use arrow::datatypes::DataType;
use serde_json::json;
use terrace_server::client::{Client, Connection};
use terrace_server::http_client::HttpConnection;

use crate::cgroup::Cgroup;
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

fn command(program: &Path) -> Command {
    without_variables(Command::new(program))
}

/// Takes this tool's environment variables from a command: the server would read them as its configuration.
fn without_variables(mut command: Command) -> Command {
    for name in ["TERRACE_BIN", "TERRACE_BENCH_PYTHON", "TERRACE_BENCH_NO_COUNTERS", "TERRACE_BENCH_POSTGRES"] {
        command.env_remove(name);
    }
    command
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    process: Process,
    url: String,
    http_addr: String,
}

impl Server {
    /// Starts one on a data directory, with further arguments.
    pub fn start(data_dir: &Path, arguments: &[&str]) -> Result<Self> {
        Self::start_limited(data_dir, arguments, None)
    }

    /// Like [`Self::start`], under a limit.
    pub fn start_limited(data_dir: &Path, arguments: &[&str], limit: Option<&Cgroup>) -> Result<Self> {
        let program = program()?;
        let ready = data_dir.join("ready.json");
        // Remove the file of a server that was killed.
        let _ = std::fs::remove_file(&ready);
        let serve = limit.map_or_else(|| Command::new(&program), |limit| limit.start(&program));
        let process = without_variables(serve)
            .args(["serve", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
            .args(arguments)
            .arg("--data-dir")
            .arg(data_dir)
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::path("start", &program))?;
        let mut server = Self { program, process, url: String::new(), http_addr: String::new() };
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Ok(text) = std::fs::read_to_string(&ready)
                && let Ok(value) = serde_json::from_str::<serde_json::Value>(&text)
                && let Some(address) = value.get("flight").and_then(serde_json::Value::as_str)
                && let Some(http_addr) = value.get("http").and_then(serde_json::Value::as_str)
            {
                server.http_addr = http_addr.to_owned();
                server.url = format!("grpc://{address}");
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(Error::failed("the server was not ready within 30 s"))
    }

    /// Its Flight SQL address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs the statements of a file.
    pub fn sql(&self, file: &Path) -> Result<()> {
        let status = command(&self.program)
            .args(["sql", "--url", &self.url, "--format", "csv", "--quiet", "-f"])
            .arg(file)
            .stdout(Stdio::null())
            .status()
            .map_err(Error::path("start", &self.program))?;
        if status.success() { Ok(()) } else { Err(Error::failed(format!("the statements failed: {status}"))) }
    }

    /// The first value of a query's first row, as a number; `NaN` where there is none.
    pub fn number(&self, sql: &str) -> Result<f64> {
        let columns = self.columns(sql)?;
        Ok(columns.first().and_then(|values| values.first()).copied().unwrap_or(f64::NAN))
    }

    /// The columns of a query's rows, as numbers; `NaN` for NULL.
    pub fn columns(&self, sql: &str) -> Result<Vec<Vec<f64>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        let batches = runtime.block_on(async {
            let connection = Connection::to(&self.url);
            Client::connect(&connection).await?.query(sql).await
        })?;
        let mut columns = Vec::new();
        for batch in &batches {
            columns.resize(batch.num_columns(), Vec::new());
            for (numbers, values) in columns.iter_mut().zip(batch.columns()) {
                let values = arrow::compute::cast(values, &DataType::Float64)?;
                let values = values.as_any().downcast_ref::<Float64Array>().into_iter().flatten();
                numbers.extend(values.map(|value| value.unwrap_or(f64::NAN)));
            }
        }
        Ok(columns)
    }

    /// Runs one epoch to its end.
    pub fn run_epoch(&self) -> Result<()> {
        let http = HttpConnection::to(&self.http_addr);
        http.request("POST", "/api/v1/epochs", Some(&json!({ "dry_run": false })))?;
        Ok(())
    }

    /// Backs all tables up to a new folder.
    pub fn backup(&self, folder: &Path) -> Result<()> {
        let http = HttpConnection::to(&self.http_addr);
        http.request("POST", "/api/v1/backup", Some(&json!({ "path": folder })))?;
        Ok(())
    }

    /// Files of its tables that no table refers to any more: somebody still reads them, or they wait for their deletion.
    pub fn unowned_files(&self) -> Result<f64> {
        let usage = HttpConnection::to(&self.http_addr).request("GET", "/api/v1/usage", None)?;
        Ok(usage.get("unowned_files").and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN))
    }

    /// Its metrics, in the Prometheus text format.
    pub fn metrics(&self) -> Result<String> {
        Ok(HttpConnection::to(&self.http_addr).text("/metrics")?)
    }

    /// Bytes that lie on a tier.
    pub fn placed_bytes(&self, tier: &str) -> Result<f64> {
        self.number(&format!("SELECT placed_bytes FROM system.tiers WHERE tier = '{tier}'"))
    }

    /// Pins tables to DRAM and moves them there.
    pub fn pin_in_dram(&self, tables: &[&str]) -> Result<()> {
        for table in tables {
            self.statement(&format!("ALTER TABLE {table} PIN TO dram"))?;
        }
        self.run_epoch()?;
        let names: Vec<String> = tables.iter().map(|table| format!("'{table}'")).collect();
        self.check_segments(&format!("table_name IN ({})", names.join(", ")))
    }

    /// Fails when a segment lies elsewhere than in DRAM.
    pub fn check_in_dram(&self) -> Result<()> {
        self.check_segments("true")
    }

    /// Fails when a segment for which a condition on `system.segments` holds lies elsewhere than in DRAM.
    fn check_segments(&self, condition: &str) -> Result<()> {
        match self.number(&format!("SELECT count(*) FROM system.segments WHERE tier <> 'dram' AND {condition}"))? {
            0.0 => Ok(()),
            count => Err(Error::failed(format!("{count} segments that should lie in DRAM lie elsewhere"))),
        }
    }

    /// Runs one statement.
    pub fn statement(&self, sql: &str) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("cannot start a runtime"))?;
        let connection = Connection::to(&self.url);
        let done = runtime.block_on(async { Client::connect(&connection).await?.run(sql).await });
        done.map(drop).map_err(|error| Error::failed(format!("'{sql}' failed: {error}")))
    }

    /// Stops the server by SIGTERM, as a supervisor does, and waits for its end.
    pub fn stop(mut self) -> Result<()> {
        // SAFETY: the call takes numbers only; the process is ours and not yet waited for, so its number is still its
        // own.
        let sent = unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        if sent != 0 {
            return Err(Error::io("cannot stop the server")(std::io::Error::last_os_error()));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if self.process.try_wait().map_err(Error::io("cannot wait for the server"))?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Error::failed("the server did not end within 60 s"))
    }

    /// Its resident memory, now and at its peak.
    pub fn memory(&self) -> Result<Sample> {
        let text = self.proc_file("status")?;
        let sample = Sample::new(0.0).with("resident_bytes", kib(&text, "VmRSS:"));
        Ok(sample.with("peak_bytes", kib(&text, "VmHWM:")))
    }

    /// Its resident memory that belongs to no file, now.
    pub fn anonymous_bytes(&self) -> Result<f64> {
        Ok(kib(&self.proc_file("status")?, "RssAnon:"))
    }

    /// Bytes that it has written to files so far, in whole pages.
    pub fn written_bytes(&self) -> Result<f64> {
        let text = self.proc_file("io")?;
        let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        bytes.ok_or_else(|| Error::failed("the kernel does not tell the bytes that the server has written"))
    }

    /// Its work so far: processor time of all its threads (`cpu_ms`), and pages that the kernel has given it (`page_faults`).
    pub fn work(&self) -> Result<Sample> {
        let text = self.proc_file("stat")?;
        // The second field is the name of the program, in brackets; it may have spaces.
        let behind = text.rsplit_once(") ").map(|(_, behind)| behind);
        let behind = behind.ok_or_else(|| Error::failed("the kernel does not tell the server's work"))?;
        let fields: Vec<f64> = behind.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        // By their numbers in proc(5), of which the first is 3 here.
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0.0);
        // SAFETY: plain system call without pointers.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let cpu_ms = (field(14) + field(15)) * 1e3 / ticks_per_s;
        Ok(Sample::new(0.0).with("cpu_ms", cpu_ms).with("page_faults", field(10)))
    }

    fn proc_file(&self, name: &str) -> Result<String> {
        let path = PathBuf::from(format!("/proc/{}/{name}", self.process.id()));
        std::fs::read_to_string(&path).map_err(Error::path("read", &path))
    }
}

/// Bytes of a line of `/proc/<process>/status`; 0 when it is missing.
fn kib(status: &str, name: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
