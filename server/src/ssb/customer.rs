//! Table `customer`.

use std::ops::Range;

use arrow::array::ArrayRef;
use tpchgen::distribution::Distributions;
use tpchgen::random::{
    PhoneNumberInstance, RandomAlphaNumeric, RandomAlphaNumericInstance, RandomPhoneNumber, RandomString,
};

use super::place::{Place, Places};
use super::reader::{Row, numbers, texts};
use super::stream::Stream;

/// Average length of an address, which is 6 to 24 characters long.
pub const ADDRESS_LENGTH: i32 = 15;
/// A stream that TPC-H does not have.
const CITY_SEED: i64 = 1_918_237_643;

/// A row.
#[derive(Debug)]
pub struct Customer {
    key: i32,
    address: RandomAlphaNumericInstance,
    pub(super) place: Place,
    phone: PhoneNumberInstance,
    segment: &'static str,
}

impl Row for Customer {
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)> {
        vec![
            ("c_custkey", numbers(rows.iter().map(|row| row.key))),
            ("c_name", texts(rows.iter().map(|row| format!("Customer#{:09}", row.key)))),
            ("c_address", texts(rows.iter().map(|row| row.address.to_string()))),
            ("c_city", texts(rows.iter().map(|row| &row.place.city))),
            ("c_nation", texts(rows.iter().map(|row| row.place.nation))),
            ("c_region", texts(rows.iter().map(|row| row.place.region))),
            ("c_phone", texts(rows.iter().map(|row| row.phone.to_string()))),
            ("c_mktsegment", texts(rows.iter().map(|row| row.segment))),
        ]
    }
}

/// Generates rows.
pub struct Customers {
    rows: Range<i64>,
    addresses: RandomAlphaNumeric,
    places: Places,
    phones: RandomPhoneNumber,
    segments: RandomString<'static>,
}

impl Customers {
    /// The rows with these numbers, from 0.
    pub fn new(rows: Range<i64>) -> Self {
        let first = rows.start;
        let mut table = Self {
            rows,
            addresses: RandomAlphaNumeric::new(881_155_353, ADDRESS_LENGTH),
            places: Places::new(1_489_529_863, CITY_SEED),
            phones: RandomPhoneNumber::new(1_521_138_112),
            segments: RandomString::new(1_140_279_430, Distributions::static_default().market_segments()),
        };
        for stream in table.streams() {
            stream.skip_rows(first);
        }
        table
    }

    fn streams(&mut self) -> [&mut dyn Stream; 4] {
        [&mut self.addresses, &mut self.places, &mut self.phones, &mut self.segments]
    }
}

impl Iterator for Customers {
    type Item = Customer;

    fn next(&mut self) -> Option<Customer> {
        let number = self.rows.next()?;
        let place = self.places.next_value();
        let customer = Customer {
            key: (number + 1) as i32,
            address: self.addresses.next_value(),
            phone: self.phones.next_value(place.nation_key),
            place,
            segment: self.segments.next_value(),
        };
        for stream in self.streams() {
            stream.end_row();
        }
        Some(customer)
    }
}
