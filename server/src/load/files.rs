//! Files that can be loaded: finds them below a folder, looks at their columns, and opens them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatchReader;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use terrace_planner_ext::engine::check_parquet;

use super::csv::{self, CsvOptions, TextFile};
use super::form::{self, ENDINGS, Form, Kind};
use super::input::Input;
use super::json::{self, JsonFile};
use super::partitions::DataFile;
use crate::error::{Error, Result};
use crate::memory::Limit;

/// Rows of a batch that is read.
pub const BATCH_ROWS: usize = 65_536;
/// Rows of a text or JSON file that decide the types of its columns.
pub const INFER_ROWS: usize = 20_000;

/// How files are read.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct ReadOptions {
    /// Format of the files, written like an ending: csv, tsv, ndjson, json, parquet, arrow, csv.gz, ..; standard input needs it
    /// [default: that of their names]
    #[arg(long, value_name = "FORMAT", value_parser = form::parse)]
    pub format: Option<Form>,
    /// How CSV files are written.
    #[command(flatten)]
    pub csv: CsvOptions,
    /// Rows of each CSV or JSON file that decide the types of its columns; 0: all
    #[arg(long, value_name = "ROWS", default_value_t = INFER_ROWS)]
    pub infer_rows: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, csv: CsvOptions::default(), infer_rows: INFER_ROWS }
    }
}

impl ReadOptions {
    /// The options that change the rows of a file, for [`super::source::Source::identity`]; empty for the defaults.
    pub fn identity(&self, kind: Kind) -> String {
        let format = self.format.map(|form| format!(", format {form}"));
        let csv = matches!(kind, Kind::Csv(_)).then(|| self.csv.identity());
        let rows = (kind.is_text() && self.infer_rows != INFER_ROWS).then(|| format!(", types of {}", self.infer_rows));
        format.into_iter().chain(csv).chain(rows).collect()
    }

    fn deciding_rows(&self) -> usize {
        if self.infer_rows == 0 { usize::MAX } else { self.infer_rows }
    }
}

/// A file of a source, with what is known of it before its rows are read.
#[derive(Debug, Clone)]
pub struct FoundFile {
    /// Its path, and the columns that the folders above it give.
    pub file: DataFile,
    /// Its bytes.
    pub input: Input,
    /// Its format.
    pub form: Form,
    /// Its own columns. Those without a value may have no type.
    pub own: SchemaRef,
    /// Number of its rows, where its metadata has it.
    pub rows: Option<u64>,
    /// Its size; standard input has none.
    pub bytes: Option<u64>,
}

impl FoundFile {
    /// Looks at the columns of a file.
    ///
    /// # Errors
    /// For a file whose format is unknown, or that is not of its format.
    pub fn probe(file: DataFile, input: Input, options: &ReadOptions) -> Result<Self> {
        let path = &file.path;
        let Some(form) = options.format.or_else(|| Form::from_path(path)) else {
            let why =
                format!("its name does not tell its format; give it with --format, or one of these endings: {ENDINGS}");
            return Err(Error::file(path, why));
        };
        let bytes = match &input {
            Input::File(path) => std::fs::metadata(path).ok().map(|meta| meta.len()),
            Input::Stdin(_) => None,
        };
        let mut found = Self { file, input, form, own: Arc::new(Schema::empty()), rows: None, bytes };
        match form.kind {
            Kind::Parquet => {
                let reader = open_parquet(found.path()?)?;
                found.rows = u64::try_from(reader.metadata().file_metadata().num_rows()).ok();
                // Without the metadata of the file, as its rows come.
                found.own = Arc::new(Schema::new(reader.schema().fields().clone()));
            }
            Kind::Arrow => found.own = open_arrow(found.path()?)?.schema(),
            Kind::Csv(usual) => found.own = found.text(usual, options).columns(options.deciding_rows())?.into(),
            Kind::Json => found.own = found.json().columns(options.deciding_rows())?.into(),
        }
        Ok(found)
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        self.file.path.display().to_string()
    }

    /// Opens a reader of its rows. Text and JSON are read with the types of `wanted`. A Parquet reader skips whole row
    /// groups and subtracts their rows from `skip`.
    ///
    /// # Errors
    /// For a file that cannot be read.
    pub fn open(
        &self,
        options: &ReadOptions,
        wanted: &Schema,
        skip: &mut u64,
    ) -> Result<Box<dyn RecordBatchReader + Send>> {
        match self.form.kind {
            Kind::Parquet => {
                let builder = open_parquet(self.path()?)?;
                let groups = builder.metadata().row_groups().iter().map(|group| group.num_rows().unsigned_abs());
                let mut past = 0;
                let mut wanted_groups = Vec::new();
                for (index, rows) in groups.enumerate() {
                    match wanted_groups.is_empty() && past + rows <= *skip {
                        true => past += rows,
                        false => wanted_groups.push(index),
                    }
                }
                *skip -= past;
                let reader = builder.with_batch_size(BATCH_ROWS).with_row_groups(wanted_groups).build();
                Ok(Box::new(reader.map_err(|e| Error::file(&self.file.path, e))?))
            }
            Kind::Arrow => open_arrow(self.path()?),
            Kind::Csv(usual) => self.text(usual, options).open(wanted),
            Kind::Json => {
                // Null in a column that the name of a folder gives would hide it.
                let is_own = |name: &str| self.own.column_with_name(name).is_some() || !self.file.has_partition(name);
                let fields = wanted.fields().iter().filter(|field| is_own(field.name()));
                self.json().open(&Schema::new(fields.cloned().collect::<Vec<_>>()))
            }
        }
    }

    /// An error that its reader returned, with the option that may help.
    pub fn explain(&self, error: &ArrowError) -> Error {
        let why = match self.form.kind {
            Kind::Csv(_) => csv::explain_error(error),
            Kind::Json => json::explain_error(error),
            Kind::Parquet | Kind::Arrow => error.to_string(),
        };
        Error::file(&self.file.path, why)
    }

    /// Its path, for formats whose parts are read in any order.
    fn path(&self) -> Result<&Path> {
        match &self.input {
            Input::File(path) => Ok(path),
            Input::Stdin(_) => Err(Error::Usage(format!(
                "standard input is read from begin to end, which {} files are not: load a file, or send csv, tsv, ndjson or json",
                self.form
            ))),
        }
    }

    fn text<'a>(&'a self, usual: u8, options: &'a ReadOptions) -> TextFile<'a> {
        TextFile { input: &self.input, compression: self.form.compression, usual, options: &options.csv }
    }

    fn json(&self) -> JsonFile<'_> {
        JsonFile { input: &self.input, compression: self.form.compression }
    }
}

/// Files below `folder` that can be loaded. Leaves out hidden files and names that start with an underscore, unless
/// the name is that of a partition column: `_day=1`. With `any_form` files of unknown endings count, too.
pub fn collect(folder: &Path, any_form: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e: std::io::Error| Error::file(folder, format!("cannot read it: {e}"));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_folder = entry.file_type().map_err(failed)?.is_dir();
        if name.starts_with('.') || name.starts_with('_') && !(is_folder && name.contains('=')) {
            continue;
        }
        if is_folder {
            collect(&entry.path(), any_form, files)?;
        } else if any_form || Form::from_path(&entry.path()).is_some() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn open_file(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::file(path, format!("cannot open it: {e}")))
}

/// Checks the metadata of a Parquet file before the library reads it, because the library trusts it.
fn open_parquet(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let file = open_file(path)?;
    check_parquet(&file).map_err(|why| Error::file(path, why))?;
    ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| Error::file(path, e))
}

fn open_arrow(path: &Path) -> Result<Box<dyn RecordBatchReader + Send>> {
    // The file itself says how much it decompresses to: limit that to half of the memory.
    let most = Limit::detect().bytes / 2;
    let limits = terrace_ipc::Limits { message_bytes: most, expanded_bytes: most, account: None };
    let reader = terrace_ipc::FileReader::open(open_file(path)?, None, None, limits);
    Ok(Box::new(reader.map_err(|e| Error::file(path, e))?.into_arrow()))
}
