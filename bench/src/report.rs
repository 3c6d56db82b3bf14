//! One self-contained HTML page: a table and a plot per experiment, the machine, and the raw samples beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::bench::{Bench, Drawing};
use crate::error::{Error, Result};
use crate::row::{Row, Verdict};

const STYLE: &str = "\
:root{color-scheme:light dark;--ok:#2f7d4f;--short:#b4552d;--open:#7a7a7a;--line:#8884}body{font:15px/1.5 system-ui,sans-serif;\
max-width:1100px;margin:2em auto;padding:0 1em}h2{margin-top:2em}table{border-collapse:collapse;width:100%}\
td,th{padding:.25em .6em;text-align:right;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}\
td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}.ok{color:var(--ok)}.short{color:var(--short)}.open{color:var(--open)}\
svg{width:100%;height:auto;margin:1em 0}svg text{fill:currentColor;font:12px system-ui,sans-serif}\
dt{font-weight:600}dd{margin:0 0 .3em 0}.plot{overflow-x:auto}";

/// Writes `index.html`, `rows.json` and `raw.jsonl` into `folder`.
pub fn write(folder: &Path, bench: &Bench) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::path("create", folder))?;
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(Error::path("write", &path))
    };
    let raw = bench.raw.iter().map(serde_json::to_string).collect::<std::result::Result<Vec<_>, _>>()?;
    put("raw.jsonl", raw.join("\n") + "\n")?;
    put("rows.json", serde_json::to_string_pretty(&bench.rows)?)?;
    put("index.html", page(bench))?;
    println!("report: {}", folder.join("index.html").display());
    Ok(())
}

fn page(bench: &Bench) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Terrace benchmarks</title><style>{STYLE}</style><h1>Terrace benchmarks</h1>\
         <p>Each ratio is side A over side B, measured in turn on this machine: median over the runs. The spread is \
         (largest - smallest) / median. A row is not decided where the spread is larger than the distance of the ratio \
         from the reach, as a share of the ratio. In the plots, the full line is the reach, the dashed line the goal.</p>"
    );
    let machine = bench.environment();
    let versions: Vec<String> = machine.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let facts = [
        ("Processor", format!("{} ({} cores)", machine.cpu, machine.cores)),
        ("Memory", format!("{:.1} GiB", machine.memory_bytes as f64 / (1u64 << 30) as f64)),
        ("Kernel", machine.kernel.clone()),
        ("Disk", machine.device.clone()),
        ("Load at start", format!("{}", machine.load_average)),
        ("Versions", versions.join(", ")),
        ("Commit", machine.commit.clone()),
        ("Run", if bench.quick { "quick: the order of magnitude only".to_owned() } else { "full".to_owned() }),
    ];
    html.push_str("<dl>");
    for (name, value) in facts {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    html.push_str("</dl>");
    let mut rest = bench.rows.as_slice();
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|r| r.experiment == first.experiment && r.side_b == first.side_b).count();
        let (rows, others) = rest.split_at(same);
        section(&mut html, first, rows);
        rest = others;
        if rest.first().is_none_or(|next| next.experiment != first.experiment) {
            drawings(&mut html, bench, |drawing| drawing.experiment == first.experiment);
        }
    }
    drawings(&mut html, bench, |drawing| !bench.rows.iter().any(|row| row.experiment == drawing.experiment));
    html + "</html>\n"
}

/// The drawings of experiments, with their titles.
fn drawings(html: &mut String, bench: &Bench, shown: impl Fn(&Drawing) -> bool) {
    for drawing in bench.drawings.iter().filter(|drawing| shown(drawing)) {
        let _ = write!(html, "<h3>{}</h3><div class=\"plot\">{}</div>", escape(&drawing.title), drawing.svg);
    }
}

fn section(html: &mut String, first: &Row, rows: &[Row]) {
    let _ = write!(
        html,
        "<h2>{} ({})</h2><p>A: {}<br>B: {}</p><div class=\"plot\">",
        escape(&first.experiment),
        escape(&first.figure),
        escape(&first.side_a),
        escape(&first.side_b)
    );
    plot(html, rows);
    html.push_str(
        "</div><table><tr><th>what<th>figure<th>parameters<th>A / B<th>spread<th>reach<th>goal<th>verdict</tr>",
    );
    for row in rows {
        let sign = if row.higher_is_better { "&ge;" } else { "&le;" };
        let class = colour(row.verdict);
        let word = row.verdict.label();
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{:.4}<td>{:.0} %<td>{sign} {}<td>{sign} {}<td class=\"{class}\">{word}</tr>",
            escape(row.what()),
            escape(&row.figure),
            escape(&parameters(row)),
            row.ratio,
            row.spread * 100.0,
            row.reach,
            row.goal
        );
    }
    html.push_str("</table>");
}

/// The colour of a verdict, as the style sheet names it.
fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Short => "short",
        Verdict::NotDecided | Verdict::Reported => "open",
    }
}

fn parameters(row: &Row) -> String {
    let shown = row.params.iter().filter(|(name, _)| !["what", "query"].contains(&name.as_str()));
    let text = |value: &serde_json::Value| match value.as_f64() {
        Some(number) if number.fract() != 0.0 => format!("{number:.3}"),
        _ => value.to_string().trim_matches('"').to_owned(),
    };
    shown.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
}

/// Horizontal bars; rows of one plot may have limits of their own.
fn plot(html: &mut String, rows: &[Row]) {
    const LEFT: f64 = 190.0;
    const WIDTH: f64 = 780.0;
    const STEP: f64 = 20.0;
    let largest = rows.iter().flat_map(|r| [r.ratio * (1.0 + r.spread / 2.0), r.reach, r.goal]).fold(0.0, f64::max);
    let x = |value: f64| LEFT + (value / largest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * (WIDTH - LEFT - 70.0);
    let height = rows.len() as f64 * STEP + 10.0;
    let _ = write!(html, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"ratios\">");
    for (number, row) in rows.iter().enumerate() {
        let top = number as f64 * STEP + 5.0;
        let middle = top + STEP / 2.0;
        let bar = STEP - 6.0;
        let text = middle + 4.0;
        let colour = format!("var(--{})", colour(row.verdict));
        let low = x(row.ratio * (1.0 - row.spread / 2.0));
        let high = x(row.ratio * (1.0 + row.spread / 2.0));
        let _ = write!(
            html,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{bar}\" fill=\"{colour}\" opacity=\".75\"/>\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"currentColor\"/>\
             <text x=\"{:.1}\" y=\"{text}\">{:.3}</text>",
            LEFT - 8.0,
            escape(row.what()),
            top + 3.0,
            x(row.ratio) - LEFT,
            x(row.ratio).max(high) + 6.0,
            row.ratio
        );
        for (value, dash) in [(row.reach, ""), (row.goal, " stroke-dasharray=\"2 2\"")] {
            let at = x(value);
            let _ = write!(
                html,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{:.1}\" stroke=\"currentColor\"{dash}/>",
                top + STEP
            );
        }
    }
    html.push_str("</svg>");
}

/// Text within HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::bench::{Finding, Target};

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let mut bench = Bench::new("/nowhere".into(), true, 1, 1);
        bench.begin("cold-scan", "P7", std::time::Instant::now());
        let finding = |values: &'static [f64]| Finding {
            sides: ("a <b>", "c"),
            what: "x & y",
            values,
            target: Target::above(0.85, 0.95),
            params: serde_json::json!({ "scale": 1 }),
        };
        bench.add(finding(&[0.62, 0.6, 0.58]));
        bench.add(finding(&[0.9, 0.8, 0.7]));
        bench.add(finding(&[0.9]));
        bench.draw("lines & points", "<svg>1</svg>".to_owned());
        bench.begin("heat-maps", "-", std::time::Instant::now());
        bench.draw("without rows", "<svg>2</svg>".to_owned());
        let html = page(&bench);
        assert!(html.contains("<h3>lines &amp; points</h3><div class=\"plot\"><svg>1</svg>"));
        assert_eq!((html.matches("<svg>1").count(), html.matches("<svg>2").count()), (1, 1));
        assert!(html.contains("a &lt;b&gt;") && html.contains("x &amp; y") && !html.contains("<b>"));
        assert!(!html.contains("http") && !html.contains("src="), "external resources");
        let verdicts = [">ok<", ">short<", ">not decided<"];
        assert_eq!(verdicts.map(|verdict| html.matches(verdict).count()), [1, 1, 1]);
        let row = serde_json::to_value(&bench.rows[0]).unwrap();
        assert_eq!((&row["ratio"], &row["verdict"]), (&serde_json::json!(0.6), &serde_json::json!("short")));
        let names = [
            "experiment",
            "figure",
            "side_a",
            "side_b",
            "ratio",
            "spread",
            "reach",
            "goal",
            "higher_is_better",
            "verdict",
            "params",
            "environment",
        ];
        let object = row.as_object().unwrap();
        assert!(names.iter().all(|n| object.contains_key(*n)) && object.len() == names.len());
    }
}
