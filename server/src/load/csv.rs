//! Text files: their delimiter, their null values, and whether a header names the columns.
//!
//! Columns are found by the names of the header. Without `--delimiter` the start of a file whose ending says comma is
//! read: the delimiter is another usual character if that one, and no comma, cuts all lines into equally many fields.

use std::io::{BufReader, Cursor, Read};
use std::sync::Arc;

use arrow::array::RecordBatchReader;
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use regex::Regex;

use super::compression::Compression;
use super::files::BATCH_ROWS;
use super::input::{Input, Reader};
use crate::error::{Error, Result};

/// Bytes that are read to find the delimiter.
const SAMPLE_BYTES: usize = 64 << 10;
/// Bytes in which the header has to end.
const HEADER_BYTES: u64 = 1 << 20;
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
    /// The same as --header false
    #[arg(long, conflicts_with = "header")]
    pub no_header: bool,
    /// Names of the columns of CSV files in their order, in place of those of a header
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub columns: Option<Vec<String>>,
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
        let columns = self.columns.as_ref().map(|names| format!(", columns {}", names.join(",")));
        delimiter.into_iter().chain(nulls).chain(header).chain(columns).collect()
    }

    fn has_header(&self) -> bool {
        self.header.unwrap_or(!self.no_header)
    }

    /// The columns with the names that `--columns` gives them.
    ///
    /// # Errors
    /// A message when there are not as many columns as names.
    fn named(&self, found: Schema) -> std::result::Result<Schema, String> {
        let Some(names) = &self.columns else { return Ok(found) };
        if names.len() != found.fields().len() {
            let there = found.fields().len();
            return Err(format!("it has {there} columns, and --columns names {}", names.len()));
        }
        let named = names.iter().zip(found.fields()).map(|(name, field)| field.as_ref().clone().with_name(name.trim()));
        Ok(Schema::new(named.collect::<Vec<_>>()))
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

/// A text file.
pub struct TextFile<'a> {
    /// Its bytes.
    pub input: &'a Input,
    /// Compression of the file.
    pub compression: Option<Compression>,
    /// The delimiter that its ending tells.
    pub usual: u8,
    /// How it is written.
    pub options: &'a CsvOptions,
}

impl TextFile<'_> {
    /// Its columns, with the types that its first `rows` rows show, and Null where these rows have no value.
    ///
    /// # Errors
    /// For a file that cannot be read, or whose lines have different numbers of fields.
    pub fn columns(&self, rows: usize) -> Result<Schema> {
        let sample = self.input.sample(self.compression)?;
        let reader = if sample.is_cut { whole_lines(sample.reader) } else { sample.reader };
        let Text { format, header, rest } = self.begin(reader)?;
        let text = BufReader::new(Cursor::new(header).chain(rest));
        let (found, _) = format.infer_schema(text, Some(rows)).map_err(|e| self.failed(explain_error(&e)))?;
        self.options.named(found).map_err(|why| self.failed(why))
    }

    /// Opens a reader of its rows. Columns have types from which those that `wanted` has for their names are cast; others are
    /// text.
    ///
    /// # Errors
    /// For a file that cannot be read.
    pub fn open(&self, wanted: &Schema) -> Result<Box<dyn RecordBatchReader + Send>> {
        let Text { format, header, rest } = self.begin(self.input.open(self.compression)?)?;
        let names = format.infer_schema(header.as_slice(), Some(0)).map_err(|e| self.failed(explain_error(&e)))?.0;
        let names = self.options.named(names).map_err(|why| self.failed(why))?;
        let typed = |field: &Arc<Field>| {
            let data_type = wanted.field_with_name(field.name()).map(|wanted| read_type(wanted.data_type()));
            Field::new(field.name(), data_type.unwrap_or(DataType::Utf8), true)
        };
        let schema = Schema::new(names.fields().iter().map(typed).collect::<Vec<_>>());
        let reader = ReaderBuilder::new(Arc::new(schema)).with_format(format).with_batch_size(BATCH_ROWS);
        let text = Cursor::new(header).chain(rest);
        Ok(Box::new(reader.build(text).map_err(|e| self.failed(explain_error(&e)))?))
    }

    /// Reads the start of the text, which tells its format.
    fn begin(&self, mut reader: Reader) -> Result<Text> {
        let mut header = Vec::new();
        reader.by_ref().take(HEADER_BYTES).read_to_end(&mut header).map_err(|e| self.failed(e))?;
        let is_whole = header.len() < SAMPLE_BYTES;
        if header.starts_with(BYTE_ORDER_MARK) {
            header.drain(..BYTE_ORDER_MARK.len());
        }
        let sample = header.get(..SAMPLE_BYTES).unwrap_or(&header);
        let delimiter = match self.options.delimiter {
            Some(one) => one,
            None if self.usual == b',' => {
                Sample { lines: lines(sample, is_whole) }.delimiter().map_err(|why| self.failed(why))?
            }
            None => self.usual,
        };
        let mut format = Format::default().with_header(self.options.has_header()).with_delimiter(delimiter);
        if let Some(nulls) = self.options.null_regex()? {
            format = format.with_null_regex(nulls);
        }
        Ok(Text { format, header, rest: reader })
    }

    fn failed(&self, why: impl ToString) -> Error {
        Error::file(self.input.name(), why)
    }
}

/// The type as which a column is read, so that its cast to the wanted one notices what that cannot hold: the reader would cut
/// off the time behind a date, and digits of a second.
fn read_type(wanted: &DataType) -> DataType {
    match wanted {
        // In a column of type Null the reader would skip values.
        DataType::Null | DataType::Date32 => DataType::Utf8,
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        other => other.clone(),
    }
}

/// A text whose format is known.
struct Text {
    format: Format,
    /// Its first bytes, with the header.
    header: Vec<u8>,
    /// Those behind them.
    rest: Reader,
}

/// A text that may end within a line, without that line.
fn whole_lines(mut reader: Reader) -> Reader {
    let mut text = Vec::new();
    // The rows are read from the begin again, with any error.
    let _ = reader.read_to_end(&mut text);
    let mut is_quoted = false;
    let mut end = 0;
    for (at, byte) in text.iter().enumerate() {
        match *byte {
            QUOTE => is_quoted = !is_quoted,
            b'\n' if !is_quoted => end = at + 1,
            _ => {}
        }
    }
    // A line that is longer decides as much as there is of it.
    if end > 0 {
        text.truncate(end);
    }
    Box::new(Cursor::new(text))
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

/// The start of a text.
struct Sample {
    /// Counts of each of [`DELIMITERS`] in each line.
    lines: Vec<[usize; DELIMITERS.len()]>,
}

impl Sample {
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
        Sample { lines: lines(text.as_bytes(), true) }.delimiter()
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

    #[test]
    fn a_part_of_a_text_ends_with_a_line() {
        for (text, expected) in
            [("a,b\n1,2\n3,", "a,b\n1,2\n"), ("a\n\"x\ny", "a\n"), ("a\n\"x\ny\"\n", "a\n\"x\ny\"\n"), ("a,b", "a,b")]
        {
            let mut found = String::new();
            whole_lines(Box::new(Cursor::new(text))).read_to_string(&mut found).unwrap();
            assert_eq!(found, expected);
        }
    }
}
