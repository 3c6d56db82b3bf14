//! Metrics of a scan, shown by `EXPLAIN ANALYZE`.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::instant::Instant;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricValue, MetricsSet, Time,
};
use terrace_tier_store::io::Class;
use terrace_tier_store::tier::TierId;

use super::source::ScanSource;
use super::tally::ScanTally;

/// The classes that scans ask for reads in.
pub(super) const SCAN_CLASSES: [Class; 3] = [Class::Point, Class::Needed, Class::Prefetch];

/// Counts of one execution, shared by its partitions.
#[derive(Debug, Clone)]
pub(super) struct ScanMetrics {
    /// Chunks of the table version.
    pub chunks_total: Count,
    /// Chunks that static filters or a limit made unnecessary.
    pub chunks_pruned: Count,
    /// Chunks that run-time filters made unnecessary.
    pub chunks_pruned_dynamic: Count,
    /// Chunks among both kinds that only a membership filter excluded.
    pub chunks_pruned_membership: Count,
    /// Chunks among the statically pruned ones that only hot views excluded.
    pub chunks_pruned_views: Count,
    /// Chunks with columns that were read from the home tier.
    pub chunks_cold: Count,
    /// Bytes that were not read from the home tier because no row that needs them passed the filters.
    pub bytes_skipped: Count,
    /// Reads of chunks on the home tier.
    reads: [(Class, Count); SCAN_CLASSES.len()],
    tiers: Vec<(Count, Count)>,
}

impl ScanMetrics {
    pub(super) fn new(set: &ExecutionPlanMetricsSet, source: &ScanSource) -> Self {
        let count = |name: String| MetricBuilder::new(set).global_counter(name);
        let tiers = source.tiers().iter();
        Self {
            chunks_total: count("chunks_total".into()),
            chunks_pruned: count("chunks_pruned".into()),
            chunks_pruned_dynamic: count("chunks_pruned_dynamic".into()),
            chunks_pruned_membership: count("chunks_pruned_membership".into()),
            chunks_pruned_views: count("chunks_pruned_views".into()),
            chunks_cold: count("chunks_cold".into()),
            bytes_skipped: count("bytes_skipped".into()),
            reads: SCAN_CLASSES.map(|class| (class, count(format!("reads_{}", class.name())))),
            tiers: tiers.map(|t| (count(format!("segments_{t}")), count(format!("bytes_{t}")))).collect(),
        }
    }

    /// Counts the read of a chunk on the home tier.
    pub(super) fn read(&self, class: Class) {
        self.reads.iter().filter(|(of, _)| *of == class).for_each(|(_, count)| count.add(1));
    }

    /// Counts a segment of `bytes` that was read on `tier`.
    pub(super) fn segment(&self, tier: TierId, bytes: u64) {
        if let Some((segments, total)) = self.tiers.get(usize::from(tier.0)) {
            segments.add(1);
            total.add(bytes as usize);
        }
    }
}

/// What `EXPLAIN ANALYZE` may show of the metrics of an operator that reads `source`: all of them, or when and for how long it worked.
pub(super) fn shown_metrics(source: &ScanSource, metrics: &ExecutionPlanMetricsSet) -> MetricsSet {
    let all = metrics.clone_inner();
    if source.shows_figures() {
        return all;
    }
    let mut times = MetricsSet::new();
    for metric in all.iter() {
        if matches!(
            metric.value(),
            MetricValue::StartTimestamp(_) | MetricValue::EndTimestamp(_) | MetricValue::ElapsedCompute(_)
        ) {
            times.push(Arc::clone(metric));
        }
    }
    times
}

/// The time, for measuring spans.
#[allow(clippy::disallowed_methods)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Measures how long a partition waited for reads.
#[derive(Debug)]
pub(super) struct WaitTimer {
    set: ExecutionPlanMetricsSet,
    partition: usize,
    time: Time,
    /// By the class of the read that ended the wait; of each class once there is one.
    class_times: Vec<(Class, Time)>,
    tally: Arc<ScanTally>,
    since: Option<Instant>,
    /// Waits since a read has ended one.
    open: Duration,
}

impl WaitTimer {
    pub(super) fn new(set: &ExecutionPlanMetricsSet, partition: usize, tally: Arc<ScanTally>) -> Self {
        let time = MetricBuilder::new(set).subset_time("io_wait", partition);
        let open = Duration::ZERO;
        Self { set: set.clone(), partition, time, class_times: Vec::new(), tally, since: None, open }
    }

    pub(super) fn start(&mut self) {
        self.since.get_or_insert_with(now);
    }

    pub(super) fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            let waited = since.elapsed();
            self.time.add_duration(waited);
            self.tally.waited(waited);
            self.open += waited;
        }
    }

    /// Counts the waits up to now as those for a read of `class`, which has ended them; those that no read has ended have no
    /// class.
    pub(super) fn ended_by(&mut self, class: Option<Class>) {
        let waited = std::mem::take(&mut self.open);
        let Some(class) = class.filter(|_| !waited.is_zero()) else { return };
        self.tally.waited_for(class, waited);
        match self.class_times.iter().find(|(of, _)| *of == class) {
            Some((_, time)) => time.add_duration(waited),
            None => {
                let name = format!("io_wait_{}", class.name());
                let time = MetricBuilder::new(&self.set).subset_time(name, self.partition);
                time.add_duration(waited);
                self.class_times.push((class, time));
            }
        }
    }
}
