//! Credentials: the user of a call.
//!
//! A client shows a user and password once (`Basic`) and gets a random bearer token for the calls that follow, or it shows a
//! token that was made for it. Secrets are never printed.

use arrow_flight::BasicAuth;
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use prost::Message;
use tonic::{Status, metadata::MetadataMap};

/// Decodes base64 with and without padding: the Go client leaves the padding out, others send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The `authorization` header of a call.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) enum Credentials {
    /// Nothing.
    None,
    /// User and password.
    Basic { user: String, password: String },
    /// A token: of a session, or one that was made for its bearer.
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
}
