//! Where a command finds its server, and who asks: from options, the environment, and named profiles in a file.
//!
//! Options > environment > profile > default. A profile that `--profile` names is an option itself: its values win over the
//! environment, so that `--profile test` never reaches the server that `TERRACE_URL` names. The login of any other profile is
//! for the server that it names alone. Profiles have no passwords, but say where one comes from. Every user of a machine may see the
//! arguments of its processes: so a password comes from a file, the environment, a command or the terminal.
//!
//! - [`file`]: the file of profiles
//! - [`secret`]: passwords from files and commands

mod file;
mod secret;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use crate::client::Connection;
use crate::error::{Error, Result};
use crate::http_client::HttpConnection;
use crate::network::TlsOptions;
use crate::terminal::errln;
use file::Chosen;

/// Address of Flight SQL unless told otherwise.
const URL: &str = "grpc://127.0.0.1:31337";
/// Address of HTTP unless told otherwise.
const HTTP_ADDR: &str = "127.0.0.1:8080";

/// Who asks, and which profile has the rest.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LoginOptions {
    /// Take server and login from this profile of ~/.config/terrace/profiles.toml [env: TERRACE_PROFILE]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// User, where the server wants one [env: TERRACE_USER]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// File whose first line is the password of the user, or a token; else TERRACE_PASSWORD or a profile has it, or a terminal is asked
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Password of the user, for others of the machine to see
    #[arg(long, value_name = "PASSWORD", hide = true, conflicts_with = "password_file")]
    password: Option<String>,
    /// For TLS: certificates of the authorities to trust, in PEM form [env: TERRACE_CA] [default: those of this machine]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For TLS: the certificate to show to a server that wants one, in PEM form [env: TERRACE_CERT]
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// For TLS: the private key of --cert, in PEM form [env: TERRACE_CERT_KEY]
    #[arg(long, value_name = "FILE")]
    cert_key: Option<PathBuf>,
}

impl LoginOptions {
    /// The password that options give. Every user of a machine sees the arguments of its processes, so one there is taken with a
    /// warning.
    fn password(&self) -> Option<Result<String>> {
        if let Some(password) = &self.password {
            errln!(
                "warning: other users of this machine can see the argument --password; use TERRACE_PASSWORD, --password-file or a \
                 profile, or give none to be asked for it"
            );
            return Some(Ok(password.clone()));
        }
        self.password_file.as_deref().map(secret::read)
    }
}

/// A server's Flight SQL port.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConnectionOptions {
    /// Address of the server; grpc+tls://HOST:PORT for TLS [env: TERRACE_URL] [default: grpc://127.0.0.1:31337]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    login: LoginOptions,
}

/// A server's HTTP port.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct HttpOptions {
    /// Address of the server's HTTP port; 0.0.0.0 means this machine, https://HOST:PORT is for TLS [env: TERRACE_HTTP_ADDR]
    /// [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    http_addr: Option<String>,
    #[command(flatten)]
    login: LoginOptions,
    #[arg(skip)]
    resolved: OnceLock<HttpConnection>,
}

impl ConnectionOptions {
    /// Options that name a server by its address, such as `grpc://HOST:PORT`, or by a profile.
    pub fn at(place: &str) -> Self {
        let place = place.to_owned();
        match place.contains("://") {
            true => Self { url: Some(place), ..Self::default() },
            false => {
                Self { login: LoginOptions { profile: Some(place), ..LoginOptions::default() }, ..Self::default() }
            }
        }
    }

    /// Whether options say where the server is.
    pub fn names_a_server(&self) -> bool {
        self.url.is_some() || self.login.profile.is_some()
    }

    /// The connection that the options, the environment and the profile make.
    ///
    /// # Errors
    /// For a profile that is missing or faulty, a password that cannot be had, and a certificate without its key.
    pub fn resolve(&self) -> Result<Connection> {
        let environment = |name: &str| std::env::var(name).ok();
        let mut layers = Layers::new(&self.login, &environment)?;
        let url = layers.address(self.url.as_deref(), &FLIGHT)?;
        let Login { user, password, tls } = layers.login(&self.login)?;
        Ok(Connection { url, user, password, tls })
    }
}

impl HttpOptions {
    /// The connection, which is made at the first call.
    ///
    /// # Errors
    /// As [`ConnectionOptions::resolve`].
    pub fn connection(&self) -> Result<&HttpConnection> {
        if let Some(found) = self.resolved.get() {
            return Ok(found);
        }
        let environment = |name: &str| std::env::var(name).ok();
        let mut layers = Layers::new(&self.login, &environment)?;
        let http_addr = layers.address(self.http_addr.as_deref(), &HTTP)?;
        let Login { user, password, tls } = layers.login(&self.login)?;
        Ok(self.resolved.get_or_init(|| HttpConnection { http_addr, user, password, tls }))
    }

    /// Sends a request and waits for its answer as long as it takes.
    ///
    /// # Errors
    /// As [`Self::connection`] and [`HttpConnection::request`].
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        self.connection()?.request(method, path, body)
    }

    /// Calls `visit` with every item of a paged list.
    ///
    /// # Errors
    /// As [`Self::connection`] and [`HttpConnection::pages`].
    pub fn pages(&self, path: &str, visit: impl FnMut(Value) -> Result<()>) -> Result<()> {
        self.connection()?.pages(path, visit)
    }
}

/// An address: where the layers have it.
struct AddressKind {
    option: &'static str,
    variable: &'static str,
    key: &'static str,
    usual: &'static str,
}

const FLIGHT: AddressKind = AddressKind { option: "--url", variable: "TERRACE_URL", key: "url", usual: URL };
const HTTP: AddressKind =
    AddressKind { option: "--http-addr", variable: "TERRACE_HTTP_ADDR", key: "http_addr", usual: HTTP_ADDR };

/// What there is beside the options.
struct Layers<'a> {
    environment: &'a dyn Fn(&str) -> Option<String>,
    chosen: Option<Chosen>,
}

/// Who asks.
struct Login {
    user: Option<String>,
    password: Option<String>,
    tls: TlsOptions,
}

impl<'a> Layers<'a> {
    fn new(options: &LoginOptions, environment: &'a dyn Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(Self { chosen: Chosen::find(options.profile.as_deref(), environment)?, environment })
    }

    /// The strongest of an option, a variable and a value of the profile.
    fn pick<T>(&self, option: Option<T>, variable: Option<T>, profile: impl FnOnce(&Chosen) -> Option<T>) -> Option<T> {
        match &self.chosen {
            Some(chosen) if chosen.is_named => option.or_else(|| profile(chosen)).or(variable),
            Some(chosen) => option.or(variable).or_else(|| profile(chosen)),
            None => option.or(variable),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    /// An address. A profile that names a server by its other port must name this one as well: the default would be another
    /// server. Where another address wins over one that nobody named, its login is not for that server.
    fn address(&mut self, option: Option<&str>, kind: &AddressKind) -> Result<String> {
        let option = option.map(str::to_owned);
        let found = self.pick(option, self.variable(kind.variable), |chosen| chosen.address(kind.key));
        let is_of_other = |chosen: &mut Chosen| {
            !chosen.is_named && chosen.has_address() && found.is_some() && chosen.address(kind.key) != found
        };
        let _ = self.chosen.take_if(is_of_other);
        match (found, &self.chosen) {
            (Some(found), _) => Ok(found),
            (None, Some(chosen)) if chosen.has_address() => Err(Error::file(
                &chosen.file,
                format!("profile '{}' has no {}: add it, or give {}", chosen.name, kind.key, kind.option),
            )),
            (None, _) => Ok(kind.usual.to_owned()),
        }
    }

    fn login(&self, options: &LoginOptions) -> Result<Login> {
        let user = self.pick(options.user.clone(), self.variable("TERRACE_USER"), |chosen| chosen.profile.user.clone());
        let path = |name: &str| self.variable(name).map(PathBuf::from);
        let ca = self.pick(options.ca.clone(), path("TERRACE_CA"), |chosen| chosen.path(&chosen.profile.ca));
        let cert = self.pick(options.cert.clone(), path("TERRACE_CERT"), |chosen| chosen.path(&chosen.profile.cert));
        let key = |chosen: &Chosen| chosen.path(&chosen.profile.cert_key);
        let cert_key = self.pick(options.cert_key.clone(), path("TERRACE_CERT_KEY"), key);
        if cert.is_some() != cert_key.is_some() {
            let message = "a certificate and its private key belong together: give both --cert and --cert-key";
            return Err(Error::Usage(message.to_owned()));
        }
        let password = self.password(options, user.as_deref())?;
        Ok(Login { user, password, tls: TlsOptions { ca, cert, cert_key } })
    }

    /// The password; at a terminal, the user is asked for it where nothing else has it.
    fn password(&self, options: &LoginOptions, user: Option<&str>) -> Result<Option<String>> {
        let variable = self.variable("TERRACE_PASSWORD");
        // The command of a profile runs only when its password is wanted.
        let found = self.pick(options.password(), variable.map(Ok), |chosen| chosen.password().transpose());
        match (found.transpose()?, user) {
            (None, Some(user)) if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => {
                let password = rpassword::prompt_password(format!("Password of '{user}': "));
                Ok(Some(password.map_err(|e| Error::System(format!("cannot read the password: {e}")))?))
            }
            (found, _) => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests;
