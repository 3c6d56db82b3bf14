//! `terrace health`: one request to `/readyz`, for container health checks and scripts. Needs no curl in the image.

use std::time::Duration;

use axum::http::Request;
use clap::Args;

use crate::error::{Error, Result};
use crate::http_client;
use crate::network::TlsOptions;
use crate::terminal::outln;

/// What to ask.
#[derive(Debug, Args)]
pub struct Options {
    /// Address of the server's HTTP port; 0.0.0.0 means this machine, https://HOST:PORT is for TLS [default: $TERRACE_HTTP_HEALTH_ADDR,
    /// $TERRACE_HTTP_ADDR, or 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    http_addr: Option<String>,
    #[command(flatten)]
    tls: TlsOptions,
    /// Seconds to wait
    #[arg(long, default_value_t = 3, value_name = "SECONDS")]
    timeout: u64,
}

/// Sends the request and prints the answer.
///
/// # Errors
/// When the server cannot be reached or is not ready.
pub fn run(options: &Options) -> Result<()> {
    // The port for probes first: it wants no TLS.
    let known = ["TERRACE_HTTP_HEALTH_ADDR", "TERRACE_HTTP_ADDR"].map(|name| std::env::var(name).unwrap_or_default());
    let known = known.into_iter().find(|addr| !addr.is_empty());
    let addr = options.http_addr.clone().or(known).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let body = ask(&addr, &options.tls, Duration::from_secs(options.timeout.max(1)))?;
    outln!("{body}");
    Ok(())
}

fn ask(addr: &str, tls: &TlsOptions, timeout: Duration) -> Result<String> {
    let request = Request::builder().uri("/readyz").body(String::new());
    match http_client::exchange(addr, tls, request, Some(timeout))? {
        (200, body) => Ok(body),
        (_, body) => {
            Err(Error::Server { code: "not ready".to_owned(), message: format!("the server is not ready: {body}") })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn answer_with(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let n = stream.read(&mut request).unwrap();
            assert!(request[..n].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("0.0.0.0:{port}")
    }

    #[test]
    fn ready_is_told_from_not_ready_and_from_nobody() {
        let ask = |addr: &str| ask(addr, &TlsOptions::default(), Duration::from_secs(5));
        let ready = answer_with("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine");
        assert_eq!(ask(&ready).unwrap(), "fine");
        let not_ready = answer_with("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"detail\":\"no tier is mounted\"}");
        assert!(ask(&not_ready).unwrap_err().to_string().contains("no tier is mounted"));
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(ask(&nobody.to_string()), Err(Error::Unreachable { .. })));
    }
}
