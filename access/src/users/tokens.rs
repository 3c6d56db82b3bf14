//! Tokens of users: who shows one, and making and dropping them.

use std::sync::Arc;
use std::time::Duration;

use super::{State, Users, check_name};
use crate::error::{AccessError, Result};
use crate::principal::{Principal, Proof};
use crate::record::{TokenRecord, store, token_key};
use crate::scope::Scope;
use crate::secret::{new_token, token_fingerprint};

/// Most tokens of a user.
const MOST_TOKENS: usize = 1_000;
/// Most rights of the scope of a token.
const MOST_SCOPED_RIGHTS: usize = 1_000;

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Name, unlike those of the user's other tokens.
    pub name: String,
    /// User for whom it stands.
    pub user: String,
    /// Whether all changes are refused.
    pub is_read_only: bool,
    /// What it is for; `None`: all that its user may do.
    pub scope: Option<Scope>,
    /// Time for which it is valid; `None`: until it is dropped.
    pub valid_for: Option<Duration>,
}

/// A token, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its user.
    pub user: String,
    /// Its name.
    pub name: String,
    /// Whether all changes are refused.
    pub is_read_only: bool,
    /// What it is for; `None`: all that its user may do.
    pub scope: Option<Arc<Scope>>,
    /// When it was made, in microseconds since the Unix epoch.
    pub made_unix_us: u64,
    /// When it expires; `None`: never.
    pub expires_unix_us: Option<u64>,
}

impl Users {
    /// For whom the bearer of a token calls; `None` for one that is unknown, expired or dropped.
    pub fn check_token(&self, token: &str) -> Option<Principal> {
        let fingerprint = token_fingerprint(token)?;
        let state = self.state.read();
        let token = state.tokens.get(state.by_fingerprint.get(&fingerprint)?)?;
        self.token_principal(&state, token)
    }

    /// Time until the next token expires; `None`: none will.
    pub fn next_expiry(&self) -> Option<Duration> {
        let now = self.clock.unix_us();
        let state = self.state.read();
        let expiries = state.tokens.values().filter_map(|token| token.expires_unix_us?.checked_sub(now));
        expiries.filter(|left_us| *left_us > 0).min().map(Duration::from_micros)
    }

    /// The principal of a token, unless it has expired or its user is gone.
    pub(super) fn token_principal(&self, state: &State, token: &TokenRecord) -> Option<Principal> {
        if token.expires_unix_us.is_some_and(|expires| expires <= self.clock.unix_us()) {
            return None;
        }
        let (name, fingerprint) = (token.name.clone(), token.fingerprint.clone());
        let principal = if let Some(owner) = self.owner.as_ref().filter(|owner| owner.name == token.user) {
            let proof = Proof::Token { name, fingerprint, version: String::new() };
            token.identity.is_empty().then(|| self.owner_principal(owner, proof))?
        } else {
            let user = state.users.get(&token.user).filter(|user| user.identity == token.identity)?;
            let proof = Proof::Token { name, fingerprint, version: user.version.clone() };
            Principal::new(&token.user, user.is_superuser, proof)
        };
        let is_superuser = principal.is_superuser && token.scope.is_none();
        Some(Principal { is_superuser, is_read_only: token.is_read_only, scope: token.scope.clone(), ..principal })
    }

    /// Makes a token and returns it; it cannot be shown again.
    ///
    /// # Errors
    /// For a bad or taken name, a missing user, and a caller without the right.
    pub fn create_token(&self, by: &Principal, new: &NewToken) -> Result<(String, Token)> {
        let _change = self.change(by)?;
        by.authorize_for(&new.user)?;
        check_name("token", &new.name)?;
        let is_owner = self.owner.as_ref().is_some_and(|owner| owner.name == new.user);
        let identity = if is_owner { String::new() } else { self.user(&new.user)?.identity };
        if new.scope.as_ref().is_some_and(|scope| scope.len() > MOST_SCOPED_RIGHTS) {
            return Err(AccessError::TooMany { kind: "right of a scope", most: MOST_SCOPED_RIGHTS });
        }
        {
            let state = self.state.read();
            if state.tokens.contains_key(&token_key(&new.user, &new.name)) {
                return Err(AccessError::Exists { kind: "token", name: new.name.clone() });
            }
            if state.tokens_of(&new.user).count() >= MOST_TOKENS {
                return Err(AccessError::TooMany { kind: "token", most: MOST_TOKENS });
            }
        }
        let secret = new_token();
        let now = self.clock.unix_us();
        let expires = new.valid_for.map(|span| now.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)));
        let token = TokenRecord {
            user: new.user.clone(),
            identity,
            name: new.name.clone(),
            fingerprint: token_fingerprint(&secret).unwrap_or_default(),
            is_read_only: new.is_read_only,
            scope: new.scope.clone().map(Arc::new),
            made_unix_us: now,
            expires_unix_us: expires,
        };
        store(&*self.records, token.kind(), &token.key(), &token)?;
        let listed = Token::from(&token);
        self.state.write().add_token(token);
        // It may be the next to expire.
        self.changes.send_replace(());
        tracing::info!(token = new.name, user = new.user, by = by.user, "token made");
        Ok((secret, listed))
    }

    /// Drops a token of a user.
    ///
    /// # Errors
    /// For a missing token, and a caller without the right.
    pub fn drop_token(&self, by: &Principal, user: &str, name: &str) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize_for(user)?;
        let key = token_key(user, name);
        let kind = self.state.read().tokens.get(&key).map(TokenRecord::kind);
        let kind = kind.ok_or_else(|| AccessError::Missing { kind: "token", name: name.to_owned() })?;
        self.records.remove(kind, &key)?;
        self.state.write().remove_token(&key);
        self.changes.send_replace(());
        tracing::info!(token = name, user, by = by.user, "token dropped");
        Ok(())
    }

    /// All tokens, by user and name.
    pub fn tokens(&self) -> Vec<Token> {
        self.state.read().tokens.values().map(Token::from).collect()
    }
}

impl From<&TokenRecord> for Token {
    fn from(token: &TokenRecord) -> Self {
        Self {
            user: token.user.clone(),
            name: token.name.clone(),
            is_read_only: token.is_read_only,
            scope: token.scope.clone(),
            made_unix_us: token.made_unix_us,
            expires_unix_us: token.expires_unix_us,
        }
    }
}
