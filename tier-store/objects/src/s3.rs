//! Options of a client of S3, and where its credentials come from.
//!
//! In this order: the variables `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (with `AWS_SESSION_TOKEN`), a web identity
//! token, the profile in `~/.aws/credentials`, those of a container (ECS, EKS), those of the machine (EC2). All but the
//! variables and the profile are renewed before they expire. Requests that fail (5xx, 429, no connection, a broken body) are tried again after a
//! pause that grows and is drawn at random.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig, StaticCredentialProvider};
use terrace_model::{Error, Result};

use super::address::ObjectAddress;
use super::profile::{self, Keys};

/// The longest pause between two tries of a request.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Most tries of a request: the time ends them, not their number.
const MOST_TRIES: usize = 1_000_000;
/// Time that a connection may take, if a whole request may take longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Options {
    /// Address of the service; `None`: that of AWS, or of `AWS_ENDPOINT_URL`. One that begins with `http://` is not encrypted.
    pub endpoint: Option<String>,
    /// Region; `None`: that of `AWS_REGION`, else us-east-1.
    pub region: Option<String>,
    /// Time that one try of a request may take, its body included.
    pub timeout: Duration,
    /// Time for which a request is tried again.
    pub retry_time: Duration,
}

impl Default for S3Options {
    fn default() -> Self {
        let [timeout, retry_time] = [10, 60].map(Duration::from_secs);
        Self { endpoint: None, region: None, timeout, retry_time }
    }
}

/// Makes a client of a bucket, whose names begin at the bucket, not at the prefix; it asks for nothing yet.
///
/// # Errors
/// [`Error::Invalid`] for options that do not fit together.
pub fn connect(address: &ObjectAddress, options: &S3Options) -> Result<Arc<dyn ObjectStore>> {
    let named = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let is_given = named("AWS_ACCESS_KEY_ID") || named("AWS_WEB_IDENTITY_TOKEN_FILE");
    let keys = if is_given { None } else { profile::keys_of_user() };
    let store = build(AmazonS3Builder::from_env(), address, options, keys);
    Ok(Arc::new(store.map_err(|error| Error::Invalid(format!("{}: {error}", address.url())))?))
}

/// Makes a client of what the environment says (`builder`), and of options and keys, which go before it.
fn build(
    builder: AmazonS3Builder,
    address: &ObjectAddress,
    options: &S3Options,
    keys: Option<Keys>,
) -> object_store::Result<AmazonS3> {
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis().max(1));
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() },
        max_retries: MOST_TRIES,
        retry_timeout: options.retry_time,
    };
    let mut builder = builder
        .with_bucket_name(address.bucket())
        .with_retry(retry)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), milliseconds(options.timeout))
        .with_config(
            AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout),
            milliseconds(CONNECT_TIMEOUT.min(options.timeout)),
        );
    if let Some(endpoint) = &options.endpoint {
        // The address of S3 alone, which the environment may have too, goes before the other one.
        builder = builder.with_endpoint(endpoint).with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        builder = builder.with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if let Some(Keys { id, secret, token }) = keys {
        // Together, or a token of the environment would go with the keys of the profile.
        let keys = AwsCredential { key_id: id, secret_key: secret, token };
        builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(keys)));
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_and_keys_go_before_what_the_environment_says() {
        let environment = AmazonS3Builder::new()
            .with_region("of-environment")
            .with_token("token of the environment")
            .with_config(AmazonS3ConfigKey::S3Endpoint, "https://environment.example")
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "47h");
        let address = ObjectAddress::parse("s3://bucket/home").unwrap();
        let options = S3Options {
            endpoint: Some("https://option.example".to_owned()),
            region: Some("of-option".to_owned()),
            ..S3Options::default()
        };
        let keys = Keys { id: "id".to_owned(), secret: "very secret".to_owned(), token: None };
        let store = build(environment, &address, &options, Some(keys)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let used = runtime.block_on(store.credentials().get_credential()).unwrap();
        assert_eq!(
            (used.key_id.as_str(), used.secret_key.as_str(), used.token.as_deref()),
            ("id", "very secret", None)
        );
        let shown = format!("{store:?}");
        assert!(shown.contains("https://option.example/bucket") && shown.contains("of-option"), "{shown}");
        for lost in ["environment.example", "of-environment", "very secret", "47h"] {
            assert!(!shown.contains(lost), "{lost} in {shown}");
        }
    }
}
