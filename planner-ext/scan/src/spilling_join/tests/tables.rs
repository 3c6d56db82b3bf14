//! Random tables: NULL, NaN, both zeros, repeated and skewed keys, empty sides.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// Numbers that follow from a seed.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    pub(super) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Columns of a table whose names begin with `side`: three keys, an id, a number, texts of both kinds.
pub(super) fn schema(side: &str) -> SchemaRef {
    let field = |name: &str, data_type| Field::new(format!("{side}_{name}"), data_type, true);
    Arc::new(Schema::new(vec![
        field("int", DataType::Int32),
        field("float", DataType::Float64),
        field("text", DataType::Utf8View),
        field("id", DataType::Int32),
        field("number", DataType::Int32),
        field("note", DataType::Utf8),
    ]))
}

/// What the keys of a table are like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    /// Different keys, about.
    pub(super) count: usize,
    /// Of a hundred rows, those that have the first key.
    pub(super) skew: usize,
    /// Of a hundred rows, those that have a NULL key.
    pub(super) nulls: usize,
}

const FLOATS: [f64; 6] = [0.0, -0.0, f64::NAN, f64::INFINITY, 1.5, -2.5];

/// A table in batches of random size.
pub(super) fn table(numbers: &mut Numbers, side: &str, rows: usize, keys: Keys) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    let mut id = 0;
    while id < rows {
        let count = (1 + numbers.below(40)).min(rows - id);
        batches.push(batch(numbers, side, id, count, keys));
        id += count;
    }
    batches
}

fn batch(numbers: &mut Numbers, side: &str, first_id: usize, rows: usize, keys: Keys) -> RecordBatch {
    let drawn: Vec<Option<usize>> = (0..rows)
        .map(|_| {
            let percent = numbers.below(100);
            match percent {
                _ if percent < keys.nulls => None,
                _ if percent < keys.nulls + keys.skew => Some(0),
                _ => Some(numbers.below(keys.count)),
            }
        })
        .collect();
    let float = |key: usize| FLOATS.get(key).copied().unwrap_or(key as f64);
    // The zeros are one key with both signs.
    let floats = drawn.iter().map(|key| key.map(|key| float(if key == 0 { numbers.below(2) } else { key })));
    let floats: Float64Array = floats.collect();
    let text = |key: usize| {
        if key.is_multiple_of(2) { format!("{key}") } else { format!("a text of some length, number {key}") }
    };
    let ints: Int32Array = drawn.iter().map(|key| key.map(|key| key as i32 * 7)).collect();
    let texts: StringViewArray = drawn.iter().map(|key| key.map(text)).collect();
    let ids: Int32Array = (first_id..first_id + rows).map(|id| Some(id as i32)).collect();
    let some: Int32Array = (0..rows).map(|_| (numbers.below(9) > 0).then(|| numbers.below(10) as i32)).collect();
    let notes: StringArray = (0..rows).map(|row| Some(format!("note {}", row % 5))).collect();
    let columns: [ArrayRef; 6] =
        [Arc::new(ints), Arc::new(floats), Arc::new(texts), Arc::new(ids), Arc::new(some), Arc::new(notes)];
    RecordBatch::try_new(schema(side), columns.to_vec()).unwrap()
}
