//! Who may use a server, and what for: users with passwords, tokens, tokens of an issuer (JWT), roles and rights.
//!
//! [`Users`] keeps them in memory and in the catalog ([`Records`]). Flight and HTTP ask it for whom a call is made; SQL
//! statements and the command line change it. A server without any user is open to everybody who reaches it.
//!
//! - `audit`: the audit trail
//! - `authority`: what a user may do
//! - `error`: errors of changes and of logins
//! - `grants`: roles, members, owners and grants at one moment
//! - `issuer`: the issuer whose tokens are taken: its keys, and tokens that were right
//! - `jwk`: the public keys of an issuer
//! - `jwt`: which tokens of an issuer are right, and whom they name
//! - `lines`: logs of lines in files
//! - `password`: hashes of passwords
//! - `principal`: for whom a call is made
//! - `record`: what is stored of users, tokens and rights
//! - `right`: rights, and what they are held on
//! - `scope`: what a token is for
//! - `secret`: random secrets, and their fingerprints
//! - `remembered`: passwords that were right a moment ago
//! - `signatures`: signatures of JWT
//! - `users`: all users, tokens and rights of a server

mod audit;
mod authority;
mod error;
#[cfg(test)]
mod fuzz_tests;
mod grants;
mod issuer;
mod jwk;
mod jwt;
mod lines;
mod password;
mod principal;
mod record;
mod remembered;
mod right;
mod scope;
mod secret;
mod signatures;
mod users;

pub use audit::{AuditScope, Ending, Event, EventKind, Origin, Port, Trail, TrailOptions, WhenFull};
pub use authority::{Authority, PolicyClause};
pub use error::{AccessError, LoginError, Result};
pub use grants::PUBLIC;
pub use issuer::{Issuer, KeyFetch, KeySource};
pub use jwt::{JwtAlgorithms, JwtRules};
pub use lines::{Line, LineLog, LogFile, LogOptions, NewestFirst};
pub use principal::{ANONYMOUS, Principal};
pub use record::{MemoryRecords, Records};
pub use right::{Right, Securable};
pub use scope::Scope;
pub use secret::random_secret;
pub use users::{
    ColumnChange, ColumnRights, DefaultGranted, DefaultGranting, Granted, Granting, NewPolicy, NewToken, NewUser,
    Owner, Policy, Role, Token, User, UserChange, Users, WhichRights,
};
