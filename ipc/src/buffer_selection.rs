//! Selects the buffers of a message that belong to projected columns.

use arrow::datatypes::{DataType, Schema, UnionMode};
use arrow_ipc::MetadataVersion;

/// Tells for each buffer of a message whether its column is projected.
#[derive(Debug)]
pub(crate) struct BufferSelection {
    /// Each column of the file: whether it is projected, and its number of buffers.
    columns: Vec<(bool, BufferCount)>,
}

/// Number of buffers of a column.
#[derive(Debug, Default)]
struct BufferCount {
    fixed: usize,
    /// View columns within the column; each message tells how many buffers each of them has.
    views: usize,
}

impl BufferSelection {
    /// Selects the columns of `schema` at the positions `projection`.
    pub(crate) fn for_columns(schema: &Schema, projection: &[usize], version: MetadataVersion) -> Self {
        let column = |(position, field): (usize, &arrow::datatypes::FieldRef)| {
            let mut count = BufferCount::default();
            count.add(field.data_type(), version);
            (projection.contains(&position), count)
        };
        Self { columns: schema.fields().iter().enumerate().map(column).collect() }
    }

    /// For each buffer of a message, whether it is read. `view_buffers` has the number of buffers of each view column.
    pub(crate) fn buffers(&self, mut view_buffers: impl Iterator<Item = i64>) -> impl Iterator<Item = bool> {
        self.columns.iter().flat_map(move |(is_projected, buffers)| {
            let of_views = view_buffers.by_ref().take(buffers.views).map(|count| usize::try_from(count).unwrap_or(0));
            let count = of_views.fold(buffers.fixed, usize::saturating_add);
            std::iter::repeat_n(*is_projected, count)
        })
    }
}

impl BufferCount {
    /// Adds the buffers of a column of this type.
    fn add(&mut self, data_type: &DataType, version: MetadataVersion) {
        use DataType as D;
        match data_type {
            D::Null => {}
            D::Utf8 | D::Binary | D::LargeUtf8 | D::LargeBinary => self.fixed += 3,
            D::Utf8View | D::BinaryView => {
                self.fixed += 2;
                self.views += 1;
            }
            D::List(child) | D::LargeList(child) | D::Map(child, _) => {
                self.fixed += 2;
                self.add(child.data_type(), version);
            }
            D::ListView(child) | D::LargeListView(child) => {
                self.fixed += 3;
                self.add(child.data_type(), version);
            }
            D::FixedSizeList(child, _) => {
                self.fixed += 1;
                self.add(child.data_type(), version);
            }
            D::Struct(children) => {
                self.fixed += 1;
                children.iter().for_each(|child| self.add(child.data_type(), version));
            }
            D::Union(children, mode) => {
                self.fixed += 1 + usize::from(*mode == UnionMode::Dense) + usize::from(version < MetadataVersion::V5);
                children.iter().for_each(|(_, child)| self.add(child.data_type(), version));
            }
            D::RunEndEncoded(ends, values) => {
                self.add(ends.data_type(), version);
                self.add(values.data_type(), version);
            }
            // Keys of a dictionary, and all types of fixed width: validity and values.
            _ => self.fixed += 2,
        }
    }
}
