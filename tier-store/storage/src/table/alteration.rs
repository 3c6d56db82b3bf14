//! Changes of a table's definition that leave its chunk files alone.
//!
//! An alteration is applied to a [`TableDefinition`] and gives the next one, or an error. Its effect on the chunks
//! follows from the ids of the columns alone (see [`super::Chunk::with_definition`]).

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Fields, Schema};
use terrace_model::{ColumnId, Error, Result, TableName};

use super::column::{Column, Constant};
use super::{TableDefinition, TableOptions};

/// One change of a table.
#[derive(Debug, Clone)]
pub enum Alteration {
    /// A new last column.
    AddColumn {
        /// Name, type, whether it takes nulls.
        field: Field,
        /// SQL text of the value for later rows that name none.
        default: Option<String>,
        /// The value for existing rows, as one row; `None`: null.
        value: Option<ArrayRef>,
    },
    /// Drops a column, and with it a key that has it, which is no longer enforced; `cluster_by` loses the column.
    DropColumn(String),
    /// A column gets another name, in the key and in `cluster_by` too.
    RenameColumn {
        /// The current name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A column takes nulls from now on.
    DropNotNull(String),
    /// Another default for later rows, as SQL text, or none.
    SetDefault {
        /// The column.
        column: String,
        /// SQL text.
        default: Option<String>,
    },
    /// The table gets another name.
    Rename(TableName),
    /// Other settings.
    SetOptions(TableOptions),
    /// Sets the comment of the table, or of one of its columns.
    Comment {
        /// `None`: the table itself.
        column: Option<String>,
        /// `None` removes the comment.
        text: Option<String>,
    },
}

impl TableDefinition {
    /// The definition after `changes`, in their order.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::AlreadyExists`] name columns, [`Error::Invalid`] says what else is wrong.
    pub fn altered(&self, changes: &[Alteration]) -> Result<Self> {
        let mut altered = self.clone();
        for change in changes {
            altered.apply(change)?;
        }
        altered.check()?;
        Ok(altered)
    }

    fn apply(&mut self, change: &Alteration) -> Result<()> {
        match change {
            Alteration::AddColumn { field, default, value } => self.add_column(field, default.clone(), value.as_ref()),
            Alteration::DropColumn(name) => self.drop_column(name),
            Alteration::RenameColumn { from, to } => self.rename_column(from, to),
            Alteration::DropNotNull(name) => self.drop_not_null(name),
            Alteration::SetDefault { column, default } => {
                self.column_mut(column)?.default.clone_from(default);
                Ok(())
            }
            Alteration::Rename(name) => {
                self.name.clone_from(name);
                Ok(())
            }
            Alteration::SetOptions(options) => {
                self.options.clone_from(options);
                Ok(())
            }
            Alteration::Comment { column: None, text } => {
                self.comment.clone_from(text);
                Ok(())
            }
            Alteration::Comment { column: Some(column), text } => {
                self.column_mut(column)?.comment.clone_from(text);
                Ok(())
            }
        }
    }

    fn position(&self, column: &str) -> Result<usize> {
        let missing = || Error::not_found("column", format!("{}.{column}", self.name));
        self.schema.column_with_name(column).map(|(position, _)| position).ok_or_else(missing)
    }

    fn column_mut(&mut self, name: &str) -> Result<&mut Column> {
        let position = self.position(name)?;
        let missing = || Error::Invalid(format!("column '{name}' has no column record"));
        self.columns.get_mut(position).ok_or_else(missing)
    }

    fn refuse_taken(&self, column: &str) -> Result<()> {
        match self.schema.column_with_name(column) {
            Some(_) => Err(Error::AlreadyExists { kind: "column", name: format!("{}.{column}", self.name) }),
            None => Ok(()),
        }
    }

    fn add_column(&mut self, field: &Field, default: Option<String>, value: Option<&ArrayRef>) -> Result<()> {
        self.refuse_taken(field.name())?;
        let missing = match value {
            Some(value) if value.data_type() == field.data_type() => Constant::new(value)?,
            Some(value) => {
                let name = field.name();
                let want = field.data_type();
                let have = value.data_type();
                return Err(Error::Invalid(format!("the value of column '{name}' is {have}, the column is {want}")));
            }
            None => Constant::null(field.data_type()),
        };
        let column = Column { default, missing: Some(Arc::new(missing)), ..Column::new(ColumnId(self.next_column)) };
        self.next_column += 1;
        self.columns.push(column);
        self.change_fields(|fields| fields.push(Arc::new(field.clone())));
        Ok(())
    }

    fn drop_column(&mut self, name: &str) -> Result<()> {
        let position = self.position(name)?;
        self.columns.remove(position);
        self.change_fields(|fields| drop(fields.remove(position)));
        self.options.cluster_by.retain(|column| column != name);
        if self.primary_key.iter().any(|column| column == name) {
            self.primary_key.clear();
            self.options.enforce_primary_key = false;
        }
        if self.columns.is_empty() {
            return Err(Error::Invalid(format!("'{name}' is the last column of {}; a table needs one", self.name)));
        }
        Ok(())
    }

    fn rename_column(&mut self, from: &str, to: &str) -> Result<()> {
        let position = self.position(from)?;
        self.refuse_taken(to)?;
        self.change_field(position, |field| field.with_name(to));
        let named = self.primary_key.iter_mut().chain(&mut self.options.cluster_by);
        named.filter(|column| *column == from).for_each(|column| to.clone_into(column));
        Ok(())
    }

    fn drop_not_null(&mut self, name: &str) -> Result<()> {
        let position = self.position(name)?;
        if self.primary_key.iter().any(|column| column == name) {
            return Err(Error::Invalid(format!("column '{name}' belongs to the primary key, which cannot have nulls")));
        }
        self.change_field(position, |field| field.with_nullable(true));
        Ok(())
    }

    fn change_field(&mut self, position: usize, change: impl FnOnce(Field) -> Field) {
        self.change_fields(|fields| {
            if let Some(field) = fields.get_mut(position) {
                *field = Arc::new(change(field.as_ref().clone()));
            }
        });
    }

    fn change_fields(&mut self, change: impl FnOnce(&mut Vec<Arc<Field>>)) {
        let mut fields: Vec<Arc<Field>> = self.schema.fields().iter().cloned().collect();
        change(&mut fields);
        self.schema = Arc::new(Schema::new(Fields::from(fields)));
    }
}
