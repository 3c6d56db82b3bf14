//! Rights on columns of tables. They are kept beside those on the table as a whole, follow their column to another name, and end with it.

use terrace_model::TableName;

use super::{Users, WhichRights};
use crate::error::{AccessError, Result};
use crate::right::{Right, Securable};

/// Rights of a GRANT or REVOKE on columns.
#[derive(Debug, Clone)]
pub struct ColumnRights {
    /// The rights.
    pub rights: WhichRights,
    /// The columns, which exist.
    pub columns: Vec<String>,
}

/// What ALTER TABLE does to a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnChange {
    /// Its name.
    pub column: String,
    /// Its new name; `None`: it is dropped, or made.
    pub renamed: Option<String>,
}

impl WhichRights {
    /// Those that they are on columns.
    ///
    /// # Errors
    /// For a right that cannot be held on columns.
    pub(super) fn on_columns(&self) -> Result<Vec<Right>> {
        let all = || Right::ALL.into_iter().filter(|right| right.is_on_columns());
        let Self::These(rights) = self else { return Ok(all().collect()) };
        match rights.iter().find(|right| !right.is_on_columns()) {
            Some(wrong) => {
                let known = all().map(Right::name).collect::<Vec<_>>().join(", ");
                Err(AccessError::NotApplicable { right: wrong.name(), kind: "column", known })
            }
            None => Ok(rights.clone()),
        }
    }
}

impl Users {
    /// Takes the rights on columns of a table to their new names, in the order of the changes, and ends those on columns that are
    /// dropped. A column that is made begins with none.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn note_columns_changed(&self, table: &TableName, changes: &[ColumnChange]) -> Result<()> {
        let _lock = self.changing.lock();
        let table = Securable::Table(table.clone());
        let grants = self.grants_now();
        let known = grants.objects.get(&table).map(|record| &record.columns);
        if !known.is_some_and(|known| changes.iter().any(|change| known.contains_key(&change.column))) {
            return Ok(());
        }
        self.replace_object(&table, |record| {
            for ColumnChange { column, renamed } in changes {
                let held = record.columns.remove(column);
                if let Some((held, renamed)) = held.zip(renamed.clone()) {
                    record.columns.insert(renamed, held);
                }
            }
        })
    }
}
