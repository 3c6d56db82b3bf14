//! What a change of rights does to running statements: those end that may not read any more what they read, and no others.

use super::*;

/// A statement that reads a relation and does not end.
fn endless(relation: &str) -> String {
    format!(
        "SELECT count(*) FROM {relation} x, generate_series(1, 1000000) a, generate_series(1, 1000000) b \
         WHERE a.value + b.value < x.a - 10"
    )
}

/// A statement that has begun to read.
struct Running {
    task: tokio::task::JoinHandle<Result<()>>,
    id: String,
}

impl Running {
    async fn start(closed: &Closed, user: &str, sql: &str) -> Self {
        let session = closed.session(user);
        let text = sql.to_owned();
        let task = tokio::spawn(async move {
            let prepared = session.prepare(&text).await?;
            if prepared.is_update() {
                return prepared.update(None).await.map(drop);
            }
            let running = prepared.query(None).await?;
            running.stream.try_collect::<Vec<_>>().await.map(drop).map_err(Error::from)
        });
        let id = closed.server.running(|record| record.user == user && record.sql == sql).await.id;
        Self { task, id }
    }

    async fn ends_as_revoked(self, what: &str) {
        let error = self.task.await.unwrap().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}: {error}");
        assert!(error.message().contains("its right was revoked"), "{what}: {error}");
    }

    async fn goes_on(self, closed: &Closed, what: &str) {
        assert!(!self.task.is_finished(), "{what}");
        assert!(closed.server.engine.cancel(&self.id), "{what}");
        let error = self.task.await.unwrap().expect_err(what);
        assert!(error.message() == "the statement was cancelled", "{what}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn statements_end_that_may_not_read_any_more_what_they_read() {
    let closed = Closed::new().await;
    closed.all("root", &["CREATE USER eve PASSWORD 'correct horse'"]).await;
    let by_role: &[&str] = &["CREATE ROLE {s}", "GRANT SELECT ON {s}.t TO {s}", "GRANT {s} TO bob"];
    let cases: [(&str, &[&str], &str); 8] = [
        ("{s}.t", &["GRANT SELECT ON {s}.t TO bob"], "REVOKE SELECT ON {s}.t FROM bob"),
        ("{s}.t", &["GRANT SELECT ON SCHEMA {s} TO PUBLIC"], "REVOKE ALL ON SCHEMA {s} FROM PUBLIC"),
        ("{s}.t", &["GRANT SELECT (a) ON {s}.t TO bob"], "REVOKE SELECT (a) ON {s}.t FROM bob"),
        ("{s}.t", by_role, "DROP ROLE {s}"),
        ("{s}.t", by_role, "REVOKE {s} FROM bob"),
        ("{s}.t", &["ALTER TABLE {s}.t OWNER TO bob"], "ALTER TABLE {s}.t OWNER TO ann"),
        ("{s}.v", &["GRANT SELECT ON {s}.v TO bob"], "REVOKE SELECT ON {s}.v FROM bob"),
        // A view is read with the rights of its owner.
        ("{s}.v", &["GRANT SELECT ON {s}.v TO bob"], "ALTER VIEW {s}.v OWNER TO eve"),
    ];
    for (number, (relation, grants, revoke)) in cases.into_iter().enumerate() {
        let schema = format!("s{number}");
        let text = |sql: &str| sql.replace("{s}", &schema);
        set_up(&closed.session("ann"), &schema).await;
        for grant in grants {
            closed.rows("root", &text(grant)).await;
        }
        let statement = endless(&text(relation));
        let of_bob = Running::start(&closed, "bob", &statement).await;
        let of_root = Running::start(&closed, "root", &endless(&text("{s}.t"))).await;
        closed.all("root", &["GRANT SELECT ON s0.t TO eve", &text(revoke)]).await;
        of_bob.ends_as_revoked(revoke).await;
        of_root.goes_on(&closed, revoke).await;
        assert!(closed.run("bob", &text(&format!("SELECT a FROM {relation}"))).await.is_err(), "{revoke}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn rights_follow_a_table_to_its_new_name_and_end_with_it() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["GRANT SELECT ON s.t TO bob", "DROP VIEW s.v"]).await;
    let renamed = Running::start(&closed, "bob", &endless("s.t")).await;
    closed.all("ann", &["ALTER TABLE s.t RENAME TO u", "GRANT USAGE ON SCHEMA s TO bob"]).await;
    assert!(!renamed.task.is_finished(), "its right has another name");
    closed.all("ann", &["REVOKE SELECT ON s.u FROM bob"]).await;
    renamed.ends_as_revoked("under the new name").await;

    closed.all("ann", &["GRANT SELECT ON s.u TO bob"]).await;
    let dropped = Running::start(&closed, "bob", &endless("s.u")).await;
    closed.all("ann", &["DROP TABLE s.u", "REVOKE USAGE ON SCHEMA s FROM bob"]).await;
    dropped.goes_on(&closed, "what is dropped is read to the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn changes_that_read_end_too() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["GRANT SELECT, UPDATE ON s.t TO bob"]).await;
    let condition = "a < (SELECT count(*) FROM generate_series(1, 1000000) c, generate_series(1, 1000000) d \
                     WHERE c.value + d.value < 0)";
    let update = Running::start(&closed, "bob", &format!("UPDATE s.t SET b = 'y' WHERE {condition}")).await;
    closed.all("ann", &["REVOKE SELECT ON s.t FROM bob"]).await;
    update.ends_as_revoked("UPDATE").await;
    assert_eq!(closed.rows("ann", "SELECT b FROM s.t").await, ["one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn statements_that_show_what_takes_monitor_end_with_it() {
    let closed = Closed::new().await;
    let of_view = ["CREATE SCHEMA s", "CREATE VIEW s.q AS SELECT 1 AS a FROM system.queries LIMIT 1"];
    closed.all("ann", &of_view).await;
    closed.all("ann", &["GRANT SELECT ON s.q TO bob"]).await;
    for relation in ["(SELECT 1 AS a FROM system.tiers LIMIT 1)", "(SELECT 1 AS a FROM system.queries LIMIT 1)", "s.q"]
    {
        closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
        let of_bob = Running::start(&closed, "bob", &endless(relation)).await;
        let of_root = Running::start(&closed, "root", &endless(relation)).await;
        closed.all("root", &["REVOKE MONITOR ON SERVER FROM bob"]).await;
        of_bob.ends_as_revoked(relation).await;
        of_root.goes_on(&closed, relation).await;
    }
    let own = Running::start(&closed, "bob", &endless("s.q")).await;
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob", "REVOKE MONITOR ON SERVER FROM bob"]).await;
    own.goes_on(&closed, "it shows own statements only").await;
}
