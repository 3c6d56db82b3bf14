//! Programs of others that experiments compare with.

use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, Result};

/// A Python that has these modules: `TERRACE_BENCH_PYTHON`, else that of the tests, else the system's.
pub fn python(modules: &[&str]) -> Result<PathBuf> {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/.work/venv/bin/python"));
    let asked = std::env::var_os("TERRACE_BENCH_PYTHON").map(PathBuf::from);
    let mut candidates = match asked {
        Some(python) => vec![python],
        None => vec![tests, PathBuf::from("python3")],
    };
    let import = format!("import {}", modules.join(", "));
    let works = |python: &PathBuf| {
        let check = Command::new(python).args(["-c", &import]).output();
        check.is_ok_and(|output| output.status.success())
    };
    candidates.retain(works);
    candidates.into_iter().next().ok_or_else(|| {
        let packages = modules.join(" ").replace('_', "-");
        Error::Missing(format!(
            "no Python with {}: python3 -m venv tests/.work/venv && tests/.work/venv/bin/pip install {packages} \
             (or set TERRACE_BENCH_PYTHON)",
            modules.join(", ")
        ))
    })
}
