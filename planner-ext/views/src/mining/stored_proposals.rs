//! Proposals in the catalog: they keep the views that the server proposed, made and dropped, with reasons, over restarts.

use terrace_error::{Error, ErrorKind, Result};
use terrace_tier_store::Store;

use super::proposal::Proposal;

/// Kind and name of the catalog object with all proposals.
const KIND: &str = "hot_view_proposals";
const NAME: &str = "all";

/// Loads the proposals that were stored before the server started.
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

/// Stores proposals in place of the earlier ones.
///
/// # Errors
/// When the catalog cannot be written.
pub(super) fn save(store: &Store, proposals: &[Proposal]) -> Result<()> {
    let json = serde_json::to_string(proposals).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    Ok(store.put_object(KIND, NAME, &json)?)
}
