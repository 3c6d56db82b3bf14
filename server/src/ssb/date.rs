//! Table `date`: the days of 1992 to 1998.
//!
//! Weeks of the year are counted as `ssb-dbgen` does: the first one ends on 6 January, all others have seven days. Seasons
//! and holidays are its, too. Days of the week are those of the calendar, Sunday first.

use std::ops::Range;
use std::sync::LazyLock;

use arrow::array::ArrayRef;
use tpchgen::dates::{MIN_GENERATE_DATE, TOTAL_DATE_RANGE, TPCHDate};

use super::reader::{Row, numbers, texts};

/// 1 January 1992 was a Wednesday; Sunday is day 0.
const FIRST_WEEKDAY: i32 = 3;
const SATURDAY: i32 = 6;
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Holidays: 100 times the month, and the day.
const HOLIDAYS: [i32; 10] = [101, 220, 420, 520, 720, 820, 920, 1020, 1120, 1224];

static KEYS: LazyLock<Vec<i32>> =
    LazyLock::new(|| (0..TOTAL_DATE_RANGE).map(|number| Day::from_number(number).key()).collect());

/// The key of a day, such as 19960102, by the day's number from 0; 0 outside of the table.
pub fn key(number: i32) -> i32 {
    usize::try_from(number).ok().and_then(|number| KEYS.get(number)).copied().unwrap_or_default()
}

/// A row.
#[derive(Debug, Clone, Copy)]
pub struct Day {
    pub(super) year: i32,
    month: i32,
    day_of_month: i32,
    day_of_year: i32,
    /// From 0, a Sunday.
    weekday: i32,
    ends_month: bool,
}

impl Day {
    /// The day by its number, from 0.
    pub fn from_number(number: i32) -> Self {
        let (years, month, day_of_month) = TPCHDate::new(MIN_GENERATE_DATE + number).to_ymd();
        let (_, _, next) = TPCHDate::new(MIN_GENERATE_DATE + number + 1).to_ymd();
        // The first year is a leap year.
        let whole_years = years - MIN_GENERATE_DATE / 1000;
        let days_before = whole_years * 365 + (whole_years + 3) / 4;
        Self {
            year: 1900 + years,
            month,
            day_of_month,
            day_of_year: number - days_before + 1,
            weekday: (number + FIRST_WEEKDAY) % 7,
            ends_month: next == 1,
        }
    }

    /// As 19940131.
    pub fn key(&self) -> i32 {
        self.year_month() * 100 + self.day_of_month
    }

    /// As 199401.
    pub fn year_month(&self) -> i32 {
        self.year * 100 + self.month
    }

    /// From 1 to 53.
    pub fn week(&self) -> i32 {
        self.day_of_year / 7 + 1
    }

    fn month_name(&self) -> &'static str {
        named(&MONTHS, self.month - 1)
    }

    fn season(&self) -> &'static str {
        match self.month {
            1..=3 => "Winter",
            4 => "Spring",
            5..=8 => "Summer",
            9 | 10 => "Fall",
            _ => "Christmas",
        }
    }

    fn is_holiday(&self) -> bool {
        HOLIDAYS.contains(&(self.month * 100 + self.day_of_month))
    }

    fn is_weekday(&self) -> bool {
        (1..SATURDAY).contains(&self.weekday)
    }
}

fn named(names: &[&'static str], number: i32) -> &'static str {
    usize::try_from(number).ok().and_then(|number| names.get(number)).copied().unwrap_or_default()
}

impl Row for Day {
    fn columns(rows: &[Self]) -> Vec<(&'static str, ArrayRef)> {
        let full = |day: &Self| format!("{} {}, {}", day.month_name(), day.day_of_month, day.year);
        vec![
            ("d_datekey", numbers(rows.iter().map(Self::key))),
            ("d_date", texts(rows.iter().map(full))),
            ("d_dayofweek", texts(rows.iter().map(|day| named(&WEEKDAYS, day.weekday)))),
            ("d_month", texts(rows.iter().map(Self::month_name))),
            ("d_year", numbers(rows.iter().map(|day| day.year))),
            ("d_yearmonthnum", numbers(rows.iter().map(Self::year_month))),
            ("d_yearmonth", texts(rows.iter().map(|day| format!("{:.3}{}", day.month_name(), day.year)))),
            ("d_daynuminweek", numbers(rows.iter().map(|day| day.weekday + 1))),
            ("d_daynuminmonth", numbers(rows.iter().map(|day| day.day_of_month))),
            ("d_daynuminyear", numbers(rows.iter().map(|day| day.day_of_year))),
            ("d_monthnuminyear", numbers(rows.iter().map(|day| day.month))),
            ("d_weeknuminyear", numbers(rows.iter().map(Self::week))),
            ("d_sellingseason", texts(rows.iter().map(Self::season))),
            ("d_lastdayinweekfl", numbers(rows.iter().map(|day| i32::from(day.weekday == SATURDAY)))),
            ("d_lastdayinmonthfl", numbers(rows.iter().map(|day| i32::from(day.ends_month)))),
            ("d_holidayfl", numbers(rows.iter().map(|day| i32::from(day.is_holiday())))),
            ("d_weekdayfl", numbers(rows.iter().map(|day| i32::from(day.is_weekday())))),
        ]
    }
}

/// Generates rows.
pub struct Days {
    rows: Range<i64>,
}

impl Days {
    /// The rows with these numbers, from 0.
    pub fn new(rows: Range<i64>) -> Self {
        Self { rows }
    }
}

impl Iterator for Days {
    type Item = Day;

    fn next(&mut self) -> Option<Day> {
        self.rows.next().map(|number| Day::from_number(number as i32))
    }
}
