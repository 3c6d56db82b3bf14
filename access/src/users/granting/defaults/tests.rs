//! Which rights new tables and views have after each change of default privileges.

#![allow(clippy::unwrap_used)]
use terrace_model::error::ErrorKind;

use super::super::tests::Server;
use super::*;

fn order(grants: bool, makers: &[&str], grantee: &str) -> DefaultGranting {
    DefaultGranting {
        grants,
        makers: makers.iter().map(|maker| (*maker).to_owned()).collect(),
        schemas: vec!["s".to_owned()],
        rights: WhichRights::These(vec![Right::Select, Right::Insert]),
        grantees: vec![grantee.to_owned()],
    }
}

fn table(name: &str) -> Securable {
    Securable::Table(TableName::new("s", name))
}

impl Server {
    /// Whether somebody may read a table that `maker` makes now.
    fn reads_new(&self, reader: &str, maker: &str) -> bool {
        self.users.note_made(&self.principal(maker), &table("new")).unwrap();
        let may = self.authority(reader).may(Right::Select, &table("new"));
        self.users.forget(&table("new")).unwrap();
        may
    }
}

#[test]
fn new_tables_get_the_rights_and_old_ones_do_not() {
    let server = Server::new();
    let ann = server.principal("ann");
    server.users.note_made(&ann, &table("old")).unwrap();
    assert!(!server.reads_new("bob", "ann"));
    server.users.alter_defaults(&ann, &order(true, &[], "bob")).unwrap();
    assert!(server.reads_new("bob", "ann") && !server.reads_new("eve", "ann") && !server.reads_new("bob", "eve"));
    assert!(!server.authority("bob").may(Right::Select, &table("old")));
    server.users.note_made(&ann, &Securable::Table(TableName::new("other", "t"))).unwrap();
    assert!(!server.authority("bob").may(Right::Select, &Securable::Table(TableName::new("other", "t"))));
    server.users.note_made(&ann, &table("kept")).unwrap();
    server.users.alter_defaults(&ann, &order(false, &["ann"], "bob")).unwrap();
    assert!(!server.reads_new("bob", "ann") && server.users.defaults().is_empty());
    assert!(server.authority("bob").may(Right::Insert, &table("kept")), "what was granted stays");
}

#[test]
fn they_survive_a_restart_and_go_with_whom_they_name() {
    let server = Server::new();
    server.users.create_role(&server.root, "staff").unwrap();
    server.users.grant_roles(&server.root, &["staff".to_owned()], &["ann".to_owned()]).unwrap();
    server.users.alter_defaults(&server.root, &order(true, &["staff"], "bob")).unwrap();
    server.users.alter_defaults(&server.root, &order(true, &["eve"], "staff")).unwrap();
    assert!(server.reads_new("bob", "ann") && !server.reads_new("bob", "eve") && server.reads_new("ann", "eve"));
    assert_eq!(server.users.defaults().len(), 4);
    assert_eq!(Server::open(&server.records).defaults(), server.users.defaults());
    server.users.drop_role(&server.root, "staff").unwrap();
    assert_eq!(server.users.defaults(), []);
    server.users.alter_defaults(&server.root, &order(true, &["ann"], "bob")).unwrap();
    server.users.forget(&Securable::Schema("s".to_owned())).unwrap();
    assert_eq!(server.users.defaults(), [], "the schema was dropped");
    assert_eq!(Server::open(&server.records).defaults(), []);
}

#[test]
fn they_are_changed_by_who_makes_the_tables_and_who_owns_the_schema() {
    let server = Server::new();
    let [ann, bob] = ["ann", "bob"].map(|name| server.principal(name));
    let kind = |done: Result<()>| done.unwrap_err().kind();
    assert_eq!(kind(server.users.alter_defaults(&bob, &order(true, &["ann"], "bob"))), ErrorKind::PermissionDenied);
    server.users.note_made(&ann, &Securable::Schema("s".to_owned())).unwrap();
    server.users.alter_defaults(&ann, &order(true, &["bob"], "eve")).unwrap();
    // A member of a role does not get at what other members make.
    server.users.create_role(&server.root, "staff").unwrap();
    server.users.grant_roles(&server.root, &["staff".to_owned()], &["bob".to_owned()]).unwrap();
    assert_eq!(kind(server.users.alter_defaults(&bob, &order(true, &["staff"], "bob"))), ErrorKind::PermissionDenied);
    let bearer = server.bearer("ann", None);
    assert_eq!(kind(server.users.alter_defaults(&bearer, &order(true, &[], "bob"))), ErrorKind::PermissionDenied);
    let inside = Principal::inside("x");
    assert_eq!(kind(server.users.alter_defaults(&inside, &order(true, &[], "bob"))), ErrorKind::PermissionDenied);
    for (makers, grantee, wanted) in [
        (["ann"], "nobody", ErrorKind::NotFound),
        (["nobody"], "bob", ErrorKind::NotFound),
        ([PUBLIC], "bob", ErrorKind::InvalidArgument),
    ] {
        assert_eq!(kind(server.users.alter_defaults(&server.root, &order(true, &makers, grantee))), wanted);
    }
    let usage = DefaultGranting { rights: WhichRights::These(vec![Right::Usage]), ..order(true, &[], "bob") };
    assert_eq!(kind(server.users.alter_defaults(&server.root, &usage)), ErrorKind::InvalidArgument);
}
