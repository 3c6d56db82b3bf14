//! Rounds of queries on several sides in turn, and the rows that come of them.

use serde_json::json;
use terrace_tier_store::placement::PolicyKind;
use terrace_tier_store::tier::codec::FormChoice;

use crate::bench::{Bench, Finding, Target};
use crate::child::Child;
use crate::data::StoreClone;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;
use crate::statistics::{geomean, median};
use crate::tpch;

/// Samples of both sides, per round and query.
pub type Rounds = Vec<Vec<(Sample, Sample)>>;

/// Runs all queries once on each side to warm up, then in turn, round after round. Fails when a query returns another
/// number of rows on the other side.
pub fn rounds(bench: &mut Bench, a: &mut Child, b: &mut Child) -> Result<Rounds> {
    rounds_of(bench, &mut [a, b], "").map(pairs)
}

/// Like [`rounds`], but with equal plans: both sides run DataFusion's own plans over leaves. Fails when the plans
/// differ.
pub fn leaf_rounds(bench: &mut Bench, a: &mut Child, b: &mut Child) -> Result<Rounds> {
    let rounds = pairs(rounds_of(bench, &mut [a, b], "leaf ")?);
    for (query, (ours, theirs)) in tpch::names().zip(rounds.iter().flatten()) {
        if ours.value("plan") != theirs.value("plan") {
            return Err(Error::failed(format!("{query}: the plans of the two sides differ")));
        }
    }
    Ok(rounds)
}

/// Compares a side with the faster of two others, query by query, by their medians. Also returns the queries for which
/// the second one was faster.
pub fn rounds_against_faster(
    bench: &mut Bench,
    a: &mut Child,
    others: [&mut Child; 2],
) -> Result<(Rounds, Vec<String>)> {
    let [b, c] = others;
    Ok(against_faster(rounds_of(bench, &mut [a, b, c], "")?))
}

fn against_faster(all: Vec<Vec<Vec<Sample>>>) -> (Rounds, Vec<String>) {
    let median_ms = |query: usize, side: usize| {
        let of = |round: &Vec<Vec<Sample>>| Some(round.get(query)?.get(side)?.ms);
        median(&all.iter().filter_map(of).collect::<Vec<_>>())
    };
    let second: Vec<bool> = (0..tpch::QUERIES.len()).map(|query| median_ms(query, 2) < median_ms(query, 1)).collect();
    let names = tpch::names().zip(&second).filter(|(_, second)| **second).map(|(name, _)| name).collect();
    let choose = |(mut samples, second): (Vec<Sample>, &bool)| {
        samples.remove(if *second { 1 } else { 2 });
        samples
    };
    let chosen = all.into_iter().map(|round| round.into_iter().zip(&second).map(choose).collect());
    (pairs(chosen.collect()), names)
}

fn pairs(rounds: Vec<Vec<Vec<Sample>>>) -> Rounds {
    let pair = |samples: Vec<Sample>| <[Sample; 2]>::try_from(samples).ok().map(|[a, b]| (a, b));
    rounds.into_iter().map(|round| round.into_iter().filter_map(pair).collect()).collect()
}

/// The samples of the first side and of the one at position `peer`.
pub fn against(all: &[Vec<Vec<Sample>>], peer: usize) -> Rounds {
    let pair = |samples: &Vec<Sample>| Some((samples.first()?.clone(), samples.get(peer)?.clone()));
    all.iter().map(|round| round.iter().filter_map(pair).collect()).collect()
}

/// Samples per round, query of TPC-H and side; the request of a query is `prefix` and its name.
fn rounds_of(bench: &mut Bench, sides: &mut [&mut Child], prefix: &str) -> Result<Vec<Vec<Vec<Sample>>>> {
    let requests: Vec<String> = tpch::names().map(|query| format!("{prefix}{query}")).collect();
    rounds_of_requests(bench, sides, &requests)
}

/// Samples per round, request and side. All requests run once on each side to warm up, then in turn, round after round.
/// Fails when a request returns another number of rows on another side.
pub fn rounds_of_requests(
    bench: &mut Bench,
    sides: &mut [&mut Child],
    requests: &[String],
) -> Result<Vec<Vec<Vec<Sample>>>> {
    let mut rounds = Vec::new();
    let mut warm = true;
    while warm || bench.wants_another_round(rounds.len()) {
        let mut round = Vec::new();
        for request in requests {
            let mut samples: Vec<Sample> = Vec::new();
            for side in &mut *sides {
                samples.push(if warm { side.ask(request)? } else { bench.ask(side, request)? });
            }
            let rows: Vec<f64> = samples.iter().map(|sample| sample.value("rows")).collect();
            if rows.iter().any(|count| Some(count) != rows.first()) {
                let names: Vec<&str> = sides.iter().map(|side| side.name()).collect();
                return Err(Error::failed(format!("{request}: {} return {rows:?} rows", names.join(", "))));
            }
            round.push(samples);
        }
        if !warm {
            rounds.push(round);
        }
        warm = false;
    }
    Ok(rounds)
}

/// Names and targets for rows made from rounds.
pub struct Summary<'a> {
    /// Names of the sides.
    pub sides: (&'a str, &'a str),
    /// Prefix of a query's name, when an experiment has several kinds of rows.
    pub label: &'a str,
    /// Target of the geometric mean.
    pub mean: Target,
    /// Target of each query and of the worst.
    pub each: Target,
    /// Scale and further parameters.
    pub params: serde_json::Value,
}

/// Adds one row per query of TPC-H, one for the geometric mean and one for the worst query, with `ratio` of each pair.
pub fn add_rows(bench: &mut Bench, summary: &Summary<'_>, rounds: &Rounds, ratio: impl Fn(&Sample, &Sample) -> f64) {
    let names: Vec<String> = tpch::names().collect();
    add_named_rows(bench, summary, &names, rounds, ratio);
}

/// Like [`add_rows`], for other queries.
pub fn add_named_rows(
    bench: &mut Bench,
    summary: &Summary<'_>,
    names: &[String],
    rounds: &Rounds,
    ratio: impl Fn(&Sample, &Sample) -> f64,
) {
    let per_round: Vec<Vec<f64>> = rounds.iter().map(|r| r.iter().map(|(a, b)| ratio(a, b)).collect()).collect();
    let mut worst = (String::new(), Vec::new());
    for (index, query) in names.iter().enumerate() {
        let values: Vec<f64> = per_round.iter().filter_map(|round| round.get(index).copied()).collect();
        let of = |side: fn(&(Sample, Sample)) -> f64| {
            median(&rounds.iter().filter_map(|round| round.get(index).map(side)).collect::<Vec<_>>())
        };
        let mut params = summary.params.clone();
        if let Some(params) = params.as_object_mut() {
            params.insert("query".to_owned(), json!(query));
            params.insert("ms_a".to_owned(), json!(of(|(a, _)| a.ms)));
            params.insert("ms_b".to_owned(), json!(of(|(_, b)| b.ms)));
            params.insert("cpu_ms_a".to_owned(), json!(of(|(a, _)| a.value("cpu_ms"))));
            params.insert("cpu_ms_b".to_owned(), json!(of(|(_, b)| b.value("cpu_ms"))));
            params.insert("cold_bytes".to_owned(), json!(of(|(a, _)| a.value("cold_bytes"))));
        }
        let what = format!("{}{query}", summary.label);
        add(bench, summary, &what, &values, summary.each, params);
        if worst.1.is_empty() || median(&values) > median(&worst.1) {
            worst = (query.clone(), values);
        }
    }
    let means: Vec<f64> = per_round.iter().map(|round| geomean(round)).collect();
    let sums = |side: fn(&(Sample, Sample)) -> f64| {
        median(&rounds.iter().map(|round| round.iter().map(side).sum()).collect::<Vec<_>>())
    };
    let mut params = summary.params.clone();
    if let Some(params) = params.as_object_mut() {
        params.insert("query".to_owned(), json!("geomean"));
        params.insert("sum_ms_a".to_owned(), json!(sums(|(a, _)| a.ms)));
        params.insert("sum_ms_b".to_owned(), json!(sums(|(_, b)| b.ms)));
    }
    add(bench, summary, &format!("{}geomean", summary.label), &means, summary.mean, params);
    let mut params = summary.params.clone();
    if let Some(params) = params.as_object_mut() {
        params.insert("query".to_owned(), json!("worst"));
        params.insert("worst".to_owned(), json!(worst.0));
    }
    add(bench, summary, &format!("{}worst ({})", summary.label, worst.0), &worst.1, summary.each, params);
}

fn add(
    bench: &mut Bench,
    summary: &Summary<'_>,
    what: &str,
    values: &[f64],
    target: Target,
    params: serde_json::Value,
) {
    bench.add(Finding { sides: summary.sides, what, values, target, params });
}

/// A Terrace side over its own copy of the data, placed by one round of queries and one epoch.
pub struct Placed {
    /// The side.
    pub child: Child,
    /// Bytes of all segments.
    pub total_bytes: f64,
    /// The report of the epoch.
    pub placed: Sample,
    store: StoreClone,
}

impl Placed {
    /// Starts it with `share` of all bytes in DRAM, the rest on NVM or on SSD.
    pub fn start(bench: &mut Bench, name: &str, scale: f64, share: f64, nvm: bool) -> Result<Self> {
        let store = bench.dataset(scale)?.clone_store()?;
        let policy = PolicyKind::Optimal;
        let spec =
            SideSpec::Terrace { store: store.path(), threads: bench.threads, nvm, policy, form: FormChoice::Plain };
        Self::place(bench, name, store, &spec, share)
    }

    /// Like [`Self::start`] without NVM, but with copies of these forms; the share is of the bytes in the plain form.
    pub fn in_form(bench: &mut Bench, name: &str, scale: f64, share: f64, form: FormChoice) -> Result<Self> {
        let store = bench.dataset(scale)?.clone_store()?;
        let policy = PolicyKind::Optimal;
        let spec = SideSpec::Terrace { store: store.path(), threads: bench.threads, nvm: false, policy, form };
        Self::place(bench, name, store, &spec, share)
    }

    fn place(bench: &mut Bench, name: &str, store: StoreClone, spec: &SideSpec, share: f64) -> Result<Self> {
        let mut child = Child::start(name, spec)?;
        for query in tpch::names() {
            child.ask(&query)?;
        }
        let placed = bench.ask(&mut child, &format!("place {share}"))?;
        Ok(Self { child, total_bytes: placed.value("total_bytes"), placed, store })
    }

    /// Ends the side; its data directory remembers the heat.
    pub fn into_store(self) -> StoreClone {
        self.store
    }
}

/// Fails when a side that should hold everything in memory read from disk.
pub fn check_resident(rounds: &Rounds, side: impl Fn(&(Sample, Sample)) -> &Sample) -> Result<()> {
    let cold: f64 = rounds.iter().flatten().map(|pair| side(pair).value("cold_bytes")).sum();
    if cold == 0.0 {
        return Ok(());
    }
    let message = format!("a side that should hold all in memory read {cold} bytes from disk while it was measured");
    Err(Error::failed(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_query_is_the_one_with_the_smaller_median() {
        let round = |times: [[f64; 3]; 2]| times.map(|sides| sides.map(Sample::new).to_vec()).to_vec();
        // One fast round of the slower peer changes nothing.
        let all = vec![
            round([[1.0, 2.0, 3.0], [1.0, 9.0, 4.0]]),
            round([[1.0, 2.0, 1.0], [1.0, 8.0, 4.0]]),
            round([[1.0, 2.0, 3.0], [1.0, 1.0, 4.0]]),
        ];
        let (rounds, second) = against_faster(all);
        let peers: Vec<Vec<f64>> = rounds.iter().map(|round| round.iter().map(|(_, b)| b.ms).collect()).collect();
        assert_eq!(peers, [[2.0, 4.0], [2.0, 4.0], [2.0, 4.0]]);
        assert_eq!(second, ["q2"]);
    }
}
