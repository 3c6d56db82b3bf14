//! The schema in which the server sends rows.
//!
//! Types that clients in the field cannot read are replaced: views by plain strings and bytes, dictionaries and run
//! ends by their values, list views by lists, narrow decimals by 128 bits. Every column carries the Flight SQL
//! metadata. The same function makes the schema of a plan and of its stream, so both are equal, including nullability.
//! A client may ask for views, and for texts as keys of dictionaries ([`WireTypes`]). Which columns have keys follows from their types
//! alone, so that it is known when a statement is planned.

use std::{collections::HashMap, sync::Arc};

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use arrow_flight::{IpcMessage, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use bytes::Bytes;
use terrace_ipc::keyed_text_type;
use tonic::{Status, metadata::MetadataMap};

use crate::{engine::Texts, error, types::SqlType};

/// Asks for view types, by the value `keep`.
const VIEWS_HEADER: &str = "terrace-view-types";
/// Asks for dictionary types, by the value `keep`.
const DICTIONARIES_HEADER: &str = "terrace-dictionary-types";

/// The treatment of view types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewTypes {
    /// They are sent as Utf8 and Binary.
    Flatten,
    /// The client asked for them.
    Keep,
}

/// The treatment of columns of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextColumns {
    /// They are sent as values.
    Values,
    /// The client asked for keys of dictionaries. Texts within nested types are sent as values still.
    Keys,
}

/// The types that a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireTypes {
    pub(crate) views: ViewTypes,
    pub(crate) columns: TextColumns,
}

impl WireTypes {
    /// Those that all clients read.
    pub(crate) const PLAIN: Self = Self { views: ViewTypes::Flatten, columns: TextColumns::Values };

    /// Those that the headers of a call ask for.
    pub(crate) fn from_metadata(metadata: &MetadataMap) -> Result<Self, Status> {
        let views = match metadata.get(VIEWS_HEADER).map(|value| value.as_bytes()) {
            Some(b"keep") => ViewTypes::Keep,
            _ => ViewTypes::Flatten,
        };
        let columns = match metadata.get(DICTIONARIES_HEADER).map(|value| value.as_bytes()) {
            None => TextColumns::Values,
            Some(b"keep") => TextColumns::Keys,
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                let message = format!("header {DICTIONARIES_HEADER}: '{other}' is not 'keep'; leave it out for values");
                return Err(Status::invalid_argument(message));
            }
        };
        Ok(Self { views, columns })
    }

    /// How rows with these types are sent.
    pub(crate) fn texts(self) -> Texts {
        match (self.columns, self.views) {
            (TextColumns::Keys, _) => Texts::Keys,
            (TextColumns::Values, ViewTypes::Flatten) => Texts::Plain,
            (TextColumns::Values, ViewTypes::Keep) => Texts::Views,
        }
    }
}

/// The schema in which rows of `schema` are sent.
pub(crate) fn wire_schema(schema: &Schema, types: WireTypes) -> SchemaRef {
    let fields: Fields = schema
        .fields()
        .iter()
        .map(|field| {
            let data_type = column_type(field.data_type(), types);
            let mut metadata = field.metadata().clone();
            describe(&data_type, &mut metadata);
            Field::new(field.name(), data_type, field.is_nullable()).with_metadata(metadata)
        })
        .collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Like [`wire_schema`], but for a table of the catalog; adds its catalog, schema and name.
pub(crate) fn table_schema(entry: &crate::TableEntry, types: WireTypes) -> SchemaRef {
    let schema = wire_schema(&entry.columns, types);
    let fields: Fields = schema
        .fields()
        .iter()
        .map(|field| {
            let mut metadata = field.metadata().clone();
            for (key, value) in [
                ("ARROW:FLIGHT:SQL:CATALOG_NAME", &entry.catalog),
                ("ARROW:FLIGHT:SQL:SCHEMA_NAME", &entry.schema),
                ("ARROW:FLIGHT:SQL:TABLE_NAME", &entry.name),
            ] {
                metadata.insert(key.to_owned(), value.clone());
            }
            describe_for_xdbc(field.is_nullable(), &mut metadata);
            field.as_ref().clone().with_metadata(metadata)
        })
        .collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// A schema as an encapsulated IPC message, never empty.
pub(crate) fn schema_bytes(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let IpcMessage(bytes) = SchemaAsIpc::new(schema, &options).try_into().map_err(error::encoding)?;
    Ok(bytes)
}

fn column_type(data_type: &DataType, types: WireTypes) -> DataType {
    match types.columns {
        TextColumns::Keys if is_text(data_type) => keyed_text_type(),
        _ => wire_type(data_type, types.views),
    }
}

/// Whether values of a type are texts, in whatever encoding.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    matches!(wire_type(data_type, ViewTypes::Flatten), DataType::Utf8 | DataType::LargeUtf8)
}

fn wire_type(data_type: &DataType, views: ViewTypes) -> DataType {
    let child = |field: &FieldRef| {
        let data_type = wire_type(field.data_type(), views);
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match data_type {
        DataType::Utf8View if views == ViewTypes::Flatten => DataType::Utf8,
        DataType::BinaryView if views == ViewTypes::Flatten => DataType::Binary,
        DataType::Dictionary(_, values) => wire_type(values, views),
        DataType::RunEndEncoded(_, values) => wire_type(values.data_type(), views),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::List(item) | DataType::ListView(item) => DataType::List(child(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(child(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(child(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(child(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(child).collect()),
        other => other.clone(),
    }
}

/// True when the two types differ only in their encoding, so that rows of one may be sent as the other.
pub(crate) fn same_on_the_wire(a: &DataType, b: &DataType) -> bool {
    wire_type(a, ViewTypes::Flatten).equals_datatype(&wire_type(b, ViewTypes::Flatten))
}

fn describe(data_type: &DataType, metadata: &mut HashMap<String, String>) {
    let sql = SqlType::from_arrow(data_type);
    let mut put = |key: &str, value: String| {
        metadata.entry(format!("ARROW:FLIGHT:SQL:{key}")).or_insert(value);
    };
    put("TYPE_NAME", sql.name.to_owned());
    if let Some(precision) = sql.precision {
        put("PRECISION", precision.to_string());
    }
    if let Some(scale) = sql.scale {
        put("SCALE", scale.to_string());
    }
    put("IS_AUTO_INCREMENT", "0".to_owned());
    put("IS_CASE_SENSITIVE", if sql.is_text { "1" } else { "0" }.to_owned());
    put("IS_READ_ONLY", "0".to_owned());
    put("IS_SEARCHABLE", "1".to_owned());
}

/// Adds the keys by which ADBC drivers read nullability, size and remarks of a column (`XdbcMetadataBuilder`).
fn describe_for_xdbc(nullable: bool, metadata: &mut HashMap<String, String>) {
    for (from, to) in [
        ("ARROW:FLIGHT:SQL:PRECISION", "XDBC_COLUMN_SIZE"),
        ("ARROW:FLIGHT:SQL:SCALE", "XDBC_DECIMAL_DIGITS"),
        ("ARROW:FLIGHT:SQL:REMARKS", "REMARKS"),
    ] {
        if let Some(value) = metadata.get(from).cloned() {
            metadata.insert(to.to_owned(), value);
        }
    }
    let (number, word) = if nullable { ("1", "YES") } else { ("0", "NO") };
    metadata.insert("XDBC_NULLABLE".to_owned(), number.to_owned());
    metadata.insert("XDBC_IS_NULLABLE".to_owned(), word.to_owned());
}

/// The types of parameters that clients are told. JDBC's driver writes milliseconds into times of any unit, so times
/// are announced in milliseconds; values in another unit are accepted as they are. Texts are announced as values.
pub(crate) fn parameter_schema(schema: &Schema, types: WireTypes) -> SchemaRef {
    let in_milliseconds = |field: &FieldRef| {
        let data_type = match field.data_type() {
            DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
            DataType::Time32(_) | DataType::Time64(_) => DataType::Time32(TimeUnit::Millisecond),
            other => other.clone(),
        };
        field.as_ref().clone().with_data_type(data_type)
    };
    let fields: Vec<Field> = schema.fields().iter().map(in_milliseconds).collect();
    wire_schema(&Schema::new(fields), WireTypes { columns: TextColumns::Values, ..types })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn nested_types_become_readable_and_keep_nullability() {
        let item = Arc::new(Field::new("item", DataType::Utf8View, false));
        let schema = Schema::new(vec![
            Field::new("a", DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8View)), false),
            Field::new("b", DataType::ListView(item), true),
            Field::new("c", DataType::Decimal64(15, 2), false),
        ]);
        let wire = wire_schema(&schema, WireTypes::PLAIN);
        assert_eq!(wire.field(0).data_type(), &DataType::Utf8);
        assert!(!wire.field(0).is_nullable());
        assert_eq!(wire.field(1).data_type(), &DataType::List(Arc::new(Field::new("item", DataType::Utf8, false))));
        assert_eq!(wire.field(2).data_type(), &DataType::Decimal128(15, 2));
        assert_eq!(wire.field(2).metadata()["ARROW:FLIGHT:SQL:PRECISION"], "15");
        assert_eq!(wire_schema(&wire, WireTypes::PLAIN), wire, "a wire schema is its own wire schema");
        let kept = WireTypes { views: ViewTypes::Keep, ..WireTypes::PLAIN };
        assert_eq!(wire_schema(&schema, kept).field(0).data_type(), &DataType::Utf8View);
    }

    #[test]
    fn columns_of_texts_are_announced_as_keys_to_clients_that_ask() {
        let keys = |values| DataType::Dictionary(Box::new(DataType::UInt8), Box::new(values));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        let types = [DataType::Utf8View, DataType::LargeUtf8, keys(DataType::Utf8), keys(DataType::Int64)];
        let types = types.into_iter().chain([list(DataType::Utf8View), DataType::BinaryView]);
        let fields = types.enumerate().map(|(at, data_type)| Field::new(format!("c{at}"), data_type, at % 2 == 0));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        for views in [ViewTypes::Flatten, ViewTypes::Keep] {
            let types = WireTypes { views, columns: TextColumns::Keys };
            let wire = wire_schema(&schema, types);
            let text = keyed_text_type();
            let [view, bytes] = match views {
                ViewTypes::Flatten => [DataType::Utf8, DataType::Binary],
                ViewTypes::Keep => [DataType::Utf8View, DataType::BinaryView],
            };
            let expected = [text.clone(), text.clone(), text.clone(), DataType::Int64, list(view), bytes];
            let found: Vec<&DataType> = wire.fields().iter().map(|field| field.data_type()).collect();
            assert_eq!(found, expected.iter().collect::<Vec<_>>());
            assert_eq!(wire.field(0).metadata()["ARROW:FLIGHT:SQL:TYPE_NAME"], "VARCHAR");
            assert_eq!(wire.field(0).metadata()["ARROW:FLIGHT:SQL:IS_CASE_SENSITIVE"], "1");
            assert!(wire.field(0).is_nullable() && !wire.field(1).is_nullable());
            assert_eq!(wire_schema(&wire, types), wire, "a wire schema is its own wire schema");
            assert!(parameter_schema(&schema, types).fields().iter().all(|field| *field.data_type() != text));
        }
    }

    #[test]
    fn times_of_parameters_are_asked_for_in_milliseconds() {
        let zone = Some("UTC".into());
        let schema = Schema::new(vec![
            Field::new("$1", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
            Field::new("$2", DataType::Timestamp(TimeUnit::Second, zone.clone()), true),
            Field::new("$3", DataType::Time64(TimeUnit::Nanosecond), true),
            Field::new("$4", DataType::Date32, true),
        ]);
        let asked = parameter_schema(&schema, WireTypes::PLAIN);
        let types: Vec<&DataType> = asked.fields().iter().map(|field| field.data_type()).collect();
        let milliseconds = TimeUnit::Millisecond;
        let expected = [
            DataType::Timestamp(milliseconds, None),
            DataType::Timestamp(milliseconds, zone),
            DataType::Time32(milliseconds),
            DataType::Date32,
        ];
        assert_eq!(types, expected.iter().collect::<Vec<_>>());
        assert_eq!(asked.field(0).metadata()["ARROW:FLIGHT:SQL:PRECISION"], "3");
    }
}
