//! Scans that use hot views: the chunks that they skip, and that their rows stay the same.
//!
//! - [`answers`]: random queries over a table with views and its twin without
//! - [`promises`]: the chunks that scans skip

use arrow::array::{Array, BooleanArray, UInt32Array};
use arrow::compute::{not, prep_null_mask_filter};
use datafusion::common::DFSchema;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use terrace_scan::coercion::coerced;
use terrace_tier_store::store::ChunkMark;
use terrace_tier_store::table::{Arrangement, MarkId, Marked, Table};
use terrace_views::{Definition, PublishedVersion};

use super::*;

mod answers;
mod promises;

/// A fault of a publication, to test that the tests notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The check believes that every filter implies every view.
    Implied,
    /// Marks are inverted.
    Marks,
}

/// How a chunk gets a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marking {
    /// Rewritten, with rows of the view in chunks of their own.
    Apart,
    /// Rewritten in the same order, with a bit for each row.
    AsItIs,
    /// Marked without a rewrite: its rows may belong to the view.
    May,
    /// Not at all.
    Unknown,
}

/// Arrangement of the rows of a group of chunks; with `apart`, rows that fulfil the condition come first.
fn arrangement(mark: MarkId, fulfil: BooleanArray, apart: bool, chunk_rows: u32) -> Arrangement {
    let plain = Arrangement::in_current_order(fulfil.len(), chunk_rows);
    let is_hot = |row: &u32| fulfil.value(*row as usize);
    let (hot, cold): (Vec<u32>, Vec<u32>) = (0..fulfil.len() as u32).partition(is_hot);
    if !apart || hot.is_empty() || cold.is_empty() {
        return Arrangement { marks: vec![(mark, fulfil)], ..plain };
    }
    let chunks = |rows: usize| Arrangement::in_current_order(rows, chunk_rows).chunk_rows;
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

    /// The rows that fulfil a condition, evaluated without views.
    fn fulfil(&self, condition: &str, rows: &RecordBatch) -> BooleanArray {
        let state = &self.engine.base_state;
        let schema = Arc::new(DFSchema::try_from(rows.schema().as_ref().clone()).unwrap());
        let context = SimplifyContext::builder().with_schema(Arc::clone(&schema)).with_current_time().build();
        let simplifier = ExprSimplifier::new(context);
        let expr = state.create_logical_expr(condition, &schema).unwrap();
        let expr = simplifier.simplify(coerced(&simplifier, expr, &schema).unwrap()).unwrap();
        let expr = state.create_physical_expr(expr, &schema).unwrap();
        let values = expr.evaluate(rows).unwrap();
        let values = values.into_array(rows.num_rows()).unwrap();
        let values = values.as_boolean_opt().cloned().unwrap_or_else(|| BooleanArray::new_null(rows.num_rows()));
        if values.null_count() > 0 { prep_null_mask_filter(&values) } else { values }
    }

    /// A simple run of a view over groups of `group` chunks; `marking` decides for each group how it gets the mark.
    fn publish(&self, view: &str, fault: Fault, group: usize, mut marking: impl FnMut() -> Marking) {
        let views = self.engine.hot_views.views.current().unwrap();
        let definition = views.get(&TableName::new("public", view)).unwrap().definition.as_ref().clone();
        let store = self.engine.store();
        let table = self.table(&definition.table.name);
        let mark = store.new_mark().unwrap();
        for group in table.version().chunks.chunks(group) {
            let marking = marking();
            let arrange = |rows: &RecordBatch| {
                let fulfil = self.fulfil(&definition.predicate, rows);
                let fulfil = if fault == Fault::Marks { not(&fulfil).unwrap() } else { fulfil };
                Ok(arrangement(mark, fulfil, marking == Marking::Apart, table.options().chunk_rows))
            };
            match marking {
                Marking::Unknown => {}
                Marking::May => {
                    let known = group.iter().map(|entry| ChunkMark { chunk: entry.chunk.id, mark, may_fulfil: true });
                    let known: Vec<_> = known.collect();
                    assert_eq!(store.set_marks(&table, &known).unwrap(), known.len() as u64);
                }
                Marking::Apart | Marking::AsItIs => drop(store.rearrange(&table, group, &arrange).unwrap()),
            }
        }
        let version = definition.version;
        let bound_at_us = definition.bound_at_us;
        let published = Some(PublishedVersion { mark, version, bound_at_us, at_us: bound_at_us });
        let before: Vec<MarkId> = definition.marks().collect();
        self.engine.hot_views.views.put(&Definition { published, mark: Some(mark), ..definition }).unwrap();
        store.forget_marks(&table, &before).unwrap();
    }

    /// Chunks that scans skipped because of views since the server started.
    fn left_out(&self) -> u64 {
        self.engine.view_tally().pruned_chunks()
    }
}
