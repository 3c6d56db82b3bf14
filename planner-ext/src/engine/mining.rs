//! Epochs of mined views: what statements asked for becomes proposals, and in mode auto views.

use std::sync::Arc;

use super::Engine;
use crate::error::Result;
use crate::views::{Action, MiningCounters};

/// Looks at what statements asked for, once an epoch, as long as the engine lives.
pub(super) fn start(engine: &Arc<Engine>) {
    let Some(interval) = engine.options.mining.interval else { return };
    let weak = Arc::downgrade(engine);
    engine.options.cpu.spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            let Some(engine) = weak.upgrade() else { return };
            if let Err(error) = engine.mine_views().await {
                tracing::warn!(%error, "nothing was learned from the statements of an epoch");
            }
        }
    });
}

impl Engine {
    /// Ends an epoch of mined views.
    ///
    /// # Errors
    /// When the catalog cannot be read or written.
    pub async fn mine_views(&self) -> Result<()> {
        let views = Arc::clone(&self.hot_views);
        let options = self.options.mining.clone();
        let actions = self.blocking(move || views.miner().epoch(&views, &options)).await?;
        for action in actions {
            // One that fails now must not keep the others from being carried out, in this epoch and all to come.
            let about = action.view().clone();
            if let Err(error) = self.act(action).await {
                tracing::warn!(view = %about, %error, "a mined hot view was neither made nor dropped");
            }
        }
        let views = Arc::clone(&self.hot_views);
        self.blocking(move || views.miner().keep(&views.store)).await
    }

    /// What was learned from statements since the server started.
    pub fn mining_counters(&self) -> &MiningCounters {
        self.hot_views.miner().counters()
    }

    async fn act(&self, action: Action) -> Result<()> {
        let _names = self.names.lock().await;
        let views = Arc::clone(&self.hot_views);
        let act = move || {
            let now = views.current()?;
            // Only what it made itself is the server's to replace or to drop.
            let own = |name| now.get(name).is_none_or(|status| status.definition.mined.is_some());
            match &action {
                Action::Create(definition) if own(&definition.name) => {
                    views.bind(&Arc::new(definition.as_ref().clone()))?;
                    views.put(definition)?;
                }
                Action::Retire(name, _) if own(name) => {
                    views.remove(name)?;
                }
                Action::Create(_) | Action::Retire(..) => return Ok(()),
            }
            // No chunk has to know what the view was before.
            if let Some(before) = now.get(action.view()) {
                views.forget_unknown(&before.definition.table);
            }
            views.miner().done(&action);
            Ok(())
        };
        let done = self.blocking(act).await;
        self.runs.wake();
        done
    }
}
