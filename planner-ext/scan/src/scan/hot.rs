//! Hot views in a scan: if a scan asks only for rows of a view, it does not read chunks that have no row of the view.
//!
//! The marks of a chunk stay true as long as the chunk exists: rows do not change, and deletions only remove some. The
//! delta has no marks and is always read, and so is a chunk without the mark.

use std::fmt;

use terrace_tier_store::table::Marked;

use super::source::ScanSource;
use crate::hot_views::ScanView;

/// The published views of the scanned table.
#[derive(Debug, Clone, Default)]
pub(super) struct HotScan(Vec<HotView>);

/// One published view.
#[derive(Debug, Clone)]
struct HotView {
    view: ScanView,
    /// Chunks of the version.
    chunks: usize,
    /// Chunks of the version that may have rows of the view.
    hot_chunks: usize,
    /// Chunks that neither filters nor views before this one exclude.
    pruned: Vec<u32>,
}

impl HotScan {
    /// Applies `views` to `chunks`; returns the chunks that they leave as well.
    pub(super) fn new(source: &ScanSource, views: Vec<ScanView>, chunks: &[u32]) -> (Self, Vec<u32>) {
        let mut remaining = chunks.to_vec();
        let all = &source.version.chunks;
        let views = views.into_iter().map(|view| {
            let lacks = |marked: Marked| view.mark.is_some() && marked == Marked::None;
            let marked = |item: u32| match (source.chunk(item), view.mark) {
                (Some(entry), Some(mark)) => entry.chunk.marked(mark),
                _ => Marked::Unknown,
            };
            let hot_chunks = (0..all.len() as u32).filter(|item| !lacks(marked(*item))).count();
            let (pruned, unpruned) = remaining.iter().copied().partition(|item| lacks(marked(*item)));
            remaining = unpruned;
            HotView { chunks: all.len(), hot_chunks, pruned, view }
        });
        let hot = Self(views.collect());
        (hot, remaining)
    }

    /// Forgets pruned chunks that the filters exclude as well.
    pub(super) fn retain(&mut self, keeps: impl Fn(&u32) -> bool) {
        self.0.iter_mut().for_each(|view| view.pruned.retain(&keeps));
    }

    /// Chunks that only the views exclude.
    pub(super) fn pruned(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|view| view.pruned.iter().copied())
    }

    /// Number of chunks that only the views exclude.
    pub(super) fn pruned_chunks(&self) -> usize {
        self.0.iter().map(|view| view.pruned.len()).sum()
    }

    /// Counts an execution that reads `columns` in the tallies of the views.
    pub(super) fn count(&self, source: &ScanSource, columns: &[usize]) {
        for HotView { view, pruned, .. } in &self.0 {
            if view.mark.is_none() {
                view.tally.missed();
                continue;
            }
            let chunks = pruned.iter().filter_map(|item| source.chunk(*item));
            let segments =
                chunks.flat_map(|entry| columns.iter().filter_map(|column| entry.chunk.columns().get(*column)));
            let bytes = segments.filter(|segment| segment.constant.is_none()).map(|segment| segment.home.len);
            view.tally.hit(pruned.len() as u64, bytes.sum());
            let ids = source.version.chunks.first().map_or(&[][..], |entry| entry.chunk.columns());
            view.tally.read(columns.iter().filter_map(|column| Some(ids.get(*column)?.column)));
        }
    }
}

impl fmt::Display for HotScan {
    /// Writes nothing if no view serves the scan.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = ", hot_views=[";
        for hot in self.0.iter().filter(|hot| hot.view.mark.is_some()) {
            let HotView { view, chunks, hot_chunks, .. } = hot;
            write!(f, "{before}{}: {hot_chunks} of {chunks} chunks left", view.name.name)?;
            before = ", ";
        }
        if before == ", " { f.write_str("]") } else { Ok(()) }
    }
}
