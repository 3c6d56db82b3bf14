//! The sections of the configuration: keys, defaults, and the documentation that `terrace config print` writes.
//!
//! - `files`: files that statements may name
//! - `home`: where the table files lie
//! - `records`: what the server records

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_access::{JwtAlgorithms, JwtRules};
use terrace_planner_ext::engine::{AdmissionPolicy, DEFAULT_GROUP, MiningMode, WorkloadGroup};
use terrace_tier_store::io::{Class, Depth, IoRules, Turns};
use terrace_tier_store::placement::{MergeKind, PolicyKind, TieringMode};
use terrace_tier_store::table::FileFormat;
use terrace_tier_store::tier::codec::FormChoice;

use crate::error::{Error, Result};
use crate::units::{Size, Span};

/// Declares a section: the structure, its defaults, and its documentation as data.
macro_rules! section {
    ($(#[doc = $about:literal])+ pub struct $name:ident {
        $($(#[doc = $doc:literal])+ pub $field:ident: $type:ty = $default:expr,)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default, expecting = "a section with keys")]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            pub(super) const DOCS: Docs = &[$((stringify!($field), &[$($doc),+]),)+];
        }
    };
}

mod files;
mod home;
mod records;

pub use files::FilesConfig;
pub use home::HomeConfig;
pub use records::{AuditConfig, LogConfig, LogFormat, QueryLogConfig, TracesConfig};

/// Fields of a section with the lines of their documentation.
pub(super) type Docs = &'static [(&'static str, &'static [&'static str])];

section! {
    /// Everything a server can be told.
    pub struct Config {
        /// Folder of the catalog and, unless `home.url` says otherwise, of the table files (the SSD tier). Put it on a local
        /// NVMe disk.
        pub data_dir: PathBuf = PathBuf::from("terrace-data"),
        /// The log.
        pub log: LogConfig = LogConfig::default(),
        /// Name of a user whom no statement can change. Only with `password`.
        pub user: Option<String> = None,
        /// Password of that user. A server without it, and without users of `CREATE USER`, is open, and then listens on loopback
        /// addresses only.
        pub password: Option<String> = None,
        /// Listen beyond loopback without TLS, because something else encrypts: a proxy, a tunnel, a private network.
        pub insecure_listen: bool = false,
        /// How long running statements may go on after SIGTERM before they are cancelled.
        pub grace: Span = Span(Duration::from_secs(10)),
        /// Files that statements and requests may name.
        pub files: FilesConfig = FilesConfig::default(),
        /// TLS of both ports.
        pub tls: TlsConfig = TlsConfig::default(),
        /// Logins by tokens of an OpenID Connect issuer.
        pub oidc: OidcConfig = OidcConfig::default(),
        /// The query log.
        pub query_log: QueryLogConfig = QueryLogConfig::default(),
        /// The audit trail.
        pub audit: AuditConfig = AuditConfig::default(),
        /// Traces.
        pub traces: TracesConfig = TracesConfig::default(),
        /// Arrow Flight SQL.
        pub flight: FlightConfig = FlightConfig::default(),
        /// HTTP: admin API, metrics, cockpit.
        pub http: HttpConfig = HttpConfig::default(),
        /// Memory of the process as a whole.
        pub memory: MemoryConfig = MemoryConfig::default(),
        /// Tiers.
        pub tiers: TiersConfig = TiersConfig::default(),
        /// Where the table files lie.
        pub home: HomeConfig = HomeConfig::default(),
        /// Reads of the home.
        pub io: IoConfig = IoConfig::default(),
        /// Statements.
        pub query: QueryConfig = QueryConfig::default(),
        /// The loop that moves segments between tiers.
        pub tiering: TieringConfig = TieringConfig::default(),
        /// The task that rewrites chunks with deleted rows and small chunks.
        pub compaction: CompactionConfig = CompactionConfig::default(),
        /// Hot views that the server learns from statements.
        pub hot_views: HotViewsConfig = HotViewsConfig::default(),
        /// Nodes that execute parts of queries.
        pub cluster: ClusterConfig = ClusterConfig::default(),
        /// Workload groups, by name.
        pub workload_groups: BTreeMap<String, WorkloadGroupConfig> = default_groups(),
    }
}

impl Config {
    /// The name that a tier of the configuration has in this store: settings of `ssd` hold for the home, whatever it is.
    pub fn tier_name(&self, tier: String) -> String {
        if tier == "ssd" { self.home.tier().to_owned() } else { tier }
    }

    /// Prices of the tiers that have one, by name in this store.
    pub fn prices_per_gb(&self) -> Vec<(String, f64)> {
        self.tiers.prices_per_gb().into_iter().map(|(tier, price)| (self.tier_name(tier), price)).collect()
    }
}

section! {
    /// TLS of both ports. The files are read again when they change; files that cannot be used leave those in use.
    pub struct TlsConfig {
        /// File with the server's certificate, and those between it and its authority, in PEM form. With it, both ports
        /// speak TLS only.
        pub cert: Option<PathBuf> = None,
        /// File with the private key of `cert`, in PEM form.
        pub key: Option<PathBuf> = None,
        /// File with the certificates of authorities, in PEM form. With it, clients must show a certificate of one of them
        /// (mutual TLS).
        pub client_ca: Option<PathBuf> = None,
        /// Whether the certificate of a client names its user, by the common name (CN) of its subject: who shows it and nothing
        /// else is that user, without a password. Only with `client_ca`.
        pub client_users: bool = false,
        /// Time limit of a handshake, and of the first bytes of a client of Flight after it.
        pub handshake_timeout: Span = Span(Duration::from_secs(10)),
    }
}

section! {
    /// Logins by tokens (JWT) of an OpenID Connect issuer, at both ports, as `Authorization: Bearer`. A token names a user, who
    /// must exist here.
    pub struct OidcConfig {
        /// The issuer, exactly as its tokens name it (`iss`), such as `https://login.example/realms/main`. With it, its tokens
        /// are taken. Its keys are fetched by `/.well-known/openid-configuration` below it.
        pub issuer: Option<String> = None,
        /// What the tokens must be for (`aud`). Only with `issuer`.
        pub audience: Option<String> = None,
        /// Algorithms by which tokens may be signed, with `,` between them: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384,
        /// EdDSA.
        pub algorithms: String = "RS256, ES256".to_owned(),
        /// The claim with the name of the user. Choose one that users cannot change themselves at the issuer.
        pub user_claim: String = "sub".to_owned(),
        /// What is put before the name in the claim to make that of the user, such as `sso-`.
        pub user_prefix: String = String::new(),
        /// File with the keys of the issuer, as a JSON Web Key Set, in place of those that it publishes; read again when it changes.
        pub keys_file: Option<PathBuf> = None,
        /// File with the certificates of the authorities to trust for the issuer, in PEM form. Default: those of this machine.
        pub ca: Option<PathBuf> = None,
    }
}

impl OidcConfig {
    /// Which tokens are right; `None` without an issuer.
    ///
    /// # Errors
    /// When the settings do not fit together.
    pub fn rules(&self) -> Result<Option<JwtRules>> {
        let wrong = |what: &str| Err(Error::Config(what.to_owned()));
        let algorithms = JwtAlgorithms::parse(&self.algorithms);
        let algorithms = algorithms.map_err(|error| Error::Config(format!("oidc.algorithms: {error}")))?;
        let (issuer, audience) = match (&self.issuer, &self.audience) {
            (Some(issuer), Some(audience)) if !issuer.is_empty() && !audience.is_empty() => (issuer, audience),
            (None, None) if self.keys_file.is_some() || self.ca.is_some() => {
                return wrong("oidc.keys_file and oidc.ca are of no use without oidc.issuer and oidc.audience");
            }
            (None, None) => return Ok(None),
            _ => return wrong("oidc.issuer and oidc.audience belong together: set both, or neither"),
        };
        if self.user_claim.is_empty() {
            return wrong("oidc.user_claim is empty: name the claim with the user's name, such as sub");
        }
        Ok(Some(JwtRules {
            issuer: issuer.clone(),
            audience: audience.clone(),
            algorithms,
            user_claim: self.user_claim.clone(),
            user_prefix: self.user_prefix.clone(),
        }))
    }
}

section! {
    /// Arrow Flight SQL.
    pub struct FlightConfig {
        /// Address and port to listen on; port 0 takes a free one.
        pub addr: String = "127.0.0.1:31337".to_owned(),
        /// Most open connections, of which one address of a client, or network of 64 bits in IPv6, may have half; further
        /// ones are closed at once. Addresses of this machine, where a proxy may be, may have all.
        pub max_connections: usize = 16_384,
    }
}

section! {
    /// HTTP.
    pub struct HttpConfig {
        /// Address and port of the admin API, the metrics and the cockpit; port 0 takes a free one.
        pub addr: String = "127.0.0.1:8080".to_owned(),
        /// Address and port that answer only `/healthz` and `/readyz`, by 200 or 503, without TLS and to everybody: for
        /// probes. Default, and if empty: none; the port above answers both, too.
        pub health_addr: Option<String> = None,
        /// Most open connections of each port of HTTP, divided in the same way.
        pub max_connections: usize = 1_024,
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
        /// Kept free for the network, the catalog's cache, metadata and the allocator, and so that memory does not run out. Default:
        /// 16%, 128MiB to 1GiB.
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
        /// Memory of a GPU, for second copies that kernels read.
        pub hbm: HbmConfig = HbmConfig::default(),
    }
}

impl TiersConfig {
    /// True when some tier has a price and a tier of memory has none.
    pub(super) fn is_half_priced(&self) -> bool {
        let memory = if self.has_nvm() { ["dram", "nvm"].as_slice() } else { &["dram"] };
        let prices = self.prices_per_gb();
        !prices.is_empty() && memory.iter().any(|tier| !prices.iter().any(|(name, _)| name == tier))
    }

    fn has_nvm(&self) -> bool {
        self.nvm.path.is_some() || self.nvm.emulated
    }

    pub(super) fn given_prices(&self) -> [Option<f64>; 3] {
        [self.dram.price_per_gb, self.nvm.price_per_gb, self.ssd.price_per_gb]
    }

    /// Rate limits of the tiers that have one, by name.
    pub fn rate_limits(&self) -> Vec<(String, Size)> {
        let rates = [
            ("dram", self.dram.rate_limit),
            ("nvm", self.nvm.rate_limit),
            ("ssd", self.ssd.rate_limit),
            ("hbm", self.hbm.rate_limit),
        ];
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
    /// The SSD tier; what holds for it holds for an object store as the home (`home.url`).
    pub struct SsdConfig {
        /// Bytes of table files; ingest is refused beyond. Default: what the disk holds.
        pub limit: Option<Size> = None,
        /// Compression of new table files: `auto` (each buffer for which it pays: the disk saves more time than a core takes
        /// to decompress, both as measured at the first start), `none`, `lz4` or `zstd` (each buffer that shrinks).
        pub compression: Compression = Compression::Auto,
        /// Format of the files of new tables that name none: `arrow` (Arrow IPC files, which any Arrow tool opens) or `packed`
        /// (numbers in as few bits as they need, texts by a table of symbols: fewer bytes to read and to keep).
        pub format: FileFormat = FileFormat::OF_NEW_TABLES,
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

section! {
    /// The HBM tier. It exists when `device` or `emulated` is set.
    pub struct HbmConfig {
        /// Number of the NVIDIA GPU, from 0 on. The driver is loaded only if this is set; a GPU that does not work is left out,
        /// with a warning.
        pub device: Option<u32> = None,
        /// For tests: let the processor run the kernels, in ordinary memory; counted as memory and reported as emulated everywhere.
        pub emulated: bool = false,
        /// Memory of the emulated device. A share is taken of `memory.limit`.
        pub capacity: Option<Size> = None,
        /// Byte limit of the copies there, or a share of the memory of the device. Default: 80%; statements need the rest.
        pub budget: Option<Size> = None,
        /// Bytes per second that the loop's own epochs copy to it, at most; 0: no limit. Default: `tiering.rate_limit`.
        pub rate_limit: Option<Size> = None,
    }
}

section! {
    /// Reads of the home. `system.io_rules` shows what holds.
    pub struct IoConfig {
        /// The classes of reads, the most urgent first, with `>` between ranks and `=` between classes of one rank; `point` is
        /// among the first. Points overtake what waits where they have a rank of their own.
        pub order: String = IoRules::DEFAULT_ORDER.to_owned(),
        /// Which read of a rank is next: that of the `statement` with the fewest bytes so far, of its lowest operator; the same by `bytes`, in which
        /// levels of operators do not count; or the first `arrival`.
        pub turns: ReadTurns = ReadTurns::Statement,
        /// The least urgent class whose reads placement learns from: `prefetch` (all that statements read of tables), `needed`
        /// or `point`. Reads of other classes from the home count as no heat, and bring nothing into memory.
        pub admit: AdmittedReads = AdmittedReads::Prefetch,
        /// Bytes of other reads and writes that the disk gets at once while four or more statements a second read in class `point` and nothing else; at
        /// least 256KiB, and no more than without look-ups; without io_uring it has no effect. A point waits for what the disk has accepted; a disk that has little to do at once gives less bandwidth.
        pub beside_points: Size = Size::Bytes(Depth::BESIDE_POINTS),
    }
}

impl IoConfig {
    /// The rules of the queue of reads.
    ///
    /// # Errors
    /// When `order` is none.
    pub fn rules(&self) -> Result<IoRules> {
        let turns = match self.turns {
            ReadTurns::Statement => Turns::Statement,
            ReadTurns::Bytes => Turns::Bytes,
            ReadTurns::Arrival => Turns::Arrival,
        };
        let rules = IoRules::new(&self.order, turns).map_err(|error| Error::Config(format!("io.order: {error}")))?;
        Ok(rules.with_admission_up_to(match self.admit {
            AdmittedReads::Point => Class::Point,
            AdmittedReads::Needed => Class::Needed,
            AdmittedReads::Prefetch => Class::Prefetch,
        }))
    }
}

/// The least urgent class of reads that placement learns from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdmittedReads {
    /// Those of scans that look a few rows up.
    Point,
    /// And those that a scan waits for.
    Needed,
    /// And what scans read ahead.
    #[default]
    Prefetch,
}

/// Which of the reads of a rank is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadTurns {
    /// That of the statement with the fewest bytes so far, and of its reads the one of the lowest operator.
    #[default]
    Statement,
    /// The same, and of its reads the one that came first.
    Bytes,
    /// The one that came first.
    Arrival,
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
        /// Which statements run at the same time: weighted-demand (those whose expected memory, weighted by time, fits into
        /// `memory.query`), maximal-reservation (those whose largest expected memory fits), fifo (as many as there are
        /// places), none (all).
        pub admission: AdmissionPolicy = AdmissionPolicy::WeightedDemand,
        /// Places: statements that run at the same time. One session has at most half of them.
        pub max_running: usize = 16,
        /// Further places for statements that read few rows and need little memory. They are executed on threads of their
        /// own. One that computes for more than 50ms or reads more than 1MiB from disk counts as another one from then on.
        pub point_slots: usize = 4,
        /// Statements that wait for a place; more are refused with "try again", where an eighth of them are of the same user.
        pub max_queued: usize = 256,
        /// How long a statement waits for a place.
        pub queue_timeout: Span = Span(Duration::from_secs(60)),
        /// How long a statement may run. Default: no limit.
        pub timeout: Option<Span> = None,
        /// How long a client may leave the rows of a statement unread before the statement ends. 0: no limit.
        pub stall_timeout: Span = Span(Duration::from_secs(300)),
        /// How long a transaction may stay open without a statement before it is rolled back. 0: no limit.
        pub idle_transaction_timeout: Span = Span(Duration::from_secs(600)),
        /// How long a session may stay open without a statement before it ends, with its options and prepared statements.
        /// 0: no limit.
        pub idle_session_timeout: Span = Span(Duration::from_secs(12 * 3600)),
        /// Statements that are planned at the same time, of those that may take long to plan. 0: half as many as threads.
        pub planning_slots: usize = 0,
        /// How long the planning of a statement may take.
        pub planning_timeout: Span = Span(Duration::from_secs(30)),
        /// Bytes that all statements together may have in spill files, in `data_dir/spill`.
        pub spill_limit: Size = Size::Bytes(64 << 30),
        /// Bytes that one statement may have there. A share (50%) is taken of `spill_limit`.
        pub statement_spill_limit: Size = Size::Percent(50.0),
        /// Percent of the budget of each memory tier that spilled rows may have while segments leave it room; the rest goes
        /// to disk. 0: all of it.
        pub spill_tier_percent: f64 = 10.0,
        /// Finished statements that `system.queries` remembers.
        pub history: usize = 1000,
    }
}

section! {
    /// The tiering loop.
    pub struct TieringConfig {
        /// False: the loop moves no segment at all; queries are not affected.
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
        /// Epochs after a move in which the segment moves back only if its heat, or the price of the room, changed by
        /// `flip_back_factor`. 0: it may move back at once.
        pub flip_back_epochs: u32 = 4,
        /// Factor by which the heat or the price must change for that; at least 1.
        pub flip_back_factor: f64 = 2.0,
        /// Bytes per second that the loop's own epochs read from the device of a tier, and write to it, at most, so that queries
        /// do not suffer. 0: no limit. Each tier may have its own.
        pub rate_limit: Size = Size::Bytes(512 << 20),
        /// Time that the solver may take to plan an epoch; after it the loop uses the best placement found so far, and
        /// `system.epochs` shows that. 0: it places segments by benefit per byte alone.
        pub solver_deadline: Span = Span(Duration::from_secs(1)),
        /// Policy that chooses the tier of each segment: `optimal` (least expected time), `density` (highest benefit per byte
        /// first), `lru` (last read first), `lfu` (most often read first), `column` or `chunk` (whole columns or chunks by
        /// benefit per byte), `random`, `static` (segments in memory stay). With `form = "auto"` there are `one_form` (the best
        /// form for all copies), `form_first` (forms first, then tiers) and `mosaic` (one tier and form for each column) to
        /// compare with. Placement rules and budgets hold under each.
        pub policy: PolicyKind = PolicyKind::Optimal,
        /// Form of columns in DRAM and NVM: `plain` (Arrow arrays, read as they lie), `packed` (numbers in as few bits as
        /// they need, texts by a table of symbols; unpacked slice by slice) or `auto` (the policy chooses the form of each
        /// copy with its tier).
        pub form: FormChoice = FormChoice::Plain,
        /// Which segments that a query read from disk move into memory between epochs: `never` (none, epochs decide alone),
        /// `always` (all, as into a cache; the policy chooses those to evict), `selective` (those that save more time than
        /// the segments to evict). Default: `always` under the policies `lru` and `lfu`, `never` under the others.
        pub merge: Option<MergeKind> = None,
        /// With `merge = "selective"`: a segment must also be among this percentage of all segments by time saved per byte.
        pub merge_top_percent: f64 = 100.0,
    }
}

section! {
    /// Compaction.
    pub struct CompactionConfig {
        /// Bytes of chunk files per second that the background task and background runs of hot views read and write at most.
        /// 0: only `OPTIMIZE` compacts, and hot views run on `REFRESH` only.
        pub rate_limit: Size = Size::Bytes(64 << 20),
    }
}

section! {
    /// Hot views that the server learns from statements. Its epochs are those of `tiering.interval`, with that `half_life`.
    pub struct HotViewsConfig {
        /// What the server does: advise proposes views (`SHOW HOT VIEW PROPOSALS`), auto creates them and drops those that no
        /// longer pay, off does not mine statements. Views that users created are never changed.
        pub mode: MiningMode = MiningMode::Advise,
        /// Epochs within which a view must save scans as many bytes as its run reads and writes to put its rows together.
        pub payback_epochs: f64 = 60.0,
        /// Maximum number of views that the server creates itself.
        pub most_mined: usize = 8,
        /// Number of consecutive epochs without paying after which the server drops a mined view or withdraws a proposal.
        pub retire_after: u32 = 6,
    }
}

section! {
    /// Nodes that execute parts of queries over large tables. At present all of them are in this process, over its store, and
    /// listen on loopback ports that the system chooses; they gain nothing, and are there to be tried.
    pub struct ClusterConfig {
        /// Number of nodes, at most 16. 1: none; the process executes its queries itself.
        pub nodes: usize = 1,
        /// Queries whose tables have fewer rows in all are executed as a whole.
        pub least_rows: u64 = 1_000_000,
    }
}

/// The section whose sections are named by the user.
pub(super) const GROUPS: &str = "workload_groups";

section! {
    /// Sessions that share limits, and a share of the places: those of its users, and those that SET workload_group to its
    /// name, which is for its users and superusers, where it has users. The group `default` takes all others. The sections are named
    /// `[workload_groups.NAME]`. CREATE WORKLOAD GROUP makes further ones.
    pub struct WorkloadGroupConfig {
        /// The users and roles whose sessions start in the group, with `,` between them. They take no group that does not name them.
        pub users: Option<String> = None,
        /// Statements of a group of higher priority take places first. One that waits for a quarter of
        /// `query.queue_timeout` comes first whatever its group.
        pub priority: u32 = 100,
        /// The group's share of the places beside other groups of its priority.
        pub weight: u32 = 1,
        /// Query memory that its statements hold together at most; they spill to disk beyond it. A share (25%) is taken of
        /// `memory.query`. Default: all.
        pub memory: Option<Size> = None,
        /// Statements of the group that run at the same time. Default: as many as there are places.
        pub max_running: Option<usize> = None,
        /// How long a statement of the group may run. Default: `query.timeout`.
        pub timeout: Option<Span> = None,
    }
}

impl WorkloadGroupConfig {
    /// The group for an engine with so much query memory.
    pub fn resolve(&self, name: &str, query_bytes: u64) -> WorkloadGroup {
        let users = self.users.as_deref().unwrap_or("").split(',').map(str::trim).filter(|user| !user.is_empty());
        WorkloadGroup {
            name: name.to_owned(),
            users: users.map(str::to_owned).collect(),
            weight: self.weight,
            priority: self.priority,
            memory_bytes: self.memory.map(|size| size.resolve(query_bytes)),
            max_running: self.max_running,
            timeout: self.timeout.map(|span| span.0),
        }
    }
}

fn default_groups() -> BTreeMap<String, WorkloadGroupConfig> {
    BTreeMap::from([(DEFAULT_GROUP.to_owned(), WorkloadGroupConfig::default())])
}

/// Sections in the order in which they are printed, with their documentation.
pub(super) const SECTIONS: [(&str, Docs); 23] = [
    ("", Config::DOCS),
    ("log", LogConfig::DOCS),
    ("files", FilesConfig::DOCS),
    ("tls", TlsConfig::DOCS),
    ("oidc", OidcConfig::DOCS),
    ("query_log", QueryLogConfig::DOCS),
    ("audit", AuditConfig::DOCS),
    ("traces", TracesConfig::DOCS),
    ("flight", FlightConfig::DOCS),
    ("http", HttpConfig::DOCS),
    ("memory", MemoryConfig::DOCS),
    ("tiers", TiersConfig::DOCS),
    ("tiers.dram", DramConfig::DOCS),
    ("tiers.nvm", NvmConfig::DOCS),
    ("tiers.ssd", SsdConfig::DOCS),
    ("tiers.hbm", HbmConfig::DOCS),
    ("home", HomeConfig::DOCS),
    ("io", IoConfig::DOCS),
    ("query", QueryConfig::DOCS),
    ("tiering", TieringConfig::DOCS),
    ("compaction", CompactionConfig::DOCS),
    ("hot_views", HotViewsConfig::DOCS),
    ("cluster", ClusterConfig::DOCS),
];

/// Restores a number as it was written: numbers of few digits were read as `f32`, where 0.1 is 0.10000000149011612.
pub(super) fn as_written(number: f64) -> f64 {
    let short = number as f32;
    let written = || short.to_string().parse().ok();
    if f64::from(short) == number { written().unwrap_or(number) } else { number }
}

/// All dotted keys of single values.
pub(super) fn keys() -> Vec<String> {
    let nested: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
    let dotted = |section: &str, field: &str| match section {
        "" => field.to_owned(),
        _ => format!("{section}.{field}"),
    };
    SECTIONS
        .iter()
        .flat_map(|(section, docs)| docs.iter().map(move |(field, _)| dotted(section, field)))
        .filter(|key| !nested.contains(&key.as_str()) && key != GROUPS)
        .collect()
}

/// The field that a dotted key of a workload group names: `workload_groups.NAME.FIELD`.
pub(super) fn group_field(key: &str) -> Option<&str> {
    let (name, field) = key.strip_prefix(GROUPS)?.strip_prefix('.')?.rsplit_once('.')?;
    let is_known = WorkloadGroupConfig::DOCS.iter().any(|(known, _)| *known == field);
    (is_known && is_group_name(name)).then_some(field)
}

/// Whether a workload group can have this name.
pub(super) fn is_group_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// The environment variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("TERRACE_{}", key.replace('.', "_").to_ascii_uppercase())
}
