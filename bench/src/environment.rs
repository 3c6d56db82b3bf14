//! The machine and the versions that a row was measured with.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// The machine of a row.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Model of the processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Kernel.
    pub kernel: String,
    /// The device of the data.
    pub device: String,
    /// Runnable tasks over the last minute when the run started: above 0 the machine was not idle.
    pub load_average: f64,
    /// Versions of the measured programs.
    pub versions: BTreeMap<String, String>,
    /// Commit of the sources, with "+" when there were changes.
    pub commit: String,
}

impl Environment {
    /// Detects this machine; `data_dir` is the folder of the data.
    pub fn detect(data_dir: &Path) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let virtual_machine = field(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor"));
        let disk = if virtual_machine { "virtual disk cached by its host, not a physical SSD" } else { "local disk" };
        let versions = [
            ("terrace", env!("CARGO_PKG_VERSION")),
            ("datafusion", datafusion::DATAFUSION_VERSION),
            ("arrow", arrow::ARROW_VERSION),
        ];
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            device: format!("{disk} ({})", data_dir.display()),
            load_average: read("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0),
            versions: versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
            commit: commit(),
        }
    }
}

/// Memory of the machine, in bytes; 0 when unknown.
pub fn memory_bytes() -> u64 {
    let total = field(&read("/proc/meminfo"), "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
    total.unwrap_or(0) * 1024
}

/// The value of the first line `name: value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => commit + "+",
        (None, _) => "unknown".to_owned(),
    }
}
