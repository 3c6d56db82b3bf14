//! Published views: each chunk stores for the view's mark whether it has rows of the view, so scans that ask only for
//! rows of the view skip the other chunks.
//!
//! A published view is the version of a hot view that the last tiering run was for. Its mark is never reused: in chunks
//! of any snapshot the mark stands for this condition, even if the view was changed since.

use std::sync::{Arc, Weak};

use terrace_scan::hot_views::ViewTally;
use terrace_tier_store::table::{MarkId, Table};

use super::bound::BoundView;

/// A published version of a view, with the mark that chunks store.
#[derive(Debug, Clone)]
pub struct PublishedView {
    pub(super) mark: MarkId,
    pub(super) view: Arc<BoundView>,
    /// The table under the definition that it was bound to.
    pub(super) table: Weak<Table>,
    pub(super) tally: Arc<ViewTally>,
}

impl PublishedView {
    /// The mark of the view in chunks.
    pub fn mark(&self) -> MarkId {
        self.mark
    }

    /// The view, bound to its table.
    pub fn view(&self) -> &Arc<BoundView> {
        &self.view
    }

    /// False for a snapshot from before the table was altered or replaced, which may have other columns.
    pub(super) fn is_for(&self, table: &Arc<Table>) -> bool {
        std::ptr::eq(self.table.as_ptr(), Arc::as_ptr(table))
    }
}
