//! Planner options.
//!
//! DataFusion's macro is not used: it lists options without their prefix, and a session sets only options that are
//! listed.

use std::any::Any;

use datafusion::common::Result;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ConfigOptions, ExtensionOptions};
use datafusion::common::config_err;

/// Planner options with the prefix `terrace.`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannerOptions {
    /// Order inner joins by estimated cost; without it they run in the order of the statement.
    pub join_order: bool,
    /// Skip chunks without rows of the hot views to which a scan is restricted.
    pub hot_views: bool,
}

impl PlannerOptions {
    /// The options of a session.
    pub(crate) fn from_config(options: &ConfigOptions) -> Self {
        options.extensions.get::<Self>().copied().unwrap_or_default()
    }
}

impl Default for PlannerOptions {
    fn default() -> Self {
        Self { join_order: true, hot_views: true }
    }
}

impl ConfigExtension for PlannerOptions {
    const PREFIX: &'static str = "terrace";
}

impl ExtensionOptions for PlannerOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(*self)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "join_order" => self.join_order.set(key, value),
            "hot_views" => self.hot_views.set(key, value),
            other => config_err!("option 'terrace.{other}' does not exist"),
        }
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |key: &str, value: bool, description| ConfigEntry {
            key: format!("terrace.{key}"),
            value: Some(value.to_string()),
            description,
        };
        vec![
            entry(
                "join_order",
                self.join_order,
                "Order inner joins by estimated cost; without it they run in the order of the statement",
            ),
            entry(
                "hot_views",
                self.hot_views,
                "Skip chunks without rows of the hot views that serve a query; without it, queries read those chunks",
            ),
        ]
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
        options.extensions.insert(PlannerOptions::default());
        for (name, value) in [
            ("terrace.join_order", "false"),
            ("terrace.join_order", "true"),
            ("terrace.hot_views", "false"),
            ("terrace.hot_views", "true"),
        ] {
            options.set(name, value).unwrap();
            let listed = options.entries().into_iter().find(|entry| entry.key == name).unwrap();
            assert_eq!(listed.value.as_deref(), Some(value));
        }
        assert!(options.set("terrace.join_order", "perhaps").is_err());
        assert!(options.set("terrace.joinorder", "false").unwrap_err().to_string().contains("terrace.joinorder"));
    }
}
