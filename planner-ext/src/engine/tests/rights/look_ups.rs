//! Look-ups by a prepared statement that has waited for its values: rights and policies are those of each execution.

use super::*;

async fn look_up(prepared: &Arc<Prepared>, key: i64) -> Result<Vec<String>> {
    let key = Arc::new(Int64Array::from(vec![key])) as ArrayRef;
    let running = prepared.query(Some(batch(vec![("1", key)]))).await?;
    let rows: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
    Ok(row_texts(&rows))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_look_up_asks_for_rights_each_time() {
    let closed = Closed::new().await;
    let made = [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (k BIGINT, holder VARCHAR)",
        "INSERT INTO s.t VALUES (1, 'bob'), (2, 'eve')",
        "GRANT USAGE ON SCHEMA s TO bob",
        "GRANT SELECT ON s.t TO bob",
    ];
    closed.all("ann", &made).await;
    let session = closed.session("bob");
    let prepared = session.prepare("SELECT holder FROM s.t WHERE k = $1").await.unwrap();
    assert_eq!(look_up(&prepared, 2).await.unwrap(), ["eve"]);

    let policy = "CREATE POLICY mine ON s.t USING (holder = current_user)";
    closed.all("ann", &[policy, "ALTER TABLE s.t ENABLE ROW LEVEL SECURITY"]).await;
    assert!(look_up(&prepared, 2).await.unwrap().is_empty());
    assert_eq!(look_up(&prepared, 1).await.unwrap(), ["bob"]);
    closed.all("ann", &["ALTER TABLE s.t DISABLE ROW LEVEL SECURITY"]).await;
    assert_eq!(look_up(&prepared, 2).await.unwrap(), ["eve"]);

    closed.all("ann", &["REVOKE SELECT ON s.t FROM bob", "GRANT SELECT (k) ON s.t TO bob"]).await;
    let error = look_up(&prepared, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("column holder"), "{error}");
    closed.all("ann", &["GRANT SELECT (holder) ON s.t TO bob"]).await;
    assert_eq!(look_up(&prepared, 2).await.unwrap(), ["eve"]);
    closed.all("ann", &["REVOKE SELECT (k, holder) ON s.t FROM bob"]).await;
    let error = look_up(&prepared, 2).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound), "{error}");
}
