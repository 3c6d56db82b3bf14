//! What can be loaded: files by their ending, folders of them, generated TPC-H.
//!
//! A source becomes one table (TPC-H: eight). All its files are read in order of their names, by column name, with the
//! schema of the first one.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use terrace_planner_ext::engine::check_parquet;

use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::tpch;

const BATCH_ROWS: usize = 65_536;
/// Rows of a CSV file that decide its columns' types.
const INFER_ROWS: usize = 20_000;
const ENDINGS: &str = ".parquet, .csv, .tsv, .arrow, .ipc, .feather, .arrows";

/// One table to load.
#[derive(Debug)]
pub struct Source {
    /// Name of the table.
    pub table: String,
    /// Columns it is clustered by unless the user says otherwise.
    pub cluster_by: Vec<String>,
    /// Columns of the rows.
    pub schema: SchemaRef,
    /// Rows, where known beforehand; of a generated `lineitem` about that many.
    pub rows: Option<u64>,
    rows_from: From,
}

#[derive(Debug)]
enum From {
    Files(Vec<PathBuf>),
    Tpch(tpch::Table, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parquet,
    Csv(u8),
    IpcFile,
    IpcStream,
}

/// What `text` names: a file, a folder, or `tpch:SF`. `table` replaces the name made from it.
pub fn find(text: &str, table: Option<&str>) -> Result<Vec<Source>> {
    if let Some(scale) = text.strip_prefix("tpch:") {
        let scale = tpch::parse_scale(scale).map_err(Error::Usage)?;
        if table.is_some() {
            return Err(Error::Usage("tpch makes eight tables with names of their own; leave out --table".to_owned()));
        }
        return Ok(tpch::TABLES.iter().map(|table| generated(*table, scale)).collect());
    }
    let path = Path::new(text);
    let meta = std::fs::metadata(path).map_err(|e| Error::file(path, format!("cannot read it: {e}")))?;
    let mut files = Vec::new();
    if meta.is_dir() {
        collect(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    let Some(first) = files.first() else {
        return Err(Error::file(path, format!("the folder has no file that can be loaded ({ENDINGS})")));
    };
    let schema = open(first, None, &mut 0)?.schema();
    let rows = files.iter().map(|file| row_count(file)).sum::<Option<u64>>();
    let table = table.map_or_else(|| name_from(path), |name| Ok(name.to_owned()))?;
    Ok(vec![Source { table, cluster_by: Vec::new(), schema, rows, rows_from: From::Files(files) }])
}

/// One table of TPC-H.
pub fn generated(table: tpch::Table, scale: f64) -> Source {
    let cluster_by = if table.cluster_by.is_empty() { Vec::new() } else { vec![table.cluster_by.to_owned()] };
    Source {
        table: table.name.to_owned(),
        cluster_by,
        schema: table.schema(),
        rows: Some(table.rows(scale)),
        rows_from: From::Tpch(table, scale),
    }
}

impl Source {
    /// Several sources as one, with the name and the columns of the first; `None` of none. Generated ones stay alone.
    pub fn joined(sources: Vec<Self>) -> Option<Self> {
        let mut sources = sources.into_iter();
        let mut all = sources.next()?;
        for next in sources {
            all.rows = all.rows.zip(next.rows).map(|(a, b)| a + b);
            if let (From::Files(files), From::Files(more)) = (&mut all.rows_from, next.rows_from) {
                files.extend(more);
            }
        }
        Some(all)
    }

    /// What tells it from others, and from itself after a change: files with their sizes and times, or what is generated.
    pub fn identity(&self) -> Result<Vec<String>> {
        let of_file = |file: &PathBuf| {
            let failed = |e: std::io::Error| Error::file(file, format!("cannot read it: {e}"));
            let (path, meta) = (std::path::absolute(file).map_err(failed)?, std::fs::metadata(file).map_err(failed)?);
            let modified = meta.modified().map_err(failed)?.duration_since(std::time::UNIX_EPOCH);
            let (bytes, modified_us) = (meta.len(), modified.map_or(0, |since| since.as_micros()));
            Ok(format!("{}, {bytes} bytes, changed {modified_us}", path.display()))
        };
        match &self.rows_from {
            From::Tpch(table, scale) => Ok(vec![format!("tpch:{scale} {}", table.name)]),
            From::Files(files) => files.iter().map(of_file).collect(),
        }
    }

    /// Reads the rows after the first `skip` and gives them to `take`, until it says false. Blocks. The rows come in the
    /// same order each time.
    ///
    /// # Errors
    /// Also when there are not that many.
    pub fn read_after(&self, mut skip: u64, mut take: impl FnMut(RecordBatch) -> bool) -> Result<()> {
        let rest = |batch: RecordBatch, skip: &mut u64| {
            let past = usize::try_from(*skip).unwrap_or(usize::MAX).min(batch.num_rows());
            *skip -= past as u64;
            batch.slice(past, batch.num_rows() - past)
        };
        match &self.rows_from {
            From::Tpch(table, scale) => {
                for batch in table.generate(*scale) {
                    if !take(rest(batch?, &mut skip)) {
                        return Ok(());
                    }
                }
            }
            From::Files(files) => {
                for file in files {
                    if let Some(rows) = Some(skip).filter(|skip| *skip > 0).and_then(|_| row_count(file))
                        && rows <= skip
                    {
                        skip -= rows;
                        continue;
                    }
                    for batch in open(file, Some(&self.schema), &mut skip)? {
                        let batch = rest(batch.map_err(|e| Error::file(file, e))?, &mut skip);
                        let batch = fit(&batch, &self.schema).map_err(|message| Error::file(file, message))?;
                        if !take(batch) {
                            return Ok(());
                        }
                    }
                }
            }
        }
        match skip {
            0 => Ok(()),
            more => Err(Error::Usage(format!("the source has {more} rows less than were loaded from it before"))),
        }
    }
}

/// Columns by name, cast where the types differ, in the order of `schema`.
fn fit(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, String> {
    if batch.num_columns() != schema.fields().len() {
        let count = schema.fields().len();
        return Err(format!("it has {} columns, the first file has {count}", batch.num_columns()));
    }
    let columns = schema.fields().iter().map(|field| {
        let column = batch
            .column_by_name(field.name())
            .ok_or_else(|| format!("it has no column '{}', which the first file has", field.name()))?;
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        // A value that does not fit is an error, neither a null nor another value.
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let failed = |e: ArrowError| format!("column '{}': {e}", field.name());
        let there = cast_with_options(column, field.data_type(), &options).map_err(failed)?;
        let back = cast_with_options(&there, column.data_type(), &options).map_err(failed)?;
        if back.as_ref() != column.as_ref() {
            let (name, from, to) = (field.name(), column.data_type(), field.data_type());
            return Err(format!(
                "column '{name}' is {from} here and {to} in the first file, which cannot hold its values"
            ));
        }
        Ok(there)
    });
    let columns = columns.collect::<Result<Vec<_>, String>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|e| e.to_string())
}

/// Files below `folder` that can be loaded; hidden ones and those starting with an underscore are not data.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e: std::io::Error| Error::file(folder, format!("cannot read it: {e}"));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(['.', '_']) {
            continue;
        }
        if entry.file_type().map_err(failed)?.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind(&entry.path()).is_some() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn kind(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "parquet" | "pq" => Some(Kind::Parquet),
        "csv" => Some(Kind::Csv(b',')),
        "tsv" => Some(Kind::Csv(b'\t')),
        "arrow" | "ipc" | "feather" => Some(Kind::IpcFile),
        "arrows" => Some(Kind::IpcStream),
        _ => None,
    }
}

fn row_count(path: &Path) -> Option<u64> {
    if kind(path)? != Kind::Parquet {
        return None;
    }
    let reader = open_parquet(path, File::open(path).ok()?).ok()?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).ok()
}

/// A reader of a file. Rows that it goes past by itself are taken from `skip`.
fn open(path: &Path, schema: Option<&SchemaRef>, skip: &mut u64) -> Result<Box<dyn RecordBatchReader + Send>> {
    let Some(kind) = kind(path) else {
        return Err(Error::file(path, format!("the ending says nothing of its format; known are {ENDINGS}")));
    };
    let file = File::open(path).map_err(|e| Error::file(path, format!("cannot open it: {e}")))?;
    match kind {
        Kind::Parquet => {
            let builder = open_parquet(path, file)?;
            let groups = builder.metadata().row_groups().iter().map(|group| group.num_rows().unsigned_abs());
            let (mut past, mut kept) = (0, Vec::new());
            for (index, rows) in groups.enumerate() {
                match kept.is_empty() && past + rows <= *skip {
                    true => past += rows,
                    false => kept.push(index),
                }
            }
            *skip -= past;
            let reader = builder.with_batch_size(BATCH_ROWS).with_row_groups(kept).build();
            Ok(Box::new(reader.map_err(|e| Error::file(path, e))?))
        }
        Kind::Csv(delimiter) => open_csv(path, file, delimiter, schema),
        Kind::IpcFile | Kind::IpcStream => {
            // Half of what there is: a file says of itself how much it decompresses to.
            let most = Limit::detect().bytes / 2;
            let limits = terrace_ipc::Limits { message_bytes: most, expanded_bytes: most, account: None };
            let reader = terrace_ipc::FileReader::open(file, None, None, limits);
            Ok(Box::new(reader.map_err(|e| Error::file(path, e))?.into_arrow()))
        }
    }
}

/// The library believes what a file says of itself, so that is looked at first.
fn open_parquet(path: &Path, file: File) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    check_parquet(&file).map_err(|why| Error::file(path, why))?;
    ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| Error::file(path, e))
}

fn open_csv(
    path: &Path,
    mut file: File,
    delimiter: u8,
    schema: Option<&SchemaRef>,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let failed = |e: ArrowError| Error::file(path, e);
    let schema = match schema {
        Some(schema) => Arc::clone(schema),
        None => {
            let format = arrow::csv::reader::Format::default().with_header(true).with_delimiter(delimiter);
            let (schema, _) = format.infer_schema(BufReader::new(&file), Some(INFER_ROWS)).map_err(failed)?;
            file.rewind().map_err(|e| Error::file(path, e))?;
            Arc::new(schema)
        }
    };
    let builder =
        arrow::csv::ReaderBuilder::new(schema).with_header(true).with_delimiter(delimiter).with_batch_size(BATCH_ROWS);
    Ok(Box::new(builder.build(file).map_err(failed)?))
}

/// The name of a table from that of a file: lower case, letters, digits and underscores.
fn name_from(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let stem = absolute.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_lowercase();
    let name: String = stem.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    match name.chars().next() {
        Some(c) if c.is_alphabetic() || c == '_' => Ok(name),
        Some(_) => Ok(format!("t_{name}")),
        None => Err(Error::Usage(format!("{} gives no table name; say one with --table", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::DataType;

    fn rows(source: &Source) -> Vec<RecordBatch> {
        let mut rows = Vec::new();
        source
            .read_after(0, |batch| {
                rows.push(batch);
                true
            })
            .unwrap();
        rows
    }

    #[test]
    fn a_folder_is_one_table_with_columns_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("My Sales-2024");
        std::fs::create_dir_all(path.join("sub")).unwrap();
        std::fs::write(path.join("a.csv"), "id,price\n1,2.5\n2,3.5\n").unwrap();
        std::fs::write(path.join("_ignored.csv"), "x\n").unwrap();
        let batch = RecordBatch::try_from_iter([
            ("price", Arc::new(arrow::array::Float32Array::from(vec![9.0])) as _),
            ("id", Arc::new(arrow::array::Int32Array::from(vec![3])) as _),
        ])
        .unwrap();
        let file = File::create(path.join("sub/b.arrow")).unwrap();
        let mut writer = arrow_ipc::writer::FileWriter::try_new(file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();

        let source = find(path.to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(source.table, "my_sales_2024");
        let rows = rows(&source);
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
        let types: Vec<_> = rows[1].columns().iter().map(|c| c.data_type().clone()).collect();
        assert_eq!(types, [DataType::Int64, DataType::Float64]);
    }

    #[test]
    fn wrong_sources_say_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let says = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            find(path.to_str().unwrap(), None).and_then(|s| s[0].read_after(0, |_| true)).unwrap_err().to_string()
        };
        assert!(says("x.parquet", "not parquet at all").contains("x.parquet"));
        assert!(says("x.xlsx", "").contains(".parquet, .csv"));
        assert!(says("x.csv", &format!("a\n{}oops\n", "1\n".repeat(INFER_ROWS + 5))).contains("oops"));
        assert!(find("/nowhere/x.csv", None).unwrap_err().to_string().contains("/nowhere/x.csv"));
        assert!(find("tpch:big", None).unwrap_err().to_string().contains("tpch:1"));
    }

    #[test]
    fn parquet_tells_its_rows_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("2nd.parquet");
        let batch = tpch::TABLES[1].generate(1.0).next().unwrap().unwrap();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let source = find(path.to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!((source.rows, source.table.as_str()), (Some(25), "t_2nd"));
        assert_eq!(rows(&source)[0].num_rows(), 25);
    }

    /// Wherever a load stops, what comes after it is what it had not.
    #[test]
    fn reading_goes_on_after_any_row() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = |from: i64, to: i64| {
            let values = arrow::array::Int64Array::from_iter_values(from..to);
            RecordBatch::try_from_iter([("k", Arc::new(values) as _)]).unwrap()
        };
        for (name, from, to) in [("a.parquet", 0, 25), ("b.parquet", 25, 25), ("d.parquet", 40, 100)] {
            let properties = parquet::file::properties::WriterProperties::builder();
            let properties = properties.set_max_row_group_row_count(Some(10)).build();
            let (file, batch) = (File::create(folder.path().join(name)).unwrap(), numbers(from, to));
            let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        let csv: String = (25..40).map(|k| format!("{k}\n")).collect();
        std::fs::write(folder.path().join("c.csv"), format!("k\n{csv}")).unwrap();
        let source = find(folder.path().to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(source.identity().unwrap().len(), 4);
        for skip in 0..=100_u64 {
            let mut found = Vec::new();
            let take = |batch: RecordBatch| {
                found.extend(batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().to_vec());
                true
            };
            source.read_after(skip, take).unwrap();
            assert_eq!(found, (skip as i64..100).collect::<Vec<_>>());
        }
        assert!(source.read_after(101, |_| true).unwrap_err().to_string().contains("1 rows less"));
        let lines = generated(tpch::TABLES[6], 0.01);
        let mut rows = 0;
        let take = |batch: RecordBatch| {
            rows += batch.num_rows();
            true
        };
        lines.read_after(14_990, take).unwrap();
        assert_eq!(rows, 10);
    }
}
