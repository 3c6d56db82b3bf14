//! Random secrets of 256 bits, and fingerprints under which they are stored.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rand::RngCore;
use sha2::{Digest, Sha256};

/// Begin of every token, by which people and scanners of leaked secrets know it.
const TOKEN_PREFIX: &str = "terrace_";

/// Bytes that nobody can guess.
#[allow(clippy::disallowed_methods, reason = "a seeded generator could be replayed by an attacker")]
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// A random text of 256 bits that nobody can guess, of letters, digits, `-` and `_`.
pub fn random_secret() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(random_bytes::<32>())
}

/// A new token.
pub(crate) fn new_token() -> String {
    format!("{TOKEN_PREFIX}{}", random_secret())
}

/// The fingerprint of a token, from which the token cannot be found; `None` for a text that is no token.
pub(crate) fn token_fingerprint(token: &str) -> Option<String> {
    token.starts_with(TOKEN_PREFIX).then(|| BASE64_URL_SAFE_NO_PAD.encode(digest(&[token.as_bytes()])))
}

/// SHA-256 of the parts, each with its length.
pub(crate) fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random_and_their_fingerprints_tell_nothing() {
        let (one, other) = (new_token(), new_token());
        assert!(one != other && one.len() == TOKEN_PREFIX.len() + 43, "{one}");
        let fingerprint = token_fingerprint(&one);
        assert_eq!(fingerprint, token_fingerprint(&one));
        assert_ne!(fingerprint, token_fingerprint(&other));
        assert!(fingerprint.is_some_and(|text| !one.contains(&text)));
        assert_eq!(token_fingerprint("secret"), None);
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
