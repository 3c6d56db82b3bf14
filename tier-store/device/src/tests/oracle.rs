//! Computes scans row by row from tables of optional numbers, without any of the kernels' ideas.

use std::collections::BTreeMap;

use crate::scan::{Aggregate, ColumnRef, Filter, Measure, Scan};

/// A column: a value for each row; null is `None`.
pub type Column = Vec<Option<i64>>;

/// The build side of a join.
#[derive(Debug, Clone)]
pub struct Build {
    /// The column of the chunks that has the key.
    pub key: u32,
    /// Unique keys.
    pub keys: Vec<i64>,
    /// Columns.
    pub columns: Vec<Column>,
}

/// Chunks and joins.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Columns of each chunk.
    pub chunks: Vec<Vec<Column>>,
    /// Build sides.
    pub joins: Vec<Build>,
}

/// A row of a chunk.
struct Row<'a> {
    table: &'a Table,
    chunk: &'a [Column],
    row: usize,
}

impl Row<'_> {
    /// The row of the build side that a join finds.
    fn partner(&self, join: u32) -> Option<usize> {
        let join = &self.table.joins[join as usize];
        let key = self.chunk[join.key as usize][self.row]?;
        join.keys.iter().position(|other| *other == key)
    }

    fn value(&self, column: ColumnRef) -> Option<i64> {
        match column {
            ColumnRef::Chunk(column) => self.chunk[column as usize][self.row],
            ColumnRef::Join { join, column } => {
                let row = self.partner(join)?;
                self.table.joins[join as usize].columns[column as usize][row]
            }
        }
    }

    fn test(&self, filter: &Filter) -> Option<bool> {
        match filter {
            Filter::Constant(value) => *value,
            Filter::Range { column, low, high } => self.value(*column).map(|value| *low <= value && value <= *high),
            Filter::In { column, values } => self.value(*column).map(|value| values.contains(&value)),
            Filter::IsNull(column) => Some(self.value(*column).is_none()),
            Filter::Matches(join) => Some(self.partner(*join).is_some()),
            Filter::Not(filter) => self.test(filter).map(|value| !value),
            Filter::And(filters) => {
                let values: Vec<_> = filters.iter().map(|filter| self.test(filter)).collect();
                if values.contains(&Some(false)) { Some(false) } else { all_known(&values).then_some(true) }
            }
            Filter::Or(filters) => {
                let values: Vec<_> = filters.iter().map(|filter| self.test(filter)).collect();
                if values.contains(&Some(true)) { Some(true) } else { all_known(&values).then_some(false) }
            }
        }
    }

    /// The product of a measure, if the row counts for it.
    fn product(&self, measure: &Measure) -> Option<i128> {
        if measure.filter.as_ref().is_some_and(|filter| self.test(filter) != Some(true)) {
            return None;
        }
        measure.factors.iter().try_fold(1_i128, |product, factor| {
            let value = i128::from(self.value(factor.column)?);
            Some(product * (i128::from(factor.offset) + i128::from(factor.scale) * value))
        })
    }
}

fn all_known(values: &[Option<bool>]) -> bool {
    values.iter().all(Option::is_some)
}

/// What a measure is of no row.
pub fn of_no_row(measure: &Measure) -> i128 {
    match measure.aggregate {
        Aggregate::Sum => 0,
        Aggregate::Min => i64::MAX.into(),
        Aggregate::Max => i64::MIN.into(),
    }
}

/// Keys and measures of the groups that have rows.
pub fn compute(scan: &Scan, table: &Table) -> BTreeMap<Vec<Option<i64>>, Vec<i128>> {
    let mut groups: BTreeMap<_, Vec<i128>> = BTreeMap::new();
    for chunk in &table.chunks {
        for row in 0..chunk[0].len() {
            let row = Row { table, chunk, row };
            if row.test(&scan.filter) != Some(true) {
                continue;
            }
            let keys: Vec<_> = scan.keys.iter().map(|key| row.value(*key)).collect();
            let group = groups.entry(keys).or_insert_with(|| scan.measures.iter().map(of_no_row).collect());
            for (now, measure) in group.iter_mut().zip(&scan.measures) {
                let Some(product) = row.product(measure) else { continue };
                *now = match measure.aggregate {
                    Aggregate::Sum => *now + product,
                    Aggregate::Min => (*now).min(product),
                    Aggregate::Max => (*now).max(product),
                };
            }
        }
    }
    groups
}
