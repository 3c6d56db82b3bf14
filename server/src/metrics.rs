//! The server's counters as Prometheus metric families.
//!
//! Nothing is counted here: each component keeps its own atomics, and a scrape reads them. The number of series is
//! bounded by closed sets (tiers, patterns, commands, kinds), and by [`TOP_COLUMNS`] where names of users' tables
//! appear; the other columns are summed up under `_other`. Names are `terrace_<component>_<what>_<unit>[_total]` in
//! base units. The crate `prometheus` encodes them; `prometheus-client` writes OpenMetrics, whose families of counters lack
//! `_total`, so that names of the reference would change.
//!
//! - `audit`: the audit trail
//! - `disk`: the disk of the data directory
//! - `durations`: histograms of durations
//! - `moves`: moves between tiers
//! - `query_log`: the query log
//! - `traces`: traces

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use terrace_access::Issuer;
use terrace_flight::{FlightMetrics, OperationSnapshot};
use terrace_planner_ext::engine::{
    Engine, MiningCounters, Outcome, RunCounters, StatementKind, StatementState, WorkloadGroupRecord,
};
use terrace_tier_store::Store;
use terrace_tier_store::heat::Pattern;
use terrace_tier_store::heat::access::AccessTotal;
use terrace_tier_store::io::{Class, ClassSums};
use terrace_tier_store::placement::metrics::MergeMetrics;
use terrace_tier_store::placement::{TierState, TieringMode};
use terrace_tier_store::table::Table;
use terrace_tier_store::tier::TierId;

use crate::memory_watch::WatchFigures;
use crate::network::{ListenerFigures, NetworkFigures};

mod audit;
mod disk;
mod durations;
mod moves;
mod query_log;
mod traces;

pub use audit::audit;
pub use disk::disk;
pub use durations::durations;
pub use query_log::query_log;
pub use traces::traces;

/// Columns whose heat is a series of its own.
pub const TOP_COLUMNS: usize = 20;

/// Metric families under construction.
#[derive(Default)]
pub struct Exposition(Vec<MetricFamily>);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    fn family(&mut self, name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    /// One series without labels that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, [(vec![], value)]);
    }

    /// One series without labels that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.counters(name, help, [(vec![], value)]);
    }

    /// Series that go up and down.
    pub fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let metric = |(labels, value): (Vec<_>, f64)| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            let mut metric = labelled(&labels);
            metric.set_gauge(gauge);
            metric
        };
        self.family(name, help, MetricType::GAUGE, samples.into_iter().map(metric).collect());
    }

    /// Series that only grow.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let metric = |(labels, value): (Vec<_>, f64)| {
            let mut counter = Counter::default();
            counter.set_value(value);
            let mut metric = labelled(&labels);
            metric.set_counter(counter);
            metric
        };
        self.family(name, help, MetricType::COUNTER, samples.into_iter().map(metric).collect());
    }

    /// Histograms, each from one count per bound and one for the rest, and the sum of its values.
    fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, Vec<u64>, f64)>,
    ) {
        let metric = |(labels, counts, sum): (Vec<_>, Vec<u64>, f64)| {
            let mut total = 0;
            let buckets = bounds.iter().zip(&counts).map(|(bound, count)| {
                total += count;
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(*bound);
                bucket.set_cumulative_count(total);
                bucket
            });
            let buckets = buckets.collect();
            let mut histogram = Histogram::default();
            histogram.set_bucket(buckets);
            histogram.set_sample_count(counts.iter().sum());
            histogram.set_sample_sum(sum);
            let mut metric = labelled(&labels);
            metric.set_histogram(histogram);
            metric
        };
        self.family(name, help, MetricType::HISTOGRAM, samples.into_iter().map(metric).collect());
    }

    /// The Prometheus text format. Families without a series are left out.
    ///
    /// # Errors
    /// The encoder's message; it fails only on invalid names.
    pub fn encode(mut self) -> Result<String, String> {
        self.0.retain(|family| !family.get_metric().is_empty());
        prometheus::TextEncoder::new().encode_to_string(&self.0).map_err(|e| e.to_string())
    }
}

fn labelled(labels: Labels<'_>) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

fn seconds(us: f64) -> f64 {
    us / 1e6
}

/// Statements: how many, and how they ended.
pub fn statements(out: &mut Exposition, engine: &Engine) {
    let counters = engine.counters();
    let ended = StatementKind::ALL.into_iter().flat_map(|kind| {
        Outcome::ALL.into_iter().map(move |outcome| {
            (vec![("kind", kind.name()), ("outcome", outcome.name())], counters.ended(kind, outcome) as f64)
        })
    });
    out.counters("terrace_query_statements_total", "Statements that ended, by kind and outcome.", ended);
    let running = engine.statements();
    let in_states =
        |is_counted: fn(StatementState) -> bool| running.iter().filter(|s| is_counted(s.state)).count() as f64;
    let active = in_states(StatementState::is_active);
    out.gauge("terrace_query_running_statements", "Statements that have not ended.", active);
    let stalled = in_states(|state| state == StatementState::Stalled);
    out.gauge("terrace_query_stalled_statements", "Statements whose clients take no rows.", stalled);
    out.gauge("terrace_query_queued_statements", "Statements that wait for an execution slot.", engine.queued() as f64);
    let rejected = counters.rejected() as f64;
    out.counter("terrace_query_rejected_statements_total", "Statements refused because of load or shutdown.", rejected);
    let plans = engine.plan_cache();
    let planned = [("cached", plans.hits()), ("new", plans.misses())];
    let planned = planned.map(|(plan, count)| (vec![("plan", plan)], count as f64));
    out.counters(
        "terrace_query_planned_total",
        "Queries by their plan: that of an earlier query, or a new one.",
        planned,
    );
    out.counter("terrace_query_rows_total", "Rows returned or stored.", counters.rows() as f64);
    let help = "Bytes in memory of the rows returned or stored.";
    out.counter("terrace_query_bytes_total", help, counters.bytes() as f64);
    let memory = engine.memory();
    out.gauge("terrace_query_memory_used_bytes", "Memory of running statements.", memory.used_bytes() as f64);
    out.gauge("terrace_query_memory_limit_bytes", "Its limit.", memory.limit_bytes() as f64);
    let help = "Query memory that running statements are expected to need, weighted by time.";
    out.gauge("terrace_query_demand_bytes", help, engine.demand_bytes() as f64);
    workload_groups(out, &engine.workload_groups());
    out.gauge("terrace_query_spilled_bytes", "Bytes in spill files now.", engine.spilled_bytes() as f64);
    let help = "Bytes of spill files that lie on memory tiers.";
    out.gauge("terrace_query_spilled_tier_bytes", help, engine.spilled_tier_bytes() as f64);
    let views = engine.view_tally();
    let help = "Scans of tables with published hot views, counted once for each view.";
    let scans = [("hit", views.hits()), ("miss", views.misses())];
    let scans = scans.map(|(outcome, count)| (vec![("outcome", outcome)], count as f64));
    out.counters("terrace_hot_view_scans_total", help, scans);
    let help = "Chunks that scans did not read because of hot views.";
    out.counter("terrace_hot_view_pruned_chunks_total", help, views.pruned_chunks() as f64);
    let help = "Bytes at home of the columns that scans would have read of these chunks.";
    out.counter("terrace_hot_view_saved_bytes_total", help, views.saved_bytes() as f64);
    hot_view_runs(out, engine.view_runs());
    mining(out, engine.mining_counters());
}

fn workload_groups(out: &mut Exposition, groups: &[WorkloadGroupRecord]) {
    let of_each = |value: fn(&WorkloadGroupRecord) -> f64| {
        groups.iter().map(move |group| (vec![("group", group.group.name.as_str())], value(group)))
    };
    let help = "Statements of the workload group that have an execution slot.";
    out.gauges("terrace_workload_group_running_statements", help, of_each(|g| g.running as f64));
    let help = "Statements of the workload group that wait for an execution slot.";
    out.gauges("terrace_workload_group_queued_statements", help, of_each(|g| g.queued as f64));
    let help = "Query memory that the statements of the workload group reserve.";
    out.gauges("terrace_workload_group_reserved_bytes", help, of_each(|g| g.reserved_bytes as f64));
    let help = "Statements of the workload group that got an execution slot.";
    out.counters("terrace_workload_group_admitted_statements_total", help, of_each(|g| g.admitted as f64));
    let help = "Statements of the workload group that got no execution slot because of load.";
    out.counters("terrace_workload_group_refused_statements_total", help, of_each(|g| g.refused as f64));
    let help = "Time for which statements of the workload group waited for an execution slot.";
    out.counters("terrace_workload_group_wait_seconds_total", help, of_each(|g| seconds(g.waited_us as f64)));
}

fn hot_view_runs(out: &mut Exposition, runs: &RunCounters) {
    let ended = [("done", runs.runs()), ("failed", runs.failed())];
    let ended = ended.map(|(outcome, count)| (vec![("outcome", outcome)], count as f64));
    out.counters("terrace_hot_view_runs_total", "Runs of hot views that ended, by outcome.", ended);
    let help = "Chunks that the running hot view run has not processed yet; 0 when none runs.";
    out.gauge("terrace_hot_view_run_chunks_left", help, runs.chunks_left() as f64);
    let help = "Chunks whose columns of the condition were read.";
    out.counter("terrace_hot_view_run_chunks_read_total", help, runs.chunks_read() as f64);
    let help = "Chunks that runs recorded, without rewriting, as having all or none of their rows in a view.";
    out.counter("terrace_hot_view_run_chunks_noted_total", help, runs.chunks_noted() as f64);
    let help = "Chunks replaced by others in which rows of views lie together.";
    out.counter("terrace_hot_view_run_chunks_in_total", help, runs.chunks_in() as f64);
    out.counter(
        "terrace_hot_view_run_chunks_out_total",
        "Chunks that runs of hot views wrote.",
        runs.chunks_out() as f64,
    );
    let help = "Bytes of columns of conditions that came from the home tier.";
    out.counter("terrace_hot_view_run_read_bytes_total", help, runs.read_bytes() as f64);
    let help = "Bytes of chunks that runs wrote.";
    out.counter("terrace_hot_view_run_written_bytes_total", help, runs.written_bytes() as f64);
}

fn mining(out: &mut Exposition, mining: &MiningCounters) {
    let labelled = |label: &'static str, (value, count): (&'static str, u64)| (vec![(label, value)], count as f64);
    let help = "Scans from which hot views are learned: recorded, or dropped because the buffer was full.";
    out.counters("terrace_hot_view_mining_scans_total", help, mining.scans().map(|scans| labelled("outcome", scans)));
    let help = "Hot views that the server created and dropped.";
    out.counters("terrace_hot_view_mined_total", help, mining.views().map(|views| labelled("event", views)));
    let help = "Recent proposals of hot views, by state.";
    out.gauges("terrace_hot_view_proposals", help, mining.proposals().map(|state| labelled("state", state)));
}

/// Tiers: budgets, use, accesses by pattern.
pub fn tiers(out: &mut Exposition, store: &Store) {
    let infos = store.all_tier_infos();
    let kinds: Vec<String> = infos.iter().map(|t| t.kind.to_string()).collect();
    let labels = |i: usize| {
        let name = infos.get(i).map_or("", |t| &t.name);
        let kind = kinds.get(i).map_or("", |k| k);
        vec![("tier", name), ("kind", kind)]
    };
    let mut family = |name: &str, help: &str, value: fn(&terrace_tier_store::store::TierInfo) -> u64| {
        out.gauges(name, help, infos.iter().enumerate().map(|(i, t)| (labels(i), value(t) as f64)));
    };
    family("terrace_tier_used_bytes", "Bytes charged to the tier, copies held by readers included.", |t| t.used_bytes);
    family("terrace_tier_placed_bytes", "Bytes of segments whose fastest copy lies here.", |t| t.placed_bytes);
    family("terrace_tier_stored_bytes", "Bytes of all copies that lie here.", |t| t.stored_bytes);
    family("terrace_tier_placed_segments", "Segments whose fastest copy lies here.", |t| t.segments);
    let limited = infos.iter().enumerate().filter(|(_, t)| t.budget_bytes < u64::MAX);
    let budgets = limited.map(|(i, t)| (labels(i), t.budget_bytes as f64));
    out.gauges("terrace_tier_budget_bytes", "The byte limit; no series for a tier without one.", budgets);

    let states = infos.iter().enumerate().flat_map(|(i, tier)| {
        TierState::ALL.map(|state| {
            let labels = [labels(i), vec![("state", state.name())]].concat();
            (labels, f64::from(u8::from(state == tier.state)))
        })
    });
    let help = "1 for the state of the tier: active, draining (takes no segments but still holds some), drained.";
    out.gauges("terrace_tier_state", help, states.collect::<Vec<_>>());

    if let Some(calibration) = store.tiering().calibration() {
        // A device is measured by itself.
        let is_device = |name: &str| store.device_tier().is_some_and(|device| device.name() == name);
        let measured =
            |name: &str| is_device(name) || calibration.tiers.iter().any(|known| known.name == name && known.measured);
        let series = infos.iter().enumerate().map(|(i, t)| (labels(i), f64::from(u8::from(measured(&t.name)))));
        let help = "0 for a tier that could not be measured and has costs typical of its kind.";
        out.gauges("terrace_tier_measured", help, series);
        let help = "Measured time of scans' reads on the device of the home tier, divided by the calibrated time.";
        out.gauge("terrace_home_device_ratio", help, calibration.correction.device_times);
        let help = "Share of the home tier's read time for which statements wait; above 1 when several threads wait.";
        out.gauge("terrace_home_waited_ratio", help, calibration.correction.waited_share);
    }
    let failing = infos.iter().enumerate().map(|(i, t)| (labels(i), f64::from(u8::from(t.failing.is_some()))));
    let help = "1 while moves to and from the tier pause because its device fails; what lies there is read as before.";
    out.gauges("terrace_tier_failing", help, failing.collect::<Vec<_>>());

    let failing = f64::from(u8::from(store.catalog_failing().is_some()));
    let help = "1 while nothing can be stored, because the disk of the data directory refused a write; reads go on.";
    out.gauge("terrace_catalog_failing", help, failing);

    let totals = store.access_totals();
    let series = |value: fn(AccessTotal) -> u64| {
        let cells = infos.iter().enumerate().flat_map(|(i, t)| Pattern::ALL.map(|pattern| (i, t.id, pattern)));
        let sample = |(i, tier, pattern): (usize, TierId, Pattern)| {
            ([labels(i), vec![("pattern", pattern.name())]].concat(), value(totals.get(tier, pattern)) as f64)
        };
        cells.map(sample).collect::<Vec<_>>()
    };
    let help = "Segments touched by scans, once per scan each.";
    out.counters("terrace_access_segments_total", help, series(|t| t.accesses));
    let help = "Bytes of the segments touched.";
    out.counters("terrace_access_bytes_total", help, series(|t| t.bytes));
}

/// The tiering loop: epochs and moves.
pub fn tiering(out: &mut Exposition, store: &Store) {
    let tiering = store.tiering();
    let metrics = tiering.metrics();
    out.gauge(
        "terrace_epoch_loop_enabled",
        "1 while the tiering loop runs epochs by itself.",
        f64::from(u8::from(tiering.is_enabled())),
    );
    let control = tiering.control();
    let modes = TieringMode::ALL.map(|mode| (vec![("mode", mode.name())], f64::from(u8::from(mode == control.mode))));
    out.gauges("terrace_epoch_loop_mode", "1 for the mode of the tiering loop: auto, advise, off.", modes);
    let frozen = f64::from(u8::from(control.frozen_unix_us.is_some()));
    out.gauge("terrace_epoch_frozen", "1 while placement is frozen.", frozen);
    out.counter("terrace_epoch_runs_total", "Epochs carried out.", load(&metrics.epochs));
    out.counter("terrace_epoch_dry_runs_total", "Epochs only planned.", load(&metrics.dry_runs));
    out.counter("terrace_epoch_failures_total", "Epochs that ended with an error.", load(&metrics.failures));
    let help = "Segments that placement rules want in memory and that do not fit into the budgets.";
    out.gauge("terrace_epoch_rules_unmet_segments", help, load(&metrics.given_way_segments));
    let help = "Bytes that placement rules want in memory and that do not fit into the budgets.";
    out.gauge("terrace_epoch_rules_unmet_bytes", help, load(&metrics.given_way_bytes));
    let last = |us: &AtomicU64| seconds(load(us));
    out.gauge(
        "terrace_epoch_last_timestamp_seconds",
        "Time of the last epoch's decision, since the Unix epoch.",
        last(&metrics.last_unix_us),
    );
    out.gauge(
        "terrace_epoch_last_solve_seconds",
        "Time that the last epoch took to decide.",
        last(&metrics.last_solve_us),
    );
    out.gauge(
        "terrace_epoch_last_move_seconds",
        "Time that the last epoch took to move segments.",
        last(&metrics.last_move_us),
    );
    out.gauge("terrace_epoch_last_moved_bytes", "Bytes that the last epoch moved.", load(&metrics.last_moved_bytes));
    let help = "Proven distance of the last placement from the best one, 0 to 1.";
    out.gauge("terrace_epoch_last_gap_ratio", help, metrics.last_gap.get());
    let expected = [("before", &metrics.last_before_us), ("after", &metrics.last_after_us)];
    let expected = expected.into_iter().map(|(when, us)| (vec![("placement", when)], seconds(us.get())));
    let help = "Moves that the last epoch proposed for tables in mode advise.";
    out.gauge("terrace_epoch_last_proposed_moves", help, load(&metrics.last_proposed));
    let help = "Reading time saved per epoch by the moves measured last: as predicted, and as counted.";
    let benefit = [
        (vec![("source", "predicted")], metrics.last_predicted_benefit_us.get() / 1e6),
        (vec![("source", "measured")], metrics.last_measured_benefit_us.get() / 1e6),
    ];
    out.gauges("terrace_epoch_benefit_seconds", help, benefit);
    let help =
        "Sum of the differences between measured and predicted benefit of these moves, in parts of the predicted.";
    out.gauge("terrace_epoch_prediction_error_ratio", help, metrics.last_prediction_error.get());
    let help = "Reading time per epoch that the last epoch expected, before and after its moves.";
    out.gauges("terrace_epoch_expected_read_seconds", help, expected);

    moves::moves(out, store);
    out.counter("terrace_migrate_skipped_moves_total", "Moves decided but given up.", load(&metrics.moves_skipped));
    out.counter(
        "terrace_relief_runs_total",
        "Times that room was made without waiting for an epoch.",
        load(&metrics.reliefs),
    );
    out.counter(
        "terrace_relief_segments_total",
        "Segments dropped to make room without waiting for an epoch.",
        load(&metrics.relieved_segments),
    );
    out.counter("terrace_relief_bytes_total", "Their bytes.", load(&metrics.relieved_bytes));
    merging(out, &metrics.merge);
}

/// Segments that come into memory between epochs.
fn merging(out: &mut Exposition, merge: &MergeMetrics) {
    let help = "Columns read from home that might have come into memory: those that did, that were not worth it or found \
                no room, and that nobody had the time to look at.";
    let fates = [("promoted", &merge.promoted), ("declined", &merge.declined), ("forgotten", &merge.forgotten)];
    let fates = fates.into_iter().map(|(fate, count)| (vec![("fate", fate)], load(count)));
    out.counters("terrace_merge_columns_total", help, fates);
    out.counter("terrace_merge_promoted_bytes_total", "Bytes of the promoted segments.", load(&merge.promoted_bytes));
    out.counter(
        "terrace_merge_made_room_segments_total",
        "Segments removed to make room for promoted ones.",
        load(&merge.made_room),
    );
    let help = "Bytes of the segments removed to make room for promoted ones.";
    out.counter("terrace_merge_made_room_bytes_total", help, load(&merge.made_room_bytes));
}

/// Block I/O and the delta.
pub fn storage(out: &mut Exposition, store: &Store) {
    let io = store.io();
    let stats = io.stats();
    out.gauges("terrace_io_engine_info", "The engine of block reads.", [(vec![("engine", io.name())], 1.0)]);
    out.counter("terrace_io_reads_total", "Block reads completed.", load(&stats.reads));
    out.counter("terrace_io_read_bytes_total", "Bytes that block reads read from the device.", load(&stats.read_bytes));
    out.counter("terrace_io_writes_total", "Block writes completed.", load(&stats.writes));
    let help = "Bytes that block writes wrote to the device.";
    out.counter("terrace_io_written_bytes_total", help, load(&stats.written_bytes));
    out.counter("terrace_io_errors_total", "Block reads and writes that failed.", load(&stats.errors));
    out.gauge("terrace_io_in_flight_reads", "Block reads and writes queued or running.", load(&stats.in_flight));
    let classes =
        |sums: &dyn Fn(Class) -> ClassSums| Class::ALL.map(|class| (vec![("class", class.name())], sums(class)));
    let reads = classes(&|class| stats.class_reads(class).sums());
    let writes = classes(&|class| stats.class_writes(class).sums());
    let help = "Bytes of completed block reads, by class.";
    let bytes = reads.iter().map(|(labels, sums)| (labels.clone(), sums.bytes as f64));
    out.counters("terrace_io_class_read_bytes_total", help, bytes);
    let help = "Bytes of completed block writes, by class.";
    let bytes = writes.iter().map(|(labels, sums)| (labels.clone(), sums.bytes as f64));
    out.counters("terrace_io_class_written_bytes_total", help, bytes);
    let help = "Time from the request of a block read to its bytes, by class.";
    let bounds: Vec<f64> = ClassSums::bounds_us().map(|us| us as f64 / 1e6).collect();
    let waits = reads.into_iter().map(|(labels, sums)| (labels, sums.waits, sums.wait_us as f64 / 1e6));
    out.histograms("terrace_io_wait_seconds", help, &bounds, waits);
    let help = "Time from the request of a block write to its end, by class.";
    let waits = writes.into_iter().map(|(labels, sums)| (labels, sums.waits, sums.wait_us as f64 / 1e6));
    out.histograms("terrace_io_write_wait_seconds", help, &bounds, waits);
    let kept = io.pool().kept_bytes() as f64;
    out.gauge("terrace_io_kept_bytes", "Memory of finished reads, kept for the next ones.", kept);
    let home = store.home().counters();
    out.counter("terrace_ssd_corrupt_reads_total", "Cold reads that found damaged bytes.", load(&home.corrupt));
    out.counter("terrace_ssd_healed_files_total", "Damaged files repaired.", load(&home.healed));
    let damaged: usize = store.tables().iter().map(|table| table.version().damaged_segments()).sum();
    out.gauge("terrace_ssd_damaged_segments", "Segments known to be damaged at home.", damaged as f64);
    let delta = store.delta_account();
    out.gauge("terrace_delta_used_bytes", "Rows inserted but not yet sealed.", delta.used_bytes() as f64);
    out.gauge("terrace_delta_budget_bytes", "Limit of rows inserted but not yet sealed.", delta.limit_bytes() as f64);
    let ingest = store.ingest_memory();
    let used = ingest.used_bytes() as f64;
    out.gauge(
        "terrace_ingest_used_bytes",
        "Memory of bulk ingests' rows that are written into files or wait for more rows of their chunk.",
        used,
    );
    out.gauge("terrace_ingest_budget_bytes", "Limit of the memory of bulk ingests' rows.", ingest.limit_bytes() as f64);
    let filters = store.filters();
    let used = filters.account().used_bytes() as f64;
    out.gauge("terrace_filter_used_bytes", "Membership filters of segments.", used);
    out.gauge(
        "terrace_filter_budget_bytes",
        "Limit of the membership filters.",
        filters.account().limit_bytes() as f64,
    );
    out.gauge("terrace_filter_segments", "Segments that have a membership filter.", filters.count() as f64);
    let help = "Chunks that scans did not read because of membership filters.";
    out.counter("terrace_filter_pruned_chunks_total", help, filters.pruned_chunks() as f64);
    let written = load(&store.home().counters().written_bytes);
    out.counter("terrace_ssd_written_bytes_total", "Bytes of chunk files written, by compaction too.", written);
    let compactions = store.compactions();
    out.counter("terrace_compaction_groups_total", "Groups of chunks rewritten.", load(&compactions.groups));
    out.counter("terrace_compaction_chunks_in_total", "Chunks replaced.", load(&compactions.chunks_in));
    out.counter("terrace_compaction_chunks_out_total", "Chunks that compaction wrote.", load(&compactions.chunks_out));
    let help = "Deleted rows whose bytes compaction freed.";
    out.counter("terrace_compaction_dropped_rows_total", help, load(&compactions.rows_dropped));
    out.counter(
        "terrace_compaction_written_bytes_total",
        "Bytes of the chunks that compaction wrote.",
        load(&compactions.written_bytes),
    );
    let old: Vec<_> = store.tables().iter().map(|table| table.old_versions()).collect();
    let count: u64 = old.iter().map(|o| o.count).sum();
    let oldest = old.iter().filter_map(|o| o.oldest_since_us).min();
    let age = oldest.map_or(0, |since| store.now_us().saturating_sub(since));
    let help = "Old versions of tables that somebody still reads.";
    out.gauge("terrace_table_old_versions", help, count as f64);
    let help = "Age of the oldest old version of a table that somebody still reads; its bytes are not freed.";
    out.gauge("terrace_table_oldest_version_age_seconds", help, seconds(age as f64));
    let tables = store.tables();
    let chunks: usize = tables.iter().map(|t| t.version().chunks.len()).sum();
    out.gauge("terrace_catalog_tables", "Tables.", tables.len() as f64);
    out.gauge("terrace_catalog_chunks", "Sealed chunks of all tables.", chunks as f64);
}

/// Heat of the hottest columns; the others are summed up.
pub fn heat(out: &mut Exposition, store: &Store) {
    let tables = store.tables();
    let by_id: HashMap<_, &Table> = tables.iter().map(|t| (t.id(), t.as_ref())).collect();
    let mut columns: HashMap<(String, String), f64> = HashMap::new();
    for (key, heat) in store.tiering().with_heat(|heat| heat.top(usize::MAX)) {
        let Some(table) = by_id.get(&key.table) else { continue };
        let schema = table.schema();
        let position = table.definition().columns.iter().position(|column| column.id == key.column);
        let Some(field) = position.and_then(|position| schema.fields().get(position)) else { continue };
        *columns.entry((table.name().to_string(), field.name().clone())).or_default() += f64::from(heat.total());
    }
    let mut ranked: Vec<_> = columns.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest: f64 = ranked.iter().skip(TOP_COLUMNS).map(|(_, heat)| heat).sum();
    let other = (("_other".to_owned(), "_other".to_owned()), rest);
    ranked.truncate(TOP_COLUMNS);
    let all = ranked.iter().chain([&other]);
    let samples =
        all.map(|((table, column), heat)| (vec![("table", table.as_str()), ("column", column.as_str())], *heat));
    let help =
        "Accesses per epoch, decayed, summed over the column's segments; the hottest columns, the rest under _other.";
    out.gauges("terrace_heat_column_accesses", help, samples);
}

/// Flight: calls, errors, durations per command.
pub fn flight(out: &mut Exposition, metrics: &FlightMetrics) {
    let snapshot = metrics.snapshot();
    let series = |value: fn(&OperationSnapshot) -> f64| {
        snapshot.iter().map(move |s| (vec![("command", s.operation.name())], value(s))).collect::<Vec<_>>()
    };
    out.counters("terrace_flight_calls_total", "Calls that ended.", series(|s| s.calls as f64));
    out.counters("terrace_flight_errors_total", "Calls that ended with an error.", series(|s| s.errors as f64));
    let help = "Time spent in calls; for streams until the last message.";
    out.counters("terrace_flight_duration_seconds_total", help, series(|s| seconds(s.duration_us as f64)));
    out.counters("terrace_flight_rows_total", "Rows sent, stored or changed.", series(|s| s.rows as f64));
    out.counters("terrace_flight_bytes_total", "Bytes of Arrow data sent or received.", series(|s| s.bytes as f64));
    out.gauges("terrace_flight_active_calls", "Calls under way.", series(|s| s.active as f64));
    let help = "Memory of planned queries, prepared statements and parameters that sessions keep, an estimate.";
    out.gauge("terrace_flight_kept_bytes", help, metrics.kept_bytes() as f64);
    let help = "Bytes of requests that are being received, wait to be decoded, or hold rows that wait to be stored.";
    out.gauge("terrace_flight_received_bytes", help, metrics.received_bytes() as f64);
    let help = "Statements that ended because their client did not read the rows, over HTTP too.";
    out.counter("terrace_flight_stalled_total", help, metrics.stalled() as f64);
    out.gauge("terrace_flight_sessions", "Open sessions.", metrics.sessions() as f64);
    out.gauge("terrace_flight_connections", "Open connections.", metrics.connections() as f64);
}

/// The process itself.
pub fn process(out: &mut Exposition, version: &str, started_unix_us: u64) {
    out.gauges("terrace_process_info", "The build.", [(vec![("version", version)], 1.0)]);
    let started = seconds(started_unix_us as f64);
    out.gauge("terrace_process_start_time_seconds", "Start, since the Unix epoch.", started);
    out.gauge("terrace_process_resident_bytes", "Memory the kernel holds for the process.", resident_bytes() as f64);
}

/// Memory of the process against its limit.
pub fn memory(out: &mut Exposition, watch: &WatchFigures) {
    let help = "Memory that the kernel cannot take back, as last compared with the limit.";
    out.gauge("terrace_memory_used_bytes", help, watch.resident_bytes() as f64);
    out.gauge("terrace_memory_limit_bytes", "Memory that the process may use.", watch.limit_bytes() as f64);
    let help = "Statements stopped because memory was nearly at its limit.";
    out.counter("terrace_memory_stopped_statements_total", help, watch.stopped_statements() as f64);
}

/// Listeners and certificates.
pub fn network(out: &mut Exposition, figures: &NetworkFigures) {
    let by_listener = |count: fn(&ListenerFigures) -> u64| {
        figures.listeners.iter().map(move |(name, figures)| (vec![("listener", *name)], count(figures) as f64))
    };
    let help = "Connections accepted.";
    out.counters("terrace_network_connections_total", help, by_listener(ListenerFigures::accepted));
    let help = "Connections closed at once because max_connections were open.";
    out.counters("terrace_network_refused_connections_total", help, by_listener(ListenerFigures::refused));
    let help = "Attempts to log in with a wrong user or password, at either port.";
    out.counter("terrace_network_failed_logins_total", help, figures.logins.failed() as f64);
    let help = "Attempts to log in that were refused because of many wrong ones from the same address.";
    out.counter("terrace_network_refused_logins_total", help, figures.logins.refused() as f64);
    if let Some(issuer) = &figures.issuer {
        oidc(out, issuer);
    }
    let Some(tls) = &figures.tls else { return };
    let help = "TLS handshakes that failed or took too long.";
    out.counters("terrace_tls_failed_handshakes_total", help, by_listener(ListenerFigures::failed_handshakes));
    let help = "End of the validity of the server's certificate, in seconds since 1970.";
    out.gauge("terrace_tls_certificate_expiry_timestamp_seconds", help, tls.expires_unix_s() as f64);
    out.counter("terrace_tls_reloads_total", "Times that changed TLS files were taken into use.", tls.reloads() as f64);
    let help = "Times that changed TLS files could not be used.";
    out.counter("terrace_tls_failed_reloads_total", help, tls.failed_reloads() as f64);
    let help = "1 while the newest TLS files cannot be used, so that earlier ones are.";
    out.gauge("terrace_tls_outdated", help, f64::from(u8::from(tls.is_outdated())));
}

/// Keys of the issuer whose tokens are taken.
fn oidc(out: &mut Exposition, issuer: &Issuer) {
    out.counter(
        "terrace_oidc_key_fetches_total",
        "Fetches of the issuer's keys that brought some.",
        issuer.fetches() as f64,
    );
    let help = "Fetches of the issuer's keys that failed, or brought none of use.";
    out.counter("terrace_oidc_failed_key_fetches_total", help, issuer.failed_fetches() as f64);
    let help = "1 when the last fetch of the issuer's keys failed, so that earlier ones are in use, or none.";
    out.gauge("terrace_oidc_outdated", help, f64::from(u8::from(issuer.is_outdated())));
}

/// Resident memory of this process, in bytes; 0 where `/proc` is missing.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or(0) * 1024
}

/// Accesses of every segment and pattern, the most accessed first, at most `limit` series; the rest is summed up.
pub fn segments(out: &mut Exposition, store: &Store, limit: usize) {
    let tiers: Vec<String> = store.tier_infos().into_iter().map(|t| t.name).collect();
    let home = tiers.last().map_or("", String::as_str);
    let tables = store.tables();
    let mut rows = Vec::new();
    for table in &tables {
        for entry in table.version().chunks.iter() {
            for (column, segment) in entry.chunk.segments.iter().enumerate() {
                let tier = segment.resident.load().as_ref().map(|r| usize::from(r.tier.id().0));
                let tier = tier.and_then(|t| tiers.get(t)).map_or(home, String::as_str);
                let counts = segment.counters.snapshot().accesses;
                for (pattern, accesses) in Pattern::ALL.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
                    rows.push((accesses, table, Arc::clone(&entry.chunk), column, pattern, tier));
                }
            }
        }
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (a.1.id(), a.2.id, a.3).cmp(&(b.1.id(), b.2.id, b.3))));
    let left_out: u64 = rows.iter().skip(limit).map(|row| row.0).sum();
    let left_out_series = rows.len().saturating_sub(limit);
    rows.truncate(limit);
    let names = rows.iter().map(|(accesses, table, chunk, column, pattern, tier)| {
        let column = chunk.column_name(*column).into_owned();
        (*accesses, table.name().to_string(), column, chunk.id.0.to_string(), *pattern, *tier)
    });
    let names: Vec<_> = names.collect();
    let samples = names.iter().map(|(accesses, table, column, batch, pattern, tier)| {
        let labels = vec![
            ("table", table.as_str()),
            ("column", column),
            ("batch", batch),
            ("pattern", pattern.name()),
            ("tier", tier),
        ];
        (labels, *accesses as f64)
    });
    let help = "Statements that read the segment, by pattern; tier is where it lies now.";
    out.counters("terrace_segment_accesses_total", help, samples);
    out.gauge("terrace_segment_left_out_series", "Series beyond the limit of this answer.", left_out_series as f64);
    out.gauge(
        "terrace_segment_left_out_accesses",
        "Accesses of the series beyond the limit of this answer.",
        left_out as f64,
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn families_read_as_prometheus_text() {
        let mut out = Exposition::default();
        out.counters("a_total", "Help \\ me.", [(vec![("x", "q\"uote")], 2.0)]);
        out.gauges("empty", "Nothing.", []);
        out.histograms("h_seconds", "Time.", &[0.1, 1.0], [(Vec::new(), vec![2, 1, 4], 9.5)]);
        let text = out.encode().unwrap();
        assert!(text.contains("# TYPE a_total counter\na_total{x=\"q\\\"uote\"} 2\n"), "{text}");
        assert!(text.contains("h_seconds_bucket{le=\"0.1\"} 2\nh_seconds_bucket{le=\"1\"} 3\n"), "{text}");
        assert!(text.contains("h_seconds_bucket{le=\"+Inf\"} 7\nh_seconds_sum 9.5\nh_seconds_count 7\n"), "{text}");
        assert!(!text.contains("empty"));
        assert!(resident_bytes() > 1 << 20);
    }
}
