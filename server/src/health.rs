//! `terrace health`: one request to `/readyz`, for container health checks and scripts. Needs no curl in the image.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::error::{Error, Result};

/// Longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 10;

/// What to ask.
#[derive(Debug, Args)]
pub struct Options {
    /// Address of the server's HTTP port; 0.0.0.0 means this machine
    #[arg(long, env = "TERRACE_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    http_addr: String,
    /// Seconds to wait
    #[arg(long, default_value_t = 3, value_name = "SECONDS")]
    timeout: u64,
}

/// Asks and prints the answer.
///
/// # Errors
/// When the server cannot be reached or is not ready.
pub fn run(options: &Options) -> Result<()> {
    let body = ask(&options.http_addr, Duration::from_secs(options.timeout.max(1)))?;
    println!("{body}");
    Ok(())
}

fn ask(http_addr: &str, timeout: Duration) -> Result<String> {
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
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.write_all(format!("GET /readyz HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|e| unreachable(&e))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split_whitespace().nth(1) == Some("200") {
        return Ok(body.trim().to_owned());
    }
    Err(Error::Server { code: "not ready".to_owned(), message: format!("the server is not ready: {}", body.trim()) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        let wait = Duration::from_secs(5);
        let ready = answer_with("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine");
        assert_eq!(ask(&ready, wait).unwrap(), "fine");
        let not_ready = answer_with("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"detail\":\"no tier is mounted\"}");
        assert!(ask(&not_ready, wait).unwrap_err().to_string().contains("no tier is mounted"));
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(ask(&nobody.to_string(), wait), Err(Error::Unreachable { .. })));
    }
}
