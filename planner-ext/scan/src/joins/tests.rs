//! The order of joins changes no answer, and is the cheapest by its own estimates.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, table_scan};
use datafusion::prelude::SessionContext;
use proptest::prelude::*;
use terrace_test_support::depth::by_depth;

use super::enumerate::{Tree, cheapest, cost};
use super::estimate::{Estimate, Key, Range, Values, join};
use super::graph::{Graph, Relations};
use crate::scan::tests::{Fixture, Rng, lines, run};

const COLUMNS: [&str; 3] = ["a", "b", "c"];

/// Relations `r0 (a, b, c)`, ..
fn relations(count: usize) -> Vec<LogicalPlan> {
    let schema = Schema::new(COLUMNS.map(|name| Field::new(name, DataType::Int64, true)).to_vec());
    (0..count).map(|n| table_scan(Some(format!("r{n}")), &schema, None).unwrap().build().unwrap()).collect()
}

fn random_estimates(rng: &mut Rng, count: usize) -> Vec<Estimate> {
    (0..count)
        .map(|_| {
            let base_rows = 10_f64.powi(rng.below(7) as i32 + 1);
            let rows = base_rows / (1 + rng.below(100)) as f64;
            let columns = (0..3).map(|_| {
                let low = rng.below(100) as f64;
                let range = (rng.below(3) > 0).then(|| Range { low, high: low + rng.below(200) as f64 });
                Values { distinct: (base_rows / (1 + rng.below(50)) as f64).max(1.0), range }
            });
            Estimate { rows: rows.max(1.0), base_rows, columns: columns.collect() }
        })
        .collect()
}

/// Relations of random sizes, joined along a random tree and some more edges.
fn random_graph(rng: &mut Rng, count: usize) -> Graph {
    let column =
        |rng: &mut Rng, n: usize| Expr::Column(Column::new(Some(format!("r{n}")), COLUMNS[rng.below(3) as usize]));
    let mut conditions = Vec::new();
    for n in 1..count {
        let other = rng.below(n as u64) as usize;
        conditions.push(column(rng, n).eq(column(rng, other)));
    }
    for _ in 0..rng.below(4) {
        let a = rng.below(count as u64) as usize;
        let b = rng.below(count as u64) as usize;
        if a != b {
            let a = column(rng, a);
            let b = column(rng, b);
            conditions.push(if rng.below(3) == 0 { a.lt(b) } else { a.eq(b) });
        }
    }
    Graph::new(&relations(count), random_estimates(rng, count), conditions).unwrap()
}

/// All trees over `numbers` without cross products.
fn all_trees(graph: &Graph, numbers: &[usize]) -> Vec<Tree> {
    if let [one] = numbers {
        return vec![Tree::Relation(*one)];
    }
    let set = |numbers: &[usize]| numbers.iter().fold(Relations::default(), |s, n| s.with(Relations::one(*n)));
    let mut trees = Vec::new();
    for mask in 1..(1_u32 << numbers.len()) - 1 {
        let (left, right): (Vec<usize>, Vec<usize>) = numbers.iter().partition(|n| {
            let at = numbers.iter().position(|m| m == *n).unwrap();
            mask >> at & 1 == 1
        });
        if left[0] != numbers[0] || !graph.connected(set(&left), set(&right)) {
            continue;
        }
        for l in all_trees(graph, &left) {
            trees.extend(all_trees(graph, &right).into_iter().map(|r| Tree::join(l.clone(), r)));
        }
    }
    trees
}

fn joined(tree: &Tree) -> Vec<usize> {
    match tree {
        Tree::Relation(number) => vec![*number],
        Tree::Join(left, right) => [joined(left), joined(right)].concat(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_tree_is_cheaper(seed in any::<u64>(), count in 3_usize..6) {
        let graph = random_graph(&mut Rng(seed), count);
        let (tree, found) = cheapest(&graph);
        let numbers: Vec<usize> = (0..count).collect();
        let least = all_trees(&graph, &numbers).iter().map(|t| cost(&graph, t)).fold(f64::INFINITY, f64::min);
        prop_assert!((found - least).abs() <= 1e-9 * least, "{found} instead of {least}");
        prop_assert!((cost(&graph, &tree) - found).abs() <= 1e-9 * found);
    }

    #[test]
    fn many_relations_are_all_joined_once(seed in any::<u64>(), count in 11_usize..30) {
        let graph = random_graph(&mut Rng(seed), count);
        let mut numbers = joined(&cheapest(&graph).0);
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }
}

/// The order and the build side are based on the same estimates.
#[test]
fn a_join_is_estimated_alike_before_and_after_the_order_is_chosen() {
    for seed in 0..500 {
        let mut rng = Rng(seed);
        let estimates = random_estimates(&mut rng, 2);
        let equal = &COLUMNS[..1 + rng.below(3) as usize];
        let column = |relation: &str, name: &str| Expr::Column(Column::new(Some(relation), name));
        let conditions = equal.iter().map(|name| column("r0", name).eq(column("r1", name))).collect();
        let graph = Graph::new(&relations(2), estimates.clone(), conditions).unwrap();
        let key = |relation: usize, at: usize| Key { values: estimates[relation].columns[at], column: Some(at) };
        let on: Vec<(Key, Key)> = (0..equal.len()).map(|at| (key(0, at), key(1, at))).collect();
        let rows = join(&estimates[0], &estimates[1], &on, JoinType::Inner, false).rows;
        let whole = graph.rows(Relations::one(0).with(Relations::one(1)));
        assert!((rows - whole).abs() <= 1e-9 * whole, "seed {seed}: {rows} and {whole}");
    }
}

#[test]
fn values_out_of_the_other_sides_range_have_no_partner() {
    let relation = |rows, base_rows, distinct, low, high| {
        let columns = vec![Values { distinct, range: Some(Range { low, high }) }];
        Estimate { rows, base_rows, columns }
    };
    let rows = |left: &Estimate, right: &Estimate| {
        let key = |of: &Estimate| Key { values: of.columns[0], column: Some(0) };
        let joined = join(left, right, &[(key(left), key(right))], JoinType::Inner, false);
        assert_eq!(joined.columns[0], joined.columns[1]);
        joined.rows.round()
    };
    let days = relation(73_000.0, 73_000.0, 73_000.0, 0.0, 72_999.0);
    let sales = relation(1e6, 1e6, 1_800.0, 36_000.0, 37_824.0);
    assert_eq!(rows(&days, &sales), 1e6);
    // One of the five years with sales selects a fifth of the sales, not its share of the two centuries of the
    // calendar.
    assert_eq!(rows(&Estimate { rows: 365.0, ..days }, &sales), 2e5);
    let later = relation(73_000.0, 73_000.0, 73_000.0, 40_000.0, 112_999.0);
    assert_eq!(rows(&later, &sales), 1.0);
}

/// A query over several copies of `t`: a random tree of keys and references, more conditions of all kinds.
fn random_query(rng: &mut Rng, rows: u64) -> String {
    let count = 3 + rng.below(4) as usize;
    let mut conditions = Vec::new();
    for n in 1..count {
        let other = rng.below(n as u64);
        // At least one side is unique, so that results stay small.
        conditions.push(match rng.below(6) {
            0 => format!("x{n}.k = x{other}.k"),
            1 => format!("x{n}.k = x{other}.i"),
            2 => format!("x{n}.k = x{other}.k + {}", rng.below(3)),
            3 => format!("x{n}.k = x{other}.k AND x{n}.i = x{other}.i"),
            4 => format!("x{n}.k = x{other}.k AND x{n}.s <= x{other}.s"),
            _ => format!("x{n}.i = x{other}.k"),
        });
    }
    for n in 0..count {
        match rng.below(5) {
            0 => conditions.push(format!("x{n}.k < {}", rng.below(rows))),
            1 => conditions.push(format!("x{n}.i > {}", rng.below(900) as i64 - 450)),
            2 => conditions.push(format!("x{n}.s LIKE '%{}%'", rng.below(50))),
            3 if n > 1 => conditions.push(format!("x{n}.k = x{}.k", n - 2)),
            _ => {}
        }
    }
    if rng.below(4) == 0 {
        conditions.push("x0.k % 3 <= x1.k + x2.k".to_owned());
    }
    let tables: Vec<String> = (0..count).map(|n| format!("t x{n}")).collect();
    let tables = tables.join(", ");
    let conditions = conditions.join(" AND ");
    let last = count - 1;
    match rng.below(3) {
        0 => format!("SELECT count(*), sum(x0.k), min(x1.s), max(x{last}.d) FROM {tables} WHERE {conditions}"),
        1 => format!("SELECT x{last}.i, count(*), sum(x1.k) FROM {tables} WHERE {conditions} GROUP BY x{last}.i"),
        _ => format!("SELECT * FROM {tables} WHERE {conditions}"),
    }
}

proptest! {
    // The copies of one table have columns of the same names (see scan/pushdown.rs).
    #![proptest_config(ProptestConfig { cases: by_depth(4, 12), ..ProptestConfig::default() })]

    #[test]
    fn answers_do_not_depend_on_the_order(seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rows = 200 + rng.below(2000);
        let fixture = Fixture::new(&mut rng, rows as usize, 512, seed as usize % 2 * 100);
        let context = fixture.session(1 + seed as usize % 3);
        let oracle = fixture.oracle();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        for _ in 0..8 {
            let sql = random_query(&mut rng, rows);
            let expected = runtime.block_on(async { oracle.sql(&sql).await.unwrap().collect().await.unwrap() });
            let (_, found) = runtime.block_on(run(&context, &sql));
            prop_assert_eq!(lines(&found), lines(&expected), "{}", sql);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_one_name_are_told_apart() {
    let mut rng = Rng(11);
    let fixture = Fixture::new(&mut rng, 6000, 512, 0);
    let context = fixture.session(2);
    let oracle = fixture.oracle();
    for sql in [
        // A run-time filter on the key of a semi join, whose other side has another column of that name.
        "SELECT d.dk, s.k, s.i FROM dim d JOIN (SELECT k, i FROM t e WHERE EXISTS \
         (SELECT 1 FROM t m WHERE m.i = e.k AND m.k > e.i)) s ON d.dk = s.k",
        // The second input of a union has the names the other way round.
        "SELECT * FROM (SELECT k, m FROM (SELECT k, (k * 7919) % 6007 + 50000 AS m FROM t) UNION ALL \
         SELECT m, k FROM (SELECT k, (k * 7919) % 6007 - 50000 AS m FROM t)) ORDER BY k LIMIT 7",
        "SELECT x.k, y.k FROM t x JOIN t y ON x.k = y.i ORDER BY y.k LIMIT 9",
        // Projections that hide a second `b.k`.
        "SELECT count(*) FROM (SELECT a.k FROM t a, t b WHERE a.k < 50 AND b.k < 3) \
         JOIN (SELECT c.i FROM t c, t b WHERE b.k < 3) ON k = i",
        // Rewriting one aggregate must leave the other as it was.
        "SELECT array_agg(k ORDER BY k DESC), sum(CAST(i AS DECIMAL(15,2)) * CAST(i AS DECIMAL(15,2))) \
         FROM (SELECT k, i FROM t ORDER BY k LIMIT 100)",
    ] {
        let expected = oracle.sql(sql).await.unwrap().collect().await.unwrap();
        let (_, found) = run(&context, sql).await;
        assert_eq!(lines(&found), lines(&expected), "{sql}");
        assert!(!lines(&expected).is_empty(), "{sql}");
    }
}

/// Tables in the order in which they are scanned.
async fn order(context: &SessionContext, sql: &str) -> String {
    fn walk(plan: &LogicalPlan, found: &mut Vec<String>) {
        if let LogicalPlan::SubqueryAlias(alias) = plan {
            found.push(alias.alias.to_string());
        }
        plan.inputs().iter().for_each(|input| walk(input, found));
    }
    let plan = context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
    let mut found = Vec::new();
    walk(&plan, &mut found);
    found.join(" ")
}

#[tokio::test]
async fn a_selective_filter_is_joined_first_and_the_option_keeps_the_written_order() {
    let fixture = Fixture::new(&mut Rng(5), 20_000, 4096, 0);
    let context = fixture.session(2);
    let sql = "SELECT count(*) FROM t a, t b, t c WHERE a.k = b.k AND b.i = c.k AND c.k < 5";
    // `a.k = b.k` keeps all rows; `b.i = c.k` few.
    assert_eq!(order(&context, sql).await, "c b a");
    context.sql("SET terrace.join_order = false").await.unwrap().collect().await.unwrap();
    assert_eq!(order(&context, sql).await, "a b c");
}

#[test]
fn unknown_sizes_and_outer_joins_keep_their_order() {
    let schema = Schema::new(vec![Field::new("a", DataType::Int64, true)]);
    let scan = |n: usize| table_scan(Some(format!("r{n}")), &schema, None).unwrap();
    let keys = |n: usize, m: usize| (vec![format!("r{n}.a")], vec![format!("r{m}.a")]);
    let join = |left: LogicalPlanBuilder, n: usize, m: usize| {
        left.join(scan(m).build().unwrap(), JoinType::Inner, keys(n, m), None).unwrap()
    };
    let plan = join(join(join(scan(0), 0, 1), 1, 2), 2, 3).build().unwrap();
    let ordered = super::order_below(plan.clone()).unwrap();
    assert!(!ordered.transformed);
    assert_eq!(ordered.data, plan);
}
