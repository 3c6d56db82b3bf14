//! Users who show a token of an issuer (JWT) in place of a password: logins of another system (OpenID Connect).
//!
//! The token names a user, who must exist here; it makes none, and brings no rights. What it shows ends with it, and with a change
//! of the user.

use std::sync::Arc;
use std::time::Duration;

use super::{RETRY_DELAY, Users};
use crate::error::{LoginError, Result};
use crate::issuer::{Issuer, Refusal};
use crate::principal::{Expiry, Principal, Proof};

/// Characters of a name that are logged; a token may have one of any length.
const LOGGED_CHARACTERS: usize = 64;

impl Users {
    /// Takes the tokens of an issuer as logins from now on; only the first call counts.
    pub fn trust(&self, issuer: Arc<Issuer>) {
        let _ = self.issuer.set(issuer);
    }

    /// Whether a token is checked as one of the issuer: there is one, and the token has three parts with `.` between them.
    pub fn takes_jwt(&self, token: &str) -> bool {
        self.issuer.get().is_some() && token.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// For whom the bearer of a token of the issuer calls that was right a moment ago; `None`: it is to be checked.
    pub fn find_jwt(&self, token: &str) -> Option<Principal> {
        let verified = self.issuer.get()?.find(token)?;
        self.federated(&verified.user, verified.expires_unix_us)
    }

    /// Checks a token of the issuer; may wait for its keys. The log says why a token is refused.
    ///
    /// # Errors
    /// [`LoginError::Wrong`], or [`LoginError::Busy`] where too many wait for keys.
    pub async fn log_in_by_jwt(&self, token: &str) -> Result<Principal, LoginError> {
        let issuer = self.issuer.get().ok_or(LoginError::Wrong)?;
        let verified = issuer.verify(token).await.map_err(|refusal| match refusal {
            Refusal::Busy => LoginError::Busy { retry_after: RETRY_DELAY },
            Refusal::Wrong(reason) => {
                tracing::warn!(%reason, "a token (JWT) was refused");
                LoginError::Wrong
            }
        })?;
        self.federated(&verified.user, verified.expires_unix_us).ok_or_else(|| {
            let user: String = verified.user.chars().take(LOGGED_CHARACTERS).collect();
            tracing::warn!(user, "a token (JWT) names a user who does not exist");
            LoginError::Wrong
        })
    }

    /// Time until a principal ends by itself; `None`: it does not, or [`Users::next_expiry`] knows.
    pub fn time_left(&self, principal: &Principal) -> Option<Duration> {
        let Proof::Jwt { expiry, .. } = &principal.proof else { return None };
        Some(Duration::from_micros(expiry.unix_us().saturating_sub(self.clock.unix_us())))
    }

    /// The principal of a user whom a token of the issuer names.
    pub(super) fn federated(&self, name: &str, expires_unix_us: u64) -> Option<Principal> {
        let expiry = Expiry::new(expires_unix_us);
        if let Some(owner) = self.owner.as_ref().filter(|owner| owner.name == name) {
            return Some(self.owner_principal(owner, Proof::Jwt { version: String::new(), expiry }));
        }
        let state = self.state.read();
        let user = state.users.get(name)?;
        let proof = Proof::Jwt { version: user.version.clone(), expiry };
        Some(Principal::new(name, user.is_superuser, proof))
    }
}
