//! Golden texts of all formats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Float64Array, Int32Builder, Int64Array, IntervalMonthDayNanoArray, ListBuilder, MapBuilder,
    StringArray, StringBuilder, StructArray,
};
use arrow::datatypes::{DataType, Field, IntervalMonthDayNano};

use super::*;

const PLAIN: Look = Look { format: Format::Table, expanded: Expanded::Off, columns: None };

fn encoded(look: Look, rows: &RecordBatch) -> Vec<u8> {
    // Two batches, as a stream has them.
    let halves = rows.num_rows() / 2;
    let parts = [rows.slice(0, halves), rows.slice(halves, rows.num_rows() - halves)];
    let mut out = Vec::new();
    let stream = futures::stream::iter(parts.into_iter().map(Ok));
    let count = futures::executor::block_on(write(look, &rows.schema(), stream, &mut out)).unwrap();
    assert_eq!(count, rows.num_rows() as u64);
    out
}

fn written(format: Format, rows: &RecordBatch) -> String {
    String::from_utf8(encoded(Look { format, ..PLAIN }, rows)).unwrap()
}

/// Numbers, text with a comma and a line break, a missing value.
fn plain() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 20]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a,b\nc"), None]));
    let prices: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.5), Some(12.25)]));
    RecordBatch::try_from_iter_with_nullable([("id", ids, false), ("name", names, true), ("price", prices, true)])
        .unwrap()
}

/// A list, a struct, and a map with numbers as keys.
fn nested() -> RecordBatch {
    let mut list = ListBuilder::new(StringBuilder::new());
    list.append_value([Some("x, y"), None]);
    list.append_null();
    let a: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(2)]));
    let b: ArrayRef = Arc::new(StringArray::from(vec![Some("p"), None]));
    let pair = StructArray::from(vec![
        (Arc::new(Field::new("a", DataType::Int64, true)), a),
        (Arc::new(Field::new("b", DataType::Utf8, true)), b),
    ]);
    let mut map = MapBuilder::new(None, Int32Builder::new(), StringBuilder::new());
    map.keys().append_value(7);
    map.values().append_value("seven");
    map.append(true).unwrap();
    map.append(true).unwrap();
    let columns: [(&str, ArrayRef); 3] =
        [("list", Arc::new(list.finish())), ("pair", Arc::new(pair)), ("map", Arc::new(map.finish()))];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn tables_are_aligned() {
    let expected = "\
+----+------+-------+
| id | name | price |
+----+------+-------+
|  1 | a,b  |   0.5 |
|    | c    |       |
| 20 | NULL | 12.25 |
+----+------+-------+
";
    assert_eq!(written(Format::Table, &plain()), expected);
    let expected = "\
+----+
| id |
+----+
";
    assert_eq!(written(Format::Table, &plain().project(&[0]).unwrap().slice(0, 0)), expected);
}

#[test]
fn wide_characters_keep_the_lines_straight() {
    let names: ArrayRef = Arc::new(StringArray::from(vec!["日本", "abc\x1b[31m"]));
    let expected = "\
+---------------+
| näme          |
+---------------+
| 日本          |
| abc\\u{1b}[31m |
+---------------+
";
    assert_eq!(written(Format::Table, &RecordBatch::try_from_iter([("näme", names)]).unwrap()), expected);
}

#[test]
fn records_have_a_line_per_value() {
    let expected = "\
-[ row 1 ]------------------------------
id    | 1
name  | a,b
      | c
price | 0.5
-[ row 2 ]------------------------------
id    | 20
name  | NULL
price | 12.25
";
    assert_eq!(written(Format::Vertical, &plain()), expected);
    assert_eq!(String::from_utf8(encoded(Look { expanded: Expanded::On, ..PLAIN }, &plain())).unwrap(), expected);
    let narrow = Look { expanded: Expanded::Auto, columns: Some(20), ..PLAIN };
    assert_eq!(String::from_utf8(encoded(narrow, &plain())).unwrap(), expected);
    let fits = Look { columns: Some(21), ..narrow };
    assert_eq!(String::from_utf8(encoded(fits, &plain())).unwrap(), written(Format::Table, &plain()));
}

#[test]
fn separated_values_are_quoted() {
    assert_eq!(written(Format::Csv, &plain()), "id,name,price\n1,\"a,b\nc\",0.5\n20,,12.25\n");
    assert_eq!(written(Format::Tsv, &plain()), "id\tname\tprice\n1\t\"a,b\nc\"\t0.5\n20\t\t12.25\n");
    assert_eq!(written(Format::Csv, &plain().slice(0, 0)), "id,name,price\n");
}

#[test]
fn json_has_every_value() {
    let one = "{\"id\":1,\"name\":\"a,b\\nc\",\"price\":0.5}";
    let two = "{\"id\":20,\"name\":null,\"price\":12.25}";
    assert_eq!(written(Format::Json, &plain()), format!("[{one},{two}]\n"));
    assert_eq!(written(Format::Ndjson, &plain()), format!("{one}\n{two}\n"));
    assert_eq!(written(Format::Json, &plain().slice(0, 0)), "[]\n");
}

#[test]
fn markdown_escapes_its_bars() {
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a|b", "c\nd"]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 20]));
    let rows = RecordBatch::try_from_iter([("n", names), ("id", ids)]).unwrap();
    let expected = "\
| n      |  id |
| ------ | --: |
| a\\|b   |   1 |
| c<br>d |  20 |
";
    assert_eq!(written(Format::Markdown, &rows), expected);
}

#[test]
fn nested_values_are_written_in_every_format() {
    let rows = nested();
    let expected = r#"
+----------------+-----------------+--------------+
| list           | pair            | map          |
+----------------+-----------------+--------------+
| ["x, y", NULL] | {a: 1, b: "p"}  | {7: "seven"} |
| NULL           | {a: 2, b: NULL} | {}           |
+----------------+-----------------+--------------+
"#;
    assert_eq!(written(Format::Table, &rows), expected.trim_start());
    assert_eq!(
        written(Format::Csv, &rows),
        "list,pair,map\n\
         \"[\"\"x, y\"\",null]\",\"{\"\"a\"\":1,\"\"b\"\":\"\"p\"\"}\",\"{\"\"7\"\":\"\"seven\"\"}\"\n\
         ,\"{\"\"a\"\":2,\"\"b\"\":null}\",{}\n"
    );
    assert_eq!(
        written(Format::Ndjson, &rows),
        "{\"list\":[\"x, y\",null],\"pair\":{\"a\":1,\"b\":\"p\"},\"map\":{\"7\":\"seven\"}}\n\
         {\"list\":null,\"pair\":{\"a\":2,\"b\":null},\"map\":{}}\n"
    );
}

#[test]
fn arrow_and_parquet_keep_types_and_values() {
    let rows = nested();
    let both = |parts: Vec<RecordBatch>| arrow::compute::concat_batches(&rows.schema(), &parts).unwrap();
    let stream = encoded(Look { format: Format::Arrow, ..PLAIN }, &rows);
    let reader = arrow_ipc::reader::StreamReader::try_new(stream.as_slice(), None).unwrap();
    assert_eq!(both(reader.collect::<Result<_, _>>().unwrap()), rows);
    let file = std::io::Cursor::new(encoded(Look { format: Format::ArrowFile, ..PLAIN }, &rows));
    let reader = arrow_ipc::reader::FileReader::try_new(file, None).unwrap();
    assert_eq!(both(reader.collect::<Result<_, _>>().unwrap()), rows);
    let file = bytes::Bytes::from(encoded(Look { format: Format::Parquet, ..PLAIN }, &rows));
    let mut reader = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(file, 1024).unwrap();
    assert_eq!(written(Format::Csv, &reader.next().unwrap().unwrap()), written(Format::Csv, &rows));
}

#[test]
fn parquet_takes_intervals_as_text() {
    let spans: ArrayRef =
        Arc::new(IntervalMonthDayNanoArray::from(vec![Some(IntervalMonthDayNano::new(1, 2, 0)), None]));
    let rows = RecordBatch::try_from_iter([("span", spans)]).unwrap();
    let file = bytes::Bytes::from(encoded(Look { format: Format::Parquet, ..PLAIN }, &rows));
    let mut reader = parquet::arrow::arrow_reader::ParquetRecordBatchReader::try_new(file, 1024).unwrap();
    let read = reader.next().unwrap().unwrap();
    assert_eq!((read.schema().field(0).data_type(), read.column(0).null_count()), (&DataType::Utf8, 1));
}

#[test]
fn endings_name_formats() {
    let format = |name: &str| Format::from_ending(Path::new(name));
    assert_eq!((format("a.CSV"), format("b.jsonl")), (Some(Format::Csv), Some(Format::Ndjson)));
    assert_eq!((format("a.arrow"), format("a.arrows")), (Some(Format::ArrowFile), Some(Format::Arrow)));
    assert_eq!((format("a"), format("a.exe")), (None, None));
}

/// The rows of an EXPLAIN.
fn explained(rows: [(&str, &str); 2]) -> RecordBatch {
    let kinds: ArrayRef = Arc::new(StringArray::from(rows.map(|(kind, _)| kind).to_vec()));
    let plans: ArrayRef = Arc::new(StringArray::from(rows.map(|(_, plan)| plan).to_vec()));
    RecordBatch::try_from_iter([("plan_type", kinds), ("plan", plans)]).unwrap()
}

#[test]
fn analyzed_plans_are_trees() {
    let plan = "\
ProjectionExec: expr=[count(*)@0 as n], metrics=[output_rows=1, elapsed_compute=1.20µs, output_bytes=8.0 B]
  AggregateExec: mode=Final, gby=[], aggr=[count(*)], metrics=[output_rows=1, elapsed_compute=33.10µs, spill_count=2]
    TierScanExec: table=public.lineitem, columns=[l_tax, l_comment], chunks=80 of 92, partitions=2, stealing, reads=[2 of 2 \
on ssd], filters=[l_tax@3 > 5 AND l_comment@7 LIKE %a%], metrics=[output_rows=1.50 K, elapsed_compute=2.10ms, \
io_wait=NOT RECORDED, bytes_dram=0, bytes_skipped=512, bytes_ssd=12.40 M, chunks_cold=80, chunks_pruned=12, \
chunks_pruned_dynamic=0, chunks_total=92]
    EmptyExec, metrics=[]
";
    let rows = explained([("Plan with Metrics", plan), ("memory_demand", "4.00 MiB weighted by time")]);
    // The first blank is written as an escape: blanks behind a line that goes on are left out.
    let expected = "\
\x20 rows     time  operator
     1   1.20µs  ProjectionExec  expr=[count(*)@0 as n]
     1  33.10µs    AggregateExec  spill_count=2  mode=Final, gby=[], aggr=[count(*)]
1.50 K   2.10ms      TierScanExec  public.lineitem  92 chunks, 12 pruned, 80 cold, skipped 512 B, ssd 12.40 MB  columns…
                     EmptyExec
memory_demand: 4.00 MiB weighted by time
";
    let shown = written(Format::Table, &rows);
    assert!(shown.lines().all(|line| cells::width(line) <= 120), "{shown}");
    assert_eq!(shown, expected);
    // The whole text is there on request.
    assert!(written(Format::Json, &rows).contains("l_comment@7 LIKE %a%"));
    assert!(written(Format::Vertical, &rows).contains("l_comment@7 LIKE %a%"));
}

#[test]
fn deep_plans_fit_too() {
    let plan: String =
        (0..60).map(|depth| format!("{}HashJoinExec: mode=x, metrics=[output_rows=1]\n", "  ".repeat(depth))).collect();
    let shown = written(Format::Table, &explained([("Plan with Metrics", &plan), ("spilled_rows", "none")]));
    assert_eq!(shown.lines().count(), 62);
    assert!(shown.lines().all(|line| cells::width(line) <= 120), "{shown}");
}

#[test]
fn other_plans_are_shown_without_a_box() {
    let rows = explained([("logical_plan", "Projection: a\n  TableScan: t"), ("memory_demand", "1 B")]);
    assert_eq!(written(Format::Table, &rows), "logical_plan:\nProjection: a\n  TableScan: t\nmemory_demand: 1 B\n");
}
