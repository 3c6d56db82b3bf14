//! Makes the text of `terrace --version`: the version of the package, and the commit where one is known.
//!
//! `TERRACE_COMMIT` names the commit where there is no repository (an image, a package). Else git is asked; without git or a
//! repository, the version stands alone. Nothing but the commit goes into the binary, so that builds are reproducible.
//!
//! The variable has no name of ours (`TERRACE_..`): `cargo run` passes it on, and the server refuses settings that it does not know.

use std::path::Path;
use std::process::Command;

/// Digits of a commit that are shown: as many everywhere, whatever else a clone has.
const DIGITS: usize = 12;
/// Files of git that change with each commit and each change of branch.
const WATCHED: [&str; 2] = ["HEAD", "logs/HEAD"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TERRACE_COMMIT");
    for file in WATCHED {
        // A missing file would make cargo run this again each time.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let commit = std::env::var("TERRACE_COMMIT").ok().filter(|commit| is_commit(commit));
    match commit.or_else(|| git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))) {
        Some(commit) => {
            let digits: String = commit.chars().take(DIGITS).collect();
            println!("cargo::rustc-env=SHOWN_VERSION={version} ({digits})");
        }
        None => println!("cargo::rustc-env=SHOWN_VERSION={version}"),
    }
}

fn is_commit(text: &str) -> bool {
    text.len() >= DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What git says; nothing where it is missing or refuses.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
