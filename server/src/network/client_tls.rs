//! TLS of the command line: whom it trusts, and the certificate that it shows.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::Address;
use super::server_tls::{Protocol, authorities, certificates, provider};
use crate::error::{Error, Result};

/// Options of encrypted connections.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsOptions {
    /// For TLS: certificates of the authorities to trust, in PEM form [default: those of this machine]
    #[arg(long, env = "TERRACE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// For TLS: the certificate to show to a server that wants one, in PEM form
    #[arg(long, env = "TERRACE_CERT", value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// For TLS: the private key of --cert, in PEM form
    #[arg(long, env = "TERRACE_CERT_KEY", value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
}

impl TlsOptions {
    /// What connects to `address` by TLS, to speak `protocol`; `None` where the address asks for no TLS.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read or used; [`Error::Usage`] without anybody to trust.
    pub(crate) fn connector(&self, address: &Address, protocol: Protocol) -> Result<Option<TlsConnector>> {
        if !address.tls {
            return Ok(None);
        }
        let roots = match &self.ca {
            Some(path) => authorities(path)?,
            None => authorities_of_this_machine()?,
        };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder =
            builder.map_err(|e| Error::System(format!("cannot set up TLS: {e}")))?.with_root_certificates(roots);
        let mut config = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(path)) => {
                let key = PrivateKeyDer::from_pem_file(path)
                    .map_err(|e| Error::file(path, format!("no private key in PEM form can be read from it: {e}")))?;
                let config = builder.with_client_auth_cert(certificates(cert)?, key);
                config
                    .map_err(|e| Error::file(cert, format!("it cannot be used with the key {}: {e}", path.display())))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.name()];
        Ok(Some(TlsConnector::from(Arc::new(config))))
    }
}

/// The authorities that this machine trusts.
fn authorities_of_this_machine() -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(Error::Usage(
            "this machine has no list of trusted certificate authorities (package ca-certificates); name the certificate of \
             the server's authority by --ca FILE"
                .to_owned(),
        ));
    }
    Ok(store)
}

/// A connection to a server.
pub(crate) type ClientStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Connects to `address` within `limit`, by [`TlsOptions::connector`] where there is one.
pub(crate) async fn connect(
    address: &Address,
    connector: Option<&TlsConnector>,
    limit: Duration,
) -> io::Result<ClientStream> {
    let connecting = async {
        let stream = TcpStream::connect(&address.authority).await?;
        stream.set_nodelay(true)?;
        let Some(connector) = connector else { return Ok(Either::Left(stream)) };
        let connected = connector.connect(server_name(address)?, stream).await;
        Ok(Either::Right(Box::new(connected.map_err(explained)?)))
    };
    let late = |_| Err(io::Error::other(format!("no connection within {} s", limit.as_secs_f64())));
    tokio::time::timeout(limit, connecting).await.unwrap_or_else(late)
}

/// The name that the server's certificate has to be for; all addresses of this machine are `localhost`.
fn server_name(address: &Address) -> io::Result<ServerName<'static>> {
    let host = address.host();
    let host = if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) { "localhost" } else { host };
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| io::Error::other(format!("'{host}' is no name that a certificate can be for")))
}

/// Says what to do about a handshake that failed.
fn explained(error: io::Error) -> io::Error {
    use rustls::{AlertDescription, CertificateError, Error as Tls};
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>());
    let advice = match found {
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "the server's certificate is of an unknown authority; name the authority's certificate by --ca FILE"
        }
        Some(Tls::AlertReceived(AlertDescription::CertificateRequired)) => {
            "the server wants a certificate: give one by --cert FILE --cert-key FILE"
        }
        Some(Tls::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            "what listens there speaks another protocol: Flight SQL and HTTP have ports of their own"
        }
        Some(Tls::InvalidMessage(_)) => {
            "what listens there does not speak TLS; for a server without TLS write grpc:// or http://"
        }
        _ => return error,
    };
    io::Error::other(advice)
}
