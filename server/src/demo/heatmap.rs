//! The accesses of a table as characters: columns down, chunks across, darker with each factor of the hottest.

use terrace_tier_store::table::Table;

const SHADES: [char; 4] = ['░', '▒', '▓', '█'];

/// Accesses of each segment: one row per column of the table.
pub fn counts(table: &Table) -> Vec<(String, Vec<u64>)> {
    let version = table.version();
    let columns = table.schema().fields().iter().enumerate();
    let accesses = |column: usize| {
        let segments = version.chunks.iter().filter_map(|entry| entry.chunk.segments.get(column));
        segments.map(|segment| segment.counters.snapshot().accesses.iter().sum()).collect()
    };
    columns.map(|(index, field)| (field.name().clone(), accesses(index))).collect()
}

/// Draws at most `width` characters across; several chunks in one character show their mean. `.` was never accessed.
pub fn draw(counts: &[(String, Vec<u64>)], width: usize) -> String {
    let chunks = counts.first().map_or(0, |(_, row)| row.len());
    let places = chunks.min(width.max(1));
    let cells: Vec<(&str, Vec<f64>)> = counts
        .iter()
        .map(|(name, row)| {
            let mean = |place: usize| {
                let from = place * chunks / places;
                let to = (place + 1) * chunks / places;
                let slice = row.get(from..to).unwrap_or_default();
                slice.iter().sum::<u64>() as f64 / slice.len().max(1) as f64
            };
            (name.as_str(), (0..places).map(mean).collect())
        })
        .collect();
    let hottest = cells.iter().flat_map(|(_, row)| row).fold(0.0f64, |max, v| max.max(*v));
    let mut out = String::new();
    for (name, row) in &cells {
        let shades: String = row.iter().map(|accesses| shade(*accesses, hottest)).collect();
        out.push_str(&format!("  {name:<16} {shades}\n"));
    }
    let legend = format!(". never   {} few   {} up to {hottest:.0} accesses", SHADES[0], SHADES[3]);
    out.push_str(&format!("  {:<16} {chunks} chunks across, {legend}\n", ""));
    out
}

fn shade(accesses: f64, hottest: f64) -> char {
    if accesses <= 0.0 {
        return '.';
    }
    let share = (1.0 + accesses).ln() / (1.0 + hottest).ln();
    let index = (share * SHADES.len() as f64).ceil() as usize;
    SHADES.get(index.saturating_sub(1)).copied().unwrap_or(SHADES[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_grow_with_the_logarithm_and_never_is_a_dot() {
        let counts = vec![
            ("hot".to_owned(), vec![1000, 1000, 1000, 1000]),
            ("mixed".to_owned(), vec![0, 1, 30, 1000]),
            ("cold".to_owned(), vec![0, 0, 0, 0]),
        ];
        let drawn = draw(&counts, 80);
        let lines: Vec<&str> = drawn.lines().map(|l| l.rsplit(' ').next().unwrap_or_default()).collect();
        assert_eq!(lines.get(..3), Some(["████", ".░▒█", "...."].as_slice()), "{drawn}");
    }

    #[test]
    fn many_chunks_are_drawn_in_the_width_there_is() {
        let drawn = draw(&[("c".to_owned(), (0..1000).collect())], 50);
        let row = drawn.lines().next().and_then(|l| l.rsplit(' ').next()).unwrap_or_default();
        assert_eq!(row.chars().count(), 50);
        assert!(draw(&[("c".to_owned(), Vec::new())], 50).contains("0 chunks"));
    }
}
