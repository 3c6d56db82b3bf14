//! Reads headers of messages and schemas, and refuses types that Arrow's code cannot work with.
//!
//! - Parts of a header may share their bytes: a few kilobytes can name one text a million times, and a reader copies it as
//!   often. So a header is refused that stands for many times its own size ([`read_header`]).
//! - Arrow's reader panics at types and units that it does not know. Other types it reads, and the code that makes arrays of
//!   them panics later: negative widths, runs without ends, maps without keys ([`check_type`]).
//! - A value of a type of fixed size takes its bytes in each row, also where it is null: one message without rows can make a
//!   join allocate terabytes. So such a type has a limit.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, Field, Schema, TimeUnit,
    validate_decimal_precision_and_scale,
};
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::{root_as_footer_with_opts, root_as_message_with_opts};
use flatbuffers::VerifierOptions;

use crate::error::{Error, Result, malformed};

/// Deepest nesting of a type in a message that readers accept.
const MOST_DEPTH: usize = 60;
/// Most bytes of a value whose type fixes its size.
const MOST_FIXED_BYTES: u64 = 128 << 10;
/// How many times its own size the parts of a header may have that share bytes.
const SHARED_TIMES: usize = 16;
/// Bytes that the parts of each header may have.
const LEAST_HEADER_BYTES: usize = 64 << 10;

/// Limits of the parts of a header.
fn limits(header: &[u8]) -> VerifierOptions {
    let max_apparent_size = header.len().saturating_mul(SHARED_TIMES).max(LEAST_HEADER_BYTES);
    VerifierOptions { max_apparent_size, ..VerifierOptions::default() }
}

/// Reads the header of a message; `None` for bytes that are none, or that stand for too many.
pub fn read_header(header: &[u8]) -> Option<arrow_ipc::Message<'_>> {
    root_as_message_with_opts(&limits(header), header).ok()
}

/// Like [`read_header`], but reads the footer of a file.
pub(crate) fn read_footer(footer: &[u8]) -> Option<arrow_ipc::Footer<'_>> {
    root_as_footer_with_opts(&limits(footer), footer).ok()
}

/// Reads a message that is a schema.
///
/// # Errors
/// [`Error::Malformed`] for other bytes, and for a schema with a type that cannot be used.
pub fn read_schema_message(header: &[u8]) -> Result<Schema, Error> {
    let schema = read_header(header).and_then(|message| message.header_as_schema());
    convert_schema(schema.ok_or_else(|| malformed("its schema cannot be read"))?)
}

/// Converts a schema, and checks its types.
pub(crate) fn convert_schema(schema: arrow_ipc::Schema<'_>) -> Result<Schema> {
    let converted = catch_unwind(AssertUnwindSafe(|| fb_to_schema(schema)));
    let schema = converted.map_err(|_| malformed("its schema cannot be read"))?;
    for field in schema.fields() {
        check_type(field.data_type()).map_err(|error| malformed(format!("column '{}': {error}", field.name())))?;
    }
    Ok(schema)
}

/// Checks that arrays of a type can be made, also of null values.
///
/// # Errors
/// [`Error::Malformed`] names the type, or the part of it that cannot be used.
pub fn check_type(data_type: &DataType) -> Result<(), Error> {
    fixed_bytes(data_type, 0).map(drop)
}

/// Checks a type; returns the bytes that each of its values takes, whatever it is.
fn fixed_bytes(data_type: &DataType, depth: usize) -> Result<u64> {
    use DataType as D;
    if depth > MOST_DEPTH {
        return Err(malformed(format!("a type is nested more than {MOST_DEPTH} levels deep")));
    }
    let unusable = || malformed(format!("a value cannot have the type {data_type}"));
    let child = |field: &Field| fixed_bytes(field.data_type(), depth + 1);
    let size = |size: i32| u64::try_from(size).map_err(|_| unusable());
    match data_type {
        D::FixedSizeBinary(width) => limited(size(*width)?, data_type),
        D::FixedSizeList(item, length) => limited(child(item)?.saturating_mul(size(*length)?), data_type),
        D::Struct(fields) => fields.iter().try_fold(0_u64, |sum, field| Ok(sum.saturating_add(child(field)?))),
        D::Union(fields, _) if !fields.is_empty() => {
            fields.iter().try_fold(8_u64, |sum, (_, field)| Ok(sum.saturating_add(child(field)?)))
        }
        D::List(item) | D::LargeList(item) | D::ListView(item) | D::LargeListView(item) => child(item).map(|_| 16),
        D::Map(entries, _) if matches!(entries.data_type(), D::Struct(fields) if fields.len() == 2) => {
            child(entries).map(|_| 16)
        }
        D::Dictionary(keys, values) if keys.is_dictionary_key_type() => fixed_bytes(values, depth + 1).map(|_| 8),
        D::RunEndEncoded(ends, values) if ends.data_type().is_run_ends_type() => child(values).map(|_| 8),
        D::Decimal32(precision, scale) => decimal_bytes::<Decimal32Type>(*precision, *scale).ok_or_else(unusable),
        D::Decimal64(precision, scale) => decimal_bytes::<Decimal64Type>(*precision, *scale).ok_or_else(unusable),
        D::Decimal128(precision, scale) => decimal_bytes::<Decimal128Type>(*precision, *scale).ok_or_else(unusable),
        D::Decimal256(precision, scale) => decimal_bytes::<Decimal256Type>(*precision, *scale).ok_or_else(unusable),
        D::Union(..)
        | D::Map(..)
        | D::Dictionary(..)
        | D::RunEndEncoded(..)
        | D::Time32(TimeUnit::Microsecond | TimeUnit::Nanosecond)
        | D::Time64(TimeUnit::Second | TimeUnit::Millisecond) => Err(unusable()),
        // Views are the largest of the others.
        other => Ok(other.primitive_width().map_or(16, |width| width as u64)),
    }
}

fn limited(bytes: u64, data_type: &DataType) -> Result<u64> {
    match bytes > MOST_FIXED_BYTES {
        true => Err(malformed(format!(
            "each value of the type {data_type} takes {bytes} bytes, {MOST_FIXED_BYTES} are the limit: use a binary or a list \
             of variable size"
        ))),
        false => Ok(bytes),
    }
}

/// Bytes of a decimal; `None` unless it has a precision of its type and its digits fit, zeros of a negative scale included.
fn decimal_bytes<T: DecimalType>(precision: u8, scale: i8) -> Option<u64> {
    validate_decimal_precision_and_scale::<T>(precision, scale).ok()?;
    let zeros = if scale < 0 { scale.unsigned_abs() } else { 0 };
    (precision.checked_add(zeros)? <= T::MAX_PRECISION).then_some(T::BYTE_LENGTH as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow::array::new_null_array;
    use arrow::datatypes::{Fields, UnionFields, UnionMode};
    use arrow_ipc::convert::IpcSchemaEncoder;
    use arrow_ipc::writer::DictionaryTracker;
    use arrow_ipc::{FieldArgs, MessageArgs, MessageHeader, MetadataVersion, NullArgs, SchemaArgs};
    use bytes::Bytes;
    use flatbuffers::{FlatBufferBuilder, WIPOffset};

    use super::*;
    use crate::file::read_schema;
    use crate::inflate::{Inflater, Message};
    use crate::testing;

    fn field(data_type: DataType) -> Arc<Field> {
        Arc::new(Field::new("f", data_type, true))
    }

    fn pair(key: DataType, value: DataType) -> Arc<Field> {
        let fields: Fields = vec![Field::new("keys", key, false), Field::new("values", value, true)].into();
        Arc::new(Field::new("entries", DataType::Struct(fields), false))
    }

    fn nested(levels: usize) -> DataType {
        (0..levels).fold(DataType::Int64, |inner, _| DataType::List(field(inner)))
    }

    /// Types of which no array can be made, or only of more memory than there is.
    fn unusable() -> Vec<DataType> {
        use DataType as D;
        vec![
            D::FixedSizeBinary(-1),
            D::FixedSizeBinary(i32::MAX),
            D::FixedSizeList(field(D::Int64), -1),
            D::FixedSizeList(field(D::Int64), i32::MAX),
            D::FixedSizeList(field(D::FixedSizeList(field(D::Int64), 1000)), 1000),
            D::List(field(D::FixedSizeBinary(i32::MIN))),
            D::Map(field(D::Int64), false),
            D::Map(field(D::Struct(vec![Field::new("only", D::Utf8, false)].into())), false),
            D::RunEndEncoded(field(D::Utf8), field(D::Int64)),
            D::Union(UnionFields::empty(), UnionMode::Dense),
            D::Decimal128(0, 0),
            D::Decimal128(39, 0),
            D::Decimal128(10, 11),
            D::Decimal128(10, -128),
            D::Decimal256(200, 0),
            D::Decimal32(10, 2),
            D::Dictionary(Box::new(D::Int8), Box::new(D::FixedSizeBinary(-7))),
        ]
    }

    fn usable() -> Vec<DataType> {
        use DataType as D;
        vec![
            D::Null,
            D::FixedSizeBinary(0),
            D::FixedSizeBinary(16),
            D::FixedSizeList(field(D::Float32), 4_096),
            D::FixedSizeList(field(D::Null), 3),
            D::Struct(Fields::empty()),
            D::Struct(vec![Field::new("a", D::Utf8View, true)].into()),
            D::Map(pair(D::Utf8, D::Int64), false),
            D::Dictionary(Box::new(D::UInt16), Box::new(D::Utf8)),
            D::RunEndEncoded(Arc::new(Field::new("run_ends", D::Int32, false)), field(D::Utf8)),
            D::Union(UnionFields::from_fields(vec![Field::new("a", D::Int8, true)]), UnionMode::Sparse),
            D::Decimal128(38, 38),
            D::Decimal128(10, -3),
            D::Decimal256(76, 0),
            D::Time32(TimeUnit::Second),
            D::Timestamp(TimeUnit::Nanosecond, Some("no time zone".into())),
            nested(50),
        ]
    }

    /// A message with a schema.
    fn message<'a>(mut builder: FlatBufferBuilder<'a>, schema: WIPOffset<arrow_ipc::Schema<'a>>) -> Bytes {
        let arguments = MessageArgs {
            version: MetadataVersion::V5,
            header_type: MessageHeader::Schema,
            header: Some(schema.as_union_value()),
            bodyLength: 0,
            custom_metadata: None,
        };
        let message = arrow_ipc::Message::create(&mut builder, &arguments);
        builder.finish(message, None);
        Bytes::copy_from_slice(builder.finished_data())
    }

    fn schema_message(data_type: &DataType) -> Bytes {
        let schema = Schema::new(vec![Field::new("c", data_type.clone(), true)]);
        let mut tracker = DictionaryTracker::new(false);
        let mut builder = FlatBufferBuilder::new();
        let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(&mut tracker);
        let schema = encoder.schema_to_fb_offset(&mut builder, &schema);
        message(builder, schema)
    }

    #[test]
    fn types_without_arrays_are_refused_wherever_a_schema_comes_from() {
        for data_type in unusable() {
            let error = check_type(&data_type).unwrap_err();
            assert!(matches!(error, Error::Malformed(_)), "{data_type}: {error}");
            let header = schema_message(&data_type);
            let error = read_schema_message(&header).unwrap_err();
            assert!(matches!(error, Error::Malformed(_)), "{data_type}: {error}");
            let length = (header.len() as u32).to_le_bytes();
            let stream = [&[0xff; 4][..], &length[..], &header[..]].concat();
            assert!(read_schema(Cursor::new(stream)).is_err(), "{data_type}");
            let uploaded = Inflater::new(testing::limits()).inflate(Message { header, body: Bytes::new() });
            assert!(matches!(uploaded, Err(Error::Malformed(_))), "{data_type}");
        }
    }

    #[test]
    fn other_types_are_read_and_have_null_values() {
        for data_type in usable() {
            let schema = read_schema_message(&schema_message(&data_type)).unwrap();
            let found = schema.field(0).data_type();
            assert_eq!(found, &data_type);
            // Of unions and runs no array of nulls is ever made.
            if !matches!(found, DataType::Union(..) | DataType::RunEndEncoded(..)) {
                assert_eq!(catch_unwind(|| new_null_array(&data_type, 3).len()).ok(), Some(3), "{data_type}");
            }
        }
        assert!(check_type(&nested(MOST_DEPTH)).is_ok());
        assert!(check_type(&nested(MOST_DEPTH + 1)).is_err());
    }

    #[test]
    fn a_header_that_repeats_one_text_is_not_copied() {
        let mut builder = FlatBufferBuilder::new();
        let name = builder.create_string(&"x".repeat(1 << 14));
        let null = arrow_ipc::Null::create(&mut builder, &NullArgs {}).as_union_value();
        let arguments =
            FieldArgs { name: Some(name), type_type: arrow_ipc::Type::Null, type_: Some(null), ..FieldArgs::default() };
        let field = arrow_ipc::Field::create(&mut builder, &arguments);
        let fields = vec![field; 10_000];
        let fields = builder.create_vector(&fields);
        let arguments = SchemaArgs { fields: Some(fields), ..SchemaArgs::default() };
        let schema = arrow_ipc::Schema::create(&mut builder, &arguments);
        let header = message(builder, schema);
        assert!(header.len() < 1 << 17 && arrow_ipc::root_as_message(&header).is_ok());
        assert!(read_header(&header).is_none());
        let error = Inflater::new(testing::limits()).inflate(Message { header, body: Bytes::new() }).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error}");
    }
}
