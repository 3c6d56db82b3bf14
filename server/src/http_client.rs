//! The HTTP client of the command line: one request, one JSON answer.
//!
//! `health`, `check`, `backup` and `du` use it to ask a running server, so that the image needs no curl.

use std::time::Duration;

use axum::http::{Request, header, request::Builder};
use base64::Engine as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::client::{refuse_tls, root_cause};
use crate::error::{Error, Result};

/// Longest answer that is read.
const ANSWER_BYTES: usize = 64 << 20;
/// Time limit to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// The HTTP port of a server, and who asks.
#[derive(Debug, Clone, clap::Args)]
pub struct HttpConnection {
    /// Address of the server's HTTP port; 0.0.0.0 means this machine
    #[arg(long, env = "TERRACE_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    pub http_addr: String,
    /// User, where the server wants one
    #[arg(long, env = "TERRACE_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// Password of the user; better given by the environment
    #[arg(long, env = "TERRACE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    pub password: Option<String>,
}

impl HttpConnection {
    /// Sends a request and waits for its answer as long as it takes.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Server`] with the server's message when it refuses.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
        if let Some(user) = &self.user {
            let login = format!("{user}:{}", self.password.as_deref().unwrap_or_default());
            let login = base64::engine::general_purpose::STANDARD.encode(login);
            request = request.header(header::AUTHORIZATION, format!("Basic {login}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let (status, answer) = exchange(&self.http_addr, request, body, None)?;
        let value: Option<Value> = serde_json::from_str(&answer).ok();
        match (status, value) {
            (200..=299, Some(value)) => Ok(value),
            (status, value) => {
                let detail = value.as_ref().and_then(|v| v.get("detail")?.as_str());
                let message = detail.map_or_else(|| format!("the server answered {status}: {answer}"), str::to_owned);
                Err(Error::Server { code: status.to_string(), message })
            }
        }
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

/// Sends one request; returns status and body of the answer. Without `timeout`, only connecting has a limit.
pub(crate) fn exchange(addr: &str, request: Builder, body: String, timeout: Option<Duration>) -> Result<(u16, String)> {
    refuse_tls(addr)?;
    let addr = addr.strip_prefix("http://").map_or(addr, |rest| rest.trim_end_matches('/'));
    let answer = async {
        let limit = timeout.unwrap_or(Duration::MAX);
        let connect = timeout.unwrap_or(CONNECT);
        let late = |_| Err(format!("no answer within {} s", limit.as_secs_f64()).into());
        tokio::time::timeout(limit, send(addr, connect, request, body)).await.unwrap_or_else(late)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(answer));
    answer.map_err(|failure| {
        let message = match failure.downcast_ref::<hyper::Error>() {
            Some(e) if e.is_parse() => {
                "the program that listens there does not speak HTTP; give the HTTP port".to_owned()
            }
            Some(e) if e.is_incomplete_message() => {
                "it closed the connection before its answer was complete".to_owned()
            }
            _ if failure.is::<LengthLimitError>() => format!("its answer is longer than {} MiB", ANSWER_BYTES >> 20),
            _ => root_cause(failure.as_ref()),
        };
        Error::Unreachable { url: format!("http://{addr}"), message }
    })
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn send(addr: &str, limit: Duration, request: Builder, body: String) -> Result<(u16, String), Failure> {
    let stream = tokio::time::timeout(limit, TcpStream::connect(addr))
        .await
        .map_err(|_| format!("no connection within {} s", limit.as_secs_f64()))??;
    let request = request.header(header::HOST, stream.peer_addr()?.to_string()).body(body)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_never_loses_its_encryption() {
        let get = |address| exchange(address, Request::builder().uri("/"), String::new(), None);
        let refused = get("https://127.0.0.1:1").map_err(|e| e.to_string());
        assert!(refused.as_ref().is_err_and(|text| text.contains("TLS")), "{refused:?}");
        let plain = get("http://127.0.0.1:1/").map_err(|e| e.to_string());
        assert!(plain.as_ref().is_err_and(|text| text.contains("at http://127.0.0.1:1:")), "{plain:?}");
    }
}
