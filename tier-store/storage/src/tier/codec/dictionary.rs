//! Dictionary encoding of texts: a column of few distinct values is stored, in its file and in memory, as keys into a
//! dictionary of these values.
//!
//! In the file it is a dictionary column of Arrow (keys of one or two bytes, values Utf8), which any Arrow tool reads. The
//! catalog holds the values too, beside the column's home, so that a read fetches the keys alone. A scan replaces keys by
//! values slice by slice: it writes one view of 16 bytes per key and copies no text; or, for rows that leave as plain texts, the texts themselves.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, DictionaryArray, PrimitiveArray, StringArray, StringViewArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowDictionaryKeyType, ArrowNativeType, DataType, UInt8Type, UInt16Type};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use terrace_model::Result;

use super::compressed::Compressed;
use super::corrupt;
use super::encode::{footer, message};

/// Most bytes of all values of a dictionary; the catalog stores them.
const MOST_BYTES: usize = 16 << 10;
/// Keys and values together take at most this share of the bytes of the plain column, else the column stays plain.
const MOST_SHARE: f64 = 0.5;
/// Texts up to this length are stored inside a view.
const MOST_INLINE: u32 = 12;
/// Keys for each text of a table of short texts, at least.
const KEYS_PER_TEXT: usize = 8;
/// Slots of the cache from the view of a short value to its key.
const CACHE_SLOTS: usize = 1024;

/// The distinct values of a column of texts, by key.
#[derive(Clone)]
pub struct Dictionary(StringViewArray);

/// How a dictionary-encoded column is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DictionaryEncoding {
    /// Bytes of a key: 1 or 2.
    pub width: u8,
    /// The values of the keys.
    #[serde(rename = "words")]
    pub dictionary: Dictionary,
    /// How the keys are compressed; `None` when they are not.
    #[serde(rename = "packed")]
    pub compressed: Option<Compressed>,
}

impl DictionaryEncoding {
    /// The type of the keys.
    pub(super) fn key_type(&self) -> DataType {
        if self.width == 1 { DataType::UInt8 } else { DataType::UInt16 }
    }
}

impl Dictionary {
    /// The dictionary of a column that was encoded with one; `None` for others.
    pub(super) fn from_encoded(column: &ArrayRef) -> Option<Self> {
        let values = column.as_any_dictionary_opt()?.values().as_string_opt::<i32>()?;
        Some(values.iter().map(|value| value.unwrap_or_default().to_owned()).collect())
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> &StringViewArray {
        &self.0
    }

    /// Most bytes of a row when the text is copied for each row.
    pub fn most_row_bytes(&self) -> u64 {
        let longest = self.0.views().iter().map(|view| *view as u32).max().unwrap_or(0);
        size_of::<u128>() as u64 + u64::from(if longest > MOST_INLINE { longest } else { 0 })
    }

    /// True when both share their values in memory; equal copies do not count.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.0.views().as_ptr(), other.0.views().as_ptr())
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Fails when a key has no value.
    pub(super) fn check_keys(&self, keys: &ArrayRef) -> Result<()> {
        let most = match keys.data_type() {
            DataType::UInt8 => arrow::compute::max(keys.as_primitive::<UInt8Type>()).map(u64::from),
            DataType::UInt16 => arrow::compute::max(keys.as_primitive::<UInt16Type>()).map(u64::from),
            other => return Err(corrupt(format!("keys of a dictionary are of type {other}"))),
        };
        most.map_or(Ok(()), |most| self.check_key(most.into()))
    }

    /// Fails when the key has no value.
    pub(super) fn check_key(&self, key: i128) -> Result<()> {
        match usize::try_from(key).is_ok_and(|key| key < self.count()) {
            true => Ok(()),
            false => Err(corrupt(format!("key {key} is outside a dictionary of {} values", self.count()))),
        }
    }

    /// The values of the keys; `None` when `keys` is of no key type.
    pub(super) fn values_of_keys(&self, keys: &ArrayRef) -> Option<ArrayRef> {
        match keys.data_type() {
            DataType::UInt8 => Some(self.gather(keys.as_primitive::<UInt8Type>())),
            DataType::UInt16 => Some(self.gather(keys.as_primitive::<UInt16Type>())),
            _ => None,
        }
    }

    /// The values of the keys as plain texts, empty under nulls; `None` when `keys` is of no key type, or the texts are too many for
    /// an array.
    pub(super) fn texts_of_keys(&self, keys: &ArrayRef) -> Option<ArrayRef> {
        match keys.data_type() {
            DataType::UInt8 => self.copy(keys.as_primitive::<UInt8Type>()),
            DataType::UInt16 => self.copy(keys.as_primitive::<UInt16Type>()),
            _ => None,
        }
    }

    fn copy<K: ArrowPrimitiveType>(&self, keys: &PrimitiveArray<K>) -> Option<ArrayRef> {
        let longest = self.0.views().iter().map(|view| *view as u32 as usize).max().unwrap_or(0);
        // Short texts are copied from a table, as many bytes each, where that is small beside the keys.
        let has_table = self.count() * KEYS_PER_TEXT <= keys.len();
        let texts = match longest {
            0..=16 if has_table => self.short_texts::<16, K>(keys, longest),
            17..=32 if has_table => self.short_texts::<32, K>(keys, longest),
            _ => self.long_texts(keys),
        }?;
        let offsets = OffsetBuffer::new(ScalarBuffer::from(texts.offsets));
        let bytes = Buffer::from_vec(texts.bytes);
        // SAFETY: the texts are whole ones of the dictionary, and each offset lies between two of them.
        Some(Arc::new(unsafe { StringArray::new_unchecked(offsets, bytes, keys.nulls().cloned()) }))
    }

    /// The texts of the keys, none of which has more than `longest` bytes, which are at most `N`.
    fn short_texts<const N: usize, K: ArrowPrimitiveType>(
        &self,
        keys: &PrimitiveArray<K>,
        longest: usize,
    ) -> Option<PlainTexts> {
        let table: Vec<ShortText<N>> = self.0.iter().map(|text| ShortText::new(text.unwrap_or_default())).collect();
        // What is too much of the last one has room as well.
        let mut texts = PlainTexts::with_room(keys.len(), keys.len().checked_mul(longest)?.checked_add(N)?)?;
        for position in positions(keys) {
            if let Some(text) = position.and_then(|position| table.get(position)) {
                let end = texts.bytes.len() + text.length;
                texts.bytes.extend_from_slice(&text.bytes);
                texts.bytes.truncate(end);
            }
            texts.end_text();
        }
        Some(texts)
    }

    fn long_texts<K: ArrowPrimitiveType>(&self, keys: &PrimitiveArray<K>) -> Option<PlainTexts> {
        let views = self.0.views();
        let length = |position: usize| views.get(position).map_or(0, |view| *view as u32 as usize);
        let mut texts = PlainTexts::with_room(keys.len(), positions(keys).flatten().map(length).sum())?;
        for position in positions(keys) {
            if let Some(position) = position.filter(|position| *position < self.count()) {
                texts.bytes.extend_from_slice(self.0.value(position).as_bytes());
            }
            texts.end_text();
        }
        Some(texts)
    }

    fn gather<K: ArrowPrimitiveType>(&self, keys: &PrimitiveArray<K>) -> ArrayRef {
        let values = self.0.views();
        // Under nulls a key may be anything.
        let view = |key: &K::Native| values.get(key.as_usize()).copied().unwrap_or(0);
        let views: Vec<u128> = keys.values().iter().map(view).collect();
        let buffers = self.0.data_buffers().to_vec();
        let nulls = keys.nulls().cloned();
        // SAFETY: each view is one of the dictionary's, with its buffers, or the empty text.
        Arc::new(unsafe { StringViewArray::new_unchecked(ScalarBuffer::from(views), buffers, nulls) })
    }
}

/// Texts, one behind the other.
struct PlainTexts {
    /// 0, and where each ends.
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl PlainTexts {
    /// None yet, with room for so many; `None` where an array cannot have so many bytes.
    fn with_room(texts: usize, bytes: usize) -> Option<Self> {
        i32::try_from(bytes).ok()?;
        let mut offsets = Vec::with_capacity(texts + 1);
        offsets.push(0);
        Some(Self { offsets, bytes: Vec::with_capacity(bytes) })
    }

    /// Ends a text, all of whose bytes were appended.
    fn end_text(&mut self) {
        self.offsets.push(self.bytes.len() as i32);
    }
}

/// A text of up to `N` bytes.
struct ShortText<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> ShortText<N> {
    fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        bytes.iter_mut().zip(text.as_bytes()).for_each(|(to, from)| *to = *from);
        Self { bytes, length: text.len().min(N) }
    }
}

/// The position of the value of each key; `None` for a null.
fn positions<K: ArrowPrimitiveType>(keys: &PrimitiveArray<K>) -> impl Iterator<Item = Option<usize>> {
    let nulls = keys.nulls().filter(|nulls| nulls.null_count() > 0);
    let is_valid = move |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
    keys.values().iter().enumerate().map(move |(row, key)| is_valid(row).then(|| key.as_usize()))
}

impl FromIterator<String> for Dictionary {
    fn from_iter<T: IntoIterator<Item = String>>(values: T) -> Self {
        Self(StringViewArray::from_iter_values(values))
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().flatten()).finish()
    }
}

impl PartialEq for Dictionary {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(other.0.iter())
    }
}

impl Eq for Dictionary {}

impl Serialize for Dictionary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Option::unwrap_or_default))
    }
}

impl<'de> Deserialize<'de> for Dictionary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// True when the stored type is a dictionary encoding of a column declared as `declared`.
pub(super) fn stands_for(stored: &DataType, declared: &DataType) -> bool {
    let DataType::Dictionary(key, value) = stored else { return false };
    matches!(**key, DataType::UInt8 | DataType::UInt16) && **value == DataType::Utf8 && *declared == DataType::Utf8View
}

/// The column encoded with a dictionary, whose values are in the order of their first row; `None` where that saves too
/// little.
pub(super) fn dictionary_encoded(column: &ArrayRef) -> Option<ArrayRef> {
    let array = column.as_string_view_opt()?;
    let plain = array.len() * size_of::<u128>() + super::long_bytes(array, 0..array.len());
    let (keys, values) = assign_keys(array)?;
    let wide = values.len() > usize::from(u8::MAX) + 1;
    let bytes = array.len() * if wide { 2 } else { 1 } + values.iter().map(|value| value.len()).sum::<usize>();
    if bytes as f64 > MOST_SHARE * plain as f64 {
        return None;
    }
    let values = Arc::new(StringArray::from_iter_values(values));
    Some(if wide {
        dictionary_array::<UInt16Type>(keys.into_iter(), array, values)
    } else {
        dictionary_array::<UInt8Type>(keys.into_iter().map(|key| key as u8), array, values)
    })
}

fn dictionary_array<K: ArrowDictionaryKeyType>(
    keys: impl Iterator<Item = K::Native>,
    column: &StringViewArray,
    values: Arc<StringArray>,
) -> ArrayRef {
    let keys = PrimitiveArray::<K>::new(keys.collect(), column.nulls().cloned());
    // SAFETY: each key is the position of a value.
    Arc::new(unsafe { DictionaryArray::<K>::new_unchecked(keys, values) })
}

/// The key of each row, 0 under nulls, and the values in the order of their keys; `None` when the values are too many or too
/// long, or when there is none.
fn assign_keys(array: &StringViewArray) -> Option<(Vec<u16>, Vec<&str>)> {
    let mut values = Vec::new();
    let mut known = HashMap::<&str, u16>::new();
    let mut keys = Vec::with_capacity(array.len());
    let mut bytes = 0;
    // Views of short values and their keys: most rows find their key here, without hashing the text.
    let mut cache = vec![(u128::MAX, 0_u16); CACHE_SLOTS];
    let nulls = array.nulls();
    for (row, view) in array.views().iter().enumerate() {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            keys.push(0);
            continue;
        }
        let slot = cache.get_mut(cache_slot(*view))?;
        if slot.0 == *view {
            keys.push(slot.1);
            continue;
        }
        let value = array.value(row);
        let key = match known.get(value) {
            Some(key) => *key,
            None => {
                let key = u16::try_from(values.len()).ok()?;
                bytes += value.len();
                values.push(value);
                known.insert(value, key);
                key
            }
        };
        if bytes > MOST_BYTES {
            return None;
        }
        // The view of a long value is an address in a buffer: rows of equal values may have different views.
        if *view as u32 <= MOST_INLINE {
            *slot = (*view, key);
        }
        keys.push(key);
    }
    (!values.is_empty()).then_some((keys, values))
}

fn cache_slot(view: u128) -> usize {
    let hash = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (u64::BITS - CACHE_SLOTS.trailing_zeros())) as usize
}

/// The dictionaries of a file, by their ids.
pub(super) fn read_dictionaries(file: &[u8]) -> Result<HashMap<i64, Dictionary>> {
    let footer = footer(file)?;
    let mut found = HashMap::new();
    for block in footer.dictionaries().into_iter().flatten() {
        let (message, body) = message(file, block)?;
        let batch = message.header_as_dictionary_batch();
        let batch = batch.and_then(|batch| Some((batch.id(), batch.data()?)));
        let (id, data) = batch.ok_or_else(|| corrupt("a dictionary cannot be read"))?;
        let dictionary = parse_dictionary(&data, body).ok_or_else(|| corrupt("a dictionary is not a list of texts"))?;
        found.insert(id, dictionary);
    }
    Ok(found)
}

fn parse_dictionary(data: &arrow_ipc::RecordBatch<'_>, body: &[u8]) -> Option<Dictionary> {
    let count = usize::try_from(data.nodes()?.iter().next()?.length()).ok()?;
    let mut buffers = data.buffers()?.iter().skip(1).map(|buffer| {
        let start = usize::try_from(buffer.offset()).ok()?;
        body.get(start..start.checked_add(usize::try_from(buffer.length()).ok()?)?)
    });
    let offsets = buffers.next()??;
    let text = buffers.next()??;
    let offset = |key: usize| {
        let bytes = offsets.get(key.checked_mul(4)?..)?.first_chunk()?;
        usize::try_from(i32::from_le_bytes(*bytes)).ok()
    };
    let value = |key: usize| {
        let bytes = text.get(offset(key)?..offset(key + 1)?)?;
        Some(std::str::from_utf8(bytes).ok()?.to_owned())
    };
    // A damaged count must not make this loop longer than the offsets.
    (0..count.min(offsets.len() / 4))
        .map(value)
        .collect::<Option<Dictionary>>()
        .filter(|values| values.count() == count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{UInt8Array, UInt16Array};
    use arrow::compute::cast;
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
            let Some(found) = dictionary_encoded(&column) else {
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
            let values = dictionary.values().as_string::<i32>();
            let values: Dictionary = values.iter().map(|value| value.unwrap().into()).collect();
            let keys = arrow::array::make_array(dictionary.keys().to_data());
            values.check_keys(&keys).unwrap();
            assert_eq!(values.most_row_bytes(), if long { 36 } else { 16 });
            assert_eq!(&values.values_of_keys(&keys).unwrap(), &column, "round {round}");
            let plain = cast(&column, &DataType::Utf8).unwrap();
            assert_eq!(&values.texts_of_keys(&keys).unwrap(), &plain, "round {round}");
            let json = serde_json::to_string(&values).unwrap();
            assert_eq!(serde_json::from_str::<Dictionary>(&json).unwrap(), values);
            let fewer: Dictionary = (1..values.count()).map(|n| n.to_string()).collect();
            assert!(fewer.check_keys(&keys).is_err(), "a key too many");
        }
        assert!(narrow > 50 && wide > 50 && not > 10, "{narrow}, {wide}, {not}");
    }

    #[test]
    fn texts_of_any_length_are_copied_for_keys_of_any_kind() {
        let text = |bytes: usize| {
            bytes.checked_sub(2).map_or_else(|| "x".repeat(bytes), |rest| format!("ä{}", "x".repeat(rest)))
        };
        for longest in [0, 1, 12, 13, 16, 17, 32, 33, 70] {
            let dictionary: Dictionary = (0..=longest).map(text).collect();
            let count = dictionary.count() as u16;
            let few = UInt16Array::from_iter_values((0..3).map(|row| row % count));
            let many = UInt16Array::from_iter_values((0..5000).map(|row| (row * 7) % count));
            // Under a null is a key that has no text.
            let with_nulls = (0..3000).map(|row| (row % 5 > 0).then_some((row % count) as u8));
            let nulls = with_nulls.clone().map(|key| key.is_some()).collect::<Vec<_>>().into();
            let keys = with_nulls.map(|key| key.unwrap_or(u8::MAX)).collect::<Vec<_>>().into();
            let with_nulls = UInt8Array::new(keys, Some(nulls));
            let keys: [ArrayRef; 5] = [
                Arc::new(few),
                Arc::new(many.slice(17, 4000)),
                Arc::new(with_nulls.slice(3, 2000)),
                Arc::new(with_nulls),
                Arc::new(many.slice(0, 0)),
            ];
            for keys in keys {
                let views = dictionary.values_of_keys(&keys).unwrap();
                let texts = dictionary.texts_of_keys(&keys).unwrap();
                texts.to_data().validate_full().unwrap();
                assert_eq!(&texts, &cast(&views, &DataType::Utf8).unwrap(), "{longest} bytes");
            }
        }
        let dictionary: Dictionary = ["a".to_owned()].into_iter().collect();
        let numbers: ArrayRef = Arc::new(arrow::array::Int32Array::from(vec![0]));
        assert!(dictionary.texts_of_keys(&numbers).is_none());
    }
}
