//! Proposals in the catalog: what was proposed, made and dropped, and why, is known after a restart.

use terrace_tier_store::Store;

use super::proposal::Proposal;
use crate::error::{Error, ErrorKind, Result};

/// Kind and name of the object with all of them.
const KIND: &str = "hot_view_proposals";
const NAME: &str = "all";

/// Those of the last run of the server.
///
/// # Errors
/// When the catalog cannot be read, or what is there is damaged.
pub(super) fn load(store: &Store) -> Result<Vec<Proposal>> {
    let Some((_, json)) = store.objects(KIND)?.into_iter().find(|(name, _)| name == NAME) else {
        return Ok(Vec::new());
    };
    let damaged =
        |e| Error::new(ErrorKind::DataLoss, format!("proposals of hot views in the catalog are damaged: {e}"));
    serde_json::from_str(&json).map_err(damaged)
}

/// Stores them, in place of those before.
///
/// # Errors
/// When the catalog cannot be written.
pub(super) fn save(store: &Store, proposals: &[Proposal]) -> Result<()> {
    let json = serde_json::to_string(proposals).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    Ok(store.put_object(KIND, NAME, &json)?)
}
