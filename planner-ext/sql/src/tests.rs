//! What is known of each statement before it is planned.

#![allow(clippy::unwrap_used)]

use crate::{Command, ObjectKind, ObjectRef, Privilege, StatementKind, Use, parse};

fn described(object: &ObjectRef) -> String {
    let usage = match object.usage {
        Use::Read => "read",
        Use::Write => "write",
        Use::Define => "define",
    };
    let kind = match object.kind {
        ObjectKind::Relation => "",
        ObjectKind::HotView => "hot view ",
        ObjectKind::Schema => "schema ",
    };
    let schema = object.name.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    format!("{usage} {kind}{schema}{}", object.name.name)
}

fn objects(command: &Command) -> String {
    command.objects().iter().map(described).collect::<Vec<_>>().join(", ")
}

/// Checks statements of one kind: their text, and the objects that they name.
fn check(kind: StatementKind, privilege: Privilege, returns_rows: bool, statements: &[(&str, &str)]) {
    for (sql, wanted) in statements {
        let command = parse(sql).unwrap();
        assert_eq!((command.kind, command.privilege(), command.returns_rows), (kind, privilege, returns_rows), "{sql}");
        assert_eq!(objects(&command), *wanted, "{sql}");
    }
}

#[test]
fn queries_read_what_they_name() {
    let statements = [
        ("SELECT 1;", ""),
        ("select * from t, S.\"U\" as t where a in (select b from w)", "read t, read s.U, read w"),
        ("select * from terrace.s.t join t using (a)", "read s.t, read t"),
        ("select * from t union all select * from t", "read t"),
        ("select * from generate_series(1, 3) as g, unnest([1]) as u", ""),
        ("values (1)", ""),
        ("explain select * from t", "read t"),
        ("explain analyze select * from t", "read t"),
        ("explain insert into t select * from u", "read t, read u"),
        ("explain update t set a = 1", "read t"),
        ("explain merge into t using s on t.a = s.a when matched then delete", "read t, read s"),
        ("show tables", ""),
        ("show tables in s", "read schema s"),
        ("show columns from s.t", "read s.t"),
        ("describe t", "read t"),
        ("show create table s.t", "read s.t"),
        ("show hot views;", "read system.hot_views"),
        ("show hot view proposals", "read system.hot_view_proposals"),
        ("explain hot views select * from t where a > 3", "read t"),
        ("explain alter hot view s.v refresh", "read hot view s.v"),
        ("explain create hot view v as select * from t where a > 3", "read hot view v, read t"),
        ("explain placement s.t where k > 3", "read s.t"),
        ("explain placement select * from t where k > 3", "read t"),
        ("epoch dry run", ""),
    ];
    check(StatementKind::Query, Privilege::Read, true, &statements);
}

#[test]
fn names_of_with_are_no_objects() {
    let statements = [
        ("with s as (select * from t) select * from s", "read t"),
        // A name is visible behind its query, and within it only in WITH RECURSIVE.
        ("with s as (select * from s) select * from s", "read s"),
        ("with recursive s as (select 1 as a union all select a + 1 from s) select * from s", ""),
        ("with a as (select * from b), b as (select * from a) select * from a, b", "read b"),
        ("with recursive a as (select * from b), b as (select * from a) select * from a, b", "read b"),
        ("select * from (with s as (select 1) select * from s) as x, s", "read s"),
        ("with s as (select 1) select * from t where a in (select * from s)", "read t"),
        ("with s as (with r as (select * from t) select * from r) select * from r, s", "read t, read r"),
        ("with s as (select 1) select * from public.s", "read public.s"),
        ("with \"S\" as (select 1) select * from s, \"S\"", "read s"),
    ];
    check(StatementKind::Query, Privilege::Read, true, &statements);
}

#[test]
fn changes_write_their_target() {
    let inserts = [
        ("insert into t values (?)", "write t"),
        ("insert into s.t select * from t", "write s.t, read t"),
        ("insert into t select * from t", "write t, read t"),
        ("insert into t with s as (select * from u) select * from s", "write t, read u"),
        ("copy t (a, b) from 'x.csv' (format csv, header, delimiter '|')", "write t"),
    ];
    check(StatementKind::Insert, Privilege::Write, false, &inserts);
    let changes = [
        ("update t set a = 1", "write t"),
        ("update t set a = (select max(a) from t) from u where t.b = u.b", "write t, read t, read u"),
        ("delete from s.t using u where t.a in (select a from w)", "write s.t, read u, read w"),
        ("with s as (select 1 as a) delete from t using s where t.a = s.a", "write t"),
        ("with t as (select * from t) update t set a = 1 where b in (select b from t)", "write t, read t"),
        (
            "merge into t using s as x on t.a = x.a when matched then update set a = (select 1 from u)",
            "write t, read s, read u",
        ),
        ("truncate table t, s.u", "write t, write s.u"),
    ];
    check(StatementKind::Change, Privilege::Write, false, &changes);
    let exports = [("copy s.t to 'x.parquet'", "read s.t"), ("copy (select a from t) to 'x.parquet'", "read t")];
    check(StatementKind::Export, Privilege::Export, false, &exports);
}

#[test]
fn definitions_define() {
    let statements = [
        ("create table t (a int) with (cluster_by = 'a')", "define t"),
        ("create table s.t as select * from u", "define s.t, read u"),
        ("select * into t from u", "define t, read u"),
        ("create or replace view v as with s as (select * from t) select * from s", "define v, read t"),
        ("create external table t stored as parquet location '/x'", "define t"),
        ("create schema s", "define schema s"),
        ("create schema terrace.s", "define schema s"),
        ("drop table if exists a, s.b", "define a, define s.b"),
        ("drop view v", "define v"),
        ("drop schema s cascade", "define schema s"),
        ("alter table s.t add column b int", "define s.t"),
        ("alter table s.t rename to u", "define s.t, define s.u"),
        ("alter table t pin to dram", "define t"),
        ("alter table s.t drop placement rules", "define s.t"),
        ("comment on column s.t.a is 'x'", "define s.t"),
        ("comment on view v is null", "define v"),
        ("optimize table s.t;", "define s.t"),
        ("create hot view v as select * from t where a > 3", "define hot view v, read t"),
        ("drop hot view if exists v, s.w;", "define hot view v, define hot view s.w"),
        ("reject hot view proposal v, s.w", "define hot view v, define hot view s.w"),
        ("alter hot view v refresh", "define hot view v"),
        ("alter hot view v set (budget = 'none')", "define hot view v"),
        ("grant select on s.t, u to ann", "define s.t, define u"),
        ("revoke all on schema s from ann", "define schema s"),
        ("alter schema s owner to ann", "define schema s"),
        ("alter view v owner to ann", "define v"),
        ("create role readers", ""),
        ("grant readers to ann", ""),
    ];
    check(StatementKind::Ddl, Privilege::Define, false, &statements);
}

#[test]
fn sessions_and_tiering_name_few_objects() {
    let settings = [
        ("set datafusion.execution.batch_size = 10", ""),
        ("reset datafusion.execution.batch_size", ""),
        ("begin", ""),
        ("start transaction read only", ""),
        ("commit", ""),
        ("rollback to savepoint s", ""),
        ("prepare p as insert into t values ($1)", ""),
        ("execute p(1)", ""),
        ("deallocate p", ""),
    ];
    check(StatementKind::Setting, Privilege::Session, false, &settings);
    let commands = [
        ("cancel epoch", ""),
        ("freeze placement", ""),
        ("alter system set tiering = off", ""),
        ("alter system drain tier nvm", ""),
    ];
    check(StatementKind::Tiering, Privilege::Tiering, false, &commands);
    let orders = [
        ("epoch now", ""),
        ("bring back s.t columns (a) to dram", "read s.t"),
        ("warm up t", "read t"),
        ("roll back placement to epoch 12", ""),
    ];
    check(StatementKind::Tiering, Privilege::Tiering, true, &orders);
}

#[test]
fn an_execute_is_the_statement_that_it_names() {
    use crate::command::Action;
    use crate::prepare::PrepareCommand;
    let parsed = parse("prepare p as insert into t select * from u where a = $1").unwrap();
    let Action::Prepare(PrepareCommand::Prepare(_, named)) = parsed.action else { unreachable!() };
    let Action::Prepare(PrepareCommand::Execute(name, values)) = parse("execute p(3)").unwrap().action else {
        unreachable!()
    };
    let command = named.bind(&name, &values, "execute p(3)").unwrap();
    assert_eq!((command.kind, command.privilege()), (StatementKind::Insert, Privilege::Write));
    assert_eq!(objects(&command), "write t, read u");
}

#[test]
fn names_that_cannot_be_of_the_catalog_are_left_to_the_planner() {
    assert_eq!(objects(&parse("select * from other.s.t, t").unwrap()), "read t");
}
