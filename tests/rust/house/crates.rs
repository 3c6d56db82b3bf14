//! Crates depend on lower crates only.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::source::top;

/// Crates without `terrace-`, lower ones first, each with those of ours that it may depend on.
static ALLOWED: [(&str, &[&str]); 24] = [
    ("heap", &[]),
    ("test-support", &["heap"]),
    ("features", &[]),
    ("model", &[]),
    ("device", &["model"]),
    ("access", &["model"]),
    ("ipc", &[]),
    ("flight", &["model", "access", "ipc"]),
    ("storage", &["model", "device"]),
    ("placement", &["model", "storage"]),
    ("objects", &["model", "storage"]),
    ("simulate", &["model", "storage", "placement"]),
    ("tier-store", &["model", "storage", "placement"]),
    ("error", &["model"]),
    ("sql", &["model", "error"]),
    ("scan", &["error", "tier-store", "ipc"]),
    ("views", &["error", "tier-store", "sql", "scan"]),
    ("cluster", &["access", "error", "scan"]),
    ("planner-ext", &["access", "heap", "error", "tier-store", "sql", "scan", "views", "ipc", "cluster"]),
    ("server", &["features", "access", "tier-store", "objects", "heap", "planner-ext", "flight", "ipc"]),
    ("program", &["heap", "server"]),
    ("bench", &["features", "simulate", "tier-store", "planner-ext", "server"]),
    ("kernel-bench", &["model", "device"]),
    ("tests", &[]),
];

/// The packages of the workspace, as cargo reads their manifests.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(top()).output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The name of one of our crates, without its prefix.
fn short_name(package: &Value) -> Option<&str> {
    package["name"].as_str().unwrap().strip_prefix("terrace-")
}

/// The crates of ours that a package depends on outside of its tests; what only a feature brings counts too.
fn dependencies(package: &Value) -> Vec<&str> {
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    let outside_of_tests = dependencies.filter(|dependency| dependency["kind"].as_str() != Some("dev"));
    outside_of_tests.filter_map(short_name).collect()
}

/// Folders of the source of those crates that have more than one file.
pub fn source_folders() -> Vec<String> {
    let top = top().canonicalize().unwrap();
    let packages = packages();
    let manifests = packages.iter().map(|package| Path::new(package["manifest_path"].as_str().unwrap()));
    let folders = manifests.map(|manifest| manifest.parent().unwrap().join("src"));
    let has_rooms = |folder: &PathBuf| std::fs::read_dir(folder).is_ok_and(|files| files.count() > 1);
    folders.filter(has_rooms).map(|folder| folder.strip_prefix(&top).unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn crates_depend_on_lower_crates_only() {
    let packages = packages();
    let mut wrong = Vec::new();
    for package in &packages {
        let name = short_name(package).unwrap_or_else(|| panic!("{} is no name of ours", package["name"]));
        let listed = ALLOWED.iter().find(|(listed, _)| *listed == name);
        let (_, allowed) = listed.unwrap_or_else(|| panic!("ALLOWED does not list the crate {name}"));
        let found = dependencies(package);
        wrong.extend(found.iter().filter(|found| !allowed.contains(found)).map(|found| format!("{name} -> {found}")));
    }
    assert_eq!(packages.len(), ALLOWED.len(), "packages, and rows of ALLOWED");
    assert!(wrong.is_empty(), "dependencies that ALLOWED does not have:\n{}", wrong.join("\n"));
}

#[test]
fn allowed_dependencies_are_crates_listed_before() {
    for (at, (name, allowed)) in ALLOWED.iter().enumerate() {
        let is_lower = |other: &&str| ALLOWED[..at].iter().any(|(lower, _)| lower == other);
        assert!(allowed.iter().all(is_lower), "{name} may depend on a crate that is not below it");
    }
}
