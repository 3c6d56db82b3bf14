//! Hashes of passwords by Argon2id, in PHC strings that name its parameters (RFC 9106; 19 MiB, two passes, as OWASP's
//! password storage cheat sheet asks for at least).

use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};

use crate::error::{AccessError, Result};
use crate::secret::random_bytes;

/// Lengths of passwords, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=1024;

/// The hash of a password that nobody knows.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5IGtub3dzIQ$\
                      AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Hashes a new password; takes some 30 ms.
pub(crate) fn hash(password: &str) -> Result<String> {
    if !LENGTHS.contains(&password.len()) {
        return Err(AccessError::BadPassword);
    }
    let failed = |error: argon2::password_hash::Error| AccessError::Hash(error.to_string());
    let salt = SaltString::encode_b64(&random_bytes::<16>()).map_err(failed)?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt).map_err(failed)?.to_string())
}

/// Whether a password is the one of a hash; takes some 30 ms. With `None`, or one that cannot be read, it takes as long, and is false.
pub(crate) fn is_right(password: &str, hash: Option<&str>) -> bool {
    let known = hash.and_then(|hash| {
        let parsed = PasswordHash::new(hash);
        parsed.inspect_err(|_| tracing::error!("the catalog holds a hash of a password that cannot be read")).ok()
    });
    let is_known = known.is_some();
    let Some(compared) = known.or_else(|| PasswordHash::new(NOBODY).ok()) else { return false };
    Argon2::default().verify_password(password.as_bytes(), &compared).is_ok() && is_known
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_right_password_is_right() {
        let hash = hash("correct horse").unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$") && !hash.contains("correct"), "{hash}");
        assert!(is_right("correct horse", Some(&hash)));
        assert!(!is_right("correct hors", Some(&hash)) && !is_right("", Some(&hash)));
        assert_ne!(hash, super::hash("correct horse").unwrap(), "each hash has a salt of its own");
        for short in ["", "seven77", &"x".repeat(1025)] {
            assert!(matches!(super::hash(short), Err(AccessError::BadPassword)));
        }
    }

    #[test]
    fn without_a_user_as_much_is_computed_and_nothing_is_right() {
        assert!(PasswordHash::new(NOBODY).is_ok());
        assert!(!is_right("nobody knows", None));
        assert!(!is_right("nobody knows", Some("no hash")));
    }
}
