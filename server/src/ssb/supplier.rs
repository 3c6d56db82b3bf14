//! Table `supplier`.

use std::ops::Range;

use arrow::array::ArrayRef;
use tpchgen::random::{PhoneNumberInstance, RandomAlphaNumeric, RandomAlphaNumericInstance, RandomPhoneNumber};

use super::customer::ADDRESS_LENGTH;
use super::place::{Place, Places};
use super::reader::{Row, numbers, texts};
use super::stream::Stream;

/// A stream that TPC-H does not have.
const CITY_SEED: i64 = 760_112_389;

/// A row.
#[derive(Debug)]
pub struct Supplier {
    key: i32,
    address: RandomAlphaNumericInstance,
    pub(super) place: Place,
    phone: PhoneNumberInstance,
}

impl Row for Supplier {
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)> {
        vec![
            ("s_suppkey", numbers(rows.iter().map(|row| row.key))),
            ("s_name", texts(rows.iter().map(|row| format!("Supplier#{:09}", row.key)))),
            ("s_address", texts(rows.iter().map(|row| row.address.to_string()))),
            ("s_city", texts(rows.iter().map(|row| &row.place.city))),
            ("s_nation", texts(rows.iter().map(|row| row.place.nation))),
            ("s_region", texts(rows.iter().map(|row| row.place.region))),
            ("s_phone", texts(rows.iter().map(|row| row.phone.to_string()))),
        ]
    }
}

/// Generates rows.
pub struct Suppliers {
    rows: Range<i64>,
    addresses: RandomAlphaNumeric,
    places: Places,
    phones: RandomPhoneNumber,
}

impl Suppliers {
    /// The rows with these numbers, from 0.
    pub fn new(rows: Range<i64>) -> Self {
        let first = rows.start;
        let mut table = Self {
            rows,
            addresses: RandomAlphaNumeric::new(706_178_559, ADDRESS_LENGTH),
            places: Places::new(110_356_601, CITY_SEED),
            phones: RandomPhoneNumber::new(884_434_366),
        };
        for stream in table.streams() {
            stream.skip_rows(first);
        }
        table
    }

    fn streams(&mut self) -> [&mut dyn Stream; 3] {
        [&mut self.addresses, &mut self.places, &mut self.phones]
    }
}

impl Iterator for Suppliers {
    type Item = Supplier;

    fn next(&mut self) -> Option<Supplier> {
        let number = self.rows.next()?;
        let place = self.places.next_value();
        let supplier = Supplier {
            key: (number + 1) as i32,
            address: self.addresses.next_value(),
            phone: self.phones.next_value(place.nation_key),
            place,
        };
        for stream in self.streams() {
            stream.end_row();
        }
        Some(supplier)
    }
}
