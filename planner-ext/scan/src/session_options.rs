//! Options of a session that Terrace adds to DataFusion's.
//!
//! DataFusion's macro is not used: it lists options without their prefix, and a session sets only options that are
//! listed.

use std::any::Any;
use std::fmt::Display;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ConfigOptions, ExtensionOptions};
use datafusion::common::config_err;
use terrace_tier_store::units::Span;

/// Where aggregates over scans run that kernels of a device can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gpu {
    /// On processors.
    Off,
    /// On the device where its columns lie there and that is expected to be faster.
    #[default]
    Auto,
    /// On the device wherever its columns lie there.
    Force,
}

impl Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Force => "force",
        })
    }
}

/// Options with the prefix `terrace.`.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Order inner joins by estimated cost; without it they run in the order of the statement.
    pub join_order: bool,
    /// Skip chunks without rows of the hot views to which a scan is restricted.
    pub hot_views: bool,
    /// Use the plan of an earlier query with the same text while its tables are unchanged.
    pub plan_cache: bool,
    /// Longest execution of a statement; zero: as the server allows.
    pub statement_timeout: Span,
    /// Longest time for which a transaction stays open without a statement; zero: as the server allows.
    pub idle_transaction_timeout: Span,
    /// Workload group of the session's statements; empty: that of its user.
    pub workload_group: String,
    /// Where aggregates over scans run that kernels of a device can compute.
    pub gpu: Gpu,
}

impl SessionOptions {
    /// The options of a session.
    pub fn from_config(options: &ConfigOptions) -> Self {
        options.extensions.get::<Self>().cloned().unwrap_or_default()
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            join_order: true,
            hot_views: true,
            plan_cache: true,
            statement_timeout: Span(Duration::ZERO),
            idle_transaction_timeout: Span(Duration::ZERO),
            workload_group: String::new(),
            gpu: Gpu::default(),
        }
    }
}

impl ConfigExtension for SessionOptions {
    const PREFIX: &'static str = "terrace";
}

impl ExtensionOptions for SessionOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "join_order" => self.join_order.set(key, value),
            "hot_views" => self.hot_views.set(key, value),
            "plan_cache" => self.plan_cache.set(key, value),
            "workload_group" => {
                value.clone_into(&mut self.workload_group);
                Ok(())
            }
            "gpu" => {
                self.gpu = match value.to_ascii_lowercase().as_str() {
                    "off" => Gpu::Off,
                    "auto" => Gpu::Auto,
                    "force" => Gpu::Force,
                    other => return config_err!("option 'terrace.gpu' is off, auto or force, not '{other}'"),
                };
                Ok(())
            }
            "statement_timeout" => set_span(&mut self.statement_timeout, key, value),
            "idle_transaction_timeout" => set_span(&mut self.idle_transaction_timeout, key, value),
            other => config_err!("option 'terrace.{other}' does not exist"),
        }
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |key: &str, value: &dyn Display, description| ConfigEntry {
            key: format!("terrace.{key}"),
            value: Some(value.to_string()),
            description,
        };
        vec![
            entry(
                "join_order",
                &self.join_order,
                "Order inner joins by estimated cost; without it they run in the order of the statement",
            ),
            entry(
                "hot_views",
                &self.hot_views,
                "Skip chunks without rows of the hot views that serve a query; without it, queries read those chunks",
            ),
            entry(
                "plan_cache",
                &self.plan_cache,
                "Use the plan of an earlier query with the same text while its tables are unchanged",
            ),
            entry(
                "statement_timeout",
                &self.statement_timeout,
                "Longest execution of a statement, such as 30s; 0s: as the server allows",
            ),
            entry(
                "idle_transaction_timeout",
                &self.idle_transaction_timeout,
                "Longest time for which a transaction stays open without a statement; 0s: as the server allows",
            ),
            entry(
                "workload_group",
                &self.workload_group,
                "Workload group of the session's statements, one of system.workload_groups; empty: that of its user",
            ),
            entry(
                "gpu",
                &self.gpu,
                "Where aggregates run that a GPU can compute: off (processors), auto (the faster one) or force (the GPU)",
            ),
        ]
    }
}

fn set_span(option: &mut Span, key: &str, value: &str) -> Result<()> {
    match value.parse() {
        Ok(span) => {
            *option = span;
            Ok(())
        }
        Err(why) => config_err!("option 'terrace.{key}': {why}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::common::config::ConfigOptions;

    use super::*;

    #[test]
    fn options_are_listed_by_the_name_that_sets_them() {
        let mut options = ConfigOptions::new();
        options.extensions.insert(SessionOptions::default());
        for (name, value) in [
            ("terrace.join_order", "false"),
            ("terrace.join_order", "true"),
            ("terrace.hot_views", "false"),
            ("terrace.hot_views", "true"),
            ("terrace.plan_cache", "false"),
            ("terrace.plan_cache", "true"),
            ("terrace.statement_timeout", "90s"),
            ("terrace.statement_timeout", "0s"),
            ("terrace.idle_transaction_timeout", "5m"),
            ("terrace.workload_group", "loads"),
            ("terrace.gpu", "off"),
            ("terrace.gpu", "force"),
            ("terrace.gpu", "auto"),
        ] {
            options.set(name, value).unwrap();
            let listed = options.entries().into_iter().find(|entry| entry.key == name).unwrap();
            assert_eq!(listed.value.as_deref(), Some(value));
        }
        assert!(options.set("terrace.join_order", "perhaps").is_err());
        assert!(options.set("terrace.gpu", "maybe").unwrap_err().to_string().contains("off, auto or force"));
        assert!(options.set("terrace.statement_timeout", "soon").unwrap_err().to_string().contains("'soon'"));
        assert!(options.set("terrace.joinorder", "false").unwrap_err().to_string().contains("terrace.joinorder"));
    }
}
