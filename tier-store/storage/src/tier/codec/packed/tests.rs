//! Packed columns against the arrays that they were made of.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::Error;

use super::super::random_batch::{data_types, random_array};
use super::super::{NumberFilter, NumberSet, PAGE_ROWS, PackedColumn, TextSet, pack, packed_bytes};
use super::HEADER_BYTES;

/// An image at an aligned address.
fn aligned(image: &[u8]) -> Buffer {
    crate::io::AlignedBuffer::copy_of(image, 64).unwrap().into_arrow(None)
}

fn packed(array: &ArrayRef) -> PackedColumn {
    let image = pack(array).unwrap();
    let measured = packed_bytes(array).unwrap() as f64;
    match array.data_type().primitive_width() {
        Some(_) => assert_eq!(measured, image.len() as f64),
        // The shape of the first rows is that of the others.
        None => assert!((measured / image.len() as f64 - 1.0).abs() < 0.15, "{measured} {}", image.len()),
    }
    PackedColumn::open(aligned(&image), array.data_type(), array.len()).unwrap()
}

/// Compares all rows, random ranges and single rows with the array.
fn check_rows(array: &ArrayRef, rng: &mut StdRng) -> PackedColumn {
    let column = packed(array);
    let rows = array.len();
    assert_eq!((column.rows(), column.data_type()), (rows, array.data_type()));
    assert_eq!(&column.unpack(0..rows).unwrap(), array);
    for _ in 0..12 {
        let start = rng.random_range(0..=rows);
        let most = if rng.random_bool(0.3) { 20 } else { rows };
        let end = (start + rng.random_range(0..=most)).min(rows);
        assert_eq!(&column.unpack(start..end).unwrap(), &array.slice(start, end - start), "{start}..{end}");
    }
    if rows > 0 {
        let row = rng.random_range(0..rows);
        assert_eq!(&column.unpack(row..row + 1).unwrap(), &array.slice(row, 1));
    }
    // Only some rows.
    let start = rng.random_range(0..=rows);
    let share = [0.01, 0.5][rng.random_range(0..2)];
    let mask = BooleanArray::from_iter((start..rows).map(|_| Some(rng.random_bool(share))));
    let some = column.unpack_selected(start..rows, mask.values()).unwrap();
    let filter = |array: &ArrayRef| arrow::compute::filter(array, &mask).unwrap();
    assert_eq!(&filter(&some), &filter(&array.slice(start, rows - start)));
    assert!(column.unpack(0..rows + 1).is_err());
    column
}

/// Compares bounds and tests for ranges of values, too.
fn check(array: &ArrayRef, rng: &mut StdRng) {
    let column = check_rows(array, rng);
    let rows = array.len();
    let wide = |array: &ArrayRef| -> Vec<Option<i128>> {
        let text = arrow::compute::cast(&integers(array), &DataType::Utf8).unwrap();
        text.as_string::<i32>().iter().map(|text| text.map(|text| text.parse().unwrap())).collect()
    };
    let all = wide(array);
    for _ in 0..12 {
        let mut bound = |extreme: i128| match rng.random_range(0..6) {
            0 => extreme,
            1 => rng.random::<i64>().into(),
            _ if rows == 0 => 0,
            _ => all[rng.random_range(0..rows)].unwrap_or(0) + rng.random_range(-1..=1_i128),
        };
        let values = bound(i128::MIN)..=bound(i128::MAX);
        let start = rng.random_range(0..=rows);
        let range = start..rng.random_range(start..=rows);
        let expected: BooleanArray =
            all[range.clone()].iter().map(|value| value.map(|value| values.contains(&value))).collect();
        assert_eq!(column.within(range.clone(), &values).unwrap().unwrap(), expected, "{range:?} {values:?}");
    }
    assert!(column.within(0..rows + 1, &(0..=0)).unwrap().is_err());
    check_lists(&column, &all, rng);
    check_filter(&column, &all, rng);
    let pages = (0..rows).step_by(PAGE_ROWS).map(|first| array.slice(first, PAGE_ROWS.min(rows - first)));
    let bounds = pages.map(|page| {
        let values = wide(&page);
        let least = values.iter().flatten().min().copied();
        least.zip(values.iter().flatten().max().copied())
    });
    assert!(column.bounds().unwrap().eq(bounds));
}

/// Compares tests for lists of values with the values: none, few, and many of them, in and out of the column.
fn check_lists(column: &PackedColumn, all: &[Option<i128>], rng: &mut StdRng) {
    let rows = all.len();
    for _ in 0..3 {
        let count = [0, 1, 2, 4, 5, 60, 4000][rng.random_range(0..7)];
        let mut value = || match rng.random_range(0..8) {
            0 => i128::from(rng.random::<i64>()),
            1 => [i128::MIN, i128::MAX][rng.random_range(0..2)],
            _ if rows == 0 => 0,
            2 => all[rng.random_range(0..rows)].unwrap_or(0) + 1,
            _ => all[rng.random_range(0..rows)].unwrap_or(0),
        };
        let values: HashSet<i128> = (0..count).map(|_| value()).collect();
        let start = rng.random_range(0..=rows);
        let range = start..rng.random_range(start..=rows);
        let expected: BooleanArray =
            all[range.clone()].iter().map(|value| value.map(|value| values.contains(&value))).collect();
        let set = NumberSet::new(values.iter().copied());
        assert_eq!(column.among_numbers(range.clone(), &set).unwrap().unwrap(), expected, "{range:?} {set:?}");
    }
    // Each value of the column.
    let set = NumberSet::new(all.iter().flatten().copied());
    let found = column.among_numbers(0..rows, &set).unwrap().unwrap();
    assert!(found.iter().flatten().all(|found| found));
    assert_eq!(found.null_count(), column.null_count());
    assert!(column.among_numbers(0..rows + 1, &set).unwrap().is_err());
    assert!(column.among_texts(0..rows, &TextSet::new(["1"])).is_none());
}

/// Multiples of a number.
struct Multiples(i64);

impl NumberFilter for Multiples {
    fn any_in(&self, values: &RangeInclusive<i64>) -> bool {
        values.end().abs_diff(*values.start()) > 99 || values.clone().any(|value| self.passes(value))
    }

    fn passes(&self, value: i64) -> bool {
        value.wrapping_rem_euclid(self.0) == 0
    }
}

fn check_filter(column: &PackedColumn, all: &[Option<i128>], rng: &mut StdRng) {
    use DataType as D;
    let rows = all.len();
    for number in [1, [2, 7, 1000][rng.random_range(0..3)]] {
        let filter = Multiples(number);
        let start = rng.random_range(0..=rows);
        let range = start..rng.random_range(start..=rows);
        let found = column.filtered(range.clone(), &filter);
        if !matches!(column.data_type(), D::Int8 | D::Int16 | D::Int32 | D::Int64 | D::Date32) {
            assert!(found.is_none());
            continue;
        }
        let passes = |value: i128| filter.passes(i64::try_from(value).unwrap());
        let expected: BooleanArray = all[range.clone()].iter().map(|value| value.map(passes)).collect();
        assert_eq!(found.unwrap().unwrap(), expected, "{range:?} {number}");
        assert!(column.filtered(0..rows + 1, &filter).unwrap().is_err());
    }
}

/// Compares tests for lists of texts with the texts.
fn check_texts(column: &PackedColumn, all: &[Option<Vec<u8>>], rng: &mut StdRng) {
    let rows = all.len();
    for count in [0, 1, 2, 30] {
        let mut text = || {
            let mut text = match rows {
                0 => Vec::new(),
                _ => all[rng.random_range(0..rows)].clone().unwrap_or_default(),
            };
            match rng.random_range(0..8) {
                0 => text.clear(),
                1 => text.truncate(text.len().saturating_sub(1)),
                2 => text.push(rng.random()),
                // Another text of the same length.
                3 => text.iter_mut().rev().take(1).for_each(|byte| *byte ^= 1),
                _ => {}
            }
            text
        };
        let texts: HashSet<Vec<u8>> = (0..count).map(|_| text()).collect();
        let start = rng.random_range(0..=rows);
        let range = start..rng.random_range(start..=rows);
        let expected: BooleanArray =
            all[range.clone()].iter().map(|text| text.as_ref().map(|text| texts.contains(text))).collect();
        let set = TextSet::new(&texts);
        assert_eq!(column.among_texts(range.clone(), &set).unwrap().unwrap(), expected, "{range:?} {texts:?}");
    }
    let set = TextSet::new(all.iter().flatten());
    assert!(column.among_texts(0..rows, &set).unwrap().unwrap().iter().flatten().all(|found| found));
    assert!(column.among_texts(0..rows + 1, &set).unwrap().is_err());
    assert!(column.among_numbers(0..rows, &NumberSet::new([0])).is_none());
    assert!(column.filtered(0..rows, &Multiples(1)).is_none());
}

/// The numbers of a column, without scale and unit.
fn integers(array: &ArrayRef) -> ArrayRef {
    let to = match array.data_type().primitive_width().unwrap() {
        _ if array.data_type().is_integer() => return Arc::clone(array),
        4 => DataType::Int32,
        8 => DataType::Int64,
        _ => DataType::Decimal128(38, 0),
    };
    make_array(array.to_data().into_builder().data_type(to).build().unwrap())
}

/// Numbers of a shape that a column may have.
fn numbers(rng: &mut StdRng, rows: usize) -> Vec<i64> {
    let base = rng.random::<i64>() >> rng.random_range(1..64);
    let range = 1_i64 << rng.random_range(0..62);
    let stride = if rng.random_bool(0.3) { rng.random_range(2..1000) } else { 1 };
    let repeats = if rng.random_bool(0.4) { rng.random_range(1..40) } else { 1 };
    let ascends = rng.random_bool(0.3);
    let mut value = base;
    let draw = |rng: &mut StdRng| base.wrapping_add(rng.random_range(0..=range / stride) * stride);
    let mut left = 0;
    let next = |_| {
        if left == 0 {
            left = rng.random_range(1..=repeats);
            value = if ascends { value.wrapping_add(stride) } else { draw(rng) };
        }
        left -= 1;
        value
    };
    (0..rows).map(next).collect()
}

/// The values as a type stores them: their low bits.
fn array_of(data_type: &DataType, values: &[i64], nulls: Option<NullBuffer>) -> ArrayRef {
    let width = data_type.primitive_width().unwrap();
    let bytes = values.iter().flat_map(|v| i128::from(*v).to_le_bytes().into_iter().take(width)).collect::<Vec<u8>>();
    let array = ArrayData::builder(data_type.clone()).len(values.len()).nulls(nulls).add_buffer(Buffer::from(bytes));
    // Buffers of bytes are not aligned for all types.
    make_array(array.align_buffers(true).build().unwrap())
}

fn packable() -> impl Iterator<Item = DataType> {
    data_types().into_iter().filter(|t| {
        t.primitive_width().is_some_and(|width| width <= 16) && !t.is_floating() && !matches!(t, DataType::Interval(_))
    })
}

#[test]
fn packed_columns_hold_the_values_of_every_type_and_shape() {
    let mut types = 0;
    for seed in 0..terrace_test_support::depth::by_depth(12, 120) {
        let rng = &mut StdRng::seed_from_u64(seed);
        for data_type in packable() {
            let rows = [0, 1, 17, 1024, 1025, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS + 77][rng.random_range(0..8)];
            let share = [0.0, 0.0, 0.02, 0.6, 1.0][rng.random_range(0..5)];
            let nulls = (share > 0.0).then(|| NullBuffer::from_iter((0..rows).map(|_| !rng.random_bool(share))));
            let values = numbers(rng, rows);
            check(&array_of(&data_type, &values, nulls.filter(|nulls| nulls.null_count() > 0)), rng);
            types += 1;
        }
    }
    assert!(types > 12 * 20);
}

#[test]
fn random_values_of_all_types_are_packed_or_refused() {
    let rng = &mut StdRng::seed_from_u64(5);
    for data_type in data_types() {
        let array = random_array(rng, &data_type, 2000, 0.1);
        match pack(&array) {
            Some(_) if data_type.primitive_width().is_none() => drop(check_rows(&array, rng)),
            Some(_) => check(&array, rng),
            None => {
                assert!(
                    packable().all(|packable| packable != data_type) || array.data_type().primitive_width() == Some(16)
                );
                assert_eq!(packed_bytes(&array), None);
            }
        }
    }
}

#[test]
fn decimals_use_the_bits_of_their_page() {
    // Beyond 64 bits, near each other; then too far from each other.
    let far = 10_i128.pow(30);
    let near = |n: i128| Decimal128Array::from_iter_values((0..n).map(|v| far + v * 7)).with_precision_and_scale(38, 2);
    let array: ArrayRef = Arc::new(near(5000).unwrap());
    check(&array, &mut StdRng::seed_from_u64(1));
    assert_eq!(packed_bytes(&array).unwrap() as usize, HEADER_BYTES + 64 + 5 * 13 * 128, "a stride of 7, and 13 bits");
    let array: ArrayRef = Arc::new(Decimal128Array::from(vec![far, -far]));
    assert_eq!(pack(&array), None);
    let extremes: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX, 0]));
    check(&extremes, &mut StdRng::seed_from_u64(2));
    let extremes: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1 << 63]));
    check(&extremes, &mut StdRng::seed_from_u64(3));
}

#[test]
fn bytes_follow_from_the_shape() {
    let bytes = |values: Vec<i64>| {
        let array: ArrayRef = Arc::new(Int64Array::from(values));
        (packed_bytes(&array).unwrap() as usize).saturating_sub(HEADER_BYTES + 64)
    };
    let rows = PAGE_ROWS as i64;
    assert_eq!(bytes(vec![77; PAGE_ROWS]), 0, "a constant");
    assert_eq!(bytes((0..rows).map(|v| v % 50 * 100).collect()), PAGE_ROWS * 6 / 8, "50 multiples of 100");
    assert_eq!(bytes((0..rows).map(|v| v % 3).collect()), PAGE_ROWS * 2 / 8);
    // 2,048 runs of four: two blocks of 11 bits, and of 3 bits for their lengths.
    assert_eq!(bytes((0..rows).map(|v| v / 4).collect()), 2 * (11 + 3) * 128);
    let nulls: ArrayRef = Arc::new(Int32Array::from(vec![None; 100]));
    assert_eq!(packed_bytes(&nulls), Some(HEADER_BYTES as u64 + 64 + 48));
}

#[test]
fn damage_is_an_error_or_other_values_but_nothing_worse() {
    let rng = &mut StdRng::seed_from_u64(9);
    let rows = 2 * PAGE_ROWS + 5;
    let values = numbers(rng, rows);
    let runs: Vec<i64> = (0..rows as i64).map(|v| v / 9 * 3).collect();
    let types = [DataType::Int64, DataType::UInt8, DataType::Int16, DataType::Date32, DataType::Decimal128(38, 2)];
    let mut refused = 0;
    for (values, data_type) in [values, runs].iter().flat_map(|values| types.iter().map(move |t| (values, t))) {
        let nulls = NullBuffer::from_iter((0..rows).map(|row| row % 7 != 0));
        let array = array_of(data_type, values, Some(nulls));
        let image = pack(&array).unwrap();
        let open = |image: &[u8]| PackedColumn::open(aligned(image), data_type, rows);
        for len in (0..image.len()).step_by(97) {
            assert!(matches!(open(&image[..len]), Err(Error::Corrupt { .. })), "cut at {len}");
        }
        assert!(PackedColumn::open(aligned(&image), &DataType::Int32, rows).is_err() || *data_type == DataType::Date32);
        assert!(PackedColumn::open(aligned(&image), data_type, rows - 1).is_err());
        assert!(PackedColumn::open(aligned(&image).slice(1), data_type, rows).is_err());
        for _ in 0..terrace_test_support::depth::by_depth(600, 20_000) {
            let mut damaged = image.clone();
            // Mostly in the header, the validity and the descriptors.
            let most = if rng.random_bool(0.8) { HEADER_BYTES + rows / 8 + 300 } else { damaged.len() };
            let at = rng.random_range(0..most.min(damaged.len()));
            damaged[at] ^= 1 << rng.random_range(0..8);
            let tested = |column: PackedColumn| {
                column.within(0..rows, &(-5..=rng.random::<i64>().into())).unwrap()?;
                let some = (0..6).map(|n| i128::from(values[n * 7]) + n as i128 % 2);
                column.among_numbers(0..rows, &NumberSet::new(some)).unwrap()?;
                column.filtered(0..rows, &Multiples(3)).transpose()?;
                column.unpack(0..rows)
            };
            match open(&damaged).and_then(tested) {
                Ok(values) => assert_eq!(values.len(), rows),
                // A later version of the form is not supported.
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. } | Error::Unsupported(_)), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 1000);
}

/// The head and some pages of an image, read as of a file: the rows of these pages are right, the others are zero or empty, and
/// their nulls are right.
#[test]
fn pieces_of_an_image_have_the_rows_of_their_pages() {
    for seed in 0..terrace_test_support::depth::by_depth(30, 600) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let rows = rng.random_range(1..4 * PAGE_ROWS);
        let nulls = rng.random_bool(0.5).then(|| NullBuffer::from_iter((0..rows).map(|_| rng.random_bool(0.8))));
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let array: ArrayRef = match seed % 3 {
            0 => Arc::new(StringViewArray::from_iter_values(texts(rng, rows))),
            _ => array_of(&DataType::Int64, &numbers(rng, rows), nulls),
        };
        let image = pack(&array).unwrap();
        let table = packed(&array).page_table();
        assert_eq!(table.pages.len(), rows.div_ceil(PAGE_ROWS));
        let there: Vec<bool> = table.pages.iter().map(|_| rng.random_bool(0.5)).collect();
        let head = (0, aligned(&image[..table.head_bytes as usize]));
        let pages = table.pages.iter().zip(&there).filter(|((_, len), is_there)| **is_there && *len > 0);
        let pages = pages.map(|((at, len), _)| (*at as usize, aligned(&image[*at as usize..][..*len as usize])));
        let pieces: Vec<(usize, Buffer)> = std::iter::once(head).chain(pages).collect();
        let open = |pieces| PackedColumn::open_pieces(pieces, image.len(), array.data_type(), rows);
        let column = open(pieces.clone()).unwrap();
        let all = column.unpack(0..rows).unwrap();
        all.to_data().validate_full().unwrap();
        assert_eq!((all.len(), all.null_count()), (rows, array.null_count()));
        for (page, is_there) in there.iter().enumerate() {
            let first = page * PAGE_ROWS;
            let len = PAGE_ROWS.min(rows - first);
            if *is_there {
                assert_eq!(&column.unpack(first..first + len).unwrap(), &array.slice(first, len));
            }
        }
        // Without the head, from another place, or of another image, they are none.
        assert!(open(pieces[1..].to_vec()).is_err());
        assert!(open(vec![(64, pieces[0].1.clone())]).is_err());
        assert!(PackedColumn::open_pieces(pieces, image.len() + 1, array.data_type(), rows).is_err());
    }
}

/// Texts of a shape that a column may have; some have bytes that no symbol stands for.
fn texts(rng: &mut StdRng, rows: usize) -> Vec<String> {
    let words = [
        "regular ",
        "ironic ",
        "deposits ",
        "sleep ",
        "über ",
        "https://example.org/",
        "€",
        "",
        "0",
        "\u{0}",
        "a\u{0}",
    ];
    let most = [1, 3, 12, 400][rng.random_range(0..4)];
    let shape = rng.random_range(0..4);
    let text = |row: usize| match shape {
        0 => (0..rng.random_range(0..=most)).map(|_| words[rng.random_range(0..words.len())]).collect(),
        1 => (0..rng.random_range(0..=most)).map(|_| rng.random::<char>()).collect(),
        2 => "the same text in every row, and long".to_owned(),
        _ => format!("customer#{row:09}"),
    };
    (0..rows).map(text).collect()
}

#[test]
fn packed_texts_are_the_texts() {
    for seed in 0..terrace_test_support::depth::by_depth(40, 2000) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let rows = [0, 1, 17, 1024, 1025, 3000, PAGE_ROWS + 1, 2 * PAGE_ROWS + 77][rng.random_range(0..8)];
        let texts = texts(rng, rows);
        let share = [0.0, 0.0, 0.02, 0.6, 1.0][rng.random_range(0..5)];
        let texts = texts.into_iter().map(|text| (!rng.random_bool(share)).then_some(text)).collect::<Vec<_>>();
        let array: ArrayRef = Arc::new(StringViewArray::from_iter(texts.iter().map(Option::as_deref)));
        let column = check_rows(&array, rng);
        assert!(column.bounds().is_none() && column.within(0..rows, &(0..=1)).is_none());
        let as_bytes: Vec<Option<Vec<u8>>> =
            texts.iter().map(|text| text.as_ref().map(|text| text.as_bytes().to_vec())).collect();
        check_texts(&column, &as_bytes, rng);
        // Any bytes, with all that codes may be.
        let mut bytes = |text: &String| text.bytes().map(|byte| byte ^ rng.random::<u8>() & 0x81).collect::<Vec<u8>>();
        let bytes: Vec<Option<Vec<u8>>> = texts.iter().map(|text| text.as_ref().map(&mut bytes)).collect();
        let array: ArrayRef = Arc::new(BinaryViewArray::from_iter(bytes.iter().map(Option::as_deref)));
        let rng = &mut StdRng::seed_from_u64(seed);
        let column = check_rows(&array, rng);
        check_texts(&column, &bytes, rng);
    }
}

#[test]
fn words_take_a_third_of_their_bytes() {
    let rng = &mut StdRng::seed_from_u64(11);
    let words = ["regular ", "ironic ", "deposits ", "accounts ", "sleep ", "carefully ", "final ", "requests "];
    let text = |_| (0..6).map(|_| words[rng.random_range(0..words.len())]).collect::<String>();
    let texts: Vec<String> = (0..60_000).map(text).collect();
    let plain: usize = texts.iter().map(String::len).sum::<usize>() + texts.len() * 16;
    let array: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
    let bytes = packed_bytes(&array).unwrap() as usize;
    assert!(bytes * 4 < plain, "{bytes} of {plain}");
}

#[test]
fn views_of_nulls_are_zero_or_the_column_is_not_packed() {
    let mut views = StringViewArray::from(vec!["abc", "a text that is longer than a view"]);
    let nulls = Some(NullBuffer::from(vec![false, true]));
    // SAFETY: the views are those of a valid array.
    views = unsafe { StringViewArray::new_unchecked(views.views().clone(), views.data_buffers().to_vec(), nulls) };
    let array: ArrayRef = Arc::new(views);
    assert_eq!(pack(&array), None);
}

#[test]
fn damaged_texts_are_an_error_or_other_texts_but_nothing_worse() {
    let rng = &mut StdRng::seed_from_u64(17);
    let mut refused = 0;
    for shape in 0..4 {
        let texts = texts(&mut StdRng::seed_from_u64(shape), PAGE_ROWS + 50);
        let array: ArrayRef = Arc::new(StringViewArray::from_iter_values(&texts));
        let image = pack(&array).unwrap();
        let open = |image: &[u8]| PackedColumn::open(aligned(image), &DataType::Utf8View, array.len());
        for len in (0..image.len()).step_by(997) {
            assert!(matches!(open(&image[..len]), Err(Error::Corrupt { .. })), "cut at {len}");
        }
        assert!(PackedColumn::open(aligned(&image), &DataType::Int64, array.len()).is_err());
        assert!(PackedColumn::open(aligned(&image), &DataType::Utf8View, array.len() - 1).is_err());
        for _ in 0..terrace_test_support::depth::by_depth(300, 30_000) {
            let mut damaged = image.clone();
            let most = if rng.random_bool(0.7) { 5000.min(damaged.len()) } else { damaged.len() };
            let at = rng.random_range(0..most);
            damaged[at] ^= 1 << rng.random_range(0..8);
            let tested = |column: PackedColumn| {
                column.among_texts(0..array.len(), &TextSet::new(texts.iter().step_by(900))).unwrap()?;
                column.unpack(0..array.len())
            };
            match open(&damaged).and_then(tested) {
                // All that Arrow promises of texts holds.
                Ok(values) => values.to_data().validate_full().unwrap(),
                // A later version of the form is not supported.
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. } | Error::Unsupported(_)), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
}
