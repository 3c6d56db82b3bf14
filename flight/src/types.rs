//! SQL names of Arrow types, and the table of types that XDBC clients ask for.

use std::sync::LazyLock;

use arrow::datatypes::{DataType, TimeUnit};
use arrow_flight::sql::{
    Nullable, Searchable, XdbcDataType, XdbcDatetimeSubcode,
    metadata::{XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder},
};

/// A type as SQL clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqlType {
    /// Name in SQL.
    pub(crate) name: &'static str,
    /// Decimal digits, or binary digits for types without decimal digits.
    pub(crate) precision: Option<u32>,
    /// Digits after the point.
    pub(crate) scale: Option<i32>,
    /// True for text, which is compared case-sensitively.
    pub(crate) is_text: bool,
}

impl SqlType {
    /// The SQL type of an Arrow type.
    pub(crate) fn from_arrow(data_type: &DataType) -> Self {
        use DataType as T;
        let number = |name, precision| Self { name, precision: Some(precision), scale: Some(0), is_text: false };
        let plain = |name| Self { name, precision: None, scale: None, is_text: false };
        match data_type {
            T::Null => plain("NULL"),
            T::Boolean => plain("BOOLEAN"),
            T::Int8 => number("TINYINT", 3),
            T::Int16 => number("SMALLINT", 5),
            T::Int32 => number("INTEGER", 10),
            T::Int64 => number("BIGINT", 19),
            T::UInt8 => number("TINYINT UNSIGNED", 3),
            T::UInt16 => number("SMALLINT UNSIGNED", 5),
            T::UInt32 => number("INTEGER UNSIGNED", 10),
            T::UInt64 => number("BIGINT UNSIGNED", 20),
            T::Float16 | T::Float32 => Self { precision: Some(7), ..plain("REAL") },
            T::Float64 => Self { precision: Some(15), ..plain("DOUBLE") },
            T::Decimal32(precision, scale)
            | T::Decimal64(precision, scale)
            | T::Decimal128(precision, scale)
            | T::Decimal256(precision, scale) => Self {
                name: "DECIMAL",
                precision: Some(u32::from(*precision)),
                scale: Some(i32::from(*scale)),
                is_text: false,
            },
            T::Utf8 | T::LargeUtf8 | T::Utf8View => Self { is_text: true, ..plain("VARCHAR") },
            T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => plain("VARBINARY"),
            T::Date32 | T::Date64 => plain("DATE"),
            T::Time32(unit) | T::Time64(unit) => Self { precision: Some(digits(*unit)), ..plain("TIME") },
            T::Timestamp(unit, None) => Self { precision: Some(digits(*unit)), ..plain("TIMESTAMP") },
            T::Timestamp(unit, Some(_)) => Self { precision: Some(digits(*unit)), ..plain("TIMESTAMP WITH TIME ZONE") },
            T::Duration(_) | T::Interval(_) => plain("INTERVAL"),
            T::List(_) | T::LargeList(_) | T::FixedSizeList(..) | T::ListView(_) | T::LargeListView(_) => {
                plain("ARRAY")
            }
            T::Struct(_) => plain("STRUCT"),
            T::Map(..) => plain("MAP"),
            T::Union(..) => plain("UNION"),
            T::Dictionary(_, values) => Self::from_arrow(values),
            T::RunEndEncoded(_, values) => Self::from_arrow(values.data_type()),
        }
    }
}

fn digits(unit: TimeUnit) -> u32 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// The types that tables can have, ordered by XDBC code and name as the protocol demands.
pub(crate) static XDBC_TYPES: LazyLock<Option<XdbcTypeInfoData>> = LazyLock::new(|| {
    let mut types = vec![
        number("BOOLEAN", XdbcDataType::XdbcBit, 1, None),
        number("TINYINT", XdbcDataType::XdbcTinyint, 3, Some(false)),
        number("SMALLINT", XdbcDataType::XdbcSmallint, 5, Some(false)),
        number("INTEGER", XdbcDataType::XdbcInteger, 10, Some(false)),
        number("BIGINT", XdbcDataType::XdbcBigint, 19, Some(false)),
        number("TINYINT UNSIGNED", XdbcDataType::XdbcTinyint, 3, Some(true)),
        number("SMALLINT UNSIGNED", XdbcDataType::XdbcSmallint, 5, Some(true)),
        number("INTEGER UNSIGNED", XdbcDataType::XdbcInteger, 10, Some(true)),
        number("BIGINT UNSIGNED", XdbcDataType::XdbcBigint, 20, Some(true)),
        number("REAL", XdbcDataType::XdbcReal, 7, Some(false)),
        number("DOUBLE", XdbcDataType::XdbcDouble, 15, Some(false)),
        decimal(),
        quoted("VARCHAR", XdbcDataType::XdbcVarchar, i32::MAX, "'", None),
        quoted("VARBINARY", XdbcDataType::XdbcVarbinary, i32::MAX, "X'", None),
        quoted("DATE", XdbcDataType::XdbcDate, 10, "DATE '", Some(XdbcDatetimeSubcode::XdbcSubcodeYear)),
        quoted("TIME", XdbcDataType::XdbcTime, 18, "TIME '", Some(XdbcDatetimeSubcode::XdbcSubcodeTime)),
        quoted(
            "TIMESTAMP",
            XdbcDataType::XdbcTimestamp,
            29,
            "TIMESTAMP '",
            Some(XdbcDatetimeSubcode::XdbcSubcodeTimestamp),
        ),
        quoted(
            "TIMESTAMP WITH TIME ZONE",
            XdbcDataType::XdbcTimestamp,
            35,
            "TIMESTAMP WITH TIME ZONE '",
            Some(XdbcDatetimeSubcode::XdbcSubcodeTimestampWithTimezone),
        ),
        quoted("INTERVAL", XdbcDataType::XdbcInterval, 64, "INTERVAL '", None),
    ];
    types.sort_by(|a, b| (a.data_type as i32, &a.type_name).cmp(&(b.data_type as i32, &b.type_name)));
    let mut builder = XdbcTypeInfoDataBuilder::new();
    for info in types {
        builder.append(info);
    }
    builder.build().ok()
});

fn number(name: &str, code: XdbcDataType, digits: i32, unsigned: Option<bool>) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.to_owned(),
        local_type_name: Some(name.to_owned()),
        data_type: code,
        sql_data_type: code,
        column_size: Some(digits),
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Full,
        unsigned_attribute: unsigned,
        auto_increment: Some(false),
        num_prec_radix: Some(10),
        ..XdbcTypeInfo::default()
    }
}

fn decimal() -> XdbcTypeInfo {
    XdbcTypeInfo {
        create_params: Some(vec!["precision".to_owned(), "scale".to_owned()]),
        minimum_scale: Some(-76),
        maximum_scale: Some(76),
        ..number("DECIMAL", XdbcDataType::XdbcDecimal, 76, Some(false))
    }
}

fn quoted(
    name: &str,
    code: XdbcDataType,
    size: i32,
    prefix: &str,
    subcode: Option<XdbcDatetimeSubcode>,
) -> XdbcTypeInfo {
    XdbcTypeInfo {
        literal_prefix: Some(prefix.to_owned()),
        literal_suffix: Some("'".to_owned()),
        case_sensitive: name == "VARCHAR",
        unsigned_attribute: None,
        num_prec_radix: None,
        datetime_subcode: subcode,
        ..number(name, code, size, None)
    }
}
