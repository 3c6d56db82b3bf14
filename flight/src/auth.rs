//! Credentials: the user of a call.
//!
//! A client shows a user and password once (`Basic`) and gets a random bearer token for the calls that follow. Secrets
//! are compared in constant time and never printed.

use arrow_flight::BasicAuth;
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    prelude::BASE64_URL_SAFE_NO_PAD,
};
use prost::Message;
use rand::RngCore;
use subtle::ConstantTimeEq;
use tonic::{Status, metadata::MetadataMap};

use crate::engine::Principal;

/// User name where the service is open and the client gave none.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Decodes base64 with and without padding: the Go client leaves the padding out, others send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The users that the service admits.
#[derive(Clone)]
pub enum Authentication {
    /// Every caller. For loopback only.
    Open,
    /// One user.
    Password {
        /// Name of the user.
        user: String,
        /// Password of the user.
        password: String,
    },
}

impl std::fmt::Debug for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open => f.write_str("Open"),
            Self::Password { user, .. } => f.debug_struct("Password").field("user", user).finish_non_exhaustive(),
        }
    }
}

/// The `authorization` header of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// Nothing.
    None,
    /// User and password.
    Basic { user: String, password: String },
    /// A token that this server issued.
    Bearer(String),
}

impl Credentials {
    /// Reads the header. The scheme is matched without regard to case.
    pub(crate) fn from_metadata(metadata: &MetadataMap) -> Result<Self, Status> {
        let Some(value) = metadata.get("authorization") else { return Ok(Self::None) };
        let text = value.to_str().map_err(|_| Status::unauthenticated("the authorization header is not ASCII"))?;
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("bearer") && !rest.trim().is_empty() {
            Ok(Self::Bearer(rest.trim().to_owned()))
        } else if scheme.eq_ignore_ascii_case("basic") {
            Self::from_basic(rest.trim())
        } else {
            Err(Status::unauthenticated(
                "the authorization header is neither 'Basic <credentials>' nor 'Bearer <token>'; log in with user and password",
            ))
        }
    }

    fn from_basic(encoded: &str) -> Result<Self, Status> {
        let wrong = || Status::unauthenticated("the Basic credentials are not base64 of 'user:password'");
        let text = String::from_utf8(BASE64.decode(encoded).map_err(|_| wrong())?).map_err(|_| wrong())?;
        let (user, password) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Self::Basic { user: user.to_owned(), password: password.to_owned() })
    }

    /// Reads the payload of a handshake message, where older clients put user and password.
    pub(crate) fn from_handshake(payload: &[u8]) -> Result<Self, Status> {
        if payload.is_empty() {
            return Ok(Self::None);
        }
        let auth = BasicAuth::decode(payload).map_err(|_| {
            Status::unauthenticated("the handshake carries neither a Basic header nor a BasicAuth message")
        })?;
        Ok(Self::Basic { user: auth.username, password: auth.password })
    }
}

impl Authentication {
    /// Verifies credentials that are not a token; returns their user.
    pub(crate) fn verify(&self, credentials: &Credentials) -> Result<Principal, Status> {
        match (self, credentials) {
            (Self::Open, Credentials::Basic { user, .. }) if !user.is_empty() => Ok(Principal { user: user.clone() }),
            (Self::Open, _) => Ok(Principal { user: ANONYMOUS.to_owned() }),
            (Self::Password { user, password }, Credentials::Basic { user: given, password: secret }) => {
                let same_user = user.as_bytes().ct_eq(given.as_bytes());
                let same_password = password.as_bytes().ct_eq(secret.as_bytes());
                if bool::from(same_user & same_password) {
                    Ok(Principal { user: user.clone() })
                } else {
                    Err(Status::unauthenticated("wrong user or password"))
                }
            }
            (Self::Password { .. }, Credentials::None) => {
                Err(Status::unauthenticated("the call has no credentials: log in with user and password"))
            }
            (Self::Password { .. }, Credentials::Bearer(_)) => {
                Err(Status::unauthenticated("the token is unknown or expired: log in again"))
            }
        }
    }
}

/// A random name of 256 bits that nobody can guess.
#[allow(clippy::disallowed_methods, reason = "a seeded generator could be replayed by an attacker")]
pub(crate) fn random_token() -> String {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn header(value: &str) -> Result<Credentials, Status> {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", value.parse().unwrap());
        Credentials::from_metadata(&metadata)
    }

    #[test]
    fn headers_are_read_or_refused_with_a_reason() {
        assert_eq!(header("basic dTpwOnE=").unwrap(), Credentials::Basic { user: "u".into(), password: "p:q".into() });
        assert_eq!(header("Basic dTpwOnE").unwrap(), header("Basic dTpwOnE=").unwrap(), "padding is optional");
        assert_eq!(header("BEARER  abc").unwrap(), Credentials::Bearer("abc".into()));
        for wrong in ["Bearer", "Basic !!!", "Negotiate x", ""] {
            assert_eq!(header(wrong).unwrap_err().code(), tonic::Code::Unauthenticated, "{wrong}");
        }
    }

    #[test]
    fn password_is_needed_where_one_is_set() {
        let auth = Authentication::Password { user: "u".into(), password: "p".into() };
        let basic = |user: &str, password: &str| Credentials::Basic { user: user.into(), password: password.into() };
        assert!(auth.verify(&basic("u", "p")).is_ok());
        for wrong in
            [basic("u", ""), basic("", "p"), basic("u", "pp"), Credentials::None, Credentials::Bearer("x".into())]
        {
            assert_eq!(auth.verify(&wrong).unwrap_err().code(), tonic::Code::Unauthenticated);
        }
        assert!(!format!("{auth:?}").contains("\"p\""));
    }
}
