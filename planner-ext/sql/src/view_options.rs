//! Options of a hot view: WITH of CREATE HOT VIEW and SET of ALTER HOT VIEW.

use std::collections::HashMap;
use std::time::Duration;

use terrace_error::{Error, Result};
use terrace_model::units::{Size, Span};

use crate::option_list::take_option;

/// Shortest refresh interval.
const LEAST_REFRESH: Duration = Duration::from_secs(1);

/// Options that a statement gives; `None` where it gives none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewOptions {
    /// Time between two refreshes; 0: never by itself.
    pub refresh: Option<Duration>,
    /// Bytes of DRAM that the view may take; `Some(None)`: no limit but its worth.
    pub budget: Option<Option<u64>>,
}

impl ViewOptions {
    /// Reads the options from name and text.
    ///
    /// # Errors
    /// For an unknown option and an invalid value.
    pub(crate) fn from_map(mut options: HashMap<String, String>) -> Result<Self> {
        let found = Self { refresh: refresh(&mut options)?, budget: budget(&mut options)? };
        match options.keys().min() {
            None => Ok(found),
            Some(unknown) => {
                Err(Error::invalid(format!("a hot view has no option {unknown}; its options are refresh and budget")))
            }
        }
    }
}

fn has_word(options: &HashMap<String, String>, key: &str, word: &str) -> bool {
    options.get(key).is_some_and(|text| text.trim().eq_ignore_ascii_case(word))
}

fn refresh(options: &mut HashMap<String, String>) -> Result<Option<Duration>> {
    if has_word(options, "refresh", "never") {
        return Ok(options.remove("refresh").map(|_| Duration::ZERO));
    }
    match take_option::<Span>(options, "refresh")? {
        Some(Span(short)) if short < LEAST_REFRESH => Err(Error::invalid(
            "refresh is the time between two checks of the table, at least 1 second: '10 minutes', '1 hour', or \
             'never'",
        )),
        refresh => Ok(refresh.map(|span| span.0)),
    }
}

fn budget(options: &mut HashMap<String, String>) -> Result<Option<Option<u64>>> {
    if has_word(options, "budget", "none") {
        return Ok(options.remove("budget").map(|_| None));
    }
    match take_option::<Size>(options, "budget")? {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(Some(bytes))),
        Some(Size::Percent(_)) => {
            Err(Error::invalid("budget is a number of bytes of DRAM: '512MiB', '1 GB', '0', or 'none'"))
        }
    }
}
