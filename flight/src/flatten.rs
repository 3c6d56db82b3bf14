//! Views of strings and bytes as plain arrays: the values, one behind the other, and offsets.
//!
//! This is most of what the server does for a large result with texts. Arrow's cast calls a copy for each value, which takes
//! longer than the bytes of a short one. Here the lengths come first, and values of up to 32 bytes are two copies of a fixed number
//! of bytes, which may overlap.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, BinaryArray, GenericByteViewArray, StringArray},
    buffer::{Buffer, OffsetBuffer, ScalarBuffer},
    datatypes::ByteViewType,
    error::ArrowError,
};

/// Bytes that a view itself has room for, behind four bytes with the length.
const INLINE_BYTES: usize = 12;

/// Texts as a [`StringArray`].
pub(crate) fn flat_texts(views: &GenericByteViewArray<impl ByteViewType>) -> Result<ArrayRef, ArrowError> {
    let (offsets, values) = flatten(views)?;
    Ok(Arc::new(StringArray::try_new(offsets, values, views.nulls().cloned())?))
}

/// Bytes as a [`BinaryArray`].
pub(crate) fn flat_bytes(views: &GenericByteViewArray<impl ByteViewType>) -> Result<ArrayRef, ArrowError> {
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
    // Short values are copied with all of their view.
    let mut values = vec![0; end + INLINE_BYTES];
    let mut rest = values.as_mut_slice();
    for (row, view) in views.views().iter().enumerate() {
        let length = length(row, *view);
        copy(rest, *view, length, views.data_buffers()).ok_or_else(damaged)?;
        rest = std::mem::take(&mut rest).get_mut(length..).ok_or_else(damaged)?;
    }
    values.truncate(end);
    Ok((OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values)))
}

fn damaged() -> ArrowError {
    ArrowError::InvalidArgumentError("a view refers to bytes that are not there".to_owned())
}

/// Copies the value of a view to the begin of `to`.
fn copy(to: &mut [u8], view: u128, length: usize, buffers: &[Buffer]) -> Option<()> {
    if length <= INLINE_BYTES {
        let [_, _, _, _, value @ ..] = view.to_le_bytes();
        *to.first_chunk_mut()? = value;
        return Some(());
    }
    let buffer = buffers.get((view >> 64) as u32 as usize)?;
    let from = (view >> 96) as usize;
    let value = buffer.as_slice().get(from..from + length)?;
    let to = to.get_mut(..length)?;
    match length {
        ..16 => copy_ends::<8>(to, value)?,
        16..=32 => copy_ends::<16>(to, value)?,
        _ => to.copy_from_slice(value),
    }
    Some(())
}

/// Copies values of `N` to `2 * N` bytes: the first and the last `N`.
fn copy_ends<const N: usize>(to: &mut [u8], value: &[u8]) -> Option<()> {
    *to.first_chunk_mut::<N>()? = *value.first_chunk()?;
    *to.last_chunk_mut::<N>()? = *value.last_chunk()?;
    Some(())
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
    fn bytes_that_are_no_text_stay_bytes() {
        let views = BinaryViewArray::from_iter_values([&[0xff_u8, 0xfe][..], &[0x80; 40]]);
        assert_eq!(flat_bytes(&views).unwrap().as_binary::<i32>().value(1), [0x80; 40]);
        assert!(flat_texts(&views).is_err());
    }
}
