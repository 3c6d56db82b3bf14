//! Bound values: none is truncated, and a comparison with a column happens in the type of the column.

use arrow::array::{Date32Array, Decimal128Array, Float64Array, TimestampMicrosecondArray, TimestampNanosecondArray};

use super::*;

fn row(columns: Vec<ArrayRef>) -> RecordBatch {
    let names: Vec<String> = (0..columns.len()).map(|index| index.to_string()).collect();
    RecordBatch::try_from_iter_with_nullable(names.iter().map(String::as_str).zip(columns).map(|(n, c)| (n, c, true)))
        .unwrap()
}

fn float(value: f64) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value]))
}

fn int(value: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn text(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn decimal(digits: i128, precision: u8, scale: i8) -> ArrayRef {
    Arc::new(Decimal128Array::from(vec![digits]).with_precision_and_scale(precision, scale).unwrap())
}

impl Server {
    /// Rows of a query with one row of parameters; checks that the announced columns are those of the rows.
    async fn bound(&self, sql: &str, parameters: Vec<ArrayRef>) -> Result<String> {
        let prepared = self.session.prepare(sql).await?;
        let parameters = row(parameters);
        let announced = prepared.bound_schema(&parameters).await?;
        let running = prepared.query(Some(parameters)).await?;
        let types = |schema: &Schema| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
        assert_eq!(types(&announced), types(&running.schema), "{sql}");
        let batches: Vec<_> = running.stream.try_collect().await.map_err(Error::from)?;
        let shown = pretty_format_batches(&batches).unwrap().to_string();
        let lines = shown.lines().filter(|line| line.starts_with('|')).skip(1);
        let cells = |line: &str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join("|");
        Ok(lines.map(cells).collect::<Vec<_>>().join(" "))
    }

    async fn change(&self, sql: &str, parameters: Vec<ArrayRef>) -> Result<u64> {
        self.session.prepare(sql).await?.update(Some(row(parameters))).await
    }
}

async fn with_numbers() -> Server {
    let server = Server::new();
    server.run("CREATE TABLE w (i INT, d DECIMAL(10, 2), a DATE, t TIMESTAMP(3))").await.unwrap();
    let rows = "(1, 1.25, DATE '2024-01-01', '2024-01-01T00:00:00'), (2, 2.50, DATE '2024-01-02', '2024-01-02T12:00:00'), \
                (3, 3.75, DATE '2024-01-03', '2024-01-03T00:00:00'), (NULL, NULL, NULL, NULL)";
    server.run(&format!("INSERT INTO w VALUES {rows}")).await.unwrap();
    server
}

#[tokio::test]
async fn integers_are_compared_with_fractions() {
    let server = with_numbers().await;
    for (condition, value, wanted) in [
        ("i = ?", 2.5, ""),
        ("i = ?", 2.0, "2"),
        ("NOT (i = ?)", 2.5, "1 2 3"),
        ("i <> ?", 2.5, "1 2 3"),
        ("i < ?", 2.5, "1 2"),
        ("i <= ?", 2.5, "1 2"),
        ("i > ?", 2.5, "3"),
        ("? > i", 2.5, "1 2"),
        ("i >= ?", -2.5, "1 2 3"),
        ("i > ?", 1e300, ""),
        ("i < ?", f64::INFINITY, "1 2 3"),
        ("i < ?", f64::NAN, "1 2 3"),
        ("i = ?", f64::NAN, ""),
        ("i IN (?, 3)", 2.5, "3"),
        ("i NOT IN (?)", 2.5, "1 2 3"),
        ("i BETWEEN 1 AND ?", 2.5, "1 2"),
        ("i NOT BETWEEN ? AND 3", 1.5, "1"),
        ("i IS DISTINCT FROM ? AND i IS NOT NULL", 2.5, "1 2 3"),
        ("i * ? = 3", 1.5, "2"),
        ("d = ?", 2.5, "2"),
        ("d > ?", 2.495, "2 3"),
        ("d = ?", 2.499, ""),
    ] {
        let sql = format!("SELECT i FROM w WHERE {condition} ORDER BY i");
        assert_eq!(server.bound(&sql, vec![float(value)]).await.unwrap(), wanted, "{condition} with {value}");
    }
    for (value, wanted) in
        [(int(3_000_000_000), ""), (int(2), "2"), (decimal(2500, 10, 3), ""), (decimal(2000, 10, 3), "2")]
    {
        assert_eq!(server.bound("SELECT i FROM w WHERE i = ?", vec![value]).await.unwrap(), wanted);
    }
    assert_eq!(server.bound("SELECT i FROM w WHERE d = ?", vec![decimal(2_500_001, 12, 6)]).await.unwrap(), "");
    assert_eq!(server.bound("SELECT i FROM w WHERE d > ?", vec![decimal(2_500_001, 12, 6)]).await.unwrap(), "3");
}

#[tokio::test]
async fn days_are_compared_with_times() {
    let server = with_numbers().await;
    let noon = |day: i64| -> ArrayRef {
        Arc::new(TimestampNanosecondArray::from(vec![(19_723 + day) * 86_400_000_000_000 + 43_200_000_000_000]))
    };
    let midnight =
        |day: i64| -> ArrayRef { Arc::new(TimestampNanosecondArray::from(vec![(19_723 + day) * 86_400_000_000_000])) };
    for (condition, value, wanted) in [
        ("a = ?", noon(1), ""),
        ("a = ?", midnight(1), "2"),
        ("a < ?", noon(1), "1 2"),
        ("a >= ?", noon(1), "3"),
        ("t = ?", noon(1), "2"),
        ("t > ?", midnight(1), "2 3"),
        ("t = ?", Arc::new(TimestampMicrosecondArray::from(vec![1_704_196_800_000_001])) as ArrayRef, ""),
        ("t <= ?", Arc::new(TimestampMicrosecondArray::from(vec![1_704_196_800_000_001])) as ArrayRef, "1 2"),
        ("t > ?", Arc::new(Date32Array::from(vec![19_724])) as ArrayRef, "2 3"),
    ] {
        let sql = format!("SELECT i FROM w WHERE {condition} ORDER BY i");
        assert_eq!(server.bound(&sql, vec![value]).await.unwrap(), wanted, "{condition}");
    }
}

#[tokio::test]
async fn comparisons_do_not_cast_the_column() {
    let server = with_numbers().await;
    for (condition, value) in [
        ("i = ?", float(2.0)),
        ("i < ?", float(2.5)),
        ("i IN (?)", float(2.5)),
        ("d = ?", float(2.5)),
        ("i = ?", int(2)),
    ] {
        let plan = server.bound(&format!("EXPLAIN SELECT i FROM w WHERE {condition}"), vec![value]).await.unwrap();
        assert!(!plan.contains("CAST"), "{condition}: {plan}");
    }
}

#[tokio::test]
async fn casts_that_round_stay() {
    let server = Server::new();
    server.run("CREATE TABLE w (i BIGINT, d DECIMAL(3, 1))").await.unwrap();
    server.run("INSERT INTO w VALUES (16777217, 0.1)").await.unwrap();
    for (condition, wanted) in [("CAST(i AS REAL) = ?", "1"), ("i = ?", "0")] {
        let sql = format!("SELECT count(*) FROM w WHERE {condition}");
        assert_eq!(server.bound(&sql, vec![float(16_777_216.0)]).await.unwrap(), wanted, "{condition}");
    }
    for (condition, wanted) in [("CAST(d AS REAL) = ?", "0"), ("d = ?", "1")] {
        let sql = format!("SELECT count(*) FROM w WHERE {condition}");
        assert_eq!(server.bound(&sql, vec![float(0.1)]).await.unwrap(), wanted, "{condition}");
    }
}

#[tokio::test]
async fn elsewhere_the_bound_type_counts() {
    let server = with_numbers().await;
    for (sql, values, wanted) in [
        ("SELECT 7 / ?", vec![float(2.0)], "3.5"),
        ("SELECT 7 / ?", vec![int(2)], "3"),
        ("SELECT i * ? FROM w WHERE i = 1", vec![float(1.5)], "1.5"),
        ("SELECT ?", vec![decimal(250, 10, 2)], "2.50"),
        ("SELECT ?", vec![text("x")], "x"),
        ("SELECT i FROM w ORDER BY i LIMIT ?", vec![int(2)], "1 2"),
        ("SELECT i FROM w WHERE ? IS NULL OR i = ?", vec![int(1), int(2)], "2"),
        ("SELECT $1 + $1", vec![decimal(250, 10, 2)], "5.00"),
        ("SELECT $2 || $1", vec![text("b"), text("a")], "ab"),
        ("SELECT 1 AS x UNION ALL SELECT ? ORDER BY x", vec![float(2.5)], "1.0 2.5"),
        ("SELECT coalesce(i, ?) AS x FROM w ORDER BY x", vec![float(0.5)], "0.5 1.0 2.0 3.0"),
        ("SELECT x FROM (SELECT 1 AS x UNION ALL SELECT 2.5) WHERE x = ?", vec![float(2.5)], "2.5"),
    ] {
        assert_eq!(server.bound(sql, values).await.unwrap(), wanted, "{sql}");
    }
}

#[tokio::test]
async fn what_is_stored_fits_or_is_refused() {
    let server = with_numbers().await;
    let microseconds: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1_704_196_800_000_001]));
    for (sql, value, column) in [
        ("INSERT INTO w (i) VALUES (?)", float(2.5), "'i'"),
        ("INSERT INTO w (i) VALUES (?)", int(3_000_000_000), "'i'"),
        ("INSERT INTO w (d) VALUES (?)", decimal(2_500_001, 12, 6), "'d'"),
        ("INSERT INTO w (t) VALUES (?)", Arc::clone(&microseconds), "'t'"),
        ("UPDATE w SET i = ?", float(2.5), "'i'"),
        ("UPDATE w SET i = CASE WHEN i = 1 THEN ? ELSE i END", float(2.5), "'i'"),
    ] {
        let error = server.change(sql, vec![value]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{sql}: {error}");
        assert!(error.message().contains("$1") && error.message().contains(column), "{sql}: {error}");
    }
    let many = RecordBatch::try_from_iter([("0", Arc::new(Float64Array::from(vec![1.0, 2.5])) as ArrayRef)]).unwrap();
    let insert = server.session.prepare("INSERT INTO w (i) VALUES (?)").await.unwrap();
    let error = insert.update(Some(many)).await.unwrap_err();
    assert!(error.message().contains("2.5") && error.message().contains("'i'"), "{error}");
    assert_eq!(server.rows("SELECT count(*), sum(i) FROM w").await, ["4|6"]);

    assert_eq!(server.change("INSERT INTO w (i, d) VALUES (?, ?)", vec![float(4.0), float(0.25)]).await.unwrap(), 1);
    assert_eq!(server.change("UPDATE w SET i = i * ? WHERE i = 4", vec![float(1.5)]).await.unwrap(), 1);
    assert_eq!(server.change("DELETE FROM w WHERE i = ?", vec![float(5.5)]).await.unwrap(), 0);
    assert_eq!(server.change("DELETE FROM w WHERE i <> ?", vec![decimal(125, 3, 2)]).await.unwrap(), 4);
    assert_eq!(server.rows("SELECT i, d FROM w").await, ["|"]);

    let rows = RecordBatch::try_from_iter([("t", microseconds)]).unwrap();
    let error = server.append("w", rows, None).await.unwrap_err();
    assert!(error.message().contains("'t'") && error.message().contains("000001"), "{error}");
}

#[tokio::test]
async fn announced_columns_follow_the_table() {
    let server = with_numbers().await;
    for sql in ["SELECT * FROM w WHERE i = ?", "SELECT * FROM w WHERE i IN (SELECT i FROM w WHERE i < ?)"] {
        let prepared = server.session.prepare(sql).await.unwrap();
        let columns = prepared.dataset_schema().fields().len();
        for added in 0..3 {
            for value in [1, 2] {
                let announced = prepared.bound_schema(&row(vec![int(value)])).await.unwrap();
                let running = prepared.query(Some(row(vec![int(value)]))).await.unwrap();
                let counts = [&announced, &running.schema].map(|schema| schema.fields().len());
                assert_eq!(counts, [columns + added; 2], "{sql}");
            }
            server.run(&format!("ALTER TABLE w ADD COLUMN n{columns}_{added} INT")).await.unwrap();
        }
        let error = prepared.bound_schema(&row(vec![int(1), int(2)])).await.unwrap_err();
        assert!(error.message().contains("takes 1 parameters"), "{error}");
    }
}

#[tokio::test]
async fn a_column_that_depends_on_a_parameter_has_its_type() {
    let server = with_numbers().await;
    let prepared = server.session.prepare("SELECT i, i * ? AS p FROM w WHERE i < ?").await.unwrap();
    for (value, expected) in [(float(0.5), DataType::Float64), (int(7), DataType::Int64)] {
        let parameters = row(vec![value, int(3)]);
        let announced = prepared.bound_schema(&parameters).await.unwrap();
        assert_eq!(announced.field(1).data_type(), &expected);
    }
}

#[tokio::test]
async fn parameters_may_have_names() {
    let server = with_numbers().await;
    let sql = "SELECT i FROM w WHERE i >= $least AND i < $most AND i >= $least ORDER BY i";
    let prepared = server.session.prepare(sql).await.unwrap();
    let names: Vec<String> = prepared.parameter_schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["$least", "$most"]);
    assert_eq!(server.bound(sql, vec![int(2), int(3)]).await.unwrap(), "2");
    assert_eq!(server.change("UPDATE w SET i = $new WHERE i = $old", vec![int(9), int(1)]).await.unwrap(), 1);
    assert_eq!(server.rows("SELECT i FROM w WHERE i > 5").await, ["9"]);
}

#[tokio::test]
async fn statements_say_what_they_change_in_their_session() {
    let server = with_numbers().await;
    for (sql, part) in [
        ("BEGIN", Some(SessionPart::Transaction)),
        ("ROLLBACK", Some(SessionPart::Transaction)),
        ("PREPARE p AS SELECT 1", Some(SessionPart::NamedStatements)),
        ("SET datafusion.execution.batch_size = 100", Some(SessionPart::Options)),
        ("RESET datafusion.execution.batch_size", Some(SessionPart::Options)),
        ("CANCEL QUERY 'q1'", None),
        ("SELECT 1", None),
        ("DELETE FROM w", None),
    ] {
        assert_eq!(server.session.prepare(sql).await.unwrap().session_part(), part, "{sql}");
    }
}
