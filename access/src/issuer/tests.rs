//! Tokens of an issuer: which are right, and when its keys are fetched.

#![allow(clippy::unwrap_used)]
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use terrace_model::clock::ManualClock;

use super::*;
use crate::jwt::JwtAlgorithms;

const ISSUER: &str = "https://login.example";
/// The time of all tests, in seconds since the Unix epoch.
const NOW: u64 = 1_000;
/// Modulus of an RSA key whose private half is lost.
const RSA_MODULUS: &str = "72xfxCEoNSW99p5qH6aUOIWMKD2tTkZUQRMsv17Ui1t8XiO6T62GMLL3AdhipsVtxqE1HRZDqsKN43RsyuR1NBGf-59\
     p6hF5c-GsTyck5IxMBzDFL4j9AKpC15xPCC2IEhzw7heFZmGAZEyyoNd9EKklQ70slau7mFiPLppeLPE7aWEOlICyNK-DIZh_3Fp\
     0gCwN-u6PIjzASk-bkxa8Kf-l_RPXmf5VkgKRqaPyl6t-WUycNE9BYcwfN3dvnHC2FbwBsCBgyDxYgXx_niPNn0zv1E7eVRbqgpY\
     iMqeaRSpLGVKGy_pLESY_J-wZlXDoZaITOjARoujQBhaEkgx4FQ";
/// A token of `ann` that ends at 2000, signed by that key.
pub(crate) const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUiLCJhd\
     WQiOiJ0ZXJyYWNlIiwic3ViIjoiYW5uIiwiZXhwIjoyMDAwfQ.TG2F4Y1dc14ciok7wdqOC3nEkGmEhmusqavrySRYV3G_0qCgRo\
     G0ofXfyVxSgotV5-RDZh6BG2vEeCyrsUQeM-0ElCzRCRWmiy5TMrubHi-hlg2dPCBihn13YJvIHH_MKiShh1ZeaNeQr9ZANRK6HG\
     G3UaQsHjD9MQlJqXvg3R1n0KueJM8JVnyWT8khrYSlpgVZXP5TMUU8dikfbtT__bmFIS8OJNSDOjYTretMctm-fHjQME-NO5cyvJ\
     tSAqwPUbNuk28DJxGav0aISiXuELu1obKumf1QfEvsnG93h8Fkp4dg3wIK8vVdlLBekulvcZoPR_YU3McEMvRPrHYxJA";

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// What an issuer signs with.
struct Signer {
    id: &'static str,
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        Self { id, pair, random }
    }

    fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": x, "y": y})
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = self.pair.sign(&self.random, message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(signature))
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "ES256", "kid": self.id}), claims)
    }
}

/// Claims of a token that is right, with those of `other` instead.
fn claims(other: &Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": ["other", "terrace"], "sub": "ann", "exp": NOW + 60});
    let changes = other.as_object().unwrap().clone();
    claims.as_object_mut().unwrap().extend(changes);
    claims
}

/// A source whose keys a test sets; `None`: it cannot be reached.
#[derive(Clone, Default)]
struct Source {
    keys: Arc<Mutex<Option<Value>>>,
    asked: Arc<AtomicU64>,
}

impl Source {
    fn set(&self, keys: &[Value]) {
        *self.keys.lock() = Some(json!({"keys": keys}));
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl KeySource for Source {
    fn fetch(&self) -> KeyFetch<'_> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys.lock().clone();
        Box::pin(async move { keys.map(|keys| keys.to_string()).ok_or_else(|| "unreachable".to_owned()) })
    }
}

fn rules(algorithms: &str) -> JwtRules {
    JwtRules {
        issuer: ISSUER.to_owned(),
        audience: "terrace".to_owned(),
        algorithms: JwtAlgorithms::parse(algorithms).unwrap(),
        user_claim: "sub".to_owned(),
        user_prefix: String::new(),
    }
}

fn rsa_key() -> Value {
    json!({"kty": "RSA", "kid": "rsa", "n": RSA_MODULUS, "e": "AQAB"})
}

/// The issuer of [`RSA_TOKEN`].
pub(crate) fn rsa_issuer(clock: Arc<ManualClock>) -> Arc<Issuer> {
    let source = Source::default();
    source.set(&[rsa_key()]);
    Issuer::new(rules("RS256"), Box::new(source), clock)
}

struct Fixture {
    signer: Signer,
    source: Source,
    clock: Arc<ManualClock>,
    issuer: Arc<Issuer>,
}

impl Fixture {
    fn new(algorithms: &str) -> Self {
        let (signer, source, clock) = (Signer::new("one"), Source::default(), Arc::new(ManualClock::default()));
        clock.advance(Duration::from_secs(NOW));
        source.set(&[signer.jwk()]);
        let issuer = Issuer::new(rules(algorithms), Box::new(source.clone()), Arc::clone(&clock) as _);
        Self { signer, source, clock, issuer }
    }

    async fn refusal(&self, token: &str) -> JwtError {
        match self.issuer.verify(token).await.unwrap_err() {
            Refusal::Wrong(error) => error,
            Refusal::Busy => unreachable!("nothing waits"),
        }
    }

    async fn user(&self, token: &str) -> Option<String> {
        self.issuer.verify(token).await.ok().map(|verified| verified.user)
    }
}

#[tokio::test]
async fn a_right_token_names_a_user_until_it_ends() {
    let fixture = Fixture::new("ES256");
    let token = fixture.signer.sign(&claims(&json!({})));
    assert_eq!(fixture.issuer.find(&token), None);
    let verified = fixture.issuer.verify(&token).await.unwrap();
    assert_eq!(verified, Verified { user: "ann".to_owned(), expires_unix_us: (NOW + 65) * 1_000_000 });
    assert_eq!(fixture.issuer.find(&token), Some(verified));
    assert!(fixture.user(&fixture.signer.sign(&claims(&json!({"aud": "terrace", "nbf": NOW + 4})))).await.is_some());
    assert!(fixture.user(&fixture.signer.sign(&claims(&json!({"exp": NOW as f64 + 0.5})))).await.is_some());
    fixture.clock.advance(Duration::from_secs(65));
    assert_eq!(fixture.issuer.find(&token), None);
    assert_eq!(fixture.refusal(&token).await, JwtError::Expired);
}

#[tokio::test]
async fn claims_that_do_not_fit_are_refused() {
    let fixture = Fixture::new("ES256");
    for (other, expected) in [
        (json!({"iss": "https://evil.example"}), JwtError::WrongIssuer),
        (json!({"iss": 7}), JwtError::BadClaims),
        (json!({"iss": [ISSUER]}), JwtError::BadClaims),
        (json!({"aud": "grafana"}), JwtError::WrongAudience),
        (json!({"aud": []}), JwtError::WrongAudience),
        (json!({"aud": null}), JwtError::BadClaims),
        (json!({"exp": NOW - 6}), JwtError::Expired),
        (json!({"exp": "9999999999"}), JwtError::BadClaims),
        (json!({"exp": null}), JwtError::BadClaims),
        (json!({"nbf": NOW + 6}), JwtError::TooEarly),
        (json!({"nbf": "0"}), JwtError::BadClaims),
        (json!({"sub": ""}), JwtError::BadClaims),
        (json!({"sub": 7}), JwtError::BadClaims),
        (json!({"sub": "a".repeat(2_000)}), JwtError::BadClaims),
    ] {
        let token = fixture.signer.sign(&claims(&other));
        assert_eq!(fixture.refusal(&token).await, expected, "{other}");
        assert_eq!(fixture.issuer.find(&token), None);
    }
    for missing in ["iss", "aud", "exp", "sub"] {
        let mut claims = claims(&json!({}));
        claims.as_object_mut().unwrap().remove(missing);
        assert_eq!(fixture.refusal(&fixture.signer.sign(&claims)).await, JwtError::BadClaims, "{missing}");
    }
}

#[tokio::test]
async fn signatures_and_algorithms_cannot_be_chosen() {
    let fixture = Fixture::new("ES256, RS256");
    let secret = json!({"kty": "oct", "kid": "secret", "alg": "HS256", "k": encoded("secret")});
    fixture.source.set(&[fixture.signer.jwk(), rsa_key(), secret]);
    let right = claims(&json!({}));
    let token = fixture.signer.sign(&right);
    let parts: Vec<&str> = token.split('.').collect();
    let message = |header: Value| format!("{}.{}", encoded(header.to_string()), parts[1]);
    for unsigned in ["none", "None", "NONE"] {
        let token = format!("{}.", message(json!({"alg": unsigned, "kid": "one"})));
        assert_eq!(fixture.refusal(&token).await, JwtError::Malformed, "{unsigned}");
    }
    assert_eq!(fixture.refusal(&format!("{}.{}.", parts[0], parts[1])).await, JwtError::WrongSignature);
    // The public key, or a secret of the set, as the secret of a signature.
    for (id, key) in [("rsa", RSA_MODULUS), ("one", parts[0]), ("secret", "secret")] {
        let message = message(json!({"alg": "HS256", "kid": id}));
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), message.as_bytes());
        let token = format!("{message}.{}", encoded(signature));
        assert_eq!(fixture.refusal(&token).await, JwtError::WrongAlgorithm, "{id}");
    }
    // An algorithm that is not one of the key.
    let confused = fixture.signer.sign_with(&json!({"alg": "RS256", "kid": "one"}), &right);
    assert_eq!(fixture.refusal(&confused).await, JwtError::UnknownKey);
    let unlisted = fixture.signer.sign_with(&json!({"alg": "ES384", "kid": "one"}), &right);
    assert_eq!(fixture.refusal(&unlisted).await, JwtError::WrongAlgorithm);
    let other = Signer::new("one").sign(&right);
    assert_eq!(fixture.refusal(&other).await, JwtError::WrongSignature);
    let critical = json!({"alg": "ES256", "kid": "one", "crit": ["x"], "x": 1});
    assert_eq!(fixture.refusal(&fixture.signer.sign_with(&critical, &right)).await, JwtError::Malformed);
    let long = fixture.signer.sign(&claims(&json!({"groups": "g".repeat(16 << 10)})));
    assert_eq!(fixture.refusal(&long).await, JwtError::TooLong);
    for malformed in ["..", "a.b.c", "e30.e30.e30", "\u{e4}.b.c"] {
        assert_eq!(fixture.refusal(malformed).await, JwtError::Malformed, "{malformed}");
    }
    assert_eq!(fixture.user(RSA_TOKEN).await.as_deref(), Some("ann"));
    let anonymous = fixture.signer.sign_with(&json!({"alg": "ES256"}), &right);
    assert_eq!(fixture.user(&anonymous).await.as_deref(), Some("ann"), "the only key of its algorithm");
}

#[tokio::test]
async fn unknown_keys_are_fetched_once_in_a_while() {
    let fixture = Fixture::new("ES256");
    let first = fixture.signer.sign(&claims(&json!({})));
    assert_eq!(fixture.user(&first).await.as_deref(), Some("ann"), "the first token fetches the keys");
    let next = Signer::new("two");
    let second = next.sign(&claims(&json!({})));
    fixture.source.set(&[next.jwk()]);
    for _ in 0..5 {
        assert_eq!(fixture.refusal(&second).await, JwtError::UnknownKey);
    }
    assert_eq!(fixture.source.asked(), 1, "too early");
    fixture.clock.advance(REFETCH_PAUSE);
    let (one, other) = tokio::join!(fixture.issuer.verify(&second), fixture.issuer.verify(&second));
    assert!(one.is_ok() && other.is_ok());
    assert_eq!((fixture.source.asked(), fixture.issuer.fetches()), (2, 2));
    assert_eq!(fixture.issuer.find(&first), None, "its key was taken back");
    assert_eq!(fixture.refusal(&first).await, JwtError::UnknownKey);
}

#[tokio::test]
async fn keys_that_cannot_be_fetched_leave_the_earlier_ones_in_use() {
    let fixture = Fixture::new("ES256");
    fixture.issuer.refresh().await.unwrap();
    let token = fixture.signer.sign(&claims(&json!({})));
    let secret = json!({"kty": "oct", "kid": "one", "k": "c2VjcmV0"});
    let encryption = json!({"kty": "RSA", "use": "enc", "n": RSA_MODULUS, "e": "AQAB"});
    let wrapping = json!({"kty": "RSA", "key_ops": ["wrapKey"], "n": RSA_MODULUS, "e": "AQAB"});
    let useless = json!({"keys": [secret, encryption, wrapping, 7]});
    for broken in [None, Some(json!([])), Some(json!({"keys": []})), Some(useless)] {
        *fixture.source.keys.lock() = broken;
        assert!(fixture.issuer.refresh().await.is_err() && fixture.issuer.is_outdated());
        assert_eq!(fixture.user(&token).await.as_deref(), Some("ann"));
    }
    assert_eq!((fixture.issuer.fetches(), fixture.issuer.failed_fetches()), (1, 4));
    fixture.source.set(&[fixture.signer.jwk()]);
    fixture.issuer.refresh().await.unwrap();
    assert!(!fixture.issuer.is_outdated());
}

#[tokio::test]
async fn keys_count_for_a_day_after_they_were_fetched() {
    let fixture = Fixture::new("ES256");
    let long = fixture.signer.sign(&claims(&json!({"exp": NOW + 10 * 24 * 3600})));
    assert_eq!(fixture.user(&long).await.as_deref(), Some("ann"));
    fixture.clock.advance(LONGEST_AGE);
    fixture.issuer.refresh().await.unwrap();
    fixture.clock.advance(LONGEST_AGE);
    *fixture.source.keys.lock() = None;
    assert!(fixture.issuer.refresh().await.is_err());
    assert!(fixture.issuer.find(&long).is_some());
    fixture.clock.advance(Duration::from_secs(1));
    assert_eq!(fixture.issuer.find(&long), None);
    assert_eq!(fixture.refusal(&long).await, JwtError::OldKeys);
    fixture.source.set(&[fixture.signer.jwk()]);
    fixture.issuer.refresh().await.unwrap();
    assert_eq!(fixture.user(&long).await.as_deref(), Some("ann"));
}
