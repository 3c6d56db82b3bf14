//! The experiments, by name and by the figure they measure.
//!
//! - [`access`]: ways to the bytes of a file
//! - [`admission`]: policies of admission in little query memory
//! - [`advisor`]: predictions of the advisor
//! - [`budget_changes`]: latency of TPC-H while the budget of DRAM changes
//! - [`budgets`]: TPC-H at several budgets, by every policy
//! - [`ch_benchmark`]: hot views
//! - [`client_throughput`]: throughput of TPC-H by clients and threads
//! - [`column_moves`]: moves of single segments, by type of the column
//! - [`contest`]: compares policies
//! - [`counters`]: cost of counting accesses
//! - [`db_benchmark`]: groups and joins of db-benchmark against DuckDB
//! - [`decisions`]: columns and segments of TPC-H by size, accesses and tier
//! - [`device_budgets`]: images on a device by every policy
//! - [`device_table`]: devices by single reads and durable writes
//! - [`dram_saved`]: DRAM saved at equal latency
//! - [`forms`]: TPC-H with packed columns in memory
//! - [`heat_maps`]: heat maps of TPC-H
//! - [`hybrid_storage`]: TPC-H over a slow disk, in the four set-ups of the paper
//! - [`io`]: cold scans and random reads
//! - [`joint_forms`]: tiers and forms chosen together, against other ways to choose them
//! - [`keys`]: cost of primary keys
//! - [`look_up_latency`]: look-ups at a client beside cold scans
//! - [`memory`]: resident memory of a server
//! - [`memory_limit`]: TPC-H in little memory
//! - [`mixed_clients`]: short statements beside heavy sorts
//! - [`moves`]: speed of moves, and their effect on queries
//! - [`one_scan`]: hot statements after a scan of a cold table
//! - [`packed_bytes`]: bytes of packed columns
//! - [`packed_homes`]: cold scans of packed files
//! - [`peers`]: programs to compare with
//! - [`points_beside_upkeep`]: look-ups beside background work
//! - [`queries`]: rounds of queries
//! - [`random_weights`]: placement by weights of random accesses
//! - [`read_gaps`]: holes that are read through
//! - [`read_levels`]: reads by the levels of their operators
//! - [`replayed_streams`]: recorded streams on virtual time
//! - [`restart`]: restart of a server
//! - [`result_streams`]: large results over one connection and over four
//! - [`round_trips`]: smallest statements over one connection
//! - [`scan_admission`]: a scan of a cold table, with admission between epochs and without
//! - [`segments`]: all segments of a store
//! - [`simulation`]: policies on virtual time
//! - [`skewed_heat`]: heat maps of query 18 with skewed dates
//! - [`skewed_reads`]: skewed reads with little memory, against a map
//! - [`solver`]: time and gap of the solver
//! - [`solver_quality`]: placements by solving time
//! - [`spilled_rows`]: spilled rows on disk and on the fastest tier
//! - [`ssb`]: the Star Schema Benchmark in DRAM against peers
//! - [`statement_memory`]: resident memory of large statements
//! - [`tenants`]: ten tenants
//! - [`tiered`]: TPC-H with a tenth in DRAM
//! - [`tiered_streams`]: streams of TPC-H that spill, with a tenth in DRAM
//! - [`tpch`]: TPC-H in DRAM against peers
//! - [`writes`]: writes and deleted rows
//! - [`ycsb`]: the YCSB workloads
//! - [`ycsb_blocks`]: YCSB by chunk sizes
//! - [`ycsb_over_time`]: YCSB over time, by merging and device

mod access;
mod admission;
mod advisor;
mod budget_changes;
mod budgets;
mod ch_benchmark;
mod client_throughput;
mod column_moves;
mod contest;
mod counters;
mod db_benchmark;
mod decisions;
mod device_budgets;
mod device_table;
mod dram_saved;
mod forms;
mod heat_maps;
mod hybrid_storage;
mod io;
mod joint_forms;
mod keys;
mod look_up_latency;
mod memory;
mod memory_limit;
mod mixed_clients;
mod moves;
mod one_scan;
mod packed_bytes;
mod packed_homes;
mod peers;
mod points_beside_upkeep;
mod queries;
mod random_weights;
mod read_gaps;
mod read_levels;
mod replayed_streams;
mod restart;
mod result_streams;
mod round_trips;
mod scan_admission;
mod segments;
mod simulation;
mod skewed_heat;
mod skewed_reads;
mod solver;
mod solver_quality;
mod spilled_rows;
mod ssb;
mod statement_memory;
mod tenants;
mod tiered;
mod tiered_streams;
mod tpch;
mod writes;
mod ycsb;
mod ycsb_blocks;
mod ycsb_over_time;

use crate::bench::Bench;
use crate::error::{Error, Result};

/// An experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// The figure; "-" for a comparison that no figure asks for.
    pub figure: &'static str,
    /// The comparison, in one sentence.
    pub about: &'static str,
    /// Measures and adds rows.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// An experiment whose comparison is still to be named.
const fn experiment(name: &'static str, figure: &'static str, run: fn(&mut Bench) -> Result<()>) -> Experiment {
    Experiment { name, figure, about: "", run }
}

impl Experiment {
    /// Names the comparison.
    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }
}

/// All experiments, in order of their figures.
pub const ALL: &[Experiment] = &[
    experiment("tpch-memtable", "P1", tpch::memtable)
        .about("TPC-H, all segments in DRAM, against DataFusion's memory tables; storage alone, with equal plans"),
    experiment("tpch-duckdb", "P2", tpch::duckdb)
        .about("TPC-H, all segments in DRAM, against the faster of DuckDB in memory and on its own file"),
    experiment("tpch-served", "P2w", tpch::duckdb_served)
        .about("the same through ADBC and a server, against the faster DuckDB in its process"),
    experiment("tpch-parquet", "-", tpch::parquet)
        .about("TPC-H, all segments in DRAM, against DataFusion on Parquet files"),
    experiment("client-throughput", "-", client_throughput::run)
        .about("iterations/s of TPC-H on servers with all data in DRAM: 50 clients against one, all threads against one"),
    experiment("ssb", "-", ssb::run)
        .about("the Star Schema Benchmark, all segments in DRAM, against DataFusion's memory tables and DuckDB in memory"),
    experiment("db-benchmark", "-", db_benchmark::run)
        .about("the ten group-by queries and five joins of db-benchmark, in DRAM and with a tenth there, against DuckDB on its own file"),
    experiment("tpch-tiered", "P3", tiered::ssd)
        .about("TPC-H, 10 % of the bytes in DRAM and the rest on SSD, against the all-in-DRAM time or the device"),
    experiment("server-memory", "P3", memory::run)
        .about("resident memory of a server with the small budget, against budget + query memory + 300 MB"),
    experiment("tpch-nvm", "P4", tiered::nvm)
        .about("TPC-H, 10 % of the bytes in DRAM and the rest on emulated, slowed NVM, against all in DRAM"),
    experiment("packed-bytes", "E1", packed_bytes::run)
        .about("bytes of TPC-H and TPC-DS in the packed form, against Vortex's default compression"),
    experiment("packed-memory", "E2", forms::memory)
        .about("TPC-H, all segments in DRAM, packed against plain"),
    experiment("packed-tenth", "E3", forms::tenth)
        .about("TPC-H, DRAM for 10 % of the plain bytes, packed against plain"),
    experiment("chosen-tenth", "E3", forms::chosen_tenth)
        .about("the same, the form of each copy chosen with its tier, against all packed"),
    experiment("joint-forms", "E4", joint_forms::run)
        .about("expected reading time of TPC-H at seven budgets, tiers and forms chosen together against other ways"),
    experiment("device-budgets", "G6", device_budgets::run).about(
        "expected reading time of TPC-H with images on an emulated device at seven budgets, the solver against all other policies",
    ),
    experiment("packed-homes", "E5", packed_homes::run)
        .about("cold scans of the columns of TPC-H Q1 and Q6 from packed files, against Arrow files of the same rows"),
    experiment("budgets", "P5", budgets::ssd)
        .about("TPC-H at seven budgets of DRAM, the solver's placement against those of all other policies"),
    experiment("budgets-nvm", "-", budgets::nvm)
        .about("the same with the rest on emulated, slowed NVM, as in the thesis"),
    experiment("random-weights", "-", random_weights::run)
        .about("TPC-H at three budgets of DRAM, the rest on emulated NVM: placement by the cost model, against weights of random accesses"),
    experiment("tenants", "-", tenants::run).about(
        "TPC-H of ten tenants with binomial shares, at six budgets of DRAM, the solver against all other policies",
    ),
    experiment("budget-changes", "-", budget_changes::run)
        .about("TPC-H of four clients while the budget of DRAM changes, over time: statements beside the moves, against after them"),
    experiment("dram-saved", "-", dram_saved::tpch)
        .about("TPC-H at smaller and smaller budgets of DRAM: how much is saved at equal latency"),
    experiment("dram-saved-ds", "-", dram_saved::tpcds)
        .about("TPC-DS at smaller and smaller budgets of DRAM: how much is saved at equal latency"),
    experiment("heat-maps", "-", heat_maps::run)
        .about("accesses of TPC-H by table, column and chunk, as pictures; what nobody reads"),
    experiment("heat-maps-skewed", "-", skewed_heat::run)
        .about("values that query 18 reads by chunk, with days that have half of the orders of a year, as in JCC-H, and without"),
    experiment("decisions", "-", decisions::run)
        .about("columns and segments of TPC-H by size and accesses, and the tiers that they get: 10 % DRAM, 30 % emulated NVM, SSD"),
    experiment("memory-limit", "P6", memory_limit::run)
        .about("TPC-H in 2 GiB, one client over Flight SQL, against DuckDB on its file and DataFusion on Parquet"),
    experiment("statement-memory", "-", statement_memory::run)
        .about("growth of a server's resident memory by a statement, against the peak of the statement's memory pool"),
    experiment("admission", "-", admission::run)
        .about("TPC-H that exceeds query memory, in pairs and 8 streams: weighted demand against other admission"),
    experiment("mixed-clients", "S7", mixed_clients::run)
        .about("p99 of short statements beside heavy sorts, 32 clients in 2 GiB: admission by demand against 16 slots"),
    experiment("tiered-streams", "S4", tiered_streams::run)
        .about("4 streams of TPC-H that spill, 10 % in DRAM: reads by meaning and the solver against FIFO and LRU"),
    experiment("slow-streams", "-", tiered_streams::run_on_slow_disk)
        .about("the same on a disk that is throttled to 100 MiB/s in each direction"),
    experiment("upkeep-latency", "S3", points_beside_upkeep::run)
        .about("look-ups of a row, 20 a second, beside OPTIMIZE, backups and moves, against the same without"),
    experiment("spilled-rows", "S5", spilled_rows::run)
        .about("TPC-H Q18 that spills: its temporary rows on disk against all of them on the fastest tier"),
    experiment("one-scan", "S6", one_scan::run)
        .about("hot statements after one scan of a cold table of 4 times the DRAM, against before; LRU beside them"),
    experiment("scan-admission", "S6", scan_admission::run)
        .about("one scan of that table where it may bring columns into memory between epochs, against only at epochs; DRAM full, and with room"),
    experiment("read-levels", "-", read_levels::run)
        .about("4 streams that read the same columns at several levels of their plans: reads by level against whatever the level"),
    experiment("hybrid-storage", "-", hybrid_storage::run)
        .about("seven queries of TPC-H and a stream with refreshes on a slow disk, 70 % in DRAM: by meaning, LRU, all slow, all fast"),
    experiment("cold-scan", "P7", io::cold_scan)
        .about("a cold scan of lineitem, against raw sequential reads of its files"),
    experiment("point-reads", "P8", io::point_reads)
        .about("random reads of 4 and 16 KiB by the store's I/O engine, against raw ones at the same depth"),
    experiment("point-latency", "S1", io::points_beside_scans)
        .about("reads of a page, each of another statement, beside four streams of large reads, by the bytes of these that run at once: 256 KiB to 8 MiB"),
    experiment("look-up-latency", "S1", look_up_latency::run)
        .about("look-ups of a row at a client, 20 a second, beside four cold scans, by the bytes of these that run at once; S2"),
    experiment("access-methods", "-", access::run)
        .about("reads by direct reads, io_uring, maps, page cache; less memory; slowed disk; against a raw io_uring"),
    experiment("device-table", "-", device_table::run)
        .about("reads of tuples and durable writes of pages one at a time, in order and at random: DRAM, emulated NVM, the disk as it is and throttled"),
    experiment("skewed-reads", "-", skewed_reads::run)
        .about("skewed reads of a vector with memory for a part of it, hot part in DRAM, against all in memory; a map of a file beside it"),
    experiment("counters", "P9", counters::run)
        .about("access counters on, against compiled out: instructions of scans, time of TPC-H"),
    experiment("solver", "P10", solver::run)
        .about("time and proven gap of placement problems of 100 k and 1 M segments on 4 tiers"),
    experiment("solver-quality", "-", solver_quality::run)
        .about("gap of placements by the time spent on them: ours, greedy and exact, on TPC-H, 100 k and 1 M segments"),
    experiment("moves", "P11", moves::run)
        .about("moves between all tiers, against memcpy and raw reads; queries beside moves, against without"),
    experiment("column-moves", "-", column_moves::run)
        .about("moves of single segments between memory tiers by one thread, by size and type of the column, against memcpy"),
    experiment("simulation", "-", simulation::run)
        .about("placement on virtual time: reading time of every policy and workload, against a clairvoyant's"),
    experiment("replayed-streams", "-", replayed_streams::run)
        .about("the reads of four streams of TPC-H, recorded on a server, on virtual time under every policy"),
    experiment("result-streams", "P14", result_streams::run)
        .about("DoGet of all of lineitem on loopback, one and four streams, against a bare arrow-flight server of one batch"),
    experiment("ingest", "P15", writes::ingest)
        .about("durable bulk ingest by DoPut into a server, against a raw write + fsync of the same bytes"),
    experiment("insert-rates", "-", writes::insert_rates)
        .about("rows/s of durable inserts of 1, 100, 10 k rows by 1, 4, 16 writers, against an fsync per row"),
    experiment("deleted-rows", "-", writes::deleted_rows)
        .about("a scan with 0, 1, 10, 50 % of the rows deleted, and optimized, against none deleted"),
    experiment("compaction", "-", writes::compaction)
        .about("compaction against a raw write + fsync of the same bytes; write amplification of small inserts"),
    experiment("keys", "-", keys::run)
        .about("rows/s of bulk loads and inserts into a table that enforces its key, against one that does not"),
    experiment("ycsb", "-", ycsb::run)
        .about("YCSB A-F, operations/s over ADBC to a server, against DuckDB in process and in memory"),
    experiment("ch-benchmark", "P12", ch_benchmark::run)
        .about("CH-benCHmark's ORDER_LINE, tiered with hot views, against all in memory, with views and without"),
    experiment("ycsb-merge", "P13", ycsb::merge)
        .about("YCSB 90/10 on eight times the DRAM tier: cold reads merged selectively, against never and always"),
    experiment("ycsb-blocks", "-", ycsb_blocks::run)
        .about("the same by what a cold read fetches, by engine of reads, and tuned against untuned, on two disks"),
    experiment("ycsb-over-time", "-", ycsb_over_time::run)
        .about("the same workload over time, cold reads merged selectively against always, on three disks; on emulated NVM in place"),
    experiment("read-gaps", "-", read_gaps::run)
        .about("scattered rows of cold columns, by the longest hole that is read through, on three disks"),
    experiment("advisor", "-", advisor::run)
        .about("TPC-H at five drawn DRAM budgets, against the times predicted while all lay in DRAM"),
    experiment("round-trips", "P16", round_trips::run)
        .about("SELECT 1 and a point query over one ADBC connection, against a bare server with canned answers"),
    experiment("restart", "P17", restart::run)
        .about("server start until the first query answers and the hot set is back, ten times the data against once"),
];

/// The experiments that `names` select: by experiment, by figure, or by `all`; each once.
pub fn choose(names: &[String]) -> Result<Vec<&'static Experiment>> {
    let mut chosen: Vec<&Experiment> = Vec::new();
    for name in names {
        let meant = |e: &&Experiment| {
            name == "all" || e.name.eq_ignore_ascii_case(name) || e.figure != "-" && e.figure.eq_ignore_ascii_case(name)
        };
        let found: Vec<&Experiment> = ALL.iter().filter(meant).collect();
        if found.is_empty() {
            return Err(unknown(name));
        }
        chosen.extend(found);
    }
    let mut once: Vec<&Experiment> = Vec::new();
    for experiment in chosen {
        if !once.iter().any(|e| e.name == experiment.name) {
            once.push(experiment);
        }
    }
    Ok(once)
}

fn unknown(name: &str) -> Error {
    let known = ALL.iter().flat_map(|e| [e.name, e.figure]).chain(["all"]).filter(|k| *k != "-");
    let lower = name.to_lowercase();
    let near = known.max_by(|a, b| {
        let near = |known: &str| strsim::jaro_winkler(&known.to_lowercase(), &lower);
        near(a).total_cmp(&near(b))
    });
    let near = near.unwrap_or("all");
    Error::failed(format!(
        "there is no experiment or figure '{name}'; did you mean '{near}'? `terrace-bench list` shows all"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn names_and_figures_are_found_and_typos_are_answered() {
        let names = |asked: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|a| (*a).to_owned()).collect();
            choose(&asked).map(|c| c.iter().map(|e| e.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["p1", "tpch-memtable", "P3"]).unwrap(), ["tpch-memtable", "tpch-tiered", "server-memory"]);
        assert_eq!(names(&["all"]).unwrap().len(), ALL.len());
        let error = names(&["tpch-memtabel"]).unwrap_err().to_string();
        assert!(error.contains("'tpch-memtable'"), "{error}");
    }
}
