//! Epochs of view mining: turns the conditions of recent statements into proposals of hot views, in mode auto into views.

use std::sync::Arc;

use terrace_views::Action;

use crate::engine::Engine;
use crate::error::Result;

/// Starts the task that runs an epoch of view mining at each interval, as long as the engine lives.
pub(super) fn start(engine: &Arc<Engine>) {
    let Some(interval) = engine.options.mining.interval else { return };
    let weak = Arc::downgrade(engine);
    engine.options.cpu.spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            let Some(engine) = weak.upgrade() else { return };
            if let Err(error) = engine.mine_views().await {
                tracing::warn!(%error, "cannot mine hot views from the statements of an epoch");
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
        let views = Arc::clone(&self.hot_views.views);
        let options = self.options.mining.clone();
        let actions = self.blocking(move || views.miner().epoch(&views, &options)).await?;
        for action in actions {
            // A failing action must not block the others, in this epoch and all to come.
            let view = action.view().clone();
            if let Err(error) = self.apply_action(action).await {
                tracing::warn!(view = %view, %error, "cannot create or drop a mined hot view");
            }
        }
        let views = Arc::clone(&self.hot_views.views);
        let store = Arc::clone(&self.store);
        self.blocking(move || views.miner().store_proposals(&store)).await
    }

    async fn apply_action(&self, action: Action) -> Result<()> {
        let _name_lock = self.name_lock.lock().await;
        let views = Arc::clone(&self.hot_views.views);
        let apply = move || {
            let now = views.current()?;
            // The server replaces and drops only views that it mined itself.
            let may_replace = |name| now.get(name).is_none_or(|status| status.definition.mined.is_some());
            // A user may have rejected the view since the epoch ended.
            let may_create = |name| may_replace(name) && !views.miner().is_rejected(name);
            match &action {
                Action::Create(definition) if may_create(&definition.name) => {
                    views.bind(&Arc::new(definition.as_ref().clone()))?;
                    views.put(definition)?;
                }
                Action::Retire(name, _) if may_replace(name) => {
                    views.remove(name)?;
                }
                Action::Create(_) | Action::Retire(..) => return Ok(()),
            }
            // Chunks no longer need the marks of the former version.
            if let Some(before) = now.get(action.view()) {
                views.forget_unknown(&before.definition.table);
            }
            views.miner().done(&action);
            Ok(())
        };
        let done = self.blocking(apply).await;
        self.hot_views.runner.wake();
        done
    }
}
