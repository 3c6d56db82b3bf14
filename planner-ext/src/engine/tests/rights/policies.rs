//! Policies on rows: which rows each kind of statement finds, and what follows when policies, rights and tables change.

use arrow::array::{Array, ArrayData};

use super::*;

/// A closed server with the table s.t of ann, of which bob and eve have rows, and rights on all of it.
async fn with_rows() -> Closed {
    let closed = Closed::new().await;
    closed.all("root", &["CREATE USER eve PASSWORD 'correct horse'"]).await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (a BIGINT, holder VARCHAR)",
        "INSERT INTO s.t VALUES (1, 'bob'), (2, 'bob'), (3, 'eve'), (4, 'ann')",
        "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON s.t TO PUBLIC",
        "GRANT USAGE, CREATE ON SCHEMA s TO PUBLIC",
    ];
    closed.all("ann", &made).await;
    closed
}

const ALL: &str = "SELECT a FROM s.t ORDER BY a";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_finds_the_rows_of_one_of_its_policies() {
    let closed = with_rows().await;
    let everything = ["1", "2", "3", "4"];
    closed.all("ann", &["CREATE POLICY mine ON s.t USING (holder = current_user)"]).await;
    assert_eq!(closed.rows("bob", ALL).await, everything, "policies do not count yet");
    closed.all("ann", &["ALTER TABLE s.t ENABLE ROW LEVEL SECURITY"]).await;
    for (user, rows) in [("bob", vec!["1", "2"]), ("eve", vec!["3"])] {
        assert_eq!(closed.rows(user, ALL).await, rows, "{user}");
        assert_eq!(closed.rows(user, ALL).await, rows, "{user}: no plan of another one");
    }
    for user in ["ann", "root"] {
        assert_eq!(closed.rows(user, ALL).await, everything, "{user}: owners and superusers");
    }
    closed.all("root", &["ALTER TABLE s.t PIN WHERE a > 3 TO dram"]).await;
    for (user, shown) in [("ann", true), ("bob", false)] {
        let text = closed.rows(user, "SHOW CREATE TABLE s.t").await.join(" ");
        assert!(text.contains("CREATE TABLE") && text.contains("PIN") == shown, "{user}: {text}");
    }
    closed.all("root", &["CREATE ROLE staff", "GRANT staff TO eve"]).await;
    closed.all("ann", &["CREATE POLICY low ON s.t FOR SELECT TO staff USING (a <= 1)"]).await;
    assert_eq!(closed.rows("eve", ALL).await, ["1", "3"]);
    assert_eq!(closed.rows("bob", ALL).await, ["1", "2"]);

    // A view is read with its owner's rights, and asks who reads it.
    closed.all("ann", &["CREATE VIEW s.v AS SELECT a FROM s.t", "GRANT SELECT ON s.v TO PUBLIC"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.v ORDER BY a").await, everything);
    let invoker = "CREATE VIEW s.asks WITH (security_invoker = true) AS SELECT a FROM s.t";
    closed.all("ann", &[invoker, "GRANT SELECT ON s.asks TO PUBLIC"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.asks ORDER BY a").await, ["1", "2"]);
    closed.all("bob", &["CREATE VIEW s.of_bob AS SELECT a, holder FROM s.t", "GRANT SELECT ON s.of_bob TO eve"]).await;
    assert_eq!(closed.rows("eve", "SELECT a FROM s.of_bob ORDER BY a").await, ["3"], "current_user is eve");

    // What takes rows elsewhere takes these.
    let dir = closed.server.dir.path().to_str().unwrap().to_owned();
    closed.all("root", &["GRANT WRITE FILES ON SERVER TO bob"]).await;
    let copy = format!("COPY s.t TO '{dir}/mine.csv'");
    closed.all("bob", &["CREATE TABLE s.copied AS SELECT * FROM s.t", &copy]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.copied ORDER BY a").await, ["1", "2"]);
    let written = std::fs::read_to_string(format!("{dir}/mine.csv")).unwrap();
    assert!(written.contains("bob") && !written.contains("eve") && !written.contains("ann"), "{written}");
    // A token with a scope stands for no owner and no superuser.
    for user in ["ann", "root"] {
        let token = closed.bearer(user, "(SELECT ON s.t), (USAGE ON SCHEMA s)").await;
        let rows = if user == "ann" { vec!["4"] } else { Vec::new() };
        assert_eq!(run_in(&token, ALL).await.unwrap(), rows, "{user}");
    }
    // With rights on columns, too.
    closed.all("ann", &["REVOKE SELECT ON s.t FROM PUBLIC", "GRANT SELECT (a) ON s.t TO eve"]).await;
    assert_eq!(closed.rows("eve", ALL).await, ["1", "3"], "a policy may read what its reader may not");
    closed.refused("eve", "SELECT holder FROM s.t", ErrorKind::PermissionDenied, "column holder").await;

    closed.all("ann", &["GRANT SELECT ON s.t TO PUBLIC", "DROP POLICY mine ON s.t", "DROP POLICY low ON s.t"]).await;
    assert_eq!(closed.rows("bob", "SELECT count(*) FROM s.t").await, ["0"], "no policy, no row");
    closed.all("ann", &["ALTER TABLE s.t DISABLE ROW LEVEL SECURITY"]).await;
    assert_eq!(closed.rows("bob", ALL).await, everything);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_finds_and_makes_the_rows_of_its_policies() {
    let closed = with_rows().await;
    let dir = closed.server.dir.path().to_str().unwrap().to_owned();
    std::fs::write(format!("{dir}/in.csv"), "a,holder\n8,bob\n9,ann\n").unwrap();
    closed.all("root", &["GRANT READ FILES ON SERVER TO bob"]).await;
    let policies = [
        "CREATE POLICY mine ON s.t USING (holder = current_user)",
        "CREATE POLICY small ON s.t FOR UPDATE TO bob USING (a = 3) WITH CHECK (a < 100)",
        "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY",
    ];
    closed.all("ann", &policies).await;
    let denied = ErrorKind::PermissionDenied;
    let violates = "a new row violates the policies on the rows of table s.t";
    closed.all("bob", &["INSERT INTO s.t VALUES (5, 'bob')"]).await;
    let copy = format!("COPY s.t FROM '{dir}/in.csv'");
    for sql in [
        "INSERT INTO s.t VALUES (6, 'ann')",
        "INSERT INTO s.t (a) VALUES (6)",
        "INSERT INTO s.t SELECT a, 'eve' FROM s.t",
        copy.as_str(),
        "UPDATE s.t SET holder = 'ann' WHERE a = 5",
        "UPDATE s.t SET a = 500, holder = 'eve'",
    ] {
        closed.refused("bob", sql, denied, violates).await;
    }
    // He reads rows of his own only; what does not read is for the policies of the command alone.
    assert_eq!(closed.count("bob", "UPDATE s.t SET a = a + 10 WHERE a > 0").await, 3);
    assert_eq!(closed.count("bob", "UPDATE s.t SET a = 50").await, 4, "his, and that of eve which is 3");
    let all = "SELECT a, holder FROM s.t ORDER BY a, holder";
    assert_eq!(closed.rows("ann", all).await, ["4|ann", "50|bob", "50|bob", "50|bob", "50|eve"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_hidden_are_not_deleted_and_not_counted() {
    let closed = with_rows().await;
    let policies =
        ["CREATE POLICY mine ON s.t USING (holder = current_user)", "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY"];
    closed.all("ann", &policies).await;
    assert_eq!(closed.count("bob", "DELETE FROM s.t WHERE a > 1").await, 1);
    assert_eq!(closed.count("eve", "DELETE FROM s.t").await, 1);
    assert_eq!(closed.rows("ann", ALL).await, ["1", "4"]);
    let merge = "MERGE INTO s.t USING (SELECT 4 AS k) n ON t.a = n.k WHEN MATCHED THEN DELETE";
    closed.refused("bob", merge, ErrorKind::Unimplemented, "policies").await;
    let session = closed.session("bob");
    run_in(&session, "BEGIN").await.unwrap();
    assert_eq!(session.prepare("UPDATE s.t SET a = 7").await.unwrap().update(None).await.unwrap(), 1);
    assert_eq!(run_in(&session, ALL).await.unwrap(), ["7"]);
    run_in(&session, "ROLLBACK").await.unwrap();

    let ingest = async |holder: &str| {
        let rows = batch(vec![
            ("a", Arc::new(Int64Array::from(vec![6])) as ArrayRef),
            ("holder", Arc::new(StringArray::from(vec![holder])) as ArrayRef),
        ]);
        let (schema, stream) = (rows.schema(), futures::stream::iter([Ok(rows)]).boxed());
        let mode = IngestMode::Append;
        let request = IngestRequest { schema: Some("s".into()), table: "t".into(), mode, options: HashMap::new() };
        closed.server.engine.ingest(&closed.session("bob"), request, schema, stream, None).await
    };
    assert_eq!(ingest("bob").await.unwrap(), 1);
    assert_eq!(ingest("ann").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // TRUNCATE is a right of its own, as in PostgreSQL; its count is not.
    assert_eq!(closed.count("bob", "TRUNCATE s.t").await, 0);
    assert_eq!(closed.rows("ann", "SELECT count(*) FROM s.t").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_follow_their_table_and_its_columns() {
    let closed = with_rows().await;
    closed.all("root", &["CREATE ROLE staff", "GRANT staff TO bob", "GRANT SELECT ON SCHEMA s TO bob"]).await;
    let policies = [
        "CREATE POLICY mine ON s.t TO staff USING (holder = current_user AND a < 100) WITH CHECK (a > 0)",
        "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE s.t RENAME COLUMN holder TO \"Who has it\"",
        "ALTER TABLE s.t RENAME TO u",
    ];
    closed.all("ann", &policies).await;
    let shown = "SELECT table_name, policy_name, enabled, command, roles, using_condition, check_condition, made_by \
                 FROM system.row_policies";
    let row = "u|mine|true|ALL|staff|\"Who has it\" = current_user AND a < 100|a > 0|ann";
    assert_eq!(closed.rows("ann", shown).await, [row]);
    assert_eq!(closed.rows("bob", shown).await, [""; 0], "conditions are for the owner");
    assert_eq!(closed.rows("bob", "SELECT a FROM s.u ORDER BY a").await, ["1", "2"]);
    closed.refused("ann", "ALTER TABLE s.u DROP COLUMN a", ErrorKind::FailedPrecondition, "policy 'mine'").await;
    closed.refused("root", "DROP ROLE staff", ErrorKind::FailedPrecondition, "mine on table s.u").await;
    for (sql, kind, words) in [
        ("CREATE POLICY mine ON s.u USING (true)", ErrorKind::AlreadyExists, "policy 'mine'"),
        ("CREATE POLICY p ON s.u TO nobody USING (true)", ErrorKind::NotFound, "nobody"),
        ("CREATE POLICY p ON s.u USING (no = 1)", ErrorKind::InvalidArgument, "no"),
        ("CREATE POLICY p ON s.u USING (a)", ErrorKind::InvalidArgument, "not BOOLEAN"),
        ("CREATE POLICY p ON s.u USING (random() < 0.5)", ErrorKind::InvalidArgument, "immutable"),
        ("CREATE POLICY p ON s.u USING (now() > '2020-01-01')", ErrorKind::InvalidArgument, "immutable"),
        ("CREATE POLICY p ON s.u USING (max(a) > 1)", ErrorKind::InvalidArgument, "single rows"),
        ("CREATE POLICY p ON s.no USING (true)", ErrorKind::NotFound, "s.no"),
        ("CREATE POLICY p ON system.tables USING (true)", ErrorKind::PermissionDenied, "system"),
        ("DROP POLICY p ON s.u", ErrorKind::NotFound, "policy 'p'"),
    ] {
        closed.refused("ann", sql, kind, words).await;
    }
    closed.all("ann", &["CREATE VIEW s.v AS SELECT a FROM s.u", "DROP POLICY IF EXISTS p ON s.u"]).await;
    closed.refused("ann", "CREATE POLICY p ON s.v USING (true)", ErrorKind::InvalidArgument, "no table").await;
    closed.refused("bob", "CREATE POLICY p ON s.u USING (true)", ErrorKind::PermissionDenied, "s.u").await;
    closed.refused("bob", "ALTER TABLE s.u DISABLE ROW LEVEL SECURITY", ErrorKind::PermissionDenied, "s.u").await;
    closed.all("ann", &["CREATE OR REPLACE TABLE s.u AS SELECT 1 AS a"]).await;
    // A policy that does not fit lets nothing through, and its text is for the owner.
    let unfit = closed.run("bob", "SELECT a FROM s.u").await.unwrap_err();
    assert_eq!(unfit.message(), "a policy on the rows of table s.u does not fit its columns");

    let again = closed.server.restart_with(|options| options.owner = Some(owner()));
    let closed = Closed { server: again.await };
    assert!(closed.run("bob", "SELECT a FROM s.u").await.is_err());
    closed.all("ann", &["DROP VIEW s.v", "DROP TABLE s.u", "CREATE TABLE s.u AS SELECT 1 AS a"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.u").await, ["1"], "another table of the name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn policies_act_on_prepared_and_running_statements() {
    let closed = with_rows().await;
    let session = closed.session("bob");
    let prepared = session.prepare("SELECT count(*) FROM s.t").await.unwrap();
    let pinned = prepared.pinned().await.unwrap().unwrap();
    let read = async |prepared: &Arc<Prepared>| {
        let running = prepared.query(None).await?;
        let batches: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
        Ok::<_, Error>(row_texts(&batches))
    };
    assert_eq!(read(&prepared).await.unwrap(), ["4"]);
    let statement = "SELECT count(*) FROM s.t x, generate_series(1, 1000000) a, generate_series(1, 1000000) b \
                     WHERE a.value + b.value < x.a - 10";
    let running = tokio::spawn({
        let session = closed.session("bob");
        async move {
            let running = session.prepare(statement).await?.query(None).await?;
            running.stream.try_collect::<Vec<_>>().await.map(drop).map_err(Error::from)
        }
    });
    closed.server.running(|record| record.user == "bob" && record.sql == statement).await;
    closed.all("ann", &["CREATE POLICY mine ON s.t USING (holder = current_user)"]).await;
    assert!(!running.is_finished(), "it does not count");
    closed.all("ann", &["ALTER TABLE s.t ENABLE ROW LEVEL SECURITY"]).await;
    let error = running.await.unwrap().unwrap_err();
    assert!(error.message().contains("its right was revoked"), "{error}");
    assert_eq!(read(&prepared).await.unwrap(), ["2"]);
    assert_eq!(read(&pinned).await.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert!(prepared.pinned().await.unwrap().is_none(), "no versions are kept behind the barrier");
    closed.all("ann", &["ALTER TABLE s.t OWNER TO ann", "DROP POLICY mine ON s.t"]).await;
    assert_eq!(read(&prepared).await.unwrap(), ["0"]);
}

/// Whether some buffer of an array, or of one within it, has these bytes.
fn holds_bytes(data: &ArrayData, bytes: &[u8]) -> bool {
    data.buffers().iter().any(|buffer| buffer.as_slice().windows(bytes.len()).any(|found| found == bytes))
        || data.child_data().iter().any(|child| holds_bytes(child, bytes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_have_neither_values_of_hidden_rows_nor_their_gaps() {
    let closed = Closed::new().await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t AS SELECT value AS a, make_array('a long text of ' || CAST(value % 3 AS VARCHAR)) AS b \
         FROM generate_series(1, 1000)",
        "GRANT USAGE ON SCHEMA s TO bob",
        "GRANT SELECT ON s.t TO bob",
        "CREATE POLICY p ON s.t USING (abs(a - 100) % 3 = 0)",
        "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY",
    ];
    closed.all("ann", &made).await;
    let session = closed.session("bob");
    for option in ["target_partitions = 1", "batch_size = 10"] {
        run_in(&session, &format!("SET datafusion.execution.{option}")).await.unwrap();
    }
    let running = session.prepare("SELECT b FROM s.t").await.unwrap().query(None).await.unwrap();
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.unwrap();
    let sizes: Vec<usize> = batches.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(sizes, [vec![10; 33], vec![4]].concat());
    for data in batches.iter().map(|batch| batch.column(0).to_data()) {
        assert!(holds_bytes(&data, b"text of 1"));
        assert!(!holds_bytes(&data, b"text of 0") && !holds_bytes(&data, b"text of 2"));
    }
}
