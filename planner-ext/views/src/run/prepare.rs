//! Makes the job of a run: the condition, the table, and the marks of the table's views.

use std::collections::HashSet;
use std::sync::Arc;

use terrace_error::{Result, missing_table};
use terrace_tier_store::table::{MarkId, TableName};

use super::{Job, Marking};
use crate::bound::BoundView;
use crate::condition::Condition;
use crate::{Definition, Filter, HotViews, Verdict};

impl HotViews {
    /// True while the version is the newest one of its view, with the same mark.
    pub fn is_current(&self, version: &Definition) -> bool {
        let same = |now: &Definition| {
            (now.version, now.made_at_us, now.mark) == (version.version, version.made_at_us, version.mark)
        };
        let views = self.current();
        views.is_ok_and(|views| views.get(&version.name).is_some_and(|status| same(&status.definition)))
    }

    /// Removes marks that no view has any more from the chunks of a table. If that fails, the next run on the table
    /// does it.
    pub fn forget_unknown(&self, table: &TableName) {
        let Ok(found) = self.store.table(table) else { return };
        let forgotten = self.current().and_then(|views| {
            let of_table = views.iter().map(|status| &status.definition).filter(|view| view.table == *table);
            let known: HashSet<MarkId> = of_table.flat_map(|view| view.marks()).collect();
            let version = found.version();
            let marks = version.chunks.iter().flat_map(|entry| entry.chunk.marks().map(|(mark, _)| mark));
            let gone: HashSet<MarkId> = marks.filter(|mark| !known.contains(mark)).collect();
            let gone: Vec<MarkId> = gone.into_iter().collect();
            if !gone.is_empty() {
                self.store.forget_marks(&found, &gone)?;
            }
            Ok(())
        });
        if let Err(error) = forgotten {
            tracing::debug!(%error, %table, "cannot remove the marks of dropped hot views; they stay for now");
        }
    }

    /// The job of the newest version of a view with this definition; without a mark the job can only be forecast.
    ///
    /// # Errors
    /// When the view does not fit its table, and [`terrace_error::ErrorKind::NotFound`] for the table.
    pub fn job(&self, definition: &Arc<Definition>) -> Result<Job> {
        let table = &definition.table;
        let table = self.store.table(table).map_err(|_| missing_table(&table.to_string()))?;
        let view = BoundView::new(definition, table.definition(), &self.state)?;
        let published = definition.as_published().map(Arc::new);
        let narrows = |older: &Arc<Definition>| {
            let older = BoundView::new(older, table.definition(), &self.state).ok();
            older.is_some_and(|older| Filter::new(view.exprs(), view.schema()).check(&older) == Verdict::Implied)
        };
        let before = published.as_ref().filter(|older| narrows(older)).and_then(|older| older.mark);
        let mut others = Vec::new();
        for status in self.current()?.iter().filter(|status| status.definition.table == definition.table) {
            let known = &status.definition;
            let is_own = known.name == definition.name;
            // The stored definition of this view may be older than `definition`.
            let newest = Some(known).filter(|_| !is_own).map(|newest| (Arc::clone(newest), true));
            let older = known.as_published().map(|older| (Arc::new(older), false));
            for (version, is_newest) in newest.into_iter().chain(older) {
                let Some(mark) = version.mark.filter(|mark| definition.mark != Some(*mark)) else { continue };
                let is_new = !others.iter().any(|other: &Marking| other.mark == mark);
                let Ok(bound) = BoundView::new(&version, table.definition(), &self.state) else { continue };
                if is_new {
                    let condition = Arc::new(Condition::new(&bound, &self.state)?);
                    others.push(Marking { mark, condition, is_newest });
                }
            }
        }
        Ok(Job {
            store: Arc::clone(&self.store),
            condition: Arc::new(Condition::new(&view, &self.state)?),
            mark: definition.mark,
            published: published.and_then(|published| published.mark),
            before,
            others,
            table,
        })
    }
}
