//! Columns in the names of folders that COPY .. FROM reads: `year=2024/month=01/part.parquet`.
//!
//! DataFusion gives each file the values of its folders, as text, when it knows the names beforehand; here they are found,
//! and the text becomes what the columns of the table are. Folders that name no column of the table say nothing.

use std::path::Path;

use arrow::datatypes::DataType;
use datafusion::functions::expr_fn::nullif;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use terrace_tier_store::table::Table;

use super::types::matching;
use crate::error::{Error, Result};

/// Folders in one another that may name columns; a link may lead in a circle.
const MOST_COLUMNS: usize = 16;
/// The value that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// What the files of a location have in common.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Names of the columns that folders name, outermost first.
    pub names: Vec<String>,
    /// What the names of files end with, from the dot on, so that others (`_SUCCESS`) are not read.
    pub ending: String,
}

impl Layout {
    /// That of a folder with all below it; a file or a pattern names no columns.
    ///
    /// # Errors
    /// Where two files of a folder end differently, or lie in folders of different names: DataFusion would pass over one.
    pub fn of(location: &Path) -> Result<Self> {
        if !location.is_dir() {
            return Ok(Self { names: Vec::new(), ending: ending(location) });
        }
        let mut found = None;
        collect(location, &mut Vec::new(), &mut found)?;
        Ok(found.unwrap_or_default())
    }
}

fn ending(file: &Path) -> String {
    file.extension().and_then(|ending| ending.to_str()).map(|ending| format!(".{ending}")).unwrap_or_default()
}

fn collect(folder: &Path, above: &mut Vec<String>, found: &mut Option<Layout>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        match (path.is_dir(), name.split_once('=')) {
            (true, Some(_)) if above.len() == MOST_COLUMNS => {
                let shown = path.display();
                return Err(Error::invalid(format!("folder {shown} lies in {MOST_COLUMNS} others that name columns")));
            }
            (true, Some((column, _))) => {
                above.push(column.to_owned());
                collect(&path, above, found)?;
                above.pop();
            }
            // Other folders are not read, nor is what says that a job succeeded.
            (true, None) => {}
            (false, _) if name.starts_with('_') => {}
            (false, _) => {
                let ending = ending(&path);
                let known = found.get_or_insert_with(|| Layout { names: above.clone(), ending: ending.clone() });
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
