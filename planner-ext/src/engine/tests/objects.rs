//! Objects of an object store as tables and loaded into tables: which may be read, and what is refused.

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

/// A server that may read `sales` and `days` of the bucket.
async fn server() -> Server {
    let store: Arc<dyn ObjectStore> = bucket().await;
    let root = |prefix: &str| ObjectRoot::new("lake", ObjectPath::from(prefix), Arc::clone(&store));
    let objects = ObjectAccess::new(vec![root("sales"), root("days")]);
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
    server.fails("COPY t TO 's3://lake/sales/new.csv'", ErrorKind::Unimplemented, "do not write").await;
    server.fails("COPY t FROM 's3://lake/sales/a.arrow'", ErrorKind::Unimplemented, "ARROW").await;
    server.fails("COPY t FROM 's3://lake/sales/p/damaged.parquet'", ErrorKind::InvalidArgument, "its footer").await;
    let none = Server::new();
    none.run("CREATE TABLE t (k BIGINT)").await.unwrap();
    none.fails(&copy("s3://lake/sales/2024.csv"), ErrorKind::PermissionDenied, "files.object_roots").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_not_inserted_into_an_object_store() {
    let server = server().await;
    server.run("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 's3://lake/sales/2024.csv'").await.unwrap();
    server.fails("INSERT INTO e VALUES (7, 'x')", ErrorKind::Unimplemented, "do not write").await;
}
