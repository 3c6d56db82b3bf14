//! Listeners over loopback, with certificates made for the test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::Config;

const LIMIT: Duration = Duration::from_secs(10);

/// A certificate authority in a folder.
struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self { folder: folder.to_owned(), issuer }
    }

    /// Writes `NAME.cert` and `NAME.key` for a host, or a client of that name.
    fn issue(&self, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.folder.join(format!("{name}.cert")), cert.pem()).unwrap();
        fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// A server's configuration with the certificate `server` of a folder.
fn config(folder: &Path, client_ca: Option<&str>) -> Config {
    let mut config = Config::default();
    config.tls.cert = Some(folder.join("server.cert"));
    config.tls.key = Some(folder.join("server.key"));
    config.tls.client_ca = client_ca.map(|name| folder.join(name));
    config
}

fn trusting(folder: &Path, ca: &str) -> TlsOptions {
    TlsOptions { ca: Some(folder.join(ca)), ..Default::default() }
}

/// A listener that echoes, and its counts.
struct Echo {
    address: String,
    figures: Arc<ListenerFigures>,
    stop: CancellationToken,
}

impl Echo {
    async fn start(tls: Option<Arc<ServerTls>>, limits: Limits) -> Self {
        Self::speaking(Protocol::Http1, tls, limits).await
    }

    async fn speaking(protocol: Protocol, tls: Option<Arc<ServerTls>>, limits: Limits) -> Self {
        let bound = tokio::task::spawn_blocking(|| {
            let runtime = Runtime::new().unwrap();
            let listener = Listener::bind(&runtime, "127.0.0.1:0", "flight.addr").unwrap();
            std::mem::forget(runtime);
            listener
        });
        let listener = bound.await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://localhost:{}", listener.addr().unwrap().port());
        let figures = listener.figures();
        let stop = CancellationToken::new();
        let mut accepted = listener.accept(protocol, tls, limits, stop.clone());
        tokio::spawn(async move {
            while let Some(mut stream) = accepted.next().await {
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {
                        let _ = stream.flush().await;
                    }
                });
            }
        });
        Self { address, figures, stop }
    }

    async fn connect(&self, options: &TlsOptions) -> std::result::Result<(), String> {
        let address = Address::parse(&self.address).unwrap();
        let connector = options.connector(&address, Protocol::Http1).map_err(|e| e.to_string())?;
        let connected = connect(&address, connector.as_ref(), LIMIT).await;
        let mut stream = connected.map_err(|e| e.to_string())?;
        stream.write_all(b"x").await.map_err(|e| e.to_string())?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.map_err(|e| e.to_string())?;
        assert_eq!(&byte, b"x");
        Ok(())
    }
}

const LIMITS: Limits = Limits { connections: 100, handshake: LIMIT };

/// Waits until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come to hold in 10 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ours = Authority::new(folder, "ours");
    let others = Authority::new(folder, "others");
    ours.issue("server", "localhost");
    ours.issue("friend", "friend");
    others.issue("stranger", "stranger");
    let tls = ServerTls::load(&config(folder, None)).unwrap().unwrap();
    assert!(tls.expires_unix_s() > 0 && !tls.is_mutual());
    let echo = Echo::start(Some(tls), LIMITS).await;
    echo.connect(&trusting(folder, "ours.pem")).await.unwrap();
    let unknown = echo.connect(&trusting(folder, "others.pem")).await.unwrap_err();
    assert!(unknown.contains("--ca"), "{unknown}");
    until(|| echo.figures.failed_handshakes() == 1).await;
    let missing = echo.connect(&trusting(folder, "nowhere.pem")).await.unwrap_err();
    assert!(missing.contains("nowhere.pem"), "{missing}");

    let mutual = ServerTls::load(&config(folder, Some("ours.pem"))).unwrap().unwrap();
    let echo = Echo::start(Some(mutual), LIMITS).await;
    let showing = |name: &str| TlsOptions {
        cert: Some(folder.join(format!("{name}.cert"))),
        cert_key: Some(folder.join(format!("{name}.key"))),
        ..trusting(folder, "ours.pem")
    };
    echo.connect(&showing("friend")).await.unwrap();
    echo.connect(&showing("stranger")).await.unwrap_err();
    echo.connect(&trusting(folder, "ours.pem")).await.unwrap_err();
    until(|| echo.figures.failed_handshakes() == 2).await;
    assert_eq!(echo.figures.accepted(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_for_one_host() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "ours").issue("server", "db.example");
    let echo = Echo::start(ServerTls::load(&config(folder, None)).unwrap(), LIMITS).await;
    let other = echo.connect(&trusting(folder, "ours.pem")).await.unwrap_err();
    assert!(other.contains("db.example") || other.contains("not valid for"), "{other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_are_taken_into_use_and_bad_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "first").issue("server", "localhost");
    let tls = ServerTls::load(&config(folder, None)).unwrap().unwrap();
    let echo = Echo::start(Some(Arc::clone(&tls)), LIMITS).await;
    tokio::spawn(Arc::clone(&tls).keep_current(echo.stop.clone()));
    echo.connect(&trusting(folder, "first.pem")).await.unwrap();
    fs::write(folder.join("server.cert"), "half a certi").unwrap();
    until(|| tls.failed_reloads() == 1).await;
    assert!(tls.is_outdated());
    echo.connect(&trusting(folder, "first.pem")).await.unwrap();
    Authority::new(folder, "second").issue("server", "localhost");
    until(|| tls.reloads() >= 1 && !tls.is_outdated()).await;
    echo.connect(&trusting(folder, "second.pem")).await.unwrap();
    echo.connect(&trusting(folder, "first.pem")).await.unwrap_err();
    echo.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_and_handshakes_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Authority::new(folder, "ours").issue("server", "localhost");
    let limits = Limits { connections: 3, handshake: Duration::from_secs(2) };
    let echo = Echo::start(ServerTls::load(&config(folder, None)).unwrap(), limits).await;
    let options = trusting(folder, "ours.pem");
    // Three clients that say nothing take all places, until their time is over.
    let addr = Address::parse(&echo.address).unwrap().authority;
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(tokio::net::TcpStream::connect(&addr).await.unwrap());
    }
    until(|| echo.figures.accepted() == 3).await;
    echo.connect(&options).await.unwrap_err();
    assert_eq!(echo.figures.refused(), 1);
    until(|| echo.figures.failed_handshakes() == 3).await;
    echo.connect(&options).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_http2_that_do_not_begin_lose_their_places() {
    let limits = Limits { connections: 2, handshake: Duration::from_millis(300) };
    let echo = Echo::speaking(Protocol::Http2, None, limits).await;
    let addr = Address::parse(&echo.address).unwrap().authority;
    let mut greeted = tokio::net::TcpStream::connect(&addr).await.unwrap();
    let mut preface = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    greeted.write_all(&preface).await.unwrap();
    greeted.read_exact(&mut preface).await.unwrap();
    // One that has said a part of it, and no more.
    let mut silent = tokio::net::TcpStream::connect(&addr).await.unwrap();
    silent.write_all(&preface[..20]).await.unwrap();
    silent.read_exact(&mut preface[..20]).await.unwrap();
    let closed = tokio::time::timeout(LIMIT, silent.read_exact(&mut preface)).await.unwrap();
    assert!(closed.is_err(), "the server closes it");
    // The other one may be idle for as long as it likes, and the place is free.
    greeted.write_all(b"x").await.unwrap();
    greeted.read_exact(&mut preface[..1]).await.unwrap();
    let mut another = tokio::net::TcpStream::connect(&addr).await.unwrap();
    another.write_all(b"y").await.unwrap();
    another.read_exact(&mut preface[..1]).await.unwrap();
    assert_eq!((preface[0], echo.figures.refused()), (b'y', 0));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let error = |config: &Config| ServerTls::load(config).unwrap_err().to_string();
    assert!(error(&config(folder, None)).contains("server.cert"));
    let ours = Authority::new(folder, "ours");
    ours.issue("server", "localhost");
    fs::copy(folder.join("server.key"), folder.join("kept.key")).unwrap();
    fs::write(folder.join("server.key"), "no key").unwrap();
    assert!(error(&config(folder, None)).contains("server.key"));
    ours.issue("other", "localhost");
    fs::copy(folder.join("other.key"), folder.join("server.key")).unwrap();
    let mixed = error(&config(folder, None));
    assert!(mixed.contains("server.cert") && mixed.contains("server.key"), "{mixed}");
    fs::copy(folder.join("kept.key"), folder.join("server.key")).unwrap();
    fs::write(folder.join("empty.pem"), "").unwrap();
    assert!(error(&config(folder, Some("empty.pem"))).contains("empty.pem"));
    assert!(ServerTls::load(&Config::default()).unwrap().is_none());
}

#[test]
fn a_taken_port_is_named() {
    let network = Runtime::new().unwrap();
    let first = Listener::bind(&network, "127.0.0.1:0", "http.addr").unwrap();
    let addr = first.addr().unwrap().to_string();
    let error = Listener::bind(&network, &addr, "http.addr").unwrap_err().to_string();
    assert!(error.contains("is in use") && error.contains("http.addr"), "{error}");
    assert!(Listener::bind(&network, "nonsense", "http.addr").unwrap_err().to_string().contains("HOST:PORT"));
}
