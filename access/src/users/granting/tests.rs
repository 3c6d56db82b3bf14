//! Who holds which right, after each change of roles, owners and grants.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use terrace_model::TableName;
use terrace_model::clock::ManualClock;
use terrace_model::error::ErrorKind;

use super::*;
use crate::grants::MOST_DEPTH;
use crate::principal::Proof;
use crate::record::{MemoryRecords, Records};
use crate::scope::Scope;
use crate::users::{NewToken, NewUser, Owner};

const PASSWORD: &str = "correct horse";

pub(super) struct Server {
    pub(super) records: Arc<MemoryRecords>,
    pub(super) users: Arc<Users>,
    pub(super) root: Principal,
}

impl Server {
    /// With the users ann, bob and eve, who are no superusers.
    pub(super) fn new() -> Self {
        let records = Arc::new(MemoryRecords::default());
        let users = Self::open(&records);
        let root = Principal::new("root", true, Proof::Configuration);
        for name in ["ann", "bob", "eve"] {
            let user = NewUser { name: name.to_owned(), password: PASSWORD.to_owned(), is_superuser: false };
            users.create_user(&root, &user).unwrap();
        }
        Self { records, users, root }
    }

    pub(super) fn open(records: &Arc<MemoryRecords>) -> Arc<Users> {
        let owner = Owner { name: "root".to_owned(), password: "geheim".to_owned() };
        Users::open(Arc::clone(records) as _, Some(owner), Arc::new(ManualClock::default())).unwrap()
    }

    pub(super) fn principal(&self, name: &str) -> Principal {
        self.users.check_certified(name).unwrap()
    }

    pub(super) fn authority(&self, name: &str) -> Authority {
        self.users.authority(&self.principal(name))
    }

    /// Whoever shows a new token of a user.
    pub(super) fn bearer(&self, user: &str, scope: Option<Scope>) -> Principal {
        let name = format!("token {}", self.users.tokens().len());
        let new = NewToken { name, user: user.to_owned(), is_read_only: false, scope, valid_for: None };
        let (token, _) = self.users.create_token(&self.root, &new).unwrap();
        self.users.check_token(&token).unwrap()
    }

    fn grant(&self, right: Right, object: Securable, grantee: &str) {
        self.users.grant(&self.root, &order(right, object, grantee)).unwrap();
    }

    fn revoke(&self, right: Right, object: Securable, grantee: &str) {
        self.users.revoke(&self.root, &order(right, object, grantee)).unwrap();
    }

    fn roles(&self, names: &[&str]) {
        names.iter().for_each(|name| self.users.create_role(&self.root, name).unwrap());
    }

    fn join(&self, role: &str, member: &str) -> Result<()> {
        self.users.grant_roles(&self.root, &[role.to_owned()], &[member.to_owned()])
    }
}

fn order(right: Right, object: Securable, grantee: &str) -> Granting {
    Granting {
        rights: WhichRights::These(vec![right]),
        columns: Vec::new(),
        objects: vec![object],
        grantees: vec![grantee.to_owned()],
    }
}

fn table(schema: &str, name: &str) -> Securable {
    Securable::Table(TableName::new(schema, name))
}

fn schema(name: &str) -> Securable {
    Securable::Schema(name.to_owned())
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// SELECT and the like on columns of a table.
fn on_columns(rights: WhichRights, columns: &[&str], object: &Securable, grantee: &str) -> Granting {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Granting {
        rights: WhichRights::These(Vec::new()),
        columns: vec![ColumnRights { rights, columns }],
        ..order(Right::Select, object.clone(), grantee)
    }
}

#[test]
fn rights_on_columns_follow_them_and_end_with_them() {
    let server = Server::new();
    let (orders, name) = (table("shop", "orders"), TableName::new("shop", "orders"));
    let select = WhichRights::These(vec![Right::Select]);
    server.users.grant(&server.root, &on_columns(select.clone(), &["a", "b"], &orders, "ann")).unwrap();
    server.users.grant(&server.root, &on_columns(WhichRights::All, &["c"], &orders, "ann")).unwrap();
    let held = |right, column: &str| server.authority("ann").may_on_column(right, &name, column);
    assert!(
        held(Right::Select, "a") && held(Right::Select, "b") && held(Right::Insert, "c") && held(Right::Update, "c")
    );
    assert!(!held(Right::Select, "d") && !held(Right::Update, "a"));
    let ann = server.authority("ann");
    assert!(ann.sees_table(&name) && ann.sees_schema("shop") && !ann.may_on_table(Right::Select, &name));
    assert!(ann.may_on_some_column(Right::Update, &name) && !ann.sees_figures(&name));
    assert!(!server.authority("bob").sees_table(&name));
    let delete = on_columns(WhichRights::These(vec![Right::Delete]), &["a"], &orders, "ann");
    assert_eq!(kind(server.users.grant(&server.root, &delete)), ErrorKind::InvalidArgument);

    // A token uses them where its scope has the right on the table.
    let mut scope = Scope::default();
    scope.allow(Right::Select, orders.clone());
    let token = server.users.authority(&server.bearer("ann", Some(scope)));
    assert!(token.may_on_column(Right::Select, &name, "a") && !token.may_on_column(Right::Insert, &name, "c"));

    let change = |column: &str, renamed: Option<&str>| ColumnChange {
        column: column.to_owned(),
        renamed: renamed.map(str::to_owned),
    };
    let version = server.users.rights_version();
    server.users.note_columns_changed(&name, &[change("x", None)]).unwrap();
    assert_eq!(server.users.rights_version(), version, "no right is another one");
    let changes = [change("a", Some("e")), change("b", Some("a")), change("c", None)];
    server.users.note_columns_changed(&name, &changes).unwrap();
    assert!(held(Right::Select, "e") && held(Right::Select, "a") && !held(Right::Select, "b"));
    assert!(!held(Right::Insert, "c"));

    // With the table to another name, and after a restart.
    let moved = TableName::new("shop", "sold");
    server.users.note_renamed(&name, &moved).unwrap();
    assert!(!held(Right::Select, "e"));
    let again = Server::open(&server.records);
    let ann = again.authority(&again.check_certified("ann").unwrap());
    assert!(ann.may_on_column(Right::Select, &moved, "e") && !ann.sees_table(&name));
    let shown = again.grants().into_iter().filter_map(|granted| granted.column).collect::<Vec<_>>();
    assert_eq!(shown, ["a", "e"]);

    // A right on the table that is revoked is so on its columns; one on another object of the name is none.
    let sold = table("shop", "sold");
    server.users.revoke(&server.root, &on_columns(select, &["a"], &sold, "ann")).unwrap();
    let of_sold = |column: &str| server.authority("ann").may_on_column(Right::Select, &moved, column);
    assert!(!of_sold("a") && of_sold("e"));
    server.revoke(Right::Select, sold.clone(), "ann");
    assert!(!of_sold("e") && server.users.grants().is_empty());
    server.users.grant(&server.root, &on_columns(WhichRights::All, &["e"], &sold, "ann")).unwrap();
    server.users.note_made(&server.root, &sold).unwrap();
    assert!(!of_sold("e"));
    server.users.grant(&server.root, &on_columns(WhichRights::All, &["e"], &sold, "ann")).unwrap();
    server.users.drop_user(&server.root, "ann").unwrap();
    assert!(server.users.grants().iter().all(|granted| granted.column.is_none()));
    assert!(server.records.all(crate::record::COLUMN_RIGHTS).unwrap().is_empty());
}

#[test]
fn whoever_asks_walks_up_the_names() {
    let server = Server::new();
    let (orders, bills) = (table("shop", "orders"), table("shop", "bills"));
    let held = |right, object: &Securable| server.authority("ann").may(right, object);
    assert!(!held(Right::Select, &orders));
    server.grant(Right::Select, orders.clone(), "ann");
    assert!(held(Right::Select, &orders) && !held(Right::Insert, &orders) && !held(Right::Select, &bills));
    server.grant(Right::Insert, schema("shop"), "ann");
    assert!(held(Right::Insert, &orders) && held(Right::Insert, &bills) && !held(Right::Insert, &table("x", "y")));
    server.grant(Right::Delete, Securable::Database, "ann");
    assert!(held(Right::Delete, &table("x", "y")) && held(Right::Delete, &schema("x")));
    assert!(!held(Right::Monitor, &Securable::Server) && !server.authority("bob").may(Right::Select, &orders));
    server.revoke(Right::Select, orders.clone(), "ann");
    assert!(!held(Right::Select, &orders));
}

#[test]
fn roles_hand_their_rights_on_and_public_is_everybody() {
    let server = Server::new();
    server.roles(&["readers", "staff"]);
    server.grant(Right::Select, table("a", "t"), "readers");
    server.join("readers", "staff").unwrap();
    server.join("staff", "ann").unwrap();
    let may = |name: &str| server.authority(name).may(Right::Select, &table("a", "t"));
    assert!(may("ann") && !may("bob"));
    server.users.revoke_roles(&server.root, &["readers".to_owned()], &["staff".to_owned()]).unwrap();
    assert!(!may("ann"));
    server.grant(Right::Select, table("a", "t"), PUBLIC);
    assert!(may("ann") && may("bob"));
    let roles = server.users.roles();
    assert_eq!(
        roles.iter().map(|role| (role.name.as_str(), role.members.join(","))).collect::<Vec<_>>(),
        [("readers", String::new()), ("staff", "ann".to_owned())]
    );
}

#[test]
fn roles_in_roles_end_somewhere() {
    let server = Server::new();
    server.roles(&["a", "b", "c"]);
    server.join("a", "b").unwrap();
    server.join("b", "c").unwrap();
    for (role, member) in [("c", "a"), ("a", "a"), ("b", "a")] {
        let error = server.join(role, member).unwrap_err();
        assert!(error.kind() == ErrorKind::FailedPrecondition && error.to_string().contains("member of"), "{error}");
    }
    let names: Vec<String> = (0..=MOST_DEPTH + 1).map(|i| format!("r{i}")).collect();
    server.roles(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let joined: Vec<_> = names.windows(2).map(|pair| server.join(&pair[0], &pair[1])).collect();
    assert!(joined[..MOST_DEPTH].iter().all(|joined| joined.is_ok()));
    assert_eq!(kind(joined[MOST_DEPTH].clone()), ErrorKind::ResourceExhausted);
}

#[test]
fn users_and_roles_share_their_names() {
    let server = Server::new();
    server.roles(&["readers"]);
    let user = |name: &str| NewUser { name: name.to_owned(), password: PASSWORD.to_owned(), is_superuser: false };
    assert_eq!(kind(server.users.create_user(&server.root, &user("readers"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(server.users.create_role(&server.root, "ann")), ErrorKind::AlreadyExists);
    assert_eq!(kind(server.users.create_role(&server.root, "root")), ErrorKind::AlreadyExists);
    for made in [server.users.create_user(&server.root, &user(PUBLIC)), server.users.create_role(&server.root, PUBLIC)]
    {
        assert_eq!(kind(made), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(server.join("readers", PUBLIC)), ErrorKind::InvalidArgument);
    assert_eq!(kind(server.join("readers", "nobody")), ErrorKind::NotFound);
    assert_eq!(kind(server.join("ann", "bob")), ErrorKind::NotFound);
}

#[test]
fn owners_may_do_everything_and_give_rights_away() {
    let server = Server::new();
    let ann = server.principal("ann");
    let (mine, other) = (table("a", "mine"), table("a", "other"));
    server.users.note_made(&ann, &mine).unwrap();
    assert!(server.authority("ann").owns(&mine) && server.authority("ann").may(Right::Truncate, &mine));
    server.users.grant(&ann, &order(Right::Select, mine.clone(), "bob")).unwrap();
    assert!(server.authority("bob").may(Right::Select, &mine) && !server.authority("bob").owns(&mine));
    assert_eq!(
        kind(server.users.grant(&ann, &order(Right::Select, other.clone(), "bob"))),
        ErrorKind::PermissionDenied
    );
    let bob = server.principal("bob");
    assert_eq!(kind(server.users.grant(&bob, &order(Right::Select, mine.clone(), "eve"))), ErrorKind::PermissionDenied);
    assert_eq!(kind(server.users.give(&ann, &mine, "bob")), ErrorKind::PermissionDenied, "no role of hers");
    server.users.note_made(&ann, &schema("hers")).unwrap();
    assert!(server.authority("ann").owns(&table("hers", "t")), "what lies in her schema");
    server.users.give(&server.root, &mine, "bob").unwrap();
    assert!(server.authority("bob").owns(&mine) && !server.authority("ann").owns(&mine));
    server.users.note_made(&Principal::inside("x"), &mine).unwrap();
    assert_eq!(server.users.owner_of(&mine), None, "made anew, by nobody");
    assert!(!server.authority("bob").may(Right::Select, &mine), "grants on the earlier one are gone");
}

#[test]
fn renamed_objects_keep_their_rights_and_dropped_ones_leave_none() {
    let server = Server::new();
    let ann = server.principal("ann");
    server.users.note_made(&ann, &table("a", "old")).unwrap();
    server.grant(Right::Select, table("a", "old"), "bob");
    server.users.note_renamed(&TableName::new("a", "old"), &TableName::new("a", "new")).unwrap();
    assert!(server.authority("bob").may(Right::Select, &table("a", "new")));
    assert!(!server.authority("bob").may(Right::Select, &table("a", "old")));
    assert!(server.authority("ann").owns(&table("a", "new")));
    server.users.forget(&table("a", "new")).unwrap();
    assert_eq!(server.users.grants(), []);
}

#[test]
fn who_owns_something_stays_and_who_goes_leaves_no_grants() {
    let server = Server::new();
    server.roles(&["readers"]);
    server.join("readers", "ann").unwrap();
    server.users.note_made(&server.principal("ann"), &table("a", "t")).unwrap();
    let error = server.users.drop_user(&server.root, "ann").unwrap_err();
    assert!(error.kind() == ErrorKind::FailedPrecondition && error.to_string().contains("table a.t"), "{error}");
    server.users.give(&server.root, &table("a", "t"), "readers").unwrap();
    assert!(server.users.drop_role(&server.root, "readers").is_err());
    server.users.give(&server.root, &table("a", "t"), "root").unwrap();
    server.grant(Right::Select, table("a", "t"), "ann");
    server.grant(Right::Select, table("a", "t"), "readers");
    server.users.drop_user(&server.root, "ann").unwrap();
    server.users.drop_role(&server.root, "readers").unwrap();
    let left = server.users.grants();
    assert!(left.iter().all(|granted| granted.grantee == "root"), "{left:?}");
    let user = NewUser { name: "ann".to_owned(), password: PASSWORD.to_owned(), is_superuser: false };
    server.users.create_user(&server.root, &user).unwrap();
    assert!(!server.authority("ann").may(Right::Select, &table("a", "t")), "another ann");
}

#[test]
fn who_was_dropped_owns_nothing_and_nobody_is_everybody() {
    let server = Server::new();
    let eve = server.principal("eve");
    server.users.drop_user(&server.root, "eve").unwrap();
    assert_eq!(kind(server.users.note_made(&eve, &table("a", "t"))), ErrorKind::PermissionDenied);
    // Such a user may be there from before the name was reserved, or be the one of the configuration.
    let named_public = |is_superuser| Principal { user: PUBLIC.to_owned(), is_superuser, ..server.root.clone() };
    assert_eq!(kind(server.users.note_made(&named_public(false), &table("a", "t"))), ErrorKind::InvalidArgument);
    server.users.note_made(&named_public(true), &table("a", "t")).unwrap();
    assert!(!server.authority("ann").owns(&table("a", "t")));
    server.grant(Right::Select, table("a", "t"), "bob");
    server.users.note_replaced(&server.principal("ann"), &table("a", "t")).unwrap();
    assert!(
        server.authority("ann").owns(&table("a", "t")) && server.authority("bob").may(Right::Select, &table("a", "t"))
    );
}

#[test]
fn what_is_refused_is_not_there_after_a_restart() {
    let server = Server::new();
    server.roles(&["readers"]);
    let both = ["ann".to_owned(), "readers".to_owned()];
    assert!(server.users.grant_roles(&server.root, &["readers".to_owned()], &both).is_err());
    for users in [&server.users, &Server::open(&server.records)] {
        assert_eq!(users.roles()[0].members, [""; 0]);
    }
}

#[test]
fn rights_survive_a_restart_and_each_change_is_told() {
    let server = Server::new();
    let mut changes = server.users.changes();
    changes.mark_unchanged();
    let before = server.users.rights_version();
    server.roles(&["readers"]);
    server.join("readers", "ann").unwrap();
    server.grant(Right::Select, table("a.b", "c"), "readers");
    assert!(changes.has_changed().unwrap() && server.users.rights_version() > before);
    let again = Server::open(&server.records);
    let ann = again.authority(&server.principal("ann"));
    assert!(ann.may(Right::Select, &table("a.b", "c")) && !ann.may(Right::Select, &table("a", "b.c")));
    assert_eq!(again.grants(), server.users.grants());
}

#[test]
fn rights_fit_their_objects_and_tokens_give_none_away() {
    let server = Server::new();
    for (right, object) in [
        (Right::Monitor, table("a", "t")),
        (Right::Usage, table("a", "t")),
        (Right::Select, Securable::Server),
        (Right::Backup, Securable::Database),
    ] {
        let error = server.users.grant(&server.root, &order(right, object, "ann")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let all = Granting { rights: WhichRights::All, ..order(Right::Select, schema("a"), "ann") };
    server.users.grant(&server.root, &all).unwrap();
    assert!(server.authority("ann").may(Right::Create, &schema("a")) && !server.authority("ann").owns(&schema("a")));
    let bearer = server.bearer("root", None);
    assert_eq!(kind(server.users.grant(&bearer, &all)), ErrorKind::PermissionDenied);
    assert_eq!(kind(server.users.create_role(&bearer, "more")), ErrorKind::PermissionDenied);
}

#[test]
fn lists_show_what_one_may_see() {
    let server = Server::new();
    server.grant(Right::Insert, table("a", "t"), "ann");
    server.grant(Right::Usage, schema("b"), "ann");
    let ann = server.authority("ann");
    assert!(ann.sees_table(&TableName::new("a", "t")) && !ann.sees_table(&TableName::new("a", "u")));
    assert!(ann.sees_schema("a") && ann.sees_schema("b") && ann.sees_schema("public") && !ann.sees_schema("c"));
    assert!(ann.sees_names_in("b") && !ann.sees_names_in("a"));
    assert!(!ann.sees_figures(&TableName::new("a", "t")), "only whoever reads it");
    server.grant(Right::Monitor, Securable::Server, "ann");
    let ann = server.authority("ann");
    assert!(ann.sees_figures(&TableName::new("a", "t")) && !ann.sees_table(&TableName::new("a", "u")));
    assert!(Authority::EVERYTHING.sees_schema("c") && server.users.authority(&server.root).is_unlimited());
}

/// A scope of rights on objects.
fn scope(rights: impl IntoIterator<Item = (Right, Securable)>) -> Scope {
    let mut scope = Scope::default();
    rights.into_iter().for_each(|(right, object)| scope.allow(right, object));
    scope
}

#[test]
fn a_token_may_do_what_both_its_scope_and_its_user_may() {
    let server = Server::new();
    let ann = server.principal("ann");
    server.users.note_made(&ann, &schema("hers")).unwrap();
    server.grant(Right::Select, table("a", "t"), "ann");
    server.grant(Right::Monitor, Securable::Server, "ann");
    let everywhere = server.bearer("ann", Some(scope([(Right::Select, Securable::Database)])));
    let authority = server.users.authority(&everywhere);
    assert!(!everywhere.is_superuser && !authority.is_unlimited());
    assert!(authority.may(Right::Select, &table("a", "t")) && authority.may(Right::Select, &table("hers", "t")));
    assert!(!authority.may(Right::Select, &table("a", "u")), "the user may not");
    assert!(!authority.may(Right::Insert, &table("hers", "t")) && !authority.may_on_server(Right::Monitor));
    assert!(!authority.owns(&table("hers", "t")) && !authority.holds("ann") && !authority.is_self("ann"));
    assert!(authority.sees_schema("hers") && authority.sees_schema("a") && !authority.sees_schema("b"));
    assert!(authority.sees_table(&TableName::new("a", "t")) && !authority.sees_names_in("a"));

    let narrow = [(Right::Insert, table("hers", "log")), (Right::Select, table("b", "t"))];
    let narrow = server.users.authority(&server.bearer("ann", Some(scope(narrow))));
    assert!(narrow.may(Right::Insert, &table("hers", "log")) && !narrow.may(Right::Select, &table("hers", "log")));
    assert!(
        !narrow.may(Right::Insert, &table("hers", "other")) && !narrow.sees_table(&TableName::new("hers", "other"))
    );
    assert!(narrow.sees_schema("hers") && !narrow.sees_names_in("hers") && !narrow.sees_schema("b"));

    // What the user loses, the token loses; what the user gets beyond the scope, it does not get.
    server.revoke(Right::Select, table("a", "t"), "ann");
    server.grant(Right::Insert, table("a", "t"), "ann");
    let authority = server.users.authority(&everywhere);
    assert!(!authority.may(Right::Select, &table("a", "t")) && !authority.may(Right::Insert, &table("a", "t")));
    let nothing = server.users.authority(&server.bearer("ann", Some(Scope::default())));
    assert!(!nothing.may(Right::Select, &table("hers", "t")) && !nothing.sees_schema("hers"));
}

#[test]
fn the_scope_of_a_superuser_limits_too_and_survives_a_restart() {
    let server = Server::new();
    let reading = server.bearer("root", Some(scope([(Right::Select, table("a", "t"))])));
    for users in [&server.users, &Server::open(&server.records)] {
        let authority = users.authority(&reading);
        assert!(users.is_current(&reading) && !reading.is_superuser && !authority.is_unlimited());
        assert!(authority.may(Right::Select, &table("a", "t")) && !authority.may(Right::Delete, &table("a", "t")));
        assert!(!authority.may(Right::Select, &table("a", "u")) && !authority.may_on_server(Right::Tiering));
        assert!(authority.sees_schema("a") && !authority.sees_schema("b") && !authority.owns(&table("a", "t")));
        assert_eq!(users.tokens()[0].scope.as_ref().unwrap().to_string(), "(SELECT ON table a.t)");
    }
    let other = server.bearer("root", Some(scope([(Right::Select, table("a", "u"))])));
    assert_ne!(reading, other, "they share no session");
    assert_eq!(kind(server.users.create_role(&reading, "more")), ErrorKind::PermissionDenied);
    let many = scope((0..=1_000).map(|i| (Right::Select, table("a", &i.to_string()))));
    let new =
        NewToken { name: "t".into(), user: "root".into(), is_read_only: false, scope: Some(many), valid_for: None };
    assert_eq!(kind(server.users.create_token(&server.root, &new)), ErrorKind::ResourceExhausted);
    let [first, second] = [server.users.tokens().remove(0), server.users.tokens().remove(1)];
    server.users.drop_token(&server.root, "root", &first.name).unwrap();
    assert!(!server.users.is_current(&reading));
    let again = Server::open(&server.records);
    assert_eq!(again.tokens(), [second], "a dropped one stays dropped");
}
