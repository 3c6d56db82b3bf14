//! Any bytes as a configuration file, and as what the environment and the command line say.

#![allow(clippy::unwrap_used)]

use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;

use super::*;

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

#[test]
fn files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("terrace.toml");
    let small = "[query]\nmax_running = 3\n[tiers.dram]\nbudget = \"20%\"\n[workload_groups.loads]\nweight = 3\n";
    let examples = [small.to_owned(), Config::default().to_toml()].map(String::into_bytes).to_vec();
    fuzz!("configuration files", Inputs::stateless(300, 200_000), examples, |input: &[u8]| {
        std::fs::write(&path, input).unwrap();
        Config::load(Some(&path), [], Vec::new()).is_ok()
    });
}

#[test]
fn values() {
    let keys = keys();
    let examples = ["\u{1}3", "\u{2}1GiB", "\u{3}10%"].map(|text| text.as_bytes().to_vec()).to_vec();
    fuzz!("configuration values", Inputs::stateless(300, 200_000), examples, |input: &[u8]| {
        let Some((which, value)) = input.split_first() else { return false };
        let value = String::from_utf8_lossy(value);
        let _ = ConfigOverride::assignment(&value).map(|flag| Config::load(None, [], vec![flag]));
        let Some(key) = keys.get(usize::from(*which) % keys.len()) else { return false };
        let _ = Config::load(None, [], vec![ConfigOverride::flag("--set", key, &value)]);
        let _ = Config::load(None, [(variable(key), value.into_owned())], Vec::new());
        true
    });
}
