//! Rules between values: which of them belong together, and the range of each number.

use std::time::Duration;

use terrace_tier_store::io::Depth;

use super::Config;
use super::sections::is_group_name;
use crate::error::{Error, Result};
use crate::units::Size;

/// Least size of the file of the audit trail.
const LEAST_AUDIT_BYTES: u64 = 64 << 10;
/// Least size of the query log, where there is one.
const LEAST_QUERY_LOG_BYTES: u64 = 1 << 20;
/// Most rotated files of the audit trail.
const MOST_AUDIT_FILES: u32 = 1_000;
/// Most events of it in memory.
const MOST_AUDIT_EVENTS: usize = 100_000;
/// Most nodes of one process.
const MOST_NODES: usize = 16;

impl Config {
    /// Returns the configuration if its values are in range and fit together.
    pub(super) fn checked(self) -> Result<Self> {
        self.io.rules()?;
        self.oidc.rules()?;
        self.home.check(self.files.has_objects())?;
        self.files.check(&self.home)?;
        let wrong = if self.user.is_some() != self.password.is_some() {
            "user and password belong together: set both (TERRACE_USER, TERRACE_PASSWORD) or neither"
        } else if self.password.as_deref() == Some("") {
            "the password is empty: set one (TERRACE_PASSWORD), or neither a user nor a password"
        } else if self.user.as_deref().is_some_and(|user| user.is_empty() || user.contains(':')) {
            "the user name must not be empty or contain ':', because clients send it as NAME:PASSWORD"
        } else if self.tls.cert.is_some() != self.tls.key.is_some() {
            "tls.cert and tls.key belong together: set both (TERRACE_TLS_CERT, TERRACE_TLS_KEY) or neither"
        } else if self.tls.client_ca.is_some() && self.tls.cert.is_none() {
            "tls.client_ca is set, but there is no TLS: set tls.cert and tls.key, too"
        } else if self.tls.client_users && self.tls.client_ca.is_none() {
            "tls.client_users needs tls.client_ca, the authorities that vouch for the names"
        } else if self.tls.handshake_timeout.0.is_zero() {
            "tls.handshake_timeout must be above 0"
        } else if matches!(self.audit.max_bytes, Size::Percent(_))
            || self.audit.max_bytes.resolve(0) < LEAST_AUDIT_BYTES
        {
            "audit.max_bytes is bytes, such as 64MiB, and at least 64KiB"
        } else if matches!(self.query_log.max_bytes, Size::Percent(_))
            || (1..LEAST_QUERY_LOG_BYTES).contains(&self.query_log.max_bytes.resolve(0))
        {
            "query_log.max_bytes is bytes, such as 256MiB, and at least 1MiB, or 0 for no query log"
        } else if self.query_log.keep_for.0.is_zero() {
            "query_log.keep_for must be above 0; query_log.max_bytes = 0 is for no query log"
        } else if self.audit.keep > MOST_AUDIT_FILES {
            "audit.keep must be at most 1000"
        } else if self.audit.remembered > MOST_AUDIT_EVENTS {
            "audit.remembered must be at most 100000"
        } else if !(0.0..=100.0).contains(&self.traces.sample_percent) {
            "traces.sample_percent must be from 0 (only traces that clients name and record) to 100"
        } else if self.traces.timeout.0.is_zero() {
            "traces.timeout must be above 0"
        } else if self.traces.service_name.is_empty() {
            "traces.service_name is empty: name this server, for example terrace"
        } else if self.traces.ca.is_some() && !self.traces.is_on() {
            "traces.ca is of no use without traces.endpoint, the collector to trust"
        } else if self.flight.max_connections == 0 || self.http.max_connections == 0 {
            "max_connections must be at least 1"
        } else if self.tiers.nvm.path.is_some() && self.tiers.nvm.emulated {
            "tiers.nvm.path and tiers.nvm.emulated exclude each other: the tier is a device or it is emulated"
        } else if (self.tiers.nvm.path.is_some() || self.tiers.nvm.emulated) && self.tiers.nvm.capacity.is_none() {
            "tiers.nvm.capacity is missing: set the size of the pool, for example 8GiB"
        } else if self.tiers.nvm.budget.is_some() && self.tiers.nvm.capacity.is_none() {
            "tiers.nvm.budget is set, but there is no NVM tier: set tiers.nvm.path or tiers.nvm.emulated, and a capacity"
        } else if self.tiers.hbm.device.is_some() && self.tiers.hbm.emulated {
            "tiers.hbm.device and tiers.hbm.emulated exclude each other: the tier is a GPU or it is emulated"
        } else if self.tiers.hbm.emulated && self.tiers.hbm.capacity.is_none() {
            "tiers.hbm.capacity is missing: set the memory of the emulated device, for example 256MiB"
        } else if self.tiers.hbm.capacity.is_some() && !self.tiers.hbm.emulated {
            "tiers.hbm.capacity is for an emulated device: a GPU has the memory that it has; leave it out, or set tiers.hbm.budget"
        } else if self.tiers.hbm.budget.is_some() && self.tiers.hbm.device.is_none() && !self.tiers.hbm.emulated {
            "tiers.hbm.budget is set, but there is no HBM tier: set tiers.hbm.device or tiers.hbm.emulated"
        } else if self.query.max_running == 0 {
            "query.max_running must be at least 1"
        } else if !(1..=MOST_NODES).contains(&self.cluster.nodes) {
            "cluster.nodes must be from 1 (no nodes) to 16"
        } else if self.query.planning_timeout.0.is_zero() {
            "query.planning_timeout must be above 0"
        } else if let Some(name) = self.workload_groups.keys().find(|name| !is_group_name(name)) {
            return Err(Error::Config(format!(
                "workload_groups.{name}: the name of a group has letters, digits, '_' and '-' only"
            )));
        } else if self.workload_groups.values().any(|group| group.weight == 0 || group.max_running == Some(0)) {
            "weight and max_running of a workload group must be at least 1"
        } else if self.workload_groups.values().any(|group| group.memory.is_some_and(|size| size.resolve(1 << 30) == 0))
        {
            "memory of a workload group must be above 0"
        } else if self.tiering.interval.0 < Duration::from_millis(100) {
            "tiering.interval must be at least 100ms; to stop the loop set tiering.enabled = false"
        } else if !self.tiering.half_life.is_finite() || self.tiering.half_life <= 0.0 {
            "tiering.half_life must be above 0 epochs"
        } else if !self.tiering.payback_epochs.is_finite() || self.tiering.payback_epochs <= 0.0 {
            "tiering.payback_epochs must be above 0 epochs"
        } else if !self.hot_views.payback_epochs.is_finite() || self.hot_views.payback_epochs <= 0.0 {
            "hot_views.payback_epochs must be above 0 epochs"
        } else if self.hot_views.retire_after == 0 {
            "hot_views.retire_after must be at least 1 epoch"
        } else if !(1.0..=1e6).contains(&self.tiering.flip_back_factor) {
            "tiering.flip_back_factor must be from 1 (segments may return at once) to 1000000"
        } else if !(self.tiering.merge_top_percent > 0.0 && self.tiering.merge_top_percent <= 100.0) {
            "tiering.merge_top_percent must be above 0 and at most 100"
        } else if self.tiers.rate_limits().iter().any(|(_, rate)| matches!(rate, Size::Percent(_))) {
            "rate_limit of a tier is bytes per second, such as 100MiB, not a percentage"
        } else if matches!(self.io.beside_points, Size::Percent(_)) {
            "io.beside_points is bytes, such as 1MiB, not a percentage"
        } else if self.io.beside_points.resolve(0) < Depth::LEAST_BESIDE_POINTS {
            "io.beside_points must be at least 256KiB"
        } else if matches!(self.query.spill_limit, Size::Percent(_)) {
            "query.spill_limit is bytes, such as 64GiB, not a percentage"
        } else if !(0.0..=100.0).contains(&self.query.spill_tier_percent) {
            "query.spill_tier_percent must be from 0 (spilled rows go to disk) to 100"
        } else if self.tiers.given_prices().iter().flatten().any(|price| !price.is_finite() || *price < 0.0) {
            "a price_per_gb must be a number of at least 0"
        } else if self.tiers.is_half_priced() {
            "price_per_gb is missing for a memory tier (tiers.dram, tiers.nvm); set it for every memory tier, or for no tier"
        } else {
            return Ok(self);
        };
        Err(Error::Config(wrong.to_owned()))
    }
}
