//! JSON Web Tokens (RFC 7519, RFC 8725): which of them are right, and whom they name.
//!
//! A token must be signed by a key of the issuer, with an algorithm of the configured list that is one of the key, must be of the
//! issuer and for the audience, and must end. Nothing in it is believed before its signature is checked; its header only chooses
//! among keys. Refusals are told to the log, never to the client, and hold nothing of the token.

use std::str::FromStr;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};

/// Bytes of the longest token.
pub(crate) const MOST_BYTES: usize = 16 << 10;
/// Bytes of the longest name of a user in a token.
const MOST_NAME_BYTES: usize = 1 << 10;
/// By how much the clock of the issuer may differ, in microseconds.
const LEEWAY_US: u64 = 5_000_000;
/// Names of the algorithms of public keys.
const PUBLIC_KEY_ALGORITHMS: &str = "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA";

/// Algorithms of signatures, all of public keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtAlgorithms(Vec<Algorithm>);

impl JwtAlgorithms {
    /// Reads names with `,` between them, such as `RS256, ES256`.
    ///
    /// # Errors
    /// When a name is not that of an algorithm of public keys, which `none` and `HS256` are not, and when there is none.
    pub fn parse(names: &str) -> Result<Self, String> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let algorithms: Vec<Algorithm> = names.map(algorithm).collect::<Result<_, _>>()?;
        if algorithms.is_empty() { Err("no algorithm is named".to_owned()) } else { Ok(Self(algorithms)) }
    }
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let found = Algorithm::from_str(name).ok().filter(|found| found.family() != AlgorithmFamily::Hmac);
    found.ok_or_else(|| format!("'{name}' is no algorithm of public keys; choose among {PUBLIC_KEY_ALGORITHMS}"))
}

/// Which tokens are right, and whom they name.
#[derive(Debug, Clone)]
pub struct JwtRules {
    /// The issuer, as its tokens name it (`iss`).
    pub issuer: String,
    /// What the tokens must be for (`aud`).
    pub audience: String,
    /// By which algorithms they may be signed.
    pub algorithms: JwtAlgorithms,
    /// The claim with the name of the user.
    pub user_claim: String,
    /// What stands before the name in the claim to make that of the user.
    pub user_prefix: String,
}

/// What a token showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Name of the user, who need not exist.
    pub(crate) user: String,
    /// When it ends, the difference of clocks included.
    pub(crate) expires_unix_us: u64,
}

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtError {
    #[error("it is longer than {} KiB", MOST_BYTES >> 10)]
    TooLong,
    #[error("it cannot be read, or has no signature")]
    Malformed,
    #[error("its algorithm is none of oidc.algorithms")]
    WrongAlgorithm,
    #[error("the issuer has no key of its id and algorithm")]
    UnknownKey,
    #[error("no keys of the issuer are known, or they were fetched more than a day ago")]
    OldKeys,
    #[error("its signature is wrong")]
    WrongSignature,
    #[error("it is of another issuer (iss)")]
    WrongIssuer,
    #[error("it is for another audience (aud)")]
    WrongAudience,
    #[error("iss, aud, exp or the claim with the user's name is missing, too long or of a wrong type")]
    BadClaims,
    #[error("it has expired (exp)")]
    Expired,
    #[error("it is not valid yet (nbf)")]
    TooEarly,
}

impl JwtRules {
    /// The algorithms that keys may be used for.
    pub(crate) fn allowed(&self) -> &[Algorithm] {
        &self.algorithms.0
    }

    /// Reads the header of a token, nothing of which has been proved.
    pub(crate) fn header(&self, token: &str) -> Result<Header, JwtError> {
        if token.len() > MOST_BYTES {
            return Err(JwtError::TooLong);
        }
        let header = decode_header(token).map_err(|_| JwtError::Malformed)?;
        if self.allowed().contains(&header.alg) { Ok(header) } else { Err(JwtError::WrongAlgorithm) }
    }

    /// Checks a token whose header chose `key`.
    pub(crate) fn check(
        &self,
        token: &str,
        algorithm: Algorithm,
        key: &DecodingKey,
        now_unix_us: u64,
    ) -> Result<Verified, JwtError> {
        let mut wanted = Validation::new(algorithm);
        wanted.set_required_spec_claims(&["iss", "aud", "exp"]);
        wanted.set_issuer(&[&self.issuer]);
        wanted.set_audience(&[&self.audience]);
        // Below, by the clock of this server.
        wanted.validate_exp = false;
        let claims = decode::<Map<String, Value>>(token, key, &wanted).map_err(|error| refusal(error.kind()))?.claims;
        // A list of issuers, which the library takes, too, is none of a token.
        if !claims.get("iss").is_some_and(Value::is_string) {
            return Err(JwtError::BadClaims);
        }
        let expires = time(&claims, "exp")?.ok_or(JwtError::BadClaims)?;
        let expires_unix_us = expires.saturating_add(LEEWAY_US);
        if expires_unix_us <= now_unix_us {
            return Err(JwtError::Expired);
        }
        if time(&claims, "nbf")?.is_some_and(|from| from > now_unix_us.saturating_add(LEEWAY_US)) {
            return Err(JwtError::TooEarly);
        }
        let name = claims.get(&self.user_claim).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty() && name.len() <= MOST_NAME_BYTES).ok_or(JwtError::BadClaims)?;
        Ok(Verified { user: format!("{}{name}", self.user_prefix), expires_unix_us })
    }
}

/// The time of a claim, in microseconds since the Unix epoch; `None`: it has none.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<u64>, JwtError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    seconds.map(|seconds| Some((seconds * 1e6) as u64)).ok_or(JwtError::BadClaims)
}

fn refusal(kind: &ErrorKind) -> JwtError {
    match kind {
        ErrorKind::InvalidSignature => JwtError::WrongSignature,
        ErrorKind::InvalidIssuer => JwtError::WrongIssuer,
        ErrorKind::InvalidAudience => JwtError::WrongAudience,
        ErrorKind::InvalidAlgorithm => JwtError::WrongAlgorithm,
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => JwtError::BadClaims,
        _ => JwtError::Malformed,
    }
}
