//! Columns as clients declare and ingest them: metadata, extension types, names of types.

use super::*;

fn with_metadata(name: &str, data_type: DataType, metadata: &[(&str, &str)]) -> Field {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Field::new(name, data_type, true).with_metadata(metadata)
}

fn create(table: &str) -> IngestRequest {
    IngestRequest { schema: None, table: table.into(), mode: IngestMode::Create, options: HashMap::new() }
}

/// A UUID, a JSON text and a number with metadata of the client, and metadata that a server added to the column.
fn annotated(rows: usize) -> RecordBatch {
    let uuids = arrow::array::FixedSizeBinaryArray::try_from_iter((0..rows).map(|row| [row as u8; 16])).unwrap();
    let texts = StringArray::from_iter_values((0..rows).map(|row| format!("{{\"row\": {row}}}")));
    let fields = vec![
        with_metadata("u", DataType::FixedSizeBinary(16), &[("ARROW:extension:name", "arrow.uuid")]),
        with_metadata("j", DataType::Utf8, &[("ARROW:extension:name", "arrow.json"), ("ARROW:extension:metadata", "")]),
        with_metadata(
            "k",
            DataType::Int64,
            &[("unit", "metres"), ("terrace.type", "Utf8"), ("ARROW:FLIGHT:SQL:TABLE_NAME", "elsewhere")],
        ),
    ];
    let numbers = Int64Array::from_iter_values((0..rows).map(|row| row as i64));
    let columns: Vec<ArrayRef> = vec![Arc::new(uuids), Arc::new(texts), Arc::new(numbers)];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_say_of_columns_survives() {
    let server = Server::new();
    server.ingest(create("t"), annotated(70_000), None).await.unwrap();
    let server = server.restart().await;
    let said = |rows: &[RecordBatch], column: &str| -> Vec<String> {
        let mut said: Vec<_> =
            rows[0].schema().field_with_name(column).unwrap().metadata().clone().into_iter().collect();
        said.sort();
        said.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    };
    let uuid = ["ARROW:extension:name=arrow.uuid"];
    let prepared = server.session.prepare("SELECT * FROM t").await.unwrap();
    assert_eq!(prepared.dataset_schema().field(0).metadata()["ARROW:extension:name"], "arrow.uuid");
    for sql in [
        "SELECT * FROM t",
        "SELECT k, u, j FROM t WHERE k < 10 ORDER BY k",
        "SELECT * FROM t ORDER BY k DESC LIMIT 5",
        "SELECT a.u, a.j, b.k FROM t a JOIN t b ON a.k = b.k WHERE a.k < 10",
        "SELECT u, j, k FROM (SELECT * FROM t UNION ALL SELECT * FROM t) WHERE k < 3",
        "SELECT u, max(j) AS j, k FROM t WHERE k < 10 GROUP BY u, k",
        "SELECT DISTINCT u, j, k FROM t WHERE k < 10",
        "SELECT u, j, k, row_number() OVER (PARTITION BY u ORDER BY k) FROM t WHERE k < 10",
        "WITH x AS (SELECT * FROM t WHERE k < 5) SELECT x.u, x.j, x.k FROM x WHERE k IN (SELECT k FROM t)",
    ] {
        let rows = server.batches(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(said(&rows, "u"), uuid, "{sql}");
        assert_eq!(said(&rows, "k"), ["unit=metres"], "{sql}");
    }
    let rows = server.batches("SELECT CAST(j AS VARCHAR) AS j, k + 1 AS k FROM t LIMIT 1").await.unwrap();
    assert_eq!((said(&rows, "j").len(), said(&rows, "k").len()), (0, 0), "a new value is of no extension type");
    server.run("UPDATE t SET j = '{}' WHERE k = 1").await.unwrap();
    server.run("DELETE FROM t WHERE k = 2").await.unwrap();
    server.append("t", annotated(3), None).await.unwrap();
    server.run("MERGE INTO t USING (SELECT 5 AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET j = 'x'").await.unwrap();
    server.run("CREATE TABLE copied AS SELECT * FROM t WHERE k < 9").await.unwrap();
    server.run("ALTER TABLE copied RENAME COLUMN u TO v").await.unwrap();
    server.run("CREATE VIEW w AS SELECT v, k FROM copied").await.unwrap();
    assert_eq!(said(&server.batches("SELECT * FROM w").await.unwrap(), "v"), uuid);
    assert_eq!(server.rows("SELECT count(*), count(DISTINCT u), sum(k) FROM t").await, ["70002|256|2449965001"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_another_shape_find_a_table_that_exists() {
    let server = Server::new();
    server.run("CREATE TABLE t (id BIGINT NOT NULL, name VARCHAR)").await.unwrap();
    let append = |columns| server.append("t", batch(columns), None);
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    for (columns, named) in [
        (vec![("id", Arc::clone(&text)), ("name", Arc::clone(&text))], "'id'"),
        (vec![("id", Arc::clone(&one)), ("more", Arc::clone(&text))], "'more'"),
        (vec![("name", Arc::clone(&text))], "'id'"),
    ] {
        let error = append(columns).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.message().contains(named), "{error}");
    }
    let far = vec![with_metadata("x", DataType::Int64, &[("far", &"x".repeat(2 << 20))])];
    let far = RecordBatch::new_empty(Arc::new(Schema::new(far)));
    let error = server.ingest(create("far"), far, None).await.unwrap_err();
    assert!(error.message().contains("metadata"), "{error}");
    let null: ArrayRef = Arc::new(Int64Array::from(vec![None]));
    let error = append(vec![("id", null), ("name", text)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "a value is no shape: {error}");
}

/// Each type that Flight's GetXdbcTypeInfo lists can be the type of a column and of a literal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_that_are_announced_can_be_created() {
    let server = Server::new();
    let types = [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "TINYINT UNSIGNED",
        "SMALLINT UNSIGNED",
        "INTEGER UNSIGNED",
        "BIGINT UNSIGNED",
        "REAL",
        "DOUBLE",
        "DECIMAL(20, 4)",
        "VARCHAR",
        "VARCHAR(20)",
        "VARBINARY",
        "VARBINARY(16)",
        "BLOB",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMP WITH TIME ZONE",
        "INTERVAL",
    ];
    for name in types {
        server.run(&format!("CREATE TABLE t (x {name})")).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        server.run("INSERT INTO t VALUES (NULL)").await.unwrap_or_else(|e| panic!("{name}: {e}"));
        server.run("ALTER TABLE t ADD COLUMN k INT").await.unwrap();
        server.rows(&format!("SELECT CAST(NULL AS {name}), x FROM t")).await;
        server.run("DROP TABLE t").await.unwrap();
    }
    for literal in [
        "X'00ff'",
        "'text'",
        "DATE '2024-02-29'",
        "TIME '12:00:00'",
        "TIMESTAMP '2024-02-29 12:00:00'",
        "TIMESTAMP WITH TIME ZONE '2024-02-29 12:00:00Z'",
        "INTERVAL '1 day'",
    ] {
        assert_eq!(server.rows(&format!("SELECT {literal}")).await.len(), 1, "{literal}");
    }
    server.run("CREATE TABLE b (x VARBINARY NOT NULL)").await.unwrap();
    server.run("INSERT INTO b VALUES (X'00ff')").await.unwrap();
    assert_eq!(server.rows("SELECT x FROM b").await, ["00ff"]);
    server.run(&server.definition("b").await.replace("b (", "c (")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_missing_is_not_found() {
    let server = Server::new();
    server.run("CREATE TABLE t (a INT)").await.unwrap();
    for sql in [
        "SELECT * FROM nope.x",
        "CREATE TABLE nope.x (a INT)",
        "CREATE TABLE nope.x AS SELECT 1 AS a",
        "CREATE OR REPLACE TABLE nope.x AS SELECT 1 AS a",
        "CREATE VIEW nope.x AS SELECT 1 AS a",
        "CREATE EXTERNAL TABLE nope.x (a INT) STORED AS CSV LOCATION '/tmp/'",
        "INSERT INTO nope.x VALUES (1)",
        "UPDATE nope.x SET a = 1",
        "DELETE FROM nope.x",
        "TRUNCATE TABLE nope.x",
        "MERGE INTO nope.x USING t ON x.a = t.a WHEN MATCHED THEN DELETE",
        "COPY nope.x FROM '/tmp/x.csv'",
        "COPY nope.x TO '/tmp/never_written.csv'",
        "ALTER TABLE nope.x ADD COLUMN b INT",
        "ALTER TABLE t RENAME TO nope.t",
        "COMMENT ON TABLE nope.x IS 'x'",
        "DROP TABLE nope.x",
        "DROP VIEW nope.x",
        "DROP SCHEMA nope",
        "SHOW TABLES FROM nope",
        "SHOW COLUMNS FROM nope.x",
        "SHOW CREATE TABLE nope.x",
        "DESCRIBE nope.x",
        "SET datafusion.catalog.default_schema = 'nope'",
    ] {
        server.fails(sql, ErrorKind::NotFound, "nope").await;
    }
    for mode in [IngestMode::Create, IngestMode::Append, IngestMode::Replace, IngestMode::CreateAppend] {
        let request = IngestRequest { schema: Some("nope".into()), table: "x".into(), mode, options: HashMap::new() };
        let error = server.ingest(request, annotated(1), None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{mode:?}: {error}");
        assert!(error.message().contains("nope"), "{mode:?}: {error}");
    }
    assert_eq!(server.session.set_option("catalog", Some("nope")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(server.session.set_option("nope", Some("1")).unwrap_err().kind(), ErrorKind::NotFound);
}
