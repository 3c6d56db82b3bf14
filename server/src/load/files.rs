//! Files that can be loaded: finds them below a folder, tells their format by the ending, and opens them.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatchReader;
use arrow::datatypes::Schema;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use terrace_planner_ext::engine::check_parquet;

use super::csv::{self, CsvOptions};
use crate::error::{Error, Result};
use crate::memory::Limit;

/// Rows of a batch that is read.
pub const BATCH_ROWS: usize = 65_536;
/// Endings of files that can be loaded.
pub const ENDINGS: &str = ".parquet, .csv, .tsv, .arrow, .ipc, .feather, .arrows";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parquet,
    /// Text, with the usual delimiter.
    Csv(u8),
    IpcFile,
    IpcStream,
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

/// True for text files, which are read with [`CsvOptions`].
pub fn is_text(path: &Path) -> bool {
    matches!(kind(path), Some(Kind::Csv(_)))
}

/// Files below `folder` that can be loaded. Leaves out hidden files and names that start with an underscore, unless
/// the name is that of a partition column: `_day=1`.
pub fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
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
            collect(&entry.path(), files)?;
        } else if kind(&entry.path()).is_some() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The number of rows of a file, where its metadata has it.
pub fn row_count(path: &Path) -> Option<u64> {
    if kind(path)? != Kind::Parquet {
        return None;
    }
    let reader = open_parquet(path, File::open(path).ok()?).ok()?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).ok()
}

/// Opens a reader of a file. Text is read with the types of `wanted`. A Parquet reader skips whole row groups and
/// subtracts their rows from `skip`.
pub fn open(
    path: &Path,
    options: &CsvOptions,
    wanted: Option<&Schema>,
    skip: &mut u64,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let Some(kind) = kind(path) else {
        return Err(Error::file(
            path,
            format!("its file name does not tell its format; supported endings are {ENDINGS}"),
        ));
    };
    let file = || File::open(path).map_err(|e| Error::file(path, format!("cannot open it: {e}")));
    match kind {
        Kind::Parquet => {
            let builder = open_parquet(path, file()?)?;
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
            Ok(Box::new(reader.map_err(|e| Error::file(path, e))?))
        }
        Kind::Csv(usual) => csv::open(path, usual, options, wanted),
        Kind::IpcFile | Kind::IpcStream => {
            // The file itself says how much it decompresses to: limit that to half of the memory.
            let most = Limit::detect().bytes / 2;
            let limits = terrace_ipc::Limits { message_bytes: most, expanded_bytes: most, account: None };
            let reader = terrace_ipc::FileReader::open(file()?, None, None, limits);
            Ok(Box::new(reader.map_err(|e| Error::file(path, e))?.into_arrow()))
        }
    }
}

/// Checks the metadata of a Parquet file before the library reads it, because the library trusts it.
fn open_parquet(path: &Path, file: File) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    check_parquet(&file).map_err(|why| Error::file(path, why))?;
    ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| Error::file(path, e))
}
