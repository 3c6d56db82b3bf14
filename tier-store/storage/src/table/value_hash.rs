//! Hashes values: 64 bits that depend on the value alone, not on the width of its type or the array that holds it.
//! Nulls have no hash.
//!
//! Stored sketches are built from these hashes, so they are part of the file format.

use std::ops::Range;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteArray, GenericByteViewArray, PrimitiveArray, downcast_primitive_array,
    make_view,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, ArrowPrimitiveType, ByteArrayType, ByteViewType, DataType, Float64Type, ToByteSlice,
};

/// Longest string that lies within an Arrow view.
pub(super) const MAX_INLINE_BYTES: u32 = 12;

/// Calls `visit` with the hash of each value, in any order; for booleans once per distinct value. Returns `None` for
/// nested types, which have no hashes.
pub(super) fn for_each_hash(array: &ArrayRef, visit: &mut impl FnMut(u64)) -> Option<()> {
    if array.data_type().is_floating() {
        numbers::<Float64Type>(cast(array, &DataType::Float64).ok()?.as_primitive(), hash_float, visit);
        return Some(());
    }
    let array = array.as_ref();
    downcast_primitive_array! {
        array => numbers(array, hash_number, visit),
        DataType::Utf8View => views(array.as_string_view(), visit),
        DataType::BinaryView => views(array.as_binary_view(), visit),
        DataType::Utf8 => bytes(array.as_string::<i32>(), visit),
        DataType::LargeUtf8 => bytes(array.as_string::<i64>(), visit),
        DataType::Binary => bytes(array.as_binary::<i32>(), visit),
        DataType::LargeBinary => bytes(array.as_binary::<i64>(), visit),
        DataType::FixedSizeBinary(_) => {
            array.as_fixed_size_binary().iter().flatten().for_each(|value| visit(hash_bytes(value)));
        }
        DataType::Boolean => {
            let values = array.as_boolean();
            if values.true_count() > 0 {
                visit(mix(1));
            }
            if values.false_count() > 0 {
                visit(mix(0));
            }
        }
        DataType::Dictionary(_, values) => for_each_hash(&cast(array, values).ok()?, visit)?,
        _ => return None,
    }
    Some(())
}

fn numbers<T: ArrowPrimitiveType>(
    array: &PrimitiveArray<T>,
    hash: impl Fn(T::Native) -> u64,
    visit: &mut impl FnMut(u64),
) {
    for range in valid_ranges(array) {
        array.values().get(range).unwrap_or_default().iter().for_each(|value| visit(hash(*value)));
    }
}

fn bytes<T: ByteArrayType>(array: &GenericByteArray<T>, visit: &mut impl FnMut(u64)) {
    for row in valid_ranges(array).flatten() {
        visit(hash_bytes(array.value(row).as_ref()));
    }
}

fn views<T: ByteViewType + ?Sized>(array: &GenericByteViewArray<T>, visit: &mut impl FnMut(u64)) {
    for range in valid_ranges(array) {
        for (row, view) in range.clone().zip(array.views().get(range).unwrap_or_default()) {
            visit(match *view as u32 {
                ..=MAX_INLINE_BYTES => hash_view(*view),
                _ => hash_long(array.value(row).as_ref()),
            });
        }
    }
}

/// The ranges of rows that are not null.
pub(super) fn valid_ranges(array: &dyn Array) -> impl Iterator<Item = Range<usize>> {
    let all = array.nulls().is_none().then_some(0..array.len());
    let parts = array.nulls().into_iter().flat_map(NullBuffer::valid_slices).map(|(start, end)| start..end);
    all.into_iter().chain(parts)
}

/// Hashes a number, a date, a time or an interval.
#[inline]
pub(super) fn hash_number<T: ArrowNativeType>(value: T) -> u64 {
    value.to_i64().map_or_else(|| hash_bytes(value.to_byte_slice()), |value| mix(value as u64))
}

/// Hashes a float: both zeros have one hash, and all NaNs have one.
pub(super) fn hash_float(value: f64) -> u64 {
    mix(if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() })
}

/// Hashes a string that lies within its view: length, bytes, padding of zeros.
#[inline]
fn hash_view(view: u128) -> u64 {
    mix(view as u64 ^ ((view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer of SplitMix64: one to one, every bit of the hash depends on all bits of the value.
#[inline]
fn mix(word: u64) -> u64 {
    let x = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes a string or binary value.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    match bytes.len() <= MAX_INLINE_BYTES as usize {
        true => hash_view(make_view(bytes, 0, 0)),
        false => hash_long(bytes),
    }
}

/// Hashes blocks of 16 bytes by a folded multiplication each; the last block ends at the end and may overlap the one
/// before.
#[inline]
fn hash_long(bytes: &[u8]) -> u64 {
    let fold = |hash: u64, low: u64, high: u64| {
        let product = u128::from(low ^ hash) * u128::from(high ^ 0x8bb8_4b93_962e_acc9);
        product as u64 ^ (product >> 64) as u64
    };
    let block = |hash, block: &[u8; 16]| {
        let block = u128::from_le_bytes(*block);
        fold(hash, block as u64, (block >> 64) as u64)
    };
    let start = bytes.len() as u64 ^ 0x2d35_8dcc_aa6c_78a5;
    let hash = bytes.as_chunks::<16>().0.iter().fold(start, block);
    mix(match (bytes.last_chunk::<16>(), bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(last), ..) => block(hash, last),
        (None, Some(first), Some(last)) => fold(hash, u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => hash,
    })
}
