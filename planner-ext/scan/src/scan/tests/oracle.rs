//! Random tables, formats of files, placements, deletions and queries give the same rows as `MemTable`; also when they run a third time,
//! after the first two runs built membership filters, and while columns that are read come into memory.

use std::sync::Arc;

use proptest::prelude::*;

use terrace_test_support::depth::by_depth;
use terrace_tier_store::placement::MergeKind;
use terrace_tier_store::table::FileFormat;

use super::{Fixture, Rng, lines, merge_at_once, run};

fn predicate(rng: &mut Rng, rows: u64) -> String {
    let atom = |rng: &mut Rng| match rng.below(25) {
        0 => format!("k < {}", rng.below(rows)),
        1 => format!("k BETWEEN {0} AND {0} + {1}", rng.below(rows), rng.below(500)),
        2 => format!("i > {}", rng.below(1000) as i64 - 500),
        3 => format!("i IN ({}, {}, {})", rng.below(9), rng.below(500), -(rng.below(500) as i64)),
        4 => format!("f >= {}", rng.below(50)),
        5 => "f = 'NaN'::double".to_owned(),
        6 => format!("s LIKE '%{}%'", rng.below(50)),
        7 => format!("s < '{:02}'", rng.below(50)),
        8 => "i IS NULL".to_owned(),
        9 => "b".to_owned(),
        10 => format!("d < DATE '1970-01-01' + INTERVAL '{}' DAY", rng.below(rows / 100 + 30)),
        11 => format!("i <> 0 AND 1000 / i > {}", rng.below(20)),
        12 => format!("i = {}", rng.below(1000) as i64 - 500),
        13 => format!("s = '{0:02} some longer text {0}'", rng.below(60)),
        14 => format!("d IN (DATE '1970-01-05', DATE '1970-01-01' + INTERVAL '{}' DAY)", rng.below(rows / 100 + 30)),
        15 => format!("u LIKE '%{}%'", rng.below(rows)),
        16 => "s IS NULL".to_owned(),
        17 => format!("coalesce(s, '{:02}') LIKE '1%'", rng.below(60)),
        18 => format!("s <> '{0:02} some longer text {0}' OR s IS NULL", rng.below(60)),
        19 => format!("i NOT IN ({}, {}, 7, -8, NULL)", rng.below(500), rng.below(9)),
        20 => format!("i IN ({}, {}, 40, 41, 42, 99999, NULL) OR i IS NULL", rng.below(500), rng.below(9)),
        21 => format!("u = '{:02} unlike any other, {}' OR u IN ('', 'x', 'y', 'z')", rng.below(50), rng.below(rows)),
        22 => format!("k IN ({0}, {0} + 1, {1}, 2, 3, 5, 7, 11)", rng.below(rows), rng.below(rows)),
        23 => format!("u IS NOT NULL AND (d IS NULL OR i = {})", rng.below(500)),
        _ => format!("k = {}", rng.below(rows)),
    };
    // A guard protects the conditions beside it; below an OR or NOT that depends on the rows of a batch.
    let plain = |rng: &mut Rng| loop {
        let atom = atom(rng);
        if !atom.contains('/') {
            break atom;
        }
    };
    match rng.below(5) {
        0 => atom(rng),
        1 => format!("({}) OR ({})", plain(rng), plain(rng)),
        2 => format!("NOT ({})", plain(rng)),
        3 => format!("({}) AND ({})", atom(rng), atom(rng)),
        _ => format!("({}) AND ({}) AND ({})", atom(rng), atom(rng), atom(rng)),
    }
}

fn query(rng: &mut Rng, rows: u64) -> String {
    let filter = predicate(rng, rows);
    match rng.below(13) {
        0 => format!("SELECT * FROM t WHERE {filter}"),
        1 => format!("SELECT s, k, u FROM t WHERE {filter}"),
        2 => format!("SELECT count(*) FROM t WHERE {filter}"),
        3 => "SELECT count(*), count(i), min(k), max(k), min(f), max(s), max(d), min(b) FROM t".to_owned(),
        4 => format!("SELECT count(DISTINCT i), count(DISTINCT s), sum(k), min(i) FROM t WHERE {filter}"),
        5 => format!("SELECT s, count(*), sum(i) FROM t WHERE {filter} GROUP BY s"),
        6 => format!("SELECT k, s FROM t WHERE {filter} ORDER BY k DESC LIMIT {}", 1 + rng.below(20)),
        7 => format!("SELECT t.k, t.i FROM t JOIN dim ON t.k = dim.dk WHERE {filter}"),
        8 => format!(
            "SELECT t.k, t.s FROM t JOIN (SELECT CAST(dk % 1000 - 3 AS INT) AS m FROM dim) ON i = m WHERE {filter}"
        ),
        10 => format!("SELECT * FROM t WHERE {filter} ORDER BY k % 997, k DESC LIMIT {}", 1 + rng.below(30)),
        11 => format!(
            "SELECT u, k + 1 AS next, s AS a, s AS b, i FROM t ORDER BY f DESC NULLS LAST, k LIMIT {} OFFSET {}",
            1 + rng.below(5),
            rng.below(4)
        ),
        9 => format!("SELECT k, i FROM t WHERE i = {} AND ({filter})", rng.below(1000) as i64 - 500),
        _ => format!(
            "SELECT a.k, b.s FROM t a JOIN t b ON a.k = b.i WHERE a.i > 400 AND ({})",
            filter
                .replace("k ", "a.k ")
                .replace("i ", "a.i ")
                .replace("s ", "a.s ")
                .replace("(s,", "(a.s,")
                .replace("u ", "a.u ")
                .replace("f ", "a.f ")
                .replace("d ", "a.d ")
        ),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(8, 24), ..ProptestConfig::default() })]

    #[test]
    fn a_scan_gives_what_memory_gives(seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rows = rng.below(30_000) as usize + 1;
        let delta = rng.below(3) as usize * 700;
        let chunk_rows = [300, 1000, 8192, 9000, 20_000][rng.below(5) as usize];
        let merge = MergeKind::ALL[rng.below(3) as usize];
        let file_format = FileFormat::ALL[rng.below(2) as usize];
        let mut fixture = Fixture::with(&mut rng, rows, chunk_rows, delta, |options| {
            merge_at_once(options, merge);
            options.file_format = file_format;
        });
        let mixed = rng.below(4);
        fixture.place_all(|_, _| if mixed == 3 { rng.below(3) as usize } else { mixed as usize });
        if merge != MergeKind::Never {
            // New copies need the room of existing ones.
            let dram = Arc::clone(fixture.store.memory_tiers()[0].account());
            dram.set_limit_bytes(dram.used_bytes() * 3 / 4 + (256 << 10));
        }
        if rng.below(2) == 0 {
            fixture.delete(&mut rng, 2 + seed % 50);
        }
        let context = fixture.session(1 + seed as usize % 4);
        let oracle = fixture.oracle();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        for _ in 0..12 {
            let sql = query(&mut rng, (rows + delta) as u64);
            // A division by zero is an error in both sessions or in neither.
            let expected = runtime.block_on(async { oracle.sql(&sql).await?.collect().await });
            let Ok(expected) = expected else { continue };
            for time in 1..=3 {
                let (_, found) = runtime.block_on(run(&context, &sql));
                prop_assert_eq!(lines(&found), lines(&expected), "time {} of {}", time, sql);
            }
        }
        runtime.block_on(fixture.assert_idle());
    }
}
