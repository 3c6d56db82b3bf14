//! Horizontal bars as SVG text: measured values, with a hollow mark for the value that a paper reports.

use std::fmt::Write as _;

use crate::report::escape;

const WIDTH: f64 = 780.0;
const LEFT: f64 = 270.0;
const RIGHT: f64 = 90.0;
const STEP: f64 = 22.0;
const MEASURED: &str = "#2f7d4f";
const REPORTED: &str = "#b4552d";

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Name of the bar.
    pub name: String,
    /// The measured value; `None` when only a paper has one.
    pub value: Option<f64>,
    /// The value that a paper reports.
    pub reported: Option<f64>,
}

/// Draws all bars from 0. `label` names the quantity and its unit, `paper` the source of the marks.
pub fn svg(label: &str, paper: &str, bars: &[Bar]) -> String {
    let values = bars.iter().flat_map(|bar| [bar.value, bar.reported]).flatten().filter(|value| value.is_finite());
    let most = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |value: f64| LEFT + (value / most).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
    let height = bars.len() as f64 * STEP + 34.0;
    let mut text = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(label));
    for (number, bar) in bars.iter().enumerate() {
        let top = number as f64 * STEP + 4.0;
        let middle = number as f64 * STEP + 4.0 + STEP / 2.0;
        let line = middle + 4.0;
        let _ =
            write!(text, "<text x=\"{}\" y=\"{line}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, escape(&bar.name));
        let value = bar.value.filter(|value| value.is_finite());
        if let Some(value) = value {
            let _ = write!(
                text,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" fill=\"{MEASURED}\" opacity=\".75\"/>",
                top + 3.0,
                x(value) - LEFT,
                STEP - 6.0
            );
        }
        if let Some(reported) = bar.reported {
            let _ = write!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{middle}\" r=\"5\" fill=\"none\" stroke=\"{REPORTED}\" stroke-width=\"2\"/>",
                x(reported)
            );
        }
        let end = x(value.unwrap_or(0.0)).max(x(bar.reported.unwrap_or(0.0)) + 4.0) + 6.0;
        let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        let words = match (value, bar.reported) {
            (Some(value), Some(reported)) => format!("{} ({})", number(value), number(reported)),
            (Some(value), None) => number(value),
            (None, reported) => reported.map_or_else(String::new, |reported| format!("({})", number(reported))),
        };
        let _ = write!(text, "<text x=\"{end:.1}\" y=\"{line}\">{words}</text>");
    }
    let line = height - 10.0;
    let marks = if paper.is_empty() { String::new() } else { format!("; hollow, in brackets: {paper}") };
    let _ = write!(text, "<text x=\"{LEFT}\" y=\"{line}\">{}{}</text>", escape(label), escape(&marks));
    text + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_marks_are_drawn_and_named() {
        let bar = |name: &str, value, reported| Bar { name: name.to_owned(), value, reported };
        let bars = [bar("a <b>", Some(0.5), Some(0.25)), bar("ours", Some(12.3), None), bar("theirs", None, Some(2.0))];
        let svg = svg("MB/s", "a paper", &bars);
        assert_eq!((svg.matches("<rect").count(), svg.matches("<circle").count()), (2, 2));
        assert!(svg.contains("a &lt;b&gt;") && svg.contains(">0.50 (0.25)<") && svg.contains(">12<"), "{svg}");
        assert!(svg.contains(">(2.00)<") && svg.contains("MB/s; hollow, in brackets: a paper"), "{svg}");
        let empty = super::svg("nothing", "", &[bar("none", Some(f64::NAN), None)]);
        assert!(!empty.contains("NaN") && !empty.contains("hollow"), "{empty}");
    }
}
