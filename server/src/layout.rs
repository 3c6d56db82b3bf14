//! Text of reports: columns, times, shares.

/// Formats rows in columns: the first is left-aligned, the others right-aligned.
pub fn columns<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let header = header.map(str::to_owned);
    let all = || std::iter::once(&header).chain(rows);
    let width = |i: usize| all().filter_map(|row| Some(row.get(i)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in all() {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            out.push_str(&if i == 0 { format!("{cell}{padding}") } else { format!("  {padding}{cell}") });
        }
        out.push('\n');
    }
    out
}

/// A time in microseconds, as people say it: `12 ms`, `3.2 s`, `5 min 3 s`, `2 d 4 h`.
pub fn span(us: u64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        0 => format!("{} ms", us / 1000),
        1..60 => format!("{:.1} s", us as f64 / 1e6),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A part of a whole in percent; of nothing, 0 %.
pub fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    format!("{share:.0} %")
}

/// `1 row`, `2 rows`.
pub fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["public.orders".to_owned(), "7".to_owned()], ["é".to_owned(), "1234".to_owned()]];
        assert_eq!(
            columns(["table", "rows"], &rows),
            "table          rows\npublic.orders     7\né              1234\n"
        );
    }

    #[test]
    fn times_and_shares_read_well() {
        let spans = [12_345, 3_210_000, 303_000_000, 7_500_000_000, 187_200_000_000].map(span);
        assert_eq!(spans, ["12 ms", "3.2 s", "5 min 3 s", "2 h 5 min", "2 d 4 h"]);
        assert_eq!((percent(1, 3), percent(1, 0)), ("33 %".to_owned(), "0 %".to_owned()));
        assert_eq!((plural(1, "row"), plural(0, "row")), ("1 row".to_owned(), "0 rows".to_owned()));
    }
}
