//! Texts of values for people, and how wide they are on a terminal.

use std::borrow::Cow;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::UnicodeWidthStr;

use crate::error::Result;

/// What stands for a missing value.
const NULL: &str = "NULL";

/// The texts of all columns of `rows`, by row. Control characters other than the line break are shown as `\u{1b}`, so that
/// values cannot steer the terminal.
pub fn texts(rows: &RecordBatch) -> Result<Vec<Vec<String>>> {
    let plain = FormatOptions::default().with_null(NULL);
    // Within lists and structs, quotes tell where a text ends.
    let quoted = plain.clone().with_quoted_strings(true);
    let options = |array: &dyn Array| if array.data_type().is_nested() { &quoted } else { &plain };
    let columns = rows.columns().iter();
    let formatters = columns
        .map(|column| ArrayFormatter::try_new(column.as_ref(), options(column.as_ref())))
        .collect::<Result<Vec<_>, _>>()?;
    let text = |formatter: &ArrayFormatter<'_>, row| visible(&formatter.value(row).to_string()).into_owned();
    Ok((0..rows.num_rows()).map(|row| formatters.iter().map(|f| text(f, row)).collect()).collect())
}

/// Whether values of a type are aligned at their right.
pub fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric()
}

/// The text with its control characters made visible; line breaks stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\t' => out.push_str("    "),
            // A line break of Windows.
            '\r' => {}
            c if is_control(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The width of a line on a terminal, in columns.
pub fn width(line: &str) -> usize {
    line.width()
}

/// The width of the widest line of a text.
pub fn widest(text: &str) -> usize {
    text.split('\n').map(width).max().unwrap_or(0)
}

/// The text, filled with spaces to `columns` columns.
pub fn padded(text: &str, columns: usize, at_right: bool) -> String {
    let space = " ".repeat(columns.saturating_sub(width(text)));
    if at_right { space + text } else { text.to_owned() + &space }
}

/// The text, cut to `columns` columns; what was cut ends in an ellipsis.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        out.push(c);
        if width(&out) + 1 > columns {
            out.pop();
            break;
        }
    }
    out.push('…');
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!((width("abc"), width("日本"), width("é"), width("e\u{301}")), (3, 4, 1, 1));
        assert_eq!(widest("a\n日本\nabc"), 4);
        assert_eq!(padded("日本", 6, false), "日本  ");
        assert_eq!(padded("12", 4, true), "  12");
    }

    #[test]
    fn texts_are_cut_at_whole_characters() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("日本語", 4), "日…");
    }

    #[test]
    fn control_characters_cannot_steer_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb\r\nc\td"), "a\\u{1b}[2Jb\nc    d");
        assert!(matches!(visible("plain\ntext"), Cow::Borrowed(_)));
    }
}
