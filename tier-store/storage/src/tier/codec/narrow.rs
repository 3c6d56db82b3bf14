//! Narrow storage: integers and decimals are stored in the narrowest type that holds all values of the chunk.
//!
//! The file keeps the meaning of its columns (an Int64 becomes an Int8, Int16 or Int32, a Decimal128 a Decimal64 or
//! Decimal32 of the same scale), so any Arrow tool reads equal values; the declared type is in the field's metadata.
//! Memory tiers hold the same bytes. A scan widens slice by slice, while the slice is in the processor's cache.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::{concat, max, min};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal64Type, Decimal128Type, FieldRef, Int16Type, Int32Type, Int64Type, Schema,
    UInt16Type, UInt32Type, UInt64Type,
};
use terrace_model::Result;

use super::convert::convert;
use super::dictionary::{dictionary_encoded, stands_for};
use super::{Compressed, Dictionary, DictionaryEncoding, PackedEncoding, corrupt};
use crate::table::SegmentHome;

/// Key of the declared type in the metadata of a field that is stored in a narrower one.
const DECLARED_TYPE_KEY: &str = "terrace.type";

/// How the bytes at a [`SegmentHome`] relate to the column's values.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Encoding {
    /// The bytes are the values.
    #[default]
    Plain,
    /// Values of this many bytes each, to be widened to the declared type.
    Narrow(u8),
    /// Like one of the above, with some of the buffers compressed.
    #[serde(rename = "Packed")]
    Compressed(Box<Compressed>),
    /// Keys into a dictionary of texts.
    #[serde(rename = "Worded")]
    Dictionary(Box<DictionaryEncoding>),
    /// An image in the packed form.
    #[serde(rename = "InPackedForm")]
    Packed(Box<PackedEncoding>),
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dictionary(), self.width()) {
            (Some(dictionary), _) => write!(f, "dictionary ({} values)", dictionary.count())?,
            (None, None) => f.write_str("plain")?,
            (None, Some(width)) => write!(f, "narrow ({width} B)")?,
        }
        match self.is_packed() {
            true => f.write_str(", packed"),
            false => self.compression().map_or(Ok(()), |compression| write!(f, ", {compression}")),
        }
    }
}

impl Encoding {
    /// The type in the file of a column declared as `declared`.
    pub fn stored_type(&self, declared: &DataType) -> DataType {
        match self {
            Self::Dictionary(encoding) => encoding.key_type(),
            Self::Packed(encoding) => encoding.stored_type(declared),
            _ => self.width().and_then(|width| narrower_of_width(declared, width)).unwrap_or_else(|| declared.clone()),
        }
    }

    /// Bytes of a stored value; `None` where values have the declared type, or are keys.
    pub(super) fn width(&self) -> Option<u8> {
        match self {
            Self::Plain | Self::Dictionary(_) => None,
            Self::Narrow(width) => Some(*width),
            Self::Compressed(compressed) => Some(compressed.width).filter(|width| *width > 0),
            Self::Packed(packed) => Some(packed.width).filter(|width| *width > 0 && packed.dictionary.is_none()),
        }
    }

    /// True when the stored bytes are an image in the packed form.
    #[inline]
    pub fn is_packed(&self) -> bool {
        self.packed().is_some()
    }

    /// How a column in the packed form is stored; `None` for others.
    #[inline]
    pub(super) fn packed(&self) -> Option<&PackedEncoding> {
        match self {
            Self::Packed(packed) => Some(packed),
            _ => None,
        }
    }

    /// The dictionary of a column that is stored as keys.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        match self {
            Self::Dictionary(encoding) => Some(&encoding.dictionary),
            Self::Packed(packed) => packed.dictionary.as_ref(),
            _ => None,
        }
    }

    /// The encoding of the same bytes as keys of type `stored` into a dictionary.
    fn with_dictionary(self, stored: &DataType, dictionary: Dictionary) -> Self {
        let compressed = if let Self::Compressed(compressed) = self { Some(*compressed) } else { None };
        let width = if *stored == DataType::UInt8 { 1 } else { 2 };
        Self::Dictionary(Box::new(DictionaryEncoding { width, dictionary, compressed }))
    }

    /// The encoding of the same bytes as values of type `stored`.
    fn with_stored_type(self, stored: &DataType, declared: &DataType) -> Self {
        let width = stored.primitive_width().filter(|_| stored != declared).map(|width| width as u8);
        match (self, width) {
            (Self::Compressed(compressed), width) => {
                Self::Compressed(Box::new(Compressed { width: width.unwrap_or(0), ..*compressed }))
            }
            (_, Some(width)) => Self::Narrow(width),
            (_, None) => Self::Plain,
        }
    }
}

/// The batch with each column in the narrowest type that holds it, and with dictionary encoding only if `dictionaries`.
pub(super) fn narrow_batch(batch: &RecordBatch, dictionaries: bool) -> Result<RecordBatch> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| match column.data_type() {
        DataType::Utf8View if !dictionaries => Ok((Arc::clone(field), Arc::clone(column))),
        _ => narrow_column(field, std::slice::from_ref(column), None),
    });
    let (fields, columns): (Vec<_>, Vec<_>) = columns.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
    super::compact::rebuilt(batch, Arc::new(schema), columns)
}

/// True when columns of this type may be stored in a narrower type.
pub fn may_be_narrow(data_type: &DataType) -> bool {
    narrower(data_type).next().is_some()
}

/// Concatenates the parts of a column in the narrowest type that holds them, and returns the field of that type too.
/// `extremes` are arrays that contain the least and the greatest value, where the caller knows them.
pub fn narrow_column(
    field: &FieldRef,
    parts: &[ArrayRef],
    extremes: Option<(&ArrayRef, &ArrayRef)>,
) -> Result<(FieldRef, ArrayRef)> {
    if extremes.is_none() && parts.len() > 1 {
        return narrow_column(field, &[concatenated(parts)?], None);
    }
    if let [column] = parts
        && let Some(keys) = dictionary_encoded(column)
    {
        return Ok((stored_field(field, keys.data_type()), keys));
    }
    let to = parts.first().and_then(|first| {
        let (low, high) = extremes.unwrap_or((first, first));
        narrowest(first, low, high)
    });
    let narrowed = to.and_then(|to| parts.iter().map(|part| convert(part, &to)).collect::<Option<Vec<_>>>());
    let Some(narrowed) = narrowed else { return Ok((Arc::clone(field), concatenated(parts)?)) };
    let array = concatenated(&narrowed)?;
    Ok((stored_field(field, array.data_type()), array))
}

/// The field, in the file, of a column that is stored in type `stored`.
fn stored_field(field: &FieldRef, stored: &DataType) -> FieldRef {
    let mut metadata = field.metadata().clone();
    metadata.insert(DECLARED_TYPE_KEY.to_owned(), field.data_type().to_string());
    Arc::new(field.as_ref().clone().with_data_type(stored.clone()).with_metadata(metadata))
}

fn concatenated(parts: &[ArrayRef]) -> Result<ArrayRef> {
    let [part] = parts else { return Ok(concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?) };
    Ok(Arc::clone(part))
}

/// The field as the table declares it.
pub(super) fn declared_field(field: &FieldRef) -> Result<FieldRef> {
    let Some(text) = field.metadata().get(DECLARED_TYPE_KEY) else { return Ok(Arc::clone(field)) };
    let unknown = || corrupt(format!("column '{}' has the unknown declared type '{text}'", field.name()));
    let declared: DataType = text.parse().map_err(|_| unknown())?;
    let stored = field.data_type();
    if !stands_for(stored, &declared) && !narrower(&declared).any(|narrower| narrower == *stored) {
        return Err(unknown());
    }
    let mut metadata = field.metadata().clone();
    metadata.remove(DECLARED_TYPE_KEY);
    Ok(Arc::new(field.as_ref().clone().with_data_type(declared).with_metadata(metadata)))
}

/// Completes the home of a column by its field in the file and its dictionary, if it has one.
pub(super) fn complete_home(
    home: &mut SegmentHome,
    field: &FieldRef,
    rows: usize,
    dictionary: Option<Dictionary>,
) -> Result<()> {
    let declared = declared_field(field)?;
    let encoding = std::mem::take(&mut home.encoding);
    if let DataType::Dictionary(key, _) = field.data_type() {
        let missing = || corrupt(format!("the dictionary of column '{}' is missing", field.name()));
        home.encoding = encoding.with_dictionary(key, dictionary.ok_or_else(missing)?);
        return Ok(());
    }
    home.encoding = encoding.with_stored_type(field.data_type(), declared.data_type());
    if home.encoding.width().is_some() {
        let nulls = home.layout.nodes.first().map_or(0, |(_, nulls)| *nulls);
        let validity = if nulls == 0 { 0 } else { rows.div_ceil(8).next_multiple_of(64) };
        home.wide_bytes = (validity + rows * declared.data_type().primitive_width().unwrap_or(0)) as u64;
    }
    Ok(())
}

/// The type of so many bytes that may stand for `declared` in a file.
pub(super) fn narrower_of_width(declared: &DataType, width: u8) -> Option<DataType> {
    narrower(declared).find(|narrower| narrower.primitive_width() == Some(usize::from(width)))
}

/// Types that may stand for `declared` in a file, narrowest first.
fn narrower(declared: &DataType) -> impl Iterator<Item = DataType> + use<> {
    use DataType as D;
    let signed = [D::Int8, D::Int16, D::Int32];
    let unsigned = [D::UInt8, D::UInt16, D::UInt32];
    let decimal32 = |p: u8, s: i8| (s <= 9).then_some(D::Decimal32(p.min(9), s));
    let decimal64 = |p: u8, s: i8| (s <= 18).then_some(D::Decimal64(p.min(18), s));
    let types: Vec<DataType> = match declared {
        D::Int16 => signed.into_iter().take(1).collect(),
        D::Int32 => signed.into_iter().take(2).collect(),
        D::Int64 => signed.into(),
        D::UInt16 => unsigned.into_iter().take(1).collect(),
        D::UInt32 => unsigned.into_iter().take(2).collect(),
        D::UInt64 => unsigned.into(),
        D::Decimal64(p, s) => decimal32(*p, *s).into_iter().collect(),
        D::Decimal128(p, s) => decimal32(*p, *s).into_iter().chain(decimal64(*p, *s)).collect(),
        _ => Vec::new(),
    };
    types.into_iter()
}

/// The narrowest type for these values; `None` when it is their own type, or when there is nothing to store. The arrays `low`
/// and `high` contain the least and the greatest value.
fn narrowest(array: &ArrayRef, low: &ArrayRef, high: &ArrayRef) -> Option<DataType> {
    use DataType as D;
    if array.is_empty() {
        return None;
    }
    let (low, high) = match array.data_type() {
        D::Int16 => bounds::<Int16Type>(low, high)?,
        D::Int32 => bounds::<Int32Type>(low, high)?,
        D::Int64 => bounds::<Int64Type>(low, high)?,
        D::UInt16 => bounds::<UInt16Type>(low, high)?,
        D::UInt32 => bounds::<UInt32Type>(low, high)?,
        D::UInt64 => bounds::<UInt64Type>(low, high)?,
        D::Decimal64(..) => bounds::<Decimal64Type>(low, high)?,
        D::Decimal128(..) => bounds::<Decimal128Type>(low, high)?,
        _ => return None,
    };
    let holds = |to: &DataType| {
        let (least, most): (i128, i128) = match to {
            D::Int8 => (i8::MIN.into(), i8::MAX.into()),
            D::Int16 => (i16::MIN.into(), i16::MAX.into()),
            D::Int32 => (i32::MIN.into(), i32::MAX.into()),
            D::UInt8 => (0, u8::MAX.into()),
            D::UInt16 => (0, u16::MAX.into()),
            D::UInt32 => (0, u32::MAX.into()),
            D::Decimal32(..) => (-999_999_999, 999_999_999),
            D::Decimal64(..) => (-999_999_999_999_999_999, 999_999_999_999_999_999),
            _ => return false,
        };
        least <= low && high <= most
    };
    narrower(array.data_type()).find(holds)
}

/// The least value in `low` and the greatest in `high`; (0, 0) when all are null.
fn bounds<T: ArrowPrimitiveType<Native: Into<i128>>>(low: &ArrayRef, high: &ArrayRef) -> Option<(i128, i128)> {
    let low = low.as_primitive_opt::<T>()?;
    let high = high.as_primitive_opt::<T>()?;
    Some((min(low).map_or(0, Into::into), max(high).map_or(0, Into::into)))
}
