//! COPY table FROM 'file': Parquet, CSV, JSON and Arrow files into a table, all or nothing.
//!
//! Columns are matched by name. Text files are read with the types of the table, so that `007` stays text where the
//! column is text. Folders named `day=..` are columns ([`super::partitions`]). DataFusion executes COPY .. TO, after this
//! module has checked the path.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/4918> (Incorrect Schema Adaption for CSV), open; the
//! comparison of the columns of CSV files can go when the test `text_is_read_as_others_write_it` passes without it.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Column;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::options::ReadOptions;
use datafusion::functions::expr_fn::nullif;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::prelude::{CsvReadOptions, JsonReadOptions, ParquetReadOptions, SessionContext};
use datafusion::sql::parser::Statement as SqlStatement;
use futures::TryStreamExt;
use terrace_access::Right;
use terrace_sql::command::{Action, CopyFrom, PlannerStatement};
use terrace_sql::{SYSTEM_SCHEMA, parse};
use terrace_tier_store::table::Table;

use super::catalog::Snapshot;
use super::execute::{Execute, Execution};
use super::files::{PATTERN, REPLACING, check_pattern, is_object, objects_at, replacing_object};
use super::ingest::{LoadTarget, load};
use super::parquet_files::ValidatedFiles;
use super::partitions::{self, FileLayout};
use super::plan::table_name;
use super::statement::Planned;
use super::{Engine, ddl, rights};
use crate::error::{Error, ErrorKind, Result, missing_table};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Parquet,
    Csv,
    Json,
    Arrow,
}

impl Format {
    fn from_name(name: &str) -> Option<Self> {
        match name.to_lowercase().as_str() {
            "parquet" => Some(Self::Parquet),
            "csv" | "tsv" | "tbl" => Some(Self::Csv),
            "json" | "ndjson" | "jsonl" => Some(Self::Json),
            "arrow" | "ipc" | "feather" => Some(Self::Arrow),
            _ => None,
        }
    }
}

/// Possible delimiters of a file that seems to have one column.
const DELIMITERS: [char; 4] = [';', '\t', '|', ','];
/// The mark that programs on Windows write at the start of a text file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Options of COPY FROM.
struct CopyFromOptions {
    format: Format,
    header: bool,
    delimiter: u8,
    /// Texts that mean null, in addition to the empty field.
    nulls: Vec<String>,
}

impl CopyFromOptions {
    fn new(copy: &CopyFrom) -> Result<Self> {
        let extension = Path::new(&copy.location).extension().and_then(|e| e.to_str()).unwrap_or_default();
        let mut format = Format::from_name(extension);
        let mut header = None;
        let mut delimiter = None;
        let mut nulls = Vec::new();
        for (name, value) in &copy.options {
            let bad = |wanted: &str| Error::invalid(format!("COPY option {name} takes {wanted}, not '{value}'"));
            match name.as_str() {
                "format" => {
                    format = Some(Format::from_name(value).ok_or_else(|| bad("parquet, csv, json or arrow"))?);
                }
                "header" | "has_header" => {
                    header = Some(match value.to_lowercase().as_str() {
                        "true" | "on" | "1" => true,
                        "false" | "off" | "0" => false,
                        _ => return Err(bad("true or false")),
                    });
                }
                "delimiter" | "sep" => match value.as_bytes() {
                    [one] => delimiter = Some(*one),
                    _ if value == "\\t" => delimiter = Some(b'\t'),
                    _ => return Err(bad("one character")),
                },
                "null" => nulls.push(value.clone()),
                _ => {
                    return Err(Error::invalid(format!(
                        "COPY option '{name}' does not exist; the options are format, header, delimiter, null"
                    )));
                }
            }
        }
        let format = format.ok_or_else(|| {
            Error::invalid(format!(
                "the format of '{}' is not clear; add (FORMAT csv), parquet, json or arrow",
                copy.location
            ))
        })?;
        if format != Format::Csv
            && let Some((name, _)) = copy.options.iter().find(|(name, _)| name != "format")
        {
            return Err(Error::invalid(format!("COPY option {name} is for CSV files")));
        }
        let default_delimiter = if extension.eq_ignore_ascii_case("tsv") { b'\t' } else { b',' };
        Ok(Self { format, header: header.unwrap_or(true), delimiter: delimiter.unwrap_or(default_delimiter), nulls })
    }
}

/// Checks that the file of a COPY .. TO may be written, and takes the option `overwrite` out of its plan.
///
/// # Errors
/// Those of [`FileAccess::check_write`](super::FileAccess::check_write), also for an object that is there.
pub(super) async fn checked_copy_to(engine: &Engine, plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Copy(mut copy) = plan else { return Ok(plan) };
    // The planner adds the prefix `format.` to options without a dot.
    let overwrite = match copy.options.remove("format.overwrite").map(|value| value.to_lowercase()).as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(Error::invalid(format!("COPY option overwrite takes true or false, not '{other}'"))),
    };
    let location = ddl::absolute_location(&copy.output_url)?;
    if location.contains(PATTERN) {
        return Err(Error::invalid(format!("COPY TO '{location}': the path of a new file must not have *, ? or [")));
    }
    engine.files().check_target(&location, overwrite)?;
    if is_object(&location) && !overwrite {
        engine.files().objects().refuse_existing(&location).await?;
    }
    // The checked path is the one that is written, however the statement spelled it.
    copy.output_url = if overwrite { replacing_url(&location)? } else { location };
    Ok(LogicalPlan::Copy(copy))
}

/// The URL of a location in the object store that replaces files, or objects.
fn replacing_url(location: &str) -> Result<String> {
    if is_object(location) {
        return Ok(replacing_object(location));
    }
    let url = ListingTableUrl::parse(location)?;
    Ok(url.as_str().replacen("file://", REPLACING, 1))
}

/// Checks the locations of the external table that an INSERT adds files to, and the right to write files.
pub(super) fn check_external_insert(engine: &Engine, snapshot: &Snapshot, plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Dml(dml) = plan else { return Ok(()) };
    let name = table_name(&dml.table_name, snapshot.default_schema())?;
    let Some(external) = snapshot.objects().external.get(&name) else { return Ok(()) };
    rights::check_server(snapshot.authority(), Right::WriteFiles)?;
    if let Action::Plan(PlannerStatement { statement: SqlStatement::CreateExternalTable(create), .. }) =
        parse(&external.sql)?.action
    {
        for location in &create.locations {
            engine.files().check_target(&ddl::absolute_location(location)?, true)?;
        }
    }
    Ok(())
}

impl Execute for CopyFrom {
    /// Returns the rows stored.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        copy_from(execution, self).await
    }
}

async fn copy_from(execution: &Execution<'_>, copy: &CopyFrom) -> Result<u64> {
    let engine = execution.engine();
    let transaction = execution.transaction.clone();
    let snapshot = execution.session().snapshot_in(transaction.as_ref())?;
    let name = copy.table.resolve(snapshot.default_schema());
    if name.schema == SYSTEM_SCHEMA {
        return Err(Error::new(ErrorKind::PermissionDenied, "tables of schema 'system' cannot be written"));
    }
    let insert = rights::insert_need(&snapshot, &name, &copy.columns)?;
    rights::check_table(&snapshot, &name, std::slice::from_ref(&insert))?;
    let table = match engine.store.table(&name) {
        // A transaction writes to the table that it reads.
        Ok(_) if transaction.is_some() => Arc::clone(snapshot.writable(&name, &[insert])?.table()),
        Ok(table) => table,
        Err(_) => {
            ddl::refuse_view_or_external(snapshot.objects(), &name)?;
            return Err(missing_table(&name.to_string()));
        }
    };
    let condition = snapshot.added_row_condition(&table)?;
    let options = CopyFromOptions::new(copy)?;
    let location = ddl::absolute_location(&copy.location)?;
    engine.files().check_location(&location)?;
    let context = SessionContext::new_with_state(snapshot.state());
    let mut layout = find_files(&context, &location).await?;
    // Listed columns name those of the files by position.
    if !copy.columns.is_empty() {
        layout.names.clear();
    }
    let plan = read_files(&context, &location, &options, &table, &copy.columns, &layout).await?;
    let plan = partitions::cast_to_table_types(rename_columns(plan, &copy.columns)?, &layout.names, &table)?;
    let input = Planned::new(snapshot, plan, None);
    load(engine, execution.ticket, input, LoadTarget::Existing { table, transaction, condition }).await
}

/// Finds the files at a location that may be read, of which there is one at least.
async fn find_files(context: &SessionContext, location: &str) -> Result<FileLayout> {
    if is_object(location) {
        let found = objects_at(&context.state(), location).await?;
        return FileLayout::from_objects(ListingTableUrl::parse(location)?.prefix(), &found);
    }
    check_pattern(location)?;
    if location.contains(PATTERN) {
        let url = ListingTableUrl::parse(location)?;
        let store = context.runtime_env().object_store(&url)?;
        if url.list_all_files(&context.state(), store.as_ref(), "").await?.try_next().await?.is_none() {
            return Err(Error::new(ErrorKind::NotFound, format!("no file on the server matches {location}")));
        }
    } else if !Path::new(location).exists() {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no file or folder {location} on the server")));
    }
    FileLayout::find(Path::new(location))
}

async fn read_files(
    context: &SessionContext,
    location: &str,
    options: &CopyFromOptions,
    table: &Table,
    columns: &[String],
    layout: &FileLayout,
) -> Result<LogicalPlan> {
    let folders = partitions::text_columns(&layout.names);
    let extension = &layout.extension;
    let frame = match options.format {
        Format::Parquet => {
            ValidatedFiles::check_for(&context.state(), location).await?;
            let read = ParquetReadOptions::default().file_extension(extension).table_partition_cols(folders);
            context.read_parquet(location, read).await?
        }
        Format::Arrow => read_arrow(context, location, extension, folders).await?,
        Format::Json => {
            let read = JsonReadOptions::default().file_extension(extension);
            let found = found_columns(context, location, &read).await?;
            let typed = typed_columns(table, &found, &[])?;
            context.read_json(location, read.schema(&typed).table_partition_cols(folders)).await?
        }
        Format::Csv => {
            let read =
                CsvReadOptions::new().has_header(options.header).delimiter(options.delimiter).file_extension(extension);
            let found = csv_columns(context, location, &read).await?;
            let given: Vec<String> = match (columns.is_empty(), options.header) {
                (false, _) => columns.to_vec(),
                (true, true) => Vec::new(),
                // Without a header the file has the table's columns in their order.
                (true, false) => table.schema().fields().iter().map(|f| f.name().clone()).collect(),
            };
            let typed = typed_columns(table, &found, &given)?;
            if options.nulls.is_empty() {
                context.read_csv(location, read.schema(&typed).table_partition_cols(folders)).await?
            } else {
                let texts = typed.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8View, true));
                let texts = Schema::new(texts.collect::<Vec<_>>());
                let frame = context.read_csv(location, read.schema(&texts).table_partition_cols(folders)).await?;
                return with_nulls(frame.into_unoptimized_plan(), &typed, &options.nulls);
            }
        }
    };
    Ok(frame.into_unoptimized_plan())
}

/// Casts columns that were read as text to the types of `typed`, and makes the texts `nulls` null. (DataFusion applies
/// `null_regex` when it infers types, not when it reads rows.)
fn with_nulls(plan: LogicalPlan, typed: &Schema, nulls: &[String]) -> Result<LogicalPlan> {
    let columns = plan.schema().columns().into_iter().map(|column| {
        let Ok(field) = typed.field_with_name(column.name()) else { return Expr::Column(column) };
        let name = column.name().to_owned();
        let text = nulls.iter().fold(Expr::Column(column), |text, null| nullif(text, lit(null.as_str())));
        cast(text, field.data_type().clone()).alias(name)
    });
    let columns: Vec<Expr> = columns.collect();
    Ok(LogicalPlanBuilder::from(plan).project(columns)?.build()?)
}

/// Reads Arrow files with [`super::arrow_files`], which the engine registers in place of DataFusion's format.
async fn read_arrow(
    context: &SessionContext,
    location: &str,
    extension: &str,
    folders: Vec<(String, DataType)>,
) -> Result<DataFrame> {
    let state = context.state();
    let format = state.get_file_format_factory("arrow").map(|factory| factory.default());
    let format = format.ok_or_else(|| Error::new(ErrorKind::Internal, "the file format 'arrow' is not registered"))?;
    let options = ListingOptions::new(format).with_file_extension(extension).with_table_partition_cols(folders);
    let config = ListingTableConfig::new(ListingTableUrl::parse(location)?).with_listing_options(options);
    let table = ListingTable::try_new(config.infer_schema(&state).await?)?;
    Ok(context.read_table(Arc::new(table))?)
}

/// Columns of the files.
async fn found_columns<'a>(context: &SessionContext, location: &str, options: &impl ReadOptions<'a>) -> Result<Schema> {
    let state = context.state();
    let url = ListingTableUrl::parse(location)?;
    let schema = options.get_resolved_schema(&context.copied_config(), state.clone(), url).await?;
    Ok(schema.as_ref().clone())
}

/// Columns of CSV files. They must be the same in all files, as DataFusion reads rows of CSV by position.
async fn csv_columns(context: &SessionContext, location: &str, options: &CsvReadOptions<'_>) -> Result<Schema> {
    let state = context.state();
    let url = ListingTableUrl::parse(location)?;
    let listing = options.to_listing_options(&context.copied_config(), context.copied_table_options());
    let store = state.runtime_env().object_store(&url)?;
    let files = url.list_all_files(&state, store.as_ref(), &listing.file_extension).await?;
    let files: Vec<_> = files.try_collect().await?;
    let mut first = None;
    for file in &files {
        let found = listing.format.infer_schema(&state, &store, std::slice::from_ref(file)).await;
        let found = found.map_err(|error| match Error::from(error) {
            uneven if uneven.message().contains("unequal lengths") => {
                Error::invalid(format!("{}; DELIMITER says what separates the columns", uneven.message()))
            }
            other => other,
        })?;
        // A file without a byte has no columns.
        if found.fields().is_empty() {
            continue;
        }
        let (known, wanted) = first.get_or_insert_with(|| (file, Arc::clone(&found)));
        if !column_names(&found).eq(column_names(wanted)) {
            let [found, wanted] = [&found, wanted].map(|schema| column_names(schema).collect::<Vec<_>>().join(", "));
            return Err(Error::invalid(format!(
                "file /{} has the columns {found}, file /{} has {wanted}; load them one after another",
                file.location, known.location
            )));
        }
    }
    Ok(first.map_or_else(Schema::empty, |(_, schema)| schema.as_ref().clone()))
}

fn column_names(schema: &Schema) -> impl Iterator<Item = &str> {
    schema.fields().iter().map(|field| field.name().trim_start_matches(BYTE_ORDER_MARK))
}

/// The columns of a text file with the types of the table's columns of the same name; `given` names them instead of the
/// file. A column the table does not have stays text and is refused later, by name.
fn typed_columns(table: &Table, found: &Schema, given: &[String]) -> Result<Schema> {
    if !given.is_empty() && given.len() != found.fields().len() {
        return Err(Error::invalid(format!(
            "the file has {} columns, but {} were expected: {}",
            found.fields().len(),
            given.len(),
            given.join(", ")
        )));
    }
    if let ([only], []) = (found.fields().as_ref(), given)
        && table.schema().column_with_name(only.name()).is_none()
        && let Some(delimiter) = DELIMITERS.iter().find(|delimiter| only.name().contains(**delimiter))
    {
        let name = only.name();
        let delimiter = delimiter.escape_default();
        return Err(Error::invalid(format!(
            "the file seems to have one column '{name}'; say what separates its columns, for example DELIMITER '{delimiter}'"
        )));
    }
    let fields = found.fields().iter().enumerate().map(|(index, field)| {
        let name = given.get(index).map_or_else(|| field.name().trim_start_matches(BYTE_ORDER_MARK), String::as_str);
        let columns = table.schema().fields();
        let column = columns
            .iter()
            .find(|f| f.name() == name)
            .or_else(|| columns.iter().find(|f| f.name().eq_ignore_ascii_case(name)));
        let data_type = column.map_or(DataType::Utf8View, |c| c.data_type().clone());
        Field::new(name, data_type, true)
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

/// Gives the columns of the file the names listed after the table, by position.
fn rename_columns(plan: LogicalPlan, columns: &[String]) -> Result<LogicalPlan> {
    if columns.is_empty() {
        return Ok(plan);
    }
    let found: Vec<Column> = plan.schema().columns();
    if found.len() != columns.len() {
        return Err(Error::invalid(format!(
            "the file has {} columns, but {} are listed: {}",
            found.len(),
            columns.len(),
            columns.join(", ")
        )));
    }
    let renamed: Vec<Expr> = found.into_iter().zip(columns).map(|(c, name)| Expr::Column(c).alias(name)).collect();
    Ok(LogicalPlanBuilder::from(plan).project(renamed)?.build()?)
}
