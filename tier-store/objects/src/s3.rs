//! Options of a client of S3, and where its credentials come from.
//!
//! In this order: the variables `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (with `AWS_SESSION_TOKEN`), the profile in
//! `~/.aws/credentials`, a web identity token, those of a container (ECS, EKS), those of the machine (EC2). The last three
//! are renewed before they expire. Requests that fail (5xx, 429, no connection, a broken body) are tried again after a
//! pause that grows and is drawn at random.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use terrace_model::{Error, Result};

use super::address::ObjectAddress;
use super::profile;

/// The longest pause between two tries of a request.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
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

/// Makes a client; it asks for nothing yet.
pub(crate) fn connect(address: &ObjectAddress, options: &S3Options) -> Result<Arc<dyn ObjectStore>> {
    let named = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis().max(1));
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() },
        max_retries: usize::MAX,
        retry_timeout: options.retry_time,
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(address.bucket())
        .with_retry(retry)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), milliseconds(options.timeout))
        .with_config(
            AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout),
            milliseconds(CONNECT_TIMEOUT.min(options.timeout)),
        );
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if !named("AWS_ACCESS_KEY_ID")
        && !named("AWS_WEB_IDENTITY_TOKEN_FILE")
        && let Some(keys) = profile::keys_of_user()
    {
        builder = builder.with_access_key_id(keys.id).with_secret_access_key(keys.secret);
        if let Some(token) = keys.token {
            builder = builder.with_token(token);
        }
    }
    let store = builder.build().map_err(|error| Error::Invalid(format!("{}: {error}", address.url())))?;
    Ok(Arc::new(store))
}
