//! Number formatting for the sentences of plans and refusals.

/// Formats a number with two or three significant digits.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.1}"),
        v if v >= 0.001 => format!("{value:.3}"),
        _ => "less than 0.001".into(),
    }
}

/// Formats microseconds in the unit that fits: us, ms or s.
pub(super) fn time(us: f64) -> String {
    match us.abs() {
        v if v >= 1e6 => format!("{} s", figure(us / 1e6)),
        v if v >= 1e3 => format!("{} ms", figure(us / 1e3)),
        _ => format!("{} us", figure(us)),
    }
}

/// Formats bytes in the unit that fits: bytes, KiB, MiB or GiB.
pub(super) fn bytes(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        b if b >= 1 << 30 => format!("{:.1} GiB", value / f64::from(1 << 30)),
        b if b >= 1 << 20 => format!("{:.1} MiB", value / f64::from(1 << 20)),
        b if b >= 1 << 10 => format!("{:.1} KiB", value / f64::from(1 << 10)),
        b => format!("{b} bytes"),
    }
}

/// The reason of a move from a tier that holds more than its budget.
pub(super) fn over_budget(tier: &str, over: u64, budget: u64) -> String {
    format!("{tier} is {} over its budget of {}", bytes(over), bytes(budget))
}
