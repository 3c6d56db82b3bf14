//! Views of strings and bytes as plain arrays: the values, one behind the other, and offsets.
//!
//! This is most of what the server does for a large result with texts. Arrow's cast calls a copy for each value, which takes
//! longer than the bytes of a short one. Here the lengths come first. Values that follow one another in a buffer, as those of a stored column
//! do, are copied at once; a short one alone is copied as a fixed number of bytes, and what is too much is cut off again.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, BinaryArray, GenericByteViewArray, StringArray},
    buffer::{Buffer, OffsetBuffer, ScalarBuffer},
    datatypes::ByteViewType,
    error::ArrowError,
};

/// Bytes that a view itself has room for, behind four bytes with the length.
const INLINE_BYTES: usize = 12;
/// A value of up to so many bytes is copied as exactly so many, which needs no call.
const SHORT_BYTES: usize = 32;

/// Texts as a [`StringArray`].
///
/// # Errors
/// When they are no texts, are more than two gigabytes, or lie where there are no bytes.
pub fn flat_texts(views: &GenericByteViewArray<impl ByteViewType>) -> Result<ArrayRef, ArrowError> {
    let (offsets, values) = flatten(views)?;
    Ok(Arc::new(StringArray::try_new(offsets, values, views.nulls().cloned())?))
}

/// Bytes as a [`BinaryArray`].
///
/// # Errors
/// When they are more than two gigabytes, or lie where there are no bytes.
pub fn flat_bytes(views: &GenericByteViewArray<impl ByteViewType>) -> Result<ArrayRef, ArrowError> {
    let (offsets, values) = flatten(views)?;
    Ok(Arc::new(BinaryArray::try_new(offsets, values, views.nulls().cloned())?))
}

fn flatten(views: &GenericByteViewArray<impl ByteViewType>) -> Result<(OffsetBuffer<i32>, Buffer), ArrowError> {
    let nulls = views.nulls().filter(|nulls| nulls.null_count() > 0);
    // What the view of a null holds counts for nothing.
    let length = |row: usize, view: u128| match nulls {
        Some(nulls) if nulls.is_null(row) => 0,
        _ => view as u32 as usize,
    };
    let mut end = 0usize;
    let mut offsets = Vec::with_capacity(views.len() + 1);
    offsets.push(0);
    for (row, view) in views.views().iter().enumerate() {
        end += length(row, *view);
        offsets.push(end as i32);
    }
    if i32::try_from(end).is_err() {
        return Err(ArrowError::OffsetOverflowError(end));
    }
    let mut values = Values::new(end, views.data_buffers());
    for (row, view) in views.views().iter().enumerate() {
        values.push(*view, length(row, *view)).ok_or_else(damaged)?;
    }
    let values = values.finish().ok_or_else(damaged)?;
    Ok((OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values)))
}

fn damaged() -> ArrowError {
    ArrowError::InvalidArgumentError("a view refers to bytes that are not there".to_owned())
}

/// Values, one behind the other.
struct Values<'a> {
    bytes: Vec<u8>,
    buffers: &'a [Buffer],
    /// The latest values, which are still to be copied.
    run: Run,
}

/// Bytes that follow one another in a buffer; none at first.
#[derive(Default)]
struct Run {
    buffer: usize,
    start: usize,
    end: usize,
}

impl<'a> Values<'a> {
    /// No values yet, with room for `bytes` of them.
    fn new(bytes: usize, buffers: &'a [Buffer]) -> Self {
        Self { bytes: Vec::with_capacity(bytes + SHORT_BYTES), buffers, run: Run::default() }
    }

    /// Appends the value of a view; `None` for one that is not there.
    fn push(&mut self, view: u128, length: usize) -> Option<()> {
        if length <= INLINE_BYTES {
            if length > 0 {
                self.copy_run()?;
                self.append_short(&(view >> 32).to_le_bytes(), length);
            }
            return Some(());
        }
        let buffer = (view >> 64) as u32 as usize;
        let start = (view >> 96) as usize;
        if self.run.end != start || self.run.buffer != buffer {
            self.copy_run()?;
            self.run = Run { buffer, start, end: start };
        }
        self.run.end += length;
        Some(())
    }

    fn copy_run(&mut self) -> Option<()> {
        let Run { buffer, start, end } = std::mem::take(&mut self.run);
        if start == end {
            return Some(());
        }
        let bytes = self.buffers.get(buffer)?.as_slice().get(start..)?;
        match bytes.first_chunk() {
            Some(short) if end - start <= SHORT_BYTES => self.append_short::<SHORT_BYTES>(short, end - start),
            _ => self.bytes.extend_from_slice(bytes.get(..end - start)?),
        }
        Some(())
    }

    /// Appends the first `length` of `N` bytes.
    fn append_short<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(bytes);
        self.bytes.truncate(end);
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        self.copy_run()?;
        Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::{
        array::{AsArray, BinaryViewArray, StringViewArray},
        compute::cast,
        datatypes::DataType,
    };

    use super::*;

    #[test]
    fn values_are_those_of_a_cast() {
        // Lengths around each limit, in several buffers, with nulls whose views are not empty.
        let texts: Vec<Option<String>> =
            (0..2000).map(|i| (i % 7 != 3).then(|| "äb".repeat(i % 50).chars().take(i % 70).collect())).collect();
        let views = StringViewArray::from_iter(texts.iter());
        let (buffers, nulls) = (views.data_buffers().to_vec(), views.nulls().cloned());
        let shown = StringViewArray::from_iter_values(texts.iter().map(|text| text.as_deref().unwrap_or("hidden")));
        for views in [views.clone(), views.slice(13, 999), views.slice(0, 0), StringViewArray::new_null(9)] {
            assert_eq!(&flat_texts(&views).unwrap(), &cast(&views, &DataType::Utf8).unwrap());
            let bytes = views.to_binary_view();
            assert_eq!(&flat_bytes(&bytes).unwrap(), &cast(&bytes, &DataType::Binary).unwrap());
        }
        let hidden = StringViewArray::new(shown.views().clone(), shown.data_buffers().to_vec(), nulls);
        assert_eq!(flat_texts(&hidden).unwrap().as_string::<i32>(), cast(&views, &DataType::Utf8).unwrap().as_string());
        assert!(buffers.len() > 1, "{}", buffers.len());
    }

    #[test]
    fn values_in_any_order_are_those_of_a_cast() {
        // Every length around the limits, backwards, twice, and by parts that end where their buffer does.
        let texts: Vec<String> = (0..40).map(|length| "abcdefgh".repeat(5)[..length].to_owned()).collect();
        let views = StringViewArray::from_iter_values(&texts);
        let (views, buffers, _) = views.into_parts();
        let backwards: Vec<u128> = views.iter().rev().chain(views.iter()).copied().collect();
        let twice: Vec<u128> = views.iter().flat_map(|view| [*view, *view]).collect();
        let ends: Vec<u128> = views.iter().rev().take(2).copied().collect();
        for views in [backwards, twice, ends, Vec::new()] {
            let views = StringViewArray::new(views.into(), buffers.clone(), None);
            assert_eq!(&flat_texts(&views).unwrap(), &cast(&views, &DataType::Utf8).unwrap());
        }
        // Behind a short one there may be no byte that could be copied with it.
        for text in &texts {
            let views = StringViewArray::from_iter_values([text]);
            assert_eq!(flat_texts(&views).unwrap().as_string::<i32>().value(0), text);
        }
    }

    #[test]
    fn a_view_of_bytes_that_are_not_there_is_an_error() {
        let views = StringViewArray::from_iter_values(["a text that does not fit into its view"]);
        let (views, _, _) = views.into_parts();
        for buffers in [Vec::new(), vec![Buffer::from(&b"too short"[..])]] {
            // SAFETY: not valid, and only read by code that checks it.
            let views = unsafe { StringViewArray::new_unchecked(views.clone(), buffers, None) };
            assert!(flat_bytes(&views).unwrap_err().to_string().contains("not there"));
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay_bytes() {
        let views = BinaryViewArray::from_iter_values([&[0xff_u8, 0xfe][..], &[0x80; 40]]);
        assert_eq!(flat_bytes(&views).unwrap().as_binary::<i32>().value(1), [0x80; 40]);
        assert!(flat_texts(&views).is_err());
    }
}
