//! Views that the server mines from the rounds, compared with those made by hand; and the cost of recording queries.

use serde_json::{Value, json};

use super::{Contender, ROOM, extended, hot_label, rounds};
use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::order_line::OrderLine;
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::median;

/// The share of hot lines of the measured point of the grid.
pub const HOT: f64 = 0.1;
/// The share of queries for hot lines only: the last one that was measured.
const SHARE: f64 = 0.95;
/// Epochs of rounds to learn from: the length of the server's history.
const EPOCHS: usize = 9;
const QUICK_EPOCHS: usize = 6;
/// Queries by key of one measurement of the hook.
const BY_KEY: usize = 2_000;
const QUICK_BY_KEY: usize = 300;

/// Measures a fifth, tiered side whose views are mined from its queries; the other sides stay as the last share left
/// them.
pub fn add(bench: &mut Bench, data: &OrderLine, all: &mut [Contender; 4], about: &Value) -> Result<()> {
    let store = StoreClone::from_store(&data.store())?;
    let scale = about.get("scale").and_then(Value::as_f64).unwrap_or_default();
    let spec = SideSpec::OrderLine { store: store.path(), threads: bench.threads, scale, hot: HOT, mining: true };
    let mut mined = Child::start("tiered, mined views", &spec)?;
    add_hook(bench, &mut mined, about)?;
    mined.ask("place 0")?;
    let count = rounds(bench);
    let seed = bench.seed * 1000;
    let epochs = if bench.quick { QUICK_EPOCHS } else { EPOCHS };
    // Learn from other rounds than those that are measured.
    let learned = bench.ask(&mut mined, &format!("mine {SHARE} {count} {} {epochs}", seed + 500))?;
    let op = |number: usize| format!("rounds {SHARE} {count} {}", seed + number as u64);
    mined.ask(&op(0))?;
    mined.ask(&format!("place {}", HOT * ROOM))?;
    let [.., by_hand] = all;
    let mut own = Vec::new();
    let mut hand = Vec::new();
    while bench.wants_another_round(own.len()) {
        let op = op(own.len() + 1);
        let a = bench.ask(&mut mined, &op)?;
        let b = bench.ask(&mut by_hand.child, &op)?;
        if (a.value("rows"), a.value("digest")) != (b.value("rows"), b.value("digest")) {
            return Err(Error::failed(format!("'{op}': mined views answer otherwise than views made by hand")));
        }
        own.push(a);
        hand.push(b);
    }
    add_rows(bench, &own, &hand, &learned, epochs, about);
    Ok(())
}

fn add_rows(bench: &mut Bench, own: &[Sample], hand: &[Sample], learned: &Sample, epochs: usize, about: &Value) {
    let of =
        |samples: &[Sample], value: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
    let served = |sample: &Sample| sample.value("views_hits") / sample.value("hot_queries").max(1.0);
    let cold_mb = |sample: &Sample| sample.value("cold_bytes") / 1e6;
    let params = extended(
        about,
        json!({
            "hot_only": SHARE, "epochs": epochs, "views": learned.value("views"), "epoch_ms": learned.value("epoch_ms"),
            "written_bytes": learned.value("written_bytes"), "served_of_hot": of(own, &served),
            "served_of_hot_by_hand": of(hand, &served), "ms_a": of(own, &|s| s.ms), "ms_b": of(hand, &|s| s.ms),
            "cold_mb_a": of(own, &cold_mb), "cold_mb_b": of(hand, &cold_mb),
        }),
    );
    let ms = |sample: &Sample| sample.ms;
    let bytes = |sample: &Sample| sample.value("cold_bytes").max(1.0);
    for (what, value) in [("time of a round", ms as fn(&Sample) -> f64), ("bytes read from disk", bytes)] {
        let values: Vec<f64> = own.iter().zip(hand).map(|(own, hand)| value(own) / value(hand)).collect();
        bench.add(Finding {
            sides: ("tiered, views mined by the server", "tiered, views made by hand"),
            what: &format!("{}, {:.0} % hot only: mined, {what}", hot_label(about), SHARE * 100.0),
            values: &values,
            target: Target::below(1.5, 1.1),
            params: params.clone(),
        });
    }
}

/// Adds the row of the cost of recording queries. All data is in memory, so that reads do not hide the cost.
fn add_hook(bench: &mut Bench, child: &mut Child, about: &Value) -> Result<()> {
    let count = if bench.quick { QUICK_BY_KEY } else { BY_KEY };
    child.ask("fill")?;
    child.ask(&format!("hook {} 0", count / 4))?;
    let mut samples = Vec::new();
    while bench.wants_another_round(samples.len()) {
        let op = format!("hook {count} {}", bench.seed * 1000 + samples.len() as u64);
        samples.push(bench.ask(child, &op)?);
    }
    let of = |name: &str| samples.iter().map(|sample| sample.value(name)).collect::<Vec<_>>();
    let noting = of("noting_us");
    let plain = of("plain_us");
    let values: Vec<f64> = noting.iter().zip(&plain).map(|(noting, plain)| noting / plain).collect();
    bench.add(Finding {
        sides: ("a prepared query by key, noted to learn views from", "the same, not noted"),
        what: &format!("{}: mining on", hot_label(about)),
        values: &values,
        target: Target::below(1.1, 1.02),
        params: extended(about, json!({ "us_a": median(&noting), "us_b": median(&plain) })),
    });
    Ok(())
}
