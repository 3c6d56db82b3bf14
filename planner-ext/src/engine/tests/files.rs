//! Files of the server as tables and loaded into tables: partition folders, text of other programs, damaged files.

use std::path::Path;

use arrow::array::NullArray;

use super::*;

fn parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let rows = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_named_like_columns_are_columns() {
    let server = Server::new();
    let top = server.dir.path().join("sales");
    let null = "__HIVE_DEFAULT_PARTITION__";
    for (folder, k) in [("day=2024-02-29/shop=K%C3%B6ln", 1), ("day=2024-03-01/shop=Bern", 2)] {
        parquet(&top.join(folder).join("p.parquet"), vec![("k", longs(&[k]))]);
    }
    parquet(&top.join(format!("day={null}/shop=Bern/p.parquet")), vec![("k", longs(&[3]))]);
    std::fs::write(top.join("_SUCCESS"), "").unwrap();
    let top_shown = top.display();
    server.run("CREATE TABLE t (shop VARCHAR, k BIGINT NOT NULL, day DATE)").await.unwrap();
    assert_eq!(server.run(&format!("COPY t FROM '{top_shown}' (FORMAT parquet)")).await.unwrap(), 3);
    let wanted = ["Köln|1|2024-02-29", "Bern|2|2024-03-01", "Bern|3|"];
    assert_eq!(server.rows("SELECT * FROM t ORDER BY k").await, wanted);
    server.run("CREATE TABLE only (k BIGINT, day DATE)").await.unwrap();
    server.run(&format!("COPY only FROM '{top_shown}' (FORMAT parquet)")).await.unwrap();
    assert_eq!(server.rows("SELECT * FROM only ORDER BY k LIMIT 1").await, ["1|2024-02-29"]);
    let external =
        format!("CREATE EXTERNAL TABLE e STORED AS PARQUET PARTITIONED BY (day, shop) LOCATION '{top_shown}/'");
    server.run(&external).await.unwrap();
    assert_eq!(server.rows("SELECT k, shop FROM e WHERE day = '2024-03-01'").await, ["2|Bern"]);

    let csv = server.dir.path().join("csv");
    for (folder, k) in [("n=1", 10), ("n=2", 20)] {
        std::fs::create_dir_all(csv.join(folder)).unwrap();
        std::fs::write(csv.join(folder).join("x.csv"), format!("k\n{k}\n")).unwrap();
    }
    server.run("CREATE TABLE c (k BIGINT, n INT)").await.unwrap();
    server.run(&format!("COPY c FROM '{}' (FORMAT csv)", csv.display())).await.unwrap();
    assert_eq!(server.rows("SELECT * FROM c ORDER BY k").await, ["10|1", "20|2"]);
    // With a pattern of folders DataFusion finds no file and reports no error.
    let pattern = format!("COPY c FROM '{}/n=*/*.csv'", csv.display());
    server.fails(&pattern, ErrorKind::InvalidArgument, "name the folder itself").await;
    let external = format!("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{}/n=*/*.csv'", csv.display());
    server.fails(&external, ErrorKind::InvalidArgument, "name the folder itself").await;
    server.fails(&format!("COPY c FROM '{}/z*.csv'", csv.display()), ErrorKind::NotFound, "no file").await;
    std::fs::write(csv.join("y.csv"), "k\n30\n").unwrap();
    let mixed = format!("COPY c FROM '{}' (FORMAT csv)", csv.display());
    server.fails(&mixed, ErrorKind::InvalidArgument, "one after another").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_is_read_as_others_write_it() {
    let server = Server::new();
    let path = |name: &str| server.dir.path().join(name);
    server.run("CREATE TABLE t (id BIGINT, name VARCHAR)").await.unwrap();
    std::fs::write(path("nulls.csv"), "id,name\nNULL,a\n2,N/A\n3,\n").unwrap();
    let nulls = format!("COPY t FROM '{}' (NULL 'NULL', null = 'N/A')", path("nulls.csv").display());
    assert_eq!(server.run(&nulls).await.unwrap(), 3);
    assert_eq!(server.rows("SELECT * FROM t ORDER BY id").await, ["2|", "3|", "|a"]);
    server.run("TRUNCATE TABLE t").await.unwrap();
    std::fs::write(path("e.csv"), "id;name\n1;\n2;b\n").unwrap();
    std::fs::write(path("excel.csv"), "\u{feff}id;name\r\n1;a,b\r\n").unwrap();
    let excel = path("excel.csv").display().to_string();
    server.fails(&format!("COPY t FROM '{excel}'"), ErrorKind::InvalidArgument, "DELIMITER").await;
    let uncut = format!("COPY t FROM '{}'", path("e.csv").display());
    server.fails(&uncut, ErrorKind::InvalidArgument, "DELIMITER ';'").await;
    server.run(&format!("COPY t FROM '{excel}' (DELIMITER ';')")).await.unwrap();
    std::fs::write(path("x.tsv"), "id\tname\n2\tc\n").unwrap();
    server.run(&format!("COPY t FROM '{}'", path("x.tsv").display())).await.unwrap();
    assert_eq!(server.rows("SELECT * FROM t ORDER BY id").await, ["1|a,b", "2|c"]);

    std::fs::write(path("x.json"), "{\"id\": 1}\n").unwrap();
    let json = format!("COPY t FROM '{}' (NULL 'NA')", path("x.json").display());
    server.fails(&json, ErrorKind::InvalidArgument, "null is for CSV files").await;
    // Rows are read by position: a folder whose files have other columns, or in another order, is refused.
    std::fs::create_dir(path("several")).unwrap();
    for (name, text) in [("1.csv", "id,name\n7,a\n"), ("2.csv", ""), ("3.csv", "\u{feff}id,name\n8,b\n")] {
        std::fs::write(path("several").join(name), text).unwrap();
    }
    let several = format!("COPY t FROM '{}' (FORMAT csv)", path("several").display());
    assert_eq!(server.run(&several).await.unwrap(), 2);
    std::fs::write(path("several/4.csv"), "name,id\n9,10\n").unwrap();
    server.fails(&several, ErrorKind::InvalidArgument, "load them one after another").await;

    let options = "OPTIONS ('format.has_header' 'true', 'format.delimiter' ';')";
    let location = path("e.csv").display().to_string();
    server.run(&format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '{location}' {options}")).await.unwrap();
    assert_eq!(server.rows("SELECT id, name FROM e ORDER BY id").await, ["1|", "2|b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_are_all_null_are_text_or_what_the_table_says() {
    let server = Server::new();
    let file = server.dir.path().join("daily.parquet");
    let nulls: ArrayRef = Arc::new(NullArray::new(2));
    let lists = arrow::array::new_null_array(&DataType::List(Arc::new(Field::new("item", DataType::Null, true))), 2);
    let rows = vec![("k", longs(&[1, 2])), ("n", Arc::clone(&nulls)), ("l", Arc::clone(&lists))];
    parquet(&file, rows.clone());
    let rows = RecordBatch::try_from_iter_with_nullable(rows.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let file = file.display();
    server.run("CREATE TABLE t (k BIGINT, n DECIMAL(10, 2), l BIGINT[])").await.unwrap();
    assert_eq!(server.run(&format!("COPY t FROM '{file}'")).await.unwrap(), 2);
    assert_eq!(server.append("t", rows.clone(), None).await.unwrap(), 2);
    assert_eq!(server.rows("SELECT count(*), count(n), count(l) FROM t").await, ["4|0|0"]);
    let request = |mode| IngestRequest { schema: None, table: "new".into(), mode, options: HashMap::new() };
    server.ingest(request(IngestMode::Create), rows, None).await.unwrap();
    server.run("INSERT INTO new VALUES (3, 'text', ['x'])").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM new ORDER BY k").await, ["1||", "2||", "3|text|[x]"]);
    server.run("CREATE TABLE made AS SELECT 1 AS k, NULL AS x").await.unwrap();
    server.run("INSERT INTO made VALUES (2, 'x')").await.unwrap();
    assert_eq!(server.rows("SELECT * FROM made ORDER BY k").await, ["1|", "2|x"]);
    server.run(&format!("CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{file}'")).await.unwrap();
    assert_eq!(server.rows("SELECT k, n FROM e ORDER BY k").await, ["1|", "2|"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_and_bad_patterns_are_faults_of_the_request() {
    let server = Server::new();
    server.run("CREATE TABLE t (k BIGINT, s VARCHAR)").await.unwrap();
    server.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')").await.unwrap();
    let path = |name: &str| server.dir.path().join(name);
    parquet(&path("good.parquet"), vec![("k", longs(&(0..5000).collect::<Vec<_>>()))]);
    let good = std::fs::read(path("good.parquet")).unwrap();
    let mut broken = good.clone();
    broken[20..2000].fill(0xff);
    for (name, bytes) in [
        ("short.parquet", good[..good.len() / 2].to_vec()),
        ("text.parquet", b"not parquet at all".to_vec()),
        ("broken.parquet", broken),
        ("text.arrow", b"not arrow at all, not even nearly".to_vec()),
    ] {
        std::fs::write(path(name), bytes).unwrap();
        let shown = path(name).display().to_string();
        let kind = name.split('.').next_back().unwrap();
        server.fails(&format!("COPY t (k) FROM '{shown}'"), ErrorKind::InvalidArgument, "").await;
        let external = format!("CREATE EXTERNAL TABLE e STORED AS {kind} LOCATION '{shown}'");
        match server.run(&external).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}"),
            Ok(_) => {
                server.fails("SELECT sum(k) FROM e", ErrorKind::InvalidArgument, "").await;
                server.run("DROP TABLE e").await.unwrap();
            }
        }
    }
    for expression in [
        "s ~ '('",
        "s ~* '('",
        "s !~ '('",
        "s SIMILAR TO '('",
        "regexp_like(s, '(')",
        "regexp_replace(s, '(', 'x') = s",
        "regexp_replace(s, '(', 'x', 'g') = s",
        "regexp_match(s, '(') IS NULL",
        "regexp_count(s, '(') = 1",
        "regexp_instr(s, '(') = 1",
        "regexp_replace(s, concat('(', s), 'x') = s",
        "regexp_like(s, concat('(', s))",
        "regexp_match(s, concat('(', s)) IS NULL",
    ] {
        server.fails(&format!("SELECT k FROM t WHERE {expression}"), ErrorKind::InvalidArgument, "").await;
    }
}
