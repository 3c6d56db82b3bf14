//! All users, tokens and rights of a server.
//!
//! Whoever may change users is a superuser: the user of the configuration, users made so, and everybody while there is no
//! user at all. Others may change their own password, and their tokens. One superuser always remains, so that a server that
//! has been closed is not opened by a statement. Who shows a token changes nothing of this: what it may do would outlast it.
//!
//! - `federated`: users who show a token of an issuer (JWT)
//! - `granting`: roles, owners and grants
//! - `tokens`: tokens of users

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use subtle::ConstantTimeEq;
use terrace_model::clock::Clock;
use tokio::sync::{Semaphore, watch};

use crate::authority::Authority;
use crate::error::{AccessError, LoginError, Result};
use crate::grants::Grants;
use crate::issuer::Issuer;
use crate::principal::{Principal, Proof};
use crate::record::{Records, SCOPED_TOKEN, TOKEN, TokenRecord, USER, UserRecord, load, store};
use crate::remembered::Remembered;
use crate::secret::random_secret;
use crate::{password, record};

mod federated;
mod granting;
mod tokens;

pub use granting::{
    ColumnChange, ColumnRights, DefaultGranted, DefaultGranting, Granted, Granting, NewPolicy, Policy, Role,
    WhichRights,
};
pub use tokens::{NewToken, Token};

/// Bytes of the longest name.
const LONGEST_NAME: usize = 63;
/// Most users.
const MOST_USERS: usize = 10_000;
/// Passwords that are checked at once; each check takes 19 MiB, and a processor for some 30 ms.
const CHECKS: usize = 2;
/// Most passwords that wait to be checked, and changes that wait.
const MOST_WAITING: usize = 64;
/// Time after which a login may be tried again when as many wait.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The user of the configuration: a superuser whom no statement can change.
#[derive(Clone)]
pub struct Owner {
    /// Name.
    pub name: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A user to be made.
#[derive(Clone)]
pub struct NewUser {
    /// Name.
    pub name: String,
    /// Password.
    pub password: String,
    /// Whether the user may change users.
    pub is_superuser: bool,
}

/// Changes of a user; `None` leaves a thing as it is.
#[derive(Clone, Default)]
pub struct UserChange {
    /// A new password.
    pub password: Option<String>,
    /// Whether the user may change users.
    pub is_superuser: Option<bool>,
}

/// A user, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Whether the user may change users.
    pub is_superuser: bool,
    /// When the user was made, in microseconds since the Unix epoch; `None` for the user of the configuration.
    pub made_unix_us: Option<u64>,
}

/// Users and tokens as they are now.
#[derive(Debug, Default)]
struct State {
    users: BTreeMap<String, UserRecord>,
    /// By `user/token`.
    tokens: BTreeMap<String, TokenRecord>,
    /// Keys of tokens by their fingerprints.
    by_fingerprint: HashMap<String, String>,
}

/// All users and tokens.
pub struct Users {
    owner: Option<Owner>,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    state: RwLock<State>,
    /// Roles, owners and grants.
    grants: RwLock<Arc<Grants>>,
    /// What users who are no superusers may do, by name, until rights change.
    authorities: Mutex<HashMap<String, Authority>>,
    rights_version: AtomicU64,
    /// Held by a change from its checks to its end.
    changing: Mutex<()>,
    /// Told after every change.
    changes: watch::Sender<()>,
    remembered: Remembered,
    checks: Arc<Semaphore>,
    /// Passwords that wait to be checked.
    waiting: AtomicUsize,
    /// Passwords that were compared with a hash.
    compared: AtomicU64,
    /// Changes that wait, or are made.
    waiting_changes: AtomicUsize,
    /// The issuer whose tokens are taken, if there is one.
    issuer: OnceLock<Arc<Issuer>>,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Users {
    /// The users that `records` holds, and `owner`.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn open(records: Arc<dyn Records>, owner: Option<Owner>, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let mut state = State { users: load(&*records, USER)?, ..State::default() };
        for kind in [TOKEN, SCOPED_TOKEN] {
            let tokens: BTreeMap<String, TokenRecord> = load(&*records, kind)?;
            tokens.into_values().for_each(|token| state.add_token(token));
        }
        let grants = Grants::load(&*records)?;
        Ok(Arc::new(Self {
            owner,
            records,
            clock,
            state: RwLock::new(state),
            grants: RwLock::new(Arc::new(grants)),
            authorities: Mutex::default(),
            rights_version: AtomicU64::new(0),
            changing: Mutex::default(),
            changes: watch::Sender::new(()),
            remembered: Remembered::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
            waiting: AtomicUsize::new(0),
            compared: AtomicU64::new(0),
            waiting_changes: AtomicUsize::new(0),
            issuer: OnceLock::new(),
        }))
    }

    /// Whether everybody may do everything: there is no user.
    pub fn is_open(&self) -> bool {
        self.owner.is_none() && self.state.read().users.is_empty()
    }

    /// Tells after every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Checks user and password; a token is taken in place of the password. Where the user does not exist, it takes as long.
    ///
    /// # Errors
    /// [`LoginError::Wrong`], or [`LoginError::Busy`] where too many wait.
    pub async fn log_in(&self, user: &str, password: &str) -> Result<Principal, LoginError> {
        if let Some(principal) = self.check_token(password).filter(|principal| principal.user == user) {
            return Ok(principal);
        }
        let place = self.remembered.place(user, password);
        if let Some(principal) = self.remembered.find(&place) {
            if self.is_current(&principal) {
                return Ok(principal);
            }
            self.remembered.forget(&place);
        }
        let principal = match self.owner.as_ref().filter(|owner| owner.name == user) {
            Some(owner) => {
                let is_right = bool::from(owner.password.as_bytes().ct_eq(password.as_bytes()));
                // As slow as for other users, where there are some.
                if !self.state.read().users.is_empty() {
                    self.check(password, None).await?;
                }
                is_right.then(|| self.owner_principal(owner, Proof::Configuration))
            }
            None => {
                let found = self.state.read().users.get(user).cloned();
                if found.is_none() && self.state.read().users.is_empty() {
                    return Err(LoginError::Wrong);
                }
                let is_right = self.check(password, found.as_ref().map(|user| user.password.clone())).await?;
                found.filter(|_| is_right).map(|found| {
                    let proof = Proof::Password { version: found.version };
                    Principal::new(user, found.is_superuser, proof)
                })
            }
        };
        // It may have changed while its password was checked.
        let principal = principal.filter(|principal| self.is_current(principal)).ok_or(LoginError::Wrong)?;
        self.remembered.keep(place, principal.clone());
        Ok(principal)
    }

    /// Compares a password with a hash on a thread that may compute for long, a few at once.
    async fn check(&self, password: &str, hash: Option<String>) -> Result<bool, LoginError> {
        let busy = LoginError::Busy { retry_after: RETRY_DELAY };
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        if before >= MOST_WAITING {
            return Err(busy);
        }
        let permit = Arc::clone(&self.checks).acquire_owned().await.map_err(|_| busy)?;
        drop(waiting);
        self.compared.fetch_add(1, Ordering::Relaxed);
        let password = password.to_owned();
        let check = move || {
            // As long as the thread computes, whether or not somebody waits for it.
            let _permit = permit;
            password::is_right(&password, hash.as_deref())
        };
        tokio::task::spawn_blocking(check).await.map_err(|_| busy)
    }

    /// Passwords that were compared with a hash since the start: each is one computation of it, also where the user does not exist.
    pub fn compared_passwords(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// For whom a client calls whose certificate names a user; `None`: there is no such user.
    pub fn check_certified(&self, name: &str) -> Option<Principal> {
        if let Some(owner) = self.owner.as_ref().filter(|owner| owner.name == name) {
            return Some(self.owner_principal(owner, Proof::Certificate { version: String::new() }));
        }
        let state = self.state.read();
        let user = state.users.get(name)?;
        let proof = Proof::Certificate { version: user.version.clone() };
        Some(Principal::new(name, user.is_superuser, proof))
    }

    /// Whether what showed who a caller is would do so still: the user is there, the password, the rights and the token are the
    /// same.
    pub fn is_current(&self, principal: &Principal) -> bool {
        match &principal.proof {
            Proof::Inside | Proof::Configuration => true,
            Proof::None => self.is_open(),
            Proof::Password { version } => {
                self.state.read().users.get(&principal.user).is_some_and(|user| user.version == *version)
            }
            Proof::Jwt { expiry, .. } => {
                expiry.unix_us() > self.clock.unix_us()
                    && self.federated(&principal.user, expiry.unix_us()).is_some_and(|now| now == *principal)
            }
            Proof::Certificate { .. } => self.check_certified(&principal.user).is_some_and(|now| now == *principal),
            Proof::Token { fingerprint, .. } => {
                let state = self.state.read();
                let token = state.by_fingerprint.get(fingerprint).and_then(|key| state.tokens.get(key));
                token.and_then(|token| self.token_principal(&state, token)).is_some_and(|now| now == *principal)
            }
        }
    }

    fn owner_principal(&self, owner: &Owner, proof: Proof) -> Principal {
        Principal::new(&owner.name, true, proof)
    }

    /// Waits until no other change is made; refuses it where the caller is not let in any more, or too many wait.
    fn change(&self, by: &Principal) -> Result<Change<'_>> {
        let before = self.waiting_changes.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting_changes);
        if before >= MOST_WAITING {
            return Err(AccessError::Busy);
        }
        let lock = self.changing.lock();
        if !self.is_current(by) {
            return Err(AccessError::Denied("the user or the token of this session has changed: log in again"));
        }
        Ok(Change { _waiting: waiting, _lock: lock })
    }

    /// Makes a user.
    ///
    /// # Errors
    /// For a bad or taken name, a bad password, a caller without the right, and a first user who is no superuser.
    pub fn create_user(&self, by: &Principal, new: &NewUser) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        check_name("user", &new.name)?;
        self.refuse_owner(&new.name)?;
        self.refuse_taken(&new.name)?;
        if self.state.read().users.len() >= MOST_USERS {
            return Err(AccessError::TooMany { kind: "user", most: MOST_USERS });
        }
        if self.is_open() && !new.is_superuser {
            return Err(AccessError::LastSuperuser(
                "the first user must be a SUPERUSER: once there is a user, the server is closed to everybody else, and only a \
                 superuser can make others",
            ));
        }
        let user = UserRecord {
            password: password::hash(&new.password)?,
            is_superuser: new.is_superuser,
            made_unix_us: self.clock.unix_us(),
            version: random_secret(),
            identity: random_secret(),
        };
        self.put_user(&new.name, user)
    }

    /// Changes a user. What the user showed before counts no more: sessions end, tokens stay.
    ///
    /// # Errors
    /// For a missing user, a bad password, a caller without the right, and the last superuser.
    pub fn alter_user(&self, by: &Principal, name: &str, change: &UserChange) -> Result<()> {
        let _change = self.change(by)?;
        if change.is_superuser.is_some() {
            by.authorize()?;
        }
        by.authorize_for(name)?;
        self.refuse_owner(name)?;
        let mut user = self.user(name)?;
        if change.is_superuser == Some(false) {
            self.refuse_last_superuser(name)?;
        }
        if let Some(password) = &change.password {
            user.password = password::hash(password)?;
        }
        user.is_superuser = change.is_superuser.unwrap_or(user.is_superuser);
        user.version = random_secret();
        self.put_user(name, user)
    }

    /// Drops a user with all tokens, and all grants to the user.
    ///
    /// # Errors
    /// For a missing user, a caller without the right, the last superuser, and one who owns something.
    pub fn drop_user(&self, by: &Principal, name: &str) -> Result<()> {
        let _change = self.change(by)?;
        by.authorize()?;
        self.refuse_owner(name)?;
        self.user(name)?;
        self.refuse_last_superuser(name)?;
        self.forget_grantee(name)?;
        // First the user: without it its tokens count for nothing.
        self.records.remove(USER, name)?;
        self.state.write().users.remove(name);
        self.note_rights_changed();
        tracing::info!(user = name, by = by.user, "user dropped");
        let tokens: Vec<TokenRecord> = self.state.read().tokens_of(name).cloned().collect();
        for token in tokens {
            self.records.remove(token.kind(), &token.key())?;
            self.state.write().remove_token(&token.key());
        }
        Ok(())
    }

    /// All users by name, the one of the configuration first.
    pub fn users(&self) -> Vec<User> {
        let owner = self.owner.as_ref();
        let owner = owner.map(|owner| User { name: owner.name.clone(), is_superuser: true, made_unix_us: None });
        let state = self.state.read();
        let others = state.users.iter().map(|(name, user)| User {
            name: name.clone(),
            is_superuser: user.is_superuser,
            made_unix_us: Some(user.made_unix_us),
        });
        owner.into_iter().chain(others).collect()
    }

    fn user(&self, name: &str) -> Result<UserRecord> {
        let found = self.state.read().users.get(name).cloned();
        found.ok_or_else(|| AccessError::Missing { kind: "user", name: name.to_owned() })
    }

    fn put_user(&self, name: &str, user: UserRecord) -> Result<()> {
        store(&*self.records, record::USER, name, &user)?;
        self.state.write().users.insert(name.to_owned(), user);
        self.note_rights_changed();
        tracing::info!(user = name, "user made or changed");
        Ok(())
    }

    fn refuse_owner(&self, name: &str) -> Result<()> {
        match &self.owner {
            Some(owner) if owner.name == name => Err(AccessError::Configured(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// Refuses to take away the last superuser.
    fn refuse_last_superuser(&self, name: &str) -> Result<()> {
        let state = self.state.read();
        let has_other = state.users.iter().any(|(other, user)| other != name && user.is_superuser);
        if self.owner.is_some() || has_other || !state.users.get(name).is_some_and(|user| user.is_superuser) {
            return Ok(());
        }
        Err(AccessError::LastSuperuser("this is the last superuser, and nobody could change users any more"))
    }
}

/// Counts one that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The turn of one change.
struct Change<'a> {
    _waiting: Waiting<'a>,
    _lock: MutexGuard<'a, ()>,
}

impl Principal {
    /// Refuses whoever may not change users.
    fn authorize(&self) -> Result<()> {
        if self.has_token() {
            return Err(AccessError::Denied(
                "users and tokens are changed by those who log in with a password, not by a token",
            ));
        }
        if self.is_superuser {
            return Ok(());
        }
        Err(AccessError::Denied("only a superuser may make, change and drop other users, and their tokens"))
    }

    /// Refuses whoever may not change a user's password and tokens.
    fn authorize_for(&self, user: &str) -> Result<()> {
        if self.user == user && !self.has_token() { Ok(()) } else { self.authorize() }
    }
}

impl State {
    fn tokens_of(&self, user: &str) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values().filter(move |token| token.user == user)
    }

    fn add_token(&mut self, token: TokenRecord) {
        let key = token.key();
        self.by_fingerprint.insert(token.fingerprint.clone(), key.clone());
        self.tokens.insert(key, token);
    }

    fn remove_token(&mut self, key: &str) {
        if let Some(token) = self.tokens.remove(key) {
            self.by_fingerprint.remove(&token.fingerprint);
        }
    }
}

fn check_name(kind: &'static str, name: &str) -> Result<()> {
    let is_bad = |c: char| matches!(c, ':' | '/') || c.is_control();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(is_bad) {
        let name = name.chars().take(LONGEST_NAME).collect();
        return Err(AccessError::BadName { kind, name });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
