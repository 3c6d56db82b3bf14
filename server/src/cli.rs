//! The command line: all commands, with examples.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, ConfigOverride};
use crate::error::{Error, Result};
use crate::maintenance::{backup, check, du, rebuild};
use crate::terminal::{out, outln};
use crate::{advise, calibrate, demo, health, load, moves, placement, serve, sql, status, tiers, top, users};

/// Analytical SQL over data larger than DRAM: every column of every batch lies on the tier where it pays most.
#[derive(Debug, Parser)]
#[command(
    name = "terrace",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  terrace demo                                     watch TPC-H while 90 % of the data leaves DRAM
  terrace serve                                    start a server on this machine; data in ./terrace-data
  terrace load sales.parquet --cluster-by day      load a file, or a folder of files, into a table
  terrace sql \"SELECT count(*) FROM sales\"
  terrace sql \"SELECT * FROM system.tiers\"         show how many bytes each tier holds
"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    #[command(after_help = "\
Without options: data in ./terrace-data, Flight SQL on 127.0.0.1:31337, HTTP (metrics, admin API, cockpit) on \
127.0.0.1:8080, budgets from the machine's or the container's memory. `terrace config print` shows every option.

Examples:
  terrace serve
  terrace serve --data-dir /nvme/terrace --dram-budget 8GiB
  terrace serve --nvm-path /mnt/pmem/terrace.pool --nvm-capacity 64GiB
  terrace serve --nvm-emulated --nvm-capacity 2GiB --set tiering.interval=10s
  TERRACE_USER=ann TERRACE_PASSWORD=... terrace serve --flight-addr 0.0.0.0:31337 --tls-cert cert.pem --tls-key key.pem
")]
    Serve {
        #[command(flatten)]
        options: ServerOptions,
        /// Write {"flight":"HOST:PORT","http":"HOST:PORT","pid":N} to this file once the server accepts connections
        #[arg(long, value_name = "FILE")]
        ready_file: Option<PathBuf>,
    },
    /// Load Parquet, CSV, JSON or Arrow files, folders of them, standard input, or a generated benchmark
    #[command(after_help = "\
Each file becomes a table named after the file; a folder, a pattern in quotes, and all sources with --table become \
one table with the rows of all their files. Terrace sorts the rows by --cluster-by, so that queries on these \
columns skip chunks. A table is loaded completely or not at all. --dry-run shows files and columns, and loads \
nothing.

With --resume the rows are stored in parts of 4 Mi rows (or about 1 GiB) in a table NAME__loading, which becomes \
NAME when it is complete. After a kill or a crash, run the same command again: it continues after the last \
stored part, skips tables that are complete, and refuses sources that have changed. Each part is sorted by \
--cluster-by on its own. With --replace the old table is dropped just before the new one takes its name. To \
start over: DROP TABLE NAME__loading.

Columns are found by name; a file that lacks one has null in it. Folders named day=2024-05-01 below the loaded \
folder become a column 'day'. A column without any value has the type that another file or the table gives it, \
else text. CSV and JSON files may be compressed (.gz, .zst, .bz2). --delimiter, --null, --header and --columns \
describe the format of CSV files.

Examples:
  terrace load sales.parquet --cluster-by day,shop
  terrace load export.csv --delimiter ';' --null NULL --null NA
  terrace load 'logs/2024-*/*.ndjson.gz' --table logs --dry-run
  zcat people.csv.gz | terrace load - --format csv --table people
  terrace load /data/events/ --table events --append
  terrace load tpch:1                                    TPC-H: 8 tables, clustered by ship and order date
  terrace load ssb:1                                     Star Schema Benchmark: 5 tables, clustered by order date
  terrace load people.csv --url grpc://db.example:31337  load into that server
  terrace load tpch:10 --data-dir ./terrace-data         load into a folder while no server runs
  terrace load /data/year/ --table year --resume         run it again after a failure
")]
    Load(load::Options),
    /// Run SQL on a server: one statement, a file, or a prompt
    #[command(after_help = "\
Without a statement or a file, it opens a prompt, or runs the statements that it reads from a pipe. The prompt completes \
names and keywords, keeps a history of whole statements, and shows tall results in a pager (PAGER); \\? lists its \
commands, which work in files and arguments, too.

Examples:
  terrace sql \"SELECT l_returnflag, count(*) FROM lineitem GROUP BY 1\"
  terrace sql -f report.sql --format csv > report.csv
  terrace sql \"SELECT * FROM lineitem\" --output lineitem.parquet
  terrace sql '\\d lineitem'                                           columns and types
  terrace sql --profile prod                                          the server of a profile
  terrace sql \"EXPLAIN ANALYZE SELECT sum(l_tax) FROM lineitem\"      chunks pruned, bytes read by tier
  terrace sql \"SELECT reason FROM system.moves LIMIT 5\"              why segments moved
")]
    Sql(sql::Options),
    /// Watch TPC-H while most of the data leaves DRAM
    #[command(after_help = "\
Generates TPC-H, loads it, runs the 22 queries with everything in DRAM, lowers the DRAM budget, lets the tiering \
loop move the segments that save the least time per byte, runs the queries again, compares the answers, and \
shows what moved and why.

Examples:
  terrace demo
  terrace demo --scale 10 --budget 20%
  terrace demo --scale 0.1 --json demo.json
  terrace demo --keep-serving                      keep the server running, to look at the cockpit
")]
    Demo(demo::Options),
    /// Set placement rules, explain placement, and control the tiering loop
    #[command(after_help = "\
The same as ALTER TABLE .. PIN, EXCLUDE, PREFER, UNPIN in SQL. A rule applies to a whole table, some columns, \
chunks by number, or chunks that may hold certain rows. The next epoch, which begins at once, moves the \
segments. The server refuses a pin that the budgets cannot hold, and shows the sizes. Where two rules \
contradict, the later one applies.

Examples:
  terrace placement pin sales --columns day,shop --to dram
  terrace placement pin sales --where \"day >= '2026-01-01'\" --to dram
  terrace placement pin sales --chunks 3-9,12 --to nvm
  terrace placement exclude audit_log --from dram
  terrace placement prefer sales --columns price --on dram
  terrace placement list --json                    show for a script how many bytes meet each rule
  terrace placement unpin sales
  terrace placement drop sales --rule 3
  terrace placement explain sales --columns day --chunks 7        show the reason, and what would change it
  terrace placement explain --query \"SELECT sum(price) FROM sales\"
  terrace placement mode advise                    log proposed moves, move nothing
  terrace placement mode off --table audit_log
  terrace placement epoch --dry-run
  terrace placement bring-back sales --where \"day >= '2026-11-01'\" --to dram
  terrace placement warm-up sales --columns day,price
  terrace placement roll-back --to-epoch 41
  terrace placement freeze
")]
    Placement(placement::Options),
    /// Show the tiers of a server, set their budgets, add new ones, drain and drop them
    #[command(after_help = "\
The same as ALTER SYSTEM ADD, ALTER, DRAIN, RESUME and DROP TIER in SQL. Changes apply while statements run, and \
last until the server stops. A drained tier takes no more segments; epochs move its segments to other tiers or \
leave them at home. The server refuses a drain while pins need the tier. A tier can be dropped once it is \
drained and holds no bytes.

Examples:
  terrace tiers list
  terrace tiers budget dram 8GiB
  terrace tiers add nvm2 --path /mnt/pmem1/terrace.pool --capacity 64GiB
  terrace tiers add trial --emulated --capacity 2GiB --slow
  terrace tiers drain nvm
  terrace tiers drop nvm
")]
    Tiers(tiers::Options),
    /// Measure the cost of accesses on each tier, or show the last measurements
    #[command(after_help = "\
Placement weighs reads by their cost on each tier. The server measures this cost at the first start, and again \
when a device or the machine has changed; later scans correct the cost of the disk slowly. This command measures \
all tiers again, in about a second, while statements run: they are slower meanwhile, and the measured costs are \
higher than on an idle machine. The same as ALTER SYSTEM CALIBRATE TIERS in SQL, where system.calibration and \
system.tier_costs show the measurements.

Examples:
  terrace calibrate
  terrace calibrate --show                         show the last measurements
  terrace calibrate --show --json > before.json    the same as JSON, for a script
")]
    Calibrate(calibrate::Options),
    /// Predict query times for other memory budgets, and find the cheapest budgets for a goal
    #[command(after_help = "\
Predicts the time of recent queries for every budget of the fastest tier. Shows the budget beyond which more \
memory saves much less time (the knee), the time that a larger budget saves, columns that no query reads, and \
the cheapest budgets for a goal. Changes nothing.

Examples:
  terrace advise
  terrace advise --more 4GiB
  terrace advise --goal 1.2 --prices dram:3.5,ssd:0.1       at most 1.2 times the time with everything in memory
  terrace advise --goal 30ms --last 10m --json              for the queries of the last ten minutes
")]
    Advise(advise::Options),
    /// Write the log of moves to a file
    #[command(after_help = "\
Each line is one move: the segment, its old and new tier, the predicted and the measured saving, and the reason. \
The server keeps the moves of the last 1000 epochs.

Examples:
  terrace moves export moves.jsonl
  terrace moves export --format csv > moves.csv
")]
    Moves(moves::Options),
    /// Show a server on one screen: version, tiers, sessions, statements, the last epoch, damage
    #[command(after_help = "\
Examples:
  terrace status
  terrace status --json                            the answers of the server, for a script
  terrace status --profile prod
")]
    Status(status::Options),
    /// Watch running statements and tiers on a screen that refreshes itself
    #[command(after_help = "\
The longest statements come first; q leaves.

Examples:
  terrace top
  terrace top --interval 500ms
  terrace top --once                               print one look, for a script
")]
    Top(top::Options),
    /// Ask a server whether it is ready, for container health checks
    #[command(after_help = "\
Exits with 0 when the catalog is open and the tiers are mounted, with 1 otherwise.

Examples:
  terrace health
  terrace health --http-addr 10.0.0.7:8080
")]
    Health(health::Options),
    /// Verify everything that is stored
    #[command(after_help = "\
Reads the catalog and every table file, compares all bytes with their checksums and the stored bounds with the \
values, and prints a remedy with each finding. Exits with 1 when something is damaged. Changes nothing without \
--repair.

Examples:
  terrace check                                    check the tables of the running server
  terrace check --repair                           repair damage from copies in DRAM or NVM
  terrace check --data-dir ./terrace-data          check a folder that no server uses
  terrace check --quick --json                     check only sizes and headers, print JSON
")]
    Check(check::Options),
    /// Copy all tables, as of one moment, into a folder
    #[command(after_help = "\
Works while statements run and verifies every byte. The folder appears once the backup is complete, else not at \
all. The backup includes rows that are not yet sealed into chunks.

Examples:
  terrace backup /backup/monday                    back up the running server to a folder on its machine
  terrace backup /backup/monday --data-dir ./terrace-data   back up a folder that no server uses
")]
    Backup(backup::BackupOptions),
    /// Create a data directory from a backup
    #[command(after_help = "\
Verifies every byte. The directory appears once it is complete, else not at all.

Examples:
  terrace restore /backup/monday --data-dir ./terrace-data
")]
    Restore(backup::RestoreOptions),
    /// Rebuild the catalog from the table files after the old one was lost
    #[command(after_help = "\
Use it only when there is no backup. The files lack rows that were not yet sealed, which are lost, and \
deletions: deleted rows come back, and so do rows of loads that did not finish. The command reports how many, if \
it can still read the old catalog. It keeps the old catalog under another name.

Examples:
  terrace rebuild-catalog --data-dir ./terrace-data         show what it finds, change nothing
  terrace rebuild-catalog --data-dir ./terrace-data --yes
")]
    RebuildCatalog(rebuild::Options),
    /// Show the disk usage of a data directory by table
    #[command(after_help = "\
Examples:
  terrace du
  terrace du --data-dir ./terrace-data --json
")]
    Du(du::Options),
    /// Make a first user, or a way back in, in a data directory that no server uses
    #[command(after_help = "\
A server without a user is open to everybody who reaches it, and listens on loopback only. Once there is a user, \
it asks for user and password, or a token. CREATE USER, ALTER USER and DROP USER do the same in SQL; CREATE \
TOKEN makes tokens. The password is asked for, or read from standard input.

Examples:
  terrace user create ann --data-dir ./terrace-data
  terrace user create bob --data-dir ./terrace-data < password.txt
  terrace user reset ann --data-dir ./terrace-data          a new password, and the rights of a superuser
  terrace user list --data-dir ./terrace-data
")]
    User(users::Options),
    /// Print or check the configuration
    #[command(after_help = "\
Command line > environment (TERRACE_...) > file > default. The key tiers.dram.budget is \
TERRACE_TIERS_DRAM_BUDGET.

Examples:
  terrace config print > terrace.toml
  terrace config print --config terrace.toml --dram-budget 4GiB
  terrace config check terrace.toml
")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the completions of a shell
    #[command(after_help = "\
Examples:
  terrace completions bash > ~/.local/share/bash-completion/completions/terrace
  terrace completions zsh > ~/.zfunc/_terrace                  a folder of $fpath
  terrace completions fish > ~/.config/fish/completions/terrace.fish
")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a man page of each command into a folder
    #[command(after_help = "\
Examples:
  terrace man ~/.local/share/man/man1 && man terrace-sql
")]
    Man {
        /// The folder; it is created when it is missing
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration as TOML with comments
    Print {
        #[command(flatten)]
        options: Box<ServerOptions>,
    },
    /// Check a file for unknown keys, bad values, and budgets that do not fit into memory
    Check {
        /// The file
        file: PathBuf,
    },
}

/// Options of a server; they win over the environment and the file.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerOptions {
    /// TOML file with the configuration
    #[arg(long, env = "TERRACE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder of the catalog and the table files [default: terrace-data]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where the table files lie: a folder, or s3://BUCKET/PREFIX [default: ssd in the data directory]
    #[arg(long, value_name = "HOME")]
    pub home: Option<String>,
    /// Where Flight SQL listens; port 0 takes a free one [default: 127.0.0.1:31337]
    #[arg(long, value_name = "HOST:PORT")]
    pub flight_addr: Option<String>,
    /// Where HTTP listens; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub http_addr: Option<String>,
    /// File with the server's certificate chain (PEM): both ports speak TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Listen beyond loopback without TLS, because something else encrypts
    #[arg(long)]
    pub insecure_listen: bool,
    /// Memory that the process may use [default: memory of the machine or of its control group]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Byte limit of the DRAM tier, or a share of the memory limit
    #[arg(long, value_name = "SIZE")]
    pub dram_budget: Option<String>,
    /// Pool file on a DAX mount or a devdax device: adds an NVM tier
    #[arg(long, value_name = "PATH", conflicts_with = "nvm_emulated")]
    pub nvm_path: Option<PathBuf>,
    /// Adds an NVM tier that ordinary memory stands in for
    #[arg(long)]
    pub nvm_emulated: bool,
    /// Size of the NVM pool
    #[arg(long, value_name = "SIZE")]
    pub nvm_capacity: Option<String>,
    /// Byte limit of the segments on NVM [default: its capacity]
    #[arg(long, value_name = "SIZE")]
    pub nvm_budget: Option<String>,
    /// Byte limit of the table files
    #[arg(long, value_name = "SIZE")]
    pub ssd_limit: Option<String>,
    /// Any other key of the configuration, for example tiering.interval=10s
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ServerOptions {
    /// The effective configuration.
    pub fn load(&self) -> Result<Config> {
        let path = |p: &Option<PathBuf>| p.as_ref().map(|p| p.display().to_string());
        let flags = [
            ("--data-dir", "data_dir", path(&self.data_dir)),
            ("--home", "home.url", self.home.clone()),
            ("--flight-addr", "flight.addr", self.flight_addr.clone()),
            ("--http-addr", "http.addr", self.http_addr.clone()),
            ("--tls-cert", "tls.cert", path(&self.tls_cert)),
            ("--tls-key", "tls.key", path(&self.tls_key)),
            ("--insecure-listen", "insecure_listen", self.insecure_listen.then(|| "true".to_owned())),
            ("--memory-limit", "memory.limit", self.memory_limit.clone()),
            ("--dram-budget", "tiers.dram.budget", self.dram_budget.clone()),
            ("--nvm-path", "tiers.nvm.path", path(&self.nvm_path)),
            ("--nvm-emulated", "tiers.nvm.emulated", self.nvm_emulated.then(|| "true".to_owned())),
            ("--nvm-capacity", "tiers.nvm.capacity", self.nvm_capacity.clone()),
            ("--nvm-budget", "tiers.nvm.budget", self.nvm_budget.clone()),
            ("--ssd-limit", "tiers.ssd.limit", self.ssd_limit.clone()),
        ];
        let mut given = self.set.iter().map(|text| ConfigOverride::assignment(text)).collect::<Result<Vec<_>>>()?;
        given.extend(flags.into_iter().filter_map(|(flag, key, value)| Some(ConfigOverride::flag(flag, key, value?))));
        Config::load(self.config.as_deref(), crate::config::environment(), given)
    }

    /// Like [`Self::load`], but for a server: protects the file of the configuration and the files that systemd passes
    /// to a service.
    fn load_to_serve(&self) -> Result<Config> {
        let mut config = self.load()?;
        self.config.iter().for_each(|file| config.files.protect(file));
        for folders in ["CONFIGURATION_DIRECTORY", "CREDENTIALS_DIRECTORY"].into_iter().filter_map(std::env::var_os) {
            std::env::split_paths(&folders).for_each(|folder| config.files.protect(&folder));
        }
        Ok(config)
    }
}

/// Parses the command line of this process and runs its command. `version` is what `--version` prints.
///
/// # Errors
/// Those of the command.
pub fn run(version: &'static str) -> Result<()> {
    let matches = command().version(version).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Serve { options, ready_file } => serve::run(options.load_to_serve()?, ready_file.as_deref()),
        Command::Load(options) => load::run(&options),
        Command::Sql(options) => sql::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Placement(options) => placement::run(&options),
        Command::Tiers(options) => tiers::run(&options),
        Command::Calibrate(options) => calibrate::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Moves(options) => moves::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Health(options) => health::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Backup(options) => backup::backup(&options),
        Command::Restore(options) => backup::restore(&options),
        Command::RebuildCatalog(options) => rebuild::run(&options),
        Command::Du(options) => du::run(&options),
        Command::User(options) => users::run(&options),
        Command::Config { command: ConfigCommand::Print { options } } => print(&options.load()?),
        Command::Config { command: ConfigCommand::Check { file } } => {
            let config = Config::load(Some(&file), [], Vec::new())?;
            crate::memory::MemoryPlan::new(&config, crate::memory::Limit::detect())?;
            outln!("{}: the configuration is valid", file.display());
            Ok(())
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "terrace", &mut text);
            out!("{}", String::from_utf8_lossy(&text));
            Ok(())
        }
        Command::Man { folder } => {
            let failed = |e: std::io::Error| Error::file(&folder, format!("cannot write the man pages: {e}"));
            std::fs::create_dir_all(&folder).map_err(failed)?;
            clap_mangen::generate_to(command().version(version), &folder).map_err(failed)
        }
    }
}

fn print(config: &Config) -> Result<()> {
    outln!("# Terrace {}: the effective configuration.", env!("CARGO_PKG_VERSION"));
    outln!(
        "# Command line > environment > this file > default. The server chooses values for keys that are commented out.\n"
    );
    out!("{}", config.to_toml());
    let plan = crate::memory::MemoryPlan::new(config, crate::memory::Limit::detect())?;
    outln!("# Memory on this machine ({}):", plan.limit.source);
    for (name, bytes) in plan.parts().iter().chain([&("limit", plan.limit.bytes)]) {
        outln!("#   {name:<14}{}", crate::units::human_bytes(*bytes));
    }
    Ok(())
}

/// The whole command line, for tests and for generated documents.
pub fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_command_teaches_with_examples() {
        command().debug_assert();
        for sub in command().get_subcommands() {
            let help = sub.get_after_help().expect("examples").to_string();
            assert!(help.contains("Examples:") && help.contains(&format!("terrace {}", sub.get_name())), "{help}");
        }
    }

    #[test]
    fn help_is_wrapped_by_the_terminal_alone() {
        for sub in command().get_subcommands() {
            let help = sub.get_after_help().expect("examples").to_string();
            let is_text = |line: &str| !line.is_empty() && !line.starts_with("  ") && line != "Examples:";
            let lines: Vec<&str> = help.lines().collect();
            let broken = lines.windows(2).find(|pair| pair.iter().all(|line| is_text(line)));
            assert!(broken.is_none(), "terrace {}: {broken:?}", sub.get_name());
        }
    }

    #[test]
    fn shells_complete_every_command() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "terrace", &mut text);
            let text = String::from_utf8(text).unwrap();
            for sub in command().get_subcommands() {
                assert!(text.contains(sub.get_name()), "{shell}: {}", sub.get_name());
            }
        }
    }

    #[test]
    fn every_command_has_a_man_page() {
        let folder = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(command(), folder.path()).unwrap();
        for sub in command().get_subcommands() {
            let page = folder.path().join(format!("terrace-{}.1", sub.get_name()));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains("Examples:"), "{}", page.display());
        }
        assert!(folder.path().join("terrace-placement-pin.1").exists());
    }

    #[test]
    fn flags_reach_the_configuration() {
        let options = ServerOptions {
            dram_budget: Some("1GiB".to_owned()),
            set: vec!["tiering.interval=5s".to_owned()],
            ..Default::default()
        };
        let config = options.load().unwrap();
        assert_eq!(config.tiers.dram.budget, Some(crate::units::Size::Bytes(1 << 30)));
        assert_eq!(config.tiering.interval.to_string(), "5s");
    }
}
