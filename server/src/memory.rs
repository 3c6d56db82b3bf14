//! Memory: the limit of the process, and its parts, whose sum never exceeds it.
//!
//! The limit is that of the control group (version 1 or 2, the tightest on the path), else the machine's memory. Parts
//! that the configuration leaves open are chosen to fit; parts that it sets are used as they are, and a sum above the
//! limit is an error that shows the sum (architecture, decision 10).

use std::path::{Component, Path};

use crate::config::Config;
use crate::control_group::ControlGroup;
use crate::error::{Error, Result};
use crate::units::{Size, human_bytes};

const MIB: u64 = 1 << 20;
/// Ratio of the DRAM budget to the memory of membership filters.
const FILTER_SHARE: u64 = 16;

/// The most memory that this process can have, and the source of the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// "this machine", or the control group's file.
    pub source: String,
    /// The control group whose limit it is.
    pub group: Option<ControlGroup>,
}

/// How the limit is divided; all in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The limit in force.
    pub limit: Limit,
    /// Budget of the DRAM tier.
    pub dram_bytes: u64,
    /// Pool of an emulated NVM tier; 0 where it is a device or missing.
    pub nvm_bytes: u64,
    /// Memory of an emulated HBM tier; 0 where it is a device or missing.
    pub hbm_bytes: u64,
    /// Running statements.
    pub query_bytes: u64,
    /// Cold reads in flight.
    pub io_bytes: u64,
    /// Unsealed rows.
    pub delta_bytes: u64,
    /// Rows of bulk ingests on their way into files.
    pub ingest_bytes: u64,
    /// Membership filters of segments.
    pub filter_bytes: u64,
    /// Everything else.
    pub reserve_bytes: u64,
}

impl Limit {
    /// The limit of this process.
    pub fn detect() -> Self {
        Self::detect_below(Path::new("/"))
    }

    /// As [`Limit::detect`], with `/proc` and `/sys` below `root`.
    pub fn detect_below(root: &Path) -> Self {
        let machine = read(&root.join("proc/meminfo")).and_then(|text| parse_meminfo(&text)).unwrap_or(u64::MAX);
        let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
        let mount = root.join("sys/fs/cgroup");
        let mut limit = Self { bytes: machine, source: "this machine".to_owned(), group: None };
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
            let found = if controllers.is_empty() {
                tightest(&mount, group, "memory.max")
            } else if controllers.split(',').any(|c| c == "memory") {
                tightest(&mount.join("memory"), group, "memory.limit_in_bytes")
            } else {
                None
            };
            limit = found.into_iter().chain([limit.clone()]).min_by_key(|l| l.bytes).unwrap_or(limit);
        }
        limit
    }
}

/// The smallest limit from `group` up to the mount. Inside a container the path may lie outside of the mount; then the
/// group's own file is at the top of the mount.
fn tightest(mount: &Path, group: &str, file: &str) -> Option<Limit> {
    let inside: std::path::PathBuf =
        Path::new(group).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    inside
        .ancestors()
        .filter_map(|step| {
            let folder = mount.join(step);
            let path = folder.join(file);
            let bytes = read(&path)?.trim().parse::<u64>().ok()?;
            let source = format!("control group {}", path.display());
            Some(Limit { bytes, source, group: Some(ControlGroup::at(folder)) })
        })
        .min_by_key(|limit| limit.bytes)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

impl MemoryPlan {
    /// Divides the memory that `detected` says there is.
    pub fn new(config: &Config, detected: Limit) -> Result<Self> {
        let memory = &config.memory;
        let limit = match memory.limit {
            Some(size) => Limit { bytes: size.resolve(detected.bytes), source: "memory.limit".to_owned(), group: None },
            None => detected.clone(),
        };
        if limit.bytes > detected.bytes {
            return Err(Error::Memory(format!(
                "memory.limit is {}, but {} has {}: lower memory.limit or leave it out",
                human_bytes(limit.bytes),
                detected.source,
                human_bytes(detected.bytes)
            )));
        }
        let whole = limit.bytes;
        let part = |given: Option<Size>, share: u64, least: u64, most: u64| match given {
            Some(size) => size.resolve(whole),
            None => (whole / 100 * share).clamp(least, most),
        };
        let io_bytes = part(memory.io, 4, 32 * MIB, 512 * MIB);
        let delta_bytes = part(memory.delta, 3, 16 * MIB, 256 * MIB);
        let ingest_bytes = part(memory.ingest, 4, 32 * MIB, 512 * MIB);
        // Of which the watch keeps 6 % of the limit free (`memory_watch.rs`).
        let reserve_bytes = part(memory.reserve, 16, 128 * MIB, 1024 * MIB);
        let nvm = &config.tiers.nvm;
        let nvm_bytes = nvm.capacity.filter(|_| nvm.emulated).map_or(0, |size| size.resolve(whole));
        let hbm = &config.tiers.hbm;
        let hbm_bytes = hbm.capacity.filter(|_| hbm.emulated).map_or(0, |size| size.resolve(whole));
        let dram = config.tiers.dram.budget.map(|size| size.resolve(whole));
        let filters = memory.filters.map(|size| size.resolve(whole));
        let fixed =
            io_bytes + delta_bytes + ingest_bytes + reserve_bytes + nvm_bytes + hbm_bytes + filters.unwrap_or(0);
        let least_query = 64 * MIB;
        let query_bytes = match memory.query {
            Some(size) => size.resolve(whole),
            None => {
                let filters = if filters.is_some() { 0 } else { dram.unwrap_or(0) / FILTER_SHARE };
                let left = whole.saturating_sub(fixed + dram.unwrap_or(0) + filters);
                (whole / 100 * 30).min(left).max(least_query)
            }
        };
        let left = whole.saturating_sub(fixed + query_bytes);
        let (dram_bytes, filter_bytes) = match (dram, filters) {
            (Some(dram), Some(filters)) => (dram, filters),
            (None, Some(filters)) => (left, filters),
            (Some(dram), None) => (dram, (dram / FILTER_SHARE).min(left.saturating_sub(dram))),
            (None, None) => (left - left / (FILTER_SHARE + 1), left / (FILTER_SHARE + 1)),
        };
        let plan = Self {
            limit,
            dram_bytes,
            nvm_bytes,
            hbm_bytes,
            query_bytes,
            io_bytes,
            delta_bytes,
            ingest_bytes,
            filter_bytes,
            reserve_bytes,
        };
        if plan.sum_bytes() > whole {
            return Err(Error::Memory(plan.too_large()));
        }
        Ok(plan)
    }

    /// The parts with their names, the most important first.
    pub fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("dram tier", self.dram_bytes),
            ("emulated nvm", self.nvm_bytes),
            ("emulated hbm", self.hbm_bytes),
            ("query memory", self.query_bytes),
            ("cold reads", self.io_bytes),
            ("delta", self.delta_bytes),
            ("bulk ingest", self.ingest_bytes),
            ("membership filters", self.filter_bytes),
            ("reserve", self.reserve_bytes),
        ]
    }

    /// The largest DRAM budget that fits beside the other parts; budgets may be changed up to it while serving.
    pub fn largest_dram_bytes(&self) -> u64 {
        self.limit.bytes - (self.sum_bytes() - self.dram_bytes)
    }

    fn sum_bytes(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    fn too_large(&self) -> String {
        let terms: Vec<String> = self
            .parts()
            .iter()
            .filter(|p| p.1 > 0)
            .map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes)))
            .collect();
        format!(
            "the budgets do not fit into memory: {} = {}, but {} allows {}. Lower tiers.dram.budget (--dram-budget) or the \
             parts in [memory], or give the process more memory",
            terms.join(" + "),
            human_bytes(self.sum_bytes()),
            self.limit.source,
            human_bytes(self.limit.bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(files: &[(&str, &str)]) -> Limit {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Limit::detect_below(root.path())
    }

    fn gib(limit: u64) -> Limit {
        Limit { bytes: limit * GIB, source: "test".to_owned(), group: None }
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let meminfo = ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree: 1 kB\n");
        let whole = Limit { bytes: 24 * GIB, source: "this machine".to_owned(), group: None };
        assert_eq!(machine(&[meminfo]), whole);

        let v2 = machine(&[
            meminfo,
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
        ]);
        assert_eq!(v2.bytes, 2 * GIB);
        assert!(v2.source.ends_with("pod/memory.max"), "{}", v2.source);

        let v1 = machine(&[
            meminfo,
            ("proc/self/cgroup", "11:cpu,cpuacct:/x\n5:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
        ]);
        assert_eq!(v1.bytes, GIB, "a container sees its own group at the top of the mount");

        let unlimited = machine(&[
            meminfo,
            ("proc/self/cgroup", "5:memory:/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(unlimited.bytes, 24 * GIB);
        assert!(v1.group.is_some() && v2.group.is_some() && unlimited.group.is_none());
    }

    #[test]
    fn the_parts_fill_the_limit_and_never_pass_it() {
        for limit in [1, 2, 24, 1024] {
            let plan = MemoryPlan::new(&Config::default(), gib(limit)).unwrap();
            assert_eq!(plan.sum_bytes(), limit * GIB, "{plan:?}");
            assert!(plan.dram_bytes > limit * GIB / 3, "{plan:?}");
        }
    }

    #[test]
    fn a_fixed_budget_takes_from_query_memory_before_it_is_refused() {
        let mut config = Config::default();
        config.tiers.dram.budget = Some(Size::Bytes(20 * GIB));
        let plan = MemoryPlan::new(&config, gib(24)).unwrap();
        assert_eq!(plan.dram_bytes, 20 * GIB);
        assert!(plan.query_bytes < 3 * GIB && plan.sum_bytes() <= 24 * GIB);

        config.tiers.dram.budget = Some(Size::Bytes(30 * GIB));
        let error = MemoryPlan::new(&config, gib(24)).unwrap_err().to_string();
        assert!(error.contains("dram tier 30.0 GiB") && error.contains("allows 24.0 GiB"), "{error}");

        config.tiers.dram.budget = None;
        config.memory.limit = Some(Size::Bytes(30 * GIB));
        assert!(MemoryPlan::new(&config, gib(24)).unwrap_err().to_string().contains("memory.limit is 30.0 GiB"));
    }

    #[test]
    fn filters_have_a_share_of_the_dram_budget_or_what_they_are_given() {
        let mut config = Config::default();
        let plan = MemoryPlan::new(&config, gib(24)).unwrap();
        assert!(plan.filter_bytes.abs_diff(plan.dram_bytes / 16) <= 1, "{plan:?}");
        config.tiers.dram.budget = Some(Size::Bytes(160 * MIB));
        assert_eq!(MemoryPlan::new(&config, gib(24)).unwrap().filter_bytes, 10 * MIB);
        for given in [0, 3 * MIB] {
            config.memory.filters = Some(Size::Bytes(given));
            assert_eq!(MemoryPlan::new(&config, gib(24)).unwrap().filter_bytes, given);
        }
        // A configuration that fits without filters still fits with them.
        config.memory = crate::config::MemoryConfig { query: Some(Size::Bytes(64 * MIB)), ..Default::default() };
        let others = MemoryPlan::new(&config, gib(1)).unwrap();
        config.tiers.dram.budget = Some(Size::Bytes(GIB - (others.sum_bytes() - 170 * MIB)));
        let plan = MemoryPlan::new(&config, gib(1)).unwrap();
        assert_eq!((plan.filter_bytes, plan.sum_bytes()), (0, GIB));
        config.memory.filters = Some(Size::Bytes(1));
        assert!(MemoryPlan::new(&config, gib(1)).unwrap_err().to_string().contains("membership filters"));
    }

    #[test]
    fn an_emulated_pool_counts_as_memory() {
        let mut config = Config::default();
        config.tiers.nvm.emulated = true;
        config.tiers.nvm.capacity = Some(Size::Bytes(8 * GIB));
        let plan = MemoryPlan::new(&config, gib(24)).unwrap();
        assert_eq!((plan.nvm_bytes, plan.sum_bytes()), (8 * GIB, 24 * GIB));
    }
}
