//! Bounds that move with the clock.

use arrow::datatypes::DataType;

use crate::domain::{Cut, Domain};
use crate::point::{Point, ticks};

const DAY_US: u64 = 86_400_000_000;
/// Fewest different bounds for which a window is recognised.
const FEWEST_BOUNDS: usize = 3;
/// Slopes of bounds over time that count as following the clock.
const SLOPES: std::ops::RangeInclusive<f64> = 0.8..=1.25;
/// Least share of the variance of bounds that the slope has to explain (R²).
const EXPLAINED: f64 = 0.9;

/// The lower end of a set of times, in microseconds since 1970.
pub(super) fn lower_us(domain: &Domain, data_type: &DataType) -> Option<i128> {
    let (Cut::At(Point::Number(value), _), _) = domain.ends()? else { return None };
    match data_type {
        DataType::Date32 => value.checked_mul(DAY_US.into()),
        DataType::Timestamp(unit, _) => Some(value.checked_mul(1_000_000)?.div_euclid(ticks(unit))),
        _ => None,
    }
}

/// True for bounds that advance as the clock does; `seen` are times, each with the bound of a scan at that time.
pub(super) fn moves(seen: &[(u64, i128)]) -> bool {
    let mut bounds: Vec<i128> = seen.iter().map(|(_, bound)| *bound).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let (Some(first), true) = (seen.first(), bounds.len() >= FEWEST_BOUNDS) else { return false };
    let points = seen.iter().map(|(at, bound)| ((*at as f64 - first.0 as f64), (bound - first.1) as f64));
    let points: Vec<(f64, f64)> = points.collect();
    let n = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / n;
    let mean_x = mean(|p| p.0);
    let mean_y = mean(|p| p.1);
    let sum = |value: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| value(x - mean_x, y - mean_y)).sum::<f64>();
    let xx = sum(&|x, _| x * x);
    let xy = sum(&|x, y| x * y);
    let yy = sum(&|_, y| y * y);
    xx > 0.0 && yy > 0.0 && SLOPES.contains(&(xy / xx)) && xy * xy / (xx * yy) >= EXPLAINED
}

/// Rounds an interval of `us` microseconds up to a unit that people use; returns its length in microseconds and its
/// text.
pub(super) fn interval(us: u64) -> (u64, String) {
    const UNITS: [(u64, &str); 4] =
        [(DAY_US, "days"), (3_600_000_000, "hours"), (60_000_000, "minutes"), (1_000_000, "seconds")];
    // No more than a tenth too long.
    let fits = |unit: &&(u64, &str)| us.div_ceil(unit.0) * unit.0 <= us + us / 10;
    let (unit, word) = UNITS.iter().find(fits).copied().unwrap_or((1_000_000, "seconds"));
    let count = us.div_ceil(unit);
    (count * unit, format!("{count} {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_follow_the_clock_are_told_from_others() {
        let hours =
            |bound: fn(u64) -> i128| (0..50).map(move |hour| (hour * 3_600_000_000, bound(hour))).collect::<Vec<_>>();
        assert!(moves(&hours(|hour| i128::from(hour) * 3_600_000_000 - 7 * i128::from(DAY_US))));
        // Days are stairs.
        assert!(moves(
            &(0..200).map(|hour| (hour * 3_600_000_000, i128::from(hour / 24 * DAY_US))).collect::<Vec<_>>()
        ));
        assert!(!moves(&hours(|_| 5)));
        assert!(!moves(&hours(|hour| -i128::from(hour) * 3_600_000_000)));
        assert!(!moves(&hours(|hour| i128::from(hour * 7_919 % 50) * 3_600_000_000)));
        assert!(!moves(&hours(|hour| i128::from(hour / 30) * 3_600_000_000)));
        assert!(!moves(&[]));
    }

    #[test]
    fn intervals_are_rounded_up_to_what_people_say() {
        let text = |us: u64| interval(us).1;
        assert_eq!(
            [text(30 * DAY_US), text(30 * DAY_US + 5), text(3_600_000_001)],
            ["30 days", "31 days", "61 minutes"]
        );
        assert_eq!(interval(1), (1_000_000, "1 seconds".to_owned()));
        assert_eq!(interval(DAY_US + DAY_US / 2), (DAY_US / 24 * 36, "36 hours".to_owned()));
    }
}
