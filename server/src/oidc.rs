//! Logins by tokens of an OpenID Connect issuer: where its keys come from, and how they are kept current.
//!
//! The keys are fetched from the address that the issuer's configuration document names (OpenID Connect Discovery 1.0), or read from
//! a file. An issuer is reached by HTTPS; without TLS only on this machine. Answers have limits of time and size, redirections are
//! not followed, and nothing but public keys is asked for: this server has no secret at the issuer.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use terrace_access::{Issuer, KeyFetch, KeySource};
use terrace_tier_store::clock::SystemClock;
use tokio::runtime::Runtime;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use crate::config::OidcConfig;
use crate::error::{Error, Result, root_cause};
use crate::network::{self, Address, Protocol, TlsOptions};

/// Bytes of the longest answer of an issuer, and of the largest file of keys.
const MOST_BYTES: usize = 1 << 20;
/// Time limit to connect to an issuer.
const CONNECT: Duration = Duration::from_secs(5);
/// How often keys are fetched without need, so that those that the issuer took back end.
const FETCH_EVERY: Duration = Duration::from_secs(3600);
/// How soon after a failure.
const FETCH_AGAIN: Duration = Duration::from_secs(60);
/// How often a file of keys is read.
const READ_EVERY: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The issuer of the configuration, and what keeps its keys current.
pub(crate) struct Oidc {
    /// The issuer.
    pub(crate) issuer: Arc<Issuer>,
    pause: Duration,
}

impl Oidc {
    /// Prepares the configured issuer; `None` without one. Reads its keys where they are in a file.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that do not fit, [`Error::File`] for a file of keys that cannot be used.
    pub(crate) fn load(config: &OidcConfig, network: &Runtime) -> Result<Option<Self>> {
        let Some(rules) = config.rules()? else { return Ok(None) };
        let clock = Arc::new(SystemClock::default());
        let Some(path) = &config.keys_file else {
            Endpoint::parse(&rules.issuer).map_err(|error| Error::Config(format!("oidc.issuer: {error}")))?;
            let tls = TlsOptions { ca: config.ca.clone(), ..TlsOptions::default() };
            let source = Discovery { issuer: rules.issuer.clone(), tls };
            let issuer = Issuer::new(rules, Box::new(source), clock);
            return Ok(Some(Self { issuer, pause: FETCH_EVERY }));
        };
        let issuer = Issuer::new(rules, Box::new(KeyFile(path.clone())), clock);
        network.block_on(issuer.refresh()).map_err(|error| Error::file(path, error))?;
        Ok(Some(Self { issuer, pause: READ_EVERY }))
    }

    /// Fetches the keys again and again, until `stop`.
    pub(crate) async fn keep_current(self, stop: CancellationToken) {
        loop {
            let fetched = tokio::select! {
                () = stop.cancelled() => return,
                fetched = self.issuer.refresh() => fetched,
            };
            let pause = if fetched.is_ok() { self.pause } else { self.pause.min(FETCH_AGAIN) };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// A file with a set of keys (JWKS).
struct KeyFile(PathBuf);

impl KeySource for KeyFile {
    fn fetch(&self) -> KeyFetch<'_> {
        let read = async {
            let length = tokio::fs::metadata(&self.0).await?.len();
            if length > MOST_BYTES as u64 {
                return Err(std::io::Error::other(format!("it is larger than {} KiB", MOST_BYTES >> 10)));
            }
            tokio::fs::read_to_string(&self.0).await
        };
        Box::pin(async move { read.await.map_err(|error| format!("cannot read the keys: {error}")) })
    }
}

/// An issuer that says itself where its keys are.
struct Discovery {
    issuer: String,
    tls: TlsOptions,
}

/// What is read of the configuration document of an issuer.
#[derive(Deserialize)]
struct Document {
    issuer: String,
    jwks_uri: String,
}

impl KeySource for Discovery {
    fn fetch(&self) -> KeyFetch<'_> {
        Box::pin(self.keys())
    }
}

impl Discovery {
    async fn keys(&self) -> Result<String, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let document = self.get(&url).await?;
        let keys_url = self.keys_url(&document).map_err(|error| format!("{url}: {error}"))?;
        self.get(&keys_url).await
    }

    /// Where the keys are, by the configuration document of the issuer.
    fn keys_url(&self, document: &str) -> Result<String, String> {
        let document = serde_json::from_str::<Document>(document);
        let Document { issuer, jwks_uri } =
            document.map_err(|error| format!("it is no configuration document of an issuer: {error}"))?;
        if issuer != self.issuer {
            return Err(format!("it is of the issuer '{issuer}', which oidc.issuer must name exactly"));
        }
        if !issuer.starts_with("http://") && !jwks_uri.starts_with("https://") {
            return Err("it is reached by HTTPS, and names keys (jwks_uri) that are not".to_owned());
        }
        Ok(jwks_uri)
    }

    async fn get(&self, url: &str) -> Result<String, String> {
        let endpoint = Endpoint::parse(url).map_err(|error| format!("{url}: {error}"))?;
        self.ask(endpoint).await.map_err(|failure| {
            let message = match failure.downcast_ref::<LengthLimitError>() {
                Some(_) => format!("the answer is longer than {} KiB", MOST_BYTES >> 10),
                None => root_cause(failure.as_ref()),
            };
            // What the command line calls by its option is a key here.
            format!("{url}: {}", message.replace("--ca FILE", "oidc.ca"))
        })
    }

    async fn ask(&self, endpoint: Endpoint) -> Result<String, Failure> {
        let Endpoint { address, host, path } = endpoint;
        let (tls, wanted) = (self.tls.clone(), address.clone());
        // Reads files.
        let connect = move || tls.connector(&wanted, Protocol::Http1).map_err(|error| error.to_string());
        let connector = tokio::task::spawn_blocking(connect).await??;
        let stream = network::connect(&address, connector.as_ref(), CONNECT).await?;
        if let Either::Left(tcp) = &stream
            && !tcp.peer_addr()?.ip().is_loopback()
        {
            return Err("the address is not of this machine: write https://".into());
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::get(path).header(header::HOST, host).header(header::ACCEPT, "application/json");
        let answer = sender.send_request(request.body(String::new())?).await?;
        if answer.status() != StatusCode::OK {
            return Err(format!("the answer has the status {}", answer.status()).into());
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await?.to_bytes();
        Ok(String::from_utf8(body.to_vec())?)
    }
}

/// Where a URL leads.
#[derive(Debug, PartialEq, Eq)]
struct Endpoint {
    address: Address,
    /// Host and port as the URL has them.
    host: String,
    path: String,
}

impl Endpoint {
    /// Parses a URL of HTTPS, or of HTTP on this machine.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = || "it is no URL of HTTPS (or HTTP on this machine)".to_owned();
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let host = authority.host();
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_this_machine(host) => false,
            _ => return Err(wrong()),
        };
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self {
            address: Address { tls, authority: format!("{host}:{port}") },
            host: authority.to_string(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn issuers_are_reached_by_https_and_on_this_machine() {
        let endpoint = Endpoint::parse("https://login.example/realms/a?b=c").unwrap();
        let address = Address { tls: true, authority: "login.example:443".to_owned() };
        let expected = Endpoint { address, host: "login.example".to_owned(), path: "/realms/a?b=c".to_owned() };
        assert_eq!(endpoint, expected);
        for (url, authority) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://localhost", "localhost:80"),
            ("http://[::1]:81/x", "[::1]:81"),
        ] {
            let address = Endpoint::parse(url).unwrap().address;
            assert_eq!((address.tls, address.authority.as_str()), (false, authority), "{url}");
        }
        for wrong in ["http://a.example", "ftp://localhost", "a.example", "https://a@b", "http://127.0.0.1.b", ""] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }

    fn keys_url(issuer: &str, document: &str) -> Result<String, String> {
        let discovery = Discovery { issuer: issuer.to_owned(), tls: TlsOptions::default() };
        discovery.keys_url(document)
    }

    #[test]
    fn an_issuer_names_its_keys_and_cannot_leave_https() {
        let document = |keys: &str| format!(r#"{{"issuer": "https://a.example", "jwks_uri": "{keys}"}}"#);
        let right = document("https://keys.example/a");
        assert_eq!(keys_url("https://a.example", &right).unwrap(), "https://keys.example/a");
        assert!(keys_url("https://a.example/", &right).unwrap_err().contains("name exactly"));
        let weaker = document("http://127.0.0.1/a");
        assert!(keys_url("https://a.example", &weaker).unwrap_err().contains("reached by HTTPS"));
        assert!(keys_url("https://a.example", "{}").unwrap_err().contains("no configuration document"));
    }

    #[tokio::test]
    async fn a_file_of_keys_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let file = KeyFile(path.clone());
        assert!(file.fetch().await.unwrap_err().contains("cannot read the keys"));
        std::fs::write(&path, "{\"keys\": []}").unwrap();
        assert_eq!(file.fetch().await.unwrap(), "{\"keys\": []}");
        std::fs::write(&path, " ".repeat(MOST_BYTES + 1)).unwrap();
        assert!(file.fetch().await.unwrap_err().contains("larger than 1024 KiB"));
    }
}
