//! The heat of hot views: how often their scans read each of their columns.
//!
//! The counts of a view are folded once per epoch with the half-life of heat, into means that are exact from the view's
//! first epoch on. They are not saved: after a restart a plan knows only the heat of a view's chunks, until its scans run
//! again.

use std::collections::BTreeMap;

use terrace_model::{ColumnId, MarkId, TableId};

use super::decay::decay;

/// A hot view that has a mark, and the counts of its scans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewUse {
    /// Schema and name.
    pub name: String,
    /// The table.
    pub table: TableId,
    /// The mark of its rows in chunks.
    pub mark: MarkId,
    /// Number of scans that needed no other rows, by the column that they read. The counts only grow while the view exists.
    pub reads: Vec<(ColumnId, u64)>,
    /// Its columns, in order of their ids.
    pub columns: Vec<ColumnId>,
    /// Bytes of DRAM that these columns may take together, in chunks with its rows; `None`: no limit.
    pub budget_bytes: Option<u64>,
}

/// A source of the hot views.
pub trait ViewSource: Send + Sync {
    /// The hot views that serve scans, by name; empty when they cannot be read now.
    fn views(&self) -> Vec<ViewUse>;
}

/// The decayed sums of one view.
#[derive(Debug, Clone, Default)]
struct Tracked {
    mark: Option<(TableId, MarkId)>,
    epochs: u32,
    weight: f32,
    /// By column: the weighted sum, and the count at the last observation.
    columns: BTreeMap<ColumnId, (f32, u64)>,
}

/// Decayed scans of all views.
#[derive(Debug, Clone, Default)]
pub(crate) struct ViewHeat(BTreeMap<String, Tracked>);

impl ViewHeat {
    /// Folds the growth of the counts since the last call; forgets views that are not among `views`.
    pub(super) fn observe(&mut self, views: &[ViewUse], half_life_epochs: f64) {
        let decay = decay(half_life_epochs);
        self.0.retain(|name, _| views.iter().any(|view| view.name == *name));
        for view in views {
            let known = self.0.entry(view.name.clone()).or_default();
            if known.mark.is_some_and(|(table, _)| table != view.table) {
                *known = Tracked::default();
            }
            known.mark = Some((view.table, view.mark));
            known.epochs = known.epochs.saturating_add(1);
            known.weight = known.weight * decay + 1.0;
            known.columns.values_mut().for_each(|(sum, _)| *sum *= decay);
            for (column, count) in &view.reads {
                let (sum, last) = known.columns.entry(*column).or_default();
                // A view that was dropped and made again counts from 0.
                *sum += count.checked_sub(*last).unwrap_or(*count) as f32;
                *last = *count;
            }
        }
    }

    /// Scans per epoch that read a column of a view.
    pub(crate) fn reads(&self, view: &str, column: ColumnId) -> f32 {
        self.0.get(view).map_or(0.0, |known| known.reads(column))
    }

    /// Epochs over which a view was observed.
    pub(crate) fn epochs(&self, view: &str) -> u32 {
        self.0.get(view).map_or(0, |known| known.epochs)
    }

    /// Like [`ViewHeat::reads`], for the view of a mark.
    pub(super) fn reads_of_mark(&self, table: TableId, mark: MarkId, column: ColumnId) -> f32 {
        let known = self.0.values().find(|known| known.mark == Some((table, mark)));
        known.map_or(0.0, |known| known.reads(column))
    }
}

impl Tracked {
    fn reads(&self, column: ColumnId) -> f32 {
        let sum = self.columns.get(&column).map_or(0.0, |(sum, _)| *sum);
        if self.weight > 0.0 { sum / self.weight } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mark: u32, reads: u64) -> ViewUse {
        let column = ColumnId(1);
        ViewUse {
            name: "s.v".into(),
            table: TableId(1),
            mark: MarkId(mark),
            reads: vec![(column, reads)],
            columns: vec![column],
            budget_bytes: None,
        }
    }

    #[test]
    fn scans_are_means_over_the_epochs_of_the_view() {
        let mut heat = ViewHeat::default();
        let column = ColumnId(1);
        heat.observe(&[view(1, 10)], 1.0);
        assert_eq!((heat.reads("s.v", column), heat.epochs("s.v")), (10.0, 1));
        // The version of a window that moved is the same view; a fresh count begins at 0.
        heat.observe(&[view(2, 10)], 1.0);
        assert!((heat.reads("s.v", column) - 5.0 / 1.5).abs() < 1e-6);
        assert_eq!(heat.reads_of_mark(TableId(1), MarkId(1), column), 0.0);
        assert_eq!(heat.reads_of_mark(TableId(1), MarkId(2), column), heat.reads("s.v", column));
        assert_eq!(heat.reads("s.v", ColumnId(2)), 0.0);
        heat.observe(&[view(2, 4)], 1.0);
        assert!((heat.reads("s.v", column) - (2.5 + 4.0) / 1.75).abs() < 1e-6);
        let elsewhere = ViewUse { table: TableId(2), ..view(3, 8) };
        heat.observe(&[elsewhere], 1.0);
        assert_eq!((heat.reads("s.v", column), heat.epochs("s.v")), (8.0, 1));
        heat.observe(&[], 1.0);
        assert_eq!((heat.reads("s.v", column), heat.epochs("s.v")), (0.0, 0));
    }
}
