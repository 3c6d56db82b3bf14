//! The audit trail: what it says of statements, to whom, and of orders to end them.

use terrace_access::{
    AuditScope, Ending, Event, EventKind, NewUser, Origin, Owner, Port, Principal, Trail, TrailOptions,
};
use terrace_tier_store::clock::SystemClock;

use super::*;

pub(super) const PASSWORD: &str = "correct horse";

/// A closed server with the users ann, who may make schemas, and bob, who may nothing, and its trail.
fn closed(scope: AuditScope) -> Server {
    let options = TrailOptions { scope, ..TrailOptions::default() };
    let trail = Trail::start(options, Arc::new(SystemClock::default())).unwrap();
    let server = Server::with(|options| {
        options.owner = Some(Owner { name: "root".into(), password: PASSWORD.into() });
        options.audit = trail;
    });
    for name in ["ann", "bob"] {
        let user = NewUser { name: name.into(), password: PASSWORD.into(), is_superuser: false };
        server.engine.users().create_user(&Principal::inside("test"), &user).unwrap();
    }
    server
}

fn here() -> Origin {
    Origin::new(Port::Flight, "10.0.0.7".parse().unwrap())
}

pub(super) async fn run(server: &Server, user: &str, sql: &str) -> Result<Vec<String>> {
    let principal = server.engine.users().check_certified(user).unwrap();
    let session = server.engine.open_session_from(here(), principal);
    let prepared = session.prepare(sql).await?;
    if prepared.is_update() {
        return prepared.update(None).await.map(|_| Vec::new());
    }
    let running = prepared.query(None).await?;
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
    Ok(if batches.is_empty() { Vec::new() } else { row_texts(&batches) })
}

fn found(server: &Server, is_meant: impl Fn(&Event) -> bool) -> Event {
    let events = server.engine.audit().latest();
    let event = events.iter().find(|event| is_meant(event));
    event.unwrap_or_else(|| panic!("{events:#?}")).as_ref().clone()
}

fn has_text(event: &Event, text: &str) -> bool {
    event.text.as_deref().is_some_and(|known| known.contains(text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_refusals_are_recorded_with_their_objects() {
    let server = closed(AuditScope::Changes);
    for sql in [
        "GRANT CREATE ON DATABASE terrace TO ann",
        "CREATE SCHEMA s",
        "CREATE TABLE s.t AS SELECT 1 AS a",
        "CREATE VIEW s.v AS SELECT a FROM s.t",
        "CREATE TABLE s.n (a BIGINT)",
        "INSERT INTO s.n SELECT a FROM s.v",
        "ALTER USER bob PASSWORD 'battery staple'",
        "SELECT a FROM s.v",
    ] {
        run(&server, "root", sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let insert = found(&server, |event| has_text(event, "INSERT"));
    assert_eq!((insert.kind, insert.action.as_str(), insert.outcome), (EventKind::Statement, "insert", Ending::Done));
    assert_eq!((insert.user.as_str(), insert.address, insert.port), ("root", here().address, Port::Flight));
    assert_eq!((insert.reads.join(" "), insert.writes.join(" ")), ("s.t s.v".into(), "s.n".into()));
    assert!(insert.rows.is_some() && insert.elapsed_us.is_some() && insert.session.is_some());
    let user = found(&server, |event| has_text(event, "ALTER USER"));
    assert_eq!((user.kind, user.text.as_deref()), (EventKind::Access, Some("ALTER USER bob PASSWORD ***")));
    assert_eq!(found(&server, |event| has_text(event, "GRANT")).kind, EventKind::Access);
    assert!(server.engine.audit().latest().iter().all(|event| event.action != "query"), "it only reads");

    run(&server, "bob", "SELECT a FROM s.t").await.unwrap_err();
    run(&server, "bob", "CREATE ROLE r").await.unwrap_err();
    run(&server, "root", "GRANT USAGE ON SCHEMA s TO bob").await.unwrap();
    run(&server, "bob", "DROP TABLE s.t").await.unwrap_err();
    let role = found(&server, |event| has_text(event, "CREATE ROLE"));
    assert_eq!((role.outcome, role.error.as_deref()), (Ending::Refused, Some("permission_denied")));
    let drop = found(&server, |event| has_text(event, "DROP TABLE"));
    assert_eq!((drop.outcome, drop.action.as_str(), drop.writes.join(" ")), (Ending::Refused, "ddl", "s.t".into()));

    let shown = "SELECT DISTINCT user_name FROM system.audit ORDER BY user_name";
    assert_eq!(run(&server, "bob", shown).await.unwrap(), ["bob"], "the own events");
    run(&server, "root", "GRANT MONITOR ON SERVER TO bob").await.unwrap();
    assert_eq!(run(&server, "bob", shown).await.unwrap(), ["bob", "root"]);
    let row = "SELECT event, action, client_address, port, objects_read, objects_written, outcome FROM system.audit \
               WHERE text LIKE 'INSERT%'";
    assert_eq!(run(&server, "bob", row).await.unwrap(), ["statement|insert|10.0.0.7|flight|s.t, s.v|s.n|done"]);
    let address = "SELECT DISTINCT client_address FROM system.queries WHERE user_name = 'bob'";
    assert_eq!(run(&server, "bob", address).await.unwrap(), ["10.0.0.7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_are_recorded_where_all_is() {
    let server = closed(AuditScope::All);
    run(&server, "root", "CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    // The second time the plan of the first one is used.
    for _ in 0..2 {
        run(&server, "root", "SELECT a FROM t").await.unwrap();
        let query = found(&server, |event| event.action == "query");
        assert_eq!((query.reads.join(" "), query.rows, query.outcome), ("public.t".into(), Some(1), Ending::Done));
    }
    run(&server, "root", "SELECT nothing FROM t").await.unwrap_err();
    let failed = found(&server, |event| event.outcome == Ending::Failed);
    assert_eq!((failed.reads.join(" "), failed.error.as_deref()), ("public.t".into(), Some("invalid_argument")));
    let off = closed(AuditScope::Off);
    run(&off, "root", "CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    assert_eq!(run(&off, "root", "SELECT count(*) FROM system.audit").await.unwrap(), ["0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_to_end_a_statement_are_recorded() {
    let server = closed(AuditScope::Changes);
    let endless = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b \
                   WHERE a.value + b.value < 0";
    let users = server.engine.users();
    let principal = |name: &str| users.check_certified(name).unwrap();
    let session = server.engine.open_session_for(principal("ann"));
    let running = tokio::spawn(async move { session.prepare(endless).await?.query(None).await });
    let id = loop {
        let statements = server.engine.statements();
        match statements.iter().find(|s| s.user == "ann" && s.state == StatementState::Running) {
            Some(statement) => break statement.id.clone(),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let engine = &server.engine;
    assert!(!engine.cancel_for(&principal("bob"), here(), "nonsense").unwrap());
    assert!(!engine.cancel_for(&principal("bob"), here(), &id).unwrap(), "foreign ones are like unknown ones");
    let own = "SELECT count(*) FROM system.audit WHERE event = 'cancel'";
    assert_eq!(run(&server, "bob", own).await.unwrap(), ["0"], "nor does the trail tell bob of them");
    run(&server, "root", "GRANT MONITOR ON SERVER TO bob").await.unwrap();
    let refused = engine.cancel_for(&principal("bob"), here(), &id).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(engine.cancel_for(&principal("ann"), here(), &id).unwrap(), "own ones need no right");
    let ended = match running.await.unwrap() {
        Ok(running) => running.stream.try_collect::<Vec<_>>().await.map(drop).map_err(Error::from),
        Err(error) => Err(error),
    };
    assert!(ended.is_err());
    let events = engine.audit().latest();
    let orders = events.iter().filter(|event| event.kind == EventKind::Cancel);
    let orders: Vec<_> =
        orders.map(|e| (e.user.as_str(), e.outcome, e.statement.as_deref() == Some(id.as_str()))).collect();
    let expected = [("ann", Ending::Done, true), ("bob", Ending::Refused, true), ("bob", Ending::Refused, true)];
    assert_eq!(orders, expected);
}
