//! A scan as plain data, and cut into shares.
//!
//! [`ScanParts`] is what another node needs to read a scan of a table version that it has: positions, columns and filters. A
//! share of a scan reads some of its items, each of which belongs to one share. All shares have the partitions of the scan, so
//! that the operators above need not know which share they are executed with; some partitions may have nothing to read.
//! What a scan tells about itself (hot views that it used, its request for mining) is told once, by
//! [`TierScanExec::note_execution`] of the whole scan, and belongs to no share.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{Result, internal_err, plan_err};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use terrace_tier_store::io::Level;

use super::emitted_texts::EmittedTexts;
use super::exec::{ScanConfig, ScanOrder, TierScanExec};
use super::expected_reads::StatementScans;
use super::hot::HotScan;
use super::source::ScanSource;

/// What a scan reads of its source, as plain data.
#[derive(Debug, Clone)]
pub struct ScanParts {
    /// Columns of the table in the order of the output.
    pub projection: Vec<usize>,
    /// Conjuncts over the table's schema that every emitted row fulfils.
    pub filters: Vec<Arc<dyn PhysicalExpr>>,
    /// Conjuncts over the table's schema that change at run time.
    pub dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Positions of the chunks to read, ascending.
    pub chunks: Vec<u32>,
    /// Items of the delta to read, ascending.
    pub delta: Vec<u32>,
    /// Rows after which each partition may stop.
    pub fetch: Option<usize>,
    /// Whether each partition emits a range of chunks in their order.
    pub is_ordered: bool,
    /// An order of the rows within each partition, over the output schema.
    pub ordering: Option<LexOrdering>,
    /// Output partitions.
    pub partitions: usize,
    /// Number of run-time filters that the scan does without, because their producers are executed elsewhere.
    pub unreached: usize,
}

impl TierScanExec {
    /// The scan as plain data; its source is to be named beside it.
    ///
    /// # Errors
    /// For a scan that emits texts in another form than views: it is a whole plan by itself.
    pub fn parts(&self) -> Result<ScanParts> {
        let config = self.config();
        if config.texts != EmittedTexts::Views {
            return internal_err!("a scan that emits texts as {:?} is no part of a plan", config.texts);
        }
        Ok(ScanParts {
            projection: config.projection.clone(),
            filters: config.filters.clone(),
            dynamic: config.dynamic.clone(),
            chunks: config.chunks.to_vec(),
            delta: config.delta.to_vec(),
            fetch: config.fetch,
            is_ordered: config.order == ScanOrder::Ordered,
            ordering: config.ordering.clone(),
            partitions: config.partitions,
            unreached: config.unreached,
        })
    }

    /// The scan of `source` that `parts` describe.
    ///
    /// # Errors
    /// When they name columns or items that the source does not have.
    pub fn from_parts(source: Arc<ScanSource>, parts: ScanParts) -> Result<Self> {
        let columns = source.schema().fields().len();
        let chunks = source.version.chunks.len() as u32;
        let delta = source.delta_items();
        if let Some(column) = parts.projection.iter().find(|column| **column >= columns) {
            return plan_err!("a scan of table '{}' names column {column} of {columns}", source.table.name());
        }
        let strange = parts.chunks.iter().find(|item| **item >= chunks);
        if let Some(item) = strange.or_else(|| parts.delta.iter().find(|item| !delta.contains(*item))) {
            return plan_err!("a scan of table '{}' names item {item}, which it does not have", source.table.name());
        }
        if parts.partitions == 0 {
            return plan_err!("a scan of table '{}' has no partitions", source.table.name());
        }
        // Whoever made the parts answers for the chunks that they leave out.
        let elsewhere = source.version.chunks.len().saturating_sub(parts.chunks.len());
        Self::try_new(ScanConfig {
            source,
            projection: parts.projection,
            filters: parts.filters,
            dynamic: parts.dynamic,
            keys: Vec::new(),
            chunks: parts.chunks.into(),
            delta: parts.delta.into(),
            denied: 0,
            hot: HotScan::default(),
            request: None,
            unreached: parts.unreached,
            fetch: parts.fetch,
            order: if parts.is_ordered { ScanOrder::Ordered } else { ScanOrder::Stealing },
            ordering: parts.ordering,
            partitions: parts.partitions,
            texts: EmittedTexts::Views,
            elsewhere,
            is_for_kernels: false,
            level: Level::NONE,
        })
    }

    /// Number of items that the scan reads unless run-time filters exclude them.
    pub fn item_count(&self) -> usize {
        self.config().items().count()
    }

    /// Cuts the scan into `count` shares of about equally many rows. Those of an ordered scan are ranges; of others each
    /// item goes to the share with the fewest rows so far, so that neighbouring chunks, which are hot together, are spread.
    ///
    /// # Errors
    /// As of [`TierScanExec::try_new`].
    pub fn split(&self, count: usize) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
        let config = self.config();
        let items: Vec<u32> = config.items().collect();
        let shares = match config.order {
            ScanOrder::Ordered => self.ranges(&items, count),
            ScanOrder::Stealing => spread(&items, count, |item| config.source.live_rows(item)),
        };
        let first = config.source.delta_items().start;
        let share = |items: Vec<u32>| {
            let (chunks, delta): (Vec<u32>, Vec<u32>) = items.into_iter().partition(|item| *item < first);
            self.changed(|config| {
                config.chunks = chunks.into();
                config.delta = delta.into();
                config.elsewhere = config.source.version.chunks.len().saturating_sub(config.chunks.len());
                config.denied = 0;
                config.hot = HotScan::default();
                config.request = None;
            })
        };
        shares.into_iter().map(share).collect()
    }

    /// Cuts the items into so many ranges, of about equally many rows.
    pub(super) fn ranges(&self, items: &[u32], count: usize) -> Vec<Vec<u32>> {
        let rows = |item: &u32| self.config().source.live_rows(*item);
        let total = items.iter().map(rows).sum::<u64>().max(1);
        let mut lanes = vec![Vec::new(); count];
        let mut before = 0;
        for item in items {
            if let Some(lane) = lanes.get_mut((before * count as u64 / total) as usize) {
                lane.push(*item);
            }
            before += rows(item).min(total - before - 1);
        }
        lanes
    }

    /// Tells the store and the hot views that the whole scan is executed: what its filters and views have excluded, and its
    /// request. An execution of the scan itself does so; one of its shares does not.
    pub fn note_execution(&self) {
        let config = self.config();
        let columns = config.columns();
        config.source.store.filters().add_pruned_chunks(config.denied);
        config.hot.count(&config.source, &columns);
        if let Some(request) = &config.request {
            Arc::clone(request).record_execution(&|| config.volume(&columns));
        }
    }

    /// Like [`TierScanExec::note_execution`], for a scan that other nodes execute, or shares of it: counts the chunks that it leaves
    /// out for the statement of `context`. Each share counts its own.
    pub fn note_remote_execution(&self, context: &TaskContext) {
        self.note_execution();
        let config = self.config();
        let excluded = config.source.version.chunks.len().saturating_sub(config.chunks.len());
        let tally = StatementScans::from_context(context).add_scan(&config.source, 0, config.partitions);
        tally.add_chunks(excluded, excluded);
    }

    /// Like this scan, but with only the run-time filters for which `keeps` is true; `None` when these are all.
    pub(super) fn keeping_dynamic(
        &self,
        keeps: impl Fn(&Arc<dyn PhysicalExpr>) -> bool,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let kept: Vec<_> = self.config().dynamic.iter().filter(|filter| keeps(filter)).cloned().collect();
        let fewer = kept.len() < self.config().dynamic.len();
        fewer.then(|| self.changed(|config| config.dynamic = kept)).transpose()
    }

    /// Like this scan, but only with the run-time filters among `produced`, the identities of those that are produced where
    /// it is executed; `None` when these are all. The plan shows that it does without the others.
    ///
    /// # Errors
    /// As of [`TierScanExec::try_new`].
    pub fn reached_by(&self, produced: &HashSet<u64>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let is_reached =
            |filter: &Arc<dyn PhysicalExpr>| filter.expression_id().is_some_and(|id| produced.contains(&id));
        let unreached = self.config().dynamic.iter().filter(|filter| !is_reached(filter)).count();
        let without = || {
            self.changed(|config| {
                config.dynamic.retain(is_reached);
                config.unreached = unreached;
            })
        };
        (unreached > 0).then(without).transpose()
    }
}

/// Gives each item to the share with the fewest rows so far.
fn spread(items: &[u32], count: usize, rows: impl Fn(u32) -> u64) -> Vec<Vec<u32>> {
    let mut shares: Vec<(u64, Vec<u32>)> = vec![Default::default(); count];
    for item in items {
        if let Some((held, share)) = shares.iter_mut().min_by_key(|(held, _)| *held) {
            *held += rows(*item);
            share.push(*item);
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_item_has_one_share_and_none_is_much_larger(rows in proptest::collection::vec(1_u64..100, 0..60), count in 1_usize..6) {
            let items: Vec<u32> = (0..rows.len() as u32).collect();
            let held = |item: u32| rows[item as usize];
            let shares = spread(&items, count, held);
            prop_assert_eq!(shares.len(), count);
            let mut all: Vec<u32> = shares.concat();
            all.sort_unstable();
            prop_assert_eq!(all, items);
            prop_assert!(shares.iter().all(|share| share.is_sorted()));
            let sums: Vec<u64> = shares.iter().map(|share| share.iter().map(|item| held(*item)).sum()).collect();
            let (least, most) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
            prop_assert!(most - least <= 100, "{:?}", sums);
        }
    }
}
