//! Tests that filters have no false negatives and few false positives, and that a value has one hash however it is stored.

#![allow(clippy::unwrap_used)]

use arrow::array::{Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{Field, IntervalUnit, Schema, TimeUnit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::Account;

use super::*;
use crate::tier::codec;

/// Makes random numbers, many equal or all different, some null.
fn numbers(rng: &mut StdRng, rows: usize) -> Int64Array {
    let range = [1, 50, 5000, 1 << 30, i64::MAX][rng.random_range(0..5)];
    let start = if range == i64::MAX { 0 } else { rng.random_range(-(1_i64 << 40)..1 << 40) };
    let null = rng.random_range(0..4);
    let value = |rng: &mut StdRng| Some(start + rng.random_range(0..range)).filter(|_| rng.random_range(0..4) >= null);
    (0..rows).map(|_| value(rng)).collect()
}

/// Converts numbers to every type that has filters and can represent them.
fn arrays(numbers: &Int64Array) -> Vec<ArrayRef> {
    let texts = [" {}", "value {} of a column of texts"];
    let texts = texts
        .map(|text| numbers.iter().map(|v| v.map(|v| text.replace("{}", &v.to_string()))).collect::<StringArray>());
    let decimals: Decimal128Array = numbers.iter().map(|v| v.map(|v| i128::from(v) << 20)).collect();
    let mut all: Vec<ArrayRef> = vec![
        Arc::new(numbers.clone()),
        Arc::new(decimals.with_precision_and_scale(38, 2).unwrap()),
        cast(numbers, &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))).unwrap(),
    ];
    let [short, long] = texts.map(|texts| Arc::new(texts) as ArrayRef);
    for to in [DataType::Utf8View, DataType::LargeUtf8, DataType::Binary, DataType::BinaryView] {
        all.push(cast(&short, &to).unwrap());
        all.push(cast(&long, &to).unwrap());
    }
    all.extend([short, long]);
    // Numbers that do not fit become null, perhaps all of them.
    let narrow = [DataType::Int8, DataType::Int16, DataType::Int32, DataType::UInt8, DataType::UInt64];
    all.extend(narrow.map(|to| cast(numbers, &to).unwrap()));
    all.push(cast(all.iter().find(|a| *a.data_type() == DataType::Int32).unwrap(), &DataType::Date32).unwrap());
    all
}

fn built(values: &ArrayRef) -> Option<SegmentFilter> {
    let filter = NewFilter::from_values(&HashedValues::from_array(values).unwrap())?;
    let charge = Account::new("filters", u64::MAX).try_charge(filter.bytes()).unwrap();
    Some(filter.with_charge(charge, Arc::default(), 0))
}

#[test]
fn no_value_of_any_type_is_denied() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let rows = [1, 2, 3, 4, 5, 17, 300, 9000][rng.random_range(0..8)];
        for array in arrays(&numbers(&mut rng, rows)) {
            let filter = built(&array);
            assert_eq!(filter.is_none(), array.null_count() == array.len(), "seed {seed}, {}", array.data_type());
            let Some(filter) = filter else { continue };
            for row in (0..array.len()).filter(|row| array.is_valid(*row)) {
                let value = HashedValues::from_array(&array.slice(row, 1)).unwrap();
                assert!(filter.may_contain(&value), "seed {seed}, {}, row {row}", array.data_type());
            }
            assert!(!filter.may_contain(&HashedValues::from_array(&array.slice(0, 0)).unwrap()));
        }
    }
}

#[test]
fn few_other_values_pass_and_the_size_is_as_said() {
    for (seed, distinct) in [(1, 3), (2, 100), (3, 10_000), (4, 65_536)] {
        let mut rng = StdRng::seed_from_u64(seed);
        let start: i64 = rng.random_range(-(1 << 50)..1 << 50);
        let held: ArrayRef = Arc::new(Int64Array::from_iter_values((0..65_536).map(|row| start + row % distinct)));
        let filter = built(&held).unwrap();
        let asked = 100_000;
        let passed = (1..=asked)
            .map(|step| Arc::new(Int64Array::from(vec![start + distinct + step * step])) as ArrayRef)
            .filter(|value| filter.may_contain(&HashedValues::from_array(value).unwrap()))
            .count();
        assert!(passed < asked as usize / 100, "{passed} of {asked} pass, of {distinct} values");
        assert!(filter.bytes() < 200 + distinct as u64 * 3 / 2, "{} bytes of {distinct} values", filter.bytes());
    }
}

/// Compares the column as stored in its file with the declared type.
#[test]
fn narrow_and_declared_values_are_the_same() {
    let mut rng = StdRng::seed_from_u64(7);
    for top in [100, 30_000, 2_000_000_000] {
        let numbers: Int64Array = (0..1000).map(|_| Some(rng.random_range(-top..top))).collect();
        let decimals: Decimal128Array = numbers.iter().map(|v| v.map(i128::from)).collect();
        let columns: [ArrayRef; 2] = [Arc::new(numbers), Arc::new(decimals.with_precision_and_scale(38, 2).unwrap())];
        for column in columns {
            let field = Arc::new(Field::new("c", column.data_type().clone(), true));
            let (stored, narrow) = codec::narrow_column(&field, std::slice::from_ref(&column), None).unwrap();
            assert_ne!(stored.data_type(), column.data_type());
            assert_eq!(HashedValues::from_array(&narrow), HashedValues::from_array(&column));
            let schema = Arc::new(Schema::new(vec![field]));
            assert!(RecordBatch::try_new(schema, vec![column]).is_ok());
        }
    }
}

#[test]
fn types_whose_equality_is_not_that_of_bytes_have_none() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN]));
    let none = |data_type: DataType| HashedValues::from_array(&arrow::array::new_null_array(&data_type, 3)).is_none();
    assert!(HashedValues::from_array(&floats).is_none());
    assert!(none(DataType::Float16) && none(DataType::Float32) && none(DataType::Boolean));
    assert!(none(DataType::Interval(IntervalUnit::MonthDayNano)) && none(DataType::new_list(DataType::Int64, true)));
    assert!(none(DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))));
}
