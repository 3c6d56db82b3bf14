//! Tests the error of estimates, unions, and that equal values have equal hashes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{FixedSizeBinaryArray, Float64Array, Int64Array, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::value_hash::{hash_bytes, hash_float, hash_number};
use super::*;

/// 1.04 / sqrt(256).
const STANDARD_ERROR: f64 = 0.065;

fn numbers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn sketch(array: &ArrayRef) -> Sketch {
    Sketch::from_arrays([array]).unwrap()
}

/// Makes sets of `count` distinct numbers as tables have them: consecutive keys, keys with gaps, arbitrary numbers.
fn sets(rng: &mut StdRng, count: i64) -> [ArrayRef; 3] {
    let start = rng.random_range(-1_000_000_000..1_000_000_000_i64);
    let step = rng.random_range(2..100_000);
    // An odd factor makes no two of them equal.
    let any: i64 = rng.random_range(i64::MIN..i64::MAX) | 1;
    [
        numbers(start..start + count),
        numbers((0..count).map(|i| start + i * step)),
        numbers((0..count).map(|i| (i + start).wrapping_mul(any))),
    ]
}

#[test]
fn estimates_are_within_their_error() {
    let mut rng = StdRng::seed_from_u64(5);
    let counts = [0, 1, 2, 3, 5, 10, 30, 100, 200, 300, 500, 700, 1000, 3000, 10_000, 65_536, 200_000, 1_000_000];
    for count in counts {
        let mut errors = 0.0;
        let mut tried = 0.0;
        for _ in 0..if count > 100_000 { 4 } else { 30 } {
            for set in sets(&mut rng, count) {
                let estimate = sketch(&set).estimate();
                // Few values meet in a register or do not: half a value is left for that.
                let allowed = 4.0 * STANDARD_ERROR * count as f64 + 0.5 * f64::from(count > 0);
                assert!((estimate - count as f64).abs() <= allowed, "{count} values: {estimate}");
                errors += (estimate - count as f64) / count.max(1) as f64;
                tried += 1.0;
            }
        }
        let bias: f64 = errors / tried;
        assert!(bias.abs() < 4.0 * STANDARD_ERROR / f64::sqrt(tried), "{count} values: {bias} too many on average");
    }
}

#[test]
fn texts_are_estimated_as_well_as_numbers() {
    let mut rng = StdRng::seed_from_u64(6);
    for tail in ["", " and more", " behind a common start that is longer than two blocks of hashing"] {
        for count in [7, 150, 5000, 100_000] {
            let salt: u32 = rng.random();
            let before = StringViewArray::from_iter_values((0..count).map(|i| format!("{salt}-{i}{tail}")));
            let after = StringViewArray::from_iter_values((0..count).map(|i| format!("{tail}{salt}-{i}")));
            for texts in [Arc::new(before) as ArrayRef, Arc::new(after)] {
                let estimate = sketch(&texts).estimate();
                let allowed = 4.0 * STANDARD_ERROR * f64::from(count) + 0.5;
                assert!((estimate - f64::from(count)).abs() <= allowed, "{count} texts: {estimate}");
            }
        }
    }
}

#[test]
fn a_union_is_the_sketch_of_all_values() {
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..200 {
        let most = 10_i64.pow(rng.random_range(0..5));
        let range = 10_i64.pow(rng.random_range(1..6));
        let mut some = || -> Vec<i64> {
            let count = rng.random_range(0..=most);
            (0..count).map(|_| rng.random_range(0..range)).collect()
        };
        let a = some();
        let b = some();
        let all = sketch(&numbers(a.iter().chain(&b).copied().collect::<BTreeSet<_>>()));
        let a = numbers(a);
        let b = numbers(b);
        let mut merged = sketch(&a);
        merged.merge(&sketch(&b));
        assert_eq!(merged, all);
        assert_eq!(Sketch::from_arrays([&b, &a]).unwrap(), all);
        let stored = all.encode();
        assert!(stored.len() <= REGISTERS);
        assert_eq!(Sketch::decode(&stored).unwrap(), all);
    }
}

#[test]
fn damaged_sketches_are_refused() {
    for bytes in [vec![0; 257], vec![1; 3], vec![58; 256], vec![0, 58]] {
        assert!(Sketch::decode(&bytes).is_err(), "{bytes:?}");
    }
    assert_eq!(Sketch::decode(&[]).unwrap().estimate(), 0.0);
}

#[test]
fn a_value_hashes_equally_however_it_is_held() {
    let mut rng = StdRng::seed_from_u64(8);
    for round in 0..100 {
        let texts: Vec<Option<String>> = (0..rng.random_range(0..60))
            .map(|_| rng.random_bool(0.8).then(|| "xyé".chars().cycle().take(rng.random_range(0..50)).collect()))
            .collect();
        let views: ArrayRef = Arc::new(StringViewArray::from(texts));
        let offset = rng.random_range(0..=views.len());
        for views in [views.slice(offset, views.len() - offset), views] {
            let key = Box::new(DataType::Int32);
            for other in [
                DataType::Utf8,
                DataType::LargeUtf8,
                DataType::BinaryView,
                DataType::Binary,
                DataType::LargeBinary,
                DataType::Dictionary(key.clone(), Box::new(DataType::Utf8)),
                DataType::Dictionary(key, Box::new(DataType::Utf8View)),
            ] {
                let held = cast(&views, &other).unwrap();
                assert_eq!(sketch(&held), sketch(&views), "round {round}, {other}");
            }
        }
        let values: ArrayRef = Arc::new(Int64Array::from_iter(
            (0..rng.random_range(0..60)).map(|_| rng.random_bool(0.8).then(|| rng.random_range(-128..128))),
        ));
        for other in [
            DataType::Int8,
            DataType::Int16,
            DataType::Int32,
            DataType::Decimal32(9, 0),
            DataType::Decimal64(18, 0),
            DataType::Decimal128(30, 0),
            DataType::Decimal256(60, 0),
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        ] {
            let held = cast(&values, &other).unwrap();
            assert_eq!(sketch(&held), sketch(&values), "round {round}, {other}");
        }
        let doubles = cast(&values, &DataType::Float64).unwrap();
        for other in [DataType::Float32, DataType::Float16] {
            assert_eq!(sketch(&cast(&doubles, &other).unwrap()), sketch(&doubles), "round {round}, {other}");
        }
    }
}

/// Stored sketches must stay valid in later versions and on other machines.
#[test]
fn hashes_never_change() {
    let texts = ["", "twelve bytes", "thirteen byte", "sixteen bytes ..", "a text of two blocks and a bit, or so"];
    assert_eq!(
        texts.map(|text| hash_bytes(text.as_bytes())),
        [16294208416658607535, 6641403575115084031, 13436134465714169427, 11566165454587086639, 13856719547323527712]
    );
    let numbers = [hash_number(0_i32), hash_number(-1_i8), hash_number(u64::MAX), hash_number(1_i128 << 100)];
    assert_eq!(numbers, [16294208416658607535, 16490336266968443936, 924676423309824774, 3616593379463379725]);
    assert_eq!(hash_float(1.5), 15481881892811333770);
}

#[test]
fn nulls_are_no_values_and_nested_types_are_not_counted() {
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(4), None]));
    assert_eq!(sketch(&nulls), sketch(&numbers([4, 4])));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN]));
    assert_eq!(sketch(&floats).estimate().round(), 2.0);
    let flags: ArrayRef = Arc::new(arrow::array::BooleanArray::from(vec![Some(true), None, Some(false), Some(true)]));
    assert_eq!(sketch(&flags).estimate().round(), 2.0);
    let fixed: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([b"ab", b"cd", b"ab"].iter()).unwrap());
    assert_eq!(sketch(&fixed).estimate().round(), 2.0);
    let list = DataType::new_list(DataType::Int64, true);
    assert!(Sketch::from_arrays([&arrow::array::new_empty_array(&list)]).is_none());
}
