//! A heat map as SVG text: names down, positions across, a logarithmic colour for each number, black for none.

use std::fmt::Write as _;

use crate::report::escape;

const WIDTH: f64 = 780.0;
const LEFT: f64 = 170.0;
const ROW: f64 = 9.0;
/// From few to many: violet, red, orange, yellow.
const STOPS: [(f64, f64, f64); 5] =
    [(60.0, 15.0, 110.0), (140.0, 35.0, 105.0), (205.0, 70.0, 65.0), (245.0, 140.0, 15.0), (250.0, 235.0, 110.0)];

/// One line of the map.
#[derive(Debug, Clone)]
pub struct HeatRow {
    /// Its name; the part before a dot begins a group.
    pub name: String,
    /// Its numbers, from left to right.
    pub counts: Vec<f64>,
}

/// Draws all rows, each over the whole width; beside each its mean. `what` names the numbers.
pub fn svg(what: &str, rows: &[HeatRow]) -> String {
    let most = rows.iter().flat_map(|row| row.counts.iter().copied()).fold(0.0, f64::max);
    let height = rows.len() as f64 * ROW + 24.0;
    let room = WIDTH - LEFT - 60.0;
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} by column and chunk\" \
         shape-rendering=\"crispEdges\"><g style=\"font-size:8px\">",
        escape(what)
    );
    for (number, row) in rows.iter().enumerate() {
        let top = number as f64 * ROW;
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" style=\"font-size:8px\">{}</text>",
            LEFT - 5.0,
            top + 7.0,
            escape(&row.name)
        );
        let width = room / row.counts.len().max(1) as f64;
        let mut from = 0;
        while let Some(count) = row.counts.get(from) {
            let colour = colour(*count, most);
            let same = row.counts.iter().skip(from).take_while(|other| self::colour(**other, most) == colour).count();
            let _ = write!(
                text,
                "<rect x=\"{:.2}\" y=\"{top}\" width=\"{:.2}\" height=\"{}\" fill=\"{colour}\"/>",
                LEFT + from as f64 * width,
                same as f64 * width,
                ROW - 1.0
            );
            from += same.max(1);
        }
        let mean = row.counts.iter().sum::<f64>() / row.counts.len().max(1) as f64;
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" style=\"font-size:8px\">{mean:.1}</text>",
            WIDTH - 55.0,
            top + 7.0
        );
    }
    let _ = write!(
        text,
        "</g><text x=\"{LEFT}\" y=\"{:.1}\">black: never; violet to yellow: 1 to {most:.0} {} of a chunk, \
         logarithmic; right: mean</text></svg>",
        height - 6.0,
        escape(what)
    );
    text
}

/// The colour of a count where `most` is the largest.
fn colour(count: f64, most: f64) -> String {
    if count <= 0.0 {
        return "#000".to_owned();
    }
    let part = if most > 1.0 { (count.max(1.0).ln() / most.ln()).clamp(0.0, 1.0) } else { 1.0 };
    let steps = (STOPS.len() - 1) as f64;
    let at = (part * steps).floor().min(steps - 1.0);
    let low = STOPS.get(at as usize);
    let high = STOPS.get(at as usize + 1);
    let (Some(low), Some(high)) = (low, high) else { return "#000".to_owned() };
    let mix = |low: f64, high: f64| (low + (high - low) * (part * steps - at)) as u8;
    format!("#{:02x}{:02x}{:02x}", mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_grow_with_the_logarithm_and_none_is_black() {
        assert_eq!((colour(0.0, 100.0).as_str(), colour(1.0, 100.0).as_str()), ("#000", "#3c0f6e"));
        assert_eq!((colour(100.0, 100.0).as_str(), colour(10.0, 100.0).as_str()), ("#faeb6e", "#cd4641"));
        assert_eq!(colour(1.0, 1.0), "#faeb6e");
    }

    #[test]
    fn neighbours_of_one_colour_are_one_rectangle() {
        let rows = [
            HeatRow { name: "t.a".into(), counts: vec![0.0, 0.0, 5.0, 5.0, 5.0, 0.0] },
            HeatRow { name: "t.b".into(), counts: Vec::new() },
        ];
        let svg = svg("accesses", &rows);
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains(">t.b<") && svg.contains(">2.5<") && !svg.contains("NaN"), "{svg}");
    }
}
