//! Arranges the rows of a group: rows of no view first, in their old order and cut where old chunks ended, then rows of
//! views, grouped by the set of views to which they belong.
//!
//! The first new chunks take the places of the old ones, so rows of no view stay where they were in the table; the
//! other new chunks are added at its end, like new rows.

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::take;
use terrace_tier_store::table::{Arrangement, MarkId};

use super::Job;
use crate::condition::Condition;

/// Most other views by which rows are grouped.
const MOST_VIEWS: usize = 63;
/// Rows of a set of views get chunks of their own if they fill at least one in this many parts of a full chunk; fewer
/// rows are joined with those of other sets.
const LEAST_SHARE: usize = 8;

/// Bit of the view that the run is for, whose rows get chunks without other rows.
const OWN: u64 = 1 << MOST_VIEWS;

impl Job {
    /// The arrangement of `rows`, which come from chunks with `live` rows each.
    pub(super) fn arrangement(&self, rows: &RecordBatch, live: &[usize], full_rows: usize) -> Arrangement {
        let own = holds(&self.condition, rows);
        let others: Vec<(MarkId, BooleanArray)> =
            self.others.iter().map(|other| (other.mark, holds(&other.condition, rows))).collect();
        let mut sets: Vec<u64> = own.iter().map(|bit| if bit == Some(true) { OWN } else { 0 }).collect();
        let newest = self.others.iter().zip(&others).filter(|(other, _)| other.is_newest).take(MOST_VIEWS);
        for (number, (_, (_, bits))) in newest.enumerate() {
            for row in bits.values().set_indices() {
                if let Some(set) = sets.get_mut(row) {
                    *set |= 1 << number;
                }
            }
        }
        let mut order: Vec<u32> = (0..sets.len() as u32).collect();
        let set = |row: u32| sets.get(row as usize).copied().unwrap_or(0);
        order.sort_by_key(|row| set(*row));
        let sorted: Vec<u64> = order.iter().map(|row| set(*row)).collect();
        let chunk_rows = cut(&sorted, &cold_rows(&sets, live), full_rows).into_iter().map(|rows| rows as u32).collect();
        let order = UInt32Array::from(order);
        let marks = others.into_iter().chain(self.mark.map(|mark| (mark, own)));
        let marks = marks.map(|(mark, bits)| (mark, in_order(&bits, &order))).collect();
        Arrangement { order: Some(order), chunk_rows, marks }
    }
}

/// The rows that may fulfil a condition; all rows if it fails on one.
fn holds(condition: &Condition, rows: &RecordBatch) -> BooleanArray {
    let values: Option<Vec<ArrayRef>> = condition.columns().iter().map(|c| rows.columns().get(*c).cloned()).collect();
    let found = values.and_then(|values| condition.holds(rows.num_rows(), &values).ok());
    found.unwrap_or_else(|| BooleanArray::new(BooleanBuffer::new_set(rows.num_rows()), None))
}

fn in_order(bits: &BooleanArray, order: &UInt32Array) -> BooleanArray {
    let ordered = take(bits, order, None).ok();
    let ordered = ordered.and_then(|bits| bits.as_any().downcast_ref::<BooleanArray>().cloned());
    ordered.unwrap_or_else(|| BooleanArray::new(BooleanBuffer::new_set(bits.len()), None))
}

/// Rows of no view in each of the old chunks.
fn cold_rows(sets: &[u64], live: &[usize]) -> Vec<usize> {
    let mut first = 0;
    let count = |rows: &usize| {
        let part = sets.get(first..first + rows).unwrap_or_default();
        first += rows;
        part.iter().filter(|set| **set == 0).count()
    };
    live.iter().map(count).collect()
}

/// Number of chunks after rewriting a group with `cold` rows of no view in each chunk, and `matching` rows of the view.
pub(super) fn chunks_after(cold: &[usize], matching: usize, full_rows: usize) -> usize {
    let sets = std::iter::repeat_n(0, cold.iter().sum()).chain(std::iter::repeat_n(OWN, matching));
    cut(&sets.collect::<Vec<u64>>(), cold, full_rows).len()
}

/// Number of rows of each new chunk: `sets` are the sets of views of the rows in their new order, `cold` the numbers of
/// rows of no view in the old chunks.
fn cut(sets: &[u64], cold: &[usize], full_rows: usize) -> Vec<usize> {
    let cold_rows = sets.partition_point(|set| *set == 0);
    let mut pieces = cold_pieces(cold, full_rows);
    if pieces.iter().sum::<usize>() != cold_rows {
        pieces = vec![cold_rows];
    }
    let hot = sets.get(cold_rows..).unwrap_or_default();
    // Rows of other views come before those of this view.
    let (others, own) = hot.split_at(hot.partition_point(|set| set & OWN == 0));
    pieces.extend(hot_pieces(others, full_rows));
    pieces.extend(hot_pieces(own, full_rows));
    pieces.into_iter().flat_map(|rows| evenly(rows, full_rows)).collect()
}

/// A piece for each old chunk; small ones are joined.
fn cold_pieces(cold: &[usize], full_rows: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    let mut piece = 0;
    for rows in cold {
        if piece > 0 && (piece + rows > full_rows || piece * 2 >= full_rows) {
            pieces.push(std::mem::take(&mut piece));
        }
        piece += rows;
    }
    pieces.push(piece);
    pieces
}

/// A piece for each set of views with enough rows.
fn hot_pieces(sets: &[u64], full_rows: usize) -> Vec<usize> {
    let is_small = |rows: usize| rows * LEAST_SHARE < full_rows;
    let mut pieces = Vec::new();
    let mut piece = 0;
    for set in sets.chunk_by(|a, b| a == b) {
        if piece > 0 && !is_small(piece) {
            pieces.push(std::mem::take(&mut piece));
        }
        piece += set.len();
    }
    match pieces.last_mut() {
        Some(last) if is_small(piece) => *last += piece,
        _ => pieces.push(piece),
    }
    pieces
}

/// Splits `rows` into as few parts of at most `most` rows as possible, of nearly equal size.
fn evenly(rows: usize, most: usize) -> impl Iterator<Item = usize> {
    let parts = rows.div_ceil(most.max(1));
    (0..parts).map(move |part| rows * (part + 1) / parts - rows * part / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_sets_of_views_and_old_chunks_end() {
        let rows = |sets: &[(u64, usize)]| -> Vec<u64> {
            sets.iter().flat_map(|(set, rows)| std::iter::repeat_n(*set, *rows)).collect()
        };
        // Old chunks keep their remaining rows, small ones are joined.
        assert_eq!(cut(&rows(&[(0, 180), (OWN, 20)]), &[90, 90], 100), [90, 90, 20]);
        assert_eq!(cut(&rows(&[(0, 130), (OWN, 20)]), &[30, 10, 90], 100), [40, 90, 20]);
        assert_eq!(cut(&rows(&[(0, 30), (OWN, 20)]), &[20, 10], 100), [30, 20]);
        // Too many rows are split in halves.
        assert_eq!(cut(&rows(&[(0, 50), (OWN, 130)]), &[25, 25], 100), [50, 65, 65]);
        // Rows of other views are separated from those of no view and of this view, and by set if there are many.
        assert_eq!(cut(&rows(&[(0, 50), (1, 3), (OWN, 4), (OWN | 1, 5)]), &[50], 100), [50, 3, 9]);
        assert_eq!(cut(&rows(&[(1, 20), (2, 20), (OWN, 40), (OWN | 2, 1)]), &[0], 100), [20, 20, 41]);
        assert_eq!(cut(&rows(&[(OWN, 7)]), &[0], 100), [7]);
        assert_eq!(cut(&[], &[], 100), [0; 0]);
        assert_eq!(evenly(10, 4).collect::<Vec<_>>(), [3, 3, 4]);
    }
}
