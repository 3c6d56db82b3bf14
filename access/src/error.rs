//! Errors of changes of users, tokens and rights, and of logins. None holds a secret.

use std::time::Duration;

use terrace_model::error::ErrorKind;

use crate::right::Securable;

/// Result of a change of users, tokens and rights.
pub type Result<T, E = AccessError> = std::result::Result<T, E>;

/// Why a change of users, tokens or rights was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AccessError {
    /// A name that cannot be one.
    #[error(
        "'{name}' cannot be the name of a {kind}: it must have 1 to 63 bytes, without ':', '/' and control characters"
    )]
    BadName {
        /// "user", "role" or "token".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A password that cannot be one.
    #[error("the password must have 8 to 1024 bytes")]
    BadPassword,
    /// The name is taken.
    #[error("{kind} '{name}' already exists")]
    Exists {
        /// "user", "role" or "token".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// There is no such user or token.
    #[error("{kind} '{name}' does not exist")]
    Missing {
        /// "user", "role" or "token".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The user of the configuration, whom statements cannot change.
    #[error("'{0}' is the user of the configuration (TERRACE_USER), which statements cannot change")]
    Configured(String),
    /// Nobody could change users any more.
    #[error("{0}")]
    LastSuperuser(&'static str),
    /// The caller lacks the right.
    #[error("{0}")]
    Denied(&'static str),
    /// The caller may not give rights on this object away.
    #[error("permission denied for {0}: only its owner and superusers give rights on it, and its ownership, away")]
    NotOwner(Securable),
    /// A name that stands for everybody.
    #[error("'public' stands for everybody; it is no name of a user or role")]
    Reserved,
    /// A right that cannot be held on such an object.
    #[error("{right} is no right on a {kind}; there are {known}")]
    NotApplicable {
        /// The right.
        right: &'static str,
        /// Kind of the object.
        kind: &'static str,
        /// The rights that there are.
        known: String,
    },
    /// A role would be a member of itself.
    #[error("role '{role}' is a member of '{member}' already, directly or through others")]
    Circle {
        /// The role.
        role: String,
        /// Its member to be.
        member: String,
    },
    /// Roles in roles in roles, too far.
    #[error("roles in roles would be more than {0} deep")]
    TooDeep(usize),
    /// A user or role that owns something.
    #[error(
        "'{name}' cannot be dropped: it owns {objects}; give that to another with ALTER .. OWNER TO, or drop it first"
    )]
    Owns {
        /// The user or role.
        name: String,
        /// What it owns.
        objects: String,
    },
    /// A user or role that a policy names.
    #[error("'{name}' cannot be dropped: it is named by the policy {policies}; drop that first")]
    InPolicy {
        /// The user or role.
        name: String,
        /// The policies.
        policies: String,
    },
    /// Too many users, or tokens of a user.
    #[error("there are {most} {kind}s, which is the limit; drop some first")]
    TooMany {
        /// "user", "role" or "token".
        kind: &'static str,
        /// The limit.
        most: usize,
    },
    /// Many changes wait for each other.
    #[error("too many changes of users, tokens and rights are being made; try again later")]
    Busy,
    /// The password cannot be hashed.
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
    /// What is stored cannot be read.
    #[error("what the catalog holds of {kind} '{name}' cannot be read: {message}")]
    BadRecord {
        /// "user", "role" or "token".
        kind: &'static str,
        /// Its key.
        name: String,
        /// What is wrong with it.
        message: String,
    },
    /// The catalog cannot be read or written.
    #[error(transparent)]
    Catalog(#[from] terrace_model::Error),
}

impl AccessError {
    /// Its kind, by what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::BadName { .. } | Self::BadPassword | Self::Reserved | Self::NotApplicable { .. } => {
                ErrorKind::InvalidArgument
            }
            Self::Exists { .. } => ErrorKind::AlreadyExists,
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Configured(_)
            | Self::LastSuperuser(_)
            | Self::Circle { .. }
            | Self::Owns { .. }
            | Self::InPolicy { .. } => ErrorKind::FailedPrecondition,
            Self::Denied(_) | Self::NotOwner(_) => ErrorKind::PermissionDenied,
            Self::TooMany { .. } | Self::TooDeep(_) | Self::Busy => ErrorKind::ResourceExhausted,
            Self::Hash(_) => ErrorKind::Internal,
            Self::BadRecord { .. } => ErrorKind::DataLoss,
            Self::Catalog(error) => error.kind(),
        }
    }
}

/// Why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginError {
    /// The user does not exist, or has another password.
    Wrong,
    /// Too many passwords are being checked.
    Busy {
        /// Time after which the login may be tried again.
        retry_after: Duration,
    },
}
