//! The columns of a source: those of all of its files, by name.
//!
//! The first file that has a column with a type decides the type, but for objects and lists in JSON, whose fields of all
//! JSON files count. A file without a column has null in it. A file whose type is of another kind is an error before a row is
//! read; where only some values may not fit, those are an error when they are read ([`super::columns`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use super::columns::{filled_type, is_untyped, type_name};
use super::files::FoundFile;
use super::form::Kind;
use super::partitions;
use crate::error::{Error, Result};

/// The columns of all files of a source.
#[derive(Debug, Clone)]
pub struct Union {
    columns: Vec<Column>,
    /// Number of the files.
    files: usize,
}

/// A column, and what gave it its type.
#[derive(Debug, Clone)]
struct Column {
    field: FieldRef,
    decider: String,
    /// Whether all files so far that have it are JSON.
    is_json: bool,
    /// Number of the files that have it.
    files: usize,
}

impl Union {
    /// The columns of `files`, which are in the order in which they are read.
    ///
    /// # Errors
    /// For a column whose types in two files are of different kinds; names both. For a file with two columns of one name.
    pub fn new(files: &[FoundFile]) -> Result<Self> {
        let mut columns: Vec<Column> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for file in files {
            let mut own: HashSet<&str> = HashSet::new();
            for found in file.own.fields() {
                if !own.insert(found.name()) {
                    let why =
                        format!("it has two columns '{}': name the columns of a CSV file with --columns", found.name());
                    return Err(Error::file(&file.file.path, why));
                }
                let at = places.get(found.name()).copied();
                match at.and_then(|at| columns.get_mut(at)) {
                    Some(column) => column.add(found, file)?,
                    None => {
                        places.insert(found.name().clone(), columns.len());
                        columns.push(Column::new(found, file));
                    }
                }
            }
        }
        for field in partitions::fields(files.iter().map(|file| &file.file)) {
            let have = |file: &&FoundFile| {
                file.own.column_with_name(field.name()).is_some() || file.file.has_partition(field.name())
            };
            let having = files.iter().filter(have).count();
            match places.get(field.name()).and_then(|at| columns.get_mut(*at)) {
                Some(column) => column.files = having,
                None => {
                    let decider = "the names of its folders".to_owned();
                    columns.push(Column { field, decider, is_json: false, files: having });
                }
            }
        }
        Ok(Self { columns, files: files.len() })
    }

    /// The columns. Those that some file lacks may be null; those without a value in any file may have no type.
    pub fn schema(&self) -> SchemaRef {
        let fields = self.columns.iter().map(|column| {
            let nullable = column.field.is_nullable() || column.files < self.files;
            Arc::new(column.field.as_ref().clone().with_nullable(nullable))
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// For each column what gave it its type: the name of a file.
    pub fn deciders(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.decider.clone()).collect()
    }

    /// For each column the number of files that have it.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|column| column.files)
    }

    /// A sentence for each column that some files lack.
    pub fn gaps(&self) -> Vec<String> {
        let gap = |column: &Column| {
            let (name, have, all) = (column.field.name(), column.files, self.files);
            format!("column '{name}' is in {have} of {all} files, and null in the others")
        };
        self.columns.iter().filter(|column| column.files < self.files).map(gap).collect()
    }
}

impl Column {
    fn new(found: &FieldRef, file: &FoundFile) -> Self {
        Self { field: Arc::clone(found), decider: file.name(), is_json: file.form.kind == Kind::Json, files: 1 }
    }

    /// Adds a file that has the column, too.
    fn add(&mut self, found: &FieldRef, file: &FoundFile) -> Result<()> {
        self.files += 1;
        self.is_json &= file.form.kind == Kind::Json;
        let known = self.field.data_type();
        let data_type = self.unified(known, found.data_type(), file.form.kind).ok_or_else(|| {
            let why = format!(
                "column '{}' is {} here and {} in {}; load them into tables of their own, or make the table and read each with \
                 COPY .. FROM, which takes the types of the table",
                found.name(),
                type_name(found.data_type()),
                type_name(known),
                self.decider
            );
            Error::file(&file.file.path, why)
        })?;
        if is_untyped(known) && !is_untyped(&data_type) {
            self.decider = file.name();
        }
        let has_no_value = [known, found.data_type()].contains(&&DataType::Null);
        let nullable = self.field.is_nullable() || found.is_nullable() || has_no_value;
        let field = self.field.as_ref().clone().with_data_type(data_type).with_nullable(nullable);
        self.field = Arc::new(field);
        Ok(())
    }

    /// The type of the column where a file of a kind has `found`; `None` for types of different kinds.
    fn unified(&self, known: &DataType, found: &DataType, kind: Kind) -> Option<DataType> {
        let known = filled_type(known, found);
        let found = filled_type(found, &known);
        let fits = match kind {
            Kind::Json if self.is_json => return merged(&known, &found),
            Kind::Csv(_) | Kind::Json => is_read_as(&found, &known),
            Kind::Parquet | Kind::Arrow => is_cast_to(&found, &known),
        };
        fits.then_some(known)
    }
}

/// The type of values of two JSON files.
fn merged(known: &DataType, found: &DataType) -> Option<DataType> {
    match (known, found) {
        (DataType::List(a), DataType::List(b)) => {
            let item = merged(a.data_type(), b.data_type())?;
            Some(DataType::List(Arc::new(a.as_ref().clone().with_data_type(item))))
        }
        (DataType::Struct(a), DataType::Struct(b)) => {
            let mut fields: Vec<FieldRef> = Vec::with_capacity(a.len());
            for field in a {
                let data_type = match b.find(field.name()) {
                    Some((_, other)) => merged(field.data_type(), other.data_type())?,
                    None => field.data_type().clone(),
                };
                fields.push(Arc::new(field.as_ref().clone().with_data_type(data_type)));
            }
            fields.extend(b.iter().filter(|field| a.find(field.name()).is_none()).cloned());
            Some(DataType::Struct(fields.into()))
        }
        _ => is_read_as(found, known).then(|| known.clone()),
    }
}

/// Whether values that look like `found` in a text can be read as `known`.
fn is_read_as(found: &DataType, known: &DataType) -> bool {
    use DataType as T;
    match (found, known) {
        (a, b) if a == b => true,
        (T::Null, _) => true,
        (T::List(a), T::List(b)) => is_read_as(a.data_type(), b.data_type()),
        (T::Struct(a), T::Struct(b)) => all_fields(a, b, is_read_as),
        (T::List(_) | T::Struct(_), _) => false,
        (_, known) if is_text(known) => true,
        (T::Int64, known) => known.is_numeric(),
        (T::Float64, known) => known.is_floating() || known.is_decimal(),
        (T::Date32, T::Date64 | T::Timestamp(..)) => true,
        (T::Timestamp(a, _), T::Timestamp(b, _)) => a <= b,
        // JSON has no dates and no decimals.
        (T::Utf8, known) => known.is_temporal() || known.is_decimal(),
        _ => false,
    }
}

/// Whether a column of type `found` can be cast to `known` where each of its values fits.
fn is_cast_to(found: &DataType, known: &DataType) -> bool {
    use DataType as T;
    match (found, known) {
        (a, b) if a == b => true,
        (T::Null, _) => true,
        (T::Dictionary(_, values), known) => is_cast_to(values, known),
        (found, T::Dictionary(_, values)) => is_cast_to(found, values),
        (a, b) if a.is_numeric() => b.is_numeric() || is_text(b),
        (T::Date32 | T::Date64 | T::Timestamp(..), T::Date32 | T::Date64 | T::Timestamp(..)) => true,
        (T::Time32(_) | T::Time64(_), T::Time32(_) | T::Time64(_)) => true,
        (T::Duration(_), T::Duration(_)) | (T::Interval(_), T::Interval(_)) => true,
        (a, b) if is_bytes(a) => is_bytes(b),
        (T::Struct(a), T::Struct(b)) => a.len() == b.len() && all_fields(a, b, is_cast_to),
        (a, b) => match (item(a), item(b)) {
            (Some(a), Some(b)) => is_cast_to(a.data_type(), b.data_type()),
            (None, None) => !a.is_nested() && is_text(b),
            _ => false,
        },
    }
}

/// Whether each field of `found` is among those of `known`, with a type that fits.
fn all_fields(found: &Fields, known: &Fields, fits: fn(&DataType, &DataType) -> bool) -> bool {
    let is_known = |field: &FieldRef| {
        known.find(field.name()).is_some_and(|(_, known)| fits(field.data_type(), known.data_type()))
    };
    found.iter().all(is_known)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType as T;
    matches!(data_type, T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_))
}

/// The elements of a list.
fn item(data_type: &DataType) -> Option<&Field> {
    use DataType as T;
    match data_type {
        T::List(item) | T::LargeList(item) | T::FixedSizeList(item, _) | T::ListView(item) | T::LargeListView(item) => {
            Some(item)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use arrow::datatypes::TimeUnit;

    use super::super::form;
    use super::super::input::Input;
    use super::super::partitions::DataFile;
    use super::*;

    fn file(name: &str, columns: &[(&str, DataType)]) -> FoundFile {
        let fields = columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), false));
        let path = PathBuf::from(name);
        let ending = name.rsplit_once('.').unwrap().1;
        FoundFile {
            file: DataFile::bare(path.clone()),
            input: Input::File(path),
            form: form::parse(ending).unwrap(),
            own: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            rows: None,
            bytes: None,
        }
    }

    fn shown(files: &[FoundFile]) -> std::result::Result<Vec<String>, String> {
        let union = Union::new(files).map_err(|e| e.to_string())?;
        let shown = |field: &FieldRef| {
            let null = if field.is_nullable() { " null" } else { "" };
            format!("{} {}{null}", field.name(), field.data_type())
        };
        Ok(union.schema().fields().iter().map(shown).collect())
    }

    #[test]
    fn columns_of_all_files_are_there() {
        use DataType as T;
        let files = [
            file("a.parquet", &[("k", T::Int32), ("n", T::Null)]),
            file("b.csv", &[("late", T::Utf8), ("k", T::Int64), ("n", T::Date32)]),
            file("c.json", &[("k", T::Int64)]),
        ];
        assert_eq!(shown(&files).unwrap(), ["k Int32", "n Date32 null", "late Utf8 null"]);
        let union = Union::new(&files).unwrap();
        assert_eq!(union.deciders(), ["a.parquet", "b.csv", "b.csv"]);
        assert_eq!(union.counts().collect::<Vec<_>>(), [3, 2, 1]);
        let gaps = union.gaps();
        assert_eq!(gaps.len(), 2);
        assert_eq!(gaps.last().unwrap(), "column 'late' is in 1 of 3 files, and null in the others");
    }

    #[test]
    fn two_columns_of_one_name_are_not_made_one() {
        let twice = [("k", DataType::Int64), ("v", DataType::Utf8), ("k", DataType::Int64)];
        let refused = shown(&[file("a.csv", &twice)]).unwrap_err();
        assert!(refused.starts_with("a.csv: it has two columns 'k'"), "{refused}");
    }

    #[test]
    fn types_of_another_kind_name_both_files() {
        use DataType as T;
        let seconds = || T::Timestamp(TimeUnit::Second, None);
        for (first, second, is_right) in [
            (T::Int64, T::Utf8, false),
            (T::Utf8, T::Int64, true),
            (T::Float32, T::Int64, true),
            (T::Int64, T::Float64, true),
            (T::Boolean, T::Int64, false),
            (T::Date32, seconds(), true),
            (T::Date32, T::Int64, false),
            (T::Utf8View, T::LargeUtf8, true),
            (T::Binary, T::Utf8, false),
            (T::new_list(T::Int32, true), T::new_large_list(T::Int64, true), true),
            (T::new_list(T::Int32, true), T::new_list(T::Utf8, true), false),
            (T::new_list(T::Int32, true), T::Int32, false),
        ] {
            let files = [file("a.parquet", &[("v", first.clone())]), file("b.parquet", &[("v", second.clone())])];
            match shown(&files) {
                Ok(columns) => assert!(is_right && columns == [format!("v {first}")], "{columns:?}"),
                Err(why) => {
                    let named = why.starts_with("b.parquet: column 'v' is") && why.contains(" in a.parquet; ");
                    assert!(!is_right && named, "{first} {second}: {why}");
                }
            }
        }
        // What a text looks like has to be readable as the type.
        for (first, second, is_right) in [
            (T::Int64, T::Utf8, false),
            (T::Float64, T::Int64, true),
            (T::Int64, T::Float64, false),
            (T::Decimal128(9, 2), T::Float64, true),
            (T::Utf8, T::Boolean, true),
            (seconds(), T::Date32, true),
            (seconds(), T::Timestamp(TimeUnit::Millisecond, None), false),
        ] {
            let files = [file("a.parquet", &[("v", first.clone())]), file("b.csv", &[("v", second.clone())])];
            assert_eq!(shown(&files).is_ok(), is_right, "{first} {second}");
        }
    }

    #[test]
    fn objects_of_json_files_have_the_fields_of_all() {
        use DataType as T;
        let object = |fields: &[(&str, DataType)]| {
            T::Struct(fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect())
        };
        let files = [
            file("a.json", &[("o", object(&[("x", T::Int64), ("l", T::new_list(T::Null, true))]))]),
            file("b.json", &[("o", object(&[("l", T::new_list(T::Utf8, true)), ("y", T::Boolean)]))]),
        ];
        let expected = object(&[("x", T::Int64), ("l", T::new_list(T::Utf8, true)), ("y", T::Boolean)]);
        assert_eq!(shown(&files).unwrap(), [format!("o {expected}")]);
        let files = [files.first().unwrap().clone(), file("b.json", &[("o", object(&[("x", T::Utf8)]))])];
        assert!(shown(&files).is_err());
    }
}
