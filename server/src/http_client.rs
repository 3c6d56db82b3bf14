//! A minimal HTTP client: one request, one JSON answer.
//!
//! `health`, `check`, `backup` and `du` use it to ask a running server, so that the image needs no curl.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use crate::client::refuse_tls;
use crate::error::{Error, Result};

/// Longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 20;
/// Default time limit to connect.
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
        let login = self.user.as_ref().map(|user| format!("{user}:{}", self.password.as_deref().unwrap_or_default()));
        let login = login.map(|login| base64::engine::general_purpose::STANDARD.encode(login));
        let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\n");
        if let Some(login) = login {
            head.push_str(&format!("Authorization: Basic {login}\r\n"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let (status, answer) = exchange(&self.http_addr, &head, &body, None)?;
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
}

impl HttpConnection {
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

/// Sends one request with the header lines `head`; returns status and body of the answer.
pub(crate) fn exchange(http_addr: &str, head: &str, body: &str, timeout: Option<Duration>) -> Result<(u16, String)> {
    refuse_tls(http_addr)?;
    let http_addr = http_addr.strip_prefix("http://").map_or(http_addr, |rest| rest.trim_end_matches('/'));
    let url = format!("http://{http_addr}");
    let unreachable = |e: &dyn std::fmt::Display| Error::Unreachable { url: url.clone(), message: e.to_string() };
    let mut addr = http_addr
        .to_socket_addrs()
        .map_err(|e| unreachable(&e))?
        .next()
        .ok_or_else(|| unreachable(&"no such address"))?;
    match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&addr, timeout.unwrap_or(CONNECT))?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        let length = body.len();
        let request = format!("{head}Host: {addr}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = talk().map_err(|e| unreachable(&e))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| unreachable(&"what answers there does not speak HTTP"))?;
    Ok((status, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_never_loses_its_encryption() {
        let refused = exchange("https://127.0.0.1:1", "GET / HTTP/1.1\r\n", "", None).map_err(|e| e.to_string());
        assert!(refused.as_ref().is_err_and(|text| text.contains("TLS")), "{refused:?}");
        let plain = exchange("http://127.0.0.1:1/", "GET / HTTP/1.1\r\n", "", None).map_err(|e| e.to_string());
        assert!(plain.as_ref().is_err_and(|text| text.contains("at http://127.0.0.1:1:")), "{plain:?}");
    }
}
