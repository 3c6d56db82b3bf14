//! Partition columns in the names of folders that COPY .. FROM reads: `year=2024/month=01/part.parquet`.
//!
//! DataFusion adds the values of folders to each file, as text, when it is given the names of the columns. This module
//! finds the names, and casts the text to the types of the table's columns. Folders that name no column of the table are
//! ignored.

use std::fmt;
use std::path::Path;

use arrow::datatypes::DataType;
use datafusion::functions::expr_fn::nullif;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path as ObjectPath;
use terrace_tier_store::table::Table;

use super::types::matching;
use crate::error::{Error, Result};

/// Most nested folders that name columns; a link may lead in a circle.
const MOST_COLUMNS: usize = 16;
/// The value that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Properties that all files of a location share.
#[derive(Debug, Default)]
pub(super) struct FileLayout {
    /// Names of the columns that folders name, outermost first.
    pub names: Vec<String>,
    /// Extension of the files, with its dot, so that others (`_SUCCESS`) are not read.
    pub extension: String,
}

impl FileLayout {
    /// Searches a folder and all folders below it; a file or a pattern names no columns.
    ///
    /// # Errors
    /// When two files of a folder have different extensions, or lie in folders of different names: DataFusion would skip
    /// one.
    pub fn find(location: &Path) -> Result<Self> {
        if !location.is_dir() {
            return Ok(Self { names: Vec::new(), extension: dotted_extension(location) });
        }
        let mut found = None;
        collect(location, &mut Vec::new(), &mut found)?;
        Ok(found.unwrap_or_default())
    }

    /// The layout of objects below a prefix, likewise.
    ///
    /// # Errors
    /// Those of [`FileLayout::find`].
    pub fn from_objects(prefix: &ObjectPath, objects: &[ObjectMeta]) -> Result<Self> {
        let mut found = None;
        for object in objects {
            let Some(parts) = object.location.prefix_match(prefix) else { continue };
            let mut folders: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
            folders.pop();
            let column = |folder: &String| folder.split_once('=').map(|(column, _)| column.to_owned());
            // Other folders are not read.
            let Some(columns) = folders.iter().map(column).collect::<Option<Vec<String>>>() else { continue };
            if columns.len() > MOST_COLUMNS {
                return Err(too_deep(&object.location));
            }
            let place = object.location.as_ref();
            note(&mut found, &place, &columns, dotted_extension(Path::new(place)))?;
        }
        Ok(found.unwrap_or_default())
    }
}

fn too_deep(folder: &impl fmt::Display) -> Error {
    Error::invalid(format!("folder {folder} lies in {MOST_COLUMNS} folders that name columns, which is the limit"))
}

fn dotted_extension(file: &Path) -> String {
    file.extension()
        .and_then(|extension| extension.to_str())
        .map(|extension| format!(".{extension}"))
        .unwrap_or_default()
}

fn collect(folder: &Path, above: &mut Vec<String>, found: &mut Option<FileLayout>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        match (path.is_dir(), name.split_once('=')) {
            (true, Some(_)) if above.len() == MOST_COLUMNS => {
                return Err(too_deep(&path.display()));
            }
            (true, Some((column, _))) => {
                above.push(column.to_owned());
                collect(&path, above, found)?;
                above.pop();
            }
            // Other folders are not read, nor are files such as `_SUCCESS`.
            (true, None) => {}
            (false, _) if name.starts_with('_') => {}
            (false, _) => {
                note(found, &path.display(), above, dotted_extension(&path))?;
            }
        }
    }
    Ok(())
}

/// Adds a file in folders that name these columns to the layout; refuses one that differs from those before it.
fn note(found: &mut Option<FileLayout>, file: &impl fmt::Display, columns: &[String], extension: String) -> Result<()> {
    let known = found.get_or_insert_with(|| FileLayout { names: columns.to_vec(), extension: extension.clone() });
    if known.extension != extension {
        return Err(Error::invalid(format!(
            "file {file} ends with '{extension}', others with '{}'; load them one after another",
            known.extension
        )));
    }
    if known.names != columns {
        let shown = |names: &[String]| {
            let folders: Vec<String> = names.iter().map(|name| format!("{name}=..")).collect();
            if folders.is_empty() { "no folder column=value".to_owned() } else { folders.join("/") }
        };
        return Err(Error::invalid(format!(
            "file {file} lies in {}, others in {}; load them one after another",
            shown(columns),
            shown(&known.names)
        )));
    }
    Ok(())
}

/// Casts the text columns `names` of a plan to the types of the table's columns, and drops those that the table lacks.
pub(super) fn cast_to_table_types(plan: LogicalPlan, names: &[String], table: &Table) -> Result<LogicalPlan> {
    if names.is_empty() {
        return Ok(plan);
    }
    let columns = plan.schema().columns().into_iter().filter_map(|column| {
        if !names.contains(&column.name) {
            return Some(Expr::Column(column));
        }
        let (_, field) = matching(table.schema(), &column.name)?;
        let name = column.name.clone();
        Some(cast(nullif(Expr::Column(column), lit(NULL)), field.data_type().clone()).alias(name))
    });
    let columns: Vec<Expr> = columns.collect();
    Ok(LogicalPlanBuilder::from(plan).project(columns)?.build()?)
}

/// Partition columns of these names, of type text, as DataFusion's options take them.
pub(super) fn text_columns(names: &[String]) -> Vec<(String, DataType)> {
    names.iter().map(|name| (name.clone(), DataType::Utf8)).collect()
}
