//! Shapes of JSON values, which decide the types of columns.
//!
//! Values of one column may be null, integers beside other numbers, and objects with different fields. Scalars of different
//! kinds, and integers beyond BIGINT, are texts; a list beside an object, or either beside a scalar, is an error. Fields keep
//! the order in which they first appear.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// The shape of a value, or of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Null, or no value.
    Null,
    /// True or false.
    Boolean,
    /// An integer that a BIGINT holds.
    Integer,
    /// Another number.
    Float,
    /// A text, or an integer that no BIGINT holds.
    Text,
    /// A list of values of this shape.
    List(Box<Shape>),
    /// An object with these fields.
    Object(Vec<(String, Shape)>),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Integer | Self::Float => "a number",
            Self::Text => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        })
    }
}

impl Shape {
    fn is_scalar(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Object(_))
    }

    /// Makes this the shape of its values and of those of `other`.
    ///
    /// # Errors
    /// What is wrong where no column can hold both.
    pub fn merge(&mut self, other: Self) -> Result<(), String> {
        match (&mut *self, other) {
            (_, Self::Null) => {}
            (Self::List(items), Self::List(others)) => items.merge(*others)?,
            (Self::Object(fields), Self::Object(others)) => merge_fields(fields, others)?,
            (Self::Null, Self::Object(others)) => {
                let mut fields = Vec::with_capacity(others.len());
                merge_fields(&mut fields, others)?;
                *self = Self::Object(fields);
            }
            (Self::Null, other) => *self = other,
            (this, other) if *this == other => {}
            (Self::Integer | Self::Float, Self::Integer | Self::Float) => *self = Self::Float,
            (this, other) if this.is_scalar() && other.is_scalar() => *self = Self::Text,
            (this, other) => return Err(format!("is {this} in one row and {other} in another")),
        }
        Ok(())
    }

    /// The type of a column with such values; Null where there is no value.
    fn data_type(&self) -> Result<DataType, String> {
        Ok(match self {
            Self::Null => DataType::Null,
            Self::Boolean => DataType::Boolean,
            Self::Integer => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::List(items) => DataType::List(Arc::new(Field::new_list_field(items.data_type()?, true))),
            Self::Object(fields) if fields.is_empty() => {
                return Err("has only objects without a field, which no column can hold".to_owned());
            }
            Self::Object(fields) => DataType::Struct(columns(fields)?),
        })
    }

    /// The columns of rows of this shape; none where there is no row.
    ///
    /// # Errors
    /// For rows that are no objects, and for a field that no column can hold.
    pub fn schema(&self) -> Result<Schema, String> {
        match self {
            Self::Null => Ok(Schema::empty()),
            Self::Object(fields) => Ok(Schema::new(columns(fields)?)),
            other => Err(format!("a row is {other}, and no object")),
        }
    }
}

/// Adds the fields of another object.
fn merge_fields(fields: &mut Vec<(String, Shape)>, others: Vec<(String, Shape)>) -> Result<(), String> {
    // Objects of a file mostly have their fields in the same order.
    let mut expected = 0;
    for (name, shape) in others {
        let behind = fields.iter().skip(expected).position(|(known, _)| *known == name).map(|at| expected + at);
        let found = behind.or_else(|| fields.iter().take(expected).position(|(known, _)| *known == name));
        let at = found.unwrap_or_else(|| {
            fields.push((name.clone(), Shape::Null));
            fields.len() - 1
        });
        if let Some((_, known)) = fields.get_mut(at) {
            known.merge(shape).map_err(|why| format!("field '{name}' {why}"))?;
        }
        expected = at + 1;
    }
    Ok(())
}

fn columns(fields: &[(String, Shape)]) -> Result<Fields, String> {
    let column = |(name, shape): &(String, Shape)| {
        let data_type = shape.data_type().map_err(|why| format!("field '{name}' {why}"))?;
        Ok(Field::new(name, data_type, true))
    };
    fields.iter().map(column).collect()
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Boolean)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Integer)
    }

    fn visit_u64<E>(self, value: u64) -> Result<Shape, E> {
        Ok(if i64::try_from(value).is_ok() { Shape::Integer } else { Shape::Text })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Float)
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut all = Shape::Null;
        while let Some(item) = items.next_element::<Shape>()? {
            all.merge(item).map_err(|why| de::Error::custom(format!("an element of a list {why}")))?;
        }
        Ok(Shape::List(Box::new(all)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Shape, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = entries.next_entry::<String, Shape>()? {
            fields.push(entry);
        }
        Ok(Shape::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The columns of objects, as `name type`.
    fn found(rows: &[&str]) -> Result<Vec<String>, String> {
        let mut all = Shape::Null;
        for row in rows {
            all.merge(serde_json::from_str(row).map_err(|e| e.to_string())?)?;
        }
        let schema = all.schema()?;
        Ok(schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect())
    }

    #[test]
    fn values_of_a_column_share_a_type() {
        let rows = [
            r#"{"z": 1, "a": 1, "b": null, "c": true, "d": "x", "e": 18446744073709551615, "f": 1}"#,
            r#"{"z": 2.5, "a": 2, "c": null, "f": "one", "late": false}"#,
        ];
        let expected = ["z Float64", "a Int64", "b Null", "c Boolean", "d Utf8", "e Utf8", "f Utf8", "late Boolean"];
        assert_eq!(found(&rows).unwrap(), expected);
        assert_eq!(found(&[]).unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn nested_values_have_nested_types() {
        let rows = [r#"{"l": [], "s": {"x": 1}}"#, r#"{"l": [1, null, 2.5], "s": {"y": ["a"], "x": null}}"#];
        let mut all = Shape::Null;
        rows.iter().for_each(|row| all.merge(serde_json::from_str(row).unwrap()).unwrap());
        let item = |data_type| Arc::new(Field::new_list_field(data_type, true));
        let fields =
            vec![Field::new("x", DataType::Int64, true), Field::new("y", DataType::List(item(DataType::Utf8)), true)];
        let expected = Schema::new(vec![
            Field::new("l", DataType::List(item(DataType::Float64)), true),
            Field::new("s", DataType::Struct(fields.into()), true),
        ]);
        assert_eq!(all.schema().unwrap(), expected);
    }

    #[test]
    fn what_no_column_can_hold_is_named() {
        for (rows, words) in [
            (vec![r#"{"a": 1}"#, r#"{"a": [1]}"#], "field 'a' is a number in one row and a list in another"),
            (vec![r#"{"a": {"b": 1}}"#, r#"{"a": {"b": {}}}"#], "field 'a' field 'b' is a number"),
            (vec![r#"{"a": [1, {}]}"#], "an element of a list is a number in one row and an object in another"),
            (vec![r#"{"a": {}}"#], "field 'a' has only objects without a field"),
            (vec!["1"], "a row is a number, and no object"),
        ] {
            let refused = found(&rows).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
