//! Scans that hot views serve: what they leave out, and that answers stay the same.

use arrow::array::{Array, BooleanArray, UInt32Array};
use arrow::compute::{not, prep_null_mask_filter};
use terrace_tier_store::table::{Arrangement, MarkId, Marked, Table};

use super::*;
use crate::views::tests::Planner;
use crate::views::{Definition, Published};

mod answers;
mod promises;

/// What a publication gets wrong, to see that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    No,
    /// The check takes every view for implied.
    Implied,
    /// Marks say the opposite.
    Marks,
}

/// How a chunk becomes known to a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Written anew: rows of the view in chunks of their own.
    Apart,
    /// Written anew as it is, with a bit for each row.
    AsItIs,
    /// Marked as it is: its rows may be of the view.
    May,
    /// Not at all.
    Unknown,
}

/// How a group of chunks is to be written: rows that fulfil the condition in front, perhaps.
fn arranged(mark: MarkId, fulfil: BooleanArray, apart: bool, chunk_rows: u32) -> Arrangement {
    let plain = Arrangement::as_they_are(fulfil.len(), chunk_rows);
    let is_hot = |row: &u32| fulfil.value(*row as usize);
    let (hot, cold): (Vec<u32>, Vec<u32>) = (0..fulfil.len() as u32).partition(is_hot);
    if !apart || hot.is_empty() || cold.is_empty() {
        return Arrangement { marks: vec![(mark, fulfil)], ..plain };
    }
    let chunks = |rows: usize| Arrangement::as_they_are(rows, chunk_rows).chunk_rows;
    Arrangement {
        chunk_rows: chunks(hot.len()).into_iter().chain(chunks(cold.len())).collect(),
        marks: vec![(mark, (0..fulfil.len()).map(|row| Some(row < hot.len())).collect())],
        order: Some(hot.into_iter().chain(cold).collect::<UInt32Array>()),
    }
}

impl Server {
    fn table(&self, name: &str) -> Arc<Table> {
        self.engine.store().table(&TableName::new("public", name)).unwrap()
    }

    /// The rows that fulfil a condition, as a planner says that knows of no views.
    fn fulfil(&self, condition: &str, rows: &RecordBatch) -> BooleanArray {
        let planner = Planner::of(&rows.schema());
        let expr = planner.state.create_physical_expr(planner.simplified(condition), &planner.schema).unwrap();
        let values = expr.evaluate(rows).unwrap();
        let values = values.into_array(rows.num_rows()).unwrap();
        let values = values.as_boolean_opt().cloned().unwrap_or_else(|| BooleanArray::new_null(rows.num_rows()));
        if values.null_count() > 0 { prep_null_mask_filter(&values) } else { values }
    }

    /// A tiering run of the simplest kind, over groups of `group` chunks; `way` says of each how it becomes known.
    fn publish(&self, view: &str, lie: Lie, group: usize, mut way: impl FnMut() -> Way) {
        let views = self.engine.hot_views.current().unwrap();
        let definition = views.get(&TableName::new("public", view)).unwrap().definition.as_ref().clone();
        let store = self.engine.store();
        let table = self.table(&definition.table.name);
        let mark = store.new_mark().unwrap();
        for group in table.version().chunks.chunks(group) {
            let way = way();
            let arrange = |rows: &RecordBatch| {
                let fulfil = self.fulfil(&definition.predicate, rows);
                let fulfil = if lie == Lie::Marks { not(&fulfil).unwrap() } else { fulfil };
                Ok(arranged(mark, fulfil, way == Way::Apart, table.options().chunk_rows))
            };
            match way {
                Way::Unknown => {}
                Way::May => {
                    let known: Vec<_> = group.iter().map(|entry| (entry.chunk.id, mark, true)).collect();
                    assert_eq!(store.set_marks(&table, &known).unwrap(), known.len() as u64);
                }
                Way::Apart | Way::AsItIs => drop(store.rearrange(&table, group, &arrange).unwrap()),
            }
        }
        let version = definition.version;
        let bound_at_us = definition.bound_at_us;
        let published = Some(Published { mark, version, bound_at_us, at_us: bound_at_us });
        let before: Vec<MarkId> = definition.marks().collect();
        self.engine.hot_views.put(&Definition { published, mark: Some(mark), ..definition }).unwrap();
        store.forget_marks(&table, &before).unwrap();
    }

    /// Chunks that scans left out because of views since the server started.
    fn left_out(&self) -> u64 {
        self.engine.view_tally().pruned_chunks()
    }
}
