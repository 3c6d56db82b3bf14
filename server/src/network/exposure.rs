//! Which addresses may be listened on: beyond loopback only with users and with TLS, unless the configuration says that
//! connections without TLS are wanted.

use super::listener::resolve;
use crate::config::Config;
use crate::error::{Error, Result};

/// Fails for an address beyond loopback that everyone, or everyone on the way, could use or listen to.
pub(crate) fn check_exposure(config: &Config, has_users: bool) -> Result<()> {
    let missing = if !has_users {
        "there is no user, so the server would be open to the network. Set TERRACE_USER and TERRACE_PASSWORD, make a user \
         by `terrace user create`, or listen on 127.0.0.1"
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
    fn beyond_loopback_a_server_wants_users_and_tls() {
        let mut config = Config::default();
        config.flight.addr = "0.0.0.0:0".to_owned();
        let refusal = |config: &Config, has_users| check_exposure(config, has_users).unwrap_err().to_string();
        let open = refusal(&config, false);
        assert!(open.contains("TERRACE_PASSWORD") && open.contains("flight.addr"), "{open}");
        config.insecure_listen = true;
        assert!(refusal(&config, false).contains("TERRACE_PASSWORD"), "a user is wanted in any case");
        check_exposure(&config, true).unwrap();
        config.insecure_listen = false;
        let clear = refusal(&config, true);
        assert!(clear.contains("tls.cert") && clear.contains("--insecure-listen"), "{clear}");
        config.tls.cert = Some("cert.pem".into());
        check_exposure(&config, true).unwrap();
        // The port for probes says yes or no, so everybody may ask it.
        let mut probed = Config::default();
        probed.http.health_addr = Some("0.0.0.0:0".to_owned());
        check_exposure(&probed, false).unwrap();
    }
}
