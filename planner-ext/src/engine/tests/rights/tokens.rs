//! What the scope of a token leaves of the rights of its user, for each kind of statement.

use super::*;

/// The scope of a token that lets its user do what these grants would; `None`: none does.
fn scope_like(grants: &[&str]) -> Option<String> {
    let clauses = grants.iter().map(|grant| {
        let rights = grant.strip_prefix("GRANT ")?.rsplit_once(" TO ")?.0;
        Some(format!("({rights})"))
    });
    clauses.collect::<Option<Vec<_>>>().map(|clauses| clauses.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_statement_is_for_tokens_with_its_rights_in_their_scope() {
    let closed = Closed::new().await;
    let dir = closed.server.dir.path().to_owned();
    std::fs::write(dir.join("in.csv"), "a,b\n7,seven\n").unwrap();
    for (row, (sql, allowed)) in MATRIX.iter().enumerate() {
        let schema = format!("token{row}");
        let text = |sql: &str| sql.replace("{s}", &schema).replace("{dir}", dir.to_str().unwrap());
        set_up(&closed.session("ann"), &schema).await;
        let scope = match *allowed {
            All => Some("(USAGE ON SCHEMA {s})".to_owned()),
            Granted(grants, _) => scope_like(grants),
            Superusers(_) => None,
        };
        // The user may do everything, and the token what its scope has. What takes an owner or a superuser, no scope has.
        let other = match scope {
            Some(_) => "(USAGE ON SCHEMA {s})",
            None => "(ALL ON DATABASE terrace), (ALL ON SERVER)",
        };
        if !matches!(allowed, All) {
            let session = closed.bearer("root", &text(other)).await;
            let error = run_in(&session, &text(sql)).await.expect_err(sql);
            let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
            assert!(kinds.contains(&error.kind()), "{sql}: {error}");
        }
        if let Some(scope) = scope {
            let session = closed.bearer("root", &text(&scope)).await;
            run_in(&session, &text(sql)).await.unwrap_or_else(|error| panic!("{sql}, {scope}: {error}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_takes_rights_away_and_gives_none() {
    let closed = Closed::new().await;
    set_up(&closed.session("ann"), "s").await;
    set_up(&closed.session("ann"), "other").await;
    let query = "SELECT a FROM s.t";
    assert_eq!(closed.rows("ann", query).await, ["1"], "it is in the plan cache");
    let of_view = closed.bearer("ann", "(SELECT ON s.v)").await;
    assert_eq!(run_in(&of_view, "SELECT a FROM s.v").await.unwrap(), ["1"], "a view is read with its owner's rights");
    assert_eq!(run_in(&of_view, query).await.unwrap_err().kind(), ErrorKind::NotFound, "it shares no plans");
    let shown = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_name IN ('t', 'v')";
    assert_eq!(run_in(&of_view, shown).await.unwrap(), ["s|v"]);
    for sql in ["SELECT sql FROM system.queries", "SELECT name FROM system.tokens", "SELECT name FROM system.users"] {
        assert_eq!(run_in(&of_view, sql).await.unwrap(), [""; 0], "{sql}");
    }
    // Rights that its user does not have.
    let beyond = closed.bearer("bob", "(SELECT ON DATABASE terrace), (MONITOR ON SERVER)").await;
    for sql in [query, "SELECT * FROM system.tiers"] {
        assert!(run_in(&beyond, sql).await.is_err(), "{sql}");
    }
    closed.all("ann", &["GRANT SELECT, INSERT ON s.t TO bob"]).await;
    assert_eq!(run_in(&beyond, query).await.unwrap(), ["1"]);
    assert!(run_in(&beyond, "INSERT INTO s.t VALUES (2, 'x')").await.is_err());
    // What it makes belongs to its user, and by the token it is used within the scope.
    let making = closed.bearer("ann", "(CREATE, INSERT ON SCHEMA s)").await;
    for sql in ["CREATE TABLE s.n (a BIGINT)", "INSERT INTO s.n VALUES (1)"] {
        run_in(&making, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    for sql in [
        "SELECT a FROM s.n",
        "DROP TABLE s.n",
        "CREATE OR REPLACE TABLE s.n (b BIGINT)",
        "CREATE TABLE other.n (a BIGINT)",
    ] {
        let error = run_in(&making, sql).await.expect_err(sql);
        assert!([ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&error.kind()), "{sql}: {error}");
    }
    closed.all("ann", &["DROP TABLE s.n"]).await;
    let scopes = "SELECT user_name, scope FROM system.tokens ORDER BY name";
    let all = closed.rows("root", scopes).await;
    assert_eq!(
        all,
        [
            "ann|(SELECT ON table s.v)",
            "bob|(MONITOR ON server), (SELECT ON database)",
            "ann|(INSERT, CREATE ON schema s)"
        ]
    );
    for (scope, kind, words) in [
        ("(SELECT ON s.no)", ErrorKind::NotFound, "s.no"),
        ("(SELECT ON SCHEMA no)", ErrorKind::NotFound, "schema 'no'"),
        ("(MONITOR ON s.t)", ErrorKind::InvalidArgument, "no right on a table"),
        ("(SELEKT ON s.t)", ErrorKind::InvalidArgument, "SELEKT"),
    ] {
        closed.refused("ann", &format!("CREATE TOKEN wrong SCOPE {scope}"), kind, words).await;
    }
    closed.refused("bob", "CREATE TOKEN wrong SCOPE (SELECT ON other.t)", ErrorKind::NotFound, "other.t").await;
}
