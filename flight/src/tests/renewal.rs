//! Results that are fetched again until they expire, and the renewal of their tickets.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use arrow_flight::{
    CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, Empty, FlightEndpoint, FlightInfo,
    RenewFlightEndpointRequest, Ticket,
    sql::{ProstMessageExt, TicketStatementQuery},
};
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use terrace_model::clock::{Clock, SystemClock};
use tonic::{Code, Status};

use super::{Client, Harness, act, eventually, fetch, rows};
use crate::FlightOptions;

const TTL: Duration = Duration::from_millis(1000);

fn short_lived() -> FlightOptions {
    FlightOptions { ticket_ttl: TTL, ..FlightOptions::default() }
}

/// A client that wants to fetch results again.
async fn keeping(harness: &Harness) -> Client {
    let mut client = harness.connect().await;
    client.set_header("terrace-tickets", "keep");
    client
}

/// Time at which an endpoint expires, in microseconds of Unix time.
fn expiration(endpoint: &FlightEndpoint) -> Option<u64> {
    let time = endpoint.expiration_time.as_ref()?;
    Some(u64::try_from(time.seconds).unwrap() * 1_000_000 + u64::try_from(time.nanos).unwrap() / 1_000)
}

async fn renew(client: &mut Client, endpoint: &FlightEndpoint) -> Result<FlightEndpoint, Status> {
    let body = RenewFlightEndpointRequest::new(endpoint.clone()).encode_to_vec();
    let results = act(client, "RenewFlightEndpoint", body).await?;
    assert_eq!(results.len(), 1);
    Ok(FlightEndpoint::decode(results[0].clone()).unwrap())
}

async fn execute(client: &mut Client, sql: &str) -> FlightInfo {
    client.execute(sql.to_owned(), None).await.unwrap()
}

#[tokio::test]
async fn a_result_is_fetched_again_until_it_expires() {
    let harness = Harness::start(short_lived()).await;
    let mut client = keeping(&harness).await;
    let before = SystemClock::default().unix_us();
    let info = execute(&mut client, "rows 3").await;
    let after = SystemClock::default().unix_us();
    let expires = expiration(&info.endpoint[0]).unwrap();
    let ttl = u64::try_from(TTL.as_micros()).unwrap();
    assert!((before + ttl - 10_000..=after + ttl + 10_000).contains(&expires), "{before} {expires} {after}");

    let first = fetch(&mut client, info.clone()).await.unwrap();
    assert_eq!(rows(&first), 3);
    assert_eq!(fetch(&mut client, info.clone()).await.unwrap(), first);
    assert_eq!(harness.engine.counters.queries.load(SeqCst), 2);
    eventually("the ticket stays", || harness.server.core.tickets.counts() == (1, 0)).await;
    tokio::time::sleep(TTL + Duration::from_millis(50)).await;
    assert_eq!(fetch(&mut client, info).await.unwrap_err().code(), Code::NotFound);
    assert!(harness.server.core.tickets.drop_expired());
    assert_eq!((harness.server.core.tickets.counts(), harness.server.metrics().kept_bytes()), ((0, 0), 0));
}

#[tokio::test]
async fn only_clients_that_ask_get_tickets_for_more_than_one_fetch_and_only_for_the_same_rows() {
    let harness = Harness::open().await;
    let mut plain = harness.connect().await;
    let mut client = keeping(&harness).await;
    let infos = [execute(&mut plain, "rows 3").await, execute(&mut client, "odd types").await];
    for (client, info) in [&mut plain, &mut client].into_iter().zip(infos) {
        assert!(info.endpoint[0].expiration_time.is_none());
        fetch(client, info.clone()).await.unwrap();
        assert_eq!(fetch(client, info).await.unwrap_err().code(), Code::NotFound);
    }
    let mut prepared = client.prepare("rows 3".into(), None).await.unwrap();
    let info = prepared.execute().await.unwrap();
    assert!(info.endpoint[0].expiration_time.is_some());
    let count = execute(&mut client, "insert").await;
    assert!(count.endpoint[0].expiration_time.is_none());
}

#[tokio::test]
async fn renewal_extends_the_ticket() {
    let harness = Harness::start(short_lived()).await;
    let mut client = keeping(&harness).await;
    let info = execute(&mut client, "rows 3").await;
    let endpoint = info.endpoint[0].clone();
    tokio::time::sleep(TTL * 7 / 10).await;
    let renewed = renew(&mut client, &endpoint).await.unwrap();
    assert_eq!(renewed.ticket, endpoint.ticket);
    assert!(expiration(&renewed).unwrap() > expiration(&endpoint).unwrap() + 500_000);
    tokio::time::sleep(TTL * 7 / 10).await;
    assert_eq!(rows(&fetch(&mut client, info.clone()).await.unwrap()), 3, "it would have expired");
    tokio::time::sleep(TTL * 7 / 10).await;
    assert_eq!(renew(&mut client, &endpoint).await.unwrap_err().code(), Code::NotFound, "it has expired");

    let actions = client.inner_mut().list_actions(Empty {}).await.unwrap().into_inner();
    let actions: Vec<_> = actions.try_collect().await.unwrap();
    assert!(actions.iter().any(|action| action.r#type == "RenewFlightEndpoint"));
}

#[tokio::test]
async fn a_ticket_of_another_session_is_like_none() {
    let harness = Harness::open().await;
    let mut plain = harness.connect().await;
    let mut client = plain.clone();
    client.set_header("terrace-tickets", "keep");
    let mut other = keeping(&harness).await;
    let endpoint = execute(&mut client, "rows 3").await.endpoint[0].clone();
    let made_up = TicketStatementQuery { statement_handle: "made up".into() }.as_any().encode_to_vec();
    let unknown = FlightEndpoint::new().with_ticket(Ticket::new(made_up));
    let foreign = renew(&mut other, &endpoint).await.unwrap_err();
    let none = renew(&mut other, &unknown).await.unwrap_err();
    assert_eq!((foreign.code(), foreign.message()), (Code::NotFound, none.message()));
    assert_eq!(none.code(), Code::NotFound);
    assert!(expiration(&renew(&mut client, &endpoint).await.unwrap()).is_some());

    let lasting = client.get_catalogs().await.unwrap().endpoint[0].clone();
    let once = execute(&mut plain, "rows 3").await.endpoint[0].clone();
    for endpoint in [lasting, once, FlightEndpoint::new()] {
        assert_eq!(renew(&mut client, &endpoint).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let malformed = act(&mut client, "RenewFlightEndpoint", vec![0xff; 10]).await.unwrap_err();
    assert_eq!(malformed.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn cancelling_ends_the_runs_of_a_ticket_and_the_ticket() {
    let harness = Harness::open().await;
    let mut client = keeping(&harness).await;
    let info = execute(&mut client, "endless").await;
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = client.do_get(ticket.clone()).await.unwrap();
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    assert_eq!(harness.engine.counters.live.load(SeqCst), 2);
    streams.pop();
    eventually("one run ends", || harness.engine.counters.live.load(SeqCst) == 1).await;
    let body = CancelFlightInfoRequest::new(info.clone()).encode_to_vec();
    let results = act(&mut client, "CancelFlightInfo", body).await.unwrap();
    assert_eq!(CancelFlightInfoResult::decode(results[0].clone()).unwrap().status(), CancelStatus::Cancelled);
    assert_eq!(harness.engine.counters.cancelled.lock().len(), 1, "the other one was still known");
    assert_eq!(fetch(&mut client, info).await.unwrap_err().code(), Code::NotFound);
    drop(streams);
    eventually("all runs end", || harness.server.core.tickets.counts() == (0, 0)).await;
}

#[tokio::test]
async fn results_that_were_fetched_make_room_for_others() {
    // Plans of 29,096 bytes.
    let long = format!("rows 3 {}", "x".repeat(993));
    let harness = Harness::start(FlightOptions { max_kept_bytes: 60_000, ..FlightOptions::default() }).await;
    let mut client = keeping(&harness).await;
    let kept = execute(&mut client, &long).await;
    fetch(&mut client, kept.clone()).await.unwrap();
    let mut other = harness.connect().await;
    let waiting = [execute(&mut other, &long).await, execute(&mut other, &long).await];
    let dropped = fetch(&mut client, kept).await.unwrap_err();
    assert!(dropped.code() == Code::NotFound && dropped.message().contains("fetched again"), "{dropped}");
    for info in waiting {
        assert_eq!(rows(&fetch(&mut other, info).await.unwrap()), 3);
    }
}
