//! Columns of TPC-H's `lineitem` with the distributions of its specification (section 4.2.3), and Q1 and Q6.

use rand::Rng;
use rand::rngs::StdRng;
use terrace_device::column::Form;
use terrace_device::scan::{ColumnRef, Factor, Filter, Measure, Scan};
use terrace_device::{Device, Result};

use crate::columns::{Lay, Made, table};
use crate::measure::{Queries, Query};

const SHIP_DATE: u32 = 0;
const QUANTITY: u32 = 1;
const PRICE: u32 = 2;
const DISCOUNT: u32 = 3;
const TAX: u32 = 4;
const RETURN_FLAG: u32 = 5;
const LINE_STATUS: u32 = 6;

/// 1992-01-01 as days since 1970.
const FIRST_DAY: i64 = 8035;
/// 1995-06-17, the day of the data.
const TODAY: i64 = 9298;

/// The columns of a chunk, in the types that Terrace stores: dates and decimals of 32 bits, keys of 8.
fn lineitem(rng: &mut StdRng, rows: usize) -> Vec<Made> {
    let forms = [Form::I32, Form::I32, Form::I32, Form::I32, Form::I32, Form::U8, Form::U8];
    let mut columns: Vec<Made> = forms.into_iter().map(|form| (form, Vec::with_capacity(rows))).collect();
    for _ in 0..rows {
        let shipped = FIRST_DAY + rng.random_range(0..=2405) + rng.random_range(1..=121);
        let received = shipped + rng.random_range(1..=30);
        let quantity = rng.random_range(1..=50);
        let part: i64 = rng.random_range(1..=200_000);
        let retail = 90_000 + part / 10 % 20_001 + 100 * (part % 1000);
        let flag = if received <= TODAY { rng.random_range(0..=1) } else { 2 };
        let row = [
            shipped,
            quantity * 100,
            quantity * retail,
            rng.random_range(0..=10),
            rng.random_range(0..=8),
            flag,
            i64::from(shipped > TODAY),
        ];
        columns.iter_mut().zip(row).for_each(|((_, values), value)| values.push(value));
    }
    columns
}

/// `lineitem` on a device, and the queries.
pub fn queries(device: &dyn Device, lay: Lay, scale: f64, seed: u64) -> Result<Queries> {
    let chunks = table(device, lay, (scale * 6_000_000.0) as u64, seed, lineitem)?;
    let column = ColumnRef::Chunk;
    let price = column(PRICE).factor();
    let less_discount = Factor { column: column(DISCOUNT), offset: 100, scale: -1 };
    let with_tax = Factor { column: column(TAX), offset: 100, scale: 1 };
    let q6 = Query {
        name: "Q6",
        scan: Scan {
            // 1994, a discount of 5 to 7 %, less than 24 pieces
            filter: Filter::And(vec![
                column(SHIP_DATE).between(8766, 9130),
                column(DISCOUNT).between(5, 7),
                column(QUANTITY).between(0, 2399),
            ]),
            keys: Vec::new(),
            measures: vec![Measure::sum(vec![price, column(DISCOUNT).factor()]), Measure::count()],
        },
        joins: Vec::new(),
        reads: vec![SHIP_DATE, DISCOUNT, QUANTITY, PRICE],
    };
    let q1 = Query {
        name: "Q1",
        scan: Scan {
            filter: column(SHIP_DATE).between(i64::MIN, 10_471),
            keys: vec![column(RETURN_FLAG), column(LINE_STATUS)],
            measures: vec![
                Measure::sum(vec![column(QUANTITY).factor()]),
                Measure::sum(vec![price]),
                Measure::sum(vec![price, less_discount]),
                Measure::sum(vec![price, less_discount, with_tax]),
                Measure::sum(vec![column(DISCOUNT).factor()]),
                Measure::count(),
            ],
        },
        joins: Vec::new(),
        reads: (SHIP_DATE..=LINE_STATUS).collect(),
    };
    Ok(Queries { benchmark: "TPC-H", chunks, queries: vec![q6, q1] })
}
