//! The pattern of a read, from a sample of its selection (Dreseler 2021, section 6.2).
//!
//! A selection is the set of rows of a segment that a read needs: a bitmap, or positions in the order in which they are
//! needed. The sample covers a bounded part of either: distance and direction from one selected row to the next. The number
//! of selected rows is known anyway. The number of runs of neighbours is counted over the whole selection, because
//! selected rows often come in runs (the ten lines of one sales order).

use arrow::buffer::BooleanBuffer;
use terrace_model::Pattern;

/// Maximum number of looked-up values of a point access.
const POINT_VALUES: usize = 8;
/// Words of a bitmap that are sampled.
const WORDS: usize = 4;
/// Rows of a word.
const WORD_ROWS: usize = 64;
/// Steps between positions that are sampled.
const STEPS: usize = 64;
/// A pattern tolerates one exception in this number of sampled steps.
const EXCEPTION: u32 = 8;
/// Neighbouring rows are a sweep when at least one in this number of all rows is selected: a smaller selection does not
/// read all cache lines even if it is scattered (a line holds this number of values of 8 bytes).
const SWEEP: usize = 8;

/// Counts of the steps from one selected row to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Steps to a later row, or to the same.
    pub up: u32,
    /// Steps to an earlier row.
    pub down: u32,
    /// Steps to a neighbour, in either direction.
    pub near: u32,
    /// Runs of neighbours.
    pub runs: u32,
}

impl Sample {
    /// The sample of `rows` rows of unknown positions: each is looked up by itself.
    pub fn scattered(rows: usize) -> Self {
        Self { runs: rows as u32, ..Self::default() }
    }

    /// The sample of `rows` rows that are read completely, in slices: as if each slice were sampled.
    pub fn from_slices(rows: usize, slice_rows: usize) -> Self {
        let steps_per_slice = slice_rows.min(WORDS * WORD_ROWS).saturating_sub(1);
        let steps = (rows * steps_per_slice / slice_rows.max(1)) as u32;
        Self { up: steps, down: 0, near: steps, runs: rows.div_ceil(slice_rows.max(1)) as u32 }
    }

    /// The sample of the rows whose bits are set.
    pub fn from_bitmap(rows: &BooleanBuffer) -> Self {
        let mut sample = Self::default();
        let last = rows.len().saturating_sub(WORD_ROWS);
        let words = if last == 0 { 1 } else { WORDS };
        for number in 0..words {
            let word = word_at(rows, last * number / (WORDS - 1));
            sample.up += word.count_ones().saturating_sub(1);
            sample.near += (word & (word >> 1)).count_ones();
        }
        let words = rows.bit_chunks();
        let mut last = 0;
        for word in words.iter().chain([words.remainder_bits()]) {
            sample.runs += (word & !(word << 1 | last)).count_ones();
            last = word >> (WORD_ROWS - 1);
        }
        sample
    }

    /// The sample of positions, sorted, each with its rank in the order in which it is needed.
    pub fn from_positions(sorted: &[(u64, u32)]) -> Self {
        let mut sample = Self::default();
        let pairs = sorted.len().saturating_sub(1);
        let every = pairs.div_ceil(STEPS).max(1);
        for (a, b) in sorted.iter().zip(sorted.iter().skip(1)).step_by(every) {
            sample.up += u32::from(b.1 > a.1);
            sample.down += u32::from(b.1 < a.1);
            sample.near += u32::from(b.0 - a.0 <= 1);
        }
        sample.runs = (sorted.len() as u32).saturating_sub(sample.near * every as u32).max(1).min(sorted.len() as u32);
        sample
    }

    /// Number of look-ups for the `selected` values: one in eight of a run, as a cache line holds eight values of 8 bytes.
    pub fn values(&self, selected: usize) -> usize {
        let runs = (self.runs as usize).min(selected);
        runs + (selected - runs) / SWEEP
    }

    /// The pattern of a read of `selected` rows of `rows`.
    pub fn pattern(&self, selected: usize, rows: usize) -> Pattern {
        let steps = self.up + self.down;
        let rare = |exceptions: u32| exceptions * EXCEPTION <= steps;
        let one_way = rare(self.up.min(self.down));
        let sweep = steps > 0 && one_way && rare(steps - self.near.min(steps)) && selected * SWEEP >= rows;
        if selected >= rows || sweep {
            Pattern::Sequential
        } else if self.values(selected) <= POINT_VALUES {
            Pattern::Point
        } else if !one_way {
            Pattern::Random
        } else {
            Pattern::Monotonic
        }
    }
}

/// Up to 64 rows of a bitmap from `from` on, as bits from the lowest.
fn word_at(rows: &BooleanBuffer, from: usize) -> u64 {
    let first = rows.offset() + from;
    let count = (rows.len() - from.min(rows.len())).min(WORD_ROWS);
    let bytes = rows.values().get(first / 8..).unwrap_or_default();
    let word = match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    // The last bits of a word that begins within a byte are ignored.
    let beyond = WORD_ROWS - count;
    if count == 0 { 0 } else { ((word >> (first % 8)) << beyond) >> beyond }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pattern of a bitmap of `rows` rows, cut out of one that begins `offset` rows before.
    fn bitmap_pattern(rows: usize, offset: usize, is_set: impl Fn(usize) -> bool) -> Pattern {
        let bits = BooleanBuffer::collect_bool(rows + offset, |row| row < offset || is_set(row - offset));
        let bits = bits.slice(offset, rows);
        Sample::from_bitmap(&bits).pattern(bits.count_set_bits(), rows)
    }

    #[test]
    fn a_bitmap_is_a_sweep_scattered_or_a_few_rows() {
        for rows in [1000, 8192, 8190, 70] {
            for offset in [0, 3, 8, 65] {
                let pattern = |is_set: &dyn Fn(usize) -> bool| bitmap_pattern(rows, offset, is_set);
                let case = format!("{rows} rows at {offset}");
                assert_eq!(pattern(&|_| true), Pattern::Sequential, "{case}");
                assert_eq!(pattern(&|row| row % 50 != 7), Pattern::Sequential, "{case}: nearly all");
                assert_eq!(pattern(&|row| row >= rows / 2), Pattern::Sequential, "{case}: one half");
                assert_eq!(pattern(&|row| row % 2 == 0), Pattern::Monotonic, "{case}: every other one");
                assert_eq!(pattern(&|row| row % 7 == 3), Pattern::Monotonic, "{case}");
                assert_eq!(pattern(&|row| row < 8), Pattern::Point, "{case}");
                assert_eq!(pattern(&|_| false), Pattern::Point, "{case}");
            }
        }
        // A few neighbours are no sweep of all.
        assert_eq!(bitmap_pattern(8192, 0, |row| (100..200).contains(&row)), Pattern::Monotonic);
    }

    #[test]
    fn what_is_before_and_after_a_bitmap_is_not_looked_at() {
        let bits = BooleanBuffer::collect_bool(200, |row| !(50..60).contains(&row));
        assert_eq!(Sample::from_bitmap(&bits.slice(50, 10)), Sample::default());
        assert_eq!(Sample::from_bitmap(&BooleanBuffer::new_set(5)), Sample { up: 4, down: 0, near: 4, runs: 1 });
        assert_eq!(Sample::from_bitmap(&BooleanBuffer::new_set(0)), Sample::default());
    }

    #[test]
    fn neighbours_are_looked_for_once() {
        for offset in [0, 1, 63, 64, 70] {
            let bits = BooleanBuffer::collect_bool(1000 + offset, |row| {
                let row = row.wrapping_sub(offset);
                (60..70).contains(&row) || (128..256).contains(&row) || row == 300 || row == 999
            });
            let sample = Sample::from_bitmap(&bits.slice(offset, 1000));
            assert_eq!(sample.runs, 4, "{offset}");
            assert_eq!(sample.values(140), 4 + 136 / 8);
        }
        let every_other = BooleanBuffer::collect_bool(1000, |row| row % 2 == 0);
        assert_eq!(Sample::from_bitmap(&every_other).values(500), 500);
        let lines = |rows: std::ops::Range<u64>| rows.zip(0..).collect::<Vec<(u64, u32)>>();
        assert_eq!(Sample::from_positions(&lines(100..112)).values(12), 2);
        assert_eq!(Sample::from_positions(&[(1, 0), (9, 1), (20, 2)]).values(3), 3);
        assert_eq!(Sample::from_positions(&lines(0..1)).values(1), 1);
    }

    #[test]
    fn positions_are_read_in_the_order_in_which_they_are_wanted() {
        let pattern = |positions: Vec<u64>, rows: usize| {
            let mut sorted: Vec<(u64, u32)> = positions.into_iter().zip(0..).collect();
            sorted.sort_unstable();
            Sample::from_positions(&sorted).pattern(sorted.len(), rows)
        };
        let shuffled = |step: u64| (0..1000).map(|n| (n * 953 % 1000) * step).collect::<Vec<_>>();
        assert_eq!(pattern(shuffled(1), 4000), Pattern::Random);
        assert_eq!(pattern(shuffled(60), 65_536), Pattern::Random);
        assert_eq!(pattern((0..1000).map(|n| n * 60).collect(), 65_536), Pattern::Monotonic);
        assert_eq!(pattern((0..1000).rev().map(|n| n * 60).collect(), 65_536), Pattern::Monotonic, "backwards");
        assert_eq!(pattern((100..2000).rev().collect(), 4000), Pattern::Sequential, "backwards");
        assert_eq!(pattern((0..8).rev().collect(), 4000), Pattern::Point);
        assert_eq!(pattern(vec![5, 1, 3, 9, 2, 12, 7, 30, 20], 4000), Pattern::Point, "three of them are neighbours");
        assert_eq!(pattern(vec![50, 10, 30, 90, 20, 120, 70, 300, 200], 4000), Pattern::Random);
    }

    #[test]
    fn slices_that_are_selected_whole_weigh_as_much_as_sampled_ones() {
        let whole = Sample::from_slices(3 * 8192, 8192);
        let sampled = Sample::from_bitmap(&BooleanBuffer::new_set(8192));
        assert!(whole.near >= 3 * sampled.near && whole.near <= 4 * sampled.near, "{whole:?} {sampled:?}");
        assert_eq!(whole.pattern(3 * 8192, 6 * 8192), Pattern::Sequential);
        assert_eq!(Sample::from_slices(0, 8192), Sample::default());
    }

    #[test]
    fn a_bounded_part_is_looked_at() {
        let sorted: Vec<(u64, u32)> = (0..100_000).map(|row| (row, row as u32)).collect();
        assert!(Sample::from_positions(&sorted).up as usize <= STEPS);
        assert!(Sample::from_bitmap(&BooleanBuffer::new_set(100_000)).up as usize <= WORDS * WORD_ROWS);
    }
}
