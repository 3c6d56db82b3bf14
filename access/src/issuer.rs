//! The issuer whose tokens (JWT) are taken as logins: its keys, and the tokens of it that were right.
//!
//! Keys come from a [`KeySource`]: at the start, again and again by its owner, and when a token names a key that is not known, then
//! at most once in [`REFETCH_PAUSE`] however many such tokens come, and one fetch at a time. Keys that cannot be fetched leave the
//! earlier ones in use for [`LONGEST_AGE`]. A token that was right is remembered by a digest until it ends or the keys change, so that a client that
//! sends it with every call pays once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use terrace_model::clock::Clock;
use tokio::sync::Semaphore;

use crate::jwk::Keys;
use crate::jwt::{JwtError, JwtRules, MOST_BYTES, Verified};
use crate::secret::{digest, random_bytes};
use crate::signatures;

/// Time between fetches that tokens with unknown keys cause.
pub(crate) const REFETCH_PAUSE: Duration = Duration::from_secs(10);
/// Time for which keys count after they were fetched: one that the issuer took back may be among them.
pub(crate) const LONGEST_AGE: Duration = Duration::from_secs(24 * 3600);
/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the largest set of keys.
const MOST_KEY_BYTES: usize = 1 << 20;
/// Most tokens that are remembered.
const MOST_REMEMBERED: usize = 10_000;
/// Most logins that wait for keys.
const MOST_WAITING: usize = 64;

/// A set of keys (JWKS) under way, as JSON; the error is a text for the log.
pub type KeyFetch<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// Where the keys of an issuer come from.
pub trait KeySource: Send + Sync {
    /// Fetches the keys as they are now; may be dropped before it ends.
    fn fetch(&self) -> KeyFetch<'_>;
}

/// Why a token did not log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not right.
    Wrong(JwtError),
    /// Too many logins wait for keys.
    Busy,
}

impl From<JwtError> for Refusal {
    fn from(error: JwtError) -> Self {
        Self::Wrong(error)
    }
}

/// The keys in use, and the text that they were read from.
#[derive(Default)]
struct KeysInUse {
    keys: Arc<Keys>,
    json: String,
    fetched_us: u64,
}

/// An issuer of tokens.
pub struct Issuer {
    rules: JwtRules,
    source: Box<dyn KeySource>,
    clock: Arc<dyn Clock>,
    in_use: RwLock<KeysInUse>,
    /// Held while keys are fetched; when that last began.
    last_fetch_us: tokio::sync::Mutex<Option<u64>>,
    waiting: Semaphore,
    /// Under a key that only this process has, digests of tokens.
    right: Mutex<HashMap<[u8; 32], Verified>>,
    secret: [u8; 32],
    fetches: AtomicU64,
    failed_fetches: AtomicU64,
    is_outdated: AtomicBool,
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuer").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Issuer {
    /// An issuer whose keys have not been fetched yet.
    pub fn new(rules: JwtRules, source: Box<dyn KeySource>, clock: Arc<dyn Clock>) -> Arc<Self> {
        signatures::install();
        Arc::new(Self {
            rules,
            source,
            clock,
            in_use: RwLock::default(),
            last_fetch_us: tokio::sync::Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
            right: Mutex::default(),
            secret: random_bytes(),
            fetches: AtomicU64::new(0),
            failed_fetches: AtomicU64::new(0),
            is_outdated: AtomicBool::new(false),
        })
    }

    /// Fetches that brought keys.
    pub fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Fetches that failed, or brought nothing of use.
    pub fn failed_fetches(&self) -> u64 {
        self.failed_fetches.load(Ordering::Relaxed)
    }

    /// True when the last fetch failed, so that earlier keys are in use, or none.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }

    /// Fetches the keys. The earlier ones stay in use where that fails.
    ///
    /// # Errors
    /// What went wrong; the log has it, too.
    pub async fn refresh(&self) -> Result<(), String> {
        let mut last = self.last_fetch_us.lock().await;
        *last = Some(self.clock.now_us());
        self.fetch().await
    }

    /// What a token showed that was right a moment ago.
    pub(crate) fn find(&self, token: &str) -> Option<Verified> {
        if token.len() > MOST_BYTES {
            return None;
        }
        self.keys()?;
        let place = self.place(token);
        let now = self.clock.unix_us();
        self.right.lock().get(&place).filter(|verified| verified.expires_unix_us > now).cloned()
    }

    /// Checks a token, by keys that are fetched anew where its own is not known.
    pub(crate) async fn verify(self: &Arc<Self>, token: &str) -> Result<Verified, Refusal> {
        let header = self.rules.header(token)?;
        let id = header.kid.as_deref();
        let mut keys = self.keys();
        if keys.as_ref().is_none_or(|keys| keys.find(id, header.alg).is_none()) {
            self.fetch_for_unknown(keys).await?;
            keys = self.keys();
        }
        let keys = keys.ok_or(JwtError::OldKeys)?;
        let key = keys.find(id, header.alg).ok_or(JwtError::UnknownKey)?;
        let verified = self.rules.check(token, header.alg, key, self.clock.unix_us())?;
        self.remember(token, &verified, &keys);
        Ok(verified)
    }

    /// The keys in use; `None`: they are too old, or were never fetched.
    fn keys(&self) -> Option<Arc<Keys>> {
        let in_use = self.in_use.read();
        let age_us = self.clock.now_us().saturating_sub(in_use.fetched_us);
        let count = !in_use.json.is_empty() && age_us <= LONGEST_AGE.as_micros() as u64;
        count.then(|| Arc::clone(&in_use.keys))
    }

    /// Fetches the keys unless others than `seen` are in use, or that was tried a moment ago.
    async fn fetch_for_unknown(self: &Arc<Self>, seen: Option<Arc<Keys>>) -> Result<(), Refusal> {
        let _place = self.waiting.try_acquire().map_err(|_| Refusal::Busy)?;
        let this = Arc::clone(self);
        let fetch = async move {
            let mut last = this.last_fetch_us.lock().await;
            let now = this.clock.now_us();
            let pause_us = REFETCH_PAUSE.as_micros() as u64;
            let is_early = last.is_some_and(|last| now.saturating_sub(last) < pause_us);
            if !is_early && are_same(seen.as_ref(), this.keys().as_ref()) {
                *last = Some(now);
                let _ = this.fetch().await;
            }
        };
        // A client that goes away does not end what others wait for.
        let _ = tokio::spawn(fetch).await;
        Ok(())
    }

    async fn fetch(&self) -> Result<(), String> {
        let late = |_| Err(format!("no answer within {} s", FETCH_TIMEOUT.as_secs()));
        let json = tokio::time::timeout(FETCH_TIMEOUT, self.source.fetch()).await.unwrap_or_else(late);
        let taken = json.and_then(|json| self.take(json));
        match &taken {
            Ok(()) => {
                self.fetches.fetch_add(1, Ordering::Relaxed);
                self.is_outdated.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                self.failed_fetches.fetch_add(1, Ordering::Relaxed);
                let issuer = self.rules.issuer.as_str();
                if self.is_outdated.swap(true, Ordering::Relaxed) {
                    tracing::debug!(issuer, error, "the keys of the issuer cannot be fetched still");
                } else {
                    tracing::error!(
                        issuer,
                        error,
                        "the keys of the issuer cannot be fetched; the earlier ones stay in use for a day"
                    );
                }
            }
        }
        taken
    }

    /// Takes a set of keys into use; where they are others, no token counts as right before it is checked by them.
    fn take(&self, json: String) -> Result<(), String> {
        if json.len() > MOST_KEY_BYTES {
            return Err(format!("the set of keys (JWKS) is larger than {} KiB", MOST_KEY_BYTES >> 10));
        }
        let fetched_us = self.clock.now_us();
        let mut in_use = self.in_use.write();
        if in_use.json == json {
            in_use.fetched_us = fetched_us;
            return Ok(());
        }
        drop(in_use);
        let keys = Arc::new(Keys::read(&json, self.rules.allowed())?);
        let mut right = self.right.lock();
        *self.in_use.write() = KeysInUse { keys, json, fetched_us };
        right.clear();
        tracing::info!(issuer = self.rules.issuer, "new keys of the issuer are in use");
        Ok(())
    }

    fn place(&self, token: &str) -> [u8; 32] {
        digest(&[&self.secret, token.as_bytes()])
    }

    /// Remembers that a token was right by `keys`, unless others are in use by now.
    fn remember(&self, token: &str, verified: &Verified, keys: &Arc<Keys>) {
        let place = self.place(token);
        let mut right = self.right.lock();
        if !are_same(Some(keys), self.keys().as_ref()) {
            return;
        }
        if right.len() >= MOST_REMEMBERED {
            let now = self.clock.unix_us();
            right.retain(|_, known| known.expires_unix_us > now);
        }
        if right.len() >= MOST_REMEMBERED {
            right.clear();
        }
        right.insert(place, verified.clone());
    }
}

fn are_same(one: Option<&Arc<Keys>>, other: Option<&Arc<Keys>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
