//! Converts batches to the form that chunks store: no foreign bytes, no dictionaries, view data by pages.
//!
//! A view column has one data buffer per 8,192 rows, in order, holding exactly the long values of these rows. So a slice
//! of a chunk leaves the buffers of other pages out, and memory accounting sees the bytes of the slice only.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, ByteView, GenericByteViewArray, MutableArrayData, RecordBatch,
    RecordBatchOptions, make_array,
};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{BinaryViewType, ByteViewType, DataType, Field, FieldRef, Fields, Schema, StringViewType};
use terrace_model::{Error, Result};

/// Rows whose long values share one data buffer of a view column.
pub const PAGE_ROWS: usize = 8192;

static EMPTY: LazyLock<Buffer> = LazyLock::new(|| Buffer::from(Vec::<u8>::new()));

/// Returns a batch of the same rows that references no other bytes: it copies slices, replaces dictionaries by their values
/// (the schema changes accordingly) and lays view columns out by pages, in nested types too.
pub fn normalize(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| normalize_column(field, column)).collect::<Result<Vec<_>>>()?;
    let (fields, columns): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
    rebuilt(batch, Arc::new(schema), columns)
}

/// Like [`normalize`], but for one column and its field.
pub fn normalize_column(field: &FieldRef, column: &ArrayRef) -> Result<(FieldRef, ArrayRef)> {
    let field = without_dictionaries_in_field(field);
    let column = match column.data_type() == field.data_type() {
        true => compacted(column),
        false => arrow::compute::cast(column, field.data_type())?,
    };
    let column = paged(&column)?;
    Ok((field, column))
}

/// The batch with its view columns laid out by pages.
pub(super) fn page_views(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(paged).collect::<Result<Vec<_>>>()?;
    rebuilt(batch, batch.schema(), columns)
}

pub(super) fn rebuilt(batch: &RecordBatch, schema: Arc<Schema>, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// Like [`Array::slice`], for a column that [`super::decode_column`] made: the slice of a view column keeps only the data
/// buffers of the pages that it touches; the others become empty.
pub fn slice_column(array: &ArrayRef, offset: usize, len: usize) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => slice_views(array.as_string_view(), offset, len),
        DataType::BinaryView => slice_views(array.as_binary_view(), offset, len),
        _ => array.slice(offset, len),
    }
}

fn slice_views<T: ByteViewType>(array: &GenericByteViewArray<T>, offset: usize, len: usize) -> ArrayRef {
    let slice = array.slice(offset, len);
    let pages = offset / PAGE_ROWS..(offset + len).div_ceil(PAGE_ROWS);
    let data = slice.data_buffers();
    // With one page for all rows, or short values only, there is nothing to leave out. With another number of pages the
    // array does not have the layout of a chunk.
    let nothing_long = || data.iter().all(Buffer::is_empty);
    if len == 0 || data.len() < 2 || data.len() != array.len().div_ceil(PAGE_ROWS) || nothing_long() {
        return Arc::new(slice);
    }
    let retain = |(page, buffer): (usize, &Buffer)| if pages.contains(&page) { buffer.clone() } else { EMPTY.clone() };
    let buffers: Arc<[Buffer]> = data.iter().enumerate().map(retain).collect();
    let first = pages.start as u32;
    let count = pages.len() as u32;
    let stays_inside =
        |view: u128| (view as u32 <= 12) | (ByteView::from(view).buffer_index.wrapping_sub(first) < count);
    // No early exit, so that it runs in vector registers.
    if !slice.views().iter().fold(true, |all, view| all & stays_inside(*view)) {
        return Arc::new(slice);
    }
    let (views, _, nulls) = slice.into_parts();
    // SAFETY: the views were valid with all buffers, and the check above shows that they use the kept ones only.
    Arc::new(unsafe { GenericByteViewArray::<T>::new_unchecked(views, buffers, nulls) })
}

/// Copies the rows when the array references notably more bytes than they need, else shares the array.
fn compacted(array: &ArrayRef) -> ArrayRef {
    let data = array.to_data();
    let needed = data.get_slice_memory_size().unwrap_or(usize::MAX);
    if is_view(array.data_type()) || data.get_buffer_memory_size() <= needed.saturating_add(needed / 4 + 4096) {
        return Arc::clone(array);
    }
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    match copy.try_extend(0, 0, data.len()) {
        Ok(()) => make_array(copy.freeze()),
        // Cannot happen, as offsets of some rows never exceed those of all rows; sharing the array is correct too.
        Err(_) => Arc::clone(array),
    }
}

/// Bytes of an allocation from which on [`without_large_allocations`] copies the rows that lie in it.
pub const LARGE_ALLOCATION_BYTES: usize = 4 << 20;

/// Returns the rows of `batch` in buffers of their own where they lie in an allocation of [`LARGE_ALLOCATION_BYTES`] or more,
/// such as the message that brought them, so that rows that wait do not keep it.
///
/// # Errors
/// Those of Arrow's arrays.
pub fn without_large_allocations(batch: &RecordBatch) -> Result<RecordBatch> {
    let column = |column: &ArrayRef| match has_large_allocation(&column.to_data()) {
        true => copied(column),
        false => Ok(Arc::clone(column)),
    };
    let columns = batch.columns().iter().map(column).collect::<Result<Vec<_>>>()?;
    rebuilt(batch, batch.schema(), columns)
}

/// Whether some rows lie in an allocation of [`LARGE_ALLOCATION_BYTES`] or more.
pub fn has_large_allocations(batch: &RecordBatch) -> bool {
    batch.columns().iter().any(|column| has_large_allocation(&column.to_data()))
}

fn has_large_allocation(data: &ArrayData) -> bool {
    let nulls = data.nulls().map(|nulls| nulls.buffer());
    data.buffers().iter().chain(nulls).any(|buffer| buffer.capacity() >= LARGE_ALLOCATION_BYTES)
        || data.child_data().iter().any(has_large_allocation)
}

/// Copies the rows of an array, and the texts that its views refer to, in nested types too, into buffers of their own.
///
/// # Errors
/// Those of Arrow's arrays.
pub fn copied(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::Utf8View => Ok(copied_views(array.as_string_view())),
        DataType::BinaryView => Ok(copied_views(array.as_binary_view())),
        _ => {
            let data = array.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            let data = copy.freeze();
            if !contains_views(data.data_type()) {
                return Ok(make_array(data));
            }
            // They were copied, but for the texts.
            let children = data.child_data().iter().map(|child| match contains_views(child.data_type()) {
                true => Ok(copied(&make_array(child.clone()))?.to_data()),
                false => Ok(child.clone()),
            });
            let children = children.collect::<Result<Vec<_>>>()?;
            Ok(make_array(data.into_builder().child_data(children).build()?))
        }
    }
}

fn copied_views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> ArrayRef {
    // Arrow copies the texts, but shares the bitmap of nulls, and views that hold all of their texts.
    let (views, buffers, nulls) = array.gc().into_parts();
    let views = ScalarBuffer::from(views.to_vec());
    let nulls = nulls.map(|nulls| NullBuffer::from_iter(nulls.iter()));
    // SAFETY: views, buffers and nulls are those of a valid array.
    Arc::new(unsafe { GenericByteViewArray::<T>::new_unchecked(views, buffers, nulls) })
}

fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

fn contains_views(data_type: &DataType) -> bool {
    use DataType as D;
    match data_type {
        D::List(f) | D::LargeList(f) | D::ListView(f) | D::LargeListView(f) | D::FixedSizeList(f, _) | D::Map(f, _) => {
            contains_views(f.data_type())
        }
        D::Struct(fields) => fields.iter().any(|f| contains_views(f.data_type())),
        D::Union(fields, _) => fields.iter().any(|(_, f)| contains_views(f.data_type())),
        D::RunEndEncoded(_, values) => contains_views(values.data_type()),
        other => is_view(other),
    }
}

/// Lays out by pages all view arrays in the array.
pub(super) fn paged(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::Utf8View => Ok(Arc::new(paged_views::<StringViewType>(array.as_string_view())?)),
        DataType::BinaryView => Ok(Arc::new(paged_views::<BinaryViewType>(array.as_binary_view())?)),
        nested if contains_views(nested) => {
            let data = array.to_data();
            let children = data.child_data().iter().map(|child| Ok(paged(&make_array(child.clone()))?.to_data()));
            let children = children.collect::<Result<Vec<_>>>()?;
            Ok(make_array(data.into_builder().child_data(children).build()?))
        }
        _ => Ok(Arc::clone(array)),
    }
}

fn paged_views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Result<GenericByteViewArray<T>> {
    if is_paged(array) {
        return Ok(array.clone());
    }
    let pages = array.len().div_ceil(PAGE_ROWS);
    let nulls = array.nulls();
    let mut views: Vec<u128> = Vec::with_capacity(array.len());
    let mut buffers = Vec::with_capacity(pages);
    for page in 0..pages {
        let rows = page * PAGE_ROWS..array.len().min((page + 1) * PAGE_ROWS);
        let mut data: Vec<u8> = Vec::with_capacity(long_bytes(array, rows.clone()));
        let moved = rows.clone().zip(array.views().get(rows).unwrap_or_default()).map(|(row, view)| {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                return 0;
            }
            let view = ByteView::from(*view);
            if view.length <= 12 {
                return view.as_u128();
            }
            let place = view.offset as usize..view.offset as usize + view.length as usize;
            let value = array.data_buffers().get(view.buffer_index as usize).and_then(|buffer| buffer.get(place));
            let moved = ByteView { buffer_index: page as u32, offset: data.len() as u32, ..view };
            data.extend_from_slice(value.unwrap_or_default());
            moved.as_u128()
        });
        views.extend(moved);
        if i32::try_from(data.len()).is_err() {
            return Err(Error::Unsupported(format!("more than 2 GiB of values in {PAGE_ROWS} rows of one column")));
        }
        buffers.push(Buffer::from(data));
    }
    // SAFETY: each view is null, inline, or names the bytes just appended for it; they are valid for the array's type
    // because they were so where they came from.
    Ok(unsafe { GenericByteViewArray::new_unchecked(ScalarBuffer::from(views), buffers, array.nulls().cloned()) })
}

/// Bytes of the values of `rows` that do not fit into their views.
pub fn long_bytes<T: ByteViewType>(array: &GenericByteViewArray<T>, rows: Range<usize>) -> usize {
    let long = |view: &u128| if *view as u32 > 12 { *view as u32 as usize } else { 0 };
    let views = array.views().get(rows.clone()).unwrap_or_default();
    match array.nulls() {
        None => views.iter().map(long).sum(),
        Some(nulls) => rows.zip(views).filter(|(row, _)| nulls.is_valid(*row)).map(|(_, view)| long(view)).sum(),
    }
}

/// True when the data buffers are the pages, in order, without gaps.
fn is_paged<T: ByteViewType>(array: &GenericByteViewArray<T>) -> bool {
    let buffers = array.data_buffers();
    if buffers.len() != array.len().div_ceil(PAGE_ROWS) {
        return false;
    }
    array.views().chunks(PAGE_ROWS).zip(buffers).enumerate().all(|(page, (views, buffer))| {
        let mut end = 0usize;
        let in_order = views.iter().map(|view| (*view as u32, ByteView::from(*view))).all(|(len, view)| {
            let fits = len <= 12 || (view.buffer_index as usize == page && view.offset as usize == end);
            end += if len > 12 { len as usize } else { 0 };
            fits
        });
        in_order && end == buffer.len()
    })
}

fn without_dictionaries_in_field(field: &FieldRef) -> FieldRef {
    let data_type = without_dictionaries(field.data_type());
    match data_type == *field.data_type() {
        true => Arc::clone(field),
        false => {
            let plain = Field::new(field.name(), data_type, field.is_nullable());
            Arc::new(plain.with_metadata(field.metadata().clone()))
        }
    }
}

fn without_dictionaries(data_type: &DataType) -> DataType {
    use DataType as D;
    match data_type {
        D::Dictionary(_, values) => without_dictionaries(values),
        D::List(f) => D::List(without_dictionaries_in_field(f)),
        D::LargeList(f) => D::LargeList(without_dictionaries_in_field(f)),
        D::ListView(f) => D::ListView(without_dictionaries_in_field(f)),
        D::LargeListView(f) => D::LargeListView(without_dictionaries_in_field(f)),
        D::FixedSizeList(f, n) => D::FixedSizeList(without_dictionaries_in_field(f), *n),
        D::Map(f, sorted) => D::Map(without_dictionaries_in_field(f), *sorted),
        D::Struct(fields) => D::Struct(fields.iter().map(without_dictionaries_in_field).collect::<Fields>()),
        other => other.clone(),
    }
}
