//! Random rows, conditions and queries. The tests of the engine include this file as well.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringViewArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

/// Rows of a batch.
pub(crate) const ROWS: usize = 800;
const DAY_US: i64 = 86_400_000_000;

/// A small random generator: failures name the seed, which is enough to repeat them.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub(crate) fn columns() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int32, false),
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Int64, true),
        Field::new("f", DataType::Float64, true),
        Field::new("g", DataType::Float64, true),
        Field::new("s", DataType::Utf8View, true),
        Field::new("d", DataType::Date32, true),
        Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("m", DataType::Decimal128(10, 2), true),
        Field::new("x", DataType::Boolean, true),
    ]))
}

/// Rows of these columns; few values, so that conditions hold for some.
pub(crate) fn rows(rng: &mut Rng) -> RecordBatch {
    let floats = [-f64::NAN.abs(), f64::NEG_INFINITY, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, f64::INFINITY, f64::NAN];
    let texts = ["", "a", "ab", "abc", "abd", "ac", "b", "B", "a_c", "a%"];
    let mut some = |n: u64| (rng.below(8) != 0).then(|| rng.below(n));
    let mut of = |n: u64| (0..ROWS).map(|_| some(n)).collect::<Vec<_>>();
    let mut float = || of(11).iter().map(|v| v.map(|v| floats[v as usize])).collect::<Float64Array>();
    let f = float();
    let g = float();
    let instant = |v: u64| (v as i64 / 3) * DAY_US + [-1, 0, 1][v as usize % 3];
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(of(7).iter().map(|v| Some(v.unwrap_or(3) as i32)).collect::<Int32Array>()),
        Arc::new(of(7).iter().map(|v| v.map(|v| v as i32)).collect::<Int32Array>()),
        Arc::new(of(7).iter().map(|v| v.map(|v| v as i64)).collect::<Int64Array>()),
        Arc::new(f),
        Arc::new(g),
        Arc::new(of(10).iter().map(|v| v.map(|v| texts[v as usize])).collect::<StringViewArray>()),
        Arc::new(of(6).iter().map(|v| v.map(|v| v as i32)).collect::<Date32Array>()),
        Arc::new(of(18).iter().map(|v| v.map(instant)).collect::<TimestampMicrosecondArray>()),
        Arc::new(
            of(13)
                .iter()
                .map(|v| v.map(|v| i128::from(v) * 25))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(10, 2)
                .unwrap(),
        ),
        Arc::new(of(2).iter().map(|v| v.map(|v| v == 1)).collect::<BooleanArray>()),
    ];
    RecordBatch::try_new(columns(), arrays).unwrap()
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

const COMPARISONS: [&str; 6] = ["=", "<>", "<", "<=", ">", ">="];

/// The two sides of a comparison: an expression, and a value for it.
fn value(rng: &mut Rng) -> (&'static str, String) {
    let number = |rng: &mut Rng| rng.below(7).to_string();
    match rng.below(14) {
        0 => ("k", number(rng)),
        1 | 2 => ("a", number(rng)),
        3 => ("b", number(rng)),
        4 => (pick(rng, &["a", "b", "k"]), pick(rng, &["1.5", "2.0", "3e0", "-0.0", "CAST('NaN' AS DOUBLE)"]).into()),
        5 | 6 => {
            let literals =
                ["-1.0", "-0.0", "0.0", "0.5", "1.0", "2.0", "CAST('NaN' AS DOUBLE)", "CAST('inf' AS DOUBLE)"];
            (pick(rng, &["f", "g"]), pick(rng, &literals).into())
        }
        7 => ("s", pick(rng, &["''", "'a'", "'ab'", "'abc'", "'b'", "'ac'"]).into()),
        8 => ("d", format!("DATE '1970-01-0{}'", 1 + rng.below(6))),
        9 => (
            pick(rng, &["d", "t"]),
            format!("TIMESTAMP '1970-01-0{} {}'", 1 + rng.below(6), pick(rng, &["00:00:00", "12:00:00"])),
        ),
        10 => ("m", pick(rng, &["0.25", "1", "1.5", "2.75"]).into()),
        11 => (
            pick(rng, &["a + b", "b + a", "CAST(a AS BIGINT)", "CAST(a AS DECIMAL(12, 3))", "coalesce(a, 2)"]),
            number(rng),
        ),
        12 => (pick(rng, &["a", "CAST(a AS BIGINT)", "k"]), pick(rng, &["b", "k", "b + 1"]).into()),
        _ => {
            let (left, right) = [("f", "g"), ("d", "t"), ("g", "f"), ("b", "f"), ("m", "a")][rng.below(5) as usize];
            (left, right.into())
        }
    }
}

fn atom(rng: &mut Rng) -> String {
    let literal = |rng: &mut Rng, left: &str| {
        loop {
            let (found, literal) = value(rng);
            if found == left {
                return literal;
            }
        }
    };
    let (left, right) = value(rng);
    match rng.below(16) {
        0 => format!("{left} IS NULL"),
        1 => format!("{left} IS NOT NULL"),
        2 => {
            let more = literal(rng, left);
            format!("{left} {}BETWEEN {right} AND {more}", pick(rng, &["", "NOT "]))
        }
        3 | 4 => {
            let mut list = vec![right];
            list.extend((0..rng.below(5)).map(|_| literal(rng, left)));
            if rng.below(6) == 0 {
                list.push("NULL".into());
            }
            format!("{left} {}IN ({})", pick(rng, &["", "NOT "]), list.join(", "))
        }
        5 => {
            let pattern = pick(rng, &["a%", "ab%", "%", "abc", "a_c", "a%c", "%b", "", "a\\%", "ab_"]);
            format!("s {}{} '{pattern}'", pick(rng, &["", "NOT "]), pick(rng, &["LIKE", "LIKE", "LIKE", "ILIKE"]))
        }
        6 => pick(rng, &["x", "NOT x", "x IS TRUE", "x IS NOT TRUE", "x IS FALSE", "x IS NOT FALSE", "x IS UNKNOWN"])
            .into(),
        7 => format!("({left} IS {}DISTINCT FROM {right})", pick(rng, &["", "NOT "])),
        8 => format!(
            "({left} {} {right}) IS {}",
            pick(rng, &COMPARISONS),
            pick(rng, &["TRUE", "NOT TRUE", "FALSE", "UNKNOWN", "NULL"])
        ),
        _ => format!("{left} {} {right}", pick(rng, &COMPARISONS)),
    }
}

/// A random condition.
pub(crate) fn condition(rng: &mut Rng, depth: u32) -> String {
    match rng.below(if depth == 0 { 5 } else { 9 }) {
        0..=4 => atom(rng),
        5 => format!("NOT ({})", condition(rng, depth - 1)),
        6 => format!("({} OR {})", condition(rng, depth - 1), condition(rng, depth - 1)),
        _ => format!("({} AND {})", condition(rng, depth - 1), condition(rng, depth - 1)),
    }
}

/// A random query that shares conditions with the view.
pub(crate) fn query(rng: &mut Rng, view: &str) -> String {
    let more = condition(rng, 2);
    match rng.below(4) {
        0 => more,
        1 => format!("({view}) AND {more}"),
        2 => {
            // The same condition with other numbers and comparisons.
            let mut text = view.to_owned();
            for _ in 0..=rng.below(2) {
                let from = rng.below(7).to_string();
                let to = rng.below(7).to_string();
                text = text.replacen(&format!(" {from}"), &format!(" {to}"), 1);
                let from = pick(rng, &COMPARISONS);
                let to = pick(rng, &COMPARISONS);
                text = text.replacen(&format!(" {from} "), &format!(" {to} "), 1);
            }
            text
        }
        _ => format!("({view}) AND ({more} OR {})", condition(rng, 1)),
    }
}
