//! Schemas of the answers and orders whose types belong to other crates, for the OpenAPI document alone.
//!
//! Each stands for the type of the same fields in `terrace-tier-store`, which knows nothing of OpenAPI.
//! `tests/python/test_surface.py` holds real answers against the document, so a field that is missing here fails it.
//!
//! - [`advisor`]: advice on budgets
//! - [`calibration`]: measured costs
//! - [`epochs`]: epochs, their moves, and orders
//! - [`explain`]: placement rules and explanations
//! - [`maintenance`]: checks, backups and disk usage
//! - [`tiers`]: tiers and their prices
// The values are never made: only their schemas are used.
#![allow(dead_code)]

mod advisor;
mod calibration;
mod epochs;
mod explain;
mod maintenance;
mod tiers;

pub use advisor::*;
pub use calibration::*;
pub use epochs::*;
pub use explain::*;
pub use maintenance::*;
pub use tiers::*;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde::Serialize;
    use serde_json::{Map, Value, json, to_value};
    use terrace_tier_store::{heat, migrate, placement, store, units};
    use utoipa::PartialSchema;

    use super::*;

    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    fn schema<T: PartialSchema>() -> Value {
        to_value(T::schema()).unwrap()
    }

    fn texts(values: &[impl Serialize]) -> Value {
        to_value(values).unwrap()
    }

    /// The records that no answer of `tests/python/test_surface.py` has.
    #[test]
    fn records_of_failures_have_the_fields_of_the_store() {
        let failing = migrate::Failing { since_unix_us: 1, retry_unix_us: 2, error: String::new() };
        assert_eq!(keys(&to_value(failing).unwrap()), keys(&schema::<Failing>()["properties"]));
        let finding = store::Finding {
            severity: store::Severity::Damage,
            path: "/data".into(),
            table: None,
            chunk: None,
            column: None,
            what: String::new(),
            advice: String::new(),
        };
        assert_eq!(keys(&to_value(finding).unwrap()), keys(&schema::<Finding>()["properties"]));
    }

    #[test]
    fn enumerations_have_the_values_of_the_store() {
        assert_eq!(schema::<TieringMode>()["enum"], texts(&placement::TieringMode::ALL));
        assert_eq!(schema::<TierState>()["enum"], texts(&placement::TierState::ALL));
        assert_eq!(schema::<Pattern>()["enum"], texts(&heat::Pattern::ALL));
    }

    /// What the document says of a request must be what the server reads.
    #[test]
    fn requests_of_the_document_are_read_by_the_store() {
        let order = schema::<TierOrder>();
        let all = json!({
            "name": "pmem", "path": "/mnt/pmem", "emulated": false, "capacity": "2GiB", "budget": "10%", "slow": false
        });
        assert_eq!(keys(&all), keys(&order["properties"]));
        let read: store::NewTierSpec = serde_json::from_value(all.clone()).unwrap();
        assert_eq!(keys(&to_value(read).unwrap()), keys(&all), "a field of the store is missing in the document");
        let required = order["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        let least: Value = required.map(|name| (name.to_owned(), all[name].clone())).collect::<Map<_, _>>().into();
        serde_json::from_value::<store::NewTierSpec>(least).unwrap();
        for size in [json!("2GiB"), json!("10%"), json!(1_073_741_824)] {
            serde_json::from_value::<units::Size>(size).unwrap();
        }
    }
}
