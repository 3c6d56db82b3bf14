//! The server's certificates: loaded from PEM files, and read again when these change.
//!
//! Files that cannot be used leave the ones in use as they are: a renewal that goes wrong, or is half done, cuts nobody
//! off. The log names the fault, and a metric shows that the newest files are not in use.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use terrace_tier_store::clock::{Clock, SystemClock};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::certificate;
use crate::config::{Config, TlsConfig};
use crate::error::{Error, Result};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The protocol that is spoken inside of TLS; clients ask for it by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/2, for gRPC.
    Http2,
    /// HTTP/1.1.
    Http1,
}

impl Protocol {
    /// Its name in ALPN (RFC 7301).
    pub(super) fn name(self) -> Vec<u8> {
        match self {
            Self::Http2 => b"h2".to_vec(),
            Self::Http1 => b"http/1.1".to_vec(),
        }
    }
}

/// The files that the certificates come from.
#[derive(Debug, Clone)]
struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// What was loaded from the files: a configuration by protocol.
#[derive(Debug)]
struct TlsConfigs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    /// End of the certificate's validity, in seconds since the Unix epoch.
    expires_unix_s: i64,
}

/// Certificates and key of the server.
#[derive(Debug)]
pub(crate) struct ServerTls {
    files: TlsFiles,
    /// Whether the certificates of clients name their users.
    client_users: bool,
    configs: ArcSwap<TlsConfigs>,
    /// State of the files when they were last loaded, or tried to be.
    seen: Mutex<Stamps>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    /// True while the newest files cannot be used.
    is_outdated: AtomicBool,
}

impl ServerTls {
    /// Loads the configured files; `None` without any.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read or used.
    pub(crate) fn load(config: &Config) -> Result<Option<Arc<Self>>> {
        let TlsConfig { cert: Some(cert), key: Some(key), client_ca, client_users, .. } = config.tls.clone() else {
            return Ok(None);
        };
        let files = TlsFiles { cert, key, client_ca };
        // Before the files are read: what is written meanwhile is seen later.
        let seen = Mutex::new(files.stamps());
        let configs = ArcSwap::from_pointee(files.load()?);
        let counter = AtomicU64::default;
        let is_outdated = AtomicBool::default();
        Ok(Some(Arc::new(Self {
            files,
            client_users,
            configs,
            seen,
            reloads: counter(),
            failed_reloads: counter(),
            is_outdated,
        })))
    }

    /// An acceptor of handshakes by the certificates in use.
    pub(crate) fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let configs = self.configs.load();
        match protocol {
            Protocol::Http2 => Arc::clone(&configs.http2).into(),
            Protocol::Http1 => Arc::clone(&configs.http1).into(),
        }
    }

    /// The user that the certificate of a client names; `None` where certificates name none.
    pub(super) fn certified_user(&self, stream: &TlsStream<TcpStream>) -> Option<String> {
        let chain = stream.get_ref().1.peer_certificates().filter(|_| self.client_users && self.is_mutual())?;
        certificate::read(chain.first()?.as_ref()).ok()?.common_name
    }

    /// True when clients must show a certificate.
    pub(crate) fn is_mutual(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// End of the validity of the certificate in use, in seconds since the Unix epoch.
    pub(crate) fn expires_unix_s(&self) -> i64 {
        self.configs.load().expires_unix_s
    }

    /// Times that changed files were taken into use.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// Times that changed files could not be used.
    pub(crate) fn failed_reloads(&self) -> u64 {
        self.failed_reloads.load(Ordering::Relaxed)
    }

    /// True while the newest files cannot be used.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }

    /// Reads the files again whenever they have changed, until `stop`.
    pub(crate) async fn keep_current(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let this = Arc::clone(&self);
            // A panic is logged by its hook; the next look follows.
            let _ = tokio::task::spawn_blocking(move || this.reload_if_changed()).await;
        }
    }

    /// Loads the files if they have changed since the last look, or could not be used then: rights may have been mended.
    fn reload_if_changed(&self) {
        let mut seen = self.seen.lock();
        let now = self.files.stamps();
        let has_changed = *seen != now;
        if !has_changed && !self.is_outdated() {
            return;
        }
        *seen = now;
        match self.files.load() {
            Ok(configs) => {
                tracing::info!(expires_unix_s = configs.expires_unix_s, "new TLS certificates are in use");
                self.configs.store(Arc::new(configs));
                self.reloads.fetch_add(1, Ordering::Relaxed);
                self.is_outdated.store(false, Ordering::Relaxed);
            }
            Err(error) if has_changed => {
                tracing::error!(%error, "the changed TLS files cannot be used; the earlier certificates stay in use");
                self.failed_reloads.fetch_add(1, Ordering::Relaxed);
                self.is_outdated.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}

/// State of each file: time of its last change of content or rights, length, inode; `None`: it cannot be seen.
type Stamps = Vec<Option<(i64, i64, u64, u64)>>;

impl TlsFiles {
    fn stamps(&self) -> Stamps {
        let stamp = |path: &PathBuf| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.ctime(), data.ctime_nsec(), data.len(), data.ino()))
        };
        [&self.cert, &self.key].into_iter().chain(&self.client_ca).map(stamp).collect()
    }

    fn load(&self) -> Result<TlsConfigs> {
        let chain = certificates(&self.cert)?;
        let expires_unix_s = expiry(&self.cert, chain.first())?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|e| Error::file(&self.key, format!("no private key in PEM form can be read from it: {e}")))?;
        let system = |e: rustls::Error| Error::System(format!("cannot set up TLS: {e}"));
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(system)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider());
                builder.with_client_cert_verifier(verifier.build().map_err(|e| Error::file(path, e))?)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|e| {
            Error::file(&self.cert, format!("it cannot be used with the key {}: {e}", self.key.display()))
        })?;
        let speaking = |protocol: Protocol| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.name()];
            Arc::new(config)
        };
        Ok(TlsConfigs { http2: speaking(Protocol::Http2), http1: speaking(Protocol::Http1), expires_unix_s })
    }
}

/// The cryptography of all connections.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates in a PEM file; at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found =
        found.map_err(|e| Error::file(path, format!("no certificates in PEM form can be read from it: {e}")))?;
    if found.is_empty() { Err(Error::file(path, "it holds no certificate in PEM form")) } else { Ok(found) }
}

/// The certificates in a PEM file as authorities to check others against.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|e| Error::file(path, format!("it holds a certificate of no use: {e}")))?;
    }
    Ok(store)
}

/// End of a certificate's validity, in seconds since the Unix epoch. Warns about one that is over.
fn expiry(path: &Path, certificate: Option<&CertificateDer<'_>>) -> Result<i64> {
    let bytes = certificate.map(|certificate| certificate.as_ref()).unwrap_or_default();
    let read = certificate::read(bytes);
    let not_after = read
        .map_err(|e| Error::file(path, format!("the validity of its first certificate cannot be read: {e}")))?
        .not_after_unix_s;
    let over_s = (SystemClock::default().unix_us() / 1_000_000) as i64 - not_after;
    if over_s > 0 {
        tracing::warn!("the certificate {} ended {} days ago: clients will refuse it", path.display(), over_s / 86_400);
    }
    Ok(not_after)
}
