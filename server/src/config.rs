//! The configuration: one documented structure, read from four places.
//!
//! Command line > environment (`TERRACE_...`) > TOML file > default. A key `tiers.dram.budget` is `[tiers.dram] budget`
//! in the file and `TERRACE_TIERS_DRAM_BUDGET` in the environment. Unknown keys are refused with the nearest known one.
//! The documentation comments of the structure are the comments that `terrace config print` writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, providers::Serialized};
use serde::{Deserialize, Serialize};
use terrace_planner_ext::engine::MiningMode;
use terrace_tier_store::placement::{MergeKind, PolicyKind, TieringMode};

use crate::error::{Error, Result};
use crate::units::{Size, Span};

/// Declares a section: the structure, its defaults, and its documentation as data.
macro_rules! section {
    ($(#[doc = $about:literal])+ pub struct $name:ident {
        $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty = $default:expr,)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            const DOCS: Docs = &[$((stringify!($field), &[$($doc),+]),)+];
        }
    };
}

/// Fields of a section with the lines of their documentation.
type Docs = &'static [(&'static str, &'static [&'static str])];

section! {
    /// Everything a server can be told.
    pub struct Config {
        /// Folder of the catalog and of the table files (the SSD tier). Put it on a local NVMe disk.
        pub data_dir: PathBuf = PathBuf::from("terrace-data"),
        /// What to log: error, warn, info, debug, trace, or a filter such as `info,terrace_tier_store=debug`.
        pub log: String = "warn".to_owned(),
        /// User that clients must name. Only with `password`.
        pub user: Option<String> = None,
        /// Password of that user. Without one the server is open, and then listens on loopback addresses only.
        pub password: Option<String> = None,
        /// How long running statements may go on after SIGTERM before they are cancelled.
        pub grace: Span = Span(Duration::from_secs(10)),
        /// Files that statements and requests may name.
        pub files: FilesConfig = FilesConfig::default(),
        /// Arrow Flight SQL.
        pub flight: FlightConfig = FlightConfig::default(),
        /// HTTP: admin API, metrics, cockpit.
        pub http: HttpConfig = HttpConfig::default(),
        /// Memory of the process as a whole.
        pub memory: MemoryConfig = MemoryConfig::default(),
        /// Tiers.
        pub tiers: TiersConfig = TiersConfig::default(),
        /// Statements.
        pub query: QueryConfig = QueryConfig::default(),
        /// The loop that moves segments between tiers.
        pub tiering: TieringConfig = TieringConfig::default(),
        /// The task that rewrites chunks with deleted rows and small chunks.
        pub compaction: CompactionConfig = CompactionConfig::default(),
        /// Hot views that the server learns from statements.
        pub hot_views: HotViewsConfig = HotViewsConfig::default(),
    }
}

section! {
    /// Files of this machine that statements (COPY, external tables) and requests (backups, tiers) may name. What belongs
    /// to the server itself is never among them.
    pub struct FilesConfig {
        /// Folders below which files may be read, with `:` between them. Default: `/` without a password, none with one.
        pub read_roots: Option<String> = None,
        /// The same for files to be written.
        pub write_roots: Option<String> = None,
        /// Further files and folders of the server's own (keys, passwords), with `:` between them. The file of the
        /// configuration is among them.
        pub protected: Option<String> = None,
    }
}

impl FilesConfig {
    /// Adds a file or folder that no statement and no request may name.
    pub fn protect(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        self.protected = Some(self.protected.take().map_or_else(|| path.clone(), |before| format!("{before}:{path}")));
    }
}

section! {
    /// Arrow Flight SQL.
    pub struct FlightConfig {
        /// Address and port to listen on; port 0 takes a free one.
        pub addr: String = "127.0.0.1:31337".to_owned(),
    }
}

section! {
    /// HTTP.
    pub struct HttpConfig {
        /// Address and port of the admin API, the metrics and the cockpit; port 0 takes a free one.
        pub addr: String = "127.0.0.1:8080".to_owned(),
    }
}

section! {
    /// Memory. The parts below and the DRAM tier together never pass `limit`; what is not set is chosen to fit.
    pub struct MemoryConfig {
        /// Bytes the process may use. Default: the limit of the control group, else the memory of the machine.
        /// A share (80%) is taken of that.
        pub limit: Option<Size> = None,
        /// Memory of running statements (sorts, joins, groups); they spill to disk beyond it. Default: about 30%.
        pub query: Option<Size> = None,
        /// Bytes of cold reads in flight or ready but not yet taken; memory kept for the next reads fills what they leave.
        /// Default: 4%, 32MiB to 512MiB.
        pub io: Option<Size> = None,
        /// Rows inserted but not yet sealed into chunks. Default: 3%, 16MiB to 256MiB.
        pub delta: Option<Size> = None,
        /// Rows of bulk ingests on their way into chunk files; ingests wait for each other at it. Default: 4%, 32MiB to
        /// 512MiB.
        pub ingest: Option<Size> = None,
        /// Membership filters, by which scans leave out chunks that have none of the values asked for. 0: none are built.
        /// Default: a sixteenth of the DRAM budget.
        pub filters: Option<Size> = None,
        /// Kept free for the network, the catalog's cache, metadata and the allocator. Default: 10%, 96MiB to 1GiB.
        pub reserve: Option<Size> = None,
    }
}

section! {
    /// Tiers, fastest first.
    pub struct TiersConfig {
        /// Process memory.
        pub dram: DramConfig = DramConfig::default(),
        /// Byte-addressable memory behind a mapping (persistent memory, CXL).
        pub nvm: NvmConfig = NvmConfig::default(),
        /// Files; the home of every sealed segment.
        pub ssd: SsdConfig = SsdConfig::default(),
    }
}

impl TiersConfig {
    /// True when some tier has a price and a tier of memory has none.
    fn is_half_priced(&self) -> bool {
        let memory = if self.has_nvm() { ["dram", "nvm"].as_slice() } else { &["dram"] };
        let prices = self.prices_per_gb();
        !prices.is_empty() && memory.iter().any(|tier| !prices.iter().any(|(name, _)| name == tier))
    }

    fn has_nvm(&self) -> bool {
        self.nvm.path.is_some() || self.nvm.emulated
    }

    fn given_prices(&self) -> [Option<f64>; 3] {
        [self.dram.price_per_gb, self.nvm.price_per_gb, self.ssd.price_per_gb]
    }

    /// Rate limits of the tiers that have one, by name.
    pub fn rate_limits(&self) -> Vec<(String, Size)> {
        let rates = [("dram", self.dram.rate_limit), ("nvm", self.nvm.rate_limit), ("ssd", self.ssd.rate_limit)];
        rates.into_iter().filter_map(|(name, rate)| Some((name.to_owned(), rate?))).collect()
    }

    /// Prices of the tiers that have one, by name; NVM only where it exists.
    pub fn prices_per_gb(&self) -> Vec<(String, f64)> {
        let [dram, nvm, ssd] = self.given_prices();
        let prices = [("dram", dram), ("nvm", nvm.filter(|_| self.has_nvm())), ("ssd", ssd)];
        prices.into_iter().filter_map(|(name, price)| Some((name.to_owned(), as_written(price?)))).collect()
    }
}

section! {
    /// The DRAM tier.
    pub struct DramConfig {
        /// Byte limit, or a share of `memory.limit`. Default: what the other parts of memory leave.
        pub budget: Option<Size> = None,
        /// Bytes per second that the loop's own epochs read from it, and write to it, at most; 0: no limit. Default:
        /// `tiering.rate_limit`.
        pub rate_limit: Option<Size> = None,
        /// Price of 10^9 bytes in any currency, for `terrace advise`.
        pub price_per_gb: Option<f64> = None,
    }
}

section! {
    /// The NVM tier. It exists when `path` or `emulated` is set.
    pub struct NvmConfig {
        /// Pool file on a DAX mount (it is created) or a devdax device such as /dev/dax0.0.
        pub path: Option<PathBuf> = None,
        /// Let ordinary memory stand in for the device; counted as memory and reported as emulated everywhere.
        pub emulated: bool = false,
        /// Size of the pool. A share is taken of `memory.limit`.
        pub capacity: Option<Size> = None,
        /// Byte limit of what is placed there; at most, and by default, the capacity.
        pub budget: Option<Size> = None,
        /// For experiments: slow reads down to 0.35 of the bandwidth and 5 times the latency of DRAM, as Optane had.
        pub slow: bool = false,
        /// Bytes per second that the loop's own epochs read from it, and write to it, at most; 0: no limit. Default:
        /// `tiering.rate_limit`.
        pub rate_limit: Option<Size> = None,
        /// Price of 10^9 bytes in any currency, for `terrace advise`.
        pub price_per_gb: Option<f64> = None,
    }
}

section! {
    /// The SSD tier.
    pub struct SsdConfig {
        /// Bytes of table files in `data_dir`; ingest is refused beyond. Default: what the disk holds.
        pub limit: Option<Size> = None,
        /// Compression of new table files: `auto` (each buffer for which it pays: the disk saves more time than a core takes
        /// to decompress, both as measured at the first start), `none`, `lz4` or `zstd` (each buffer that shrinks).
        pub compression: Compression = Compression::Auto,
        /// Where some rows of a column are read: two pieces this close in the file are one read. Default: as the disk was
        /// measured, some pages on a fast one, about a megabyte on one with an arm.
        pub read_gap: Option<Size> = None,
        /// Bytes per second that the loop's own epochs read from it, and write to it, at most; 0: no limit. Default:
        /// `tiering.rate_limit`.
        pub rate_limit: Option<Size> = None,
        /// Price of 10^9 bytes in any currency, for `terrace advise`.
        pub price_per_gb: Option<f64> = None,
    }
}

/// How new table files are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Where it pays.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// LZ4, all that shrinks.
    Lz4,
    /// ZSTD, all that shrinks.
    Zstd,
}

section! {
    /// Statements.
    pub struct QueryConfig {
        /// Threads that work on queries. 0: one per core.
        pub threads: usize = 0,
        /// Statements that run at the same time.
        pub max_running: usize = 16,
        /// Statements that wait for a place; more are refused with "try again".
        pub max_queued: usize = 256,
        /// How long a statement waits for a place.
        pub queue_timeout: Span = Span(Duration::from_secs(60)),
        /// How long a statement may run. Default: no limit.
        pub timeout: Option<Span> = None,
        /// Finished statements that `system.queries` remembers.
        pub history: usize = 1000,
    }
}

section! {
    /// The tiering loop.
    pub struct TieringConfig {
        /// The one switch: false stops all moves; queries go on.
        pub enabled: bool = true,
        /// What the loop does: auto moves, advise logs what it would move, off does neither. Default: what ALTER SYSTEM SET
        /// tiering said last, and auto before that.
        pub mode: Option<TieringMode> = None,
        /// Time between epochs.
        pub interval: Span = Span(Duration::from_secs(60)),
        /// Epochs after which an access counts half.
        pub half_life: f64 = 3.0,
        /// Epochs within which a move must have saved the time it took.
        pub payback_epochs: f64 = 4.0,
        /// Epochs after a move in which the segment goes back only if its heat, or the price of the room, changed by
        /// `flip_back_factor`. 0: it may at once.
        pub flip_back_epochs: u32 = 4,
        /// By how much it must have changed; at least 1.
        pub flip_back_factor: f64 = 2.0,
        /// Bytes per second that the loop's own epochs read from the device of a tier, and write to it, at most, so that queries
        /// do not suffer. 0: no limit. Each tier may have its own.
        pub rate_limit: Size = Size::Bytes(512 << 20),
        /// Time that the solver may take to plan an epoch; then the best answer so far holds, and `system.epochs` says so. 0: it
        /// goes by benefit per byte alone.
        pub solver_deadline: Span = Span(Duration::from_secs(1)),
        /// What decides where segments lie: `optimal` (least expected time), `density` (falling benefit per byte), `lru`
        /// (what was read last), `lfu` (what is read most often), `column` or `chunk` (whole ones by benefit per byte),
        /// `random`, `static` (what lies in memory stays). Placement rules and budgets hold under each.
        pub policy: PolicyKind = PolicyKind::Optimal,
        /// What comes into memory between epochs because a query read it from disk: `never` (epochs decide alone), `always`
        /// (all of it, as into a cache; the policy says what makes room), `selective` (what is worth more than what has to
        /// make room for it). Default: `always` under the policies `lru` and `lfu`, `never` under the others.
        pub merge: Option<MergeKind> = None,
        /// With `merge = "selective"`: the percentage of all segments, by time saved per byte, that it must be among besides.
        pub merge_top_percent: f64 = 100.0,
    }
}

section! {
    /// Compaction.
    pub struct CompactionConfig {
        /// Bytes of chunk files per second that the background task writes at most, and that background runs of hot views read
        /// and write. 0: only `OPTIMIZE` compacts, and hot views run on `REFRESH` only.
        pub rate_limit: Size = Size::Bytes(64 << 20),
    }
}

section! {
    /// Hot views that the server learns from statements. Its epochs are those of `tiering.interval`, with that `half_life`.
    pub struct HotViewsConfig {
        /// What it does with what it learns: advise proposes views (`SHOW HOT VIEW PROPOSALS`), auto makes them and drops them
        /// when they pay no longer, off learns nothing. Views that users made are never touched.
        pub mode: MiningMode = MiningMode::Advise,
        /// Epochs within which a view must have left out as many bytes of scans as putting its rows together reads and
        /// writes.
        pub payback_epochs: f64 = 60.0,
        /// Views that there may be of the server's own making.
        pub most_mined: usize = 8,
        /// Epochs in a row in which a mined view, or a proposal, does not pay, after which it goes.
        pub retire_after: u32 = 6,
    }
}

/// Sections in the order in which they are printed, with their documentation.
const SECTIONS: [(&str, Docs); 13] = [
    ("", Config::DOCS),
    ("files", FilesConfig::DOCS),
    ("flight", FlightConfig::DOCS),
    ("http", HttpConfig::DOCS),
    ("memory", MemoryConfig::DOCS),
    ("tiers", TiersConfig::DOCS),
    ("tiers.dram", DramConfig::DOCS),
    ("tiers.nvm", NvmConfig::DOCS),
    ("tiers.ssd", SsdConfig::DOCS),
    ("query", QueryConfig::DOCS),
    ("tiering", TieringConfig::DOCS),
    ("compaction", CompactionConfig::DOCS),
    ("hot_views", HotViewsConfig::DOCS),
];

/// True for variables with the prefix that are not configuration: variables of clients, tests and benchmarks, and those
/// that Kubernetes sets for a service named "terrace".
fn is_foreign_variable(name: &str) -> bool {
    const NAMES: [&str; 6] =
        ["TERRACE_URL", "TERRACE_CONFIG", "TERRACE_HISTORY", "TERRACE_PORT", "TERRACE_BIN", "TERRACE_FLIGHT_URI"];
    const PREFIXES: [&str; 5] =
        ["TERRACE_SERVICE_", "TERRACE_PORT_", "TERRACE_TEST_", "TERRACE_BENCH_", "TERRACE_DAX_"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The environment variables of this process; leaves out those that are not valid text.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// A value from the command line or the environment, which overrides the file.
#[derive(Debug, Clone)]
pub struct ConfigOverride {
    /// The place of the value, for messages: "--dram-budget".
    pub source: String,
    /// Dotted key.
    pub key: String,
    /// The value as written.
    pub value: String,
}

impl ConfigOverride {
    /// A value given by a flag.
    pub fn flag(flag: &str, key: &str, value: impl ToString) -> Self {
        Self { source: flag.to_owned(), key: key.to_owned(), value: value.to_string() }
    }

    /// Parses `key=value` of `--set`.
    pub fn assignment(text: &str) -> Result<Self> {
        let (key, value) =
            text.split_once('=').ok_or_else(|| Error::Config(format!("--set {text}: write --set key=value")))?;
        Ok(Self::flag("--set", key.trim(), value.trim()))
    }
}

impl Provider for ConfigOverride {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.key, Value::from(self.value.as_str()));
        Ok(Map::from([(Profile::Default, nested.into_dict().unwrap_or_default())]))
    }
}

/// Restores a number as it was written: numbers of few digits were read as `f32`, where 0.1 is 0.10000000149011612.
fn as_written(number: f64) -> f64 {
    let short = number as f32;
    let written = || short.to_string().parse().ok();
    if f64::from(short) == number { written().unwrap_or(number) } else { number }
}

impl Config {
    /// Reads the configuration: `flags` over `environment` (all variables; others are ignored) over `file` over
    /// defaults.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: Vec<ConfigOverride>,
    ) -> Result<Self> {
        let known = keys();
        let mut faults = Vec::new();
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = file {
            let table = read_toml(path)?;
            check_table(&table, "", &known, &path.display().to_string(), &mut faults);
            figment = figment.merge(FileValues { path: path.to_owned(), table });
        }
        for (name, value) in environment {
            if !name.starts_with("TERRACE_") || is_foreign_variable(&name) {
                continue;
            }
            match known.iter().find(|key| variable(key) == name) {
                Some(key) => figment = figment.merge(ConfigOverride { source: name, key: key.clone(), value }),
                None => faults.push(unknown("environment variable", &name, known.iter().map(|k| variable(k)), "")),
            }
        }
        for given in flags {
            if !known.contains(&given.key) {
                faults.push(unknown("key", &given.key, known.iter().cloned(), &given.source));
                continue;
            }
            figment = figment.merge(given);
        }
        if faults.is_empty() {
            match figment.extract_lossy::<Self>() {
                Ok(config) => return config.checked(),
                Err(error) => faults.extend(error.into_iter().map(|e| describe(&e))),
            }
        }
        Err(Error::Config(faults.join("\n  ")))
    }

    fn checked(self) -> Result<Self> {
        let wrong = if self.user.is_some() != self.password.is_some() {
            "user and password belong together: set both (TERRACE_USER, TERRACE_PASSWORD) or neither"
        } else if self.password.as_deref() == Some("") {
            "the password is empty: set one (TERRACE_PASSWORD), or neither a user nor a password"
        } else if self.user.as_deref().is_some_and(|user| user.is_empty() || user.contains(':')) {
            "the name of a user must not be empty and has no ':' in it, which ends the name where a client sends it"
        } else if self.tiers.nvm.path.is_some() && self.tiers.nvm.emulated {
            "tiers.nvm.path and tiers.nvm.emulated exclude each other: the tier is a device or it is emulated"
        } else if (self.tiers.nvm.path.is_some() || self.tiers.nvm.emulated) && self.tiers.nvm.capacity.is_none() {
            "tiers.nvm.capacity is missing: say how large the pool is, for example 8GiB"
        } else if self.tiers.nvm.budget.is_some() && self.tiers.nvm.capacity.is_none() {
            "tiers.nvm.budget is set, but there is no NVM tier: set tiers.nvm.path or tiers.nvm.emulated, and a capacity"
        } else if self.query.max_running == 0 {
            "query.max_running must be at least 1"
        } else if self.tiering.interval.0 < Duration::from_millis(100) {
            "tiering.interval must be at least 100ms; to stop the loop set tiering.enabled = false"
        } else if !self.tiering.half_life.is_finite() || self.tiering.half_life <= 0.0 {
            "tiering.half_life must be above 0 epochs"
        } else if !self.tiering.payback_epochs.is_finite() || self.tiering.payback_epochs <= 0.0 {
            "tiering.payback_epochs must be above 0 epochs"
        } else if !self.hot_views.payback_epochs.is_finite() || self.hot_views.payback_epochs <= 0.0 {
            "hot_views.payback_epochs must be above 0 epochs"
        } else if self.hot_views.retire_after == 0 {
            "hot_views.retire_after must be at least 1 epoch"
        } else if !(1.0..=1e6).contains(&self.tiering.flip_back_factor) {
            "tiering.flip_back_factor must be from 1 (nothing is held) to 1000000"
        } else if !(self.tiering.merge_top_percent > 0.0 && self.tiering.merge_top_percent <= 100.0) {
            "tiering.merge_top_percent must be above 0 and at most 100"
        } else if self.tiers.rate_limits().iter().any(|(_, rate)| matches!(rate, Size::Percent(_))) {
            "rate_limit of a tier is bytes per second, such as 100MiB, not a percentage"
        } else if self.tiers.given_prices().iter().flatten().any(|price| !price.is_finite() || *price < 0.0) {
            "a price_per_gb must be a number from 0"
        } else if self.tiers.is_half_priced() {
            "price_per_gb is missing for a tier of memory (tiers.dram, tiers.nvm); give all of them one, or no tier"
        } else {
            return Ok(self);
        };
        Err(Error::Config(wrong.to_owned()))
    }

    /// The configuration as TOML with its documentation as comments. Keys without a value, and the
    /// password, stay comments.
    pub fn to_toml(&self) -> String {
        let values = serde_json::to_value(self).unwrap_or_default();
        let mut out = String::new();
        for (section, docs) in SECTIONS {
            let pointer = if section.is_empty() { String::new() } else { format!("/{}", section.replace('.', "/")) };
            let fields: Vec<_> = docs
                .iter()
                .filter_map(|(field, doc)| Some((field, doc, values.pointer(&format!("{pointer}/{field}"))?)))
                .filter(|(_, _, value)| !value.is_object())
                .collect();
            if fields.is_empty() {
                continue;
            }
            if !section.is_empty() {
                out.push_str(&format!("[{section}]\n"));
            }
            for (field, doc, value) in fields {
                for line in *doc {
                    out.push_str(&format!("#{line}\n"));
                }
                match value {
                    serde_json::Value::Null => out.push_str(&format!("# {field} =\n")),
                    _ if *field == "password" => out.push_str("# password = (set, not shown)\n"),
                    // JSON's scalars are TOML's, escapes of strings included.
                    value => out.push_str(&format!("{field} = {value}\n")),
                }
            }
            out.push('\n');
        }
        out
    }
}

/// All dotted keys of single values.
fn keys() -> Vec<String> {
    let nested: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
    let dotted = |section: &str, field: &str| match section {
        "" => field.to_owned(),
        _ => format!("{section}.{field}"),
    };
    SECTIONS
        .iter()
        .flat_map(|(section, docs)| docs.iter().map(move |(field, _)| dotted(section, field)))
        .filter(|key| !nested.contains(&key.as_str()))
        .collect()
}

/// The environment variable of a key.
fn variable(key: &str) -> String {
    format!("TERRACE_{}", key.replace('.', "_").to_ascii_uppercase())
}

fn read_toml(path: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, format!("cannot read it: {e}")))?;
    text.parse::<toml::Table>().map_err(|e| Error::Config(format!("{}: {e}", path.display())))
}

fn check_table(table: &toml::Table, prefix: &str, known: &[String], source: &str, faults: &mut Vec<String>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_section = SECTIONS.iter().any(|(section, _)| *section == key);
        match value {
            toml::Value::Table(inner) if is_section => check_table(inner, &key, known, source, faults),
            _ if known.contains(&key) => {}
            _ => faults.push(unknown("key", &key, known.iter().cloned(), source)),
        }
    }
}

fn unknown(kind: &str, name: &str, known: impl Iterator<Item = String>, source: &str) -> String {
    let place = if source.is_empty() { String::new() } else { format!(" in {source}") };
    let nearest = known.min_by_key(|k| strsim::damerau_levenshtein(k, name)).unwrap_or_default();
    format!("unknown {kind} '{name}'{place}; did you mean '{nearest}'?")
}

fn describe(error: &figment::Error) -> String {
    let source = error.metadata.as_ref().map(|m| format!(" ({})", m.name)).unwrap_or_default();
    format!("{}: {}{source}", error.path.join("."), error.kind)
}

/// The values of a file, with its name for messages.
struct FileValues {
    path: PathBuf,
    table: toml::Table,
}

impl Provider for FileValues {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.path.display().to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::defaults(&self.table).data()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn load(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("terrace.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let flags = flags.iter().map(|f| ConfigOverride::assignment(f)).collect::<Result<_>>()?;
        Config::load(Some(&path), environment, flags)
    }

    #[test]
    fn command_line_beats_environment_beats_file_beats_default() {
        let file = "data_dir = \"/file\"\n[query]\nmax_running = 3\nmax_queued = 4\n[tiers.dram]\nbudget = 1024\n";
        let env = [("TERRACE_DATA_DIR", "/env"), ("TERRACE_QUERY_MAX_QUEUED", "5"), ("TERRACE_PASSWORD", "12345")];
        let config =
            load(file, &[&env[..], &[("TERRACE_USER", "ann"), ("PATH", "x")]].concat(), &["data_dir=/flag"]).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("/flag"));
        assert_eq!((config.query.max_queued, config.query.max_running, config.query.history), (5, 3, 1000));
        assert_eq!(config.tiers.dram.budget, Some(Size::Bytes(1024)));
        assert_eq!(config.password.as_deref(), Some("12345"));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        let says = |result: Result<Config>| result.unwrap_err().to_string();
        let file = says(load("[tiers.dram]\nbugdet = \"1GiB\"\n", &[], &[]));
        assert!(file.contains("unknown key 'tiers.dram.bugdet'") && file.contains("'tiers.dram.budget'"), "{file}");
        let env = says(load("", &[("TERRACE_FLIGHT_ADR", "x")], &[]));
        assert!(env.contains("TERRACE_FLIGHT_ADR") && env.contains("did you mean 'TERRACE_FLIGHT_ADDR'"), "{env}");
        let flag = says(load("", &[], &["http.add=x"]));
        assert!(flag.contains("did you mean 'http.addr'?"), "{flag}");
        assert!(load("", &[("TERRACE_SERVICE_HOST", "10.0.0.1"), ("TERRACE_PORT_8080_TCP", "x")], &[]).is_ok());
    }

    #[test]
    fn a_bad_value_names_its_key_and_its_source() {
        let error = load("", &[("TERRACE_TIERS_DRAM_BUDGET", "much")], &[]).unwrap_err().to_string();
        assert!(error.contains("tiers.dram.budget") && error.contains("TERRACE_TIERS_DRAM_BUDGET"), "{error}");
        assert!(error.contains("20%"), "says how to write a size: {error}");
        let error = load("", &[], &["tiers.ssd.compression=gzip"]).unwrap_err().to_string();
        assert!(error.contains("tiers.ssd.compression") && error.contains("`zstd`"), "{error}");
        let error = load("", &[], &["tiers.nvm.rate_limit=5%"]).unwrap_err().to_string();
        assert!(error.contains("rate_limit of a tier is bytes per second"), "{error}");
        let error = load("", &[], &["tiering.policy=fifo"]).unwrap_err().to_string();
        assert!(error.contains("tiering.policy") && error.contains("`lru`") && error.contains("`static`"), "{error}");
        let error = load("", &[], &["tiering.merge=sometimes"]).unwrap_err().to_string();
        assert!(error.contains("tiering.merge") && error.contains("`selective`"), "{error}");
        for (key, values) in [
            ("tiering.payback_epochs", ["0", "-1", "nan", "inf"]),
            ("hot_views.payback_epochs", ["0", "-1", "nan", "inf"]),
            ("hot_views.retire_after", ["0", "-1", "1.5", "nan"]),
            ("tiering.flip_back_epochs", ["-1", "1.5", "nan", "some"]),
            ("tiering.flip_back_factor", ["0.9", "-2", "nan", "inf"]),
        ] {
            for value in values {
                let error = load("", &[], &[&format!("{key}={value}")]).unwrap_err().to_string();
                assert!(error.contains(key), "{value}: {error}");
            }
        }
        for tier in ["dram", "nvm", "ssd"] {
            for price in ["-1", "nan", "inf"] {
                let wrong = format!("tiers.{tier}.price_per_gb={price}");
                let error = load("", &[], &["tiers.dram.price_per_gb=1", &wrong]).unwrap_err().to_string();
                let says = ["a price_per_gb must be a number from 0", &format!("tiers.{tier}.price_per_gb")];
                assert!(says.into_iter().any(|words| error.contains(words)), "{wrong}: {error}");
                let file = format!("[tiers.{tier}]\nprice_per_gb = {price}");
                let error = load(&file, &[], &["tiers.dram.price_per_gb=1"]).map(|_| ()).map_err(|e| e.to_string());
                let wins = tier == "dram";
                assert_eq!(error.is_ok(), wins, "{file}: {error:?}");
            }
            assert!(load("", &[], &[&format!("tiers.{tier}.price_per_gb=much")]).is_err());
        }
        let numbers = [0.1, f64::from(0.1_f32), 3.5, 0.123_456_789_012].map(as_written);
        assert_eq!(numbers, [0.1, 0.1, 3.5, 0.123_456_789_012]);
        for percent in ["0", "101", "nan"] {
            let error = load("", &[], &[&format!("tiering.merge_top_percent={percent}")]).unwrap_err().to_string();
            assert!(error.contains("tiering.merge_top_percent"), "{error}");
        }
        let error = load("user = \"ann\"", &[], &[]).unwrap_err().to_string();
        assert!(error.contains("TERRACE_PASSWORD"), "{error}");
    }

    #[test]
    fn a_printed_configuration_reads_back_and_documents_every_key() {
        let flags = ["tiers.nvm.emulated=true", "tiers.nvm.capacity=1GiB", "query.timeout=5m", "log=a\"b"];
        let config = load("", &[], &flags).unwrap();
        let printed = config.to_toml();
        assert_eq!(load(&printed, &[], &[]).unwrap(), config);
        for key in keys() {
            let field = key.rsplit('.').next().unwrap();
            assert!(printed.contains(&format!("{field} =")), "{key}");
        }
        let variables: std::collections::HashSet<String> = keys().iter().map(|k| variable(k)).collect();
        assert_eq!(variables.len(), keys().len(), "two keys share a variable");
    }

    #[test]
    fn a_printed_configuration_hides_the_password() {
        let config = load("user = \"ann\"\npassword = \"geheim\"", &[], &[]).unwrap();
        assert!(!config.to_toml().contains("geheim"));
    }
}
