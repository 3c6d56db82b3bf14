//! Whom the policies of a table concern, and what becomes of them.

#![allow(clippy::unwrap_used)]
use std::collections::BTreeSet;

use terrace_model::error::ErrorKind;

use super::*;
use crate::authority::PolicyClause;
use crate::record::{ROW_SECURITY, Records};
use crate::scope::Scope;
use crate::users::granting::tests::Server;

fn policy(name: &str, command: Option<Right>, role: &str, using: &str) -> NewPolicy {
    let using = Some(using.to_owned()).filter(|text| !text.is_empty());
    NewPolicy { name: name.to_owned(), command, roles: vec![role.to_owned()], using, check: None }
}

fn conditions(texts: &[&str]) -> Option<BTreeSet<String>> {
    Some(texts.iter().map(|text| (*text).to_owned()).collect())
}

#[test]
fn policies_concern_whom_they_name_and_neither_owners_nor_superusers() {
    let server = Server::new();
    let (table, users) = (TableName::new("s", "t"), &server.users);
    let object = Securable::Table(table.clone());
    users.note_made(&server.principal("ann"), &object).unwrap();
    users.create_role(&server.root, "staff").unwrap();
    users.grant_roles(&server.root, &["staff".to_owned()], &["bob".to_owned()]).unwrap();
    let ann = server.principal("ann");
    users.create_policy(&ann, &table, policy("mine", None, "public", "a = 1")).unwrap();
    users.create_policy(&ann, &table, policy("staff", Some(Right::Select), "staff", "b = 2")).unwrap();
    let insert = NewPolicy { check: Some("c = 3".to_owned()), ..policy("new", Some(Right::Insert), "bob", "") };
    users.create_policy(&ann, &table, insert).unwrap();
    let found = |user: &str, right, clause| server.authority(user).row_conditions(&table, right, clause);
    assert_eq!(found("bob", Right::Select, PolicyClause::Using), None, "they do not count yet");
    users.set_row_security(&ann, &table, true).unwrap();
    assert_eq!(found("bob", Right::Select, PolicyClause::Using), conditions(&["a = 1", "b = 2"]));
    assert_eq!(found("bob", Right::Insert, PolicyClause::Check), conditions(&["a = 1", "c = 3"]));
    assert_eq!(found("bob", Right::Delete, PolicyClause::Using), conditions(&["a = 1"]));
    assert_eq!(found("eve", Right::Select, PolicyClause::Using), conditions(&["a = 1"]));
    for user in ["ann", "root"] {
        assert_eq!(found(user, Right::Select, PolicyClause::Using), None, "{user}");
    }
    // A token with a scope stands for no owner and no superuser.
    let mut scope = Scope::default();
    scope.allow(Right::Select, object.clone());
    for user in ["ann", "root"] {
        let token = users.authority(&server.bearer(user, Some(scope.clone())));
        let found = token.row_conditions(&table, Right::Select, PolicyClause::Using);
        assert_eq!(found, conditions(&["a = 1"]), "{user}");
        assert!(token.may_on_table(Right::Select, &table) && !token.sees_figures(&table));
    }
    users.drop_policy(&ann, &table, "mine").unwrap();
    assert_eq!(found("eve", Right::Select, PolicyClause::Using), conditions(&[]), "no policy, no row");
}

#[test]
fn policies_follow_their_table_and_are_made_and_dropped_by_its_owner() {
    let server = Server::new();
    let (table, moved) = (TableName::new("s", "t"), TableName::new("s", "u"));
    let (users, ann, bob) = (&server.users, server.principal("ann"), server.principal("bob"));
    users.note_made(&ann, &Securable::Table(table.clone())).unwrap();
    let kind = |result: Result<()>| result.unwrap_err().kind();
    let mine = || policy("mine", None, "bob", "a = 1");
    assert_eq!(kind(users.create_policy(&bob, &table, mine())), ErrorKind::PermissionDenied);
    assert_eq!(kind(users.set_row_security(&bob, &table, true)), ErrorKind::PermissionDenied);
    let nobody = policy("mine", None, "nobody", "a = 1");
    assert_eq!(kind(users.create_policy(&ann, &table, nobody)), ErrorKind::NotFound);
    users.create_policy(&ann, &table, mine()).unwrap();
    assert_eq!(kind(users.create_policy(&ann, &table, mine())), ErrorKind::AlreadyExists);
    assert_eq!(kind(users.drop_policy(&ann, &table, "other")), ErrorKind::NotFound);
    assert_eq!(kind(users.drop_user(&server.root, "bob")), ErrorKind::FailedPrecondition);
    users.set_row_security(&ann, &table, true).unwrap();

    // They count for the new name before the table has it.
    users.note_renaming(&table, &moved).unwrap();
    fn found(users: &Users, table: &TableName) -> Option<BTreeSet<String>> {
        let bob = users.authority(&users.check_certified("bob").unwrap());
        bob.row_conditions(table, Right::Update, PolicyClause::Check)
    }
    assert_eq!(found(users, &moved), conditions(&["a = 1"]));
    users.note_renamed(&table, &moved).unwrap();
    assert_eq!((found(users, &table), found(users, &moved)), (None, conditions(&["a = 1"])));
    let mut changed = users.policies_on(&moved);
    changed.iter_mut().for_each(|policy| policy.using = Some("b = 1".to_owned()));
    users.note_conditions_changed(&moved, &changed).unwrap();
    let again = Server::open(&server.records);
    assert_eq!(found(&again, &moved), conditions(&["b = 1"]));
    users.forget(&Securable::Table(moved.clone())).unwrap();
    assert_eq!((found(users, &moved), users.policies()), (None, Vec::new()));
    assert!(server.records.all(ROW_SECURITY).unwrap().is_empty());
}
