//! Options of planning.
//!
//! Without DataFusion's macro: that lists options without their prefix, and a session sets only options that are listed.

use std::any::Any;

use datafusion::common::Result;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ExtensionOptions};
use datafusion::common::config_err;

/// Options of planning, below `terrace.`.
#[derive(Debug, Clone)]
pub(crate) struct PlannerOptions {
    /// Order inner joins by estimated cost; without it they run in the order of the statement.
    pub join_order: bool,
}

impl Default for PlannerOptions {
    fn default() -> Self {
        Self { join_order: true }
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
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "join_order" => self.join_order.set(key, value),
            other => config_err!("option 'terrace.{other}' does not exist"),
        }
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: "terrace.join_order".to_owned(),
            value: Some(self.join_order.to_string()),
            description: "Order inner joins by estimated cost; without it they run in the order of the statement",
        }]
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
        for (name, value) in [("terrace.join_order", "false"), ("terrace.join_order", "true")] {
            options.set(name, value).unwrap();
            let listed = options.entries().into_iter().find(|entry| entry.key == name).unwrap();
            assert_eq!(listed.value.as_deref(), Some(value));
        }
        assert!(options.set("terrace.join_order", "perhaps").is_err());
        assert!(options.set("terrace.joinorder", "false").unwrap_err().to_string().contains("terrace.joinorder"));
    }
}
