//! Decodes images to arrays, without copying.
//!
//! The decoder takes nodes and buffers in Arrow's depth-first order. There is a function for each level of trust in an image:
//!
//! - [`decode_column`]: no trust. The function checks all that Arrow promises of an array, text included.
//! - [`decode_written`]: checksums have shown that the bytes are those that were written. The function checks lengths,
//!   alignment, null counts, offsets and views, so that a wrong layout gives [`Error::Corrupt`] and never an array that reads
//!   outside of its buffers. It does not check that text is UTF-8, as that was checked before writing.
//! - [`decode_copy`]: the image is a copy of one that was decoded before. The function checks neither offsets nor views.

use arrow::array::{ArrayData, ArrayRef, ByteView, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use terrace_model::{Error, Result};

use super::{ColumnLayout, corrupt};

/// Decodes the column of `rows` rows that `image` holds; its buffers are slices of `image`.
///
/// Fails with [`Error::Corrupt`] when layout, image and type do not fit together (the caller knows the file), and with
/// [`Error::Unsupported`] for types that chunk files cannot hold.
pub fn decode_column(data_type: &DataType, rows: usize, layout: &ColumnLayout, image: &Buffer) -> Result<ArrayRef> {
    let data = Reader::new(layout, image, false).data(data_type, rows)?;
    data.validate_full().map_err(|error| corrupt(format!("its values are not of type {data_type}: {error}")))?;
    Ok(make_array(data))
}

/// Like [`decode_column`], but does not check that text is UTF-8.
///
/// # Safety
///
/// The bytes of the image are those of a valid column that was written: their checksums were compared with those that
/// were taken when it was written, or when [`decode_column`] took them.
pub(super) unsafe fn decode_written(
    data_type: &DataType,
    rows: usize,
    layout: &ColumnLayout,
    image: &Buffer,
) -> Result<ArrayRef> {
    Ok(make_array(Reader::new(layout, image, false).data(data_type, rows)?))
}

/// Like [`decode_written`], but does not check offsets and views either.
///
/// # Safety
///
/// `image` is a copy of one that was decoded before, as the same type and with the same layout.
pub(super) unsafe fn decode_copy(
    data_type: &DataType,
    rows: usize,
    layout: &ColumnLayout,
    image: &Buffer,
) -> Result<ArrayRef> {
    Ok(make_array(Reader::new(layout, image, true).data(data_type, rows)?))
}

struct Reader<'a> {
    image: &'a Buffer,
    /// True when offsets and views are known to stay inside their buffers.
    is_sound: bool,
    nodes: std::slice::Iter<'a, (u32, u32)>,
    buffers: std::slice::Iter<'a, (u64, u64)>,
    variadic: std::slice::Iter<'a, u32>,
}

impl<'a> Reader<'a> {
    fn new(layout: &'a ColumnLayout, image: &'a Buffer, is_sound: bool) -> Self {
        let nodes = layout.nodes.iter();
        let buffers = layout.buffers.iter();
        let variadic = layout.variadic.iter();
        Self { image, is_sound, nodes, buffers, variadic }
    }

    /// Decodes the array data. The caller decides whether its values are validated or trusted.
    fn data(mut self, data_type: &DataType, rows: usize) -> Result<ArrayData> {
        let data = self.column(data_type)?;
        if data.len() != rows {
            return Err(corrupt(format!("{} rows where {rows} were expected", data.len())));
        }
        Ok(data)
    }

    fn column(&mut self, data_type: &DataType) -> Result<ArrayData> {
        use DataType as D;
        let &(rows, nulls) = self.nodes.next().ok_or_else(|| corrupt("a node is missing"))?;
        let rows = rows as usize;
        let nulls = nulls as usize;
        if *data_type == D::Null {
            return Ok(ArrayData::new_null(data_type, rows));
        }
        let validity = self.validity(rows, nulls)?;
        let (buffers, children) = match data_type {
            D::Boolean => (vec![self.sized(rows.div_ceil(8), 1)?], vec![]),
            D::FixedSizeBinary(width) => {
                // The layouts of `arrow-data` panic for a negative width.
                let width = usize::try_from(*width).map_err(|_| corrupt(format!("values of {width} bytes")))?;
                (vec![self.values(rows, width, 1)?], vec![])
            }
            D::Utf8 | D::Binary => (self.bytes::<i32>(rows)?, vec![]),
            D::LargeUtf8 | D::LargeBinary => (self.bytes::<i64>(rows)?, vec![]),
            D::Utf8View | D::BinaryView => (self.views(rows)?, vec![]),
            D::List(field) | D::Map(field, _) => self.list::<i32>(rows, field.data_type())?,
            D::LargeList(field) => self.list::<i64>(rows, field.data_type())?,
            D::ListView(field) => self.list_view::<i32>(rows, field.data_type())?,
            D::LargeListView(field) => self.list_view::<i64>(rows, field.data_type())?,
            D::FixedSizeList(field, size) => {
                let child = self.column(field.data_type())?;
                let needed = usize::try_from(*size).ok().and_then(|size| size.checked_mul(rows));
                check_count(child.len(), needed)?;
                (vec![], vec![child])
            }
            D::Struct(fields) => {
                let children = fields.iter().map(|f| self.column(f.data_type())).collect::<Result<Vec<_>>>()?;
                children.iter().try_for_each(|child| check_count(child.len(), Some(rows)))?;
                (vec![], children)
            }
            D::Dictionary(..) | D::Union(..) | D::RunEndEncoded(..) => {
                return Err(Error::Unsupported(format!("type {data_type}")));
            }
            fixed => {
                let width = fixed.primitive_width().ok_or_else(|| Error::Unsupported(format!("type {fixed}")))?;
                (vec![self.values(rows, width, alignment(fixed, width))?], vec![])
            }
        };
        let builder = ArrayData::builder(data_type.clone()).len(rows).nulls(validity).buffers(buffers);
        // SAFETY: each buffer was checked for length and alignment, offsets and views stay inside of their values, and
        // children have the lengths their parent implies. The functions of this module validate text, or their caller
        // promises that it is UTF-8, before they make an array of the data.
        Ok(unsafe { builder.child_data(children).build_unchecked() })
    }

    /// The next buffer of the layout.
    fn buffer(&mut self) -> Result<Buffer> {
        let &(offset, len) = self.buffers.next().ok_or_else(|| corrupt("a buffer is missing"))?;
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        match range {
            Some((offset, len)) if offset.checked_add(len).is_some_and(|end| end <= self.image.len()) => {
                Ok(self.image.slice_with_length(offset, len))
            }
            _ => Err(corrupt(format!("a buffer of {len} bytes at {offset} lies outside the image"))),
        }
    }

    /// The next buffer, cut to the `needed` bytes it must have.
    fn sized(&mut self, needed: usize, align: usize) -> Result<Buffer> {
        let buffer = self.buffer()?;
        if buffer.len() < needed {
            return Err(corrupt(format!("a buffer has {} bytes, {needed} are needed", buffer.len())));
        }
        if needed > 0 && !(buffer.as_ptr() as usize).is_multiple_of(align) {
            return Err(corrupt(format!("a buffer is not aligned to {align} bytes")));
        }
        Ok(buffer.slice_with_length(0, needed))
    }

    fn values(&mut self, rows: usize, width: usize, align: usize) -> Result<Buffer> {
        let needed = rows.checked_mul(width).ok_or_else(|| corrupt("a length overflows"))?;
        self.sized(needed, align)
    }

    fn validity(&mut self, rows: usize, nulls: usize) -> Result<Option<NullBuffer>> {
        if nulls == 0 {
            self.buffer()?;
            return Ok(None);
        }
        let bits = self.sized(rows.div_ceil(8), 1)?;
        let validity = NullBuffer::new(BooleanBuffer::new(bits, 0, rows));
        check_count(validity.null_count(), Some(nulls))?;
        Ok(Some(validity))
    }

    /// The buffer of `rows + 1` offsets; [`Self::check_offsets`] checks their values. An empty column may have none.
    fn offsets<O: ArrowNativeType>(&mut self, rows: usize) -> Result<Buffer> {
        let width = size_of::<O>();
        let empty = rows == 0 && self.buffers.as_slice().first().is_some_and(|(_, len)| *len == 0);
        if empty {
            self.buffer()?;
            return Ok(Buffer::from(vec![0u64]).slice_with_length(0, width));
        }
        self.values(rows + 1, width, width)
    }

    /// Checks that offsets start at 0 or above, ascend, and end within `limit`.
    fn check_offsets<O: ArrowNativeType>(&self, offsets: &Buffer, limit: usize) -> Result<()> {
        if self.is_sound {
            return Ok(());
        }
        let offsets = offsets.typed_data::<O>();
        let first = offsets.first().copied().unwrap_or_default();
        let last = offsets.last().copied().unwrap_or_default();
        // A fold without early exit, so that it runs in vector registers.
        let ascending = offsets.iter().zip(offsets.iter().skip(1)).fold(true, |all, (a, b)| all & (a <= b));
        let inside = last.to_usize().is_some_and(|last| last <= limit) && first >= O::default();
        if ascending && inside { Ok(()) } else { Err(corrupt("offsets do not ascend within their values")) }
    }

    fn bytes<O: ArrowNativeType>(&mut self, rows: usize) -> Result<Vec<Buffer>> {
        let offsets = self.offsets::<O>(rows)?;
        let values = self.buffer()?;
        self.check_offsets::<O>(&offsets, values.len())?;
        Ok(vec![offsets, values])
    }

    fn views(&mut self, rows: usize) -> Result<Vec<Buffer>> {
        let views = self.values(rows, 16, 16)?;
        let count = *self.variadic.next().ok_or_else(|| corrupt("a count of data buffers is missing"))?;
        let mut buffers = Vec::with_capacity((count as usize + 1).min(1024));
        buffers.push(views.clone());
        for _ in 0..count {
            buffers.push(self.buffer()?);
        }
        let data = buffers.get(1..).unwrap_or_default();
        let sound = match data {
            _ if self.is_sound => true,
            // The usual case: one data buffer. The loop has no branch, because checking takes longer than copying when a
            // column of texts moves.
            [data] => {
                let most = data.len() as u64;
                let is_wrong = |view: &[u32]| match *view {
                    [length, _, index, offset] => {
                        (length > 12) & ((index != 0) | (u64::from(offset) + u64::from(length) > most))
                    }
                    _ => true,
                };
                let views = views.typed_data::<u32>().chunks_exact(4);
                !views.fold(false, |wrong, view| wrong | is_wrong(view))
            }
            _ => views.typed_data::<u128>().iter().all(|view| {
                let view = ByteView::from(*view);
                let end = view.offset as usize + view.length as usize;
                view.length <= 12 || data.get(view.buffer_index as usize).is_some_and(|buffer| end <= buffer.len())
            }),
        };
        match sound {
            true => Ok(buffers),
            false => Err(corrupt("a value lies outside its data buffer")),
        }
    }

    fn list<O: ArrowNativeType>(&mut self, rows: usize, child: &DataType) -> Result<(Vec<Buffer>, Vec<ArrayData>)> {
        let offsets = self.offsets::<O>(rows)?;
        let child = self.column(child)?;
        self.check_offsets::<O>(&offsets, child.len())?;
        Ok((vec![offsets], vec![child]))
    }

    fn list_view<O: ArrowNativeType>(
        &mut self,
        rows: usize,
        child: &DataType,
    ) -> Result<(Vec<Buffer>, Vec<ArrayData>)> {
        let offsets = self.values(rows, size_of::<O>(), size_of::<O>())?;
        let sizes = self.values(rows, size_of::<O>(), size_of::<O>())?;
        let child = self.column(child)?;
        let starts = offsets.typed_data::<O>();
        let lens = sizes.typed_data::<O>();
        let inside = self.is_sound
            || starts.iter().zip(lens).all(|(start, len)| {
                let end = start.to_usize().zip(len.to_usize()).and_then(|(start, len)| start.checked_add(len));
                end.is_some_and(|end| end <= child.len())
            });
        match inside {
            true => Ok((vec![offsets, sizes], vec![child])),
            false => Err(corrupt("a list lies outside its values")),
        }
    }
}

/// Alignment that Arrow's typed access to a fixed-width type needs.
fn alignment(data_type: &DataType, width: usize) -> usize {
    match data_type {
        // Structures of smaller parts.
        DataType::Interval(arrow::datatypes::IntervalUnit::DayTime) => 4,
        DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano) => 8,
        _ => width.min(16),
    }
}

fn check_count(found: usize, expected: Option<usize>) -> Result<()> {
    match expected {
        Some(expected) if expected == found => Ok(()),
        _ => Err(corrupt(format!("a count is {found}, not {}", expected.unwrap_or(usize::MAX)))),
    }
}
