//! Which addresses may be listened on: beyond loopback only with a password and with TLS, unless the configuration says
//! that connections without TLS are wanted.

use super::listener::resolve;
use crate::config::Config;
use crate::error::{Error, Result};

/// Fails for an address beyond loopback that everyone, or everyone on the way, could use or listen to.
pub(crate) fn check_exposure(config: &Config) -> Result<()> {
    let missing = if config.password.is_none() {
        "no password is set, so the server would be open to the network. Set TERRACE_USER and TERRACE_PASSWORD, or listen \
         on 127.0.0.1"
    } else if config.tls.cert.is_none() && !config.insecure_listen {
        "there is no TLS, so passwords and rows would go over the network in the clear. Set tls.cert and tls.key \
         (TERRACE_TLS_CERT, TERRACE_TLS_KEY), or listen on 127.0.0.1. Where something else encrypts (a proxy, a private \
         network), say so by --insecure-listen (TERRACE_INSECURE_LISTEN=true)"
    } else {
        return Ok(());
    };
    for (addr, key) in [(&config.flight.addr, "flight.addr"), (&config.http.addr, "http.addr")] {
        let found = resolve(addr, key)?;
        if let Some(open) = found.iter().find(|a| !a.ip().is_loopback()) {
            return Err(Error::Listen { addr: open.to_string(), key, message: missing.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn beyond_loopback_a_server_wants_a_password_and_tls() {
        let mut config = Config::default();
        config.flight.addr = "0.0.0.0:0".to_owned();
        let refusal = |config: &Config| check_exposure(config).unwrap_err().to_string();
        let open = refusal(&config);
        assert!(open.contains("TERRACE_PASSWORD") && open.contains("flight.addr"), "{open}");
        config.insecure_listen = true;
        assert!(refusal(&config).contains("TERRACE_PASSWORD"), "a password is wanted in any case");
        config.user = Some("ann".to_owned());
        config.password = Some("x".to_owned());
        check_exposure(&config).unwrap();
        config.insecure_listen = false;
        let clear = refusal(&config);
        assert!(clear.contains("tls.cert") && clear.contains("--insecure-listen"), "{clear}");
        config.tls.cert = Some("cert.pem".into());
        check_exposure(&config).unwrap();
    }
}
