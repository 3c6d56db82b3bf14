//! Options of a statement on their way to a node.
//!
//! The transport sends the options of its own library and no others, so that a node would execute with the defaults of
//! DataFusion. The options that differ from these defaults travel in one header beside the number of the statement: as JSON in
//! base64, because values may be any text. A statement whose options would not arrive as they are stays whole.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, exec_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::prelude::SessionConfig;
use terrace_scan::session_options::SessionOptions;
use tonic::codegen::http::{HeaderMap, HeaderValue};

/// The header with the number of the statement.
const STATEMENT: &str = "x-terrace-statement";
/// The header with its options.
const OPTIONS: &str = "x-terrace-options";

/// Most bytes of it: a node takes 16 KiB of headers with a call.
const MOST_BYTES: usize = 8 << 10;

/// Set first: setting it sets others.
const FIRST: &str = "datafusion.optimizer.enable_dynamic_filter_pushdown";

/// The end of the names of the options that it sets; after it they are sent even with their default values.
const SET_BY_FIRST: &str = "_dynamic_filter_pushdown";

/// Options by their names.
type Values = BTreeMap<String, String>;

/// Headers with the number of a statement and its options.
///
/// # Errors
/// When an option would arrive with another value, or they are too long.
pub(crate) fn headers(statement: u64, options: &ConfigOptions) -> Result<HeaderMap> {
    let defaults = values(&default_options());
    let wanted = values(options);
    let sets_others = defaults.get(FIRST) != wanted.get(FIRST);
    let changed = wanted
        .iter()
        .filter(|(key, value)| defaults.get(*key) != Some(*value) || (sets_others && key.ends_with(SET_BY_FIRST)));
    let changed: Values = changed.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut arriving = default_options();
    apply(&changed, &mut arriving)?;
    let arriving = values(&arriving);
    if let Some((key, value)) = wanted.iter().find(|(key, value)| arriving.get(*key) != Some(*value)) {
        return plan_err!("the value {value} of option {key} cannot be sent to a node");
    }
    if let Some((key, value)) = arriving.iter().find(|(key, _)| !wanted.contains_key(*key)) {
        return plan_err!("option {key} would be {value} at a node");
    }
    let json = serde_json::to_vec(&changed)
        .map_err(|error| plan_datafusion_err!("the options of the statement cannot be written: {error}"))?;
    let text = BASE64_STANDARD.encode(json);
    if text.len() > MOST_BYTES {
        return plan_err!("the options of the statement are too long to be sent to a node");
    }
    let text = HeaderValue::try_from(text)
        .map_err(|error| plan_datafusion_err!("the options of the statement are no header: {error}"))?;
    let mut headers = HeaderMap::new();
    headers.insert(STATEMENT, HeaderValue::from(statement));
    headers.insert(OPTIONS, text);
    Ok(headers)
}

/// The number of the statement that the headers of a task name.
///
/// # Errors
/// When there is none.
pub(crate) fn statement(headers: &HeaderMap) -> Result<u64> {
    let number = headers.get(STATEMENT).and_then(|value| value.to_str().ok()?.parse().ok());
    number.ok_or_else(|| exec_datafusion_err!("a task names no statement"))
}

/// Sets the options that the headers of a task name.
///
/// # Errors
/// When they cannot be read, or this node does not know one of them.
pub(crate) fn receive(headers: &HeaderMap, config: &mut SessionConfig) -> Result<()> {
    let broken = || exec_datafusion_err!("the options of a task cannot be read");
    let encoded = headers.get(OPTIONS).ok_or_else(broken)?;
    let json = BASE64_STANDARD.decode(encoded.as_bytes()).map_err(|_| broken())?;
    let values: Values = serde_json::from_slice(&json).map_err(|_| broken())?;
    let options = config.options_mut();
    options.extensions.insert(SessionOptions::default());
    apply(&values, options)
}

fn default_options() -> ConfigOptions {
    let mut options = ConfigOptions::new();
    options.extensions.insert(SessionOptions::default());
    options
}

/// The options of DataFusion and of Terrace that have a value; those of the transport are sent by itself.
fn values(options: &ConfigOptions) -> Values {
    let own = options
        .entries()
        .into_iter()
        .filter(|entry| entry.key.starts_with("datafusion.") || entry.key.starts_with("terrace."));
    own.filter_map(|entry| Some((entry.key, entry.value?))).collect()
}

fn apply(values: &Values, options: &mut ConfigOptions) -> Result<()> {
    if let Some(value) = values.get(FIRST) {
        options.set(FIRST, value)?;
    }
    values.iter().filter(|(key, _)| *key != FIRST).try_for_each(|(key, value)| options.set(key, value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_arrive_as_they_were_set() {
        let mut config = SessionConfig::new().with_batch_size(4096).with_target_partitions(7);
        config.options_mut().extensions.insert(SessionOptions::default());
        for (key, value) in [
            ("datafusion.execution.time_zone", "Asia/Calcutta"),
            ("datafusion.optimizer.enable_dynamic_filter_pushdown", "false"),
            ("datafusion.optimizer.enable_topk_dynamic_filter_pushdown", "true"),
            ("datafusion.format.null", "\u{e9} \" \n"),
            ("terrace.hot_views", "false"),
        ] {
            config.options_mut().set(key, value).unwrap();
        }
        let headers = headers(17, config.options()).unwrap();
        assert_eq!(statement(&headers).unwrap(), 17);
        let mut received = SessionConfig::new();
        receive(&headers, &mut received).unwrap();
        assert_eq!(values(received.options()), values(config.options()));
        assert!(receive(&HeaderMap::new(), &mut received).is_err());
        config.options_mut().set("datafusion.format.null", &"x".repeat(MOST_BYTES)).unwrap();
        assert!(super::headers(17, config.options()).is_err_and(|error| error.to_string().contains("too long")));
        assert!(statement(&HeaderMap::new()).is_err());
    }
}
