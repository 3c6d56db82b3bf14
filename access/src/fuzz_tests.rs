//! Any bytes as a token of an issuer, and as its keys.

#![allow(clippy::unwrap_used)]

use terrace_test_support::fuzz;
use terrace_test_support::fuzz::Inputs;

use crate::jwk::Keys;
use crate::jwt::{JwtAlgorithms, JwtRules};
use crate::signatures;

#[global_allocator]
static ALLOCATOR: terrace_heap::CountingAllocator<std::alloc::System> =
    terrace_heap::CountingAllocator::new(std::alloc::System);

#[test]
fn tokens_and_keys() {
    signatures::install();
    let rules = JwtRules {
        issuer: "https://login.example".to_owned(),
        audience: "terrace".to_owned(),
        algorithms: JwtAlgorithms::parse("RS256, ES256, EdDSA").unwrap(),
        user_claim: "sub".to_owned(),
        user_prefix: String::new(),
    };
    let keys = Keys::read(KEYS, rules.allowed()).unwrap();
    let examples = [TOKEN, KEYS].map(|text| text.as_bytes().to_vec()).to_vec();
    fuzz!("JWT", Inputs::stateless(3_000, 500_000), examples, |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let header = rules.header(&text);
        if let Ok(header) = &header
            && let Some(key) = keys.find(header.kid.as_deref(), header.alg)
        {
            // Nobody can sign for these keys by chance.
            assert!(rules.check(&text, header.alg, key, 1_000_000).is_err(), "a token without a signature is right");
        }
        header.is_ok() || Keys::read(&text, rules.allowed()).is_ok()
    });
}

/// Header `{"alg":"RS256"}`, no claims, and a signature that is none.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.e30.c2ln";
const KEYS: &str =
    r#"{"keys": [{"kty": "RSA", "kid": "a", "use": "sig", "n": "72xfxCEoNSW99p5qH6aUOA", "e": "AQAB"}]}"#;
