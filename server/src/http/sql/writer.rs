//! Rows as the bytes of an answer, part by part.
//!
//! The head stands before all rows and the tail behind them. An error behind the head is written where the format has a
//! place for it: in JSON as the field `error`, in NDJSON as the last line. In CSV and Arrow it has none, and the answer ends
//! without its end.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow_ipc::writer::StreamWriter;
use serde::Serialize;
use terrace_flight::{plain_rows, plain_schema, sql_type};
use utoipa::ToSchema;

use super::super::problem::{Problem, ProblemBody, Result};
use super::cells::{CsvCells, JsonCells, push_csv, push_json};
use super::format::Format;

/// A column of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SqlColumn {
    /// Its name; several columns may have the same.
    name: String,
    /// Its type in SQL.
    #[serde(rename = "type")]
    sql_type: String,
    /// Its type in Arrow.
    arrow_type: String,
    /// False where no row is null in it.
    nullable: bool,
}

impl SqlColumn {
    /// A column of a plain schema.
    fn from_field(field: &Field) -> Self {
        Self {
            name: field.name().clone(),
            sql_type: sql_type(field.data_type()),
            arrow_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
        }
    }
}

/// What an answer in JSON says behind its rows.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    /// Rows of the answer.
    pub(super) row_count: u64,
    /// Whether rows were left out.
    pub(super) truncated: bool,
    /// Rows that the statement changed.
    pub(super) affected_rows: Option<u64>,
    /// Time since the request, in microseconds.
    pub(super) elapsed_us: u64,
    /// Id of the statement.
    pub(super) statement: &'a str,
    /// Why rows are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ProblemBody>,
}

/// The last line of NDJSON that ended early.
#[derive(Serialize)]
struct ErrorLine {
    error: ProblemBody,
}

/// Writes rows in one format.
pub(super) struct Writer {
    plain: SchemaRef,
    form: Form,
}

enum Form {
    /// Whether a row was written.
    Json(bool),
    Csv,
    /// The names of the columns, as they stand before their values.
    Ndjson(Vec<Vec<u8>>),
    Arrow(Box<StreamWriter<Vec<u8>>>),
}

impl Writer {
    /// A writer of rows of a statement with these columns.
    ///
    /// # Errors
    /// When the format cannot hold such columns.
    pub(super) fn new(format: Format, columns: &Schema) -> Result<Self> {
        let plain = plain_schema(columns);
        let refused = |why: ArrowError| {
            let why = terrace_planner_ext::Error::from(why);
            Problem::bad_request(format!(
                "the answer has no form in this format: {}; format arrow takes all types",
                why.message()
            ))
        };
        let form = match format {
            Format::Json => Form::Json(false),
            Format::Csv => Form::Csv,
            Format::Ndjson => Form::Ndjson(keys(&plain)?),
            Format::Arrow => Form::Arrow(Box::new(StreamWriter::try_new(Vec::new(), &plain).map_err(refused)?)),
        };
        // Whether there are encoders for all of its columns.
        let no_rows = RecordBatch::new_empty(plain.clone());
        match &form {
            Form::Json(_) | Form::Ndjson(_) => JsonCells::new(&no_rows).map(drop).map_err(refused)?,
            Form::Csv => CsvCells::new(&no_rows).map(drop).map_err(refused)?,
            Form::Arrow(_) => {}
        }
        Ok(Self { plain, form })
    }

    /// Writes what stands before all rows.
    pub(super) fn push_head(&mut self, out: &mut Vec<u8>) {
        let fields = self.plain.fields();
        match &mut self.form {
            Form::Json(_) => {
                out.extend_from_slice(b"{\"columns\":");
                push_json(&fields.iter().map(|field| SqlColumn::from_field(field)).collect::<Vec<_>>(), out);
                out.extend_from_slice(b",\"rows\":[");
            }
            Form::Csv => {
                for (index, field) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    push_csv(field.name().as_bytes(), out);
                }
                out.push(b'\n');
            }
            Form::Ndjson(_) => {}
            Form::Arrow(writer) => out.append(writer.get_mut()),
        }
    }

    /// Writes the rows of a batch.
    ///
    /// # Errors
    /// Where its columns are not those of the statement.
    pub(super) fn push_rows(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) -> std::result::Result<(), ArrowError> {
        let batch = plain_rows(batch, &self.plain)?;
        match &mut self.form {
            Form::Json(has_rows) => {
                let mut cells = JsonCells::new(&batch)?;
                for row in 0..batch.num_rows() {
                    if std::mem::replace(has_rows, true) {
                        out.push(b',');
                    }
                    out.extend_from_slice(b"\n[");
                    cells.push_row(row, out, |column, out| {
                        if column > 0 {
                            out.push(b',');
                        }
                    });
                    out.push(b']');
                }
            }
            Form::Csv => {
                let mut cells = CsvCells::new(&batch)?;
                (0..batch.num_rows()).for_each(|row| cells.push_row(row, out));
            }
            Form::Ndjson(keys) => {
                let mut cells = JsonCells::new(&batch)?;
                for row in 0..batch.num_rows() {
                    cells.push_row(row, out, |column, out| {
                        out.extend_from_slice(keys.get(column).map(Vec::as_slice).unwrap_or_default());
                    });
                    if keys.is_empty() {
                        out.push(b'{');
                    }
                    out.extend_from_slice(b"}\n");
                }
            }
            Form::Arrow(writer) => {
                writer.write(&batch)?;
                out.append(writer.get_mut());
            }
        }
        Ok(())
    }

    /// Writes what stands behind all rows.
    ///
    /// # Errors
    /// None that is expected: a stream of Arrow that was ended already.
    pub(super) fn push_tail(
        &mut self,
        summary: &Summary<'_>,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), ArrowError> {
        match &mut self.form {
            Form::Json(_) => push_summary(summary, out),
            Form::Csv | Form::Ndjson(_) => {}
            Form::Arrow(writer) => {
                writer.finish()?;
                out.append(writer.get_mut());
            }
        }
        Ok(())
    }

    /// Writes an error in place of further rows; false where the format has no place for it.
    pub(super) fn push_error(&self, mut summary: Summary<'_>, error: ProblemBody, out: &mut Vec<u8>) -> bool {
        match &self.form {
            Form::Json(_) => {
                summary.error = Some(error);
                push_summary(&summary, out);
                true
            }
            Form::Ndjson(_) => {
                push_json(&ErrorLine { error }, out);
                out.push(b'\n');
                true
            }
            Form::Csv | Form::Arrow(_) => false,
        }
    }
}

/// Ends the list of rows, and adds the summary to the object around it.
fn push_summary(summary: &Summary<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\n],");
    let mut object = Vec::new();
    push_json(summary, &mut object);
    out.extend_from_slice(object.strip_prefix(b"{").unwrap_or(&object));
    out.push(b'\n');
}

/// The names of the columns with what stands around them in an object.
///
/// # Errors
/// For two columns of the same name: objects have each name once.
fn keys(columns: &Schema) -> Result<Vec<Vec<u8>>> {
    let mut keys: Vec<Vec<u8>> = Vec::with_capacity(columns.fields().len());
    let mut names = HashSet::new();
    for field in columns.fields() {
        if !names.insert(field.name()) {
            return Err(Problem::bad_request(format!(
                "two columns have the name '{}', and an object has it once: name one of them with AS, or ask for json, csv or arrow",
                field.name()
            )));
        }
        let mut key = if keys.is_empty() { b"{".to_vec() } else { b",".to_vec() };
        push_json(field.name(), &mut key);
        key.push(b':');
        keys.push(key);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Cursor;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringViewArray};
    use arrow::datatypes::DataType;
    use axum::http::StatusCode;
    use serde_json::{Value, json};

    use super::*;

    fn rows() -> RecordBatch {
        let columns: [(&str, ArrayRef, bool); 2] = [
            ("a b", Arc::new(Int64Array::from(vec![Some(1), None])), true),
            ("n", Arc::new(StringViewArray::from(vec!["x", "a text, longer than a view"])), false),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn summary(rows: u64) -> Summary<'static> {
        Summary { row_count: rows, truncated: false, affected_rows: None, elapsed_us: 5, statement: "q1", error: None }
    }

    /// The whole answer, whose rows come one by one.
    fn written(format: Format) -> Vec<u8> {
        let mut writer = Writer::new(format, &rows().schema()).unwrap();
        let mut out = Vec::new();
        writer.push_head(&mut out);
        for row in 0..2 {
            writer.push_rows(&rows().slice(row, 1), &mut out).unwrap();
        }
        writer.push_tail(&summary(2), &mut out).unwrap();
        out
    }

    fn text(format: Format) -> String {
        String::from_utf8(written(format)).unwrap()
    }

    #[test]
    fn rows_have_each_format() {
        assert_eq!(text(Format::Csv), "a b,n\n1,x\n,\"a text, longer than a view\"\n");
        let lines = "{\"a b\":1,\"n\":\"x\"}\n{\"a b\":null,\"n\":\"a text, longer than a view\"}\n";
        assert_eq!(text(Format::Ndjson), lines);
        let found: Value = serde_json::from_str(&text(Format::Json)).unwrap();
        let expected = json!({
            "columns": [
                {"name": "a b", "type": "BIGINT", "arrow_type": "Int64", "nullable": true},
                {"name": "n", "type": "VARCHAR", "arrow_type": "Utf8", "nullable": false},
            ],
            "rows": [[1, "x"], [null, "a text, longer than a view"]],
            "row_count": 2, "truncated": false, "affected_rows": null, "elapsed_us": 5, "statement": "q1",
        });
        assert_eq!(found, expected);
        let bytes = Cursor::new(written(Format::Arrow));
        let batches =
            arrow_ipc::reader::StreamReader::try_new(bytes, None).unwrap().collect::<std::result::Result<Vec<_>, _>>();
        let batches = batches.unwrap();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(batches.first().unwrap().column(1).data_type(), &DataType::Utf8);
    }

    #[test]
    fn an_answer_without_rows_is_whole() {
        let empty = Schema::empty();
        let mut out = Vec::new();
        let mut writer = Writer::new(Format::Json, &empty).unwrap();
        writer.push_head(&mut out);
        writer.push_tail(&Summary { affected_rows: Some(7), ..summary(0) }, &mut out).unwrap();
        let found: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&found["rows"], &found["affected_rows"]), (&json!([]), &json!(7)));
    }

    #[test]
    fn an_error_behind_the_head_is_told_where_there_is_a_place() {
        let error = || Problem::new(StatusCode::INSUFFICIENT_STORAGE, "no memory").body();
        for (format, is_told) in
            [(Format::Json, true), (Format::Ndjson, true), (Format::Csv, false), (Format::Arrow, false)]
        {
            let mut writer = Writer::new(format, &rows().schema()).unwrap();
            let mut out = Vec::new();
            writer.push_head(&mut out);
            writer.push_rows(&rows(), &mut out).unwrap();
            assert_eq!(writer.push_error(summary(2), error(), &mut out), is_told, "{format:?}");
            let last: Value = match format {
                Format::Json => serde_json::from_slice(&out).unwrap(),
                Format::Ndjson => {
                    serde_json::from_str(String::from_utf8(out).unwrap().lines().last().unwrap()).unwrap()
                }
                Format::Csv | Format::Arrow => continue,
            };
            assert_eq!((&last["error"]["status"], &last["error"]["detail"]), (&json!(507), &json!("no memory")));
        }
    }

    #[test]
    fn objects_need_names_that_differ() {
        let twice = Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("a", DataType::Utf8, true)]);
        let refused = Writer::new(Format::Ndjson, &twice).err().unwrap();
        assert!(refused.detail.contains("two columns have the name 'a'"), "{}", refused.detail);
        assert!(Writer::new(Format::Json, &twice).is_ok());
    }
}
