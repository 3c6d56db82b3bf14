//! Some texts, and whether packed ones are among them, found without decoding: symbol by symbol, while the codes of a row can
//! still stand for one of them. Whichever compressor chose the codes, and wherever it escaped bytes, they stand for the text.

use terrace_model::Result;

use super::texts::{Decoder, wrong_codes};

/// Texts, or bytes, to look for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextSet {
    /// By length, ascending, the texts of this length, ascending, each once.
    lengths: Vec<(usize, Vec<Box<[u8]>>)>,
}

impl TextSet {
    /// These texts, in any order.
    pub fn new<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Self {
        let mut texts: Vec<Box<[u8]>> = texts.into_iter().map(|text| text.as_ref().into()).collect();
        texts.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let mut lengths = Vec::<(usize, Vec<Box<[u8]>>)>::new();
        for text in texts {
            match lengths.last_mut().filter(|(length, _)| *length == text.len()) {
                Some((_, texts)) => texts.push(text),
                None => lengths.push((text.len(), vec![text])),
            }
        }
        Self { lengths }
    }

    /// The texts.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.lengths.iter().flat_map(|(_, texts)| texts.iter().map(|text| &**text))
    }

    /// The texts of so many bytes, ascending.
    #[inline]
    pub(super) fn with_length(&self, length: usize) -> &[Box<[u8]>] {
        let place = self.lengths.binary_search_by_key(&length, |(length, _)| *length);
        match place.ok().and_then(|place| self.lengths.get(place)) {
            Some((_, texts)) => texts.as_slice(),
            None => &[],
        }
    }

    /// True when a text is at most so long.
    pub(super) fn has_up_to(&self, length: u64) -> bool {
        self.lengths.first().is_some_and(|(shortest, _)| *shortest as u64 <= length)
    }
}

impl Decoder {
    /// True when codes stand for one of `texts`, which are of the length of the codes' text, and ascend.
    pub(super) fn finds(&self, mut codes: &[u8], texts: &[Box<[u8]>]) -> Result<bool> {
        let mut left = texts;
        let mut length = 0;
        while let Some(symbol) = self.next_symbol(codes)? {
            left = continued(left, length, symbol.bytes.get(..symbol.length).unwrap_or_default());
            if left.is_empty() {
                return Ok(false);
            }
            length += symbol.length;
            codes = symbol.rest;
        }
        // Shorter codes would be those of another text.
        if left.iter().all(|text| text.len() == length) { Ok(!left.is_empty()) } else { Err(wrong_codes()) }
    }
}

/// Those of `texts` that have `symbol` at byte `at`. They ascend, and are equal before this byte.
fn continued<'a>(texts: &'a [Box<[u8]>], at: usize, symbol: &[u8]) -> &'a [Box<[u8]>] {
    let part = |text: &[u8]| text.get(at..at + symbol.len()).map(|part| part.cmp(symbol));
    if let [text] = texts {
        return if part(text).is_some_and(std::cmp::Ordering::is_eq) { texts } else { &[] };
    }
    // A symbol that goes beyond their end is in none of them.
    let first = texts.partition_point(|text| part(text).is_none_or(std::cmp::Ordering::is_lt));
    let texts = texts.get(first..).unwrap_or_default();
    texts.get(..texts.partition_point(|text| part(text).is_some_and(std::cmp::Ordering::is_eq))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_length_and_by_their_parts() {
        let set = TextSet::new(["bb", "a", "", "ab", "bb", "ba"]);
        let texts = |length| set.with_length(length).iter().map(|text| text.to_vec()).collect::<Vec<_>>();
        assert_eq!(texts(0), [b""]);
        assert_eq!(texts(2), [b"ab", b"ba", b"bb"]);
        assert!(texts(3).is_empty() && set.has_up_to(0) && !TextSet::new(["x"]).has_up_to(0));
        assert_eq!(set.texts().count(), 5);
        let two = set.with_length(2);
        assert_eq!(continued(two, 0, b"b").len(), 2);
        let found = continued(continued(two, 0, b"b"), 1, b"a");
        assert_eq!(found.iter().map(|text| text.to_vec()).collect::<Vec<_>>(), [b"ba"]);
        assert_eq!(continued(two, 0, b"").len(), 3);
        assert!(continued(two, 0, b"c").is_empty() && continued(two, 1, b"bb").is_empty());
        assert!(continued(&two[..1], 1, b"bb").is_empty() && continued(&[], 0, b"a").is_empty());
    }
}
