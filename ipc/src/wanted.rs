//! Which buffers of a message belong to the columns that are read.

use arrow::datatypes::{DataType, Schema, UnionMode};
use arrow_ipc::MetadataVersion;

/// The columns that are read, of all columns of a file.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Of each column, whether it is read and how its buffers are counted.
    columns: Vec<(bool, Shape)>,
}

/// How many buffers a column has.
#[derive(Debug, Default)]
struct Shape {
    fixed: usize,
    /// View columns in it, each with a number of buffers that its message tells.
    views: usize,
}

impl Wanted {
    /// The columns of `schema` at these places.
    pub(crate) fn of(schema: &Schema, places: &[usize], version: MetadataVersion) -> Self {
        let shape = |(place, field): (usize, &arrow::datatypes::FieldRef)| {
            let mut shape = Shape::default();
            shape.add(field.data_type(), version);
            (places.contains(&place), shape)
        };
        Self { columns: schema.fields().iter().enumerate().map(shape).collect() }
    }

    /// Of each buffer of a message, whether it is read. `views` has the numbers of buffers of its view columns.
    pub(crate) fn buffers(&self, mut views: impl Iterator<Item = i64>) -> impl Iterator<Item = bool> {
        self.columns.iter().flat_map(move |(wanted, shape)| {
            let of_views = views.by_ref().take(shape.views).map(|count| usize::try_from(count).unwrap_or(0));
            let count = of_views.fold(shape.fixed, usize::saturating_add);
            std::iter::repeat_n(*wanted, count)
        })
    }
}

impl Shape {
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
            // Keys of a dictionary, and all values of one width.
            _ => self.fixed += 2,
        }
    }
}
