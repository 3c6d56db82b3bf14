//! Addresses of servers as users write them, with or without TLS.

use crate::error::{Error, Result};

/// Where a server listens, and whether connections to it are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// True for TLS.
    pub tls: bool,
    /// `HOST:PORT`.
    pub authority: String,
}

impl Address {
    /// Parses `HOST:PORT`, or a URL with a scheme of Flight SQL or HTTP.
    ///
    /// # Errors
    /// [`Error::Usage`] for another scheme.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, authority) = text.split_once("://").unwrap_or(("grpc", text));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "grpc" | "grpc+tcp" | "http" => false,
            "grpc+tls" | "grpcs" | "grpc+ssl" | "https" | "tls" => true,
            _ => {
                return Err(Error::Usage(format!(
                    "'{text}' is not the address of a server; write grpc://HOST:PORT, or grpc+tls://HOST:PORT for TLS \
                     (https://HOST:PORT for the HTTP port)"
                )));
            }
        };
        Ok(Self { tls, authority: authority.trim_end_matches('/').to_owned() })
    }

    /// The address as a URL of HTTP.
    pub fn http_url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.authority)
    }

    /// The host, without its port and without the brackets of IPv6.
    pub(super) fn host(&self) -> &str {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => self.authority.as_str(),
        };
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_never_loses_its_encryption() {
        for url in ["grpc://h:1", "grpc+tcp://h:1", "http://h:1/", "GRPC://h:1", "h:1"] {
            assert_eq!(Address::parse(url).unwrap().http_url(), "http://h:1");
        }
        for url in ["grpc+tls://h:1", "https://h:1", "HTTPS://h:1/", "grpcs://h:1", "grpc+ssl://h:1", "tls://h:1"] {
            assert_eq!(Address::parse(url).unwrap().http_url(), "https://h:1");
        }
        let refused = Address::parse("ftp://h:1").unwrap_err().to_string();
        assert!(refused.contains("grpc://HOST:PORT") && refused.contains("grpc+tls://"), "{refused}");
    }

    #[test]
    fn hosts_are_told_from_ports() {
        for (text, host) in [("h:1", "h"), ("https://[::1]:8080", "::1"), ("10.0.0.7", "10.0.0.7"), ("h", "h")] {
            assert_eq!(Address::parse(text).unwrap().host(), host);
        }
    }
}
