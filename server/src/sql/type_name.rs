//! Names of types as SQL has them, for the columns that a server lists.

use arrow::datatypes::{DataType, FieldRef, TimeUnit};

/// The name of a type: `DECIMAL(15, 2)`, `VARCHAR[]`. Types that SQL does not have keep their Arrow name.
pub fn type_name(data_type: &DataType) -> String {
    use DataType as T;
    let item = |field: &FieldRef| format!("{}[]", type_name(field.data_type()));
    let name = match data_type {
        T::Null => "NULL",
        T::Boolean => "BOOLEAN",
        T::Int8 => "TINYINT",
        T::Int16 => "SMALLINT",
        T::Int32 => "INT",
        T::Int64 => "BIGINT",
        T::UInt8 => "TINYINT UNSIGNED",
        T::UInt16 => "SMALLINT UNSIGNED",
        T::UInt32 => "INT UNSIGNED",
        T::UInt64 => "BIGINT UNSIGNED",
        T::Float32 => "REAL",
        T::Float64 => "DOUBLE",
        T::Utf8 | T::LargeUtf8 | T::Utf8View => "VARCHAR",
        T::Binary | T::LargeBinary | T::BinaryView => "BYTEA",
        T::Date32 => "DATE",
        T::Time64(TimeUnit::Nanosecond) => "TIME",
        T::Interval(_) => "INTERVAL",
        T::Timestamp(unit, None) => return format!("TIMESTAMP{}", digits(*unit)),
        T::Timestamp(unit, Some(zone)) => return format!("TIMESTAMP{} WITH TIME ZONE ({zone})", digits(*unit)),
        T::Decimal32(precision, scale)
        | T::Decimal64(precision, scale)
        | T::Decimal128(precision, scale)
        | T::Decimal256(precision, scale) => return format!("DECIMAL({precision}, {scale})"),
        T::List(field) | T::LargeList(field) | T::ListView(field) | T::LargeListView(field) => return item(field),
        T::FixedSizeList(field, len) => return format!("{}[{len}]", type_name(field.data_type())),
        T::Struct(fields) => {
            let parts = fields.iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type())));
            return format!("STRUCT({})", parts.collect::<Vec<_>>().join(", "));
        }
        T::Map(entries, _) => {
            let T::Struct(pair) = entries.data_type() else { return data_type.to_string() };
            let parts = pair.iter().map(|field| type_name(field.data_type()));
            return format!("MAP({})", parts.collect::<Vec<_>>().join(", "));
        }
        T::Dictionary(_, values) => return type_name(values),
        T::RunEndEncoded(_, values) => return type_name(values.data_type()),
        other => return other.to_string(),
    };
    name.to_owned()
}

/// The digits of a second, in brackets; nanoseconds are the usual ones.
fn digits(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "(0)",
        TimeUnit::Millisecond => "(3)",
        TimeUnit::Microsecond => "(6)",
        TimeUnit::Nanosecond => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn types_have_their_names_in_sql() {
        let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
        assert_eq!(type_name(&DataType::Utf8), "VARCHAR");
        assert_eq!(type_name(&DataType::Decimal128(15, 2)), "DECIMAL(15, 2)");
        assert_eq!(type_name(&DataType::Timestamp(TimeUnit::Microsecond, None)), "TIMESTAMP(6)");
        assert_eq!(type_name(&DataType::List(field("item", DataType::Int64))), "BIGINT[]");
        let pair = vec![field("a", DataType::Int32), field("b", DataType::Utf8)].into();
        assert_eq!(type_name(&DataType::Struct(pair)), "STRUCT(a INT, b VARCHAR)");
    }
}
