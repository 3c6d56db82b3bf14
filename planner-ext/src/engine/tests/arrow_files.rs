//! Foreign Arrow files: read, and refused where their lengths exceed their content.

use arrow::array::BooleanArray;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

use super::*;

fn rows() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..20_000).map(|i| i % 10)));
    let flags: ArrayRef = Arc::new(BooleanArray::from_iter((0..20_000).map(|i| Some(i % 2 == 0))));
    RecordBatch::try_from_iter([("a", numbers), ("b", flags)]).unwrap()
}

fn files(codec: Option<CompressionType>) -> [Vec<u8>; 2] {
    let options = || IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let rows = rows();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options()).unwrap();
    let mut stream = StreamWriter::try_new_with_options(Vec::new(), &rows.schema(), options()).unwrap();
    for _ in 0..3 {
        file.write(&rows).unwrap();
        stream.write(&rows).unwrap();
    }
    [file.into_inner().unwrap(), stream.into_inner().unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_streams_are_read_with_any_compression() {
    let server = Server::new();
    let path = server.dir.path().join("rows.arrow");
    server.run("CREATE TABLE t (a BIGINT, b BOOLEAN)").await.unwrap();
    for codec in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        for file in files(codec) {
            std::fs::write(&path, file).unwrap();
            let create = format!("CREATE EXTERNAL TABLE e STORED AS ARROW LOCATION '{}'", path.display());
            server.run(&create).await.unwrap();
            assert_eq!(server.rows("SELECT count(*), sum(a) FROM e WHERE b").await, ["30000|120000"]);
            assert_eq!(server.rows("SELECT a FROM e ORDER BY a DESC LIMIT 1").await, ["9"]);
            server.run("DROP TABLE e").await.unwrap();
            let copied = server.run(&format!("COPY t FROM '{}'", path.display())).await.unwrap();
            assert_eq!(copied, 60_000);
        }
    }
    assert_eq!(server.rows("SELECT count(*), sum(a) FROM t").await, ["360000|1620000"]);
    assert_eq!(server.engine.memory().used_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_a_file_announces_are_not_believed() {
    let server = Server::new();
    let path = server.dir.path().join("rows.arrow");
    server.run("CREATE TABLE t (a BIGINT, b BOOLEAN)").await.unwrap();
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        for mut file in files(Some(codec)) {
            // The length of the numbers before compression, in the first batch.
            let length = 160_000_i64.to_le_bytes();
            let at = file.windows(8).position(|bytes| bytes == length).unwrap();
            file[at..at + 8].copy_from_slice(&(1_i64 << 48).to_le_bytes());
            std::fs::write(&path, file).unwrap();
            server.fails(&format!("COPY t FROM '{}'", path.display()), ErrorKind::ResourceExhausted, "limit").await;
            let create = format!("CREATE EXTERNAL TABLE e STORED AS ARROW LOCATION '{}'", path.display());
            server.run(&create).await.unwrap();
            server.fails("SELECT sum(a) FROM e", ErrorKind::ResourceExhausted, "limit").await;
            // Nothing else of the file is damaged.
            assert_eq!(server.rows("SELECT count(b) FROM e").await, ["60000"]);
            server.run("DROP TABLE e").await.unwrap();
        }
    }
    // The length of a message, in the footer.
    let [mut file, _] = files(None);
    let footer = i32::from_le_bytes(file[file.len() - 10..file.len() - 6].try_into().unwrap()) as usize;
    let start = file.len() - 10 - footer;
    let body = arrow_ipc::root_as_footer(&file[start..file.len() - 10]).unwrap();
    let body = body.recordBatches().unwrap().get(1).bodyLength().to_le_bytes();
    let at = start + file[start..].windows(8).rposition(|bytes| bytes == body).unwrap();
    file[at..at + 8].copy_from_slice(&(1_i64 << 48).to_le_bytes());
    std::fs::write(&path, file).unwrap();
    server.fails(&format!("COPY t FROM '{}'", path.display()), ErrorKind::InvalidArgument, "outside").await;
    assert_eq!(server.rows("SELECT count(*) FROM t").await, ["0"], "all or nothing");
    assert_eq!(server.engine.memory().used_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_parquet_files_are_not_believed() {
    let server = Server::new();
    let path = server.dir.path().join("rows.parquet");
    server.run("CREATE TABLE t (a BIGINT)").await.unwrap();
    server.run("INSERT INTO t VALUES (1)").await.unwrap();
    server.run(&format!("COPY t TO '{}'", path.display())).await.unwrap();
    let create = format!("CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{}'", path.display());
    server.run(&create).await.unwrap();
    assert_eq!(server.rows("SELECT a FROM e").await, ["1"]);
    // Metadata of one list, said to have 2^31 - 1 row groups.
    let metadata = [0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0];
    std::fs::write(&path, [&b"PAR1"[..], &metadata, &8_u32.to_le_bytes(), b"PAR1"].concat()).unwrap();
    let copy = format!("COPY t FROM '{}'", path.display());
    for statement in [&copy, "SELECT a FROM e"] {
        server.fails(statement, ErrorKind::InvalidArgument, "2147483647 entries").await;
    }
}
