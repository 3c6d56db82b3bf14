//! For whom a call is made.

/// Name of the user where a server is open and the client gave none.
pub const ANONYMOUS: &str = "anonymous";

/// For whom a call is made, and how that was shown. Two that are equal may share a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Name of the user.
    pub user: String,
    /// Whether the user may make, change and drop users.
    pub is_superuser: bool,
    /// Whether all changes are refused: the token is for reading only.
    pub is_read_only: bool,
    pub(crate) proof: Proof,
}

/// What showed who a caller is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    /// A token, by its fingerprint, of a user whose rights and password then had this version.
    Token { fingerprint: String, version: String },
}

impl Principal {
    /// Whoever calls an open server; everything is allowed as long as it is open.
    pub fn anonymous(user: &str) -> Self {
        let user = if user.is_empty() { ANONYMOUS } else { user }.to_owned();
        Self { user, is_superuser: true, is_read_only: false, proof: Proof::None }
    }

    /// A program that has the engine inside; everything is allowed.
    pub fn inside(user: &str) -> Self {
        Self { proof: Proof::Inside, ..Self::anonymous(user) }
    }

    pub(crate) fn has_token(&self) -> bool {
        matches!(self.proof, Proof::Token { .. })
    }
}
