//! Operations of the crash tests: drawn at random, applied to the model, run on the store. A new operation needs an arm
//! in each `match`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use terrace_model::{Error, Pattern, Result};
use terrace_placement::EpochRequest;

use super::model::{Model, Rows, State, definition, keys, least_ingested_rows, positions, table_name};
use crate::store::marks::tests::{arrange_apart, evaluate_mark};
use crate::store::tests::rows;
use crate::store::{Store, StoreOptions};

const TABLES: [&str; 3] = ["apples", "pears", "plums"];

/// One atomic operation on the store.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Create {
        table: String,
        logs_inserts: bool,
    },
    Insert {
        table: String,
        keys: Range<i64>,
    },
    Ingest {
        table: String,
        keys: Range<i64>,
    },
    /// A bulk load into a new table, which replaces one of the same name.
    Load {
        table: String,
        keys: Range<i64>,
        logs_inserts: bool,
    },
    /// An ingest that is dropped before it finishes.
    Abandon {
        table: String,
        keys: Range<i64>,
    },
    /// One transaction that deletes rows of the first table and inserts rows into both.
    Change {
        tables: [String; 2],
        deleted: BTreeSet<i64>,
        inserted: [Range<i64>; 2],
        rolled_back: bool,
    },
    Seal {
        table: String,
    },
    Compact {
        table: String,
    },
    /// Evaluates a new mark, and records it for chunks of which all rows or no row fulfil it.
    Mark {
        table: String,
    },
    /// Rewrites neighbouring chunks so that rows that fulfil a new mark come first.
    Rearrange {
        table: String,
        first: usize,
        chunks: usize,
    },
    /// Forgets the marks that the first chunk knows.
    Forget {
        table: String,
    },
    Drop {
        table: String,
    },
    PutObject {
        name: String,
        text: String,
    },
    RemoveObject {
        name: String,
    },
    /// Reads a table, and pins its version until the next outage or `ReleaseVersions`.
    PinVersion {
        table: String,
    },
    /// Reads all pinned versions, then releases them.
    ReleaseVersions,
    Epoch,
    Checkpoint,
    /// Stops the store as a server does, and opens it again.
    Reopen,
}

impl Operation {
    pub(super) fn draw(model: &Model, random: &mut StdRng) -> Self {
        let name = |random: &mut StdRng| TABLES[random.random_range(0..TABLES.len())].to_owned();
        let table = name(random);
        let next = |random: &mut StdRng, most: i64| model.next_key..model.next_key + random.random_range(1..=most);
        let logs_inserts = random.random_bool(0.7);
        let Some(rows) = model.state.tables.get(&table) else {
            return match random.random_range(0..3) {
                0 => Self::Load { table, keys: next(random, 300), logs_inserts },
                _ => Self::Create { table, logs_inserts },
            };
        };
        // Tables stay small: their content is compared thousands of times.
        let large = rows.all().len() > 1_500;
        match random.random_range(0..100) {
            0..40 if !large => Self::Insert { table, keys: next(random, 40) },
            40..50 if !large => Self::Ingest { table, keys: next(random, 300) },
            50..57 => Self::change(model, table, random),
            57..60 => Self::Load { table, keys: next(random, 300), logs_inserts },
            60..63 => Self::Abandon { table, keys: next(random, 200) },
            63..66 => Self::Seal { table },
            66..69 => Self::Compact { table },
            69..71 => Self::Drop { table },
            71..74 => Self::Mark { table },
            74..77 => Self::Rearrange { table, first: random.random_range(0..64), chunks: random.random_range(1..5) },
            77..78 => Self::Forget { table },
            78..80 => Self::PutObject { name: name(random), text: format!("{}", random.random::<u32>()) },
            80..82 => Self::RemoveObject { name: name(random) },
            82..87 => Self::PinVersion { table },
            87..90 => Self::ReleaseVersions,
            90..94 => Self::Epoch,
            94..96 => Self::Checkpoint,
            96..98 => Self::Reopen,
            _ if large && random.random_bool(0.9) => Self::change(model, table, random),
            _ if large => Self::Drop { table },
            _ => Self::Insert { table, keys: next(random, 3) },
        }
    }

    fn change(model: &Model, table: String, random: &mut StdRng) -> Self {
        let known: Vec<&String> = model.state.tables.keys().collect();
        let other =
            known.get(random.random_range(0..known.len().max(1))).map_or_else(|| table.clone(), |t| (*t).clone());
        // Delete few rows, most rows, or all rows from the start to a key.
        let rows = model.state.tables.get(&table).map(Rows::all).unwrap_or_default();
        let share = [0.02, 0.9, 1.0][random.random_range(0..3)];
        let first = model.next_key - 1_000 * random.random_range(0..20);
        let deleted = rows.into_iter().filter(|k| (*k < first || share < 1.0) && random.random_bool(share)).collect();
        let start = model.next_key;
        let mut next = |start: i64| start..start + random.random_range(0..=80_i64).saturating_sub(20).max(0);
        let inserted = [next(start), next(start + 500)];
        Self::Change { tables: [table, other], deleted, inserted, rolled_back: random.random_bool(0.1) }
    }

    /// The state after the operation.
    pub(super) fn expected(&self, before: &State) -> State {
        let mut state = before.clone();
        match self {
            Self::Create { table, logs_inserts } => {
                state.tables.insert(table.clone(), Rows { logs_inserts: *logs_inserts, ..Rows::default() });
            }
            Self::Insert { table, keys } => {
                if let Some(rows) = state.tables.get_mut(table) {
                    rows.add(keys.clone());
                }
            }
            Self::Ingest { table, keys } => {
                if let Some(rows) = state.tables.get_mut(table) {
                    let is_small = keys.end - keys.start < least_ingested_rows(table);
                    if is_small { rows.add(keys.clone()) } else { rows.durable.extend(keys.clone()) }
                }
            }
            Self::Change { rolled_back: true, .. } => {}
            Self::Change { tables, deleted, inserted, .. } => {
                // A commit is logged as a whole.
                let logs_inserts = tables.iter().zip(inserted).any(|(table, keys)| {
                    !keys.is_empty()
                        && (keys.end - keys.start >= least_ingested_rows(table)
                            || state.tables.get(table).is_some_and(|t| t.logs_inserts))
                });
                let logged = logs_inserts || !deleted.is_empty();
                for (number, (table, keys)) in tables.iter().zip(inserted).enumerate() {
                    let Some(rows) = state.tables.get_mut(table) else { continue };
                    if number == 0 {
                        rows.durable.retain(|key| !deleted.contains(key));
                        rows.volatile.retain(|key| !deleted.contains(key));
                    }
                    if logged { rows.durable.extend(keys.clone()) } else { rows.add(keys.clone()) }
                }
            }
            Self::Load { table, keys, logs_inserts } => {
                let rows = Rows { durable: keys.clone().collect(), logs_inserts: *logs_inserts, ..Rows::default() };
                state.tables.insert(table.clone(), rows);
            }
            Self::Drop { table } => drop(state.tables.remove(table)),
            Self::PutObject { name, text } => drop(state.objects.insert(name.clone(), text.clone())),
            Self::RemoveObject { name } => drop(state.objects.remove(name)),
            Self::Epoch => state.epochs += 1,
            Self::Reopen => state.tables.values_mut().for_each(|rows| rows.durable.append(&mut rows.volatile)),
            Self::Abandon { .. }
            | Self::Seal { .. }
            | Self::Compact { .. }
            | Self::Mark { .. }
            | Self::Rearrange { .. }
            | Self::Forget { .. }
            | Self::PinVersion { .. }
            | Self::ReleaseVersions
            | Self::Checkpoint => {}
        }
        state
    }

    /// Runs the operation. A reopen replaces `open` by a store opened with `options`, or by none when that fails.
    pub(super) fn run(&self, model: &mut Model, open: &mut Option<Arc<Store>>, options: StoreOptions) -> Result<()> {
        // Even if the operation fails: its rows may be there.
        model.next_key += 1_000;
        let store = open.as_ref().ok_or(Error::Cancelled)?;
        let table = |name: &str| store.table(&table_name(name));
        match self {
            Self::Create { table, logs_inserts } => drop(store.create_table(definition(table, *logs_inserts))?),
            Self::Insert { table: name, keys } => {
                store.insert(&table(name)?, &[rows(keys.clone())])?;
            }
            Self::Ingest { table: name, keys } => {
                let mut ingest = store.ingest(&table(name)?);
                write(&mut ingest, keys)?;
                ingest.finish()?;
            }
            Self::Load { table, keys, logs_inserts } => {
                let mut ingest = store.ingest_new(definition(table, *logs_inserts), true)?;
                write(&mut ingest, keys)?;
                ingest.finish()?;
            }
            Self::Abandon { table: name, keys } => write(&mut store.ingest(&table(name)?), keys)?,
            Self::Change { tables, deleted, inserted, rolled_back } => {
                let mut transaction = store.begin();
                for (number, (name, keys)) in tables.iter().zip(inserted).enumerate() {
                    let table = table(name)?;
                    let seen = transaction.view(&table).unwrap_or_else(|| table.version());
                    let gone = |(key, at): (i64, u64)| (number == 0 && deleted.contains(&key)).then_some(at);
                    let gone = positions(store, &seen)?.into_iter().filter_map(gone).collect();
                    let mut ingest = store.ingest(&table);
                    write(&mut ingest, keys)?;
                    let added = if keys.is_empty() { None } else { Some(ingest.into_new_rows()?) };
                    transaction.change(&table, &seen, &gone, added)?;
                }
                if !rolled_back {
                    transaction.commit()?;
                }
            }
            Self::Seal { table: name } => store.seal(&table(name)?)?,
            Self::Compact { table: name } => store.optimize(&table(name)?).map(drop)?,
            Self::Mark { table: name } => {
                let table = table(name)?;
                let mark = store.new_mark()?;
                store.set_marks(&table, &evaluate_mark(store, &table.version(), mark)?)?;
            }
            Self::Rearrange { table: name, first, chunks } => {
                let table = table(name)?;
                let mark = store.new_mark()?;
                let all = Arc::clone(&table.version().chunks);
                let group: Vec<_> = all.iter().skip(first % all.len().max(1)).take(*chunks).cloned().collect();
                store.rearrange(&table, &group, &arrange_apart(mark, table.options().chunk_rows))?;
            }
            Self::Forget { table: name } => {
                let table = table(name)?;
                let first = table.version().chunks.first().map(|entry| Arc::clone(&entry.chunk));
                let marks: Vec<_> = first.iter().flat_map(|chunk| chunk.marks()).map(|(mark, _)| mark).collect();
                store.forget_marks(&table, &marks)?;
            }
            Self::Drop { table } => store.drop_table(&table_name(table))?,
            Self::PutObject { name, text } => store.put_object("view", name, text)?,
            Self::RemoveObject { name } => drop(store.remove_object("view", name)?),
            Self::PinVersion { table: name } => {
                let version = table(name)?.version();
                touch(&version);
                let found = keys(store, &version)?;
                assert_eq!(Some(&found), model.state.tables.get(name).map(Rows::all).as_ref(), "{name} while open");
                model.pinned.push((version, found));
            }
            Self::ReleaseVersions => {
                for (version, expected) in model.pinned.drain(..) {
                    assert_eq!(keys(store, &version)?, expected, "rows of an old version");
                }
            }
            Self::Epoch => drop(store.tiering().run_epoch(EpochRequest::now("test"))?),
            Self::Checkpoint => store.tiering().checkpoint()?,
            Self::Reopen => {
                model.pinned.clear();
                store.close()?;
                *open = None;
                *open = Some(Store::open(options)?);
            }
        }
        Ok(())
    }
}

fn write(ingest: &mut crate::store::ingest::Ingest, keys: &Range<i64>) -> Result<()> {
    for start in keys.clone().step_by(50) {
        ingest.write(rows(start..keys.end.min(start + 50)))?;
    }
    Ok(())
}

/// Counts accesses, so that epochs have moves to plan.
fn touch(version: &terrace_storage::table::TableVersion) {
    for (number, entry) in version.chunks.iter().enumerate() {
        for segment in entry.chunk.segments.iter().skip(number % 2) {
            segment.counters.record(Pattern::Sequential, 100 * u64::from(entry.chunk.rows));
        }
    }
}
