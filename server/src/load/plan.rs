//! What a load would read, for `--dry-run`: the files with their sizes and rows, and the columns with their types.

use arrow::datatypes::Field;

use super::columns::{is_untyped, type_name, with_text};
use super::files::FoundFile;
use super::source::Source;
use crate::terminal::outln;
use crate::units::human_bytes;

/// Prints what a source has, as far as that is known before its rows are read.
pub fn show(source: &Source) {
    for line in lines(source) {
        outln!("{line}");
    }
}

fn lines(source: &Source) -> Vec<String> {
    let mut lines = vec![format!("table {}{}", source.table, summary(source))];
    let found = source.files();
    let counts: Vec<usize> = found.map(|found| found.union.counts().collect()).unwrap_or_default();
    let files = found.map_or(&[][..], |found| found.files.as_slice());
    let path_width = files.iter().map(|file| file.name().chars().count()).max().unwrap_or(0);
    lines.extend(files.iter().map(|file| file_line(file, path_width)));
    let typed = with_text(&source.schema);
    let name_width = typed.fields().iter().map(|field| field.name().chars().count()).max().unwrap_or(0);
    for (index, (field, own)) in typed.fields().iter().zip(source.schema.fields()).enumerate() {
        let have = counts.get(index).copied().unwrap_or(files.len());
        let mut notes = Vec::new();
        if is_untyped(own.data_type()) {
            notes.push("no value decides its type".to_owned());
        }
        if have < files.len() {
            notes.push(format!("in {have} of {} files", files.len()));
        }
        if source.cluster_by.contains(field.name()) {
            notes.push("clustered".to_owned());
        }
        lines.push(column_line(field, name_width, &notes));
    }
    lines
}

/// Number of files, bytes and rows of all of a source.
fn summary(source: &Source) -> String {
    let Some(found) = source.files() else {
        return source.rows.map_or_else(String::new, |rows| format!(": generated, about {rows} rows"));
    };
    let files = found.files.len();
    let bytes = found.files.iter().map(|file| file.bytes).sum::<Option<u64>>();
    let bytes = bytes.map_or_else(String::new, |bytes| format!(", {}", human_bytes(bytes)));
    let rows = source.rows.map_or_else(|| ", rows not counted".to_owned(), |rows| format!(", {rows} rows"));
    format!(": {files} {}{bytes}{rows}", if files == 1 { "file" } else { "files" })
}

fn file_line(file: &FoundFile, width: usize) -> String {
    let bytes = file.bytes.map_or_else(|| "-".to_owned(), human_bytes);
    let rows = file.rows.map_or_else(String::new, |rows| format!("  {rows} rows"));
    format!("  {:<width$}  {:<8}  {bytes:>9}{rows}", file.name(), file.form)
}

fn column_line(field: &Field, width: usize, notes: &[String]) -> String {
    let null = if field.is_nullable() { "" } else { " NOT NULL" };
    let line = format!("  {:<width$}  {}{null}", field.name(), type_name(field.data_type()));
    if notes.is_empty() { line } else { format!("{line}  ({})", notes.join(", ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::files::ReadOptions;
    use super::super::source::find;
    use super::*;

    #[test]
    fn a_plan_shows_files_and_columns() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), "day,n,empty\n2024-01-01,1,\n").unwrap();
        std::fs::write(folder.path().join("b.ndjson"), "{\"n\": 2, \"tags\": [\"x\"]}\n").unwrap();
        let mut sources = find(folder.path().to_str().unwrap(), Some("t"), &ReadOptions::default()).unwrap();
        sources[0].cluster_by = vec!["n".to_owned()];
        let shown = lines(&sources[0]).join("\n").replace(folder.path().to_str().unwrap(), "F");
        let expected = "table t: 2 files, 50 B, rows not counted\n  \
                        F/a.csv     csv            26 B\n  \
                        F/b.ndjson  json           24 B\n  \
                        day    DATE  (in 1 of 2 files)\n  \
                        n      BIGINT  (clustered)\n  \
                        empty  VARCHAR  (no value decides its type, in 1 of 2 files)\n  \
                        tags   List(Utf8)  (in 1 of 2 files)";
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&shown), squeezed(expected));
        let generated = lines(&super::super::source::generated(super::super::generated::Generated::tpch(
            crate::tpch::TABLES[1],
            1.0,
        )));
        assert_eq!(generated.first().unwrap(), "table nation: generated, about 25 rows");
    }
}
