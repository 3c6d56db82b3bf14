//! What a token is for: the rights on objects that it may use of those that its user has.
//!
//! A scope takes away, and gives nothing: whoever shows the token may do what both the scope and the rights of the user allow. It names
//! objects as grants do, and a right on a schema or the database holds for what is in it. Nobody acts as an owner or as a superuser by
//! such a token: what that takes is no right that a scope could name.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::right::{Right, Securable};

/// A right on an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct ScopedRight {
    object: Securable,
    right: Right,
}

/// The rights that a token may use; none: it may do nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scope(BTreeSet<ScopedRight>);

impl Scope {
    /// Lets it use a right on an object.
    pub fn allow(&mut self, right: Right, object: Securable) {
        self.0.insert(ScopedRight { object, right });
    }

    /// Number of its rights.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The rights that it may use on an object, by what it says of the object or of what holds that.
    pub(crate) fn rights_on(&self, object: &Securable) -> BTreeSet<Right> {
        let holders: Vec<Securable> = std::iter::successors(Some(object.clone()), Securable::parent).collect();
        self.0.iter().filter(|scoped| holders.contains(&scoped.object)).map(|scoped| scoped.right).collect()
    }

    /// The objects that it names.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Securable> {
        self.0.iter().map(|scoped| &scoped.object)
    }
}

/// As in CREATE TOKEN: `(SELECT, INSERT ON schema s), (MONITOR ON server)`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<&Securable> = None;
        for ScopedRight { object, right } in &self.0 {
            match before {
                Some(same) if same == object => f.write_str(", ")?,
                Some(other) => write!(f, " ON {other}), (")?,
                None => f.write_str("(")?,
            }
            f.write_str(right.name())?;
            before = Some(object);
        }
        before.map_or(Ok(()), |last| write!(f, " ON {last})"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_model::TableName;

    use super::*;

    #[test]
    fn rights_on_what_holds_an_object_hold_for_it_and_texts_say_all() {
        let mut scope = Scope::default();
        assert_eq!((scope.to_string(), scope.len()), (String::new(), 0));
        let (schema, table) = (Securable::Schema("s".to_owned()), Securable::Table(TableName::new("s", "t")));
        scope.allow(Right::Select, schema.clone());
        scope.allow(Right::Insert, table.clone());
        scope.allow(Right::Update, table.clone());
        scope.allow(Right::Update, table.clone());
        scope.allow(Right::Monitor, Securable::Server);
        let on = |object: &Securable| scope.rights_on(object).into_iter().collect::<Vec<_>>();
        assert_eq!(on(&table), [Right::Select, Right::Insert, Right::Update]);
        assert_eq!(on(&schema), [Right::Select]);
        assert_eq!(on(&Securable::Server), [Right::Monitor]);
        assert_eq!(on(&Securable::Database), []);
        let text = "(MONITOR ON server), (SELECT ON schema s), (INSERT, UPDATE ON table s.t)";
        assert_eq!((scope.to_string().as_str(), scope.len()), (text, 4));
        let json = serde_json::to_string(&scope).unwrap();
        assert_eq!(serde_json::from_str::<Scope>(&json).unwrap(), scope);
    }
}
