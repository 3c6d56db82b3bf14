//! Counters of moves between tiers, and of second copies in the memory of a device.

use terrace_tier_store::Store;
use terrace_tier_store::tier::TierId;

use super::{Exposition, load};

/// Moves that were carried out, by source and target.
pub(super) fn moves(out: &mut Exposition, store: &Store) {
    let metrics = store.tiering().metrics();
    let names: Vec<String> = store.tier_infos().into_iter().map(|t| t.name).collect();
    let memory = names.len().saturating_sub(1);
    let pairs = names.iter().enumerate().flat_map(|(from, from_name)| {
        // On a memory tier a copy may change its form.
        let targets = names.iter().enumerate().filter(move |(to, _)| *to != from || from < memory);
        targets.map(move |(to, to_name)| {
            let labels = vec![("from", from_name.as_str()), ("to", to_name.as_str())];
            (labels, TierId(from as u8), TierId(to as u8))
        })
    });
    let pairs: Vec<_> = pairs.collect();
    // A device has second copies: the tier that a segment also lies on does not matter.
    let device = store.device_tier().map(|device| device.name().to_owned());
    let copied = |count: f64| device.iter().map(move |name| (vec![("from", "*"), ("to", name.as_str())], count));
    let dropped = |count: f64| device.iter().map(move |name| (vec![("from", name.as_str()), ("to", "*")], count));
    let moves = pairs.iter().map(|(labels, from, to)| (labels.clone(), metrics.moves(*from, *to) as f64));
    let images = copied(load(&metrics.images_copied)).chain(dropped(load(&metrics.images_dropped)));
    out.counters("terrace_migrate_moves_total", "Moves carried out.", moves.chain(images));
    let bytes = pairs.iter().map(|(labels, from, to)| (labels.clone(), metrics.moved_bytes(*from, *to) as f64));
    let images = copied(load(&metrics.images_copied_bytes));
    out.counters("terrace_migrate_moved_bytes_total", "Bytes of the moves carried out.", bytes.chain(images));
}
