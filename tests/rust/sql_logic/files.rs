//! The SQL logic files, as cargo fetched them with the crate `datafusion-sqllogictest`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One file.
pub struct LogicFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Path below `test_files`.
    pub name: String,
}

impl LogicFile {
    /// True when its path contains one of the words.
    pub fn matches(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.name.contains(word))
    }

    /// The folder of the crate.
    pub fn crate_folder(&self) -> PathBuf {
        let depth = Path::new(&self.name).components().count() + 1;
        self.path.ancestors().nth(depth).unwrap().to_owned()
    }
}

/// All files, the largest first, so that none of them runs alone at the end.
pub fn find() -> Vec<LogicFile> {
    let top = crate_folder().join("test_files");
    let mut paths = Vec::new();
    collect(&top, &mut paths);
    assert!(!paths.is_empty(), "{} holds no .slt file", top.display());
    paths.sort_by_key(|path| (std::cmp::Reverse(std::fs::metadata(path).unwrap().len()), path.clone()));
    let name = |path: &PathBuf| path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
    paths.into_iter().map(|path| LogicFile { name: name(&path), path }).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|ending| ending == "slt") {
            paths.push(path);
        }
    }
}

/// Finds the folder of the crate through cargo, which downloads the crate when it is missing.
fn crate_folder() -> PathBuf {
    let manifest = Path::new("sql-logic/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "datafusion-sqllogictest").unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}
