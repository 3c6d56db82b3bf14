//! Logging in, sessions, options, stopping.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use arrow_flight::{
    CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, Criteria, Empty, FlightData, FlightDescriptor,
    FlightInfo, Ticket,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{StreamExt, stream};
use prost::Message;
use terrace_access::{
    Ending, Granting, MemoryRecords, NewToken, NewUser, Owner, Right, Scope, Securable, UserChange, Users, WhichRights,
};
use terrace_model::clock::SystemClock;
use tonic::Code;

use super::{Client, Harness, act, eventually, query, rows, status};
use crate::{
    FlightOptions, action,
    proto::{
        CloseSessionResult, GetSessionOptionsResult, OptionValue, SessionOptionErrorValue, SessionOptionValue,
        SetSessionOptionsRequest, SetSessionOptionsResult, StringList,
    },
};

fn with_password() -> FlightOptions {
    let owner = Owner { name: "ada".into(), password: "secret".into() };
    let users = Users::open(Arc::new(MemoryRecords::default()), Some(owner), Arc::new(SystemClock::default())).unwrap();
    FlightOptions { users: Some(users), ..FlightOptions::default() }
}

async fn refused(client: &mut Client) -> String {
    let refused = query(client, "rows 3").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    refused.message().to_owned()
}

#[tokio::test]
async fn a_password_buys_a_token() {
    let harness = Harness::start(with_password()).await;
    let mut client = harness.connect().await;
    assert!(refused(&mut client).await.contains("log in with user and password"));
    for (user, password) in [("ada", ""), ("ada", "wrong"), ("", "secret"), ("bob", "secret")] {
        let message = client.handshake(user, password).await.unwrap_err().to_string();
        assert!(message.contains("wrong user or password"), "{message}");
    }
    let token = client.handshake("ada", "secret").await.unwrap();
    assert_eq!(rows(&query(&mut client, "rows 3").await.unwrap()), 3);
    assert_eq!(harness.engine.sessions.lock()[0].1.user, "ada");

    let mut other = harness.connect().await;
    other.set_token(String::from_utf8(token.to_vec()).unwrap());
    assert_eq!(rows(&query(&mut other, "rows 3").await.unwrap()), 3);
    other.set_token("guess".into());
    assert!(refused(&mut other).await.contains("log in again"));
    other.clear_token();
    other.set_header("authorization", "Digest abc");
    assert!(refused(&mut other).await.contains("neither 'Basic"));
}

#[tokio::test]
async fn log_ins_are_recorded() {
    let options = with_password();
    let audit = Arc::clone(&options.audit);
    let harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    refused(&mut client).await;
    client.handshake("ada", "wrong").await.unwrap_err();
    client.handshake("ada", "secret").await.unwrap();
    query(&mut client, "rows 3").await.unwrap();
    client.set_token("guess".into());
    refused(&mut client).await;
    let events = audit.latest();
    let shown: Vec<_> =
        events.iter().map(|event| (event.action.as_str(), event.user.as_str(), event.outcome)).collect();
    let expected =
        [("token", "", Ending::Refused), ("password", "ada", Ending::Done), ("password", "ada", Ending::Refused)];
    assert_eq!(shown, expected, "who shows nothing does not log in");
    assert!(events[1].session.is_some() && events[1].address.is_some());
}

/// Each action, and whether it is answered without a login: those that end something are, as there is nothing to end then. Whoever adds an
/// action adds a line.
const ACTIONS: [(&str, bool); 12] = [
    ("CreatePreparedStatement", false),
    ("ClosePreparedStatement", true),
    ("BeginTransaction", false),
    ("EndTransaction", false),
    ("BeginSavepoint", false),
    ("EndSavepoint", false),
    ("CancelQuery", false),
    ("CancelFlightInfo", false),
    ("RenewFlightEndpoint", false),
    ("SetSessionOptions", false),
    ("GetSessionOptions", false),
    ("CloseSession", true),
];

#[tokio::test]
async fn each_action_says_whether_it_needs_a_login() {
    let harness = Harness::start(with_password()).await;
    let offered: BTreeSet<String> = action::list().into_iter().map(|action| action.r#type).collect();
    assert_eq!(offered, BTreeSet::from(ACTIONS.map(|(name, _)| name.to_owned())));
    for (name, is_open) in ACTIONS {
        let mut nobody = harness.connect().await;
        match act(&mut nobody, name, vec![]).await {
            Ok(_) => assert!(is_open, "{name}"),
            Err(error) => assert!(!is_open && error.code() == Code::Unauthenticated, "{name}: {error}"),
        }
    }
    assert!(harness.engine.sessions.lock().is_empty());
}

/// The calls of Flight but Handshake, which logs in, and DoAction, whose actions are above.
#[tokio::test]
async fn each_call_needs_a_login() {
    let harness = Harness::start(with_password()).await;
    let mut nobody = harness.connect().await;
    let flight = nobody.inner_mut();
    let refusals = [
        ("ListFlights", flight.list_flights(Criteria::default()).await.err()),
        ("ListActions", flight.list_actions(Empty {}).await.err()),
        ("GetFlightInfo", flight.get_flight_info(FlightDescriptor::default()).await.err()),
        ("PollFlightInfo", flight.poll_flight_info(FlightDescriptor::default()).await.err()),
        ("GetSchema", flight.get_schema(FlightDescriptor::default()).await.err()),
        ("DoGet", flight.do_get(Ticket::default()).await.err()),
        ("DoPut", flight.do_put(stream::iter([FlightData::default()])).await.err()),
    ];
    for (call, refusal) in refusals {
        assert_eq!(refusal.map(|status| status.code()), Some(Code::Unauthenticated), "{call}");
    }
    let exchange = flight.do_exchange(stream::iter([FlightData::default()])).await.err();
    assert_eq!(exchange.map(|status| status.code()), Some(Code::Unimplemented), "nobody may");
    assert!(harness.engine.sessions.lock().is_empty());
}

#[tokio::test]
async fn queries_of_others_are_cancelled_with_the_right_to() {
    async fn cancel(client: &mut Client, info: &FlightInfo) -> CancelStatus {
        let body = CancelFlightInfoRequest::new(info.clone()).encode_to_vec();
        let results = act(client, "CancelFlightInfo", body).await.unwrap();
        CancelFlightInfoResult::decode(results[0].clone()).unwrap().status()
    }

    let options = with_password();
    let users = Arc::clone(options.users.as_ref().unwrap());
    let harness = Harness::start(options).await;
    let owner = users.log_in("ada", "secret").await.unwrap();
    let mut ann = harness.connect().await;
    let mut bob = harness.connect().await;
    for (name, client) in [("ann", &mut ann), ("bob", &mut bob)] {
        let user = NewUser { name: name.into(), password: "correct horse".into(), is_superuser: false };
        users.create_user(&owner, &user).unwrap();
        client.handshake(name, "correct horse").await.unwrap();
    }
    let info = ann.execute("endless".into(), None).await.unwrap();
    assert_eq!(cancel(&mut bob, &info).await, CancelStatus::NotCancellable, "it does not run yet");
    let mut stream = ann.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    assert_eq!(cancel(&mut bob, &info).await, CancelStatus::NotCancellable);
    let rights = WhichRights::These(vec![Right::Cancel]);
    let (objects, grantees) = (vec![Securable::Server], vec!["bob".into()]);
    let order = Granting { rights, columns: Vec::new(), objects, grantees };
    users.grant(&owner, &order).unwrap();
    assert_eq!(cancel(&mut bob, &info).await, CancelStatus::Cancelled);
    assert_eq!(harness.engine.counters.cancelled.lock().len(), 1);
}

#[tokio::test]
async fn sessions_end_when_their_user_or_token_does() {
    let options = with_password();
    let users = Arc::clone(options.users.as_ref().unwrap());
    let harness = Harness::start(options).await;
    let owner = users.log_in("ada", "secret").await.unwrap();
    let bob = NewUser { name: "bob".into(), password: "correct horse".into(), is_superuser: false };
    users.create_user(&owner, &bob).unwrap();
    let reading = NewToken { name: "t".into(), user: "bob".into(), is_read_only: true, scope: None, valid_for: None };
    let (secret, _) = users.create_token(&owner, &reading).unwrap();

    let mut by_password = harness.connect().await;
    by_password.handshake("bob", "correct horse").await.unwrap();
    query(&mut by_password, "rows 3").await.unwrap();
    let mut by_token = harness.connect().await;
    by_token.set_token(secret.clone());
    query(&mut by_token, "rows 3").await.unwrap();
    // The token in place of a password.
    harness.connect().await.handshake("bob", &secret).await.unwrap();
    let opened: Vec<_> = harness.engine.sessions.lock().iter().map(|(_, who)| who.clone()).collect();
    assert_eq!(opened.iter().map(|who| who.is_read_only).collect::<Vec<_>>(), [false, true, true]);
    assert!(opened.iter().all(|who| who.user == "bob" && !who.is_superuser));

    let password = UserChange { password: Some("battery staple".into()), ..UserChange::default() };
    users.alter_user(&owner, "bob", &password).unwrap();
    assert!(refused(&mut by_password).await.contains("log in again"));
    let ended = query(&mut by_token, "rows 3").await.unwrap_err();
    assert!(ended.message().contains("its user or token changed"), "a transaction is not lost unheard: {ended}");
    query(&mut by_token, "rows 3").await.unwrap();
    eventually("those from before the change end", || harness.engine.sessions.lock().len() == 1).await;
    act(&mut by_token, "CloseSession", vec![]).await.unwrap();
    assert!(harness.engine.sessions.lock().is_empty());
    query(&mut by_token, "rows 3").await.unwrap();
    users.drop_user(&owner, "bob").unwrap();
    assert!(refused(&mut by_token).await.contains("log in again"));
    eventually("the session of the token ends", || harness.engine.sessions.lock().is_empty()).await;
}

#[tokio::test]
async fn a_token_fetches_no_query_of_sessions_that_may_do_more() {
    let options = with_password();
    let users = Arc::clone(options.users.as_ref().unwrap());
    let harness = Harness::start(options).await;
    let owner = users.log_in("ada", "secret").await.unwrap();
    let token = |name: &str, is_read_only: bool, right: Option<Right>| {
        let scope = right.map(|right| {
            let mut scope = Scope::default();
            scope.allow(right, Securable::Database);
            scope
        });
        let new = NewToken { name: name.into(), user: "ada".into(), is_read_only, scope, valid_for: None };
        users.create_token(&owner, &new).unwrap().0
    };
    let bearer = async |secret: String| {
        let mut client = harness.connect().await;
        client.set_token(secret);
        client
    };
    let mut whole = harness.connect().await;
    whole.handshake("ada", "secret").await.unwrap();
    let mut again = harness.connect().await;
    again.handshake("ada", "secret").await.unwrap();
    let mut read_only = bearer(token("reads", true, None)).await;
    let selecting = token("selects", false, Some(Right::Select));
    let mut scoped = bearer(selecting.clone()).await;
    let mut inserting = bearer(token("inserts", false, Some(Right::Insert))).await;

    let plan = async |client: &mut Client| client.execute("rows 3".into(), None).await.unwrap();
    let info = plan(&mut whole).await;
    for less in [&mut read_only, &mut scoped] {
        let error = super::fetch(less, info.clone()).await.unwrap_err();
        assert!(error.code() == Code::NotFound && error.message().contains("unknown"), "{error}");
        let body = CancelFlightInfoRequest::new(info.clone()).encode_to_vec();
        let results = act(less, "CancelFlightInfo", body).await.unwrap();
        let status = CancelFlightInfoResult::decode(results[0].clone()).unwrap().status();
        assert_eq!(status, CancelStatus::NotCancellable);
    }
    assert_eq!(rows(&super::fetch(&mut again, info).await.unwrap()), 3, "another session of the user");
    let info = plan(&mut scoped).await;
    assert_eq!(super::fetch(&mut inserting, info.clone()).await.unwrap_err().code(), Code::NotFound);
    let mut same = bearer(selecting).await;
    assert_eq!(rows(&super::fetch(&mut same, info).await.unwrap()), 3, "another connection with the token");
    let info = plan(&mut read_only).await;
    assert_eq!(rows(&super::fetch(&mut whole, info).await.unwrap()), 3, "whoever may do more");
}

#[tokio::test]
async fn credentials_with_every_call_have_one_session_per_connection() {
    let harness = Harness::start(with_password()).await;
    let mut clients = [harness.connect().await, harness.connect().await];
    for client in &mut clients {
        client.set_header("authorization", "Basic YWRhOnNlY3JldA==");
        for _ in 0..3 {
            query(client, "rows 3").await.unwrap();
        }
    }
    assert_eq!(harness.engine.sessions.lock().len(), 2, "the name of the user alone joins no sessions");
    let [first, mut second] = clients;
    drop(first);
    eventually("the session of a lost connection ends", || harness.engine.sessions.lock().len() == 1).await;
    let closed = act(&mut second, "CloseSession", vec![]).await.unwrap();
    assert_eq!(CloseSessionResult::decode(closed[0].clone()).unwrap().status, 1);
    assert!(harness.engine.sessions.lock().is_empty());
}

#[tokio::test]
async fn an_unused_token_expires_and_full_tables_refuse_newcomers_only() {
    let options = FlightOptions { session_ttl: Some(Duration::from_millis(300)), max_sessions: 1, ..with_password() };
    let harness = Harness::start(options).await;
    let mut first = harness.connect().await;
    first.handshake("ada", "secret").await.unwrap();
    query(&mut first, "rows 3").await.unwrap();
    let mut second = harness.connect().await;
    assert!(second.handshake("ada", "secret").await.unwrap_err().to_string().contains("which is the limit"));
    query(&mut first, "rows 3").await.unwrap();

    tokio::time::sleep(Duration::from_millis(350)).await;
    assert!(refused(&mut first).await.contains("expired"));
    assert!(harness.engine.sessions.lock().is_empty(), "it ends when it is found to have expired");
    second.handshake("ada", "secret").await.unwrap();
    assert_eq!(harness.engine.sessions.lock().len(), 1);
}

#[tokio::test]
async fn logins_that_nobody_uses_make_room_for_newcomers() {
    let harness = Harness::start(FlightOptions { max_sessions: 2, ..with_password() }).await;
    let mut used = harness.connect().await;
    used.handshake("ada", "secret").await.unwrap();
    query(&mut used, "rows 3").await.unwrap();
    for _ in 0..5 {
        harness.connect().await.handshake("ada", "secret").await.unwrap();
        assert!(harness.engine.sessions.lock().len() <= 2);
    }
    query(&mut used, "rows 3").await.unwrap();
}

#[tokio::test]
async fn a_user_keeps_nobody_out_however_many_sessions_it_opens() {
    let options = FlightOptions { max_sessions_per_user: 2, ..with_password() };
    let users = Arc::clone(options.users.as_ref().unwrap());
    let harness = Harness::start(options).await;
    let owner = users.log_in("ada", "secret").await.unwrap();
    let bob = NewUser { name: "bob".into(), password: "correct horse".into(), is_superuser: false };
    users.create_user(&owner, &bob).unwrap();
    let mut first = harness.connect().await;
    let mut second = harness.connect().await;
    for client in [&mut first, &mut second] {
        client.handshake("ada", "secret").await.unwrap();
        query(client, "rows 3").await.unwrap();
    }
    let mut third = harness.connect().await;
    let refused = third.handshake("ada", "secret").await.unwrap_err().to_string();
    assert!(refused.contains("'ada' has 2 sessions"), "{refused}");
    third.set_header("authorization", "Basic YWRhOnNlY3JldA==");
    let refused = query(&mut third, "rows 3").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "those of connections count, too: {refused}");
    let mut other = harness.connect().await;
    other.handshake("bob", "correct horse").await.unwrap();
    query(&mut other, "rows 3").await.unwrap();
    act(&mut first, "CloseSession", vec![]).await.unwrap();
    query(&mut third, "rows 3").await.unwrap();
    act(&mut third, "CloseSession", vec![]).await.unwrap();
    // Those that nobody used make room for each other, and not those of others.
    for _ in 0..3 {
        harness.connect().await.handshake("ada", "secret").await.unwrap();
    }
    assert_eq!(harness.engine.sessions.lock().len(), 3);
    for client in [&mut second, &mut other] {
        query(client, "rows 3").await.unwrap();
    }
}

#[tokio::test]
async fn connections_on_which_nobody_is_let_in_end() {
    let options = FlightOptions { first_call_timeout: Duration::from_secs(2), ..with_password() };
    let harness = Harness::start(options).await;
    let mut used = harness.connect().await;
    used.handshake("ada", "secret").await.unwrap();
    let mut refused_one = harness.connect().await;
    refused(&mut refused_one).await;
    let silent = tokio::net::TcpStream::connect(harness.address.trim_start_matches("http://")).await.unwrap();
    let metrics = harness.server.metrics();
    // The oldest one would have ended first.
    eventually("those of strangers end", || metrics.connections() == 1).await;
    query(&mut used, "rows 3").await.unwrap();
    assert_eq!(metrics.connections(), 1, "it is the same connection");
    drop(silent);
}

#[tokio::test]
async fn an_unknown_user_costs_as_much_as_a_known_one() {
    let options = with_password();
    let users = Arc::clone(options.users.as_ref().unwrap());
    let harness = Harness::start(options).await;
    let owner = users.log_in("ada", "secret").await.unwrap();
    let bob = NewUser { name: "bob".into(), password: "correct horse".into(), is_superuser: false };
    users.create_user(&owner, &bob).unwrap();
    for user in ["bob", "nobody", "ada"] {
        let mut client = harness.connect().await;
        let before = users.compared_passwords();
        let refused = client.handshake(user, "wrong horse").await.unwrap_err().to_string();
        assert!(refused.contains("wrong user or password"), "{user}: {refused}");
        assert_eq!(users.compared_passwords() - before, 1, "{user}, at the login");
        client.set_header("authorization", format!("Basic {}", STANDARD.encode(format!("{user}:wrong horse"))));
        let refused = query(&mut client, "rows 3").await.unwrap_err();
        assert!(
            refused.code() == Code::Unauthenticated && refused.message().contains("wrong user"),
            "{user}: {refused}"
        );
        assert_eq!(users.compared_passwords() - before, 2, "{user}, with a call");
    }
}

#[tokio::test]
async fn guesses_are_answered_ever_later_and_the_right_password_is_accepted() {
    let harness = Harness::start(with_password()).await;
    let mut client = harness.connect().await;
    let start = std::time::Duration::ZERO;
    let mut took = vec![start];
    for _ in 0..7 {
        let before = tokio::time::Instant::now();
        client.handshake("ada", "guess").await.unwrap_err();
        took.push(before.elapsed());
    }
    assert!(took[1..4].iter().all(|took| *took < Duration::from_millis(90)), "{took:?}");
    // The fourth takes the first turn at once; those after it wait 0.1, 0.2 and 0.4 s.
    assert!(took[7] >= Duration::from_millis(350), "{took:?}");
    client.handshake("ada", "secret").await.unwrap();
    query(&mut client, "rows 3").await.unwrap();
    assert_eq!(harness.server.logins().failed(), 7);
}

#[tokio::test]
async fn a_session_that_is_not_used_ends_and_its_client_learns_it_once() {
    let options = FlightOptions { session_ttl: Some(Duration::from_millis(400)), ..FlightOptions::default() };
    let harness = Harness::start(options).await;
    let [mut idle, mut busy] = [harness.connect().await, harness.connect().await];
    query(&mut idle, "rows 3").await.unwrap();
    let info = busy.execute("endless".into(), None).await.unwrap();
    let endless = busy.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(harness.engine.sessions.lock().len(), 2, "a statement runs");
    drop(endless);
    eventually("the sessions end", || harness.engine.sessions.lock().is_empty()).await;
    let error = query(&mut idle, "rows 3").await.unwrap_err();
    assert!(error.code() == Code::FailedPrecondition && error.message().contains("was not used for 400ms"), "{error}");
    assert_eq!(rows(&query(&mut idle, "rows 3").await.unwrap()), 3, "in another session");
}

#[tokio::test]
async fn closing_a_session_frees_it_and_closing_none_is_fine() {
    let harness = Harness::start(with_password()).await;
    let mut client = harness.connect().await;
    let closed = |results: Vec<bytes::Bytes>| CloseSessionResult::decode(results[0].clone()).unwrap().status;
    assert_eq!(closed(act(&mut client, "CloseSession", vec![]).await.unwrap()), 1);

    client.handshake("ada", "secret").await.unwrap();
    let waiting = client.execute("rows 3".into(), None).await.unwrap();
    let prepared = client.prepare("rows 3".into(), None).await.unwrap();
    assert_eq!(closed(act(&mut client, "CloseSession", vec![]).await.unwrap()), 1);
    assert!(harness.engine.sessions.lock().is_empty());
    assert_eq!(harness.server.core.tickets.counts(), (0, 0));
    assert!(refused(&mut client).await.contains("log in again"));
    drop((waiting, prepared));
}

#[tokio::test]
async fn without_login_a_session_lives_as_long_as_its_connection() {
    let harness = Harness::open().await;
    let mut one = harness.connect().await;
    let mut two = harness.connect().await;
    for _ in 0..2 {
        query(&mut one, "rows 3").await.unwrap();
        query(&mut two, "rows 3").await.unwrap();
    }
    assert_eq!(harness.engine.sessions.lock().len(), 2);
    assert_eq!(harness.server.metrics().sessions(), 2);
    drop(one);
    eventually("the session of a lost connection ends", || harness.engine.sessions.lock().len() == 1).await;
    assert_eq!(rows(&query(&mut two, "rows 3").await.unwrap()), 3);
}

#[tokio::test]
async fn session_options_are_set_read_and_refused() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    async fn set(client: &mut Client, name: &str, value: Option<&str>) -> HashMap<String, i32> {
        let value = value.map_or_else(SessionOptionValue::default, |value| SessionOptionValue::text(value.into()));
        let request = SetSessionOptionsRequest { session_options: [(name.to_owned(), value)].into() };
        let results = act(client, "SetSessionOptions", request.encode_to_vec()).await.unwrap();
        let result = SetSessionOptionsResult::decode(results[0].clone()).unwrap();
        result.errors.into_iter().map(|(name, error)| (name, error.value)).collect()
    }
    assert!(set(&mut client, "threads", Some("4")).await.is_empty());
    assert_eq!(set(&mut client, "threads", Some("many")).await["threads"], 2);
    assert_eq!(set(&mut client, "colour", Some("red")).await["colour"], 1);
    let results = act(&mut client, "GetSessionOptions", vec![]).await.unwrap();
    let options = GetSessionOptionsResult::decode(results[0].clone()).unwrap().session_options;
    assert_eq!(options["threads"].clone().into_text().as_deref(), Some("4"));
    assert!(set(&mut client, "threads", None).await.is_empty());
    assert!(harness.engine.options.lock().is_empty());
}

#[tokio::test]
async fn session_options_keep_their_types() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let number = SessionOptionValue { value: Some(OptionValue::Integer(4)) };
    let request = SetSessionOptionsRequest { session_options: [("threads".to_owned(), number.clone())].into() };
    act(&mut client, "SetSessionOptions", request.encode_to_vec()).await.unwrap();
    async fn get(client: &mut Client) -> HashMap<String, SessionOptionValue> {
        let results = act(client, "GetSessionOptions", vec![]).await.unwrap();
        GetSessionOptionsResult::decode(results[0].clone()).unwrap().session_options
    }
    assert_eq!(get(&mut client).await.into_values().collect::<Vec<_>>(), [number]);
    // SQL changes the value meanwhile.
    harness.engine.options.lock().values_mut().for_each(|value| *value = "5".to_owned());
    assert_eq!(get(&mut client).await.into_values().collect::<Vec<_>>(), [integer(5)]);
    // The client's text stays a text.
    let request = SetSessionOptionsRequest { session_options: [("threads".to_owned(), text("6"))].into() };
    act(&mut client, "SetSessionOptions", request.encode_to_vec()).await.unwrap();
    assert_eq!(get(&mut client).await.into_values().collect::<Vec<_>>(), [text("6")]);
    let by_sql = [("threads", "7"), ("eager", "true"), ("ratio", "0.5"), ("label", "8"), ("zone", "9")];
    *harness.engine.options.lock() = by_sql.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let options = get(&mut client).await;
    let expected = [integer(7), flag(true), double(0.5), text("8"), text("9")];
    assert_eq!(by_sql.map(|(name, _)| options[name].clone()), expected);
}

fn text(value: &str) -> SessionOptionValue {
    SessionOptionValue::text(value.to_owned())
}

fn flag(value: bool) -> SessionOptionValue {
    SessionOptionValue { value: Some(OptionValue::Bool(value)) }
}

fn integer(value: i64) -> SessionOptionValue {
    SessionOptionValue { value: Some(OptionValue::Integer(value)) }
}

fn double(value: f64) -> SessionOptionValue {
    SessionOptionValue { value: Some(OptionValue::Double(value)) }
}

fn list(values: &[&str]) -> SessionOptionValue {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    SessionOptionValue { value: Some(OptionValue::List(StringList { values })) }
}

#[tokio::test]
async fn each_option_checks_the_type_of_its_value() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    for (name, right, wrong) in [
        ("threads", vec![text("4"), integer(4)], vec![text("many"), flag(true), double(4.0), list(&["4"])]),
        ("eager", vec![text("true"), flag(false)], vec![integer(1), double(1.0), list(&["true"])]),
        ("ratio", vec![text("0.5"), integer(1), double(0.25)], vec![flag(true), double(f64::NAN), list(&[])]),
        ("label", vec![text("true")], vec![flag(true), integer(1), double(0.5), list(&["a", "b"])]),
        ("zone", vec![text("x"), flag(true), integer(1), double(0.5)], vec![list(&["x"])]),
    ] {
        let right = right.into_iter().map(|value| (value, true));
        for (value, is_right) in right.chain(wrong.into_iter().map(|value| (value, false))) {
            // One bad option does not keep another one from being set.
            let both = [(name.to_owned(), value.clone()), ("colour".to_owned(), value.clone())];
            let request = SetSessionOptionsRequest { session_options: both.into() };
            let results = act(&mut client, "SetSessionOptions", request.encode_to_vec()).await.unwrap();
            let errors = SetSessionOptionsResult::decode(results[0].clone()).unwrap().errors;
            assert_eq!(errors["colour"].value(), SessionOptionErrorValue::InvalidName);
            let error = errors.get(name).map(|error| error.value());
            assert_eq!(error, (!is_right).then_some(SessionOptionErrorValue::InvalidValue), "{name}: {value:?}");
            if is_right {
                assert_eq!(harness.engine.options.lock().get(name).cloned(), value.into_text());
            }
        }
    }
}

#[tokio::test]
async fn stopping_lets_calls_end_and_takes_no_new_ones() {
    let mut harness = Harness::open().await;
    let mut client = harness.connect().await;
    query(&mut client, "rows 3").await.unwrap();
    let mut busy = client.clone();
    let running = tokio::spawn(async move { busy.execute_update("slow insert".into(), None).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    harness.stop();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let late = client.execute("rows 3".into(), None).await.map_err(status);
    assert!(late.is_err(), "a new call is refused");
    assert_eq!(running.await.unwrap().unwrap(), 1, "the call under way ends well");
    assert_eq!(harness.engine.counters.updates.load(SeqCst), 1);
    tokio::time::timeout(Duration::from_secs(5), &mut harness.serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn calls_that_do_not_end_are_cut_off_after_the_drain_timeout() {
    let options = FlightOptions { drain_timeout: Duration::from_millis(100), ..FlightOptions::default() };
    let mut harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    let info = client.execute("endless".into(), None).await.unwrap();
    let _stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    harness.stop();
    tokio::time::timeout(Duration::from_secs(2), &mut harness.serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn tickets_expire_and_are_bounded() {
    let options = FlightOptions { ticket_ttl: Duration::from_millis(200), max_tickets: 2, ..FlightOptions::default() };
    let harness = Harness::start(options).await;
    let mut client = harness.connect().await;
    let mut other = harness.connect().await;
    let info = client.execute("rows 3".into(), None).await.unwrap();
    let kept = client.execute("rows 3".into(), None).await.unwrap();
    // The one that holds the most loses its oldest.
    let of_other = other.execute("rows 3".into(), None).await.unwrap();
    let dropped = super::fetch(&mut client, info).await.unwrap_err();
    assert!(dropped.code() == Code::NotFound && dropped.message().contains("too many planned queries"), "{dropped}");
    assert_eq!(rows(&super::fetch(&mut other, of_other).await.unwrap()), 3);
    assert_eq!(rows(&super::fetch(&mut client, kept).await.unwrap()), 3);
    let info = client.execute("rows 3".into(), None).await.unwrap();
    assert_eq!(client.execute_update("insert".into(), None).await.unwrap(), 1, "updates need no place");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(super::fetch(&mut client, info).await.unwrap_err().code(), Code::NotFound);
    client.execute("rows 3".into(), None).await.unwrap();
}

#[tokio::test]
async fn large_headers_are_accepted() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    client.set_header("some-url-parameter", "x".repeat(20_000));
    assert_eq!(rows(&query(&mut client, "rows 3").await.unwrap()), 3);
}
