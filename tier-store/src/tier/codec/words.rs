//! Dictionaries of texts: a column of few different values lies in its file, and in memory, as numbers of these values.
//!
//! In the file it is a dictionary column of Arrow (keys of one or two bytes, values Utf8), which any Arrow tool reads. The
//! values are in the catalog too, beside the column's home, so that a read fetches the keys alone. A scan puts the values
//! in their place slice by slice: one view of 16 bytes for a key, nothing of the text is copied.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, DictionaryArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{ArrowDictionaryKeyType, ArrowNativeType, DataType, UInt8Type, UInt16Type};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::corrupt;
use super::encode::{footer, message};
use super::packed::Packed;
use crate::error::Result;

/// Most bytes of all values, as they are in the catalog.
const MOST_BYTES: usize = 16 << 10;
/// What a key and its value take together is at most this share of the column as it was.
const MOST_SHARE: f64 = 0.5;
/// Texts up to this length lie within a view.
const MOST_INLINE: u32 = 12;
/// Places of the table of short values seen last.
const PLACES: usize = 1024;

/// The different values of a column, by their keys.
#[derive(Clone)]
pub struct Words(StringViewArray);

/// How a column of few different texts is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worded {
    /// Bytes of a key: 1 or 2.
    pub width: u8,
    /// What the keys stand for.
    pub words: Words,
    /// How the keys are compressed, where they are.
    pub packed: Option<Packed>,
}

impl Worded {
    /// The type of the keys.
    pub(super) fn key_type(&self) -> DataType {
        if self.width == 1 { DataType::UInt8 } else { DataType::UInt16 }
    }
}

impl Words {
    /// One after the other.
    pub fn values(&self) -> &StringViewArray {
        &self.0
    }

    /// Bytes of a row at most, once the text is copied for each.
    pub fn most_row_bytes(&self) -> u64 {
        let longest = self.0.views().iter().map(|view| *view as u32).max().unwrap_or(0);
        size_of::<u128>() as u64 + u64::from(if longest > MOST_INLINE { longest } else { 0 })
    }

    /// True for the very same, not only equal ones.
    pub fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.views().as_ptr(), other.0.views().as_ptr())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Fails when a key stands for nothing.
    pub(super) fn check(&self, keys: &ArrayRef) -> Result<()> {
        let most = match keys.data_type() {
            DataType::UInt8 => arrow::compute::max(keys.as_primitive::<UInt8Type>()).map(u64::from),
            DataType::UInt16 => arrow::compute::max(keys.as_primitive::<UInt16Type>()).map(u64::from),
            other => return Err(corrupt(format!("keys of a dictionary are of type {other}"))),
        };
        match most.filter(|most| *most >= self.count() as u64) {
            Some(most) => Err(corrupt(format!("a key is {most}, there are {} values", self.count()))),
            None => Ok(()),
        }
    }

    /// The values that the keys stand for.
    pub(super) fn of_keys(&self, keys: &ArrayRef) -> Option<ArrayRef> {
        match keys.data_type() {
            DataType::UInt8 => Some(self.gather(keys.as_primitive::<UInt8Type>())),
            DataType::UInt16 => Some(self.gather(keys.as_primitive::<UInt16Type>())),
            _ => None,
        }
    }

    fn gather<K: ArrowPrimitiveType>(&self, keys: &PrimitiveArray<K>) -> ArrayRef {
        let words = self.0.views();
        // Under nulls a key may be anything.
        let view = |key: &K::Native| words.get(key.as_usize()).copied().unwrap_or(0);
        let views: Vec<u128> = keys.values().iter().map(view).collect();
        let buffers = self.0.data_buffers().to_vec();
        let nulls = keys.nulls().cloned();
        // SAFETY: each view is one of the words', with their buffers, or the empty text.
        Arc::new(unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views), buffers, nulls) })
    }
}

impl FromIterator<String> for Words {
    fn from_iter<T: IntoIterator<Item = String>>(values: T) -> Self {
        Self(StringViewArray::from_iter_values(values))
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().flatten()).finish()
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for Words {}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Option::unwrap_or_default))
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// True for a column of a file that holds a column declared as `declared` as keys.
pub(super) fn stands_for(stored: &DataType, declared: &DataType) -> bool {
    let DataType::Dictionary(key, value) = stored else { return false };
    matches!(**key, DataType::UInt8 | DataType::UInt16) && **value == DataType::Utf8 && *declared == DataType::Utf8View
}

/// The column as a dictionary, its values in the order in which they come; `None` where that saves too little.
pub(super) fn worded(column: &ArrayRef) -> Option<ArrayRef> {
    let array = column.as_string_view_opt()?;
    let plain = array.len() * size_of::<u128>() + super::long_bytes(array, 0..array.len());
    let (keys, words) = keys(array)?;
    let wide = words.len() > usize::from(u8::MAX) + 1;
    let bytes = array.len() * if wide { 2 } else { 1 } + words.iter().map(|word| word.len()).sum::<usize>();
    if bytes as f64 > MOST_SHARE * plain as f64 {
        return None;
    }
    let words = Arc::new(StringArray::from_iter_values(words));
    Some(if wide {
        dictionary::<UInt16Type>(keys.into_iter(), array, words)
    } else {
        dictionary::<UInt8Type>(keys.into_iter().map(|key| key as u8), array, words)
    })
}

fn dictionary<K: ArrowDictionaryKeyType>(
    keys: impl Iterator<Item = K::Native>,
    column: &StringViewArray,
    words: Arc<StringArray>,
) -> ArrayRef {
    let keys = PrimitiveArray::<K>::new(keys.collect(), column.nulls().cloned());
    // SAFETY: each key is the place of a word.
    Arc::new(unsafe { DictionaryArray::<K>::new_unchecked(keys, words) })
}

/// The key of each row, 0 under nulls, and the values in order of their keys; `None` when these are too many or too long,
/// or there is none.
fn keys(array: &StringViewArray) -> Option<(Vec<u16>, Vec<&str>)> {
    let mut words = Vec::new();
    let mut known = HashMap::<&str, u16>::new();
    let mut keys = Vec::with_capacity(array.len());
    let mut bytes = 0;
    // The view of a short value and its key.
    let mut seen = vec![(u128::MAX, 0_u16); PLACES];
    let nulls = array.nulls();
    for (row, view) in array.views().iter().enumerate() {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            keys.push(0);
            continue;
        }
        let place = seen.get_mut(place(*view))?;
        if place.0 == *view {
            keys.push(place.1);
            continue;
        }
        let word = array.value(row);
        let key = match known.get(word) {
            Some(key) => *key,
            None => {
                let key = u16::try_from(words.len()).ok()?;
                bytes += word.len();
                words.push(word);
                known.insert(word, key);
                key
            }
        };
        if bytes > MOST_BYTES {
            return None;
        }
        // The view of a long one says where it lies: another row's may be equal without being the same.
        if *view as u32 <= MOST_INLINE {
            *place = (*view, key);
        }
        keys.push(key);
    }
    (!words.is_empty()).then_some((keys, words))
}

fn place(view: u128) -> usize {
    let word = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (u64::BITS - PLACES.trailing_zeros())) as usize
}

/// The values of the dictionaries in a file, by the number of the dictionary.
pub(super) fn in_file(file: &[u8]) -> Result<HashMap<i64, Words>> {
    let footer = footer(file)?;
    let mut found = HashMap::new();
    for block in footer.dictionaries().into_iter().flatten() {
        let (message, body) = message(file, block)?;
        let batch = message.header_as_dictionary_batch();
        let batch = batch.and_then(|batch| Some((batch.id(), batch.data()?)));
        let (id, data) = batch.ok_or_else(|| corrupt("a dictionary cannot be read"))?;
        let words = words(&data, body).ok_or_else(|| corrupt("a dictionary is no list of texts"))?;
        found.insert(id, words);
    }
    Ok(found)
}

fn words(data: &arrow_ipc::RecordBatch<'_>, body: &[u8]) -> Option<Words> {
    let count = usize::try_from(data.nodes()?.iter().next()?.length()).ok()?;
    let mut buffers = data.buffers()?.iter().skip(1).map(|buffer| {
        let start = usize::try_from(buffer.offset()).ok()?;
        body.get(start..start.checked_add(usize::try_from(buffer.length()).ok()?)?)
    });
    let offsets = buffers.next()??;
    let text = buffers.next()??;
    let offset = |place: usize| {
        let bytes = offsets.get(place.checked_mul(4)?..)?.first_chunk()?;
        usize::try_from(i32::from_le_bytes(*bytes)).ok()
    };
    let word = |place: usize| {
        let bytes = text.get(offset(place)?..offset(place + 1)?)?;
        Some(std::str::from_utf8(bytes).ok()?.to_owned())
    };
    // Not more than there are offsets, whatever is said.
    (0..count.min(offsets.len() / 4)).map(word).collect::<Option<Words>>().filter(|words| words.count() == count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn values_come_back_from_their_keys() {
        let mut rng = StdRng::seed_from_u64(31);
        let mut narrow = 0;
        let mut wide = 0;
        let mut not = 0;
        for round in 0..300 {
            let rows = rng.random_range(0..6_000_usize);
            let different = 1 << rng.random_range(0..12_u32);
            let long = rng.random_bool(0.3);
            let nulls = rng.random_bool(0.5);
            let value = |number: u32| if long { format!("{number:0>20}") } else { format!("{number}") };
            let values: Vec<Option<String>> = (0..rows)
                .map(|_| (!nulls || rng.random_bool(0.8)).then(|| value(rng.random_range(0..different))))
                .collect();
            let column: ArrayRef = Arc::new(values.iter().map(Option::as_deref).collect::<StringViewArray>());
            let Some(found) = worded(&column) else {
                not += 1;
                assert!(rows < 100 || different > 300, "round {round}: {rows} rows of {different}");
                continue;
            };
            let DataType::Dictionary(key, _) = found.data_type() else { unreachable!() };
            if **key == DataType::UInt8 {
                narrow += 1
            } else {
                wide += 1
            }
            let dictionary = found.as_any_dictionary();
            let words: Words = dictionary.values().as_string::<i32>().iter().map(|word| word.unwrap().into()).collect();
            let keys = arrow::array::make_array(dictionary.keys().to_data());
            words.check(&keys).unwrap();
            assert_eq!(words.most_row_bytes(), if long { 36 } else { 16 });
            assert_eq!(&words.of_keys(&keys).unwrap(), &column, "round {round}");
            let json = serde_json::to_string(&words).unwrap();
            assert_eq!(serde_json::from_str::<Words>(&json).unwrap(), words);
            let fewer: Words = (1..words.count()).map(|n| n.to_string()).collect();
            assert!(fewer.check(&keys).is_err(), "a key too many");
        }
        assert!(narrow > 50 && wide > 50 && not > 10, "{narrow}, {wide}, {not}");
    }
}
