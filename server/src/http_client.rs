//! The HTTP client of the command line: one request, one JSON answer.
//!
//! `health`, `check`, `backup` and `du` use it to ask a running server, so that the image needs no curl.

use std::time::Duration;

use axum::http::{HeaderValue, Request, header};
use base64::Engine as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_util::either::Either;

use crate::error::{Error, Result, root_cause};
use crate::login::{Credentials, Login};
use crate::network::{self, Address, ClientStream, Protocol, TlsOptions};

/// Longest answer that is read.
const ANSWER_BYTES: usize = 64 << 20;
/// Time limit to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// The HTTP port of a server, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub struct HttpConnection {
    /// Address of the server's HTTP port; 0.0.0.0 means this machine, https://HOST:PORT is for TLS
    #[arg(long, env = "TERRACE_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    pub http_addr: String,
    /// Who asks.
    #[command(flatten)]
    pub login: Login,
    /// Whom to trust, and what to show, where the address asks for TLS.
    #[command(flatten)]
    pub tls: TlsOptions,
}

impl HttpConnection {
    /// A connection to a server that wants no user.
    pub fn to(http_addr: impl Into<String>) -> Self {
        Self { http_addr: http_addr.into(), login: Login::default(), tls: TlsOptions::default() }
    }

    /// Sends a request and waits for its answer as long as it takes.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Server`] with the server's message when it refuses.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.ask(method, path, body)?;
        let value: Option<Value> = serde_json::from_str(&answer).ok();
        match (status, value) {
            (200..=299, Some(value)) => Ok(value),
            (status, value) => Err(refusal(status, &answer, value.as_ref())),
        }
    }

    /// Gets a text, such as the metrics.
    ///
    /// # Errors
    /// As [`HttpConnection::request`].
    pub fn text(&self, path: &str) -> Result<String> {
        match self.ask("GET", path, None)? {
            (200..=299, answer) => Ok(answer),
            (status, answer) => Err(refusal(status, &answer, serde_json::from_str(&answer).ok().as_ref())),
        }
    }

    /// Sends a request; returns status and body of the answer.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, String)> {
        let mut request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        if let Some(Credentials { user, password }) = self.login.credentials()? {
            let login = format!("{user}:{password}");
            let login = base64::engine::general_purpose::STANDARD.encode(login);
            request = request.header(header::AUTHORIZATION, format!("Basic {login}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        exchange(&self.http_addr, &self.tls, request.body(body), None)
    }

    /// Calls `visit` with every item of a paged list.
    ///
    /// # Errors
    /// As [`HttpConnection::request`], and errors of `visit`.
    pub fn pages(&self, path: &str, mut visit: impl FnMut(Value) -> Result<()>) -> Result<()> {
        let mut offset = 0;
        loop {
            let mut answer = self.request("GET", &format!("{path}?limit=10000&offset={offset}"), None)?;
            let items = answer.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
            let more = answer.get("more").and_then(Value::as_bool).unwrap_or(false) && !items.is_empty();
            offset += items.len();
            items.into_iter().try_for_each(&mut visit)?;
            if !more {
                return Ok(());
            }
        }
    }
}

/// The error for an answer of the server that is none of success, with the detail that its JSON names.
fn refusal(status: u16, answer: &str, value: Option<&Value>) -> Error {
    let detail = value.and_then(|value| value.get("detail")?.as_str());
    let message = detail.map_or_else(|| format!("the server answered {status}: {answer}"), str::to_owned);
    Error::Server { code: status.to_string(), message }
}

/// Sends one request; returns status and body of the answer. Without `timeout`, only connecting has a limit.
pub(crate) fn exchange(
    addr: &str,
    tls: &TlsOptions,
    request: Result<Request<String>, axum::http::Error>,
    timeout: Option<Duration>,
) -> Result<(u16, String)> {
    let address = Address::parse(addr)?;
    let connector = tls.connector(&address, Protocol::Http1)?;
    let answer = async {
        let limit = timeout.unwrap_or(Duration::MAX);
        let late = |_| Err(format!("no answer within {} s", limit.as_secs_f64()).into());
        let sent = async {
            let stream = network::connect(&address, connector.as_ref(), timeout.unwrap_or(CONNECT)).await?;
            send(&address, stream, request?).await
        };
        tokio::time::timeout(limit, sent).await.unwrap_or_else(late)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(answer));
    answer.map_err(|failure| {
        let message = match failure.downcast_ref::<hyper::Error>() {
            Some(e) if e.is_parse() => {
                "the program that listens there does not speak HTTP; give the HTTP port, as https://HOST:PORT where the server has TLS".to_owned()
            }
            Some(e) if e.is_incomplete_message() => {
                "it closed the connection before its answer was complete".to_owned()
            }
            _ if failure.is::<LengthLimitError>() => format!("its answer is longer than {} MiB", ANSWER_BYTES >> 20),
            _ => root_cause(failure.as_ref()),
        };
        Error::Unreachable { url: address.http_url(), message }
    })
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn send(address: &Address, stream: ClientStream, mut request: Request<String>) -> Result<(u16, String), Failure> {
    let tcp = match &stream {
        Either::Left(tcp) => tcp,
        Either::Right(tls) => tls.get_ref().0,
    };
    // A server on loopback answers to loopback names only, whatever name led to it.
    let peer = tcp.peer_addr()?;
    let host = if peer.ip().is_loopback() { peer.to_string() } else { address.authority.clone() };
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(&host)?);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).trim().to_owned()))
}
