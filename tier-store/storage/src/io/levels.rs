//! The levels at which running statements read columns at random.
//!
//! Rule 5 of hStorage-DB (Hetero-DB, section 5.3.3): when several operators, of one statement or of many, read one object at
//! random, the requests of all of them have the best level. An object is a column of a table here. An operator counts as long
//! as its [`OperatorLevel`] lives: until its execution ends, fails or is cancelled.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_model::{ColumnId, TableId};

use super::intent::Level;

/// The number of running operators at each level, by column.
#[derive(Debug, Default)]
pub struct ColumnLevels(Mutex<HashMap<(TableId, ColumnId), BTreeMap<Level, usize>>>);

impl ColumnLevels {
    /// Counts an operator that reads columns of a table at random, until what this returns is dropped. One without a level,
    /// which reads sequentially, does not count.
    pub fn begin(
        self: &Arc<Self>,
        level: Level,
        table: TableId,
        columns: impl IntoIterator<Item = ColumnId>,
    ) -> OperatorLevel {
        let columns: Vec<ColumnId> = columns.into_iter().filter(|_| level != Level::NONE).collect();
        if !columns.is_empty() {
            let mut operators = self.0.lock();
            for column in &columns {
                *operators.entry((table, *column)).or_default().entry(level).or_default() += 1;
            }
        }
        OperatorLevel { all: Arc::clone(self), level, table, columns }
    }
}

/// A running operator, counted in [`ColumnLevels`].
#[derive(Debug)]
pub struct OperatorLevel {
    all: Arc<ColumnLevels>,
    level: Level,
    table: TableId,
    columns: Vec<ColumnId>,
}

impl OperatorLevel {
    /// The level of a read of some of its columns: the best one at which a running operator reads any of them. An operator
    /// that reads sequentially has none, whoever else reads the columns.
    pub fn best(&self, columns: impl IntoIterator<Item = ColumnId>) -> Level {
        if self.level == Level::NONE {
            return self.level;
        }
        let operators = self.all.0.lock();
        let best = |column: ColumnId| operators.get(&(self.table, column))?.keys().next().copied();
        columns.into_iter().filter_map(best).fold(self.level, Level::min)
    }
}

impl Drop for OperatorLevel {
    fn drop(&mut self) {
        if self.columns.is_empty() {
            return;
        }
        let mut operators = self.all.0.lock();
        for column in &self.columns {
            let key = (self.table, *column);
            let Some(levels) = operators.get_mut(&key) else { continue };
            if let Some(count) = levels.get_mut(&self.level) {
                *count -= 1;
            }
            levels.retain(|_, count| *count > 0);
            if levels.is_empty() {
                operators.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_of_the_running_operators_counts() {
        let all = Arc::new(ColumnLevels::default());
        let begin = |level, columns: &[u32]| all.begin(level, TableId(1), columns.iter().copied().map(ColumnId));
        let best = |operator: &OperatorLevel, column| operator.best([ColumnId(column)]);
        let [high, low, middle] = [4, 1, 2].map(Level::new);
        let first = begin(high, &[1, 2]);
        let second = begin(low, &[2]);
        let third = begin(low, &[2, 3]);
        let fourth = begin(middle, &[2]);
        assert_eq!((best(&first, 1), best(&first, 2), best(&fourth, 2)), (high, low, low));
        assert_eq!(first.best([1, 2].map(ColumnId)), low, "one read has both");
        // Neither does another table count, nor an operator that reads sequentially; and that one stays without a level.
        let elsewhere = all.begin(low, TableId(2), [ColumnId(1)]);
        let sequential = begin(Level::NONE, &[1, 2]);
        assert_eq!((best(&first, 1), best(&sequential, 2)), (high, Level::NONE));
        drop(second);
        assert_eq!(best(&first, 2), low, "the third is left");
        drop(third);
        assert_eq!(best(&first, 2), middle);
        drop(fourth);
        assert_eq!(best(&first, 2), high);
        drop((first, elsewhere, sequential));
        assert!(all.0.lock().is_empty());
    }
}
