//! The few statistics that rows need.

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (Some(upper), 0) => (upper + middle.checked_sub(1).and_then(|i| sorted.get(i)).unwrap_or(upper)) / 2.0,
        (Some(value), _) => *value,
        (None, _) => 0.0,
    }
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The smallest value that at least `share` of all values do not exceed; 0 of nothing.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// (largest - smallest) / median: 0.1 means that all runs lie within a tenth.
pub fn spread(values: &[f64]) -> f64 {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let middle = median(values);
    if values.len() < 2 || middle == 0.0 { 0.0 } else { (high - low) / middle.abs() }
}

/// The geometric mean of positive values; 0 of nothing.
pub fn geomean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    (values.iter().map(|v| v.max(f64::MIN_POSITIVE).ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_few_values() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0]), median(&[])), (2.0, 2.5, 0.0));
        assert_eq!((spread(&[9.0, 10.0, 11.0]), spread(&[5.0])), (0.2, 0.0));
        assert_eq!((mean(&[1.0, 2.0, 6.0]), mean(&[])), (3.0, 0.0));
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(&hundred, 0.95), percentile(&hundred, 1.0), percentile(&[], 0.95)), (95.0, 100.0, 0.0));
        assert_eq!((percentile(&[7.0, 5.0], 0.95), percentile(&[7.0, 5.0], 0.5)), (7.0, 5.0));
        assert!((geomean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
