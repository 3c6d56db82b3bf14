//! Membership filters keep chunks from being read, once two reads were in vain.

use arrow::array::cast::AsArray;
use arrow::datatypes::Int64Type;

use super::{Fixture, Rng, lines, metric, run};

/// Chunks of 100 rows, in which most values of `i` are missing; the bounds of each hold nearly all of them.
fn fixture() -> Fixture {
    Fixture::new(&mut Rng(21), 20_000, 100, 50)
}

/// Number of chunks in which `wanted` is true for some row.
async fn chunks_with(fixture: &Fixture, wanted: &str) -> usize {
    let sql = format!("SELECT count(DISTINCT k / 100) FROM t WHERE k < 20000 AND ({wanted})");
    run(&fixture.oracle(), &sql).await.1[0].column(0).as_primitive::<Int64Type>().value(0) as usize
}

#[tokio::test]
async fn the_third_time_only_chunks_with_the_value_are_read() {
    for (wanted, rest, most_in_vain) in [
        ("i = 77", "true", 5),
        ("i IN (77, -78, 401)", "k % 2 = 0", 8),
        ("i = 77 OR i = 78 OR i IS NOT DISTINCT FROM 79", "true", 200),
        ("u = '17 unlike any other, 7117' OR u = '17 unlike any other, 7118'", "d IS NOT NULL", 5),
        ("i = 401", "f >= 2", 5),
    ] {
        let fixture = fixture();
        let with = chunks_with(&fixture, wanted).await;
        let sql = format!("SELECT k, s FROM t WHERE ({wanted}) AND {rest}");
        let expected = lines(&run(&fixture.oracle(), &sql).await.1);
        let mut cold = Vec::new();
        for time in 1..=3 {
            let (plan, found) = run(&fixture.session(1 + time % 2), &sql).await;
            assert_eq!(lines(&found), expected, "time {time} of {sql}");
            let pruned = metric(&plan, "chunks_pruned");
            let denied = metric(&plan, "chunks_pruned_membership");
            assert!(denied <= pruned && (time == 3 || denied == 0), "{denied} of {pruned}, time {time} of {sql}");
            cold.push(metric(&plan, "chunks_cold"));
        }
        assert!(cold[0] > with && cold[0] == cold[1] && cold[2] <= with + most_in_vain, "{sql}: {cold:?}, {with}");
        let filters = fixture.store.filters();
        let counted = (filters.count(), filters.pruned_chunks() as usize);
        assert!(counted.0 >= counted.1 && counted.1 == cold[1] - cold[2], "{counted:?}, {cold:?}");
    }
}

/// The dictionaries of chunks show without a read whether a chunk has a value.
#[tokio::test]
async fn chunks_without_a_value_in_their_dictionary_are_not_read() {
    let mut fixture = fixture();
    fixture.delete(&mut Rng(4), 50);
    for wanted in [
        "s = '17 some longer text 17'",
        "s LIKE '2_ some%' AND s > '28'",
        "s IN ('05 some longer text 5', '9') AND s IS NOT NULL",
        "s <> s",
        "s IS NULL AND k % 1000 = 3",
        "coalesce(s, 'none') = 'none' AND k % 1000 = 3",
    ] {
        let sql = format!("SELECT k, s FROM t WHERE {wanted}");
        let (plan, found) = run(&fixture.session(2), &sql).await;
        assert_eq!(lines(&found), lines(&run(&fixture.oracle(), &sql).await.1), "{sql}");
        let cold = metric(&plan, "chunks_cold");
        let denied = metric(&plan, "chunks_pruned_membership");
        let pruned = metric(&plan, "chunks_pruned") + metric(&plan, "chunks_pruned_dynamic");
        if wanted.starts_with("s = ") {
            let with = chunks_with(&fixture, wanted).await;
            // Rows of some were deleted.
            assert!((with..with + 10).contains(&cold) && denied > 10, "{cold} read, {denied} denied, {with} with it");
        }
        assert_eq!(cold + denied + pruned, 200, "{sql}");
    }
    fixture.assert_idle().await;
}

/// The keys of a small build side, in one hash table and in several.
#[tokio::test]
async fn a_join_with_few_keys_reads_only_chunks_that_have_one() {
    for (partitions, collected) in [(1, true), (3, true), (3, false)] {
        let fixture = fixture();
        let context = fixture.session(partitions);
        if !collected {
            for option in ["hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"] {
                context.sql(&format!("SET datafusion.optimizer.{option} = 0")).await.unwrap();
            }
        }
        // Of the keys 0, -3, 994 and 991 there are two.
        let sql = "SELECT t.k FROM (SELECT CAST(dk % 1000 - 3 AS INT) AS m FROM dim) JOIN t ON t.i = m";
        let with = chunks_with(&fixture, "i IN (0, -3)").await;
        let expected = lines(&run(&fixture.oracle(), sql).await.1);
        let mut cold = Vec::new();
        for time in 1..=3 {
            let (plan, found) = run(&context, sql).await;
            assert_eq!(lines(&found), expected, "time {time}");
            let denied = metric(&plan, "chunks_pruned_membership");
            assert!(
                denied <= metric(&plan, "chunks_pruned_dynamic") && (time == 3) == (denied > 0),
                "{time}: {denied}"
            );
            cold.push(metric(&plan, "chunks_cold"));
        }
        assert!(cold[0] > 150 && cold[2] <= with + 8, "{cold:?}, {with} with a key");
    }
}

#[tokio::test]
async fn deleted_rows_and_the_delta_are_no_matter() {
    let mut fixture = fixture();
    fixture.delete(&mut Rng(22), 3);
    let sql = "SELECT k, i FROM t WHERE i IN (77, 78)";
    let expected = lines(&run(&fixture.oracle(), sql).await.1);
    for _ in 0..4 {
        assert_eq!(lines(&run(&fixture.session(2), sql).await.1), expected);
    }
    assert!(fixture.store.filters().count() > 100);
}

#[tokio::test]
async fn nothing_is_built_without_a_budget_nor_for_what_is_in_memory() {
    for resident in [false, true] {
        let fixture = fixture();
        match resident {
            true => fixture.place_all(|_, _| 0),
            false => fixture.store.filters().account().set_limit_bytes(0),
        }
        for _ in 0..4 {
            let (plan, _) = run(&fixture.session(2), "SELECT k, s FROM t WHERE i = 77").await;
            assert_eq!((fixture.store.filters().count(), metric(&plan, "chunks_pruned_membership")), (0, 0));
        }
    }
}
