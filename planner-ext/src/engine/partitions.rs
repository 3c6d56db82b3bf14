//! Columns in the names of folders that COPY .. FROM reads: `year=2024/month=01/part.parquet`.
//!
//! DataFusion gives each file the values of its folders, as text, when it knows the names beforehand; here they are found,
//! and the text becomes what the columns of the table are. Folders that name no column of the table say nothing.

use std::path::Path;

use arrow::datatypes::DataType;
use datafusion::functions::expr_fn::nullif;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use terrace_tier_store::table::Table;

use super::copy::PATTERN;
use super::types::matching;
use crate::error::{Error, Result};

/// The value that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Names of the columns that folders below `location` name, outermost first, or that a pattern names from its first
/// `*`, `?` or `[` on (`day=*/part.parquet`); none for a file.
///
/// # Errors
/// Where two files lie in folders of different names: DataFusion would pass over one of them.
pub(super) fn names(location: &str) -> Result<Vec<String>> {
    if !location.contains(PATTERN) {
        return Ok(found(Path::new(location))?.names);
    }
    let (folders, _) = location.rsplit_once('/').unwrap_or_default();
    let open = folders.split('/').skip_while(|folder| !folder.contains(PATTERN));
    Ok(open.map_while(|folder| folder.split_once('=')).map(|(column, _)| column.to_owned()).collect())
}

/// What the names of the files below `folder` end with, so that others (`_SUCCESS`) are not read.
///
/// # Errors
/// As of [`names`], and where two files end differently.
pub(super) fn ending(folder: &Path) -> Result<String> {
    Ok(found(folder)?.ending)
}

/// What the files below a folder have in common.
#[derive(Default)]
struct Found {
    names: Vec<String>,
    ending: String,
}

fn found(folder: &Path) -> Result<Found> {
    let mut found = None;
    collect(folder, &mut Vec::new(), &mut found)?;
    Ok(found.unwrap_or_default())
}

fn collect(folder: &Path, above: &mut Vec<String>, found: &mut Option<Found>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        match (path.is_dir(), name.split_once('=')) {
            (true, Some((column, _))) => {
                above.push(column.to_owned());
                collect(&path, above, found)?;
                above.pop();
            }
            // Other folders are not read, nor is what says that a job succeeded.
            (true, None) => {}
            (false, _) if name.starts_with('_') => {}
            (false, _) => {
                let ending = super::copy::ending(&path);
                let known = found.get_or_insert_with(|| Found { names: above.clone(), ending: ending.clone() });
                if known.ending != ending {
                    return Err(Error::invalid(format!(
                        "file {} ends with '{ending}', others with '{}'; load them one after another",
                        path.display(),
                        known.ending
                    )));
                }
                if known.names != *above {
                    let shown = |names: &[String]| {
                        let folders: Vec<String> = names.iter().map(|name| format!("{name}=..")).collect();
                        if folders.is_empty() { "no such folder".to_owned() } else { folders.join("/") }
                    };
                    return Err(Error::invalid(format!(
                        "file {} lies in {}, others in {}; load them one after another",
                        path.display(),
                        shown(above),
                        shown(&known.names)
                    )));
                }
            }
        }
    }
    Ok(())
}

/// The plan whose columns `names` are text, with these in the types of the table's columns; without those that the table
/// does not have.
pub(super) fn typed(plan: LogicalPlan, names: &[String], table: &Table) -> Result<LogicalPlan> {
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

/// Names as DataFusion takes them.
pub(super) fn as_text(names: &[String]) -> Vec<(String, DataType)> {
    names.iter().map(|name| (name.clone(), DataType::Utf8)).collect()
}
