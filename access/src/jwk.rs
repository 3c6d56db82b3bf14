//! The public keys of an issuer: a JSON Web Key Set (RFC 7517).
//!
//! Each key is of use for the algorithms of its kind that the configuration allows, so that a token cannot choose another one for
//! it. Secrets (`oct`) are left out, as are keys for encryption and those of kinds that are not known.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Most keys of a set that are used.
const MOST_KEYS: usize = 100;

/// A set as it is written.
#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// A key that checks signatures.
struct Key {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// The keys of an issuer.
#[derive(Default)]
pub(crate) struct Keys(Vec<Key>);

impl Keys {
    /// Reads a set; keeps the keys that are of use for one of the `allowed` algorithms.
    pub(crate) fn read(json: &str, allowed: &[Algorithm]) -> Result<Self, String> {
        let set: Set = serde_json::from_str(json).map_err(|error| format!("no set of keys (JWKS): {error}"))?;
        let keys = set.keys.into_iter().filter_map(|key| Key::read(key, allowed)).take(MOST_KEYS);
        let keys: Vec<Key> = keys.collect();
        if keys.is_empty() {
            return Err("the set of keys (JWKS) has none for an algorithm of oidc.algorithms".to_owned());
        }
        Ok(Self(keys))
    }

    /// The key of an id for an algorithm. Without an id it is the only one for the algorithm, if there is one.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        let found = match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id))?,
            None => fitting.next().filter(|_| fitting.next().is_none())?,
        };
        Some(&found.key)
    }
}

impl Key {
    fn read(value: Value, allowed: &[Algorithm]) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let verifies = jwk.common.key_operations.as_ref().is_none_or(|list| list.contains(&KeyOperations::Verify));
        if !verifies || !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let possible = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => return None,
        };
        let named = jwk.common.key_algorithm;
        let fits = |algorithm: &Algorithm| {
            allowed.contains(algorithm) && named.is_none_or(|named| named == KeyAlgorithm::from(*algorithm))
        };
        let algorithms: Vec<Algorithm> = possible.into_iter().filter(fits).collect();
        if algorithms.is_empty() {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: jwk.common.key_id, algorithms, key })
    }
}
