//! Columns in the names of folders: `year=2024/month=01/part.parquet` has the columns `year` and `month`, as Hive,
//! Spark and pandas write them.
//!
//! Only folders below the loaded one count. A column is a BIGINT or a DATE when all of its values are, else text. A
//! file's own column of the same name takes precedence.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray, UInt32Array};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use percent_encoding::percent_decode_str;

/// The value that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A file, with the partition columns of the folders above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Names and values of columns, outermost first; `None` is null.
    pub partitions: Vec<(String, Option<String>)>,
}

impl DataFile {
    /// A file below the folder `top`.
    pub fn new(path: PathBuf, top: &Path) -> Self {
        let folders = path.strip_prefix(top).ok().and_then(Path::parent).unwrap_or(Path::new(""));
        let named = folders.components().filter_map(|folder| {
            let (name, value) = folder.as_os_str().to_str()?.split_once('=')?;
            let value = decoded(value);
            (!name.is_empty()).then(|| (decoded(name), (value != NULL).then_some(value)))
        });
        let partitions = named.collect();
        Self { path, partitions }
    }

    /// A file without such folders.
    pub fn bare(path: PathBuf) -> Self {
        Self { path, partitions: Vec::new() }
    }

    /// Whether a folder gives the column `name`.
    pub fn has_partition(&self, name: &str) -> bool {
        self.partitions.iter().any(|(known, _)| known == name)
    }

    /// The partition column `name` with `rows` rows; `None` when no folder has that name.
    ///
    /// # Errors
    /// When its value is not of this type.
    pub fn column(&self, name: &str, data_type: &DataType, rows: usize) -> Option<Result<ArrayRef, ArrowError>> {
        let (_, value) = self.partitions.iter().find(|(known, _)| known == name)?;
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let one = cast_with_options(&StringArray::from(vec![value.as_deref()]), data_type, &options);
        Some(one.and_then(|one| take(&one, &UInt32Array::from(vec![0; rows]), None)))
    }
}

/// The partition columns of all files.
pub fn fields<'a>(files: impl Iterator<Item = &'a DataFile> + Clone) -> Vec<Arc<Field>> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in files.clone().flat_map(|file| &file.partitions) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let values = |wanted: &str| {
        let all = files.clone().flat_map(|file| &file.partitions).filter(|(name, _)| name == wanted);
        all.filter_map(|(_, value)| value.as_deref()).collect::<Vec<_>>()
    };
    names.into_iter().map(|name| Arc::new(Field::new(name, type_of(&values(name)), true))).collect()
}

fn type_of(values: &[&str]) -> DataType {
    let is_number = |text: &&str| text.parse::<i64>().is_ok() && !text.starts_with('+');
    let is_day = |text: &&str| {
        let shape = text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
        let day = StringArray::from(vec![*text]);
        let options = CastOptions { safe: false, ..CastOptions::default() };
        text.len() == 10 && shape && cast_with_options(&day, &DataType::Date32, &options).is_ok()
    };
    match values {
        [] => DataType::Null,
        all if all.iter().all(is_number) => DataType::Int64,
        all if all.iter().all(is_day) => DataType::Date32,
        _ => DataType::Utf8,
    }
}

/// Decodes `%3A` and the like in a text.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(path: &str) -> DataFile {
        DataFile::new(PathBuf::from(path), Path::new("/top"))
    }

    #[test]
    fn folders_below_the_top_are_columns() {
        let found = file("/top/year=2024/plain/city=K%C3%B6ln%2Fs=d/none=__HIVE_DEFAULT_PARTITION__/=x/a=b.parquet");
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            found.partitions,
            [("year".to_owned(), text("2024")), ("city".to_owned(), text("Köln/s=d")), ("none".to_owned(), None)]
        );
        assert_eq!(DataFile::new(PathBuf::from("/a=1/x.csv"), Path::new("/a=1/x.csv")).partitions, []);
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("%zz%ff"), "%zz%ff");
    }

    #[test]
    fn the_values_of_all_files_decide_the_type() {
        let files =
            ["/top/m=01/d=2024-02-29/n=1/x", "/top/m=12/d=2024-03-01/n=x/x", "/top/e=__HIVE_DEFAULT_PARTITION__/x"];
        let files = files.map(file);
        let types: Vec<DataType> = fields(files.iter()).iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(types, [DataType::Int64, DataType::Date32, DataType::Utf8, DataType::Null]);
        assert_eq!(type_of(&["2024-02-30"]), DataType::Utf8);
        assert_eq!(type_of(&["99999999999999999999"]), DataType::Utf8);
        let month = file("/top/m=01/x").column("m", &DataType::Int64, 3).unwrap().unwrap();
        assert_eq!(format!("{month:?}"), format!("{:?}", arrow::array::Int64Array::from(vec![1; 3])));
    }
}
