//! How the rows of a group are to lie: those of no view first, in the order they had and cut where chunks ended, then rows
//! of views, put together by the set of views that have them.
//!
//! The first of the new chunks take the places of the old ones, so rows of no view stay where they were in the table; what
//! there is no place for goes to its end, as new rows do.

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::take;
use terrace_tier_store::table::{Arrangement, MarkId};

use super::Job;
use crate::views::condition::Condition;

/// Views that rows are put together by.
const MOST_VIEWS: usize = 63;
/// Rows of a set of views get a chunk of their own from one in so many of a full one on; fewer are put to others.
const LEAST_SHARE: usize = 8;

/// Of the view that the run is for: rows of it are in chunks without others.
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

/// The rows that may fulfil a condition: all, where it fails on one.
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
    let of_chunk = |rows: &usize| {
        let part = sets.get(first..first + rows).unwrap_or_default();
        first += rows;
        part.iter().filter(|set| **set == 0).count()
    };
    live.iter().map(of_chunk).collect()
}

/// How many chunks there will be of a group with so many rows of no view in each chunk, and so many of the view.
pub(super) fn chunks_after(cold: &[usize], matching: usize, full_rows: usize) -> usize {
    let sets = std::iter::repeat_n(0, cold.iter().sum()).chain(std::iter::repeat_n(OWN, matching));
    cut(&sets.collect::<Vec<u64>>(), cold, full_rows).len()
}

/// Rows of the new chunks: `sets` of the rows in their new order, `cold` how many of no view each old chunk had.
fn cut(sets: &[u64], cold: &[usize], full_rows: usize) -> Vec<usize> {
    let cold_rows = sets.partition_point(|set| *set == 0);
    let mut pieces = cold_pieces(cold, full_rows);
    if pieces.iter().sum::<usize>() != cold_rows {
        pieces = vec![cold_rows];
    }
    let hot = sets.get(cold_rows..).unwrap_or_default();
    // Rows of other views, then those of this one.
    let (others, own) = hot.split_at(hot.partition_point(|set| set & OWN == 0));
    pieces.extend(hot_pieces(others, full_rows));
    pieces.extend(hot_pieces(own, full_rows));
    pieces.into_iter().flat_map(|rows| evenly(rows, full_rows)).collect()
}

/// One for each old chunk; those that are small are put together.
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

/// One for each set of views that has enough rows.
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

/// As few parts of at most `most` as there can be, of one size as far as that goes.
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
        // Old chunks keep what is left of them, small ones are put together.
        assert_eq!(cut(&rows(&[(0, 180), (OWN, 20)]), &[90, 90], 100), [90, 90, 20]);
        assert_eq!(cut(&rows(&[(0, 130), (OWN, 20)]), &[30, 10, 90], 100), [40, 90, 20]);
        assert_eq!(cut(&rows(&[(0, 30), (OWN, 20)]), &[20, 10], 100), [30, 20]);
        // Too many are halved.
        assert_eq!(cut(&rows(&[(0, 50), (OWN, 130)]), &[25, 25], 100), [50, 65, 65]);
        // Rows of other views are apart from those of none and from those of this one; among themselves if they are many.
        assert_eq!(cut(&rows(&[(0, 50), (1, 3), (OWN, 4), (OWN | 1, 5)]), &[50], 100), [50, 3, 9]);
        assert_eq!(cut(&rows(&[(1, 20), (2, 20), (OWN, 40), (OWN | 2, 1)]), &[0], 100), [20, 20, 41]);
        assert_eq!(cut(&rows(&[(OWN, 7)]), &[0], 100), [7]);
        assert_eq!(cut(&[], &[], 100), [0; 0]);
        assert_eq!(evenly(10, 4).collect::<Vec<_>>(), [3, 3, 4]);
    }
}
