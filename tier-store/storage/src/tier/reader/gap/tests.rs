//! Checks the reads that follow from the costs of devices of several speeds.

#![allow(clippy::unwrap_used)]

use super::*;

/// How fast a device serves requests.
#[derive(Debug, Clone, Copy)]
struct Speed {
    request_us: f64,
    bytes_per_us: f64,
}

/// A disk with an arm.
const DISK: Speed = Speed { request_us: 8_000.0, bytes_per_us: 150.0 };
/// A network disk.
const NETWORK: Speed = Speed { request_us: 270.0, bytes_per_us: 250.0 };
/// A fast device.
const FAST: Speed = Speed { request_us: 2.0, bytes_per_us: 3_000.0 };

/// The cost of a device that needs `request_us` for each of several concurrent reads, and the time of its bytes.
fn cost(request_us: f64, bytes_per_us: f64) -> ReadCost {
    ReadCost { page_us: request_us + 16384.0 / bytes_per_us, bytes_per_us }
}

#[test]
fn slow_requests_make_large_reads() {
    // SATA's bandwidth limits reads of pages.
    let small = [(0.5, 520.0), (0.0, 500.0)].map(|(request_us, bytes_per_us)| Speed { request_us, bytes_per_us });
    for Speed { request_us, bytes_per_us } in [DISK, NETWORK, FAST].into_iter().chain(small) {
        let gap = cost(request_us, bytes_per_us).gap_bytes().unwrap() as f64;
        assert!((gap - request_us * bytes_per_us).abs() <= 2.0, "{request_us} {bytes_per_us}: {gap}");
    }
    let quick = ReadCost { page_us: 5.0, bytes_per_us: 2_000.0 };
    assert_eq!(quick.gap_bytes(), Some(0), "pages as quick as columns");
    for (page_us, bytes_per_us) in [(25.0, 0.0), (-5.0, 100.0), (f64::NAN, 100.0), (f64::INFINITY, 100.0)] {
        assert_eq!(ReadCost { page_us, bytes_per_us }.gap_bytes(), None);
    }
}

#[test]
fn what_is_fixed_stays() {
    let gap = ReadGap::default();
    assert_eq!((gap.bytes(), gap.max_group_bytes()), (16 << 10, 1 << 20));
    gap.set_measured(cost(1e9, 100.0));
    assert_eq!((gap.bytes(), gap.max_group_bytes()), (4 << 20, 8 << 20));
    gap.set_measured(ReadCost { page_us: 0.0, bytes_per_us: 1.0 });
    assert_eq!(gap.bytes(), ReadGap::USUAL);
    gap.fix(0);
    gap.set_measured(cost(1e9, 100.0));
    assert_eq!((gap.bytes(), gap.is_fixed(), gap.max_group_bytes()), (0, true, 1 << 20));
}
