//! Sources of a load: files by their ending, folders and patterns of files, standard input, generated benchmarks.
//!
//! A source becomes one table (a benchmark: all of its tables). All its files are read in order of their names, by column
//! name, with the columns of all of them ([`super::union`]) and those that folder names give.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::columns::fit;
use super::files::{FoundFile, ReadOptions, collect};
use super::form::{ENDINGS, Form};
use super::generated::Generated;
use super::input::{Input, Stdin};
use super::partitions::DataFile;
use super::pattern;
use super::union::Union;
use crate::error::{Error, Result};

/// One table to load.
#[derive(Debug)]
pub struct Source {
    /// Name of the table.
    pub table: String,
    /// Columns it is clustered by unless the user says otherwise.
    pub cluster_by: Vec<String>,
    /// Columns of the rows. Those that are null in all files may have no type.
    pub schema: SchemaRef,
    /// Number of rows, where known beforehand; for some generated tables an estimate.
    pub rows: Option<u64>,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Files(Box<FileSource>),
    Generated(Generated),
}

/// The files of a source.
#[derive(Debug)]
pub struct FileSource {
    /// In the order in which they are read.
    pub files: Vec<FoundFile>,
    /// Their columns.
    pub union: Union,
    /// How they are read.
    pub options: ReadOptions,
    /// Name of the file that gave each column its type.
    deciders: Vec<String>,
}

/// The sources that `text` names: a file, a folder, a pattern, `-` for standard input, `tpch:SF` or `ssb:SF`. `table` replaces
/// the name derived from it.
pub fn find(text: &str, table: Option<&str>, options: &ReadOptions) -> Result<Vec<Source>> {
    if let Some(tables) = Generated::find(text)? {
        if table.is_some() {
            let count = tables.len();
            let message = format!("{text} loads {count} tables whose names are fixed; leave out --table");
            return Err(Error::Usage(message));
        }
        return Ok(tables.into_iter().map(generated).collect());
    }
    if text == "-" {
        return Ok(vec![standard_input(table, options)?]);
    }
    let (paths, top) = list(text, options)?;
    let table = table.map_or_else(|| name_from(&top), |name| Ok(name.to_owned()))?;
    let probe = |path: PathBuf| {
        let input = Input::File(path.clone());
        FoundFile::probe(DataFile::new(path, &top), input, options)
    };
    let files = paths.into_iter().map(probe).collect::<Result<Vec<_>>>()?;
    Ok(vec![Source::from_files(table, files, options)?])
}

/// The files that a path or a pattern names, in order of their names, and the path that names them all.
fn list(text: &str, options: &ReadOptions) -> Result<(Vec<PathBuf>, PathBuf)> {
    let path = Path::new(text);
    let any_form = options.format.is_some();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(_) if pattern::is_pattern(text) => return Ok((pattern::files(text, any_form)?, pattern::top(text))),
        Err(e) => return Err(Error::file(path, format!("cannot read it: {e}"))),
    };
    if !meta.is_dir() {
        return Ok((vec![path.to_owned()], path.to_owned()));
    }
    let mut files = Vec::new();
    collect(path, any_form, &mut files)?;
    files.sort();
    match files.is_empty() {
        true => Err(Error::file(path, format!("the folder has no file that can be loaded ({ENDINGS})"))),
        false => Ok((files, path.to_owned())),
    }
}

fn standard_input(table: Option<&str>, options: &ReadOptions) -> Result<Source> {
    let Some(table) = table else {
        return Err(Error::Usage("standard input has no name: name the table with --table".to_owned()));
    };
    if options.format.is_none() {
        let message = "standard input has no name that tells its format: give it with --format (csv, tsv, ndjson, json, or with a \
                       compression csv.gz and so on)";
        return Err(Error::Usage(message.to_owned()));
    }
    let input = Input::Stdin(Arc::<Stdin>::default());
    let file = FoundFile::probe(DataFile::bare(input.name()), input, options)?;
    Source::from_files(table.to_owned(), vec![file], options)
}

/// The source of a table that is generated.
pub fn generated(table: Generated) -> Source {
    Source {
        table: table.name().to_owned(),
        cluster_by: table.cluster_by(),
        schema: table.schema(),
        rows: Some(table.rows()),
        origin: Origin::Generated(table),
    }
}

impl Source {
    /// A source of `files`, in this order.
    ///
    /// # Errors
    /// When their columns do not go together.
    fn from_files(table: String, files: Vec<FoundFile>, options: &ReadOptions) -> Result<Self> {
        let union = Union::new(&files)?;
        let rows = files.iter().map(|file| file.rows).sum();
        let (schema, deciders) = (union.schema(), union.deciders());
        let origin = Origin::Files(Box::new(FileSource { files, union, options: options.clone(), deciders }));
        Ok(Self { table, cluster_by: Vec::new(), schema, rows, origin })
    }

    /// Joins several sources into one with the name of the first; none for an empty list. Generated sources are not joined.
    ///
    /// # Errors
    /// When the columns of their files do not go together.
    pub fn joined(sources: Vec<Self>) -> Result<Vec<Self>> {
        let mut sources = sources.into_iter();
        let Some(first) = sources.next() else { return Ok(Vec::new()) };
        let Origin::Files(first_files) = first.origin else {
            return Ok(std::iter::once(first).chain(sources).collect());
        };
        let FileSource { mut files, options, .. } = *first_files;
        for next in sources {
            if let Origin::Files(more) = next.origin {
                files.extend(more.files);
            }
        }
        Ok(vec![Self::from_files(first.table, files, &options)?])
    }

    /// Its files; `None` for rows that are generated.
    pub fn files(&self) -> Option<&FileSource> {
        match &self.origin {
            Origin::Files(files) => Some(files),
            Origin::Generated(_) => None,
        }
    }

    /// Whether its rows can be read once only.
    pub fn is_read_once(&self) -> bool {
        let is_stdin = |file: &FoundFile| matches!(file.input, Input::Stdin(_));
        self.files().is_some_and(|source| source.files.iter().any(is_stdin))
    }

    /// Strings that differ between sources, and between versions of one: files with their sizes and times of change, or
    /// the generated table.
    pub fn identity(&self) -> Result<Vec<String>> {
        match &self.origin {
            Origin::Generated(table) => Ok(vec![table.identity()]),
            Origin::Files(source) => source.files.iter().map(|file| source.identity(file)).collect(),
        }
    }

    /// Reads the rows after the first `skip` and calls `visit` with each batch until it returns false. Blocks. The rows
    /// come in the same order each time.
    ///
    /// # Errors
    /// Also when the source has fewer than `skip` rows.
    pub fn read_after(&self, mut skip: u64, mut visit: impl FnMut(RecordBatch) -> bool) -> Result<()> {
        let goes_on = match &self.origin {
            Origin::Generated(table) => {
                let mut goes_on = true;
                for batch in table.generate() {
                    goes_on = visit(skipped(batch?, &mut skip));
                    if !goes_on {
                        break;
                    }
                }
                goes_on
            }
            Origin::Files(source) => source.read_after(&self.schema, &mut skip, &mut visit)?,
        };
        match skip {
            more if goes_on && more > 0 => {
                Err(Error::Usage(format!("the source now has {more} rows fewer than were loaded from it before")))
            }
            _ => Ok(()),
        }
    }
}

impl FileSource {
    fn identity(&self, file: &FoundFile) -> Result<String> {
        let path = &file.file.path;
        let failed = |e: std::io::Error| Error::file(path, format!("cannot read it: {e}"));
        let absolute = std::path::absolute(path).map_err(failed)?;
        let meta = std::fs::metadata(path).map_err(failed)?;
        let modified = meta.modified().map_err(failed)?.duration_since(std::time::UNIX_EPOCH);
        let bytes = meta.len();
        let modified_us = modified.map_or(0, |since| since.as_micros());
        let options = self.options.identity(file.form.kind);
        Ok(format!("{}, {bytes} bytes, changed {modified_us}{options}", absolute.display()))
    }

    /// Reads the rows after the first `skip`, with the columns of `schema`; false when `visit` did not want more.
    fn read_after(
        &self,
        schema: &SchemaRef,
        skip: &mut u64,
        visit: &mut impl FnMut(RecordBatch) -> bool,
    ) -> Result<bool> {
        for file in &self.files {
            if let Some(rows) = file.rows
                && *skip > 0
                && rows <= *skip
            {
                *skip -= rows;
                continue;
            }
            for batch in file.open(&self.options, schema, skip)? {
                let batch = skipped(batch.map_err(|e| file.explain(&e))?, skip);
                let fitted = fit(&batch, &file.file, schema, &self.deciders);
                let fitted = fitted.map_err(|message| Error::file(&file.file.path, message))?;
                if !visit(fitted) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// A batch without the rows that are to be skipped still.
fn skipped(batch: RecordBatch, skip: &mut u64) -> RecordBatch {
    let past = usize::try_from(*skip).unwrap_or(usize::MAX).min(batch.num_rows());
    *skip -= past as u64;
    batch.slice(past, batch.num_rows() - past)
}

/// The name of a table from that of a file: lower case, letters, digits and underscores.
fn name_from(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = absolute.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Without the ending of its compression.
    let name = match Form::from_name(name) {
        Some(Form { compression: Some(_), .. }) => name.rsplit_once('.').map_or(name, |(rest, _)| rest),
        _ => name,
    };
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_lowercase();
    let name: String = stem.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    match name.chars().next() {
        Some(c) if c.is_alphabetic() || c == '_' => Ok(name),
        Some(_) => Ok(format!("t_{name}")),
        None => {
            Err(Error::Usage(format!("{} does not give a valid table name; choose one with --table", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs::File;

    use arrow::array::{AsArray, ListArray};
    use arrow::datatypes::{DataType, Field, Int64Type};

    use super::super::columns::with_text;
    use super::super::csv::CsvOptions;
    use super::super::files::INFER_ROWS;
    use super::*;
    use crate::{ssb, tpch};

    fn find(text: &str, table: Option<&str>) -> Result<Vec<Source>> {
        super::find(text, table, &ReadOptions::default())
    }

    /// Writes a file with `columns`.
    fn parquet(path: &Path, columns: Vec<(&str, arrow::array::ArrayRef)>) {
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn longs(values: &[i64]) -> arrow::array::ArrayRef {
        Arc::new(arrow::array::Int64Array::from(values.to_vec()))
    }

    /// All rows of a source as `a|b|c`, in the order of its columns.
    fn texts(source: &mut Source) -> Vec<String> {
        source.schema = with_text(&source.schema);
        let mut found = Vec::new();
        for batch in rows(source) {
            for row in 0..batch.num_rows() {
                let value = |c: &arrow::array::ArrayRef| arrow::util::display::array_value_to_string(c, row).unwrap();
                found.push(batch.columns().iter().map(value).collect::<Vec<_>>().join("|"));
            }
        }
        found
    }

    fn types(source: &Source) -> Vec<DataType> {
        source.schema.fields().iter().map(|field| field.data_type().clone()).collect()
    }

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
        assert!(find("ssb:1", Some("t")).unwrap_err().to_string().contains("leave out --table"));
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

    /// Wherever a load stops, the next read returns exactly the remaining rows.
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
            let file = File::create(folder.path().join(name)).unwrap();
            let batch = numbers(from, to);
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
        assert!(source.read_after(101, |_| true).unwrap_err().to_string().contains("1 rows fewer"));
        let orders = generated(Generated::tpch(tpch::TABLES[6], 0.01));
        let days = generated(Generated::ssb(ssb::TABLES[0], 0.01));
        for (table, skip, left) in [(orders, 14_990, 10), (days, 2_550, 7)] {
            let mut rows = 0;
            let take = |batch: RecordBatch| {
                rows += batch.num_rows();
                true
            };
            table.read_after(skip, take).unwrap();
            assert_eq!(rows, left);
        }
    }

    #[test]
    fn folders_named_like_columns_are_columns() {
        let folder = tempfile::tempdir().unwrap();
        parquet(&folder.path().join("year=2023/city=Z%C3%BCrich/a.parquet"), vec![("k", longs(&[1, 2]))]);
        parquet(&folder.path().join("year=2024/city=__HIVE_DEFAULT_PARTITION__/b.parquet"), vec![("k", longs(&[3]))]);
        let mut source = find(folder.path().to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(types(&source), [DataType::Int64, DataType::Int64, DataType::Utf8]);
        assert_eq!(texts(&mut source), ["1|2023|Zürich", "2|2023|Zürich", "3|2024|"]);
        // A file's own column takes precedence; a column that only some folders have is null in the others.
        let year = vec![("k", longs(&[4])), ("year", longs(&[1999]))];
        parquet(&folder.path().join("year=2025/city=Bern/c.parquet"), year);
        parquet(&folder.path().join("year=2026/d.parquet"), vec![("k", longs(&[5]))]);
        let mut source = find(folder.path().to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1|2023|Zürich", "2|2023|Zürich", "3|2024|", "4|1999|Bern", "5|2026|"]);
        let gaps = source.files().unwrap().union.gaps();
        assert_eq!(gaps, ["column 'city' is in 3 of 4 files, and null in the others"]);
        // A pattern of such folders has the same columns.
        let pattern = folder.path().join("year=202[34]/*/*.parquet");
        let mut source = find(pattern.to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1|2023|Zürich", "2|2023|Zürich", "3|2024|"]);
    }

    #[test]
    fn columns_that_are_all_null_have_the_type_that_other_files_know() {
        let folder = tempfile::tempdir().unwrap();
        let nulls = |rows: usize| -> arrow::array::ArrayRef { Arc::new(arrow::array::NullArray::new(rows)) };
        let path = |name: &str| folder.path().join(name);
        parquet(&path("t/a.parquet"), vec![("k", longs(&[1])), ("n", nulls(1)), ("z", nulls(1))]);
        std::fs::write(path("t/b.csv"), "z,k,n\n,2,7\n").unwrap();
        parquet(&path("t/c.parquet"), vec![("k", longs(&[3])), ("n", nulls(1)), ("z", nulls(1))]);
        let mut source = find(path("t").to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1||", "2|7|", "3||"]);
        assert_eq!(types(&source), [DataType::Int64, DataType::Int64, DataType::Utf8]);
        assert!(source.schema.field(2).is_nullable());

        // Lists without elements.
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let full = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(5)])]);
        parquet(&path("lists/a.parquet"), vec![("l", arrow::array::new_null_array(&list(DataType::Null), 1))]);
        parquet(&path("lists/b.parquet"), vec![("l", Arc::new(full))]);
        parquet(&path("lists/c.parquet"), vec![("l", arrow::array::new_null_array(&list(DataType::Null), 1))]);
        let mut source = find(path("lists").to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["", "[5]", ""]);
        assert_eq!(types(&source), [list(DataType::Int64)]);

        std::fs::write(path("only.csv"), "id,note\n1,\n2,\n").unwrap();
        let mut source = find(path("only.csv").to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1|", "2|"]);
        assert_eq!(types(&source), [DataType::Int64, DataType::Utf8]);
        // Values after the rows that decide the type are not lost.
        std::fs::write(path("late.csv"), format!("id,note\n{}2,late\n", "1,\n".repeat(INFER_ROWS + 1))).unwrap();
        let mut source = find(path("late.csv").to_str().unwrap(), None).unwrap().remove(0);
        assert_eq!(texts(&mut source).last().unwrap(), "2|late");
    }

    #[test]
    fn csv_files_are_read_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read = |name: &str, text: &str, csv: CsvOptions| {
            std::fs::write(path(name), text).unwrap();
            let options = ReadOptions { csv, ..ReadOptions::default() };
            let mut source = super::find(path(name).to_str().unwrap(), None, &options).unwrap().remove(0);
            let rows = texts(&mut source);
            let names: Vec<String> = source.schema.fields().iter().map(|field| field.name().clone()).collect();
            (names.join("|"), rows, types(&source))
        };
        // As Excel writes it in Europe: a byte order mark, semicolons.
        let (names, rows, _) = read("excel.csv", "\u{feff}id;name\r\n1;a,b\r\n2;\r\n", CsvOptions::default());
        assert_eq!((names.as_str(), rows), ("id|name", vec!["1|a,b".to_owned(), "2|".to_owned()]));
        let nulls = CsvOptions { nulls: vec!["NULL".to_owned(), "N/A".to_owned()], ..CsvOptions::default() };
        let (_, rows, found) = read("nulls.csv", "id,name\nNULL,x\n2,N/A\n,NULLS\n", nulls);
        assert_eq!(rows, ["|x", "2|", "|NULLS"]);
        assert_eq!(found, [DataType::Int64, DataType::Utf8]);
        let bare = CsvOptions { header: Some(false), delimiter: Some(b'#'), ..CsvOptions::default() };
        assert_eq!(bare.identity(), ", delimiter '#', no header");
        let (names, rows, _) = read("bare.csv", "1#a;b\n2#c;d\n", bare);
        assert_eq!((names.as_str(), rows), ("column_1|column_2", vec!["1|a;b".to_owned(), "2|c;d".to_owned()]));
        let columns = Some(vec!["k".to_owned(), " text".to_owned()]);
        let named = CsvOptions { columns: columns.clone(), no_header: true, ..CsvOptions::default() };
        assert_eq!(named.identity(), ", no header, columns k, text");
        let (names, rows, _) = read("named.csv", "1,a\n2,b\n", named);
        assert_eq!((names.as_str(), rows), ("k|text", vec!["1|a".to_owned(), "2|b".to_owned()]));
        let (names, rows, _) = read("renamed.csv", "x,y\n1,a\n", CsvOptions { columns, ..CsvOptions::default() });
        assert_eq!((names.as_str(), rows), ("k|text", vec!["1|a".to_owned()]));
        std::fs::write(path("uneven.csv"), "id\n1;2\n3,4\n").unwrap();
        let refused = find(path("uneven.csv").to_str().unwrap(), None).unwrap_err().to_string();
        assert!(refused.contains("uneven.csv") && refused.contains("--delimiter"), "{refused}");
    }

    /// The header says which column is which, in each file.
    #[test]
    fn columns_of_csv_files_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "id,price\n1,10\n").unwrap();
        std::fs::write(folder.path().join("b.csv"), "price;id\n20;2\n").unwrap();
        let mut source = find(folder.path().to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1|10", "2|20"]);
        std::fs::write(folder.path().join("c.csv"), "id,late\n3,x\n").unwrap();
        let mut source = find(folder.path().to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1|10|", "2|20|", "3||x"]);
        std::fs::write(folder.path().join("d.csv"), "id\nfour\n").unwrap();
        let refused = find(folder.path().to_str().unwrap(), Some("t")).unwrap_err().to_string();
        assert!(refused.contains("d.csv: column 'id' is VARCHAR here and BIGINT in "), "{refused}");
    }

    #[test]
    fn times_of_later_rows_are_not_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let options = ReadOptions { infer_rows: 1, ..ReadOptions::default() };
        let read = |first: &str, second: &str| {
            std::fs::write(&path, format!("t\n{first}\n{second}\n")).unwrap();
            let source = super::find(path.to_str().unwrap(), None, &options).unwrap().remove(0);
            source.read_after(0, |_| true).map_err(|error| error.to_string())
        };
        let (day, second) = ("2024-02-29", "2024-02-29T10:00:00");
        read(day, day).unwrap();
        read(second, second).unwrap();
        for (first, later) in [(day, second), (second, "2024-02-29T10:00:00.25")] {
            let refused = read(first, later).unwrap_err();
            assert!(refused.contains("t.csv: column 't' is ") && refused.contains("cannot hold"), "{refused}");
        }
    }

    #[test]
    fn json_files_are_read_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.ndjson"), "{\"z\": 1, \"a\": \"x\"}\n\n{\"a\": null, \"z\": 2.5}\n").unwrap();
        let list = "[\n {\"a\": \"y\",\n  \"tags\": [\"[\", \"]\"]},\n {\"z\": 3, \"o\": {\"p\": true}}\n]\n";
        std::fs::write(path("b.json"), list).unwrap();
        let mut source = find(folder.path().to_str().unwrap(), Some("t")).unwrap().remove(0);
        assert_eq!(texts(&mut source), ["1.0|x||", "2.5|||", "|y|[[, ]]|", "3.0|||{p: true}"]);
        let names: Vec<&str> = source.schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["z", "a", "tags", "o"]);
        // A field that the deciding rows do not have is not lost without a word.
        std::fs::write(path("late.jsonl"), format!("{}{{\"b\": 1}}\n", "{\"a\": 1}\n".repeat(30))).unwrap();
        let late = |infer_rows| {
            let options = ReadOptions { infer_rows, ..ReadOptions::default() };
            let mut source = super::find(path("late.jsonl").to_str().unwrap(), None, &options).unwrap().remove(0);
            source.schema = with_text(&source.schema);
            source.read_after(0, |_| true).map_err(|error| error.to_string())
        };
        let refused = late(10).unwrap_err();
        assert!(
            refused.contains("late.jsonl") && refused.contains("'b'") && refused.contains("--infer-rows"),
            "{refused}"
        );
        late(0).unwrap();
        for (name, text, words) in [
            ("x.json", "[{\"a\": 1}", "no end"),
            ("y.json", "[1]", "no object"),
            ("z.json", "1 2", "row 1 is a number"),
            ("w.json", "{\"a\": ", "EOF"),
        ] {
            std::fs::write(path(name), text).unwrap();
            let refused = find(path(name).to_str().unwrap(), None).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn compressed_files_have_the_rows_of_plain_ones() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let text = format!("k,t\n{}", (0..20_000).map(|k| format!("{k},row {k}\n")).collect::<String>());
        let gz = folder.path().join("t.csv.gz");
        // Two members, as `cat a.gz b.gz` writes them.
        let (first, second) = text.split_at(text.len() / 2);
        let mut file = File::create(&gz).unwrap();
        for part in [first, second] {
            let mut encoder = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap();
        }
        let zst = folder.path().join("t.csv.zst");
        std::fs::write(&zst, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
        let plain = folder.path().join("t.csv");
        std::fs::write(&plain, &text).unwrap();
        let read = |path: &Path| {
            let mut source = find(path.to_str().unwrap(), None).unwrap().remove(0);
            assert_eq!(source.table, "t");
            texts(&mut source)
        };
        let wanted = read(&plain);
        assert_eq!(wanted.len(), 20_000);
        assert!(read(&gz) == wanted && read(&zst) == wanted);
        // A file that ends early is no shorter table.
        std::fs::write(&zst, zstd::encode_all(text.as_bytes(), 1).unwrap().split_last().unwrap().1).unwrap();
        let cut = find(zst.to_str().unwrap(), None).and_then(|sources| sources[0].read_after(0, |_| true));
        assert!(cut.unwrap_err().to_string().contains("t.csv.zst"));
    }

    #[test]
    fn sources_of_one_table_share_their_types() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "id,n\n1,\n").unwrap();
        std::fs::write(folder.path().join("b.csv"), "id,n\n2,5\n").unwrap();
        let both = ["a.csv", "b.csv"]
            .map(|name| find(folder.path().join(name).to_str().unwrap(), Some("t")).unwrap().remove(0));
        let mut joined = Source::joined(both.into()).unwrap().remove(0);
        assert_eq!(types(&joined), [DataType::Int64, DataType::Int64]);
        assert_eq!(texts(&mut joined), ["1|", "2|5"]);
    }
}
