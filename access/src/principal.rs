//! For whom a call is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scope::Scope;

/// Name of the user where a server is open and the client gave none.
pub const ANONYMOUS: &str = "anonymous";

/// For whom a call is made, and how that was shown. Two that are equal may share a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name of the user.
    pub user: String,
    /// Whether everything is allowed, such as to make, change and drop users: a superuser, not by a token with a scope.
    pub is_superuser: bool,
    /// Whether all changes are refused: the token is for reading only.
    pub is_read_only: bool,
    /// What the token is for; `None`: all that its user may do.
    pub(crate) scope: Option<Arc<Scope>>,
    pub(crate) proof: Proof,
}

/// What showed who a caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing is to be shown: a program that has the engine inside.
    Inside,
    /// Nothing: the server was open.
    None,
    /// The password of the configuration.
    Configuration,
    /// The password of a user, whose rights and password then had this version.
    Password { version: String },
    /// The certificate of a client, with the name of a user whose rights and password then had this version; empty for the user
    /// of the configuration.
    Certificate { version: String },
    /// A token, by its name and its fingerprint, of a user whose rights and password then had this version.
    Token { name: String, fingerprint: String, version: String },
    /// A token of an issuer (JWT) with the name of a user whose rights and password then had this version; empty for the user of
    /// the configuration.
    Jwt { version: String, expiry: Expiry },
}

/// When a JWT ends; the same for all clones of a principal. It makes no difference between principals: who shows a renewed token
/// goes on in the same session.
#[derive(Debug, Clone)]
pub(crate) struct Expiry(Arc<AtomicU64>);

impl Expiry {
    pub(crate) fn new(unix_us: u64) -> Self {
        Self(Arc::new(AtomicU64::new(unix_us)))
    }

    pub(crate) fn unix_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for Expiry {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Expiry {}

impl Principal {
    /// A user who showed something that is for all that the user may do.
    pub(crate) fn new(user: &str, is_superuser: bool, proof: Proof) -> Self {
        Self { user: user.to_owned(), is_superuser, is_read_only: false, scope: None, proof }
    }

    /// Whoever calls an open server; everything is allowed as long as it is open.
    pub fn anonymous(user: &str) -> Self {
        let user = if user.is_empty() { ANONYMOUS } else { user };
        Self::new(user, true, Proof::None)
    }

    /// A program that has the engine inside; everything is allowed.
    pub fn inside(user: &str) -> Self {
        Self { proof: Proof::Inside, ..Self::anonymous(user) }
    }

    /// Lets it go on as long as an equal one that was shown later, where that ends later.
    pub fn renew(&self, later: &Self) {
        if let (Proof::Jwt { expiry: own, .. }, Proof::Jwt { expiry: later, .. }) = (&self.proof, &later.proof) {
            own.0.fetch_max(later.unix_us(), Ordering::Relaxed);
        }
    }

    /// Whether it may do whatever another caller may: it is the same user, and what it showed takes no more away.
    pub fn covers(&self, other: &Self) -> bool {
        self.user == other.user
            && (self.scope.is_none() || self.scope == other.scope)
            && (!self.is_read_only || other.is_read_only)
            && (self.is_superuser || !other.is_superuser)
    }

    /// Who owns what the caller makes; `None` where the caller showed nothing.
    pub fn owner_name(&self) -> Option<&str> {
        match self.proof {
            Proof::Inside | Proof::None => None,
            _ => Some(&self.user),
        }
    }

    /// What showed who it is: `password`, `certificate`, `token`, `jwt`, or `nothing`.
    pub fn shown(&self) -> &'static str {
        match self.proof {
            Proof::Inside | Proof::None => "nothing",
            Proof::Configuration | Proof::Password { .. } => "password",
            Proof::Certificate { .. } => "certificate",
            Proof::Token { .. } => "token",
            Proof::Jwt { .. } => "jwt",
        }
    }

    /// What the token is for that was shown; `None`: all that its user may do.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.scope.as_ref()
    }

    /// The name of the token of this server that was shown, if one was.
    pub fn token_name(&self) -> Option<&str> {
        match &self.proof {
            Proof::Token { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(crate) fn has_token(&self) -> bool {
        matches!(self.proof, Proof::Token { .. } | Proof::Jwt { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::right::{Right, Securable};

    #[test]
    fn a_caller_covers_those_of_its_user_who_may_do_no_more() {
        let whole = Principal::new("ann", false, Proof::Password { version: "1".to_owned() });
        let scoped = |right| {
            let mut scope = Scope::default();
            scope.allow(right, Securable::Database);
            Principal { scope: Some(Arc::new(scope)), ..whole.clone() }
        };
        let (reading, writing) = (scoped(Right::Select), scoped(Right::Insert));
        let read_only = Principal { is_read_only: true, ..whole.clone() };
        let by_certificate = Principal::new("ann", false, Proof::Certificate { version: "1".to_owned() });
        let superuser = Principal::new("ann", true, Proof::Configuration);
        let other = Principal::new("bob", true, Proof::Configuration);
        for covered in [&whole, &reading, &read_only, &by_certificate] {
            assert!(whole.covers(covered) && covered.covers(covered), "{covered:?}");
        }
        for (caller, covered) in [
            (&reading, &whole),
            (&reading, &writing),
            (&reading, &read_only),
            (&read_only, &whole),
            (&whole, &superuser),
            (&other, &whole),
        ] {
            assert!(!caller.covers(covered), "{caller:?}, {covered:?}");
        }
        assert!(reading.covers(&scoped(Right::Select)), "another token with an equal scope");
    }
}
