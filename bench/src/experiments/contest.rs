//! Compares policies: each places the same data by the same queries at the same budgets and answers the same requests,
//! in turn, in its own process over its own copy.

use serde_json::{Value, json};
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::side::SideSpec;
use crate::statistics::median;

/// Largest allowed share by which a policy may be worse than the best one.
const NEAR: f64 = 0.03;

/// A policy's side.
pub struct Contender {
    /// The policy.
    pub policy: PolicyKind,
    /// Time of all requests per round at the current budget.
    pub sums_ms: Vec<f64>,
    /// Bytes that a round read from disk.
    pub cold_bytes: f64,
    child: Child,
    _store: StoreClone,
}

impl Contender {
    /// Starts a side and runs the requests of `seen` on it, so that it places by their heat. With `nvm`, segments that
    /// are not in DRAM may lie on emulated, slowed NVM.
    pub fn start(bench: &Bench, policy: PolicyKind, nvm: bool, store: StoreClone, seen: &[String]) -> Result<Self> {
        let spec =
            SideSpec::Terrace { store: store.path(), threads: bench.threads, nvm, policy, form: FormChoice::Plain };
        let mut child = Child::start(policy.name(), &spec)?;
        for request in seen {
            child.ask(request)?;
        }
        Ok(Self { policy, sums_ms: Vec::new(), cold_bytes: 0.0, child, _store: store })
    }

    /// The median time of the rounds at the current budget.
    pub fn median_ms(&self) -> f64 {
        median(&self.sums_ms)
    }

    /// The times of this side and of `other`, paired by round.
    pub fn paired_ms<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f64, f64)> + 'a {
        self.sums_ms.iter().copied().zip(other.sums_ms.iter().copied())
    }
}

/// Sets the budget of every side and sends each request to all sides in turn, round by round; the first round warms up.
/// Returns the number of rows of each request; fails when two sides differ.
pub fn measure(bench: &mut Bench, all: &mut [Contender], requests: &[String], share: f64) -> Result<Vec<f64>> {
    for one in all.iter_mut() {
        bench.ask(&mut one.child, &format!("place {share}"))?;
        one.sums_ms.clear();
    }
    let mut rows = Vec::with_capacity(requests.len());
    let mut round = 0;
    while round == 0 || bench.wants_another_round(round - 1) {
        let mut sums = vec![(0.0, 0.0); all.len()];
        for (number, request) in requests.iter().enumerate() {
            for (one, (ms, cold_bytes)) in all.iter_mut().zip(&mut sums) {
                let sample = bench.ask(&mut one.child, request)?;
                (*ms, *cold_bytes) = (*ms + sample.ms, *cold_bytes + sample.value("cold_bytes"));
                match rows.get(number) {
                    None => rows.push(sample.value("rows")),
                    Some(known) if *known == sample.value("rows") => {}
                    Some(known) => {
                        let policy = one.policy.name();
                        let rows = sample.value("rows");
                        return Err(Error::failed(format!("{policy}: {rows} rows, {known} elsewhere: {request}")));
                    }
                }
            }
        }
        for (one, (ms, cold_bytes)) in all.iter_mut().zip(sums) {
            if round > 0 {
                one.sums_ms.push(ms);
            }
            one.cold_bytes = cold_bytes;
        }
        round += 1;
    }
    Ok(rows)
}

/// Adds a row: the first policy against the best of the others at a budget.
pub fn add(bench: &mut Bench, all: &[Contender], share: f64, mut params: Value) {
    let Some((optimal, others)) = all.split_first() else { return };
    let Some(best) = others.iter().min_by(|a, b| a.median_ms().total_cmp(&b.median_ms())) else { return };
    let values: Vec<f64> = optimal.paired_ms(best).map(|(ours, theirs)| ours / theirs).collect();
    if let Some(params) = params.as_object_mut() {
        params.insert("share".into(), json!(share));
        params.insert("threads".into(), json!(bench.threads));
        for one in all {
            params.insert(format!("{}_ms", one.policy.name()), json!(one.median_ms()));
            params.insert(format!("{}_cold_mb", one.policy.name()), json!(one.cold_bytes / 1e6));
        }
    }
    bench.add(Finding {
        sides: (optimal.policy.name(), "the best of the other policies"),
        what: &format!("{:.0} % in DRAM, against {}", share * 100.0, best.policy.name()),
        values: &values,
        // When the rounds differ by more than this, the verdict is "not decided".
        target: Target::below(1.0 + NEAR, 1.0),
        params,
    });
}
