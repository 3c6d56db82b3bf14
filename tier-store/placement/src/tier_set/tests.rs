//! Rows of counters and positions of new tiers.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::TierCost;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn counters_stay_with_their_tier_and_a_row_is_reused_when_there_is_no_other() {
    let mut rows = CounterRows::default();
    let start = names(&["dram", "nvm", "ssd"]);
    assert_eq!(rows.arrange(start.clone(), &names(&["dram", "cxl", "nvm", "ssd"])), (vec![0, 3, 1, 2], None));
    assert_eq!(rows.arrange(start.clone(), &names(&["dram", "cxl", "ssd"])), (vec![0, 3, 2], None));
    assert_eq!(rows.arrange(start.clone(), &names(&["dram", "nvm", "cxl", "ssd"])), (vec![0, 1, 3, 2], None));
    for n in 4..MAX_TIERS {
        let (list, reset) = rows.arrange(start.clone(), &names(&["dram", &format!("t{n}"), "ssd"]));
        assert_eq!((list, reset), (vec![0, n as u8, 2], None));
    }
    // All rows are taken: the first one of a tier that is gone is reset.
    assert_eq!(rows.arrange(start, &names(&["dram", "last", "t5", "ssd"])), (vec![0, 1, 5, 2], Some(1)));
}

#[test]
fn a_new_tier_stands_before_the_first_that_is_clearly_slower() {
    let profile = |name: &str, kind: TierKind, bytes_per_us: f64, measured: bool| {
        let given = TierProfile::given(name, kind, "", TierCost::new(0.1, 0.1, bytes_per_us, Some(64)));
        TierProfile { measured, ..given }
    };
    let known = [
        profile("dram", TierKind::Dram, 10_000.0, true),
        profile("nvm", TierKind::Nvm, 3_000.0, true),
        profile("ssd", TierKind::Ssd, 1_000.0, true),
    ];
    for (bytes_per_us, measured, at) in [
        (50_000.0, true, 1),
        (5_000.0, true, 1),
        (3_300.0, true, 2),
        (2_000.0, true, 2),
        (500.0, true, 2),
        (50_000.0, false, 2),
    ] {
        let new = profile("new", TierKind::Nvm, bytes_per_us, measured);
        assert_eq!(position_for(&new, &known), at, "{bytes_per_us} bytes per microsecond, measured: {measured}");
    }
    assert_eq!(position_for(&profile("new", TierKind::Nvm, 50_000.0, true), &known[2..]), 0);
}

#[test]
fn names_are_plain() {
    for name in ["nvm2", "cxl_a", "x"] {
        check_name(name).unwrap();
    }
    for name in ["", "2nvm", "NVM", "a-b", "a b", "é", "a23456789012345678901234567890123"] {
        assert!(check_name(name).unwrap_err().to_string().contains("cannot be the name"), "{name}");
    }
}
