//! Text files: their delimiter, their null values, and whether a header names the columns.
//!
//! Columns are found by the names of the header. Without `--delimiter` the start of a file whose ending says comma is
//! read: the delimiter is another usual character if that one, and no comma, cuts all lines into equally many fields.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatchReader;
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema};
use regex::Regex;

use super::files::BATCH_ROWS;
use crate::error::{Error, Result};

/// Rows that decide the types of columns.
pub const INFER_ROWS: usize = 20_000;
/// Bytes that are read to find the delimiter.
const SAMPLE_BYTES: u64 = 64 << 10;
/// Usual delimiters, the default first.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// Byte order mark that programs on Windows write at the start of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The character that quotes a field.
const QUOTE: u8 = b'"';

/// How text files are written, where the files do not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct CsvOptions {
    /// Character between the fields of CSV files; \t is a tab [default: found in the file]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Text that is null in CSV files, like the empty field; may be repeated
    #[arg(long = "null", value_name = "TEXT")]
    pub nulls: Vec<String>,
    /// Whether the first line of CSV files names the columns; else they are column_1, column_2, .. [default: true]
    #[arg(long, value_name = "true|false")]
    pub header: Option<bool>,
}

fn delimiter(text: &str) -> std::result::Result<u8, String> {
    match text.as_bytes() {
        _ if text == "\\t" => Ok(b'\t'),
        [one] if one.is_ascii() && ![QUOTE, b'\n', b'\r'].contains(one) => Ok(*one),
        _ => Err("it must be one ASCII character, but not a quote or a line break; write \\t for a tab".to_owned()),
    }
}

impl CsvOptions {
    /// The options that change the rows of a text file, for [`super::source::Source::identity`]; empty for the
    /// defaults.
    pub fn identity(&self) -> String {
        let delimiter = self.delimiter.map(|one| format!(", delimiter {}", display_delimiter(one)));
        let nulls = self.nulls.iter().map(|text| format!(", null '{text}'"));
        let header = (!self.has_header()).then(|| ", no header".to_owned());
        delimiter.into_iter().chain(nulls).chain(header).collect()
    }

    fn has_header(&self) -> bool {
        self.header.unwrap_or(true)
    }

    fn null_regex(&self) -> Result<Option<Regex>> {
        if self.nulls.is_empty() {
            return Ok(None);
        }
        let texts: Vec<String> = self.nulls.iter().map(|text| regex::escape(text)).collect();
        let found = Regex::new(&format!("^(?:|{})$", texts.join("|")));
        found.map(Some).map_err(|e| Error::Usage(format!("--null: {e}")))
    }
}

/// Opens a reader of the file. Columns have the types that `wanted` has for their names, else text. Without `wanted`
/// they have the types that the first rows show, and Null where these rows have no value.
pub fn open(
    path: &Path,
    usual: u8,
    options: &CsvOptions,
    wanted: Option<&Schema>,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let failed = |e: std::io::Error| Error::file(path, e);
    let mut file = File::open(path).map_err(|e| Error::file(path, format!("cannot open it: {e}")))?;
    let sample = Sample::read(&mut file).map_err(failed)?;
    let delimiter = match options.delimiter {
        Some(one) => one,
        None if usual == b',' => sample.delimiter().map_err(|why| Error::file(path, why))?,
        None => usual,
    };
    let mut format = Format::default().with_header(options.has_header()).with_delimiter(delimiter);
    if let Some(nulls) = options.null_regex()? {
        format = format.with_null_regex(nulls);
    }
    let rows = if wanted.is_some() { 0 } else { INFER_ROWS };
    file.seek(SeekFrom::Start(sample.start)).map_err(failed)?;
    let (found, _) =
        format.infer_schema(BufReader::new(&file), Some(rows)).map_err(|e| Error::file(path, explain_error(&e)))?;
    let typed = |field: &Arc<Field>, wanted: &Schema| {
        let wanted = wanted.field_with_name(field.name()).map(|wanted| wanted.data_type().clone());
        // In a column of type Null the reader would skip values.
        let data_type = wanted.ok().filter(|wanted| *wanted != DataType::Null).unwrap_or(DataType::Utf8);
        Field::new(field.name(), data_type, true)
    };
    let schema = match wanted {
        Some(wanted) => Schema::new(found.fields().iter().map(|field| typed(field, wanted)).collect::<Vec<_>>()),
        None => found,
    };
    file.seek(SeekFrom::Start(sample.start)).map_err(failed)?;
    let reader = ReaderBuilder::new(Arc::new(schema)).with_format(format).with_batch_size(BATCH_ROWS);
    Ok(Box::new(reader.build(file).map_err(|e| Error::file(path, explain_error(&e)))?))
}

/// A read error, with the option that may help.
pub fn explain_error(error: &arrow::error::ArrowError) -> String {
    let text = error.to_string();
    match text.contains("number of fields") || text.contains("unequal lengths") {
        true => format!("{text}; give the character that separates the fields with --delimiter"),
        false => text,
    }
}

/// A delimiter as messages show it.
fn display_delimiter(delimiter: u8) -> String {
    if delimiter == b'\t' { "tab".to_owned() } else { format!("'{}'", char::from(delimiter)) }
}

/// The start of a file.
struct Sample {
    /// Offset of the text behind a byte order mark.
    start: u64,
    /// Counts of each of [`DELIMITERS`] in each line.
    lines: Vec<[usize; DELIMITERS.len()]>,
}

impl Sample {
    fn read(file: &mut File) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        file.take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
        let whole = (bytes.len() as u64) < SAMPLE_BYTES;
        let text = bytes.strip_prefix(BYTE_ORDER_MARK);
        let start = text.map_or(0, |_| BYTE_ORDER_MARK.len() as u64);
        Ok(Self { start, lines: lines(text.unwrap_or(&bytes), whole) })
    }

    /// The delimiter of the fields.
    ///
    /// # Errors
    /// A message when several delimiters are possible.
    fn delimiter(&self) -> std::result::Result<u8, String> {
        let counts = |at: usize| self.lines.iter().map(move |line| line.get(at).copied().unwrap_or(0));
        let cuts = |at: &usize| {
            let first = counts(*at).next().unwrap_or(0);
            first > 0 && counts(*at).all(|count| count == first)
        };
        let found: Vec<u8> = (0..DELIMITERS.len()).filter(cuts).filter_map(|at| DELIMITERS.get(at).copied()).collect();
        match found.as_slice() {
            [] | [b',', ..] => Ok(b','),
            [one] => Ok(*one),
            several => {
                let several: Vec<String> = several.iter().map(|one| display_delimiter(*one)).collect();
                Err(format!("its fields may be separated by {}; choose one with --delimiter", several.join(" or by ")))
            }
        }
    }
}

/// Counts the delimiters in each complete line. Line breaks within quotes do not end a line; `whole` says that the text
/// ends with the file, so that its last line is complete.
fn lines(text: &[u8], whole: bool) -> Vec<[usize; DELIMITERS.len()]> {
    let mut lines = Vec::new();
    let mut line = [0; DELIMITERS.len()];
    let mut bytes = 0;
    let mut quoted = false;
    for byte in text {
        match *byte {
            b'\n' if !quoted => {
                if bytes > 0 {
                    lines.push(std::mem::take(&mut line));
                }
                bytes = 0;
                continue;
            }
            b'\r' => continue,
            QUOTE => quoted = !quoted,
            other if !quoted => {
                let counts = line.iter_mut().zip(DELIMITERS).find(|(_, delimiter)| *delimiter == other);
                counts.into_iter().for_each(|(count, _)| *count += 1);
            }
            _ => {}
        }
        bytes += 1;
    }
    if whole && bytes > 0 {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(text: &str) -> std::result::Result<u8, String> {
        Sample { start: 0, lines: lines(text.as_bytes(), true) }.delimiter()
    }

    #[test]
    fn the_delimiter_is_found_where_there_is_one_answer() {
        for (text, expected) in [
            ("id,name\n1,a;b\n", b','),
            ("id;name\r\n1;2,5\r\n", b';'),
            ("id;name\n1;\"a;\nb\"\n\n2;c", b';'),
            ("id\tname\n1\ta\n", b'\t'),
            ("id|name\n1|a\n", b'|'),
            ("id\n1\n2\n", b','),
            ("id\n1;5\n", b','),
            ("a,b;c\n1,2;3\n", b','),
            ("", b','),
        ] {
            assert_eq!(found(text).unwrap(), expected, "{text}");
        }
        assert!(found("a;b|c\n1;2|3\n").unwrap_err().contains("';' or by '|'; choose one with --delimiter"));
    }

    #[test]
    fn delimiters_are_one_character() {
        assert_eq!(delimiter("\\t"), Ok(b'\t'));
        assert_eq!(delimiter("|"), Ok(b'|'));
        for wrong in ["", "\"", "ab", "\n", "ä"] {
            assert!(delimiter(wrong).is_err(), "{wrong}");
        }
    }
}
