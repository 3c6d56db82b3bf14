//! Owners of objects: who made them or got them, also under another name.

use terrace_model::TableName;

use super::Users;
use crate::error::{AccessError, Result};
use crate::grants::PUBLIC;
use crate::principal::Principal;
use crate::record::ObjectRecord;
use crate::right::Securable;

impl Users {
    /// Gives an object to another owner.
    ///
    /// # Errors
    /// For a missing user or role, and for a caller who does not own the object, or is no member of the new owner.
    pub fn give(&self, by: &Principal, object: &Securable, owner: &str) -> Result<()> {
        let _change = self.change(by)?;
        self.authorize_giving(by, object)?;
        if owner == PUBLIC {
            return Err(AccessError::Reserved);
        }
        self.check_grantee(owner)?;
        if !self.authority(by).holds(owner) {
            return Err(AccessError::Denied("an owner who is no superuser gives things only to own roles"));
        }
        let mut grants = self.copied_grants();
        self.update_object(&mut grants, object, |record| record.owner = Some(owner.to_owned()))?;
        self.publish(grants);
        tracing::info!(%object, owner, by = by.user, "owner changed");
        Ok(())
    }

    /// Notes who made an object that was not there before, with the default privileges on it. Grants on an earlier one of its name count
    /// no more.
    ///
    /// # Errors
    /// When the record cannot be written, and for a user who was dropped meanwhile; the object then has no owner.
    pub fn note_made(&self, by: &Principal, object: &Securable) -> Result<()> {
        let _lock = self.changing.lock();
        let owner = self.maker(by)?;
        let grants = owner.as_deref().map_or_else(Vec::new, |owner| self.default_grants(owner, object));
        let made = ObjectRecord { owner, grants, ..ObjectRecord::new(object.clone()) };
        self.replace_object(object, |record| *record = made)
    }

    /// Notes who replaced an object of another owner; grants on it stay.
    ///
    /// # Errors
    /// Those of [`Users::note_made`].
    pub fn note_replaced(&self, by: &Principal, object: &Securable) -> Result<()> {
        let _lock = self.changing.lock();
        let owner = self.maker(by)?;
        self.replace_object(object, |record| record.owner = owner)
    }

    /// Who owns what a caller makes; `None`: nobody, as everything is allowed. The caller holds the lock of changes, so that no
    /// dropped user, and so no later one of the name, gets something.
    fn maker(&self, by: &Principal) -> Result<Option<String>> {
        match by.owner_name() {
            // A user from before the name was reserved, whose things would be everybody's.
            Some(PUBLIC) if by.is_superuser => Ok(None),
            Some(PUBLIC) => Err(AccessError::Reserved),
            Some(name) if !self.is_known(name) => Err(AccessError::Denied("the user of this session was dropped")),
            name => Ok(name.map(str::to_owned)),
        }
    }

    /// Forgets owner and grants of an object that was dropped, and default privileges in a schema that was.
    ///
    /// # Errors
    /// When the record cannot be removed.
    pub fn forget(&self, object: &Securable) -> Result<()> {
        let _lock = self.changing.lock();
        if let Securable::Schema(schema) = object {
            let mut grants = self.copied_grants();
            if self.retain_defaults(&mut grants, |record, _| record.schema != *schema)? {
                self.publish(grants);
            }
        }
        self.replace_object(object, |record| *record = ObjectRecord::new(object.clone()))
    }

    /// Takes owner and grants of a table to its new name.
    ///
    /// # Errors
    /// When the records cannot be written; the table then has no owner.
    pub fn note_renamed(&self, from: &TableName, to: &TableName) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let _lock = self.changing.lock();
        let from = Securable::Table(from.clone());
        let to = Securable::Table(to.clone());
        let moved = self.grants_now().objects.get(&from).cloned();
        self.replace_object(&to, |record| {
            *record = match moved {
                Some(moved) => ObjectRecord { object: to.clone(), ..moved },
                None => ObjectRecord::new(to.clone()),
            };
        })?;
        self.replace_object(&from, |record| *record = ObjectRecord::new(from.clone()))
    }

    /// The owner of an object, if it has one.
    pub fn owner_of(&self, object: &Securable) -> Option<String> {
        self.grants_now().owner(object).map(str::to_owned)
    }
}
