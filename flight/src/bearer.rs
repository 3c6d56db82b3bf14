//! Tokens that callers show: those of users, and those of an issuer (JWT).
//!
//! A token of a user is 256 random bits, which nobody guesses. One of an issuer is checked by a signature, perhaps after a wait for
//! keys, so that wrong ones are delayed by address like wrong passwords. Tokens that were right a moment ago do not wait. Flight
//! and HTTP both ask here.

use std::{net::IpAddr, time::Duration};

use terrace_access::{LoginError, Principal, Users};

use crate::logins::{Logins, TooManyLogins};

/// The name under which wrong tokens of an issuer are counted and logged: whom they name is not known before they are right.
const JWT: &str = "(JWT)";

/// Why a token was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BearerError {
    /// It is unknown, wrong or expired.
    Wrong,
    /// Too many wrong ones came from the address, or too many wait for keys.
    Later {
        /// Time after which it may be shown again.
        retry_after: Duration,
    },
}

/// Finds for whom the bearer of a token calls from `address`.
///
/// # Errors
/// [`BearerError`].
pub async fn check_bearer(
    users: &Users,
    logins: &Logins,
    address: IpAddr,
    token: &str,
) -> Result<Principal, BearerError> {
    if !users.takes_jwt(token) {
        return users.check_token(token).ok_or(BearerError::Wrong);
    }
    if let Some(principal) = users.find_jwt(token) {
        return Ok(principal);
    }
    let waited = logins.wait(address, JWT).await;
    waited.map_err(|TooManyLogins { retry_after }| BearerError::Later { retry_after })?;
    match users.log_in_by_jwt(token).await {
        Err(LoginError::Busy { retry_after }) => Err(BearerError::Later { retry_after }),
        verified => {
            logins.note(address, JWT, verified.is_ok());
            verified.map_err(|_| BearerError::Wrong)
        }
    }
}
