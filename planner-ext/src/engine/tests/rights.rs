//! Who may do what: each kind of statement for superusers, owners, those who were granted the right, others, and everybody on an
//! open server; and what follows when rights change.
//!
//! - `columns`: rights on columns
//! - `defaults`: default privileges
//! - `figures`: figures of tables in plans
//! - `invoker`: views that are read with the rights of who asks
//! - `lists`: what lists and errors tell of what there is
//! - `look_ups`: look-ups by a prepared statement
//! - `masking`: what is seen of statements of others
//! - `policies`: policies on rows
//! - `probes`: what a statement can tell of rows that policies hide
//! - `running`: what a change of rights does to running statements
//! - `tokens`: what the scope of a token leaves of the rights of its user

mod columns;
mod defaults;
mod figures;
mod invoker;
mod lists;
mod look_ups;
mod masking;
mod policies;
mod probes;
mod running;
mod tokens;

use terrace_access::{NewUser, Owner, Principal, Right};
use terrace_sql::command::Action;

use super::*;
use crate::engine::rights::{ServerNeed, server_need};

const PASSWORD: &str = "correct horse";

/// The user of the configuration.
fn owner() -> Owner {
    Owner { name: "root".into(), password: PASSWORD.into() }
}

/// A closed server with the users ann, who may make schemas, and bob, who may nothing.
struct Closed {
    server: Server,
}

impl Closed {
    async fn new() -> Self {
        Self::over(Server::with(|options| options.owner = Some(owner()))).await
    }

    async fn over(server: Server) -> Self {
        for name in ["ann", "bob"] {
            let user = NewUser { name: name.into(), password: PASSWORD.into(), is_superuser: false };
            server.engine.users().create_user(&Principal::inside("test"), &user).unwrap();
        }
        let closed = Self { server };
        closed.run("root", "GRANT CREATE ON DATABASE terrace TO ann").await.unwrap();
        closed
    }

    fn session(&self, user: &str) -> Arc<Session> {
        let principal = self.server.engine.users().check_certified(user).unwrap();
        self.server.engine.open_session_for(principal)
    }

    /// Runs a statement in a session of its own and returns its rows as text.
    async fn run(&self, user: &str, sql: &str) -> Result<Vec<String>> {
        let session = self.session(user);
        let done = run_in(&session, sql).await;
        self.server.engine.close_session(session.id());
        done
    }

    /// Makes a token of a user with a scope, and opens a session for whoever shows it.
    async fn bearer(&self, user: &str, scope: &str) -> Arc<Session> {
        let number = self.server.engine.users().tokens().len();
        let made = self.rows(user, &format!("CREATE TOKEN token{number} SCOPE {scope}")).await;
        let principal = self.server.engine.users().check_token(made[0].split('|').next().unwrap()).unwrap();
        self.server.engine.open_session_for(principal)
    }

    async fn all(&self, user: &str, statements: &[&str]) {
        for sql in statements {
            self.run(user, sql).await.unwrap_or_else(|error| panic!("{user}: {sql}: {error}"));
        }
    }

    /// Runs a statement that changes rows, and returns how many.
    async fn count(&self, user: &str, sql: &str) -> u64 {
        let prepared = self.session(user).prepare(sql).await.unwrap_or_else(|error| panic!("{user}: {sql}: {error}"));
        prepared.update(None).await.unwrap_or_else(|error| panic!("{user}: {sql}: {error}"))
    }

    async fn rows(&self, user: &str, sql: &str) -> Vec<String> {
        self.run(user, sql).await.unwrap_or_else(|error| panic!("{user}: {sql}: {error}"))
    }

    async fn refused(&self, user: &str, sql: &str, kind: ErrorKind, words: &str) {
        let error = self.run(user, sql).await.expect_err(sql);
        assert_eq!(error.kind(), kind, "{user}: {sql}: {error}");
        assert!(error.message().contains(words), "{user}: {sql}: {error}");
    }
}

async fn run_in(session: &Arc<Session>, sql: &str) -> Result<Vec<String>> {
    let prepared = session.prepare(sql).await?;
    if prepared.is_update() {
        return prepared.update(None).await.map(|_| Vec::new());
    }
    let running = prepared.query(None).await?;
    let batches: Vec<RecordBatch> = running.stream.try_collect().await.map_err(Error::from)?;
    Ok(if batches.is_empty() { Vec::new() } else { row_texts(&batches) })
}

/// Who may send a statement.
#[derive(Debug, Clone, Copy)]
enum Allowed {
    /// Everybody.
    All,
    /// Superusers, and whoever got these rights; the owner of the schema without them, if true.
    Granted(&'static [&'static str], bool),
    /// Superusers, and if true the owner of the schema.
    Superusers(bool),
}
use Allowed::{All, Granted, Superusers};

const READS: &[&str] = &["GRANT SELECT ON {s}.t TO bob"];
const MAKES: &[&str] = &["GRANT CREATE ON SCHEMA {s} TO bob", "GRANT SELECT ON {s}.t TO bob"];
const OWNS: &[&str] = &["ALTER TABLE {s}.t OWNER TO bob"];
const STEERS: &[&str] = &["GRANT TIERING ON SERVER TO bob"];

/// Statements of each kind. `{s}` is a schema of ann with table t and view v, `{dir}` a folder.
const MATRIX: &[(&str, Allowed)] = &[
    ("SELECT a FROM {s}.t", Granted(READS, true)),
    ("WITH x AS (SELECT a FROM {s}.t) SELECT * FROM x WHERE a IN (SELECT a FROM {s}.t)", Granted(READS, true)),
    ("SELECT a FROM {s}.v", Granted(&["GRANT SELECT ON {s}.v TO bob"], true)),
    ("SELECT a FROM {s}.t", Granted(&["GRANT SELECT ON SCHEMA {s} TO bob"], true)),
    ("SELECT a FROM {s}.t", Granted(&["GRANT ALL ON DATABASE terrace TO bob"], true)),
    ("SELECT a FROM {s}.t", Granted(&["GRANT SELECT ON ALL TABLES IN SCHEMA {s} TO PUBLIC"], true)),
    ("EXPLAIN SELECT a FROM {s}.t", Granted(READS, true)),
    ("EXPLAIN ANALYZE SELECT a FROM {s}.t", Granted(READS, true)),
    ("SHOW CREATE TABLE {s}.t", Granted(READS, true)),
    ("DESCRIBE {s}.t", Granted(&["GRANT INSERT ON {s}.t TO bob"], true)),
    ("SELECT * FROM system.tiers", Granted(&["GRANT MONITOR ON SERVER TO bob"], false)),
    ("SELECT * FROM system.epochs", Granted(&["GRANT SELECT ON system.epochs TO bob"], false)),
    ("SELECT * FROM system.tables", All),
    ("SELECT * FROM system.query_log", All),
    ("SHOW TABLES", All),
    ("SET datafusion.execution.batch_size = 1000", All),
    ("INSERT INTO {s}.t VALUES (2, 'x')", Granted(&["GRANT INSERT ON {s}.t TO bob"], true)),
    (
        "INSERT INTO {s}.t SELECT * FROM {s}.t",
        Granted(&["GRANT INSERT ON {s}.t TO bob", "GRANT SELECT ON {s}.t TO bob"], true),
    ),
    ("CREATE TABLE {s}.n (a BIGINT)", Granted(&["GRANT CREATE ON SCHEMA {s} TO bob"], true)),
    ("CREATE TABLE {s}.n AS SELECT a FROM {s}.t", Granted(MAKES, true)),
    ("CREATE VIEW {s}.n AS SELECT a FROM {s}.t", Granted(MAKES, true)),
    ("CREATE SCHEMA {s}x", Granted(&["GRANT CREATE ON DATABASE terrace TO bob"], true)),
    (
        "COPY (SELECT a FROM {s}.t) TO '{dir}/{s}.csv'",
        Granted(&["GRANT SELECT ON {s}.t TO bob", "GRANT WRITE FILES ON SERVER TO bob"], false),
    ),
    (
        "CREATE EXTERNAL TABLE {s}.n STORED AS CSV LOCATION '{dir}/in.csv' OPTIONS ('format.has_header' 'true')",
        Granted(&["GRANT CREATE ON SCHEMA {s} TO bob", "GRANT READ FILES ON SERVER TO bob"], false),
    ),
    (
        "COPY {s}.t FROM '{dir}/in.csv'",
        Granted(&["GRANT INSERT ON {s}.t TO bob", "GRANT READ FILES ON SERVER TO bob"], false),
    ),
    ("UPDATE {s}.t SET b = 'y'", Granted(&["GRANT UPDATE ON {s}.t TO bob"], true)),
    ("UPDATE {s}.t SET b = 'y' WHERE a = 1", Granted(&["GRANT UPDATE, SELECT ON {s}.t TO bob"], true)),
    ("DELETE FROM {s}.t", Granted(&["GRANT DELETE ON {s}.t TO bob"], true)),
    (
        "MERGE INTO {s}.t USING (SELECT 1 AS k) AS n ON t.a = n.k WHEN MATCHED THEN UPDATE SET b = 'z' \
         WHEN NOT MATCHED THEN INSERT (a) VALUES (n.k)",
        Granted(&["GRANT SELECT, INSERT, UPDATE ON {s}.t TO bob"], true),
    ),
    ("EXPLAIN DELETE FROM {s}.t", Granted(&["GRANT DELETE ON {s}.t TO bob"], true)),
    ("TRUNCATE {s}.t", Granted(&["GRANT TRUNCATE ON {s}.t TO bob"], true)),
    ("ALTER TABLE {s}.t ADD COLUMN c BIGINT", Granted(OWNS, true)),
    ("COMMENT ON TABLE {s}.t IS 'x'", Granted(OWNS, true)),
    ("DROP TABLE {s}.t", Granted(OWNS, true)),
    ("DROP VIEW {s}.v", Granted(&["ALTER VIEW {s}.v OWNER TO bob"], true)),
    ("DROP SCHEMA {s} CASCADE", Granted(&["ALTER SCHEMA {s} OWNER TO bob"], true)),
    ("CREATE OR REPLACE VIEW {s}.v AS SELECT 1 AS a", Granted(&["ALTER SCHEMA {s} OWNER TO bob"], true)),
    ("OPTIMIZE TABLE {s}.t", Granted(STEERS, true)),
    ("ALTER TABLE {s}.t DROP PLACEMENT RULES", Granted(STEERS, true)),
    #[cfg(feature = "hot-views")]
    ("CREATE HOT VIEW {s}.h AS SELECT * FROM {s}.t WHERE a > 1", Granted(STEERS, true)),
    ("EXPLAIN PLACEMENT {s}.t", Granted(READS, true)),
    ("EXPLAIN PLACEMENT SELECT a FROM {s}.t", Granted(READS, true)),
    ("EPOCH DRY RUN", Granted(STEERS, false)),
    ("UNFREEZE PLACEMENT", Granted(STEERS, false)),
    ("BEGIN", All),
    ("PREPARE p AS SELECT 1", All),
    ("GRANT SELECT ON {s}.t TO PUBLIC", Granted(OWNS, true)),
    ("CREATE POLICY p ON {s}.t FOR SELECT USING (a > 0)", Granted(OWNS, true)),
    ("ALTER TABLE {s}.t ENABLE ROW LEVEL SECURITY", Granted(OWNS, true)),
    ("ALTER DEFAULT PRIVILEGES FOR ROLE root IN SCHEMA {s} GRANT SELECT ON TABLES TO bob", Superusers(true)),
    ("GRANT MONITOR ON SERVER TO PUBLIC", Superusers(false)),
    ("REVOKE MONITOR ON SERVER FROM PUBLIC", Superusers(false)),
    ("ALTER TABLE {s}.v OWNER TO bob", Superusers(false)),
    ("CREATE ROLE {s}role", Superusers(false)),
    ("CREATE TOKEN {s} FOR ann", Superusers(true)),
    ("DROP USER IF EXISTS nobody", Superusers(false)),
    ("CREATE WORKLOAD GROUP {s}g", Granted(&["GRANT WORKLOAD GROUPS ON SERVER TO bob"], false)),
];

/// Whether the matrix has a statement of this kind; CANCEL QUERY has a test of its own. Whoever adds a kind adds a line to the
/// matrix.
fn is_in_matrix(action: &Action) -> bool {
    match action {
        Action::Cancel(_) => false,
        Action::Plan(_)
        | Action::Alter(_)
        | Action::Comment(_)
        | Action::Change(_)
        | Action::Truncate(_)
        | Action::Transaction(_)
        | Action::Prepare(_)
        | Action::Drop(_)
        | Action::CopyFrom(_)
        | Action::Optimize(_)
        | Action::Rule(_)
        | Action::Placement(_)
        | Action::Tiering(_)
        | Action::Access(_)
        | Action::CreateToken(_)
        | Action::Grant(_)
        | Action::WorkloadGroup(_)
        | Action::Policy(_) => true,
        Action::HotView(_) => cfg!(feature = "hot-views"),
    }
}

/// Kinds of actions of which [`is_in_matrix`] is true.
const KINDS: usize = if cfg!(feature = "hot-views") { 19 } else { 18 };

async fn set_up(session: &Arc<Session>, schema: &str) {
    for sql in [
        "CREATE SCHEMA {s}",
        "CREATE TABLE {s}.t (a BIGINT, b VARCHAR)",
        "INSERT INTO {s}.t VALUES (1, 'one')",
        "CREATE VIEW {s}.v AS SELECT a FROM {s}.t",
    ] {
        let sql = sql.replace("{s}", schema);
        run_in(session, &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_statement_is_for_those_who_hold_its_rights() {
    let closed = Closed::new().await;
    let dir = closed.server.dir.path().to_owned();
    std::fs::write(dir.join("in.csv"), "a,b\n7,seven\n").unwrap();
    let mut kinds = std::collections::HashSet::new();
    for (row, (sql, allowed)) in MATRIX.iter().enumerate() {
        let text = |sql: &str, schema: &str| sql.replace("{s}", schema).replace("{dir}", dir.to_str().unwrap());
        let action = terrace_sql::parse(&text(sql, "s")).unwrap().action;
        assert!(is_in_matrix(&action), "{sql}");
        kinds.insert(std::mem::discriminant(&action));
        let schemas = ["bob", "ann", "root"].map(|user| format!("{user}{row}"));
        for schema in &schemas {
            set_up(&closed.session("ann"), schema).await;
        }
        let [of_bob, of_ann, of_root] = &schemas;
        let (grants, owner_may) = match *allowed {
            All => (Some(&[] as &[&str]), true),
            Granted(grants, owner_may) => (Some(grants), owner_may),
            Superusers(owner_may) => (None, owner_may),
        };
        if !matches!(allowed, All) {
            let error = closed.run("bob", &text(sql, of_bob)).await.expect_err(sql);
            let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind()), "bob: {sql}: {error}");
        }
        if let Some(grants) = grants {
            for grant in grants {
                closed.rows("root", &text(grant, of_bob)).await;
            }
            closed.rows("bob", &text(sql, of_bob)).await;
            closed.all("root", &["REVOKE ALL ON SERVER FROM bob", "REVOKE ALL ON DATABASE terrace FROM bob"]).await;
        }
        match owner_may {
            true => drop(closed.rows("ann", &text(sql, of_ann)).await),
            false => assert_eq!(
                closed.run("ann", &text(sql, of_ann)).await.expect_err(sql).kind(),
                ErrorKind::PermissionDenied,
                "ann: {sql}"
            ),
        }
        closed.rows("root", &text(sql, of_root)).await;
    }
    assert_eq!(kinds.len(), KINDS, "a kind of action has no line");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_open_server_everybody_may_do_everything() {
    let server = Server::new();
    let dir = server.dir.path().to_owned();
    std::fs::write(dir.join("in.csv"), "a,b\n7,seven\n").unwrap();
    let anybody = || server.engine.open_session_for(Principal::anonymous(""));
    for (row, (sql, _)) in MATRIX.iter().enumerate() {
        let schema = format!("s{row}");
        set_up(&anybody(), &schema).await;
        // There are no users here.
        let sql = sql.replace("{s}", &schema).replace("{dir}", dir.to_str().unwrap());
        if sql.ends_with("TO bob") || sql.starts_with("CREATE TOKEN") {
            continue;
        }
        run_in(&anybody(), &sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let owners = run_in(&anybody(), "SELECT * FROM system.grants WHERE privilege = 'OWNER'").await.unwrap();
    assert_eq!(owners, [""; 0], "what is made while the server is open has no owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoke_acts_on_open_sessions_prepared_statements_and_transactions() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["GRANT SELECT, INSERT ON s.t TO bob"]).await;
    let session = closed.session("bob");
    let query = "SELECT count(*) FROM s.t";
    let prepared = session.prepare(query).await.unwrap();
    let insert = session.prepare("INSERT INTO s.t VALUES (2, 'two')").await.unwrap();
    let read = async || {
        let running = prepared.query(None).await?;
        running.stream.try_collect::<Vec<_>>().await.map_err(Error::from)
    };
    assert!(read().await.is_ok() && insert.update(None).await.is_ok());
    // It is in the plan cache now.
    assert_eq!(run_in(&session, query).await.unwrap(), ["2"]);
    let in_transaction = closed.session("bob");
    run_in(&in_transaction, "BEGIN").await.unwrap();
    run_in(&in_transaction, query).await.unwrap();
    closed.all("ann", &["REVOKE ALL ON s.t FROM bob"]).await;
    for refused in [
        read().await.map(drop),
        insert.update(None).await.map(drop),
        run_in(&session, query).await.map(drop),
        run_in(&in_transaction, query).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound, "nothing of the schema is visible");
    }
    closed.all("ann", &["GRANT USAGE ON SCHEMA s TO bob"]).await;
    closed.refused("bob", query, ErrorKind::PermissionDenied, "permission denied for table s.t").await;
    closed.refused("bob", "SELECT * FROM s.no", ErrorKind::NotFound, "does not exist").await;
    closed.all("ann", &["GRANT SELECT ON s.t TO bob"]).await;
    assert!(read().await.is_ok(), "given back");
    // A program with the engine inside has the name of a user, and not the rights.
    let inside = closed.server.engine.open_session("bob");
    closed.all("ann", &["REVOKE ALL ON s.t FROM bob"]).await;
    assert!(run_in(&inside, query).await.is_ok() && run_in(&session, query).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_only_add_rows_reads_none() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["GRANT USAGE ON SCHEMA s TO bob", "GRANT INSERT ON s.t TO bob"]).await;
    let shadowed = "INSERT INTO s.t (b) WITH t AS (SELECT 'y') SELECT * FROM t";
    closed.all("bob", &["INSERT INTO s.t VALUES (3, 'x')", shadowed]).await;
    for sql in [
        "INSERT INTO s.t SELECT * FROM s.t",
        "INSERT INTO s.t TABLE s.t",
        "INSERT INTO s.t SELECT (SELECT max(a) FROM s.t), 'x'",
        "INSERT INTO s.t (a) SELECT a FROM s.t AS other",
        "CREATE TABLE public.copied AS SELECT * FROM s.t",
        "SELECT * FROM s.v",
        "EXPLAIN INSERT INTO s.t SELECT * FROM s.t",
        "UPDATE s.t SET a = 1",
    ] {
        let error = closed.run("bob", sql).await.expect_err(sql);
        assert!(
            [ErrorKind::PermissionDenied, ErrorKind::Unimplemented, ErrorKind::InvalidArgument].contains(&error.kind()),
            "{sql}: {error}"
        );
    }
    assert_eq!(closed.rows("ann", "SELECT count(*) FROM s.t").await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_are_read_with_the_rights_of_their_owner() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("root", &["CREATE TABLE secret AS SELECT 42 AS n", "CREATE VIEW shown AS SELECT n FROM secret"]).await;
    closed.all("root", &["GRANT SELECT ON shown TO bob", "CREATE SCHEMA b", "ALTER SCHEMA b OWNER TO bob"]).await;
    assert_eq!(closed.rows("bob", "SELECT n FROM shown").await, ["42"]);
    closed.refused("bob", "SELECT n FROM secret", ErrorKind::PermissionDenied, "table secret").await;
    // A view of bob reads what bob may read, whoever reads the view.
    closed.refused("bob", "CREATE VIEW b.v AS SELECT n FROM secret", ErrorKind::PermissionDenied, "table secret").await;
    closed.all("bob", &["CREATE VIEW b.v AS SELECT n FROM shown"]).await;
    assert_eq!(closed.rows("root", "SELECT n FROM b.v").await, ["42"]);
    closed.all("root", &["REVOKE SELECT ON shown FROM bob"]).await;
    closed.refused("root", "SELECT n FROM b.v", ErrorKind::PermissionDenied, "view 'b.v' cannot be planned").await;
    // Whoever owns the schema may replace a view of another, which is then read with other rights.
    closed.all("root", &["CREATE VIEW b.w AS SELECT n FROM secret", "GRANT SELECT ON b.w TO ann"]).await;
    assert_eq!(closed.rows("ann", "SELECT n FROM b.w").await, ["42"]);
    let replacement = "CREATE OR REPLACE VIEW b.w AS SELECT n + 1 AS n FROM secret";
    closed.refused("bob", replacement, ErrorKind::PermissionDenied, "secret").await;
    closed.all("bob", &["CREATE OR REPLACE VIEW b.w AS SELECT 1 AS n"]).await;
    let owner = "SELECT grantee FROM system.grants WHERE privilege = 'OWNER' AND table_name = 'w'";
    assert_eq!(closed.rows("root", owner).await, ["bob"]);
    assert_eq!(closed.rows("ann", "SELECT n FROM b.w").await, ["1"], "grants on it stay");
    closed.all("root", &["CREATE OR REPLACE VIEW b.w AS SELECT n FROM secret"]).await;
    assert_eq!(closed.rows("root", owner).await, ["bob"], "a superuser leaves it its owner");
    assert!(closed.run("bob", "SELECT n FROM b.w").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_a_name_are_not_those_on_the_table_that_had_it_before() {
    let closed = Closed::new().await;
    let secret = ["CREATE SCHEMA s", "GRANT CREATE ON SCHEMA s TO bob", "CREATE TABLE s.t AS SELECT 42 AS n"];
    closed.all("root", &secret).await;
    // The transaction goes on with the tables that there are now.
    let session = closed.session("bob");
    for sql in ["BEGIN", "SELECT 1"] {
        run_in(&session, sql).await.unwrap();
    }
    closed.all("root", &["ALTER TABLE s.t RENAME TO old"]).await;
    closed.all("bob", &["CREATE TABLE s.t AS SELECT 1 AS n"]).await;
    for sql in ["SELECT n FROM s.t", "UPDATE s.t SET n = n + 1"] {
        assert_eq!(run_in(&session, sql).await.unwrap_err().kind(), ErrorKind::Aborted, "{sql}");
    }
    run_in(&session, "ROLLBACK").await.unwrap();
    assert_eq!(run_in(&session, "SELECT n FROM s.t").await.unwrap(), ["1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_stay_with_their_objects() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("ann", &["GRANT SELECT ON s.t TO bob", "DROP VIEW s.v", "ALTER TABLE s.t RENAME TO u"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.u").await, ["1"]);
    closed.all("ann", &["CREATE OR REPLACE TABLE s.u AS SELECT 2 AS a"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.u").await, ["2"], "replaced in its place");
    closed.refused("bob", "CREATE OR REPLACE TABLE s.u AS SELECT 3 AS a", ErrorKind::PermissionDenied, "s").await;
    closed.refused("root", "DROP USER ann", ErrorKind::FailedPrecondition, "schema s").await;
    closed.all("ann", &["DROP TABLE s.u", "CREATE TABLE s.u (a BIGINT)"]).await;
    assert!(closed.run("bob", "SELECT a FROM s.u").await.is_err(), "another table of the name");
    closed.all("root", &["ALTER SCHEMA s OWNER TO root", "ALTER TABLE s.u OWNER TO root", "DROP USER ann"]).await;
    assert_eq!(closed.rows("root", "SELECT count(*) FROM system.grants WHERE grantee = 'ann'").await, ["0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_by_sql() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    closed.all("root", &["CREATE ROLE readers", "CREATE ROLE staff"]).await;
    closed.all("root", &["GRANT readers TO staff", "GRANT staff TO bob"]).await;
    closed.all("ann", &["GRANT SELECT ON s.t TO readers"]).await;
    assert_eq!(closed.rows("bob", "SELECT a FROM s.t").await, ["1"]);
    let roles = "SELECT name, members FROM system.roles ORDER BY 1";
    assert_eq!(closed.rows("bob", roles).await, ["readers|staff", "staff|bob"]);
    assert_eq!(closed.rows("ann", "SELECT name FROM system.roles").await, [""; 0]);
    closed.refused("root", "GRANT staff TO readers", ErrorKind::FailedPrecondition, "member of").await;
    closed.refused("ann", "CREATE ROLE more", ErrorKind::PermissionDenied, "superuser").await;
    closed.refused("root", "GRANT SELECT ON SERVER TO bob", ErrorKind::InvalidArgument, "no right on a server").await;
    closed.refused("root", "GRANT SELEKT ON s.t TO bob", ErrorKind::InvalidArgument, "SELEKT").await;
    closed.refused("root", "GRANT SELECT ON s.t TO nobody", ErrorKind::NotFound, "nobody").await;
    closed.refused("root", "GRANT SELECT ON s.no TO bob", ErrorKind::NotFound, "s.no").await;
    closed.all("root", &["DROP ROLE readers", "DROP ROLE IF EXISTS readers"]).await;
    assert!(closed.run("bob", "SELECT a FROM s.t").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn statements_of_others_are_cancelled_with_the_right_to() {
    let closed = Closed::new().await;
    let endless = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b \
                   WHERE a.value + b.value < 0";
    let start = |user: &str| {
        let session = closed.session(user);
        tokio::spawn(async move { session.prepare(endless).await?.query(None).await })
    };
    let running = [start("ann"), start("bob")];
    let id = async |user: &str| loop {
        let shown = format!(
            "SELECT id FROM system.queries WHERE user_name = '{user}' AND state = 'running' AND sql LIKE '%1000000) a%'"
        );
        match closed.rows("root", &shown).await.pop() {
            Some(id) if !id.is_empty() => return id,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let (of_ann, of_bob) = (id("ann").await, id("bob").await);
    let cancel = |id: &str| format!("CANCEL QUERY '{id}'");
    closed.refused("bob", &cancel(&of_ann), ErrorKind::NotFound, "no statement").await;
    closed.all("root", &["GRANT MONITOR ON SERVER TO bob"]).await;
    closed.refused("bob", &cancel(&of_ann), ErrorKind::PermissionDenied, "CANCEL ON SERVER").await;
    closed.all("bob", &[&cancel(&of_bob)]).await;
    closed.all("root", &["GRANT CANCEL ON SERVER TO bob"]).await;
    closed.all("bob", &[&cancel(&of_ann)]).await;
    for query in running {
        let ended = query.await.unwrap();
        let ended = match ended {
            Ok(running) => running.stream.try_collect::<Vec<_>>().await.map(drop).map_err(Error::from),
            Err(error) => Err(error),
        };
        assert!(ended.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_tables_are_written_by_those_who_may_write_files() {
    let closed = Closed::new().await;
    let folder = closed.server.dir.path().join("grown");
    std::fs::create_dir(&folder).unwrap();
    let create = format!("CREATE EXTERNAL TABLE s.e (a BIGINT) STORED AS CSV LOCATION '{}/'", folder.display());
    closed.all("root", &["GRANT READ FILES ON SERVER TO ann"]).await;
    closed.all("ann", &["CREATE SCHEMA s", &create]).await;
    let insert = "INSERT INTO s.e VALUES (1)";
    closed.refused("ann", insert, ErrorKind::PermissionDenied, "WRITE FILES ON SERVER").await;
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    closed.all("root", &["GRANT WRITE FILES ON SERVER TO ann"]).await;
    closed.all("ann", &[insert]).await;
    assert!(std::fs::read_dir(&folder).unwrap().count() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_take_the_workload_groups_that_they_are_in() {
    let closed = Closed::new().await;
    let small = "CREATE WORKLOAD GROUP small WITH (users = 'staff', max_running = 1)";
    closed.all("root", &["CREATE ROLE staff", "GRANT staff TO bob", small, "CREATE WORKLOAD GROUP free"]).await;
    let alter = "ALTER WORKLOAD GROUP free SET (users = 'nobody')";
    closed.refused("root", alter, ErrorKind::NotFound, "'nobody' is neither a user nor a role").await;
    let take = |group: &str| format!("SET workload_group = '{group}'");
    for group in ["free", "default"] {
        closed.refused("bob", &take(group), ErrorKind::PermissionDenied, "WORKLOAD GROUPS ON SERVER").await;
        closed.all("ann", &[&take(group)]).await;
    }
    closed.refused("ann", &take("small"), ErrorKind::PermissionDenied, "'small'").await;
    closed.all("bob", &[&take("small"), "RESET workload_group"]).await;
    // A token with a scope takes no more.
    let bearer = closed.bearer("bob", "(SELECT ON DATABASE terrace)").await;
    assert!(run_in(&bearer, &take("free")).await.is_err());
    let groups = "SELECT DISTINCT workload_group FROM system.queries";
    assert_eq!(closed.rows("bob", groups).await, ["small"]);
    // Also of sessions that took another one before.
    let session = closed.session("ann");
    run_in(&session, &take("free")).await.unwrap();
    closed.all("root", &["ALTER WORKLOAD GROUP small SET (users = 'staff, ann')"]).await;
    run_in(&session, "SELECT 4242").await.unwrap();
    let group = "SELECT workload_group FROM system.queries WHERE sql = 'SELECT 4242'";
    assert_eq!(closed.rows("root", group).await, ["small"]);
    closed.all("root", &["GRANT WORKLOAD GROUPS ON SERVER TO bob"]).await;
    closed.all("bob", &[&take("free"), "ALTER WORKLOAD GROUP small SET (max_running = none)"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingests_need_the_rights_of_their_mode() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    let ingest = async |user: &str, table: &str, mode: IngestMode| {
        let rows = batch(vec![("a", Arc::new(Int64Array::from(vec![5])) as ArrayRef)]);
        let (schema, stream) = (rows.schema(), futures::stream::iter([Ok(rows)]).boxed());
        let request = IngestRequest { schema: Some("s".into()), table: table.into(), mode, options: HashMap::new() };
        closed.server.engine.ingest(&closed.session(user), request, schema, stream, None).await
    };
    for (table, mode) in [
        ("t", IngestMode::Append),
        ("t", IngestMode::CreateAppend),
        ("t", IngestMode::Replace),
        ("n", IngestMode::Create),
        ("n", IngestMode::CreateAppend),
        ("n", IngestMode::Replace),
    ] {
        let error = ingest("bob", table, mode).await.unwrap_err();
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
        assert!(kinds.contains(&error.kind()), "{table} {mode:?}: {error}");
    }
    for mode in [IngestMode::CreateAppend, IngestMode::Replace] {
        let [there, missing] = [ingest("bob", "t", mode).await, ingest("bob", "n", mode).await];
        assert_eq!(there.unwrap_err().message(), missing.unwrap_err().message(), "{mode:?} tells what there is");
    }
    closed.all("ann", &["GRANT INSERT ON s.t TO bob"]).await;
    assert_eq!(ingest("bob", "t", IngestMode::Append).await.unwrap(), 1);
    assert_eq!(ingest("bob", "t", IngestMode::Replace).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    closed.all("ann", &["GRANT CREATE ON SCHEMA s TO bob"]).await;
    assert_eq!(ingest("bob", "n", IngestMode::Create).await.unwrap(), 1);
    assert_eq!(closed.rows("bob", "SELECT a FROM s.n").await, ["5"], "who made it owns it");
    assert_eq!(ingest("bob", "t", IngestMode::Replace).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(ingest("bob", "n", IngestMode::Replace).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_there_before_rights_is_for_superusers_until_granted() {
    let closed = Closed::new().await;
    run_in(&closed.server.session, "CREATE TABLE old AS SELECT 1 AS a").await.unwrap();
    closed.refused("bob", "SELECT a FROM old", ErrorKind::PermissionDenied, "permission denied for table old").await;
    assert_eq!(closed.rows("root", "SELECT a FROM old").await, ["1"]);
    closed.all("root", &["GRANT ALL ON DATABASE terrace TO bob"]).await;
    closed.all("bob", &["INSERT INTO old VALUES (2)"]).await;
    closed.refused("bob", "DROP TABLE old", ErrorKind::PermissionDenied, "table old").await;
    let again = closed.server.restart_with(|options| {
        options.owner = Some(Owner { name: "root".into(), password: PASSWORD.into() });
    });
    let closed = Closed { server: again.await };
    assert_eq!(closed.rows("bob", "SELECT count(*) FROM old").await, ["2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_for_owners_and_those_who_steer() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    for order in ["WARM UP s.t", "BRING BACK s.t TO dram", "EXPLAIN PLACEMENT s.t"] {
        closed.refused("bob", order, ErrorKind::NotFound, "table 's.t'").await;
        // There may be no room, or no such tier.
        let done = closed.run("ann", order).await;
        assert!(done.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::PermissionDenied), "{order}");
    }
    closed.all("ann", &["GRANT SELECT ON s.t TO bob"]).await;
    closed.all("bob", &["EXPLAIN PLACEMENT s.t"]).await;
    closed.refused("bob", "WARM UP s.t", ErrorKind::PermissionDenied, "table s.t").await;
}

#[test]
fn what_opens_devices_is_for_superusers() {
    let need = |sql: &str| server_need(&terrace_sql::parse(sql).unwrap().action);
    for sql in ["ALTER SYSTEM CALIBRATE TIERS", "ALTER SYSTEM DROP TIER nvm"] {
        assert_eq!(need(sql), ServerNeed::Superuser, "{sql}");
    }
    for sql in ["ALTER SYSTEM DRAIN TIER nvm", "FREEZE PLACEMENT", "EPOCH NOW", "ROLL BACK PLACEMENT TO EPOCH 1"] {
        assert_eq!(need(sql), ServerNeed::Right(Right::Tiering), "{sql}");
    }
    let explained = "EXPLAIN COPY t TO '/x.csv'";
    assert_eq!(need(explained), ServerNeed::Right(Right::WriteFiles), "{explained}");
}
