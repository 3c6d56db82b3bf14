//! Hot views in a scan: chunks that have no row of a view are not read where no other rows are asked for.
//!
//! What a chunk knows of a mark stays true as long as the chunk is there: rows do not change, deletions only take some away.
//! The delta knows nothing and is read always, and so is a chunk that does not know the mark.

use std::fmt;

use terrace_tier_store::table::Marked;

use super::source::ScanSource;
use crate::views::Served;

/// The published views of the scanned table.
#[derive(Debug, Clone, Default)]
pub(super) struct HotScan(Vec<HotView>);

/// One of them.
#[derive(Debug, Clone)]
struct HotView {
    served: Served,
    /// Chunks of the version, and those that may have rows of the view.
    chunks: usize,
    left: usize,
    /// Chunks that neither filters nor views before this one exclude.
    pruned: Vec<u32>,
}

impl HotScan {
    /// What `views` leave of `chunks`.
    pub(super) fn new(source: &ScanSource, views: Vec<Served>, chunks: &[u32]) -> (Self, Vec<u32>) {
        let mut kept = chunks.to_vec();
        let all = &source.version.chunks;
        let views = views.into_iter().map(|served| {
            let lacks = |marked: Marked| served.mark.is_some() && marked == Marked::None;
            let marked = |item: u32| match (source.chunk(item), served.mark) {
                (Some(entry), Some(mark)) => entry.chunk.marked(mark),
                _ => Marked::Unknown,
            };
            let left = (0..all.len() as u32).filter(|item| !lacks(marked(*item))).count();
            let (pruned, rest) = kept.iter().copied().partition(|item| lacks(marked(*item)));
            kept = rest;
            HotView { chunks: all.len(), left, pruned, served }
        });
        let hot = Self(views.collect());
        (hot, kept)
    }

    /// Forgets chunks that the filters exclude too.
    pub(super) fn retain(&mut self, keeps: impl Fn(&u32) -> bool) {
        self.0.iter_mut().for_each(|view| view.pruned.retain(&keeps));
    }

    /// Chunks that are not read because of views alone.
    pub(super) fn pruned(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|view| view.pruned.iter().copied())
    }

    /// How many these are.
    pub(super) fn pruned_chunks(&self) -> usize {
        self.0.iter().map(|view| view.pruned.len()).sum()
    }

    /// Counts an execution that reads `columns`.
    pub(super) fn count(&self, source: &ScanSource, columns: &[usize]) {
        for HotView { served, pruned, .. } in &self.0 {
            if served.mark.is_none() {
                served.tally.missed();
                continue;
            }
            let chunks = pruned.iter().filter_map(|item| source.chunk(*item));
            let segments =
                chunks.flat_map(|entry| columns.iter().filter_map(|column| entry.chunk.columns().get(*column)));
            let bytes = segments.filter(|segment| segment.constant.is_none()).map(|segment| segment.home.len);
            served.tally.hit(pruned.len() as u64, bytes.sum());
            let ids = source.version.chunks.first().map_or(&[][..], |entry| entry.chunk.columns());
            served.tally.read(columns.iter().filter_map(|column| Some(ids.get(*column)?.column)));
        }
    }
}

impl fmt::Display for HotScan {
    /// Nothing where no view is asked for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = ", hot_views=[";
        for view in self.0.iter().filter(|view| view.served.mark.is_some()) {
            let HotView { served, chunks, left, .. } = view;
            write!(f, "{before}{}: {left} of {chunks} chunks left", served.name.name)?;
            before = ", ";
        }
        if before == ", " { f.write_str("]") } else { Ok(()) }
    }
}
