//! Lines over two axes as SVG text: measured values as full lines or as single points, values that papers report as hollow
//! points with broken lines between them.

use std::fmt::Write as _;

use crate::report::escape;

const WIDTH: f64 = 780.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
const COLOURS: [&str; 8] = ["#2f7d4f", "#3b75af", "#b4552d", "#8a5fb0", "#b8901f", "#2f9c9c", "#b04a78", "#808080"];

/// An axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// Powers of ten at equal distances; values must be above 0.
    pub logarithmic: bool,
}

impl Axis {
    /// An axis with equal steps.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), logarithmic: false }
    }

    /// An axis of powers of ten.
    pub fn logarithmic(label: &str) -> Self {
        Self { label: label.to_owned(), logarithmic: true }
    }

    fn place(&self, value: f64) -> f64 {
        if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    /// The range of the values on the axis, with a margin.
    fn range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let places = values.filter(|value| value.is_finite()).map(|value| self.place(value));
        let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), at| (l.min(at), h.max(at)));
        if low > high {
            return (0.0, 1.0);
        }
        if self.logarithmic {
            return (low.floor(), high.ceil().max(low.floor() + 1.0));
        }
        let margin = ((high - low) * 0.04).max(high.abs() * 1e-3).max(1e-9);
        (low - margin, high + margin)
    }

    /// Positions of the marks between `low` and `high`, with their labels.
    fn ticks(&self, low: f64, high: f64) -> Vec<(f64, String)> {
        if self.logarithmic {
            let powers = (low.round() as i32)..=(high.round() as i32);
            return powers.map(|power| (f64::from(power), short(10_f64.powi(power)))).collect();
        }
        let rough = (high - low) / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(power);
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        (first..=last).map(|number| number as f64 * step).map(|at| (at, short(at))).collect()
    }
}

/// How the points of a series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Measured: points, and a line through them.
    Line,
    /// Measured one by one: small points without a line.
    Scatter,
    /// Reported by a paper: hollow points, and a broken line between them.
    Reported,
}

/// One line, or some points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Its points; those of a line ascend.
    pub points: Vec<(f64, f64)>,
    style: Style,
}

impl Series {
    /// A series that was measured.
    pub fn measured(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Line }
    }

    /// Measurements without an order, each a point of its own.
    pub fn scattered(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Scatter }
    }

    /// A series that a paper reports.
    pub fn reported(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, style: Style::Reported }
    }
}

/// Draws all series.
pub fn svg(x: &Axis, y: &Axis, series: &[Series]) -> String {
    let values = |of: fn(&(f64, f64)) -> f64| series.iter().flat_map(move |s| s.points.iter().map(of));
    let across = x.range(values(|p| p.0));
    let up = y.range(values(|p| p.1));
    let part = |at: f64, (low, high): (f64, f64)| (at - low) / (high - low);
    let to_x = |place: f64| LEFT + part(place, across) * (WIDTH - LEFT - RIGHT);
    let to_y = |place: f64| HEIGHT - BOTTOM - part(place, up) * (HEIGHT - TOP - BOTTOM);
    let right = WIDTH - RIGHT;
    let bottom = HEIGHT - BOTTOM;
    let mut text = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(&y.label));
    for (place, label) in x.ticks(across.0, across.1) {
        let at = to_x(place);
        let _ = write!(
            text,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"var(--line)\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }
    for (place, label) in y.ticks(up.0, up.1) {
        let at = to_y(place);
        let _ = write!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"var(--line)\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = write!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 8.0,
        escape(&x.label),
        f64::midpoint(TOP, bottom),
        escape(&y.label)
    );
    for (number, (series, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let points: Vec<_> = series.points.iter().filter(|(a, b)| a.is_finite() && b.is_finite()).collect();
        let points: Vec<_> = points.iter().map(|(a, b)| (to_x(x.place(*a)), to_y(y.place(*b)))).collect();
        let has_line = match series.style {
            Style::Line => true,
            Style::Scatter => false,
            Style::Reported => points.len() > 1,
        };
        if has_line {
            let line: Vec<String> = points.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
            let line = line.join(" ");
            let width = if number == 0 { 3 } else { 2 };
            let dash = if series.style == Style::Reported { " stroke-dasharray=\"4 4\"" } else { "" };
            let _ = write!(
                text,
                "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash}/>"
            );
        }
        let (radius, fill) = match series.style {
            Style::Line => (3.0, *colour),
            Style::Scatter => (1.5, *colour),
            Style::Reported => (5.0, "none"),
        };
        let mut dot = |a: f64, b: f64| {
            let _ = write!(
                text,
                "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
        };
        points.iter().for_each(|(a, b)| dot(*a, *b));
        let row = TOP + 8.0 + number as f64 * 18.0;
        dot(right + 14.0, row);
        let at = right + 26.0;
        let row = row + 4.0;
        let _ = write!(text, "<text x=\"{at}\" y=\"{row}\">{}</text>", escape(&series.name));
    }
    text + "</svg>"
}

/// The number with as few digits as distinguish the marks.
fn short(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_points_and_names_are_drawn_within_the_picture() {
        let measured = Series::measured("ours <1>", vec![(0.0, 1.0), (50.0, 1.5), (100.0, 2.0)]);
        let reported = Series::reported("a paper", vec![(26.0, 1.52)]);
        let line = Series::reported("another", vec![(0.0, 1.42), (10.0, 1.116)]);
        let svg = svg(&Axis::linear("% in DRAM"), &Axis::linear("time"), &[measured, reported, line]);
        // A dot per point, and one per name; a single point has no line.
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 3 + 1 + 2 + 3));
        assert_eq!(svg.matches("stroke-dasharray").count(), 1);
        assert!(svg.contains("ours &lt;1&gt;") && !svg.contains("NaN"), "{svg}");
        assert!(svg.contains(">0<") && svg.contains(">100<") && svg.contains(">1.4<"), "{svg}");
    }

    #[test]
    fn scattered_points_have_no_line() {
        let points = Series::scattered("segments", vec![(3.0, 1.0), (1.0, 2.0), (2.0, 0.5)]);
        let svg = svg(&Axis::logarithmic("bytes"), &Axis::logarithmic("accesses"), &[points]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (0, 3 + 1));
        assert_eq!(svg.matches("r=\"1.5\"").count(), 3 + 1);
    }

    #[test]
    fn powers_of_ten_have_marks_and_nothing_at_all_is_no_fault() {
        let axis = Axis::logarithmic("ms");
        let (low, high) = axis.range([0.03, 700.0].into_iter());
        let ticks = axis.ticks(low, high);
        let labels: Vec<&str> = ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0.01", "0.1", "1", "10", "100", "1000"]);
        let empty = svg(&axis, &axis, &[Series::measured("none", Vec::new())]);
        let single = svg(&axis, &Axis::linear("y"), &[Series::measured("one", vec![(2.0, 0.0)])]);
        assert!(!empty.contains("NaN") && !single.contains("NaN") && !single.contains("inf"), "{single}");
    }
}
