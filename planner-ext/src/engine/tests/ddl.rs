//! Definitions: ALTER TABLE, defaults, comments, SHOW and `information_schema`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn altered_tables_read_old_rows_and_survive_a_restart() {
    let server = Server::new();
    server.run("CREATE TABLE t WITH (chunk_rows = 100) AS SELECT value AS a, NULLIF('x', '') AS b FROM generate_series(1, 250)").await.unwrap();
    server.run("INSERT INTO t VALUES (251, 'delta')").await.unwrap();
    server
        .run("ALTER TABLE t ADD COLUMN c INT NOT NULL DEFAULT 7, ADD COLUMN d VARCHAR COMMENT 'later'")
        .await
        .unwrap();
    assert_eq!(server.run("ALTER TABLE t ADD COLUMN IF NOT EXISTS c INT").await.unwrap(), 0);
    server.run("INSERT INTO t (a, d) VALUES (252, 'new')").await.unwrap();
    let all = "SELECT count(*), sum(c), min(c), max(c), count(d), count(b) FROM t";
    assert_eq!(server.rows(all).await, ["252|1764|7|7|1|251"]);
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE c = 7 AND d IS NULL").await, ["251"]);
    assert_eq!(server.rows("SELECT count(*) FROM t WHERE c > 7").await, ["0"]);
    assert_eq!(server.rows("SELECT c, count(*) FROM t WHERE a % 100 < 50 GROUP BY c").await, ["7|149"]);
    assert_eq!(
        server.rows("SELECT a, b, c, d FROM t WHERE a IN (1, 251, 252) ORDER BY a").await,
        ["1|x|7|", "251|delta|7|", "252||7|new"]
    );
    server.run("ALTER TABLE t RENAME COLUMN a TO key, DROP COLUMN b").await.unwrap();
    server.run("ALTER TABLE t ALTER COLUMN c SET DEFAULT 8").await.unwrap();
    server.run("ALTER TABLE t SET (cluster_by = 'key', durability = 'none', comment = 'mine')").await.unwrap();
    server.run("ALTER TABLE t RENAME TO u").await.unwrap();
    server.run("INSERT INTO u (key) VALUES (253)").await.unwrap();
    let server = server.restart().await;
    assert_eq!(server.rows("SELECT count(*), sum(key), sum(c), count(d) FROM u").await, ["253|32131|1772|1"]);
    server.fails("SELECT b FROM u", ErrorKind::InvalidArgument, "b").await;
    server.fails("SELECT * FROM t", ErrorKind::NotFound, "table 't' does not exist").await;
    assert_eq!(
        server.rows("SELECT sum(segments) FROM system.chunks").await,
        server.rows("SELECT count(*) FROM system.segments").await
    );
    let table = server.engine.store().table(&terrace_tier_store::table::TableName::new("public", "u")).unwrap();
    assert_eq!(
        (table.options().cluster_by.as_slice(), table.definition().comment.as_deref()),
        (&["key".to_owned()][..], Some("mine"))
    );
    server.run("ALTER TABLE u ADD COLUMN b BIGINT DEFAULT 1").await.unwrap();
    assert_eq!(server.rows("SELECT min(b), max(b) FROM u").await, ["1|1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_altered_is_refused_with_what_to_do() {
    let server = Server::new();
    server.run("CREATE TABLE t (a BIGINT PRIMARY KEY, b VARCHAR, c INT) WITH (cluster_by = 'b')").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 'x', 2)").await.unwrap();
    server.run("CREATE VIEW v AS SELECT a, c AS third FROM t").await.unwrap();
    server.run("CREATE VIEW w AS SELECT third FROM v").await.unwrap();
    server.run("CREATE VIEW every AS SELECT * FROM t").await.unwrap();
    let invalid = ErrorKind::InvalidArgument;
    let missing = ErrorKind::NotFound;
    let state = ErrorKind::FailedPrecondition;
    for (sql, kind, words) in [
        ("ALTER TABLE t ADD COLUMN a INT", ErrorKind::AlreadyExists, "a"),
        ("ALTER TABLE t ADD COLUMN d INT NOT NULL", invalid, "DEFAULT"),
        ("ALTER TABLE t ADD COLUMN d INT DEFAULT 'x'", invalid, "column 'd'"),
        ("ALTER TABLE t ADD COLUMN d INT DEFAULT b", invalid, "DEFAULT"),
        ("ALTER TABLE t ADD COLUMN d DOUBLE DEFAULT random()", invalid, "row to row"),
        ("ALTER TABLE t ADD COLUMN d INT UNIQUE", ErrorKind::Unimplemented, "UNIQUE"),
        ("ALTER TABLE t DROP COLUMN nope", missing, "nope"),
        ("ALTER TABLE t DROP COLUMN a", state, "primary key"),
        ("ALTER TABLE t DROP COLUMN b", state, "cluster_by"),
        ("ALTER TABLE t DROP COLUMN c", state, "view 'v', 'w'"),
        ("ALTER TABLE t RENAME COLUMN c TO d", state, "view"),
        ("ALTER TABLE t RENAME COLUMN b TO a", ErrorKind::AlreadyExists, "a"),
        ("ALTER TABLE t RENAME COLUMN nope TO d", missing, "nope"),
        ("ALTER TABLE t RENAME TO u", state, "view"),
        ("ALTER TABLE t RENAME TO v", ErrorKind::AlreadyExists, "view"),
        ("ALTER TABLE t ALTER COLUMN c TYPE BIGINT", ErrorKind::Unimplemented, "cannot be changed"),
        ("ALTER TABLE t ALTER COLUMN c SET NOT NULL", ErrorKind::Unimplemented, "CREATE OR REPLACE"),
        ("ALTER TABLE t ALTER COLUMN a DROP NOT NULL", invalid, "primary key"),
        ("ALTER TABLE t SET (cluster_by = 'nope')", missing, "nope"),
        ("ALTER TABLE t SET (nope = 1)", invalid, "nope"),
        ("ALTER TABLE t ADD CONSTRAINT x UNIQUE (a)", ErrorKind::Unimplemented, "not supported"),
        ("ALTER TABLE nope ADD COLUMN a INT", missing, "nope"),
        ("ALTER TABLE v ADD COLUMN a INT", invalid, "CREATE OR REPLACE VIEW"),
        ("ALTER TABLE system.tables ADD COLUMN a INT", ErrorKind::PermissionDenied, "system"),
        ("DROP TABLE t RESTRICT", state, "view"),
        ("CREATE TABLE d (a INT DEFAULT 'x')", invalid, "column 'a'"),
        ("CREATE TABLE d (a TINYINT DEFAULT 300)", invalid, "column 'a'"),
        ("CREATE TABLE d (a INT, b INT DEFAULT a)", invalid, "DEFAULT"),
        ("CREATE TABLE d (a BIGINT DEFAULT count(*))", invalid, "DEFAULT"),
        ("COMMENT ON TABLE nope IS 'x'", missing, "nope"),
        ("COMMENT ON TABLE v IS 'x'", invalid, "COMMENT ON VIEW"),
        ("COMMENT ON VIEW t IS 'x'", invalid, "COMMENT ON TABLE"),
        ("COMMENT ON COLUMN t.nope IS 'x'", missing, "nope"),
        ("COMMENT ON COLUMN v.nope IS 'x'", missing, "nope"),
        ("COMMENT ON SCHEMA public IS 'x'", ErrorKind::Unimplemented, "SCHEMA"),
    ] {
        server.fails(sql, kind, words).await;
    }
    assert_eq!(server.run("ALTER TABLE IF EXISTS nope ADD COLUMN a INT").await.unwrap(), 0);
    assert_eq!(server.run("ALTER TABLE t DROP COLUMN IF EXISTS nope").await.unwrap(), 0);
    assert_eq!(server.rows("SELECT * FROM t").await, ["1|x|2"]);
    server.run("ALTER TABLE t DROP COLUMN c CASCADE").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM every").await, ["1|x"]);
    server.fails("SELECT * FROM v", missing, "v").await;
    server.run("ALTER TABLE t DROP COLUMN a CASCADE").await.unwrap();
    server.run("DROP TABLE t CASCADE").await.unwrap();
    assert!(
        server.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'").await.is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_prepared_before_an_alter_see_the_table_as_it_is() {
    let server = Server::new();
    server.run("CREATE TABLE t (a BIGINT, b BIGINT)").await.unwrap();
    let count = server.session.prepare("SELECT sum(a) AS s FROM t").await.unwrap();
    let star = server.session.prepare("SELECT * FROM t").await.unwrap();
    let insert = server.session.prepare("INSERT INTO t VALUES (1, 2)").await.unwrap();
    assert_eq!(insert.update(None).await.unwrap(), 1);
    server.run("ALTER TABLE t ADD COLUMN c INT DEFAULT 3").await.unwrap();
    let rows: Vec<RecordBatch> = count.query(None).await.unwrap().stream.try_collect().await.unwrap();
    assert_eq!(rows[0].num_rows(), 1);
    let Err(error) = star.query(None).await else { panic!("two columns were promised") };
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    // Two values for three columns.
    assert!(insert.update(None).await.is_err());
    assert_eq!(server.rows("SELECT * FROM t").await, ["1|2|3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_during_alter_see_the_old_table_or_the_new_one() {
    let server = Server::new();
    server
        .run("CREATE TABLE t WITH (chunk_rows = 1000) AS SELECT value AS a FROM generate_series(1, 20000)")
        .await
        .unwrap();
    let done = AtomicBool::new(false);
    let queries = async {
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            let batches = match server.batches("SELECT * FROM t WHERE a % 7 = 0").await {
                // The table was altered between planning and execution.
                Err(error) if error.kind() == ErrorKind::FailedPrecondition => continue,
                result => result.unwrap(),
            };
            for batch in batches {
                for column in batch.columns().iter().skip(1) {
                    let values = column.as_any().downcast_ref::<Int32Array>().unwrap();
                    assert!(values.iter().all(|v| v == Some(5)));
                }
                seen += batch.num_rows();
            }
        }
        assert!(seen > 0 && seen.is_multiple_of(20_000 / 7));
    };
    let alters = async {
        for round in 0..20 {
            server.run(&format!("ALTER TABLE t ADD COLUMN c{round} INT NOT NULL DEFAULT 5")).await.unwrap();
            if round % 2 == 1 {
                server.run(&format!("ALTER TABLE t DROP COLUMN c{}", round - 1)).await.unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    };
    futures::join!(queries, alters);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_fill_what_an_insert_does_not_name() {
    let server = Server::new();
    server
        .run("CREATE TABLE t (a INT NOT NULL DEFAULT 1 + 1, b VARCHAR DEFAULT 'it''s', c TIMESTAMP(6) DEFAULT now(), d DOUBLE)")
        .await
        .unwrap();
    server.run("INSERT INTO t (d) VALUES (1), (2)").await.unwrap();
    server.run("INSERT INTO t VALUES (DEFAULT, default, NULL, 3), (9, 'x', DEFAULT, DEFAULT)").await.unwrap();
    server.run("INSERT INTO t DEFAULT VALUES").await.unwrap();
    server.run("INSERT INTO t (d) SELECT value FROM generate_series(4, 5)").await.unwrap();
    let prepared = server.session.prepare("INSERT INTO t (b, d) VALUES (DEFAULT, ?)").await.unwrap();
    let bound = batch(vec![("p", Arc::new(Int64Array::from(vec![6, 7])) as ArrayRef)]);
    assert_eq!(prepared.update(Some(bound)).await.unwrap(), 2);
    assert_eq!(
        server.rows("SELECT a, b, c IS NULL, d FROM t ORDER BY d NULLS LAST, a").await,
        [
            "2|it's|false|1.0",
            "2|it's|false|2.0",
            "2|it's|true|3.0",
            "2|it's|false|4.0",
            "2|it's|false|5.0",
            "2|it's|false|6.0",
            "2|it's|false|7.0",
            "2|it's|false|",
            "9|x|false|"
        ]
    );
    assert_eq!(server.rows("SELECT count(DISTINCT c) FROM t WHERE d IN (1, 2)").await, ["1"]);
    // Rows that come as a stream.
    let csv = server.dir.path().join("x.csv");
    std::fs::write(&csv, "d\n8\n").unwrap();
    server.run(&format!("COPY t FROM '{}'", csv.display())).await.unwrap();
    let rows = batch(vec![("D", Arc::new(Int32Array::from(vec![9])) as ArrayRef)]);
    server.append("t", rows, None).await.unwrap();
    assert_eq!(server.rows("SELECT a, b, c > TIMESTAMP '2020-01-01', d FROM t WHERE d > 7").await.len(), 2);
    assert_eq!(
        server.rows("SELECT count(*) FROM t WHERE d > 7 AND a = 2 AND b = 'it''s' AND c IS NOT NULL").await,
        ["2"]
    );
    server.run("ALTER TABLE t ALTER COLUMN a DROP DEFAULT").await.unwrap();
    server.fails("INSERT INTO t (d) VALUES (1)", ErrorKind::InvalidArgument, "column 'a' is NOT NULL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_declared_is_shown_and_recreates_itself() {
    let server = Server::new();
    server
        .run(
            "CREATE TABLE odd (\"Key\" BIGINT, \"select\" VARCHAR NOT NULL DEFAULT 'a''b' COMMENT 'it''s', n DECIMAL(9, 2), \
             t TIMESTAMP(3), z TIMESTAMP WITH TIME ZONE, i INTERVAL, l ARROW('List(Int32)'), u INT UNSIGNED, b BYTEA, \
             y ARROW('Timestamp(µs, \"Europe/Berlin\")'), r REAL, tm TIME, f DATE DEFAULT DATE '2020-02-02', \
             PRIMARY KEY (\"Key\", n)) WITH (cluster_by = 'n', chunk_rows = 77, durability = 'none', admission = 'ssd', comment = 'strange')",
        )
        .await
        .unwrap();
    let table = |name| server.engine.store().table(&terrace_tier_store::table::TableName::new("public", name)).unwrap();
    let before = table("odd");
    let text = server.definition("odd").await;
    server.run("DROP TABLE odd").await.unwrap();
    server.run(&text).await.unwrap_or_else(|e| panic!("{text}: {e}"));
    let after = table("odd");
    assert_eq!(before.schema(), after.schema());
    assert_eq!((before.options(), before.primary_key()), (after.options(), after.primary_key()));
    assert_eq!(before.definition().comment, after.definition().comment);
    let notes = |t: &terrace_tier_store::table::Table| {
        t.definition().columns.iter().map(|c| (c.default.clone(), c.comment.clone())).collect::<Vec<_>>()
    };
    assert_eq!(notes(&before), notes(&after));

    server.run("CREATE VIEW v AS SELECT \"Key\" FROM odd").await.unwrap();
    server.run("CREATE VIEW IF NOT EXISTS v AS SELECT 1 AS one").await.unwrap();
    server.run("COMMENT ON VIEW v IS 'looks'").await.unwrap();
    server.run("COMMENT ON COLUMN v.\"Key\" IS 'opens'").await.unwrap();
    server.run("COMMENT ON COLUMN odd.n IS 'number'").await.unwrap();
    server.run("COMMENT ON TABLE odd IS NULL").await.unwrap();
    let server = server.restart().await;
    let tables = "SELECT table_name, table_type, table_comment FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1";
    assert_eq!(server.rows(tables).await, ["odd|BASE TABLE|", "v|VIEW|looks"]);
    let columns = "SELECT column_name, ordinal_position, column_default, is_nullable, column_comment FROM information_schema.columns \
                   WHERE table_schema = 'public' AND ordinal_position <= 3 ORDER BY table_name, ordinal_position";
    assert_eq!(
        server.rows(columns).await,
        ["Key|1||NO|", "select|2|'a''b'|NO|it's", "n|3||NO|number", "Key|1||NO|opens"]
    );
    assert_eq!(
        server.rows("SELECT column_name, ordinal_position FROM information_schema.key_column_usage ORDER BY 2").await,
        ["Key|1", "n|2"]
    );
    assert_eq!(
        server
            .rows("SELECT constraint_name, constraint_type, enforced FROM information_schema.table_constraints")
            .await,
        ["odd_pkey|PRIMARY KEY|NO"]
    );
    assert_eq!(server.rows("DESCRIBE v").await, ["Key|Int64|NO||opens"]);
    assert_eq!(server.rows("DESC odd").await.len(), 13);
    assert_eq!(server.rows("SHOW COLUMNS FROM odd LIKE 'n%'").await, ["terrace|public|odd|n|Decimal128(9, 2)|NO"]);
    assert_eq!(server.rows("SHOW TABLES FROM public LIKE 'o%'").await, ["terrace|public|odd|BASE TABLE"]);
    assert_eq!(server.rows("SHOW SCHEMAS").await, ["terrace|information_schema", "terrace|public", "terrace|system"]);
    assert!(server.rows("SHOW CREATE VIEW v").await[0].contains("CREATE VIEW v AS SELECT"));
    assert_eq!(server.rows("SHOW datafusion.execution.batch_size").await, ["datafusion.execution.batch_size|8192"]);
    assert!(server.rows("SHOW ALL").await.len() > 50);
    assert!(server.rows("SHOW FUNCTIONS LIKE 'abs'").await.len() > 1);
    server.fails("DESCRIBE nope", ErrorKind::NotFound, "nope").await;
    server.fails("SHOW CREATE TABLE nope", ErrorKind::NotFound, "nope").await;

    // A view that can no longer be planned does not hide the others, and a view may read the tables that list it.
    server.run("CREATE VIEW mirror AS SELECT table_name, column_name FROM information_schema.columns").await.unwrap();
    server.run("DROP TABLE odd").await.unwrap();
    assert_eq!(
        server.rows("SELECT table_name, definition FROM information_schema.views WHERE table_name = 'v'").await.len(),
        1
    );
    assert_eq!(
        server.rows("SELECT column_name FROM mirror WHERE table_name = 'mirror'").await,
        ["table_name", "column_name"]
    );
    server.fails("DESCRIBE v", ErrorKind::NotFound, "odd").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_cannot_name_the_servers_own_files() {
    let server = Server::new();
    server.run("CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    let data = server.dir.path().join("data");
    let elsewhere = server.dir.path().join("out");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&data, elsewhere.join("link")).unwrap();
    let before = std::fs::read(data.join("catalog.redb")).unwrap().len();
    for path in [
        data.join("catalog.redb"),
        data.join("new.parquet"),
        elsewhere.join("link/x.csv"),
        server.dir.path().join("spill/x"),
    ] {
        let path = path.display();
        for sql in [
            format!("COPY t TO '{path}' STORED AS PARQUET"),
            format!("COPY t TO 'file://{path}' STORED AS PARQUET OPTIONS (overwrite 'true')"),
            format!("COPY t FROM '{path}' (FORMAT parquet)"),
            format!("CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{path}'"),
            format!("ALTER SYSTEM ADD TIER nvm9 WITH (path = '{path}', capacity = '16MiB')"),
        ] {
            server.fails(&sql, ErrorKind::PermissionDenied, "belongs to the server").await;
        }
    }
    assert!(std::fs::read(data.join("catalog.redb")).unwrap().len() >= before);
    server.run("INSERT INTO t VALUES (2)").await.unwrap();

    let file = elsewhere.join("t.parquet");
    let copy = format!("COPY t TO '{}'", file.display());
    assert_eq!(server.run(&copy).await.unwrap(), 2);
    server.fails(&copy, ErrorKind::AlreadyExists, "overwrite").await;
    assert_eq!(server.run(&format!("{copy} OPTIONS (overwrite 'true')")).await.unwrap(), 2);
    assert_eq!(server.restart().await.rows("SELECT sum(a) FROM t").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_keep_to_the_configured_folders() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let inside = dir.path().join("in");
    std::fs::create_dir(&inside).unwrap();
    let roots = vec![inside.clone()];
    let files = FileAccess::new(roots.clone(), roots, Vec::new());
    let server = Server::open(Arc::clone(&dir), |options| options.files = files);
    server.run("CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    server.run(&format!("COPY t TO '{}/t.csv'", inside.display())).await.unwrap();
    server.run(&format!("COPY t FROM '{}/t.csv'", inside.display())).await.unwrap();
    let outside = dir.path().join("t.csv");
    server.fails(&format!("COPY t TO '{}'", outside.display()), ErrorKind::PermissionDenied, "files.write_roots").await;
    server.fails("COPY t FROM '/etc/passwd' (FORMAT csv)", ErrorKind::PermissionDenied, "files.read_roots").await;
    let external = "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '/etc/passwd'";
    server.fails(external, ErrorKind::PermissionDenied, "files.read_roots").await;
    // No URL leads anywhere else.
    for url in ["gs://bucket/t.csv", "http://169.254.169.254/t.csv", "replace:///etc/t.csv"] {
        for sql in [
            format!("COPY t TO '{url}'"),
            format!("COPY t FROM '{url}'"),
            format!("CREATE EXTERNAL TABLE e (a BIGINT) STORED AS CSV LOCATION '{url}'"),
        ] {
            server.fails(&sql, ErrorKind::Unimplemented, "files of the server").await;
        }
    }
}
