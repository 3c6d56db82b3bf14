//! What those see of statements of others who may watch them: texts without literals, and kinds of errors.

use terrace_access::{AuditScope, Trail, TrailOptions};
use terrace_tier_store::clock::SystemClock;

use super::*;

const QUERIES: &str =
    "SELECT sql, error FROM system.queries WHERE user_name = 'ann' AND sql NOT LIKE '%system%' ORDER BY started";
const EVENTS: &str = "SELECT text FROM system.audit WHERE user_name = 'ann' AND event = 'statement' AND text NOT LIKE '%system%' \
                      ORDER BY number";

/// A closed server that records all statements.
async fn recording() -> Closed {
    let options = TrailOptions { scope: AuditScope::All, ..TrailOptions::default() };
    let trail = Trail::start(options, Arc::new(SystemClock::default())).unwrap();
    let server = Server::with(|options| {
        options.owner = Some(owner());
        options.audit = trail;
    });
    Closed::over(server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn literals_of_a_statement_are_for_its_user_and_superusers() {
    let closed = recording().await;
    let long = format!("SELECT '{}' AS a, 4711 AS b", "geheim".repeat(1_000));
    closed.all("ann", &["SELECT 'geheim' AS a WHERE 4711 > -1 -- geheim", &long]).await;
    for sql in ["SELECT CAST('geheim' AS BIGINT)", "SELECT 'geheim"] {
        closed.run("ann", sql).await.unwrap_err();
    }
    for user in ["root", "ann"] {
        let statements = closed.rows(user, QUERIES).await;
        assert!(statements.len() == 4 && statements.iter().all(|row| row.contains("geheim")), "{user}: {statements:?}");
        assert!(statements[2].matches("geheim").count() > 1, "its error has the value, too: {}", statements[2]);
        let events = closed.rows(user, EVENTS).await;
        assert!(events.len() == 4 && events.iter().all(|text| text.contains("geheim")), "{user}: {events:?}");
    }
    let [first, cast, broken] = ["SELECT ? AS a WHERE ? > ?", "SELECT CAST(? AS BIGINT)", "SELECT ?"];
    let invalid = |text: &str| format!("{text}|invalid_argument");
    let statements = [format!("{first}|"), "SELECT ? AS a, ? AS b|".to_owned(), invalid(cast), invalid(broken)];
    // The trail has cut the long text within its literal.
    let events = [first, "SELECT …", cast, broken];
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
    let token = closed.bearer("root", "(MONITOR ON SERVER)").await;
    for session in [closed.session("bob"), token] {
        assert_eq!(run_in(&session, QUERIES).await.unwrap(), statements);
        assert_eq!(run_in(&session, EVENTS).await.unwrap(), events);
        let guessed =
            "SELECT count(*) FROM system.queries WHERE user_name = 'ann' AND concat(sql, error) LIKE '%geheim%'";
        assert_eq!(run_in(&session, guessed).await.unwrap(), ["0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_of_policies_are_masked_as_well() {
    let closed = recording().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["CREATE POLICY p ON s.t USING (a = 4711)"]).await;
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
    let policies = "SELECT text FROM system.audit WHERE event = 'access' AND text LIKE 'CREATE POLICY%'";
    assert_eq!(closed.rows("bob", policies).await, ["CREATE POLICY p ON s.t USING (a = ?)"]);
    assert_eq!(closed.rows("root", policies).await, ["CREATE POLICY p ON s.t USING (a = 4711)"]);
}
