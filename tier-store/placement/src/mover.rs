//! The mover: carries out the moves of an epoch, within the rates of devices, and skips moves of failing devices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_model::TierId;
use terrace_model::clock::Clock;
use terrace_storage::migrate::{
    Health, ImageOutcome, MoveError, MoveExecutor, MoveQueue, Relocation, Verdict, change_image,
};

use super::epoch_draft::{EpochDraft, ImageMove, Move};
use super::lock_order::{OrderedMutex, Rank};
use super::metrics::TieringMetrics;
use super::pressure::{self, Pressure};
use super::record::MoveStatus;
use super::survey::tier_names;
use super::tiering::{EpochRequest, TableSnapshot, TieringHost, TieringOptions};

/// The longest sleep between two looks at a cancellation.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// The state of moves: cancellation, rate limits, failing devices, and the tiers that lack room.
pub(super) struct Mover {
    options: Arc<TieringOptions>,
    clock: Arc<dyn Clock>,
    health: Health,
    /// Rates of the tiers that have their own, by name; 0: no limit.
    tier_bytes_per_s: OrderedMutex<HashMap<String, u64>>,
    cancel: AtomicBool,
    pressure: Arc<Pressure>,
}

impl Mover {
    /// Makes a mover with the rates of the options; no device is known to fail.
    pub(super) fn new(options: &Arc<TieringOptions>, clock: &Arc<dyn Clock>) -> Self {
        Self {
            options: Arc::clone(options),
            clock: Arc::clone(clock),
            health: Health::default(),
            tier_bytes_per_s: OrderedMutex::new(Rank::Leaf, options.tier_bytes_per_s.clone()),
            cancel: AtomicBool::new(false),
            pressure: Arc::default(),
        }
    }

    /// The queue of the tiers that need room.
    pub(super) fn pressure(&self) -> &Arc<Pressure> {
        &self.pressure
    }

    /// Ends the moves under way after the current one.
    pub(super) fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Clears a cancellation of the previous epoch or order.
    pub(super) fn clear_cancel(&self) {
        self.cancel.store(false, Ordering::Relaxed);
    }

    /// True when the moves under way were cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Limits the bytes per second that moves read from the device of a tier, and write to it; 0: no limit.
    pub(super) fn set_rate_limit(&self, tier: &str, bytes_per_s: u64) {
        self.tier_bytes_per_s.lock().insert(tier.to_owned(), bytes_per_s);
    }

    /// Forgets the rate of a tier that is gone.
    pub(super) fn forget_rate_limit(&self, tier: &str) {
        self.tier_bytes_per_s.lock().remove(tier);
    }

    /// Bytes per second that moves read from the device of a tier, and write to it, at most; `None`: no limit.
    pub(super) fn rate_limit(&self, tier: &str) -> Option<u64> {
        let own = self.tier_bytes_per_s.lock().get(tier).copied();
        own.or(self.options.background_bytes_per_s).filter(|rate| *rate > 0)
    }

    /// The rate of each tier, the home last.
    pub(super) fn rates(&self, host: &dyn TieringHost) -> Vec<Option<u64>> {
        tier_names(host).iter().map(|tier| self.rate_limit(tier)).collect()
    }

    /// Returns the health of the devices.
    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// The reason why no move may use the device of a tier, and for how long; `None` when one may.
    pub(super) fn paused(&self, tier: &str) -> Option<String> {
        self.health.paused(tier, self.clock.as_ref())
    }

    /// True while no move may use the device of a tier.
    pub(super) fn is_paused(&self, tier: &str) -> bool {
        self.health.is_paused(tier, self.clock.as_ref())
    }

    /// True while nothing is wrong with the device of a tier. Only epochs try a failing device again.
    pub(super) fn is_well(&self, host: &dyn TieringHost, tier: TierId) -> bool {
        tier_names(host).get(usize::from(tier.0)).is_none_or(|name| self.health.failing(name).is_none())
    }

    /// Notes that the device of a tier served a move.
    pub(super) fn note_success(&self, tier: &str) {
        self.health.succeeded(tier, self.clock.as_ref());
    }

    /// Notes that a move failed at a device; `message` is logged.
    pub(super) fn note_failure(&self, host: &dyn TieringHost, failed: &MoveError, message: &'static str) {
        if let Some(name) = tier_names(host).get(usize::from(failed.at.0)) {
            self.health.failed(name, &failed.error, self.clock.as_ref());
        }
        tracing::debug!(error = %failed.error, "{message}");
    }

    /// Carries out the moves of a draft, and notes in it how they ended, how long they took and what they save.
    pub(super) fn carry_out(
        &self,
        host: &dyn TieringHost,
        request: &EpochRequest,
        draft: &mut EpochDraft<'_>,
        metrics: &TieringMetrics,
    ) {
        let start_us = self.clock.now_us();
        let tiers = host.memory_tiers();
        let rates = if request.is_paced { self.rates(host) } else { Vec::new() };
        let urgent = request.reason == pressure::TRIGGER;
        let queue = MoveQueue {
            tiers: &tiers,
            home: host.home(),
            health: &self.health,
            clock: self.clock.as_ref(),
            cancel: &self.cancel,
            rates: &rates,
            patience: self.options.patience,
            executor: self.executor(rates.iter().any(Option::is_some), urgent),
            urgent,
        };
        self.carry_out_images(host, request, draft, metrics);
        let EpochDraft { epoch, moves, images, .. } = draft;
        let relocations: Vec<Relocation> = moves.iter().map(|moved| moved.relocation.clone()).collect();
        queue.run(&relocations, |number, verdict| {
            let Some(Move { relocation, record, .. }) = moves.get_mut(number) else { return };
            record.unix_us = self.clock.unix_us();
            match verdict {
                Verdict::Done { took_us } => {
                    record.status = MoveStatus::Done;
                    record.took_us = took_us;
                    epoch.moves_done += 1;
                    epoch.moved_bytes += record.bytes;
                    metrics.count_move(relocation.from, relocation.to, record.bytes, took_us);
                }
                Verdict::Skipped(why) => {
                    record.status = MoveStatus::Skipped;
                    record.why = Some(why);
                    epoch.moves_skipped += 1;
                    metrics.moves_skipped.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        epoch.move_us = self.clock.now_us().saturating_sub(start_us);
        let images = images.iter().map(|image| &image.record).filter(|record| record.status == MoveStatus::Done);
        let images_us: f64 = images.map(|record| record.benefit_us).sum();
        let moves = moves.iter().filter(|moved| moved.is_done()).map(|moved| moved.record.benefit_us);
        epoch.predicted_us = moves.sum::<f64>() + images_us;
    }

    /// Changes the images of a draft on the device, one after the other, at the rate of the device; drops come first. They end
    /// with the first error of the device, and when they are cancelled.
    fn carry_out_images(
        &self,
        host: &dyn TieringHost,
        request: &EpochRequest,
        draft: &mut EpochDraft<'_>,
        metrics: &TieringMetrics,
    ) {
        let EpochDraft { epoch, images, .. } = draft;
        let Some(tier) = host.device_tier().filter(|_| !images.is_empty()) else { return };
        let rate = self.rate_limit(tier.name()).filter(|_| request.is_paced);
        let mut free_at_us = 0;
        let mut failed: Option<String> = None;
        for ImageMove { change, record } in images {
            let why = if let Some(why) = &failed {
                Some(why.clone())
            } else if change.is_wanted && !self.wait_until(free_at_us) {
                Some("cancelled".to_owned())
            } else {
                let start_us = self.clock.now_us();
                let changed = change_image(&tier, host.home(), change);
                record.took_us = self.clock.now_us().saturating_sub(start_us);
                if let (Some(rate), true) = (rate, change.is_wanted) {
                    free_at_us = start_us + record.bytes.saturating_mul(1_000_000) / rate.max(1);
                }
                match changed {
                    Ok(ImageOutcome::Done) => None,
                    Ok(ImageOutcome::Full) => Some(format!("{} is full", tier.name())),
                    Ok(ImageOutcome::Gone) => Some("its table was dropped or its chunk was replaced".to_owned()),
                    Err(error) => {
                        let why = error.to_string();
                        if error.is_device_fault() {
                            self.health.failed(tier.name(), &error, self.clock.as_ref());
                            failed = Some(why.clone());
                        }
                        Some(why)
                    }
                }
            };
            record.unix_us = self.clock.unix_us();
            record.status = if why.is_none() { MoveStatus::Done } else { MoveStatus::Skipped };
            if why.is_none() {
                self.health.succeeded(tier.name(), self.clock.as_ref());
                epoch.moves_done += 1;
                epoch.moved_bytes += record.bytes;
                metrics.count_image(change.is_wanted, record.bytes);
            } else {
                epoch.moves_skipped += 1;
                metrics.moves_skipped.fetch_add(1, Ordering::Relaxed);
            }
            record.why = why;
        }
    }

    /// Waits until `start_us`; false when the moves are cancelled before.
    fn wait_until(&self, start_us: u64) -> bool {
        while !self.is_cancelled() {
            let wait_us = start_us.saturating_sub(self.clock.now_us());
            if wait_us == 0 {
                return true;
            }
            self.clock.sleep(Duration::from_micros(wait_us).min(MAX_SLEEP));
        }
        false
    }

    /// Drops the images on a device that is lost: they cannot be read any more.
    pub(super) fn drop_lost_images(&self, host: &dyn TieringHost, tables: &[TableSnapshot]) {
        let Some(tier) = host.device_tier() else { return };
        let Some(why) = tier.lost() else { return };
        let chunks = tables.iter().flat_map(|table| table.chunks.iter());
        let segments = chunks.flat_map(|entry| entry.chunk.segments.iter());
        let dropped = segments.filter(|segment| segment.image.swap(None).is_some()).count();
        if dropped > 0 {
            tracing::error!(
                tier = tier.name(),
                why,
                dropped,
                "the device is lost, and with it the second copies there; statements read the others. Start the server again to \
                 use the device"
            );
        }
    }

    /// Returns the executor of moves; `has_rate`: they keep to rates of devices, `urgent`: a load waits for the room.
    fn executor(&self, has_rate: bool, urgent: bool) -> MoveExecutor {
        match (self.options.movers, has_rate) {
            (0, _) => MoveExecutor::Caller,
            // Loads wait for the room, so the copies are dropped at once.
            (_, true) if urgent => MoveExecutor::Caller,
            (_, true) => MoveExecutor::Background,
            (threads, false) => MoveExecutor::Threads(threads),
        }
    }
}
