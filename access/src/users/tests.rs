//! Changes of users and tokens, and who is let in after each.

#![allow(clippy::unwrap_used)]
use terrace_model::clock::ManualClock;
use terrace_model::error::ErrorKind;

use super::*;
use crate::issuer::tests::{RSA_TOKEN, rsa_issuer};
use crate::record::MemoryRecords;

const PASSWORD: &str = "correct horse";

fn new_user(name: &str, is_superuser: bool) -> NewUser {
    NewUser { name: name.to_owned(), password: PASSWORD.to_owned(), is_superuser }
}

fn new_token(user: &str, name: &str) -> NewToken {
    NewToken { name: name.to_owned(), user: user.to_owned(), is_read_only: false, scope: None, valid_for: None }
}

struct Server {
    records: Arc<MemoryRecords>,
    clock: Arc<ManualClock>,
    users: Arc<Users>,
}

impl Server {
    fn new(owner: Option<&str>) -> Self {
        let (records, clock) = (Arc::new(MemoryRecords::default()), Arc::new(ManualClock::default()));
        let users = Self::open(&records, &clock, owner);
        Self { records, clock, users }
    }

    fn open(records: &Arc<MemoryRecords>, clock: &Arc<ManualClock>, owner: Option<&str>) -> Arc<Users> {
        let owner = owner.map(|name| Owner { name: name.to_owned(), password: "geheim".to_owned() });
        Users::open(Arc::clone(records) as _, owner, Arc::clone(clock) as _).unwrap()
    }

    /// The same after a restart.
    fn again(&self, owner: Option<&str>) -> Arc<Users> {
        Self::open(&self.records, &self.clock, owner)
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[tokio::test]
async fn a_server_is_open_until_there_is_a_user_and_never_again() {
    let server = Server::new(None);
    let users = &server.users;
    let anybody = Principal::anonymous("");
    assert!(users.is_open() && users.is_current(&anybody));
    assert_eq!(kind(users.create_user(&anybody, &new_user("bob", false))), ErrorKind::FailedPrecondition);
    users.create_user(&anybody, &new_user("ann", true)).unwrap();
    assert!(!users.is_open() && !users.is_current(&anybody), "whoever came while it was open is out");
    assert_eq!(kind(users.create_user(&anybody, &new_user("eve", true))), ErrorKind::PermissionDenied);
    let ann = users.log_in("ann", PASSWORD).await.unwrap();
    assert!(ann.is_superuser && !ann.is_read_only && users.is_current(&ann));
    users.create_user(&ann, &new_user("bob", false)).unwrap();
    for refused in [
        users.drop_user(&ann, "ann"),
        users.alter_user(&ann, "ann", &UserChange { is_superuser: Some(false), ..UserChange::default() }),
    ] {
        assert_eq!(kind(refused), ErrorKind::FailedPrecondition);
    }
    let again = server.again(None);
    assert!(!again.is_open());
    assert_eq!(again.log_in("ann", PASSWORD).await, Ok(ann));
    assert_eq!(again.log_in("ann", "correct hors").await, Err(LoginError::Wrong));
    assert_eq!(again.log_in("eve", PASSWORD).await, Err(LoginError::Wrong));
    let names: Vec<_> = again.users().into_iter().map(|user| (user.name, user.is_superuser)).collect();
    assert_eq!(names, [("ann".to_owned(), true), ("bob".to_owned(), false)]);
}

#[tokio::test]
async fn what_was_shown_counts_until_the_user_changes() {
    let server = Server::new(Some("owner"));
    let users = &server.users;
    let owner = users.log_in("owner", "geheim").await.unwrap();
    assert_eq!(users.log_in("owner", "geheim ").await, Err(LoginError::Wrong));
    users.create_user(&owner, &new_user("bob", false)).unwrap();
    assert_eq!(users.log_in("owner", "geheim ").await, Err(LoginError::Wrong));
    let bob = users.log_in("bob", PASSWORD).await.unwrap();
    assert_eq!(users.log_in("bob", PASSWORD).await, Ok(bob.clone()), "remembered");
    let told = users.changes();
    let password = |text: &str| UserChange { password: Some(text.to_owned()), ..UserChange::default() };
    users.alter_user(&bob, "bob", &password("battery staple")).unwrap();
    assert!(told.has_changed().unwrap());
    assert!(!users.is_current(&bob));
    assert_eq!(users.log_in("bob", PASSWORD).await, Err(LoginError::Wrong), "what is remembered counts no more");
    let bob = users.log_in("bob", "battery staple").await.unwrap();
    users.alter_user(&owner, "bob", &UserChange { is_superuser: Some(true), ..UserChange::default() }).unwrap();
    assert!(!users.is_current(&bob) && users.log_in("bob", "battery staple").await.unwrap().is_superuser);
    let certified = users.check_certified("bob").unwrap();
    assert!(certified.is_superuser && users.is_current(&certified) && users.check_certified("eve").is_none());
    assert!(users.is_current(&users.check_certified("owner").unwrap()));
    users.drop_user(&owner, "bob").unwrap();
    assert!(!users.is_current(&certified));
    users.create_user(&owner, &NewUser { password: "battery staple".to_owned(), ..new_user("bob", false) }).unwrap();
    assert!(!users.is_current(&bob), "another user of the same name");
    assert!(users.is_current(&owner));
}

#[tokio::test]
async fn only_superusers_change_others() {
    let server = Server::new(Some("owner"));
    let users = &server.users;
    let owner = users.log_in("owner", "geheim").await.unwrap();
    for name in ["ann", "bob"] {
        users.create_user(&owner, &new_user(name, false)).unwrap();
    }
    let bob = users.log_in("bob", PASSWORD).await.unwrap();
    let password = UserChange { password: Some("battery staple".to_owned()), ..UserChange::default() };
    let rights = UserChange { is_superuser: Some(true), ..UserChange::default() };
    for refused in [
        users.create_user(&bob, &new_user("eve", false)),
        users.alter_user(&bob, "ann", &password),
        users.alter_user(&bob, "bob", &rights),
        users.drop_user(&bob, "ann"),
        users.create_token(&bob, &new_token("ann", "t")).map(drop),
    ] {
        assert_eq!(kind(refused), ErrorKind::PermissionDenied);
    }
    for refused in [users.drop_user(&owner, "owner"), users.alter_user(&owner, "owner", &password)] {
        assert_eq!(kind(refused), ErrorKind::FailedPrecondition);
    }
    assert_eq!(kind(users.create_user(&owner, &new_user("owner", false))), ErrorKind::FailedPrecondition);
    assert_eq!(kind(users.create_user(&owner, &new_user("ann", false))), ErrorKind::AlreadyExists);
    assert_eq!(kind(users.drop_user(&owner, "eve")), ErrorKind::NotFound);
    for name in ["", "a:b", "a/b", "a\nb", &"x".repeat(64)] {
        assert_eq!(kind(users.create_user(&owner, &new_user(name, false))), ErrorKind::InvalidArgument, "{name}");
    }
    let short = NewUser { password: "short".to_owned(), ..new_user("eve", false) };
    let error = users.create_user(&owner, &short).unwrap_err();
    assert!(!error.to_string().contains("short"), "{error}");
}

#[tokio::test]
async fn tokens_stand_for_their_user_until_they_end() {
    let server = Server::new(Some("owner"));
    let users = &server.users;
    let owner = users.log_in("owner", "geheim").await.unwrap();
    users.create_user(&owner, &new_user("bob", false)).unwrap();
    let bob = users.log_in("bob", PASSWORD).await.unwrap();
    let reading =
        NewToken { is_read_only: true, valid_for: Some(Duration::from_secs(60)), ..new_token("bob", "dashboard") };
    let (secret, listed) = users.create_token(&bob, &reading).unwrap();
    assert_eq!(listed.expires_unix_us, Some(listed.made_unix_us + 60_000_000));
    let reader = users.check_token(&secret).unwrap();
    assert!(reader.user == "bob" && reader.is_read_only && !reader.is_superuser && users.is_current(&reader));
    assert_eq!(users.log_in("bob", &secret).await, Ok(reader.clone()), "in place of the password");
    assert_eq!(users.log_in("owner", &secret).await, Err(LoginError::Wrong));
    let (job, _) = users.create_token(&bob, &new_token("bob", "all")).unwrap();
    let job = users.check_token(&job).unwrap();
    assert!(!job.is_read_only);
    for bearer in [&reader, &job] {
        let password = UserChange { password: Some(PASSWORD.to_owned()), ..UserChange::default() };
        for refused in [
            users.create_token(bearer, &new_token("bob", "more")).map(drop),
            users.drop_token(bearer, "bob", "dashboard"),
            users.alter_user(bearer, "bob", &password),
        ] {
            assert_eq!(kind(refused), ErrorKind::PermissionDenied, "what a token may do would outlast it");
        }
    }
    assert_eq!(users.next_expiry(), Some(Duration::from_secs(60)));
    assert_eq!(kind(users.create_token(&bob, &reading)), ErrorKind::AlreadyExists);
    assert!(!format!("{:?}", server.records).contains(&secret), "it is stored as a hash");
    let again = server.again(Some("owner"));
    assert_eq!(again.check_token(&secret), Some(reader.clone()));

    // The password changes: a token stays, a session by it begins anew.
    let password = UserChange { password: Some("battery staple".to_owned()), ..UserChange::default() };
    users.alter_user(&owner, "bob", &password).unwrap();
    assert!(!users.is_current(&reader));
    let reader = users.check_token(&secret).unwrap();
    server.clock.advance(Duration::from_secs(61));
    assert!(users.check_token(&secret).is_none() && !users.is_current(&reader), "it has expired");
    assert_eq!(users.next_expiry(), None);
    let bob = users.log_in("bob", "battery staple").await.unwrap();
    users.drop_token(&bob, "bob", "dashboard").unwrap();
    assert_eq!(kind(users.drop_token(&bob, "bob", "dashboard")), ErrorKind::NotFound);

    let (secret, _) = users.create_token(&owner, &new_token("bob", "job")).unwrap();
    let (of_owner, _) = users.create_token(&owner, &new_token("owner", "job")).unwrap();
    assert!(users.check_token(&of_owner).unwrap().is_superuser);
    assert!(server.again(None).check_token(&of_owner).is_none(), "the owner is gone");
    users.drop_user(&owner, "bob").unwrap();
    assert!(users.check_token(&secret).is_none());
    users.create_user(&owner, &new_user("bob", false)).unwrap();
    assert!(users.check_token(&secret).is_none(), "another user of the same name");
    assert_eq!(users.tokens().len(), 1);
    let inside = Principal::inside("terrace user");
    assert!(users.is_current(&inside) && users.drop_user(&inside, "bob").is_ok());
}

#[tokio::test]
async fn checks_of_passwords_are_bounded() {
    let server = Server::new(None);
    server.users.create_user(&Principal::anonymous(""), &new_user("ann", true)).unwrap();
    let attempts = (0..MOST_WAITING + CHECKS + 10).map(|number| {
        let users = Arc::clone(&server.users);
        tokio::spawn(async move { users.log_in("ann", &format!("guess {number}")).await })
    });
    let mut busy = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        match attempt.await.unwrap().unwrap_err() {
            LoginError::Busy { .. } => busy += 1,
            LoginError::Wrong => {}
        }
    }
    assert!(busy > 0 && busy <= 20, "{busy}");
    assert!(server.users.log_in("ann", PASSWORD).await.is_ok());
}

#[tokio::test]
async fn tokens_of_an_issuer_stand_for_users_who_exist() {
    let server = Server::new(Some("owner"));
    let users = &server.users;
    server.clock.advance(Duration::from_secs(1_000));
    assert!(!users.takes_jwt(RSA_TOKEN) && users.find_jwt(RSA_TOKEN).is_none());
    users.trust(rsa_issuer(Arc::clone(&server.clock)));
    assert!(users.takes_jwt(RSA_TOKEN) && !users.takes_jwt("terrace_abc") && !users.takes_jwt("a.b.c.d"));
    assert_eq!(users.log_in_by_jwt(RSA_TOKEN).await, Err(LoginError::Wrong), "there is no ann");
    let owner = users.log_in("owner", "geheim").await.unwrap();
    users.create_user(&owner, &new_user("ann", true)).unwrap();
    let ann = users.log_in_by_jwt(RSA_TOKEN).await.unwrap();
    assert!(ann.user == "ann" && ann.is_superuser && !ann.is_read_only && users.is_current(&ann));
    assert_eq!(users.find_jwt(RSA_TOKEN), Some(ann.clone()));
    assert_eq!(users.log_in_by_jwt("a.b.c").await, Err(LoginError::Wrong));
    assert_eq!(kind(users.create_user(&ann, &new_user("eve", false))), ErrorKind::PermissionDenied);
    assert_eq!(users.time_left(&ann), Some(Duration::from_secs(1_005)));
    assert_eq!(users.time_left(&owner), None);

    server.clock.advance(Duration::from_secs(1_005));
    assert!(!users.is_current(&ann) && users.find_jwt(RSA_TOKEN).is_none());
    let renewed = users.federated("ann", 3_000_000_000).unwrap();
    assert_eq!(renewed, ann);
    ann.renew(&renewed);
    assert!(users.is_current(&ann), "a renewed token goes on in the same session");
    let change = UserChange { password: Some("battery staple".to_owned()), is_superuser: None };
    users.alter_user(&owner, "ann", &change).unwrap();
    assert!(!users.is_current(&ann));
}

#[tokio::test]
async fn each_attempt_computes_one_hash_whomever_it_names() {
    let server = Server::new(Some("owner"));
    let users = &server.users;
    let owner = users.log_in("owner", "geheim").await.unwrap();
    for name in ["owner", "nobody"] {
        assert_eq!(users.log_in(name, PASSWORD).await, Err(LoginError::Wrong));
    }
    assert_eq!(users.compared_passwords(), 0, "there is no other user whom it could tell of");
    for name in ["bob", "gone"] {
        users.create_user(&owner, &new_user(name, false)).unwrap();
    }
    users.drop_user(&owner, "gone").unwrap();
    users.create_role(&owner, "readers").unwrap();
    let expiring = NewToken { valid_for: Some(Duration::from_secs(1)), ..new_token("bob", "short") };
    let (token, _) = users.create_token(&owner, &expiring).unwrap();
    server.clock.advance(Duration::from_secs(2));
    for (name, password, is_right) in [
        ("bob", PASSWORD, true),
        ("bob", "wrong horse", false),
        ("bob", token.as_str(), false),
        ("nobody", PASSWORD, false),
        ("gone", PASSWORD, false),
        ("readers", PASSWORD, false),
        ("owner", PASSWORD, false),
        ("", "", false),
    ] {
        let before = users.compared_passwords();
        assert_eq!(users.log_in(name, password).await.is_ok(), is_right, "{name}");
        assert_eq!(users.compared_passwords() - before, 1, "{name}");
    }
}
