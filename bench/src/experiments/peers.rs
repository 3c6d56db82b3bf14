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
    let import = modules.iter().map(|module| format!("import {module}")).collect::<Vec<_>>().join("; ");
    let works = |python: &PathBuf| {
        let check = Command::new(python).args(["-c", &import]).output();
        check.is_ok_and(|output| output.status.success())
    };
    candidates.retain(works);
    candidates.into_iter().next().ok_or_else(|| {
        let packages = modules.join(" ").replace('_', "-").replace("vortex", "vortex-data");
        Error::Missing(format!(
            "no Python with {}: python3 -m venv tests/.work/venv && tests/.work/venv/bin/pip install {packages} \
             (or set TERRACE_BENCH_PYTHON)",
            modules.join(", ")
        ))
    })
}

/// The generator of TPC-DS: beside the Python of the tests or of `TERRACE_BENCH_PYTHON`, else on the path.
pub fn tpcds_generator() -> Result<PathBuf> {
    const NAME: &str = "tpcgen-cli";
    let beside = python(&[]).ok().map(|python| python.with_file_name(NAME));
    let candidates = [beside, Some(PathBuf::from(NAME))];
    let works = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    candidates.into_iter().flatten().find(works).ok_or_else(|| {
        Error::Missing(format!(
            "no {NAME}, which makes the data of TPC-DS: tests/.work/venv/bin/pip install {NAME} (or set \
             TERRACE_BENCH_PYTHON to a Python that it is beside)"
        ))
    })
}
