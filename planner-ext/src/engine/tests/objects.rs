//! Objects of an object store as tables, loaded into tables, and written: which may be named, and what is refused.

use bytes::Bytes;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::object_store::{ObjectStore, ObjectStoreExt};

use super::*;

/// A bucket in memory, with rows in `sales/` and others' in `secret/`.
async fn bucket() -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    for (name, text) in [
        ("sales/2024.csv", "k,v\n1,a\n2,b\n"),
        ("sales/2025.csv", "k,v\n3,c\n"),
        ("sales/_SUCCESS", "x"),
        ("days/day=2024-02-29/a.json", "{\"k\": 1}\n{\"k\": 2}\n"),
        ("days/day=2024-03-01/a.json", "{\"k\": 3}\n"),
        ("secret/keys.csv", "k,v\n9,z\n"),
        ("salesmen/a.csv", "k,v\n8,y\n"),
    ] {
        store.put(&ObjectPath::from(name), text.into()).await.unwrap();
    }
    let rows = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![5, 6])) as ArrayRef)]).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let whole = Bytes::from(file);
    store.put(&ObjectPath::from("sales/p/a.parquet"), whole.clone().into()).await.unwrap();
    // The length of the metadata is one that no file has room for.
    let mut damaged = whole.to_vec();
    let end = damaged.len() - 8;
    damaged[end..end + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    store.put(&ObjectPath::from("sales/p/damaged.parquet"), damaged.into()).await.unwrap();
    store
}

/// A server that may read `sales`, `days` and `out` of the bucket, and write `out`.
async fn server() -> Server {
    let store: Arc<dyn ObjectStore> = bucket().await;
    let root = |prefix: &str| ObjectRoot::new("lake", ObjectPath::from(prefix), Arc::clone(&store));
    let objects = ObjectAccess::new(vec![root("sales"), root("days"), root("out")], vec![root("out")]);
    Server::with(|options| options.files = options.files.clone().with_objects(objects))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_tables_and_are_loaded_into_tables() {
    let server = server().await;
    server.run("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 's3://lake/sales/2024.csv'").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM e ORDER BY k").await, ["1|a", "2|b"]);
    server.run("CREATE TABLE t (k BIGINT, v VARCHAR)").await.unwrap();
    // A folder is read without those in it, and without what is no data.
    assert_eq!(server.run("COPY t FROM 's3://lake/sales/' (FORMAT csv)").await.unwrap(), 3);
    assert_eq!(server.rows("SELECT * FROM t ORDER BY k").await, ["1|a", "2|b", "3|c"]);
    assert_eq!(server.run("COPY t FROM 's3://lake/sales/2025.csv'").await.unwrap(), 1);
    server.run("CREATE TABLE days (k BIGINT, day DATE)").await.unwrap();
    assert_eq!(server.run("COPY days FROM 's3://lake/days/' (FORMAT json)").await.unwrap(), 3);
    assert_eq!(server.rows("SELECT * FROM days ORDER BY k").await, ["1|2024-02-29", "2|2024-02-29", "3|2024-03-01"]);
    server.run("CREATE TABLE p (k BIGINT)").await.unwrap();
    assert_eq!(server.run("COPY p FROM 's3://lake/sales/p/a.parquet'").await.unwrap(), 2);
    let external = "CREATE EXTERNAL TABLE q STORED AS PARQUET LOCATION 's3://lake/sales/p/a.parquet'";
    server.run(external).await.unwrap();
    assert_eq!(server.rows("SELECT sum(k) FROM q").await, ["11"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_outside_of_the_prefixes_are_refused_however_they_are_spelled() {
    let server = server().await;
    server.run("CREATE TABLE t (k BIGINT, v VARCHAR)").await.unwrap();
    for location in [
        "s3://lake/secret/keys.csv",
        "s3://lake/sales/../secret/keys.csv",
        "s3://lake/sales/%2e%2e/secret/keys.csv",
        "s3://lake/salesmen/a.csv",
        "s3://lake/",
        "s3://other/sales/2024.csv",
        "s3://user@lake/sales/2024.csv",
        "s3://lake:80/sales/2024.csv",
    ] {
        for sql in [
            format!("COPY t FROM '{location}' (FORMAT csv)"),
            format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '{location}'"),
        ] {
            server.fails(&sql, ErrorKind::PermissionDenied, "files.object_roots").await;
        }
    }
    let copy = |location: &str| format!("COPY t FROM '{location}' (FORMAT csv)");
    server.fails(&copy("s3://lake/sales/*.csv"), ErrorKind::InvalidArgument, "pattern").await;
    server.fails(&copy("s3://lake/sales/gone.csv"), ErrorKind::NotFound, "no object").await;
    server.fails(&copy("s3://lake/sales"), ErrorKind::NotFound, "slash").await;
    for target in
        ["s3://lake/sales/new.csv", "s3://lake/outer/new.csv", "s3://lake/out/../sales/new.csv", "s3://other/out/a.csv"]
    {
        for options in ["", " OPTIONS (overwrite 'true')"] {
            let copy = format!("COPY t TO '{target}'{options}");
            server.fails(&copy, ErrorKind::PermissionDenied, "files.object_write_roots").await;
        }
    }
    server.fails("COPY t TO 's3-replace://lake/out/new.csv'", ErrorKind::Unimplemented, "s3-replace").await;
    server.fails("COPY t FROM 's3://lake/sales/p/damaged.parquet'", ErrorKind::InvalidArgument, "its footer").await;
    let none = Server::new();
    none.run("CREATE TABLE t (k BIGINT)").await.unwrap();
    none.fails(&copy("s3://lake/sales/2024.csv"), ErrorKind::PermissionDenied, "files.object_roots").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_written_to_objects_and_read_again() {
    let server = server().await;
    server.run("CREATE TABLE t (a INT, b VARCHAR)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, '007'), (2, NULL)").await.unwrap();
    for format in ["parquet", "csv", "json", "arrow"] {
        let copy = format!("COPY t TO 's3://lake/out/t.{format}'");
        assert_eq!(server.run(&copy).await.unwrap(), 2, "{format}");
        server.fails(&copy, ErrorKind::AlreadyExists, "overwrite").await;
        server.run(&format!("{copy} OPTIONS (overwrite 'true')")).await.unwrap();
        server.run("CREATE OR REPLACE TABLE u (b VARCHAR, a BIGINT)").await.unwrap();
        server.run(&format!("COPY u FROM 's3://lake/out/t.{format}'")).await.unwrap();
        assert_eq!(server.rows("SELECT a, b FROM u ORDER BY a").await, ["1|007", "2|"], "{format}");
        let table =
            format!("CREATE OR REPLACE EXTERNAL TABLE e STORED AS {format} LOCATION 's3://lake/out/t.{format}'");
        server.run(&table).await.unwrap();
        assert_eq!(server.rows("SELECT count(*), sum(a) FROM e").await, ["2|3"], "{format}");
        // A new version of the same length is read as it is.
        server
            .run(&format!(
                "COPY (SELECT CAST(a + 1 AS INT) AS a, b FROM t) TO 's3://lake/out/t.{format}' OPTIONS (overwrite 'true')"
            ))
            .await
            .unwrap();
        assert_eq!(server.rows("SELECT count(*), sum(a) FROM e").await, ["2|5"], "{format}");
    }
    // A folder that INSERT makes, and a file of several parts.
    server.run("CREATE EXTERNAL TABLE f (a BIGINT) STORED AS PARQUET LOCATION 's3://lake/out/f/'").await.unwrap();
    server.run("INSERT INTO f SELECT value FROM generate_series(1, 10)").await.unwrap();
    assert_eq!(server.rows("SELECT count(*), sum(a) FROM f").await, ["10|55"]);
    server
        .run("CREATE EXTERNAL TABLE s (k BIGINT, v VARCHAR) STORED AS CSV LOCATION 's3://lake/sales/'")
        .await
        .unwrap();
    server.fails("INSERT INTO s VALUES (7, 'x')", ErrorKind::PermissionDenied, "files.object_write_roots").await;
    let long =
        "COPY (SELECT value AS k, repeat('x', 80) AS v FROM generate_series(1, 200000)) TO 's3://lake/out/long.csv'";
    assert_eq!(server.run(long).await.unwrap(), 200_000);
    server.run("CREATE TABLE l (k BIGINT, v VARCHAR)").await.unwrap();
    assert_eq!(server.run("COPY l FROM 's3://lake/out/long.csv'").await.unwrap(), 200_000);
    assert_eq!(server.rows("SELECT sum(k), min(length(v)) FROM l").await, ["20000100000|80"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrow_objects_are_read_within_query_memory() {
    let store: Arc<dyn ObjectStore> = bucket().await;
    let root = || vec![ObjectRoot::new("lake", ObjectPath::default(), Arc::clone(&store))];
    let server = Server::with(|options| {
        options.query_memory_bytes = 64 << 20;
        options.files = options.files.clone().with_objects(ObjectAccess::new(root(), root()));
    });
    let rows = "SELECT value AS k, md5(CAST(value AS VARCHAR)) AS v FROM generate_series(1, 50000)";
    server.run(&format!("COPY ({rows}) TO 's3://lake/a.arrow'")).await.unwrap();
    server.run("CREATE EXTERNAL TABLE a STORED AS ARROW LOCATION 's3://lake/a.arrow'").await.unwrap();
    assert_eq!(server.rows("SELECT count(*), sum(k), count(DISTINCT v) FROM a").await, ["50000|1250025000|50000"]);
    // One that is larger than query memory, by its length.
    let big = vec![0_u8; 80 << 20];
    let tail = store.get(&ObjectPath::from("a.arrow")).await.unwrap().bytes().await.unwrap();
    store.put(&ObjectPath::from("big.arrow"), [&tail[..8], &big[..], &tail[8..]].concat().into()).await.unwrap();
    let external = "CREATE EXTERNAL TABLE big STORED AS ARROW LOCATION 's3://lake/big.arrow'";
    server.run(external).await.unwrap();
    server.fails("SELECT sum(k) FROM big", ErrorKind::ResourceExhausted, "as a whole").await;
}
