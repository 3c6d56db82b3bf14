//! The command line: all commands, with examples.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::{Config, ConfigOverride};
use crate::error::Result;
use crate::maintenance::{backup, check, du, rebuild};
use crate::terminal::{out, outln};
use crate::{advise, calibrate, demo, health, load, moves, placement, serve, sql, tiers};

/// Analytical SQL over data larger than DRAM: every column of every batch lies on the tier where it pays most.
#[derive(Debug, Parser)]
#[command(
    name = "terrace",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  terrace demo                                     watch TPC-H while 90 % of the data leaves DRAM
  terrace serve                                    a server on this machine, data in ./terrace-data
  terrace load sales.parquet --cluster-by day      a file, or a folder of them, into a table
  terrace sql \"SELECT count(*) FROM sales\"
  terrace sql \"SELECT * FROM system.tiers\"         where the bytes lie
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
Without options: data in ./terrace-data, Flight SQL on 127.0.0.1:31337, HTTP (metrics, admin API, cockpit) on
127.0.0.1:8080, budgets from the machine's or the container's memory. `terrace config print` shows every option.

Examples:
  terrace serve
  terrace serve --data-dir /nvme/terrace --dram-budget 8GiB
  terrace serve --nvm-path /mnt/pmem/terrace.pool --nvm-capacity 64GiB
  terrace serve --nvm-emulated --nvm-capacity 2GiB --set tiering.interval=10s
  TERRACE_USER=ann TERRACE_PASSWORD=... terrace serve --flight-addr 0.0.0.0:31337
")]
    Serve {
        #[command(flatten)]
        options: ServerOptions,
        /// Write {"flight":"HOST:PORT","http":"HOST:PORT","pid":N} there once the server serves
        #[arg(long, value_name = "FILE")]
        ready_file: Option<PathBuf>,
    },
    /// Load Parquet, CSV or Arrow files, folders of them, or TPC-H
    #[command(after_help = "\
A file becomes a table of its name; a folder becomes one table of all files in it. Rows are sorted by --cluster-by,
so that queries on these columns skip chunks. All of a table arrives, or nothing.

With --resume the rows are stored in parts of 4 Mi rows (or about 1 GiB) in a table NAME__loading, which becomes NAME when it
is complete. After a kill or a crash the same command goes on after the last part; sources that changed since are
refused. Tables that are complete are skipped. Each part is sorted by --cluster-by in itself, not all of them together.
With --replace the old table goes just before the new one takes its name. To start over: DROP TABLE NAME__loading.

Folders named day=2024-05-01 below the folder that is loaded become a column 'day'. A column without any value is text, or
has the type that another file or the table knows. --delimiter, --null and --header say how CSV files are written.

Examples:
  terrace load sales.parquet --cluster-by day,shop
  terrace load export.csv --delimiter ';' --null NULL --null NA
  terrace load /data/events/ --table events --append
  terrace load tpch:1                                    all 8 tables, clustered by ship and order date
  terrace load people.csv --url grpc://db.example:31337  into that server
  terrace load tpch:10 --data-dir ./terrace-data         into a folder, no server running
  terrace load /data/year/ --table year --resume         run it again until it is done
")]
    Load(load::Options),
    /// Run SQL on a server: one statement, a file, or a prompt
    #[command(after_help = "\
Without a statement or a file: a prompt with history; lines from a pipe are run one statement after another.

Examples:
  terrace sql \"SELECT l_returnflag, count(*) FROM lineitem GROUP BY 1\"
  terrace sql -f report.sql --format csv > report.csv
  terrace sql \"EXPLAIN ANALYZE SELECT sum(l_tax) FROM lineitem\"      chunks pruned, bytes read by tier
  terrace sql \"SELECT reason FROM system.moves LIMIT 5\"              why segments moved
")]
    Sql(sql::Options),
    /// Watch TPC-H while most of the data leaves DRAM
    #[command(after_help = "\
Generates TPC-H, loads it, runs the 22 queries with everything in DRAM, lowers the DRAM budget, lets the tiering loop
move what pays least, runs the queries again, compares the answers, and shows what moved and why.

Examples:
  terrace demo
  terrace demo --scale 10 --budget 20%
  terrace demo --scale 0.1 --json demo.json
  terrace demo --keep-serving                      and then look at the cockpit
")]
    Demo(demo::Options),
    /// Say where segments must lie, ask why they lie where they do, and steer the tiering loop
    #[command(after_help = "\
The same as ALTER TABLE .. PIN, EXCLUDE, PREFER, UNPIN in SQL. A rule is about a whole table, some columns, chunks by
number, or chunks that may hold certain rows. Segments follow with the next epoch, which begins at once. A pin that the
budgets cannot hold is refused, with the figures. Where two rules contradict, the later one holds.

Examples:
  terrace placement pin sales --columns day,shop --to dram
  terrace placement pin sales --where \"day >= '2026-01-01'\" --to dram
  terrace placement pin sales --chunks 3-9,12 --to nvm
  terrace placement exclude audit_log --from dram
  terrace placement prefer sales --columns price --on dram
  terrace placement list --json                    how many bytes lie where they should, for a script
  terrace placement unpin sales
  terrace placement drop sales --rule 3
  terrace placement explain sales --columns day --chunks 7        why, and what would change it
  terrace placement explain --query \"SELECT sum(price) FROM sales\"
  terrace placement mode advise                    log what would move, move nothing
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
The same as ALTER SYSTEM ADD, ALTER, DRAIN, RESUME and DROP TIER in SQL. All of it happens while statements run, and holds
until the server stops. A tier that is drained takes nothing more; what lies there goes to other tiers or home in epochs.
A drain is refused while pins need the tier. A tier is dropped when it is drained and holds nothing any more.

Examples:
  terrace tiers list
  terrace tiers budget dram 8GiB
  terrace tiers add nvm2 --path /mnt/pmem1/terrace.pool --capacity 64GiB
  terrace tiers add trial --emulated --capacity 2GiB --slow
  terrace tiers drain nvm
  terrace tiers drop nvm
")]
    Tiers(tiers::Options),
    /// Measure what accesses cost on each tier, or show what is known
    #[command(after_help = "\
Placement weighs reads by what they cost on each tier. That is measured at the first start, and again when a device or the
machine is another one; what scans see of the disk corrects it slowly. This measures all tiers anew, in about a second, beside
the statements that run: they are slower meanwhile, and so is what is measured. The same as ALTER SYSTEM CALIBRATE TIERS in
SQL; system.calibration and system.tier_costs show the same there.

Examples:
  terrace calibrate
  terrace calibrate --show                         measure nothing, show what is known
  terrace calibrate --show --json > before.json    for a script
")]
    Calibrate(calibrate::Options),
    /// Predict what more or less memory would bring, and find the cheapest budgets for a goal
    #[command(after_help = "\
Predicts the time of the queries that ran last for every budget of the fastest tier, shows where the curve bends (the
knee), what more room would bring, which columns nobody reads, and the cheapest budgets for a goal. Nothing changes.

Examples:
  terrace advise
  terrace advise --more 4GiB
  terrace advise --goal 1.2 --prices dram:3.5,ssd:0.1       at most 1.2 times the time with everything in memory
  terrace advise --goal 30ms --last 10m --json              for the queries of the last ten minutes
")]
    Advise(advise::Options),
    /// Write the log of moves to a file
    #[command(after_help = "\
Each line is one move: what, from where to where, what it was to bring and what it brought, and why. The server keeps
those of the last 1000 epochs.

Examples:
  terrace moves export moves.jsonl
  terrace moves export --format csv > moves.csv
")]
    Moves(moves::Options),
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
Reads the catalog and every table file, compares all bytes with their checksums and the stored bounds with the values,
and says for each finding what to do. Exits with 1 when something is damaged. Changes nothing, unless told to repair.

Examples:
  terrace check                                    the running server's tables, beside its statements
  terrace check --repair                           heal damage from copies in DRAM or NVM
  terrace check --data-dir ./terrace-data          a folder that no server uses
  terrace check --quick --json                     sizes and headers only, for a script
")]
    Check(check::Options),
    /// Copy all tables, as of one moment, into a folder
    #[command(after_help = "\
Works while statements run. Every byte is verified on the way; the folder appears when it is complete, or not at all.
Rows that are not yet sealed are part of it.

Examples:
  terrace backup /backup/monday                    of the running server, on its machine
  terrace backup /backup/monday --data-dir ./terrace-data
")]
    Backup(backup::BackupOptions),
    /// Make a data directory from a backup
    #[command(after_help = "\
Every byte is verified; the directory appears when it is complete, or not at all.

Examples:
  terrace restore /backup/monday --data-dir ./terrace-data
")]
    Restore(backup::RestoreOptions),
    /// Make a new catalog from the table files, when the old one is lost
    #[command(after_help = "\
The last resort, when there is no backup. Not in the files, and so lost: rows that were not yet sealed, and deletions of
rows (deleted rows come back, and so do rows of loads that did not end). It says how many of each, where the old catalog
can still be read. The old catalog is kept under another name, never deleted.

Examples:
  terrace rebuild-catalog --data-dir ./terrace-data         show what would be found
  terrace rebuild-catalog --data-dir ./terrace-data --yes
")]
    RebuildCatalog(rebuild::Options),
    /// Show where the bytes of a data directory are
    #[command(after_help = "\
Examples:
  terrace du
  terrace du --data-dir ./terrace-data --json
")]
    Du(du::Options),
    /// Print or check the configuration
    #[command(after_help = "\
Command line > environment (TERRACE_...) > file > default. The key tiers.dram.budget is TERRACE_TIERS_DRAM_BUDGET.

Examples:
  terrace config print > terrace.toml
  terrace config print --config terrace.toml --dram-budget 4GiB
  terrace config check terrace.toml
")]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration as TOML with comments
    Print {
        #[command(flatten)]
        options: Box<ServerOptions>,
    },
    /// Check a file: unknown keys, bad values, budgets that do not fit
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
    /// Where Flight SQL listens; port 0 takes a free one [default: 127.0.0.1:31337]
    #[arg(long, value_name = "HOST:PORT")]
    pub flight_addr: Option<String>,
    /// Where HTTP listens; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub http_addr: Option<String>,
    /// Memory the process may use [default: what the machine or its control group has]
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
    /// Byte limit of what is placed on NVM [default: its capacity]
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
            ("--flight-addr", "flight.addr", self.flight_addr.clone()),
            ("--http-addr", "http.addr", self.http_addr.clone()),
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

/// Parses the command line of this process and runs its command.
pub fn run() -> Result<()> {
    match Cli::parse().command {
        Command::Serve { options, ready_file } => serve::run(options.load_to_serve()?, ready_file.as_deref()),
        Command::Load(options) => load::run(&options),
        Command::Sql(options) => sql::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Placement(options) => placement::run(&options),
        Command::Tiers(options) => tiers::run(&options),
        Command::Calibrate(options) => calibrate::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Moves(options) => moves::run(&options),
        Command::Health(options) => health::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Backup(options) => backup::backup(&options),
        Command::Restore(options) => backup::restore(&options),
        Command::RebuildCatalog(options) => rebuild::run(&options),
        Command::Du(options) => du::run(&options),
        Command::Config { command: ConfigCommand::Print { options } } => print(&options.load()?),
        Command::Config { command: ConfigCommand::Check { file } } => {
            let config = Config::load(Some(&file), [], Vec::new())?;
            crate::memory::MemoryPlan::new(&config, crate::memory::Limit::detect())?;
            outln!("{}: fine", file.display());
            Ok(())
        }
    }
}

fn print(config: &Config) -> Result<()> {
    outln!("# Terrace {}: the effective configuration.", env!("CARGO_PKG_VERSION"));
    outln!("# Command line > environment > this file > default. What is commented out is chosen by the server.\n");
    out!("{}", config.to_toml());
    let plan = crate::memory::MemoryPlan::new(config, crate::memory::Limit::detect())?;
    outln!("# Memory here ({}):", plan.limit.source);
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
